"""Moved to `toolscout.sources.published`."""

from toolscout.sources.published import is_published, prepare  # moved

__all__ = ["is_published", "prepare"]
