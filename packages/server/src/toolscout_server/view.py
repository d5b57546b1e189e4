"""The catalogue for browsing: rows and a tree of paths, limited to what the caller may see."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt

from toolscout.errors import NotFound, find_nearest, name_nearest
from toolscout.home.catalogue.store import Catalogue, Store
from toolscout.trust.policy import LOCAL, Caller
from toolscout.types import Tool
from toolscout_server.shapes import Facet, Node, Row

__all__ = ["CatalogueView", "CatalogueViews", "RowFilter", "encode_key"]

Place = tuple[str, ...]  # of a tool or node in the tree: the source, then the path from broad to narrow
Numbers = npt.NDArray[np.intp]  # of rows
MAX_NAME_CHARS_COMPARED: Final = 200  # of a name that is compared with the known ones
MAX_ROW_DESCRIPTION_CHARS: Final = 240  # of a description in a list


def find_place(tool: Tool) -> Place:
    """Find the place of a tool in the tree: its source, then its path, from which the source is left out."""
    return (tool.source, *(tool.path[1:] if tool.path[:1] == (tool.source,) else tool.path))


def encode_key(place: Place) -> str:
    """Encode the place of a node as a key: names joined by slashes, slashes in names escaped."""
    return "/".join(quote(name, safe=" ") for name in place)


def _decode_key(key: str | None) -> Place:
    return tuple(unquote(part) for part in key.split("/")) if key else ()


class RowFilter(NamedTuple):
    """Which rows of the catalogue a list shows: those that meet every condition. None: no condition.

    Attributes:
        within: key of a node of the tree.
        text: words, all of which the id or the description contains.
        source: name of a source.
        kind: tool, skill or agent.
        parent: key of the node that is directly above the tool.
    """

    within: str | None = None
    text: str | None = None
    source: str | None = None
    kind: str | None = None
    parent: str | None = None


class CatalogueView:
    """One generation of the catalogue, for lists and the tree. Immutable.

    Attributes:
        rows: what a list shows of each tool, in the order of the ids.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        """Index the tools of a snapshot by their places in the tree."""
        self.catalogue = catalogue
        self.generation = catalogue.generation
        self.rows: list[Row] = []
        self._texts: list[str] = []  # what a filter by words looks at
        self._numbers = {id: number for number, id in enumerate(catalogue.ids)}
        self._places: list[Place] = []  # of each tool in the tree
        below: dict[Place, list[int]] = {(): []}  # node → numbers of the rows of all tools in its subtree
        children: dict[Place, set[str]] = {}
        for number, tool in enumerate(catalogue.tools()):
            short = (
                tool.description
                if len(tool.description) <= MAX_ROW_DESCRIPTION_CHARS
                else tool.description[: MAX_ROW_DESCRIPTION_CHARS - 1] + "…"
            )
            self.rows.append(Row(tool.id, tool.name, list(tool.path), short, tool.kind))
            self._texts.append(f"{tool.id} {tool.description}".casefold())
            place = find_place(tool)
            self._places.append(place)
            for depth in range(len(place) + 1):
                below.setdefault(place[:depth], []).append(number)
                if depth:
                    children.setdefault(place[: depth - 1], set()).add(place[depth - 1])
        self._below = {place: np.asarray(numbers, dtype=np.intp) for place, numbers in below.items()}
        self._children = {place: sorted(names) for place, names in children.items()}

    def filter_visible(self, caller: Caller, numbers: Numbers) -> Numbers:
        """Keep the rows that the caller may see."""
        mask = self.catalogue.mask(caller.visible)
        return numbers if mask is None else numbers[mask[numbers]]

    def sees(self, caller: Caller, id: str) -> bool:
        """Tell whether the tool exists and the caller may see it."""
        number = self._numbers.get(id)
        mask = self.catalogue.mask(caller.visible)
        return number is not None and (mask is None or bool(mask[number]))

    def _list_visible(self, caller: Caller) -> Iterable[Row]:
        """Yield the rows that the caller may see."""
        return (self.rows[number] for number in self.filter_visible(caller, self._below[()]))

    def name_nearest_tool(self, caller: Caller, name: str, otherwise: str) -> str:
        """Ask whether the nearest tool that the caller may see was meant; `name` may be an id or a name."""
        known: dict[str, str] = {}
        for row in self._list_visible(caller):
            known |= {row.id: row.id, row.name: known.get(row.name, row.id)}
        nearest = find_nearest(name[:MAX_NAME_CHARS_COMPARED], known)
        return otherwise if nearest is None else f"Did you mean {known[nearest]!r}?"

    def require_source(self, caller: Caller, name: str | None, names: Iterable[str] = ()) -> None:
        """Check that a source is one of `names`, or has tools that the caller may see. None: no source is named.

        Raises:
            NotFound: with the nearest name that the caller may see.
        """
        if name is None or name in names:
            return
        known_names = {*names, *(row.id.partition("/")[0] for row in self._list_visible(caller))}
        if name not in known_names:
            advice = name_nearest(name[:MAX_NAME_CHARS_COMPARED], known_names, "GET /v1/sources lists them.")
            raise NotFound(f"expected the name of a source, found {name!r:.200}. {advice}")

    def count_tools(self, caller: Caller) -> int:
        """Count the tools that the caller may see."""
        return len(self.filter_visible(caller, self._below[()]))

    def _find_node(self, caller: Caller, key: str | None) -> tuple[Place, Numbers]:
        """Find a node and its visible rows. A node without visible rows does not exist for the caller.

        Raises:
            NotFound: if it does not exist for the caller.
        """
        place = _decode_key(key)
        numbers = self.filter_visible(caller, self._below.get(place, np.zeros(0, np.intp)))
        if place and not len(numbers):
            raise NotFound(f"expected a node of the tree that you may see, found {key!r:.200}")
        return place, numbers

    def page_tools(self, caller: Caller, only: RowFilter, offset: int, limit: int) -> tuple[list[Row], int]:
        """Return the visible tools that the filter `only` keeps, from `offset` on, and their total number."""
        matches = self._filter_numbers(caller, only)
        return [self.rows[number] for number in matches[offset : offset + limit]], len(matches)

    def _filter_numbers(self, caller: Caller, only: RowFilter) -> list[int]:
        """Return the numbers of the rows that meet every condition: `within` is a subtree, `parent` a single node."""
        _, numbers = self._find_node(caller, only.within)
        matches: list[int] = numbers.tolist()
        parent = _decode_key(only.parent)
        if parent:
            matches = [number for number in matches if self._places[number] == parent]
        if only.source:
            matches = [number for number in matches if self._places[number][0] == only.source]
        if only.kind:
            matches = [number for number in matches if self.rows[number].kind == only.kind]
        if words := (only.text or "").casefold().split():
            matches = [number for number in matches if all(word in self._texts[number] for word in words)]
        return matches

    def count_facets(self, caller: Caller, only: RowFilter, limit: int) -> dict[str, list[Facet]]:
        """Count the tools of each source, kind and parent. Each count leaves out the condition on its own facet.

        Args:
            caller: only what they may see is counted.
            only: the conditions.
            limit: most values of one facet, the most frequent.
        """
        places = self._places
        sources = Counter(places[number][0] for number in self._filter_numbers(caller, only._replace(source=None)))
        kinds = Counter(self.rows[number].kind for number in self._filter_numbers(caller, only._replace(kind=None)))
        parents = Counter(places[number] for number in self._filter_numbers(caller, only._replace(parent=None)))
        return {
            "sources": [Facet(name, name, count) for name, count in _rank(sources, limit)],
            "kinds": [Facet(name, name, count) for name, count in _rank(kinds, limit)],
            "parents": [
                Facet(" › ".join(place[1:]), encode_key(place), count)
                for place, count in _rank(parents, limit)
                if len(place) > 1  # a source alone is in the facet of the sources
            ],
        }

    def page_nodes(
        self, caller: Caller, key: str | None, offset: int, limit: int
    ) -> tuple[Place, int, list[Node], int]:
        """Page the nodes below a node. Returns its place, its number of tools, the page, and the number of nodes."""
        place, numbers = self._find_node(caller, key)
        counts = (
            ((*place, name), name, len(self.filter_visible(caller, self._below[(*place, name)])))
            for name in self._children.get(place, ())
        )
        nodes = [
            Node(name, encode_key(inner), count, inner not in self._children) for inner, name, count in counts if count
        ]
        return place, len(numbers), nodes[offset : offset + limit], len(nodes)


def _rank(counts: Counter[Any], limit: int) -> list[tuple[Any, int]]:
    """Return the most frequent values with their counts; ties in the order of the values."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit]


class CatalogueViews:
    """Keeps the view of the current generation of the catalogue, and builds it anew after a change."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._view: CatalogueView | None = None
        self._lock = threading.Lock()

    def current(self, caller: Caller = LOCAL) -> CatalogueView:
        """Return the view of the current catalogue. Every call checks the generation.

        The mask of what the caller may see is computed here and kept by the catalogue: a policy's rules about tools
        read definitions, and only inside `reading` the store still has those of the view's generation.
        """
        with self.store.reading():
            generation = self.store.generation()
            view = self._view
            if view is None or view.generation != generation:
                with self._lock:
                    view = self._view  # another thread may have built it while this one waited
                    if view is None or view.generation != generation:
                        view = self._view = CatalogueView(self.store.catalogue())
            view.catalogue.mask(caller.visible)  # for its side effect
        return view
