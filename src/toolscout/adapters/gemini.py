"""Gemini's API: the `tools` of a request, from a search.

::

    box = Toolbox(scout)
    config = {"tools": select_tools(box, question)}
    answer = client.models.generate_content(model=…, contents=…, config=config)
    for call in answer.function_calls:
        tool, arguments = read_call(box, call)
"""

from __future__ import annotations

from typing import Any

from toolscout.adapters import Toolbox
from toolscout.adapters.providers import GEMINI
from toolscout.types import Tool

__all__ = ["read_call", "select_tools"]


def select_tools(box: Toolbox, query: str) -> list[dict[str, Any]]:
    """Build the `tools` for one request from its search results. Empty if no tool fits."""
    declarations = []
    for name, tool in box.search(query):
        offered = box.translate(tool, GEMINI)
        has_parameters = bool(offered.schema["properties"])  # the API refuses an object without properties
        parameters = {"parameters": offered.schema} if has_parameters else {}
        declarations.append({"name": name, "description": offered.description, **parameters})
    return [{"function_declarations": declarations}] if declarations else []


def read_call(box: Toolbox, call: Any) -> tuple[Tool, dict[str, Any]]:
    """Return the tool of a function call, and its arguments as the tool names them."""
    return box.read_call(call.name, dict(call.args or {}), GEMINI)
