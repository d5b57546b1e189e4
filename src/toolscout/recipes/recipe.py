"""`Recipe`: moved."""

from toolscout.methods import Recipe  # moved

__all__ = ["Recipe"]
