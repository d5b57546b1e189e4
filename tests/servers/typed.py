"""An MCP server whose tools give back the arguments that reach them, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

TEXT, WHOLE, NUMBER, FLAG = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
TEXTS, WHOLES = ({"type": "array", "items": item} for item in (TEXT, WHOLE))
ADDRESS = {"type": "object", "properties": {"city": TEXT, "zip": TEXT, "floor": WHOLE}, "required": ["city"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    "set_alarm": {
        "properties": {"hour": WHOLE, "label": TEXT, "loud": FLAG, "volume": NUMBER, "days": TEXTS},
        "required": ["hour"],
        "additionalProperties": False,
    },
    "move_file": {"properties": {"source": TEXT, "target": TEXT, "overwrite": FLAG}, "required": ["source", "target"]},
    "ship": {
        "properties": {"to": ADDRESS, "items": {"type": "array", "items": ADDRESS}, "ids": WHOLES, "version": TEXT},
        "required": ["to"],
    },
    "paint": {
        "properties": {"color": {"type": "string", "enum": ["red", "dark-green", "blue"]}, "size": {"enum": [1, 2, 3]}},
        "required": ["color"],
    },
    "query_rows": {
        "properties": {
            "max_results": {"anyOf": [WHOLE, {"type": "null"}]},
            "filter": {"type": "object"},
            "order_by": {"anyOf": [TEXT, {"type": "null"}]},
            "value": {"anyOf": [WHOLE, TEXT]},
        },
        "required": ["filter"],
    },
    "list_all": {"properties": {}},
    "set-mode": {"properties": {"mode": TEXT, "arguments": {"type": "object"}}, "required": ["mode"]},
}


async def list_tools(*_: Any) -> types.ListToolsResult:
    tools = [
        types.Tool(name=name, description=f"{name}: does it.", input_schema={"type": "object", **schema})
        for name, schema in SCHEMAS.items()
    ]
    return types.ListToolsResult(tools=[*tools, types.Tool(name=sys.argv[1], input_schema={"type": "object"})])


async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=json.dumps([params.name, params.arguments]))])


async def main() -> None:
    server: Server[Any] = Server("typed", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
