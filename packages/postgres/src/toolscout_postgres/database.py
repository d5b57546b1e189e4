"""PostgreSQL for the catalogue, the journal and the models of a home that several machines share.

A home may hold several tenants. A connection belongs to one, and the database hides the rows of all others
(`toolscout_postgres.schema`).

Every part of a home has one writer at a time, as an SQLite file has: a write transaction takes an advisory lock first.
What reads and then writes is therefore as safe as in SQLite, and the rows of the journal become visible in the order of
their ids. Readers never wait. They see one state of the database (`REPEATABLE READ`).

A connection that breaks before a transaction has begun is replaced at once, so a restart of the server is not noticed
between transactions. Inside one, the transaction fails with a StoreError, and nothing of it is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from toolscout.errors import NotFound, StoreError, name_nearest, require
from toolscout.home.database import BUSY_SECONDS
from toolscout.location import DEFAULT_TENANT
from toolscout_postgres.address import Address
from toolscout_postgres.schema import (
    ALL_TENANTS,
    BYPASS_GUARD,
    POSTGRES,
    TENANT_MIGRATIONS,
    TENANT_SETTING,
    Migration,
    adapt_steps,
    translate,
    translate_schema,
)

__all__ = [
    "LISTEN_AFTER_QUESTIONS",
    "PostgresConnection",
    "PostgresDatabase",
    "PostgresListener",
    "binds_role",
    "connect",
    "hold_lock",
    "is_away",
    "open_tenants",
]

if TYPE_CHECKING:
    import psycopg
    import psycopg_pool


CONNECT_S: Final = 5  # time to establish one connection
RECONNECT_S: Final = 2.0  # time that a transaction waits for a server that does not answer, before it begins
MAX_CONNECTIONS: Final = 10  # of one part of a home in one process
MIN_POOL_WAIT_S: Final = 0.05  # so that the last attempt still gets a connection that is free
LOCK_POLL_S: Final = 0.1  # between two attempts to take a lock
BEGIN_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
BEGIN_WRITE: Final = f"BEGIN; SET LOCAL lock_timeout = '{int(BUSY_SECONDS)}s'"
VERSIONS_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS versions (part TEXT PRIMARY KEY, version INTEGER NOT NULL);
    ALTER TABLE versions ADD COLUMN IF NOT EXISTS oldest INTEGER;
    """
READ_VERSION: Final = (  # by way of JSON, since a home that only older versions have used has no column `oldest`
    "SELECT version, coalesce((to_jsonb(versions) ->> 'oldest')::bigint, version) FROM versions WHERE part = ?"
)
READ_BYPASS: Final = "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
PUT_VERSION: Final = (
    "INSERT INTO versions (part, version, oldest) VALUES (%s, %s, %s) ON CONFLICT (part) DO UPDATE SET "
    "version = excluded.version, oldest = excluded.oldest"
)
T = TypeVar("T")
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())


class PostgresConnection:
    """A connection of psycopg that takes statements as they are written for SQLite.

    Attributes:
        raw: the connection of psycopg, for statements that are written for PostgreSQL.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        """Wrap a connection of psycopg."""
        self.raw = raw

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        idle = 0  # psycopg.pq.TransactionStatus.IDLE
        return self.raw.info.transaction_status != idle

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> psycopg.Cursor[Any]:
        """Run one statement with `?` for its parameters."""
        return self.raw.execute(translate(sql).encode(), _make_storable(parameters))

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> psycopg.Cursor[Any]:
        """Run one statement for each row of parameters."""
        cursor = self.raw.cursor()
        cursor.executemany(translate(sql).encode(), map(_make_storable, parameters))
        return cursor


class PostgresDatabase:
    """One part of a home, such as its journal: tables in a schema of a PostgreSQL database, with numbered migrations.

    Attributes:
        label: the address without a password.
        read_only: False; a role that may not write is refused when it writes.
        dialect: SQL that differs from SQLite's.
    """

    dialect = POSTGRES
    read_only = False

    def __init__(self, address: Address, part: str, migrations: Sequence[str | Migration]) -> None:
        """Connect, and run the migrations that the part has not seen.

        Raises:
            MissingExtra: if psycopg is not installed.
            StoreError: if the server does not answer or refuses, or if the home is of a newer version.
            NotFound: if the home has no such tenant.
        """
        require("psycopg", "postgres")
        pool = require("psycopg_pool", "postgres")
        self.label, self._address, self._part = address.label, address, part
        self._writer_key = _number_lock(address, part)
        self._local = threading.local()  # its attribute `connection`: the connection that the thread uses now
        with _describe_errors(self.label):
            # SQL that is appended to each BEGIN, so that no row of another tenant is read; empty: it is not needed.
            self._guard = _prepare_home(address, part, adapt_steps(part, migrations))
        self._pool: psycopg_pool.ConnectionPool[Any] = pool.ConnectionPool(
            address.conninfo,
            min_size=0,
            max_size=MAX_CONNECTIONS,
            kwargs={"autocommit": True, "connect_timeout": CONNECT_S, "application_name": f"toolscout {part}"},
            configure=lambda raw: _choose_tenant(raw, address),
            reconnect_timeout=CONNECT_S,
            num_workers=2,
            open=True,
        )

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Raise errors of psycopg as a StoreError of one sentence, with the error as its cause."""
        return _describe_errors(self.label)

    @property
    def connection(self) -> PostgresConnection:
        """The connection that this thread uses inside `reading`, `writing` or `session`."""
        connection: PostgresConnection = self._local.connection
        return connection

    @property
    def in_transaction(self) -> bool:
        """Whether this thread has a transaction open."""
        connection = getattr(self._local, "connection", None)
        return connection is not None and connection.in_transaction

    @contextlib.contextmanager
    def session(self) -> Iterator[PostgresConnection]:
        """Give this thread one connection for several transactions, or for single statements. May be nested."""
        if (connection := getattr(self._local, "connection", None)) is not None:
            yield connection
            return
        with self._use("SELECT 1") as connection:  # begins no transaction, but shows whether the connection is broken
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[PostgresConnection]:
        """Open a read transaction: it sees one consistent state, even while others write. May be nested."""
        if self.in_transaction:
            with self.errors():
                yield self.connection
            return
        with self._use(BEGIN_READ) as connection:
            try:
                yield connection
                connection.execute("COMMIT")  # a read transaction writes temporary tables at most
            except BaseException:
                _roll_back(connection)
                raise

    @contextlib.contextmanager
    def writing(self, *, wait: bool = True) -> Iterator[PostgresConnection]:
        """Open a write transaction. An error inside the block rolls everything back. There is one writer at a time.

        Args:
            wait: whether to wait for another writer. Otherwise StoreError is raised at once.
        """
        if self.in_transaction:
            raise StoreError(f"{self.label}: a transaction cannot begin within another one")
        with self._use(BEGIN_WRITE) as connection:
            try:
                take_lock = "SELECT pg_advisory_xact_lock(?)" if wait else "SELECT pg_try_advisory_xact_lock(?)"
                if connection.execute(take_lock, (self._writer_key,)).fetchone() == (False,):
                    raise StoreError(f"{self.label}: somebody else is writing. Try again.")
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise

    @contextlib.contextmanager
    def _use(self, begin: str) -> Iterator[PostgresConnection]:
        """Run the statement `begin`, and give this thread the connection for the block.

        A thread that already uses a connection keeps it; another takes one from the pool, and returns it afterwards.
        """
        connection: PostgresConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            with self.errors():
                connection.raw.execute((begin + self._guard).encode())
                yield connection
            return
        with self.errors():
            connection, _ = self._try_connections(lambda fresh: fresh.raw.execute((begin + self._guard).encode()))
            self._local.connection = connection
            try:
                yield connection
            finally:
                self._local.connection = None
                self._pool.putconn(connection.raw)

    def ask(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of one statement that only reads.

        Outside of a transaction, it is run without BEGIN and COMMIT, unless the guard of tenants must run before it.
        """
        if self._guard or getattr(self._local, "connection", None) is not None:
            with self.reading() as connection:
                return connection.execute(sql, parameters).fetchall()
        with self.errors():
            connection, rows = self._try_connections(lambda fresh: fresh.execute(sql, parameters).fetchall())
            self._pool.putconn(connection.raw)
            return rows

    def _try_connections(self, act: Callable[[PostgresConnection], T]) -> tuple[PostgresConnection, T]:
        """Call `act` with a connection from the pool. If it is broken, try others for `RECONNECT_S` seconds.

        Returns:
            The connection, which the caller must give back to the pool; what `act` returned.
        """
        import psycopg

        deadline = time.monotonic() + RECONNECT_S
        while True:
            raw = self._pool.getconn(timeout=max(MIN_POOL_WAIT_S, deadline - time.monotonic()))
            connection = PostgresConnection(raw)
            try:
                return connection, act(connection)
            except BaseException as error:
                self._pool.putconn(raw)  # the pool drops it if it is broken
                if not isinstance(error, psycopg.OperationalError) or time.monotonic() > deadline:
                    raise

    def run_script(self, script: str) -> None:
        """Run statements that make or change tables, on the connection of this thread."""
        _run_script(self.connection, script)

    def rebuild_indexes(self) -> None:
        """Do nothing: PostgreSQL checks its pages, and an operator rebuilds indexes with REINDEX."""

    def check(self) -> list[str]:
        """Return why the database does not answer, or nothing. PostgreSQL itself enforces keys and references."""
        try:
            with self.reading() as connection:
                connection.execute("SELECT 1").fetchone()
        except StoreError as error:
            return [str(error)]
        return []

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()


def connect(address: Address) -> psycopg.Connection[Any]:
    """Open one connection outside of any pool, with the schema and the tenant of the address set.

    Raises:
        psycopg.OperationalError: if the server does not answer or refuses.
    """
    driver = require("psycopg", "postgres")
    raw: psycopg.Connection[Any] = driver.connect(
        address.conninfo, autocommit=True, connect_timeout=CONNECT_S, application_name="toolscout"
    )
    _choose_tenant(raw, address)
    return raw


@contextlib.contextmanager
def open_tenants(address: Address) -> Iterator[PostgresConnection]:
    """Open a write transaction that sees the list of tenants, and no row of any tenant.

    Raises:
        StoreError: if the server does not answer or refuses.
    """
    with _describe_errors(address.label), contextlib.closing(connect(address)) as raw:
        connection = PostgresConnection(raw)
        _migrate(connection, address, "tenants", TENANT_MIGRATIONS)
        raw.execute(BEGIN_WRITE.encode())
        raw.execute("SELECT set_config(%s, %s, true)", (TENANT_SETTING, ALL_TENANTS))
        yield connection
        raw.execute(b"COMMIT")


def binds_role(connection: PostgresConnection) -> bool:
    """Return whether row-level security applies to the role of a connection, so that it hides rows of other tenants."""
    row = connection.execute(READ_BYPASS).fetchone()
    return row is not None and not row[0]


@contextlib.contextmanager
def hold_lock(address: Address, name: str, refusal: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold an advisory lock of a home during the block; see `toolscout.home.database.hold_lock`."""
    key, deadline = _number_lock(address, name), time.monotonic() + wait
    with contextlib.ExitStack() as stack:
        with _describe_errors(address.label):
            raw = stack.enter_context(contextlib.closing(connect(address)))
            while raw.execute("SELECT pg_try_advisory_lock(%s)", (key,)).fetchone() == (False,):
                if time.monotonic() >= deadline:
                    raise StoreError(refusal)
                time.sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            _release_lock(raw, key)


def _release_lock(raw: psycopg.Connection[Any], key: int) -> None:
    """Give an advisory lock back at once. Closing the connection alone would give it back a little later."""
    import psycopg

    with contextlib.suppress(psycopg.OperationalError, psycopg.InterfaceError):  # the server has gone, its locks too
        raw.execute("SELECT pg_advisory_unlock(%s)", (key,))


def is_away(error: BaseException) -> bool:
    """Return whether an error means that the server does not answer, rather than that it refuses a statement.

    Args:
        error: a StoreError, whose cause is the error of psycopg.
    """
    import psycopg

    return isinstance(error.__cause__, (psycopg.OperationalError, psycopg.InterfaceError))


_REFUSED_LOGIN = re.compile(r"FATAL: +(?=role|database|password|no pg_hba|Peer|Ident)")  # then the server answers
_BAD_ADDRESS = re.compile(r"invalid (URI|connection option|port|sslmode)")


@contextlib.contextmanager
def _describe_errors(label: str) -> Iterator[None]:
    """Raise errors of psycopg as a StoreError that says what to do."""
    import psycopg

    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise StoreError(f"{label}: another writer takes more than {BUSY_SECONDS:.0f} seconds. Try again.") from error
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        reason = " ".join(str(error).split()).partition(" Is the server running")[0].rstrip(".")
        if _REFUSED_LOGIN.search(reason):
            cause = _REFUSED_LOGIN.split(reason)[-1]  # what follows the last FATAL, of several attempts to connect
            raise StoreError(f"The database {label} refuses the connection: {cause}. Check the address.") from error
        raise StoreError(f"The database {label} does not answer: {reason}. Check that it runs.") from error
    except psycopg.Error as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        mend = "the address" if _BAD_ADDRESS.search(reason) else "the role and its rights"
        raise StoreError(f"The database {label} refused: {reason}. Check {mend}.") from error


def _prepare_home(address: Address, part: str, migrations: Sequence[str | Migration]) -> str:
    """Bring a part of a home up to date for its tenant.

    Returns:
        SQL to append to the BEGIN of each transaction, with its semicolon. It refuses a role that would see the rows of
        other tenants, once the home has several. "": row-level security applies to the role, and hides these rows.

    Raises:
        NotFound: if the home has no such tenant.
        StoreError: if a newer version has changed the part so that this one cannot use it.
    """
    # Migrations run as `default`: rows that a home had before it had tenants belong to that tenant.
    with contextlib.closing(connect(address.with_tenant(DEFAULT_TENANT))) as raw:
        connection = PostgresConnection(raw)
        _migrate(connection, address, "tenants", TENANT_MIGRATIONS)
        _migrate(connection, address, part, migrations)
        hides_rows = binds_role(connection)
        if address.tenant != DEFAULT_TENANT:
            _choose_tenant(raw, address)
            if connection.execute("SELECT 1 FROM tenants WHERE name = ?", (address.tenant,)).fetchone() is None:
                names = [name for (name,) in connection.execute("SELECT name FROM tenants")]
                advice = name_nearest(address.tenant, names, f"Add it with  toolscout tenant add {address.tenant}")
                raise NotFound(f"{address.label} has no tenant {address.tenant!r}. {advice}")
            # The migrations insert the first rows only of `default`. Any other tenant gets its own here, with every
            # connection: the second time, these statements change nothing.
            for step in migrations:
                if isinstance(step, Migration) and step.first_rows:
                    connection.execute(step.first_rows)
    return "" if hides_rows else f"; {BYPASS_GUARD}"


def _migrate(
    connection: PostgresConnection, address: Address, part: str, migrations: Sequence[str | Migration]
) -> None:
    """Run the migrations that the part has not seen, in one transaction. Other processes that migrate wait meanwhile.

    Raises:
        StoreError: if a newer version has changed the part so that this one cannot use it.
    """
    if _is_current(connection, address, part, len(migrations)):
        return
    connection.raw.execute(BEGIN_WRITE.encode())
    connection.execute("SELECT pg_advisory_xact_lock(?)", (_number_lock(address, "migrations", is_shared=True),))
    if not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = ?", (address.schema,)).fetchone():
        _run_script(connection, f'CREATE SCHEMA "{address.schema}"')
    _run_script(connection, VERSIONS_TABLE)
    # Asked again, now under the lock: another process may have run the migrations meanwhile.
    if not _is_current(connection, address, part, len(migrations)):
        version, _ = _read_version(connection, part)
        for step in migrations[version:]:
            script = step.postgres if isinstance(step, Migration) else step
            if script.strip():
                _run_script(connection, script)
        connection.raw.execute(PUT_VERSION, (part, len(migrations), _find_oldest(migrations)))
    connection.execute("COMMIT")


def _find_oldest(migrations: Sequence[str | Migration]) -> int:
    """Return how many of the migrations a program must know to use a home that has all of them.

    It need not know the last ones if they only expand the schema; see `Migration.expands`.
    """
    known = len(migrations)
    while known and isinstance(step := migrations[known - 1], Migration) and step.expands:
        known -= 1
    return known


def _is_current(connection: PostgresConnection, address: Address, part: str, version: int) -> bool:
    """Return whether this version can use the part as it is.

    Raises:
        StoreError: if a newer version has changed it so that this one cannot use it.
    """
    actual, oldest = _read_version(connection, part)
    if oldest > version:
        raise StoreError(
            f"{address.label}: expected a {part} of version {version} or older, found version {actual}: it was "
            "written by a newer toolscout; upgrade this one"
        )
    return actual >= version


def _run_script(connection: PostgresConnection, script: str) -> None:
    """Run statements that make or change tables, written for SQLite."""
    connection.raw.execute(translate_schema(script).encode())


def _read_version(connection: PostgresConnection, part: str) -> tuple[int, int]:
    """Return the version of a part, and the oldest version that can use it; (0, 0) if the home does not have it yet."""
    if connection.execute("SELECT to_regclass('versions')").fetchone() == (None,):
        return 0, 0
    row = connection.execute(READ_VERSION, (part,)).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def _choose_tenant(raw: psycopg.Connection[Any], address: Address) -> None:
    """Set the schema and the tenant of a connection."""
    raw.execute(
        "SELECT set_config('search_path', %s, false), set_config(%s, %s, false)",
        (f'"{address.schema}"', TENANT_SETTING, address.tenant),
    )


def _roll_back(connection: PostgresConnection) -> None:
    """End the transaction, unless the connection is broken."""
    import psycopg

    with contextlib.suppress(psycopg.Error):
        connection.raw.execute(b"ROLLBACK")


def _number_lock(address: Address, name: str, *, is_shared: bool = False) -> int:
    """Return the number of an advisory lock: a hash of 64 bits, signed, as PostgreSQL wants it.

    Args:
        address: each home has its own locks, and so has each tenant.
        name: of the lock in the home.
        is_shared: whether all tenants of the home have the lock in common.
    """
    owner = "" if is_shared or address.tenant == DEFAULT_TENANT else f" {address.tenant}/"
    digest = hashlib.blake2b(f"toolscout {address.schema}{owner} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _make_storable(parameters: Sequence[Any]) -> Sequence[Any]:
    """Replace the character U+0000, which PostgreSQL cannot store in texts."""
    if any(isinstance(value, str) and "\0" in value for value in parameters):
        return [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in parameters]
    return parameters


LISTEN_AFTER_QUESTIONS: Final = 20  # a process that asks so often for the generation answers searches: it listens
LISTEN_POLL_S: Final = 1.0  # the generation is read again after this time without an announcement
_log: Final = logging.getLogger("toolscout_postgres.database")


class PostgresListener:
    """Listens for the generation of a catalogue, so that searches need not read it from the database. Thread-safe.

    PostgreSQL announces each new generation with NOTIFY. While the connection lasts, the last one heard is current.
    """

    def __init__(self, address: Address) -> None:
        """Prepare to listen. No connection is opened before `hear` was called `LISTEN_AFTER_QUESTIONS` times."""
        self._address = address
        self._generation = self._questions = 0
        self._is_connected = self._is_doubtful = False
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def hear(self) -> int | None:
        """Return `generation`. After `LISTEN_AFTER_QUESTIONS` calls, a thread begins to listen."""
        if self._thread is None:
            self._questions += 1
            if self._questions >= LISTEN_AFTER_QUESTIONS:
                self._start()
        return self.generation

    def _start(self) -> None:
        """Start the thread that listens, unless another thread has started it."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="toolscout listener", daemon=True)
                self._thread.start()

    @property
    def generation(self) -> int | None:
        """The generation of the catalogue; None: it is not known, so the database must be asked."""
        return self._generation if self._is_connected and not self._is_doubtful else None

    def doubt(self) -> None:
        """Let `generation` be None until `learn` is called: this process has just written, and not heard of it yet."""
        self._is_doubtful = True

    def learn(self, generation: int) -> None:
        """Take over a generation that was read from the database."""
        self._generation, self._is_doubtful = max(self._generation, generation), False

    def close(self) -> None:
        """Stop listening."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        """Listen until `close`, in a thread. A connection that breaks is replaced after `LISTEN_POLL_S` seconds.

        The generation is also read from the table: when a connection is new, and after each announcement or pause.
        """
        import psycopg

        while not self._stopped.is_set():
            try:
                with contextlib.closing(connect(self._address)) as raw:
                    raw.execute(f'LISTEN "{_name_channel(self._address)}"'.encode())
                    while not self._stopped.is_set():
                        row = raw.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()
                        self._generation, self._is_connected = int(row[0]) if row else 0, True
                        for notice in raw.notifies(timeout=LISTEN_POLL_S, stop_after=1):
                            self._generation = max(self._generation, int(notice.payload))
            except psycopg.Error as error:
                _log.debug("not listening to %s: %s", self._address, error)
            finally:
                self._is_connected = False
            self._stopped.wait(LISTEN_POLL_S)


def _name_channel(address: Address) -> str:
    """Return the channel on which new generations of a tenant's catalogue are announced.

    The trigger `announce_generation` (`schema`) makes the same names. They are hashes because schema and tenant
    together can be longer than the 63 bytes of a channel's name; that of `default` is older than tenants.
    """
    if address.tenant == DEFAULT_TENANT:
        return f"toolscout_{address.schema}"
    name_hash = hashlib.md5(f"{address.schema}/{address.tenant}".encode(), usedforsecurity=False).hexdigest()
    return f"toolscout_{name_hash}"
