"""Writes to the journal of a home in PostgreSQL, and loses nothing while the database does not answer.

Events that cannot be written wait in the *spool*, a file of this machine, until the database answers again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from toolscout.errors import StoreError
from toolscout.home.database import Database, SqliteDatabase
from toolscout.home.journal.journal import EVENT_COLUMNS, PUT_EVENT, build_line
from toolscout_postgres.address import Address
from toolscout_postgres.database import is_away

__all__ = ["MAX_SPOOLED_EVENTS", "SharedWriter", "Spool"]

MAX_SPOOLED_EVENTS: Final = 100_000  # some 50 MB
SPOOL_FILE: Final = "spool.db"
SPOOL_MIGRATIONS: Final = (
    """
    CREATE TABLE waiting (
        number INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE, at TEXT NOT NULL, event TEXT NOT NULL,
        caller TEXT NOT NULL, search_id TEXT, body TEXT NOT NULL);
    CREATE INDEX waiting_by_search ON waiting (search_id)
    """,
)


class Spool:
    """The events of one machine that wait for the database, in a file. All processes of the machine share it.

    A row is the columns `EVENT_COLUMNS` of an event: uid, at, event, caller, search_id, body.
    """

    def __init__(self, folder: Path) -> None:
        """Open or create the file in the folder of the home on this machine."""
        self._database = SqliteDatabase(folder / SPOOL_FILE, SPOOL_MIGRATIONS, pragmas=("secure_delete = ON",))

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add rows of events.

        Raises:
            StoreError: if more than `MAX_SPOOLED_EVENTS` would wait, or the file cannot be written; nothing is then
                added.
        """
        with self._database.writing() as connection:
            (n_waiting,) = connection.execute("SELECT count(*) FROM waiting").fetchone()
            if n_waiting + len(rows) > MAX_SPOOLED_EVENTS:
                raise StoreError(
                    f"{n_waiting:,} events wait in {self._database.path} for the database, and more are not kept. Make "
                    "the database answer again."
                )
            connection.executemany(
                f"INSERT INTO waiting ({EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", rows
            )

    def read(self) -> tuple[int, list[tuple[Any, ...]]]:
        """Return the number of the last waiting row, 0 if none waits, and all rows, the oldest first."""
        with self._database.reading() as connection:
            numbered = connection.execute(f"SELECT number, {EVENT_COLUMNS} FROM waiting ORDER BY number").fetchall()
        last_number = numbered[-1][0] if numbered else 0
        return last_number, [row[1:] for row in numbered]  # without their numbers

    def remove_until(self, last_number: int) -> None:
        """Remove the rows up to a number, because the database has them. Rows that came later have higher numbers."""
        with self._database.writing() as connection:
            connection.execute("DELETE FROM waiting WHERE number <= ?", (last_number,))

    def is_empty(self) -> bool:
        """Return whether no event waits."""
        with self._database.reading() as connection:
            return connection.execute("SELECT 1 FROM waiting LIMIT 1").fetchone() is None

    def find_search(self, search_id: str) -> dict[str, Any] | None:
        """Return a waiting search by its id, or None."""
        with self._database.reading() as connection:
            row = connection.execute(
                "SELECT uid, at, event, caller, body FROM waiting WHERE search_id = ? AND event = 'search'",
                (search_id,),
            ).fetchone()
        return None if row is None else build_line(*row)

    def close(self) -> None:
        """Close the file."""
        self._database.close()


RETRY_DATABASE_S: Final = 1.0  # after this time, a database that did not answer is asked again
MAX_RECENT_SEARCHES: Final = 5_000  # searches of this process in memory, so that calls find them without the database
_log: Final = logging.getLogger("toolscout_postgres.journal")


class SharedWriter:
    """Writes events to the database, or to the spool of this machine while the database does not answer.

    Attributes:
        spool: the events that wait.
    """

    def __init__(self, database: Database, address: Address) -> None:
        """Write to the journal in `database`, and write first what an earlier process left in the spool."""
        self._database, self.spool = database, Spool(address.folder)
        self._lock = threading.Lock()
        self._is_away = False  # whether the database did not answer at the last attempt to write
        self._asked_at = -RETRY_DATABASE_S  # when that attempt was, in seconds of `time.monotonic`
        self._recent: dict[str, tuple[Any, ...]] = {}  # search id → row, of this process
        try:
            self.replay()
        except StoreError as error:
            self._note_absence(error)

    def write(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write rows of events. When this returns, they are in the database or in the spool.

        Raises:
            StoreError: if the database refuses them, or neither can take them.
        """
        with self._lock:
            self._remember(rows)
            if self.is_waiting():
                self.spool.add(rows)
                return
            try:
                self.replay(rows)
            except StoreError as error:
                if not self._note_absence(error):
                    raise
                self.spool.add(rows)

    def is_absence(self, error: Exception) -> bool:
        """Return whether an error means that the database does not answer, rather than that it refuses."""
        return is_away(error)

    def is_waiting(self) -> bool:
        """Return whether the database did not answer a moment ago, so that it is not asked again yet."""
        return self._is_away and time.monotonic() - self._asked_at < RETRY_DATABASE_S

    def _remember(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Keep the rows that are searches in memory, the newest `MAX_RECENT_SEARCHES` of this process."""
        for row in rows:
            _, _, event, _, search_id, _ = row
            if event == "search" and search_id:
                self._recent[search_id] = row
        while len(self._recent) > MAX_RECENT_SEARCHES:
            oldest = next(iter(self._recent))
            del self._recent[oldest]

    def find_search(self, search_id: str) -> dict[str, Any] | None:
        """Return a search that this process wrote lately, or one that waits in the spool; None: it is neither."""
        row = self._recent.get(search_id)
        if row is None:
            return self.spool.find_search(search_id)
        uid, at, event, caller, _, body = row
        return build_line(uid, at, event, caller, body)

    def replay(self, rows: Sequence[tuple[Any, ...]] = ()) -> None:
        """Write the events of the spool, and then `rows`, in one transaction.

        If the process ends before the spool is emptied, the next one writes its events again. `PUT_EVENT` ignores those
        that the database has.
        """
        last_number, waiting = self.spool.read()
        if waiting or rows:
            with self._database.writing() as connection:
                connection.executemany(PUT_EVENT, [*waiting, *rows])
        if waiting:
            self.spool.remove_until(last_number)
        if self._is_away:
            _log.warning("%s answers again. %d journal events were kept meanwhile.", self._database.label, len(waiting))
        self._is_away = False

    def _note_absence(self, error: StoreError) -> bool:
        """Note that the database does not answer, if an error says so, and return whether it does."""
        if not is_away(error):
            return False
        if not self._is_away:
            _log.warning("Journal events are kept on this machine: %s", error)
        self._is_away, self._asked_at = True, time.monotonic()
        return True

    def close(self) -> None:
        """Write the events of the spool if the database answers again; else the next process does. Close the spool."""
        with self._lock:
            if self._is_away:
                try:
                    self.replay()
                except StoreError as error:
                    self._note_absence(error)
        self.spool.close()
