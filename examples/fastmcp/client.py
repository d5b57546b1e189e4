"""A client of the server: it searches, then calls what it found."""

import asyncio
import os

from fastmcp import Client


async def main() -> None:
    async with Client(f"http://127.0.0.1:{os.environ.get('PORT', '8000')}/mcp") as client:
        print("listed:", sorted(tool.name for tool in await client.list_tools()))
        found = await client.call_tool("search_tools", {"query": "will it rain in the coming days?"})
        [tool] = found.structured_content["result"]
        done = await client.call_tool("call_tool", {"name": tool["name"], "arguments": {"city": "Oslo"}})
        print(f"{tool['name']}: {done.content[0].text}")


asyncio.run(main())
