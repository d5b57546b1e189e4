"""Sources: reads tools, with one reader for each kind of source. This file detects which reader a locator needs.

A reader is a module of this folder with one function::

    def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]

A package can add a reader with the entry point group `toolscout.sources`; its locators begin with `NAME:`.

It returns one `Reading` for each source behind the locator (an `mcpServers` file has many). It raises `SourceError`
only if nothing at all can be read. A bad entry becomes a `Problem` that names it; the other entries are read.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from toolscout import plugins
from toolscout.config import Settings
from toolscout.errors import BadEntry, ConfigError, SourceError, name_nearest
from toolscout.sources.parsing import load_document, parse_document
from toolscout.types import Hints, Tool, clean

__all__ = [
    "SOURCE_KINDS",
    "Problem",
    "RawTool",
    "Reading",
    "build_tool",
    "collect",
    "detect",
    "load_document",
    "parse_document",
    "plugin_prefix",
    "read",
    "source_name",
]

State = Literal["ok", "error", "disabled"]
SOURCE_KINDS: Final = {
    "mcp": "an mcpServers JSON file, or the URL or the command of an MCP server",
    "openapi": "an OpenAPI 3.x or Swagger 2.0 document, JSON or YAML, file or URL",
    "schemas": "function schemas (OpenAI, Anthropic, Gemini, MCP tools/list) in a .json or .jsonl file",
    "python": "py:module or py:module:name",
    "folder": "a dataset folder with corpus.jsonl",
}
MAX_SCHEMA_BYTES: Final = 1_000_000
MAX_DESCRIPTION_CHARS: Final = 1_000_000
JSON_TYPES: Final = {"object", "array", "string", "number", "integer", "boolean", "null"}


class Problem(msgspec.Struct, frozen=True):
    """One entry that could not be read: its name within the source, and what is wrong with it."""

    entry: str
    message: str


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading one source.

    In state `error` the source cannot be read now, and the catalogue keeps the tools that it has of it.
    """

    source: str
    kind: str
    tools: list[Tool] = []
    problems: list[Problem] = []
    state: State = "ok"
    message: str = ""


def source_name(text: str) -> str:
    """Turn a text into a source name, which has no slash, white space or control characters."""
    return re.sub(r"[\s/\\\x00-\x1f\x7f]+", "-", text.strip()).strip("-") or "source"


def detect(locator: str) -> str:
    """Return the reader that a locator needs: a key of `SOURCE_KINDS`, or the name of a plug-in.

    Raises:
        SourceError: if no reader understands it. The message lists what the readers understand.
    """
    if locator.startswith("py:"):
        return "python"
    if locator.lower().startswith(("http://", "https://")):
        address = locator.partition("?")[0]
        return "openapi" if re.search(r"\.(json|ya?ml)$|openapi|swagger", address, re.I) else "mcp"
    path = Path(locator).expanduser()
    if path.is_dir():
        if (path / "corpus.jsonl").is_file():
            return "folder"
        raise SourceError(f"{locator}: expected a dataset folder with corpus.jsonl, found a folder without it")
    if path.is_file():
        return _detect_file(path)
    return plugin_prefix(locator) or _detect_command(locator)


def _detect_command(locator: str) -> str:
    """Return the reader of MCP servers, if the locator is a command line that can run.

    Raises:
        SourceError: if no program on PATH has the name of its first word.
    """
    words = _split_command(locator)
    if words and shutil.which(words[0]):
        return "mcp"
    if len(words) == 1 and (os.sep in locator or Path(locator).suffix):
        advice = name_nearest(Path(locator).name, _list_names(Path(locator).expanduser().parent), "Check its path.")
        raise SourceError(f"{locator}: there is no such file. {advice}")
    if _is_module(locator):
        raise SourceError(f"{locator}: there is no such file. For the Python module, add py:{locator}")
    raise SourceError(
        f"{locator}: there is no file or folder of that name, and no command on PATH. See  toolscout add --help"
    )


def _list_names(folder: Path) -> list[str]:
    """List what lies in a folder; nothing if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def _is_module(name: str) -> bool:
    """Tell whether a name is that of a Python module that could be imported. Nothing is imported."""
    try:
        return name.isidentifier() and importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def plugin_prefix(locator: str) -> str | None:
    """Return the name of the plug-in that reads `NAME:anything`. None: no plug-in has that name.

    Raises:
        SourceError: if several packages bring a plug-in of that name.
    """
    prefix, colon, _ = locator.partition(":")
    try:
        plugin = plugins.find_plugin(plugins.SOURCE_PLUGINS, prefix) if colon else None
    except ConfigError as error:
        raise SourceError(f"{locator}: {error}") from None
    return plugin.name if plugin else None


def _split_command(locator: str) -> list[str]:
    try:
        return shlex.split(locator)
    except ValueError:
        return []


def _detect_file(path: Path) -> str:
    if path.suffix == ".jsonl":
        return "schemas"
    if path.suffix == ".py":
        raise SourceError(f"{path}: a Python file is added as a module, with its folder on PYTHONPATH: py:{path.stem}")
    document = load_document(path)
    if not isinstance(document, (Mapping, list)):
        what = "it is empty" if document is None else f"it holds only {_describe_type(document)}"
        raise SourceError(f"{path}: this file describes no tools: {what}. See  toolscout add --help")
    if isinstance(document, Mapping):
        if "openapi" in document or "swagger" in document:
            return "openapi"
        servers = (document.get(key) for key in ("servers", "mcp"))
        if "mcpServers" in document or any(isinstance(value, Mapping) for value in servers):
            return "mcp"
    return "schemas"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawTool:
    """The fields of a tool as its source gives them. They are untrusted; `build_tool` checks them.

    Attributes:
        id: identifies the tool within its source.
        name: by default the id.
        parameters: JSON Schema of the arguments. `check_schema` says what is refused.

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


def build_tool(source: str, raw: RawTool) -> Tool:
    """Check the fields of a tool and build it. `source` is a name that `source_name` returned.

    Raises:
        BadEntry: saying what was expected and found. The caller adds the entry's name.
    """
    identity = _read_text("id", raw.id).strip()
    name = _read_text("name", raw.id if raw.name is None else raw.name).strip()
    if not identity or not name:
        raise BadEntry("expected a name, found an empty one")
    if raw.parameters is not None:
        check_schema(raw.parameters)
    description = _read_text("description", "" if raw.description is None else raw.description)
    return Tool(
        id=f"{source}/{identity}",
        name=name,
        description=description[:MAX_DESCRIPTION_CHARS].strip(),
        parameters=clean(raw.parameters),
        path=tuple(_read_text("path", part) for part in raw.path),
        parent=None if raw.parent is None else tuple(_read_text("parent", part) for part in raw.parent),
        returns=clean(raw.returns),
        tags=tuple(_read_text("tag", tag) for tag in raw.tags),
        hints=raw.hints,
        callable=raw.callable,
        meta=clean(dict(raw.meta)),
    )


def _read_text(field: str, value: object) -> str:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(clean(str(value)))
    raise BadEntry(f"expected text as {field}, found {_describe_type(value)}")


def _describe_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return "nothing" if value is None else names.get(type(value), f"a {type(value).__name__}")


def check_schema(schema: object) -> None:
    """Refuse a schema that cannot describe the arguments of a tool.

    Errors of published tools that do not harm the search are accepted: unknown type names inside properties,
    `"properties": []`, `"required": null` or a boolean.

    Raises:
        BadEntry: not an object, of another type, properties or required of a wrong shape, too large or too deep.
    """
    if not isinstance(schema, Mapping):
        raise BadEntry(f"expected a JSON Schema object as parameters, found {_describe_type(schema)}")
    _check_type(schema.get("type"))
    _check_properties(schema.get("properties"))
    _check_required(schema.get("required"))
    if len(msgspec.json.encode(clean(schema))) > MAX_SCHEMA_BYTES:
        raise BadEntry(f"expected parameters of at most {MAX_SCHEMA_BYTES:,} bytes, found more")


def _check_type(type_name: object) -> None:
    """Refuse the type of a schema unless it is absent, an object, or a list of types with an object."""
    if isinstance(type_name, (list, tuple)):
        type_name = "object" if "object" in type_name else str(list(type_name))
    if type_name is not None and not (isinstance(type_name, str) and type_name.lower() in ("object", "dict")):
        raise BadEntry(f'expected parameters of type "object", found type {str(type_name)[:60]!r}')


def _check_properties(properties: object) -> None:
    if properties not in (None, []) and not isinstance(properties, Mapping):
        raise BadEntry(f"expected an object as properties, found {_describe_type(properties)}")
    for key, inner in properties.items() if isinstance(properties, Mapping) else ():
        if not isinstance(inner, (Mapping, bool)) and inner is not None:
            raise BadEntry(f"expected a schema as property {str(key)[:60]!r}, found {_describe_type(inner)}")


def _check_required(names: object) -> None:
    if names is None or isinstance(names, bool):
        return
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise BadEntry(f"expected a list of names as required, found {_describe_type(names)}")


def collect(
    source: str, kind: str, entries: Iterable[tuple[str, Callable[[], Tool]]], *, problems: Iterable[Problem] = ()
) -> Reading:
    """Build a Reading from pairs of an entry's name and a function that builds its tool.

    Bad and repeated entries become problems. They follow the `problems` that the caller has already.
    """
    tools: dict[str, Tool] = {}
    all_problems = list(problems)
    for entry, build in entries:
        try:
            tool = build()
        except BadEntry as error:
            all_problems.append(Problem(entry, str(error)))
            continue
        if tool.id in tools:
            all_problems.append(Problem(entry, f"another entry has the id {tool.id!r} already. The first one is kept."))
        else:
            tools[tool.id] = tool
    return Reading(source=source, kind=kind, tools=list(tools.values()), problems=all_problems)


def read(locator: str, *, name: str | None = None, kind: str | None = None, settings: Settings) -> list[Reading]:
    """Read every source that `locator` names.

    Args:
        locator: what a user types. `SOURCE_KINDS` describes the forms; `NAME:anything` goes to the plug-in NAME,
            without its prefix.
        name: the source's name. By default the reader chooses one.
        kind: which reader. By default `detect` decides.
        settings: timeouts and limits.

    Raises:
        SourceError: if nothing can be read.
    """
    kind = kind or detect(locator)
    if kind not in SOURCE_KINDS:
        return _read_with_plugin(locator, name, kind, settings)
    module = importlib.import_module(f"toolscout.sources.{kind}")
    readings: list[Reading] = module.read(locator, name=name and source_name(name), settings=settings)
    return readings


def _read_with_plugin(locator: str, name: str | None, kind: str, settings: Settings) -> list[Reading]:
    """Read a locator with the reader of a plug-in. Whatever goes wrong in the plug-in becomes a `SourceError`."""
    try:
        plugin = plugins.find_plugin(plugins.SOURCE_PLUGINS, kind)
        if plugin is None:
            kinds = [*SOURCE_KINDS, *(plugin.name for plugin in plugins.list_plugins(plugins.SOURCE_PLUGINS))]
            advice = name_nearest(kind, kinds, f"There are {', '.join(kinds)}.")
            raise SourceError(f"expected a kind of source, found {kind!r}. {advice}")
        read_locator = plugins.load_function(plugin)
    except ConfigError as error:
        raise SourceError(f"{locator}: {error}") from None
    source = name and source_name(name)
    try:
        readings: list[Reading] = read_locator(locator.removeprefix(f"{kind}:"), name=source, settings=settings)
        return [_check_reading(reading, kind) for reading in readings]
    except SourceError:
        raise
    except Exception as error:
        raise SourceError(f"{locator}: {plugin} failed: {type(error).__name__}: {error}") from error


def _check_reading(reading: Reading, kind: str) -> Reading:
    """Return a plug-in's reading under the plug-in's kind, after a check that it names its tools by its source.

    Raises:
        SourceError: if the name of the source or an id of a tool is not what the catalogue expects.
    """
    if reading.source != source_name(reading.source):
        raise SourceError(f"The plug-in {kind!r} named a source {reading.source!r}. Names come from `source_name`.")
    for tool in reading.tools:
        if not tool.id.startswith(f"{reading.source}/"):
            raise SourceError(
                f"The plug-in {kind!r} returned {tool.id!r}, which does not begin with {reading.source}/."
            )
    return msgspec.structs.replace(reading, kind=kind)
