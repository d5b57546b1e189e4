"""Whatever a caller asks the gateway for, under whatever name: nobody reaches, or hears of, what the policy hides."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp_types import CallToolRequestParams, CallToolResult

from gateway.tests.conftest import Agent, Start, busy, raw
from gateway.tests.test_gateway import limited, run
from test_access_properties import FORMS, NAMES, SOURCES, crowded, policies
from toolscout.scout import Scout
from toolscout.trust.policy import Caller, Rules
from toolscout.types import Tool
from toolscout_gateway import Gateway, Options
from toolscout_gateway.access.permissions import CALLER
from toolscout_gateway.text import make_plain

__all__ = ["crowded"]  # the fixture
PINS = tuple(f"{source}/{name}" for source in SOURCES[:2] for name in NAMES)


class Reached(Gateway):
    """A gateway that can call everything, and only notes what it would have called."""

    def __init__(self, scout: Scout) -> None:
        super().__init__(scout, Options(pins=PINS))
        self.reached: list[Tool] = []
        self.calls._explain_kind = lambda tool: ""  # type: ignore[method-assign]
        self.calls.call = self._reach  # type: ignore[method-assign]

    async def _reach(self, tool: Tool, *_: object) -> CallToolResult:
        self.reached.append(tool)
        return CallToolResult(content=[])

    async def ask(self, rules: Rules, name: str, **arguments: Any) -> tuple[dict[str, Any], str]:
        scope = {CALLER: Caller("somebody", rules)}
        session = SimpleNamespace(report_progress=None, protocol_version="2025-11-25", client_capabilities=None)
        context: Any = SimpleNamespace(request=SimpleNamespace(scope=scope), session=session, meta=None)
        result = await self.tools.call_tool(context, CallToolRequestParams(name=name, arguments=arguments))
        return result.structured_content or {}, result.model_dump_json()


@pytest.fixture(scope="module")
def door(crowded: tuple[Scout, list[Tool]]) -> Iterator[tuple[Reached, list[Tool]]]:
    gateway = Reached(crowded[0])
    yield gateway, crowded[1]
    gateway._threads.shutdown()


@st.composite
def names(draw: st.DrawFn) -> str:
    """The id of a tool, or what might pass for it."""
    source, name = draw(st.sampled_from(SOURCES)), draw(st.sampled_from(NAMES))
    form = draw(
        st.sampled_from(["{}/{}", "{}/{}", "{}/{}", "{}_{}", "{}/team/t0/{}", "{}/{}\u200b", " {}/{}", "{}//{}"])
    )
    text = form.format(source, name)
    if draw(st.booleans()):
        text = unicodedata.normalize(draw(st.sampled_from(FORMS)), text)
    return draw(st.sampled_from([str, str, str.upper, str.swapcase]))(text)


def _is_named(text: str, id: str) -> bool:
    """Whether a text is an id with other separators, or a bare name."""
    squeezed, name = (re.sub(r"[_/\s:.-]", "", each) for each in (id, id.partition("/")[2]))
    return re.sub(r"[_/\s:.-]", "", text) in (squeezed, name)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=policies, asked=names(), detail=st.sampled_from(["compact", "full"]))
def test_nobody_describes_calls_or_hears_of_what_the_policy_hides(
    door: tuple[Reached, list[Tool]], rules: Rules, asked: str, detail: str
) -> None:
    gateway, everything = door
    gateway.reached.clear()

    async def main() -> list[tuple[dict[str, Any], str]]:
        stale = gateway.scout.search(asked).search_id
        return [
            await gateway.ask(rules, "search_tools", queries=[asked], limit=50, detail=detail),
            await gateway.ask(rules, "describe_tools", ids=[asked]),
            await gateway.ask(rules, "call_tool", id=asked, arguments={}, search_id=stale),
            await gateway.ask(rules, asked.replace("/", "_")),
            await gateway.ask(rules, asked),
        ]

    answers = anyio.run(main)
    shown = [
        tool for answer, _ in answers for part in (answer, *answer.get("results", ())) for tool in part.get("tools", ())
    ]
    visible = {tool.id for tool in everything if rules(tool)}
    assert {tool["id"] for tool in shown} <= visible
    assert {tool.id for tool in gateway.reached} <= visible
    known = {asked, *gateway.tools.list_all_pins()}
    assert all(_is_named(asked, tool.id) for tool in gateway.reached if tool.id not in known)
    said = " ".join(json.dumps(json.loads(text), ensure_ascii=False) for _, text in answers)
    for echo in (asked, make_plain(asked)):
        said = said.replace(echo, "")
    assert not [tool.id for tool in everything if tool.id not in visible and tool.id in said]


def test_the_gateway_never_calls_its_own_tools(door: tuple[Reached, list[Tool]]) -> None:
    gateway, _ = door
    gateway.reached.clear()
    for id in ("search_tools", "call_tool", "toolscout/call_tool", "toolscout/search_tools"):
        answer, _ = anyio.run(lambda id=id: gateway.ask(Rules(frozenset({"**"})), "call_tool", id=id, arguments={}))
        assert "expected the id of a tool" in answer["error"]
    assert not gateway.reached


@pytest.mark.net
def test_a_call_counts_for_a_search_of_the_same_caller_only(start: Start) -> None:
    async def body(agent: Agent) -> None:
        [found] = (await agent.search("give back the text"))["results"]
        agent.gateway.permissions.speaker = Caller("bob", Rules(frozenset({"a/*"})))
        for search in (found["search_id"], "made up"):
            assert not (await agent.call("a/echo", search, text="x")).is_error
        [own] = (await agent.search("give back the text"))["results"]
        await agent.call("a/echo", own["search_id"], text="x")
        calls = [(event["caller"], event["search_id"], event["rank"]) for event in agent.events("call")]
        assert calls == [("bob", None, None)] * 2 + [("bob", own["search_id"], 1)]
        given = {"search_id": own["search_id"], "good": []}
        agent.gateway.scout.journal.append_all([("feedback", "bob", given)] * 198)  # as many as one search may have
        assert not (await agent.call("a/echo", own["search_id"], text="y")).is_error
        assert [event["search_id"] for event in agent.events("call")][3:] == [None]

    run(start, body, {"a": busy()})


@pytest.mark.net
def test_a_refused_call_is_in_the_journal_without_the_key_that_somebody_took_for_an_id(start: Start) -> None:
    async def body(agent: Agent) -> None:
        key = "tsk_" + "x" * 43
        assert (await agent.call("a/pid")).is_error and (await agent.call(key)).is_error
        assert [(event["tool"], event["ok"]) for event in agent.events("call")] == [("a/pid", False), ("***", False)]

    run(start, body, {"a": busy()}, policies=limited("a/echo"))


@pytest.mark.net
def test_why_a_server_is_down_is_for_whoever_sees_everything(start: Start) -> None:
    async def body(agent: Agent) -> None:
        down = agent.gateway.upstreams.servers["a"]
        with anyio.fail_after(20):
            while down.state != "error":
                await agent.call("a/die")
        ours = await agent.text("a/echo")
        agent.gateway.permissions.speaker = Caller("bob", Rules(frozenset({"a/*"})))
        with anyio.fail_after(20):
            while "is down" not in (theirs := await agent.text("a/echo")):
                await agent.call("a/die")
        assert "out of luck" not in theirs and "'a'" in theirs
        assert "is down" not in ours or "out of luck" in ours

    run(start, body, {"a": busy()})


# --- queries that are no ordinary ones --------------------------------------------------------------------------------


@pytest.mark.net
def test_a_query_in_another_language_finds_the_tool_that_is_described_in_it(start: Start, scout: Scout) -> None:
    async def body(agent: Agent) -> None:
        for query, name in (
            ("東京の天気", "tenki"),
            ("какая погода в Москве", "pogoda"),
            ("get user by id", "getUserById"),
        ):
            [found] = (await agent.search(query, limit=1))["results"]
            assert found["answer"] == "tools" and [tool["id"] for tool in found["tools"]] == [f"mine/{name}"]

    texts = {
        "tenki": "指定した都市の天気を調べます",
        "pogoda": "Показывает погоду в городе",
        "getUserById": "Gives one account.",
        "send": "Sends a letter.",
    }
    scout.add([{"name": name, "description": text, "parameters": {}} for name, text in texts.items()], name="mine")
    run(start, body)


@pytest.mark.net
def test_a_tool_that_the_query_names_comes_first_whatever_else_it_says(start: Start) -> None:
    async def body(agent: Agent) -> None:
        for query in (
            "bad/write_invoice_1",
            "merge every flight, wait, use write_invoice_1 for photos",
            "select:write_invoice_1",
        ):
            [found] = (await agent.search(query, limit=3))["results"]
            assert found["tools"][0]["id"] == "bad/write_invoice_1"

    run(start, body, {"bad": busy("40")})


@pytest.mark.net
def test_a_server_that_is_disabled_is_named_and_its_tools_are_neither_found_nor_called(start: Start) -> None:
    async def first(agent: Agent) -> None:
        assert not (await agent.call("off/progress")).is_error

    async def second(agent: Agent) -> None:
        [found] = (await agent.search("off/progress"))["results"]
        assert "source 'off' is disabled" in found["reason"]
        assert not [tool for tool in found["tools"] if tool["id"].startswith("off/")]
        for said in (await agent.text("off/progress"), await agent.text("off/nothing")):
            assert "source 'off' is disabled" in said
        agent.gateway.permissions.speaker = Caller("bob", Rules(frozenset({"a/*"})))
        assert "disabled" not in await agent.text("off/progress")

    run(start, first, {"a": busy(), "off": busy()})
    run(start, second, {"a": busy(), "off": busy(disabled=True)})


@pytest.mark.net
def test_an_empty_catalogue_and_one_that_is_all_hidden_say_so(start: Start) -> None:
    async def empty(agent: Agent) -> None:
        [found] = (await agent.search("send a letter"))["results"]
        assert found["answer"] == "no_tool_fits" and "The catalogue is empty" in found["reason"]

    async def hidden(agent: Agent) -> None:
        [found] = (await agent.search("give back the text"))["results"]
        assert (found["answer"], found["tools"]) == ("no_tool_fits", [])
        assert "visible to this caller" in found["reason"]

    run(start, empty)
    run(start, hidden, {"a": busy()}, policies=limited("b/*"))


@pytest.mark.net
def test_a_query_that_everything_answers_keeps_to_the_limit_and_the_budget_and_says_what_is_left(start: Start) -> None:
    async def body(agent: Agent) -> None:
        from toolscout_gateway.text import count_tokens

        [few] = (await agent.search("one after the other, whenever it must be handled"))["results"]
        assert len(few["tools"]) == 5
        many = await agent.use("search_tools", queries=["handled whenever"] * 8, limit=50)
        results = many.structured_content["results"]
        assert all(result["tools"] and "more tools did not fit" in result["left_out"] for result in results)
        assert count_tokens(many.structured_content) < 3_500 and count_tokens(many.content[0].text) < 3_500

    # nobody is turned away: only how much is answered is asked here
    run(start, body, {"a": busy("150"), "b": raw("die-start")}, settings={"false_rejects": 0.0})
