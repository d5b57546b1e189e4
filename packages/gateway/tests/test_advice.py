"""Arguments are checked against the schema before a call; a schema that cannot be used stops nobody."""

from __future__ import annotations

from typing import Any

import pytest

from toolscout.types import Tool
from toolscout_gateway import calls
from toolscout_gateway.calls import accepts_at_once, explain_faults


def tool(**parameters: Any) -> Tool:
    return Tool(id="a/b", name="b", parameters={"type": "object", **parameters})


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


def test_an_evil_pattern_keeps_nobody_busy() -> None:
    """Were the patterns matched, it would take until the time limit of the tests, and far longer."""
    schema = {"properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}, "patternProperties": {"^(b+)+$": {}}}
    assert explain_faults(tool(**schema, additionalProperties=False), {"x": "a" * 60 + "!", "b" * 60 + "!": 1}) == []


def test_a_schema_that_would_take_years_to_look_at_keeps_nobody_busy() -> None:
    levels = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(40)}
    schema = {"type": "object", "$defs": {**levels, "l40": {}}, "$ref": "#/$defs/l0"}
    assert explain_faults(Tool(id="a/b", name="b", parameters=schema), {"x": 1}) == []
    assert calls._validation.left < 0, "it gave up after so many steps"


def test_a_long_value_is_not_repeated_in_full() -> None:
    [said] = explain_faults(tool(**CITY), {"city": ["x" * 10_000]})
    assert len(said) < 200


def test_no_more_than_five_faults_are_listed() -> None:
    properties = {f"p{number}": {"type": "string"} for number in range(20)}
    assert len(explain_faults(tool(properties=properties), dict.fromkeys(properties, 1))) == 5


# --- at once, without a thread ----------------------------------------------------------------------------------------


def check_twice(schema: dict[str, Any], given: dict[str, Any]) -> bool:
    """Compile the schema as a first call does, and return whether the second accepts the arguments at once."""
    subject = tool(**schema)
    calls._validators.pop(subject.fingerprint, None)
    assert not accepts_at_once(subject, given)  # to compile a schema takes a thread
    explain_faults(subject, given)
    return accepts_at_once(subject, given)


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
