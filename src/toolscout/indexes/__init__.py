"""Indexes find the nearest tools of a query. This file states their contract, and makes an index by its name.

Every index has the ids of its tools in `ids`, an ascending sequence. The *position* of a tool is its index there ::

    search(queries, k, visible=None) -> (ids, scores)

* `queries`: texts (sparse) or unit rows, `(n, d)` float32 (dense). One answer each, in order.
* `visible`: a boolean mask over positions, one for all queries or one (or None) per query; None shows all tools. The
  search itself applies it, so all callers share one index, and get `k` visible tools if there are that many.
* `ids[i]`: at most `k` tool ids, best first; `scores[i]`: their scores, float32, higher is better.
* Equal scores are ordered by tool id, also at the cut, so the same query always gets the same answer.
* `explain(query, tool_id, visible=None)` returns the exact rank and score of one tool as an `Explanation`.

The setting `index` names the index over vectors: `exact`, `ann`, `auto` (either of the two, by the size of the
catalogue), an engine (`pgvector`, `milvus:PLACE`), or `NAME` or `NAME:ARGUMENT` of a plug-in.
"""

from __future__ import annotations

from typing import Final

from toolscout import plugins
from toolscout.errors import ConfigError, MissingExtra, UserError, install_line
from toolscout.indexes.exact import Exact, VectorIndex
from toolscout.indexes.large import MIN_ANN_TOOLS, SCALE_INDEX_NAMES, find_large, require_large
from toolscout.indexes.ranking import Mask, Spread, masks, pad_best, place, rank, spread, top_k
from toolscout.settings import Settings

__all__ = [
    "BUILT_IN_INDEXES",
    "MIN_ANN_TOOLS",
    "Mask",
    "Spread",
    "VectorIndex",
    "choose_index",
    "find_index_class",
    "masks",
    "new_index",
    "pad_best",
    "place",
    "rank",
    "spread",
    "top_k",
]

BUILT_IN_INDEXES: Final = ("auto", "exact", "ann")
#: Index → the extra of toolscout that brings it.
EXTRAS_OF_INDEXES: Final = {"pgvector": "postgres", "milvus": "milvus"}


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
        return find_index_class(name)(dim)
    plugin_name, _, argument = name.partition(":")
    # The setting cannot name the plug-ins by which toolscout-scale replaces built-in parts: `auto` chooses them.
    plugin = None if plugin_name in SCALE_INDEX_NAMES else plugins.find_plugin(plugins.INDEX_PLUGINS, plugin_name)
    if plugin is None:
        raise _explain_missing(name)
    make_index = plugins.load_function(plugin)
    try:
        index: VectorIndex = make_index(dim, argument, settings)
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(f"index {name}: {plugin} failed: {type(error).__name__}: {error}") from error
    return index


def _explain_missing(name: str) -> UserError:
    """Return the error for a setting `index` that names neither a built-in index nor an installed plug-in."""
    plugin_name = name.partition(":")[0]
    extra = EXTRAS_OF_INDEXES.get(plugin_name)
    if extra is not None:
        return MissingExtra(f"index {plugin_name}: it needs another package. Run  {install_line(extra)}")
    plugin_names = {plugin.name for plugin in plugins.list_plugins(plugins.INDEX_PLUGINS)} - SCALE_INDEX_NAMES
    names = dict.fromkeys([*BUILT_IN_INDEXES, *EXTRAS_OF_INDEXES, *sorted(plugin_names)])
    return ConfigError(f"index: expected the name of an index of {', '.join(names)}, found {name!r}")


def choose_index(n_tools: int, name: str = "auto") -> str:
    """Choose the built-in index over the vectors of a catalogue: `exact` or `ann`.

    Args:
        n_tools: number of tools in the catalogue.
        name: the setting `index`. `exact` and `ann` are returned as they are. For every other value, the result is
            `ann` if the catalogue is large and the package of `ann` is installed.
    """
    if name in ("exact", "ann"):
        return name
    return "ann" if n_tools >= MIN_ANN_TOOLS and find_large("ann") else "exact"


def find_index_class(name: str, n_tools: int = 0) -> type[Exact]:
    """Return the class of a built-in index over vectors.

    Args:
        name: `ann`; any other name stands for the exact index.
        n_tools: number of tools. For a large catalogue, the exact index may come from a package (`large.find_large`).

    Raises:
        MissingExtra: for `ann`, if its package is not installed.
    """
    large_class = require_large("ann") if name == "ann" else find_large("large-exact", n_tools)
    index_class = large_class or Exact
    assert isinstance(index_class, type) and issubclass(index_class, Exact)
    return index_class
