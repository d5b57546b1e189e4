"""Prerequisites: brings the tools that the first matches need into the answer.

A tool may need another one before it can be called: for an id that the other supplies, or for a service that it
switches on. The query says nothing of such tools, so no ranking finds them. They get the role `prerequisite` and follow
the *match* (a hit that was ranked) that needs them, the direct ones first. The order of the matches stays as it is.

A *need* (`search.relations.dependencies.Need`) lists the tools that can provide one thing. Some needs are declared,
some are inferred from an API, some from names alone. Others are learned from the order of calls in the journal. A task
is a run of calls of one caller without a long pause. Only successful calls count, and of each tool the first. Nobody
can change the answers of others alone: an order counts if a trusted caller follows it, or two callers do.

The numbers below were chosen on train and dev requests of toollinkos, and on requests written for five OpenAPI
documents that no dataset uses (benchmarks/LAB.md).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.errors import StoreError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.journal.journal import Journal
from toolscout.search.exact_names import parse_selection
from toolscout.search.pipeline import Stage
from toolscout.search.relations.dependencies import (
    Dependencies,
    Need,
    add_declared,
    find_dependencies,
)
from toolscout.settings import Settings
from toolscout.types import Answer, Explanation, Hit

__all__ = ["CallOrder", "Orders", "Prerequisites", "bring_prerequisites"]

Orders = Callable[[], Mapping[str, Mapping[str, float]]]
"""() → tool → tool that is usually called before it → share of the tasks; see `CallOrder`."""

_log: Final = logging.getLogger("toolscout.search")
MAX_DEPENDENTS: Final = 5  # first matches, which may get prerequisites
MAX_NAMED_DEPENDENTS: Final = 3  # first matches of a step, which may get prerequisites that names alone suggest
MIN_DEPENDENT_SCORE: Final = 0.5  # share of the first match's score that a match must have to get prerequisites
MIN_STRANGER_SCORE: Final = 0.7  # the same for a match of another source than the first one
MAX_EQUAL_MATCHES: Final = 3  # matches that may come before the first prerequisite
MIN_EQUAL_SCORE: Final = 0.95  # share of the first match's score from which a match is as good as the first
MAX_NEED_DEPTH: Final = 6  # of needs of needs
MAX_OTHER_SUPPLIERS: Final = 3  # further suppliers of one id
MIN_ALTERNATIVE_PLACE: Final = 5  # hits before the first further supplier
MAX_ORDER_EVENTS: Final = 30_000  # newest events that are read at the start
TASK_PAUSE_S: Final = 600.0  # a longer pause of a caller ends the task
MAX_TASK_TOOLS: Final = 20  # tools of one task that count
MIN_ORDERED_TASKS: Final = 5  # tasks that must show an order
MIN_ORDERED_SHARE: Final = 0.6  # share of the tasks with the later tool that must show it
MIN_ORDER_CALLERS: Final = 2  # callers that must show it, unless one of them is trusted
MAX_TASKS_PER_CALLER: Final = 50  # a caller with more counts like one with so many
REFRESH_AFTER_S: Final = 30.0  # from one look into the journal to the next
FIT_WEIGHT: Final = 2.0  # of how well a tool supplies an id (0 to 1), beside 1 for its score in the search (0 to 1)


class _Prerequisite(NamedTuple):
    """A tool that a match needs, perhaps through another tool.

    Attributes:
        tool_id: its id.
        needed_by: the tool that needs it directly.
        need: the need that it fulfils.
    """

    tool_id: str
    needed_by: str
    need: Need


class _Ranking(NamedTuple):
    """The hits of one search, and the dependencies that hold for it.

    Attributes:
        search: with hits.
        places: tool id → place among the hits, from 0.
        learned: dependencies that the calls in the journal show.
    """

    search: Answer
    places: Mapping[str, int]
    learned: Dependencies

    def is_before(self, tool_id: str, match: str) -> bool:
        """Tell whether a tool is among the hits and ranks above a match."""
        return tool_id in self.places and self.places[tool_id] < self.places[match]

    def rate(self, need: Need, tool_id: str) -> float:
        """Rate how well a tool fulfils a need, 0 to 3: by its fit, and by its score if it is among the hits."""
        score = _compare_to_first(self.search.hits, self.places[tool_id]) if tool_id in self.places else 0.0
        return FIT_WEIGHT * need.tools[tool_id] + score


class Prerequisites(Stage):
    """Puts the prerequisites of the first matches behind them."""

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits"})

    def __init__(
        self,
        catalogue: Catalogue,
        dependencies: Dependencies,
        *,
        budget: int,
        excluded: AbstractSet[str] = frozenset(),
        orders: Orders | None = None,
    ) -> None:
        """Add prerequisites by these dependencies.

        Args:
            catalogue: the snapshot, which says what a caller may see.
            dependencies: of the snapshot.
            budget: most prerequisites between one match and the next; what is left follows behind the next match.
            excluded: ids of tools that neither get prerequisites nor are any.
            orders: returns which tools callers usually call before others; None: nothing is learned.
        """
        self.catalogue, self.dependencies, self.budget = catalogue, dependencies, budget
        self.excluded, self.orders = excluded, orders

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        """Return the searches with prerequisites among their hits."""
        learned = {
            tool_id: [Need("learned", {earlier: share}) for earlier, share in sorted(shares.items())]
            for tool_id, shares in (self.orders() if self.orders else {}).items()
        }
        if self.budget < 1 or not (self.dependencies or learned):
            return list(searches)
        return [self._add(search, learned) for search in searches]

    def _add(self, search: Answer, learned: Dependencies) -> Answer:
        """Insert behind the first matches the tools that they need. A query `select:…` gets no further tools."""
        ranking = _Ranking(search, {hit.id: place for place, hit in enumerate(search.hits)}, learned)
        dependents = self._find_dependents(ranking)
        if not dependents or parse_selection(search.query) is not None:
            return search
        waiting: deque[_Prerequisite] = deque()  # found, and not yet in the answer
        alternatives = self._collect_alternatives(ranking, dependents)
        listed: list[Hit] = []
        present: set[str] = set()
        steps = {hit.id: hit.step for hit in search.hits}
        leading = _find_leading(search.hits)
        for place, hit in enumerate(search.hits):
            if hit.id in present:
                continue
            listed.append(hit)
            present.add(hit.id)
            if hit.id in dependents:
                waiting += self._collect(ranking, hit.id, by_names=hit.id in leading)
            if _equals_first(search.hits, place + 1):
                continue  # no prerequisite separates matches that are equally good
            if place >= MAX_DEPENDENTS - 1 or len(listed) >= MIN_ALTERNATIVE_PLACE:
                waiting += alternatives
                alternatives = []  # they are added once
            added = self._take(waiting, present)
            listed += _as_hits(added, search.hits[place : place + 2], steps)
        return msgspec.structs.replace(search, hits=tuple(listed))

    def _find_dependents(self, ranking: _Ranking) -> list[str]:
        """Return the ids of the first matches that need other tools, without those that score far lower than the first.

        Tools of one API serve a request together, so that what a weaker match needs may be needed too. A weaker match
        of another source is rarely right, and what it needs would take the places of better matches.
        """
        hits = ranking.search.hits
        sources: dict[str | None, str] = {}  # step → source of its first match
        for hit in hits[:MAX_DEPENDENTS]:
            sources.setdefault(hit.step, _source_of(hit))
        return [
            hit.id
            for place, hit in enumerate(hits[:MAX_DEPENDENTS])
            if _compare_to_first(hits, place)
            >= (MIN_DEPENDENT_SCORE if _source_of(hit) == sources[hit.step] else MIN_STRANGER_SCORE)
            and hit.id not in self.excluded
            and (hit.id in self.dependencies or hit.id in ranking.learned)
        ]

    def _take(self, waiting: deque[_Prerequisite], present: set[str]) -> list[_Prerequisite]:
        """Take the next prerequisites that are not present yet, at most the budget, and add them to `present`."""
        taken: list[_Prerequisite] = []
        while waiting and len(taken) < self.budget:
            prerequisite = waiting.popleft()
            if prerequisite.tool_id not in present:
                present.add(prerequisite.tool_id)
                taken.append(prerequisite)
        return taken

    def _collect(self, ranking: _Ranking, match: str, by_names: bool) -> Iterator[_Prerequisite]:
        """Yield what a match needs, then what these tools need, and so on.

        For each need, this is the best tool, or nothing if the best one is a hit before the match.

        Args:
            ranking: the search.
            match: id of the match.
            by_names: whether needs count that were inferred from names alone.
        """
        reached, level = {match}, [match]
        for _ in range(MAX_NEED_DEPTH):
            next_level: list[str] = []
            for tool_id in level:
                for need in self._list_needs(ranking, tool_id):
                    if need.origin == "named" and not by_names:
                        continue
                    best = next(iter(self._rank_providers(ranking, need)), None)
                    if best is None or best in reached or ranking.is_before(best, match):
                        continue
                    reached.add(best)
                    next_level.append(best)
                    yield _Prerequisite(best, tool_id, need)
            if not next_level:
                return
            level = next_level

    def _collect_alternatives(self, ranking: _Ranking, dependents: Sequence[str]) -> list[_Prerequisite]:
        """Return further suppliers of the ids that the first matches need, each with the best supplier of its own ids.

        An id can be found in several ways, and the best supplier may be the wrong one: for "the latest book *by Eco*",
        the search for books rather than the list of an author's books. At most the budget is returned.
        """
        found: dict[str, _Prerequisite] = {}  # by tool id
        for match in dependents:
            for need in self.dependencies.get(match, ()):
                providers = self._rank_providers(ranking, need) if need.origin == "inferred" else []
                for provider in providers[1 : 1 + MAX_OTHER_SUPPLIERS]:  # the first follows its match
                    found.setdefault(provider, _Prerequisite(provider, match, need))
                    for inner in self.dependencies.get(provider, ()):
                        for best in self._rank_providers(ranking, inner)[:1]:
                            found.setdefault(best, _Prerequisite(best, provider, inner))
        return list(found.values())[: self.budget]

    def _list_needs(self, ranking: _Ranking, tool_id: str) -> Iterator[Need]:
        return chain(self.dependencies.get(tool_id, ()), ranking.learned.get(tool_id, ()))

    def _rank_providers(self, ranking: _Ranking, need: Need) -> list[str]:
        """Return the tools that fulfil a need and that the caller may see, the best first."""
        candidates = [tool_id for tool_id in need.tools if self._may_add(ranking.search, tool_id)]
        return sorted(candidates, key=lambda tool_id: (-ranking.rate(need, tool_id), tool_id))

    def _may_add(self, search: Answer, tool_id: str) -> bool:
        """Tell whether a tool is in the catalogue, is not excluded, and may be seen by the caller."""
        position = None if tool_id in self.excluded else self.catalogue.position(tool_id)
        if position is None:
            return False
        mask = self.catalogue.mask(search.visible)
        return mask is None or bool(mask[position])

    def note(self, search: Answer) -> str:
        """Return how many prerequisites are among the hits."""
        count = sum(hit.role == "prerequisite" for hit in search.hits)
        return f"{count} added" if count else ""

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        """Return the rank of a tool among matches and prerequisites; None if the stage added nothing."""
        [result] = self.run([search])
        if result.hits == search.hits or tool_id not in result.ids:
            return None
        rank = result.ids.index(tool_id)
        hit = result.hits[rank]
        if hit.role == "prerequisite":
            return Explanation(self.name, rank + 1, hit.score, hit.why)
        before = sum(other.role == "prerequisite" for other in result.hits[:rank])
        return Explanation(self.name, rank + 1, hit.score, f"prerequisites before it: {before}" if before else "")


def _source_of(hit: Hit) -> str:
    return hit.id.partition("/")[0]


def _find_leading(hits: Sequence[Hit]) -> set[str]:
    """Return the ids of the first matches of each step, without those of another source than its first match.

    Only these get prerequisites that names alone suggest.
    """
    by_step = defaultdict[str | None, list[Hit]](list)
    for hit in hits:
        by_step[hit.step].append(hit)
    return {
        match.id
        for matches in by_step.values()
        for match in matches[:MAX_NAMED_DEPENDENTS]
        if _source_of(match) == _source_of(matches[0])
    }


def _equals_first(hits: Sequence[Hit], place: int) -> bool:
    """Tell whether the hit at a place is as good as the first, so that it comes before the first prerequisite."""
    return 0 < place < min(MAX_EQUAL_MATCHES, len(hits)) and _compare_to_first(hits, place) >= MIN_EQUAL_SCORE


def _compare_to_first(hits: Sequence[Hit], place: int) -> float:
    """Return a hit's score as a share of the first hit's score, 0 to 1.

    If scores are below zero, such as logarithms of probabilities, both are measured from the lowest.
    """
    lowest = min(0.0, hits[-1].score)
    span = hits[0].score - lowest
    return (hits[place].score - lowest) / span if span > 0 else 1.0


def _as_hits(prerequisites: Sequence[_Prerequisite], around: Sequence[Hit], steps: dict[str, str | None]) -> list[Hit]:
    """Turn prerequisites into hits, with scores between those of the matches around them.

    Args:
        prerequisites: in the order of the answer.
        around: the match before them, and the match behind them if there is one.
        steps: tool → step of the request that it serves. A prerequisite serves the step of the tool that needs it; the
            new ones are added.
    """
    before, behind = around[0], around[-1]  # behind the last match, both are the last match
    score_step = (before.score - behind.score) / (len(prerequisites) + 1)
    hits = []
    for number, prerequisite in enumerate(prerequisites, 1):
        step = steps[prerequisite.tool_id] = steps.get(prerequisite.needed_by)
        score = before.score - score_step * number
        hits.append(Hit(prerequisite.tool_id, score, _describe(prerequisite), step=step, role="prerequisite"))
    return hits


def _describe(prerequisite: _Prerequisite) -> str:
    """Say in a few words which tool needs it, and how that is known."""
    needed_by, need = prerequisite.needed_by, prerequisite.need
    if need.origin in ("inferred", "named"):
        return f"supplies the {need.what} that {needed_by} needs"
    return f"required by {needed_by}" if need.origin == "declared" else f"usually called before {needed_by}"


def bring_prerequisites(
    catalogue: Catalogue,
    settings: Settings,
    *,
    excluded: AbstractSet[str] = frozenset(),
    orders: Orders | None = None,
) -> Prerequisites:
    """Build the stage that adds the prerequisites of the first matches.

    Args:
        catalogue: the snapshot.
        settings: `prerequisites`, the budget, and `dependencies`, which the user declares.
        excluded: ids of tools that neither get prerequisites nor are any.
        orders: as in `Prerequisites`.
    """
    dependencies: Dependencies = {}
    if settings.prerequisites:
        pairs = [pair.partition("=")[::2] for pair in settings.dependencies]  # TOOL=PREREQUISITE
        dependencies = add_declared(find_dependencies(catalogue), pairs)
    return Prerequisites(catalogue, dependencies, budget=settings.prerequisites, excluded=excluded, orders=orders)


# --- the order of calls ----------------------------------------------------------------------------------------------


class CallOrder:
    """Learns from the journal which tools are usually called before which. Thread-safe."""

    def __init__(self, open_journal: Callable[[], Journal], *, trusted: Container[str] = ()) -> None:
        """Follow a journal, whose newest events are read at the first call.

        Args:
            open_journal: returns the journal.
            trusted: callers whose calls alone are enough to show an order.
        """
        self._open_journal, self._trusted = open_journal, trusted
        self._lock = threading.Lock()
        self._row: int | None = None  # of the last event that was read
        self._running: dict[str, tuple[float, list[str]]] = {}  # caller → seconds of the last call, tools of the task
        self._tasks: dict[str, Counter[str]] = defaultdict(Counter)  # tool → caller → tasks
        self._before: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)  # (earlier, later) → caller → tasks
        self._shares: dict[str, dict[str, float]] = {}  # tool → earlier tool → share of tasks
        self._read_at = float("-inf")  # monotonic seconds of the last look into the journal

    def __call__(self) -> Mapping[str, Mapping[str, float]]:
        """Return tool → tool that is usually called before it → share of its tasks. New calls count within 30 s.

        If the journal cannot be read, the calls that were read before count.
        """
        with self._lock:
            if time.monotonic() - self._read_at >= REFRESH_AFTER_S:
                self._read_at = time.monotonic()
                try:
                    self._read_new()
                except StoreError as error:
                    _log.warning("The order of calls is not read from the journal: %s", error)
            return self._shares

    def _read_new(self) -> None:
        """Read the calls since the last time; the first time, among the newest `MAX_ORDER_EVENTS` events."""
        journal = self._open_journal()
        last = journal.last()
        row = max(0, last - MAX_ORDER_EVENTS) if self._row is None else self._row
        if last <= row:
            return
        for event in journal.read(event="call", after=row):
            self._add(event)
        self._row = last
        self._shares = self._find_orders()

    def _add(self, event: Mapping[str, Any]) -> None:
        """Count one successful call, as part of its caller's running task or as the first one of a new task."""
        tool, caller, seconds = event.get("tool"), event["caller"], _read_instant(event["at"])
        if not event.get("ok") or not isinstance(tool, str) or seconds is None:
            return
        last_seconds, earlier = self._running.get(caller, (seconds, []))
        if abs(seconds - last_seconds) > TASK_PAUSE_S:
            earlier = []
        if tool not in earlier and len(earlier) < MAX_TASK_TOOLS:
            self._tasks[tool][caller] += 1
            for other in earlier:
                self._before[other, tool][caller] += 1
            earlier = [*earlier, tool]
        self._running[caller] = (seconds, earlier)

    def _find_orders(self) -> dict[str, dict[str, float]]:
        """Return tool → earlier tool → share of its tasks, for pairs that are usually called in this order.

        A caller with many tasks counts as one with `MAX_TASKS_PER_CALLER`, so that nobody decides alone.
        """
        orders: dict[str, dict[str, float]] = {}
        for (earlier, later), callers in self._before.items():
            if len(callers) < MIN_ORDER_CALLERS and not any(caller in self._trusted for caller in callers):
                continue
            tasks = self._tasks[later]  # caller → number
            weights = {caller: min(1.0, MAX_TASKS_PER_CALLER / count) for caller, count in tasks.items()}
            total = sum(count * weights[caller] for caller, count in tasks.items())
            ordered = sum(count * weights[caller] for caller, count in callers.items())
            # The reverse order counts without weights, so that in doubt no order is learned.
            reverse = sum(self._before.get((later, earlier), Counter()).values())
            if ordered >= MIN_ORDERED_TASKS and ordered / total >= MIN_ORDERED_SHARE and ordered > reverse:
                orders.setdefault(later, {})[earlier] = ordered / total
        return orders


def _read_instant(text: object) -> float | None:
    """Return the seconds since 1970 of an ISO instant; None for another text, which imported events may have."""
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
