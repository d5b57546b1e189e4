"""Anthropic's Messages API: our search in the place of theirs.

Every tool goes along with `defer_loading`, so that the model sees none of them at first; it calls our search tool, and
the `tool_reference` blocks of our result load those that it needs ::

    box = Toolbox(scout)
    message = client.messages.create(model=…, tools=tools(box), messages=messages, …)
    messages.append({"role": "user", "content": [results(box, block) for block in message.content if searches(block)]})
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from toolscout.adapters import EMPTY, SEARCH, SEARCH_DESCRIPTION, SEARCH_PARAMETERS, Toolbox

__all__ = ["results", "searches", "tools"]


def tools(box: Toolbox, *, loaded: Container[str] = ()) -> list[dict[str, Any]]:
    """The `tools` of a request: our search, and all that may be discovered, deferred unless named in `loaded`."""
    search = {"name": SEARCH, "description": SEARCH_DESCRIPTION, "input_schema": SEARCH_PARAMETERS}
    return [
        search,
        *(
            {
                "name": name,
                "description": tool.description,
                "input_schema": {**EMPTY, **(tool.parameters or {})},
                **({} if name in loaded else {"defer_loading": True}),
            }
            for name, tool in box.tools()
        ),
    ]


def searches(block: Any) -> bool:
    """Whether a content block of an answer asks for our search."""
    return getattr(block, "type", "") == "tool_use" and getattr(block, "name", "") == SEARCH


def results(box: Toolbox, block: Any) -> dict[str, Any]:
    """The `tool_result` of a search: references that load the tools, or a sentence where none fits."""
    query = block.input.get("query") if isinstance(block.input, dict) else None
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": block.id}
    if not isinstance(query, str):
        return {**result, "is_error": True, "content": "expected a query of text: say what is to be done"}
    found = [{"type": "tool_reference", "tool_name": name} for name, _ in box.search(query)]
    return {**result, "content": found or "No tool fits. Say it in other words, or go on without one."}
