"""Tools in. One reader a kind of source; this file holds what they share and decides which reader a locator needs.

A reader is a module of this folder with one function::

    def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]

It returns one `Reading` for every source behind the locator (an `mcpServers` file has many). It raises `SourceError`
only when nothing at all can be read; a bad entry becomes a `Problem` that names the entry, and the others go on.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from toolscout.config import Settings
from toolscout.errors import BadEntry, SourceError
from toolscout.types import Hints, Tool, clean

__all__ = [
    "KINDS",
    "Problem",
    "Reading",
    "build_tool",
    "collect",
    "detect",
    "load_document",
    "parse_document",
    "read",
    "refuse_bombs",
    "source_name",
]

State = Literal["ok", "error", "disabled"]
KINDS: Final = {
    "mcp": "an mcpServers JSON file, or the URL or the command of an MCP server",
    "openapi": "an OpenAPI 3.x or Swagger 2.0 document, JSON or YAML, file or URL",
    "schemas": "function schemas (OpenAI, Anthropic, Gemini, MCP tools/list) in a .json or .jsonl file",
    "python": "py:module or py:module:name",
    "folder": "a dataset folder with corpus.jsonl",
}
MAX_SCHEMA_BYTES: Final = 1_000_000
MAX_DESCRIPTION: Final = 1_000_000
MAX_NODES: Final = 2_000_000
JSON_TYPES: Final = {"object", "array", "string", "number", "integer", "boolean", "null"}


class Problem(msgspec.Struct, frozen=True):
    """One entry that could not be read: its name within the source, and what was expected and found."""

    entry: str
    message: str


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one source held when it was read. State `error`: not readable now; the catalogue keeps its former tools."""

    source: str
    kind: str
    tools: list[Tool] = []
    problems: list[Problem] = []
    state: State = "ok"
    message: str = ""


def source_name(text: str) -> str:
    """`text` made fit to stand before the slash of a tool id: no slash, no white space, no control characters."""
    return re.sub(r"[\s/\\\x00-\x1f\x7f]+", "-", text.strip()).strip("-") or "source"


def detect(locator: str) -> str:
    """Which reader a locator needs; one of `KINDS`.

    Raises:
        SourceError: when it is none of them, with the list of what is understood.
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
    words = _words(locator)
    if words and shutil.which(words[0]):
        return "mcp"
    looks_like_path = len(words) == 1 and (os.sep in locator or path.suffix)
    found = "no such file" if looks_like_path else "nothing of that name: no file, no folder, no command on PATH"
    raise SourceError(f"{locator}: expected {'; '.join(KINDS.values())}; found {found}")


def _words(locator: str) -> list[str]:
    try:
        return shlex.split(locator)
    except ValueError:
        return []


def _detect_file(path: Path) -> str:
    if path.suffix == ".jsonl":
        return "schemas"
    document = load_document(path)
    if isinstance(document, Mapping):
        if "openapi" in document or "swagger" in document:
            return "openapi"
        if any(isinstance(document.get(key), Mapping) for key in ("mcpServers", "servers", "mcp")):
            return "mcp"
    return "schemas"


def load_document(path: Path) -> Any:
    """The value of a JSON or YAML file (comments in JSON are allowed, as editors write them).

    Raises:
        SourceError: naming the file and the place where it stops making sense.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise SourceError(f"{path}: expected a readable file, found: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path}: expected UTF-8 text, found byte {error.object[error.start]:#04x} "
            f"at offset {error.start}: save it as UTF-8"
        ) from None
    return parse_document(text, str(path))


def parse_document(text: str, where: str) -> Any:
    """The value of JSON or YAML text; `where` is named in errors."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = str(error) or "too deeply nested"
    if not where.endswith((".yaml", ".yml")) and _without_comments(text).lstrip()[:1] in ("{", "["):
        try:
            return msgspec.json.decode(_without_comments(text))
        except (msgspec.DecodeError, RecursionError):
            if "\n{" in text.strip():  # JSON lines under the ending of JSON
                with contextlib.suppress(msgspec.DecodeError, RecursionError):
                    return msgspec.json.Decoder().decode_lines(text)
            raise SourceError(f"{where}: expected JSON, found something else: {reason}") from None
    return _parse_yaml(text, where)


def _parse_yaml(text: str, where: str) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(text, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise SourceError(f"{where}: expected JSON or YAML, found neither: {reason}") from None


def refuse_bombs(value: Any, where: str) -> None:
    """YAML aliases make small files that are huge once written out; JSON has none, and is as large as it looks.

    Raises:
        SourceError: for a document of more than two million values once written out.
    """
    waiting, left = [value], MAX_NODES
    while waiting:
        node = waiting.pop()
        inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        waiting.extend(inner)
        left -= 1
        if left < len(waiting):
            raise SourceError(
                f"{where}: expected a document of at most {MAX_NODES:,} values, found more behind its aliases"
            )


_STRING: Final = r'("(?:\\.|[^"\\])*")'


def _without_comments(text: str) -> str:
    """JSON with `//` and `/* */` comments and trailing commas taken out, strings untouched."""
    text = re.sub(_STRING + r"|//[^\n]*|/\*.*?\*/", lambda match: match[1] or " ", text, flags=re.S)
    return re.sub(_STRING + r"|,(?=\s*[}\]])", lambda match: match[1] or "", text)


def build_tool(
    source: str,
    raw_id: object,
    *,
    name: object = None,
    description: object = "",
    parameters: object = None,
    path: Iterable[object] = (),
    parent: Iterable[object] | None = None,
    returns: object = None,
    tags: Iterable[object] = (),
    hints: Hints | None = None,
    callable: bool = False,
    meta: Mapping[str, Any] | None = None,
) -> Tool:
    """A checked Tool from untrusted values.

    `source` is a name as `source_name` gives it; `raw_id` identifies the tool within it, and is its name unless `name`
    is given; `check_schema` says which `parameters` are refused. The rest is as in `Tool`.

    Raises:
        BadEntry: saying what was expected and found. The caller adds the entry's name.
    """
    identity = _text("id", raw_id).strip()
    title = _text("name", raw_id if name is None else name).strip()
    if not identity or not title:
        raise BadEntry("expected a name, found an empty one")
    if parameters is not None:
        check_schema(parameters)
    return Tool(
        id=f"{source}/{identity}",
        name=title,
        description=_text("description", "" if description is None else description)[:MAX_DESCRIPTION].strip(),
        parameters=clean(parameters),
        path=tuple(_text("path", part) for part in path),
        parent=None if parent is None else tuple(_text("parent", part) for part in parent),
        returns=clean(returns),
        tags=tuple(_text("tag", tag) for tag in tags),
        hints=hints or Hints(),
        callable=callable,
        meta=clean(dict(meta or {})),
    )


def _text(what: str, value: object) -> str:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(clean(str(value)))
    raise BadEntry(f"expected text as {what}, found {_kind(value)}")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return "nothing" if value is None else names.get(type(value), f"a {type(value).__name__}")


def check_schema(schema: object) -> None:
    """Refuse what no reader of JSON Schema could use as the arguments of a tool.

    Lenient on purpose where published tools are sloppy and search does not suffer: unknown type names inside
    properties, `"properties": []`, `"required": null` or a boolean.

    Raises:
        BadEntry: not an object, of another type, properties or required of a wrong shape, too large or too deep.
    """
    if not isinstance(schema, Mapping):
        raise BadEntry(f"expected a JSON Schema object as parameters, found {_kind(schema)}")
    outer = schema.get("type")
    if isinstance(outer, (list, tuple)):
        outer = "object" if "object" in outer else str(list(outer))
    if outer is not None and not (isinstance(outer, str) and outer.lower() in ("object", "dict")):
        raise BadEntry(f'expected parameters of type "object", found type {str(outer)[:60]!r}')
    properties = schema.get("properties")
    if properties not in (None, []) and not isinstance(properties, Mapping):
        raise BadEntry(f"expected an object as properties, found {_kind(properties)}")
    for key, inner in properties.items() if isinstance(properties, Mapping) else ():
        if not isinstance(inner, (Mapping, bool)) and inner is not None:
            raise BadEntry(f"expected a schema as property {str(key)[:60]!r}, found {_kind(inner)}")
    required = schema.get("required")
    if not (required is None or isinstance(required, bool)) and not (
        isinstance(required, (list, tuple)) and all(isinstance(item, str) for item in required)
    ):
        raise BadEntry(f"expected a list of names as required, found {_kind(required)}")
    if len(msgspec.json.encode(clean(schema))) > MAX_SCHEMA_BYTES:
        raise BadEntry(f"expected parameters of at most {MAX_SCHEMA_BYTES:,} bytes, found more")


def collect(
    source: str, kind: str, entries: Iterable[tuple[str, Callable[[], Tool]]], *, problems: Iterable[Problem] = ()
) -> Reading:
    """A Reading from (name of the entry, function that builds its tool): bad and repeated entries become problems."""
    tools: dict[str, Tool] = {}
    found = list(problems)
    for entry, build in entries:
        try:
            tool = build()
        except BadEntry as error:
            found.append(Problem(entry, str(error)))
            continue
        if tool.id in tools:
            found.append(Problem(entry, f"expected one entry called {tool.id!r}, found another: the first is kept"))
        else:
            tools[tool.id] = tool
    return Reading(source=source, kind=kind, tools=list(tools.values()), problems=found)


def read(locator: str, *, name: str | None = None, kind: str | None = None, settings: Settings) -> list[Reading]:
    """Read whatever `locator` names.

    Args:
        locator: see `KINDS`.
        name: the source's name; by default the reader finds one.
        kind: which reader; by default `detect` decides.
        settings: timeouts and limits.

    Raises:
        SourceError: when nothing can be read.
    """
    kind = kind or detect(locator)
    if kind not in KINDS:
        raise SourceError(f"expected a kind of source of {', '.join(KINDS)}, found {kind!r}")
    module = importlib.import_module(f"toolscout.sources.{kind}")
    readings: list[Reading] = module.read(locator, name=name and source_name(name), settings=settings)
    return readings
