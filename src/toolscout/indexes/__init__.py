"""Indexes find the nearest tools of a query. This file holds their contract and shared helpers.

Every index holds the ids of its tools in `ids`, an ascending sequence. The *position* of a tool is its place there ::

    search(queries, k, visible=None) -> (ids, scores)

* `queries`: texts (sparse) or unit rows, `(n, d)` float32 (dense). One answer each, in order.
* `visible`: a boolean mask over positions, one for all queries or one (or None) per query; None shows all tools. The
  search itself applies it, so one index serves every caller and returns `k` visible tools if there are that many.
* `ids[i]`: at most `k` tool ids, best first; `scores[i]`: their scores, float32, higher is better.
* Equal scores are ordered by tool id, also at the cut, so the same query always gets the same answer.
* `explain(query, tool_id, visible=None)` returns the exact rank and score of one tool as an `Explanation`.

The setting `index` names the index over vectors: `exact`, `ann`, `auto` (either of the two, by the size of the
catalogue), or `NAME` or `NAME:ARGUMENT` of a plug-in.
"""

from __future__ import annotations

import bisect
import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout import plugins
from toolscout.config import Settings
from toolscout.errors import ConfigError, NotFound, StoreError, UserError
from toolscout.types import Explanation

__all__ = [
    "BUILT_IN_INDEXES",
    "MIN_ANN_TOOLS",
    "Mask",
    "Spread",
    "VectorIndex",
    "choose_index",
    "find_kth",
    "masks",
    "new_index",
    "pack",
    "pad_best",
    "place",
    "rank",
    "spread",
    "top_k",
    "unpack",
]

Mask: TypeAlias = npt.NDArray[np.bool_]
PARTED_SCORES: Final = 16_384
BUILT_IN_INDEXES: Final = ("auto", "exact", "ann")
MIN_ANN_TOOLS: Final = 50_000  # from here on, `auto` is `ann` where its package is installed


class VectorIndex(Protocol):
    """An index over the vectors of tools; the score is the cosine. The module says what its methods promise."""

    @property
    def ids(self) -> Sequence[str]:
        """Tool ids, ascending."""
        ...

    def upsert(self, ids: Sequence[str], vectors: npt.NDArray[Any]) -> None:
        """Add tools, or replace their vectors: `(len(ids), dim)` float32, unit rows."""
        ...

    def search(
        self, queries: npt.NDArray[Any], k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[npt.NDArray[np.float32]]]:
        """Find the nearest tools of each query; a row of zeros finds nothing."""
        ...

    def explain(self, query: npt.NDArray[Any], tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain rank and score of one tool."""
        ...


def new_index(name: str, dim: int, settings: Settings) -> VectorIndex:
    """Create an empty index over vectors.

    Args:
        name: as the setting `index` has it.
        dim: length of a vector.
        settings: of the home, for a plug-in.

    Raises:
        ConfigError: if there is no index of that name, or its plug-in fails.
    """
    if name in BUILT_IN_INDEXES:
        from toolscout.indexes.ann import Ann
        from toolscout.indexes.exact import Exact

        return Ann(dim) if name == "ann" else Exact(dim)
    plugin_name, _, argument = name.partition(":")
    plugin = plugins.find_plugin(plugins.INDEX_PLUGINS, plugin_name)
    if plugin is None:
        names = [*BUILT_IN_INDEXES, *(plugin.name for plugin in plugins.list_plugins(plugins.INDEX_PLUGINS))]
        raise ConfigError(f"index: expected the name of an index of {', '.join(names)}, found {name!r}")
    make_index = plugins.load_function(plugin)
    try:
        index: VectorIndex = make_index(dim, argument, settings)
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(f"index {name}: {plugin} failed: {type(error).__name__}: {error}") from error
    return index


def choose_index(n_tools: int, name: str = "auto") -> str:
    """Choose the built-in index over the vectors of a catalogue: `exact` or `ann`.

    Args:
        n_tools: of the catalogue.
        name: the setting `index`. `exact` and `ann` are taken as they are; with any other, the number of tools and
            whether the package is installed decide.
    """
    if name in ("exact", "ann"):
        return name
    from toolscout.indexes.ann import is_available

    return "ann" if n_tools >= MIN_ANN_TOOLS and is_available() else "exact"


class Spread(NamedTuple):
    """The distribution of the scores of all visible tools for one query.

    Attributes:
        best: `(depth,)` float64, the highest scores, descending; padded with the lowest of them.
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
    positions = None if visible is None else np.flatnonzero(visible)
    if positions is not None:
        scores = scores[positions]
    k = min(k, scores.size)
    if k <= 0:
        return np.empty(0, dtype=np.intp)
    kth = find_kth(scores, k)
    best = np.flatnonzero(scores >= kth if floor is None or kth > floor else scores > floor)
    best = best[np.argsort(-scores[best], kind="stable")[:k]]
    return best if positions is None else positions[best]


def find_kth(scores: npt.NDArray[np.floating], k: int) -> Any:
    """Find the k-th highest score. Of many scores, a part first shows which of them cannot be it."""
    if len(scores) >= 2 * PARTED_SCORES and k <= PARTED_SCORES // 4:
        part = scores[:: len(scores) // PARTED_SCORES]
        least = np.partition(part, part.size - k)[part.size - k]
        scores = scores[scores > least]
        if len(scores) < k:
            return least
    return np.partition(scores, scores.size - k)[scores.size - k]


def spread(scores: npt.NDArray[np.floating], depth: int, visible: Mask | None = None) -> Spread:
    """Summarise the distribution of scores; among equal highest scores the first position counts.

    Args:
        scores: `(n,)`, finite.
        depth: number of best scores.
        visible: `(n,)`, at least one True; None for all.
    """
    best = top_k(scores, depth, visible)
    row = (scores if visible is None else scores[visible]).astype(np.float64)
    return Spread(pad_best(scores[best], depth), int(best[0]), float(row.mean()), float(row.std()))


def pad_best(best: npt.NDArray[np.floating], depth: int) -> npt.NDArray[np.float64]:
    """Pad the best scores to `depth` values with the lowest of them, as `Spread` requires.

    Args:
        best: descending, at least one.
        depth: number of values to return.
    """
    row = np.full(depth, best[-1], dtype=np.float64)
    row[: len(best)] = best[:depth]
    return row


def masks(visible: Mask | Sequence[Mask | None] | None, n: int) -> Sequence[Mask | None]:
    """Return one mask (or None) for each of `n` queries, from any accepted form of `visible`."""
    if visible is None:
        return [None] * n
    if isinstance(visible, np.ndarray):
        return [visible] * n if visible.ndim == 1 else list(visible)
    return visible


def place(ids: Sequence[str], tool_id: str) -> int:
    """Find the position of a tool in ascending ids.

    Raises:
        NotFound: if the ids do not contain it.
    """
    position = bisect.bisect_left(ids, tool_id)
    if position == len(ids) or ids[position] != tool_id:
        raise NotFound(f"The index has no tool {tool_id!r}. Add its source, or check the spelling.")
    return position


def rank(scores: npt.NDArray[np.floating], position: int, visible: Mask | None = None) -> int:
    """Rank the tool at a position by its score, from 1, as if it were visible; ties as in `top_k`."""
    visible_scores = scores if visible is None else scores[visible]
    earlier = scores[:position] if visible is None else scores[:position][visible[:position]]
    return 1 + int((visible_scores > scores[position]).sum() + (earlier == scores[position]).sum())


def pack(arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any]) -> bytes:
    """Pack arrays and JSON values into one block of bytes, without pickle; `unpack` reverses it."""
    stream = io.BytesIO()
    named: dict[str, Any] = {**arrays, "meta": np.frombuffer(msgspec.json.encode(meta), dtype=np.uint8)}
    np.savez(stream, **named)
    return stream.getvalue()


def unpack(block: bytes) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Return the arrays and the values of a packed block.

    Raises:
        StoreError: if the block is damaged.
    """
    try:
        with np.load(io.BytesIO(block), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        return arrays, msgspec.json.decode(arrays.pop("meta").tobytes(), type=dict[str, Any])
    except (ValueError, OSError, KeyError, zipfile.BadZipFile, msgspec.MsgspecError) as error:
        raise StoreError(f"The stored index is damaged: {error}") from None
