from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest

from toolscout.errors import SourceError
from toolscout.settings import Settings
from toolscout.sources import Reading, detect
from toolscout.sources import read as read_any
from toolscout.sources.schemas import read, read_objects
from toolscout.types import Hints, Tool

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Weather of a city."}
DIALECTS: dict[str, Any] = {
    "openai chat": {"type": "function", "function": {**WEATHER, "parameters": CITY, "strict": True}},
    "openai responses": {"type": "function", **WEATHER, "parameters": CITY},
    "anthropic": {**WEATHER, "input_schema": CITY},
    "anthropic custom": {"type": "custom", **WEATHER, "input_schema": CITY},
    "gemini": {
        "functionDeclarations": [
            {
                **WEATHER,
                "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]},
            }
        ]
    },
    "gemini snake case": {"function_declarations": [{**WEATHER, "parametersJsonSchema": CITY}]},
    "mcp": {"tools": [{**WEATHER, "inputSchema": CITY}]},
    "mcp in json-rpc": {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{**WEATHER, "inputSchema": CITY}]}},
    "plain": {**WEATHER, "parameters": CITY},
    "bfcl": {**WEATHER, "parameters": {**CITY, "type": "dict"}},
    "functions": {"functions": [{**WEATHER, "parameters": CITY}]},
    "chat request": {"model": "m", "messages": [], "tools": [{"function": {**WEATHER, "parameters": CITY}}]},
    "json schema": {"title": "get_weather", "description": "Weather of a city.", **CITY},
}
FUZZ = int(os.environ.get("TOOLSCOUT_FUZZ", "200"))


def write(folder: Path, name: str, value: Any) -> str:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return str(path)


def read_one(locator: str, name: str | None = None) -> Reading:
    (reading,) = read(locator, name=name, settings=Settings())
    return reading


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_gives_the_same_tool(dialect: str, tmp_path: Path) -> None:
    locator = write(tmp_path, "office tools.json", DIALECTS[dialect])
    reading = read_one(locator)
    assert reading.problems == []
    (tool,) = reading.tools
    assert (tool.id, tool.name, tool.description) == ("office-tools/get_weather", "get_weather", "Weather of a city.")
    assert tool.parameters == CITY
    assert not tool.callable
    assert detect(locator) == "schemas"


def test_a_mixed_list_gives_all_its_tools_in_order() -> None:
    named = []
    for number, value in enumerate(DIALECTS.values()):
        named.append(json.loads(json.dumps(value).replace("get_weather", f"tool_{number}")))
    reading = read_objects("mixed", named)
    assert reading.problems == []
    assert [tool.name for tool in reading.tools] == [f"tool_{number}" for number in range(len(DIALECTS))]


def test_jsonl_names_a_bad_line_by_its_number_and_reads_the_others(tmp_path: Path) -> None:
    lines = [json.dumps({**WEATHER, "name": f"tool_{n}"}) for n in range(10)]
    lines[6] = '{"name": "broken", '
    lines[8] = "17"
    locator = write(tmp_path, "tools.jsonl", "\ufeff" + "\r\n".join([*lines, "", ""]))
    reading = read_one(locator, name="mine")
    assert [problem.entry for problem in reading.problems] == ["line 7", "line 9"]
    assert "expected JSON" in reading.problems[0].message
    assert [tool.id for tool in reading.tools] == [f"mine/tool_{n}" for n in (0, 1, 2, 3, 4, 5, 7, 9)]


def test_a_bad_entry_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    entries = [
        WEATHER,
        {"description": "no name"},
        {**WEATHER, "name": "b", "parameters": {"type": "string"}},
        {"type": "web_search_20250305", "name": "web_search"},
        {"googleSearch": {}},
        {**WEATHER, "name": "c", "inputSchema": []},
        WEATHER,
        {**WEATHER, "name": "d"},
    ]
    reading = read_one(write(tmp_path, "tools.json", {"tools": entries}))
    assert [tool.name for tool in reading.tools] == ["get_weather", "d"]
    assert [problem.entry for problem in reading.problems] == [f"entry {n}" for n in (2, 3, 4, 5, 6, 7)]
    assert "description" in reading.problems[0].message


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("empty.jsonl", "", "an empty file"),
        ("scalar.json", '"hello"', "entry 1"),
        ("nameless.json", '[{"a": 1}, {"b": 2}]', "entry 1"),
        ("cut.json", '{"tools": [', "expected JSON"),
        ("bad.jsonl", "{\n}\n", "line 1"),
    ],
)
def test_a_file_in_which_nothing_can_be_read_is_an_error(name: str, text: str, found: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=found):
        read_one(write(tmp_path, name, text))


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    for name in ("none.json", "none.jsonl"):
        with pytest.raises(SourceError, match="expected a readable file"):
            read_one(str(tmp_path / name))


def test_an_empty_list_is_a_source_without_tools(tmp_path: Path) -> None:
    assert read_one(write(tmp_path, "none.json", {"tools": []})).tools == []


def test_capitals_and_foreign_type_names_become_json_schema_but_properties_keep_their_names() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "enum": ["OBJECT", "STRING"]},
            "rows": {"type": "ARRAY", "items": {"type": "tuple"}},
            "price": {"anyOf": [{"type": "float"}, {"type": "NULL"}]},
            "what": {"type": "any", "description": "Anything."},
        },
    }
    (tool,) = read_objects("g", [{"name": "f", "parameters": schema}]).tools
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["OBJECT", "STRING"]},
            "rows": {"type": "array", "items": {"type": "array"}},
            "price": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "what": {"description": "Anything."},
        },
    }


def test_mcp_annotations_become_hints_and_the_output_schema_the_result() -> None:
    annotations = {"title": "Look", "readOnlyHint": True, "openWorldHint": False, "destructiveHint": "no"}
    entry = {**WEATHER, "inputSchema": CITY, "outputSchema": {"type": "object"}, "annotations": annotations}
    (tool,) = read_objects("m", [{"tools": [entry]}]).tools
    assert tool.hints == Hints(read_only=True, open_world=False)
    assert tool.returns == {"type": "object"}
    assert tool.meta["annotations"] == annotations


def test_a_namespace_is_a_path_and_keeps_equal_names_apart() -> None:
    groups = [{"type": "namespace", "name": group, "tools": [WEATHER]} for group in ("north", "south")]
    listed = {**WEATHER, "metadata": {"path": ["sky", "rain"]}}
    tools = read_objects("n", [*groups, listed]).tools
    assert [(tool.id, tool.path) for tool in tools] == [
        ("n/north/get_weather", ("north",)),
        ("n/south/get_weather", ("south",)),
        ("n/get_weather", ("sky", "rain")),
    ]


def test_nan_and_lone_surrogates_are_read_leniently(tmp_path: Path) -> None:
    text = r'{"name": "a", "description": "x\ud800y", "parameters": {"properties": {"p": {"default": NaN}}}}'
    (tool,) = read_one(write(tmp_path, "odd.jsonl", text)).tools
    assert tool.description == "x\ufffdy"
    assert tool.parameters == {"properties": {"p": {"default": None}}}


# --- objects ----------------------------------------------------------------------------------------------------------


class Forecast(pydantic.BaseModel):
    """Daily forecast for a city."""

    city: str = pydantic.Field(description="Where.")
    days: int = 3


def add(first: int, second: int = 0) -> int:
    """Add two numbers.

    Args:
        first: the one.
        second: the other.
    """
    raise AssertionError("nothing is called")


class Odd:
    name = "odd"

    @property
    def description(self) -> str:
        raise RuntimeError("broken")


class Dumpable:
    def to_dict(self) -> dict[str, str]:
        return dict(WEATHER)


def test_models_and_functions_become_tools_and_other_objects_a_sentence() -> None:
    reading = read_objects("mine", [Forecast, add, WEATHER, Dumpable(), Odd(), lambda x: x, None, "text"])
    forecast, function, weather = reading.tools
    assert (forecast.id, forecast.description) == ("mine/Forecast", "Daily forecast for a city.")
    assert forecast.parameters is not None
    assert forecast.parameters["properties"]["city"]["description"] == "Where."
    assert forecast.parameters["required"] == ["city"]
    assert (function.id, function.description) == ("mine/add", "Add two numbers.")
    assert weather.name == "get_weather"
    assert [problem.entry for problem in reading.problems] == [f"entry {n}" for n in (4, 5, 6, 7, 8)]
    assert "found a Dumpable: convert it to a dictionary first" in reading.problems[0].message
    assert "RuntimeError" in reading.problems[1].message


def test_langchain_tools_show_what_a_model_may_fill_in() -> None:
    tools = pytest.importorskip("langchain_core.tools", reason="needs langchain-core")

    @tools.tool
    def search(query: str, limit: int = 5) -> str:
        """Search the archive."""
        return query

    def fetch(url: str, token: str) -> str:
        return url

    fetch.__annotations__ = {"url": str, "token": Annotated[str, tools.InjectedToolArg]}
    structured = tools.StructuredTool.from_function(fetch, name="fetch_page", description="Fetch a page.")
    simple = tools.Tool(name="echo", description="Say it again.", func=str)
    from_dict = tools.StructuredTool(name="raw", description="Raw schema.", args_schema=CITY, func=str)

    reading = read_objects("lc", [search, structured, simple, from_dict])
    assert reading.problems == []
    found: dict[str, Tool] = {tool.name: tool for tool in reading.tools}
    schemas = {name: tool.parameters or {} for name, tool in found.items()}
    assert found["search"].description == "Search the archive."
    assert set(schemas["search"]["properties"]) == {"query", "limit"}
    assert schemas["search"]["required"] == ["query"]
    assert set(schemas["fetch_page"]["properties"]) == {"url"}
    assert set(schemas["echo"]["properties"])
    assert schemas["raw"] == CITY


# --- size and noise ---------------------------------------------------------------------------------------------------


def test_two_thousand_lines_are_all_read(tmp_path: Path) -> None:
    line = json.dumps({**WEATHER, "name": "NAME", "inputSchema": CITY})
    locator = write(tmp_path, "big.jsonl", "\n".join(line.replace("NAME", f"tool_{n}") for n in range(2_000)))
    reading = read_one(locator)
    assert len(reading.tools) == 2_000


JUNK: list[Any] = [None, True, 0, -1.5, 10**30, "", "x" * 300, "\ud800", [], [[]], {}, {"type": 5}, "OBJECT", "tools"]


def mutated(value: Any, chance: random.Random) -> Any:
    """The value with one random part of it replaced, removed or wrapped."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(sorted(value))
        act = chance.randrange(4)
        if act == 0:
            return {k: v for k, v in value.items() if k != key}
        if act == 1:
            return {**value, str(chance.choice(JUNK)): value[key]}
        return {**value, key: mutated(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [mutated(item, chance) if n == place else item for n, item in enumerate(value)]
    return chance.choice([*JUNK, [value], {"tools": value}, {"function": value}])


def broken(text: str, chance: random.Random) -> bytes:
    """The text with a few random bytes changed, or cut."""
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(chance.randrange(1, 4)):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    return bytes(raw[: chance.randrange(len(raw))] if chance.random() < 0.2 else raw)


def attempt(act: Callable[[], list[Reading]]) -> None:
    """Only SourceError escapes; what is read has names, and what is not is named."""
    try:
        readings = act()
    except SourceError as error:
        assert str(error)
        return
    for reading in readings:
        assert all(problem.entry and problem.message for problem in reading.problems)
        assert all(tool.name and len(tool.fingerprint) == 32 for tool in reading.tools)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_mutated_schema_files_give_problems_and_never_a_traceback(dialect: str, tmp_path: Path) -> None:
    chance = random.Random(f"schemas {dialect}")
    path = tmp_path / "fuzz.json"
    for number in range(max(1, FUZZ // len(DIALECTS))):
        value = [WEATHER, DIALECTS[dialect]]
        for _ in range(chance.randrange(1, 4)):
            value = mutated(value, chance)
        text = json.dumps(value)
        path.write_bytes(broken(text, chance) if number % 3 == 0 else text.encode())
        attempt(lambda: read_any(str(path), kind="schemas", settings=Settings()))


def test_mutated_lines_cost_only_themselves(tmp_path: Path) -> None:
    chance = random.Random("lines")
    path = tmp_path / "fuzz.jsonl"
    good = [json.dumps({**WEATHER, "name": f"good_{n}"}) for n in range(5)]
    for _ in range(FUZZ):
        value = chance.choice(list(DIALECTS.values()))
        bad = broken(json.dumps(mutated(value, chance)), chance).replace(b"\n", b" ")
        path.write_bytes(
            b"\n".join([*(line.encode() for line in good[:3]), bad, *(line.encode() for line in good[3:])])
        )
        reading = read_one(str(path))
        assert {f"good_{n}" for n in range(5)} <= {tool.name for tool in reading.tools}
        assert all(problem.entry.startswith("line 4") for problem in reading.problems)


def test_a_tool_config_of_bedrock_is_read(tmp_path: Path) -> None:
    parameters = {"type": "object", "properties": {"sign": {"type": "string"}}, "required": ["sign"]}
    spec = {"toolSpec": {"name": "top_song", "description": "Find a song.", "inputSchema": {"json": parameters}}}
    for number, content in enumerate(({"tools": [spec]}, {"toolConfig": {"tools": [spec]}}, [spec])):
        path = tmp_path / f"bedrock{number}.json"
        path.write_text(json.dumps(content))
        [reading] = read_any(str(path), settings=Settings())
        [tool] = reading.tools
        assert (tool.name, tool.parameters, reading.problems) == ("top_song", parameters, [])


def test_a_schema_names_no_function_to_run() -> None:
    function = {"module": "os", "qualname": "getcwd"}
    reading = read_objects("city", [{**WEATHER, **function, "owner": "ann"}])
    assert reading.tools[0].meta == {"owner": "ann"}
