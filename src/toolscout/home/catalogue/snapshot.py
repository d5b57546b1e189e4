"""A snapshot of the catalogue holds the tools that a search may find, at one generation.

A search uses one snapshot from start to end, so it never sees half of a change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from toolscout.home.catalogue.approvals import Waiting
from toolscout.home.catalogue.earlier import EarlierSnapshot
from toolscout.home.catalogue.name_table import NameTable, find_position
from toolscout.home.catalogue.snapshot_files import Part, SnapshotFiles
from toolscout.types import Tool

__all__ = ["TOOLS_BATCH", "Catalogue", "allows", "index_by_name"]

MAX_MASKS: Final = 256  # predicates whose masks a snapshot remembers
TOOLS_BATCH: Final = 8_192  # tools in memory at once while something is built from all of them
Shared = TypeVar("Shared")


class Catalogue:
    """An immutable snapshot of the tools that can be searched, at one generation.

    Attributes:
        generation: the store's generation when the snapshot was taken.
        table: ids and names, and where a text is one of them.
        ids: ids of the tools of enabled sources, ascending.
        names: the raw names, in the order of `ids`.
        disabled: source → (why it is not searched, {casefolded name or id: id} of its tools).
        waiting: casefolded name or id → the definitions of that name that wait for approval.
        added: source → when its origin was added: ISO 8601, and a number that orders origins of the same instant.
        first_seen: tool id → when the tool was first approved, in the same form; only where approval is needed.
        fingerprints: () → tool id → fingerprint of its definition. None: the tools are not those of a store, so nothing
            outside of this process may be changed to reflect them.
        pending: cache key → value built for this snapshot and not yet stored.
        is_outdated: whether tools were read after the store had changed. What is built from then on is not kept.
    """

    def __init__(
        self,
        generation: int,
        rows: Iterable[tuple[str, str]] | NameTable,
        load: Callable[[Sequence[str] | None], list[Tool]],
        *,
        disabled: dict[str, tuple[str, dict[str, str]]] | None = None,
        waiting: Iterable[Waiting] = (),
        cache: Callable[[str], bytes | None] | None = None,
        added: Mapping[str, str] | None = None,
        first_seen: Mapping[str, str] | None = None,
    ) -> None:
        """Build the snapshot.

        Args:
            generation: the store's generation.
            rows: (id, name) of each tool that is searched, or the table of them.
            load: ids, or None for all tools of this snapshot → tools.
            disabled: see the attributes.
            waiting: the definitions that wait for approval.
            cache: key → the stored value for this generation, or None.
            added: see the attributes.
            first_seen: see the attributes.
        """
        self.generation = generation
        self.table = rows if isinstance(rows, NameTable) else NameTable(rows)
        self.ids: Sequence[str] = self.table.ids
        self.names: Sequence[str] = self.table.names
        self.disabled = disabled or {}
        self.waiting: dict[str, list[Waiting]] = {}
        for definition in waiting:
            for key in {definition.tool.name.casefold(), definition.id.casefold()}:
                self.waiting.setdefault(key, []).append(definition)
        self.added: Mapping[str, str] = added or {}
        self.first_seen: Mapping[str, str] = first_seen or {}
        self.fingerprints: Callable[[], Mapping[str, str]] | None = None
        self.pending: dict[str, bytes] = {}
        self.is_outdated = False
        self._load, self._cache = load, cache
        self._files: SnapshotFiles | None = None
        self._find_earlier: Callable[[], EarlierSnapshot | None] | None = None
        self._shared: dict[str, Any] = {}
        self._masks: dict[Callable[[Tool], bool], np.ndarray[Any, np.dtype[np.bool_]]] = {}

    @classmethod
    def of(cls, tools: Iterable[Tool], *, added: Mapping[str, str] | None = None) -> Catalogue:
        """Return a snapshot of tools in memory, without a store. `added`: source → when it was added."""
        tools_by_id = {tool.id: tool for tool in tools}

        def load(ids: Sequence[str] | None) -> list[Tool]:
            return [
                tools_by_id[tool_id]
                for tool_id in (sorted(tools_by_id) if ids is None else ids)
                if tool_id in tools_by_id
            ]

        return cls(0, ((tool.id, tool.name) for tool in tools_by_id.values()), load, added=added)

    def replace_tool(self, tool: Tool) -> Catalogue:
        """Return a snapshot in memory in which the tool of this id has another definition."""
        tools = (tool if other.id == tool.id else other for other in self.tools())
        changed = Catalogue.of(tools, added=self.added)
        changed.first_seen, changed.disabled, changed.waiting = self.first_seen, self.disabled, self.waiting
        return changed

    def keep_parts(
        self, files: SnapshotFiles | None, find_earlier: Callable[[], EarlierSnapshot | None] | None = None
    ) -> None:
        """Keep large parts of the snapshot in files, which other processes use too. None: they are in memory.

        Args:
            files: of this snapshot.
            find_earlier: see the attribute `earlier`; called when a part is built first.
        """
        self._files, self._find_earlier = files, find_earlier

    @functools.cached_property
    def earlier(self) -> EarlierSnapshot | None:
        """What the snapshot before holds about tools that have not changed; None: nothing can be taken over."""
        return self._find_earlier() if self._find_earlier else None

    def open_earlier(self, key: str) -> tuple[EarlierSnapshot, Part] | None:
        """Return the snapshot before and its part of this key; None if nothing can be taken over."""
        part = self.earlier.open_part(key) if self.earlier else None
        return (self.earlier, part) if self.earlier and part else None

    def mark_known(self, stamp: str) -> None:
        """Note the stamp that the store has for this generation: that of this snapshot, or of another process."""
        if self._files:
            self._files.is_known = self._files.stamp == stamp

    def replace_earlier(self) -> None:
        """Remove the files of other snapshots, if files were written here and the store knows them."""
        if self._files and self._files.is_known and self._files.has_written:
            self.earlier = None
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
        """Yield tools, some thousand at a time, in ascending order of id.

        There is one for each position: a tool that the store has lost since has nothing but its name.

        Args:
            positions: of the tools, ascending; None: all.
            size: tools at a time.
        """
        for ids in self._batch_ids(positions, size):
            tools = self._load(ids)
            if len(tools) < len(ids):
                tools_by_id = {tool.id: tool for tool in tools}
                tools = [tools_by_id.get(tool_id) or self._replace_lost(tool_id) for tool_id in ids]
            yield tools

    def _batch_ids(
        self, positions: npt.NDArray[np.intp] | None = None, size: int = TOOLS_BATCH
    ) -> Iterator[Sequence[str]]:
        for start in range(0, len(self.ids if positions is None else positions), size):
            part = slice(start, start + size)
            yield self.ids[part] if positions is None else [self.ids[position] for position in positions[part].tolist()]

    def _replace_lost(self, tool_id: str) -> Tool:
        """Return what stands in the place of a tool that the store has lost."""
        position = self.position(tool_id)
        return Tool(id=tool_id, name=tool_id if position is None else self.names[position])

    def list_sources(self) -> list[str]:
        """Return the sources of the tools, in the order of the ids."""
        return list(dict.fromkeys(tool_id.partition("/")[0] for tool_id in self.ids))

    def list_changed_sources(self, key: str) -> tuple[bytes | None, npt.NDArray[np.intp] | None]:
        """Return what the snapshot before stored under a key, and the positions of tools whose sources have changed.

        A source has changed if any of its tools has. (None, None): nothing can be taken over.
        """
        encoded = self.earlier.load_value(key) if self.earlier else None
        if self.earlier is None or encoded is None:
            return None, None
        unchanged = self.earlier.sources
        is_changed = (tool_id.partition("/")[0] not in unchanged for tool_id in self.ids)
        return encoded, np.flatnonzero(np.fromiter(is_changed, dtype=np.bool_, count=len(self.ids)))

    def mask(self, visible: Callable[[Tool], bool] | None) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Return a boolean mask over `ids` for a predicate; None: every tool is visible.

        The mask is computed once for each predicate. A predicate that raises on a tool hides that tool. Tools that
        the store has lost since the snapshot are hidden too.
        """
        if visible is None:
            return None
        mask = self._masks.get(visible)
        if mask is None:
            seen = {tool.id for ids in self._batch_ids() for tool in self._load(ids) if allows(visible, tool)}
            mask = np.fromiter((id in seen for id in self.ids), dtype=np.bool_, count=len(self.ids))
            if len(self._masks) >= MAX_MASKS:
                self._masks.pop(next(iter(self._masks)), None)
            self._masks[visible] = mask
        return mask

    def share(self, key: str, make: Callable[[], Shared]) -> Shared:
        """Return the value of `make`, built once per key and shared by all callers, who must not change it."""
        if key not in self._shared:
            self._shared[key] = make()
        value: Shared = self._shared[key]
        return value

    def load_part(self, key: str, build: Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Part:
        """Return arrays and JSON values: those of the snapshot's file, which is written if it is not there.

        Args:
            key: names the part, its format, and everything that it depends on besides the snapshot.
            build: returns the arrays and the values.
        """
        part = self._files.open(key) if self._files else None
        if part is None:
            arrays, meta = build()
            part = self._files.write(key, arrays, meta) if self._files and not self.is_outdated else None
            part = part or Part(arrays, meta, {})
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
    """Tell whether the predicate allows the tool. A predicate that raises does not."""
    try:
        return bool(visible(tool))
    except Exception:
        return False


def index_by_name(rows: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map each casefolded name and id to the id, for `Catalogue.disabled`. Rows are (name, id)."""
    ids: dict[str, str] = {}
    for name, tool_id in rows:
        ids[name.casefold()] = ids[tool_id.casefold()] = tool_id
    return ids
