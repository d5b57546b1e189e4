"""Adapters for agent frameworks and model APIs, one module each. This module has what they share.

There are two kinds. A `Toolbox` offers the catalogue's tools to a model under *wire names*, which every API accepts. A
`Chooser` chooses among tools that a framework manages. It adds them to the catalogue as one source, so that the journal
and `toolscout learn` include them.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from toolscout.adapters.providers import Provider, Translation, translate
from toolscout.errors import NotFound, UserError
from toolscout.home.catalogue.store import allows
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
MAX_WIRE_NAME_CHARS: Final = 64
HASH_CHARS: Final = 8  # of a hash that keeps wire names apart
MAX_SYNC_ATTEMPTS: Final = 3  # to add the tools of a framework while other processes change the same source


class Toolbox:
    """Offers the catalogue to a model: names that APIs accept, searches, and a record of the calls."""

    def __init__(
        self,
        scout: Scout,
        *,
        k: int | None = None,
        caller: str | None = None,
        visible: Callable[[Tool], bool] | None = None,
    ) -> None:
        """Create a toolbox.

        Args:
            scout: provides the catalogue and the journal.
            k: tools per search; None: the scout's default.
            caller: name of the caller for the journal.
            visible: which tools the caller may discover; None: all.
        """
        self.scout, self.k, self.caller, self.visible = scout, k, caller, visible
        self._search_ids: dict[str, str] = {}  # wire name → id of the search that last returned the tool
        self._names: dict[str, str] = {}  # id of a tool → wire name
        self._ids: dict[str, str] = {}  # wire name → id of the tool
        self._translations: dict[tuple[str, str], Translation] = {}  # by fingerprint of the tool, name of the provider

    def tools(self) -> list[tuple[str, Tool]]:
        """List (wire name, tool) of all visible tools, ordered by id."""
        tools = self.scout.store.catalogue().tools()
        return [(self._choose_name(tool), tool) for tool in tools if self._is_visible(tool)]

    def search(self, query: str) -> list[tuple[str, Tool]]:
        """Search and return (wire name, tool) of the answer, best first."""
        result: Search = self.scout.search(query, self.k, visible=self.visible, caller=self.caller)
        named_tools = [(self._choose_name(hit.tool), hit.tool) for hit in result.hits if hit.tool is not None]
        self._search_ids.update((name, result.search_id or "") for name, _ in named_tools)
        return named_tools

    def tool(self, name: str) -> Tool:
        """Return the tool with a wire name.

        Raises:
            NotFound: if no visible tool has this name.
        """
        if name not in self._ids:
            self.tools()  # gives all visible tools their names
        if (tool_id := self._ids.get(name)) is not None:
            tool = self.scout.tool(tool_id)
            if self._is_visible(tool):
                return tool
        raise NotFound(f"There is no tool named {name!r} here. Search first, then call a tool of the answer.")

    def translate(self, tool: Tool, provider: Provider) -> Translation:
        """Translate the schema of a tool for a provider. Each definition is translated once, and cached."""
        key = tool.fingerprint, provider.name
        if key not in self._translations:
            self._translations[key] = translate(tool, provider)
        return self._translations[key]

    def read_call(self, name: str, arguments: object, provider: Provider) -> tuple[Tool, dict[str, Any]]:
        """Return the tool that a model calls, and the arguments as the tool itself names them.

        Args:
            name: wire name of the tool.
            arguments: an object, or its JSON text.
            provider: of the model.

        Raises:
            NotFound: if no visible tool has this name.
            UserError: if the arguments are not an object.
        """
        if isinstance(arguments, str):
            try:
                arguments = msgspec.json.decode(arguments or "{}")
            except (msgspec.DecodeError, RecursionError):
                arguments = None
        if not isinstance(arguments, Mapping):
            raise UserError(f"expected the arguments of {name!r} as an object, found something else")
        tool = self.tool(name)
        return tool, self.translate(tool, provider).restore(arguments)

    def record_call(self, name: str, *, ok: bool, ms: float | None = None) -> None:
        """Record the outcome of a call in the journal, so that `toolscout learn` can use it.

        Args:
            name: wire name of the tool.
            ok: whether the call succeeded.
            ms: how long the call took; None: unknown.
        """
        search_id = self._search_ids.get(name) or None
        if search_id and self.scout.journal.is_full(search_id):  # the search has too many calls: record this one alone
            search_id = None
        self.scout.called(self.tool(name).id, ok=ok, search_id=search_id, ms=ms, caller=self.caller)

    called = record_call  # the name in version 0.1

    def _is_visible(self, tool: Tool) -> bool:
        """Tell whether the caller may discover a tool."""
        return self.visible is None or allows(self.visible, tool)

    def _choose_name(self, tool: Tool) -> str:
        """Return the wire name of a tool, which never changes during the life of the toolbox."""
        name = self._names.get(tool.id)
        if name is None:
            name = self._names[tool.id] = wire_name(tool.name, tool.id, self._ids)
            self._ids[name] = tool.id
        return name


def wire_name(raw: str, tool_id: str, taken: Iterable[str]) -> str:
    """Make a wire name of the tool's name; if that is taken, of its id; if that is taken too, of its id and a hash.

    It has at most `MAX_WIRE_NAME_CHARS` letters, digits, `_` and `-`, and begins with a letter or `_`.

    Args:
        raw: name of the tool.
        tool_id: its id.
        taken: wire names of other tools.
    """
    for text in (raw, tool_id):
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")
        if name and not name[0].isalpha():
            name = f"_{name}"
        name = name[:MAX_WIRE_NAME_CHARS]
        if name and name != SEARCH and name not in taken:
            return name
    return f"{name[: MAX_WIRE_NAME_CHARS - HASH_CHARS - 1]}_{digest('wire/1', tool_id)[:HASH_CHARS]}"


@dataclasses.dataclass(frozen=True)
class _HasIdIn:
    """Tells whether a tool is one of some tools. It is hashable, so that equal sets of ids share one compiled mask."""

    ids: frozenset[str]

    def __call__(self, tool: Tool) -> bool:
        """Tell whether the tool has one of the ids."""
        return tool.id in self.ids


class Chooser:
    """Chooses among the tools of a framework, by their names."""

    def __init__(self, scout: Scout, source: str, *, k: int | None = None, caller: str | None = None) -> None:
        """Create a chooser.

        Choosers may share a source, even across processes. The source then has the last definition of each tool.

        Args:
            scout: provides the catalogue and the journal.
            source: name of the source for the framework's tools.
            k: tools per request; None: the scout's default.
            caller: name of the caller for the journal.
        """
        self.scout, self.source, self.k, self.caller = scout, source_name(source), k, caller
        self._generation = -1  # of the catalogue that `_stored` was read from; -1: none was read
        self._stored: dict[str, Tool] = {}  # the source's tools, by name
        # Name → the definition that the framework offered, and the tool as it was stored for it.
        self._offered: dict[str, tuple[dict[str, Any], Tool]] = {}
        self._lock = threading.Lock()

    def choose(self, queries: Sequence[str], tools: Iterable[Mapping[str, Any]]) -> list[str]:
        """Choose tools for some requests.

        Args:
            queries: the requests.
            tools: the available tools: `name`, `description` and `parameters` (JSON Schema) of each.

        Returns:
            Names of the tools: first the best for each request, then the second for each, and so on; none twice.
        """
        offered = {str(tool["name"]): dict(tool) for tool in tools}
        with self._lock:
            for _ in range(MAX_SYNC_ATTEMPTS):  # another process may replace the source meanwhile
                if not self._is_outdated(offered):
                    break
                stored = {name: _describe_tool(tool) for name, tool in self._stored.items()}
                self.scout.add(list((stored | offered).values()), name=self.source)
                self._refresh()
                self._offered |= {name: (offered[name], self._stored[name]) for name in offered if name in self._stored}
            is_offered = _HasIdIn(frozenset(self._stored[name].id for name in offered if name in self._stored))
        results = self.scout.search_many(list(queries), self.k, visible=is_offered, caller=self.caller)
        depth = max((len(result.hits) for result in results), default=0)
        order = [result.hits[place].tool for place in range(depth) for result in results if place < len(result.hits)]
        return list(dict.fromkeys(tool.name for tool in order if tool is not None))

    def _is_outdated(self, offered: Mapping[str, Mapping[str, Any]]) -> bool:
        """Tell whether a tool must be stored: it was not offered so before, or the catalogue has changed it since."""
        if self._generation != self.scout.store.generation():
            self._refresh()
        return any(self._offered.get(name) != (tool, self._stored.get(name)) for name, tool in offered.items())

    def _refresh(self) -> None:
        """Read the tools of the source from the catalogue."""
        catalogue = self.scout.store.catalogue()
        prefix = f"{self.source}/"
        ids = [tool_id for tool_id in catalogue.ids if tool_id.startswith(prefix)]
        self._generation, self._stored = catalogue.generation, {tool.name: tool for tool in catalogue.tools(ids)}


def _describe_tool(tool: Tool) -> dict[str, Any]:
    """Return the definition of a stored tool in the form that `choose` accepts."""
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
