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
    """A tool that fulfils a need of another tool, `needed_by`."""

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
        rating = FIT_WEIGHT * need.tools[tool_id]
        if tool_id in self.places:
            rating += _compare_to_first(self.search.hits, self.places[tool_id])
        return rating


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
            budget: most prerequisites between one match and the next. Further ones follow behind the next match.
            excluded: ids of tools that neither get prerequisites nor are any.
            orders: returns which tools callers usually call before others; None: nothing is learned.
        """
        self.catalogue, self.dependencies, self.budget = catalogue, dependencies, budget
        self.excluded, self.orders = excluded, orders

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        """Insert prerequisites among the hits of each search."""
        learned = {
            tool_id: [Need("learned", {earlier: share}) for earlier, share in sorted(shares.items())]
            for tool_id, shares in (self.orders() if self.orders else {}).items()
        }
        if self.budget < 1 or not (self.dependencies or learned):
            return list(searches)
        return [self._add(search, learned) for search in searches]

    def _add(self, search: Answer, learned: Dependencies) -> Answer:
        """Insert behind the first matches the tools that they need."""
        hits = search.hits
        ranking = _Ranking(search, {hit.id: place for place, hit in enumerate(hits)}, learned)
        dependents = self._find_dependents(ranking)
        if not dependents or parse_selection(search.query) is not None:
            return search  # a query `select:…` gets exactly the tools that it names
        waiting: deque[_Prerequisite] = deque()  # prerequisites that are not in the answer yet
        alternatives = self._collect_alternatives(ranking, dependents)
        listed: list[Hit] = []
        present: set[str] = set()
        steps = {hit.id: hit.step for hit in hits}
        leading = _find_leading(hits)
        for place, hit in enumerate(hits):
            if hit.id in present:
                continue  # it has been added as a prerequisite
            listed.append(hit)
            present.add(hit.id)
            if hit.id in dependents:
                waiting += self._collect(ranking, hit.id, by_names=hit.id in leading)
            if _is_as_good_as_first(hits, place + 1):
                continue  # prerequisites follow behind all matches that are equally good
            if place >= MAX_DEPENDENTS - 1 or len(listed) >= MIN_ALTERNATIVE_PLACE:
                waiting += alternatives
                alternatives = []  # they are added once
            added = self._take(waiting, present)
            next_hit = hits[place + 1] if place + 1 < len(hits) else hit
            listed += _make_hits(added, hit, next_hit, steps)
        return msgspec.structs.replace(search, hits=tuple(listed))

    def _find_dependents(self, ranking: _Ranking) -> list[str]:
        """Return the ids of the first matches that need other tools, without those that score far lower than the first.

        Tools of one source often serve a request together. A weaker match of another source is rarely right, and its
        prerequisites would take the places of better matches, so it needs a higher score.
        """
        dependents, hits = [], ranking.search.hits
        sources: dict[str | None, str] = {}  # step → source of its first match
        for place, hit in enumerate(hits[:MAX_DEPENDENTS]):
            first_source = sources.setdefault(hit.step, _source_of(hit))
            min_score = MIN_DEPENDENT_SCORE if _source_of(hit) == first_source else MIN_STRANGER_SCORE
            has_needs = hit.id in self.dependencies or hit.id in ranking.learned
            if has_needs and hit.id not in self.excluded and _compare_to_first(hits, place) >= min_score:
                dependents.append(hit.id)
        return dependents

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
        """Yield the best tool for each need of a match, then for the needs of these tools, and so on.

        Args:
            ranking: the search.
            match: id of the match.
            by_names: whether to count needs that were inferred from names alone.
        """
        reached, level = {match}, [match]
        for _ in range(MAX_NEED_DEPTH):
            next_level: list[str] = []
            for tool_id in level:
                for need in chain(self.dependencies.get(tool_id, ()), ranking.learned.get(tool_id, ())):
                    if need.origin == "named" and not by_names:
                        continue
                    best = self._find_provider(ranking, need)
                    if best is None or best in reached or ranking.is_before(best, match):
                        continue  # there is none, or it is in the answer before this place
                    reached.add(best)
                    next_level.append(best)
                    yield _Prerequisite(best, tool_id, need)
            level = next_level

    def _collect_alternatives(self, ranking: _Ranking, dependents: Sequence[str]) -> list[_Prerequisite]:
        """Return further suppliers of the ids that the first matches need, each with the best supplier of its own ids.

        The best supplier may be the wrong one. For "the latest book *by Eco*", it may be the search for books, while
        the list of an author's books is right. At most the budget is returned.
        """
        found: dict[str, _Prerequisite] = {}  # by tool id
        inferred = [
            (match, need)
            for match in dependents
            for need in self.dependencies.get(match, ())
            if need.origin == "inferred"
        ]
        for match, need in inferred:
            others = self._rank_providers(ranking, need)[1:]  # the best one follows its match anyway
            for provider in others[:MAX_OTHER_SUPPLIERS]:
                found.setdefault(provider, _Prerequisite(provider, match, need))
                for own_need in self.dependencies.get(provider, ()):
                    best = self._find_provider(ranking, own_need)
                    if best is not None:
                        found.setdefault(best, _Prerequisite(best, provider, own_need))
        return list(found.values())[: self.budget]

    def _find_provider(self, ranking: _Ranking, need: Need) -> str | None:
        """Return the best tool that fulfils a need; None if the caller may see none."""
        return next(iter(self._rank_providers(ranking, need)), None)

    def _rank_providers(self, ranking: _Ranking, need: Need) -> list[str]:
        """Return the tools that fulfil a need and that the caller may see, the best first."""
        candidates = [tool_id for tool_id in need.tools if self._may_add(ranking.search, tool_id)]
        return sorted(candidates, key=lambda tool_id: (-ranking.rate(need, tool_id), tool_id))

    def _may_add(self, search: Answer, tool_id: str) -> bool:
        """Tell whether a tool is in the catalogue, is not excluded, and may be seen by the caller."""
        position = self.catalogue.position(tool_id)
        if position is None or tool_id in self.excluded:
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
        n_before = sum(other.role == "prerequisite" for other in result.hits[:rank])
        return Explanation(self.name, rank + 1, hit.score, f"prerequisites before it: {n_before}" if n_before else "")


def _source_of(hit: Hit) -> str:
    return hit.id.partition("/")[0]


def _find_leading(hits: Sequence[Hit]) -> set[str]:
    """Return the ids of the matches that get prerequisites by names alone.

    These are the first matches of each step that are of the same source as its very first match.
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


def _is_as_good_as_first(hits: Sequence[Hit], place: int) -> bool:
    """Tell whether there is a hit at a place that is as good as the first one. Only the first few hits may be."""
    if place >= min(MAX_EQUAL_MATCHES, len(hits)):
        return False
    return _compare_to_first(hits, place) >= MIN_EQUAL_SCORE


def _compare_to_first(hits: Sequence[Hit], place: int) -> float:
    """Return a hit's score as a share of the first hit's score, 0 to 1.

    If scores are below zero, such as logarithms of probabilities, both are measured from the lowest.
    """
    lowest = min(0.0, hits[-1].score)
    span = hits[0].score - lowest
    return (hits[place].score - lowest) / span if span > 0 else 1.0


def _make_hits(
    prerequisites: Sequence[_Prerequisite], before: Hit, behind: Hit, steps: dict[str, str | None]
) -> list[Hit]:
    """Turn prerequisites into hits, with scores between those of the matches before and behind them.

    A prerequisite serves the step of the tool that needs it. `steps` maps tools to steps; the new ones are added.
    """
    score_gap = (before.score - behind.score) / (len(prerequisites) + 1)
    hits = []
    for number, prerequisite in enumerate(prerequisites, 1):
        step = steps.get(prerequisite.needed_by)
        steps[prerequisite.tool_id] = step
        score = before.score - score_gap * number
        hits.append(Hit(prerequisite.tool_id, score, _describe(prerequisite), step=step, role="prerequisite"))
    return hits


def _describe(prerequisite: _Prerequisite) -> str:
    """Say in a few words which tool needs a prerequisite, and how that is known."""
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

    The settings are `prerequisites`, the budget, and `dependencies`, which the user declares. See `Prerequisites` for
    the rest.
    """
    dependencies: Dependencies = {}
    if settings.prerequisites:
        parts = (text.partition("=") for text in settings.dependencies)  # TOOL=PREREQUISITE
        pairs = [(tool_id, prerequisite) for tool_id, _, prerequisite in parts]
        dependencies = add_declared(find_dependencies(catalogue), pairs)
    return Prerequisites(catalogue, dependencies, budget=settings.prerequisites, excluded=excluded, orders=orders)


# --- the order of calls ----------------------------------------------------------------------------------------------


class CallOrder:
    """Learns from the journal which tools are usually called before which. Thread-safe."""

    def __init__(self, open_journal: Callable[[], Journal], *, trusted: Container[str] = ()) -> None:
        """Follow a journal, which is read at the first call. One of the `trusted` callers alone can show an order."""
        self._open_journal, self._trusted = open_journal, trusted
        self._lock = threading.Lock()
        self._last_row: int | None = None  # row of the last event that was read; None: no event was read
        self._running: dict[str, tuple[float, list[str]]] = {}  # caller → seconds of the last call, tools of the task
        self._tasks: dict[str, Counter[str]] = defaultdict(Counter)  # tool → caller → tasks
        self._ordered: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)  # (earlier, later) → caller → tasks
        self._shares: dict[str, dict[str, float]] = {}  # tool → earlier tool → share of tasks
        self._read_at = float("-inf")  # monotonic seconds of the last look into the journal

    def __call__(self) -> Mapping[str, Mapping[str, float]]:
        """Return tool → tool that is usually called before it → share of its tasks.

        New calls count within `REFRESH_AFTER_S`. While the journal cannot be read, only earlier calls count.
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
        """Read the calls that are new in the journal. The first time, only the newest events are read."""
        journal = self._open_journal()
        newest_row = journal.last()
        last_row = self._last_row
        if last_row is None:
            last_row = max(0, newest_row - MAX_ORDER_EVENTS)
        if newest_row <= last_row:
            return
        for event in journal.read(event="call", after=last_row):
            self._add(event)
        self._last_row = newest_row
        self._shares = self._find_orders()

    def _add(self, event: Mapping[str, Any]) -> None:
        """Count one successful call, as part of its caller's running task or as the first one of a new task."""
        tool, caller, seconds = event.get("tool"), event["caller"], _read_instant(event["at"])
        if not event.get("ok") or not isinstance(tool, str) or seconds is None:
            return
        last_seconds, task_tools = self._running.get(caller, (seconds, []))
        if abs(seconds - last_seconds) > TASK_PAUSE_S:
            task_tools = []
        if tool not in task_tools and len(task_tools) < MAX_TASK_TOOLS:
            self._tasks[tool][caller] += 1
            for earlier in task_tools:
                self._ordered[earlier, tool][caller] += 1
            task_tools = [*task_tools, tool]
        self._running[caller] = (seconds, task_tools)

    def _find_orders(self) -> dict[str, dict[str, float]]:
        """Return tool → earlier tool → share of its tasks, for pairs that are usually called in this order."""
        orders: dict[str, dict[str, float]] = {}
        for (earlier, later), callers in self._ordered.items():
            if len(callers) < MIN_ORDER_CALLERS and not any(caller in self._trusted for caller in callers):
                continue
            tasks = self._tasks[later]  # caller → number of tasks
            # A caller with many tasks counts as one with `MAX_TASKS_PER_CALLER`, so that nobody decides alone.
            weights = {caller: min(1.0, MAX_TASKS_PER_CALLER / count) for caller, count in tasks.items()}
            total = sum(count * weights[caller] for caller, count in tasks.items())
            ordered = sum(count * weights[caller] for caller, count in callers.items())
            # The reverse order counts without weights, so that in doubt no order is learned.
            reverse = sum(self._ordered.get((later, earlier), Counter()).values())
            if ordered >= MIN_ORDERED_TASKS and ordered / total >= MIN_ORDERED_SHARE and ordered > reverse:
                orders.setdefault(later, {})[earlier] = ordered / total
        return orders


def _read_instant(text: object) -> float | None:
    """Return the seconds since 1970 of an ISO instant; None for another text, which imported events may have."""
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
