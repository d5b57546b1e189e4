"""Searches each step of a compound request by itself, and merges the answers so that every step is served.

The unsplit request competes as one more list. A candidate's score becomes the probability that it is the right tool of
its step: a softmax over the step's candidates, with a temperature in points of the base. Places go one by one to the
list that gains most: first the best tool of each list, then the tool that raises the probability of a complete answer
most. So a step with one clear tool leaves its places to steps with several likely ones. If all steps have the same best
tool, the request is one need after all.

A request with one step is passed on unchanged.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from typing import Final

import msgspec

from toolscout.search.exact_names import parse_selection
from toolscout.search.pipeline import Stage, Verdict
from toolscout.search.steps import Splitter, is_command
from toolscout.types import Explanation, Hit, Search, Trace

__all__ = ["StepSearch", "merge_steps"]

TEMPERATURE: Final = 2.0  # in points of `search.fusion`; 1 to 4 give nearly the same on dev
MIN_MERGED_HITS: Final = 20  # so many places are given out one by one, or k; the others follow by score
MIN_LIST_HITS: Final = 30  # so many hits of each list are read, or k
SOFTMAX_CANDIDATES: Final = 30
MAX_RANK_OF_STEP: Final = 10  # a hit of the unsplit request belongs to a step that ranks it among so many

Judge = Callable[[Sequence[Search]], Sequence[Verdict | None]]


class StepSearch(Stage):
    """Splits each request into steps, searches the steps and the request with `base`, and merges the hits."""

    writes = frozenset({"hits", "steps", "uncovered"})

    def __init__(self, base: Stage, splitter: Splitter, judge: Judge | None = None) -> None:
        """Search with a base.

        Args:
            base: ranks the tools for one text.
            splitter: splits requests.
            judge: tells whether a tool fits a step; see `toolscout.abstain.decision`. None: every step is served.
        """
        self.base, self.splitter, self.judge = base, splitter, judge
        self.asks = base.asks

    @property
    def name(self) -> str:
        """The stage's name in traces and messages."""
        return "steps"

    def run(self, searches: Sequence[Search]) -> list[Search]:
        """Return the searches with hits; those with several steps also with `steps` and `uncovered`."""
        splits = [self._split(search) for search in searches]
        batch: list[Search] = []
        for search, steps in zip(searches, splits, strict=True):
            batch += [search, *_as_searches(search, steps)]
        ranked = iter(self.base(batch))
        groups = [(next(ranked), [next(ranked) for _ in steps]) for steps in splits]
        verdicts = iter(self._judge_steps([part for _, parts in groups for part in parts]))
        return [
            self._merge(search, whole, parts, [next(verdicts) for _ in parts]) if parts else whole
            for search, (whole, parts) in zip(searches, groups, strict=True)
        ]

    def _split(self, search: Search) -> tuple[str, ...]:
        """Return the steps to search one by one; empty for one need."""
        if not search.split or search.rewrites or parse_selection(search.query) is not None:
            return ()
        steps = self.splitter.split(search.query)
        return steps if len(steps) > 1 else ()

    def _judge_steps(self, parts: Sequence[Search]) -> Sequence[Verdict | None]:
        return self.judge(parts) if self.judge and parts else [None] * len(parts)

    def _merge(
        self, search: Search, whole: Search, parts: Sequence[Search], verdicts: Sequence[Verdict | None]
    ) -> Search:
        """Return the search with the merged hits. Steps that no tool fits get places after the others."""
        steps = tuple(part.query for part in parts)
        fits = [verdict is None or verdict.answer is None for verdict in verdicts]
        needs = [verdict.need for verdict in verdicts if verdict is not None and verdict.answer is None]
        uncovered = tuple(
            part.query
            for part, verdict in zip(parts, verdicts, strict=True)
            if verdict is not None
            and (verdict.answer == "no_tool_fits" or (verdict.answer is not None and is_command(part.query)))
        )
        bests = {part.hits[0].id for part, fit in zip(parts, fits, strict=True) if fit and part.hits}
        if len(bests) == 1 and all(fits):
            return msgspec.structs.replace(whole, trace=(*search.trace, *_add_traces(search, [whole, *parts])))
        served = [part.hits for part, fit in zip(parts, fits, strict=True) if fit]
        names = [part.query for part, fit in zip(parts, fits, strict=True) if fit]
        k = max(search.k, MIN_MERGED_HITS)
        hits = merge_steps([whole.hits, *served], [None, *names], k) if served else whole.hits
        return msgspec.structs.replace(
            search,
            hits=hits,
            steps=steps,
            uncovered=uncovered,
            need=max(needs, default=search.need),
            trace=(*search.trace, *_add_traces(search, [whole, *parts])),
        )

    def note(self, search: Search) -> str:
        """Return how many steps there are."""
        return f"{len(search.steps)} steps" if search.steps else ""

    def explain(self, search: Search, tool_id: str) -> Explanation | None:
        """Return the rank among the merged hits, with the explanation for the step that ranks the tool best."""
        steps = self._split(search)
        if not steps:
            return self.base.explain(search, tool_id)
        explained = [
            (step, explanation)
            for step, part in zip(steps, _as_searches(search, steps), strict=True)
            if (explanation := self.base.explain(part, tool_id)) is not None
        ]
        if not explained:
            return None
        step, best = min(explained, key=lambda pair: pair[1].rank or math.inf)
        [merged] = self.run([search])
        rank = merged.ids.index(tool_id) + 1 if tool_id in merged.ids else None
        score = merged.hits[rank - 1].score if rank else None
        return Explanation(self.name, rank, score, f"for the step “{step}”", parts=(best,))


def _as_searches(search: Search, steps: Sequence[str]) -> list[Search]:
    return [msgspec.structs.replace(search, query=step, trace=()) for step in steps]


def _add_traces(search: Search, results: Sequence[Search]) -> list[Trace]:
    """Return the work of each inner stage for a request and its steps together."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for number, result in enumerate(results):
        for entry in result.trace[len(search.trace) if number == 0 else 0 :]:
            seconds[entry.stage] += entry.seconds
    return [Trace(stage, total) for stage, total in seconds.items()]


class _Queue:
    """The hits of one list that still wait for a place, and how far the list is covered."""

    def __init__(self, hits: Sequence[Hit], step: str | None) -> None:
        self.hits, self.step = hits, step
        self.shares = _softmax(hits[:SOFTMAX_CANDIDATES])
        self.place, self.coverage = 0, 0.0

    def measure_gain(self, taken: Container[str]) -> float:
        """Pass the hits that are taken, and return what the next hit gains; negative: there is none.

        A gain is the relative rise of the coverage: the probability that the list's right tool is in the answer.
        """
        while self.place < len(self.hits) and self.hits[self.place].id in taken:
            self.coverage += self._share()
            self.place += 1
        if self.place >= len(self.hits):
            return -1.0
        return self._share() / self.coverage if self.coverage else math.inf

    def _share(self) -> float:
        return self.shares[self.place] if self.place < len(self.shares) else 0.0


def merge_steps(lists: Sequence[Sequence[Hit]], names: Sequence[str | None], k: int) -> tuple[Hit, ...]:
    """Merge ranked lists, one for each need, so that the first hits most likely hold a right tool of every list.

    Args:
        lists: hits, best first.
        names: the step of each list; None: the unsplit request.
        k: how many places are given out one by one. The other hits follow by score.

    Returns:
        Every tool once, with the step of the list that gave it its place, and scores that never rise.
    """
    depth = max(k, MIN_LIST_HITS)
    queues = [_Queue(hits[:depth], name) for hits, name in zip(lists, names, strict=True)]
    taken: dict[str, Hit] = {}
    given: dict[str, str | None] = {}  # the step that gave a tool its place
    while len(taken) < k:
        gains = [queue.measure_gain(taken) for queue in queues]
        best = max(range(len(queues)), key=gains.__getitem__)  # the first of equals
        if gains[best] < 0:
            break
        queue = queues[best]
        hit = queue.hits[queue.place]
        taken[hit.id], given[hit.id] = hit, queue.step
    rest = sorted(
        ((hit, queue.step) for queue in queues for hit in queue.hits if hit.id not in taken),
        key=lambda pair: (-pair[0].score, pair[0].id),
    )
    for hit, step in rest:
        if taken.setdefault(hit.id, hit) is hit:
            given[hit.id] = step
    steps = _find_steps(queues)
    lowest, merged = math.inf, []
    for hit in taken.values():
        lowest = min(lowest, hit.score)
        step = given[hit.id] or steps.get(hit.id)
        merged.append(Hit(hit.id, lowest, hit.why, hit.tool, step, hit.role, hit.similar))
    return tuple(merged)


def _find_steps(queues: Sequence[_Queue]) -> dict[str, str]:
    """Return tool id → the step among whose first hits it stands highest."""
    ranks: dict[str, tuple[int, str]] = {}
    for queue in queues:
        if queue.step is None:
            continue
        for rank, hit in enumerate(queue.hits[:MAX_RANK_OF_STEP]):
            ranks[hit.id] = min(ranks.get(hit.id, (rank, queue.step)), (rank, queue.step))
    return {tool_id: step for tool_id, (_, step) in ranks.items()}


def _softmax(hits: Sequence[Hit]) -> list[float]:
    """Return for each hit the probability that it is the right one."""
    if not hits:
        return []
    best = hits[0].score
    weights = [math.exp((hit.score - best) / TEMPERATURE) for hit in hits]
    total = sum(weights)
    return [weight / total for weight in weights]
