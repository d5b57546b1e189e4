"""Moved to `toolscout_postgres.migrate_command`."""

from toolscout_postgres.migrate_command import migrate_command  # moved

__all__ = ["migrate_command"]
