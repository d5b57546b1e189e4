"""FastMCP: a server whose clients search its tools through toolscout. The client is a script."""

import asyncio
import tempfile

from fastmcp import Client, FastMCP

from toolscout import Scout
from toolscout.adapters.fastmcp import ToolscoutTransform

server = FastMCP("office")


@server.tool
def forecast(city: str) -> str:
    """The weather of the coming days in a city."""
    return f"rain in {city}"


@server.tool
def send_mail(to: str, text: str) -> str:
    """Send an electronic letter to somebody."""
    return "sent"


async def talk() -> None:
    async with Client(server) as client:
        print("listed:", sorted(tool.name for tool in await client.list_tools()))
        found = await client.call_tool("search_tools", {"query": "will it rain in the coming days?"})
        print("found:", [tool["name"] for tool in found.structured_content["result"]])
        done = await client.call_tool("call_tool", {"name": "forecast", "arguments": {"city": "Oslo"}})
        print(done.content[0].text)


def main() -> None:
    with tempfile.TemporaryDirectory() as home, Scout(home) as scout:
        server.add_transform(ToolscoutTransform(scout, max_results=1))
        asyncio.run(talk())


if __name__ == "__main__":
    main()
