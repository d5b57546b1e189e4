"""Servers that forget sessions, send what the protocol does not have, or ask in the way of an older one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import ElicitResult

from gateway.tests.conftest import SERVERS, Start
from servers.quirks import LOST, QuirkyWeb

pytestmark = pytest.mark.net


def run_quirks(quirk: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(SERVERS / "quirks.py"), quirk]}


@pytest.fixture
def web(request: pytest.FixtureRequest) -> Iterator[QuirkyWeb]:
    server = QuirkyWeb(request.param)
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("web", sorted(set(LOST) - {"refused"}), indirect=True)
def test_a_session_that_the_server_forgot_is_begun_anew_and_the_call_is_made_once_again(
    web: QuirkyWeb, start: Start
) -> None:
    async def body() -> None:
        async with start({"it": {"url": web.address}}) as agent:
            first = await agent.text("it/hello")
            for _ in range(2):
                web.forget()
                web.seen.clear()
                answers = [await agent.text("it/hello") for _ in range(3)]
                assert len({first, *answers}) == 2, "one new session"
                assert web.seen.count("initialize") == 1 and web.seen.count("tools/call") == 4
                [first] = set(answers)
            assert agent.gateway.upstreams.servers["it"].failed_calls == 0
            assert not [said for said in agent.said if "it" in said.split(":")[0]]

    anyio.run(body)


@pytest.mark.parametrize("web", ["404-text"], indirect=True)
def test_a_list_that_is_due_is_read_in_the_new_session(
    web: QuirkyWeb, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolscout_gateway.sessions.upstream.MAX_LIST_AGE_S", 0.2)

    async def body() -> None:
        async with start({"it": {"url": web.address}}) as agent:
            first = await agent.text("it/hello")
            await anyio.sleep(0.3)
            web.forget()
            assert await agent.text("it/hello") not in ("", first)

    anyio.run(body)


@pytest.mark.parametrize("web", ["404-text"], indirect=True)
def test_a_server_that_forgets_every_session_at_once_is_named(web: QuirkyWeb, start: Start) -> None:
    async def body() -> None:
        async with start({"it": {"url": web.address}}) as agent:
            await agent.text("it/hello")
            web.sessions = type("Nothing", (set,), {"add": lambda self, item: None})()
            with anyio.fail_after(60):
                answer = await agent.call("it/hello")
            assert answer.is_error and "'it'" in answer.content[0].text

    anyio.run(body)


@pytest.mark.parametrize("web", ["refused"], indirect=True)
def test_a_request_that_is_refused_for_its_arguments_is_not_sent_again(web: QuirkyWeb, start: Start) -> None:
    async def body() -> None:
        async with start({"it": {"url": web.address}}) as agent:
            assert "bad x" in await agent.text("it/hello")
            assert web.seen.count("initialize") == web.seen.count("tools/call") == 1

    anyio.run(body)


@pytest.mark.parametrize("quirk", ["structured-only", "null-content", "empty", "nulls", "no-schema"])
def test_a_result_with_less_than_the_protocol_asks_for_arrives(quirk: str, start: Start) -> None:
    async def body() -> None:
        async with start({"it": run_quirks(quirk)}) as agent:
            answer = await agent.call("it/hello")
            assert not answer.is_error
            if quirk in ("structured-only", "null-content"):
                assert answer.structured_content == {"n": 1, "of": None}
            elif quirk == "empty":
                assert answer.content == []
            else:
                assert answer.content[0].text == "hello"

    anyio.run(body)


def test_one_odd_resource_or_prompt_costs_only_itself(start: Start) -> None:
    async def body() -> None:
        async with start(
            {"it": {"command": sys.executable, "args": [str(SERVERS / "quirks.py"), "odd-offers"]}}
        ) as agent:
            assert [item.uri for item in (await agent.client.list_resources()).resources] == ["memo://1"]
            assert [item.name for item in (await agent.client.list_prompts()).prompts] == ["it/greet"]

    anyio.run(body)


ASKING = """
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel
class Name(BaseModel):
    name: str
server = MCPServer("asking")
@server.tool()
async def ask(context: Context) -> str:
    answer = await context.elicit("Your name?", Name)
    return answer.data.name
server.run()
"""


async def say_ann(_: object, params: object) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ann"})


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("revision", ["", "2025-11-25", "2026-07-28"])
def test_a_server_that_asks_in_the_middle_of_a_call_gets_the_protocol_that_has_this(
    revision: str, mode: str, start: Start
) -> None:
    entry = {"command": sys.executable, "args": ["-c", ASKING], **({"protocol": revision} if revision else {})}

    async def body() -> None:
        async with start({"it": entry}) as agent:
            client = Client(agent.gateway.server, mode=mode, elicitation_callback=say_ann)
            async with client:
                call = {"id": "it/ask", "arguments": {}}
                answer = await client.call_tool("call_tool", call)
                if not revision:
                    assert answer.is_error and "call the tool again" in answer.content[0].text
                    answer = await client.call_tool("call_tool", call)
                if revision == "2026-07-28":
                    assert answer.is_error and '"protocol": "2025-11-25"' in answer.content[0].text
                else:
                    assert answer.content[0].text == "Ann"

    anyio.run(body)
