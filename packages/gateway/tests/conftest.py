"""A gateway in this process, with an agent's client that speaks to it."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from homes_in_postgres import find_place
from toolscout.scout import Scout
from toolscout_gateway import Gateway, Options

SERVERS = Path(__file__).parents[3] / "tests" / "servers"


def busy(*arguments: str, **changes: Any) -> dict[str, Any]:
    """An entry for the server of `tests/servers/busy.py`."""
    return {"command": sys.executable, "args": [str(SERVERS / "busy.py"), *arguments], **changes}


def raw(*arguments: str, **changes: Any) -> dict[str, Any]:
    """An entry for the server of `tests/servers/raw.py`."""
    return {"command": sys.executable, "args": [str(SERVERS / "raw.py"), *arguments], **changes}


@dataclasses.dataclass
class Agent:
    """What an agent can do, and what the tests look at."""

    gateway: Gateway
    client: Any
    said: list[str]

    async def use(self, tool: str, **arguments: Any) -> Any:
        return await self.client.call_tool(tool, arguments)

    async def search(self, *queries: str, **more: Any) -> Any:
        return (await self.use("search_tools", queries=list(queries), **more)).structured_content

    async def call(self, id: str, search_id: str | None = None, /, **arguments: Any) -> Any:
        more = {"search_id": search_id} if search_id else {}
        return await self.use("call_tool", id=id, arguments=arguments, **more)

    async def text(self, id: str, /, **arguments: Any) -> str:
        return str((await self.call(id, **arguments)).content[0].text)

    async def settled(self, seconds: float = 30) -> None:
        """Wait until no server is starting."""
        with anyio.fail_after(seconds):
            while not self.gateway.upstreams.servers or any(
                each.state == "starting" for each in self.gateway.upstreams.servers.values()
            ):
                await anyio.sleep(0.02)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return list(self.gateway.scout.journal.read(event=kind))


Start = Callable[..., AbstractAsyncContextManager[Agent]]


@asynccontextmanager
async def open_agent(
    folder: Path,
    entries: dict[str, Any] | None = None,
    *,
    home: str | None = None,
    settle: bool = True,
    scout: Scout | None = None,
    **options: Any,
) -> AsyncIterator[Agent]:
    """Open a gateway over `entries`, with the options given, and a client of the SDK at it."""
    from mcp import Client

    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries or {}}))
    policies, settings = options.pop("policies", None), options.pop("settings", {})
    said: list[str] = []
    with Scout(home or find_place(folder / "home"), **settings) as opened:
        configs = (path,) if entries else ()
        gateway = Gateway(scout or opened, Options(configs=configs, **options), policies=policies, say=said.append)
        async with gateway.running(), Client(gateway.server) as client:
            agent = Agent(gateway, client, said)
            if settle and entries:
                await agent.settled(60)
            yield agent


@pytest.fixture
def start(tmp_path: Path, home: str) -> Start:
    """Opens a gateway; see `open_agent`."""
    return functools.partial(open_agent, tmp_path, home=home)
