"""Two hundred slips that models make: taken and said, or answered with what to send; none is taken wrongly."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from gateway.tests.conftest import SERVERS, Agent, open_agent
from toolscout_gateway.calls.arguments import Validators
from toolscout_gateway.calls.repairs import repair_request

pytestmark = pytest.mark.net
VALIDATORS = Validators()
Row = tuple[Any, ...]
HOUR, MOVE, SHIP, PAINT, ROWS, MODE = (
    *("one/set_alarm", "one/move_file", "one/ship", "one/paint", "one/query_rows", "one/set-mode"),
)
OSLO = {"city": "Oslo"}

# --- arguments of a tool: id, what is sent, what arrives --------------------------------------------------------------

TAKEN: list[Row] = [
    *((HOUR, {"hour": text}, {"hour": 7}) for text in ("7", " 7", "7 ", "7\n")),
    *(
        (HOUR, {"hour": text}, {"hour": number})
        for text, number in (("0", 0), ("-3", -3), ("23", 23), ("100000", 10**5))
    ),
    (HOUR, {"hour": [7]}, {"hour": 7}),
    *((HOUR, {"hour": 7, "loud": text}, {"hour": 7, "loud": True}) for text in ("true", "True", "TRUE", " true ")),
    *((HOUR, {"hour": 7, "loud": text}, {"hour": 7, "loud": False}) for text in ("false", "False", "FALSE")),
    (HOUR, {"hour": 7, "loud": [True]}, {"hour": 7, "loud": True}),
    *(
        (HOUR, {"hour": 7, "volume": text}, {"hour": 7, "volume": number})
        for text, number in (("0.5", 0.5), ("1", 1), ("-2.25", -2.25), ("10.0", 10.0), (" 3.5 ", 3.5))
    ),
    *((HOUR, {"hour": 7, "label": number}, {"hour": 7, "label": str(number)}) for number in (5, 0, -12, 20261123)),
    (HOUR, {"hour": 7, "label": ["wake up"]}, {"hour": 7, "label": "wake up"}),
    *((HOUR, {"hour": 7, "days": day}, {"hour": 7, "days": [day]}) for day in ("Monday", "Sun", "first Monday")),
    *(
        (HOUR, {"hour": 7, "days": text}, {"hour": 7, "days": ["Mon", "Tue"]})
        for text in ('["Mon", "Tue"]', '["Mon","Tue"]', "['Mon', 'Tue']", ' ["Mon", "Tue"] ')
    ),
    (HOUR, {"hour": 7, "days": 1}, {"hour": 7, "days": ["1"]}),
    (HOUR, {"hour": 7, "days": [1, 2]}, {"hour": 7, "days": ["1", "2"]}),
    *((HOUR, {"hour": 7, name: None}, {"hour": 7}) for name in ("label", "loud", "volume", "days")),
    (HOUR, {"hour": "7", "loud": "true", "volume": "0.5"}, {"hour": 7, "loud": True, "volume": 0.5}),
    *((HOUR, {name: 7}, {"hour": 7}) for name in ("Hour", "HOUR", "hour_", "_hour")),
    (HOUR, {"hour": 7, "Label": "x"}, {"hour": 7, "label": "x"}),
    *((HOUR, {name: {"hour": 7}}, {"hour": 7}) for name in ("arguments", "args", "params", "parameters", "input")),
    (HOUR, {"kwargs": {"hour": "7"}}, {"hour": 7}),
    *((MOVE, {"source": "a", name: "b"}, {"source": "a", "target": "b"}) for name in ("Target", "TARGET", "tar_get")),
    (MOVE, {"source": 1, "target": 2}, {"source": "1", "target": "2"}),
    (MOVE, {"source": ["a"], "target": ["b"]}, {"source": "a", "target": "b"}),
    (MOVE, {"source": "a", "target": "b", "overwrite": "false"}, {"source": "a", "target": "b", "overwrite": False}),
    (MOVE, {"source": "a", "target": "b", "overwrite": None}, {"source": "a", "target": "b"}),
    *((SHIP, {"to": text}, {"to": OSLO}) for text in ('{"city": "Oslo"}', "{'city': 'Oslo'}", ' {"city":"Oslo"} ')),
    (SHIP, {"to": [OSLO]}, {"to": OSLO}),
    (SHIP, {"to": {"city": "Oslo", "zip": 1234}}, {"to": {"city": "Oslo", "zip": "1234"}}),
    (SHIP, {"to": {"city": "Oslo", "floor": "3"}}, {"to": {"city": "Oslo", "floor": 3}}),
    (SHIP, {"to": {"city": "Oslo", "floor": None}}, {"to": OSLO}),
    (SHIP, {"to": {"City": "Oslo"}}, {"to": OSLO}),
    (SHIP, {"to": '{"city": "Oslo", "floor": "3"}'}, {"to": {"city": "Oslo", "floor": 3}}),
    (SHIP, {"to": OSLO, "items": OSLO}, {"to": OSLO, "items": [OSLO]}),
    (SHIP, {"to": OSLO, "items": '[{"city": "Oslo"}]'}, {"to": OSLO, "items": [OSLO]}),
    (SHIP, {"to": OSLO, "items": ['{"city": "Oslo"}']}, {"to": OSLO, "items": [OSLO]}),
    *((SHIP, {"to": OSLO, "ids": given}, {"to": OSLO, "ids": [5]}) for given in (5, "5", ["5"], "[5]", '["5"]')),
    *((SHIP, {"to": OSLO, "ids": given}, {"to": OSLO, "ids": [5, 6]}) for given in (["5", 6], "[5, 6]", '["5", "6"]')),
    (SHIP, {"to": OSLO, "version": 3}, {"to": OSLO, "version": "3"}),
    *((PAINT, {"color": text}, {"color": "red"}) for text in ("Red", "RED", " red")),
    *(
        (PAINT, {"color": text}, {"color": "dark-green"})
        for text in ("dark green", "dark_green", "Dark-Green", "darkgreen")
    ),
    (PAINT, {"color": ["blue"]}, {"color": "blue"}),
    *((ROWS, {"filter": {}, "max_results": text}, {"filter": {}, "max_results": 9}) for text in ("9", " 9")),
    (ROWS, {"filter": "{}"}, {"filter": {}}),
    (ROWS, {"filter": '{"a": [1]}'}, {"filter": {"a": [1]}}),
    (ROWS, {"filter": {}, "order_by": 3}, {"filter": {}, "order_by": "3"}),
    (ROWS, {"filter": {}, "order_by": ["name"]}, {"filter": {}, "order_by": "name"}),
    (ROWS, {"Filter": {"a": 1}}, {"filter": {"a": 1}}),
    (MODE, {"mode": 4}, {"mode": "4"}),
    (MODE, {"Mode": "x"}, {"mode": "x"}),
    (MODE, {"mode": ["x"], "arguments": "{}"}, {"mode": "x", "arguments": {}}),
    *((SHIP, {"to": {"city": given}}, {"to": {"city": "7"}}) for given in (7, ["7"])),
    (
        SHIP,
        {"to": OSLO, "items": [{"city": "Oslo", "floor": "3"}]},
        {"to": OSLO, "items": [{"city": "Oslo", "floor": 3}]},
    ),
    (SHIP, {"to": OSLO, "items": None, "ids": None}, {"to": OSLO}),
    (ROWS, {"filter": [{"a": 1}]}, {"filter": {"a": 1}}),
    (ROWS, {"filter": "{'a': None}"}, {"filter": {"a": None}}),
    (MODE, {"mode": "x", "arguments": '{"a": 1}'}, {"mode": "x", "arguments": {"a": 1}}),
]

# --- right as they are: nothing may touch them ------------------------------------------------------------------------

UNTOUCHED: list[Row] = [
    (HOUR, {"hour": 7, "label": "5"}),
    (HOUR, {"hour": 7, "label": "true"}),
    (HOUR, {"hour": 7, "label": '["a"]'}),
    (HOUR, {"hour": 7, "days": []}),
    (HOUR, {"hour": 7, "days": ["a,b"]}),
    (MOVE, {"source": "a", "target": "b", "Overwrite": "true"}),
    (MOVE, {"source": "null", "target": "{}"}),
    (SHIP, {"to": {"city": "1", "street": 5}, "version": "3.10"}),
    (ROWS, {"filter": {"args": {"x": "1"}}, "max_results": None}),
    (ROWS, {"filter": {}, "value": "7"}),
    (ROWS, {"filter": {}, "value": 7}),
    (MODE, {"mode": "7", "arguments": {"mode": "x"}}),
    (MODE, {"mode": "input"}),
]

# --- answered: what is sent, and what the answer must say -------------------------------------------------------------

ANSWERED: list[Row] = [
    *((HOUR, {"hour": text}, '{"hour":7}') for text in ("07", "007", "+7")),
    *((HOUR, {"hour": text}, '{"hour":1000}') for text in ("1,000", "1_000")),
    *((HOUR, {"hour": text}, "expected integer") for text in ("seven", "7am", "7.5", "", "0x7", "1e3", "VII")),
    *((HOUR, {"hour": value}, "expected integer") for value in (7.5, True, {"hour": 7}, [7, 8], [])),
    (HOUR, {"hour": ["7"]}, "expected integer"),
    (HOUR, {"hour": None}, "expected integer"),
    (HOUR, {}, "expected the required 'hour'"),
    (HOUR, {"hours": 7}, '{"hour":7}'),
    (HOUR, {"huor": 7}, '{"hour":7}'),
    (HOUR, {"hour": 7, "lable": "x"}, '"label":"x"'),
    (HOUR, {"hour": 7, "title": "x"}, "signature is one/set_alarm(hour: integer"),
    *((HOUR, {"hour": 7, "loud": text}, '"loud":true') for text in ("yes", "on", "1", "Y")),
    *((HOUR, {"hour": 7, "loud": text}, '"loud":false') for text in ("no", "off", "0", "N")),
    (HOUR, {"hour": 7, "loud": 1}, '"loud":true'),
    (HOUR, {"hour": 7, "loud": "maybe"}, "expected boolean"),
    *(
        (HOUR, {"hour": 7, "days": text}, '["Mon","Tue"]')
        for text in ("Mon,Tue", "Mon, Tue", "Mon;Tue", "Mon\nTue", "Mon|Tue")
    ),
    (HOUR, {"hour": 7, "label": 3.1}, '"label":"3.1"'),
    (HOUR, {"hour": 7, "label": True}, '"label":"true"'),
    (HOUR, {"hour": 7, "label": {"a": 1}}, "expected string"),
    (HOUR, {"hour": 7, "label": ["a", "b"]}, "expected string"),
    (HOUR, {"hour": 7, "volume": "loud"}, "expected number"),
    (MOVE, {"source": "a"}, "expected the required 'target'"),
    (MOVE, {"source": "a", "targte": "b"}, '"target":"b"'),
    (MOVE, {"source": "a", "destination": "b"}, "expected the required 'target'"),
    (SHIP, {"to": "Oslo"}, "expected object"),
    (SHIP, {"to": '{"city": "Oslo"'}, "expected object"),
    (SHIP, {"to": OSLO, "ids": "5,6"}, '"ids":[5,6]'),
    (SHIP, {"to": OSLO, "ids": "5, 6"}, '"ids":[5,6]'),
    (SHIP, {"to": OSLO, "ids": "all"}, "ids"),
    (SHIP, {"to": OSLO, "version": 3.1}, '"version":"3.1"'),
    (SHIP, {"to": {"town": "Oslo"}}, "city"),
    (PAINT, {"color": "green"}, "dark-green"),
    (PAINT, {"colour": "red"}, '{"color":"red"}'),
    (MODE, {"mod": "x"}, '{"mode":"x"}'),
    (ROWS, {"filters": {}}, '{"filter":{}}'),
    (ROWS, {"filter": {}, "max_results": "1,000"}, '"max_results":1000'),
    (PAINT, {"color": "rde"}, '"color":"red"'),
    (PAINT, {"color": "mauve"}, "expected one of"),
    (PAINT, {"color": "red", "size": "big"}, "expected one of 1, 2, 3"),
    (ROWS, {"filter": "a = 1"}, "expected object"),
    (ROWS, {"filter": {}, "max_results": "many"}, "max_results"),
    ("one/set_alrm", {"hour": 7}, "did you mean 'one/set_alarm'"),
    ("one/setalarm", {"hour": 7}, "did you mean 'one/set_alarm'"),
    ("set_alrm", {"hour": 7}, "'one/set_alarm'"),
    ("set_alarm", {"hour": 7}, "'one/set_alarm' or 'two/set_alarm'"),
    ("three/set_alarm", {"hour": 7}, "'one/set_alarm' or 'two/set_alarm'"),
    ("ONE/SET_ALARM", {"hour": 7}, "'one/set_alarm'"),
    ("alarm", {"hour": 7}, "use an id from search_tools"),
    ("", {}, "use an id from search_tools"),
    ("search_tools", {"queries": ["x"]}, "use an id from search_tools"),
]

# --- ids: what is sent, which tool is called --------------------------------------------------------------------------

NAMED: list[tuple[str, str]] = [
    *((text, "one/only_one") for text in ("only_one", " only_one ", "`only_one`", '"only_one"', "only_one()")),
    *((text, "two/only_two") for text in ("only_two", "two/only_two(x: string)", "'two/only_two'", "two/only_two\n")),
    *((f"one{separator}set_alarm", HOUR) for separator in ("__", ".", ":", "::", "_", "#", "-")),
    *((f"{prefix}one__set_alarm", HOUR) for prefix in ("mcp__", "functions.", "tools.")),
    ("functions.one/set_alarm", HOUR),
    ("one/set_alarm(hour: integer, label?: string)", HOUR),
    ("one_set-mode", MODE),
]

# --- arguments of the meta-tools: name, what is sent, what is read ----------------------------------------------------

META: list[Row] = [
    *(("search_tools", {"queries": text}, {"queries": [text]}) for text in ("read a file", "find, then sort", "a; b")),
    *(("search_tools", {name: "x"}, {"queries": ["x"]}) for name in ("query", "q", "search", "text")),
    ("search_tools", {"query": ["x", "y"]}, {"queries": ["x", "y"]}),
    ("search_tools", {"queries": '["x", "y"]'}, {"queries": ["x", "y"]}),
    ("search_tools", {"queries": [{"query": "x"}]}, {"queries": ["x"]}),
    *(
        ("search_tools", {"queries": ["x"], name: "5"}, {"queries": ["x"], "limit": 5})
        for name in ("limit", "top_k", "k")
    ),
    ("search_tools", {"queries": ["x"], "limit": None}, {"queries": ["x"]}),
    ("search_tools", {"queries": ["x"], "detail": "Full"}, {"queries": ["x"], "detail": "full"}),
    *(("describe_tools", {name: "a/b"}, {"ids": ["a/b"]}) for name in ("ids", "id", "tool", "names")),
    *(
        ("describe_tools", {"ids": text}, {"ids": ["a/b", "a/c"]})
        for text in ("a/b, a/c", "a/b,a/c", "a/b\na/c", '["a/b", "a/c"]')
    ),
    ("call_tool", {"id": "a/b", "arguments": '{"x": 1}'}, {"id": "a/b", "arguments": {"x": 1}}),
    ("call_tool", {"id": "a/b", "arguments": "{'x': True}"}, {"id": "a/b", "arguments": {"x": True}}),
    *(
        ("call_tool", {"id": "a/b", "arguments": value}, {"id": "a/b", "arguments": {}})
        for value in ("", "{}", None, [])
    ),
    ("call_tool", {"id": "a/b"}, {"id": "a/b", "arguments": {}}),
    ("call_tool", {"id": "a/b", "x": 1, "y": 2}, {"id": "a/b", "arguments": {"x": 1, "y": 2}}),
    ("call_tool", {"id": "a/b", "arguments": [{"x": 1}]}, {"id": "a/b", "arguments": {"x": 1}}),
    *(
        ("call_tool", {name: "a/b", "arguments": {}}, {"id": "a/b", "arguments": {}})
        for name in ("tool", "name", "tool_id", "tool_name")
    ),
    *(
        ("call_tool", {"id": "a/b", name: {"x": 1}}, {"id": "a/b", "arguments": {"x": 1}})
        for name in ("args", "params", "input")
    ),
    ("call_tool", {"id": "a/b", "arguments": {}, "search_id": None}, {"id": "a/b", "arguments": {}}),
    ("call_tool", {"id": "a/b", "arguments": {}, "searchId": "s"}, {"id": "a/b", "arguments": {}, "search_id": "s"}),
    ("call_tool", {"id": "a/b", "input": "text"}, {"id": "a/b", "arguments": {"input": "text"}}),
]
META_REFUSED: list[Row] = [
    ("search_tools", {}),
    ("search_tools", {"queries": []}),
    ("search_tools", {"queries": ["x"], "limit": 500}),
    ("search_tools", {"queries": ["x"], "detail": "everything"}),
    ("search_tools", {"queries": 7.5}),
    ("describe_tools", {}),
    ("call_tool", {"arguments": {}}),
    ("call_tool", {"id": "a/b", "arguments": "Oslo"}),
    ("call_tool", {"id": ["a/b", "a/c"], "arguments": {}}),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Calls a meta-tool at a gateway over two servers of `tests/servers/typed.py`."""
    servers = {
        name: {"command": sys.executable, "args": [str(SERVERS / "typed.py"), f"only_{name}"]}
        for name in ("one", "two")
    }
    opened = open_agent(tmp_path_factory.mktemp("slips"), servers, settings={"trust": "off"})
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened) as agent:

        async def use(name: str, arguments: Any) -> Any:
            return await Agent.use(agent, name, **arguments)

        yield lambda name, arguments: portal.call(use, name, arguments)


def is_repair(expected: str) -> bool:
    """Whether an answer must hold what to send: arguments or an id."""
    return expected.startswith(("{", '"', "'")) or "did you mean" in expected


def test_the_table_holds_two_hundred_slips_with_a_repair() -> None:
    repairs = [row for row in ANSWERED if is_repair(row[2])]
    assert len(TAKEN) + len(NAMED) + len(META) + len(repairs) >= 200


def test_obvious_slips_are_taken_and_said(run: Any) -> None:
    for id, given, expected in TAKEN:
        answer = run("call_tool", {"id": id, "arguments": given})
        assert not answer.is_error, (id, given, answer.content[0].text)
        assert json.loads(answer.content[0].text) == [id.partition("/")[2], expected], (id, given)
        assert answer.content[-1].text.startswith("Note of the gateway: "), (id, given)


def test_what_is_right_is_not_touched(run: Any) -> None:
    for id, given in UNTOUCHED:
        answer = run("call_tool", {"id": id, "arguments": given})
        assert [json.loads(part.text) for part in answer.content] == [[id.partition("/")[2], given]], (id, given)


def test_other_slips_are_answered_with_what_to_send(run: Any) -> None:
    for id, given, expected in ANSWERED:
        answer = run("call_tool", {"id": id, "arguments": given})
        text = answer.content[0].text
        assert answer.is_error and expected in text, (id, given, text)
        if is_repair(expected):
            assert "if you mean" in text or "did you mean" in text, (id, given, text)


def test_a_name_that_can_mean_one_tool_only_is_taken_and_said(run: Any) -> None:
    for text, id in NAMED:
        arguments = {HOUR: {"hour": 1}, MODE: {"mode": "x"}}.get(id, {})
        for name, sent in (("call_tool", {"id": text, "arguments": arguments}), (text, arguments)):
            answer = run(name, sent)
            assert not answer.is_error, (text, answer.content[0].text)
            assert json.loads(answer.content[0].text) == [id.partition("/")[2], arguments], text
            assert f"was read as '{id}'" in answer.content[-1].text, text
        described = run("describe_tools", {"ids": [text]}).structured_content
        assert [tool["id"] for tool in described["tools"]] == [id] and described["notes"], text


def test_slips_in_the_arguments_of_the_meta_tools_are_taken_and_said() -> None:
    for name, given, expected in META:
        arguments, _ = repair_request(VALIDATORS, name, given)
        assert arguments == expected, (name, given)


def test_the_answers_of_the_meta_tools_say_what_was_read(run: Any) -> None:
    answer = run("search_tools", {"query": "set an alarm", "limit": "1"})
    notes = answer.structured_content["notes"]
    assert notes[0] == "'query' was read as 'queries'" and notes[1] == "'limit': \"1\" was read as 1"
    assert "Note: 'query' was read as 'queries'" in answer.content[0].text
    assert answer.structured_content["results"][0]["tools"][0]["id"] in (HOUR, "two/set_alarm")
    called = run("call_tool", {"id": HOUR, "arguments": '{"hour": "7"}'})
    assert json.loads(called.content[0].text) == ["set_alarm", {"hour": 7}]


def test_what_no_meta_tool_can_read_is_answered(run: Any) -> None:
    for name, given in META_REFUSED:
        assert repair_request(VALIDATORS, name, given) == (given, []), (name, given)
        answer = run(name, given)
        assert answer.is_error and "expected" in answer.content[0].text, (name, given)
