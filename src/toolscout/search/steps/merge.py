"""Merges the ranked tools of the steps of a request, and estimates how likely the answer is complete.

A candidate's score becomes its *chance*: the probability that it is the right tool of its list. Scores of steps are
comparable (`indexes.exact`), so one softmax with a discount for lower ranks serves every list, and a list of weak
scores leaves much of its probability to "none of these". A step that names no tool clearly ("mark the milk as done")
prefers sources that the request or another step points to, and tools that the unsplit request points to.

Places go one by one to the tool that raises the coverage of all lists most, relative to what they have already. So a
step with one clear tool leaves its places to steps with several likely ones, and the unsplit request competes as one
more list. Requests often have needs that no mark separates ("export the interpolated values of the angles in radians
as text"), so the last places are for words of the request that no earlier tool has (`cover_words`).

`benchmarks/coverage.py` fits the constants of the chances on dev requests with one gold tool. The others were chosen on
joined and on single dev requests (`benchmarks/joined.py`); LAB.md, 2026-11-27, names the refinements that brought
nothing there.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from toolscout.arrays import Array
from toolscout.search.steps.words import PASTED_TEXT, VERBS
from toolscout.types import Hit

__all__ = [
    "BestChance",
    "WordTable",
    "Words",
    "cover_words",
    "end_answer",
    "estimate_coverage",
    "find_best_chances",
    "find_chances",
    "merge_steps",
    "read_words",
]

POINTS_PER_NAT: Final = 1.6  # of `search.pipeline`: so many points make a tool e times as likely
RANK_DISCOUNT: Final = 0.6  # exponent: the tool of rank r is r to this power less likely than its score says
NO_TOOL_LOGIT: Final = 2.4  # of "none of these", in nats
CANDIDATES: Final = 30  # of each list that have a chance
COVERED_AT_START: Final = 0.8  # added to each list's coverage: a weak list gains less by its first tool
SOURCE_POINTS: Final = 6.0  # that the source of the other lists brings a tool of an unclear step
UNSPLIT_POINTS: Final = 4.0  # that the unsplit request brings a tool of an unclear step
MIN_GAIN_SHARE: Final = 0.15  # of what the aim lacks to 1: an answer ends where each further tool gains less coverage
MIN_MERGED_HITS: Final = 20  # so many places are given out one by one, or k; the others follow by score
MAX_LIST_HITS: Final = 60  # so many hits of each list are merged, or k; `explain` asks for all
MAX_RANK_OF_STEP: Final = 10  # a hit of the unsplit request belongs to a step that ranks it among so many
FIRST_COVER_PLACE: Final = 8  # from 0: so many tools keep their places before uncovered words
LAST_COVER_PLACE: Final = 10  # after it all tools keep their order
MIN_NEW_POINTS: Final = 3.0  # of BM25, by words that no tool before has, that move a tool up
MAX_COVER_HITS: Final = 60  # hits whose words are read, and that may move up
_LABEL: Final = re.compile(  # up to two words before a value: "train number T12306", "password is abc123"
    r"(?:\b[A-Za-z]{1,30}\s{1,3})?\b[A-Za-z]{1,30}(?:\s{1,3}(?:is|of|as|are|was))?[\s:#=('\"“]{1,4}"
    r"(?=[A-Za-z]{0,30}-?\d)"
)
_PASTED: Final = re.compile(PASTED_TEXT, re.IGNORECASE)
_TOKEN: Final = re.compile(r"[\w'’-]+")


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

    def __init__(self, hits: Sequence[Hit], step: str | None, sure: float = 1.0) -> None:
        self.hits, self.step, self.sure = hits, step, sure
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
    sure: Mapping[str, float] | None = None,
) -> tuple[Hit, ...]:
    """Merge the hits of a request and of its steps, so that the first ones most likely hold a right tool of every step.

    Args:
        unsplit: hits of the unsplit request, best first.
        parts: hits of each step, best first.
        steps: the steps.
        k: how many hits are wanted; None: all.
        sure: step → probability that it is a step of its own, for the coverage; without one: 1.

    Returns:
        Every tool once, with the step of the list that gave it its place, and scores that never rise. Those that got
        their place one by one tell how likely the answer that ends with them is complete, as `coverage`, which
        `search.coverage` corrects.
    """
    if k is not None:
        depth = max(MAX_LIST_HITS, k)
        unsplit, parts = unsplit[:depth], [hits[:depth] for hits in parts]
    ranked = zip(_prefer_others(unsplit, parts), steps, strict=True)
    lists = [_List(unsplit, None), *(_List(hits, step, (sure or {}).get(step, 1.0)) for hits, step in ranked)]
    taken, given, coverages = _give_places(lists, max(k or 0, MIN_MERGED_HITS))
    rest = [(hit, some.step) for some in lists for hit in some.hits if hit.id not in taken]
    for hit, step in sorted(rest, key=lambda pair: (-pair[0].score, pair[0].id)):
        if taken.setdefault(hit.id, hit) is hit:
            given[hit.id] = step
    return _finish(list(taken.values()), given, coverages, _find_steps(lists))


def _give_places(lists: Sequence[_List], count: int) -> tuple[dict[str, Hit], dict[str, str | None], list[float]]:
    """Give so many places one by one, each to the tool that raises the coverage of all lists most.

    Returns:
        The tools in their order, by id; the step that gave each its place; the coverage after each.
    """
    taken: dict[str, Hit] = {}
    given: dict[str, str | None] = {}
    coverages: list[float] = []
    while len(taken) < count:
        heads = [(hit, some.step) for some in lists if (hit := some.find_next(taken)) is not None]
        if not heads:
            break
        gains = [(some.chances, 1 / (some.coverage + COVERED_AT_START)) for some in lists]
        hit, step = max(heads, key=lambda head: sum([gain * chances.get(head[0].id, 0.0) for chances, gain in gains]))
        taken[hit.id], given[hit.id] = hit, step
        for some in lists:
            some.coverage += some.chances.get(hit.id, 0.0)
        coverages.append(_multiply_coverages(lists[1:]))
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
        hit = hits[place]
        finished[place] = Hit(hit.id, hit.score, hit.why, hit.tool, hit.step, hit.role, hit.similar, covered)
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
        for hits, lifted in zip(parts, _prefer_others(unsplit[:MAX_LIST_HITS], parts), strict=True)
    ]


def _prefer_others(unsplit: Sequence[Hit], parts: Sequence[Sequence[Hit]]) -> list[list[Hit]]:
    """Return the hits of the steps, ranked anew by what the other lists say of an unclear step.

    It prefers sources that other lists point to, and tools that the unsplit request points to.
    """
    lists = (unsplit, *parts)
    chances = [find_chances(hits) for hits in lists]
    brought = {hit.id: UNSPLIT_POINTS * chance for hit, chance in zip(unsplit, chances[0], strict=False)}
    sources = [_sum_by_source(hits, some) for hits, some in zip(lists, chances, strict=True)]
    ranked = []
    for number, hits in enumerate(parts, 1):
        lifts: dict[str, float] = {}
        for some in (*sources[:number], *sources[number + 1 :]):
            lifts.update((source, chance) for source, chance in some.items() if chance > lifts.get(source, 0.0))
        unclear = 1 - max(chances[number], default=1.0)
        lifted = []
        for hit in hits:
            points = SOURCE_POINTS * lifts.get(_find_source(hit), 0.0) + brought.get(hit.id, 0.0)
            lifted.append(_with_score(hit, hit.score + unclear * points))
        ranked.append(sorted(lifted, key=lambda hit: (-hit.score, hit.id)))
    return ranked


def _find_source(hit: Hit) -> str:
    return hit.id.partition("/")[0]


def _sum_by_source(hits: Sequence[Hit], chances: Sequence[float]) -> dict[str, float]:
    """Return source → the probability that the right tool is one of its."""
    sums: defaultdict[str, float] = defaultdict(float)
    for hit, chance in zip(hits, chances, strict=False):
        sums[_find_source(hit)] += chance
    return sums


def _find_steps(lists: Sequence[_List]) -> dict[str, str]:
    """Return tool id → the step among whose first hits it stands highest."""
    ranks: dict[str, tuple[int, str]] = {}
    for some in lists:
        for rank, hit in enumerate(some.hits[:MAX_RANK_OF_STEP] if some.step is not None else ()):
            place = rank, some.step or ""
            ranks[hit.id] = min(ranks.get(hit.id, place), place)
    return {tool_id: step for tool_id, (_, step) in ranks.items()}


def _finish(
    hits: Sequence[Hit], given: Mapping[str, str | None], coverages: Sequence[float], steps: Mapping[str, str]
) -> tuple[Hit, ...]:
    """Return the hits in their order with step and coverage, and with scores that never rise."""
    lowest, finished = math.inf, []
    for hit, coverage in itertools.zip_longest(hits, coverages):
        lowest = min(lowest, hit.score)
        step = given[hit.id] or steps.get(hit.id) or hit.step
        finished.append(Hit(hit.id, lowest, hit.why, hit.tool, step, hit.role, hit.similar, coverage))
    return tuple(finished)


def _with_score(hit: Hit, score: float) -> Hit:
    """Return a hit with another score. `msgspec.structs.replace` takes six times as long."""
    return Hit(hit.id, score, hit.why, hit.tool, hit.step, hit.role, hit.similar, hit.coverage)


# --- words that no earlier tool has -----------------------------------------------------------------------------------


class Words(Protocol):
    """Compares the words of a text with those of tools: a BM25 index."""

    def score_terms(self, query: str, ids: Sequence[str]) -> Array:
        """Return the points of each known word for each tool, (words, tools)."""
        ...

    def mass(self, query: str) -> tuple[float, float]:
        """Return what a text can score at most, and the share of its words that some tool has."""
        ...


class WordTable(NamedTuple):
    """Which words of a request the first hits have.

    Attributes:
        points: of each word that some tool has, for each hit, (words, hits).
        request_points: the same, without the words that only pasted texts have.
        columns: id of a hit → its column.
        known_share: share of the words of the request that some tool has; None: the request has no words that count.
    """

    points: Array
    request_points: Array
    columns: Mapping[str, int]
    known_share: float | None

    def share(self, hits: Sequence[Hit]) -> list[float]:
        """Return after each hit the share of the words that it or one before has; nothing if there are no words."""
        if self.known_share is None:
            return []
        columns = [self.columns[hit.id] for hit in hits if hit.id in self.columns]
        if not len(self.points):
            return [0.0] * len(columns)
        has = np.logical_or.accumulate(self.points[:, columns] > 0, axis=1)
        return (self.known_share * has.mean(axis=0)).tolist()  # type: ignore[no-any-return]


def read_words(query: str, hits: Sequence[Hit], words: Words) -> WordTable:
    """Compare the words of a request with its first hits.

    Verbs ("confirm", "check"), labels of values ("verification code 7788") and a text pasted before the query
    ("EMAIL: … query: …") name no need by themselves, and are left out.
    """
    text, request = (
        _TOKEN.sub(lambda match: "" if match[0].lower() in VERBS else match[0], _LABEL.sub(" ", some))
        for some in (query, _PASTED.sub(" ", query))
    )
    ids = [hit.id for hit in hits[:MAX_COVER_HITS]]
    points, (most, known_share) = words.score_terms(text, ids), words.mass(text)
    request_points = points if request == text else words.score_terms(request, ids)
    columns = {tool_id: column for column, tool_id in enumerate(ids)}
    return WordTable(points, request_points, columns, known_share if most else None)


def cover_words(hits: tuple[Hit, ...], table: WordTable, k: int | None = None) -> tuple[Hit, ...]:
    """Return the hits with tools for uncovered words moved up to the last places.

    From the ninth place on, the first tool comes next that scores enough points with words that none before it has.

    Args:
        hits: best first.
        table: of these hits.
        k: how many hits are wanted; None: all.

    Returns:
        All hits, with scores that never rise. Places keep their coverage, since a hit that moves up changes hardly more
        than the chance of one tool.
    """
    last = LAST_COVER_PLACE if k is None else min(k, LAST_COVER_PLACE)
    if len(hits) <= FIRST_COVER_PLACE or last <= FIRST_COVER_PLACE:
        return hits
    points = table.request_points
    order, left = list(range(FIRST_COVER_PLACE)), list(range(FIRST_COVER_PLACE, points.shape[1]))
    uncovered = ~(points[:, :FIRST_COVER_PLACE] > 0).any(axis=1)
    while left and len(order) < last:
        enough = points[uncovered][:, left].sum(axis=0) >= MIN_NEW_POINTS
        place = left.pop(int(np.argmax(enough)))  # the first that has enough, or the first of all
        order.append(place)
        uncovered &= points[:, place] <= 0
    if order == list(range(len(order))):
        return hits
    lowest, finished = math.inf, []
    moved = [*(hits[place] for place in (*order, *left)), *hits[points.shape[1] :]]
    for hit, replaced in zip(moved, hits, strict=True):
        lowest = min(lowest, hit.score)
        finished.append(Hit(hit.id, lowest, hit.why, hit.tool, hit.step, hit.role, hit.similar, replaced.coverage))
    return tuple(finished)
