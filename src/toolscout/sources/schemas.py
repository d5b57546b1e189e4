"""Reads function schemas from `.json` and `.jsonl` files and from objects in memory.

The dialects are OpenAI (chat and Responses), Anthropic, Gemini, Bedrock, MCP `tools/list` and plain
`{"name", "description", "parameters"}`. A list of functions may stand alone or inside an object. In memory, LangChain
tools, pydantic models and Python functions are read too.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from toolscout.errors import BadEntry, SourceError
from toolscout.settings import Settings
from toolscout.sources.callables import convert_errors, describe_callable
from toolscout.sources.parsing import describe_json_error, load_document
from toolscout.sources.reading import RawTool, Reading, Schema, as_list, as_object, build_tool, collect, source_name
from toolscout.types import MAX_JSON_DEPTH, Hints, Tool

__all__ = ["read", "read_json_lines", "read_objects"]

#: Keys of an object that is not a function itself but contains a list of functions.
LIST_KEYS: Final = ("tools", "functions", "function", "functionDeclarations", "function_declarations")
#: Keys of an object around all functions: of an MCP answer, and of Amazon Bedrock.
HOLDER_KEYS: Final = ("result", "toolConfig")
HINT_KEYS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
#: Keys of an object around one function, of OpenAI and of Amazon Bedrock.
FUNCTION_KEYS: Final = ("function", "toolSpec")
#: Keys of the arguments' schema, and of the result's, in all dialects.
PARAMETERS_KEYS: Final = (
    *("parameters", "input_schema", "inputSchema"),
    *("parametersJsonSchema", "parameters_json_schema"),
)
CODE_KEYS: Final = {"module", "qualname"}  # they name a Python function to run, which a document must not choose
RETURNS_KEYS: Final = (
    *("outputSchema", "output_schema", "responseJsonSchema", "response_json_schema"),
    *("response", "returns"),
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

ToolPath = tuple[str, ...]


def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Read the functions of a `.json` or `.jsonl` file. An empty list in it is no error: the reading's message says so.

    Args:
        locator: path of the file.
        name: the source's name. By default the file's name without its suffix.
        settings: not used.

    Raises:
        SourceError: if the file cannot be read, or none of its entries can.
    """
    path = Path(locator).expanduser()
    source = name or source_name(path.stem)
    if path.suffix == ".jsonl":
        values: Iterable[tuple[str, object]] = read_json_lines(path)
    else:
        values = [("", load_document(path))]
    entries = (entry for where, value in values for entry in _find_entries(source, value, where))
    reading = collect(source, "schemas", entries)
    if reading.tools:
        return [reading]
    if not reading.problems:
        return [msgspec.structs.replace(reading, message="the file holds an empty list, so it adds no tool")]
    first = reading.problems[0]
    raise SourceError(f"{locator}: no function schema in it can be read; {first.entry}: {first.message}")


def read_objects(source: str, objects: Iterable[object]) -> Reading:
    """Read objects in memory: schemas, LangChain tools, pydantic models, Python functions, and lists of them.

    Nothing is called. An object that is none of these becomes a problem `entry <n>`, from 1.
    """
    named = ((f"entry {number}", value) for number, value in enumerate(objects, 1))
    entries = (entry for where, value in named for entry in _find_entries(source, value, where))
    return collect(source, "schemas", entries)


def read_json_lines(path: Path) -> Iterator[tuple[str, object]]:
    """Yield (`line <n>`, value) for every line that is not blank, with n from 1. A bad line's value is a `BadEntry`.

    Raises:
        SourceError: if the file cannot be read, or is empty.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise SourceError(f"{path}: expected a readable file, found: {error.strerror}") from None
    decode = msgspec.json.Decoder().decode
    is_empty = True
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        is_empty = False
        value: object
        try:
            value = decode(line)
        except (ValueError, RecursionError) as error:
            try:  # what Python writes and strict readers refuse: NaN, infinities and lone surrogates
                value = json.loads(line)
            except (ValueError, RecursionError):
                reason = describe_json_error(line, error).replace("line 1, ", "")  # the caller names the line
                value = BadEntry(f"expected JSON, found an error {reason}")
        yield f"line {number}", value
    if is_empty:
        raise SourceError(f"{path}: expected one JSON object a line, found an empty file")


# --- entries ----------------------------------------------------------------------------------------------------------


def _find_entries(
    source: str, value: object, where: str, path: ToolPath = (), depth: int = 0
) -> Iterator[tuple[str, Callable[[], Tool]]]:
    """Yield a name and a builder for every function schema in `value`, however deep in lists it is.

    Args:
        source: the name of the source.
        value: a list, an object that contains a list, or one function schema.
        where: the position of `value` in the source, for the names: `line 3, entry 2`. Empty: the whole source.
        path: names of the namespaces around `value`. They become the paths of its tools.
        depth: the number of lists around `value`. Too deep a list is yielded as one entry, which cannot be built.
    """
    items: object = value
    if isinstance(value, Mapping):
        value, items = _unwrap_functions(value)
        namespace = value.get("name") if value.get("type") == "namespace" else None
        if items is not None and isinstance(namespace, str):
            path = (*path, namespace)
    if not isinstance(items, (list, tuple)) or depth >= MAX_JSON_DEPTH:
        yield where or "entry 1", functools.partial(_build_from_value, source, value, path)
        return
    for number, item in enumerate(items, 1):
        entry_name = f"{where}, entry {number}" if where else f"entry {number}"
        yield from _find_entries(source, item, entry_name, path, depth + 1)


def _unwrap_functions(value: Mapping[str, object]) -> tuple[Mapping[str, object], object]:
    """Return an object and the list of functions in it. The list is None if the object contains none.

    An MCP answer `{"result": …}` and Bedrock's `{"toolConfig": …}` are replaced by the object inside.
    """
    is_function = any(key in value for key in PARAMETERS_KEYS)
    if is_function:
        return value, None
    if "name" not in value:
        value = next((as_object(value[key]) for key in HOLDER_KEYS if isinstance(value.get(key), Mapping)), value)
    return value, next((value[key] for key in LIST_KEYS if isinstance(value.get(key), (list, tuple))), None)


def _build_from_value(source: str, value: object, path: ToolPath) -> Tool:
    """Build a tool from a value of unknown form: a schema, a schema inside a wrapper, or a Python object."""
    if isinstance(value, BadEntry):  # a line that is not JSON
        raise value
    if not isinstance(value, Mapping):
        return _build_from_object(source, value)
    inner = next((value[key] for key in FUNCTION_KEYS if isinstance(value.get(key), Mapping)), value)
    return _build_from_schema(source, inner, path)


def _build_from_schema(source: str, entry: Mapping[str, object], path: ToolPath = ()) -> Tool:
    """Build the tool of a function schema. Keys that mean nothing here stay in `meta`."""
    name, parameters, other_fields = _split_schema(entry)
    if isinstance(other_fields.get("namespace"), str):
        path = (*path, other_fields.pop("namespace"))
    returns = next((other_fields.pop(key) for key in RETURNS_KEYS if key in other_fields), None)
    metadata, annotations = as_object(other_fields.get("metadata")), as_object(other_fields.get("annotations"))
    hints = (annotations.get(key) for key in HINT_KEYS)
    is_in_namespace = bool(path)
    own_path = as_list(metadata.get("path"))
    if not is_in_namespace and all(isinstance(segment, str) for segment in own_path):
        path = tuple(map(str, own_path))
    objects_with_requires = (other_fields, metadata, as_object(other_fields.get("_meta")))
    fields = RawTool(
        id="/".join((*path, name)) if is_in_namespace and isinstance(name, str) else name,  # unique across namespaces
        name=name,
        description=other_fields.pop("description", ""),
        parameters=_normalize_types(parameters),
        path=path,
        returns=_normalize_types(returns),
        hints=Hints(*(hint if isinstance(hint, bool) else None for hint in hints)),
        requires=next((mapping["depends_on"] for mapping in objects_with_requires if "depends_on" in mapping), ()),
        meta={key: value for key, value in other_fields.items() if key not in CODE_KEYS},
    )
    return build_tool(source, fields)


def _split_schema(entry: Mapping[str, object]) -> tuple[object, object, Schema]:
    """Split a function schema into its name, its parameters and its other keys.

    Raises:
        BadEntry: if it has no parameters, and no name or a type that is not of a function.
    """
    other_fields = dict(entry)
    kind, name = other_fields.pop("type", None), other_fields.pop("name", None)
    if name is None and isinstance(entry.get("title"), str) and isinstance(entry.get("properties"), Mapping):
        # The JSON Schema of a pydantic model: the model itself describes the parameters.
        parameters = {key: value for key, value in entry.items() if key not in ("title", "description")}
        return entry["title"], parameters, {"description": entry.get("description")}
    for key in PARAMETERS_KEYS:
        if key in other_fields:
            schema = other_fields.pop(key)
            if isinstance(schema, Mapping) and list(schema) == ["json"]:  # as Amazon Bedrock wraps it
                schema = schema["json"]
            return name, schema, other_fields
    if name is None or kind not in (None, "function", "custom"):
        keys = ", ".join(sorted(map(str, entry)))[:100]
        found = f"an object with only: {keys}" if keys else "an empty object"
        raise BadEntry(f"expected a function schema with a name and parameters, found {found}")
    return name, None, other_fields


def _normalize_types(schema: object, depth: int = 0) -> object:
    """Return the schema with every type name as JSON Schema spells it. A property called `type` is not changed."""
    if not isinstance(schema, Mapping) or depth >= MAX_JSON_DEPTH:
        return schema
    normalized: Schema = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, str):
            type_name = TYPE_NAMES.get(value.lower(), value.lower())
            if type_name:
                normalized[key] = type_name
        else:
            normalized[key] = _normalize_inner_types(key, value, depth + 1)
    return normalized


def _normalize_inner_types(key: str, value: object, depth: int) -> object:
    """Return the value of a keyword of a schema, with the schemas in it normalized."""
    if key in _NAMED_SCHEMAS and isinstance(value, Mapping):
        return {name: _normalize_types(inner, depth) for name, inner in value.items()}
    if key in _SCHEMA_LISTS and isinstance(value, list):
        return [_normalize_types(inner, depth) for inner in value]
    return _normalize_types(value, depth) if key in _SINGLE_SCHEMAS else value


# --- objects ----------------------------------------------------------------------------------------------------------


def _build_from_object(source: str, value: object) -> Tool:
    """Build the tool of a pydantic model, a LangChain tool or a function. Raises BadEntry for another object."""
    if value is None or isinstance(value, (str, int, float)):
        raise BadEntry(f"expected a function schema, found {'nothing' if value is None else repr(value)[:60]}")
    with convert_errors("an object that can be described"):
        if isinstance(value, type) and hasattr(value, "model_json_schema"):
            return _build_from_schema(source, _read_model_schema(value))
        name, description = getattr(value, "name", None), getattr(value, "description", None)
        if isinstance(name, str) and isinstance(description, str):
            schema = _read_langchain_schema(value)
            if schema is not None:
                arguments = {key: item for key, item in schema.items() if key not in ("title", "description")}
                parameters = _normalize_types(arguments)
                return build_tool(source, RawTool(id=name, description=description, parameters=parameters))
        if callable(value) and isinstance(getattr(value, "__name__", None), str):
            return describe_callable(source, value)
    raise BadEntry(
        "expected a schema as a dictionary, a LangChain tool, a pydantic model or a Python function, "
        f"found a {type(value).__name__}: convert it to a dictionary first"
    )


def _read_langchain_schema(tool: object) -> Mapping[str, object] | None:
    """Return the JSON Schema of the arguments that an agent gives to a LangChain tool. None if it is no such tool."""
    schemas = (getattr(tool, attribute, None) for attribute in ("tool_call_schema", "args_schema"))
    schema = next((schema for schema in schemas if schema is not None), None)
    if schema is None and hasattr(tool, "get_input_schema"):
        schema = tool.get_input_schema()
    return None if schema is None else _read_model_schema(schema)


def _read_model_schema(model: object) -> Mapping[str, object]:
    """Return the JSON Schema of a pydantic model, or the schema itself if the tool has one in place of a model."""
    read_schema = getattr(model, "model_json_schema", None)
    schema = model if read_schema is None or isinstance(model, Mapping) else read_schema()
    if not isinstance(schema, Mapping):
        raise BadEntry(f"expected a JSON Schema of the model, found a {type(schema).__name__}")
    return schema
