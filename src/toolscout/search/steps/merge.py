"""Merges the ranked tools of the steps of a request, and estimates how likely the answer is complete.

A candidate's score becomes its *chance*: the probability that it is the right tool of its list. Scores of steps are
comparable (`indexes.exact`), so one softmax with a discount for lower ranks serves every list, and a list of weak
scores leaves much of its probability to "none of these". A step that names no tool clearly ("mark the milk as done")
prefers sources that the request or another step points to, and tools that the unsplit request points to.

Places go one by one to the tool that raises the coverage of all lists most, relative to what they have already. So a
step with one clear tool leaves its places to steps with several likely ones, and the unsplit request competes as one
more list. A step counts for less if no tool seems to fit it, or if the splitter is not sure that it is a step; then the
unsplit request counts for more. An unsure step counts for still less if its best tool is none of the first for the
unsplit request: "use version number 5" is a detail.

`benchmarks/coverage.py` fits the constants of the chances on dev requests with one gold tool, and the correction of the
coverage (`search.coverage`). The others were chosen on joined and on single dev requests (`benchmarks/joined.py`).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from typing import Final, NamedTuple

from toolscout.types import Hit

__all__ = ["end_answer", "estimate_coverage", "find_best_chances", "find_chances", "merge_steps"]

POINTS_PER_NAT: Final = 1.6  # of `search.fusion`: so many points make a tool e times as likely
RANK_DISCOUNT: Final = 0.6  # exponent: the tool of rank r is r to this power less likely than its score says
NO_TOOL_LOGIT: Final = 2.4  # of "none of these", in nats
CANDIDATES: Final = 30  # of each list that have a chance
COVERED_AT_START: Final = 0.8  # added to each list's coverage: a weak list gains less by its first tool
SOURCE_POINTS: Final = 6.0  # that the source of the other steps brings a tool of an unclear step
UNSPLIT_POINTS: Final = 4.0  # that the unsplit request brings a tool of an unclear step
UNSPLIT_SHARE: Final = 0.1  # of a tool's score for the unsplit request, which it also brings to an unclear step
MIN_LIFT_POINTS: Final = 0.01  # fewer points leave a tool as it is
MIN_GAIN_SHARE: Final = 0.15  # of what the aim lacks to 1: an answer ends where each further tool gains less coverage
DOUBTED_SHARE: Final = 0.6  # of what a tool brings to a list, if the list's step is doubted
SURE_STEP: Final = 0.9  # probability of being a step from which one counts wholly
UNSURE_POWER: Final = 3  # below, it counts by this power of the proportion
UNSURE_WHOLE_SHARE: Final = 2.0  # added to the share of the unsplit request, if one of its steps is surely none
STRAY_SHARE: Final = 0.3  # of what a tool brings to the list of an unsure step that strays from the request
MAX_RANK_IN_WHOLE: Final = 20  # a step strays if its best tool is not among so many of the unsplit request
MIN_MERGED_HITS: Final = 20  # so many places are given out one by one, or k; the others follow by score
MAX_LIST_HITS: Final = 60  # so many hits of each list are merged, or k; `explain` asks for all
MAX_RANK_OF_STEP: Final = 10  # a hit of the unsplit request belongs to a step that ranks it among so many


def find_chances(hits: Sequence[Hit]) -> list[float]:
    """Return for each of the first hits the probability that it is the right tool; their sum is below 1."""
    if not hits:
        return []
    logits = [
        hit.score / POINTS_PER_NAT - RANK_DISCOUNT * math.log(rank) for rank, hit in enumerate(hits[:CANDIDATES], 1)
    ]
    highest = max(NO_TOOL_LOGIT, *logits)
    weights = [math.exp(logit - highest) for logit in logits]
    total = sum(weights) + math.exp(NO_TOOL_LOGIT - highest)
    return [weight / total for weight in weights]


class _List:
    """The hits of one list that may still get a place, their chances, and how far the list is covered."""

    def __init__(
        self, hits: Sequence[Hit], step: str | None, sure: float = 1.0, doubted: bool = False, strays: bool = False
    ) -> None:
        self.hits, self.step, self.sure, self.doubted = hits, step, sure, doubted
        self.share = min(1.0, sure / SURE_STEP) ** UNSURE_POWER * (DOUBTED_SHARE if doubted else 1.0)
        if strays and sure < SURE_STEP:
            self.share *= STRAY_SHARE
        self.place, self.coverage = 0, 0.0
        self.chances = {hit.id: chance for hit, chance in zip(hits, find_chances(hits), strict=False)}

    def find_next(self, taken: Mapping[str, Hit]) -> Hit | None:
        """Return the best hit with a chance that has no place yet."""
        while self.place < len(self.chances) and self.hits[self.place].id in taken:
            self.place += 1
        return self.hits[self.place] if self.place < len(self.chances) else None


def merge_steps(
    unsplit: Sequence[Hit],
    parts: Sequence[Sequence[Hit]],
    steps: Sequence[str],
    k: int | None,
    doubted: Container[str] = (),
    sure: Mapping[str, float] | None = None,
) -> tuple[Hit, ...]:
    """Merge the hits of a request and of its steps, so that the first ones most likely hold a right tool of every step.

    Args:
        unsplit: hits of the unsplit request, best first.
        parts: hits of each step, best first.
        steps: the steps.
        k: how many hits are wanted; None: all.
        doubted: steps that no tool seems to fit.
        sure: step → probability that it is a step of its own; without one: 1.

    Returns:
        Every tool once, with the step of the list that gave it its place, and scores that never rise. Those that got
        their place one by one tell how likely the answer that ends with them is complete, as `coverage`, which
        `search.coverage` corrects; doubted steps do not count for it, unless all are doubted.
    """
    if k is not None:
        depth = max(MAX_LIST_HITS, k)
        unsplit, parts = unsplit[:depth], [hits[:depth] for hits in parts]
    whole, lists_of_steps = _List(unsplit, None), _list_steps(unsplit, parts, steps, doubted, sure or {})
    least_sure = min([some.sure for some in lists_of_steps], default=1.0)
    whole.share += UNSURE_WHOLE_SHARE * max(0.0, 1 - least_sure / SURE_STEP)
    lists = [whole, *lists_of_steps]
    taken, given, coverages = _give_places(lists, max(k or 0, MIN_MERGED_HITS))
    rest = [(hit, some.step) for some in lists for hit in some.hits if hit.id not in taken]
    for hit, step in sorted(rest, key=lambda pair: (-pair[0].score, pair[0].id)):
        if taken.setdefault(hit.id, hit) is hit:
            given[hit.id] = step
    return _finish(list(taken.values()), given, coverages, _find_steps(lists))


def _list_steps(
    unsplit: Sequence[Hit],
    parts: Sequence[Sequence[Hit]],
    steps: Sequence[str],
    doubted: Container[str],
    sure: Mapping[str, float],
) -> list[_List]:
    """Return the lists of the steps."""
    first = {hit.id for hit in unsplit[:MAX_RANK_IN_WHOLE]}
    strays = [bool(first) and first.isdisjoint(hit.id for hit in hits[:1]) for hits in parts]
    return [
        _List(hits, step, sure.get(step, 1.0), step in doubted, is_stray)
        for hits, step, is_stray in zip(_prefer_others(unsplit, parts), steps, strays, strict=True)
    ]


def _give_places(lists: Sequence[_List], count: int) -> tuple[dict[str, Hit], dict[str, str | None], list[float]]:
    """Give so many places one by one, each to the tool that raises the coverage of all lists most.

    Returns:
        The tools in their order, by id; the step that gave each its place; the coverage after each.
    """
    counted = [some for some in lists[1:] if not some.doubted] or lists[1:]
    taken: dict[str, Hit] = {}
    given: dict[str, str | None] = {}
    coverages: list[float] = []
    while len(taken) < count:
        heads = [(hit, some.step) for some in lists if (hit := some.find_next(taken)) is not None]
        if not heads:
            break
        gains = [(some.chances, some.share / (some.coverage + COVERED_AT_START)) for some in lists]
        hit, step = max(heads, key=lambda head: sum([gain * chances.get(head[0].id, 0.0) for chances, gain in gains]))
        taken[hit.id], given[hit.id] = hit, step
        for some in lists:
            some.coverage += some.chances.get(hit.id, 0.0)
        coverages.append(_multiply_coverages(counted))
    return taken, given, coverages


def _multiply_coverages(lists: Sequence[_List]) -> float:
    """Return the probability that every list has its tool. Of steps that are not sure to be ones, one surely is."""
    factors = [1 - some.sure * (1 - some.coverage) for some in lists]
    product = math.prod(factors)
    return (
        max([some.coverage * product / factor for some, factor in zip(lists, factors, strict=True)]) if product else 0.0
    )


def estimate_coverage(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Return the hits of a request with one need, with the coverage of the answer that ends with each, as merged."""
    covered, finished = 0.0, list(hits)
    for place, chance in enumerate(find_chances(hits)):
        covered += chance
        finished[place] = _replace(hits[place], coverage=covered)
    return tuple(finished)


def end_answer(hits: tuple[Hit, ...], aim: float | None) -> tuple[tuple[Hit, ...], float | None]:
    """Return the hits up to the first that reaches the aim, with its prerequisites, and their coverage.

    The answer also ends where no further tools are worth their places: where they raise the coverage, each on average,
    by less than `MIN_GAIN_SHARE` of what the aim lacks to 1. So an aim of 1 keeps all hits.

    Args:
        hits: all that may be returned.
        aim: the coverage that is enough; None: all hits are wanted.
    """
    reached = list(itertools.accumulate((hit.coverage or 0.0 for hit in hits), max))
    if aim is not None and reached and reached[-1]:
        end = _find_end(reached, aim)
        end += sum(1 for _ in itertools.takewhile(lambda hit: hit.role == "prerequisite", hits[end:]))
        hits = hits[:end]
    return hits, (reached[len(hits) - 1] or None) if hits else None


def _find_end(reached: Sequence[float], aim: float) -> int:
    """Return after how many tools an answer ends whose coverage is known after each; see `end_answer`."""
    least = MIN_GAIN_SHARE * (1 - aim)
    for count, value in enumerate(reached, 1):
        gains = ((later - value) / number for number, later in enumerate(reached[count:], 1))
        if value >= aim or max(gains, default=-1.0) < least:
            return count
    return len(reached)


class BestChance(NamedTuple):
    """How likely the best tool of a step is the right one.

    Attributes:
        alone: by the step alone.
        together: with what the unsplit request and the other steps tell.
    """

    alone: float
    together: float


def find_best_chances(unsplit: Sequence[Hit], parts: Sequence[Sequence[Hit]]) -> list[BestChance]:
    """Return for each step how likely its best tool is the right one.

    A step with few hits has 0: they leave too little to "none of these" to be compared.

    Args:
        unsplit: hits of the unsplit request, best first.
        parts: hits of each step, best first.
    """
    parts = [hits[:MAX_LIST_HITS] for hits in parts]
    return [
        BestChance(max(find_chances(hits)), max(find_chances(lifted)))
        if len(hits) >= CANDIDATES
        else BestChance(0.0, 0.0)
        for hits, lifted in zip(parts, _prefer_others(unsplit[:MAX_LIST_HITS], parts, unsplit_share=0.0), strict=True)
    ]


def _prefer_others(
    unsplit: Sequence[Hit], parts: Sequence[Sequence[Hit]], unsplit_share: float = UNSPLIT_SHARE
) -> list[list[Hit]]:
    """Return the hits of the steps, ranked anew.

    An unclear step prefers sources that other lists point to, and tools that the unsplit request points to. It also
    prefers those with a higher score for the unsplit request: the steps of a request mostly belong together, and
    "help me check out" says little without the dinner before it.
    """
    chances = [find_chances(hits) for hits in (unsplit, *parts)]
    sources = [_sum_by_source(hits, some) for hits, some in zip((unsplit, *parts), chances, strict=True)]
    brought = {hit.id: unsplit_share * max(0.0, hit.score) for hit in unsplit}
    for hit, chance in zip(unsplit, chances[0], strict=False):
        brought[hit.id] += UNSPLIT_POINTS * chance
    ranked = []
    for number, hits in enumerate(parts, 1):
        unclear = 1 - max(chances[number], default=1.0)
        lifts: dict[str, float] = {}
        for place, some in enumerate(sources):
            if place != number:
                lifts.update((source, chance) for source, chance in some.items() if chance > lifts.get(source, 0.0))
        lifted = list(hits)
        for rank, hit in enumerate(hits):
            points = SOURCE_POINTS * lifts.get(_source(hit), 0.0) + brought.get(hit.id, 0.0)
            if unclear * points >= MIN_LIFT_POINTS:
                lifted[rank] = _replace(hit, score=hit.score + unclear * points)
        ranked.append(sorted(lifted, key=lambda hit: (-hit.score, hit.id)))
    return ranked


def _source(hit: Hit) -> str:
    return hit.id.partition("/")[0]


def _sum_by_source(hits: Sequence[Hit], chances: Sequence[float]) -> dict[str, float]:
    """Return source → the probability that the right tool is one of its."""
    sums: defaultdict[str, float] = defaultdict(float)
    for hit, chance in zip(hits, chances, strict=False):
        sums[_source(hit)] += chance
    return sums


def _find_steps(lists: Sequence[_List]) -> dict[str, str]:
    """Return tool id → the step among whose first hits it stands highest."""
    ranks: dict[str, tuple[int, str]] = {}
    for some in lists:
        if some.step is None:
            continue
        for rank, hit in enumerate(some.hits[:MAX_RANK_OF_STEP]):
            ranks[hit.id] = min(ranks.get(hit.id, (rank, some.step)), (rank, some.step))
    return {tool_id: step for tool_id, (_, step) in ranks.items()}


def _finish(
    hits: Sequence[Hit], given: Mapping[str, str | None], coverages: Sequence[float], steps: Mapping[str, str]
) -> tuple[Hit, ...]:
    """Return the hits in their order with step and coverage, and with scores that never rise."""
    lowest, finished = math.inf, []
    for place, hit in enumerate(hits):
        lowest = min(lowest, hit.score)
        coverage = coverages[place] if place < len(coverages) else None
        finished.append(_replace(hit, score=lowest, step=given[hit.id] or steps.get(hit.id), coverage=coverage))
    return tuple(finished)


def _replace(hit: Hit, score: float | None = None, step: str | None = None, coverage: float | None = None) -> Hit:
    """Return a changed copy of a hit. `msgspec.structs.replace` takes six times as long."""
    score = hit.score if score is None else score
    return Hit(hit.id, score, hit.why, hit.tool, step or hit.step, hit.role, hit.similar, coverage)
