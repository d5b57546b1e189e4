"""A snapshot of the catalogue contains the tools that a search may find, at one generation.

A search uses one snapshot from start to end, so it never sees half of a change.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array, Arrays, Mask
from toolscout.errors import StoreError
from toolscout.home.catalogue import approvals
from toolscout.home.catalogue.approvals import WaitingDefinition
from toolscout.home.catalogue.snapshot_files import (
    FINGERPRINTS_FORMAT,
    EarlierSnapshot,
    SnapshotFiles,
    SnapshotPart,
    make_fingerprint_rows,
)
from toolscout.home.database import Connection
from toolscout.indexes.strings import StringIndex as Lookup
from toolscout.indexes.strings import Strings
from toolscout.types import Tool

__all__ = [
    "LAST_CACHED",
    "MIN_MAPPED_TOOLS",
    "NAMES_FORMAT",
    "SEALED",
    "STAMP_KEY",
    "TOOLS_BATCH",
    "Catalogue",
    "MappedNames",
    "NameTable",
    "allows",
    "find_position",
    "index_by_name",
    "read_snapshot",
    "read_stamp",
    "seal",
    "unseal",
]

NAMES_FORMAT: Final = "names/1"


class NameTable:
    """Ids and names in memory.

    Attributes:
        ids: ascending.
        names: the raw names, in the order of `ids`.
    """

    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        """Take (id, name) of each tool."""
        ordered = sorted(rows)
        self.ids: Sequence[str] = tuple(id for id, _ in ordered)
        self.names: Sequence[str] = tuple(name for _, name in ordered)

    @functools.cached_property
    def _positions_by_id(self) -> dict[str, list[int]]:
        return _group_positions(self.ids)

    @functools.cached_property
    def _positions_by_name(self) -> dict[str, list[int]]:
        return _group_positions(self.names)

    def find(self, text: str) -> tuple[Sequence[int], Sequence[int]]:
        """Return the positions of the ids, and of the names, that are this text, whatever its case."""
        key = text.casefold()
        return self._positions_by_id.get(key, ()), self._positions_by_name.get(key, ())

    @functools.cached_property
    def has_spaces(self) -> bool:
        """Whether an id contains a space."""
        return any(" " in tool_id for tool_id in self.ids)

    def arrays(self) -> dict[str, Array]:
        """Return the table as arrays, for `MappedNames`."""
        ids, names = Strings.of(self.ids), Strings.of(self.names)
        return {
            **ids.arrays("ids"),
            **names.arrays("names"),
            **Lookup.of(tool_id.casefold() for tool_id in self.ids).arrays("by_id"),
            **Lookup.of(name.casefold() for name in self.names).arrays("by_name"),
            "has_spaces": np.array([self.has_spaces], dtype=np.uint8),
        }


def read_stamp(value: object) -> str:
    """Return the stamp of files that a cache holds. Empty if the value is damaged: no files have that stamp."""
    stamp = bytes(value).decode(errors="replace") if isinstance(value, (bytes, memoryview)) else ""
    return stamp if stamp.isalnum() else ""  # it becomes a part of file names


def seal(value: bytes) -> bytes:
    """Put the digest of a value in front of it, by which `unseal` finds damage."""
    return hashlib.blake2b(value, digest_size=SEAL_BYTES).digest() + value


def unseal(sealed: object) -> bytes | None:
    """Return the value that was sealed; None if a cell of the database holds something else: it is damaged."""
    if not isinstance(sealed, (bytes, memoryview)):
        return None
    value = bytes(sealed[SEAL_BYTES:])
    return value if seal(value) == sealed else None


def _group_positions(texts: Sequence[str]) -> dict[str, list[int]]:
    """Return casefolded text → its positions."""
    positions: dict[str, list[int]] = {}
    for position, text in enumerate(texts):
        positions.setdefault(text.casefold(), []).append(position)
    return positions


class MappedNames(NameTable):
    """Ids and names in arrays, which may be mapped from a file, with indexes of both."""

    def __init__(self, arrays: Arrays) -> None:
        """Take the arrays of `NameTable.arrays`.

        Raises:
            StoreError: if they are damaged.
        """
        try:
            self.ids, self.names = Strings.from_arrays(arrays, "ids"), Strings.from_arrays(arrays, "names")
            self._by_id, self._by_name = Lookup.from_arrays(arrays, "by_id"), Lookup.from_arrays(arrays, "by_name")
            self.has_spaces = bool(arrays["has_spaces"][0])
            is_intact = len(self.ids) == len(self.names) == len(self._by_id) == len(self._by_name)
        except (KeyError, ValueError, IndexError):
            is_intact = False
        if not is_intact:
            raise StoreError(f"The stored names are damaged or not of format {NAMES_FORMAT}. Build them again.")

    def find(self, text: str) -> tuple[Sequence[int], Sequence[int]]:
        """Return the positions of the ids, and of the names, that are this text, whatever its case."""
        key = text.casefold()
        by_id = self._by_id.find(key, lambda position: self.ids[position].casefold())
        return by_id, self._by_name.find(key, lambda position: self.names[position].casefold())


def find_position(ids: Sequence[str], tool_id: str) -> int | None:
    """Return the position of a tool in ascending ids, or None."""
    position = bisect.bisect_left(ids, tool_id)
    return position if position < len(ids) and ids[position] == tool_id else None


MAX_MASKS: Final = 256  # predicates whose masks a snapshot remembers
TOOLS_BATCH: Final = 8_192  # tools in memory at once while something is built from all of them
Shared = TypeVar("Shared")


class Catalogue:
    """An immutable snapshot of the tools that can be searched, at one generation.

    Attributes:
        generation: the store's generation when the snapshot was taken.
        table: ids and names, and the positions of an id or a name in them.
        ids: ids of the tools of enabled sources, ascending.
        names: the raw names, in the order of `ids`.
        disabled: source → (why it is not searched, {casefolded name or id: id} of its tools).
        waiting: casefolded name or id → the definitions of that name that wait for approval.
        fingerprints: () → tool id → fingerprint of its definition. None: the tools are not those of a store, so nothing
            outside of this process may be changed to reflect them.
        pending: cache key → value built for this snapshot and not yet stored.
        is_outdated: whether tools were read after the store had changed. What is built from then on is not stored.
        report_read: called with (done, total) while `batches` yields tools, as every step of a build reads them; None:
            nobody is told.
    """

    def __init__(
        self,
        generation: int,
        rows: Iterable[tuple[str, str]] | NameTable,
        load: Callable[[Sequence[str] | None], list[Tool]],
        *,
        disabled: dict[str, tuple[str, dict[str, str]]] | None = None,
        waiting: Iterable[WaitingDefinition] = (),
        cache: Callable[[str], bytes | None] | None = None,
    ) -> None:
        """Build the snapshot.

        Args:
            generation: the store's generation.
            rows: (id, name) of each tool that is searched, or the table of them.
            load: ids, or None for all tools of this snapshot → tools.
            disabled: see the attribute.
            waiting: the definitions that wait for approval.
            cache: key → the stored value for this generation, or None.
        """
        self.generation = generation
        self.table = rows if isinstance(rows, NameTable) else NameTable(rows)
        self.ids: Sequence[str] = self.table.ids
        self.names: Sequence[str] = self.table.names
        self.disabled = disabled or {}
        self.waiting: dict[str, list[WaitingDefinition]] = {}
        for definition in waiting:
            for key in {definition.tool.name.casefold(), definition.id.casefold()}:
                self.waiting.setdefault(key, []).append(definition)
        self.fingerprints: Callable[[], Mapping[str, str]] | None = None
        self.pending: dict[str, bytes] = {}
        self.is_outdated = False
        self.report_read: Callable[[int, int], None] | None = None
        self._load, self._cache = load, cache
        self._files: SnapshotFiles | None = None  # where indexes of this snapshot are kept; None: nowhere
        self._find_earlier: Callable[[], EarlierSnapshot | None] | None = None
        self._shared: dict[str, Any] = {}  # name → object that all pipelines over the snapshot share; see `share`
        self._masks: dict[Callable[[Tool], bool], Mask] = {}

    @classmethod
    def of(cls, tools: Iterable[Tool]) -> Catalogue:
        """Return a snapshot of tools in memory, without a store."""
        tools_by_id = {tool.id: tool for tool in tools}

        def load(ids: Sequence[str] | None) -> list[Tool]:
            return [
                tools_by_id[tool_id]
                for tool_id in (sorted(tools_by_id) if ids is None else ids)
                if tool_id in tools_by_id
            ]

        return cls(0, ((tool.id, tool.name) for tool in tools_by_id.values()), load)

    def replace_tool(self, tool: Tool) -> Catalogue:
        """Return a snapshot in memory in which the tool of this id has another definition."""
        tools = (tool if other.id == tool.id else other for other in self.tools())
        copy = Catalogue.of(tools)
        copy.disabled, copy.waiting = self.disabled, self.waiting
        return copy

    def use_files(self, files: SnapshotFiles | None, find_earlier: Callable[[], EarlierSnapshot | None]) -> None:
        """Keep large parts of the snapshot in files, which other processes use too.

        Args:
            files: of this snapshot; None: the parts are kept in memory.
            find_earlier: returns the attribute `earlier`; called when a part has to be built for the first time.
        """
        self._files, self._find_earlier = files, find_earlier

    @functools.cached_property
    def earlier(self) -> EarlierSnapshot | None:
        """The snapshot before, with what it has for tools that have not changed; None: nothing can be taken over."""
        return self._find_earlier() if self._find_earlier else None

    def open_earlier(self, key: str) -> tuple[EarlierSnapshot, SnapshotPart] | None:
        """Return the snapshot before and its part of this key; None if nothing can be taken over."""
        part = self.earlier.open_part(key) if self.earlier else None
        return (self.earlier, part) if self.earlier and part else None

    def mark_known(self, stamp: str) -> None:
        """Note whether the store knows the files of this snapshot.

        Args:
            stamp: which the store has for this generation. Another process may have stored its own one first.
        """
        if self._files:
            self._files.is_known = self._files.stamp == stamp

    def replace_earlier(self) -> None:
        """Remove the files of other snapshots, if files were written here and the store knows them."""
        if self._files and self._files.is_known and self._files.has_written:
            self.earlier = None  # its files are removed now
            self._files.has_written = False
            self._files.remove_others()

    def __len__(self) -> int:
        return len(self.ids)

    def tools(self, ids: Sequence[str] | None = None) -> list[Tool]:
        """Return tools in the order of `ids`, without unknown ids; None: all, in ascending order of id."""
        return self._load(ids)

    def position(self, tool_id: str) -> int | None:
        """Return the position of a tool in `ids`, or None."""
        return find_position(self.ids, tool_id)

    def batches(self, positions: npt.NDArray[np.intp] | None = None, size: int = TOOLS_BATCH) -> Iterator[list[Tool]]:
        """Yield tools in ascending order of id, some thousand at a time.

        There is one for each position. A tool that the store has lost since the snapshot has an id and a name only.

        Args:
            positions: of the tools, ascending; None: all.
            size: tools at a time.
        """
        total, n_read = len(self.ids if positions is None else positions), 0
        for ids in self._batch_ids(positions, size):
            tools = self._load(ids)
            if len(tools) < len(ids):
                tools_by_id = {tool.id: tool for tool in tools}
                tools = [tools_by_id.get(tool_id) or self._replace_lost(tool_id) for tool_id in ids]
            n_read += len(ids)
            if self.report_read is not None and total > size:
                self.report_read(n_read, total)
            yield tools

    def _batch_ids(
        self, positions: npt.NDArray[np.intp] | None = None, size: int = TOOLS_BATCH
    ) -> Iterator[Sequence[str]]:
        """Yield the ids of the tools at some positions (None: all), `size` at a time."""
        for start in range(0, len(self.ids if positions is None else positions), size):
            part = slice(start, start + size)
            yield self.ids[part] if positions is None else [self.ids[position] for position in positions[part].tolist()]

    def _replace_lost(self, tool_id: str) -> Tool:
        """Return a tool with nothing but the id and the name of one that the store has lost."""
        position = self.position(tool_id)
        return Tool(id=tool_id, name=tool_id if position is None else self.names[position])

    def list_sources(self) -> list[str]:
        """Return the sources of the tools, in the order of the ids."""
        return list(dict.fromkeys(tool_id.partition("/")[0] for tool_id in self.ids))

    def load_earlier_value(self, key: str) -> tuple[bytes | None, npt.NDArray[np.intp] | None]:
        """Return the value that the snapshot before stored, and the positions of the tools of all changed sources.

        The value is right for the other sources, so only the tools at these positions have to be read again. A source
        has changed if any of its tools has. (None, None): nothing can be taken over.

        Args:
            key: of the value; see `load_or_build`.
        """
        encoded = self.earlier.load_value(key) if self.earlier else None
        if self.earlier is None or encoded is None:
            return None, None
        unchanged = self.earlier.unchanged_sources
        is_changed = (tool_id.partition("/")[0] not in unchanged for tool_id in self.ids)
        return encoded, np.flatnonzero(np.fromiter(is_changed, dtype=np.bool_, count=len(self.ids)))

    def mask(self, visible: Callable[[Tool], bool] | None) -> Mask | None:
        """Return a boolean mask over `ids` for a predicate; None: every tool is visible.

        The mask is computed once for each predicate. A predicate that raises on a tool hides that tool. Tools that
        the store has lost since the snapshot are hidden too.
        """
        if visible is None:
            return None
        mask = self._masks.get(visible)
        if mask is None:
            visible_ids = {tool.id for ids in self._batch_ids() for tool in self._load(ids) if allows(visible, tool)}
            mask = np.fromiter((id in visible_ids for id in self.ids), dtype=np.bool_, count=len(self.ids))
            if len(self._masks) >= MAX_MASKS:
                self._masks.pop(next(iter(self._masks)), None)  # the oldest; another thread may have removed it
            self._masks[visible] = mask
        return mask

    def share(self, key: str, make: Callable[[], Shared]) -> Shared:
        """Return the value of `make`, built once per key and shared by all callers, who must not change it."""
        if key not in self._shared:
            self._shared[key] = make()
        value: Shared = self._shared[key]
        return value

    def load_part(self, key: str, build: Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]]) -> SnapshotPart:
        """Return a part of the snapshot from its file, or build it and write the file.

        If there can be no file, the part is in memory.

        Args:
            key: names the part, its format, and everything that it depends on besides the snapshot.
            build: returns the arrays and the JSON values of the part.
        """
        part = self._files.open(key) if self._files else None
        if part is None:
            arrays, meta = build()
            part = self._files.write(key, arrays, meta) if self._files and not self.is_outdated else None
            part = part or SnapshotPart(arrays, meta, {})
        return part

    def load_or_build(self, key: str, build: Callable[[], bytes]) -> bytes:
        """Return the cached value of a key, or build it. `Store.keep` then stores it for this generation."""
        value = self.pending.get(key)
        if value is None and self._cache:
            value = self._cache(key)
        if value is None:
            value = self.pending[key] = build()
        return value


def allows(visible: Callable[[Tool], bool], tool: Tool) -> bool:
    """Return whether a predicate allows a tool. A predicate that raises hides the tool."""
    try:
        return bool(visible(tool))
    except Exception:
        return False


def index_by_name(rows: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return casefolded name or id → id, for `Catalogue.disabled`. Of equal names, the last of the (name, id) wins."""
    ids: dict[str, str] = {}
    for name, tool_id in rows:
        ids[name.casefold()] = ids[tool_id.casefold()] = tool_id
    return ids


MIN_MAPPED_TOOLS: Final = 20_000  # from here on, ids and names are mapped from a file
STAMP_KEY: Final = "snapshot"  # key in the table caches of the stamp of the snapshot's files
STAMP_BYTES: Final = 8
#: Begins the key of a value with a digest. An earlier version that shares the home during an upgrade reads no such key.
SEALED: Final = "sealed "
SEAL_BYTES: Final = 8
_log: Final = logging.getLogger("toolscout.catalogue.read_snapshot")
CACHED: Final = "SELECT value FROM caches WHERE key = ? AND generation = ?"
LAST_CACHED: Final = "SELECT value, generation FROM caches WHERE key = ?"
APP_ONLY: Final = "only for apps: "  # begins the key in the table meta of a tool that no model may use
#: Tools for apps stay in the catalogue, where an app finds them by their names, but no search sees them.
SEARCHED_TOOLS: Final = (
    "FROM sources JOIN tools ON tools.source = sources.name WHERE enabled AND state != 'disabled' AND tools.id NOT IN "
    f"(SELECT substr(key, {len(APP_ONLY) + 1}) FROM meta WHERE key LIKE '{APP_ONLY}%')"
)


def read_snapshot(store: Any, folder: Path, new_stamp: str | None = None) -> Catalogue:
    """Return a snapshot of the present generation. Its tools load from the store on demand.

    Args:
        store: a `home.catalogue.store.Store`.
        folder: of the files of all snapshots.
        new_stamp: of files that another process has written and not yet told the store; used if the store knows no
            stamp for this generation.
    """
    # The functions are called later. They use `generation`, `snapshot`, `files` and the stamps, which are set below.

    def load(ids: Sequence[str] | None) -> list[Tool]:
        with store.reading():
            tools: list[Tool] = store.tools(snapshot.ids if ids is None else ids)
            snapshot.is_outdated |= store.generation() != generation
        return tools

    def load_cache(key: str, of_generation: int | None = None) -> bytes | None:
        """Return the value that the store has for a key and a generation, by default the one of this snapshot."""
        with store.reading() as connection:
            number = generation if of_generation is None else of_generation
            row = connection.execute(CACHED, (SEALED + key, number)).fetchone()
            return unseal(row[0]) if row else None

    def load_fingerprints() -> Mapping[str, str]:
        with store.reading() as connection:
            return dict(connection.execute("SELECT id, fingerprint FROM tools").fetchall())

    def find_earlier() -> EarlierSnapshot | None:
        """Find an earlier snapshot with parts that can be taken over. None: there is none, or the catalogue changed."""
        if files is None:
            return None
        with store.reading():
            if store.generation() != generation:  # the tools are no longer those of the snapshot
                return None
            make = functools.partial(make_fingerprint_rows, snapshot.ids, load_fingerprints())
        present = snapshot.load_part(FINGERPRINTS_FORMAT, make)
        # First the files of the stamp that the store knows. Without them, any will do: another machine may have older
        # ones, and a build that was killed may have left newer ones.
        candidates = sorted(files.find_others(FINGERPRINTS_FORMAT), key=lambda other: other.stamp != last_stamp)
        for candidate in candidates:
            if earlier := candidate.open(FINGERPRINTS_FORMAT, check=True):
                # values in the store belong to the last stamp alone
                is_last = stamp is None and candidate.stamp == last_stamp
                load = functools.partial(load_cache, of_generation=last_generation) if is_last else load_nothing
                return EarlierSnapshot(candidate, present, earlier, load)
        return None

    def load_nothing(key: str) -> bytes | None:
        return None

    with store.reading() as connection:
        generation = store.generation()
        last = connection.execute(LAST_CACHED, (STAMP_KEY,)).fetchone()
        last_stamp, last_generation = (read_stamp(last[0]), last[1]) if last else ("", None)
        stamp = last_stamp if last_generation == generation else None  # None: the store knows no files of this state
        files = None
        if stamp is not None or not store.read_only:
            files_stamp = stamp or new_stamp or secrets.token_hex(STAMP_BYTES)
            files = SnapshotFiles(folder, files_stamp, is_known=stamp is not None)
        snapshot = Catalogue(
            generation,
            _read_names(connection, files, is_new=stamp is None and new_stamp is None),
            load,
            disabled=_read_disabled(connection),
            waiting=approvals.waiting(connection),
            cache=load_cache,
        )
        snapshot.use_files(files, find_earlier)
        snapshot.fingerprints = load_fingerprints
    if stamp is None and files is not None:
        snapshot.pending[STAMP_KEY] = files.stamp.encode()  # `Store.keep` stores it
    return snapshot


def _read_names(connection: Connection, files: SnapshotFiles | None, is_new: bool) -> NameTable:
    """Return ids and names of the tools that are searched. Those of a large catalogue are kept in a file.

    Args:
        connection: in a read transaction.
        files: of the snapshot; None: it has none.
        is_new: whether nobody has written files of this stamp yet.
    """
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
    for source, message, enabled in connection.execute(
        "SELECT name, message, enabled FROM sources WHERE NOT enabled OR state = 'disabled' ORDER BY name"
    ):
        why = "disabled"  # by the user
        if enabled and message:  # the source's own state
            why = message.removeprefix(f"{source} is ")
        names = connection.execute("SELECT name, id FROM tools WHERE source = ?", (source,)).fetchall()
        disabled[source] = why, index_by_name(sorted(names, key=lambda row: row[1]))
    return disabled
