"""Sources: reads tools, with one reader for each kind of source. `KIND_TABLE` is the table of them.

A reader is a function::

    def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]

It returns one `Reading` for each source behind the locator (an `mcpServers` file has many). It raises `SourceError`
only if nothing at all can be read. A bad entry becomes a `Problem` that names it; the other entries are read.

A package can add a kind with the entry point group `toolscout.sources`; its locators begin with `NAME:`. The entry
point names a reader, or a `Source`, which yields tools and problems one by one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import msgspec

from toolscout import plugins
from toolscout.errors import ConfigError, SourceError, name_nearest
from toolscout.settings import Settings
from toolscout.sources.parsing import load_document, parse_document
from toolscout.sources.reading import Problem, RawTool, Reading, build_tool, collect, describe_type, source_name
from toolscout.types import Tool

__all__ = [
    "DOCUMENT_KINDS",
    "KIND_TABLE",
    "SOURCE_KINDS",
    "Problem",
    "RawTool",
    "Reading",
    "Source",
    "SourceKind",
    "build_tool",
    "collect",
    "detect",
    "load_document",
    "parse_document",
    "plugin_prefix",
    "read",
    "source_name",
    "strip_locator",
]


@runtime_checkable
class Source(Protocol):
    """Reads a source of one kind."""

    def read(self, locator: str) -> Iterator[Tool | Problem]:
        """Yield the tools of the source, and a problem for each entry that cannot be read."""


def _claims_nothing(subject: object) -> bool:
    """Claim no locator, folder or document: the default of the three tests of a `SourceKind`."""
    return False


class SourceKind(NamedTuple):
    """One kind of source. The first kind in the table that claims a locator reads it.

    Attributes:
        name: what `--kind` takes.
        forms: its locators, for people.
        reader: `module:function`.
        claims_text: tells whether a locator is of this kind, by its text.
        claims_folder: the same of a folder, by what is in it.
        claims_document: the same of a file, by its parsed JSON or YAML.
    """

    name: str
    forms: str
    reader: str
    claims_text: Callable[[str], bool] = _claims_nothing
    claims_folder: Callable[[Path], bool] = _claims_nothing
    claims_document: Callable[[Any], bool] = _claims_nothing


def _is_url(locator: str) -> bool:
    return locator.lower().startswith(("http://", "https://"))


def _matches_url(locator: str, pattern: str) -> bool:
    """Return whether a locator is a URL in which the pattern is found before its query."""
    return _is_url(locator) and re.search(pattern, locator.partition("?")[0], re.I) is not None


def _names_servers(document: object) -> bool:
    from toolscout.sources.clients import names_servers

    return names_servers(document)


def _has_skills(folder: Path) -> bool:
    from toolscout.sources.skills import find_skills

    return next(find_skills(folder), None) is not None


def _is_agent_card(document: object) -> bool:
    from toolscout.sources.skills import is_card

    return is_card(document)


KIND_TABLE: Final = (
    SourceKind(
        "python", "py:module or py:module:name", "toolscout.sources.python:read", lambda text: text.startswith("py:")
    ),
    SourceKind(
        "folder",
        "a dataset folder with corpus.jsonl",
        "toolscout.sources.folder:read",
        claims_folder=lambda folder: (folder / "corpus.jsonl").is_file(),
    ),
    SourceKind(
        "skills",
        "a folder with SKILL.md, or of such folders",
        "toolscout.sources.skills:read_skills",
        claims_folder=_has_skills,
    ),
    SourceKind(
        "openapi",
        "an OpenAPI 3.x or Swagger 2.0 document, JSON or YAML, file or URL",
        "toolscout.sources.openapi:read",
        lambda text: (
            _matches_url(text, r"\.(json|ya?ml)$|openapi|swagger|api-?docs|apispec|api-json")
            and not _matches_url(text, _CARD_ADDRESS)
        ),
        claims_document=lambda document: isinstance(document, Mapping) and bool({"openapi", "swagger"} & set(document)),
    ),
    SourceKind(
        "mcp",
        "an mcpServers JSON file, or the URL or the command of an MCP server",
        "toolscout.sources.mcp:read",
        lambda text: (_is_url(text) and not _matches_url(text, _CARD_ADDRESS)) or ".json#" in text,
        claims_document=_names_servers,
    ),
    SourceKind(
        "agents",
        "an A2A agent card, file or URL",
        "toolscout.sources.skills:read_agents",
        lambda text: _matches_url(text, _CARD_ADDRESS),
        claims_document=_is_agent_card,
    ),
    SourceKind(
        "schemas",
        "function schemas (OpenAI, Anthropic, Gemini, MCP tools/list) in a .json or .jsonl file",
        "toolscout.sources.schemas:read",
        claims_document=lambda document: isinstance(document, (Mapping, list)),
    ),
)
SOURCE_KINDS: Final = {kind.name: kind.forms for kind in KIND_TABLE}
#: Kinds of documents and servers, which cannot name a Python function to run. Objects of a program and plug-ins can.
DOCUMENT_KINDS: Final = SOURCE_KINDS.keys() - {"python"}

_CARD_ADDRESS: Final = r"/agent(-card)?\.json$"
_FILES_IN_FOLDERS: Final = (
    ".mcp.json", "mcp.json", ".claude-plugin/plugin.json", "gemini-extension.json",
    ".cursor/mcp.json", ".vscode/mcp.json", "claude_desktop_config.json",
    "openapi.yaml", "openapi.json", "tools.json",
)  # fmt: skip
_REPOSITORY: Final = re.compile(r"(https?://)?(www\.)?git(hub|lab)\.com/[^/]+/[^/]+/?$|git@[^/]+:", re.I)
_DOCUMENT_SUFFIXES: Final = {".json", ".yaml", ".yml", ".toml"}  # a bad file of these is mended, not read by a plug-in
_MANIFEST_KEYS: Final = {"dependencies", "devDependencies", "scripts"}  # of package.json


def detect(locator: str) -> str:
    """Return the reader that a locator needs: a key of `SOURCE_KINDS`, or the name of a plug-in.

    Raises:
        SourceError: if no reader understands it. The message lists what the readers understand.
    """
    if _REPOSITORY.match(locator):
        advice = "Add the command that starts its server, such as 'npx -y PACKAGE'."
        raise SourceError(f"{locator}: this is the address of a repository. {advice}")
    kind = next((kind.name for kind in KIND_TABLE if kind.claims_text(locator)), None)
    if kind == "mcp" and _is_url(locator):
        if re.match(r"https?:///", locator):
            raise SourceError(f"{locator}: this address has no host. Write it like https://HOST/mcp")
        return _detect_remote(locator)
    if kind is not None:
        return kind
    if re.match(r"\w+://", locator) and plugin_prefix(locator) is None:
        raise SourceError(f"{locator}: toolscout reads from http:// and https:// addresses only. Download it first.")
    path = Path(os.path.expanduser(locator))
    if os.path.isdir(path):  # not `Path.is_dir`, which raises an error if a long command line is tested as a path
        return _detect_folder(locator, path)
    if os.path.isfile(path):
        return _detect_file(path)
    return plugin_prefix(locator) or _detect_command(locator)


def _detect_remote(url: str) -> str:
    """Return the reader of a URL: `openapi` if a document is there, else `mcp`.

    The URL is requested, unless its path is one that MCP servers have.
    """
    from toolscout.sources.documents import is_openapi_address

    is_server = re.search(r"^https?://[^/]+/?$|/(mcp|sse|messages?)(/|$)", url.partition("?")[0], re.I)
    is_document = not is_server and is_openapi_address(url)
    return "openapi" if is_document else "mcp"


def _detect_folder(locator: str, path: Path) -> str:
    """Return the reader of a folder.

    Raises:
        SourceError: if no reader claims it. The message names a file in it that can be added.
    """
    if kind := next((kind.name for kind in KIND_TABLE if kind.claims_folder(path)), None):
        return kind
    inside = next((name for name in _FILES_IN_FOLDERS if (path / name).is_file()), None)
    advice = f". Did you mean '{os.path.join(locator, inside)}'?" if inside else _advise_plugins(path)
    missing = "expected a folder with corpus.jsonl or SKILL.md, found a folder without them"
    raise SourceError(f"{locator}: {missing}{advice}")


def _advise_plugins(path: Path) -> str:
    """Return the advice to read a path with a plug-in, with a full stop before it; "" if no plug-in may read it.

    No plug-in is imported, so their names are all that is known. A plug-in with the name of the suffix reads the path.
    """
    installed = plugins.list_plugins(plugins.SOURCE_PLUGINS)
    names = sorted({plugin.name for plugin in installed if plugins.explain_refusal(plugin) is None})
    if not names or path.suffix in _DOCUMENT_SUFFIXES:
        return ""
    suffix = path.suffix.lower().lstrip(".")
    if suffix in names:
        return f". The plug-in {suffix} reads it: toolscout add {shlex.quote(f'{suffix}:{path}')}"
    first, *others = names
    prefixes = ", ".join(f"{name}:" for name in others)
    alternatives = f" (or with {prefixes} in front)" if others else ""
    return f". A plug-in may read it: toolscout add {shlex.quote(f'{first}:{path}')}{alternatives}"


def _detect_command(locator: str) -> str:
    """Return the reader of MCP servers, if the locator is a command line that can run.

    Raises:
        SourceError: if no program on PATH has the name of its first word. The message guesses what was meant: a file
            of another name, or a Python module.
    """
    words = _split_command(locator)
    if words and shutil.which(words[0]):
        return "mcp"
    path = Path(os.path.expanduser(locator))
    prefix, colon, rest = locator.partition(":")
    if colon and re.fullmatch(r"[a-z][a-z\d-]+", prefix) and os.path.exists(os.path.expanduser(rest)):
        names = [plugin.name for plugin in plugins.list_plugins(plugins.SOURCE_PLUGINS)]
        advice = name_nearest(prefix, names, "Install its package, then see  toolscout doctor")
        raise SourceError(f"{locator}: no plug-in is called {prefix!r}. {advice}")
    looks_like_file = len(words) == 1 and (os.sep in locator or path.suffix)
    if looks_like_file:
        advice = name_nearest(path.name, _list_names(path.parent), "Check its path.")
        raise SourceError(f"{locator}: there is no such file. {advice}")
    if _is_module(locator):
        raise SourceError(f"{locator}: there is no such file. For the Python module, add py:{locator}")
    raise SourceError(
        f"{locator}: there is no file or folder of that name, and no command on PATH. See  toolscout add --help"
    )


def _list_names(folder: Path) -> list[str]:
    """List the names of the files in a folder; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def _is_module(name: str) -> bool:
    """Return whether a Python module of this name could be imported. Nothing is imported."""
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
    if not colon:
        return None
    try:
        plugin = plugins.find_plugin(plugins.SOURCE_PLUGINS, prefix)
    except ConfigError as error:
        raise SourceError(f"{locator}: {error}") from None
    return plugin.name if plugin else None


def strip_locator(message: str, locator: str) -> str:
    """Remove a locator from the start of a message, in each form and as often as it is there.

    The forms are the locator, the path behind a plug-in's prefix, and both with the absolute path.
    """
    prefix, colon, rest = locator.partition(":")
    path = os.path.expanduser(rest or locator)
    paths = [rest or locator, path, os.path.normpath(path), os.path.abspath(path)]
    forms = [locator, *paths, *(f"{prefix}{colon}{path}" for path in paths)]
    starts = tuple(f"{form}: " for form in forms)
    while message.startswith(starts):
        message = message.removeprefix(next(start for start in starts if message.startswith(start)))
    return message


def _split_command(locator: str) -> list[str]:
    """Split a command line into words. Empty if a quotation mark is not closed: it is no command then."""
    try:
        return shlex.split(locator)
    except ValueError:
        return []


def _detect_file(path: Path) -> str:
    """Return the kind of a file, from its suffix or its content.

    Raises:
        SourceError: if it describes no tools.
    """
    if path.suffix == ".jsonl":
        return "schemas"
    if path.suffix == ".py":
        raise SourceError(f"{path}: a Python file is added as a module, with its folder on PYTHONPATH: py:{path.stem}")
    try:
        document = load_document(path)
    except SourceError as error:
        raise SourceError(f"{str(error).rstrip('.')}{_advise_plugins(path)}") from None
    if not isinstance(document, (Mapping, list)):
        reason = "it is empty" if document is None else f"it holds only {describe_type(document)}"
        advice = _advise_plugins(path) or ". See  toolscout add --help"
        raise SourceError(f"{path}: this file describes no tools: {reason}{advice}")
    # A kind always claims the document: `schemas`, the last one, claims every object and list.
    kind = next(kind.name for kind in KIND_TABLE if kind.claims_document(document))
    if kind in ("agents", "schemas") and isinstance(document, Mapping) and _is_package_manifest(document):
        raise SourceError(f"{path}: the manifest of a package describes no tools. See  toolscout add --help")
    return kind


def _is_package_manifest(document: Mapping[str, object]) -> bool:
    """Return whether a document is the package.json of an npm package."""
    return "name" in document and "version" in document and bool(_MANIFEST_KEYS & document.keys())


def read(
    locator: str,
    *,
    name: str | None = None,
    kind: str | None = None,
    settings: Settings,
    only: frozenset[str] = frozenset(),
) -> list[Reading]:
    """Read every source that `locator` names.

    Args:
        locator: what a user types. `SOURCE_KINDS` describes the forms; `NAME:anything` goes to the plug-in NAME,
            without its prefix.
        name: the source's name. By default the reader chooses one.
        kind: which reader. By default `detect` decides.
        settings: timeouts and limits.
        only: sources to read. Only a file with MCP servers is read in part. Empty: all.

    Raises:
        SourceError: if nothing can be read.
    """
    kind = kind or detect(locator)
    reader = next((entry.reader for entry in KIND_TABLE if entry.name == kind), None)
    if reader is None:
        return _read_with_plugin(locator, name, kind, settings)
    module, _, function = reader.partition(":")
    read_locator = getattr(importlib.import_module(module), function)
    arguments = {"only": only} if kind == "mcp" else {}
    readings: list[Reading] = read_locator(locator, name=name and source_name(name), settings=settings, **arguments)
    return readings


def _read_with_plugin(locator: str, name: str | None, kind: str, settings: Settings) -> list[Reading]:
    """Read a locator with the reader of a plug-in. Whatever goes wrong in the plug-in becomes a `SourceError`."""
    try:
        plugin = plugins.find_plugin(plugins.SOURCE_PLUGINS, kind)
        if plugin is None:
            kinds = [*SOURCE_KINDS, *(plugin.name for plugin in plugins.list_plugins(plugins.SOURCE_PLUGINS))]
            advice = name_nearest(kind, kinds, f"There are {', '.join(kinds)}.")
            raise SourceError(f"expected a kind of source, found {kind!r}. {advice}")
        loaded = plugins.load_plugin(plugin)
        is_source = isinstance(loaded, Source)
        read_locator = partial(_read_items, loaded) if is_source else plugins.load_function(plugin)
    except ConfigError as error:
        raise SourceError(f"{locator}: {error}") from None
    source = name and source_name(name)
    try:
        readings: list[Reading] = read_locator(locator.removeprefix(f"{kind}:"), name=source, settings=settings)
        return [_check_reading(reading, kind) for reading in readings]
    except SourceError as error:
        raise SourceError(f"{locator}: {strip_locator(str(error), locator)}") from error
    except Exception as error:
        raise SourceError(f"{locator}: {plugin} failed: {type(error).__name__}: {error}") from error


def _read_items(reader: Source, locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Read a locator with a plug-in that is a `Source`. `settings` is ignored: a `Source` takes none.

    The ids of the tools are `SOURCE/NAME`. The name that the user gave the source replaces each SOURCE. If the user
    gave none, the SOURCE of the first tool does.
    """
    items = list(reader.read(locator))
    tools = [item for item in items if isinstance(item, Tool)]
    first_source = tools[0].id.partition("/")[0] if tools else locator
    source = name or source_name(first_source)
    renamed = [msgspec.structs.replace(tool, id=f"{source}/{tool.id.partition('/')[2]}") for tool in tools]
    problems = [item for item in items if isinstance(item, Problem)]
    return [Reading(source=source, kind="", tools=renamed, problems=problems)]  # `_check_reading` sets the kind


def _check_reading(reading: Reading, kind: str) -> Reading:
    """Check that a plug-in's source and tools are named as the catalogue expects; return its reading with its kind.

    Raises:
        SourceError: if the name of the source is not one of `source_name`, or the id of a tool does not begin with it.
    """
    if reading.source != source_name(reading.source):
        raise SourceError(f"The plug-in {kind!r} named a source {reading.source!r}. Names come from `source_name`.")
    for tool in reading.tools:
        if not tool.id.startswith(f"{reading.source}/"):
            raise SourceError(
                f"The plug-in {kind!r} returned {tool.id!r}, which does not begin with {reading.source}/."
            )
    return msgspec.structs.replace(reading, kind=kind)
