"""The catalogue: sources, the tree of paths, lists of tools, one tool."""

from __future__ import annotations

from typing import Any

import msgspec

from toolscout.access.policy import Caller
from toolscout.catalogue.store import allows
from toolscout.checks.lint import Lint, lint
from toolscout.errors import NotFound
from toolscout.server.service import Ask, Service
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

__all__ = ["findability", "present", "sources", "tool", "tools", "tree"]


def present(service: Service, caller: Caller, *ids: str) -> None:
    """Check that all these are tools that are there for this caller.

    Raises:
        NotFound: naming the first that is not; the sentence does not say whether it exists.
    """
    view = service.views.now(caller)
    for id in ids:
        if not view.sees(caller, id):
            raise NotFound(
                f"expected the id of a tool that is there for you, found {id!r:.200}: take one from a search"
            )


async def sources(ask: Ask[Nothing]) -> SourcesAnswer:
    """All sources with tools for the caller; their state is for who sees everything."""
    return await ask.service.thread(_sources, ask.service, ask.caller)


def _sources(service: Service, caller: Caller) -> SourcesAnswer:
    view = service.views.now(caller)
    if caller.rules is None:
        rows = [
            SourceRow(
                each.name,
                each.kind,
                each.state if each.enabled else "disabled",
                each.message,
                each.read_at,
                each.tools,
                each.problems,
                each.waiting,
            )
            for each in service.scout.sources()
        ]
    else:
        kinds = {each.name: (each.kind, each.read_at) for each in service.scout.sources()}
        _, _, nodes, _ = view.tree(caller, None, 0, len(view.rows))
        rows = [SourceRow(node.name, *_of(kinds, node.name), tools=node.tools, problems=0, waiting=0) for node in nodes]
    return SourcesAnswer(rows, view.generation)


def _of(kinds: dict[str, tuple[str, str]], name: str) -> tuple[str, str, str, str]:
    kind, read_at = kinds.get(name, ("", ""))
    return kind, "ok", "", read_at


async def tree(ask: Ask[TreeRequest]) -> TreeAnswer:
    """The nodes right below a node of the path tree."""
    return await ask.service.thread(_tree, ask.service, ask.caller, ask.asked)


def _tree(service: Service, caller: Caller, asked: TreeRequest) -> TreeAnswer:
    view = service.views.now(caller)
    place, tools, nodes, total = view.tree(caller, asked.within, asked.offset, asked.limit)
    return TreeAnswer(list(place), tools, nodes, total, view.generation)


async def findability(ask: Ask[LintRequest]) -> Lint:
    """Which tools are not found by requests made for them, which are confused, and what would help."""
    async with ask.service.heavy:
        return await ask.service.thread(_findability, ask.service, ask.caller, ask.asked.most)


def _findability(service: Service, caller: Caller, most: int) -> Lint:
    service.scout.pipeline()  # made, and kept, before the reading
    with service.scout.store.reading():  # one state of the catalogue for its tools and for the searches
        catalogue, pipeline = service.scout.pipeline()
        seen = [tool for tool in catalogue.tools() if caller.visible is None or allows(caller.visible, tool)]
        return lint(seen, pipeline, max_tools=most, visible=caller.visible)


async def tools(ask: Ask[ToolsRequest]) -> ToolsAnswer:
    """A page of the tools below a node, or of those that contain some words."""
    return await ask.service.thread(_tools, ask.service, ask.caller, ask.asked)


def _tools(service: Service, caller: Caller, asked: ToolsRequest) -> ToolsAnswer:
    view = service.views.now(caller)
    rows, total = view.tools(caller, asked.within, asked.text, asked.offset, asked.limit)
    return ToolsAnswer(rows, total, asked.offset, view.generation)


async def tool(ask: Ask[ToolRequest]) -> dict[str, Any]:
    """One tool with everything that its source says of it."""
    return await ask.service.thread(_tool, ask.service, ask.caller, ask.asked.id)


def _tool(service: Service, caller: Caller, id: str) -> dict[str, Any]:
    present(service, caller, id)
    found: Tool = service.scout.tool(id)
    if not caller.sees(found):  # it was changed just now, and the policy hides what it has become
        present(service, caller, "")
    return msgspec.structs.asdict(found) | {"source": found.source, "fingerprint": found.fingerprint}
