"""Servers that run a call as a task: the gateway waits for the result, in place of callers who know no tasks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import ElicitResult

from gateway.tests.conftest import SERVERS, Agent, Start
from gateway.tests.test_gateway import run

pytestmark = pytest.mark.net
both_callers = pytest.mark.parametrize("mode", ["auto", "legacy"])
ROOT = Path(__file__).parents[3]
DOCUMENTED = "| task, in MCP 2025-11-25 and 2026-07-28 | its result, once it is there; its status as progress |"


def tasked(*arguments: str, **changes: Any) -> dict[str, dict[str, Any]]:
    """The entries for the server of `tests/servers/tasked.py`."""
    return {"t": {"command": sys.executable, "args": [str(SERVERS / "tasked.py"), *arguments], **changes}}


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    return await client.call_tool("call_tool", {"id": f"t/{tool}", "arguments": arguments})


async def count(agent: Agent) -> dict[str, int]:
    """How often the server received each method."""
    return json.loads(await agent.text("t/counts"))  # type: ignore[no-any-return]


async def wait_for_cancel(agent: Agent) -> None:
    with anyio.fail_after(20):
        while "tasks/cancel" not in await count(agent):
            await anyio.sleep(0.05)


@both_callers
def test_the_page_says_that_a_caller_gets_the_result_and_the_status_of_a_task(start: Start, mode: str) -> None:
    # The test of the older protocol is below.
    assert DOCUMENTED in (ROOT / "docs" / "use" / "gateway-traffic.md").read_text()
    steps: list[Any] = []

    async def note(*step: Any) -> None:
        steps.append(step)

    async def body(agent: Agent) -> None:
        async with Client(agent.gateway.server, mode=mode) as client:
            for _ in range(2):
                steps.clear()
                asking = {"id": "t/must", "arguments": {"seconds": 1.2}}
                answer = await client.call_tool("call_tool", asking, progress_callback=note)
                assert answer.content[0].text == "must as a task"
                assert steps == [(1, None, "first half"), (2, None, "second half")]
        received = await count(agent)
        assert received["tools/call"] == 4, "one refusal; then tasks are declared at once"
        assert "tasks/cancel" not in received
        assert received["tasks/get"] <= 2 * 9, "at most every 200 ms, as the server asks"

    run(start, body, tasked())


def test_a_tool_that_need_not_be_a_task_reports_its_progress_in_numbers(start: Start) -> None:
    steps: list[Any] = []

    async def note(*step: Any) -> None:
        steps.append(step)

    async def body(agent: Agent) -> None:
        asking = {"id": "t/may", "arguments": {}}
        answer = await agent.client.call_tool("call_tool", asking, progress_callback=note)
        assert answer.content[0].text == "may without a task"
        assert steps == [(1, 2, None)]

    run(start, body, tasked())


@both_callers
def test_a_task_asks_the_user_and_gets_the_answer(start: Start, mode: str) -> None:
    asked: list[str] = []

    async def answer(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"name": "Ann"})

    async def body(agent: Agent) -> None:
        async with Client(agent.gateway.server, mode=mode, elicitation_callback=answer) as client:
            told = json.loads((await call(client, "ask")).content[0].text)
        assert asked == ["[t] Name?"]
        assert told["q1"]["content"] == {"name": "Ann"}
        assert "tasks/cancel" not in await count(agent)

    run(start, body, tasked())


@both_callers
def test_a_task_whose_question_nobody_can_answer_is_cancelled(start: Start, mode: str) -> None:
    async def body(agent: Agent) -> None:
        async with Client(agent.gateway.server, mode=mode) as client:
            answer = await call(client, "ask")
        assert answer.is_error and "your client cannot give" in answer.content[0].text
        await wait_for_cancel(agent)

    run(start, body, tasked())


def test_a_task_that_fails_or_is_cancelled_by_its_server_is_an_error_of_the_call(start: Start) -> None:
    async def body(agent: Agent) -> None:
        failed, gone = await agent.call("t/fail"), await agent.call("t/gone")
        assert failed.is_error and "no ink" in failed.content[0].text
        assert gone.is_error and "the task of this call was cancelled" in gone.content[0].text
        assert "tasks/cancel" not in await count(agent)

    run(start, body, tasked())


@both_callers
def test_a_caller_who_gives_up_cancels_the_task(start: Start, mode: str) -> None:
    async def body(agent: Agent) -> None:
        async with Client(agent.gateway.server, mode=mode) as client:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: call(client, "must", seconds=60))
                with anyio.fail_after(20):
                    while "tasks/get" not in await count(agent):
                        await anyio.sleep(0.05)
                group.cancel_scope.cancel()
            await wait_for_cancel(agent)

    run(start, body, tasked())


def test_the_time_limit_of_the_entry_ends_a_task(start: Start) -> None:
    async def body(agent: Agent) -> None:
        answer = await agent.call("t/must", seconds=60)
        assert answer.is_error and "did not answer within 1.5 s" in answer.content[0].text
        assert (await count(agent))["tasks/cancel"] == 1

    run(start, body, tasked(timeout=1.5))


@both_callers
def test_a_tool_that_runs_only_as_a_task_in_the_older_protocol_is_found_and_called(start: Start, mode: str) -> None:
    steps: list[Any] = []

    async def note(*step: Any) -> None:
        steps.append(step)

    async def body(agent: Agent) -> None:
        found = await agent.search("the tool must")
        assert "t/must" in [tool["id"] for tool in found["results"][0]["tools"]]
        async with Client(agent.gateway.server, mode=mode) as client:
            asking = {"id": "t/must", "arguments": {"seconds": 1.2}}
            answer = await client.call_tool("call_tool", asking, progress_callback=note)
            assert answer.content[0].text == "must as a task"
            assert steps == [(1, None, "first half"), (2, None, "second half")]
            assert (await call(client, "may")).content[0].text == "may without a task"
            failed = await call(client, "fail")
            assert failed.is_error and failed.content[0].text == "fail as a task"
        assert "tasks/cancel" not in await count(agent)
        with anyio.move_on_after(1):
            await agent.call("t/must", seconds=60)
        await wait_for_cancel(agent)

    run(start, body, tasked("older"))


@pytest.mark.node
@pytest.mark.slow
@pytest.mark.timeout(240)
@both_callers
def test_a_task_of_the_reference_server_asks_and_answers(start: Start, mode: str) -> None:
    steps: list[Any] = []

    async def note(*step: Any) -> None:
        steps.append(step[2])

    async def answer(_: Any, params: Any) -> ElicitResult:
        [(name, field)] = params.requested_schema["properties"].items()
        steps.append(params.message[:3])
        return ElicitResult(action="accept", content={name: field["oneOf"][0]["const"]})

    async def body(agent: Agent) -> None:
        async with Client(agent.gateway.server, mode=mode, elicitation_callback=answer) as client:
            asking = {"id": "e/simulate-research-query", "arguments": {"topic": "tea", "ambiguous": True}}
            report = await client.call_tool("call_tool", asking, progress_callback=note)
        assert "Research Report: tea" in report.content[0].text, report
        assert steps[0] == "Gathering sources..." and steps[-1] == "[e]", steps

    entry = {"command": str(shutil.which("npx")), "args": ["-y", "@modelcontextprotocol/server-everything"]}
    run(start, body, {"e": {**entry, "timeout": 180}})


FASTMCP = """
import asyncio
from fastmcp import Context, FastMCP
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension

server = FastMCP("tasks")
server.add_extension(TasksExtension())


@server.tool(task=TaskConfig(mode="required"))
async def must(n: int) -> str:
    await asyncio.sleep(1)
    return f"must {n}"


@server.tool(task=True)
async def may(n: int, context: Context) -> str:
    await context.report_progress(n, 10)
    return f"may {n}"


server.run(show_banner=False)
"""


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tasks_of_fastmcp_run_through_the_gateway(start: Start, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"  # fastmcp-tasks needs another fastmcp than the one here
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "-q", "fastmcp-tasks==4.1.4", "fastmcp==4.1.4"], check=True)
    (tmp_path / "server.py").write_text(FASTMCP)
    steps: list[Any] = []

    async def note(*step: Any) -> None:
        steps.append(step)

    async def body(agent: Agent) -> None:
        for mode in ("auto", "legacy"):
            steps.clear()
            async with Client(agent.gateway.server, mode=mode) as client:
                assert (await call(client, "must", n=3)).content[0].text == "must 3"
                asking = {"id": "t/may", "arguments": {"n": 3}}
                answer = await client.call_tool("call_tool", asking, progress_callback=note)
                assert answer.content[0].text == "may 3"
                assert steps == [(3, 10, None)]

    run(start, body, {"t": {"command": str(python), "args": [str(tmp_path / "server.py")], "timeout": 60}})
