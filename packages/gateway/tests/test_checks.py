"""The list of tools that a call relies on, and the journal that is written after it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from gateway.tests.conftest import Agent, Start, busy
from toolscout_gateway.sessions import upstream

pytestmark = pytest.mark.net


@pytest.fixture
def age(monkeypatch: pytest.MonkeyPatch) -> float:
    """A short time for which calls use the last list."""
    monkeypatch.setattr(upstream, "MAX_LIST_AGE_S", 0.5)
    return 0.5


def count_lists(agent: Agent) -> Callable[[], int]:
    """Count from now on how often the tools of `it` are listed."""
    connection = agent.gateway.upstreams.servers["it"].catalogued_connection
    assert connection is not None
    lists: list[float] = []
    read = connection.list_tools

    async def note(*arguments: Any, **options: Any) -> Any:
        lists.append(time.monotonic())
        return await read(*arguments, **options)

    connection.list_tools = note  # type: ignore[method-assign]
    return lambda: len(lists)


def test_calls_use_the_list_of_tools_of_the_last_seconds(start: Start) -> None:
    async def body() -> None:
        async with start({"it": busy()}) as agent:
            count = count_lists(agent)
            for _ in range(10):
                assert await agent.text("it/echo", text="x") == "x"
            assert count() == 0

    anyio.run(body)


def test_calls_at_the_same_time_share_a_list_that_is_due(start: Start, age: float) -> None:
    async def body() -> None:
        async with start({"it": busy()}) as agent:
            count = count_lists(agent)
            await anyio.sleep(age)
            async with anyio.create_task_group() as group:
                for _ in range(10):
                    group.start_soon(agent.text, "it/echo")
            assert count() == 1

    anyio.run(body)


@pytest.mark.parametrize("announced", [True, False])
def test_a_tool_that_changed_is_not_called(announced: bool, start: Start, age: float) -> None:
    async def body() -> None:
        async with start({"it": busy()}) as agent:
            assert not (await agent.call("it/changing")).is_error
            await agent.call("it/change", quiet=not announced)
            await anyio.sleep(0.1 if announced else age)
            answer = await agent.call("it/changing")
            assert answer.is_error and "toolscout approve" in answer.content[0].text
            described = await agent.use("describe_tools", ids=["it/changing"])
            assert described.is_error and "Version" not in described.content[0].text
            assert await agent.text("it/echo", text="the others go on") == "the others go on"

    anyio.run(body)


@pytest.mark.parametrize("failing", ["fail", "refuse"])
def test_a_tool_that_changed_is_not_called_after_an_error(failing: str, start: Start) -> None:
    async def body() -> None:
        async with start({"it": busy()}) as agent:
            await agent.call("it/change", quiet=True)
            assert (await agent.call(f"it/{failing}")).is_error
            answer = await agent.call("it/changing")
            assert answer.is_error and "toolscout approve" in answer.content[0].text

    anyio.run(body)


def test_an_agent_reads_of_a_change_soon_after_the_error(start: Start) -> None:
    async def body() -> None:
        async with start({"it": busy()}) as agent:
            await agent.call("it/change", quiet=True)
            await agent.call("it/fail")
            with anyio.fail_after(10):
                while "approve" not in str(await agent.use("describe_tools", ids=["it/changing"])):
                    await anyio.sleep(0.02)

    anyio.run(body)


def test_without_trust_in_definitions_lists_are_read_on_notice_alone(start: Start, age: float) -> None:
    async def body() -> None:
        async with start({"it": busy()}, settings={"trust": "off"}) as agent:
            count = count_lists(agent)
            await agent.call("it/fail")
            await anyio.sleep(age)
            await agent.call("it/echo", text="x")
            assert count() == 0
            await agent.call("it/change")
            await agent.call("it/echo", text="x")
            assert count() > 0

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
    monkeypatch.setattr("toolscout_gateway.calls.router.CALLS_PER_CHECKPOINT", 4)
    threads: list[bool] = []

    async def body() -> None:
        async with start({"it": busy()}) as agent:
            host = agent.gateway.upstreams.host
            run, write = host.run_in_thread, agent.gateway.router._append_call

            async def note(function: Any, *arguments: Any, **options: Any) -> Any:
                threads.append(function == write)
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
