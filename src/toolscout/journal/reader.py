"""Reads events of one kind with their row ids, for those who follow the journal."""

from __future__ import annotations

from typing import Any

from toolscout.journal.events import build_line
from toolscout.journal.journal import Journal

__all__ = ["read_rows"]


def read_rows(
    journal: Journal, event: str, *, after: int = 0, until: int, limit: int, newest: bool = False
) -> list[tuple[int, dict[str, Any]]]:
    """Return (row id, export line) of events of a kind, in the order of writing.

    Args:
        journal: the journal.
        event: the kind.
        after: events with a row id above this.
        until: events with a row id up to this.
        limit: maximum number of events.
        newest: whether the newest are returned if there are more; otherwise the oldest.
    """
    with journal.reading() as connection:
        rows = connection.execute(
            "SELECT id, uid, at, event, caller, body FROM events WHERE event = ? AND id > ? AND id <= ? "
            f"ORDER BY id {'DESC' if newest else 'ASC'} LIMIT ?",
            (event, after, until, limit),
        ).fetchall()
    return [(row[0], build_line(*row[1:])) for row in (reversed(rows) if newest else rows)]
