"""The adapters: what they share, and every example against the real package, with a script in the model's place."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from toolscout.adapters import SEARCH, Chooser, Toolbox, wire_name
from toolscout.adapters import anthropic as messages_api
from toolscout.adapters import openai as responses_api
from toolscout.errors import NotFound
from toolscout.location import describe_home
from toolscout.scout import Scout
from toolscout.types import Tool

# --- a toolbox --------------------------------------------------------------------------------------------------------


def no_mail(tool: Tool) -> bool:
    return "mail" not in tool.id


def test_names_fit_every_api_and_lead_back_to_their_tool(scout: Scout) -> None:
    for source in ("a", "b"):
        spoken = {"description": "Look something up."}
        names = ("search", "get weather!", "x" * 90, "日本", SEARCH)
        scout.add([{"name": name, **spoken} for name in names], name=source)
    box = Toolbox(scout)
    named = box.tools()
    assert len(named) == 10 == len({name for name, _ in named})
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) and name != SEARCH for name, _ in named)
    assert all(box.tool(name) == tool for name, tool in named)
    scout.remove(["a"])
    with pytest.raises(NotFound, match="Search first"):
        box.tool("nothing")
    assert {tool.source for _, tool in box.tools()} == {"b"}
    assert wire_name("!", "!", ()) == wire_name("!", "!", ()) != ""


def test_a_name_that_was_given_keeps_its_tool_whatever_is_added(scout: Scout) -> None:
    scout.add([{"name": "delete", "description": "Delete a letter."}], name="mail")
    box = Toolbox(scout)
    [(name, shown)] = box.search("delete a letter")
    assert (name, shown.id) == ("delete", "mail/delete")
    scout.add([{"name": "delete", "description": "Delete a table of the database."}], name="db")
    assert box.tool("delete").id == "mail/delete"
    assert dict(box.tools())["delete"].id == "mail/delete" and len(dict(box.tools())) == 2
    scout.remove(["mail"])
    with pytest.raises(NotFound):
        box.tool("delete")
    assert {tool.id for _, tool in box.search("delete a table")} == {"db/delete"}
    assert Toolbox(scout).tool("delete").id == "db/delete"


def test_a_name_does_not_betray_what_is_hidden(scout: Scout) -> None:
    for source in ("mail", "office"):
        scout.add([{"name": "delete", "description": "Delete a letter."}], name=source)
    assert [name for name, _ in Toolbox(scout, visible=no_mail).tools()] == ["delete"]


def test_what_the_caller_may_not_discover_is_neither_listed_nor_found_nor_called(toy: Scout) -> None:
    everything, some = Toolbox(toy), Toolbox(toy, visible=no_mail)
    hidden = {name for name, tool in everything.tools() if "mail" in tool.id}
    assert hidden and not hidden & {name for name, _ in some.tools()}
    assert not hidden & {name for name, _ in some.search("send an electronic mail message")}
    with pytest.raises(NotFound):
        some.tool(min(hidden))


def test_a_call_reaches_the_journal_with_the_search_that_showed_it(toy: Scout) -> None:
    box = Toolbox(toy, caller="agent")
    name, tool = box.search("weather forecast")[0]
    box.record_call(name, ok=True, ms=3)
    asked, called = toy.journal.read()
    assert (called["tool"], called["search_id"], called["rank"]) == (tool.id, asked["search_id"], 1)
    assert asked["caller"] == called["caller"] == "agent"


def test_a_call_after_a_search_that_has_all_the_events_it_may_have_is_journaled_by_itself(toy: Scout) -> None:
    box = Toolbox(toy, caller="agent")
    name, tool = box.search("weather forecast")[0]
    for _ in range(200):
        box.record_call(name, ok=True)
    calls = list(toy.journal.read(event="call"))
    assert [each["tool"] for each in calls] == [tool.id] * 200
    assert [each["search_id"] is None for each in calls] == [False] * 199 + [True]


def test_anthropic_defers_all_but_what_is_loaded_and_answers_with_references(toy: Scout) -> None:
    box = Toolbox(toy)
    listed = messages_api.tools(box, loaded=[box.tools()[0][0]])
    assert [tool.get("defer_loading", False) for tool in listed[:3]] == [False, False, True]
    assert all(tool["input_schema"]["type"] == "object" for tool in listed)
    block = SimpleNamespace(type="tool_use", name=SEARCH, id="t", input={"query": "weather forecast"})
    assert messages_api.searches(block) and not messages_api.searches(SimpleNamespace(type="text"))
    content = messages_api.results(box, block)["content"]
    assert {each["tool_name"] for each in content} <= {tool["name"] for tool in listed}
    nothing = SimpleNamespace(id="t", input={"query": "qqqq"})
    assert messages_api.results(box, nothing)["content"].startswith("No tool fits")
    assert messages_api.results(box, SimpleNamespace(id="t", input="x"))["is_error"]


def test_openai_loads_definitions_and_takes_odd_arguments(toy: Scout) -> None:
    box = Toolbox(toy, k=2)
    call = SimpleNamespace(type="tool_search_call", execution="client", call_id="c", arguments='{"query": "weather"}')
    assert responses_api.searches(call)
    loaded = responses_api.output(box, call)["tools"]
    assert loaded and all(each["defer_loading"] and each["parameters"]["type"] == "object" for each in loaded)
    for odd in ("{", "[]", {}, None, {"query": 3}):
        assert responses_api.output(box, SimpleNamespace(call_id="c", arguments=odd))["tools"] == []
    flat, nested = (responses_api.select_tools(box, "weather", nested=way) for way in (False, True))
    assert [each["name"] for each in flat] == [each["function"]["name"] for each in nested]


# --- a chooser --------------------------------------------------------------------------------------------------------

OFFERED = [
    {"name": "forecast", "description": "The weather of the coming days.", "parameters": {"type": "object"}},
    {"name": "send_mail", "description": "Send an electronic letter.", "parameters": {"type": "object"}},
]


def test_a_chooser_picks_among_what_is_offered_now_and_keeps_what_was(scout: Scout) -> None:
    chooser = Chooser(scout, "my agent", k=1)
    assert chooser.choose(["weather"], OFFERED) == ["forecast"]
    generation = scout.store.generation()
    assert chooser.choose(["weather", "letter"], OFFERED) == ["forecast", "send_mail"]
    assert chooser.choose(["weather"], OFFERED[1:]) == []
    assert scout.store.generation() == generation  # nothing is written for what is known
    changed = [{**OFFERED[0], "description": "Rain and snow."}]
    assert chooser.choose(["snow"], changed) == ["forecast"]
    assert {tool.id for tool in scout.store.tools(["my-agent/forecast", "my-agent/send_mail"])} == {
        "my-agent/forecast",
        "my-agent/send_mail",
    }


def test_choosers_that_share_a_source_do_not_take_each_others_tools_away(scout: Scout) -> None:
    weather = {"name": "forecast", "description": "Weather of tomorrow.", "parameters": {"type": "object"}}
    letter = {"name": "send_mail", "description": "Send a letter.", "parameters": {"type": "object"}}
    with Scout(describe_home(scout.settings.place)) as elsewhere:
        one, other = Chooser(scout, "agent"), Chooser(elsewhere, "agent")
        for _ in range(2):
            assert one.choose(["weather tomorrow"], [weather]) == ["forecast"]
            assert other.choose(["a letter"], [letter]) == ["send_mail"]
        generation = scout.store.generation()
        assert one.choose(["weather tomorrow"], [weather]) == ["forecast"]
        assert scout.store.generation() == generation
        assert other.choose(["a parcel"], [letter | {"description": "Send a parcel."}]) == ["send_mail"]
        assert {tool.description for tool in scout.store.catalogue().tools()} == {
            "Weather of tomorrow.",
            "Send a parcel.",
        }
        scout.remove(["agent"])
        assert one.choose(["weather tomorrow"], [weather]) == ["forecast"]


@pytest.mark.parametrize(("module", "name"), [("langchain", "ToolChoice"), ("fastmcp", "ToolscoutTransform")])
def test_a_framework_is_loaded_only_when_its_class_is_asked_for(module: str, name: str) -> None:
    code = f"import sys, toolscout.adapters.{module} as a; print(*(m for m in sys.modules if m == {module!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.strip()
    adapter = importlib.import_module(f"toolscout.adapters.{module}")
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = adapter.Nothing
