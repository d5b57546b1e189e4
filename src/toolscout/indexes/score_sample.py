"""Estimates the distribution of the BM25 scores of a query in a large catalogue.

The mean of all scores follows from the sum of each term's scores. Their deviation would need every tool of every term;
it is estimated from every n-th tool, which are some ten thousand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolscout.indexes.impact import Postings
from toolscout.indexes.ranking import Mask

__all__ = ["ScoreSample", "make_sample_arrays"]

SAMPLED_TOOLS: Final = 16_384  # at least; with fewer tools the sample is the catalogue
MIN_VISIBLE_SAMPLE: Final = 1_000  # visible tools in the sample from which it describes what is visible


def make_sample_arrays(
    data: npt.NDArray[np.float32], indices: npt.NDArray[np.int32], indptr: npt.NDArray[np.int32], n_tools: int
) -> dict[str, npt.NDArray[Any]]:
    """Return the sums of all scores by term, and the postings of every n-th tool."""
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


class ScoreSample:
    """The scores of every n-th tool, and the sums of all."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take the arrays of `make_sample_arrays`."""
        self._sums, self._data = arrays["sample_sums"], arrays["sample_data"]
        self._indices, self._indptr = arrays["sample_indices"], arrays["sample_indptr"]
        self._step, self._n_tools = (int(value) for value in arrays["sample_step"])

    def describe(self, postings: Sequence[Postings], visible: Mask | None = None) -> tuple[float, float] | None:
        """Return mean and deviation of the scores of the visible tools; None if the sample has too few of them.

        Args:
            postings: the terms of the query.
            visible: mask over all tools; None for all.
        """
        scores = np.zeros(-(-self._n_tools // self._step))
        for term, _, _, count in postings:
            start, end = int(self._indptr[term]), int(self._indptr[term + 1])
            scores[self._indices[start:end]] += self._data[start:end] * count
        if visible is None:
            mean = sum(float(self._sums[part.term]) * part.weight for part in postings) / self._n_tools
            return mean, float(scores.std())
        scores = scores[visible[:: self._step]]
        if len(scores) < MIN_VISIBLE_SAMPLE:
            return None
        return float(scores.mean()), float(scores.std())
