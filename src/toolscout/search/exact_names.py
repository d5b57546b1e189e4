"""Exact names win: a tool that the query names is returned, whatever else the query says.

A query names a tool if it *is* the tool's name or id, if it holds the id, the name in quotes or backticks, or a name
with an underscore, a dot, a digit or an inner capital; or with `select:name,name`, which asks for those tools and
nothing else. A bare dictionary word inside a longer query (`search`, `copy`) is no name. Case does not matter.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from toolscout.catalogue.store import Catalogue, allows
from toolscout.search.pipeline import Stage
from toolscout.types import Hit, Search, Tool

__all__ = ["EXACT", "Names", "named", "named_disabled", "named_waiting", "selected"]

EXACT: Final = "exact name"
_QUOTED: Final = re.compile(r"`([^`\n]{1,200})`|\"([^\"\n]{1,200})\"|“([^”\n]{1,200})”|(?<!\w)'([^'\n]{1,200})'(?!\w)")
_SPECIAL: Final = re.compile(r"[_.\d/]|(?<=.)[A-Z].*[a-z]|[a-z].*[A-Z]")
_IDENTIFIER: Final = re.compile(r"\w(?:[\w./-]*\w)?", re.ASCII)
_EDGES: Final = ".,;:!?()[]{}<>\"'`“”‘’*，。？！、：；（）「」『』"
MAX_WORDS: Final = 8
MAX_QUERY: Final = 4_000


class _Lookup:
    """Casefolded names and ids of one catalogue → positions."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.ids: dict[str, list[int]] = {}
        self.names: dict[str, list[int]] = {}
        for position, each in enumerate(catalogue.ids):
            self.ids.setdefault(each.casefold(), []).append(position)
        for position, name in enumerate(catalogue.names):
            self.names.setdefault(name.casefold(), []).append(position)
        self.spaced = any(" " in each for each in self.ids)

    def find(self, text: str) -> list[int]:
        key = text.casefold()
        return [*self.ids.get(key, ()), *self.names.get(key, ())]


class Names(Stage):
    """query + hits → the tools that the query names first, then the other hits. Not part of `bench`."""

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits", "reason"})

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.lookup = _Lookup(catalogue)

    def run(self, searches: Sequence[Search]) -> list[Search]:
        return [self._prepend(search) for search in searches]

    def _prepend(self, search: Search) -> Search:
        asked = selected(search.query)
        reason = named_waiting(self.catalogue, search) or named_disabled(self.catalogue, search)
        if reason:
            search = msgspec.structs.replace(search, reason=reason)
        positions = named(self.lookup, search.query) if asked is None else _select(self.lookup, asked)
        mask = self.catalogue.mask(search.visible)
        found = [position for position in positions if mask is None or mask[position]]
        if asked is None and not found:
            return search
        scores = {hit.id: hit.score for hit in search.hits}
        ids = [self.catalogue.ids[position] for position in found]
        if asked is None:  # several tools of one name: the better match first
            ids.sort(key=lambda each: (-scores.get(each, -math.inf), each))
        top = max([1.0, *scores.values()])
        exact = tuple(Hit(each, top, EXACT) for each in ids)
        rest = () if asked is not None else tuple(hit for hit in search.hits if hit.id not in set(ids))
        missing = [] if asked is None else [name for name in asked if not _visible(self.lookup.find(name), mask)]
        reason = search.reason or (f"no visible tool is called {', '.join(map(repr, missing))}" if missing else None)
        return msgspec.structs.replace(search, hits=exact + rest, reason=reason)

    def note(self, search: Search) -> str:
        count = sum(1 for _ in itertools.takewhile(lambda hit: hit.why == EXACT, search.hits))
        return f"{count} named exactly" if count else ""


def selected(query: str) -> list[str] | None:
    """The names after `select:`, or None if the query is not of that form."""
    head, colon, tail = query.strip().partition(":")
    if not colon or head.strip().lower() != "select":
        return None
    return [name for part in tail.split(",") if (name := part.strip().strip("`\"'"))]


def _select(lookup: _Lookup, names: Sequence[str]) -> list[int]:
    return list(dict.fromkeys(position for name in names for position in lookup.find(name)))


def _visible(positions: Sequence[int], mask: Any) -> bool:
    return any(mask is None or mask[position] for position in positions)


def named(lookup: _Lookup, query: str) -> list[int]:
    """Positions of the tools that the query names, in the order of their first mention."""
    found: dict[int, None] = {}
    for text, bare in dict.fromkeys(_mentions(query[:MAX_QUERY], lookup.spaced)):
        for position in lookup.find(text) if not bare else _special_only(lookup, text):
            found.setdefault(position)
    return list(found)


def _special_only(lookup: _Lookup, text: str) -> list[int]:
    """A word inside a query: an id, or a name that no dictionary would hold."""
    key = text.casefold()
    return lookup.find(text) if key in lookup.ids or (key in lookup.names and _is_special(text)) else []


def _is_special(text: str) -> bool:
    return bool(_SPECIAL.search(text)) and any(letter.isalpha() for letter in text)


def _mentions(query: str, spaced: bool) -> Iterator[tuple[str, bool]]:
    """(text, whether it is a bare part of the query) that may name a tool."""
    yield query.strip(), False
    yield query.strip().strip(_EDGES), False
    for match in _QUOTED.finditer(query):
        yield next(group for group in match.groups() if group).strip(), False
    words = query.split()
    for start, word in enumerate(words):
        yield word, True
        yield word.strip(_EDGES), True
        for part in _IDENTIFIER.findall(word):
            yield part, True
        for stop in range(start + 2, min(len(words), start + MAX_WORDS) + 1) if spaced else ():
            phrase = " ".join(words[start:stop])
            if "/" in phrase or "_" in phrase:
                yield phrase.strip(_EDGES), True


def named_disabled(catalogue: Catalogue, search: Search) -> str | None:
    """One sentence if the query names a tool, visible to the caller, whose source is disabled."""
    keys = list(_keys(search.query)) if catalogue.disabled else []
    for source, (message, names) in catalogue.disabled.items():
        why = message if search.visible is None else "disabled"  # a message may name files of whoever runs the service
        for key in keys:
            if key in names and any(_sees(search, tool) for tool in catalogue.tools([names[key]])):
                return f"{names[key]} is not searched: source {source!r} is {why}"
    return None


def named_waiting(catalogue: Catalogue, search: Search) -> str | None:
    """One sentence if the query names a tool, visible to the caller, that waits for approval."""
    for key in _keys(search.query) if catalogue.waiting else ():
        for each in catalogue.waiting.get(key, ()):
            if _sees(search, each.tool):
                return f"{each.id} waits for approval: {each.why}"
    return None


def _sees(search: Search, tool: Tool) -> bool:
    """Whether the search's caller may see the tool; a predicate that raises hides it."""
    return search.visible is None or allows(search.visible, tool)


def _keys(query: str) -> Iterator[str]:
    """Casefolded names and ids that a query may hold."""
    asked = selected(query)
    mentions = _mentions(query[:MAX_QUERY], False) if asked is None else ((name, False) for name in asked)
    for text, bare in mentions:
        if not bare or _is_special(text):
            yield text.casefold()
