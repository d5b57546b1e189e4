"""Catalogue routes: sources, the tree of paths, lists and facets of tools, one tool."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from toolscout.access.policy import Caller
from toolscout.errors import NotFound
from toolscout.server.service import ApiRequest, Service
from toolscout.server.shapes import (
    Facet,
    FacetsAnswer,
    FacetsRequest,
    Nothing,
    Row,
    SourceRow,
    SourcesAnswer,
    ToolRequest,
    ToolsAnswer,
    ToolsRequest,
    TreeAnswer,
    TreeRequest,
)
from toolscout.server.sources import may_manage
from toolscout.server.view import MAX_ROW_DESCRIPTION_CHARS, RowFilter, View
from toolscout.types import Tool

__all__ = ["count_facets", "list_sources", "list_tools", "read_tool", "read_tree", "require_visible"]


def require_visible(service: Service, caller: Caller, *ids: str) -> None:
    """Check that the caller may see all these tools.

    Raises:
        NotFound: with the first id that they may not see. The message does not tell whether it exists.
    """
    view = service.views.current(caller)
    for id in ids:
        if not view.sees(caller, id):
            advice = view.name_nearest_tool(caller, id, "Take one from a search.")
            raise NotFound(f"expected the id of a tool that you may see, found {id!r:.200}. {advice}")


async def list_sources(request: ApiRequest[Nothing]) -> SourcesAnswer:
    """List the sources with tools for the caller. Their state is shown to callers who see everything."""
    return await request.service.run_in_thread(_list_sources, request.service, request.caller)


def _list_sources(service: Service, caller: Caller) -> SourcesAnswer:
    view = service.views.current(caller)
    if caller.rules is None or may_manage(caller):
        rows = [
            SourceRow(
                source.name,
                source.kind,
                source.state if source.enabled else "disabled",
                source.message,
                source.read_at,
                source.tools,
                source.problems,
                source.waiting,
            )
            for source in service.scout.sources()
        ]
    else:
        kinds = {source.name: (source.kind, source.read_at) for source in service.scout.sources()}
        _, _, nodes, _ = view.page_nodes(caller, None, 0, len(view.rows))
        rows = [
            SourceRow(node.name, *_state_for_caller(kinds, node.name), tools=node.tools, problems=0, waiting=0)
            for node in nodes
        ]
    return SourcesAnswer(rows, view.generation)


def _state_for_caller(kinds: dict[str, tuple[str, str]], name: str) -> tuple[str, str, str, str]:
    kind, read_at = kinds.get(name, ("", ""))
    return kind, "ok", "", read_at


async def read_tree(request: ApiRequest[TreeRequest]) -> TreeAnswer:
    """Read the nodes directly below a node of the path tree."""
    return await request.service.run_in_thread(_read_tree, request.service, request.caller, request.parameters)


def _read_tree(service: Service, caller: Caller, parameters: TreeRequest) -> TreeAnswer:
    view = service.views.current(caller)
    place, tools, nodes, total = view.page_nodes(caller, parameters.within, parameters.offset, parameters.limit)
    return TreeAnswer(list(place), tools, nodes, total, view.generation)


async def list_tools(request: ApiRequest[ToolsRequest]) -> ToolsAnswer:
    """List a page of the tools below a node, or of the tools that contain some words."""
    return await request.service.run_in_thread(_list_tools, request.service, request.caller, request.parameters)


def _list_tools(service: Service, caller: Caller, parameters: ToolsRequest) -> ToolsAnswer:
    view = service.views.current(caller)
    _require_source(service, view, caller, parameters.source)
    if parameters.state == "searched":
        only = RowFilter(parameters.within, parameters.text, parameters.source, parameters.kind, parameters.parent)
        rows, total = view.page_tools(caller, only, parameters.offset, parameters.limit)
    else:
        rows = _list_unsearched(service, caller, parameters)
        total, rows = len(rows), rows[parameters.offset : parameters.offset + parameters.limit]
    return ToolsAnswer(rows, total, parameters.offset, view.generation)


def _require_source(service: Service, view: View, caller: Caller, name: str | None) -> None:
    """Raise NotFound for a source that there is not. A source without visible tools exists only for managers."""
    names = [source.name for source in service.scout.sources()] if name and may_manage(caller) else []
    view.require_source(caller, name, names)


def _list_unsearched(service: Service, caller: Caller, parameters: ToolsRequest | FacetsRequest) -> list[Row]:
    """List the tools that are not searched, in one state, for a caller who sees everything; for others none."""
    if not may_manage(caller):
        return []
    words = (parameters.text or "").casefold().split()
    return [
        row
        for row in _read_unsearched(service, parameters.state)
        if parameters.source in (None, row.id.partition("/")[0])
        and parameters.kind in (None, row.kind)
        and all(word in f"{row.id} {row.description}".casefold() for word in words)
    ]


def _read_unsearched(service: Service, state: str) -> list[Row]:
    store = service.scout.store
    if state == "hidden":
        return [Row(id, id.partition("/")[2], [], "") for id in store.hidden()]
    if state == "waiting":
        return [_make_row(definition.tool) for definition in store.waiting()]
    names = [source.name for source in store.sources() if not source.enabled]
    ids = [id for name in names for id, _ in store.page(name, limit=None)]
    return [_make_row(tool) for tool in store.tools(ids)]


def _make_row(tool: Tool) -> Row:
    return Row(tool.id, tool.name, list(tool.path), tool.description[:MAX_ROW_DESCRIPTION_CHARS], tool.kind)


async def count_facets(request: ApiRequest[FacetsRequest]) -> FacetsAnswer:
    """Count the tools of each source, kind, parent and state."""
    return await request.service.run_in_thread(_count_facets, request.service, request.caller, request.parameters)


def _count_facets(service: Service, caller: Caller, parameters: FacetsRequest) -> FacetsAnswer:
    view = service.views.current(caller)
    _require_source(service, view, caller, parameters.source)
    if parameters.state == "searched":
        only = RowFilter(None, parameters.text, parameters.source, parameters.kind, parameters.parent)
        counts = view.count_facets(caller, only, parameters.limit)
    else:
        rows = _list_unsearched(service, caller, parameters)
        sources, kinds = Counter(row.id.partition("/")[0] for row in rows), Counter(row.kind for row in rows)
        counts = {
            "sources": [Facet(name, name, count) for name, count in sorted(sources.items())[: parameters.limit]],
            "kinds": [Facet(name, name, count) for name, count in sorted(kinds.items())],
            "parents": [],
        }
    return FacetsAnswer(**counts, states=_count_states(service, view, caller))


def _count_states(service: Service, view: View, caller: Caller) -> list[Facet]:
    """Count the tools in each state, without the other filters."""
    if not may_manage(caller):
        return []
    sources = service.scout.sources()
    counts = {
        "searched": len(view.rows),
        "waiting": sum(source.waiting for source in sources),
        "disabled": sum(source.tools for source in sources if not source.enabled),
        "hidden": len(service.scout.store.hidden()),
    }
    return [Facet(name, name, count) for name, count in counts.items() if count or name == "searched"]


async def read_tool(request: ApiRequest[ToolRequest]) -> dict[str, Any]:
    """Read one tool with its complete definition."""
    return await request.service.run_in_thread(_read_tool, request.service, request.caller, request.parameters.id)


def _read_tool(service: Service, caller: Caller, id: str) -> dict[str, Any]:
    require_visible(service, caller, id)
    tool: Tool = service.scout.tool(id)
    if not caller.sees(tool):  # it changed a moment ago, and the policy now hides it
        require_visible(service, caller, "")
    return msgspec.structs.asdict(tool) | {"source": tool.source, "fingerprint": tool.fingerprint}
