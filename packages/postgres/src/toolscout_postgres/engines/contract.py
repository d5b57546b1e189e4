"""Engines keep the vectors of tools outside of the process: in PostgreSQL with pgvector, or in Milvus.

The setting `index` names an engine: `pgvector` (in the database of the home), `pgvector:ADDRESS`, or `milvus:` and the
path of a Milvus Lite file or the address of a server. This file holds their contract. `search` turns a collection of an
engine into an index, and `reflect` brings it in step with the catalogue.

The catalogue is right, and an engine only reflects it. Each collection holds a *mark*: the generation that its vectors
reflect. A collection whose mark differs is compared with the catalogue tool by tool, and mended.
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
    """What a collection holds: the vectors of one encoder for the tools of one tenant of one home.

    Attributes:
        home: identity of the home, of which each tenant has its own; see `identify_home`.
        space: digest of the encoder's fingerprint and of how a tool becomes text.
        dim: length of a vector.
        tenant: the tenant. Each has collections of its own, and in pgvector row-level security hides those of others.
    """

    home: str
    space: str
    dim: int
    tenant: str = DEFAULT_TENANT

    @property
    def name(self) -> str:
        """A name of letters, digits and underscores, the same for equal keys. 64 bits of the space tell keys apart."""
        tenant = hashlib.blake2b(self.tenant.encode(), digest_size=4).hexdigest()
        return f"toolscout_{self.home}_{self.space[:16]}_{tenant}"


class Mark(NamedTuple):
    """The state that a collection says it reflects.

    Attributes:
        generation: of the catalogue; `UNFINISHED` if a change has begun and has not ended.
        size: number of tools.
    """

    generation: int
    size: int


class CollectionState(NamedTuple):
    """One collection as `toolscout doctor` shows it."""

    key: CollectionKey
    mark: Mark


class ToolRows(NamedTuple):
    """Rows to write.

    Attributes:
        ids: tool ids.
        fingerprints: of the tools' definitions.
        vectors: `(n, dim)` float32.
        terms: for each tool the weights of its terms, for engines that search words too; None: they stay out.
    """

    ids: Sequence[str]
    fingerprints: Sequence[str]
    vectors: Vectors
    terms: Sequence[Mapping[int, float]] | None = None


class Numbers(NamedTuple):
    """What an engine filters by, for each tool of a snapshot.

    Attributes:
        tools: `(n,)`, the number of each tool; negative in pgvector if the engine has no such tool.
        sources: `(n,)`, the number of each tool's source.
    """

    tools: Ints
    sources: Ints


class View(NamedTuple):
    """The tools that a search may return: a boolean mask over `Numbers`."""

    numbers: Numbers
    mask: Mask


class Candidates(NamedTuple):
    """The tools that an engine found for one query, nearest first.

    Attributes:
        ids: tool ids.
        vectors: `(len(ids), dim)` float32, as they were written.
        complete: whether every tool that may be returned is among them.
        slack: how much nearer than the last one a tool can be that is not among them.
    """

    ids: Sequence[str]
    vectors: Vectors
    complete: bool
    slack: float


class Collection(Protocol):
    """The vectors of one key in an engine. Safe to use from several threads."""

    key: CollectionKey
    max_limit: int
    """The most candidates that one search returns."""

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
        """Return the numbers by which `find` filters."""
        ...

    def find(self, queries: Vectors, limit: int, view: View | None) -> list[Candidates]:
        """Find up to `limit` nearest tools of each query, `(n, dim)`; `view`: only of these tools."""
        ...

    def find_words(
        self, queries: Sequence[Mapping[int, float]], limit: int, view: View | None
    ) -> list[list[tuple[str, float]]]:
        """Find tools by the inner product of weights of terms: (tool id, score) above 0, best first.

        Only Milvus has this.
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
        """Return the collections of one home."""
        ...

    def close(self) -> None:
        """Close the connections. The next use opens them again."""
        ...


def identify_home(home: Home) -> str:
    """Return the identity of a home, 16 hexadecimal digits that move with it. The first use makes it.

    Several homes may keep vectors in one engine, so each names its collections by its identity.

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
        return open_home(home).read_document(IDENTITY_FILE).decode()


def hash_number(text: str) -> int:
    """Return a number of 63 bits for a text. Two of a million texts are equal with a probability of 5 in 10⁸."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def number_sources(ids: Sequence[str]) -> Ints:
    """Return a number for the source of each tool, which is the part of its id before the slash."""
    sources = [tool_id.partition("/")[0] for tool_id in ids]
    numbers = {source: hash_number(source) for source in set(sources)}
    return np.fromiter((numbers[source] for source in sources), dtype=np.int64, count=len(ids))


Mend = Callable[[], Mark]
"""() → the mark, after the collection has been compared with the catalogue and mended."""
