"""Lists, adds and removes the tenants of a home in PostgreSQL.

A tenant is a row of the table `tenants`. All rows that belong to it refer to this row, and are deleted with it. The
name of a removed tenant is kept in `removed_tenants`, so that nobody uses it again.
"""

from __future__ import annotations

import shutil

from toolscout.errors import ConfigError, NotFound
from toolscout.home.database import now
from toolscout.location import DEFAULT_TENANT, Tenant, check_tenant_name, refuse_default, sort_tenants
from toolscout_postgres.address import Address
from toolscout_postgres.database import PostgresConnection, binds_role, open_tenants

__all__ = ["add_tenant", "admit_tenant", "list_tenants", "remove_tenant"]


def list_tenants(root: Address) -> list[Tenant]:
    """Return the tenants of a home, `default` first, then by name.

    Raises:
        StoreError: if the database does not answer.
    """
    with open_tenants(root) as connection:
        rows = connection.execute("SELECT name, added_at FROM tenants").fetchall()
    return sort_tenants(Tenant(*row) for row in rows)


def add_tenant(root: Address, name: str) -> None:
    """Add a tenant with an empty catalogue.

    Raises:
        ConfigError: if there is or was a tenant of this name, if the name is not valid, or if the role sees the rows
            of every tenant.
        StoreError: if the database does not answer.
    """
    check_tenant_name(name)
    with open_tenants(root) as connection:
        _require_bound_role(connection, root)
        if connection.execute("SELECT 1 FROM removed_tenants WHERE name = ?", (name,)).fetchone():
            raise ConfigError(
                f"A tenant {name!r} was removed from {root.describe()}. Machines may still hold copies of its "
                "models, so choose another name."
            )
        insert = "INSERT INTO tenants VALUES (?, ?) ON CONFLICT DO NOTHING"
        n_inserted = connection.execute(insert, (name, now())).rowcount
        if not n_inserted:
            raise ConfigError(f"{root.describe()} already has a tenant {name!r}. Choose another name.")


def admit_tenant(address: Address) -> None:
    """Add a tenant of a home to another schema, such as the schema of an engine, unless that schema has it.

    Then the schema can store rows of the tenant, and row-level security hides them from other tenants.

    Args:
        address: of the other schema, with the tenant.

    Raises:
        ConfigError: if the role sees the rows of every tenant.
        StoreError: if the database does not answer.
    """
    if address.tenant == DEFAULT_TENANT:
        return
    with open_tenants(address) as connection:
        _require_bound_role(connection, address.with_tenant(DEFAULT_TENANT))  # the address is for the error message
        connection.execute("INSERT INTO tenants VALUES (?, ?) ON CONFLICT DO NOTHING", (address.tenant, now()))


def _require_bound_role(connection: PostgresConnection, root: Address) -> None:
    """Raise ConfigError unless row-level security hides the rows of other tenants from the role of a connection."""
    if not binds_role(connection):
        raise ConfigError(
            "This role sees the rows of every tenant. Use a role without SUPERUSER and BYPASSRLS for "
            f"{root.describe()}."
        )


def remove_tenant(root: Address, name: str) -> None:
    """Remove a tenant with all its rows, and with its folder on this machine.

    Raises:
        ConfigError: for the tenant `default`.
        NotFound: if there is no tenant of this name.
    """
    refuse_default(name)
    home = root.with_tenant(name)
    home.close()
    with open_tenants(root) as connection:
        n_deleted = connection.execute("DELETE FROM tenants WHERE name = ?", (name,)).rowcount
        if not n_deleted:
            raise NotFound(f"{root.describe()} has no tenant {name!r}.")
        connection.execute("INSERT INTO removed_tenants VALUES (?, ?)", (name, now()))
    shutil.rmtree(home.folder, ignore_errors=True)
