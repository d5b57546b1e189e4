"""Finds the tools that a caller names, and explains why there is none. Answers use only what the caller may see."""

from __future__ import annotations

import bisect
import difflib
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from toolscout.home.catalogue.store import Catalogue, Waiting
from toolscout.trust.policy import Caller
from toolscout.types import Tool
from toolscout_gateway import text as show

if TYPE_CHECKING:
    from toolscout.scout import Scout

__all__ = ["Lookup"]

MAX_COMPARED_IDS: Final = 2_000  # ids of a source that are compared with a misspelt one
MAX_ID_CHARS: Final = 500
MAX_NEAR_IDS: Final = 3
MAX_KEPT_TOOLS: Final = 1_024  # tools that were looked up last
CLIENT_PREFIXES: Final = ("mcp__", "functions.", "tools.")  # that clients put before the names of tools
SEPARATORS: Final = ("__", "_", ".", "::", ":", "#", "-")


class Lookup:
    """The catalogue as callers see it, by the ids of its tools."""

    def __init__(self, scout: Scout, collect_notes: Callable[[Caller], list[str]]) -> None:
        """Look tools up in a catalogue. `collect_notes`: notes for a caller on servers that start or fail."""
        self.scout = scout
        self._collect_notes = collect_notes
        self._catalogue: tuple[Catalogue, frozenset[str]] | None = None
        self._tools: tuple[int, dict[str, Tool]] = -1, {}  # by id, of this generation
        self._lock = threading.Lock()

    def load_catalogue(self) -> tuple[Catalogue, frozenset[str]]:
        """Load the current catalogue and its ids."""
        with self._lock:
            snapshot = self._catalogue
            if snapshot is None or snapshot[0].generation != self.scout.store.generation():
                catalogue = self.scout.store.catalogue()
                snapshot = self._catalogue = catalogue, frozenset(catalogue.ids)
            return snapshot

    def was_listed(self, id: str) -> bool:
        """Return whether the catalogue held an id when it was loaded last. Works while a database does not answer."""
        return self._catalogue is not None and id in self._catalogue[1]

    def find_tools(self, caller: Caller, ids: Iterable[str]) -> tuple[dict[str, Tool], dict[str, str]]:
        """Return the visible tools, and for every other id a sentence that does not reveal whether it exists."""
        catalogue, present = self.load_catalogue()
        tools: dict[str, Tool] = {}
        missing: dict[str, str] = {}
        for id in ids:
            tool = next(iter(catalogue.tools([id])), None) if id in present else None
            if tool is not None and caller.sees(tool):
                tools[id] = tool
            else:
                missing[id] = self._explain_missing(caller, catalogue, id)
        return tools, missing

    def find_now(self, caller: Caller, id: str) -> Tool | None:
        """Return a visible tool, if a look at the loaded catalogue of a folder is enough; otherwise None.

        It takes microseconds and needs no thread. A database is never asked here, because it may be away.
        """
        snapshot = self._catalogue
        if snapshot is None or id not in snapshot[1] or self.scout.settings.database is not None:
            return None
        catalogue = snapshot[0]
        if catalogue.generation != self.scout.store.generation():
            return None
        tool = self._load_tool(catalogue, id)
        return tool if tool is not None and caller.sees(tool) else None

    def _load_tool(self, catalogue: Catalogue, id: str) -> Tool | None:
        """Load a tool, or return it as it was loaded before. The store must have the catalogue's generation now."""
        if self._tools[0] != catalogue.generation:
            self._tools = catalogue.generation, {}
        tools = self._tools[1]
        if id not in tools:
            tools.update((tool.id, tool) for tool in catalogue.tools([id]))
            while len(tools) > MAX_KEPT_TOOLS:
                del tools[next(iter(tools))]
        return tools.get(id)

    def _explain_missing(self, caller: Caller, catalogue: Catalogue, id: str) -> str:
        """Explain why a caller gets no tool for an id. The sentence uses only what the caller may see."""
        what = f"expected the id of a tool that you may see, found {show.clip(show.make_plain(id), 200)!r}"
        if waiting := self.find_waiting(caller, catalogue, id):
            return f"{what}: its definition waits for approval ( toolscout approve ), because {waiting.why}"
        source = id.partition("/")[0]
        mask = catalogue.mask(caller.visible)
        visible = catalogue.ids if mask is None else [id for id, sees in zip(catalogue.ids, mask, strict=True) if sees]
        prefix = f"{source}/"
        first = bisect.bisect_left(visible, prefix)
        siblings = list(
            itertools.takewhile(lambda id: id.startswith(prefix), visible[first : first + MAX_COMPARED_IDS])
        )
        if near := difflib.get_close_matches(id[:MAX_ID_CHARS], siblings, n=1, cutoff=0.75):
            return f"{what}: did you mean {near[0]!r}?"
        states = [note for note in self._collect_notes(caller) if repr(source) in note]
        why, names = catalogue.disabled.get(source, ("", {}))
        if caller.rules is None and why:
            states.append(f"source {source!r} is {why}")
        elif any(caller.sees(tool) for tool in catalogue.tools([names.get(id.casefold(), "")])):
            states.append(f"source {source!r} is disabled")
        if not states and (near := _find_near(id[:MAX_ID_CHARS], visible)):
            return f"{what}: did you mean {' or '.join(map(repr, near))}?"
        return ": ".join([what, *states, "use an id from search_tools, unchanged"])

    def resolve_id(self, caller: Caller, text: str) -> str:
        """Return the id of the one visible tool that a text which is no id can mean. Empty if there is none.

        A bare name counts if only one visible tool has it, and so do an id with its signature, in quotes, or with the
        separators that clients put in its place. Letters and case must agree.
        """
        catalogue, _ = self.load_catalogue()
        text = text[:MAX_ID_CHARS].strip().partition("(")[0].strip(" `'\"")
        mask = catalogue.mask(caller.visible)
        visible = catalogue.ids if mask is None else [id for id, sees in zip(catalogue.ids, mask, strict=True) if sees]
        spellings = {text, *(text.removeprefix(prefix) for prefix in CLIENT_PREFIXES)}
        spellings |= {
            f"{spelling[: match.start()]}/{spelling[match.end() :]}"
            for spelling in tuple(spellings)
            for separator in SEPARATORS
            for match in re.finditer(re.escape(separator), spelling)
        }
        present = {id for id in spellings if _contains(visible, id)}
        if not present:
            present = {id for id in visible if id.partition("/")[2] == text}
        return present.pop() if len(present) == 1 else ""

    def find_waiting(self, caller: Caller, catalogue: Catalogue, id: str) -> Waiting | None:
        """Find the definition that waits for approval under an id, if the caller may see it."""
        definitions = catalogue.waiting.get(id.casefold(), ())
        return next((waiting for waiting in definitions if waiting.id == id and caller.sees(waiting.tool)), None)


def _contains(ids: Sequence[str], id: str) -> bool:
    """Return whether a sorted list holds an id."""
    place = bisect.bisect_left(ids, id)
    return place < len(ids) and ids[place] == id


def _find_near(id: str, visible: Sequence[str]) -> list[str]:
    """Find the tools with the name in an id, or nearly this name, whatever their source and case."""
    name = id.rpartition("/")[2].casefold()
    names = {other: other.partition("/")[2].casefold() for other in visible}
    if same := [other for other, its_name in names.items() if its_name == name]:
        return same[:MAX_NEAR_IDS]
    alike = [other for other, its_name in names.items() if its_name[:1] == name[:1]]
    for others in (alike, list(names)):  # a slip in the first letter is rare, and costs more to find
        compared = {other: names[other] for other in others[:MAX_COMPARED_IDS]}
        if near := difflib.get_close_matches(name, list(compared.values()), n=1, cutoff=0.75):
            return [other for other, its_name in compared.items() if its_name in near][:MAX_NEAR_IDS]
    return []
