"""Opens the databases of a home: SQLite files in a folder, or tables of the engine that a package brings (PostgreSQL).

A home is where an installation stores its catalogue, its journal and its models. `Database` runs on any engine, with
the same numbered migrations. Caches are always SQLite files (`CacheDatabase`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from toolscout.errors import StoreError, UserError
from toolscout.home.database.folder import open_home
from toolscout.home.database.sqlite import (
    BUSY_SECONDS,
    CacheDatabase,
    Salvage,
    SqliteDatabase,
    format_instant,
    hold_file_lock,
    is_damage,
    now,
    rebuild_if_damaged,
    salvage_file,
)
from toolscout.location import Connection, Dialect, Home, PartDatabase

__all__ = [
    "BUSY_SECONDS",
    "CacheDatabase",
    "Connection",
    "Database",
    "Dialect",
    "PartDatabase",
    "Salvage",
    "SqliteDatabase",
    "format_instant",
    "hold_file_lock",
    "hold_lock",
    "is_damage",
    "now",
    "open_home",
    "rebuild_if_damaged",
    "salvage_file",
]


def hold_lock(home: Home, name: str, refusal: str, *, wait: float = 0.0) -> AbstractContextManager[None]:
    """Hold a lock of a home that excludes other threads, processes and, in a database, machines.

    The lock ends with the process, even if it is killed.

    Args:
        home: the home.
        name: of the lock. In a home that is a folder, a file of this name carries the lock.
        refusal: the message of the error if another thread, process or machine has the lock.
        wait: how many seconds to wait for the lock.

    Raises:
        StoreError: if the lock was not free in time, or cannot be taken.
    """
    return open_home(home).hold_lock(name, refusal, wait=wait)


class Database:
    """One part of a home, such as the catalogue, on the engine of that home. Thread-safe.

    Attributes:
        label: the file or the address, for messages.
        dialect: expressions that depend on the engine.
        ask: returns the rows of one statement that only reads. It needs no transaction to see one consistent state.
        read_only: whether nothing can be written. Every write then raises StoreError.
    """

    def __init__(self, home: Home, part: str, migrations: Sequence[str], *, pragmas: Sequence[str] = ()) -> None:
        """Open or create the part, and run the migrations that it has not seen.

        Args:
            home: where the part is.
            part: its name. In a folder the file is `PART.db`.
            migrations: the steps of its schema, in order, in the SQL of SQLite.
            pragmas: see `SqliteDatabase`.

        Raises:
            StoreError: if it cannot be reached or created, is damaged, or was written by a newer version.
        """
        self.home = home
        self._engine: PartDatabase = open_home(home).open_database(part, migrations, pragmas=pragmas)
        self.label, self.dialect, self.ask = self._engine.label, self._engine.dialect, self._engine.ask

    @property
    def path(self) -> Path:
        """The SQLite file. A part of another engine has none."""
        assert isinstance(self._engine, SqliteDatabase), f"{self.label} is no file"
        return self._engine.path

    @property
    def read_only(self) -> bool:
        """Whether the file could only be opened for reading."""
        return self._engine.read_only

    @property
    def connection(self) -> Connection:
        """This thread's connection; use it only inside `reading`, `writing` or `session`."""
        return self._engine.connection

    @property
    def in_transaction(self) -> bool:
        """Whether this thread has a transaction open."""
        return self._engine.in_transaction

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a read transaction: it sees one consistent state, even while others write. May be nested."""
        try:
            with self._engine.reading() as connection:
                yield connection
        except Exception as error:
            self._name_damage(error)
            raise

    @contextlib.contextmanager
    def writing(self, *, wait: bool = True) -> Iterator[Connection]:
        """Open a write transaction. An error inside the block rolls everything back. There is one writer at a time.

        Args:
            wait: whether to wait for another writer. Otherwise StoreError is raised at once.
        """
        try:
            with self._engine.writing(wait=wait) as connection:
                yield connection
        except Exception as error:
            self._name_damage(error)
            raise

    def _name_damage(self, error: Exception) -> None:
        """Raise a StoreError in place of an unexpected error, if `check` finds this part damaged.

        SQLite has no checksums. So a flipped bit can appear as a number where a text should be, or as a text that is no
        JSON, and the error is raised wherever such a value is used.
        """
        if isinstance(error, UserError) or self.in_transaction:
            return  # in a transaction, the block around this one checks after its end
        if findings := self.check():
            raise StoreError(f"{self.label} is damaged: {findings[0]}; run  toolscout doctor --repair") from error

    def session(self) -> AbstractContextManager[Connection]:
        """Give this thread one connection for several transactions, for temporary tables."""
        return self._engine.session()

    def errors(self) -> AbstractContextManager[None]:
        """Turn errors of the engine into a StoreError of one sentence, with the error as its cause."""
        return self._engine.errors()

    def check(self) -> list[str]:
        """Return the faults that the engine finds, one sentence each. Empty if the part is sound."""
        return self._engine.check()

    def close(self) -> None:
        """Close the connections of all threads. Waits until each has finished its transaction."""
        self._engine.close()
