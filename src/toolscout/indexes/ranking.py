"""Ranks tools by their scores: finds the best, the rank of one tool, and the distribution of all scores."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array
from toolscout.errors import NotFound

__all__ = ["Mask", "Spread", "check_rows", "describe_scores", "masks", "pad_best", "place", "rank", "spread", "top_k"]

Mask: TypeAlias = npt.NDArray[np.bool_]


class Spread(NamedTuple):
    """The distribution of the scores of all visible tools for one query.

    Attributes:
        best: `(depth,)` float64, the highest scores, descending; if fewer tools are visible, the lowest is repeated.
        first: position of the tool with the highest score.
        mean: mean of all scores.
        deviation: population standard deviation of all scores.
    """

    best: npt.NDArray[np.float64]
    first: int
    mean: float
    deviation: float


def top_k(
    scores: npt.NDArray[np.floating],
    k: int,
    visible: npt.NDArray[np.bool_] | None = None,
    floor: float | None = None,
) -> npt.NDArray[np.intp]:
    """Find the positions of the `k` best scores, best first; equal scores by position, also at the cut.

    Args:
        scores: `(n,)`, finite, higher is better.
        k: maximum number of positions.
        visible: `(n,)` mask of the positions that may be returned; None for all.
        floor: return only scores above it; None for all.

    Raises:
        ValueError: if the mask is not as long as the scores.
    """
    if visible is not None and visible.shape != scores.shape:
        raise ValueError(f"expected a mask of shape {scores.shape}, found {visible.shape}")
    is_candidate = visible
    if floor is not None:  # many equal scores, such as those of tools without a word of the query, slow the partition
        above = scores > floor
        is_candidate = above if visible is None else above & visible
    positions = None if is_candidate is None else np.flatnonzero(is_candidate)
    candidates = scores if positions is None else scores[positions]
    k = min(k, candidates.size)
    if k <= 0:
        return np.empty(0, dtype=np.intp)
    kth_best = np.partition(candidates, candidates.size - k)[candidates.size - k]
    best = np.flatnonzero(candidates >= kth_best)  # more than `k` positions if some scores equal the k-th best
    best = best[np.argsort(-candidates[best], kind="stable")[:k]]
    return best if positions is None else positions[best]


def spread(scores: npt.NDArray[np.floating], depth: int, visible: Mask | None = None) -> Spread:
    """Summarise the distribution of scores. `first` is the lowest position among equal highest scores.

    Args:
        scores: `(n,)`, finite.
        depth: number of best scores.
        visible: `(n,)`, at least one True; None for all.
    """
    best = top_k(scores, depth, visible)
    return Spread(pad_best(scores[best], depth), int(best[0]), *describe_scores(scores, visible))


def describe_scores(scores: npt.NDArray[np.floating], visible: Mask | None = None) -> tuple[float, float]:
    """Return the mean and the population standard deviation of the visible scores, in double precision."""
    row = (scores if visible is None else scores[visible]).astype(np.float64)
    mean, mean_square = float(row.sum()) / len(row), float(np.einsum("n,n->", row, row)) / len(row)
    variance = max(mean_square - mean * mean, 0.0)  # rounding can make the difference negative
    return mean, variance**0.5


def pad_best(best: npt.NDArray[np.floating], depth: int) -> npt.NDArray[np.float64]:
    """Pad descending scores, at least one, to `depth` values by repeating the lowest, as `Spread` requires."""
    lowest = best[-1]
    row = np.full(depth, lowest, dtype=np.float64)
    row[: len(best)] = best[:depth]
    return row


def masks(visible: Mask | Sequence[Mask | None] | None, n: int) -> Sequence[Mask | None]:
    """Return one mask for each of `n` queries, None for a query that sees all tools.

    Args:
        visible: one mask for all queries; one mask (or None) per query, as a sequence or as the rows of a table; or
            None: all queries see all tools.
        n: number of queries.
    """
    if visible is None:
        return [None] * n
    if isinstance(visible, np.ndarray):
        return [visible] * n if visible.ndim == 1 else list(visible)
    return visible


def place(ids: Sequence[str], tool_id: str) -> int:
    """Find the position of a tool in ascending ids. Callers also use it to refuse an unknown tool.

    Raises:
        NotFound: if the ids do not contain it.
    """
    position = bisect.bisect_left(ids, tool_id)
    if position == len(ids) or ids[position] != tool_id:
        raise NotFound(f"The index has no tool {tool_id!r}. Add its source, or check the spelling.")
    return position


def rank(scores: npt.NDArray[np.floating], position: int, visible: Mask | None = None) -> int:
    """Return the rank of the tool at a position among the visible tools, from 1, as if it were visible itself.

    Of equal scores, the lower position has the better rank, as in `top_k`.
    """
    visible_scores = scores if visible is None else scores[visible]
    scores_before = scores[:position] if visible is None else scores[:position][visible[:position]]
    n_higher = (visible_scores > scores[position]).sum()
    n_equal_before = (scores_before == scores[position]).sum()
    return 1 + int(n_higher + n_equal_before)


def check_rows(vectors: Array, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return vectors as contiguous float32 rows, `(rows, dim)`.

    Raises:
        ValueError: if their shape is not `shape`, or a value is not finite.
    """
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    if rows.shape != shape:
        raise ValueError(f"expected vectors of shape {shape}, found {rows.shape}")
    if not np.isfinite(rows).all():
        raise ValueError("expected finite vectors, found one with a value that is not finite")
    return rows
