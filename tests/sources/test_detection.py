from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from toolscout.errors import BadEntry, SourceError
from toolscout.settings import Settings
from toolscout.sources import (
    RawTool,
    build_tool,
    detect,
    load_document,
    parse_document,
    read,
    source_name,
)
from toolscout.sources.reading import check_schema


@pytest.mark.parametrize(
    ("locator", "kind"),
    [
        ("py:json", "python"),
        ("https://example.org/openapi.json", "openapi"),
        ("https://example.org/v1/swagger", "openapi"),
        ("https://example.org/mcp", "mcp"),
        ("python3 -m some_server", "mcp"),
    ],
)
def test_a_locator_tells_which_reader_it_needs(locator: str, kind: str) -> None:
    assert detect(locator) == kind


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"openapi": "3.1.0"}, "openapi"),
        ({"swagger": "2.0"}, "openapi"),
        ({"mcpServers": {}}, "mcp"),
        ({"servers": {}}, "mcp"),
        ({"tools": []}, "schemas"),
        ([], "schemas"),
    ],
)
def test_a_file_is_known_by_its_content(content: object, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("// written by an editor\n" + json.dumps(content))
    assert detect(str(path)) == kind


def test_comments_and_trailing_commas_are_read_and_strings_left_alone() -> None:
    text = '{"url": "http://x//y", // note\n "list": [1, 2,], /* more */ "s": "a,]",}'
    assert parse_document(text, "x.json") == {"url": "http://x//y", "list": [1, 2], "s": "a,]"}


def test_json_lines_under_the_ending_of_json_are_read_as_a_list(tmp_path: Path) -> None:
    path = tmp_path / "bfcl.json"
    path.write_text('{"name": "a"}\n{"name": "b"}\n')
    assert load_document(path) == [{"name": "a"}, {"name": "b"}]
    [reading] = read(str(path), settings=Settings())
    assert [tool.id for tool in reading.tools] == ["bfcl/a", "bfcl/b"]


def test_yaml_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(f"k{n}: {n}" for n in range(20_000))
    assert parse_document(text, "x.yaml") == {f"k{n}": n for n in range(20_000)}
    monkeypatch.setattr("toolscout.sources.parsing.MAX_YAML_S", 0.001)
    with pytest.raises(SourceError, match=r"x\.yaml: this YAML takes longer than 0\.001 s to read"):
        parse_document(text, "x.yaml")


@pytest.mark.full
def test_eight_hundred_thousand_keys_are_read_within_ten_seconds_or_refused() -> None:
    text = "openapi: 3.0.0\nx:\n" + "".join(f"  k{n}: 1\n" for n in range(800_000))
    began = time.process_time()
    try:
        assert len(parse_document(text, "x.yaml")["x"]) == 800_000  # type: ignore[index]
    except SourceError as error:
        assert "longer than 10 s" in str(error)
    assert time.process_time() - began < 15


@pytest.mark.parametrize(
    "text",
    [
        "12",
        "-7",
        "012",
        "0",
        "1_000",
        "1:30",
        "1.5",
        "~",
        "no",
        "n",
        "nothing",
        "2020-01-01",
        "'12'",
        "0x1F",
        "1" * 19,
    ],
)
def test_plain_scalars_are_what_the_safe_loader_makes_of_them(text: str) -> None:
    import yaml

    assert parse_document(f"a: [{text}, {text}]", "x.yaml") == yaml.safe_load(f"a: [{text}, {text}]")


@pytest.mark.parametrize(
    "text",
    ["2023-13-45", "9999-99-99", "0000-00-00", "2023-02-30T25:61:61Z", "2001-12-14t21:59:43-99:00", "0x_", "0b_"],
)
def test_what_looks_like_a_date_or_number_and_is_none_is_a_text(text: str, tmp_path: Path) -> None:
    """It cost the whole document before. The value may be a key, and any document of YAML may contain it."""
    assert parse_document(f"a: {text}\n{text}: 1", "x.yaml") == {"a": text, text: 1}
    document = f"openapi: 3.0.0\ninfo: {{title: dated, version: {text}}}\npaths: {{/a: {{get: {{operationId: a}}}}}}"
    (tmp_path / "api.yaml").write_text(document)
    (tmp_path / "tools.yaml").write_text(f"tools:\n- name: a\n  description: Since {text}\n  since: {text}\n")
    for file in ("api.yaml", "tools.yaml"):
        [reading] = read(str(tmp_path / file), settings=Settings())
        assert len(reading.tools) == 1
    servers = parse_document(f"mcpServers: {{a: {{command: a, env: {{SINCE: {text}}}}}}}", "servers.yaml")
    assert servers == {"mcpServers": {"a": {"command": "a", "env": {"SINCE": text}}}}


def test_a_yaml_bomb_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    bomb = tmp_path / "bomb.yaml"
    bomb.write_text("\n".join(lines))
    with pytest.raises(SourceError, match="more than 2,000,000 values"):
        read(str(bomb), settings=Settings())


@pytest.mark.parametrize("text", ["{", "a: [b", "\t\tx: : y", "{" * 5000, "[" * 5000, "!!python/object:os.system {}"])
def test_what_is_no_document_is_named_in_one_line(text: str) -> None:
    with pytest.raises(SourceError, match=r"x\.yaml: (expected JSON or YAML|the document nests)"):
        parse_document(text, "x.yaml")
    with pytest.raises(SourceError):
        parse_document(text, "x.json")


def test_json_with_thousands_of_levels_is_said_to_be_too_deep() -> None:
    with pytest.raises(SourceError, match=r"x\.json: expected JSON, found an error in it: it is too deeply nested"):
        parse_document("[" * 3_000 + "]" * 3_000, "x.json")


def test_a_file_that_is_no_text_is_named_with_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"\x89PNG\x00\xff\xfe")
    with pytest.raises(SourceError, match="this is a binary file"):
        load_document(path)
    path.write_bytes(b"{\xff\xfe")
    with pytest.raises(SourceError, match="found byte 0xff at offset 1"):
        load_document(path)
    with pytest.raises(SourceError, match="expected a readable file"):
        load_document(tmp_path)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("text", "expected a JSON Schema object as parameters, found text"),
        ([], "found a list"),
        ({"type": "string"}, "found type 'string'"),
        ({"type": 5}, "found type '5'"),
        ({"properties": ["a"]}, "expected an object as properties, found a list"),
        ({"properties": {"a": 3}}, "expected a schema as property 'a', found a number"),
        ({"required": "a"}, "expected a list of names as required, found text"),
        ({"required": [1]}, "expected a list of names as required"),
        ({"description": "x" * 1_000_001}, "at most 1,000,000 bytes"),
    ],
)
def test_a_schema_nobody_could_use_is_refused(schema: object, message: str) -> None:
    with pytest.raises(BadEntry, match=message):
        check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [{}, {"type": "dict"}, {"type": ["object", "null"]}, {"properties": []}, {"required": None}, {"required": True},
     {"properties": {"a": {"type": "float"}, "b": True, "c": None}}],
)  # fmt: skip
def test_a_sloppy_schema_is_taken(schema: dict[str, object]) -> None:
    assert build_tool("s", RawTool(id="t", parameters=schema)).parameters is not None


@pytest.mark.parametrize("bad", ["", "  ", None, [], {}, True])
def test_a_tool_needs_a_name(bad: object) -> None:
    with pytest.raises(BadEntry, match="expected"):
        build_tool("s", RawTool(id=bad))


def test_a_source_name_can_stand_before_the_slash_of_an_id() -> None:
    assert source_name(" my / tools\n") == "my-tools"
    assert source_name("///") == "source"
