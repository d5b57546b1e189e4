"""The catalogue as people leaf through it: rows, a tree of paths, and of both only what a caller may see."""

from __future__ import annotations

import threading
from typing import Final
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt

from toolscout.access.policy import LOCAL, Caller
from toolscout.catalogue.store import Catalogue, Store
from toolscout.errors import NotFound
from toolscout.server.shapes import Node, Row
from toolscout.types import Tool

__all__ = ["View", "Views", "key_of"]

Place = tuple[str, ...]
Places = npt.NDArray[np.intp]
SHORT: Final = 240  # letters of a description in a list


def place_of(tool: Tool) -> Place:
    """Where a tool hangs in the tree: its source, then its path, which often begins with the source."""
    return (tool.source, *(tool.path[1:] if tool.path[:1] == (tool.source,) else tool.path))


def key_of(place: Place) -> str:
    """How a node is asked for: its names with slashes between them, their own slashes escaped."""
    return "/".join(quote(name, safe=" ") for name in place)


def _place(key: str | None) -> Place:
    return tuple(unquote(part) for part in key.split("/")) if key else ()


class View:
    """One generation of the catalogue, for lists and for the tree. Immutable."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.generation = catalogue.generation
        self.rows: list[Row] = []
        self._texts: list[str] = []
        self._numbers = {id: number for number, id in enumerate(catalogue.ids)}
        below: dict[Place, list[int]] = {(): []}
        children: dict[Place, set[str]] = {}
        for number, tool in enumerate(catalogue.tools()):
            short = tool.description if len(tool.description) <= SHORT else tool.description[: SHORT - 1] + "…"
            self.rows.append(Row(tool.id, tool.name, list(tool.path), short))
            self._texts.append(f"{tool.id} {tool.description}".casefold())
            place = place_of(tool)
            for depth in range(len(place) + 1):
                below.setdefault(place[:depth], []).append(number)
                if depth:
                    children.setdefault(place[: depth - 1], set()).add(place[depth - 1])
        self._below = {place: np.asarray(numbers, dtype=np.intp) for place, numbers in below.items()}
        self._children = {place: sorted(names) for place, names in children.items()}

    def visible(self, caller: Caller, numbers: Places) -> Places:
        """Those of the rows that the caller may see."""
        mask = self.catalogue.mask(caller.visible)
        return numbers if mask is None else numbers[mask[numbers]]

    def sees(self, caller: Caller, id: str) -> bool:
        """Whether there is such a tool for this caller."""
        number = self._numbers.get(id)
        mask = self.catalogue.mask(caller.visible)
        return number is not None and (mask is None or bool(mask[number]))

    def size(self, caller: Caller) -> int:
        """How many tools the caller may see."""
        return len(self.visible(caller, self._below[()]))

    def _at(self, caller: Caller, key: str | None) -> tuple[Place, Places]:
        """A node and its visible rows; one without any is not there for this caller.

        Raises:
            NotFound: if it is not there.
        """
        place = _place(key)
        numbers = self.visible(caller, self._below.get(place, np.zeros(0, np.intp)))
        if place and not len(numbers):
            raise NotFound(f"expected a node of the tree that is there for you, found {key!r:.200}")
        return place, numbers

    def tools(
        self, caller: Caller, key: str | None, text: str | None, offset: int, limit: int
    ) -> tuple[list[Row], int]:
        """A page of the tools below a node that contain every word of `text`; and how many there are in all."""
        _, numbers = self._at(caller, key)
        words = (text or "").casefold().split()
        found: list[int] = numbers.tolist()
        if words:
            found = [number for number in found if all(word in self._texts[number] for word in words)]
        return [self.rows[number] for number in found[offset : offset + limit]], len(found)

    def tree(self, caller: Caller, key: str | None, offset: int, limit: int) -> tuple[Place, int, list[Node], int]:
        """A node: its place, its tools, a page of the nodes right below it, and how many these are in all."""
        place, numbers = self._at(caller, key)
        counted = (
            ((*place, name), name, len(self.visible(caller, self._below[(*place, name)])))
            for name in self._children.get(place, ())
        )
        nodes = [
            Node(name, key_of(inner), count, inner not in self._children) for inner, name, count in counted if count
        ]
        return place, len(numbers), nodes[offset : offset + limit], len(nodes)


class Views:
    """The view of the present generation."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._held: View | None = None
        self._lock = threading.Lock()

    def now(self, caller: Caller = LOCAL) -> View:
        """The view of the catalogue as it is now; a change is looked for at every call.

        What the caller may see of it is found out on the same state of the store, for the view loads tools no more.
        """
        with self.store.reading():
            generation = self.store.generation()
            held = self._held
            if held is None or held.generation != generation:
                with self._lock:
                    held = self._held
                    if held is None or held.generation != generation:
                        held = self._held = View(self.store.catalogue())
            held.catalogue.mask(caller.visible)
        return held
