from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolscout.errors import SourceError
from toolscout.settings import Settings
from toolscout.sources import Reading, detect
from toolscout.sources.folder import read, read_tools
from toolscout.types import render

SETS = (
    "bfcl",
    "bfcl_parallel_multiple",
    "hammerbench",
    "livemcpbench",
    "mcpproxy_golden",
    "metatool",
    "numpybank",
    "openapi/restbench_spotify",
    "openapi/restbench_tmdb",
    "seal_tools_in",
    "tool_corpora/toucan",
    "toolbench",
    "toollens",
    "toollinkos",
    "ultratool",
)
FORECAST = {
    "_id": "weather/forecast",
    "title": "forecast",
    "text": "Daily forecast for a city.",
    "metadata": {
        "path": ["weather"],
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "source": "made up",
    },
}


def toollens(category: str, tool: str, name: str, description: str, required: Any, optional: Any, returns: Any) -> str:
    return (
        f"category_name:{category}, tool_name:{tool}, api_name:{name}, api_description:{description}, "
        f"required_params: {json.dumps(required)}, optional_params: {json.dumps(optional)}, "
        f"return_schema: {json.dumps(returns)}"
    )


def write(folder: Path, *entries: Any) -> Path:
    folder.mkdir(exist_ok=True)
    lines = (entry if isinstance(entry, str) else json.dumps(entry) for entry in entries)
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_a_corpus_entry_becomes_a_tool_and_keeps_its_own_wording(tmp_path: Path) -> None:
    folder = write(tmp_path / "my set", FORECAST)
    (reading,) = read(str(folder), name=None, settings=Settings())
    (tool,) = reading.tools
    assert detect(str(folder)) == "folder"
    assert (reading.source, reading.kind, reading.problems) == ("my-set", "folder", [])
    assert (tool.id, tool.name, tool.path) == ("my-set/weather/forecast", "forecast", ("weather",))
    assert tool.parameters == FORECAST["metadata"]["parameters"]  # type: ignore[index]
    assert tool.meta == {"source": "made up", "title": "forecast", "text": "Daily forecast for a city."}
    assert render(tool, "raw") == "forecast Daily forecast for a city."


def test_a_toollens_text_gives_its_fields_whatever_stands_in_them(tmp_path: Path) -> None:
    text = toollens(
        "Travel, Leisure",
        "Great: Circle, Math",
        "Get Distance By City, State, Country",
        "Distances: in km, or miles, required_params: none, see [docs], api_name:old.",
        [{"name": "from", "type": "STRING", "description": "City, or: place ], optional_params: []"}],
        [
            {"name": "unit", "type": "ENUM", "description": ""},
            {"name": "n", "type": "NUMBER", "description": "How many", "default": "3"},
        ],
        {"km": "float, or: str"},
    )
    (tool,) = read_tools(write(tmp_path, {"_id": "17", "title": "", "text": text, "metadata": {}}), "toollens").tools
    assert tool.id == "toollens/17"
    assert tool.path == ("Travel, Leisure", "Great: Circle, Math")
    assert tool.name == "Get Distance By City, State, Country"
    assert tool.description == "Distances: in km, or miles, required_params: none, see [docs], api_name:old."
    assert tool.returns == {"km": "float, or: str"}
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "from": {"type": "string", "description": "City, or: place ], optional_params: []"},
            "unit": {"type": "string", "format": "enum"},
            "n": {"type": "number", "description": "How many", "default": "3"},
        },
        "required": ["from"],
    }
    assert render(tool, "raw") == text


def test_a_text_that_only_begins_like_toollens_stays_a_description(tmp_path: Path) -> None:
    text = "category_name:A, tool_name:B, api_name:C"
    (tool,) = read_tools(write(tmp_path, {"_id": 5, "text": text}), "s").tools
    assert (tool.name, tool.description, tool.path) == ("5", text, ())


def test_bad_lines_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        FORECAST,
        "{broken",
        [],
        {"title": "no id"},
        {**FORECAST, "_id": "a", "text": 5},
        {**FORECAST, "_id": "b", "metadata": {"path": "weather"}},
        {**FORECAST, "_id": "c", "metadata": {"path": [["weather"]]}},
        {**FORECAST, "_id": "d", "metadata": {"parameters": []}},
        {**FORECAST, "_id": "e", "metadata": "none"},
        {"_id": "f", "text": toollens("A", "B", "C", "D", [{"type": "STRING"}], [], {})},
        FORECAST,
        {**FORECAST, "_id": "last", "metadata": None},
    )
    reading = read_tools(folder, "s")
    assert [tool.id for tool in reading.tools] == ["s/weather/forecast", "s/last"]
    assert [problem.entry for problem in reading.problems] == [f"line {n}" for n in range(2, 12)]


@pytest.mark.parametrize("lines", [(), ("{}", "[]")])
def test_a_corpus_without_a_single_tool_is_an_error(lines: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"corpus\.jsonl: expected"):
        read_tools(write(tmp_path, *lines), "s")


def test_a_folder_without_a_corpus_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"corpus\.jsonl: expected a readable file"):
        read_tools(tmp_path, "s")


@pytest.mark.parametrize("name", SETS)
def test_every_entry_of_a_public_dataset_is_in_or_named(name: str, data: Path) -> None:
    folder = data / name
    if not folder.is_dir():
        pytest.skip(f"needs the dataset {name}")
    (reading,) = read(str(folder), name=None, settings=Settings())
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    assert reading.source == folder.name
    assert [tool.id for tool in reading.tools] == [f"{folder.name}/{row['_id']}" for row in rows]
    assert reading.problems == []


def test_every_toollens_tool_has_its_path_name_and_parameters(data: Path) -> None:
    if not (data / "toollens").is_dir():
        pytest.skip("needs the dataset toollens")
    reading: Reading = read_tools(data / "toollens", "toollens")
    assert all(len(tool.path) == 2 and tool.parameters is not None for tool in reading.tools)
    assert not any("api_description:" in tool.description or tool.name.isdigit() for tool in reading.tools)
    assert sum(len((tool.parameters or {})["properties"]) for tool in reading.tools) > 300
