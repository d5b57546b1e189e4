"""Searches the words of a large catalogue without reading all tools of common words.

The tools of a common word are also stored in the order of their scores (*impacts*). A search reads a prefix of each
such list. It chooses the prefixes so that a tool in none of them cannot reach the k-th best score, which it knows from
a first look at short prefixes. What is left is scored exactly, term by term in the order of the query, so the answer
and every bit of its scores equal those of a full scan.

For most queries a full scan is as fast, since they have few common words; see `MIN_PRUNED_POSTINGS`.

The distribution of a query's scores is estimated. The mean of all scores follows from the sum of each term's scores.
Their deviation would need every tool of every term; it is estimated from every n-th tool, which are some ten thousand.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array, Arrays
from toolscout.indexes.large import Postings
from toolscout.indexes.ranking import Mask, top_k

__all__ = ["PrunedWords", "make_impact_arrays", "make_sample_arrays"]

MIN_LONG_LIST: Final = 1_024  # tools of a term from which its list is also stored by impact
N_TIERS: Final = 24  # impacts at the ranks 0, 64, 128, 256 …
FIRST_TIER_RANK: Final = 64
FIRST_LOOK: Final = 1_024  # tools of each long list that the first look reads; one of the tiers
ROUNDING: Final = 1e-5  # relative; more than float32 sums of the terms of a query can differ by
MIN_PRUNED_POSTINGS: Final = 1_000_000  # of a query; below, a full scan is as fast
MAX_PRUNED_SHARE: Final = 0.3  # share of all postings from which a full scan is as fast
BOUND_SHARE: Final = 0.5  # of the k-th best score that may be beyond the prefixes: more reads less and scores more
PARTED_SCORES: Final = 16_384  # scores that show first which others can't be the k-th
SAMPLED_TOOLS: Final = 16_384  # at least; with fewer tools the sample is the catalogue
MIN_VISIBLE_SAMPLE: Final = 1_000  # visible tools in the sample from which it describes what is visible

Positions = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]


def make_impact_arrays(data: Scores, indices: Positions, indptr: npt.NDArray[np.int32]) -> dict[str, Array]:
    """Order the long lists by impact.

    Returns:
        `impact_terms`, the terms with long lists, ascending; `impact_starts`, where the list of each begins;
        `impact_tools` and `impact_scores`, the lists, highest impact first, equal ones by tool; `impact_tiers`,
        `(long lists, N_TIERS)`, the impacts at the ranks of `_list_tier_ranks`, 0 beyond the end.
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
        within = ranks[ranks < len(ordered)]
        tiers[number, : len(within)] = ordered[within]
    return {
        "impact_terms": terms,
        "impact_starts": starts,
        "impact_tools": tools,
        "impact_scores": scores,
        "impact_tiers": tiers,
    }


def make_sample_arrays(
    data: npt.NDArray[np.float32], indices: npt.NDArray[np.int32], indptr: npt.NDArray[np.int32], n_tools: int
) -> dict[str, Array]:
    """Return the sums of all scores by term, and the postings of every n-th tool.

    Args:
        data: score of each posting, as in `BM25`.
        indices: tool of each posting.
        indptr: where the postings of each term begin, and where the last ones end.
        n_tools: in the index.
    """
    step = max(1, n_tools // SAMPLED_TOOLS)
    lengths = np.diff(indptr)
    terms = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    chosen = np.flatnonzero(indices % step == 0)
    ends = np.concatenate([[0], np.cumsum(np.bincount(terms[chosen], minlength=len(lengths)))])
    return {
        "sample_sums": np.bincount(terms, data, minlength=len(lengths)),
        "sample_data": data[chosen],
        "sample_indices": (indices[chosen] // step).astype(np.int32),
        "sample_indptr": ends.astype(np.int32),
        "sample_step": np.array([step, n_tools], dtype=np.int64),
    }


def _list_tier_ranks() -> npt.NDArray[np.int64]:
    """Return the ranks whose impacts are stored, ascending: 0, then each twice the one before.

    They are also the lengths that the prefix of a long list can have: at the rank where it ends, the impact says how
    much the tools beyond it can still gain.
    """
    return np.array([0, *(FIRST_TIER_RANK << step for step in range(N_TIERS - 1))], dtype=np.int64)


def _score_positions(positions: Positions, postings: Sequence[Postings], data: Scores, indices: Positions) -> Scores:
    """Score the tools at ascending positions, as `BM25.scores` does, to the last bit."""
    scores = np.zeros(len(positions))
    for _, start, end, weight in postings:
        tools = indices[start:end]
        places = np.searchsorted(tools, positions)
        places[places == len(tools)] = 0
        has_term = np.flatnonzero(tools[places] == positions)
        scores[has_term] += _weigh(data[start + places[has_term]], weight)
    return scores.astype(np.float32)


def _weigh(impacts: Scores, weight: float) -> Scores:
    """Multiply impacts by a term's weight. A copy is spared where it is 1, as in nearly all queries."""
    return impacts if weight == 1 else impacts * np.float32(weight)


class _TermList(NamedTuple):
    """The tools of one term of a query.

    Attributes:
        posting: the term.
        start: place in `impact_tools` where its list begins; None: the list is short.
        impacts: at the ranks of the tiers, times the count of the term; 0 beyond the end. Empty for a short list.
    """

    posting: Postings
    start: int | None
    impacts: list[float]

    @property
    def length(self) -> int:
        """Number of tools."""
        return self.posting.end - self.posting.start

    @property
    def is_short(self) -> bool:
        """Whether the list is not stored by impact, so that it is always read as a whole."""
        return self.start is None


class PrunedWords:
    """The long lists of a BM25 index by impact, and a sample of its scores. See `toolscout.indexes.large`.

    Attributes:
        min_postings: of a query; with fewer of them, a full scan is as fast.
    """

    min_postings = MIN_PRUNED_POSTINGS

    def __init__(self, arrays: Arrays, n_tools: int) -> None:
        """Take the arrays of an index. Those of this class are made if they aren't among them.

        Args:
            arrays: of the index, as it is stored.
            n_tools: of the index.
        """
        self._data, self._indices, self._n_tools = arrays["data"], arrays["indices"], n_tools
        if "impact_terms" in arrays:
            self._own = {name: array for name, array in arrays.items() if name.startswith(("impact_", "sample_"))}
        else:
            self._own = make_impact_arrays(self._data, self._indices, arrays["indptr"])
            self._own |= make_sample_arrays(self._data, self._indices, arrays["indptr"], n_tools)
        self._terms, self._starts = self._own["impact_terms"], self._own["impact_starts"]
        self._tools, self._scores = self._own["impact_tools"], self._own["impact_scores"]
        self._tiers = self._own["impact_tiers"]
        self._prefix_lengths: list[int] = _list_tier_ranks().tolist()  # that a search can choose from, ascending

    def arrays(self) -> Arrays:
        """Return the arrays that the index stores besides its own."""
        return self._own

    def find_best(
        self, postings: Sequence[Postings], k: int, visible: Mask | None
    ) -> tuple[npt.NDArray[np.intp], Scores] | None:
        """Return positions and scores of the `k` best tools with a score above 0, or None if a full scan is as fast.

        Args:
            postings: the terms of the query, in its order.
            k: maximum number of tools.
            visible: mask over positions; None for all.
        """
        if not 0 < k < self._n_tools:
            return None
        n_postings = sum(part.end - part.start for part in postings)
        if n_postings < self.min_postings:
            return None
        lists = [self._open(posting) for posting in postings]
        sums = _PartialSums(self._n_tools, visible)
        for term in lists:
            sums.add(*self._read(term, 0, term.length if term.is_short else FIRST_LOOK))
        floor = sums.find_kth(k)
        if floor <= 0:
            return None
        lengths = self._choose_prefixes(lists, floor * BOUND_SHARE)
        if sum(lengths) > MAX_PRUNED_SHARE * n_postings:
            return None
        bound = 0.0
        for term, length in zip(lists, lengths, strict=True):
            if length > FIRST_LOOK and not term.is_short:
                sums.add(*self._read(term, FIRST_LOOK, length))
            if length < term.length:
                bound += term.impacts[self._prefix_lengths.index(length)]
        positions = sums.list_above(sums.find_kth(k) * (1 - ROUNDING) - bound * (1 + ROUNDING))
        scores = _score_positions(positions, postings, self._data, self._indices)
        best = top_k(scores, k, floor=0.0)
        return positions[best].astype(np.intp), scores[best]

    def describe_scores(self, postings: Sequence[Postings], visible: Mask | None) -> tuple[float, float] | None:
        """Estimate mean and deviation of the scores of the visible tools; None if the sample has too few of them.

        Args:
            postings: the terms of the query.
            visible: mask over all tools; None for all.
        """
        data, indices, indptr = (self._own[f"sample_{name}"] for name in ("data", "indices", "indptr"))
        step = int(self._own["sample_step"][0])
        scores = np.zeros(-(-self._n_tools // step))
        for term, _, _, weight in postings:
            start, end = int(indptr[term]), int(indptr[term + 1])
            scores[indices[start:end]] += data[start:end] * weight
        if visible is None:
            sums = self._own["sample_sums"]
            mean = sum(float(sums[part.term]) * part.weight for part in postings) / self._n_tools
            return mean, float(scores.std())
        scores = scores[visible[::step]]
        if len(scores) < MIN_VISIBLE_SAMPLE:
            return None
        return float(scores.mean()), float(scores.std())

    def _open(self, posting: Postings) -> _TermList:
        """Find the list of a term among those stored by impact."""
        number = int(np.searchsorted(self._terms, posting.term))
        if number == len(self._terms) or self._terms[number] != posting.term:
            return _TermList(posting, start=None, impacts=[])
        impacts = self._tiers[number].astype(np.float64) * posting.weight
        return _TermList(posting, int(self._starts[number]), impacts.tolist())

    def _read(self, term: _TermList, first: int, end: int) -> tuple[Positions, Scores]:
        """Return positions and impacts of the tools at the ranks from `first` to `end`; of a short list, of all."""
        posting = term.posting
        if term.start is None:
            part = slice(posting.start, posting.end)
            return self._indices[part], _weigh(self._data[part], posting.weight)
        part = slice(term.start + first, term.start + min(end, term.length))
        return self._tools[part], _weigh(self._scores[part], posting.weight)

    def _choose_prefixes(self, lists: Sequence[_TermList], budget: float) -> list[int]:
        """Choose how much of each list is read, so that no tool gains more than the budget from what is not.

        From whole lists on, one list after another is cut to the next shorter prefix: each time the list whose cut
        spares the most postings for the least impact. A list is left as it is once its next cut would exceed what is
        left of the budget. Short lists are read as a whole, and no prefix is shorter than the first look.

        Args:
            lists: of the terms of a query.
            budget: the most that a tool may gain from what is not read, over all terms: a score.

        Returns:
            The number of tools that are read of each list.
        """
        lengths = [term.length for term in lists]
        tiers = [bisect.bisect_left(self._prefix_lengths, length) for length in lengths]  # of the chosen prefixes
        impacts = [0.0] * len(lists)  # the greatest beyond each chosen prefix

        def price_cut(number: int) -> float:
            """Return the impact that the next cut of a list gives up, for each posting that it spares."""
            tier = tiers[number] - 1
            return (lists[number].impacts[tier] - impacts[number]) / (lengths[number] - self._prefix_lengths[tier])

        cuts = [(price_cut(number), number) for number, term in enumerate(lists) if not term.is_short]
        heapq.heapify(cuts)
        while cuts:
            _, number = heapq.heappop(cuts)
            tier = tiers[number] - 1
            impact = lists[number].impacts[tier]
            rise = impact - impacts[number]
            if rise > budget:
                continue
            budget -= rise
            tiers[number], lengths[number], impacts[number] = tier, self._prefix_lengths[tier], impact
            if lengths[number] > FIRST_LOOK:
                heapq.heappush(cuts, (price_cut(number), number))
        return lengths


def _find_kth(scores: Scores, k: int) -> np.float32:
    """Find the k-th highest score. Of many scores, a part first shows which of them cannot be it.

    That saves time only if most scores lie below the k-th of the part: so it has many more than `k`.
    """
    if len(scores) >= 2 * PARTED_SCORES and k <= PARTED_SCORES // 4:
        part = scores[:: len(scores) // PARTED_SCORES]
        least: np.float32 = np.partition(part, part.size - k)[part.size - k]
        scores = scores[scores > least]
        if len(scores) < k:
            return least
    kth: np.float32 = np.partition(scores, scores.size - k)[scores.size - k]
    return kth


class _PartialSums:
    """The sums of what is read so far of each tool's score: lower bounds of the scores."""

    def __init__(self, n_tools: int, visible: Mask | None) -> None:
        self._sums = np.zeros(n_tools, dtype=np.float32)
        self._visible = visible

    def add(self, positions: Positions, impacts: Scores) -> None:
        """Add the impacts of one term for tools that did not have them yet."""
        if self._visible is not None:
            seen = self._visible[positions]
            positions, impacts = positions[seen], impacts[seen]
        self._sums[positions] += impacts

    def find_kth(self, k: int) -> float:
        """Return the k-th highest sum; 0 if fewer tools have one."""
        return float(_find_kth(self._sums, k))

    def list_above(self, limit: float) -> Positions:
        """Return the positions of the tools with at least this sum, ascending."""
        return np.flatnonzero(self._sums >= limit).astype(np.int32)
