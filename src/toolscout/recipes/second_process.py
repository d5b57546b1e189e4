"""Screens the tools of a large catalogue beside the making of its indexes, if a package brings a second process.

Suspicious tools, duplicates, rivals and dependencies need no index. Without the package `toolscout-scale`, the first
process finds them when the indexes are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from toolscout.home.catalogue.store import Catalogue, Store
from toolscout.indexes.large import find_large
from toolscout.settings import Settings

__all__ = ["Screening", "SecondProcess", "list_parts"]


class Screening(Protocol):
    """Work on a snapshot in another process: what the entry point `large-screening` returns."""

    def finish(self) -> None:
        """Wait, and give the snapshot what was found."""
        ...

    def stop(self) -> None:
        """End the process if it still runs."""
        ...


class SecondProcess:
    """Screens a snapshot that is built from nothing. Use it as a context; leaving it ends the process."""

    def __init__(self, store: Store, catalogue: Catalogue, preferred: Sequence[str], parts: Sequence[str]) -> None:
        """Start, if the catalogue is large and the package is installed.

        Args:
            store: the snapshot's.
            catalogue: the snapshot.
            preferred: sources, as `duplicates.find_duplicates` takes them.
            parts: what is needed, as `list_parts` returns it.
        """
        start = find_large("large-screening", len(catalogue))
        self._screening: Screening | None = start(store, catalogue, preferred, parts) if start else None

    def finish(self) -> None:
        """Wait, and give the snapshot what was found."""
        if self._screening is not None:
            self._screening.finish()

    def __enter__(self) -> SecondProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._screening is not None:
            self._screening.stop()


def list_parts(settings: Settings) -> list[str]:
    """Return what searches need of the values that depend on the tools alone."""
    needed = {
        "suspects": settings.trust_scan,
        "duplicates": settings.fold_similar,
        "rivals": settings.trust_scan,
        "dependencies": settings.prerequisites > 0,
    }
    return [part for part, is_needed in needed.items() if is_needed]
