"""The schema of a home in PostgreSQL, and the SQL that differs from SQLite's.

toolscout writes its statements and the steps of its schemas for SQLite, with `?` for parameters, in the subset that
both understand. `translate` does the rest. A step that PostgreSQL writes in its own way is in `STEPS`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from toolscout.home.catalogue.approvals import FLIPS_MIGRATION
from toolscout.home.database import Dialect
from toolscout.home.journal.journal import NUMBERED_EVENTS
from toolscout.location import DEFAULT_TENANT

__all__ = [
    "ALL_TENANTS",
    "BYPASS_GUARD",
    "FILE_MIGRATIONS",
    "POSTGRES",
    "TENANT_COLUMN",
    "TENANT_MIGRATIONS",
    "TENANT_SETTING",
    "Migration",
    "adapt_steps",
    "hide_rows",
    "separate_tables",
    "translate",
    "translate_schema",
]

TENANT_SETTING: Final = "toolscout.tenant"  # of a connection: the tenant that its transactions belong to
ALL_TENANTS: Final = "*"  # with this value of the setting, the list of tenants is visible, and no row of any tenant
#: Run at the start of each transaction if row-level security does not apply to the role: it fails if the home has
#: several tenants.
BYPASS_GUARD: Final = "SELECT refuse_bypass()"
TENANT_COLUMN: Final = f"TEXT NOT NULL DEFAULT current_setting('{TENANT_SETTING}')"
_CURRENT: Final = f"current_setting('{TENANT_SETTING}', true)"

TENANT_MIGRATIONS: Final = (
    f"""
    CREATE TABLE tenants (name TEXT PRIMARY KEY, added_at TEXT NOT NULL);
    INSERT INTO tenants VALUES ('{DEFAULT_TENANT}', '');
    CREATE TABLE removed_tenants (name TEXT PRIMARY KEY, removed_at TEXT NOT NULL);
    ALTER TABLE tenants ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY own_name ON tenants USING (name = {_CURRENT} OR {_CURRENT} = '{ALL_TENANTS}');
    ALTER TABLE removed_tenants ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY no_tenant ON removed_tenants USING ({_CURRENT} = '{ALL_TENANTS}');
    CREATE FUNCTION refuse_bypass() RETURNS void LANGUAGE plpgsql STABLE AS $$
        BEGIN
            IF EXISTS (SELECT 1 FROM tenants WHERE name <> '{DEFAULT_TENANT}') THEN
                RAISE insufficient_privilege USING MESSAGE = 'it holds several tenants, and this role sees the rows of '
                    'all of them. Use a role without SUPERUSER and BYPASSRLS';
            END IF;
        END $$;
    """,
)


def separate_tables(
    keys: Mapping[str, str], references: Sequence[tuple[str, str, str]] = (), constraints: Sequence[str] = ()
) -> str:
    """Return the script that adds a column `tenant` to tables, and hides the rows of other tenants.

    Rows that are there get the tenant of the connection that runs the script.

    Args:
        keys: table → the columns of its primary key; "": it has none.
        references: (table, column, the table that the column refers to). A row is deleted with the row it refers to.
        constraints: "TABLE NAME" of each constraint to remove before the primary keys are replaced.
    """
    lines = []
    for table in keys:
        lines.append(f"ALTER TABLE {table} ADD COLUMN tenant {TENANT_COLUMN} REFERENCES tenants ON DELETE CASCADE")
    for constraint in constraints:
        table, name = constraint.split()
        lines.append(f"ALTER TABLE {table} DROP CONSTRAINT {name} CASCADE")
    for table, columns in keys.items():
        if columns:
            lines.append(f"ALTER TABLE {table} ADD PRIMARY KEY (tenant, {columns})")
        else:
            lines.append(f"CREATE INDEX {table}_by_tenant ON {table} (tenant)")
    for table, column, target in references:
        lines.append(f"ALTER TABLE {table} ADD FOREIGN KEY (tenant, {column}) REFERENCES {target} ON DELETE CASCADE")
    return ";\n".join(lines) + ";\n" + hide_rows(keys)


def hide_rows(tables: Iterable[str]) -> str:
    """Return the script that hides the rows of other tenants in tables that have a column `tenant`."""
    lines = []
    for table in tables:
        lines.append(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        lines.append(f"CREATE POLICY one_tenant ON {table} USING (tenant = {_CURRENT})")
    return ";\n".join(lines) + ";\n"


#: The highest row id of PostgreSQL, removed events included. Its sequence would count rows that are not visible yet.
LAST_ROW: Final = "SELECT greatest((SELECT max(id) FROM events), (SELECT last FROM pruned))"


@dataclasses.dataclass(frozen=True)
class Migration:
    """A step of a schema with a script of its own for PostgreSQL, or one that older programs need not know.

    Attributes:
        sqlite: what a file runs. It is not used here.
        postgres: a script, in which functions may contain semicolons.
        expands: whether a program without this step can go on using the home in PostgreSQL, because the step only adds
            what that program need not know. Otherwise such a program is refused from then on.
        first_rows: statement for PostgreSQL that inserts the rows that every tenant begins with; "": none. It is run
            again later, and must then change nothing.
    """

    sqlite: str
    postgres: str
    expands: bool = False
    first_rows: str = ""


#: `read_instant` and `read_field` are made by the migrations of the journal (`_POSTGRES_EVENTS`).
POSTGRES: Final = Dialect(
    name="PostgreSQL",
    instant="read_instant({})",
    json_text="read_field({column}, '{key}')",
    json_true="read_field({column}, '{key}') = 'true'",
    last_event=LAST_ROW,
    note_last_event=f"UPDATE pruned SET last = ({LAST_ROW})",
)
_TYPES: Final = (
    (re.compile(r"\bINTEGER PRIMARY KEY( AUTOINCREMENT)?\b"), "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"),
    (re.compile(r"\bINTEGER\b"), "BIGINT"),
    (re.compile(r"\bBLOB\b"), "BYTEA"),
    (re.compile(r"\bTEXT\b"), 'TEXT COLLATE "C"'),  # sorted by code point, and only ASCII has case, as in SQLite
    (re.compile(r"\)\s*WITHOUT ROWID\b"), ")"),
    (re.compile(r"\bifnull\("), "coalesce("),
)


@functools.lru_cache(maxsize=512)
def translate(sql: str) -> str:
    """Translate a statement that is written for SQLite, with `?` for its parameters, into one for psycopg."""
    sql = sql.replace("%", "%%").replace("?", "%s")
    sql = sql.replace("IN ()", "IN (NULL)").replace(" LIKE ", " ILIKE ")  # SQLite's LIKE ignores case
    return sql.replace("ON CONFLICT (", "ON CONFLICT (tenant, ")  # every key begins with the tenant


def translate_schema(script: str) -> str:
    """Translate statements that make or change tables from SQLite to PostgreSQL."""
    for pattern, replacement in _TYPES:
        script = pattern.sub(replacement, script)
    return script


_FLIPS_POSTGRES: Final = (
    FLIPS_MIGRATION
    + """
    ALTER TABLE flips ADD COLUMN rowid INTEGER PRIMARY KEY;
    CREATE FUNCTION announce_generation() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_notify('toolscout_' || TG_TABLE_SCHEMA, NEW.value::text);
            RETURN NULL;
        END $$;
    CREATE TRIGGER announce_generation AFTER UPDATE ON meta FOR EACH ROW EXECUTE FUNCTION announce_generation();
    """
)
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
# Each tenant has a channel of its own for its generation. `database._name_channel` makes the same names. They are
# hashes, because the name of a channel may have 63 bytes.
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
# What SQLite does by itself: remember the highest row id of removed events, and read instants and JSON. Text that is
# neither is read as NULL in both, because imports may bring anything.
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
#: Results and questions; see `toolscout_postgres.handles`. A version without them keeps results on its own machine.
_HANDLES: Final = """
    CREATE TABLE results (handle TEXT NOT NULL, at DOUBLE PRECISION NOT NULL, about BLOB NOT NULL);
    CREATE TABLE result_pieces (handle TEXT NOT NULL, piece INTEGER NOT NULL, body BLOB NOT NULL);
    CREATE TABLE questions (
        handle TEXT NOT NULL, caller TEXT NOT NULL, renewed_at DOUBLE PRECISION NOT NULL, answer BLOB, outcome BLOB);
    """ + separate_tables(
    {"results": "handle", "result_pieces": "handle, piece", "questions": "handle"},
    references=(("result_pieces", "handle", "results"),),
)
FILE_MIGRATIONS: Final = (
    """
    CREATE TABLE documents (name TEXT PRIMARY KEY, version INTEGER NOT NULL, body BLOB NOT NULL);
    CREATE TABLE models (name TEXT PRIMARY KEY, digest TEXT NOT NULL);
    CREATE TABLE model_files (
        model TEXT NOT NULL REFERENCES models ON DELETE CASCADE, path TEXT NOT NULL, piece INTEGER NOT NULL,
        body BLOB NOT NULL, PRIMARY KEY (model, path, piece));
    """,
    separate_tables(
        {"documents": "name", "models": "name", "model_files": "model, path, piece"},
        references=(("model_files", "model", "models"),),
        constraints=("documents documents_pkey", "models models_pkey", "model_files model_files_pkey"),
    ),
    Migration("", _HANDLES, expands=True),
)
#: Part → number of the step → what PostgreSQL runs instead.
STEPS: Final[Mapping[str, Mapping[int, Migration]]] = {
    "catalogue": {3: Migration("", _FLIPS_POSTGRES), 5: _TENANT_CATALOGUES},
    "journal": {1: Migration("", NUMBERED_EVENTS + _POSTGRES_EVENTS), 2: _TENANT_JOURNALS},
}


def adapt_steps(part: str, migrations: Sequence[str | Migration]) -> list[str | Migration]:
    """Return the steps of a part's schema as PostgreSQL runs them: some are replaced by `STEPS`.

    Args:
        part: of the home, such as `journal`.
        migrations: the steps for SQLite, in order.
    """
    replacements = STEPS.get(part, {})
    return [replacements.get(number, step) for number, step in enumerate(migrations)]
