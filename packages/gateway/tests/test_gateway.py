"""The gateway as an agent meets it: three tools, honest answers, calls that come back as the server gave them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from gateway.tests.conftest import Agent, Start, busy, raw
from toolscout.home.catalogue.store import Origin
from toolscout.scout import Scout
from toolscout.testing import toy_tools
from toolscout.trust.policy import Caller, Policies, Rules
from toolscout.types import Tool
from toolscout_gateway.text import META_TOOLS

pytestmark = pytest.mark.net
Body = Callable[[Agent], Awaitable[None]]


def run(start: Start, body: Body, entries: dict[str, Any] | None = None, **options: Any) -> None:
    """Run `body` with an agent at a gateway over `entries`."""

    async def main() -> None:
        async with start(entries, **options) as agent:
            await body(agent)

    anyio.run(main)


def test_the_list_of_tools_is_the_same_few_and_the_pinned_and_never_changes_its_order(start: Start) -> None:
    async def body(agent: Agent) -> None:
        first, second = [await agent.client.list_tools(cache_mode="bypass") for _ in range(2)]
        assert [tool.name for tool in first.tools] == [*META_TOOLS, "a_echo"]
        assert [tool.model_dump() for tool in first.tools] == [tool.model_dump() for tool in second.tools]
        assert (first.ttl_ms, first.cache_scope) == (300_000, "public")
        assert (await agent.use("a_echo", text="hi")).content[0].text == "hi"
        assert agent.events("call")[-1]["tool"] == "a/echo"

    run(start, body, {"a": busy()}, pins=("a/echo", "a/absent"))


def test_an_agent_searches_describes_and_calls_by_the_same_id(start: Start) -> None:
    async def body(agent: Agent) -> None:
        [found] = (await agent.search("give back the text it is given", limit=3))["results"]
        assert found["answer"] == "tools" and len(found["tools"]) == 3
        [best, *_] = found["tools"]
        assert best["id"] == "a/echo" and best["signature"] == "a/echo(text?: string)" and best["callable"]
        described = (await agent.use("describe_tools", ids=[best["id"]])).structured_content
        assert described["tools"][0]["parameters"]["properties"] == {"text": {"type": "string"}}
        assert described["tools"][0]["hints"] == {"read_only": True}
        assert (await agent.call(best["id"], found["search_id"], text="secret words")).content[0].text == "secret words"
        [event] = agent.events("call")
        assert (event["tool"], event["ok"], event["rank"], event["caller"]) == ("a/echo", True, 1, "local")
        assert event["search_id"] == found["search_id"] and event["ms"] > 0
        assert "secret" not in json.dumps(event)

    run(start, body, {"a": busy()})


def test_full_detail_brings_the_schemas(start: Start) -> None:
    async def body(agent: Agent) -> None:
        [found] = (await agent.search("gives back the text", limit=1, detail="full"))["results"]
        assert found["tools"][0]["parameters"]["properties"] == {"text": {"type": "string"}}

    run(start, body, {"a": busy()})


def test_each_query_has_a_search_of_its_own(start: Start) -> None:
    async def body(agent: Agent) -> None:
        results = (await agent.search("text", "seconds"))["results"]
        assert len({result["search_id"] for result in results}) == 2
        assert [event["query"] for event in agent.events("search")] == ["text", "seconds"]

    run(start, body, {"a": busy()})


def test_wrong_arguments_of_the_three_are_answered_with_advice(start: Start) -> None:
    async def body(agent: Agent) -> None:
        for given, words in [
            ({"querys": "x"}, "'queries' (is that what 'querys' means?)"),
            ({"queries": 7.5}, "expected array"),
            ({"queries": []}, "queries"),
            ({"queries": ["x"], "limit": 0}, "minimum 1"),
            ({"queries": ["x"], "detail": "fully"}, "did you mean 'full'?"),
        ]:
            answer = await agent.use("search_tools", **given)
            assert answer.is_error and words in answer.content[0].text

    run(start, body)


def test_wrong_arguments_name_the_parameter_what_was_expected_and_the_nearest_name(start: Start) -> None:
    async def body(agent: Agent) -> None:
        answer = await agent.call("a/wait", seconds="long")
        assert answer.is_error
        assert answer.content[0].text == (
            "wrong arguments for a/wait: parameter 'seconds': expected number, found \"long\"; its signature is "
            "a/wait(seconds?: number)"
        )
        assert agent.events("call")[-1]["ok"] is False

    run(start, body, {"a": busy()})


def test_results_come_back_as_the_server_gave_them(start: Start) -> None:
    async def body(agent: Agent) -> None:
        from mcp import StdioServerParameters

        entry = busy()
        async with Client(StdioServerParameters(command=entry["command"], args=entry["args"])) as direct:
            for name, given in [("picture", {}), ("fail", {}), ("echo", {"text": "ä\u200b😀"})]:
                ours, theirs = await agent.call(f"a/{name}", **given), await direct.call_tool(name, given)
                assert [part.model_dump() for part in ours.content] == [part.model_dump() for part in theirs.content]
                assert ours.structured_content == theirs.structured_content
                assert ours.is_error == theirs.is_error
        assert [event["ok"] for event in agent.events("call")] == [True, False, True]

    run(start, body, {"a": busy()})


def test_progress_is_passed_on(start: Start) -> None:
    async def body(agent: Agent) -> None:
        seen: list[tuple[float, str | None]] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, message))

        given = {"id": "a/progress", "arguments": {}}
        await agent.client.call_tool("call_tool", given, progress_callback=note)
        assert seen == [(1, "step 1"), (2, "step 2"), (3, "step 3")]

    run(start, body, {"a": busy()})


def test_a_call_that_is_given_up_is_cancelled_at_the_server_and_journaled(start: Start) -> None:
    async def body(agent: Agent) -> None:
        with anyio.move_on_after(0.5):
            await agent.call("a/wait", seconds=30)
        await anyio.sleep(0.2)
        assert len(json.loads(await agent.text("a/cancelled"))) == 1
        assert next((event["tool"], event["ok"]) for event in agent.events("call")) == ("a/wait", False)

    run(start, body, {"a": busy()})


def test_an_id_that_is_not_there_is_answered_with_the_nearest_one(start: Start) -> None:
    async def body(agent: Agent) -> None:
        for id in ("a/ecco", "ecco", "cho", "b/ECCO"):
            assert "did you mean 'a/echo'?" in await agent.text(id), id
        for id in ("A/echo", "b/echo", "search_tools", "toolscout/search_tools", ""):
            answer = await agent.call(id)
            assert answer.is_error and "expected the id of a tool" in answer.content[0].text

    run(start, body, {"a": busy()})


def test_two_servers_may_have_tools_of_one_name(start: Start) -> None:
    async def body(agent: Agent) -> None:
        pids = {await agent.text(f"{name}/pid") for name in ("a", "b")}
        assert len(pids) == 2

    run(start, body, {"a": busy(), "b": busy()})


def test_an_agent_reads_that_hits_are_of_low_confidence(start: Start) -> None:
    chat = "write a poem about the sea in spring"

    async def body(agent: Agent) -> None:
        plain = agent.gateway.scout.search(chat)
        assert plain.is_doubtful
        answer = await agent.use("search_tools", queries=[chat])
        [found] = answer.structured_content["results"]
        assert (found["answer"], found["low_confidence"]) == ("tools", True)
        assert [tool["id"] for tool in found["tools"]] == list(plain.ids)
        assert "low confidence: none of these tools seems to fit" in answer.content[0].text
        assert "no tool needed" not in answer.content[0].text
        [sure] = (await agent.search("give back the text it is given"))["results"]
        assert "low_confidence" not in sure

    run(start, body, {"a": busy()})


def test_no_tool_fits_is_an_answer_with_a_reason(start: Start) -> None:
    async def body(agent: Agent) -> None:
        [found] = (await agent.search("anything"))["results"]
        assert (found["answer"], found["tools"]) == ("no_tool_fits", [])
        assert "The catalogue is empty" in found["reason"]

    run(start, body)


def test_while_a_server_starts_the_search_says_so(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout_gateway.sessions.upstreams.FIRST_SEARCH_WAIT_S", 0.1)

    async def body(agent: Agent) -> None:
        notes = (await agent.search("anything"))["notes"]
        assert any("'slow' is still starting" in note for note in notes)

    run(start, body, {"slow": raw("hang-start", timeout=5)}, settle=False)


def test_what_the_catalogue_already_holds_is_served_at_once(start: Start) -> None:
    async def first(agent: Agent) -> None:
        assert await agent.text("a/echo", text="x") == "x"

    async def second(agent: Agent) -> None:
        [found] = (await agent.search("gives back the text"))["results"]
        assert found["tools"][0]["id"] == "a/echo"
        assert await agent.text("a/echo", text="y") == "y"  # waits for the server

    run(start, first, {"a": busy()})
    run(start, second, {"a": busy()}, settle=False)


def test_a_server_that_the_file_no_longer_names_goes(start: Start) -> None:
    async def first(agent: Agent) -> None:
        assert not (await agent.call("b/echo")).is_error

    async def second(agent: Agent) -> None:
        assert (await agent.call("b/echo")).is_error
        assert "b is removed: its configuration file no longer names it" in agent.said

    run(start, first, {"a": busy(), "b": busy()})
    run(start, second, {"a": busy()})


def test_a_gateway_leaves_itself_out(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    async def body(agent: Agent) -> None:
        assert list(agent.gateway.upstreams.servers) == ["a"]
        assert "toolscout's own gateway is left out" in caplog.text

    run(start, body, {"me": {"command": "toolscout", "args": ["gateway"]}, "a": busy()})


def test_a_gateway_does_not_start_the_gateway_of_another_home(start: Start) -> None:
    async def body(agent: Agent) -> None:
        assert list(agent.gateway.upstreams.servers) == ["a"]
        assert any(said.startswith("other is skipped") for said in agent.said)

    other = {"command": "/usr/bin/python3", "args": ["-m", "toolscout", "--home", "/x", "gateway"]}
    run(start, body, {"other": other, "a": busy()})


def test_servers_that_gave_place_to_the_gateway_keep_their_tools(start: Start) -> None:
    async def first(agent: Agent) -> None:
        assert not (await agent.call("a/echo")).is_error

    async def second(agent: Agent) -> None:
        await agent.gateway.upstreams.wait_planned()
        assert any("it has only toolscout's own gateway" in said for said in agent.said)
        assert "a/echo" in agent.gateway.scout.store.catalogue().ids

    run(start, first, {"a": busy()})
    run(start, second, {"me": {"command": "toolscout", "args": ["gateway"]}}, settle=False)


# --- callers ----------------------------------------------------------------------------------------------------------


def limited(*allow: str) -> Policies:
    return Policies((), Caller("ann", Rules(frozenset(allow))))


def test_a_caller_finds_and_calls_only_what_the_policy_says(start: Start) -> None:
    async def body(agent: Agent) -> None:
        [found] = (await agent.search("give back text", limit=50))["results"]
        assert [tool["id"] for tool in found["tools"]] == ["a/echo"]
        assert await agent.text("a/echo", text="x") == "x"
        refused, absent = await agent.call("a/pid"), await agent.call("a/xyzzy")
        assert refused.is_error and refused.content[0].text == absent.content[0].text.replace("xyzzy", "pid")
        described = await agent.use("describe_tools", ids=["a/pid"])
        assert described.is_error and not described.structured_content["tools"]
        listed = await agent.client.list_tools(cache_mode="bypass")
        assert [tool.name for tool in listed.tools][len(META_TOOLS) :] == ["a_echo"] and listed.cache_scope == "private"
        assert (await agent.use("a_pid")).is_error
        assert {event["caller"] for event in agent.events("call") + agent.events("search")} == {"ann"}

    run(start, body, {"a": busy()}, policies=limited("a/echo"), pins=("a/echo", "a/pid"))


def test_a_caller_of_limited_sight_does_not_learn_the_names_of_servers(start: Start) -> None:
    async def body(agent: Agent) -> None:
        notes = (await agent.search("text"))["notes"]
        assert notes == ["1 servers do not answer"]

    run(start, body, {"a": busy(), "secret": raw("die-start")}, policies=limited("a/*"))


# --- what is not MCP --------------------------------------------------------------------------------------------------


def test_the_search_tool_names_what_is_behind_it_and_keeps_its_text(start: Start, home: str) -> None:
    with Scout(home) as scout:
        scout.add([{"name": "fly", "description": "Book.", "inputSchema": {"type": "object"}}], name="library")

    async def body(agent: Agent) -> None:
        first = (await agent.client.list_tools()).tools[0].description
        assert first.endswith(" Has tools of: a.")
        agent.gateway.scout.remove(["a"])
        assert (await agent.client.list_tools(cache_mode="bypass")).tools[0].description == first

    run(start, body, {"a": busy(), **{f"server-{number:02}": raw("die-start") for number in range(2)}})


def test_a_client_that_asks_at_once_reads_the_names_of_servers_that_are_starting(start: Start) -> None:
    async def body(agent: Agent) -> None:
        assert (await agent.client.list_tools()).tools[0].description.endswith(" Has tools of: a.")

    run(start, body, {"a": busy()}, settle=False)
    run(start, body, {"a": busy()}, settle=False)  # with a catalogue of the run before


def test_tools_that_can_be_called_come_before_those_that_can_only_be_read_about(start: Start) -> None:
    schemas = [
        {"name": f"echo_{number}", "description": "Echo a text back.", "inputSchema": {"type": "object"}}
        for number in range(8)
    ]
    schemas.append({"name": "fly", "description": "Book a flight to a city.", "inputSchema": {"type": "object"}})

    async def body(agent: Agent) -> None:
        agent.gateway.scout.add(schemas, name="library")
        tools = (await agent.search("echo a text back"))["results"][0]["tools"]
        assert tools[0]["id"] == "a/echo"
        assert all(tool["callable"] for tool in tools)
        assert (await agent.search("library/fly"))["results"][0]["tools"][0]["id"] == "library/fly"

    run(start, body, {"a": busy()})


def test_what_cannot_be_called_says_so(start: Start, home: str) -> None:
    async def body(agent: Agent) -> None:
        tool = next(tool for tool in toy_tools() if not tool.callable)
        answer = await agent.call(tool.id)
        assert answer.structured_content["callable"] is False
        assert "the catalogue holds only its schema" in answer.content[0].text
        [found] = (await agent.search(tool.description, limit=1))["results"]
        assert not found["tools"][0]["callable"]

    from conftest import fill

    with Scout(home) as scout:
        fill(scout)
    run(start, body)


def test_python_runs_only_if_it_was_allowed(start: Start, home: str) -> None:
    async def allowed(agent: Agent) -> None:
        answer = await agent.call("textwrap/textwrap.shorten", text="one two three", width=8)
        assert (answer.structured_content, answer.content[0].text) == ({"result": "[...]"}, "[...]")
        answer = await agent.call("textwrap/textwrap.shorten", text="one", width=-1)
        assert answer.is_error and "ValueError" in answer.content[0].text
        assert "needs an object" in await agent.text("textwrap.TextWrapper/textwrap.TextWrapper.wrap", text="one")

    async def refused(agent: Agent) -> None:
        answer = await agent.call("textwrap/textwrap.shorten", text="one two three", width=8)
        assert answer.is_error and "--allow-python" in answer.content[0].text
        assert answer.structured_content["callable"] is False

    with Scout(home) as scout:
        scout.add("py:textwrap")
        scout.add("py:textwrap:TextWrapper")
    run(start, refused)
    run(start, allowed, allow_python=True)


def test_a_document_cannot_name_a_function_to_run(start: Start, home: str, tmp_path: Path) -> None:
    function = {"module": "os", "qualname": "getcwd"}
    (tmp_path / "data").mkdir()
    line = {"_id": "here", "title": "here", "text": "The working folder.", "metadata": function}
    (tmp_path / "data" / "corpus.jsonl").write_text(json.dumps(line))
    (tmp_path / "tools.json").write_text(json.dumps([{"name": "here", "description": "The same.", **function}]))

    async def body(agent: Agent) -> None:
        for tool in ("data/here", "tools/here"):
            answer = await agent.call(tool)
            assert answer.is_error and str(Path.cwd()) not in answer.content[0].text

    with Scout(home) as scout:
        scout.add(tmp_path / "data")
        scout.add(tmp_path / "tools.json")
    run(start, body, allow_python=True)


@pytest.fixture
def scripts(home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in's source `office`: tools of a module with one function, some of which name nothing in it."""
    (tmp_path / "office_scripts.py").write_text(
        "TABLE = {}\n"
        "def run(tool, **arguments): return f'{tool}: {arguments}'\n"
        "def __getattr__(name):\n"
        "    if name.startswith('_'): raise AttributeError(name)\n"
        "    return lambda **arguments: f'{name} was made for {arguments}'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    functions = {
        "print": {"qualname": "run", "arguments": {"tool": "print"}},
        "book": {"qualname": "run", "arguments": {"tool": "book"}},
        "made": {"qualname": "made"},
        "missing": {"qualname": "_missing"},
        "table": {"qualname": "TABLE"},
        "elsewhere": {"module": "office_elsewhere", "qualname": "run"},
    }
    tools = [
        Tool(id=f"office/{name}", name=name, description=name, meta={"module": "office_scripts", **meta})
        for name, meta in functions.items()
    ]
    with Scout(home) as scout:
        scout.store.put_source(Origin("scripts:office", "scripts"), "office", kind="scripts", tools=tools)


@pytest.mark.usefixtures("scripts")
def test_one_function_serves_many_tools_with_arguments_that_their_source_fixed(start: Start) -> None:
    async def body(agent: Agent) -> None:
        described = await agent.use("describe_tools", ids=["office/print"])
        assert "office_scripts" not in described.model_dump_json(), "an agent sees no fixed argument"
        assert await agent.text("office/print", page="7") == "print: {'page': '7'}"
        assert await agent.text("office/book", day="Monday") == "book: {'day': 'Monday'}"
        assert await agent.text("office/print", tool="book") == "print: {}", "an agent changes no fixed argument"

    run(start, body, allow_python=True)


@pytest.mark.usefixtures("scripts")
def test_a_function_that_is_not_there_is_not_said_to_have_raised(start: Start) -> None:
    async def body(agent: Agent) -> None:
        assert await agent.text("office/made", page="7") == "made was made for {'page': '7'}"
        for name, reason in {
            "missing": "module 'office_scripts' has no function '_missing'",
            "table": "'TABLE' in module 'office_scripts' is no function: it is of type dict",
            "elsewhere": "module 'office_elsewhere' cannot be imported: ModuleNotFoundError",
        }.items():
            answer = await agent.call(f"office/{name}")
            assert answer.is_error and reason in answer.content[0].text
            assert "raised" not in answer.content[0].text

    run(start, body, allow_python=True)


def test_a_function_that_never_ends_is_given_up(start: Start, home: str) -> None:
    async def body(agent: Agent) -> None:
        assert "within 0.3 s" in await agent.text("time.sleep/time.sleep", seconds=3)

    with Scout(home) as scout:
        scout.add("py:time:sleep")
    run(start, body, allow_python=True, call_timeout=0.3)


def test_a_client_of_an_older_protocol_is_served_too(start: Start) -> None:
    async def body(agent: Agent) -> None:
        async with Client(agent.gateway.server, mode="legacy") as older:
            assert older.protocol_version < "2026"
            assert "search_tools" in (older.instructions or "")
            assert len((await older.list_tools()).tools) == len(META_TOOLS)
            answer = await older.call_tool("call_tool", {"id": "a/echo", "arguments": {"text": "x"}})
            assert answer.content[0].text == "x"

    run(start, body, {"a": busy()})
