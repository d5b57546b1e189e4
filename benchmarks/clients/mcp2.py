"""The session of `client_sessions.py` with version 2 of the MCP SDK for Python."""

import json
import sys
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp_types import ElicitResult


async def answer(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ann"})


async def main() -> None:
    parameters = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:])
    async with Client(parameters, elicitation_callback=answer) as client:
        steps: dict[str, Any] = {"protocol": client.protocol_version}

        async def call(name: str, **values: Any) -> Any:
            return (await client.call_tool(name, values)).model_dump(mode="json", by_alias=True)

        steps["search"] = await call("search_tools", queries=["structured number"])
        steps["call"] = await call("call_tool", id="it/structured", arguments={"number": 7})
        steps["question"] = await call("call_tool", id="it/ask", arguments={})
        steps["cut"] = cut = await call("call_tool", id="it/big", arguments={})
        handle = (cut.get("_meta") or {}).get("toolscout/result", {}).get("handle", "")
        steps["rest"] = await call("read_result", handle=handle, path="content.0.text", offset=19_000)
        steps["resource"] = (await client.read_resource("memo://notes/1")).model_dump(mode="json", by_alias=True)
        with anyio.move_on_after(2):
            await client.call_tool("call_tool", {"id": "it/hang", "arguments": {}})
        await anyio.sleep(1)
        steps["cancelled"] = await call("call_tool", id="it/cancelled", arguments={})
    print(json.dumps(steps, default=str))  # noqa: T201


anyio.run(main)
