"""Merges the ranked tools of the steps of a request, and estimates how likely the answer is complete.

Each step has a list of ranked tools, and so has the unsplit request, which competes as one more list. A candidate's
score becomes its *chance*: the probability that it is the right tool of its list. Scores of steps are comparable
(`indexes.exact`), so one softmax with a discount for lower ranks serves every list, and a list of weak scores leaves
much of its probability to "none of these". A step that names no tool clearly ("mark the milk as done") prefers sources
that the request or another step points to, and tools that the unsplit request points to.

The *coverage* of a list is the probability that its right tool is in the answer. The places in the answer are given out
one by one, each to the tool that raises the coverage of all lists most, relative to what they have already. So a step
with one clear tool leaves places to steps with several likely ones. Requests often have needs that no mark separates
("export the interpolated values of the angles in radians as text"), so the last places are for words of the request
that no earlier tool has (`cover_words`).

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

POINTS_PER_NAT: Final = 1.6  # a score (`pipeline.add_standard_scores`) so much higher is e times as likely
RANK_DISCOUNT: Final = 0.6  # exponent: the tool of rank r is r to this power less likely than its score says
NO_TOOL_LOGIT: Final = 2.4  # of "none of these", in nats
CANDIDATES: Final = 30  # first hits of each list that have a chance
COVERED_AT_START: Final = 0.8  # added to each list's coverage, so that the first tool of a list doesn't count too much
SOURCE_POINTS: Final = 6.0  # score that an unclear step's tool gains at most if other lists point to its source
UNSPLIT_POINTS: Final = 4.0  # the same, if the unsplit request points to the tool
MIN_GAIN_SHARE: Final = 0.15  # of what the aim lacks to 1: an answer ends where each further tool gains less coverage
MIN_MERGED_HITS: Final = 20  # so many places are given out one by one, or k if that is more; the rest follow by score
MAX_LIST_HITS: Final = 60  # so many hits of each list are merged, or k; `explain` asks for all
MAX_RANK_OF_STEP: Final = 10  # a hit of the unsplit request belongs to a step that ranks it among so many
FIRST_COVER_PLACE: Final = 8  # from 0: so many tools keep their places before uncovered words
LAST_COVER_PLACE: Final = 10  # after it all tools keep their order
MIN_NEW_POINTS: Final = 3.0  # BM25 score by words that no tool before has, from which a tool moves up
MAX_COVER_HITS: Final = 60  # hits whose words are read, and that may move up
_LABEL: Final = re.compile(  # up to two words before a value: "train number T12306", "password is abc123"
    r"(?:\b[A-Za-z]{1,30}\s{1,3})?\b[A-Za-z]{1,30}(?:\s{1,3}(?:is|of|as|are|was))?[\s:#=('\"“]{1,4}"
    r"(?=[A-Za-z]{0,30}-?\d)"
)
_PASTED: Final = re.compile(PASTED_TEXT, re.IGNORECASE)
_TOKEN: Final = re.compile(r"[\w'’-]+")


def find_chances(hits: Sequence[Hit]) -> list[float]:
    """Return for each of the first hits the probability that it is the right tool: a softmax with "none of these"."""
    if not hits:
        return []
    logits = [
        hit.score / POINTS_PER_NAT - RANK_DISCOUNT * math.log(rank) for rank, hit in enumerate(hits[:CANDIDATES], 1)
    ]
    highest = max(NO_TOOL_LOGIT, *logits)  # is subtracted, so that no exponential overflows
    weights = [math.exp(logit - highest) for logit in logits]
    total = sum(weights) + math.exp(NO_TOOL_LOGIT - highest)
    return [weight / total for weight in weights]


class _RankedList:
    """The ranked tools of a step or of the unsplit request, while places in the answer are given out.

    Attributes:
        hits: best first.
        step: the step; None: the unsplit request.
        step_probability: probability that the step is one of its own, and not a piece of another step.
        chances: tool id → its chance; only for the first hits.
        coverage: probability that the right tool of the list has a place: the sum of the chances of tools with places.
    """

    def __init__(self, hits: Sequence[Hit], step: str | None, step_probability: float = 1.0) -> None:
        self.hits, self.step, self.step_probability = hits, step, step_probability
        self.coverage = 0.0
        self.chances = {hit.id: chance for hit, chance in zip(hits, find_chances(hits), strict=False)}
        self._n_placed = 0  # first hits that are known to have a place

    def find_next(self, placed: Mapping[str, Hit]) -> Hit | None:
        """Return the best hit with a chance that has no place yet."""
        while self._n_placed < len(self.chances):
            hit = self.hits[self._n_placed]
            if hit.id not in placed:
                return hit
            self._n_placed += 1
        return None


def merge_steps(
    unsplit: Sequence[Hit],
    parts: Sequence[Sequence[Hit]],
    steps: Sequence[str],
    k: int | None,
    probabilities: Mapping[str, float] | None = None,
) -> tuple[Hit, ...]:
    """Merge the hits of a request and of its steps, so that the first ones most likely have a right tool of every step.

    Args:
        unsplit: hits of the unsplit request, best first.
        parts: hits of each step, best first.
        steps: the steps.
        k: how many hits are wanted; None: all.
        probabilities: step → probability that it is a step of its own, for the coverage; a missing step has 1.

    Returns:
        Every tool once, with scores that never rise, and with the step of the list that gave it its place. The hits
        whose places were given out one by one have a `coverage`: the probability that the answer is complete with
        this hit and those before it. `search.coverage` corrects it.
    """
    if k is not None:
        depth = max(MAX_LIST_HITS, k)
        unsplit, parts = unsplit[:depth], [hits[:depth] for hits in parts]
    probabilities = probabilities or {}
    lists = [_RankedList(unsplit, None)]
    for hits, step in zip(_prefer_others(unsplit, parts), steps, strict=True):
        lists.append(_RankedList(hits, step, probabilities.get(step, 1.0)))
    placed, step_of, coverages = _give_places(lists, max(k or 0, MIN_MERGED_HITS))
    rest = [(hit, ranked.step) for ranked in lists for hit in ranked.hits if hit.id not in placed]
    rest.sort(key=lambda entry: (-entry[0].score, entry[0].id))
    for hit, origin in rest:
        if hit.id not in placed:  # of a tool in several lists, the hit with the highest score comes first
            placed[hit.id], step_of[hit.id] = hit, origin
    return _complete_hits(list(placed.values()), step_of, coverages, _find_steps(lists))


def _give_places(lists: Sequence[_RankedList], count: int) -> tuple[dict[str, Hit], dict[str, str | None], list[float]]:
    """Give out `count` places one by one, each to the tool that raises the coverage of all lists most.

    The list of the unsplit request is the first one.

    Returns:
        Tool id → hit, in the order of the places; tool id → step of the list that gave the tool its place (None: the
        unsplit request); after each place, the probability that the answer is complete.
    """
    placed: dict[str, Hit] = {}
    step_of: dict[str, str | None] = {}
    coverages: list[float] = []
    while len(placed) < count:
        best_of_lists = [(ranked.find_next(placed), ranked.step) for ranked in lists]
        candidates = [(hit, step) for hit, step in best_of_lists if hit is not None]
        if not candidates:
            break
        # A tool counts in each list where it has a chance: the more, the less the list is covered.
        weights = [(ranked.chances, 1 / (ranked.coverage + COVERED_AT_START)) for ranked in lists]
        gains = [sum([weight * chances.get(hit.id, 0.0) for chances, weight in weights]) for hit, _ in candidates]
        hit, step = candidates[gains.index(max(gains))]
        placed[hit.id], step_of[hit.id] = hit, step
        for ranked in lists:
            ranked.coverage += ranked.chances.get(hit.id, 0.0)
        coverages.append(_multiply_coverages(lists[1:]))  # the steps alone decide whether an answer is complete
    return placed, step_of, coverages


def _multiply_coverages(steps: Sequence[_RankedList]) -> float:
    """Return the probability that the answer has a right tool for each step that is one of its own.

    A step fails if it is one of its own (`step_probability`) and is not covered; the probabilities that it does not
    fail are multiplied. But a request has at least one step. So one step counts as one of its own for certain, and its
    factor is its coverage alone: the step with which the product is highest.
    """
    factors = [1 - step.step_probability * (1 - step.coverage) for step in steps]
    product = math.prod(factors)
    if product == 0:  # a step that is one of its own for certain has no tool yet
        return 0.0
    return max([step.coverage * product / factor for step, factor in zip(steps, factors, strict=True)])


def estimate_coverage(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Return the hits of a request with one need. A hit with a chance gets a coverage: the sum of the chances so far.

    `search.coverage` corrects the coverage, as it does for merged hits.
    """
    coverages = list(itertools.accumulate(find_chances(hits)))
    finished = [
        Hit(hit.id, hit.score, hit.why, hit.tool, hit.step, hit.role, hit.similar, coverage)
        for hit, coverage in zip(hits, coverages, strict=False)
    ]
    return (*finished, *hits[len(coverages) :])


def end_answer(hits: tuple[Hit, ...], aim: float | None) -> tuple[tuple[Hit, ...], float | None]:
    """Cut the hits behind the first one that reaches the aim and its prerequisites.

    The answer also ends where no number of further tools is worth its places: where they raise the coverage, each on
    average, by less than `MIN_GAIN_SHARE` of what the aim lacks to 1. So an aim of 1 keeps all hits. An aim of None
    keeps all hits too.

    Returns:
        The hits that are left, and their coverage; None: the coverage is not known.
    """
    # Prerequisites have no coverage, so each hit gets the highest coverage up to it; 0: none is known.
    coverages = list(itertools.accumulate((hit.coverage or 0.0 for hit in hits), max))
    if not coverages or coverages[-1] == 0:
        return hits, None
    n_kept = len(hits) if aim is None else _count_kept_hits(coverages, aim)
    while n_kept < len(hits) and hits[n_kept].role == "prerequisite":
        n_kept += 1
    return hits[:n_kept], coverages[n_kept - 1] or None


def _count_kept_hits(coverages: Sequence[float], aim: float) -> int:
    """Return after how many hits an answer ends; see `end_answer`. `coverages`: after each hit."""
    min_gain = MIN_GAIN_SHARE * (1 - aim)
    for count, coverage in enumerate(coverages, 1):
        # What each hit adds on average, if 1, 2, 3, … more hits are kept.
        gains = ((later - coverage) / n_more for n_more, later in enumerate(coverages[count:], 1))
        if coverage >= aim or max(gains, default=-1.0) < min_gain:
            return count
    return len(coverages)


class BestChance(NamedTuple):
    """How likely the best tool of a step is the right one.

    Attributes:
        alone: judged by the step alone.
        together: judged also by the unsplit request and the other steps; see `_prefer_others`.
    """

    alone: float
    together: float


def find_best_chances(unsplit: Sequence[Hit], parts: Sequence[Sequence[Hit]]) -> list[BestChance]:
    """Return for each step how likely its best tool is the right one.

    A step with fewer hits than `CANDIDATES` has 0: with so few, the chances are too high to be compared. `unsplit` and
    `parts` are the hits of the unsplit request and of each step, best first.
    """
    parts = [hits[:MAX_LIST_HITS] for hits in parts]
    best_chances = []
    for hits, rescored in zip(parts, _prefer_others(unsplit[:MAX_LIST_HITS], parts), strict=True):
        if len(hits) < CANDIDATES:
            best_chances.append(BestChance(0.0, 0.0))
        else:
            best_chances.append(BestChance(max(find_chances(hits)), max(find_chances(rescored))))
    return best_chances


def _prefer_others(unsplit: Sequence[Hit], parts: Sequence[Sequence[Hit]]) -> list[list[Hit]]:
    """Rank the hits of each step anew: an unclear step prefers what the other lists point to.

    A tool gains by the highest chance that any other list gives its source, and by its own chance for the unsplit
    request. It gains the more, the less likely the best tool of its step is. Returns hits by step, best first.
    """
    lists = (unsplit, *parts)  # the unsplit request has number 0, the steps are numbered from 1
    chances = [find_chances(hits) for hits in lists]
    unsplit_points = {hit.id: UNSPLIT_POINTS * chance for hit, chance in zip(unsplit, chances[0], strict=False)}
    source_chances = [_sum_by_source(*hits_and_chances) for hits_and_chances in zip(lists, chances, strict=True)]
    ranked = []
    for number, hits in enumerate(parts, 1):
        elsewhere: dict[str, float] = {}  # source → its highest chance in another list
        for by_source in (*source_chances[:number], *source_chances[number + 1 :]):
            for source, chance in by_source.items():
                elsewhere[source] = max(chance, elsewhere.get(source, 0.0))
        unclear = 1 - max(chances[number], default=1.0)
        rescored = []
        for hit in hits:
            points = SOURCE_POINTS * elsewhere.get(_find_source(hit), 0.0) + unsplit_points.get(hit.id, 0.0)
            rescored.append(_with_score(hit, hit.score + unclear * points))
        ranked.append(sorted(rescored, key=lambda hit: (-hit.score, hit.id)))
    return ranked


def _find_source(hit: Hit) -> str:
    return hit.id.partition("/")[0]


def _sum_by_source(hits: Sequence[Hit], chances: Sequence[float]) -> dict[str, float]:
    """Return source → the probability that the right tool is one of this source."""
    sums: defaultdict[str, float] = defaultdict(float)
    for hit, chance in zip(hits, chances, strict=False):
        sums[_find_source(hit)] += chance
    return sums


def _find_steps(lists: Sequence[_RankedList]) -> dict[str, str]:
    """Return tool id → the step that ranks the tool highest, among the first hits of the steps."""
    best: dict[str, tuple[int, str]] = {}  # tool id → its best rank, and the step that gives it
    for ranked in lists:
        if ranked.step is not None:
            for rank, hit in enumerate(ranked.hits[:MAX_RANK_OF_STEP]):
                rank_and_step = (rank, ranked.step)
                best[hit.id] = min(best.get(hit.id, rank_and_step), rank_and_step)
    return {tool_id: step for tool_id, (_, step) in best.items()}


def _complete_hits(
    hits: Sequence[Hit], step_of: Mapping[str, str | None], coverages: Sequence[float], steps: Mapping[str, str]
) -> tuple[Hit, ...]:
    """Return the hits in their order with step and coverage, and with scores that never rise.

    Args:
        hits: all hits.
        step_of: tool id → the step that gave the tool its place; None: the unsplit request did.
        coverages: of the first hits; the others have none.
        steps: tool id → the step that a tool belongs to if no step gave it its place.
    """
    lowest, finished = math.inf, []
    for hit, coverage in itertools.zip_longest(hits, coverages):
        lowest = min(lowest, hit.score)
        step = step_of[hit.id] or steps.get(hit.id) or hit.step
        finished.append(Hit(hit.id, lowest, hit.why, hit.tool, step, hit.role, hit.similar, coverage))
    return tuple(finished)


def _with_score(hit: Hit, score: float) -> Hit:
    """Return a hit with another score. `msgspec.structs.replace` takes six times as long."""
    return Hit(hit.id, score, hit.why, hit.tool, hit.step, hit.role, hit.similar, hit.coverage)


# --- words that no earlier tool has -----------------------------------------------------------------------------------


class Words(Protocol):
    """Compares the words of a text with those of tools: a BM25 index."""

    def score_terms(self, query: str, ids: Sequence[str]) -> Array:
        """Return what each known word adds to the score of each tool, (words, tools)."""
        ...

    def mass(self, query: str) -> tuple[float, float]:
        """Return an upper bound of a text's scores, and the share of its words that some tool has."""
        ...


class WordTable(NamedTuple):
    """Which words of a request the first hits have.

    Attributes:
        points: what each word that some tool has adds to the BM25 score of each hit, (words, hits).
        request_points: the same, without words that are only in a text pasted before the request.
        columns: id of a hit → its column.
        known_share: share of the words of the request that some tool has; None: the request has no words that count.
    """

    points: Array
    request_points: Array
    columns: Mapping[str, int]
    known_share: float | None

    def list_shares(self, hits: Sequence[Hit]) -> list[float]:
        """Return for each hit of the table the share of the request's words that it or a hit before it has.

        The table has the first `MAX_COVER_HITS` hits, so the list can be shorter than `hits`. It is empty if the
        request has no words that count.
        """
        if self.known_share is None:
            return []
        columns = [self.columns[hit.id] for hit in hits if hit.id in self.columns]
        if not len(self.points):
            return [0.0] * len(columns)
        is_covered = np.logical_or.accumulate(self.points[:, columns] > 0, axis=1)  # (words, hits), by a hit so far
        return (self.known_share * is_covered.mean(axis=0)).tolist()  # type: ignore[no-any-return]


def read_words(query: str, hits: Sequence[Hit], words: Words) -> WordTable:
    """Compare the words of a query with its first hits, with and without a pasted text ("EMAIL: … query: …")."""
    contents = []
    for part in (query, _PASTED.sub(" ", query)):
        without_labels = _LABEL.sub(" ", part)
        # Verbs ("confirm") and labels of values ("code 7788") name no need by themselves.
        contents.append(_TOKEN.sub(lambda match: "" if match[0].lower() in VERBS else match[0], without_labels))
    text, request = contents
    ids = [hit.id for hit in hits[:MAX_COVER_HITS]]
    points = words.score_terms(text, ids)
    request_points = points if request == text else words.score_terms(request, ids)
    max_score, known_share = words.mass(text)
    columns = {tool_id: column for column, tool_id in enumerate(ids)}
    return WordTable(points, request_points, columns, known_share if max_score else None)


def cover_words(hits: tuple[Hit, ...], table: WordTable, k: int | None = None) -> tuple[Hit, ...]:
    """Move tools for uncovered words up to the ninth and tenth place.

    The next place goes to the first tool that scores enough (`MIN_NEW_POINTS`) by words that no tool before has. If
    none does, the next tool keeps its place. `k`: how many hits are wanted; None: all.

    Returns:
        All hits, with scores that never rise. The coverage stays at its place and does not move with the hit, since a
        hit that moves up changes hardly more than the chance of one tool.
    """
    n_places = LAST_COVER_PLACE if k is None else min(k, LAST_COVER_PLACE)
    if min(len(hits), n_places) <= FIRST_COVER_PLACE:
        return hits
    points = table.request_points
    n_read = points.shape[1]
    order, remaining = list(range(FIRST_COVER_PLACE)), list(range(FIRST_COVER_PLACE, n_read))  # places in `hits`
    uncovered = ~(points[:, :FIRST_COVER_PLACE] > 0).any(axis=1)  # for each word
    while remaining and len(order) < n_places:
        has_enough = points[uncovered][:, remaining].sum(axis=0) >= MIN_NEW_POINTS
        place = remaining.pop(int(np.argmax(has_enough)))  # of the first that has enough, or of the first hit
        order.append(place)
        uncovered &= points[:, place] <= 0
    if order == list(range(len(order))):  # no hit has moved
        return hits
    lowest, finished = math.inf, []
    reordered = [*(hits[place] for place in (*order, *remaining)), *hits[n_read:]]
    for hit, replaced in zip(reordered, hits, strict=True):
        lowest = min(lowest, hit.score)
        finished.append(Hit(hit.id, lowest, hit.why, hit.tool, hit.step, hit.role, hit.similar, replaced.coverage))
    return tuple(finished)
