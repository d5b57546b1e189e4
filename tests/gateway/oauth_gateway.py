"""A gateway over HTTP in this process, with callers who have keys, tokens, and a browser."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from servers.oauth import Browser, Port, QuietServer
from toolscout.access.live_policy import LivePolicies
from toolscout.access.policy import hashed_key
from toolscout.gateway import Gateway, Options
from toolscout.gateway.http import app
from toolscout.scout import Scout

KEYS = {"ann": "tsk_of_ann_0123456789", "bob": "tsk_of_bob_0123456789"}


def write_policy(folder: Path, more: str = "") -> Path:
    """A policy with two callers who may do everything."""
    path = folder / "policy.toml"
    callers = "".join(f'[[caller]]\nname = "{n}"\nkey = "{hashed_key(k)}"\nallow = ["**"]\n' for n, k in KEYS.items())
    path.write_text(callers + more)
    return path


@dataclasses.dataclass
class Site:
    """A gateway that serves HTTP, and what the tests look at."""

    gateway: Gateway
    url: str
    said: list[str]

    @contextlib.asynccontextmanager
    async def client(
        self, credential: str, browser: Browser | None = None, *, mode: str = "auto", action: str = "accept"
    ) -> AsyncIterator[Caller]:
        """A client of the SDK. With a browser it can show links to its user."""
        asked: list[Any] = []

        async def answer(_: Any, params: Any) -> ElicitResult:
            asked.append(params)
            if action == "accept" and browser is not None:
                await anyio.to_thread.run_sync(browser.open, params.url)
            return ElicitResult(action=action)  # type: ignore[arg-type]

        headers = {"authorization": f"Bearer {credential}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            transport = streamable_http_client(self.url, http_client=http)
            ask = {} if browser is None else {"elicitation_callback": answer}
            async with Client(transport, mode=mode, **ask) as client:
                yield Caller(client, asked)


@dataclasses.dataclass
class Caller:
    """One caller, and what they were asked."""

    client: Client
    asked: list[Any]

    async def call(self, id: str, **arguments: Any) -> Any:
        return await self.client.call_tool("call_tool", {"id": id, "arguments": arguments})

    async def text(self, id: str, **arguments: Any) -> str:
        return str((await self.call(id, **arguments)).content[0].text)


@contextlib.asynccontextmanager
async def open_site(
    folder: Path, entries: dict[str, Any], *, home: Any = None, policy: Path | None = None, **settings: Any
) -> AsyncIterator[Site]:
    """Open a gateway over `entries`."""
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries}))
    said: list[str] = []
    port = Port()
    with contextlib.closing(port.socket), Scout(home or folder / "home", **settings) as scout:
        policies = LivePolicies(policy or write_policy(folder))
        gateway = Gateway(scout, Options(configs=(path,)), policies=policies, say=said.append)
        sign_ins = gateway.identities.sign_ins
        sign_ins.base = sign_ins.base or port.url
        application = app(gateway.server, policies, ["127.0.0.1"], gateway.health, identities=gateway.identities)
        service = QuietServer(uvicorn.Config(application, log_level="critical", ws="none", timeout_graceful_shutdown=1))
        async with gateway.running(), anyio.create_task_group() as group:
            group.start_soon(service._serve, [port.socket])
            with anyio.fail_after(60):
                while not service.started or not gateway.upstreams.servers:
                    await anyio.sleep(0.02)
                while any(server.state == "starting" for server in gateway.upstreams.servers.values()):
                    await anyio.sleep(0.02)
            try:
                yield Site(gateway, f"{port.url}/mcp", said)
            finally:
                service.should_exit = True
