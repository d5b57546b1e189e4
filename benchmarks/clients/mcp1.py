# mypy: ignore-errors
"""The session of `client_sessions.py` with version 1 of the MCP SDK for Python."""

import json
import sys
from typing import Any

import anyio
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client


async def answer(context: Any, question: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ann"})


async def main() -> None:
    parameters = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:])
    async with (
        stdio_client(parameters) as (reading, writing),
        ClientSession(reading, writing, elicitation_callback=answer) as session,
    ):
        began = await session.initialize()
        steps: dict[str, Any] = {"protocol": began.protocolVersion}

        async def call(name: str, **values: Any) -> Any:
            return (await session.call_tool(name, values)).model_dump(mode="json", by_alias=True)

        steps["search"] = await call("search_tools", queries=["structured number"])
        steps["call"] = await call("call_tool", id="it/structured", arguments={"number": 7})
        steps["question"] = await call("call_tool", id="it/ask", arguments={})
        steps["cut"] = cut = await call("call_tool", id="it/big", arguments={})
        handle = (cut.get("_meta") or {}).get("toolscout/result", {}).get("handle", "")
        steps["rest"] = await call("read_result", handle=handle, path="content.0.text", offset=19_000)
        steps["resource"] = (await session.read_resource("memo://notes/1")).model_dump(mode="json", by_alias=True)
        async with anyio.create_task_group() as tasks:
            number = session._request_id
            tasks.start_soon(lambda: session.call_tool("call_tool", {"id": "it/hang", "arguments": {}}))
            await anyio.sleep(2)
            notice = types.CancelledNotification(
                method="notifications/cancelled", params=types.CancelledNotificationParams(requestId=number)
            )
            await session.send_notification(types.ClientNotification(notice))
            await anyio.sleep(1)
            tasks.cancel_scope.cancel()
        steps["cancelled"] = await call("call_tool", id="it/cancelled", arguments={})
    print(json.dumps(steps, default=str))  # noqa: T201


anyio.run(main)
