"""Moved: see the import."""

from toolscout.access.http import Buckets  # moved

__all__ = ["Buckets"]
