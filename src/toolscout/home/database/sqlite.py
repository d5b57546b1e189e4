"""SQLite for the catalogue, the journal and the caches: WAL, numbered migrations, all-or-nothing writes.

A file that cannot be written (a read-only home, a full disk) is opened for reading. A cache that cannot be read is set
aside and replaced by an empty one. The catalogue and the journal are never replaced.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import secrets
import shutil
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from toolscout.errors import StoreError
from toolscout.location import SQLITE
from toolscout.trust.private_files import make_private_folder, open_private, tighten

__all__ = [
    "BUSY_SECONDS",
    "CacheDatabase",
    "Salvage",
    "SqliteDatabase",
    "format_instant",
    "hold_file_lock",
    "is_damage",
    "now",
    "rebuild_if_damaged",
    "salvage_file",
]

BUSY_SECONDS: Final = 60.0  # how long to wait for another writer of a file
USUAL_LOG_PAGES: Final = 1000  # pages in the write-ahead log after which a write moves them into the file
#: Parts of SQLite's messages about a file that cannot be written. Before Python 3.11 the errors have no codes.
UNWRITABLE_MESSAGES: Final = ("readonly database", "unable to open database file", "disk I/O error", "disk is full")
#: Parts of messages about a file with other content than expected.
DAMAGE_MESSAGES: Final = (
    *("no such table", "no such column", "has no column", "already exists", "malformed", "Could not decode"),
)
COMPANION_SUFFIXES: Final = ("-wal", "-shm")  # of the files that SQLite creates beside a database
ENGINE_ERRORS: Final = (sqlite3.DatabaseError, UnicodeDecodeError)  # SQLite's message may quote damaged bytes
_log: Final = logging.getLogger("toolscout.database")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def now() -> str:
    """Return the present instant, UTC, ISO 8601 with milliseconds."""
    return format_instant(datetime.now(timezone.utc))


def format_instant(instant: datetime) -> str:
    """Return an instant in UTC as ISO 8601 with milliseconds. Such texts sort by time."""
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextlib.contextmanager
def hold_file_lock(file: Path, refusal: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock that excludes other threads and processes. The lock ends with the process, even if it is killed.

    Args:
        file: an SQLite file without content that carries the lock. It is created if it does not exist.
        refusal: the message of the StoreError if another thread or process has the lock after `wait` seconds.
        wait: how many seconds to wait for the lock.
    """
    try:
        make_private_folder(file.parent)
        os.close(open_private(file, os.O_RDWR))
    except OSError as error:
        raise StoreError(f"{file} cannot be written: {error.strerror}. Check its permissions.") from None
    with contextlib.closing(sqlite3.connect(file, timeout=wait, isolation_level=None)) as lock:
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise StoreError(refusal) from None
            raise StoreError(f"{file} cannot be written: {error}. Check its permissions.") from None
        yield


@contextlib.contextmanager
def _hurry(connection: sqlite3.Connection) -> Iterator[None]:
    """Let writes in the block wait neither for another writer, nor until the log has been moved into the file."""
    connection.execute("PRAGMA busy_timeout = 0")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {USUAL_LOG_PAGES}")


class SqliteDatabase:
    """One SQLite file in WAL mode with numbered migrations. Each thread has its own connection.

    Attributes:
        path: of the file. Only its owner may access it and the files that SQLite creates beside it.
        read_only: whether the file could only be opened for reading. Every write then raises StoreError.
    """

    dialect = SQLITE

    def __init__(self, path: Path, migrations: Sequence[str], *, pragmas: Sequence[str] = ()) -> None:
        """Open or create the file, and run the migrations that it has not seen.

        Args:
            path: of the file.
            migrations: the steps of its schema, in order.
            pragmas: further pragmas of every connection, such as `secure_delete = ON`.

        Raises:
            StoreError: if it is damaged or no database, cannot be created, or was written by a newer version.
        """
        self.path, self._pragmas = path, tuple(pragmas)
        self._migrations = tuple(migrations)
        self.read_only = False
        self._uri_query = ""  # "mode=ro" or "immutable=1" opens the file for reading only
        self._local = threading.local()  # per thread: `connection`, and `busy`, a lock held while it is in use
        self._connections: list[tuple[sqlite3.Connection, threading.RLock]] = []  # of all threads, with their `busy`
        self._lock = threading.Lock()  # for `_connections`
        self._open()

    def _open(self) -> None:
        """Open the file to write, or only to read if it cannot be written; see `_open_for_reading`."""
        try:
            self._prepare_files()
            with self.errors():
                self._migrate()
        except (OSError, StoreError) as error:
            if self._open_for_reading(error):
                return
            if isinstance(error, StoreError):
                raise
            raise StoreError(
                f"{self.path} cannot be written: {error.strerror}. Choose another folder with --home, or "
                "check its permissions."
            ) from error

    def _prepare_files(self) -> None:
        """Create the file with all tables if there is none, and make it and its companions private to their owner.

        An OSError says that it cannot be written. An empty file is refused as damaged: `_create` never leaves one.
        """
        make_private_folder(self.path.parent)
        if not os.path.lexists(self.path):
            self._create()
        found = "" if self.path.is_file() else _describe_non_file(self.path)
        if not found:
            os.close(open_private(self.path, os.O_RDWR))
            found = "" if self.path.stat().st_size else "an empty file"
        if found:
            raise StoreError(
                f"{self.path}: expected a healthy store, found {found}; run  toolscout doctor --repair"
            ) from sqlite3.DatabaseError(found)  # `is_damage` looks at the cause
        if not os.access(self.path.parent, os.W_OK):  # SQLite creates its companions there
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.path.parent))
        for suffix in COMPANION_SUFFIXES:  # a crash or an older version may have left them with other permissions
            tighten(self.path.with_name(self.path.name + suffix))

    def _create(self) -> None:
        """Create the database under a temporary name, then link it to `path` unless another process was first.

        So no process and no crash ever sees a file without its tables.
        """
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.new")
        os.close(open_private(temporary, os.O_RDWR))
        try:
            with self.errors(), contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN")
                self._run_migrations(connection)
                connection.execute("COMMIT")
            with contextlib.suppress(FileExistsError):
                os.link(temporary, self.path)
        finally:
            temporary.unlink()

    def _open_for_reading(self, error: Exception) -> bool:
        """Open an existing file for reading, if `error` says that it cannot be written. Return whether that succeeded.

        `mode=ro` is tried first. It fails in a folder where SQLite cannot create the `-shm` file that readers share.
        Then `immutable=1` opens the file without `-shm`. It ignores the write-ahead log too, so it is not tried if the
        log has content.

        Raises:
            StoreError: if the file can be read, but an older or a newer version wrote it.
        """
        cause = error.__cause__ if isinstance(error, StoreError) else error
        is_unwritable = isinstance(cause, OSError) or _is_unwritable(cause)
        if not is_unwritable:
            return False
        try:
            if self.path.stat().st_size == 0:
                return False
            log = self.path.with_name(f"{self.path.name}-wal")
            log_has_content = log.exists() and log.stat().st_size > 0
        except OSError:
            return False
        self.read_only = True
        version = self._read_version_with("mode=ro")
        if version is None and not log_has_content:
            version = self._read_version_with("immutable=1")
        if version is None:
            self.close()
            self._uri_query, self.read_only = "", False
            return False
        self._refuse_newer(version)
        if version < len(self._migrations):
            raise StoreError(
                f"{self.path} was written by an older toolscout and cannot be brought up to date, because it "
                "cannot be written. Make it writable once, or copy the home."
            ) from cause
        return True

    def _read_version_with(self, uri_query: str) -> int | None:
        """Open the file with a query in its URI. Return the version of its schema, or None if it cannot be read."""
        self.close()
        self._uri_query = uri_query
        try:
            (version,) = self.connection.execute("PRAGMA user_version").fetchone()
            self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # fails if it can't be read
        except (sqlite3.Error, StoreError):
            return None
        return int(version)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of SQLite into a StoreError of one sentence, with the error as its cause."""
        try:
            yield
        except ENGINE_ERRORS as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> StoreError:
        """Return the StoreError that says in one sentence what an error of SQLite means."""
        is_malformed = "malformed" in str(error) or "Could not decode" in str(error)
        if is_malformed or not isinstance(error, sqlite3.OperationalError):
            return StoreError(f"{self.path}: expected a healthy store, found: {error}; run  toolscout doctor --repair")
        if _is_unwritable(error):
            return StoreError(f"{self.path} cannot be written: {error}. Free some space or check its permissions.")
        return StoreError(f"{self.path}: expected to read and write the store, found: {error}")

    @property
    def connection(self) -> sqlite3.Connection:
        """This thread's connection, opened at its first use."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            address = f"{self.path.absolute().as_uri()}?{self._uri_query}" if self._uri_query else str(self.path)
            with self.errors():
                connection = sqlite3.connect(
                    address,
                    uri=bool(self._uri_query),
                    timeout=BUSY_SECONDS,
                    isolation_level=None,
                    check_same_thread=False,  # another thread may call `close`
                )
                for pragma in ("foreign_keys = ON", "synchronous = NORMAL", *self._pragmas):
                    connection.execute(f"PRAGMA {pragma}")
            self._local.connection, self._local.busy = connection, threading.RLock()
            with self._lock:
                self._connections.append((connection, self._local.busy))
        return connection

    @property
    def label(self) -> str:
        """The path, for messages."""
        return str(self.path)

    @property
    def in_transaction(self) -> bool:
        """Whether this thread has a transaction open."""
        return self.connection.in_transaction

    def _migrate(self) -> None:
        """Switch to WAL, and run the migrations that the file has not seen, all in one transaction."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:  # SQLite's own timeout does not apply to the change to WAL
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                is_busy = "locked" in str(error)
                if not is_busy or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        if version == len(self._migrations):
            return
        with self.writing() as connection:
            self._run_migrations(connection)

    def _run_migrations(self, connection: sqlite3.Connection) -> None:
        """Run the migrations that a file has not seen, in the open transaction.

        Raises:
            StoreError: if the file has seen more migrations than this version of toolscout has.
        """
        # read in this transaction, because another process may have migrated the file just before
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        self._refuse_newer(version)
        for number, script in enumerate(self._migrations[version:], version + 1):
            for statement in script.split(";"):  # `executescript` would commit the transaction
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")

    def _refuse_newer(self, version: int) -> None:
        """Raise a StoreError if the file has seen more migrations (`version`) than this version of toolscout has."""
        if version > len(self._migrations):
            raise StoreError(
                f"{self.path}: expected a store of version {len(self._migrations)} or older, found version {version}: "
                "it was written by a newer toolscout; upgrade this one"
            )

    @contextlib.contextmanager
    def writing(self, *, wait: bool = True) -> Iterator[sqlite3.Connection]:
        """Open a write transaction. An error inside the block rolls everything back.

        Args:
            wait: whether to wait for another writer, and to move a long write-ahead log into the file. Otherwise
                another writer raises StoreError at once, and a small write takes a tenth of a millisecond.
        """
        connection = self.connection
        timeouts = contextlib.nullcontext() if wait else _hurry(connection)
        try:
            with self._local.busy, timeouts:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:  # SQLite may have rolled back by itself, for example on a full disk
                        connection.execute("ROLLBACK")
                    raise
        except ENGINE_ERRORS as error:
            raise self._explain(error) from error

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a read transaction: it sees one consistent state, even while others write. May be nested."""
        connection = self.connection
        with self.errors(), self._local.busy:
            if connection.in_transaction:
                yield connection
                return
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:  # SQLite ends it by itself after some errors
                    connection.execute("COMMIT")

    def ask(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of one statement that only reads. It needs no transaction to see one consistent state."""
        connection = self.connection
        try:
            with self._local.busy:
                return connection.execute(sql, parameters).fetchall()
        except ENGINE_ERRORS as error:
            raise self._explain(error) from error

    @contextlib.contextmanager
    def session(self) -> Iterator[sqlite3.Connection]:
        """Give this thread one connection for several transactions, for temporary tables."""
        with self.errors():
            yield self.connection

    def run_script(self, script: str) -> None:
        """Run statements that make or change tables, on the connection of this thread."""
        for statement in script.split(";"):  # `executescript` would commit an open transaction
            self.connection.execute(statement)

    def rebuild_indexes(self) -> None:
        """Build the indexes again, in the transaction of this thread."""
        self.connection.execute("REINDEX")

    def check(self) -> list[str]:
        """Return the faults in the file, one sentence each: of SQLite's checks, and values of a wrong type."""
        try:
            with self.reading() as connection:
                findings = [finding for (finding,) in connection.execute("PRAGMA integrity_check") if finding != "ok"]
                orphans = connection.execute("PRAGMA foreign_key_check").fetchall()
                if not findings:
                    findings = _find_wrong_values(connection, self._migrations)
        except StoreError as error:
            return [str(error)]
        for table, row, parent_table, _ in orphans:
            findings.append(f"{table} row {row} refers to a missing row of {parent_table}")
        return findings

    def close(self) -> None:
        """Close the connections of all threads. Waits until each has finished its transaction."""
        with self._lock:
            for connection, busy in self._connections:
                with busy:
                    connection.close()
            self._connections.clear()
        self._local = threading.local()


class Salvage(NamedTuple):
    """What was saved of a damaged file.

    Attributes:
        aside: where the damaged file is now.
        rows: table → number of rows that were saved.
    """

    aside: Path
    rows: Mapping[str, int]


def salvage_file(path: Path, migrations: Sequence[str]) -> Salvage:
    """Set a damaged file aside, and put a new one in its place with every sound row that can be read of it.

    A row is sound if its values have the types of their columns, and the rows that it refers to were saved too.

    Raises:
        StoreError: if the file cannot be renamed, or no new one can be written.
    """
    try:
        aside = _rename_damaged(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}. Check its permissions.") from None
    n_saved = {}
    with contextlib.closing(SqliteDatabase(path, migrations)) as new, new.writing() as connection:
        for table, columns in _build_expected_columns(tuple(migrations)).items():
            count_rows = f"SELECT count(*) FROM {table}"
            (n_before,) = connection.execute(count_rows).fetchone()  # migrations may have written rows
            placeholders = ", ".join("?" * len(columns))
            for row in _read_sound_rows(aside, table, [type_ for _, type_ in columns]):
                with contextlib.suppress(sqlite3.IntegrityError):  # it refers to a row that was not saved
                    connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({placeholders})", row)
            (n_after,) = connection.execute(count_rows).fetchone()
            n_saved[table] = n_after - n_before
    return Salvage(aside, n_saved)


def _describe_non_file(path: Path) -> str:
    """Return what is in the place of a file: a folder, a link that leads to no file, or another thing."""
    if path.is_symlink():
        return "a link that leads to no file"
    return "a folder" if path.is_dir() else "something that is no file"


def _rename_damaged(path: Path) -> Path:
    """Rename a database, and the files that SQLite keeps beside it, to `NAME.damaged-TIME`. Return the new path."""
    aside = path.with_name(f"{path.name}.damaged-{now().replace(':', '')}")
    path.replace(aside)
    for suffix in COMPANION_SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(f"{aside}{suffix}")
    return aside


def _read_sound_rows(path: Path, table: str, types: Sequence[str]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a table whose values have these types (one for each column). A row may come twice.

    If damage stops the reading of rows from the first to the last, they are also read from the last one backwards.
    """
    if not path.is_file():  # of a link that leads nowhere, SQLite would create the target
        return
    for order in ("", "ORDER BY rowid DESC"):
        unreadable = (sqlite3.Error, UnicodeDecodeError)  # an error of SQLite may quote damaged bytes
        with contextlib.suppress(*unreadable), contextlib.closing(sqlite3.connect(path)) as connection:
            connection.text_factory = bytes  # texts are decoded below, so that a damaged one costs only its row
            for row in connection.execute(f"SELECT * FROM {table} {order}"):
                with contextlib.suppress(ValueError):  # the row is damaged; a UnicodeDecodeError is a ValueError, too
                    yield tuple(_convert_value(value, type_) for value, type_ in zip(row, types, strict=True))
            return  # all rows were read; an error of SQLite skips this line


def _convert_value(value: object, type_: str) -> object:
    """Return the value of a column, texts decoded.

    Raises:
        ValueError: if it is not of the column's type.
    """
    if value is None:
        return None
    expects_number = type_ not in ("TEXT", "BLOB")
    if isinstance(value, (int, float)) != expects_number:
        raise ValueError(type_)
    return value.decode() if type_ == "TEXT" and isinstance(value, bytes) else value


def _find_wrong_values(connection: sqlite3.Connection, migrations: tuple[str, ...]) -> list[str]:
    """Return a sentence for each column with values of a wrong type, which SQLite's own checks don't report.

    Raises:
        sqlite3.OperationalError: if a text cannot be decoded.
    """
    allowed_types = {"TEXT": "'text'", "BLOB": "'text', 'blob'"}  # other columns contain numbers
    findings = []
    for table, columns in _build_expected_columns(migrations).items():
        for name, type_ in columns:
            allowed = allowed_types.get(type_, "'integer', 'real'")
            query = f"SELECT count(*) FROM {table} WHERE typeof({name}) NOT IN ({allowed}, 'null')"
            (count,) = connection.execute(query).fetchone()
            if count:
                findings.append(f"{table}: {count:,} values of {name} have another type")
            if type_ == "TEXT":
                for _ in connection.execute(f"SELECT {name} FROM {table}"):
                    pass  # reading a text decodes it, which raises the error if it is no UTF-8
    return findings


class CacheDatabase(SqliteDatabase):
    """A database with content that can be computed again. An empty file replaces one that cannot be read.

    The damaged file is kept beside it as `NAME.damaged-TIME`. If it cannot be replaced, or the cache can be neither
    read nor written, an empty cache in the temporary folder is used. Each case logs one warning.

    Attributes:
        was_set_aside: whether this object found the file damaged, at opening or later.
    """

    def __init__(self, path: Path, migrations: Sequence[str], *, repair: bool = True) -> None:
        """Open or create the file. If it is damaged, it is set aside (`repair`) or a StoreError is raised.

        Raises:
            StoreError: if it was written by a newer version; without `repair`, also if it is damaged.
        """
        self._repair, self.was_set_aside = repair, False
        super().__init__(path, migrations)

    def _open(self) -> None:
        """Open the cache. A damaged one is set aside; one that can be neither read nor written is opened elsewhere."""
        try:
            super()._open()
            self._refuse_other_tables()
        except StoreError as error:
            cannot_open = isinstance(error.__cause__, (OSError, sqlite3.OperationalError))
            if self._repair and is_damage(error):
                self.set_aside(error)
            elif self._repair and cannot_open:
                self._open_elsewhere(error)
            else:
                raise

    def _is_emptied(self) -> bool:
        """Return whether the file is empty. A sound cache never is, because opening it creates its tables."""
        try:
            return self.path.stat().st_size == 0
        except OSError:
            return False

    def _open_elsewhere(self, reason: Exception) -> None:
        """Use an empty file in a temporary folder instead. The folder is removed together with this object.

        Args:
            reason: a sentence with what happened and what the user can do. It is logged.
        """
        _log.warning("%s. Until then a temporary one is used.", str(reason).rstrip("."))
        self.close()
        try:
            folder = tempfile.mkdtemp(prefix="toolscout-")
        except OSError:
            raise StoreError(str(reason)) from reason
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.path = Path(folder) / self.path.name
        self._uri_query, self.read_only = "", False
        super()._open()

    def _refuse_other_tables(self) -> None:
        """Raise a StoreError that counts as damage if the tables are not those that the migrations make."""
        with self.errors():
            if _read_columns(self.connection) != _build_expected_columns(self._migrations):
                raise sqlite3.DatabaseError("its tables are not those of this cache")

    def set_aside(self, error: StoreError) -> Path | None:
        """Rename the damaged file and create an empty one. Return the new path, or None if nothing was renamed.

        Another process may have replaced the file already, so it is checked again under a lock.

        Args:
            error: by which the damage was found. Its cause is logged as the reason.
        """
        self.close()
        self.was_set_aside = True
        reason = str(error.__cause__ or error)
        aside: Path | None = None
        try:
            with hold_file_lock(self.path.with_name(f".{self.path.name}.lock"), str(error), wait=BUSY_SECONDS):
                if self._is_damaged():
                    aside = _rename_damaged(self.path)
                    _log.warning("%s was damaged (%s): set aside as %s, begun anew", self.path, reason, aside.name)
                elif self._is_emptied():
                    _log.warning("%s was damaged (%s): begun anew", self.path, reason)
                    self.path.unlink()
                super()._open()
        except (OSError, StoreError) as obstacle:
            self._open_elsewhere(StoreError(f"{self.path} is damaged ({reason}) and cannot be replaced: {obstacle}"))
        return aside

    def _is_damaged(self) -> bool:
        """Return whether the file is damaged, by a check of all of it through a separate connection."""
        if not self.path.is_file():
            return os.path.lexists(self.path)  # a folder or a link in its place is damage, a missing file is none
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)) as file:
                (n_objects,) = file.execute("SELECT count(*) FROM sqlite_master").fetchone()
                if n_objects == 0:
                    return False  # it has no tables, because another process replaced it just now
                (finding,) = file.execute("PRAGMA integrity_check(1)").fetchone()
                if finding != "ok" or _read_columns(file) != _build_expected_columns(self._migrations):
                    return True
                return bool(_find_wrong_values(file, self._migrations))
        except sqlite3.DatabaseError:
            return True


def is_damage(error: BaseException) -> bool:
    """Return whether an error means that a file is not the expected database, rather than that it is busy.

    Args:
        error: its cause decides (`__cause__`): the error of SQLite that a StoreError was raised from.
    """
    cause = error.__cause__
    if isinstance(cause, sqlite3.OperationalError):
        return any(words in str(cause) for words in DAMAGE_MESSAGES)
    if isinstance(cause, sqlite3.IntegrityError):  # the values that we tried to write are wrong, not the file
        return False
    return isinstance(cause, (sqlite3.DatabaseError, UnicodeDecodeError))  # SQLite's message may quote damaged bytes


Cache = TypeVar("Cache", bound=CacheDatabase)


def rebuild_if_damaged(
    method: Callable[Concatenate[Cache, Parameters], Result],
) -> Callable[Concatenate[Cache, Parameters], Result]:
    """Decorate a method of a cache: if the file is damaged, replace it by an empty one and call the method again."""

    @functools.wraps(method)
    def call(cache: Cache, /, *args: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            return method(cache, *args, **options)
        except StoreError as error:
            if not is_damage(error):
                raise
            cache.set_aside(error)
            return method(cache, *args, **options)

    return call


def _is_unwritable(error: BaseException | None) -> bool:
    """Return whether an error of SQLite says that a file cannot be written."""
    return isinstance(error, sqlite3.OperationalError) and any(words in str(error) for words in UNWRITABLE_MESSAGES)


@functools.cache
def _build_expected_columns(migrations: tuple[str, ...]) -> dict[str, list[tuple[str, str]]]:
    """Return table → (name, type) of its columns after all migrations, by running them in memory."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for script in migrations:
            connection.executescript(script)
        return _read_columns(connection)


def _read_columns(connection: sqlite3.Connection) -> dict[str, list[tuple[str, str]]]:
    """Return table → (name, type) of its columns."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    tables = [table for (table,) in connection.execute(query).fetchall()]
    return {
        table: [(name, type_) for _, name, type_, *_ in connection.execute(f'PRAGMA table_info("{table}")')]
        for table in tables
    }
