"""Indexes: from a query to its nearest tools. This file holds the contract and what the indexes share.

An index knows its tools by `ids`, a tuple in ascending order; *position* means the place of a tool in it. Each has ::

    search(queries, k, visible=None) -> (ids, scores)

* `queries`: what the index compares: texts (sparse) or unit rows, `(n, d)` float32 (dense). One answer each, in order.
* `visible`: a boolean mask over positions, one for all queries or one (or None) for each; None means everything. It
  filters while searching, so that one index serves every caller and `k` visible tools are found if there are so many.
* `ids[i]`: at most `k` tool ids, best first; `scores[i]`: their scores, float32, higher is better.
* Equal scores are ordered by tool id, at the cut too: the same question always has the same answer.
"""

from __future__ import annotations

import bisect
import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.errors import NotFound, StoreError

__all__ = ["Mask", "Spread", "filled", "masks", "pack", "place", "rank", "spread", "top_k", "unpack"]

Mask: TypeAlias = npt.NDArray[np.bool_]


class Spread(NamedTuple):
    """How the scores of all visible tools lie for one query.

    Attributes:
        best: `(depth,)` float64, the greatest, descending; where there are fewer, the least of them again.
        first: position of the tool that has the greatest.
        mean: of all.
        deviation: of all, as of a population.
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
    """Positions of the `k` best scores, best first; equal scores in ascending position, at the cut too.

    Args:
        scores: `(n,)`, finite, higher is better.
        k: how many at most.
        visible: `(n,)` mask of the positions that may be returned; None: all.
        floor: only scores above it; None: all.

    Raises:
        ValueError: if the mask is not as long as the scores.
    """
    if visible is not None and visible.shape != scores.shape:
        raise ValueError(f"expected a mask of shape {scores.shape}, found {visible.shape}")
    wanted = visible
    if floor is not None:
        wanted = scores > floor if visible is None else (scores > floor) & visible
    chosen = None if wanted is None else np.flatnonzero(wanted)
    if chosen is not None:
        scores = scores[chosen]
    k = min(k, scores.size)
    if k <= 0:
        return np.empty(0, dtype=np.intp)
    kth = np.partition(scores, scores.size - k)[scores.size - k]
    best = np.flatnonzero(scores >= kth)
    best = best[np.argsort(-scores[best], kind="stable")[:k]]
    return best if chosen is None else chosen[best]


def spread(scores: npt.NDArray[np.floating], depth: int, visible: Mask | None = None) -> Spread:
    """How the scores lie; of several positions with the greatest the first one counts.

    Args:
        scores: `(n,)`, finite.
        depth: how many of the best.
        visible: `(n,)`, at least one; None: all.
    """
    best = top_k(scores, depth, visible)
    row = (scores if visible is None else scores[visible]).astype(np.float64)
    return Spread(filled(scores[best], depth), int(best[0]), float(row.mean()), float(row.std()))


def filled(best: npt.NDArray[np.floating], depth: int) -> npt.NDArray[np.float64]:
    """The best scores as `Spread` has them.

    Args:
        best: descending, at least one.
        depth: how many to return.
    """
    row = np.full(depth, best[-1], dtype=np.float64)
    row[: len(best)] = best[:depth]
    return row


def masks(visible: Mask | Sequence[Mask | None] | None, n: int) -> Sequence[Mask | None]:
    """One mask (or None) for each of `n` queries, however `visible` gives them."""
    if visible is None:
        return [None] * n
    if isinstance(visible, np.ndarray):
        return [visible] * n if visible.ndim == 1 else list(visible)
    return visible


def place(ids: Sequence[str], tool_id: str) -> int:
    """The position of a tool in ascending ids.

    Raises:
        NotFound: if it is not there.
    """
    position = bisect.bisect_left(ids, tool_id)
    if position == len(ids) or ids[position] != tool_id:
        raise NotFound(f"expected a tool of this index, found {tool_id!r}: add its source, or check the spelling")
    return position


def rank(scores: npt.NDArray[np.floating], position: int, visible: Mask | None = None) -> int:
    """Where the tool at a position stands by its score, from 1, as if it were visible; equal scores as in `top_k`."""
    rivals = scores if visible is None else scores[visible]
    before = scores[:position] if visible is None else scores[:position][visible[:position]]
    return 1 + int((rivals > scores[position]).sum() + (before == scores[position]).sum())


def pack(arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any]) -> bytes:
    """Arrays and JSON values in one block of bytes, without pickle; `unpack` gives them back."""
    stream = io.BytesIO()
    named: dict[str, Any] = {**arrays, "meta": np.frombuffer(msgspec.json.encode(meta), dtype=np.uint8)}
    np.savez(stream, **named)
    return stream.getvalue()


def unpack(block: bytes) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """The arrays and the values that were packed.

    Raises:
        StoreError: if the block is damaged.
    """
    try:
        with np.load(io.BytesIO(block), allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        return arrays, msgspec.json.decode(arrays.pop("meta").tobytes(), type=dict[str, Any])
    except (ValueError, OSError, KeyError, zipfile.BadZipFile, msgspec.MsgspecError) as error:
        raise StoreError(f"expected a packed index, found a damaged one: {error}") from None
