"""The contract of a package that brings faster indexes for large catalogues, such as `toolscout-scale`.

With fewer than `MIN_LARGE_TOOLS` tools, the indexes of this folder are as fast. With more they still work, but the
package is used where it is installed. It declares entry points in the group `toolscout.indexes`, each under one of
these names:

* `large-exact`: a class like `exact.Exact`, with the same answers.
* `ann`: a class like `exact.Exact`, whose answers may miss a few tools.
* `large-words`: `(arrays, n_tools) -> LargeWords`, with the answers of `bm25.BM25`. `arrays` are those of the index.
* `large-screening`: `(store, catalogue, preferred, parts) -> Screening`, see `recipes.builder.SecondProcess`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

import numpy as np
import numpy.typing as npt

from toolscout import plugins
from toolscout.arrays import Arrays
from toolscout.errors import MissingExtra, install_line
from toolscout.indexes.ranking import Mask

__all__ = [
    "MIN_ANN_TOOLS",
    "MIN_LARGE_TOOLS",
    "SCALE_INDEX_NAMES",
    "LargeWords",
    "Postings",
    "find_large",
    "require_large",
]

MIN_LARGE_TOOLS: Final = 20_000
MIN_ANN_TOOLS: Final = 100_000  # from here on, the setting `auto` is `ann`

LargeName = Literal["large-exact", "ann", "large-words", "large-screening"]
#: Names of the plug-ins of toolscout-scale. The setting `index` accepts only `ann`.
SCALE_INDEX_NAMES: Final = frozenset(get_args(LargeName))


class Postings(NamedTuple):
    """The tools of one term of a query.

    Attributes:
        term: number of the term.
        start: its tools are `indices[start:end]` of the BM25 index, and their scores `data[start:end]`.
        end: see `start`.
        weight: factor of these scores, usually how often the query has the term.
    """

    term: int
    start: int
    end: int
    weight: float


class LargeWords(Protocol):
    """Searches the postings of a BM25 index without reading all of them."""

    def arrays(self) -> Arrays:
        """Return what the index stores besides its own arrays."""
        ...

    def find_best(
        self, postings: Sequence[Postings], k: int, visible: Mask | None
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]] | None:
        """Return positions and scores of the `k` best tools with a score above 0. None: a full scan is as fast."""
        ...

    def describe_scores(self, postings: Sequence[Postings], visible: Mask | None) -> tuple[float, float] | None:
        """Estimate mean and standard deviation of the scores of all visible tools. None: compute them."""
        ...


def find_large(name: LargeName, n_tools: int | None = None) -> Callable[..., Any] | None:
    """Load the class or function that a package brings for large catalogues.

    Args:
        name: of the entry point.
        n_tools: of the catalogue; None: load it for any catalogue.

    Returns:
        What the entry point names; None if no package brings it, or if the catalogue is not large.
    """
    if n_tools is not None and n_tools < MIN_LARGE_TOOLS:
        return None
    plugin = plugins.find_plugin(plugins.INDEX_PLUGINS, name)
    return plugins.load_function(plugin) if plugin else None


def require_large(name: LargeName) -> Callable[..., Any]:
    """Load the class or function that a package brings for large catalogues.

    Raises:
        MissingExtra: if no package brings it.
    """
    large = find_large(name)
    if large is None:
        raise MissingExtra(
            f"The index {name!r} needs the package 'toolscout-scale', which is not installed. "
            f"Run  {install_line('scale')}"
        )
    return large
