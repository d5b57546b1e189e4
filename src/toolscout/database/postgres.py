"""Moved to `toolscout_postgres.database`."""

from toolscout_postgres.database import (  # moved
    PostgresConnection,
    PostgresDatabase,
    binds_role,
    connect,
    hold_lock,
    is_away,
    open_tenants,
)

__all__ = ["PostgresConnection", "PostgresDatabase", "binds_role", "connect", "hold_lock", "is_away", "open_tenants"]
