"""OpenAI's APIs: our search as the client-executed tool search of Responses, or a short `tools` list for each request.

::

    box = Toolbox(scout)
    response = client.responses.create(model=…, tools=[search_tool()], input=items)
    items += [output(box, item) for item in response.output if searches(item)]

    client.chat.completions.create(model=…, messages=…, tools=filtered(box, question, nested=True))
"""

from __future__ import annotations

from typing import Any

import msgspec

from toolscout.adapters import EMPTY, SEARCH_DESCRIPTION, SEARCH_PARAMETERS, Toolbox
from toolscout.types import Tool

__all__ = ["filtered", "output", "search_tool", "searches"]


def search_tool() -> dict[str, Any]:
    """The entry of `tools` that lets the model search, executed by us."""
    return {
        "type": "tool_search",
        "execution": "client",
        "description": SEARCH_DESCRIPTION,
        "parameters": SEARCH_PARAMETERS,
    }


def searches(item: Any) -> bool:
    """Whether an output item asks for our search."""
    return getattr(item, "type", "") == "tool_search_call" and getattr(item, "execution", "") == "client"


def output(box: Toolbox, item: Any) -> dict[str, Any]:
    """The `tool_search_output` of a search: the definitions that it loads."""
    arguments = item.arguments
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except msgspec.DecodeError:
            arguments = {}
    query = arguments.get("query") if isinstance(arguments, dict) else None
    found = box.search(query) if isinstance(query, str) else []
    return {
        "type": "tool_search_output",
        "call_id": item.call_id,
        "execution": "client",
        "status": "completed",
        "tools": [{**_function(name, tool), "defer_loading": True} for name, tool in found],
    }


def filtered(box: Toolbox, query: str, *, nested: bool = False) -> list[dict[str, Any]]:
    """The `tools` for one request: those that it needs; `nested` as chat completions want them."""
    found = [_function(name, tool) for name, tool in box.search(query)]
    if not nested:
        return found
    return [{"type": "function", "function": {k: v for k, v in each.items() if k != "type"}} for each in found]


def _function(name: str, tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": tool.description,
        "parameters": {**EMPTY, **(tool.parameters or {})},
        "strict": False,
    }
