"""Finds the tools that a caller names, and explains why there is none. Answers use only what the caller may see."""

from __future__ import annotations

import bisect
import difflib
import itertools
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from toolscout.access.policy import Caller
from toolscout.catalogue.store import Catalogue, Waiting
from toolscout.gateway import text as show
from toolscout.types import Tool

if TYPE_CHECKING:
    from toolscout.scout import Scout

__all__ = ["Lookup"]

MAX_COMPARED_IDS: Final = 2_000  # ids of a source that are compared with a misspelt one
MAX_ID_CHARS: Final = 500


class Lookup:
    """The catalogue as callers see it, by the ids of its tools."""

    def __init__(self, scout: Scout, collect_notes: Callable[[Caller], list[str]]) -> None:
        """Look tools up in a catalogue. `collect_notes`: notes for a caller on servers that start or fail."""
        self.scout = scout
        self._collect_notes = collect_notes
        self._catalogue: tuple[Catalogue, frozenset[str]] | None = None
        self._lock = threading.Lock()

    def load_catalogue(self) -> tuple[Catalogue, frozenset[str]]:
        """Load the current catalogue and its ids."""
        with self._lock:
            snapshot = self._catalogue
            if snapshot is None or snapshot[0].generation != self.scout.store.generation():
                catalogue = self.scout.store.catalogue()
                snapshot = self._catalogue = catalogue, frozenset(catalogue.ids)
            return snapshot

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
        return ": ".join([what, *states, "use an id from search_tools, unchanged"])

    def find_waiting(self, caller: Caller, catalogue: Catalogue, id: str) -> Waiting | None:
        """Find the definition that waits for approval under an id, if the caller may see it."""
        definitions = catalogue.waiting.get(id.casefold(), ())
        return next((waiting for waiting in definitions if waiting.id == id and caller.sees(waiting.tool)), None)
