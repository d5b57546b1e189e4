"""Moved to `toolscout_postgres.journal`."""

from toolscout_postgres.journal import SharedWriter  # moved

__all__ = ["SharedWriter"]
