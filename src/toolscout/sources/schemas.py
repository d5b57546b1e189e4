"""Reads function schemas from `.json` and `.jsonl` files and from objects in memory.

The dialects are OpenAI (chat and Responses), Anthropic, Gemini, MCP `tools/list`, plain
`{"name", "description", "parameters"}`, a list of these, and an object that holds such a list; in memory also LangChain
tools, pydantic models and Python functions.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from toolscout.config import Settings
from toolscout.errors import BadEntry, SourceError
from toolscout.sources import Reading, build_tool, collect, load_document, source_name
from toolscout.sources.callables import convert_errors, from_callable
from toolscout.types import MAX_JSON_DEPTH, Hints, Tool

__all__ = ["from_objects", "json_lines", "read"]

#: Where a list of functions may stand in an object that is no function itself.
LISTS: Final = ("tools", "functions", "function", "functionDeclarations", "function_declarations")
PARAMETERS: Final = (
    *("parameters", "input_schema", "inputSchema"),
    *("parametersJsonSchema", "parameters_json_schema"),
)
RETURNS: Final = ("outputSchema", "output_schema", "responseJsonSchema", "response_json_schema", "response", "returns")
#: Names of types that other dialects use; a type of None says nothing and is left out.
PYTHON_TYPES: Final[dict[str, str | None]] = {
    "dict": "object",
    "list": "array",
    "tuple": "array",
    "str": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "any": None,
    "type_unspecified": None,
}

_Path = tuple[str, ...]


def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Return the functions of a `.json` or `.jsonl` file.

    Args:
        locator: path of the file.
        name: of the source; by default the file's name without its ending.
        settings: not used.

    Raises:
        SourceError: when the file cannot be read, or nothing in it is a function schema.
    """
    path = Path(locator).expanduser()
    source = name or source_name(path.stem)
    if path.suffix == ".jsonl":
        values: Iterable[tuple[str, Any]] = json_lines(path)
    else:
        document = load_document(path)
        values = [("", document)]
    reading = collect(source, "schemas", (found for where, value in values for found in _entries(source, value, where)))
    if reading.problems and not reading.tools:
        first = reading.problems[0]
        raise SourceError(
            f"{locator}: expected function schemas, found none that can be read; {first.entry}: {first.message}"
        )
    return [reading]


def from_objects(source: str, objects: Iterable[object]) -> Reading:
    """Read objects in memory: schemas, LangChain tools, pydantic models, Python functions. Nothing is called.

    Args:
        source: name of the source.
        objects: in any mixture; an object of another kind becomes a problem `entry <n>`, counted from 1.
    """
    entries = (entry for number, value in enumerate(objects, 1) for entry in _entries(source, value, f"entry {number}"))
    return collect(source, "schemas", entries)


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """(`line <n>`, value) of every line that is not blank, `n` from 1; the value of a bad line is a `BadEntry`.

    Raises:
        SourceError: when the file cannot be opened, or holds nothing.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise SourceError(f"{path}: expected a readable file, found: {error.strerror}") from None
    decode = msgspec.json.Decoder().decode
    empty = True
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        empty = False
        try:
            value = decode(line)
        except (ValueError, RecursionError) as error:
            value = _decode_slowly(line, str(error) or "too deeply nested")
        yield f"line {number}", value
    if empty:
        raise SourceError(f"{path}: expected one JSON object a line, found an empty file")


def _decode_slowly(line: bytes, reason: str) -> Any:
    """Return what Python's own JSON writes and strict readers refuse: NaN, infinities and lone surrogates."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return BadEntry(f"expected JSON, found something else: {reason}")


# --- entries ----------------------------------------------------------------------------------------------------------


def _entries(
    source: str, value: Any, where: str, path: _Path = (), depth: int = 0
) -> Iterator[tuple[str, Callable[[], Tool]]]:
    """Yield (name of the entry, function that builds its tool) of every function in `value`, wrapped or not."""
    inner: Any = None
    if isinstance(value, (list, tuple)):
        inner = value
    elif isinstance(value, Mapping) and not any(key in value for key in PARAMETERS):
        value, inner = _unwrap(value)
        if inner is not None and value.get("type") == "namespace" and isinstance(value.get("name"), str):
            path = (*path, value["name"])
    if inner is None or depth >= MAX_JSON_DEPTH:
        yield where or "entry 1", functools.partial(_tool, source, value, path)
        return
    for number, item in enumerate(inner, 1):
        yield from _entries(source, item, f"{where}, entry {number}" if where else f"entry {number}", path, depth + 1)


def _unwrap(value: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """Return the object that holds a list of functions, which may be a `result`, and the list; None: it has none."""
    if "name" not in value and isinstance(value.get("result"), Mapping):
        value = value["result"]
    return value, next((value[key] for key in LISTS if isinstance(value.get(key), (list, tuple))), None)


def _tool(source: str, value: Any, path: _Path) -> Tool:
    if isinstance(value, BadEntry):
        raise value
    if not isinstance(value, Mapping):
        return _from_object(source, value)
    if isinstance(value.get("function"), Mapping):
        value = value["function"]
    return _from_schema(source, value, path)


def _from_schema(source: str, entry: Mapping[str, Any], path: _Path) -> Tool:
    rest = dict(entry)
    kind = rest.pop("type", None)
    name, parameters = rest.pop("name", None), None
    if name is None and isinstance(entry.get("title"), str) and isinstance(entry.get("properties"), Mapping):
        name, parameters = (
            rest.pop("title"),
            {key: value for key, value in entry.items() if key not in ("title", "description")},
        )
        rest = {"description": entry.get("description")}
    elif (key := next((key for key in PARAMETERS if key in rest), None)) is not None:
        parameters = rest.pop(key)
    elif name is None or kind not in (None, "function", "custom"):
        keys = ", ".join(sorted(map(str, entry)))[:100]
        raise BadEntry(
            f"expected a function schema with a name and parameters, found an object of: {keys or 'nothing'}"
        )
    if isinstance(rest.get("namespace"), str):
        path = (*path, rest.pop("namespace"))
    returns = next((rest.pop(key) for key in RETURNS if key in rest), None)
    return build_tool(
        source,
        "/".join((*path, name)) if path and isinstance(name, str) else name,
        name=name,
        description=rest.pop("description", ""),
        parameters=_normal(parameters),
        path=path or _given_path(rest),
        returns=_normal(returns),
        hints=_hints(rest.get("annotations")),
        meta=rest,
    )


def _given_path(rest: dict[str, Any]) -> _Path:
    metadata = rest.get("metadata")
    path = metadata.get("path") if isinstance(metadata, Mapping) else None
    return tuple(path) if isinstance(path, list) and all(isinstance(part, str) for part in path) else ()


def _hints(annotations: object) -> Hints:
    if not isinstance(annotations, Mapping):
        return Hints()
    names = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
    return Hints(*(hint if isinstance(hint := annotations.get(name), bool) else None for name in names))


def _normal(schema: Any, depth: int = 0) -> Any:
    """Return the schema with every `type` as JSON Schema spells it; a property that is called `type` stays as it is."""
    if not isinstance(schema, Mapping) or depth >= MAX_JSON_DEPTH:
        return schema
    normal: dict[Any, Any] = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, str):
            value = PYTHON_TYPES.get(value.lower(), value.lower())
            if value is None:
                continue
        elif key in ("properties", "$defs", "definitions", "patternProperties") and isinstance(value, Mapping):
            value = {name: _normal(inner, depth + 1) for name, inner in value.items()}
        elif key in ("items", "additionalProperties", "not"):
            value = _normal(value, depth + 1)
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems", "any_of") and isinstance(value, list):
            value = [_normal(inner, depth + 1) for inner in value]
        normal[key] = value
    return normal


# --- objects ----------------------------------------------------------------------------------------------------------


def _from_object(source: str, value: Any) -> Tool:
    """Return the tool of something in memory that is no schema."""
    if value is None or isinstance(value, (str, int, float)):
        raise BadEntry(f"expected a function schema, found {'nothing' if value is None else repr(value)[:60]}")
    with convert_errors("an object that can be described"):
        if isinstance(value, type) and hasattr(value, "model_json_schema"):
            return _from_schema(source, _schema_of(value), ())
        if isinstance(getattr(value, "name", None), str) and isinstance(getattr(value, "description", None), str):
            schema = _langchain_schema(value)
            if schema is not None:
                arguments = {key: item for key, item in schema.items() if key not in ("title", "description")}
                return build_tool(source, value.name, description=value.description, parameters=_normal(arguments))
        if callable(value) and isinstance(getattr(value, "__name__", None), str):
            return from_callable(source, value)
    raise BadEntry(
        "expected a schema as a dictionary, a LangChain tool, a pydantic model or a Python function, "
        f"found a {type(value).__name__}: convert it to a dictionary first"
    )


def _langchain_schema(tool: Any) -> Mapping[str, Any] | None:
    """Return the arguments of a LangChain tool as a model is shown them, or None if it is no such tool."""
    for attribute in ("tool_call_schema", "args_schema"):
        schema = getattr(tool, attribute, None)
        if schema is not None:
            return _schema_of(schema)
    return _schema_of(tool.get_input_schema()) if hasattr(tool, "get_input_schema") else None


def _schema_of(model: Any) -> Mapping[str, Any]:
    schema = model if isinstance(model, Mapping) else model.model_json_schema()
    if not isinstance(schema, Mapping):
        raise BadEntry(f"expected a JSON Schema of the model, found a {type(schema).__name__}")
    return schema
