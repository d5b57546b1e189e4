"""Separates the tenants of a home in PostgreSQL: each row belongs to one, and the database hides those of all others.

Every table has a column `tenant`, with which its keys and references begin. A policy of row-level security compares it
with the setting `toolscout.tenant` of the connection. It is forced, so it holds for the role that owns the tables too.
A connection without the setting sees no row. Deleting a tenant deletes its rows in all tables.

A later migration that changes rows must suspend the policies of its tables (`NO FORCE ROW LEVEL SECURITY`), because it
would else reach the rows of the tenant `default` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from toolscout.location import DEFAULT_TENANT

__all__ = [
    "ALL_TENANTS",
    "BYPASS_GUARD",
    "TENANT_COLUMN",
    "TENANT_MIGRATIONS",
    "TENANT_SETTING",
    "hide_rows",
    "separate_tables",
]

TENANT_SETTING: Final = "toolscout.tenant"
ALL_TENANTS: Final = "*"  # value of the setting under which the list of tenants is seen, and no row of any tenant
#: Run at the start of each transaction by a role that no policy binds.
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
    """Return the script that gives the rows of tables to tenants. Rows that are there go to the present tenant.

    Args:
        keys: table → the columns of its primary key; empty: it has none.
        references: (table, column, the table whose key it names). Rows are deleted together with what they name.
        constraints: constraints that end, as `table name`. They end before those of `keys` do.
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
