"""Anthropic's Messages API: replaces its tool search with ours.

Every tool is sent with `defer_loading`, so the model sees none of them at first. It calls our search tool, and the
`tool_reference` blocks of the result load the tools that it needs ::

    box = Toolbox(scout)
    message = client.messages.create(model=…, tools=tools(box), messages=messages, …)
    messages.append({"role": "user", "content": [results(box, block) for block in message.content if searches(block)]})
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from toolscout.adapters import EMPTY_SCHEMA, SEARCH, SEARCH_DESCRIPTION, SEARCH_PARAMETERS, Toolbox

__all__ = ["results", "searches", "tools"]


def tools(box: Toolbox, *, loaded: Container[str] = ()) -> list[dict[str, Any]]:
    """Build the `tools` of a request: our search and all visible tools, deferred unless named in `loaded`."""
    search = {"name": SEARCH, "description": SEARCH_DESCRIPTION, "input_schema": SEARCH_PARAMETERS}
    return [
        search,
        *(
            {
                "name": name,
                "description": tool.description,
                "input_schema": {**EMPTY_SCHEMA, **(tool.parameters or {})},
                **({} if name in loaded else {"defer_loading": True}),
            }
            for name, tool in box.tools()
        ),
    ]


def searches(block: Any) -> bool:
    """Tell whether a content block of an answer calls our search."""
    return getattr(block, "type", "") == "tool_use" and getattr(block, "name", "") == SEARCH


def results(box: Toolbox, block: Any) -> dict[str, Any]:
    """Search and build the `tool_result`: references that load the tools, or a sentence if none fits."""
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
