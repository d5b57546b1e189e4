"""Reads dataset folders: every line of `corpus.jsonl` is a tool.

The raw title and text stay in `meta`, where `render(tool, "raw")` finds them. ToolLens keeps everything in its text
(`category_name:…, tool_name:…, api_name:…`); path, name, description and parameters are recovered from it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from toolscout.errors import BadEntry, SourceError
from toolscout.settings import Settings
from toolscout.sources.reading import JSON_TYPES, RawTool, Reading, Schema, as_list, build_tool, collect, source_name
from toolscout.sources.schemas import read_json_lines
from toolscout.types import Tool

__all__ = ["read", "read_tools"]

DECODER: Final = json.JSONDecoder()


def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Read the tools of a dataset folder. The source gets the folder's name if `name` is None.

    Raises:
        SourceError: if there is no corpus.jsonl, or it contains no tool.
    """
    folder = Path(locator).expanduser()
    return [read_tools(folder, name or source_name(folder.resolve().name))]


def read_tools(folder: Path, source: str) -> Reading:
    """Read the tools of `folder/corpus.jsonl`, in its order. Their ids are `<source>/<_id>`.

    Raises:
        SourceError: if there is no such file, or it contains no tool.
    """
    corpus = folder / "corpus.jsonl"
    entries = ((line, functools.partial(_build_tool, source, value)) for line, value in read_json_lines(corpus))
    reading = collect(source, "folder", entries)
    if not reading.tools:
        first = reading.problems[0]  # there is one, since `read_json_lines` refuses an empty file
        raise SourceError(f"{corpus}: expected tools, found none that can be read; {first.entry}: {first.message}")
    return reading


def _build_tool(source: str, entry: object) -> Tool:
    """Build the tool of one line of `corpus.jsonl`. A line without a title is read as one of ToolLens.

    Raises BadEntry if it has no id, or a field has the wrong type.
    """
    if isinstance(entry, BadEntry):  # a line that is not JSON
        raise entry
    if not isinstance(entry, Mapping) or "_id" not in entry:
        raise BadEntry('expected an object with "_id", "title" and "text", found something else')
    title, text, metadata = _read_columns(entry)
    path = metadata.get("path") or []
    if not isinstance(path, list):
        raise BadEntry("expected a list as metadata.path, found something else")
    other_fields = {key: value for key, value in metadata.items() if key not in ("path", "parameters", "depends_on")}
    fields = RawTool(
        id=entry["_id"],
        name=title.strip() or entry["_id"],
        description=text,
        parameters=metadata.get("parameters"),
        path=path,
        meta={**other_fields, "title": title, "text": text},
        requires=metadata.get("depends_on"),
    )
    if not title.strip():
        fields = dataclasses.replace(fields, **_parse_toollens(text))
    return build_tool(source, fields)


def _read_columns(entry: Mapping[str, object]) -> tuple[str, str, Mapping[str, object]]:
    """Return title, text and metadata of a line, empty if they are missing. Raises BadEntry for a wrong type."""
    title, text = entry.get("title") or "", entry.get("text") or ""
    metadata = entry.get("metadata") or {}
    if not isinstance(title, str) or not isinstance(text, str) or not isinstance(metadata, Mapping):
        raise BadEntry("expected text as title and text and an object as metadata, found something else")
    return title, text, metadata


# --- ToolLens ---------------------------------------------------------------------------------------------------------


def _parse_toollens(text: str) -> Schema:
    """Return the fields of a ToolLens text, by their names in `RawTool`. Empty if the text is in another form.

    Commas and colons may be in every field, so the JSON lists at the end are found first.
    """
    for label in re.finditer(r", required_params: (?=\[)", text):
        try:
            required, required_end = DECODER.raw_decode(text, label.end())
            optional_start = _skip_label(text, required_end, ", optional_params: ")
            optional, optional_end = DECODER.raw_decode(text, optional_start)
            returns = text[_skip_label(text, optional_end, ", return_schema: ") :]
        except (ValueError, RecursionError):
            continue  # the description contains this label
        category, has_tool, tail = text[: label.start()].partition(", tool_name:")
        tool, has_name, tail = tail.partition(", api_name:")
        name, has_description, description = tail.partition(", api_description:")
        has_labels = has_tool and has_name and has_description and category.startswith("category_name:")
        if not has_labels:
            return {}
        return {
            "name": name.strip() or tool,
            "description": description,
            "parameters": _build_parameters(required, optional),
            "path": (category.removeprefix("category_name:").strip(), tool.strip()),
            "returns": _decode_returns(returns) or None,
        }
    return {}


def _skip_label(text: str, start: int, label: str) -> int:
    """Return the offset behind `label`. Raises ValueError if the label is not at `start`."""
    if not text.startswith(label, start):
        raise ValueError(label)
    return start + len(label)


def _decode_returns(text: str) -> object:
    """Return what a tool returns: the value of a JSON text, or the text itself if it is not JSON."""
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError):
        return text.strip()


def _build_parameters(required: object, optional: object) -> Schema:
    """Build the JSON Schema of two lists of `{"name": …, "type": …}`. A type unknown to JSON becomes a format.

    Raises BadEntry if a parameter has no name.
    """
    properties: Schema = {}
    for parameter in (*as_list(required), *as_list(optional)):
        if not isinstance(parameter, dict) or not isinstance(parameter.get("name"), str):
            raise BadEntry("expected parameters with a name, found something else")
        kind = str(parameter.get("type", "")).lower()
        schema = {"type": kind} if kind in JSON_TYPES else {"type": "string", "format": kind}
        if not kind:  # any type
            schema = {}
        other_fields = {key: value for key, value in parameter.items() if key not in ("name", "type") and value != ""}
        properties[parameter["name"]] = schema | other_fields
    required_names = [parameter["name"] for parameter in as_list(required) if isinstance(parameter, dict)]
    return {"type": "object", "properties": properties, "required": required_names}
