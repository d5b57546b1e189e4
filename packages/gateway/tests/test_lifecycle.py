"""Which servers run: only those that are called, for as long as they are used, at most so many; and live changes."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

import toolscout_gateway.sessions.upstreams as upstreams
from gateway.tests.conftest import Agent, Start, busy, raw
from gateway.tests.test_gateway import run
from postgres_server import PostgresServer, describe
from toolscout.cli.main import COMMANDS, program
from toolscout.errors import Denied
from toolscout.home.access.live_policy import POLICY_FILE, LivePolicies
from toolscout.home.database import open_home
from toolscout.location import local_folder
from toolscout.scout import Scout
from toolscout.trust.policy import hashed_key
from toolscout_gateway.sessions.upstream import MAX_FAILED_CALLS, Breaker

pytestmark = pytest.mark.net


def states(agent: Agent) -> dict[str, str]:
    return {name: server.state for name, server in agent.gateway.upstreams.servers.items()}


async def until(condition: Any, seconds: float = 20) -> None:
    """Wait until a condition holds."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.02)


async def planned(agent: Agent, count: int) -> None:
    await until(lambda: len(agent.gateway.upstreams.servers) == count)


def test_a_listed_server_starts_at_its_first_call_and_lists_its_tools_again(start: Start) -> None:
    entries = {name: busy("0", "Plain") for name in "abc"}

    async def first(agent: Agent) -> None:
        await planned(agent, 3)
        assert set(states(agent).values()) == {"ok"}
        await until(lambda: agent.gateway.upstreams.host.listed._is_written)

    async def second(agent: Agent) -> None:
        await planned(agent, 3)
        assert set(states(agent).values()) == {"idle"}
        [found] = (await agent.search("gives back the text it is given", limit=1))["results"]
        assert found["tools"][0]["callable"] and set(states(agent).values()) == {"idle"}
        assert await agent.text("b/echo", text="x") == "x"
        assert states(agent) == {"a": "idle", "b": "ok", "c": "idle"}
        assert agent.gateway.upstreams.servers["b"].starts == 1

    run(start, first, entries)
    run(start, second, entries, settle=False)


def test_a_listed_server_that_comes_back_with_other_definitions_waits_for_approval(start: Start) -> None:
    entries = {"a": busy("1", "Pid")}  # another description at each start

    async def first(agent: Agent) -> None:
        assert not (await agent.call("a/read_invoice_0")).is_error
        await until(lambda: agent.gateway.upstreams.host.listed._is_written)

    async def second(agent: Agent) -> None:
        answer = await agent.call("a/read_invoice_0")
        assert answer.is_error and "toolscout approve" in answer.content[0].text
        assert await agent.text("a/echo", text="x") == "x"

    run(start, first, entries)
    run(start, second, entries, settle=False)


def test_a_listed_server_with_another_entry_is_listed_at_once(start: Start) -> None:
    async def first(agent: Agent) -> None:
        await until(lambda: agent.gateway.upstreams.host.listed._is_written)

    async def second(agent: Agent) -> None:
        await until(lambda: states(agent) == {"a": "ok"})
        assert agent.gateway.scout.tool("a/read_invoice_0")

    run(start, first, {"a": busy()})
    run(start, second, {"a": busy("1", "Other")}, settle=False)


def test_a_server_that_nobody_uses_is_stopped_and_started_again_when_it_is_called(start: Start) -> None:
    async def body(agent: Agent) -> None:
        pid = await agent.text("a/pid")
        await until(lambda: states(agent) == {"a": "idle"})
        assert agent.gateway.upstreams.host.slots.held == {}
        assert await agent.text("a/pid") != pid
        assert await agent.text("a/wait", seconds=1.2) == "done"  # longer than the idle time

    run(start, body, {"a": busy()}, settings={"gateway_idle": 0.4})


def test_no_more_servers_run_than_the_cap_and_every_one_is_served(start: Start) -> None:
    async def body(agent: Agent) -> None:
        await planned(agent, 3)
        slots, most = agent.gateway.upstreams.host.slots, 0
        await until(lambda: all(server.is_listed for server in agent.gateway.upstreams.servers.values()))
        for name in "abcabc":
            assert await agent.text(f"{name}/echo", text=name) == name
            most = max(most, len(slots.held))
        assert most <= 2

    run(start, body, {name: busy() for name in "abc"}, settings={"gateway_servers": 2}, settle=False)


def test_a_busy_server_is_not_stopped_to_make_room(start: Start) -> None:
    async def body(agent: Agent) -> None:
        await planned(agent, 2)
        await until(lambda: all(server.is_listed for server in agent.gateway.upstreams.servers.values()))
        answers = []

        async def wait() -> None:
            answers.append((await agent.call("a/wait", seconds=2)).is_error)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await until(lambda: (states(agent)["a"], agent.gateway.upstreams.servers["a"].in_flight) == ("ok", 1))
            assert await agent.text("b/echo", text="x") == "x"  # after a has ended its call
            assert answers == [False]

    run(start, body, {name: busy() for name in "ab"}, settings={"gateway_servers": 1}, settle=False)


def test_the_first_search_of_a_cold_home_waits_for_the_servers(start: Start) -> None:
    async def body(agent: Agent) -> None:
        answer = await agent.search("gives back the text it is given", limit=1)
        assert answer["results"][0]["tools"][0]["id"] == "a/echo" and "notes" not in answer

    run(start, body, {"a": busy()}, settle=False)


def test_a_search_says_how_many_servers_are_still_starting(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(agent: Agent) -> None:
        await until(lambda: states(agent).get("a") == "ok")
        answer = await agent.search("gives back the text it is given", limit=1)
        assert answer["notes"][0] == "1 of 2 servers are still starting: try again in 5 s"
        assert answer["results"][0]["tools"][0]["id"] == "a/echo"

    monkeypatch.setattr(upstreams, "FIRST_SEARCH_WAIT_S", 0.5)
    run(start, body, {"a": busy(), "slow": raw("hang-start", timeout=30)}, settle=False)


def test_an_edited_configuration_is_in_force_while_running_calls_finish(start: Start, tmp_path: Path) -> None:
    async def body(agent: Agent) -> None:
        assert await agent.text("gone/echo", text="x") == "x"
        pid, answers = await agent.text("a/pid"), []

        async def wait() -> None:
            answers.append(await agent.text("a/wait", seconds=2.5))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await until(lambda: agent.gateway.upstreams.servers["a"].in_flight == 1)
            entries = {"a": busy("1", "Edited"), "new": busy()}
            (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
            with anyio.fail_after(10):
                while (await agent.call("new/echo", text="x")).is_error or (await agent.call("a/pid")).is_error:
                    await anyio.sleep(0.05)
            assert await agent.text("a/pid") != pid
            assert (await agent.call("gone/echo", text="x")).is_error
        assert answers == ["done"]
        await until(lambda: set(states(agent)) == {"a", "new"})

    run(start, body, {"a": busy(), "gone": busy()})


def test_a_configuration_with_an_error_changes_nothing_and_is_said_once(start: Start, tmp_path: Path) -> None:
    async def body(agent: Agent) -> None:
        (tmp_path / "mcp.json").write_text('{"mcpServers": {')
        await until(lambda: any("mcp.json" in said for said in agent.said))
        await anyio.sleep(1.2)
        assert len([said for said in agent.said if "mcp.json" in said]) == 1
        assert await agent.text("a/echo", text="x") == "x"
        (tmp_path / "mcp.json").unlink()
        await anyio.sleep(1.2)
        assert await agent.text("a/echo", text="x") == "x"

    run(start, body, {"a": busy()})


def test_a_server_that_was_added_by_another_process_is_called_without_a_restart(start: Start, tmp_path: Path) -> None:
    async def body(agent: Agent) -> None:
        other = tmp_path / "other.json"
        other.write_text(json.dumps({"mcpServers": {"late": busy()}}))

        def add() -> None:
            with Scout(tmp_path / "home") as scout:
                scout.add(other)

        await anyio.to_thread.run_sync(add)
        await until(lambda: states(agent).get("late") == "idle")
        assert await agent.text("late/echo", text="x") == "x"

        def remove() -> None:
            with Scout(tmp_path / "home") as scout:
                scout.remove(["late"])

        await anyio.to_thread.run_sync(remove)
        await until(lambda: "late" not in states(agent))

    run(start, body, {"a": busy()})


def policy_of(*rules: str) -> str:
    return f'default = "ann"\n[[caller]]\nname = "ann"\nallow = {json.dumps(rules)}\n'


def test_a_changed_policy_is_in_force_and_an_invalid_one_changes_nothing(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    policies = LivePolicies(path, is_required=False)

    async def body(agent: Agent) -> None:
        async def is_refused(id: str) -> bool:
            return bool((await agent.call(id)).is_error)

        async def wait_for(refused: bool, id: str = "a/pid") -> None:
            with anyio.fail_after(10):
                while await is_refused(id) is not refused:
                    await anyio.sleep(0.05)

        assert not await is_refused("a/pid")  # no file: everything is allowed
        path.write_text(policy_of("a/echo"))
        await wait_for(True)
        assert await agent.text("a/echo", text="x") == "x"
        path.write_text("[[caller]]\nnonsense")
        await until(lambda: any("the old rules stay in force" in said for said in agent.said))
        assert await is_refused("a/pid") and await agent.text("a/echo", text="x") == "x"
        path.write_text(policy_of("a/*"))
        await wait_for(False)
        path.unlink()
        await until(lambda: any("is gone" in said for said in agent.said))
        path.write_text('[[caller]]\nname = "bob"\nallow = ["**"]\nkey = "' + hashed_key("tsk_x") + '"\n')
        await wait_for(True)  # nobody comes in without a key now

    run(start, body, {"a": busy()}, policies=policies)


def test_a_new_key_opens_the_gateway_and_a_removed_one_no_longer_does(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"

    def write_keys(**keys: str) -> None:
        caller = '[[caller]]\nname = "{}"\nallow = ["**"]\nkey = "{}"\n'
        head = 'default = "local"\n[[caller]]\nname = "local"\n'
        path.write_text(head + "".join(caller.format(name, hashed_key(key)) for name, key in keys.items()))

    def is_known(key: str) -> bool:
        with suppress(Denied):
            return bool(policies.caller(key).name)
        return False

    async def body(agent: Agent) -> None:
        assert is_known("tsk_ann") and not is_known("tsk_bob")
        write_keys(ann="tsk_ann", bob="tsk_bob")
        await until(lambda: is_known("tsk_bob"))
        write_keys(bob="tsk_bob")
        await until(lambda: not is_known("tsk_ann"))
        assert is_known("tsk_bob")

    write_keys(ann="tsk_ann")
    policies = LivePolicies(path)
    run(start, body, {"a": busy()}, policies=policies, settle=False)


@pytest.mark.slow
def test_a_gateway_outlives_the_database_of_its_home(start: Start, tmp_path: Path, own_server: PostgresServer) -> None:
    address = own_server.new_home()
    with Scout(describe(address)):
        open_home(address).write_document(POLICY_FILE, policy_of("a/*").encode())
    policies = LivePolicies(local_folder(address) / POLICY_FILE, is_required=False, home=address)

    async def body(agent: Agent) -> None:
        pid = await agent.text("a/pid")
        own_server.stop()
        await until(lambda: any("does not answer" in said for said in agent.said))
        answer = await agent.call("a/pid")
        assert answer.is_error and "does not answer" in answer.content[0].text
        assert (await agent.use("search_tools", queries=["give back a text"])).is_error
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"a": busy(), "new": busy()}}))
        assert set(agent.gateway.upstreams.servers) == {"a"}
        own_server.start()
        open_home(address).write_document(POLICY_FILE, policy_of("new/*", "a/pid").encode())
        await until(lambda: states(agent) == {"a": "ok", "new": "ok"})
        assert await agent.text("a/pid") == pid, "its session went on"
        with anyio.fail_after(10):
            while (await agent.call("new/echo", text="x")).is_error:
                await anyio.sleep(0.05)
        assert (await agent.call("a/echo", text="x")).is_error
        assert sum("does not answer" in said for said in agent.said) == 1
        assert "the home can be read again" in agent.said

    run(start, body, {"a": busy()}, policies=policies, home=describe(address))
    open_home(address).close()


def test_a_server_that_hangs_is_left_alone_after_some_calls_and_tried_again(start: Start) -> None:
    async def body(agent: Agent) -> None:
        for _ in range(MAX_FAILED_CALLS):
            assert "did not answer within" in await agent.text("bad/hang")
        began = time.monotonic()
        said = await agent.text("bad/hang")
        assert f"server 'bad' failed {MAX_FAILED_CALLS} times in a row; it is tried again in" in said
        assert time.monotonic() - began < 0.3
        assert "failed" in await agent.text("bad/echo", text="x")
        assert await agent.text("good/echo", text="x") == "x"
        with anyio.fail_after(10):
            while (answer := await agent.call("bad/echo", text="back")).is_error:
                await anyio.sleep(0.05)
        assert answer.content[0].text == "back"
        assert await agent.text("bad/echo", text="again") == "again"
        state = next(each for each in agent.gateway.health.describe().servers if each.name == "bad")
        assert state.failed_calls == MAX_FAILED_CALLS and state.failures_in_a_row == 0

    run(start, body, {"bad": busy(), "good": busy()}, call_timeout=0.3)


def test_the_health_of_a_server_is_told_to_people_and_to_prometheus(start: Start, home: str) -> None:
    def read_metrics(agent: Agent) -> dict[tuple[str, ...], float]:
        families = text_string_to_metric_families(agent.gateway.health.render_metrics().decode())
        samples = [sample for family in families for sample in family.samples]
        return {(sample.name.removeprefix("toolscout_"), *sample.labels.values()): sample.value for sample in samples}

    def show(agent: Agent) -> str:
        agent.gateway.health._written_at = float("-inf")
        agent.gateway.health.write()
        done = CliRunner().invoke(program, ["--home", home, "status"])
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    async def body(agent: Agent) -> None:
        began = time.time() - 1
        assert await agent.text("bad/echo", text="x") == "x"
        metrics = read_metrics(agent)
        assert metrics["upstream_circuit", "closed", "bad"] == 1 and metrics["upstream_state", "bad", "ok"] == 1
        answered = metrics["upstream_answered_at_timestamp_seconds", "bad"]
        assert answered > began and metrics["upstream_last_error_at_timestamp_seconds", "bad"] == 0
        for _ in range(MAX_FAILED_CALLS):
            await agent.text("bad/hang")
        metrics = read_metrics(agent)
        assert metrics["upstream_circuit", "open", "bad"] == 1 and metrics["upstream_failed_calls", "bad"] == 3
        assert metrics["upstream_last_error_at_timestamp_seconds", "bad"] > answered
        assert metrics["upstream_circuit", "closed", "good"] == 1
        assert ("upstream_circuit", "closed", "bad") not in metrics
        said = await anyio.to_thread.run_sync(show, agent)
        assert "open" in said and "did not answer within" in said and "never" not in said
        await until(lambda: agent.gateway.health.describe().servers[0].circuit == "trial")
        assert await agent.text("bad/echo", text="x") == "x"
        [bad, good] = agent.gateway.health.describe().servers
        assert (bad.circuit, bad.message) == ("closed", "") and "did not answer within" in bad.last_error
        assert bad.answered_at > bad.last_error_at > "" and good.last_error_at == good.last_error == ""

    run(start, body, {"bad": busy(), "good": busy()}, call_timeout=0.3)


def test_a_search_ends_with_the_time_limit_of_a_call(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float] = []

    async def body(agent: Agent) -> None:
        search = agent.gateway.scout.search_many

        def note_deadline(*arguments: Any, deadline: float, **options: Any) -> Any:
            left.append(deadline - time.monotonic())
            return search(*arguments, deadline=deadline, **options)

        monkeypatch.setattr(agent.gateway.scout, "search_many", note_deadline)
        assert (await agent.search("give back text"))["results"]

    run(start, body, {"a": busy()}, call_timeout=7)
    assert len(left) == 1 and left[0] <= 7


def test_a_breaker_lets_one_trial_through_after_each_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("toolscout_gateway.sessions.upstream.time.monotonic", lambda: clock[0])
    breaker = Breaker()
    for _ in range(MAX_FAILED_CALLS):
        assert breaker.check() == 0
        began = clock[0]
        clock[0] += 1
        breaker.note_failure(began)
        breaker.note_failure(began)  # another call that was under way
    assert breaker.failures == MAX_FAILED_CALLS and breaker.check() == 1.0
    clock[0] += 1
    assert breaker.check() == 0 and breaker.check() == 1.0  # one trial
    clock[0] += 0.5
    breaker.note_failure(clock[0])
    assert breaker.check() == 2.0
    clock[0] += 2
    assert breaker.check() == 0
    breaker.note_success()
    assert breaker.check() == 0 and breaker.failures == 0


def test_refusals_of_one_server_are_told_one_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = [100.0], list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("toolscout_gateway.sessions.upstream.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(anyio, "sleep", sleep)

    async def refuse(breaker: Breaker, at: float) -> None:
        clock[0] = at
        await breaker.slow_down()

    async def refuse_all() -> None:
        one, other = Breaker(), Breaker()
        for at in (100.0, 100.0, 100.5, 100.5, 110.0):
            await refuse(one, at)
        await refuse(other, 110.0)

    asyncio.run(refuse_all())
    assert waits == [0.0, 1.0, 1.5, 2.0, 0.0, 0.0]


def test_status_shows_the_servers_of_a_running_gateway(start: Start, tmp_path: Path) -> None:
    from tests_cli import run as run_program

    async def body(agent: Agent) -> None:
        assert await agent.text("a/echo", text="x") == "x"
        await until(lambda: any((agent.gateway.scout.settings.home / "gateways").glob("*.json")))

        def read_status() -> dict[str, Any]:
            shown = run_program("--home", str(tmp_path / "home"), "status", "--json")
            assert shown.exit_code == 0, shown.output
            [gateway] = json.loads(shown.stdout)["gateways"]
            return {server["name"]: server for server in gateway["servers"]}

        with anyio.fail_after(30):  # the server that dies is tried again and again, and starts meanwhile
            while (servers := await anyio.to_thread.run_sync(read_status))["bad"]["state"] != "error":
                await anyio.sleep(0.2)
        assert servers["a"]["state"] == "ok" and servers["a"]["calls"] == 1
        assert "no database" in servers["bad"]["message"]

    run(start, body, {"a": busy(), "bad": raw("die-start", "x")})
    shown = run_program("--home", str(tmp_path / "home"), "status")
    assert "No gateway" in shown.output and "status" in COMMANDS
