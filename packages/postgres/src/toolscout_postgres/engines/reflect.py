"""Brings a collection of an engine in step with the catalogue, and says what differs.

The catalogue is written first, the engine after it. A process that is killed in between leaves an engine that lags
behind; a backup that is restored leaves one that is ahead. Either way its mark or its rows differ from the snapshot.
The next process that opens the snapshot writes the difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from toolscout.arrays import Vectors
from toolscout.home.database import hold_lock
from toolscout.indexes.engine import Snapshot
from toolscout.indexes.exact import Exact
from toolscout.settings import Settings
from toolscout.types import digest
from toolscout_postgres.engines.connect import open_engine
from toolscout_postgres.engines.contract import Collection, CollectionKey, Mark, ToolRows, identify_home
from toolscout_postgres.engines.search import EngineIndex

__all__ = ["Differences", "Snapshot", "compare", "open_empty", "open_index", "reflect"]

LOCK_NAME = "engine.lock"
MAX_LOCK_WAIT_S = 600.0
MakeTerms = Callable[[Sequence[str]], Sequence[Mapping[int, float]]]


class Differences(NamedTuple):
    """Ids of tools in which a collection differs from a snapshot.

    Attributes:
        missing: tools that the collection lacks.
        changed: tools whose definition has changed since their vector was written.
        extra: tools that the snapshot does not have.
    """

    missing: list[str]
    changed: list[str]
    extra: list[str]

    def __str__(self) -> str:
        """Describe the differences in one phrase."""
        counts = (
            (len(self.missing), "missing"),
            (len(self.changed), "outdated"),
            (len(self.extra), "no longer in the catalogue"),
        )
        return ", ".join(f"{count:,} {what}" for count, what in counts if count)


def compare(collection: Collection, snapshot: Snapshot) -> Differences:
    """Compare the rows of a collection with a snapshot, tool by tool."""
    rows, fingerprints = collection.list_rows(), snapshot.fingerprints()
    ids = set(snapshot.ids)
    return Differences(
        [tool_id for tool_id in snapshot.ids if tool_id not in rows],
        [tool_id for tool_id in snapshot.ids if tool_id in rows and rows[tool_id] != fingerprints.get(tool_id)],
        sorted(tool_id for tool_id in rows if tool_id not in ids),
    )


def reflect(
    collection: Collection, snapshot: Snapshot, vectors: Callable[[], Vectors], terms: MakeTerms | None = None
) -> Mark:
    """Write what differs between a collection and a snapshot, and return the mark.

    If another process has brought the collection to a newer generation in which all tools of this snapshot are as they
    were, nothing is written: the search leaves out what the snapshot does not have.

    Args:
        collection: to bring in step.
        snapshot: what it must hold.
        vectors: () → `(len(snapshot.ids), dim)`, in the order of the ids.
        terms: ids → the weights of each tool's terms; None: the engine searches no words.
    """
    mark = collection.read_mark()
    if mark is not None and mark.generation == snapshot.generation and mark.size == len(snapshot.ids):
        return mark
    differences = compare(collection, snapshot)
    write = [*differences.missing, *differences.changed]
    if mark is not None and mark.generation > snapshot.generation and not write:
        return mark
    rows = _make_rows(collection.key.dim, snapshot, write, vectors, terms)
    return collection.change(rows, differences.extra, snapshot.generation)


def _make_rows(
    dim: int, snapshot: Snapshot, ids: Sequence[str], vectors: Callable[[], Vectors], terms: MakeTerms | None
) -> ToolRows:
    """Return the rows of some tools of a snapshot."""
    if not ids:
        return ToolRows((), (), np.empty((0, dim), dtype=np.float32))
    fingerprints = snapshot.fingerprints()
    places = {tool_id: position for position, tool_id in enumerate(snapshot.ids)}
    positions = [places[tool_id] for tool_id in ids]
    marks = [fingerprints.get(tool_id, "") for tool_id in ids]
    return ToolRows(ids, marks, vectors()[positions], terms(ids) if terms else None)


def _make_key(settings: Settings, space: str, dim: int) -> CollectionKey:
    return CollectionKey(identify_home(settings.place), space, dim, settings.tenant)


def open_empty(name: str, dim: int, settings: Settings) -> EngineIndex:
    """Return an empty index in an engine, for checks: not over the catalogue of a home.

    Args:
        name: as the setting `index` has it.
        dim: length of a vector.
        settings: name the home.
    """
    engine = open_engine(dataclasses.replace(settings, index=name))
    collection = engine.collection(_make_key(settings, digest("empty/1", dim), dim))
    collection.drop()
    return EngineIndex(collection)


def open_index(
    settings: Settings, space: str, snapshot: Snapshot, exact: Exact, terms: MakeTerms | None = None
) -> EngineIndex:
    """Return the index over the collection of a snapshot, brought in step with it.

    Args:
        settings: name the engine and the home.
        space: digest of the encoder's fingerprint and of how a tool becomes text.
        snapshot: the tools to search.
        exact: their vectors.
        terms: see `reflect`.

    Raises:
        Unavailable: if the engine does not answer.
        UserError: if it cannot keep these vectors.
    """
    engine = open_engine(settings)
    collection = engine.collection(_make_key(settings, space, exact.dim))
    refusal = f"Another process has been writing to {engine.label} for ten minutes. Try again."

    def mend() -> Mark:
        mark = collection.read_mark()
        if mark == Mark(snapshot.generation, len(snapshot.ids)):
            return mark
        with hold_lock(settings.place, LOCK_NAME, refusal, wait=MAX_LOCK_WAIT_S):
            return reflect(collection, snapshot, lambda: exact.vectors, terms)

    return EngineIndex(collection, snapshot.ids, mark=mend(), mend=mend, exact=exact)
