"""The list of tools that is read before each call, and the journal that is written after it."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.tests.conftest import Agent, Start, busy
from toolscout.settings import Settings
from toolscout.sources.mcp_session import ListRequest
from toolscout_gateway import calls, server
from toolscout_gateway.definition_checks import DefinitionChecks

pytestmark = pytest.mark.net


class Session:
    """A session whose lists the test gives, and what was asked of it."""

    name = "it"

    def __init__(self, home: Path, **settings: Any) -> None:
        self.settings = Settings(home=home, **settings)
        self.settled_connection: Any = self
        self.is_closed = False
        self.asked: list[ListRequest] = []
        self.used: list[ListRequest | None] = []
        self.stored: list[Any] = []

    async def begin_list(self, trace: object = None) -> ListRequest:
        reader: Any = self
        request = ListRequest(reader, asyncio.get_running_loop().time(), asyncio.get_running_loop().create_future())
        self.asked.append(request)
        return request

    async def list_tools(self, limit: int, *, timed: bool, begun: ListRequest | None) -> list[Any]:
        self.used.append(begun)
        return ["tool", len(self.used)]

    async def wait_ready(self) -> Any:
        return self

    async def is_stored(self, tools: list[Any]) -> bool:
        return False

    async def store_list(self, connection: object, tools: list[Any]) -> None:
        self.stored.append(tools)

    def end_session(self, error: Exception) -> None:
        raise AssertionError(error)


def test_a_check_uses_the_list_that_its_call_asked_for_and_stores_it(tmp_path: Path) -> None:
    async def body() -> None:
        session = Session(tmp_path)
        checks = DefinitionChecks(session)
        begun = await checks.begin()
        await checks.run(begun)
        assert session.asked == session.used == [begun] and session.stored == [["tool", 1]]
        await checks.run(None)
        assert len(session.asked) == len(session.stored) == 2, "each call asks anew"

    anyio.run(body)


def test_a_list_that_is_older_than_one_read_since_is_asked_for_again(tmp_path: Path) -> None:
    async def body() -> None:
        session = Session(tmp_path)
        checks = DefinitionChecks(session)
        begun = await checks.begin()
        async with checks.list_lock:
            checks.note_list()  # the server said that its tools changed
        await checks.run(begun)
        assert session.used == session.asked[1:] and len(session.asked) == 2

    anyio.run(body)


def test_calls_at_the_same_time_ask_once_and_share_a_check(tmp_path: Path) -> None:
    async def body() -> None:
        session = Session(tmp_path)
        checks = DefinitionChecks(session)
        first, second = await checks.begin(), await checks.begin()
        assert first is not None and second is None
        async with anyio.create_task_group() as group:
            for begun in (first, second, None, None):
                group.start_soon(checks.run, begun)
        assert len(session.used) == 2, "one for the call that asked, one for those that came after it asked"

    anyio.run(body)


def test_nothing_is_asked_early_where_the_list_is_not_read_before_calls(tmp_path: Path) -> None:
    async def body() -> None:
        session = Session(tmp_path, trust="off")
        checks = DefinitionChecks(session)
        assert await checks.begin() is None
        await checks.run(None)
        session.settings, session.settled_connection = Settings(home=tmp_path), None
        assert await checks.begin() is None and not session.asked and not session.used

    anyio.run(body)


def test_the_arguments_are_checked_while_the_server_lists_its_tools(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    check = DefinitionChecks._check

    async def note_check(self: Any, *arguments: Any) -> Any:
        order.append("begun" if arguments[1] is not None else "not begun")
        begun = await check(self, *arguments)
        order.append("listed")
        return begun

    def note_arguments(*arguments: Any) -> bool:
        order.append("arguments")
        return calls.accepts_at_once(*arguments)

    async def body() -> None:
        async with start({"it": busy()}) as agent:
            await agent.call("it/echo", text="x")
            order.clear()
            await agent.call("it/echo", text="x")
            assert order[:3] == ["arguments", "begun", "listed"]

    monkeypatch.setattr(DefinitionChecks, "_check", note_check)
    monkeypatch.setattr(server, "accepts_at_once", note_arguments)
    anyio.run(body)


def hold_journal(agent: Agent) -> sqlite3.Connection:
    other = sqlite3.connect(agent.gateway.scout.journal.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


@pytest.mark.folder_only("in a database other writers hold nobody up")
def test_a_call_waits_for_a_journal_that_somebody_writes_to_and_nobody_else_does(start: Start, home: str) -> None:
    if home.startswith("postgresql"):
        pytest.skip("one connection of a file is enough here")

    async def body() -> None:
        async with start({"it": busy()}) as agent:
            await agent.call("it/echo", text="x")
            other, ends = hold_journal(agent), anyio.Event()

            async def call() -> None:
                await agent.call("it/echo", text="x")
                ends.set()

            async with anyio.create_task_group() as group:
                group.start_soon(call)
                for _ in range(20):
                    await agent.use("describe_tools", ids=["it/echo"])
                assert not ends.is_set() and len(agent.events("call")) == 1
                other.execute("ROLLBACK")
            assert [event["ok"] for event in agent.events("call")] == [True, True]
            other.close()

    anyio.run(body)


def test_calls_are_in_the_journal_before_their_answers_and_its_log_does_not_grow_for_ever(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolscout_gateway.call_log.THREAD_EVERY", 4)
    threads: list[bool] = []

    async def body() -> None:
        async with start({"it": busy()}) as agent:
            host = agent.gateway.upstreams
            run, write = host.run_in_thread, agent.gateway.call_log._write

            async def note(function: Any, *arguments: Any, **options: Any) -> Any:
                threads.append(getattr(function, "func", None) == write)
                return await run(function, *arguments, **options)

            monkeypatch.setattr(host, "run_in_thread", note)
            for number in range(1, 9):
                await agent.call("it/echo", text="x")
                assert len(agent.events("call")) == number
            if agent.gateway.scout.settings.database is None:
                assert threads.count(True) == 2
                (pages,) = agent.gateway.scout.journal.connection.execute("PRAGMA wal_autocheckpoint").fetchone()
                assert pages == 1000, "other writers of this thread move the log into the file as usual"

    anyio.run(body)


TASK_SERVER = """
import json, sys
def tool(name, **more):
    return {"name": name, "description": f"{name}: resizes pictures.", "inputSchema": {"type": "object"}, **more}
modes = ("required", "optional", "forbidden")
tools = [tool("plain"), *(tool(mode, execution={"taskSupport": mode}) for mode in modes)]
for line in sys.stdin:
    message = json.loads(line)
    method, result = message["method"], {}
    if method == "initialize":
        info = {"name": "tasks", "version": "1"}
        capabilities = {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}}
        result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
    elif method == "tools/list":
        result = {"tools": tools}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": json.dumps(sorted(message["params"]))}]}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def test_a_tool_that_runs_only_as_a_task_is_found_and_refused_and_others_are_called(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "server.py").write_text(TASK_SERVER)

    async def body() -> None:
        async with start({"it": {"command": sys.executable, "args": [str(tmp_path / "server.py")]}}) as agent:
            for name in ("plain", "optional", "forbidden"):
                assert "task" not in await agent.text(f"it/{name}")
            refused = await agent.call("it/required")
            assert refused.is_error and "only as a task" in refused.content[0].text
            described = await agent.use("describe_tools", ids=["it/required"])
            assert "only as a task" in described.content[0].text

    anyio.run(body)
