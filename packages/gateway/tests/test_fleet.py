"""Many servers with many tools: the agent reads little, finds what it needs, and calls it."""

from __future__ import annotations

import anyio
import pytest
from mcp import Client, StdioServerParameters

from gateway.tests.conftest import Agent, Start, busy
from gateway.tests.test_gateway import run
from toolscout_gateway.text import count_tokens

pytestmark = pytest.mark.net
EACH = 50
OWN = 15  # tools that every busy server has


def fleet(start: Start, servers: int, seconds: float) -> None:
    entries = {f"server{number}": busy(str(EACH - OWN), f"Warehouse{number}") for number in range(servers)}

    async def body(agent: Agent) -> None:
        with anyio.fail_after(seconds):
            while len(agent.gateway.upstreams.servers) < servers:
                await anyio.sleep(0.05)
            await agent.settled(seconds)
        assert sum(source.tools for source in agent.gateway.scout.sources()) == servers * EACH
        last = servers - 1
        wanted = f"Warehouse{last}: merge one flight after the other"
        [found] = (await agent.search(wanted, limit=5))["results"]
        ids = [tool["id"] for tool in found["tools"]]
        assert any(id.startswith(f"server{last}/") for id in ids)
        assert await agent.text(f"server{last}/echo", text="x") == "x"

        ours = await agent.client.list_tools()
        entry = entries["server0"]
        async with Client(StdioServerParameters(command=entry["command"], args=entry["args"])) as direct:
            theirs = await direct.list_tools()
        read, spared = (
            count_tokens(result.model_dump_json(by_alias=True, exclude_none=True, include={"tools"}))
            for result in (ours, theirs)
        )
        assert read <= 0.05 * spared * servers

    run(start, body, entries, settle=False)


@pytest.mark.slow
def test_eight_servers_with_four_hundred_tools_cost_the_agent_a_twentieth(start: Start) -> None:
    fleet(start, 8, 40)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_two_hundred_servers_with_ten_thousand_tools(start: Start) -> None:
    fleet(start, 200, 400)
