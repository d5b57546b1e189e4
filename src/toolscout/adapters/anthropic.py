"""Anthropic's Messages API: replaces its tool search with ours.

Every tool is sent with `defer_loading`, so the model sees none of them at first. It calls our search tool, and the
`tool_reference` blocks of the result load the tools that it needs ::

    box = Toolbox(scout)
    message = client.messages.create(model=…, tools=tools(box), messages=messages, …)
    messages.append({"role": "user", "content": [results(box, block) for block in message.content if searches(block)]})
    tool, arguments = read_call(box, block)  # of a block that calls a tool
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from toolscout.adapters import SEARCH, SEARCH_DESCRIPTION, SEARCH_PARAMETERS, Toolbox
from toolscout.adapters.providers import ANTHROPIC
from toolscout.types import Tool

__all__ = ["read_call", "results", "searches", "tools"]


def tools(box: Toolbox, *, loaded: Container[str] = ()) -> list[dict[str, Any]]:
    """Build the `tools` of a request: our search, and all visible tools.

    Args:
        box: has the tools.
        loaded: names of tools that the model sees at once; it sees the others when a search has found them.
    """
    entries: list[dict[str, Any]] = [
        {"name": SEARCH, "description": SEARCH_DESCRIPTION, "input_schema": SEARCH_PARAMETERS}
    ]
    for name, tool in box.tools():
        offered = box.translate(tool, ANTHROPIC)
        entry = {"name": name, "description": offered.description, "input_schema": offered.schema}
        entries.append(entry if name in loaded else {**entry, "defer_loading": True})
    return entries


def searches(block: Any) -> bool:
    """Tell whether a content block of an answer calls our search."""
    return getattr(block, "type", "") == "tool_use" and getattr(block, "name", "") == SEARCH


def results(box: Toolbox, block: Any) -> dict[str, Any]:
    """Search for what the model asked, and build the `tool_result`: references that load tools, or a sentence.

    Args:
        box: has the tools.
        block: a content block for which `searches` is True.
    """
    query = block.input.get("query") if isinstance(block.input, dict) else None
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": block.id}
    if not isinstance(query, str):
        return {
            **result,
            "is_error": True,
            "content": "The search has no query. Say in plain words what is to be done.",
        }
    references = [{"type": "tool_reference", "tool_name": name} for name, _ in box.search(query)]
    return {**result, "content": references or "No tool fits. Search again in other words, or continue without a tool."}


def read_call(box: Toolbox, block: Any) -> tuple[Tool, dict[str, Any]]:
    """Return the tool that a `tool_use` block calls, and its arguments as the tool names them."""
    return box.read_call(block.name, block.input, ANTHROPIC)
