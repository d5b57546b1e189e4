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

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.errors import StoreError

__all__ = ["pack", "top_k", "unpack"]


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
