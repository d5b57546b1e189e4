"""The tables of the journal."""

from __future__ import annotations

from typing import Final

from toolscout.database import Migration
from toolscout.database.tenant_schema import separate_tables

__all__ = ["EVENT_COLUMNS", "IMPORT_TABLE", "JOURNAL_MIGRATIONS", "LAST_ROW", "PUT_EVENT", "TAKE_WAITING"]

# Row ids are never reused after events are removed: models remember up to which row they have learned.
_NUMBERED_EVENTS: Final = """
    CREATE TABLE numbered (
        id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE, at TEXT NOT NULL, event TEXT NOT NULL,
        caller TEXT NOT NULL, search_id TEXT, body TEXT NOT NULL);
    INSERT INTO numbered SELECT id, uid, at, event, caller, search_id, body FROM events;
    DROP TABLE events;
    ALTER TABLE numbered RENAME TO events;
    CREATE INDEX events_by_search ON events (search_id);
    CREATE INDEX events_by_time ON events (at);
    """
# SQLite remembers the highest row id, and reads instants and JSON by itself. What cannot be read is NULL in both,
# because imports may bring anything.
_POSTGRES_EVENTS: Final = """
    CREATE TABLE pruned (last INTEGER NOT NULL);
    INSERT INTO pruned VALUES (0);
    CREATE FUNCTION read_instant(at text) RETURNS timestamptz LANGUAGE plpgsql STABLE SET timezone = 'UTC' AS $$
        BEGIN
            IF at !~ '^\\d{4}-\\d\\d-\\d\\d' THEN RETURN NULL; END IF;
            RETURN at::timestamptz;
        EXCEPTION WHEN data_exception THEN RETURN NULL;
        END $$;
    CREATE FUNCTION read_field(body text, key text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
        BEGIN
            RETURN body::json ->> key;
        EXCEPTION WHEN data_exception THEN RETURN NULL;
        END $$;
    """
_TENANT_JOURNALS: Final = Migration(
    "",
    separate_tables({"events": "id", "pruned": ""}, constraints=("events numbered_pkey", "events numbered_uid_key"))
    + """
    ALTER TABLE events ADD UNIQUE (tenant, uid);
    DROP INDEX pruned_by_tenant;
    CREATE UNIQUE INDEX pruned_by_tenant ON pruned (tenant);
    DROP INDEX events_by_time;
    CREATE INDEX events_by_time ON events (tenant, at);
    """,
    first_rows="INSERT INTO pruned VALUES (0) ON CONFLICT DO NOTHING",
)
JOURNAL_MIGRATIONS: Final = (
    """
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, at TEXT NOT NULL, event TEXT NOT NULL, caller TEXT NOT NULL,
        search_id TEXT, body TEXT NOT NULL);
    CREATE INDEX events_by_search ON events (search_id);
    """,
    Migration(_NUMBERED_EVENTS, _NUMBERED_EVENTS + _POSTGRES_EVENTS),
    _TENANT_JOURNALS,
)
EVENT_COLUMNS: Final = "uid, at, event, caller, search_id, body"
PUT_EVENT: Final = f"INSERT INTO events ({EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
TAKE_WAITING: Final = f"""
    INSERT INTO events ({EVENT_COLUMNS}) SELECT {EVENT_COLUMNS} FROM waiting WHERE TRUE ORDER BY line
        ON CONFLICT DO NOTHING
    """
#: The highest row id of PostgreSQL, removed events included. Its sequence would count rows that are not visible yet.
LAST_ROW: Final = "SELECT greatest((SELECT max(id) FROM events), (SELECT last FROM pruned))"
IMPORT_TABLE: Final = """
    CREATE TEMP TABLE waiting (
        line INTEGER PRIMARY KEY, uid TEXT, at TEXT, event TEXT, caller TEXT, search_id TEXT, body TEXT)
    """
