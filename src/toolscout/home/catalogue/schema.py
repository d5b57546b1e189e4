"""The tables of a catalogue. Each step of the schema runs once, in this order; new steps are appended."""

from __future__ import annotations

from typing import Final

from toolscout.home.catalogue import approvals

__all__ = ["CATALOGUE_MIGRATIONS"]

CATALOGUE_MIGRATIONS: Final = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
    INSERT INTO meta VALUES ('generation', 0);
    CREATE TABLE origins (
        id INTEGER PRIMARY KEY, locator TEXT NOT NULL, kind TEXT NOT NULL, name TEXT, added_at TEXT NOT NULL);
    CREATE UNIQUE INDEX origins_by_locator ON origins (locator, ifnull(name, ''));
    CREATE TABLE sources (
        name TEXT PRIMARY KEY, origin INTEGER NOT NULL REFERENCES origins ON DELETE CASCADE, kind TEXT NOT NULL,
        state TEXT NOT NULL, message TEXT NOT NULL, enabled BOOLEAN NOT NULL DEFAULT TRUE, read_at TEXT NOT NULL);
    CREATE TABLE tools (
        id TEXT PRIMARY KEY, source TEXT NOT NULL REFERENCES sources ON DELETE CASCADE, name TEXT NOT NULL,
        fingerprint TEXT NOT NULL, body BLOB NOT NULL);
    CREATE INDEX tools_by_source ON tools (source, id, name, fingerprint);
    CREATE TABLE problems (
        source TEXT NOT NULL REFERENCES sources ON DELETE CASCADE, entry TEXT NOT NULL, message TEXT NOT NULL);
    CREATE INDEX problems_by_source ON problems (source);
    CREATE TABLE caches (key TEXT PRIMARY KEY, generation INTEGER NOT NULL, value BLOB NOT NULL);
    """,
    approvals.MIGRATION,
    approvals.REMOTE_DOCUMENTS_MIGRATION,
    approvals.FLIPS_MIGRATION,
    "CREATE TABLE hidden (id TEXT PRIMARY KEY, hidden_at TEXT NOT NULL)",
    "",  # separates tenants in a database; a file belongs to one
)
