"""The contract of a package that brings faster indexes for large catalogues, such as `toolscout-scale`.

Below `MIN_LARGE_TOOLS`, the indexes of this folder are as fast. From there on they still work, and the package serves
where it is installed. It declares entry points in the group `toolscout.indexes`, each under one of these names:

* `large-exact`: a class like `exact.Exact`, with the same answers.
* `ann`: a class like `exact.Exact`, whose answers may miss a few tools.
* `large-words`: `(arrays, n_tools) -> LargeWords`, with the answers of `bm25.BM25`. `arrays` are those of the index.
* `large-screening`: `(store, catalogue, preferred, parts) -> Screening`, see `recipes.second_process`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

import numpy as np
import numpy.typing as npt

from toolscout import plugins
from toolscout.arrays import Arrays
from toolscout.errors import MissingExtra
from toolscout.indexes.ranking import Mask

__all__ = ["LARGE_NAMES", "MIN_ANN_TOOLS", "MIN_LARGE_TOOLS", "LargeWords", "Postings", "find_large", "require_large"]

MIN_LARGE_TOOLS: Final = 20_000
MIN_ANN_TOOLS: Final = 100_000  # from here on, the setting `auto` is `ann`

LargeName = Literal["large-exact", "ann", "large-words", "large-screening"]
LARGE_NAMES: Final = frozenset(get_args(LargeName))  # which the setting `index` doesn't take, but for `ann`


class Postings(NamedTuple):
    """The tools of one term of a query.

    Attributes:
        term: number of the term.
        start: place of its first tool in the arrays `indices` and `data`.
        end: place after its last tool.
        weight: how much the term counts.
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
    """Return what a package brings under a name of the contract. None: nothing, or the catalogue is small.

    Args:
        name: of the entry point.
        n_tools: of the catalogue; None: whatever its size.
    """
    if n_tools is not None and n_tools < MIN_LARGE_TOOLS:
        return None
    plugin = plugins.find_plugin(plugins.INDEX_PLUGINS, name)
    return plugins.load_function(plugin) if plugin else None


def require_large(name: LargeName) -> Callable[..., Any]:
    """Return what a package brings under a name of the contract.

    Raises:
        MissingExtra: if there is nothing.
    """
    large = find_large(name)
    if large is None:
        raise MissingExtra(
            f"The index {name!r} needs the package 'toolscout-scale', which is not installed. "
            "Run  pip install 'toolscout[scale]'"
        )
    return large
