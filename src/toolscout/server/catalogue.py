"""Catalogue routes: sources, the tree of paths, lists of tools, one tool, findability."""

from __future__ import annotations

from typing import Any

import msgspec

from toolscout.access.policy import Caller
from toolscout.catalogue.store import allows
from toolscout.checks.lint import Lint, lint
from toolscout.errors import NotFound
from toolscout.server.service import ApiRequest, Service
from toolscout.server.shapes import (
    LintRequest,
    Nothing,
    SourceRow,
    SourcesAnswer,
    ToolRequest,
    ToolsAnswer,
    ToolsRequest,
    TreeAnswer,
    TreeRequest,
)
from toolscout.types import Tool

__all__ = ["check_findability", "list_sources", "list_tools", "read_tool", "read_tree", "require_visible"]


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
    if caller.rules is None:
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


async def check_findability(request: ApiRequest[LintRequest]) -> Lint:
    """Find tools that a search misses or confuses, with advice."""
    async with request.service.slow_work:
        return await request.service.run_in_thread(
            _check_findability, request.service, request.caller, request.parameters.most
        )


def _check_findability(service: Service, caller: Caller, max_tools: int) -> Lint:
    service.scout.pipeline()  # opening it may take long, and a snapshot should be held only for a short time
    with service.scout.store.reading():  # tools and searches see the same state
        catalogue, pipeline = service.scout.pipeline()
        visible = [tool for tool in catalogue.tools() if caller.visible is None or allows(caller.visible, tool)]
        return lint(visible, pipeline, max_tools=max_tools, visible=caller.visible)


async def list_tools(request: ApiRequest[ToolsRequest]) -> ToolsAnswer:
    """List a page of the tools below a node, or of the tools that contain some words."""
    return await request.service.run_in_thread(_list_tools, request.service, request.caller, request.parameters)


def _list_tools(service: Service, caller: Caller, parameters: ToolsRequest) -> ToolsAnswer:
    view = service.views.current(caller)
    rows, total = view.page_tools(caller, parameters.within, parameters.text, parameters.offset, parameters.limit)
    return ToolsAnswer(rows, total, parameters.offset, view.generation)


async def read_tool(request: ApiRequest[ToolRequest]) -> dict[str, Any]:
    """Read one tool with its complete definition."""
    return await request.service.run_in_thread(_read_tool, request.service, request.caller, request.parameters.id)


def _read_tool(service: Service, caller: Caller, id: str) -> dict[str, Any]:
    require_visible(service, caller, id)
    tool: Tool = service.scout.tool(id)
    if not caller.sees(tool):  # it changed a moment ago, and the policy now hides it
        require_visible(service, caller, "")
    return msgspec.structs.asdict(tool) | {"source": tool.source, "fingerprint": tool.fingerprint}
