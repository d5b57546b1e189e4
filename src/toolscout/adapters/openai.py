"""OpenAI's APIs: client-executed tool search for Responses, or a short `tools` list for each request.

::

    box = Toolbox(scout)
    response = client.responses.create(model=…, tools=[search_tool()], input=items)
    items += [output(box, item) for item in response.output if searches(item)]

    client.chat.completions.create(model=…, messages=…, tools=select_tools(box, question, nested=True))
    tool, arguments = read_call(box, call)  # of an answer that calls a tool
"""

from __future__ import annotations

from typing import Any

import msgspec

from toolscout.adapters import SEARCH_DESCRIPTION, SEARCH_PARAMETERS, Toolbox
from toolscout.adapters.providers import OPENAI
from toolscout.types import Tool

__all__ = ["filtered", "output", "read_call", "search_tool", "searches", "select_tools"]


def search_tool() -> dict[str, Any]:
    """Build the entry of `tools` that lets the model search. The client runs the search."""
    return {
        "type": "tool_search",
        "execution": "client",
        "description": SEARCH_DESCRIPTION,
        "parameters": SEARCH_PARAMETERS,
    }


def searches(item: Any) -> bool:
    """Tell whether an output item calls our search."""
    return getattr(item, "type", "") == "tool_search_call" and getattr(item, "execution", "") == "client"


def output(box: Toolbox, item: Any) -> dict[str, Any]:
    """Search for what the model asked, and build the `tool_search_output` with the definitions to load.

    Without a query, or if no tool fits, it has no definitions.

    Args:
        box: has the tools.
        item: an output item for which `searches` is True.
    """
    arguments = item.arguments
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except msgspec.DecodeError:
            arguments = {}
    query = arguments.get("query") if isinstance(arguments, dict) else None
    matches = box.search(query) if isinstance(query, str) else []
    return {
        "type": "tool_search_output",
        "call_id": item.call_id,
        "execution": "client",
        "status": "completed",
        "tools": [{**_format_function(box, name, tool), "defer_loading": True} for name, tool in matches],
    }


def select_tools(box: Toolbox, query: str, *, nested: bool = False) -> list[dict[str, Any]]:
    """Build the `tools` for one request from its search results.

    Args:
        box: has the tools.
        query: the request.
        nested: whether each definition is below the key `function`, as chat completions need it.
    """
    entries = [_format_function(box, name, tool) for name, tool in box.search(query)]
    if not nested:
        return entries
    return [
        {"type": "function", "function": {key: value for key, value in entry.items() if key != "type"}}
        for entry in entries
    ]


filtered = select_tools  # the name in version 0.1


def read_call(box: Toolbox, item: Any) -> tuple[Tool, dict[str, Any]]:
    """Return the tool that a model calls, and its arguments as the tool names them.

    Args:
        box: has the tools.
        item: a `function_call` of Responses, or a tool call of chat completions, which has a `function`.
    """
    function = getattr(item, "function", item)
    return box.read_call(function.name, function.arguments, OPENAI)


def _format_function(box: Toolbox, name: str, tool: Tool) -> dict[str, Any]:
    """Build the entry of `tools` for one tool, in the form of Responses."""
    offered = box.translate(tool, OPENAI)
    description_fields = {"type": "function", "name": name, "description": offered.description}
    return {**description_fields, "parameters": offered.schema, "strict": False}
