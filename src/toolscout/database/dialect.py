"""Moved to `toolscout.home`."""

from toolscout.home import SQLITE, Connection, Dialect, Rows  # moved

__all__ = ["SQLITE", "Connection", "Dialect", "Rows"]
