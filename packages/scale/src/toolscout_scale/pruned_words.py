"""Searches the words of a large catalogue without reading all tools of common words.

The score of a tool for one term is the *impact* of the term. The tools of a common term, its *long list*, are also
stored in the order of their impacts, highest first. A search reads a prefix of each such list. It chooses the prefixes
so that a tool in none of them cannot reach the k-th best score, of which a first look at short prefixes gives a lower
bound. The tools that can reach it are scored exactly, term by term in the order of the query, so the answer and every
bit of its scores equal those of a full scan.

A prefix ends at one of a few ranks, the same in all lists. For these ranks the impacts are stored (*tiers*): a tool
beyond the prefix has at most the impact at the rank where it ends.

For most queries a full scan is as fast, since they have few common words; see `MIN_PRUNED_POSTINGS`.

The distribution of a query's scores is estimated. The mean of all scores follows from the sum of each term's impacts.
Their deviation would need every tool of every term; it is estimated from every n-th tool, which are some ten thousand.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array, Arrays
from toolscout.indexes.large import Postings
from toolscout.indexes.ranking import Mask, top_k

__all__ = ["PrunedWords", "make_impact_arrays", "make_sample_arrays"]

MIN_LONG_LIST: Final = 1_024  # tools; a term with so many has a long list
N_TIERS: Final = 24  # ranks at which the impacts of a long list are stored: 0, 64, 128, 256 …
FIRST_TIER_RANK: Final = 64
FIRST_LOOK: Final = 1_024  # tools of each long list that the first look reads; the rank of a tier
ROUNDING: Final = 1e-5  # relative; sums of a query's impacts in float32 differ by less
MIN_PRUNED_POSTINGS: Final = 1_000_000  # tools of all terms of a query; with fewer, a full scan is as fast
MAX_PRUNED_SHARE: Final = 0.3  # of these postings; if prefixes have more of them, a full scan is as fast
# Prefixes may end where a tool beyond all of them gains up to this share of the k-th best score. With a higher share,
# fewer postings are read, but more tools can reach the k-th best score and must be scored.
BOUND_SHARE: Final = 0.5
PARTED_SCORES: Final = 16_384  # sampled scores that give a lower bound of the k-th highest; see `_find_kth`
SAMPLED_TOOLS: Final = 16_384  # tools in the sample of `make_sample_arrays`, at least; of fewer tools, all
MIN_VISIBLE_SAMPLE: Final = 1_000  # visible tools in the sample from which it describes what is visible

Positions = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]


def make_impact_arrays(data: Scores, indices: Positions, indptr: npt.NDArray[np.int32]) -> dict[str, Array]:
    """Order the long lists by impact.

    Args:
        data: impact of each posting, as in `BM25`.
        indices: tool of each posting.
        indptr: where the postings of each term begin, and where the last ones end.

    Returns:
        `impact_terms`, the terms with long lists, ascending; `impact_starts`, where the list of each begins in the
        next two; `impact_tools` and `impact_scores`, the tools and impacts of all lists, highest impact first, equal
        ones by tool; `impact_tiers`, `(long lists, N_TIERS)`, the impacts at the ranks of `_list_tier_ranks`, 0 beyond
        the end of a list.
    """
    lengths = np.diff(indptr)
    terms = np.flatnonzero(lengths >= MIN_LONG_LIST).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths[terms], dtype=np.int64)])
    tools = np.empty(int(starts[-1]), dtype=np.int32)
    scores = np.empty(int(starts[-1]), dtype=np.float32)
    tiers = np.zeros((len(terms), N_TIERS), dtype=np.float32)
    ranks = _list_tier_ranks()
    for number, term in enumerate(terms.tolist()):
        impacts = data[indptr[term] : indptr[term + 1]]
        order = np.argsort(-impacts, kind="stable")
        ordered = impacts[order]
        scores[starts[number] : starts[number + 1]] = ordered
        tools[starts[number] : starts[number + 1]] = indices[indptr[term] : indptr[term + 1]][order]
        ranks_in_list = ranks[ranks < len(ordered)]
        tiers[number, : len(ranks_in_list)] = ordered[ranks_in_list]
    return {
        "impact_terms": terms,
        "impact_starts": starts,
        "impact_tools": tools,
        "impact_scores": scores,
        "impact_tiers": tiers,
    }


def make_sample_arrays(
    data: Scores, indices: Positions, indptr: npt.NDArray[np.int32], n_tools: int
) -> dict[str, Array]:
    """Return the sum of each term's impacts, and the postings of every n-th tool. Arguments as in `make_impact_arrays`.

    Returns:
        `sample_sums`, for each term; `sample_data`, `sample_indices` and `sample_indptr`, the postings of the sample in
        the form of the arguments, where tool `i` is the tool `i * n` of the index; `sample_step`, `[n, n_tools]`.
    """
    step = max(1, n_tools // SAMPLED_TOOLS)
    lengths = np.diff(indptr)
    n_terms = len(lengths)
    terms = np.repeat(np.arange(n_terms, dtype=np.int32), lengths)  # of each posting
    chosen = np.flatnonzero(indices % step == 0)
    sample_lengths = np.bincount(terms[chosen], minlength=n_terms)
    return {
        "sample_sums": np.bincount(terms, data, minlength=n_terms),
        "sample_data": data[chosen],
        "sample_indices": (indices[chosen] // step).astype(np.int32),
        "sample_indptr": np.concatenate([[0], np.cumsum(sample_lengths)]).astype(np.int32),
        "sample_step": np.array([step, n_tools], dtype=np.int64),
    }


def _list_tier_ranks() -> npt.NDArray[np.int64]:
    """Return the ranks at which impacts are stored, ascending: 0, `FIRST_TIER_RANK`, then each twice the one before.

    They are also the lengths that the prefix of a long list can have: the impact at the rank where it ends bounds the
    impacts of the tools beyond it.
    """
    return np.array([0, *(FIRST_TIER_RANK << step for step in range(N_TIERS - 1))], dtype=np.int64)


def _score_positions(positions: Positions, postings: Sequence[Postings], data: Scores, indices: Positions) -> Scores:
    """Score the tools at ascending positions, as `BM25.scores` does, to the last bit: term by term in the same order.

    `data` and `indices` are the impact and the tool of each posting of the index.
    """
    scores = np.zeros(len(positions))
    for _, start, end, weight in postings:
        tools = indices[start:end]
        numbers = np.searchsorted(tools, positions)  # in `tools`, if the tool has the term
        numbers[numbers == len(tools)] = 0  # a tool behind the last of them; it differs from the first one too
        has_term = np.flatnonzero(tools[numbers] == positions)
        scores[has_term] += _weigh(data[start + numbers[has_term]], weight)
    return scores.astype(np.float32)


def _weigh(impacts: Scores, weight: float) -> Scores:
    """Multiply impacts by a term's weight. If it is 1, as in nearly all queries, they are not copied."""
    return impacts if weight == 1 else impacts * np.float32(weight)


class _TermList(NamedTuple):
    """The tools of one term of a query. Only a long list is also stored by impact.

    Attributes:
        posting: the term.
        start: index in `impact_tools` where the list begins; None: the list is short.
        tier_impacts: impacts at the ranks of `_list_tier_ranks`, times the term's weight; 0 beyond the end of the
            list. Empty for a short list.
    """

    posting: Postings
    start: int | None
    tier_impacts: list[float]

    @property
    def length(self) -> int:
        """Number of tools."""
        return self.posting.end - self.posting.start

    @property
    def is_short(self) -> bool:
        """Whether the list is not stored by impact. It is then always read as a whole."""
        return self.start is None


class PrunedWords:
    """The long lists of a BM25 index by impact, and a sample of its scores. See `toolscout.indexes.large`.

    Attributes:
        min_postings: tools of all terms of a query; with fewer, a full scan is as fast.
    """

    min_postings = MIN_PRUNED_POSTINGS

    def __init__(self, arrays: Arrays, n_tools: int) -> None:
        """Take the arrays of a BM25 index. If it was just built, also make the additional arrays of this class."""
        self._data, self._indices, self._n_tools = arrays["data"], arrays["indices"], n_tools
        if "impact_terms" in arrays:
            self._own = {name: array for name, array in arrays.items() if name.startswith(("impact_", "sample_"))}
        else:
            self._own = make_impact_arrays(self._data, self._indices, arrays["indptr"])
            self._own |= make_sample_arrays(self._data, self._indices, arrays["indptr"], n_tools)
        self._terms, self._starts = self._own["impact_terms"], self._own["impact_starts"]
        self._tools, self._scores = self._own["impact_tools"], self._own["impact_scores"]
        self._tiers = self._own["impact_tiers"]
        self._prefix_lengths: list[int] = _list_tier_ranks().tolist()  # the lengths that a prefix can have, ascending

    def arrays(self) -> Arrays:
        """Return the arrays that a BM25 index stores besides its own."""
        return self._own

    def find_best(
        self, postings: Sequence[Postings], k: int, visible: Mask | None
    ) -> tuple[npt.NDArray[np.intp], Scores] | None:
        """Return positions and scores of the `k` best tools with a score above 0; `postings` in the query's order.

        Returns:
            None if a full scan is as fast, or if the first look finds fewer than `k` tools with a score.
        """
        n_postings = sum(posting.end - posting.start for posting in postings)
        if n_postings < self.min_postings or not 0 < k < self._n_tools:
            return None
        lists = [self._find_list(posting) for posting in postings]
        sums = _PartialSums(self._n_tools, visible)
        for term in lists:
            sums.add(*self._read(term, 0, FIRST_LOOK))
        kth_sum = sums.find_kth(k)  # a lower bound of the k-th best score
        if kth_sum <= 0:
            return None
        # A tool in no prefix gains at most this share of the sum. The rest is left for tools that are in some prefixes.
        lengths = self._choose_prefixes(lists, kth_sum * BOUND_SHARE)
        if sum(lengths) > MAX_PRUNED_SHARE * n_postings:
            return None
        bound = 0.0  # the highest score that a tool can still gain beyond the prefixes
        for term, length in zip(lists, lengths, strict=True):
            if length > FIRST_LOOK and not term.is_short:
                sums.add(*self._read(term, FIRST_LOOK, length))
            if length < term.length:  # the list is long, and its prefix ends at a tier
                bound += term.tier_impacts[self._prefix_lengths.index(length)]
        # The k-th sum has grown. A tool further below it than the bound cannot be among the k best.
        positions = sums.list_from(sums.find_kth(k) * (1 - ROUNDING) - bound * (1 + ROUNDING))
        scores = _score_positions(positions, postings, self._data, self._indices)
        best = top_k(scores, k, floor=0.0)
        return positions[best].astype(np.intp), scores[best]

    def describe_scores(self, postings: Sequence[Postings], visible: Mask | None) -> tuple[float, float] | None:
        """Estimate mean and deviation of the scores of the visible tools; None if the sample has too few of them."""
        data, indices, indptr = self._own["sample_data"], self._own["sample_indices"], self._own["sample_indptr"]
        step, _ = self._own["sample_step"].tolist()
        scores = np.zeros(math.ceil(self._n_tools / step))
        for term, _, _, weight in postings:
            start, end = int(indptr[term]), int(indptr[term + 1])
            scores[indices[start:end]] += data[start:end] * weight
        if visible is None:
            sums = self._own["sample_sums"]
            mean = sum(float(sums[posting.term]) * posting.weight for posting in postings) / self._n_tools
            return mean, float(scores.std())
        visible_in_sample = visible[::step]
        scores = scores[visible_in_sample]
        if len(scores) < MIN_VISIBLE_SAMPLE:
            return None
        return float(scores.mean()), float(scores.std())

    def _find_list(self, posting: Postings) -> _TermList:
        """Find where the tools of a term are stored by impact, if the term has a long list."""
        number = int(np.searchsorted(self._terms, posting.term))
        if number == len(self._terms) or self._terms[number] != posting.term:
            return _TermList(posting, start=None, tier_impacts=[])
        tier_impacts = self._tiers[number].astype(np.float64) * posting.weight
        return _TermList(posting, int(self._starts[number]), tier_impacts.tolist())

    def _read(self, term: _TermList, first: int, end: int) -> tuple[Positions, Scores]:
        """Return positions and weighted impacts of the tools at the ranks from `first` up to `end`.

        Of a short list all tools are returned, whatever the ranks, in the order of their positions.
        """
        posting = term.posting
        if term.start is None:
            span = slice(posting.start, posting.end)
            return self._indices[span], _weigh(self._data[span], posting.weight)
        span = slice(term.start + first, term.start + min(end, term.length))
        return self._tools[span], _weigh(self._scores[span], posting.weight)

    def _choose_prefixes(self, lists: Sequence[_TermList], budget: float) -> list[int]:
        """Choose how many tools of each list to read, so that a tool beyond all these prefixes scores at most `budget`.

        At first all lists are whole. Then one list at a time is cut to the next shorter prefix, always the list whose
        cut raises that score least for each posting that is not read. A list whose next cut would exceed the rest of
        the budget stays as it is. Short lists are read as a whole, and no prefix is shorter than the first look.
        """
        lengths = [term.length for term in lists]
        # For each list: the tier at which its prefix ends, and the highest impact beyond that prefix.
        tiers = [bisect.bisect_left(self._prefix_lengths, length) for length in lengths]
        highest_beyond = [0.0] * len(lists)
        cuts: list[tuple[float, int, float]] = []  # (price, number of the list, by how much the score rises)

        def offer_cut(number: int) -> None:
            """Offer the next cut of a list; its price is the rise of the score for each posting that is not read."""
            tier = tiers[number] - 1
            rise = lists[number].tier_impacts[tier] - highest_beyond[number]
            n_unread = lengths[number] - self._prefix_lengths[tier]
            heapq.heappush(cuts, (rise / n_unread, number, rise))

        for number, term in enumerate(lists):
            if not term.is_short:
                offer_cut(number)
        while cuts:
            _, number, rise = heapq.heappop(cuts)
            if rise > budget:
                continue
            budget -= rise
            tiers[number] -= 1
            lengths[number] = self._prefix_lengths[tiers[number]]
            highest_beyond[number] = lists[number].tier_impacts[tiers[number]]
            if lengths[number] > FIRST_LOOK:
                offer_cut(number)
        return lengths


def _find_kth(scores: Scores, k: int) -> np.float32:
    """Find the k-th highest score.

    Of many scores, a sample first rules out most: its k-th highest score is at most the k-th highest of all, so only
    higher scores are compared. That saves time only if `k` is small beside the sample.
    """
    if len(scores) >= 2 * PARTED_SCORES and k <= PARTED_SCORES // 4:
        sample = scores[:: len(scores) // PARTED_SCORES]
        kth_of_sample: np.float32 = np.partition(sample, sample.size - k)[sample.size - k]
        scores = scores[scores > kth_of_sample]
        if len(scores) < k:  # fewer than k scores are higher, but k of the sample reach it: it is the k-th of all
            return kth_of_sample
    kth: np.float32 = np.partition(scores, scores.size - k)[scores.size - k]
    return kth


class _PartialSums:
    """The sum of the impacts of each visible tool that are read so far: a lower bound of its score."""

    def __init__(self, n_tools: int, visible: Mask | None) -> None:
        """Start with sums of 0; `visible`: mask over positions, None for all."""
        self._sums = np.zeros(n_tools, dtype=np.float32)
        self._visible = visible

    def add(self, positions: Positions, impacts: Scores) -> None:
        """Add impacts of one term to the sums of some tools, none of them twice. Hidden tools are ignored."""
        if self._visible is not None:
            is_visible = self._visible[positions]
            positions, impacts = positions[is_visible], impacts[is_visible]
        self._sums[positions] += impacts

    def find_kth(self, k: int) -> float:
        """Return the k-th highest sum; 0 if fewer than `k` tools have a sum above 0."""
        return float(_find_kth(self._sums, k))

    def list_from(self, limit: float) -> Positions:
        """Return the positions, ascending, of the tools whose sum is at least `limit`."""
        return np.flatnonzero(self._sums >= limit).astype(np.int32)
