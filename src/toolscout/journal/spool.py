"""Moved to `toolscout_postgres.spool`."""

from toolscout_postgres.spool import Spool  # moved

__all__ = ["Spool"]
