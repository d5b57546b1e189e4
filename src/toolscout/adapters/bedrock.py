"""Amazon Bedrock's Converse API: the `toolConfig` of a request, from a search.

::

    box = Toolbox(scout)
    answer = client.converse(modelId=…, messages=…, **select_tools(box, question))
    for part in answer["output"]["message"]["content"]:
        if "toolUse" in part:
            tool, arguments = read_call(box, part["toolUse"])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolscout.adapters import Toolbox
from toolscout.adapters.providers import BEDROCK
from toolscout.types import Tool

__all__ = ["read_call", "select_tools"]


def select_tools(box: Toolbox, query: str) -> dict[str, Any]:
    """Build `{"toolConfig": …}` for one request from its search results.

    If no tool fits, the result is empty, because the API refuses an empty list of tools.
    """
    specs = []
    for name, tool in box.search(query):
        offered = box.translate(tool, BEDROCK)
        spec = {"name": name, "description": offered.description, "inputSchema": {"json": offered.schema}}
        specs.append({"toolSpec": spec})
    return {"toolConfig": {"tools": specs}} if specs else {}


def read_call(box: Toolbox, use: Mapping[str, Any]) -> tuple[Tool, dict[str, Any]]:
    """Return the tool of a `toolUse` part, and its arguments as the tool names them."""
    return box.read_call(use["name"], use.get("input") or {}, BEDROCK)
