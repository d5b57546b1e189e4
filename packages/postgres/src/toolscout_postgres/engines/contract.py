"""Engines keep the vectors of tools outside of the process: in PostgreSQL with pgvector, or in Milvus.

The setting `index` names an engine: `pgvector` (in the database of the home), `pgvector:ADDRESS`, or `milvus:` and the
path of a Milvus Lite file or the address of a server. This file states their contract. The module `search` turns a
*collection*, the vectors of one encoder for the tools of one home, into an index, and brings it in step with the
catalogue.

The catalogue is right, and an engine only reflects it. Each collection has a *mark*: the generation of the catalogue
that its vectors reflect. If the mark is not the catalogue's generation, the collection is compared with the catalogue
tool by tool, and mended.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from toolscout.arrays import Ints, Mask, Vectors
from toolscout.errors import StoreError
from toolscout.home.database import open_home
from toolscout.location import DEFAULT_TENANT, Home

__all__ = [
    "UNFINISHED",
    "Candidates",
    "Collection",
    "CollectionKey",
    "CollectionState",
    "Engine",
    "Mark",
    "Numbers",
    "ToolRows",
    "View",
    "identify_home",
]

UNFINISHED: Final = -1  # generation of a collection while it is being changed
IDENTITY_FILE: Final = "engine-id"


class CollectionKey(NamedTuple):
    """Names a collection by its content: the vectors of one encoder for the tools of one tenant of one home.

    Attributes:
        home: identity of the home. Each tenant has an identity of its own; see `identify_home`.
        space: names the encoder: a digest of its fingerprint and of how a tool becomes text.
        dim: length of a vector.
        tenant: the tenant. In pgvector, row-level security hides the collections of other tenants.
    """

    home: str
    space: str
    dim: int
    tenant: str = DEFAULT_TENANT

    @property
    def name(self) -> str:
        """A name of letters, digits and underscores, the same for equal keys.

        It has the first 64 bits of the space, and 32 bits of a hash of the tenant, whose name may have other letters.
        """
        tenant = hashlib.blake2b(self.tenant.encode(), digest_size=4).hexdigest()
        return f"toolscout_{self.home}_{self.space[:16]}_{tenant}"


class Mark(NamedTuple):
    """Stored with a collection: the state of the catalogue that it reflects.

    Attributes:
        generation: of the catalogue; `UNFINISHED` if a change of the collection has begun and not ended.
        size: number of tools in the collection.
    """

    generation: int
    size: int


class CollectionState(NamedTuple):
    """One collection as `toolscout doctor` shows it."""

    key: CollectionKey
    mark: Mark


class ToolRows(NamedTuple):
    """Rows to write to a collection, one for each tool.

    Attributes:
        ids: tool ids.
        fingerprints: of the tools' definitions.
        vectors: `(n, dim)` float32.
        terms: for each tool, number of a term → its weight, for an engine that searches words; None: for one that
            does not.
    """

    ids: Sequence[str]
    fingerprints: Sequence[str]
    vectors: Vectors
    terms: Sequence[Mapping[int, float]] | None = None


class Numbers(NamedTuple):
    """Numbers by which an engine filters, for each tool of a snapshot.

    Attributes:
        tools: `(n,)`, in Milvus a hash of the tool id; in pgvector the number of the tool's row, -1 without a row.
        sources: `(n,)`, a hash of the name of each tool's source; see `number_sources`.
    """

    tools: Ints
    sources: Ints


class View(NamedTuple):
    """The tools that a search may return.

    Attributes:
        numbers: of all tools of a snapshot.
        mask: `(n,)` bool, which of these tools may be returned.
    """

    numbers: Numbers
    mask: Mask


class Candidates(NamedTuple):
    """The tools that an engine found for one query, nearest first.

    Attributes:
        ids: tool ids.
        vectors: `(len(ids), dim)` float32, as they were written.
        complete: whether every tool that may be returned is among them.
        slack: how much higher than the lowest score here the score of a tool that is missing here can be.
    """

    ids: Sequence[str]
    vectors: Vectors
    complete: bool
    slack: float


class Collection(Protocol):
    """The vectors of one encoder for the tools of one home, in an engine. Safe to use from several threads."""

    key: CollectionKey
    """Names the collection."""
    max_limit: int
    """The highest number of candidates that one search returns."""

    def read_mark(self) -> Mark | None:
        """Return the mark; None: the collection was never written."""
        ...

    def list_rows(self) -> dict[str, str]:
        """Return tool id → fingerprint of every row."""
        ...

    def change(self, rows: ToolRows, gone: Sequence[str], generation: int) -> Mark:
        """Add or replace rows, remove those of the ids in `gone`, and set the mark.

        A change that is interrupted leaves the former state, or a mark that says `UNFINISHED`.
        """
        ...

    def number_tools(self, ids: Sequence[str]) -> Numbers:
        """Return the numbers by which `find` and `find_words` filter."""
        ...

    def find(self, queries: Vectors, limit: int, view: View | None) -> list[Candidates]:
        """Find up to `limit` nearest tools of each query.

        Args:
            queries: `(n, dim)`.
            limit: maximum tools per query.
            view: the tools that may be returned; None: all rows of the collection.
        """
        ...

    def find_words(
        self, queries: Sequence[Mapping[int, float]], limit: int, view: View | None
    ) -> list[list[tuple[str, float]]]:
        """Find tools by the inner product of weights of terms: (tool id, score) above 0, best first.

        Only Milvus has this.

        Args:
            queries: for each, number of a term → its weight.
            limit: maximum tools per query.
            view: the tools that may be returned; None: all rows of the collection.
        """
        ...

    def read_vectors(self) -> tuple[list[str], Vectors]:
        """Return every tool id and its vector."""
        ...

    def drop(self) -> None:
        """Delete the collection, if it is there."""
        ...


class Engine(Protocol):
    """A connection to PostgreSQL or Milvus.

    Attributes:
        name: `pgvector` or `milvus`.
        label: the place as people name it, without a password.
    """

    name: str
    label: str

    def collection(self, key: CollectionKey) -> Collection:
        """Return the collection of a key, whether or not it has been written."""
        ...

    def list_collections(self, home: str) -> list[CollectionState]:
        """Return the collections of one home; see `identify_home`."""
        ...

    def close(self) -> None:
        """Close the connections. The next use opens them again."""
        ...


def identify_home(home: Home) -> str:
    """Return the identity of a home: 16 random hexadecimal digits in a file of the home. The first use writes it.

    Several homes may keep vectors in one engine, so each names its collections by its identity, which stays when the
    home is moved.

    Raises:
        StoreError: if it must be made and the home cannot be written.
    """
    try:
        return open_home(home).read_document(IDENTITY_FILE).decode()
    except FileNotFoundError:
        try:
            open_home(home).write_document(IDENTITY_FILE, secrets.token_hex(8).encode())
        except OSError as error:
            raise StoreError(f"The identity of the home {home} cannot be written: {error.strerror}.") from None
        # Read again, because another process may have written its own at the same time.
        return open_home(home).read_document(IDENTITY_FILE).decode()


def hash_number(text: str) -> int:
    """Return a number of 63 bits for a text: that any two of a million texts get the same has a chance of 5 in 10⁸."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def number_sources(ids: Sequence[str]) -> Ints:
    """Return a number for the source of each tool, which is the part of its id before the slash."""
    sources = [tool_id.partition("/")[0] for tool_id in ids]
    numbers = {source: hash_number(source) for source in set(sources)}
    return np.fromiter((numbers[source] for source in sources), dtype=np.int64, count=len(ids))


Mend = Callable[[], Mark]
"""Compares a collection with the catalogue, mends it, and returns its mark."""
