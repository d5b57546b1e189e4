"""What one caller may ask for, what they may learn, and definitions that change and change back."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tests.conftest import Agent, Start, busy
from gateway.tests.test_gateway import run
from toolscout.home.catalogue.store import Origin
from toolscout.scout import Scout
from toolscout.sources import Reading
from toolscout.trust.policy import Caller, Rules
from toolscout.types import Tool
from toolscout_gateway import Gateway, tools
from toolscout_gateway.calls import router
from toolscout_gateway.calls.arguments import Validators
from toolscout_gateway.calls.repairs import read_request

HOSTILE = str(Path(__file__).parents[3] / "tests" / "servers" / "hostile.py")


def hostile(way: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": [HOSTILE, way]}


@pytest.mark.net
def test_a_tool_that_changed_back_is_callable_when_its_list_was_read_again(start: Start) -> None:
    async def body(agent: Agent) -> None:
        upstream = agent.gateway.upstreams.servers["bad"]
        upstream.doubt_list()
        first = await agent.call("bad/go")  # the second list of the session has another definition, the third the first
        assert first.is_error and "toolscout approve" in first.content[0].text
        upstream.doubt_list()
        assert await agent.text("bad/go") == "done"

    run(start, body, {"bad": hostile("changes-back")})


@pytest.mark.net
def test_a_list_that_another_process_brought_in_is_compared_with_the_session(start: Start) -> None:
    async def body(agent: Agent) -> None:
        scout = agent.gateway.scout
        assert await agent.text("bad/pid")
        [source] = [each for each in scout.sources() if each.name == "bad"]
        tools = [scout.tool(id) for id, _ in scout.store.page("bad", limit=None) if id != "bad/pid"]
        [origin] = [each for each in scout.store.origins() if each.id == source.origin]
        other = [Tool(id="bad/pid", name="pid", description="Another.", callable=True)]
        for _ in range(2):  # what a sync sees is not what the session of the gateway has
            scout.put_reading(origin, Reading(source="bad", kind="mcp", tools=[*other, *tools]))
            scout.approve(scout.waiting())
            answer = await agent.call("bad/pid")
            assert answer.is_error and "approve" in answer.content[0].text

    run(start, body, {"bad": busy()})


@pytest.mark.net
def test_a_query_that_is_too_long_is_refused_in_a_sentence(start: Start) -> None:
    async def body(agent: Agent) -> None:
        answer = await agent.use("search_tools", queries=["x" * 4_001])
        assert answer.is_error and "at most 4,000 characters, found 4,001" in answer.content[0].text
        assert not (await agent.use("search_tools", queries=["x" * 4_000])).is_error

    run(start, body, {})


@pytest.mark.net
def test_arguments_that_are_too_large_are_refused_in_a_sentence(start: Start) -> None:
    async def body(agent: Agent) -> None:
        said = await agent.text("a/echo", text="x" * 1_000_000)
        assert "expected arguments of at most 1,000,000 bytes, found 1,000," in said
        assert await agent.text("a/echo", text="x" * 9_000) == "x" * 9_000

    run(start, body, {"a": busy()})


@pytest.mark.net
def test_who_asks_too_often_is_told_when_to_ask_again(start: Start) -> None:
    async def body(agent: Agent) -> None:
        answers = [await agent.use("describe_tools", ids=["x/y"]) for _ in range(12)]
        told = [answer.content[0].text for answer in answers]
        assert sum("try again in" in text for text in told) >= 2 and "try again in" not in told[0]
        assert "more than 0.001 requests a second: try again in " in told[-1]

    run(start, body, {}, settings={"gateway_rate": 0.001})


@pytest.mark.net
def test_a_batch_of_queries_counts_as_many(start: Start) -> None:
    async def body(agent: Agent) -> None:
        assert not (await agent.use("search_tools", queries=["one", "two", "three"])).is_error
        assert (await agent.use("search_tools", queries=["one"])).is_error

    run(start, body, {}, settings={"gateway_rate": 0.0001})


# --- what does not depend on hidden tools -----------------------------------------------------------------------------

NAMES = st.lists(
    st.sampled_from(["send", "sendd", "sends", "resend", "read", "sendx", "secret"]), min_size=1, unique=True
)


def answers(home: Path, visible: list[str], hidden: list[str], ids: list[str]) -> list[str]:
    """What a caller who sees `visible` is told about ids that are not there for them."""
    rules = Rules(frozenset({f"mail/{name}" for name in visible}))
    caller = Caller("ann", rules)
    with Scout(home) as scout:
        for source, names in (("mail", [*visible, *hidden]), ("other", hidden)):
            tools = [Tool(id=f"{source}/{name}", name=name, description=name) for name in names]
            scout.store.put_source(Origin(source, "schemas"), source, kind="schemas", tools=tools)
        gateway = Gateway(scout)
        _, missing = gateway.lookup.find_tools(
            caller, [id for id in ids if id not in {f"mail/{name}" for name in visible}]
        )
        gateway._threads.shutdown()
        return list(missing.values())


@pytest.mark.folder_only("opens fifty homes")
@settings(max_examples=25, deadline=None)
@given(visible=NAMES, hidden=NAMES)
def test_suggestions_do_not_depend_on_hidden_tools(
    tmp_path_factory: pytest.TempPathFactory, visible: list[str], hidden: list[str]
) -> None:
    hidden = [name for name in hidden if name not in visible]
    ids = ["mail/sen", "mail/sendd", "mail/SEND", "mail/secre", "other/send", "mail/secret", "other/secret", "x"]
    without = answers(tmp_path_factory.mktemp("a"), visible, [], ids)
    beside = answers(tmp_path_factory.mktemp("b"), visible, hidden, ids)
    assert beside == without


@pytest.mark.parametrize("state", ["disabled", "waiting"])
def test_what_is_disabled_or_waits_is_said_only_to_who_may_see_it(tmp_path: Path, state: str) -> None:
    said = {}
    for exists in (False, True):
        with Scout(tmp_path / str(exists)) as scout:
            for description in ("One.", "Two.") if exists else ():
                tool = Tool(id="mail/send", name="send", description=description)
                kind = "mcp" if state == "waiting" else "schemas"
                scout.store.put_source(Origin("mail", kind), "mail", kind=kind, tools=[tool])
            if exists and state == "disabled":
                scout.enable("mail", False)
            gateway = Gateway(scout)
            for name, rules in (("all", None), ("none", Rules(frozenset({"web/*"})))):
                said[exists, name] = gateway.lookup.find_tools(Caller(name, rules), ["mail/send"])[1]["mail/send"]
            gateway._threads.shutdown()
    assert said[True, "none"] == said[False, "none"]
    assert ("disabled" if state == "disabled" else "toolscout approve") in said[True, "all"]


def test_the_door_over_http_bounds_the_body_of_a_request() -> None:
    from mcp.server.streamable_http_manager import DEFAULT_MAX_REQUEST_BODY_SIZE

    assert DEFAULT_MAX_REQUEST_BODY_SIZE <= 16 * 2**20  # the SDK's door, which the gateway leaves as it is


@pytest.mark.net
def test_a_long_id_that_is_none_is_not_recorded_nor_a_part_of_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have half of a secret at its end, which nobody would recognise."""
    read: list[int] = []
    redact = router.redact
    monkeypatch.setattr(router, "redact", lambda text: read.append(len(text)) or redact(text))
    key = "ghp_" + "a1B2" * 9

    async def body(agent: Agent) -> None:
        for id in ("x://" + "a." * 15_000, f"{'x' * 480} {key}", f"x/{key}", "x/no"):
            assert (await agent.call(id)).is_error
        assert [event["tool"] for event in agent.events("call")] == ["***", "***", "x/***", "x/no"]
        assert read == [len(key) + 2, 4]

    run(start, body, {"it": busy()})


def test_many_unknown_names_of_a_meta_tool_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise AssertionError("it was compared")

    validators = Validators()
    given = {"id": "a/b", **{f"n{number}": number for number in range(50)}}
    arguments, _, faults = read_request(validators, "call_tool", given)
    assert len(arguments["arguments"]) == 50 and not faults
    monkeypatch.setattr(validators, "explain_faults", fail)
    _, _, faults = read_request(validators, "call_tool", {**given, "more": 1})
    assert faults == ["expected the arguments of call_tool, found 51 unknown names"]


def test_no_argument_of_a_meta_tool_is_repaired_while_the_event_loop_waits(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that has to be read as arguments took 19 s in the event loop, in which everybody else waited."""
    threads: list[int] = []

    def read(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return read_request(*given)

    monkeypatch.setattr(tools, "read_request", read)

    async def body(agent: Agent) -> None:
        result = await agent.use("call_tool", id="it/echo", arguments=json.dumps({"text": "y" * 5_000}))
        assert "'arguments'" in result.content[-1].text and "was read as" in result.content[-1].text
        assert threads and threading.get_ident() not in threads
        threads.clear()
        result = await agent.use("call_tool", id="it/echo", arguments="{" * 1_000_001)
        assert result.is_error and "at most 1,000,000 bytes" in result.content[0].text and not threads

    run(start, body, {"it": busy()})


def test_a_long_text_is_read_as_json_and_not_as_python() -> None:
    """Python's own parser lets no other thread run: a megabyte takes it seconds."""
    for items, is_read in ((1_000, True), (9_000, False)):
        text = repr({"a": [1] * items})
        arguments, _, faults = read_request(Validators(), "call_tool", {"id": "a/b", "arguments": text})
        assert (arguments["arguments"] == {"a": [1] * items}) == is_read == (not faults)
        arguments, _, faults = read_request(
            Validators(), "call_tool", {"id": "a/b", "arguments": text.replace("'", '"')}
        )
        assert arguments["arguments"] == {"a": [1] * items} and not faults


def test_a_text_of_a_hundred_thousand_characters_is_not_read_as_a_value() -> None:
    """JSON's parser and the split of a list let no other thread run: a megabyte held all callers for a second."""
    for count, is_read in ((100, True), (110_000, False)):
        given = {"id": "a/b", "arguments": json.dumps({"a": "x" * count})}
        assert (read_request(Validators(), "call_tool", given)[0] != given) == is_read
        given = {"ids": "a/b," * 2 + "," * count}
        arguments, _, _ = read_request(Validators(), "describe_tools", given)
        assert isinstance(arguments["ids"], list) == is_read
