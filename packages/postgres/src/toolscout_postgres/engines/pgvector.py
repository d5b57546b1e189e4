"""Vectors in PostgreSQL with pgvector: one table, with an HNSW index of 16-bit numbers for each collection.

The index finds candidates, and their cosines are computed from the vectors as they were written (32 bits). If few tools
are visible, or a search asks for many of them, all visible tools are compared instead. PostgreSQL filters by a bitmap
over row numbers, in which the bits of visible tools are 1. The index is scanned until it has found enough of them.

A collection (`contract`) has a number in the tables, and one row in `tool_vectors` for each tool.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from toolscout.arrays import Ints, Vectors
from toolscout.errors import ConfigError, StoreError, Unavailable, require
from toolscout.types import Tool
from toolscout_postgres.address import Address
from toolscout_postgres.engines.contract import (
    Candidates,
    CollectionKey,
    CollectionState,
    Mark,
    Numbers,
    ToolRows,
    View,
    number_sources,
)
from toolscout_postgres.schema import TENANT_COLUMN, hide_rows
from toolscout_postgres.tenants import admit_tenant

if TYPE_CHECKING:
    import psycopg

    from toolscout_postgres.database import PostgresDatabase

__all__ = ["PgvectorEngine"]

MAX_DIM: Final = 4_000  # of an HNSW index over halfvec
EXACT_ROWS: Final = 4_000  # if no more tools are visible, all are compared with the query, without the index
EXACT_SHARE: Final = 4  # the same if a search asks for at least one in so many of the visible tools
HALF_SLACK: Final = 1e-3  # by how much the inner product of two unit rows of 16-bit numbers can be off
FLOAT_SLACK: Final = 1e-5  # the same for 32-bit numbers
MIN_EF_SEARCH: Final = 200  # of hnsw.ef_search: candidates of a walk through the graph
MAX_EF_SEARCH: Final = 1_000  # the highest value that pgvector allows
BEAM_RESERVE: Final = 2  # candidates for each tool that is wanted: 16-bit rows order near tools only roughly
MIN_SCAN_TUPLES: Final = 20_000  # of hnsw.max_scan_tuples; pgvector's own default
MAX_SCAN_TUPLES: Final = 2**31 - 1  # the highest value that PostgreSQL allows
SCAN_RESERVE: Final = 4  # times as many tuples as a scan would need if visible tools were spread evenly
INDEX_MEMORY: Final = "256MB"  # a graph that fits is built several times faster
MIN_PGVECTOR: Final = (0, 8)
COPY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
COPY_TRAILER: Final = struct.pack(">h", -1)
COPIED_FIELDS: Final = 3  # of a row: tool, fingerprint, vector
VECTOR_HEAD_BYTES: Final = 4  # of a vector in binary form: its length and two unused bytes
TOOL_DECODER: Final = msgspec.json.Decoder(Tool)
IS_SEARCHED: Final = "sources.enabled AND sources.state != 'disabled'"  # whether the tools of a source are searched
EncodeTools = Callable[[Sequence[Tool]], Vectors]


class PgvectorEngine:
    """A schema of a PostgreSQL database that keeps vectors.

    Attributes:
        name: `pgvector`.
        label: the address without a password.
        shares_home: whether the catalogue is in the same schema.
    """

    name = "pgvector"

    def __init__(self, address: Address, *, shares_home: bool) -> None:
        """Name the schema. The first use of `database` connects."""
        self.label, self.shares_home, self._address = address.label, shares_home, address
        self._lock = threading.Lock()
        self._database: PostgresDatabase | None = None  # None until it is needed
        self._schema = ""  # set together with `_database`; see `schema`

    @property
    def database(self) -> PostgresDatabase:
        """The database with the tables of this module. The first use connects and creates the tables.

        Raises:
            ConfigError: if the server has no pgvector, or an old one.
            Unavailable: if the server does not answer.
        """
        with self._lock:
            if self._database is None:
                self._schema, self._database = _open_database(self._address, self.shares_home)
            return self._database

    @property
    def schema(self) -> str:
        """The schema of the type `vector`, in quotation marks."""
        _ = self.database  # connects, which finds the schema
        return self._schema

    def collection(self, key: CollectionKey) -> PgvectorCollection:
        """Return the collection of a key, whether or not it has been written.

        Raises:
            ConfigError: if its vectors are too long.
        """
        if key.dim > MAX_DIM:
            raise ConfigError(f"index pgvector: expected vectors of at most {MAX_DIM:,} numbers, found {key.dim:,}")
        return PgvectorCollection(self, key)

    def list_collections(self, home: str) -> list[CollectionState]:
        """Return the collections of one home; see `identify_home`."""
        with _raise_unavailable(), self.database.reading() as connection:
            rows = connection.execute(
                "SELECT space, dim, tenant, generation, size FROM vector_collections "
                "JOIN vector_marks USING (tenant, collection) WHERE home = ? ORDER BY space, tenant",
                (home,),
            ).fetchall()
        return [
            CollectionState(CollectionKey(home, space, dim, tenant), Mark(generation, size))
            for space, dim, tenant, generation, size in rows
        ]

    def follow(self, raw: psycopg.Connection[Any], home: str, encoders: Mapping[str, EncodeTools]) -> None:
        """Bring vectors in step within the transaction that changes the catalogue, in the same schema.

        Vectors of tools that are gone or changed are deleted from all collections of the home. Vectors of new tools are
        written only to the collections whose encoder is given, and only these get the new mark.

        Args:
            raw: the connection that writes the catalogue.
            home: identity of the home; see `identify_home`.
            encoders: space (names an encoder, see `CollectionKey`) → the function that encodes tools.
        """
        assert self.shares_home
        _ = self.database  # creates the tables if they are missing
        tenant = self._address.tenant
        definition_of_vector = (
            f"SELECT 1 FROM tools JOIN sources ON sources.name = tools.source WHERE {IS_SEARCHED} "
            "AND tools.id = v.tool_id AND tools.fingerprint = v.fingerprint"
        )
        collections = raw.execute(
            "SELECT collection, space, dim FROM vector_collections WHERE home = %s", (home,)
        ).fetchall()
        (generation,) = raw.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone() or (0,)
        for number, space, dim in collections:
            raw.execute(
                "DELETE FROM tool_vectors v WHERE collection = %s AND tenant = %s "
                f"AND NOT EXISTS ({definition_of_vector})".encode(),
                (number, tenant),
            )
            if (encode := encoders.get(space)) is None:
                continue
            rows = raw.execute(
                "SELECT tools.id, tools.fingerprint, tools.body FROM tools "
                f"JOIN sources ON sources.name = tools.source WHERE {IS_SEARCHED} AND NOT EXISTS (SELECT 1 FROM "
                "tool_vectors v WHERE v.collection = %s AND v.tenant = %s AND v.tool_id = tools.id)",
                (number, tenant),
            ).fetchall()
            if rows:
                ids, fingerprints, bodies = zip(*rows, strict=True)
                vectors = encode([TOOL_DECODER.decode(bytes(body)) for body in bodies])
                assert vectors.shape == (len(rows), dim)
                self.copy_rows(raw, number, ToolRows(ids, fingerprints, vectors))
            _write_mark(raw, number, tenant, generation)

    def copy_rows(self, raw: psycopg.Connection[Any], number: int, rows: ToolRows) -> None:
        """Write rows of a collection with COPY in binary form, where a vector is its 32-bit numbers.

        COPY cannot write to a table with row-level security, so the rows pass through a temporary table.

        Args:
            raw: the connection.
            number: of the collection in the tables.
            rows: none of which the collection has.
        """
        raw.execute(
            "CREATE TEMPORARY TABLE IF NOT EXISTS copied_vectors "
            f"(tool_id TEXT, fingerprint TEXT, embedding {self.schema}.vector) ON COMMIT DELETE ROWS".encode()
        )
        vectors = np.ascontiguousarray(rows.vectors, dtype=">f4")
        head = struct.pack(">HH", vectors.shape[1], 0)
        with raw.cursor().copy(b"COPY pg_temp.copied_vectors FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(COPY_HEADER)
            for tool_id, fingerprint, vector in zip(rows.ids, rows.fingerprints, vectors, strict=True):
                fields = _write_fields([tool_id.encode(), fingerprint.encode(), head + vector.tobytes()])
                copy.write(struct.pack(">h", COPIED_FIELDS) + fields)
            copy.write(COPY_TRAILER)
        raw.execute(
            "INSERT INTO tool_vectors (tenant, collection, tool_id, fingerprint, embedding) "
            "SELECT %s, %s, tool_id, fingerprint, embedding FROM pg_temp.copied_vectors",
            (self._address.tenant, number),
        )
        raw.execute(b"TRUNCATE pg_temp.copied_vectors")

    def close(self) -> None:
        """Close the connections. The next use opens them again."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None


class PgvectorCollection:
    """The rows of one collection. `key` and `max_limit`: see `Collection`."""

    max_limit = MAX_SCAN_TUPLES

    def __init__(self, engine: PgvectorEngine, key: CollectionKey) -> None:
        """Name the collection; nothing is read."""
        self.key, self._engine = key, engine
        self._number: int | None = None  # of the collection in the tables; None: not looked up, or never written

    def read_mark(self) -> Mark | None:
        """Return the mark; None: the collection was never written."""
        with _raise_unavailable(), self._engine.database.reading() as connection:
            row = connection.execute(
                "SELECT collection, generation, size FROM vector_collections "
                "JOIN vector_marks USING (tenant, collection) WHERE home = ? AND space = ? AND tenant = ?",
                (self.key.home, self.key.space, self.key.tenant),
            ).fetchone()
        if row is None:
            return None
        self._number, generation, size = row
        return Mark(generation, size)

    def list_rows(self) -> dict[str, str]:
        """Return tool id → fingerprint of every row."""
        if (number := self._find_number()) is None:
            return {}
        with _raise_unavailable(), self._engine.database.reading() as connection:
            return dict(
                connection.execute(
                    "SELECT tool_id, fingerprint FROM tool_vectors WHERE collection = ? AND tenant = ?",
                    (number, self.key.tenant),
                ).fetchall()
            )

    def change(self, rows: ToolRows, gone: Sequence[str], generation: int) -> Mark:
        """Add or replace rows, remove others, and set the mark, in one transaction; see `Collection.change`."""
        with _raise_unavailable(), self._engine.database.writing() as connection:
            raw = connection.raw
            number = _insert_collection(raw, self.key)
            raw.execute(
                "DELETE FROM tool_vectors WHERE collection = %s AND tenant = %s AND tool_id = ANY(%s)",
                (number, self.key.tenant, [*rows.ids, *gone]),
            )
            self._engine.copy_rows(raw, number, rows)
            self._build_index(raw, number)
            mark = _write_mark(raw, number, self.key.tenant, generation)
        if len(rows.ids) * EXACT_SHARE >= mark.size:  # many rows are new: PostgreSQL must plan with new statistics
            with _raise_unavailable(), self._engine.database.writing() as connection:
                connection.raw.execute("ANALYZE tool_vectors")
        return mark

    def _build_index(self, raw: psycopg.Connection[Any], number: int) -> None:
        """Build the graph of one collection over 16-bit copies of its vectors, which halves its size."""
        schema, dim = self._engine.schema, self.key.dim
        raw.execute(f"SET LOCAL maintenance_work_mem = '{INDEX_MEMORY}'".encode())
        raw.execute(
            f"CREATE INDEX IF NOT EXISTS tool_vectors_{number} ON tool_vectors USING hnsw "
            f"((embedding::{schema}.halfvec({dim})) {schema}.halfvec_ip_ops) WHERE collection = {number}".encode()
        )

    def number_tools(self, ids: Sequence[str]) -> Numbers:
        """Return the row numbers of tools; -1 for one without a row."""
        numbers: dict[str, int] = {}
        if (number := self._find_number()) is not None:
            with _raise_unavailable(), self._engine.database.reading() as connection:
                query = "SELECT tool_id, number FROM tool_vectors WHERE collection = ? AND tenant = ?"
                numbers = dict(connection.execute(query, (number, self.key.tenant)).fetchall())
        tools = np.fromiter((numbers.get(tool_id, -1) for tool_id in ids), dtype=np.int64, count=len(ids))
        return Numbers(tools, number_sources(ids))

    def find(self, queries: Vectors, limit: int, view: View | None) -> list[Candidates]:
        """Find the nearest tools of each query; see `Collection.find`."""
        if (number := self._find_number()) is None:
            no_rows = np.empty((0, self.key.dim), dtype=np.float32)
            nothing = Candidates(ids=(), vectors=no_rows, complete=True, slack=0.0)
            return [nothing] * len(queries)
        with _raise_unavailable(), self._engine.database.reading() as connection:
            raw = connection.raw
            (size,) = raw.execute(
                "SELECT size FROM vector_marks WHERE collection = %s AND tenant = %s", (number, self.key.tenant)
            ).fetchone() or (0,)
            visible = None if view is None else view.numbers.tools[view.mask & (view.numbers.tools >= 0)]
            n_visible = size if visible is None else len(visible)
            is_exact = n_visible <= EXACT_ROWS or limit * EXACT_SHARE >= n_visible
            condition, values = _write_condition(visible)
            schema = self._engine.schema
            # The index is over 16-bit copies, so PostgreSQL uses it only for an expression with this cast.
            cast = "" if is_exact else f"::{schema}.halfvec({self.key.dim})"
            if not is_exact:
                _set_scan(raw, limit, size / max(n_visible, 1))
            # `<#>` is the negative inner product, the negative cosine of unit rows.
            statement = (
                f"SELECT tool_id, {schema}.vector_send(embedding) FROM tool_vectors WHERE collection = {number} "
                f"AND tenant = %s {condition} ORDER BY (embedding{cast}) OPERATOR({schema}.<#>) "
                f"%s::{schema}.vector{cast} LIMIT {limit}"
            ).encode()
            answers = []
            for query in queries:
                cursor = raw.cursor(binary=True)
                cursor.execute(statement, (self.key.tenant, *values, _format_vector(query)))
                answers.append(self._read_candidates(cursor.fetchall(), limit, is_exact))
            return answers

    def find_words(
        self, queries: Sequence[Mapping[int, float]], limit: int, view: View | None
    ) -> list[list[tuple[str, float]]]:
        """Refuse: `PGVECTOR.searches_words` is False, so nobody calls it."""
        raise NotImplementedError("pgvector searches no words")

    def _read_candidates(self, rows: list[tuple[str, bytes]], limit: int, is_exact: bool) -> Candidates:
        """Read the answer to a query, (tool id, vector) of each row. `is_exact`: whether all tools were compared."""
        vectors = _parse_vectors([vector for _, vector in rows], self.key.dim)
        slack = FLOAT_SLACK if is_exact else HALF_SLACK
        return Candidates([tool_id for tool_id, _ in rows], vectors, is_exact and len(rows) < limit, slack)

    def read_vectors(self) -> tuple[list[str], Vectors]:
        """Return every tool id and its vector."""
        if (number := self._find_number()) is None:
            return [], np.empty((0, self.key.dim), dtype=np.float32)
        with _raise_unavailable(), self._engine.database.reading() as connection:
            cursor = connection.raw.cursor(binary=True)
            cursor.execute(
                f"SELECT tool_id, {self._engine.schema}.vector_send(embedding) FROM tool_vectors "
                "WHERE collection = %s AND tenant = %s",
                (number, self.key.tenant),
            )
            rows = cursor.fetchall()
        return [tool_id for tool_id, _ in rows], _parse_vectors([vector for _, vector in rows], self.key.dim)

    def drop(self) -> None:
        """Delete the collection with its rows, its mark and its index, if it is there."""
        if (number := self._find_number()) is None:
            return
        with _raise_unavailable(), self._engine.database.writing() as connection:
            # Rows and mark refer to the collection, and are deleted with it (ON DELETE CASCADE).
            connection.execute("DELETE FROM vector_collections WHERE collection = ?", (number,))
            connection.raw.execute(f"DROP INDEX IF EXISTS tool_vectors_{number}".encode())
        self._number = None

    def _find_number(self) -> int | None:
        """Return the number of the collection; None: it was never written."""
        if self._number is None:
            self.read_mark()
        return self._number


def _open_database(address: Address, shares_home: bool) -> tuple[str, PostgresDatabase]:
    """Create the extension pgvector and the tables where they are missing.

    Returns:
        The schema of the type `vector`, in quotation marks; the database, opened for the tables of this module.
    """
    require("psycopg", "postgres")
    from toolscout_postgres.database import PostgresDatabase

    with _raise_unavailable():
        if not shares_home:
            admit_tenant(address)
        # First only the extension: the columns of the tables name its schema. This also makes the schema of the home.
        no_migrations: list[str] = []
        database = PostgresDatabase(address, "vector_types", no_migrations)
        try:
            with database.session() as connection:
                schema = _find_extension(connection.raw, address.label)
        finally:
            database.close()
        tables = _TABLES.format(vector=f"{schema}.vector", tenant=TENANT_COLUMN)
        # The first version did not separate tenants. The second drops its tables; rows come from the catalogue again.
        first_version = ""
        return schema, PostgresDatabase(address, "vectors", (first_version, tables + hide_rows(_SEPARATED)))


_TABLES: Final = """
    DROP TABLE IF EXISTS tool_vectors, vector_marks, vector_collections;
    CREATE TABLE vector_collections (
        tenant {tenant} REFERENCES tenants ON DELETE CASCADE, collection BIGINT GENERATED ALWAYS AS IDENTITY,
        home TEXT NOT NULL, space TEXT NOT NULL, dim BIGINT NOT NULL,
        PRIMARY KEY (tenant, collection), UNIQUE (tenant, home, space));
    CREATE TABLE vector_marks (
        tenant {tenant}, collection BIGINT NOT NULL, generation BIGINT NOT NULL, size BIGINT NOT NULL,
        PRIMARY KEY (tenant, collection),
        FOREIGN KEY (tenant, collection) REFERENCES vector_collections ON DELETE CASCADE);
    CREATE TABLE tool_vectors (
        tenant {tenant}, collection BIGINT NOT NULL, tool_id TEXT NOT NULL,
        number BIGINT GENERATED ALWAYS AS IDENTITY, fingerprint TEXT NOT NULL, embedding {vector} NOT NULL,
        PRIMARY KEY (tenant, collection, tool_id),
        FOREIGN KEY (tenant, collection) REFERENCES vector_collections ON DELETE CASCADE);
    CREATE UNIQUE INDEX tool_vectors_by_number ON tool_vectors (number);
    """
_SEPARATED: Final = ("vector_collections", "vector_marks", "tool_vectors")


def _find_extension(raw: psycopg.Connection[Any], label: str) -> str:
    """Return the schema of pgvector in quotation marks, and create the extension if the database lacks it."""
    import psycopg

    query = (
        "SELECT quote_ident(nspname), extversion FROM pg_extension "
        "JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'vector'"
    )
    row = raw.execute(query).fetchone()
    if row is None:
        if raw.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone() is None:
            raise ConfigError(
                f"The PostgreSQL server of {label} has no pgvector. Install it there (on Debian the package "
                'postgresql-VERSION-pgvector), or set  index = "exact"'
            )
        try:
            raw.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        except psycopg.errors.Error:
            raise ConfigError(
                f"The role may not add pgvector to {label}. Ask its owner to run  CREATE EXTENSION vector"
            ) from None
        row = raw.execute(query).fetchone()
    assert row is not None
    if tuple(int(part) for part in row[1].split(".")[:2]) < MIN_PGVECTOR:
        needed = ".".join(map(str, MIN_PGVECTOR))
        raise ConfigError(
            f"{label} has pgvector {row[1]}, but toolscout needs {needed} or later. Update it there and run  "
            "ALTER EXTENSION vector UPDATE"
        )
    return str(row[0])


def _insert_collection(raw: psycopg.Connection[Any], key: CollectionKey) -> int:
    """Insert a collection unless it is there, and return its number. The column of the tenant has a default."""
    raw.execute(
        "INSERT INTO vector_collections (home, space, dim) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
        (key.home, key.space, key.dim),
    )
    row = raw.execute(
        "SELECT collection FROM vector_collections WHERE home = %s AND space = %s", (key.home, key.space)
    ).fetchone()
    assert row is not None
    return int(row[0])


def _write_mark(raw: psycopg.Connection[Any], number: int, tenant: str, generation: int) -> Mark:
    """Count the rows of the collection `number`, write its mark with that count, and return the mark."""
    row = raw.execute(
        "INSERT INTO vector_marks SELECT %(tenant)s, %(number)s, %(generation)s, (SELECT count(*) FROM tool_vectors "
        "WHERE collection = %(number)s AND tenant = %(tenant)s) ON CONFLICT (tenant, collection) DO UPDATE "
        "SET generation = excluded.generation, size = excluded.size RETURNING generation, size",
        {"number": number, "tenant": tenant, "generation": generation},
    ).fetchone()
    assert row is not None
    return Mark(*row)


def _write_fields(fields: Iterable[bytes]) -> bytes:
    """Write the fields of a row for COPY in binary form: each with its length before it."""
    return b"".join(struct.pack(">i", len(field)) + field for field in fields)


def _write_condition(visible: Ints | None) -> tuple[str, list[Any]]:
    """Return the condition on row numbers, and the values of its parameters.

    Many numbers are a bitmap, so that the statement stays small.

    Args:
        visible: row numbers of the visible tools; None: all are visible.
    """
    if visible is None:
        return "", []
    if len(visible) <= EXACT_ROWS:
        return "AND number = ANY(%s)", [visible.tolist()]
    first, last = int(visible.min()), int(visible.max())
    bits = np.zeros(last - first + 1, dtype=np.bool_)
    bits[visible - first] = True
    packed = np.packbits(bits, bitorder="little").tobytes()
    condition = f"CASE WHEN number BETWEEN {first} AND {last} THEN get_bit(%s, number - {first}) = 1 ELSE false END"
    return f"AND {condition}", [packed]


def _set_scan(raw: psycopg.Connection[Any], limit: int, tools_per_visible: float) -> None:
    """Set how far the index is searched in this transaction.

    Args:
        raw: the connection.
        limit: how many tools are wanted.
        tools_per_visible: how many tools the scan meets for each visible one, if these are spread evenly.
    """
    beam = min(MAX_EF_SEARCH, max(MIN_EF_SEARCH, BEAM_RESERVE * limit))
    tuples = min(MAX_SCAN_TUPLES, max(MIN_SCAN_TUPLES, int(SCAN_RESERVE * limit * tools_per_visible)))
    raw.execute(
        "SELECT set_config('hnsw.ef_search', %s, true), set_config('hnsw.iterative_scan', 'relaxed_order', true), "
        "set_config('hnsw.max_scan_tuples', %s, true), set_config('jit', 'off', true)",
        (str(beam), str(tuples)),
    )


def _format_vector(row: Vectors) -> str:
    """Format a vector as text that pgvector reads. `repr` has all digits of each number."""
    return "[" + ",".join(map(repr, row.tolist())) + "]"


def _parse_vectors(blocks: Sequence[bytes], dim: int) -> Vectors:
    """Parse vectors in binary form: each has its length, two unused bytes, and its numbers, big-endian.

    Returns `(len(blocks), dim)`.
    """
    if not blocks:
        return np.empty((0, dim), dtype=np.float32)
    numbers = np.frombuffer(b"".join(block[VECTOR_HEAD_BYTES:] for block in blocks), dtype=">f4")
    return numbers.astype(np.float32).reshape(len(blocks), dim)


@contextlib.contextmanager
def _raise_unavailable() -> Iterator[None]:
    """Raise Unavailable if the server does not answer: a search then goes on without the engine, and says so."""
    from toolscout_postgres.database import is_away

    try:
        yield
    except StoreError as error:
        if is_away(error):
            raise Unavailable(str(error)) from error
        raise
