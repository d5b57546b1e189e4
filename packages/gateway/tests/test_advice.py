"""Arguments are checked against the schema before a call; a schema that cannot be used stops nobody."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from toolscout.errors import UserError
from toolscout.types import Tool
from toolscout_gateway.calls.arguments import (
    MAX_VALIDATION_STEPS,
    TOO_MUCH_TO_CHECK,
    Validators,
)
from toolscout_gateway.calls.repairs import check_arguments, read_request


def explain_faults(tool: Tool, given: dict[str, Any]) -> list[str]:
    return Validators().explain_faults(tool, given)


def tool(**parameters: Any) -> Tool:
    return Tool(id="a/b", name="b", parameters={"type": "object", **parameters})


SCHEMA_4 = "http://json-schema.org/draft-04/schema#"
CITY = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("schema", "given", "said"),
    [
        (CITY, {"city": "Oslo"}, []),
        (CITY, {"city": "Oslo", "extra": 1}, []),
        (CITY, {"ciy": "Oslo"}, ["expected the required 'city' (is that what 'ciy' means?), found none"]),
        (CITY, {"city": None}, ["parameter 'city': expected string, found null"]),
        (CITY, {"city": "x", "days": "2"}, ["parameter 'days': expected integer, found \"2\""]),
        (
            {**CITY, "additionalProperties": False},
            {"city": "x", "dayz": 1},
            ["the arguments: expected one of city, days, found 'dayz' (did you mean 'days'?)"],
        ),
        (
            {"properties": {"mode": {"enum": ["fast", "slow"]}}},
            {"mode": "fst"},
            ['parameter \'mode\': expected one of "fast", "slow", found "fst": did you mean \'fast\'?'],
        ),
        (
            {"properties": {"a": {"type": "array", "items": {"type": "object", "required": ["x"]}}}},
            {"a": [{"x": 1}, {}]},
            ["expected the required 'x' in 'a.1', found none"],
        ),
        ({"properties": {"n": {"minimum": 3}}}, {"n": 1}, ["parameter 'n': expected minimum 3, found 1"]),
    ],
)
def test_advice_names_the_parameter_what_was_expected_and_what_was_found(
    schema: dict[str, Any], given: dict[str, Any], said: list[str]
) -> None:
    assert explain_faults(tool(**schema), given) == said


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"type": "no such type"}}},
        {"properties": {"x": {"$ref": "#/nowhere"}}},
        {"properties": {"x": {"$ref": "http://127.0.0.1:9/schema"}}},
        {"properties": {"x": {"$ref": "#/properties/x"}}},
        {"properties": {"x": {"multipleOf": 0}}},
        {"required": "x"},
    ],
)
def test_a_schema_that_cannot_be_used_stops_nobody(schema: dict[str, Any]) -> None:
    assert explain_faults(tool(**schema), {"x": 1}) == []


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("describe_tools", {"ids": ["a/b"] * 21_000}),
        ("describe_tools", {"ids": json.dumps(["a/b"] * 21_000)}),
        ("search_tools", {"queries": ["x"] * 21_000}),
        ("search_tools", {"query": ["x"] * 21_000}),
        ("search_tools", {"queries": ["x"] * 9}),
    ],
)
def test_a_meta_tool_refuses_more_items_than_it_takes_however_many(name: str, given: dict[str, Any]) -> None:
    arguments, notes, faults = read_request(Validators(), name, given)
    assert arguments is given and not notes and faults


def test_what_cannot_be_checked_in_bounded_steps_is_refused_where_it_must_and_faults_found_are_kept() -> None:
    subject = tool(properties={"n": {"type": "integer"}, "x": {"items": {"type": "integer"}}})
    many = [1] * (MAX_VALIDATION_STEPS + 1)
    assert explain_faults(subject, {"x": many}) == []
    assert Validators().explain_faults(subject, {"x": many}, must_end=True) == [TOO_MUCH_TO_CHECK]
    assert explain_faults(subject, {"n": "a", "x": many}) == ["parameter 'n': expected integer, found \"a\""]


def test_an_evil_pattern_keeps_nobody_busy() -> None:
    """Were the patterns matched, it would take until the time limit of the tests, and far longer."""
    schema = {"properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}, "patternProperties": {"^(b+)+$": {}}}
    assert explain_faults(tool(**schema, additionalProperties=False), {"x": "a" * 60 + "!", "b" * 60 + "!": 1}) == []


@pytest.mark.timeout(20)
def test_a_schema_that_names_its_dialect_inside_has_the_same_bounds() -> None:
    """jsonschema goes on with the keywords of a dialect wherever one is named."""
    inner = {"$schema": SCHEMA_4, "type": "string", "pattern": "^(a+)+$"}
    for outer in ({"properties": {"x": inner}}, {**inner, "type": "object", "properties": {"x": {"$ref": "#"}}}):
        assert len(explain_faults(tool(**outer), {"x": "a" * 60 + "!"})) == (outer.get("pattern") is not None)


def test_a_schema_that_would_take_years_to_look_at_keeps_nobody_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout_gateway.calls.arguments.MAX_VALIDATION_S", 60.0)  # its steps are counted
    levels = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(40)}
    schema = {"type": "object", "$defs": {**levels, "l40": {}}, "$ref": "#/$defs/l0"}
    validators, subject = Validators(), Tool(id="a/b", name="b", parameters=schema)
    assert validators.explain_faults(subject, {"x": 1}) == []
    assert validators.get(subject).left < 0, "it gave up after so many steps"


MANY = [{"n": n} for n in range(20_000)]
NAMES = [f"p{n}" for n in range(20_000)]
LONG_CHECKS: dict[str, tuple[dict[str, Any], Any]] = {
    "items that are compared in pairs": ({"properties": {"x": {"uniqueItems": True}}}, MANY),
    "choices that are compared in pairs": ({"$schema": SCHEMA_4, "properties": {"x": {"enum": MANY}}}, MANY[-1]),
    "many choices for many items": ({"properties": {"x": {"items": {"enum": MANY}}}}, MANY[-1:] * 19_000),
    "many choices that are alike": (
        {"properties": {"x": {"enum": ["ab" * 200 + str(n) for n in range(5_000)]}}},
        "ba" * 200,
    ),
    "many alternatives": ({"properties": {"x": {"items": {"anyOf": [{"not": {}}] * 5_000}}}}, [1] * 19_000),
    "many required names": (
        {"properties": {"x": {"required": NAMES, "properties": {name: {} for name in NAMES}}}},
        {f"q{n}": 1 for n in range(20_000)},
    ),
    "many unknown names": (
        {"properties": {"x": {"additionalProperties": False, "properties": {f"p{n}": {} for n in range(5_000)}}}},
        {f"q{n}": 1 for n in range(20_000)},
    ),
}


@pytest.mark.timeout(20)  # some take minutes without a bound
@pytest.mark.parametrize("name", LONG_CHECKS)
def test_a_validation_and_its_repairs_have_a_bound(name: str) -> None:
    schema, value = LONG_CHECKS[name]
    with contextlib.suppress(UserError):
        check_arguments(Validators(), tool(**schema), {"x": value}, [])


def test_a_long_value_is_not_repeated_in_full() -> None:
    [said] = explain_faults(tool(**CITY), {"city": ["x" * 10_000]})
    assert len(said) < 200


def test_no_more_than_five_faults_are_listed() -> None:
    properties = {f"p{number}": {"type": "string"} for number in range(20)}
    assert len(explain_faults(tool(properties=properties), dict.fromkeys(properties, 1))) == 5


# --- at once, without a thread ----------------------------------------------------------------------------------------


def check_twice(schema: dict[str, Any], given: dict[str, Any]) -> bool:
    """Compile the schema as a first call does, and return whether the second accepts the arguments at once."""
    subject, validators = tool(**schema), Validators()
    assert not validators.accepts_at_once(subject, given)  # to compile a schema takes a thread
    validators.explain_faults(subject, given)
    return validators.accepts_at_once(subject, given)


def test_ordinary_arguments_are_accepted_at_once_and_wrong_ones_never_are() -> None:
    assert check_twice(CITY, {"city": "Oslo", "days": 2})
    assert not check_twice(CITY, {"city": 1})
    assert not check_twice(CITY, {})


@pytest.mark.parametrize(
    ("schema", "given"),
    [
        ({"properties": {"x": {"uniqueItems": True}}}, {"x": [1]}),
        ({"properties": {"x": {"$ref": "#/$defs/y"}}, "$defs": {"y": {}}}, {"x": 1}),
        ({"unevaluatedProperties": False, "properties": {"x": {}}}, {"x": 1}),
        ({"properties": {"x": {"enum": [f"value {n}" for n in range(1_000)]}}}, {"x": "value 3"}),
        ({"properties": {"x": {"type": "string"}}}, {"x": "a" * 3_000}),
        ({"properties": {"x": {"items": {"type": "integer"}}}}, {"x": [1] * 300}),
    ],
)
def test_a_validation_that_may_take_long_waits_for_a_thread(schema: dict[str, Any], given: dict[str, Any]) -> None:
    assert not check_twice(schema, given)
    assert explain_faults(tool(**schema), given) == []
