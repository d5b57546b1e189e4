"""The session of `client_sessions.py` with FastMCP's client, of version 3 or 4."""

import json
import sys
from typing import Any

import anyio
from fastmcp import Client
from fastmcp.client.transports import StdioTransport


async def answer(message: str, kind: Any, question: Any, context: Any) -> Any:
    return kind(name="Ann") if kind else {"name": "Ann"}


def show(result: Any) -> Any:
    return {
        "content": [block.model_dump(mode="json", by_alias=True) for block in result.content],
        "structuredContent": result.structured_content,
        "_meta": result.meta,
        "isError": result.is_error,
    }


async def main() -> None:
    client: Any = Client(StdioTransport(sys.argv[1], sys.argv[2:]), elicitation_handler=answer)
    async with client:
        began = client.initialize_result
        steps: dict[str, Any] = {"protocol": began.protocolVersion if hasattr(began, "protocolVersion") else None}
        steps["protocol"] = steps["protocol"] or getattr(client, "protocol_version", "")

        async def call(name: str, **values: Any) -> Any:
            return show(await client.call_tool(name, values, raise_on_error=False))

        steps["search"] = await call("search_tools", queries=["structured number"])
        steps["call"] = await call("call_tool", id="it/structured", arguments={"number": 7})
        steps["question"] = await call("call_tool", id="it/ask", arguments={})
        steps["cut"] = cut = await call("call_tool", id="it/big", arguments={})
        handle = (cut.get("_meta") or {}).get("toolscout/result", {}).get("handle", "")
        steps["rest"] = await call("read_result", handle=handle, path="content.0.text", offset=19_000)
        contents = await client.read_resource("memo://notes/1")
        steps["resource"] = [item.model_dump(mode="json", by_alias=True) for item in contents]
        number = getattr(client.session, "_request_id", None)
        with anyio.move_on_after(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: call("call_tool", id="it/hang", arguments={}))
                await anyio.sleep(2)
                if number is not None:  # version 3; in version 4 the end of the scope cancels the request
                    await client.cancel(number)
                    await anyio.sleep(1)
                tasks.cancel_scope.cancel()
        await anyio.sleep(1)
        steps["cancelled"] = await call("call_tool", id="it/cancelled", arguments={})
    print(json.dumps(steps, default=str))  # noqa: T201


anyio.run(main)
