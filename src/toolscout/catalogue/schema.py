"""The tables of a catalogue. Each step of the schema runs once, in this order; new steps are appended."""

from __future__ import annotations

from typing import Final

from toolscout.catalogue import approvals, hidden
from toolscout.database import Migration
from toolscout.database.tenant_schema import separate_tables
from toolscout.home import DEFAULT_TENANT

__all__ = ["CATALOGUE_MIGRATIONS"]

_CATALOGUE_KEYS: Final = {
    "meta": "key",
    "origins": "id",
    "sources": "name",
    "tools": "id",
    "problems": "",
    "caches": "key",
    "pins": "id",
    "quarantine": "id",
    "flips": "",
    "hidden": "id",
}
_SEPARATE_CATALOGUES: Final = separate_tables(
    _CATALOGUE_KEYS,
    references=(
        ("sources", "origin", "origins"),
        ("tools", "source", "sources"),
        ("problems", "source", "sources"),
        ("quarantine", "source", "sources"),
    ),
    constraints=[f"{table} {table}_pkey" for table, key in _CATALOGUE_KEYS.items() if key],
)
# Tenants hear of their own generation only. The name of a channel may have 63 bytes.
_TENANT_CATALOGUES: Final = Migration(
    "",
    f"""
    {_SEPARATE_CATALOGUES}
    DROP INDEX origins_by_locator;
    CREATE UNIQUE INDEX origins_by_locator ON origins (tenant, locator, ifnull(name, ''));
    CREATE OR REPLACE FUNCTION announce_generation() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_notify(
                CASE NEW.tenant WHEN '{DEFAULT_TENANT}' THEN 'toolscout_' || TG_TABLE_SCHEMA
                    ELSE 'toolscout_' || md5(TG_TABLE_SCHEMA || '/' || NEW.tenant) END,
                NEW.value::text);
            RETURN NULL;
        END $$;
    """,
    first_rows="INSERT INTO meta VALUES ('generation', 0) ON CONFLICT DO NOTHING",
)
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
    hidden.HIDDEN_MIGRATION,
    _TENANT_CATALOGUES,
)
