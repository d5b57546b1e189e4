"""Lists, adds and removes the tenants of a home.

In a folder a tenant is a folder below it, with files of its own. In PostgreSQL it is a row, to which all its rows
refer. Every home has the tenant `default`, to which everything belongs that was there before.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from toolscout.database.documents import close_documents
from toolscout.database.sqlite import BUSY_SECONDS, alone, now
from toolscout.errors import ConfigError, NotFound, StoreError
from toolscout.home import (
    DEFAULT_TENANT,
    TENANT_FILE,
    TENANTS_FOLDER,
    Address,
    Home,
    check_tenant_name,
    describe_home,
    local_folder,
    place_tenant,
)
from toolscout.privacy.private_files import make_private_folder, replace_file

if TYPE_CHECKING:
    from toolscout.database.postgres import PostgresConnection

__all__ = ["Tenant", "add_tenant", "admit_tenant", "list_tenants", "remove_tenant"]

REMOVE_S: Final = 10.0  # a service notices within two seconds that a tenant is gone
LOCK_FILE: Final = ".lock.db"


class Tenant(msgspec.Struct, frozen=True):
    """A tenant of a home. `added_at` is empty for the tenant `default`."""

    name: str
    added_at: str = ""


def list_tenants(root: Home) -> list[Tenant]:
    """Return the tenants of a home, `default` first, then by name.

    Raises:
        StoreError: if the database does not answer.
    """
    if isinstance(root, Address):
        from toolscout.database.postgres import open_tenants

        with open_tenants(root) as connection:
            rows = connection.execute("SELECT name, added_at FROM tenants").fetchall()
        tenants = [Tenant(*row) for row in rows]
    else:
        tenants = [Tenant(DEFAULT_TENANT)]
        for file in (root / TENANTS_FOLDER).glob(f"*/{TENANT_FILE}"):
            with contextlib.suppress(OSError, msgspec.MsgspecError):  # it is removed at this moment, or no tenant
                tenant = msgspec.json.decode(file.read_bytes(), type=Tenant)
                tenants += [tenant] if tenant.name == file.parent.name != DEFAULT_TENANT else []
    return sorted(tenants, key=lambda tenant: (tenant.name != DEFAULT_TENANT, tenant.name))


def add_tenant(root: Home, name: str) -> None:
    """Add a tenant with an empty catalogue.

    Raises:
        ConfigError: if there is one of this name, or the name cannot be used.
        StoreError: if the home cannot be written.
    """
    check_tenant_name(name)
    refusal = f"{describe_home(root)} already has a tenant {name!r}. Choose another name."
    if isinstance(root, Address):
        from toolscout.database.postgres import open_tenants

        with open_tenants(root) as connection:
            _require_bound_role(connection, root)
            if connection.execute("SELECT 1 FROM removed_tenants WHERE name = ?", (name,)).fetchone():
                raise ConfigError(
                    f"A tenant {name!r} was removed from {describe_home(root)}. Machines may still hold copies of its "
                    "models, so choose another name."
                )
            put = "INSERT INTO tenants VALUES (?, ?) ON CONFLICT DO NOTHING"
            if not connection.execute(put, (name, now())).rowcount:
                raise ConfigError(refusal)
        return
    if name == DEFAULT_TENANT:
        raise ConfigError(refusal)
    with _lock_folder(root):
        folder = root / TENANTS_FOLDER / name
        if (folder / TENANT_FILE).exists():
            raise ConfigError(refusal)
        make_private_folder(folder)
        replace_file(folder / TENANT_FILE, msgspec.json.encode(Tenant(name, now())))


def admit_tenant(place: Address) -> None:
    """Make a schema that is not the home's keep rows of a tenant, so that row-level security holds there too.

    Raises:
        ConfigError: if the role sees the rows of every tenant.
        StoreError: if the database does not answer.
    """
    if place.tenant == DEFAULT_TENANT:
        return
    from toolscout.database.postgres import open_tenants

    with open_tenants(place) as connection:
        _require_bound_role(connection, place_tenant(place, DEFAULT_TENANT))
        connection.execute("INSERT INTO tenants VALUES (?, ?) ON CONFLICT DO NOTHING", (place.tenant, now()))


def _require_bound_role(connection: PostgresConnection, root: Home) -> None:
    from toolscout.database.postgres import binds_role

    if not binds_role(connection):
        raise ConfigError(
            "This role sees the rows of every tenant. Use a role without SUPERUSER and BYPASSRLS for "
            f"{describe_home(root)}."
        )


def remove_tenant(root: Home, name: str) -> None:
    """Remove a tenant with everything that it has: catalogue, journal, models, policy, sign-ins.

    Raises:
        ConfigError: for the tenant `default`.
        NotFound: if there is none of this name.
    """
    if name == DEFAULT_TENANT:
        raise ConfigError("The tenant 'default' is the home itself and cannot be removed.")
    home = place_tenant(root, name)
    missing = f"{describe_home(root)} has no tenant {name!r}."
    if isinstance(root, Address):
        from toolscout.database.postgres import open_tenants

        close_documents(home)
        with open_tenants(root) as connection:
            if not connection.execute("DELETE FROM tenants WHERE name = ?", (name,)).rowcount:
                raise NotFound(missing)
            connection.execute("INSERT INTO removed_tenants VALUES (?, ?)", (name, now()))
        shutil.rmtree(local_folder(home), ignore_errors=True)
        return
    with _lock_folder(root):
        folder = root / TENANTS_FOLDER / name
        try:
            (folder / TENANT_FILE).unlink()  # from here on it is no tenant, even if the rest stays for a crash
        except FileNotFoundError:
            raise NotFound(missing) from None
        deadline = time.monotonic() + REMOVE_S
        while folder.exists():  # a service that has it open closes it soon, and may write until then
            shutil.rmtree(folder, ignore_errors=True)
            if time.monotonic() > deadline:
                raise StoreError(f"{folder} cannot be removed wholly. Stop what uses it, and remove the rest by hand.")
            time.sleep(0.05)


@contextlib.contextmanager
def _lock_folder(root: Path) -> Iterator[None]:
    with alone(root / TENANTS_FOLDER / LOCK_FILE, f"{root}: somebody else changes the tenants.", wait=BUSY_SECONDS):
        yield
