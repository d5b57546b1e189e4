"""The contract of an engine: an index plug-in that keeps the vectors of tools outside of the process, as a server does.

A plug-in of the group `toolscout.indexes` is an engine if what it names has the methods of `VectorEngine`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from toolscout import plugins
from toolscout.arrays import Vectors
from toolscout.errors import Unavailable
from toolscout.indexes import BUILT_IN_INDEXES, VectorIndex
from toolscout.indexes.exact import Exact
from toolscout.indexes.ranking import Mask
from toolscout.settings import Settings
from toolscout.types import Explanation, Tool

if TYPE_CHECKING:
    from toolscout.indexes.bm25 import BM25
    from toolscout.location import Connection

__all__ = ["EngineInUse", "Snapshot", "VectorEngine", "WeighTerms", "WordsInEngine", "find_engine"]

WeighTerms = Callable[[Sequence[str]], Sequence[Mapping[str, float]]]
"""Tool ids → the weights of each tool's terms."""


class EngineInUse(Unavailable):
    """Another process uses an engine that serves one process. That process will see the change of the catalogue."""


class Snapshot(NamedTuple):
    """The tools that a collection must hold.

    Attributes:
        generation: of the catalogue.
        ids: ascending.
        fingerprints: () → tool id → fingerprint of its definition.
    """

    generation: int
    ids: Sequence[str]
    fingerprints: Callable[[], Mapping[str, str]]


class WordsInEngine(Protocol):
    """A search for words in an engine, with the weights of our own BM25."""

    @property
    def ids(self) -> Sequence[str]:
        """Tool ids, ascending."""
        ...

    def with_words(self, words: BM25) -> WordsInEngine:
        """Return the same search with other weights for the terms of queries."""
        ...

    def search(
        self, queries: Sequence[str], k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[npt.NDArray[np.float32]]]:
        """Find the best tools for each query that share a term with it: `(ids, scores)`, best first."""
        ...

    def explain(self, query: str, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain rank and score of one tool by its terms."""
        ...


@runtime_checkable
class VectorEngine(Protocol):
    """What an engine offers."""

    searches_words: bool
    """Whether it searches words too."""

    def __call__(self, dim: int, argument: str, settings: Settings) -> VectorIndex:
        """Return an empty index, for checks: not over the catalogue of a home."""
        ...

    def open_index(
        self, settings: Settings, space: str, snapshot: Snapshot, exact: Exact, weigh_terms: WeighTerms
    ) -> VectorIndex:
        """Return the index over a snapshot, brought in step with it.

        Args:
            settings: name the engine and the home.
            space: digest of the encoder's fingerprint and of how a tool becomes text.
            snapshot: the tools to search.
            exact: their vectors.
            weigh_terms: called for the tools whose words the engine must store.

        Raises:
            Unavailable: if the engine does not answer.
            UserError: if it cannot keep these vectors.
        """
        ...

    def search_words(self, nearest: VectorIndex, words: BM25) -> WordsInEngine:
        """Return the search for words beside an index that `open_index` returned."""
        ...

    def follow_catalogue(
        self,
        settings: Settings,
        connection: Connection,
        make_encoders: Callable[[], Mapping[str, Callable[[Sequence[Tool]], Vectors]]],
    ) -> None:
        """Change the vectors in the transaction that changes the tools, if the engine is the database of the home.

        Args:
            settings: name the engine and the home.
            connection: has the transaction open.
            make_encoders: () → space → the encoder for tools, if it is fast enough for a transaction.
        """
        ...

    def drop_collections(self, settings: Settings) -> AbstractContextManager[None]:
        """Delete the vectors of a home or of one of its tenants, around the block that removes the rest."""
        ...

    def close(self, settings: Settings) -> None:
        """Close the connections of these settings. The next use opens them again."""
        ...


def find_engine(index: str) -> VectorEngine | None:
    """Return the engine that the setting `index` names; None: it names another index, or its package is missing."""
    name = index.partition(":")[0]
    plugin = None if name in BUILT_IN_INDEXES else plugins.find_plugin(plugins.INDEX_PLUGINS, name)
    loaded: object = plugin and plugins.load_plugin(plugin)
    return loaded if isinstance(loaded, VectorEngine) else None
