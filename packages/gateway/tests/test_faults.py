"""Servers that die, hang, flood, lie and change: the gateway stays up, names the culprit, and serves the others."""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from typing import Any

import anyio
import pytest

from gateway.tests.conftest import Agent, Start, busy, raw
from gateway.tests.test_gateway import run
from toolscout_gateway.sessions.upstream import RELIST_PAUSE_S

pytestmark = pytest.mark.net


async def others_are_served(agent: Agent) -> None:
    assert await agent.text("good/echo", text="still here") == "still here"


def test_a_server_that_dies_in_a_call_is_named_and_started_again(start: Start) -> None:
    async def body(agent: Agent) -> None:
        before = await agent.text("bad/pid")
        answer = await agent.call("bad/die")
        assert answer.is_error and "server 'bad' ended during the call" in answer.content[0].text
        await others_are_served(agent)
        with anyio.fail_after(20):
            while (await agent.call("bad/pid")).is_error:
                await anyio.sleep(0.1)
        assert await agent.text("bad/pid") != before
        assert any("out of luck" in said for said in agent.said)
        assert [event["ok"] for event in agent.events("call")[:3]] == [True, False, True]

    run(start, body, {"bad": busy(), "good": busy()})


def test_a_server_that_cannot_start_is_named_once_however_often_it_is_tried(start: Start) -> None:
    async def body(agent: Agent) -> None:
        await anyio.sleep(2.5)  # three attempts: pauses of half a second, one, two
        assert [said for said in agent.said if said.startswith("bad: ")] == [
            "bad: expected the environment variable NOBODY_SETS_THIS, found it unset: set it"
        ]
        await others_are_served(agent)

    unset = {**busy(), "env": {"KEY": "${NOBODY_SETS_THIS}"}}
    run(start, body, {"bad": unset, "good": busy()})


def test_a_server_that_died_unnoticed_is_started_again_at_the_next_call(start: Start) -> None:
    async def body(agent: Agent) -> None:
        pid = await agent.text("bad/pid")
        os.kill(int(pid), 9)
        await anyio.sleep(0.3)
        with anyio.fail_after(20):
            while (answer := await agent.call("bad/pid")).is_error:
                assert "'bad'" in answer.content[0].text
                await anyio.sleep(0.1)
        assert answer.content[0].text != pid

    run(start, body, {"bad": busy(), "good": busy()})


def test_calls_in_flight_all_get_an_answer_when_their_server_dies(start: Start) -> None:
    async def body(agent: Agent) -> None:
        answers: list[Any] = []

        async def one() -> None:
            answers.append(await agent.call("bad/wait", seconds=30))

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(one)
            with anyio.fail_after(60):
                while len(agent.gateway.upstreams.host.relay._under_way["bad"]) < 10:
                    await anyio.sleep(0.02)
            await agent.call("bad/die")
        assert len(answers) == 10 and all(answer.is_error for answer in answers)
        assert len(agent.events("call")) == 11

    run(start, body, {"bad": busy()})


def test_a_server_that_hangs_is_given_up_after_its_time(start: Start) -> None:
    async def body(agent: Agent) -> None:
        assert "server 'bad' did not answer within 0.5 s" in await agent.text("bad/hang")
        assert await agent.text("bad/echo", text="the session goes on") == "the session goes on"

    run(start, body, {"bad": busy()}, call_timeout=0.5)


def test_the_time_in_an_entry_comes_before_the_gateways(start: Start) -> None:
    async def body(agent: Agent) -> None:
        assert "within 1 s" in await agent.text("bad/hang")

    run(start, body, {"bad": busy(timeout=1)}, call_timeout=600.0)


def test_a_server_that_floods_is_cut_off_and_the_others_are_served(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(agent: Agent) -> None:
        answer = await agent.call("bad/flood")
        assert answer.is_error and "server 'bad'" in answer.content[0].text
        await others_are_served(agent)
        assert not caplog.records  # told once, in a sentence; a record of each line would hold up the others
        with anyio.fail_after(5):
            while not any("lines it wrote are no MCP messages" in said for said in agent.said):
                await anyio.sleep(0.05)

    run(start, body, {"bad": busy(), "good": busy()}, call_timeout=10.0)


def test_an_answer_that_is_no_result_is_an_error_that_names_the_server(start: Start) -> None:
    async def body(agent: Agent) -> None:
        assert "not the result of a tool" in await agent.text("bad/junk")
        assert await agent.text("bad/refuse") == (
            'the tool\'s server answered with the error "no licence for this" (code -32000)'
        )
        assert await agent.text("bad/echo", text="goes on") == "goes on"

    run(start, body, {"bad": busy()})


def test_a_tool_that_changes_is_what_it_is_now_or_waits_for_approval(start: Start) -> None:
    async def body(agent: Agent) -> None:
        assert "Version 1" in agent.gateway.scout.tool("bad/changing").description
        await agent.call("bad/change")
        await agent.call("bad/echo", text="x")  # waits until the list has been read again
        described = await agent.use("describe_tools", ids=["bad/changing"])
        assert "Version 2" in str(described.structured_content) or "approve" in str(described.structured_content)
        assert "Version 1" not in str(described.structured_content)

    run(start, body, {"bad": busy()})


def test_a_changed_tool_is_not_called_under_its_old_definition(start: Start) -> None:
    async def body(agent: Agent) -> None:
        await agent.call("bad/change")
        await anyio.sleep(0.5)
        answer = await agent.call("bad/changing")
        assert answer.is_error and "toolscout approve" in answer.content[0].text

    run(start, body, {"bad": busy()}, settings={"trust": "pin"})


def test_a_server_that_no_longer_lists_its_tools_is_named_and_not_called(start: Start) -> None:
    async def body(agent: Agent) -> None:
        await agent.call("bad/change", quiet=True, mute=True)
        await agent.call("bad/fail")
        assert "server 'bad' did not list its tools" in await agent.text("bad/echo", text="x")
        await others_are_served(agent)

    run(start, body, {"bad": busy(), "good": busy()})


def test_a_server_that_comes_back_with_other_definitions_waits_for_approval(start: Start) -> None:
    async def body(agent: Agent) -> None:
        assert not (await agent.call("bad/read_invoice_0")).is_error
        await agent.call("bad/die")
        with anyio.fail_after(20):
            while "approve" not in (said := await agent.text("bad/read_invoice_0")):
                assert "'bad'" in said
                await anyio.sleep(0.05)
        assert not (await agent.call("bad/echo", text="x")).is_error

    run(start, body, {"bad": busy("1", "Pid")})


GROWING = """
from mcp.server.mcpserver import Context, MCPServer
server = MCPServer("growing")
@server.tool()
async def grow(context: Context) -> str:
    server.add_tool(lambda: "new", name="grown", description="A tool that was not there before.")
    await context.notify_tools_changed()
    return "grown"
server.run()
"""


def test_a_server_of_the_present_protocol_is_heard_when_its_tools_change(start: Start) -> None:
    async def body(agent: Agent) -> None:
        assert agent.gateway.upstreams.servers["a"]._connection.client.protocol_version >= "2026"  # type: ignore[union-attr]
        assert (await agent.call("a/grown")).is_error
        await agent.call("a/grow")
        with anyio.fail_after(10):
            while (answer := await agent.call("a/grown")).is_error:
                await anyio.sleep(0.05)
        assert answer.content[0].text == "new"

    run(start, body, {"a": {"command": sys.executable, "args": ["-c", GROWING]}})


def test_a_server_that_cries_change_is_read_once_a_second(start: Start) -> None:
    async def body(agent: Agent) -> None:
        upstream, lists = agent.gateway.upstreams.servers["bad"], []
        listed = upstream._update_list

        async def note_time(connection: Any) -> None:
            lists.append(anyio.current_time())
            await listed(connection)

        upstream._update_list = note_time  # type: ignore[method-assign]
        await agent.call("bad/change")  # twenty notifications
        await anyio.sleep(0.6)
        assert lists and all(later - earlier >= RELIST_PAUSE_S for earlier, later in itertools.pairwise(lists))

    run(start, body, {"bad": busy()})


def test_a_megabyte_of_description_costs_an_agent_no_more_than_its_budget(start: Start) -> None:
    async def body(agent: Agent) -> None:
        from toolscout_gateway.text import count_tokens

        for detail in ("compact", "full"):
            answer = await agent.use("search_tools", queries=["huge"], limit=20, detail=detail)
            assert count_tokens(answer.structured_content) < 4_000 and count_tokens(answer.content[0].text) < 4_000
        described = await agent.use("describe_tools", ids=["bad/huge"])
        assert count_tokens(described.structured_content) < 4_000
        assert "cut" in described.structured_content["tools"][0]

    run(start, body, {"bad": busy("0", "Huge")})


@pytest.mark.slow
def test_servers_that_never_start_hold_up_nobody(start: Start) -> None:
    async def body(agent: Agent) -> None:
        with anyio.fail_after(20):
            while len(servers := agent.gateway.upstreams.servers) < 6 or servers["good"].state != "ok":
                await anyio.sleep(0.02)
        await others_are_served(agent)
        await anyio.sleep(3)
        notes = " ".join((await agent.search("text"))["notes"])
        assert all(name in notes for name in ("hangs", "dies", "floods", "mute", "absent"))
        answer = await agent.call("dies/forecast")
        assert answer.is_error and "dies" in answer.content[0].text

    entries = {
        "hangs": raw("hang-start", timeout=2),
        "dies": raw("die-start"),
        "floods": raw("flood", timeout=2),
        "mute": raw("hang-list", timeout=2),
        "absent": {"command": "no-such-command-anywhere"},
        "good": busy(),
    }
    run(start, body, entries, settle=False)


def at_once(start: Start, count: int) -> None:
    async def body(agent: Agent) -> None:
        wrong: list[int] = []

        async def one(number: int) -> None:
            server = ("a", "b", "c")[number % 3]
            found = (await agent.search("gives back the text it is given"))["results"][0]
            if await agent.text(f"{server}/echo", text=str(number)) != str(number) or not found["tools"]:
                wrong.append(number)

        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(one, number)
        assert not wrong
        assert len(agent.events("call")) == len(agent.events("search")) == count

    run(start, body, {name: busy() for name in "abc"})


@pytest.mark.slow
def test_many_callers_at_once_each_get_their_own_answer(start: Start) -> None:
    at_once(start, 60)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_five_hundred_callers_at_once_each_get_their_own_answer(start: Start) -> None:
    at_once(start, 500)


def test_calls_to_a_good_server_are_answered_while_others_hang_flood_and_die(start: Start) -> None:
    """The call that hangs is under way from the first to the last of the others: nobody waits for it."""

    async def body(agent: Agent) -> None:
        order: list[str] = []
        hangs = anyio.Event()

        async def hang() -> None:
            hangs.set()
            assert "given up" in await agent.text("hangs/hang", seconds=60)
            order.append("hang")

        async with anyio.create_task_group() as group:
            group.start_soon(hang)
            await hangs.wait()
            group.start_soon(agent.call, "floods/flood")
            group.start_soon(agent.call, "dies/die")
            for number in range(20):
                assert await agent.text("good/echo", text=str(number)) == str(number)
                order.append("echo")
        assert order == [*["echo"] * 20, "hang"]

    entries = {name: busy() for name in ("good", "floods", "dies")}
    run(start, body, entries | {"hangs": busy(timeout=8)})


def undisturbed(start: Start, rounds: int, calls: int, slack: float) -> None:
    """Calls to a good server in turns with and without others that fail: p95 at most doubles, and `slack` seconds."""
    faults = [("floods/flood", {}), ("dies/die", {}), ("hangs/hang", {}), ("hangs/wait", {"seconds": 30})]

    async def body(agent: Agent) -> None:
        times: dict[bool, list[float]] = {False: [], True: []}

        async def trouble(id: str, given: dict[str, Any]) -> None:
            while True:
                await agent.call(id, **given)
                await anyio.sleep(0.05)

        async def measure(troubled: bool) -> None:
            for number in range(calls):
                began = time.perf_counter()
                assert await agent.text("good/echo", text=str(number)) == str(number)
                times[troubled].append(time.perf_counter() - began)

        for _ in range(rounds):
            await measure(False)
            async with anyio.create_task_group() as group:
                for id, given in faults:
                    group.start_soon(trouble, id, given)
                await anyio.sleep(0.2)
                await measure(True)
                group.cancel_scope.cancel()
            await anyio.sleep(0.3)
        quiet, troubled = (statistics.quantiles(times[each], n=20)[18] for each in (False, True))
        assert troubled <= 2 * quiet + slack, f"p95 {quiet * 1000:.1f} ms alone, {troubled * 1000:.1f} ms beside faults"

    run(start, body, {name: busy() for name in ("good", "floods", "dies", "hangs")}, call_timeout=2.0)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_servers_that_fail_for_long_slow_nobody_else_down(start: Start) -> None:
    undisturbed(start, 10, 100, 0.01)
