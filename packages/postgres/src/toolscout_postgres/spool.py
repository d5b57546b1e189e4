"""The spool keeps journal events on this machine while the database of the home does not answer.

The events wait in an SQLite file, and are written to the database in their order as soon as it answers, before newer
ones. Every event has a unique id, so one that is written again counts once: if the connection broke during a commit,
nobody knows whether it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from toolscout.errors import StoreError
from toolscout.home.database import SqliteDatabase
from toolscout.home.journal.events import build_line
from toolscout.home.journal.schema import EVENT_COLUMNS

__all__ = ["MAX_SPOOLED_EVENTS", "Spool"]

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
    """The events of one machine that are still to be written. All processes of the machine share it."""

    def __init__(self, folder: Path) -> None:
        """Open or create the file in the folder of the home on this machine."""
        self._database = SqliteDatabase(folder / SPOOL_FILE, SPOOL_MIGRATIONS, pragmas=("secure_delete = ON",))

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Keep rows of events.

        Raises:
            StoreError: if there is no room, or the file cannot be written. Then nothing is kept.
        """
        with self._database.writing() as connection:
            (size,) = connection.execute("SELECT count(*) FROM waiting").fetchone()
            if size + len(rows) > MAX_SPOOLED_EVENTS:
                raise StoreError(
                    f"{size:,} events wait in {self._database.path} for the database, and more are not kept. Make the "
                    "database answer again."
                )
            connection.executemany(
                f"INSERT INTO waiting ({EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", rows
            )

    def read(self) -> tuple[int, list[tuple[Any, ...]]]:
        """Return the waiting rows in their order, and the number of the last."""
        with self._database.reading() as connection:
            rows = connection.execute(f"SELECT number, {EVENT_COLUMNS} FROM waiting ORDER BY number").fetchall()
        return (rows[-1][0] if rows else 0), [row[1:] for row in rows]

    def remove(self, last: int) -> None:
        """Remove the rows up to a number, because the database has them."""
        with self._database.writing() as connection:
            connection.execute("DELETE FROM waiting WHERE number <= ?", (last,))

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
