"""The same Scout inside other people's frameworks. A module each; this one holds what they share.

Two shapes: `Toolbox` offers the catalogue's tools to a model under names that every API takes; `Chooser` picks among
the tools that a framework holds itself, which it puts into the catalogue as one source, so that the journal and
`toolscout learn` know them too.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from toolscout.catalogue.store import allows
from toolscout.errors import NotFound
from toolscout.scout import Scout
from toolscout.sources import source_name
from toolscout.types import Search, Tool, digest

__all__ = ["SEARCH", "SEARCH_DESCRIPTION", "SEARCH_PARAMETERS", "Chooser", "Toolbox"]

SEARCH: Final = "search_tools"
SEARCH_DESCRIPTION: Final = (
    "Find tools that are not loaded yet. Say in plain words what is to be done; one search for each task."
)
SEARCH_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What is to be done, in plain words."}},
    "required": ["query"],
    "additionalProperties": False,
}
LONGEST: Final = 64
TRIES: Final = 3
EMPTY: Final[dict[str, Any]] = {"type": "object", "properties": {}}


class Toolbox:
    """The catalogue for a model: names that APIs take, searches, and what came of them."""

    def __init__(
        self,
        scout: Scout,
        *,
        k: int | None = None,
        caller: str | None = None,
        visible: Callable[[Tool], bool] | None = None,
    ) -> None:
        """Take whose catalogue, how many tools a search brings, who asks, and what that one may discover."""
        self.scout, self.k, self.caller, self.visible = scout, k, caller, visible
        self._shown: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}

    def tools(self) -> list[tuple[str, Tool]]:
        """(name, tool) of all that may be discovered, by id."""
        tools = self.scout.store.catalogue().tools()
        return [(self._name(tool), tool) for tool in tools if self._may(tool)]

    def search(self, query: str) -> list[tuple[str, Tool]]:
        """(name, tool) of the answer, best first."""
        found: Search = self.scout.search(query, self.k, visible=self.visible, caller=self.caller)
        shown = [(self._name(hit.tool), hit.tool) for hit in found.hits if hit.tool is not None]
        self._shown.update((name, found.search_id or "") for name, _ in shown)
        return shown

    def tool(self, name: str) -> Tool:
        """The tool that a model calls by a name.

        Raises:
            NotFound: if there is none that may be discovered.
        """
        if name not in self._ids:
            self.tools()
        if (tool_id := self._ids.get(name)) is not None:
            tool = self.scout.tool(tool_id)
            if self._may(tool):
                return tool
        raise NotFound(f"expected the name of a tool, found {name!r}: search first")

    def called(self, name: str, *, ok: bool, ms: float | None = None) -> None:
        """Tell the journal what came of a call, so that `toolscout learn` can use it."""
        search_id = self._shown.get(name) or None
        if search_id and self.scout.journal.is_full(search_id):  # the call is told nevertheless
            search_id = None
        self.scout.called(self.tool(name).id, ok=ok, search_id=search_id, ms=ms, caller=self.caller)

    def _may(self, tool: Tool) -> bool:
        return self.visible is None or allows(self.visible, tool)

    def _name(self, tool: Tool) -> str:
        """What the model calls a tool: given once, it means this tool as long as the box lives."""
        name = self._names.get(tool.id)
        if name is None:
            name = self._names[tool.id] = wire_name(tool.name, tool.id, self._ids)
            self._ids[name] = tool.id
        return name


def wire_name(raw: str, tool_id: str, taken: Iterable[str]) -> str:
    """A name of letters, digits, `_` and `-`, 64 at most: the tool's own, its id's, or one with a hash, if taken."""
    for text in (raw, tool_id):
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:LONGEST]
        if name and name != SEARCH and name not in taken:
            return name
    return f"{name[: LONGEST - 9]}_{digest('wire/1', tool_id)[:8]}"


@dataclasses.dataclass(frozen=True)
class _Among:
    """A predicate: one of these tools; equal sets are one predicate, so that its mask is kept."""

    ids: frozenset[str]

    def __call__(self, tool: Tool) -> bool:
        return tool.id in self.ids


class Chooser:
    """Picks among tools that a framework holds, by their names."""

    def __init__(self, scout: Scout, source: str, *, k: int | None = None, caller: str | None = None) -> None:
        """Take whose catalogue and journal, the name of the source there, how many tools, and who asks.

        Several may share a source, in other processes too: it holds all that was ever offered, each tool as it was
        offered last.
        """
        self.scout, self.source, self.k, self.caller = scout, source_name(source), k, caller
        self._generation = -1
        self._there: dict[str, Tool] = {}  # of the source, by name
        self._offered: dict[str, tuple[dict[str, Any], Tool]] = {}  # name → what was offered, and what became of it
        self._lock = threading.Lock()

    def choose(self, queries: Sequence[str], tools: Iterable[Mapping[str, Any]]) -> list[str]:
        """Names of the tools for some requests, best first, those of each request in turn.

        Args:
            queries: the requests.
            tools: what may be chosen now: `name`, `description` and `parameters` (JSON Schema) of each.
        """
        offered = {str(tool["name"]): dict(tool) for tool in tools}
        with self._lock:
            for _ in range(TRIES):  # another process may put its own in between
                if not self._missing(offered):
                    break
                held = {name: _definition(tool) for name, tool in self._there.items()}
                self.scout.add(list((held | offered).values()), name=self.source)
                self._look()
                self._offered |= {name: (offered[name], self._there[name]) for name in offered if name in self._there}
            among = _Among(frozenset(self._there[name].id for name in offered if name in self._there))
        found = self.scout.search_many(list(queries), self.k, visible=among, caller=self.caller)
        turns = max((len(each.hits) for each in found), default=0)
        order = [each.hits[turn].tool for turn in range(turns) for each in found if turn < len(each.hits)]
        return list(dict.fromkeys(tool.name for tool in order if tool is not None))

    def _missing(self, offered: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether any of these is not in the catalogue as it is offered."""
        if self._generation != self.scout.store.generation():
            self._look()
        return any(self._offered.get(name) != (tool, self._there.get(name)) for name, tool in offered.items())

    def _look(self) -> None:
        catalogue = self.scout.store.catalogue()
        prefix = f"{self.source}/"
        mine = [tool_id for tool_id in catalogue.ids if tool_id.startswith(prefix)]
        self._generation, self._there = catalogue.generation, {tool.name: tool for tool in catalogue.tools(mine)}


def _definition(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
