"""Moved to `toolscout.indexes.exact`."""

from toolscout.indexes.exact import MIN_COSINE_DEVIATION, StandardScores  # moved

__all__ = ["MIN_COSINE_DEVIATION", "StandardScores"]
