"""Lists, adds and removes the tenants of a home.

Every home has the tenant `default`, to which everything belongs that was there before it had tenants.
"""

from __future__ import annotations

from toolscout.errors import ConfigError
from toolscout.home.database.folder import open_home
from toolscout.location import DEFAULT_TENANT, Home, Tenant, check_tenant_name

__all__ = ["Tenant", "add_tenant", "list_tenants", "remove_tenant"]


def list_tenants(root: Home) -> list[Tenant]:
    """Return the tenants of a home, `default` first, then by name.

    Raises:
        StoreError: if the database does not answer.
    """
    return sorted(open_home(root).list_tenants(), key=lambda tenant: (tenant.name != DEFAULT_TENANT, tenant.name))


def add_tenant(root: Home, name: str) -> None:
    """Add a tenant with an empty catalogue.

    Raises:
        ConfigError: if there is one of this name, or the name cannot be used.
        StoreError: if the home cannot be written.
    """
    open_home(root).add_tenant(check_tenant_name(name))


def remove_tenant(root: Home, name: str) -> None:
    """Remove a tenant with everything that it has: catalogue, journal, models, policy, sign-ins.

    Raises:
        ConfigError: for the tenant `default`.
        NotFound: if there is none of this name.
    """
    if name == DEFAULT_TENANT:
        raise ConfigError("The tenant 'default' is the home itself and cannot be removed.")
    open_home(root).remove_tenant(name)
