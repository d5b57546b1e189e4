"""SQLite as the catalogue and the journal use it: WAL, numbered migrations, all-or-nothing writes, consistent reads."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from toolscout.errors import StoreError

__all__ = ["BUSY_SECONDS", "Database", "alone", "now"]

BUSY_SECONDS: Final = 60.0


def now() -> str:
    """The present instant, UTC, ISO 8601 with milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextlib.contextmanager
def alone(file: Path, refusal: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock among threads and processes; it is let go even by a kill.

    Args:
        file: an SQLite file that holds nothing; made if need be.
        refusal: what to say if somebody else holds it.
        wait: for how many seconds to wait for them.

    Raises:
        StoreError: if they hold it still, or the file cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(file, timeout=wait, isolation_level=None)) as lock:
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise StoreError(refusal) from None
            raise StoreError(f"{file}: expected a file to write, found: {error}") from None
        yield


class Database:
    """One SQLite file in WAL mode with numbered migrations; one connection a thread."""

    def __init__(self, path: Path, migrations: Sequence[str]) -> None:
        """Open or create the file and bring it up to date.

        Raises:
            StoreError: if it is damaged, no database, not writable, or written by a newer version.
        """
        self.path = path
        self._local = threading.local()
        self._all: list[tuple[sqlite3.Connection, threading.RLock]] = []
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{path.parent}: expected a folder to write in, found: {error.strerror}") from None
        with self.errors():
            self._migrate(migrations)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn SQLite's errors into one sentence."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreError(f"{self.path}: expected to read and write the store, found: {error}") from error
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"{self.path}: expected a healthy store, found: {error}; run  toolscout doctor --repair"
            ) from error

    @property
    def connection(self) -> sqlite3.Connection:
        """This thread's connection."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            found.execute("PRAGMA foreign_keys = ON")
            found.execute("PRAGMA synchronous = NORMAL")
            self._local.connection, self._local.busy = found, threading.RLock()
            with self._lock:
                self._all.append((found, self._local.busy))
        return found

    def _migrate(self, migrations: Sequence[str]) -> None:
        deadline = time.monotonic() + BUSY_SECONDS
        while True:  # the change to WAL does not wait for other processes by itself
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        if version == len(migrations):
            return
        with self.writing() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > len(migrations):
                raise StoreError(
                    f"{self.path}: expected a store of version {len(migrations)} or older, found version {version}: "
                    "it was written by a newer toolscout; upgrade this one"
                )
            for number, script in enumerate(migrations[version:], version + 1):
                for statement in script.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: all or nothing."""
        connection = self.connection
        with self.errors(), self._local.busy:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A read transaction: one consistent state, whatever others write meanwhile. May be nested."""
        connection = self.connection
        with self.errors(), self._local.busy:
            if connection.in_transaction:
                yield connection
                return
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("COMMIT")

    def check(self) -> list[str]:
        """What SQLite itself finds wrong with the file; empty when it is sound."""
        try:
            with self.reading() as connection:
                found = [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
                orphans = connection.execute("PRAGMA foreign_key_check").fetchall()
        except StoreError as error:
            return [str(error)]
        return found + [f"{row[0]} row {row[1]} refers to a missing row of {row[2]}" for row in orphans]

    def close(self) -> None:
        """Close the connections of all threads, each when its thread has finished what it is reading or writing."""
        with self._lock:
            for connection, busy in self._all:
                with busy:
                    connection.close()
            self._all.clear()
        self._local = threading.local()
