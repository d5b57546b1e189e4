"""Indexes find the nearest tools of a query. This file holds their contract, and makes them by name.

Every index holds the ids of its tools in `ids`, an ascending sequence. The *position* of a tool is its place there ::

    search(queries, k, visible=None) -> (ids, scores)

* `queries`: texts (sparse) or unit rows, `(n, d)` float32 (dense). One answer each, in order.
* `visible`: a boolean mask over positions, one for all queries or one (or None) per query; None shows all tools. The
  search itself applies it, so one index serves every caller and returns `k` visible tools if there are that many.
* `ids[i]`: at most `k` tool ids, best first; `scores[i]`: their scores, float32, higher is better.
* Equal scores are ordered by tool id, also at the cut, so the same query always gets the same answer.
* `explain(query, tool_id, visible=None)` returns the exact rank and score of one tool as an `Explanation`.

The setting `index` names the index over vectors: `exact`, `ann`, `auto` (either of the two, by the size of the
catalogue), an engine (`pgvector`, `milvus:PLACE`), or `NAME` or `NAME:ARGUMENT` of a plug-in.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout import plugins
from toolscout.config import Settings
from toolscout.errors import ConfigError, MissingExtra, StoreError, UserError
from toolscout.indexes.ranking import Mask, Spread, masks, pad_best, place, rank, spread, top_k
from toolscout.types import Explanation

__all__ = [
    "BUILT_IN_INDEXES",
    "MIN_ANN_TOOLS",
    "Mask",
    "Spread",
    "VectorIndex",
    "choose_index",
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


BUILT_IN_INDEXES: Final = ("auto", "exact", "ann")
#: Index → the extra of toolscout that brings it.
EXTRAS_OF_INDEXES: Final = {"pgvector": "postgres", "milvus": "milvus"}
MIN_ANN_TOOLS: Final = 100_000  # from here on, `auto` is `ann` where its package is installed


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
        if plugin_name in EXTRAS_OF_INDEXES:
            extra = EXTRAS_OF_INDEXES[plugin_name]
            raise MissingExtra(f"index {plugin_name}: it needs another package. Run  pip install 'toolscout[{extra}]'")
        plugin_names = (plugin.name for plugin in plugins.list_plugins(plugins.INDEX_PLUGINS))
        names = dict.fromkeys([*BUILT_IN_INDEXES, *EXTRAS_OF_INDEXES, *plugin_names])
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
