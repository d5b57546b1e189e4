"""A snapshot of the catalogue holds the tools that a search may find, at one generation.

A search uses one snapshot from start to end, so it never sees half of a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from toolscout.catalogue.approvals import Waiting
from toolscout.types import Tool

__all__ = ["Catalogue", "allows", "index_by_name"]

MAX_MASKS: Final = 256  # predicates whose masks a snapshot remembers
Shared = TypeVar("Shared")


class Catalogue:
    """An immutable snapshot of the tools that can be searched, at one generation.

    Attributes:
        generation: the store's generation when the snapshot was taken.
        ids: ids of the tools of enabled sources, ascending.
        names: the raw names, in the order of `ids`.
        disabled: source → (why it is not searched, {casefolded name or id: id} of its tools).
        waiting: casefolded name or id → the definitions of that name that wait for approval.
        added: source → when its origin was added: ISO 8601, and a number that orders origins of the same instant.
        first_seen: tool id → when the tool was first approved, in the same form; only where approval is needed.
        fingerprints: () → tool id → fingerprint of its definition. None: the tools are not those of a store, so nothing
            outside of this process may be changed to reflect them.
        pending: cache key → value built for this snapshot and not yet stored.
    """

    def __init__(
        self,
        generation: int,
        rows: Iterable[tuple[str, str]],
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
            rows: (id, name) of each tool that is searched.
            load: ids, or None for all tools of this snapshot → tools.
            disabled: see the attributes.
            waiting: the definitions that wait for approval.
            cache: key → the stored value for this generation, or None.
            added: see the attributes.
            first_seen: see the attributes.
        """
        ordered = sorted(rows)
        self.generation = generation
        self.ids: tuple[str, ...] = tuple(row[0] for row in ordered)
        self.names: tuple[str, ...] = tuple(row[1] for row in ordered)
        self.disabled = disabled or {}
        self.waiting: dict[str, list[Waiting]] = {}
        for definition in waiting:
            for key in {definition.tool.name.casefold(), definition.id.casefold()}:
                self.waiting.setdefault(key, []).append(definition)
        self.added: Mapping[str, str] = added or {}
        self.first_seen: Mapping[str, str] = first_seen or {}
        self.fingerprints: Callable[[], Mapping[str, str]] | None = None
        self.pending: dict[str, bytes] = {}
        self._load, self._cache = load, cache
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

    def __len__(self) -> int:
        return len(self.ids)

    def tools(self, ids: Sequence[str] | None = None) -> list[Tool]:
        """Return tools in the order of `ids`, without unknown ids; None: all, in ascending order of id."""
        return self._load(ids)

    def mask(self, visible: Callable[[Tool], bool] | None) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Return a boolean mask over `ids` for a predicate; None: every tool is visible.

        The mask is computed once for each predicate. A predicate that raises on a tool hides that tool. Tools that
        the store has lost since the snapshot are hidden too.
        """
        if visible is None:
            return None
        mask = self._masks.get(visible)
        if mask is None:
            seen = {tool.id for tool in self.tools() if allows(visible, tool)}
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

    def load_or_build(self, key: str, build: Callable[[], bytes]) -> bytes:
        """Return the cached value of a key, or build it. `Store.keep` then stores it for this generation."""
        value = self._cache(key) if self._cache else None
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
