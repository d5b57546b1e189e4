"""The tables of the journal."""

from __future__ import annotations

from typing import Final

__all__ = ["EVENT_COLUMNS", "IMPORT_TABLE", "JOURNAL_MIGRATIONS", "NUMBERED_EVENTS", "PUT_EVENT", "TAKE_WAITING"]

# Row ids are never reused after events are removed: models remember up to which row they have learned.
NUMBERED_EVENTS: Final = """
    CREATE TABLE numbered (
        id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE, at TEXT NOT NULL, event TEXT NOT NULL,
        caller TEXT NOT NULL, search_id TEXT, body TEXT NOT NULL);
    INSERT INTO numbered SELECT id, uid, at, event, caller, search_id, body FROM events;
    DROP TABLE events;
    ALTER TABLE numbered RENAME TO events;
    CREATE INDEX events_by_search ON events (search_id);
    CREATE INDEX events_by_time ON events (at);
    """
JOURNAL_MIGRATIONS: Final = (
    """
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, at TEXT NOT NULL, event TEXT NOT NULL, caller TEXT NOT NULL,
        search_id TEXT, body TEXT NOT NULL);
    CREATE INDEX events_by_search ON events (search_id);
    """,
    NUMBERED_EVENTS,
    "",  # separates tenants in a database; a file belongs to one
)
EVENT_COLUMNS: Final = "uid, at, event, caller, search_id, body"
PUT_EVENT: Final = f"INSERT INTO events ({EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
TAKE_WAITING: Final = f"""
    INSERT INTO events ({EVENT_COLUMNS}) SELECT {EVENT_COLUMNS} FROM waiting WHERE TRUE ORDER BY line
        ON CONFLICT DO NOTHING
    """
IMPORT_TABLE: Final = """
    CREATE TEMP TABLE waiting (
        line INTEGER PRIMARY KEY, uid TEXT, at TEXT, event TEXT, caller TEXT, search_id TEXT, body TEXT)
    """
