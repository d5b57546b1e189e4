"""What passes between a caller and a server beside requests and answers, at both ages of the protocol on both sides."""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import ElicitRequestURLParams, ElicitResult

from gateway.conftest import SERVERS, Agent, Start
from gateway.test_gateway import run

pytestmark = pytest.mark.net
AGES = ("modern", "legacy")
both_ages = pytest.mark.parametrize("server", AGES)
both_callers = pytest.mark.parametrize("mode", ["auto", "legacy"])


def full(age: str) -> dict[str, Any]:
    """An entry for the server of `tests/servers/full.py`."""
    return {"command": sys.executable, "args": [str(SERVERS / "full.py"), age]}


class User:
    """Answers questions, and keeps them."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked, self.logged = list(answers), [], []

    async def answer(self, _: Any, params: Any) -> ElicitResult:
        self.asked.append(params)
        said = self.answers.pop(0)
        if said in ("decline", "cancel") or isinstance(params, ElicitRequestURLParams):
            return ElicitResult(action=said)
        return ElicitResult(action="accept", content={"name": said})

    async def log(self, params: Any) -> None:
        self.logged.append((params.level, params.data))

    def client(self, agent: Agent, mode: str, **options: Any) -> Client:
        return Client(
            agent.gateway.server, mode=mode, elicitation_callback=self.answer, logging_callback=self.log, **options
        )


async def call(client: Client, id: str, **arguments: Any) -> Any:
    return await client.call_tool("call_tool", {"id": id, "arguments": arguments})


@both_ages
@both_callers
def test_a_server_asks_the_user_and_gets_the_answer(start: Start, server: str, mode: str) -> None:
    async def body(agent: Agent) -> None:
        user = User("Ann", "Bob")
        async with user.client(agent, mode) as client:
            answer = await call(client, "a/ask", twice=True)
        assert json.loads(answer.content[0].text) == [
            {"action": "accept", "content": {"name": name}} for name in ("Ann", "Bob")
        ]
        assert [params.message for params in user.asked] == ["[a] Name 0?", "[a] Name 1?"]
        assert user.asked[0].requested_schema["required"] == ["name"]
        assert [(event["tool"], event["ok"]) for event in agent.events("call")] == [("a/ask", True)]

    run(start, body, {"a": full(server)})
