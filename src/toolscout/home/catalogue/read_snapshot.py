"""Reads a snapshot of the catalogue from its store."""

from __future__ import annotations

import functools
import logging
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from toolscout.errors import StoreError
from toolscout.home.catalogue import approvals
from toolscout.home.catalogue.earlier import (
    FINGERPRINTS_FORMAT,
    EarlierSnapshot,
    make_fingerprint_rows,
)
from toolscout.home.catalogue.name_table import NAMES_FORMAT, MappedNames, NameTable
from toolscout.home.catalogue.snapshot import Catalogue, index_by_name
from toolscout.home.catalogue.snapshot_files import SnapshotFiles
from toolscout.home.database import Connection
from toolscout.types import Tool

__all__ = ["LAST_CACHED", "MIN_MAPPED_TOOLS", "STAMP_KEY", "read_snapshot"]

MIN_MAPPED_TOOLS: Final = 20_000  # from here on, ids and names are mapped from a file
STAMP_KEY: Final = "snapshot"  # of the cached stamp of the files
STAMP_BYTES: Final = 8
_log: Final = logging.getLogger("toolscout.catalogue.read_snapshot")
CACHED: Final = "SELECT value FROM caches WHERE key = ? AND generation = ?"
LAST_CACHED: Final = "SELECT value, generation FROM caches WHERE key = ?"
SEARCHED_TOOLS: Final = "FROM sources JOIN tools ON tools.source = sources.name WHERE enabled AND state != 'disabled'"


def read_snapshot(store: Any, folder: Path, new_stamp: str | None = None) -> Catalogue:
    """Return a snapshot of the present generation. Its tools load from the store on demand.

    Args:
        store: a `home.catalogue.store.Store`.
        folder: where the files of snapshots lie.
        new_stamp: of files that another process is writing for this generation; None: those that the store knows.
    """

    def load(ids: Sequence[str] | None) -> list[Tool]:
        with store.reading():
            tools: list[Tool] = store.tools(snapshot.ids if ids is None else ids)
            snapshot.is_outdated |= store.generation() != generation
        return tools

    def load_cache(key: str, of_generation: int | None = None) -> bytes | None:
        with store.reading() as connection:
            number = generation if of_generation is None else of_generation
            row = connection.execute(CACHED, (key, number)).fetchone()
            return row and bytes(row[0])

    def load_fingerprints() -> Mapping[str, str]:
        with store.reading() as connection:
            return dict(connection.execute("SELECT id, fingerprint FROM tools").fetchall())

    def find_earlier() -> EarlierSnapshot | None:
        if files is None:
            return None
        with store.reading():
            if store.generation() != generation:  # the tools are no longer those of the snapshot
                return None
            make = functools.partial(make_fingerprint_rows, snapshot.ids, load_fingerprints())
        present = snapshot.load_part(FINGERPRINTS_FORMAT, make)
        # A further machine has older files, a killed build newer ones.
        candidates = files.find_others(FINGERPRINTS_FORMAT)
        for others in sorted(candidates, key=lambda one: one.stamp != last_stamp):
            if earlier := others.open(FINGERPRINTS_FORMAT, check=True):
                is_last = stamp is None and others.stamp == last_stamp
                load = functools.partial(load_cache, of_generation=last_generation) if is_last else load_nothing
                return EarlierSnapshot(others, present, earlier, load)
        return None

    def load_nothing(key: str) -> bytes | None:
        return None

    with store.reading() as connection:
        generation = store.generation()
        last = connection.execute(LAST_CACHED, (STAMP_KEY,)).fetchone()
        last_stamp, last_generation = (bytes(last[0]).decode(), last[1]) if last else ("", None)
        stamp = last_stamp if last_generation == generation else None
        files = None
        if stamp is not None or not store.read_only:
            name = stamp or new_stamp or secrets.token_hex(STAMP_BYTES)
            files = SnapshotFiles(folder, name, is_known=stamp is not None)
        snapshot = Catalogue(
            generation,
            _read_names(connection, files, is_new=stamp is None and new_stamp is None),
            load,
            disabled=_read_disabled(connection),
            waiting=approvals.waiting(connection),
            cache=load_cache,
            added=approvals.read_source_ages(connection),
            first_seen=approvals.first_seen(connection) if store.pin else {},
        )
        snapshot.keep_parts(files, find_earlier)
        snapshot.fingerprints = load_fingerprints
    if stamp is None and files is not None:
        snapshot.pending[STAMP_KEY] = files.stamp.encode()
    return snapshot


def _read_names(connection: Connection, files: SnapshotFiles | None, is_new: bool) -> NameTable:
    """Return ids and names of the tools that are searched. Those of a large catalogue are kept in a file."""
    if files and not is_new and (part := files.open(NAMES_FORMAT)):
        try:
            return MappedNames(part.arrays)
        except StoreError:
            _log.info("The stored names are of another version of toolscout and are built again.")
    table = NameTable(connection.execute(f"SELECT tools.id, tools.name {SEARCHED_TOOLS}").fetchall())
    if files is None or len(table.ids) < MIN_MAPPED_TOOLS:
        return table
    part = files.write(NAMES_FORMAT, table.arrays(), {})
    return MappedNames(part.arrays) if part else table


def _read_disabled(connection: Connection) -> dict[str, tuple[str, dict[str, str]]]:
    """Return source → (why it is not searched, {casefolded name or id: id} of its tools)."""
    disabled: dict[str, tuple[str, dict[str, str]]] = {}
    for source, state, message, enabled in connection.execute(
        "SELECT name, state, message, enabled FROM sources WHERE NOT enabled OR state = 'disabled' ORDER BY name"
    ):
        why = message.removeprefix(f"{source} is ") if state == "disabled" and message else "disabled"
        names = connection.execute("SELECT name, id FROM tools WHERE source = ?", (source,)).fetchall()
        disabled[source] = (why if enabled else "disabled", index_by_name(sorted(names, key=lambda row: row[1])))
    return disabled
