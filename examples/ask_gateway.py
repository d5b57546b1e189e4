"""Asks the gateway as an agent would, and shows what the agent reads.

    python examples/ask_gateway.py TOOL ARGUMENTS [TOOL ARGUMENTS]… [-- OPTION…]
    python examples/ask_gateway.py TOOL ARGUMENTS [TOOL ARGUMENTS]… -- URL

ARGUMENTS are JSON. OPTIONs go to `toolscout gateway`, which this program starts. With a URL, it asks the gateway there,
with the key in TOOLSCOUT_KEY. Tokens are counted as a third of the bytes, as the gateway does.
"""

import asyncio
import json
import os
import sys

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


def connect(options: list[str]) -> Client:
    """Return a client of the gateway at a URL, or of one that is started with these options."""
    if options and options[0].startswith("http"):
        key = os.environ.get("TOOLSCOUT_KEY")
        http = httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"} if key else {}, timeout=60)
        return Client(streamable_http_client(options[0], http_client=http))
    gateway = ["-m", "toolscout", "gateway", *options]
    return Client(StdioServerParameters(command=sys.executable, args=gateway, env=dict(os.environ)))


async def ask(calls: list[tuple[str, str]], options: list[str]) -> None:
    """Make the calls one after the other, and print each with its answer."""
    async with connect(options) as client:
        for name, arguments in calls:
            answer = await client.call_tool(name, json.loads(arguments))
            text = "\n".join(shorten(getattr(part, "text", str(part))) for part in answer.content)
            print(f"> {name} {arguments}\n{text}\n({-(-len(text.encode()) // 3)} tokens)\n")


def shorten(text: str) -> str:
    """Write JSON on one line, and leave other texts alone."""
    try:
        return json.dumps(json.loads(text))
    except ValueError:
        return text


if __name__ == "__main__":
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    asyncio.run(ask(list(zip(words[:cut:2], words[1:cut:2], strict=True)), words[cut + 1 :]))
