"""Moved to `toolscout_postgres.migrate`."""

from toolscout_postgres.migrate import has_catalogue, migrate_home  # moved

__all__ = ["has_catalogue", "migrate_home"]
