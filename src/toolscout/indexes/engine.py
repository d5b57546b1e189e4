"""The contract of an engine: an index plug-in that keeps the vectors of tools outside of the process, as a server does.

A plug-in of the group `toolscout.indexes` is an engine if the object that its entry point names has the methods of
`VectorEngine`. An engine keeps a *collection* of vectors for each home (or tenant) and each encoder.
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
    """Raised if another process uses an engine that serves only one. That process will see a changed catalogue."""


class Snapshot(NamedTuple):
    """The tools that a collection must contain.

    Attributes:
        generation: number of the catalogue's state; every change raises it.
        ids: of the tools, ascending.
        fingerprints: returns a mapping from each tool id to the fingerprint of its definition.
    """

    generation: int
    ids: Sequence[str]
    fingerprints: Callable[[], Mapping[str, str]]


class WordsInEngine(Protocol):
    """A search for words that an engine (`VectorEngine`) does itself, with the weights of our own BM25.

    A plug-in implements it if its `searches_words` is True; `search_words` returns it.
    """

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
    """An engine: it opens indexes over vectors, keeps them in step with the catalogue, and deletes them."""

    searches_words: bool
    """Whether `search_words` works; if not, words are searched without the engine."""

    def __call__(self, dim: int, argument: str, settings: Settings) -> VectorIndex:
        """Return an empty index that belongs to no home, for checks of the contract."""
        ...

    def open_index(
        self, settings: Settings, space: str, snapshot: Snapshot, exact: Exact, weigh_terms: WeighTerms
    ) -> VectorIndex:
        """Bring the collection of an encoder in step with a snapshot, and return the index over it.

        Args:
            settings: name the engine and the home.
            space: names the encoder: a digest of its fingerprint and of how a tool becomes text.
            snapshot: the tools to search.
            exact: their vectors.
            weigh_terms: called for the tools whose words the engine must store.

        Raises:
            Unavailable: if the engine does not answer.
            UserError: if it cannot keep these vectors.
        """
        ...

    def search_words(self, nearest: VectorIndex, words: BM25) -> WordsInEngine:
        """Return the search for words in the collection of `nearest`, which `open_index` returned.

        `words` weighs the terms of queries.
        """
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
            connection: to the database, in the transaction.
            make_encoders: returns a mapping from each `space` (see `open_index`) to a function that encodes tools. It
                has only encoders that are fast enough for a transaction.
        """
        ...

    def drop_collections(self, settings: Settings) -> AbstractContextManager[None]:
        """Delete the vectors of a home or of one of its tenants. The caller deletes the rest in the `with` block."""
        ...

    def close(self, settings: Settings) -> None:
        """Close the connections of these settings. The next use opens them again."""
        ...


def find_engine(index: str) -> VectorEngine | None:
    """Return the engine that the setting `index` names.

    None if the setting names an index that is not an engine, or if the package of the engine is missing.
    """
    name = index.partition(":")[0]
    if name in BUILT_IN_INDEXES:
        return None
    plugin = plugins.find_plugin(plugins.INDEX_PLUGINS, name)
    loaded: object = plugins.load_plugin(plugin) if plugin else None
    return loaded if isinstance(loaded, VectorEngine) else None
