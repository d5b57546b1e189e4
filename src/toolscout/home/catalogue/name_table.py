"""Ids and names of the tools of a snapshot, and where a text is one of them. Case does not matter."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolscout.errors import StoreError
from toolscout.indexes.strings import Arrays, Strings
from toolscout.indexes.strings import StringIndex as Lookup

__all__ = ["NAMES_FORMAT", "MappedNames", "NameTable", "find_position"]

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
        self.ids: Sequence[str] = tuple(row[0] for row in ordered)
        self.names: Sequence[str] = tuple(row[1] for row in ordered)
        self._places: tuple[dict[str, list[int]], dict[str, list[int]]] | None = None

    def _index(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        if self._places is None:
            places: tuple[dict[str, list[int]], dict[str, list[int]]] = {}, {}
            for by_text, texts in zip(places, (self.ids, self.names), strict=True):
                for position, text in enumerate(texts):
                    by_text.setdefault(text.casefold(), []).append(position)
            self._places = places
        return self._places

    def find_id(self, key: str) -> Sequence[int]:
        """Return the positions of the ids that are this text, casefolded."""
        return self._index()[0].get(key, ())

    def find_name(self, key: str) -> Sequence[int]:
        """Return the positions of the names that are this text, casefolded."""
        return self._index()[1].get(key, ())

    @property
    def has_spaces(self) -> bool:
        """Whether an id holds a space."""
        return any(" " in tool_id for tool_id in self.ids)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the table as arrays, for `MappedNames`."""
        ids, names = Strings.of(self.ids), Strings.of(self.names)
        return {
            **ids.arrays("ids"),
            **names.arrays("names"),
            **Lookup.of(tool_id.casefold() for tool_id in self.ids).arrays("by_id"),
            **Lookup.of(name.casefold() for name in self.names).arrays("by_name"),
            "has_spaces": np.array([self.has_spaces], dtype=np.uint8),
        }


class MappedNames(NameTable):
    """Ids and names in arrays, which may be mapped from a file."""

    def __init__(self, arrays: Arrays) -> None:
        """Take the arrays of `NameTable.arrays`.

        Raises:
            StoreError: if they are damaged.
        """
        try:
            self.ids, self.names = Strings.from_arrays(arrays, "ids"), Strings.from_arrays(arrays, "names")
            self._by_id, self._by_name = Lookup.from_arrays(arrays, "by_id"), Lookup.from_arrays(arrays, "by_name")
            self._has_spaces = bool(arrays["has_spaces"][0])
            is_intact = len(self.ids) == len(self.names) == len(self._by_id) == len(self._by_name)
        except (KeyError, ValueError, IndexError):
            is_intact = False
        if not is_intact:
            raise StoreError(f"The stored names are damaged or not of format {NAMES_FORMAT}. Build them again.")

    def find_id(self, key: str) -> Sequence[int]:
        """Return the positions of the ids that are this text, casefolded."""
        return self._by_id.find(key, lambda position: self.ids[position].casefold())

    def find_name(self, key: str) -> Sequence[int]:
        """Return the positions of the names that are this text, casefolded."""
        return self._by_name.find(key, lambda position: self.names[position].casefold())

    @property
    def has_spaces(self) -> bool:
        """Whether an id holds a space."""
        return self._has_spaces


def find_position(ids: Sequence[str], tool_id: str) -> int | None:
    """Return the position of a tool in ascending ids, or None."""
    position = bisect.bisect_left(ids, tool_id)
    return position if position < len(ids) and ids[position] == tool_id else None
