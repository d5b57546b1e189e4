"""Schemas for providers: whatever a tool's schema is, it fits the published rules, and arguments come back as sent."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolscout.adapters import Toolbox, anthropic, bedrock, gemini, openai
from toolscout.adapters.providers import (
    ANTHROPIC,
    BEDROCK,
    GEMINI,
    ITEM,
    MCP_CLIENT,
    OPENAI,
    Provider,
    Translation,
    translate,
)
from toolscout.errors import UserError
from toolscout.scout import Scout
from toolscout.settings import Settings
from toolscout.sources import openapi as documents
from toolscout.types import Tool, follow_reference, gather_properties, render

EXAMPLES = 500 if os.environ.get("TOOLSCOUT_FULL") == "1" else 100
PROVIDERS = {provider.name: provider for provider in (OPENAI, ANTHROPIC, GEMINI, BEDROCK, MCP_CLIENT)}
SPECS = Path(os.environ.get("TOOLSCOUT_DATA", "")) / "openapi" / "specs"
NAMES = ("id", "filter[name]", "$top", "x" * 80, "größe", "a b", "_", "1st", "a.b", "a-b", "名")
GEMINI_KEYWORDS = {"type", "description", "enum", "items", "properties", "required", "anyOf", "nullable", "format"} | {
    *("minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength", "pattern"),
}


# --- the published rules ----------------------------------------------------------------------------------------------


def walk(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema in a schema."""
    assert isinstance(schema, dict), schema
    yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", [])]
    inner += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    for each in inner:
        yield from walk(each)


def check_rules(translation: Translation, provider: Provider) -> None:
    schema = translation.schema
    assert set(schema) <= {"type", "properties", "required"} and schema["type"] == "object"
    assert translation.description and len(translation.description) <= provider.max_description_chars
    text = json.dumps(schema)
    assert '"$ref"' not in text and len(text.encode()) <= 120_000
    for part in walk(schema):
        check_part(part)
        if provider is GEMINI:
            check_gemini(part)
        else:
            assert "anyOf" in part or part.get("type") != "array" or isinstance(part["items"], dict)


def check_part(part: dict[str, Any]) -> None:
    properties = part.get("properties", {})
    assert isinstance(properties, dict) and all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) for name in properties)
    assert part.get("required", ["x"]) and set(part.get("required", [])) <= set(properties)
    assert part.get("enum", ["x"]) and part.get("anyOf", ["x"])
    kinds = part.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    assert set(kinds) <= {"object", "array", "string", "number", "integer", "boolean", "null"}


def check_gemini(part: dict[str, Any]) -> None:
    assert set(part) <= GEMINI_KEYWORDS
    assert ("type" in part) != ("anyOf" in part)
    assert "anyOf" not in part or set(part) == {"anyOf"}
    assert isinstance(part.get("type", ""), str) and part.get("type") != "null"
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name) for name in part.get("properties", {}))
    assert "enum" not in part or (part["type"] == "string" and all(part["enum"]))
    assert part.get("format", "date-time") in ("date-time", "float", "double", "int32", "int64")
    assert part.get("type") != "array" or "items" in part


# --- arguments there and back -----------------------------------------------------------------------------------------


def make_value(schema: Any, root: Any, chance: random.Random, depth: int = 0) -> Any:
    """A value that a schema describes, as far as types, properties and choices go."""
    schema = follow_reference(schema, root)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return chance.choice(schema["enum"])
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        return make_value(
            {**{k: v for k, v in schema.items() if k not in ("anyOf", "oneOf")}, **fill(chance.choice(branches))},
            root,
            chance,
            depth + 1,
        )
    kind = schema.get("type")
    kind = chance.choice(kind) if isinstance(kind, list) and kind else kind
    if kind is None:
        return chance.choice(["123", "text", 5, None, True, [1, {"a": "2"}], {"filter[name]": "null"}])
    if depth > 6 or kind not in ("object", "array"):
        return {"string": "true", "integer": 3, "number": 1.5, "boolean": True, "array": [], "object": {}}.get(kind)
    if kind == "array":
        return [make_value(schema.get("items", {}), root, chance, depth + 1) for _ in range(2)]
    properties, _ = gather_properties(schema, root)
    if isinstance(schema.get("additionalProperties"), dict):
        properties = {**properties, "some other name": schema["additionalProperties"]}
    return {
        name: make_value(inner, root, chance, depth + 1) for name, inner in properties.items() if chance.random() < 0.8
    }


def write_value(translation: Translation, value: Any, path: tuple[str, ...] = ()) -> Any:
    """What a model sends for a value."""
    if path in translation.texts:
        return json.dumps(value)
    if isinstance(value, list):
        return [write_value(translation, item, (*path, ITEM)) for item in value]
    if not isinstance(value, Mapping):
        return value
    sent_names = {name: sent for sent, name in translation.names.items()}
    known = translation.places
    return {
        sent_names.get(name, name) if (*path, name) in known else name: write_value(
            translation, item, (*path, name) if (*path, name) in known else (*path, ITEM)
        )
        for name, item in value.items()
    }


def check_tool(tool: Tool, seed: int) -> None:
    for provider in PROVIDERS.values():
        translation = translate(tool, provider)
        check_rules(translation, provider)
        properties, _ = gather_properties(tool.parameters)
        chance = random.Random(seed)
        arguments = {name: make_value(inner, tool.parameters, chance) for name, inner in properties.items()}
        assert translation.restore(write_value(translation, arguments)) == arguments, provider.name


def schemas() -> st.SearchStrategy[Any]:
    names = st.sampled_from(NAMES)
    leaves = st.sampled_from(
        [
            {}, True, None, {"type": "string"}, {"type": "string", "format": "uri"}, {"type": ["string", "null"]},
            {"type": "integer", "minimum": 1, "format": "int64"}, {"type": ["integer", "string"]}, {"const": 5},
            {"type": "boolean", "nullable": True}, {"enum": ["a", ""]}, {"enum": [1, "a", None]}, {"enum": []},
            {"type": "array"}, {"type": "array", "items": None}, {"type": "object"}, {"type": "null"},
            {"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}, {"$ref": "#/nowhere"}, {"$ref": "#"}, {"type": "FLOAT"},
            {"type": "string", "pattern": "("}, {"type": "number", "exclusiveMinimum": True, "description": "d" * 400},
            {"description": "Anything."}, {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
        ]
    )  # fmt: skip

    def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        objects = st.builds(
            lambda properties, required: {"type": "object", "properties": properties, "required": required},
            st.dictionaries(names, inner, max_size=4),
            st.lists(names, max_size=2),
        )
        branches = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(
            objects,
            st.builds(lambda items: {"type": "array", "items": items}, inner),
            st.builds(lambda key, parts: {key: parts}, st.sampled_from(["anyOf", "oneOf", "allOf"]), branches),
            st.builds(
                lambda base, key, parts: {**base, key: parts}, objects, st.sampled_from(["anyOf", "oneOf"]), branches
            ),
            st.builds(lambda values: {"type": "object", "additionalProperties": values}, inner),
        )

    return st.recursive(leaves, grow, max_leaves=12)


def fill(schema: Any) -> Any:
    """Alternatives may be anything in a document, but a test of values needs objects."""
    return {} if not isinstance(schema, dict) else schema


@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    st.dictionaries(st.sampled_from(NAMES), schemas(), max_size=4), schemas(), schemas(), schemas(), st.integers(0, 99)
)
def test_any_schema_fits_the_rules_and_its_arguments_come_back(
    properties: dict[str, Any], first: Any, second: Any, beside: Any, seed: int
) -> None:
    defs = {"A": fill(first), "B": fill(second)}
    root = {
        "type": "object",
        "properties": properties,
        "required": None,
        "$defs": defs,
        **(fill(beside) if seed % 3 == 0 else {}),
    }
    root["$defs"] = defs
    if not isinstance(root.get("properties"), dict):
        root["properties"] = {}
    for provider in PROVIDERS.values():
        check_rules(translate(Tool(id="s/t", name="t", parameters=root), provider), provider)
    plain = {"type": "object", "properties": properties, "$defs": defs}
    check_tool(Tool(id="s/t", name="t", parameters=json.loads(json.dumps(plain, default=str))), seed)


@pytest.mark.skipif(not SPECS.is_dir(), reason="TOOLSCOUT_DATA is not set to a folder with openapi/specs")
@pytest.mark.parametrize("stem", ["ecommerce", "github_subset", "k8s_core_v1", "petstore3", "spotify_oas", "tmdb_oas"])
def test_real_operations_fit_the_rules_and_their_arguments_come_back(stem: str) -> None:
    [reading] = documents.read(str(SPECS / f"{stem}.json"), name=None, settings=Settings())
    for number, tool in enumerate(reading.tools):
        check_tool(tool, number)


# --- through the adapters ---------------------------------------------------------------------------------------------

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "line[no]": {"type": "string"}},
    "required": ["id"],
}
ODD_TOOLS: dict[str, tuple[Any, Any]] = {
    "attach": (
        {"anyOf": [{"properties": {key: {"type": "string"}}, "required": [key]} for key in ("content", "source_url")]},
        {"content": "c"},
    ),
    "rootref": ({"$ref": "#/$defs/O", "$defs": {"O": ORDER}}, {"id": 1, "line[no]": "2"}),
    "reffed": ({"properties": {"o": {"$ref": "#/$defs/O"}}, "$defs": {"O": ORDER}}, {"o": {"id": 1, "line[no]": "2"}}),
    "badprop": ({"properties": {"filter[name]": {}, "$top": {}, "x" * 80: {}}}, {"$top": "5", "x" * 80: 1}),
    "lists": ({"properties": {"tags": {"type": "array"}, "rows": {"items": {}, "type": "array"}}}, {"tags": ["1", 1]}),
    "nulls": ({"properties": None, "required": None}, {}),
    "typearr": ({"type": ["object", "null"], "properties": {"a": {"type": "string"}}}, {"a": "1"}),
    "free": ({"properties": {"metadata": {"type": "object"}}}, {"metadata": {"line[no]": {"a": "1"}}}),
    "n" * 90: ({}, {}),
    "会议": ({}, {}),
    "3d": ({}, {}),
}  # fmt: skip


def test_a_tool_that_breaks_rules_is_offered_within_them_and_called_as_it_is(scout: Scout) -> None:
    scout.add([{"name": name, "input_schema": schema} for name, (schema, _) in ODD_TOOLS.items()], name="t")
    box = Toolbox(scout, k=20)
    listed = {entry["name"]: entry["input_schema"] for entry in anthropic.tools(box)[1:]}
    assert len(listed) == len(ODD_TOOLS)
    for name, tool in box.tools():
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", name)
        arguments = ODD_TOOLS[tool.name][1]
        for provider in PROVIDERS.values():
            translation = box.translate(tool, provider)
            sent = json.loads(json.dumps(write_value(translation, arguments)))
            assert box.read_call(name, sent, provider) == (tool, arguments)
            assert box.read_call(name, json.dumps(sent), provider) == (tool, arguments)
        assert listed[name] == box.translate(tool, ANTHROPIC).schema
        with pytest.raises(UserError, match="as an object"):
            box.read_call(name, "[]", OPENAI)
    assert "Give one of: content; source_url." in box.translate(box.tool("attach"), OPENAI).description


def test_each_adapter_has_the_form_of_its_provider(scout: Scout) -> None:
    schema = {"properties": {"$to": {}}}
    scout.add([{"name": "rename", "description": "Rename a pet.", "input_schema": schema}], name="t")
    box = Toolbox(scout)
    [declared] = gemini.select_tools(box, "rename a pet")[0]["function_declarations"]
    [spec] = bedrock.select_tools(box, "rename a pet")["toolConfig"]["tools"]
    [function] = openai.select_tools(box, "rename a pet")
    schemas_by_provider = declared["parameters"], spec["toolSpec"]["inputSchema"]["json"], function["parameters"]
    [[to], *_] = [list(schema["properties"]) for schema in schemas_by_provider]
    assert {declared["name"], spec["toolSpec"]["name"], function["name"]} == {"rename"}
    call = SimpleNamespace(name="rename", args={to: '"x"'}, arguments=json.dumps({to: "x"}), input={to: "x"})
    for arguments in (
        gemini.read_call(box, call)[1],
        openai.read_call(box, call)[1],
        openai.read_call(box, SimpleNamespace(function=call))[1],
        anthropic.read_call(box, call)[1],
        bedrock.read_call(box, {"name": "rename", "input": {to: "x"}})[1],
    ):
        assert arguments == {"$to": "x"}
    nothing = Toolbox(scout, visible=lambda tool: False)
    assert gemini.select_tools(nothing, "rename a pet") == [] and bedrock.select_tools(nothing, "rename a pet") == {}


def test_a_schema_that_writes_itself_out_many_times_is_bounded() -> None:
    names = [f"p{number}" for number in range(9)]
    levels: dict[str, Any] = {
        f"L{n}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/L{n + 1}"} for name in names}}
        for n in range(12)
    }
    root = {"$ref": "#/$defs/L0", "$defs": {**levels, "L12": {"type": "string"}}}
    tool = Tool(id="s/t", name="t", parameters=root)
    for provider in PROVIDERS.values():
        translation = translate(tool, provider)
        check_rules(translation, provider)
        assert list(translation.schema["properties"]) == names


def test_words_behind_references_and_alternatives_are_part_of_the_text() -> None:
    branch = {"properties": {"invoice": {"$ref": "#/$defs/Invoice"}}, "required": ["invoice"]}
    invoice = {"type": "object", "description": "What is billed.", "properties": {"currency": {"type": "string"}}}
    loop = {"type": "object", "properties": {"again": {"$ref": "#/$defs/Loop"}}}
    root = {"anyOf": [branch, {"$ref": "#/$defs/Loop"}], "$defs": {"Invoice": invoice, "Loop": loop}}
    tool = Tool(id="s/t", name="t", parameters=root)
    assert {"invoice", "currency", "again"} == set(render(tool, "parameters").split())
    assert render(tool, "parameter_descriptions") == "What is billed."
    assert gather_properties({"allOf": [branch, {"required": ["x"]}]})[1] == ["invoice", "x"]
