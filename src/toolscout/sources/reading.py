"""What readers share: the result of reading a source, and tools built from fields that nobody has checked yet."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, Literal, Protocol

import msgspec

from toolscout.errors import BadEntry
from toolscout.types import Hints, Tool, clean

__all__ = [
    "Problem",
    "RawTool",
    "Reading",
    "Schema",
    "as_list",
    "as_object",
    "as_text",
    "build_tool",
    "check_schema",
    "collect",
    "describe_type",
    "describe_value",
    "listen",
    "report",
    "source_name",
]

#: A JSON Schema, or another JSON object, that this package has built or checked.
Schema = dict[str, Any]
State = Literal["ok", "error", "disabled"]
MAX_SCHEMA_BYTES: Final = 1_000_000
MAX_DESCRIPTION_CHARS: Final = 1_000_000
MAX_REQUIRED_TOOLS: Final = 32  # prerequisites that one tool may declare
JSON_TYPES: Final = {"object", "array", "string", "number", "integer", "boolean", "null"}


class Listener(Protocol):
    """Learns what a reader is doing now."""

    def __call__(self, text: str, done: int, total: int) -> None:
        """Take what is being read, and how many sources of an origin are done."""


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Call `listener` with what the readers do within the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(text: str, done: int, total: int) -> None:
    """Tell the listener of this context what is being read. Without a listener, nothing happens."""
    listener = _listener.get()
    if listener is not None:
        listener(text, done, total)


class Problem(msgspec.Struct, frozen=True):
    """One entry that could not be read: its name within the source, and what is wrong with it."""

    entry: str
    message: str


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading one source.

    Attributes:
        kind: name of the reader, such as `mcp`.
        tools: what was read.
        problems: entries that could not be read.
        state: `ok`, or `error`: the source cannot be read now, and the catalogue keeps its former tools.
        message: why the state is `error`.
        awaits_person: whether the reason is that nobody has signed in at its server yet.
    """

    source: str
    kind: str
    tools: list[Tool] = []
    problems: list[Problem] = []
    state: State = "ok"
    message: str = ""
    awaits_person: bool = False


def source_name(text: str) -> str:
    """Turn a text into a source name, which has no slash, white space or control characters."""
    return re.sub(r"[\s/\\\x00-\x1f\x7f]+", "-", text.strip()).strip("-") or "source"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawTool:
    """The fields of a tool as its source gives them. They are untrusted; `build_tool` checks them.

    Attributes:
        id: identifies the tool within its source.
        name: by default the id.
        parameters: JSON Schema of the arguments. `check_schema` says what is refused.
        requires: names of tools of the source that must be called first: a list, one text, or None.

    The other fields mean the same as in `Tool`.
    """

    id: object
    name: object = None
    description: object = ""
    parameters: object = None
    path: Iterable[object] = ()
    parent: Iterable[object] | None = None
    returns: object = None
    tags: Iterable[object] = ()
    hints: Hints = dataclasses.field(default_factory=Hints)
    callable: bool = False
    meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    requires: object = ()


def build_tool(source: str, raw: RawTool) -> Tool:
    """Check the fields of a tool and build it. `source` is a name that `source_name` returned.

    Raises:
        BadEntry: saying what was expected and found. The caller adds the entry's name.
    """
    identity = _read_text("id", raw.id).strip()
    name = _read_text("name", raw.id if raw.name is None else raw.name).strip()
    if not identity or not name:
        raise BadEntry("expected a name, found an empty one")
    parameters = None if raw.parameters is None else check_schema(raw.parameters)
    description = _read_text("description", "" if raw.description is None else raw.description)
    return Tool(
        id=f"{source}/{identity}",
        name=name,
        description=description[:MAX_DESCRIPTION_CHARS].strip(),
        parameters=parameters,
        path=tuple(_read_text("path", part) for part in raw.path),
        parent=None if raw.parent is None else tuple(_read_text("parent", part) for part in raw.parent),
        returns=clean(raw.returns),
        tags=tuple(_read_text("tag", tag) for tag in raw.tags),
        hints=raw.hints,
        callable=raw.callable,
        meta=clean(dict(raw.meta)),
        requires=_read_names(raw.requires),
    )


def _read_names(value: object) -> tuple[str, ...]:
    """Return the first 32 names in the `depends_on` of an entry, which is a list, one name or None."""
    if value is None:
        return ()
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        raise BadEntry(f"expected a list of tool names as depends_on, found {describe_type(value)}")
    return tuple(_read_text("depends_on", name).strip() for name in names[:MAX_REQUIRED_TOOLS])


def _read_text(field: str, value: object) -> str:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(clean(str(value)))
    raise BadEntry(f"expected text as {field}, found {describe_type(value)}")


def as_object(value: object) -> Mapping[str, object]:
    """Return a value if it is an object of JSON; else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: object) -> list[object]:
    """Return a value if it is a list; else an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """Return a text that JSON and SQLite accept, without white space around it; empty for another type."""
    return str(clean(value)).strip() if isinstance(value, str) else ""


def describe_type(value: object) -> str:
    """Describe the type of a JSON value in words."""
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return "nothing" if value is None else names.get(type(value), f"a {type(value).__name__}")


def describe_value(value: object) -> str:
    """Describe a value for messages: texts and numbers shortened, everything else by its type."""
    return repr(clean(str(value)[:60])) if isinstance(value, (str, int, float)) else describe_type(value)


def check_schema(schema: object) -> Schema:
    """Refuse a schema that cannot describe the arguments of a tool; return it as `types.clean` copies it.

    Errors of published tools that do not harm the search are accepted: unknown type names inside properties,
    `"properties": []`, `"required": null` or a boolean.

    Raises:
        BadEntry: if it is no object or describes none, its properties or required names have a wrong type, or it is
            too large or too deep.
    """
    if not isinstance(schema, Mapping):
        raise BadEntry(f"expected a JSON Schema object as parameters, found {describe_type(schema)}")
    type_name, required = schema.get("type"), schema.get("required")
    if isinstance(type_name, (list, tuple)):
        type_name = "object" if "object" in type_name else str(list(type_name))
    if type_name is not None and str(type_name).lower() not in ("object", "dict"):
        raise BadEntry(f'expected parameters of type "object", found type {str(type_name)[:60]!r}')
    _check_properties(schema.get("properties"))
    is_list_of_names = isinstance(required, (list, tuple)) and all(isinstance(name, str) for name in required)
    if required is not None and not isinstance(required, bool) and not is_list_of_names:
        raise BadEntry(f"expected a list of names as required, found {describe_type(required)}")
    cleaned: Schema = clean(schema)
    if len(msgspec.json.encode(cleaned)) > MAX_SCHEMA_BYTES:
        raise BadEntry(f"expected parameters of at most {MAX_SCHEMA_BYTES:,} bytes, found more")
    return cleaned


def _check_properties(properties: object) -> None:
    """Raise BadEntry unless the `properties` of a schema are an object of schemas, or missing."""
    if properties not in (None, []) and not isinstance(properties, Mapping):
        raise BadEntry(f"expected an object as properties, found {describe_type(properties)}")
    for key, inner in as_object(properties).items():
        if not isinstance(inner, (Mapping, bool)) and inner is not None:
            raise BadEntry(f"expected a schema as property {str(key)[:60]!r}, found {describe_type(inner)}")


def collect(
    source: str, kind: str, entries: Iterable[tuple[str, Callable[[], Tool]]], *, problems: Iterable[Problem] = ()
) -> Reading:
    """Build a Reading from pairs of an entry's name and a function that builds its tool.

    Bad and repeated entries become problems. They follow the `problems` that the caller has already.
    """
    tools: dict[str, Tool] = {}
    entries_by_id: dict[str, str] = {}
    all_problems = list(problems)
    for entry, build in entries:
        try:
            tool = build()
        except BadEntry as error:
            all_problems.append(Problem(entry, str(error)))
            continue
        if tool.id in tools:
            first = entries_by_id[tool.id]
            can_be_named = first not in ("", entry)
            other = f"another entry, {first}," if can_be_named else "another entry"
            all_problems.append(Problem(entry, f"{other} has the id {tool.id!r} already. The first one is kept."))
        else:
            tools[tool.id], entries_by_id[tool.id] = tool, entry
    all_problems += _find_unknown_requirements(source, tools)
    return Reading(source=source, kind=kind, tools=list(tools.values()), problems=all_problems)


def _find_unknown_requirements(source: str, tools: Mapping[str, Tool]) -> Iterator[Problem]:
    """Yield a problem for each tool that requires one that the source does not have."""
    names = {tool.name.casefold() for tool in tools.values()}
    for tool in tools.values():
        if tool.kind != "tool":
            continue  # a skill may require tools of other sources
        unknown = [
            name
            for name in tool.requires
            if name not in tools and f"{source}/{name}" not in tools and name.casefold() not in names
        ]
        if unknown:
            message = f"it depends on {', '.join(unknown)}, which the source does not have. The tool is kept."
            yield Problem(tool.name, message)
