"""The methods of the five papers, and ours with torch or a language model."""

from __future__ import annotations

from toolscout.rankers import BaseRule

__all__ = ["LabMethod"]


class LabMethod:
    """The facts of `toolscout.rankers.Method` that most methods here share; a method states the others."""

    needs_usage = True
    transfers = True
    abstains = False
    base: BaseRule | None = None
