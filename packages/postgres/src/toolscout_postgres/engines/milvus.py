"""Vectors and weights of words in Milvus: a Milvus Lite file, or a server or cluster.

A collection has a row for each tool, with its vector and with the weights of its terms. It is partitioned by source.
Searches go to an *alias*, which names a collection. The first write, and a change of more than half of the tools, fill
a new collection beside the old one, and then move the alias in one step.

Milvus has no transactions. So the small collection `MARKS` has the mark of each other collection (`contract.Mark`). It
is `UNFINISHED` before the first row of a change is written, and the generation after the last one.

All values in filters are numbers, so no text of a tool or a source becomes part of an expression.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from toolscout.arrays import Ints, Vectors
from toolscout.errors import StoreError, Unavailable, UserError, require
from toolscout.indexes.engine import EngineInUse
from toolscout.settings import Settings
from toolscout.trust.private_files import make_private_folder
from toolscout_postgres.engines.contract import (
    UNFINISHED,
    Candidates,
    CollectionKey,
    CollectionState,
    Mark,
    Numbers,
    ToolRows,
    View,
    hash_number,
    number_sources,
)

__all__ = ["MilvusCollection", "MilvusEngine"]

MARKS: Final = "toolscout_marks"
MAX_LIMIT: Final = 16_384  # the most rows that Milvus returns for one query
FLAT_ROWS: Final = 20_000  # up to so many tools are all compared with the query, without a graph
MAX_LISTED: Final = 10_000  # tools that a filter names one by one
WRITE_BATCH: Final = 1_000  # rows
READ_BATCH: Final = 4_000  # rows
REBUILD_SHARE: Final = 2  # a change of more than one tool in so many builds a new collection
GRAPH_SETTINGS: Final = {"M": 24, "efConstruction": 200}  # neighbours of a tool, and candidates for them, in the graph
MIN_EF: Final = 200  # candidates of a search of the graph
MAX_EF: Final = 32_768  # the most candidates that Milvus allows
PARTITIONS: Final = 16
MAX_ID_BYTES: Final = 65_535
NO_TERM: Final = {0: 1e-6}  # the words of a tool without words: Milvus wants a term, and no query has the term 0
FLOAT_SLACK: Final = 1e-5  # by how much the inner product of two unit rows can be off
WITHOUT_PINGS: Final = {"grpc.keepalive_time_ms": 2**31 - 1}  # Milvus Lite breaks connections that ping every 10 s
TOKEN_VARIABLE: Final = "MILVUS_TOKEN"
REMOTE: Final = ("http://", "https://", "tcp://", "unix:")
ROW_FIELDS: Final = ("number", "source", "tool", "fingerprint", "dense", "words")


class _State(msgspec.Struct):
    """A row of `MARKS`: the key and the mark of a collection."""

    home: str
    space: str
    dim: int
    tenant: str
    generation: int
    size: int


class MilvusEngine:
    """A Milvus Lite file, or a Milvus server.

    Attributes:
        name: `milvus`.
        label: the path or the address.
        is_file: whether it is a Milvus Lite file.
    """

    name = "milvus"

    def __init__(self, place: str, settings: Settings) -> None:
        """Name the file or the server. The first use of `client` opens it.

        Args:
            place: an address, or the path of a file that ends with `.db`, relative to the home.
            settings: of the home.
        """
        self.is_file = not place.startswith(REMOTE)
        self.label = str(settings.home / Path(place).expanduser()) if self.is_file else place
        self._lock = threading.RLock()
        self._client: Any = None  # a pymilvus.MilvusClient, once it is needed
        self._loaded: set[str] = set()  # collections that were loaded since the connection

    @property
    def client(self) -> Any:
        """The client of Milvus. The first use opens the file or connects to the server.

        Raises:
            MissingExtra: if pymilvus is not installed.
            Unavailable: if the server does not answer, or another process has the file open.
        """
        with self._lock:
            if self._client is None:
                self._client, self._loaded = self._connect(), set()
            return self._client

    def load(self, name: str) -> None:
        """Load a collection, so that it can be searched, once after each connection: a file opens with none loaded."""
        client = self.client
        with self._lock:
            if name not in self._loaded:
                client.load_collection(name)
                self._loaded.add(name)

    def _connect(self) -> Any:
        """Open the file or connect to the server.

        Raises:
            EngineInUse: if another process has the file open.
            StoreError: if the file cannot be opened.
        """
        pymilvus = require("pymilvus", "milvus")
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs what it raises, and we describe that
        if not self.is_file:
            with self.convert_errors():
                return pymilvus.MilvusClient(uri=self.label, token=os.environ.get(TOKEN_VARIABLE, ""))
        require("milvus_lite", "milvus")
        path = Path(self.label)
        if path.suffix != ".db":
            raise StoreError(f"index milvus: expected a file that ends with .db or an address, found {self.label}")
        make_private_folder(path)
        with _catch_cause() as causes:
            try:
                return pymilvus.MilvusClient(uri=self.label, grpc_options=WITHOUT_PINGS)
            except pymilvus.exceptions.MilvusException as error:
                from milvus_lite.exceptions import DataDirLockedError

                if any(isinstance(cause, DataDirLockedError) for cause in causes):
                    raise EngineInUse(
                        f"Another process uses the Milvus Lite file {self.label}. Stop that process, or run a Milvus "
                        "server, which several processes can share."
                    ) from error
                reason = " ".join(str(causes[0] if causes else error.message).split()).rstrip(".")
                raise StoreError(f"The Milvus Lite file {self.label} cannot be opened: {reason}.") from error

    @contextlib.contextmanager
    def convert_errors(self) -> Iterator[None]:
        """Raise errors of Milvus as Unavailable, if it does not answer, or else as StoreError, in one sentence."""
        import grpc
        from pymilvus import exceptions

        no_answer = (
            *(grpc.RpcError, exceptions.MilvusUnavailableException),
            *(exceptions.ConnectError, exceptions.ConnectionNotExistException),
        )
        try:
            yield
        except UserError:
            raise
        except no_answer as error:
            raise Unavailable(f"Milvus at {self.label} does not answer. Check that it runs.") from error
        except exceptions.MilvusException as error:
            reason = " ".join(str(error.message).split()).rstrip(".")
            if "connect" in reason.casefold() or "timeout" in reason.casefold():
                raise Unavailable(f"Milvus at {self.label} does not answer: {reason}. Check that it runs.") from error
            raise StoreError(f"Milvus at {self.label} refused: {reason}.") from error

    def collection(self, key: CollectionKey) -> MilvusCollection:
        """Return the collection of a key, whether or not it has been written."""
        return MilvusCollection(self, key)

    def list_collections(self, home: str) -> list[CollectionState]:
        """Return the collections of one home; see `identify_home`."""
        client = self.client
        with self.convert_errors():
            if not client.has_collection(MARKS):
                return []
            self.load(MARKS)
            states = [
                msgspec.json.decode(row["state"], type=_State)
                for row in client.query(MARKS, filter="", output_fields=["state"], limit=MAX_LIMIT)
            ]
        return [
            CollectionState(
                CollectionKey(state.home, state.space, state.dim, state.tenant), Mark(state.generation, state.size)
            )
            for state in sorted(states, key=lambda state: (state.space, state.tenant))
            if state.home == home
        ]

    def close(self) -> None:
        """Close the connection, and the file. The next use opens it again."""
        with self._lock:
            if self._client is None:
                return
            self._client.close()
            self._client = None
            if self.is_file:
                from milvus_lite.server_manager import server_manager_instance

                server_manager_instance.release_server(self.label)


class MilvusCollection:
    """The rows of one collection, under an alias. `key` and `max_limit`: see `Collection`."""

    max_limit = MAX_LIMIT

    def __init__(self, engine: MilvusEngine, key: CollectionKey) -> None:
        """Name the collection; nothing is read."""
        self.key, self._engine = key, engine
        self._number = hash_number(key.name)  # of its row in `MARKS`

    def read_mark(self) -> Mark | None:
        """Return the mark; None: the collection was never written, or no alias names it any more."""
        client = self._engine.client
        with self._engine.convert_errors():
            if not client.has_collection(MARKS):
                return None
            self._engine.load(MARKS)
            rows = client.query(
                MARKS, filter=f"number == {self._number}", output_fields=["state"], consistency_level="Strong"
            )
            if not rows:
                return None
            state = msgspec.json.decode(rows[0]["state"], type=_State)
            return Mark(state.generation, state.size) if self._find_target() else None

    def list_rows(self) -> dict[str, str]:
        """Return tool id → fingerprint of every row."""
        with self._engine.convert_errors():
            return {row["tool"]: row["fingerprint"] for row in self._read_rows(["tool", "fingerprint"])}

    def change(self, rows: ToolRows, gone: Sequence[str], generation: int) -> Mark:
        """Add or replace rows, remove others, and set the mark; see `Collection.change`.

        If many tools change, a new collection is filled beside the old one.
        """
        too_long = next((tool_id for tool_id in rows.ids if len(tool_id.encode()) > MAX_ID_BYTES), None)
        if too_long is not None:
            raise StoreError(f"index milvus: the id of the tool {too_long[:80]}… is longer than Milvus can hold.")
        with self._engine.convert_errors():
            self._make_marks()
            target = self._find_target()
            self._drop_leftovers(target)
            self._write_mark(Mark(UNFINISHED, 0))
            size = 0 if target is None else self._count(target)
            if target is None or (len(rows.ids) + len(gone)) * REBUILD_SHARE > size:
                target = self._build_beside(target, rows, gone)
            else:
                self._write_rows(target, rows)
                if gone:
                    self._engine.client.delete(target, ids=[hash_number(tool_id) for tool_id in gone])
            mark = Mark(generation, self._count(target))
            self._write_mark(mark)
        return mark

    def number_tools(self, ids: Sequence[str]) -> Numbers:
        """Return a hash of each id and of its source, which are the numbers of the rows."""
        tools = np.fromiter((hash_number(tool_id) for tool_id in ids), dtype=np.int64, count=len(ids))
        return Numbers(tools, number_sources(ids))

    def find(self, queries: Vectors, limit: int, view: View | None) -> list[Candidates]:
        """Find the nearest tools of each query; see `Collection.find`."""
        condition, limit = _write_filter(view, limit)
        tools_per_visible = 1 if view is None else len(view.mask) // max(int(view.mask.sum()), 1)
        # The candidates of the graph include hidden tools, so there must be more of them.
        ef = min(MAX_EF, max(MIN_EF, 2 * limit) * max(tools_per_visible, 1))
        params = {"metric_type": "IP", "params": {"ef": ef}}
        answers = self._search(list(queries), "dense", limit, condition, params, ["tool", "dense"])
        candidates = []
        for hits in answers:
            vectors = np.array([hit["entity"]["dense"] for hit in hits], dtype=np.float32).reshape(-1, self.key.dim)
            ids = [hit["entity"]["tool"] for hit in hits]
            candidates.append(Candidates(ids, vectors, len(ids) < limit, FLOAT_SLACK))
        return candidates

    def find_words(
        self, queries: Sequence[Mapping[int, float]], limit: int, view: View | None
    ) -> list[list[tuple[str, float]]]:
        """Find tools by the inner product of weights of terms; see `Collection.find_words`."""
        condition, limit = _write_filter(view, limit)
        answers = self._search([dict(query) for query in queries], "words", limit, condition, {}, ["tool"])
        return [[(hit["entity"]["tool"], float(hit["distance"])) for hit in hits] for hits in answers]

    def read_vectors(self) -> tuple[list[str], Vectors]:
        """Return every tool id and its vector."""
        with self._engine.convert_errors():
            rows = list(self._read_rows(["tool", "dense"]))
        vectors = np.array([row["dense"] for row in rows], dtype=np.float32).reshape(-1, self.key.dim)
        return [row["tool"] for row in rows], vectors

    def drop(self) -> None:
        """Delete the collection, its alias and its mark."""
        client = self._engine.client
        with self._engine.convert_errors():
            if self._find_target() is not None:
                client.drop_alias(self.key.name)
            self._drop_leftovers(target=None)  # no alias is left, so all are dropped
            if client.has_collection(MARKS):
                client.delete(MARKS, ids=[self._number])

    def _search(
        self, queries: list[Any], field: str, limit: int, condition: str, params: dict[str, Any], output: list[str]
    ) -> Any:
        """Search a field of vectors, or of weights of terms.

        Args:
            queries: vectors, or for each query number of a term → its weight.
            field: `dense` or `words`.
            limit: maximum hits per query.
            condition: filter of Milvus; "": all rows.
            params: of the index; empty: its defaults.
            output: names of the fields that a hit has.

        Returns:
            Hits of each query, best first; none if the collection was never written.
        """
        client = self._engine.client
        with self._engine.convert_errors():
            if self._find_target() is None:
                return [[] for _ in queries]
            return client.search(
                self.key.name,
                data=queries,
                anns_field=field,
                limit=limit,
                filter=condition,
                search_params=params or {"metric_type": "IP"},
                output_fields=output,
                consistency_level="Strong",
            )

    # --- collections

    def _find_target(self) -> str | None:
        """Return the name of the collection that the alias names, and load it; None: there is no alias."""
        from pymilvus.exceptions import MilvusException

        try:
            target = str(self._engine.client.describe_alias(self.key.name)["collection_name"])
            self._engine.load(target)
            return target
        except MilvusException as error:
            if ("not" in str(error.message) and "found" in str(error.message)) or "not exist" in str(error.message):
                return None
            raise

    def _build_beside(self, old: str | None, rows: ToolRows, gone: Sequence[str]) -> str:
        """Fill a new collection, move the alias to it, drop the old collection, and return the new one's name.

        Args:
            old: name of the collection that the alias names; None: there is none yet.
            rows: to add, or to write in place of old ones.
            gone: ids of tools whose rows are left out.
        """
        client, new = self._engine.client, f"{self.key.name}_{secrets.token_hex(4)}"
        replaced = {*rows.ids, *gone}
        unchanged = [row for row in self._read_rows(ROW_FIELDS) if row["tool"] not in replaced] if old else []
        client.create_collection(
            new, schema=_make_schema(self.key.dim), num_partitions=PARTITIONS, consistency_level="Strong"
        )
        for start in range(0, len(unchanged), WRITE_BATCH):
            client.upsert(new, unchanged[start : start + WRITE_BATCH])
        self._write_rows(new, rows)
        client.flush(new)
        params = client.prepare_index_params()
        if len(unchanged) + len(rows.ids) <= FLAT_ROWS:
            params.add_index("dense", index_type="FLAT", metric_type="IP")
        else:
            params.add_index("dense", index_type="HNSW", metric_type="IP", params=GRAPH_SETTINGS)
        params.add_index("words", index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
        client.create_index(new, params)
        self._engine.load(new)
        if old is None:
            client.create_alias(new, self.key.name)
        else:
            client.alter_alias(new, self.key.name)
            client.drop_collection(old)
        return new

    def _drop_leftovers(self, target: str | None) -> None:
        """Drop collections of this key that no alias names: their builds were interrupted."""
        client = self._engine.client
        for name in client.list_collections():
            if name.startswith(f"{self.key.name}_") and name != target:
                client.drop_collection(name)

    def _write_rows(self, target: str, rows: ToolRows) -> None:
        """Write rows to a collection, in batches; a row with the number of an old one replaces it."""
        sources = number_sources(rows.ids)
        for start in range(0, len(rows.ids), WRITE_BATCH):
            end = min(start + WRITE_BATCH, len(rows.ids))
            batch = [
                {
                    "number": hash_number(rows.ids[place]),
                    "source": int(sources[place]),
                    "tool": rows.ids[place],
                    "fingerprint": rows.fingerprints[place],
                    "dense": rows.vectors[place],
                    "words": (rows.terms and rows.terms[place]) or NO_TERM,
                }
                for place in range(start, end)
            ]
            self._engine.client.upsert(target, batch)

    def _read_rows(self, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield some fields of all rows of the collection; nothing if there is no collection yet."""
        if self._find_target() is None:
            return
        iterator = self._engine.client.query_iterator(
            self.key.name, filter="", output_fields=list(fields), batch_size=READ_BATCH, consistency_level="Strong"
        )
        while batch := iterator.next():
            yield from batch
        iterator.close()

    def _count(self, target: str) -> int:
        """Return the number of rows of a collection."""
        rows = self._engine.client.query(target, filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(rows[0]["count(*)"])

    # --- marks

    def _make_marks(self) -> None:
        """Create the collection `MARKS` unless it exists, and load it."""
        client = self._engine.client
        if client.has_collection(MARKS):
            self._engine.load(MARKS)
            return
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("number", DataType.INT64, is_primary=True)
        schema.add_field("state", DataType.VARCHAR, max_length=4_096)
        schema.add_field("unused", DataType.FLOAT_VECTOR, dim=2)  # Milvus wants a vector in each collection
        params = client.prepare_index_params()
        params.add_index("unused", index_type="FLAT", metric_type="IP")
        client.create_collection(MARKS, schema=schema, index_params=params, consistency_level="Strong")
        self._engine.load(MARKS)

    def _write_mark(self, mark: Mark) -> None:
        """Write the mark of this collection to `MARKS`."""
        state = _State(self.key.home, self.key.space, self.key.dim, self.key.tenant, mark.generation, mark.size)
        text = msgspec.json.encode(state).decode()
        self._engine.client.upsert(MARKS, [{"number": self._number, "state": text, "unused": [0.0, 1.0]}])


class _Causes(logging.Handler):
    """Collects the errors that Milvus Lite logs and does not raise.

    Attributes:
        errors: in the order in which they were logged.
    """

    def __init__(self) -> None:
        """Start without errors."""
        super().__init__()
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect the error of a record."""
        if record.exc_info and record.exc_info[1]:
            self.errors.append(record.exc_info[1])


@contextlib.contextmanager
def _catch_cause() -> Iterator[list[BaseException]]:
    """Collect the errors that Milvus Lite logs meanwhile, such as why it cannot open a file. They are not printed."""
    logger, handler = logging.getLogger("milvus_lite"), _Causes()
    propagated_before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler.errors
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated_before


def _make_schema(dim: int) -> Any:
    """Make the schema of a collection. Its rows are partitioned by source, so a filter by source reads few of them."""
    from pymilvus import DataType, MilvusClient

    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("number", DataType.INT64, is_primary=True)
    schema.add_field("source", DataType.INT64, is_partition_key=True)
    schema.add_field("tool", DataType.VARCHAR, max_length=MAX_ID_BYTES)
    schema.add_field("fingerprint", DataType.VARCHAR, max_length=256)
    schema.add_field("dense", DataType.FLOAT_VECTOR, dim=dim)
    schema.add_field("words", DataType.SPARSE_FLOAT_VECTOR)
    return schema


def _write_filter(view: View | None, limit: int) -> tuple[str, int]:
    """Return the filter for the visible tools, and how many rows to ask for.

    The filter lists the sources of which all tools are visible, and the visible tools of the other sources. If these
    tools are too many, it lists their sources instead; then more rows are asked for, and the caller leaves out hidden
    tools.

    Args:
        view: the visible tools; None: no filter.
        limit: how many visible tools are wanted.
    """
    if view is None:
        return "", min(limit, MAX_LIMIT)
    tools, sources = view.numbers
    n_visible_of, n_tools_of = _count_sources(sources[view.mask]), _count_sources(sources)
    whole_sources = [source for source, n_visible in n_visible_of.items() if n_visible == n_tools_of[source]]
    listed_tools = tools[view.mask & ~np.isin(sources, np.array(whole_sources, dtype=np.int64))]
    if len(listed_tools) > MAX_LISTED:
        n_searched, n_visible = sum(n_tools_of[source] for source in n_visible_of), int(view.mask.sum())
        widened_limit = -(-limit * n_searched // n_visible)  # in proportion to the searched tools, rounded up
        return _list_values("source", list(n_visible_of)), min(MAX_LIMIT, widened_limit)
    parts = [
        _list_values(field, values)
        for field, values in (("source", whole_sources), ("number", listed_tools.tolist()))
        if values
    ]
    nothing = "number < 0"  # no row has a negative number
    return " or ".join(parts) or nothing, min(limit, MAX_LIMIT)


def _list_values(field: str, values: list[int]) -> str:
    """Write the condition that a field has one of some values."""
    return f"{field} in [{', '.join(map(str, values))}]"


def _count_sources(sources: Ints) -> dict[int, int]:
    """Return how often each number of a source occurs."""
    numbers, counts = np.unique(sources, return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))
