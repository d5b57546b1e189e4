"""Moved to `toolscout.journal.journal`."""

from toolscout.journal.journal import read_rows  # moved

__all__ = ["read_rows"]
