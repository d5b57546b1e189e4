"""Reads function schemas from `.json` and `.jsonl` files and from objects in memory.

The dialects are OpenAI (chat and Responses), Anthropic, Gemini, MCP `tools/list` and plain
`{"name", "description", "parameters"}`. A list of functions may stand alone or inside an object. In memory, LangChain
tools, pydantic models and Python functions are read too.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from toolscout.errors import BadEntry, SourceError
from toolscout.settings import Settings
from toolscout.sources.callables import convert_errors, describe_callable
from toolscout.sources.parsing import describe_json_error, load_document
from toolscout.sources.reading import RawTool, Reading, build_tool, collect, source_name
from toolscout.types import MAX_JSON_DEPTH, Hints, Tool

__all__ = ["read", "read_json_lines", "read_objects"]

#: Keys of an object that is not a function itself but holds a list of functions.
LIST_KEYS: Final = ("tools", "functions", "function", "functionDeclarations", "function_declarations")
#: Keys of the arguments' schema, and of the result's, in all dialects.
PARAMETERS_KEYS: Final = (
    *("parameters", "input_schema", "inputSchema"),
    *("parametersJsonSchema", "parameters_json_schema"),
)
RETURNS_KEYS: Final = (
    "outputSchema",
    "output_schema",
    "responseJsonSchema",
    "response_json_schema",
    "response",
    "returns",
)
#: Type names of other dialects, in lower case → the name in JSON Schema. None: the type is left out.
TYPE_NAMES: Final[dict[str, str | None]] = {
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

#: Keywords of a JSON Schema with a schema for each name, with one schema, and with a list of schemas.
_NAMED_SCHEMAS: Final = ("properties", "$defs", "definitions", "patternProperties")
_SINGLE_SCHEMAS: Final = ("items", "additionalProperties", "not")
_SCHEMA_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems", "any_of")

_Path = tuple[str, ...]


def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Read the functions of a `.json` or `.jsonl` file.

    Args:
        locator: path of the file.
        name: the source's name. By default the file's name without its suffix.
        settings: not used.

    Raises:
        SourceError: if the file cannot be read, or holds no function schema.
    """
    path = Path(locator).expanduser()
    source = name or source_name(path.stem)
    if path.suffix == ".jsonl":
        values: Iterable[tuple[str, Any]] = read_json_lines(path)
    else:
        values = [("", load_document(path))]
    entries = (entry for where, value in values for entry in _find_entries(source, value, where))
    reading = collect(source, "schemas", entries)
    if not reading.problems and not reading.tools:
        return [msgspec.structs.replace(reading, message="the file holds an empty list, so it adds no tool")]
    if reading.problems and not reading.tools:
        first = reading.problems[0]
        raise SourceError(f"{locator}: no function schema in it can be read; {first.entry}: {first.message}")
    return [reading]


def read_objects(source: str, objects: Iterable[object]) -> Reading:
    """Read objects in memory: schemas, LangChain tools, pydantic models, Python functions. Nothing is called.

    Args:
        source: name of the source.
        objects: in any mixture. An object of another kind becomes a problem `entry <n>`, counted from 1.
    """
    named = ((f"entry {number}", value) for number, value in enumerate(objects, 1))
    entries = (entry for where, value in named for entry in _find_entries(source, value, where))
    return collect(source, "schemas", entries)


def read_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (`line <n>`, value) for every line that is not blank, with n from 1. A bad line's value is a `BadEntry`.

    Raises:
        SourceError: if the file cannot be read, or is empty.
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
            value = _decode_leniently(line, describe_json_error(line, error).replace("line 1, ", ""))
        yield f"line {number}", value
    if empty:
        raise SourceError(f"{path}: expected one JSON object a line, found an empty file")


def _decode_leniently(line: bytes, reason: str) -> Any:
    """Decode JSON that Python writes and strict readers refuse: NaN, infinities and lone surrogates."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return BadEntry(f"expected JSON, found an error {reason}")


# --- entries ----------------------------------------------------------------------------------------------------------


def _find_entries(
    source: str, value: Any, where: str, path: _Path = (), depth: int = 0
) -> Iterator[tuple[str, Callable[[], Tool]]]:
    """Yield the name of every function in `value`, wrapped or not, with a function that builds its tool."""
    value, functions, path = _unwrap(value, path)
    if functions is None or depth >= MAX_JSON_DEPTH:
        yield where or "entry 1", functools.partial(_build_from_value, source, value, path)
        return
    for number, item in enumerate(functions, 1):
        name = f"{where}, entry {number}" if where else f"entry {number}"
        yield from _find_entries(source, item, name, path, depth + 1)


def _unwrap(value: Any, path: _Path) -> tuple[Any, Any, _Path]:
    """Find the list of functions in a value that is not a function itself.

    Returns:
        The value, without the `result` around it; the list, or None if it has none; and the path of the functions,
        which a namespace makes longer.
    """
    if isinstance(value, (list, tuple)):
        return value, value, path
    if not isinstance(value, Mapping) or any(key in value for key in PARAMETERS_KEYS):
        return value, None, path
    if "name" not in value and isinstance(value.get("result"), Mapping):
        value = value["result"]
    functions = next((value[key] for key in LIST_KEYS if isinstance(value.get(key), (list, tuple))), None)
    if functions is not None and value.get("type") == "namespace" and isinstance(value.get("name"), str):
        path = (*path, value["name"])
    return value, functions, path


def _build_from_value(source: str, value: Any, path: _Path) -> Tool:
    if isinstance(value, BadEntry):
        raise value
    if not isinstance(value, Mapping):
        return _build_from_object(source, value)
    if isinstance(value.get("function"), Mapping):
        value = value["function"]
    return _build_from_schema(source, value, path)


def _build_from_schema(source: str, entry: Mapping[str, Any], path: _Path) -> Tool:
    name, parameters, rest = _split_schema(entry)
    if isinstance(rest.get("namespace"), str):
        path = (*path, rest.pop("namespace"))
    returns = next((rest.pop(key) for key in RETURNS_KEYS if key in rest), None)
    fields = RawTool(
        id="/".join((*path, name)) if path and isinstance(name, str) else name,
        name=name,
        description=rest.pop("description", ""),
        parameters=_normalize_types(parameters),
        path=path or _read_path(rest),
        returns=_normalize_types(returns),
        hints=_read_hints(rest.get("annotations")),
        requires=_read_requires(rest),
        meta=rest,
    )
    return build_tool(source, fields)


def _split_schema(entry: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Split a function schema into its name, its parameters and its other keys.

    Raises:
        BadEntry: if it has neither parameters nor a name with a type that a function may have.
    """
    rest = dict(entry)
    kind, name = rest.pop("type", None), rest.pop("name", None)
    if name is None and isinstance(entry.get("title"), str) and isinstance(entry.get("properties"), Mapping):
        # The JSON Schema of a pydantic model: the model itself describes the parameters.
        parameters = {key: value for key, value in entry.items() if key not in ("title", "description")}
        return entry["title"], parameters, {"description": entry.get("description")}
    for key in PARAMETERS_KEYS:
        if key in rest:
            return name, rest.pop(key), rest
    if name is None or kind not in (None, "function", "custom"):
        keys = ", ".join(sorted(map(str, entry)))[:100]
        raise BadEntry(
            "expected a function schema with a name and parameters, "
            + (f"found an object of: {keys}" if keys else "found an empty object")
        )
    return name, None, rest


def _read_path(rest: dict[str, Any]) -> _Path:
    """Return the path that the metadata of a schema gives. Empty if there is none."""
    metadata = rest.get("metadata")
    path = metadata.get("path") if isinstance(metadata, Mapping) else None
    return tuple(path) if isinstance(path, list) and all(isinstance(part, str) for part in path) else ()


def _read_requires(rest: dict[str, Any]) -> object:
    """Return the prerequisites that a schema, its metadata or its MCP `_meta` name as `depends_on`."""
    holders = (rest, rest.get("metadata"), rest.get("_meta"))
    return next(
        (holder["depends_on"] for holder in holders if isinstance(holder, Mapping) and "depends_on" in holder), ()
    )


def _read_hints(annotations: object) -> Hints:
    if not isinstance(annotations, Mapping):
        return Hints()
    names = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
    return Hints(*(hint if isinstance(hint := annotations.get(name), bool) else None for name in names))


def _normalize_types(schema: Any, depth: int = 0) -> Any:
    """Return the schema with every type name as JSON Schema spells it. A property called `type` is not changed."""
    if not isinstance(schema, Mapping) or depth >= MAX_JSON_DEPTH:
        return schema
    return {
        key: _normalize_keyword(key, value, depth + 1)
        for key, value in schema.items()
        if not (key == "type" and _is_any_type(value))
    }


def _is_any_type(name: object) -> bool:
    return isinstance(name, str) and TYPE_NAMES.get(name.lower(), name) is None


def _normalize_keyword(key: Any, value: Any, depth: int) -> Any:
    """Normalize the type names in the value of one keyword."""
    if key == "type" and isinstance(value, str):
        return TYPE_NAMES.get(value.lower(), value.lower())
    if key in _NAMED_SCHEMAS and isinstance(value, Mapping):
        return {name: _normalize_types(inner, depth) for name, inner in value.items()}
    if key in _SINGLE_SCHEMAS:
        return _normalize_types(value, depth)
    if key in _SCHEMA_LISTS and isinstance(value, list):
        return [_normalize_types(inner, depth) for inner in value]
    return value


# --- objects ----------------------------------------------------------------------------------------------------------


def _build_from_object(source: str, value: Any) -> Tool:
    """Build the tool of an object in memory that is not a schema: a model, a LangChain tool or a function.

    Raises:
        BadEntry: if it is none of them, or cannot be described.
    """
    if value is None or isinstance(value, (str, int, float)):
        raise BadEntry(f"expected a function schema, found {'nothing' if value is None else repr(value)[:60]}")
    with convert_errors("an object that can be described"):
        if isinstance(value, type) and hasattr(value, "model_json_schema"):
            return _build_from_schema(source, _read_model_schema(value), ())
        if isinstance(getattr(value, "name", None), str) and isinstance(getattr(value, "description", None), str):
            schema = _read_langchain_schema(value)
            if schema is not None:
                arguments = {key: item for key, item in schema.items() if key not in ("title", "description")}
                parameters = _normalize_types(arguments)
                return build_tool(source, RawTool(id=value.name, description=value.description, parameters=parameters))
        if callable(value) and isinstance(getattr(value, "__name__", None), str):
            return describe_callable(source, value)
    raise BadEntry(
        "expected a schema as a dictionary, a LangChain tool, a pydantic model or a Python function, "
        f"found a {type(value).__name__}: convert it to a dictionary first"
    )


def _read_langchain_schema(tool: Any) -> Mapping[str, Any] | None:
    """Return the arguments of a LangChain tool as the agent sees them. None if it is not such a tool."""
    for attribute in ("tool_call_schema", "args_schema"):
        schema = getattr(tool, attribute, None)
        if schema is not None:
            return _read_model_schema(schema)
    return _read_model_schema(tool.get_input_schema()) if hasattr(tool, "get_input_schema") else None


def _read_model_schema(model: Any) -> Mapping[str, Any]:
    schema = model if isinstance(model, Mapping) else model.model_json_schema()
    if not isinstance(schema, Mapping):
        raise BadEntry(f"expected a JSON Schema of the model, found a {type(schema).__name__}")
    return schema
