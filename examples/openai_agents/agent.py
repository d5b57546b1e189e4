"""OpenAI Agents SDK: the gateway is an MCP server, so the agent sees four tools, however many stand behind."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

# --- copy from here ---------------------------------------------------------------------------------------------------
import asyncio
import os

from agents import Agent, Runner
from agents.mcp import MCPServerStdio
from office import QUESTION

GATEWAY = {
    "command": sys.executable,
    "args": ["-m", "toolscout", "--home", "my-tools", "gateway", "--config", os.environ.get("SERVERS", "servers.json")],
}


async def main() -> None:
    async with MCPServerStdio(GATEWAY, client_session_timeout_seconds=60) as gateway:
        agent = Agent(name="Helper", model="gpt-5.4", instructions="Use tools.", mcp_servers=[gateway])
        print((await Runner.run(agent, QUESTION)).final_output)


asyncio.run(main())
