"""Writes to the journal of a home in PostgreSQL, which must lose nothing while the database does not answer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from toolscout.errors import StoreError
from toolscout.home.database import Database
from toolscout.home.journal.events import build_line
from toolscout.home.journal.schema import PUT_EVENT
from toolscout_postgres.address import Address
from toolscout_postgres.database import is_away
from toolscout_postgres.spool import Spool

__all__ = ["SharedWriter"]

RETRY_DATABASE_S: Final = 1.0  # a database that did not answer is not asked again before that
MAX_RECENT_SEARCHES: Final = 5_000  # searches of this process that are in memory, so that calls find them meanwhile
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
        self._asked_at = -RETRY_DATABASE_S
        self._is_away = False
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
        """Return whether an error means that the database does not answer now."""
        return is_away(error)

    def is_waiting(self) -> bool:
        """Return whether the database did not answer a moment ago, so that it is not asked again yet."""
        return self._is_away and time.monotonic() - self._asked_at < RETRY_DATABASE_S

    def _remember(self, rows: Sequence[tuple[Any, ...]]) -> None:
        for row in rows:
            if row[2] == "search" and row[4]:
                self._recent[row[4]] = row
        while len(self._recent) > MAX_RECENT_SEARCHES:
            del self._recent[next(iter(self._recent))]

    def find_search(self, search_id: str) -> dict[str, Any] | None:
        """Return a search that this process wrote, or one that waits in the spool; None: neither."""
        row = self._recent.get(search_id)
        if row is None:
            return self.spool.find_search(search_id)
        uid, at, event, caller, _, body = row
        return build_line(uid, at, event, caller, body)

    def replay(self, rows: Sequence[tuple[Any, ...]] = ()) -> None:
        """Write the events of the spool, and then `rows`, in one transaction."""
        last, waiting = self.spool.read()
        if waiting or rows:
            with self._database.writing() as connection:
                connection.executemany(PUT_EVENT, [*waiting, *rows])
        if last:
            self.spool.remove(last)
        if self._is_away:
            _log.warning("%s answers again. %d journal events were kept meanwhile.", self._database.label, len(waiting))
        self._is_away = False

    def _note_absence(self, error: StoreError) -> bool:
        """Remember that the database does not answer, if the error says so. Return whether it says so."""
        if not is_away(error):
            return False
        if not self._is_away:
            _log.warning("Journal events are kept on this machine: %s", error)
        self._is_away, self._asked_at = True, time.monotonic()
        return True

    def close(self) -> None:
        """Write what the spool holds if the database answers, and close it. Otherwise the next process writes it."""
        with self._lock:
            if self._is_away:
                try:
                    self.replay()
                except StoreError as error:
                    self._note_absence(error)
        self.spool.close()
