"""The engines that the entry points `pgvector` and `milvus` name; see `toolscout.indexes.engine.VectorEngine`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from toolscout.arrays import Vectors
from toolscout.home.database import Connection
from toolscout.indexes import VectorIndex
from toolscout.indexes.bm25 import BM25
from toolscout.indexes.engine import Snapshot, WeighTerms
from toolscout.indexes.exact import Exact
from toolscout.settings import Settings
from toolscout.types import Tool
from toolscout_postgres.database import PostgresConnection
from toolscout_postgres.engines.contract import identify_home
from toolscout_postgres.engines.pgvector import PgvectorEngine
from toolscout_postgres.engines.search import (
    EngineIndex,
    EngineWords,
    close_engine,
    drop_collections,
    number_terms,
    open_empty,
    open_engine,
    open_index,
)

__all__ = ["MILVUS", "PGVECTOR", "CollectionEngine"]


class CollectionEngine:
    """An engine that keeps the vectors of each encoder in a collection.

    Attributes:
        name: of the engine, as the setting `index` has it.
        searches_words: whether it searches words too.
    """

    def __init__(self, name: str, *, searches_words: bool) -> None:
        """Name the engine. It is opened with its first use."""
        self.name, self.searches_words = name, searches_words

    def __call__(self, dim: int, argument: str, settings: Settings) -> VectorIndex:
        """Return an empty index that belongs to no home, for checks of the contract.

        Args:
            dim: length of a vector.
            argument: what follows the name and a colon in the setting `index`; "" if nothing does.
            settings: of the home.
        """
        return open_empty(f"{self.name}:{argument}" if argument else self.name, dim, settings)

    def open_index(
        self, settings: Settings, space: str, snapshot: Snapshot, exact: Exact, weigh_terms: WeighTerms
    ) -> VectorIndex:
        """Bring the collection of an encoder in step with a snapshot, and return the index over it.

        See `VectorEngine.open_index`.
        """

        def number_weights(ids: Sequence[str]) -> list[dict[int, float]]:
            return [number_terms(weights) for weights in weigh_terms(ids)]

        return open_index(settings, space, snapshot, exact, number_weights if self.searches_words else None)

    def search_words(self, nearest: VectorIndex, words: BM25) -> EngineWords:
        """Return the search for words in the collection of an index."""
        assert isinstance(nearest, EngineIndex)
        return EngineWords(nearest, words)

    def follow_catalogue(
        self,
        settings: Settings,
        connection: Connection,
        make_encoders: Callable[[], Mapping[str, Callable[[Sequence[Tool]], Vectors]]],
    ) -> None:
        """Change the vectors in the transaction that changes the tools, if both are in one database; else do nothing.

        `make_encoders` returns, for each name of a set of vectors (space), a function that encodes tools. It is called
        only if both are in one database. See `VectorEngine.follow_catalogue`.
        """
        engine = open_engine(settings)
        if isinstance(engine, PgvectorEngine) and engine.shares_home and isinstance(connection, PostgresConnection):
            engine.follow(connection.raw, identify_home(settings.place), make_encoders())

    def drop_collections(self, settings: Settings) -> AbstractContextManager[None]:
        """Delete the vectors of a home or of one of its tenants. The caller deletes the rest in the `with` block."""
        return drop_collections(settings)

    def close(self, settings: Settings) -> None:
        """Close the connection to the vector database that `settings` name, if one is open."""
        close_engine(settings)


PGVECTOR: Final = CollectionEngine("pgvector", searches_words=False)
MILVUS: Final = CollectionEngine("milvus", searches_words=True)
