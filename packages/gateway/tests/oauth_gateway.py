"""A gateway over HTTP in this process, with callers who have keys, tokens, and a browser."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from servers.oauth import Bank, Browser, Issuer, Port, QuietServer
from toolscout.home.access.live_policy import LivePolicies
from toolscout.scout import Scout
from toolscout.trust.policy import hashed_key
from toolscout.trust.sealing import SEALING_VARIABLE, make_sealing_key
from toolscout_gateway import Gateway, Options
from toolscout_gateway.access.http import app

KEYS = {"ann": "tsk_of_ann_0123456789", "bob": "tsk_of_bob_0123456789"}


@pytest.fixture(autouse=True)
def sealing_key(monkeypatch: pytest.MonkeyPatch) -> str:
    """The key of the vault, for every test of a module that imports this fixture."""
    key = make_sealing_key()
    monkeypatch.setenv(SEALING_VARIABLE, key)
    return key


@pytest.fixture(scope="module")
def running() -> Iterator[Bank]:
    """A server with OAuth and its issuer, for all tests of a module."""
    with Issuer(exchanges=True).running() as issuer, Bank(issuer).running() as bank:
        yield bank


@pytest.fixture
def issuer(running: Bank) -> Issuer:
    """The issuer, as if it were new."""
    issuer = running.issuer
    issuer.issued.clear()
    issuer.documents.clear()
    issuer.registrations = issuer.refreshed = issuer.exchanged = 0
    return issuer


@pytest.fixture
def bank(running: Bank, issuer: Issuer) -> Bank:
    """The server, as if it and its issuer were new."""
    running.seen.clear()
    return running


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
