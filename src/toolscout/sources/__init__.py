"""Sources: reads tools, with one reader for each kind of source. This file detects which reader a locator needs.

A reader is a module of this folder with one function::

    def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]

A package can add a reader with the entry point group `toolscout.sources`; its locators begin with `NAME:`.

It returns one `Reading` for each source behind the locator (an `mcpServers` file has many). It raises `SourceError`
only if nothing at all can be read. A bad entry becomes a `Problem` that names it; the other entries are read.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from toolscout import plugins
from toolscout.config import Settings
from toolscout.errors import ConfigError, SourceError, name_nearest
from toolscout.sources.parsing import load_document, parse_document
from toolscout.sources.reading import Problem, RawTool, Reading, build_tool, collect, describe_type, source_name

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

SOURCE_KINDS: Final = {
    "mcp": "an mcpServers JSON file, or the URL or the command of an MCP server",
    "openapi": "an OpenAPI 3.x or Swagger 2.0 document, JSON or YAML, file or URL",
    "schemas": "function schemas (OpenAI, Anthropic, Gemini, MCP tools/list) in a .json or .jsonl file",
    "python": "py:module or py:module:name",
    "folder": "a dataset folder with corpus.jsonl",
    "skills": "a folder with SKILL.md, or of such folders",
    "agents": "an A2A agent card, file or URL",
}


_FILES_IN_FOLDERS: Final = (
    ".mcp.json", "mcp.json", ".cursor/mcp.json", ".vscode/mcp.json", "claude_desktop_config.json",
    "openapi.yaml", "openapi.json", "tools.json",
)  # fmt: skip
_REPOSITORY: Final = re.compile(r"(https?://)?(www\.)?git(hub|lab)\.com/[^/]+/[^/]+/?$|git@[^/]+:", re.I)
_MANIFEST_KEYS: Final = {"dependencies", "devDependencies", "scripts"}  # of package.json


def detect(locator: str) -> str:
    """Return the reader that a locator needs: a key of `SOURCE_KINDS`, or the name of a plug-in.

    Raises:
        SourceError: if no reader understands it. The message lists what the readers understand.
    """
    if locator.startswith("py:"):
        return "python"
    if _REPOSITORY.match(locator):
        mend = "Add the command that starts its server, such as 'npx -y PACKAGE'."
        raise SourceError(f"{locator}: this is the address of a repository. {mend}")
    if locator.lower().startswith(("http://", "https://")):
        address = locator.partition("?")[0]
        if re.search(r"/agent(-card)?\.json$", address, re.I):
            return "agents"
        return "openapi" if re.search(r"\.(json|ya?ml)$|openapi|swagger", address, re.I) else "mcp"
    if re.match(r"\w+://", locator) and plugin_prefix(locator) is None:
        raise SourceError(f"{locator}: toolscout reads from http:// and https:// addresses only. Download it first.")
    path = Path(os.path.expanduser(locator))
    if os.path.isdir(path):  # unlike `Path.is_dir` it takes a command that is too long for a path
        return _detect_folder(locator, path)
    if os.path.isfile(path):
        return _detect_file(path)
    return plugin_prefix(locator) or _detect_command(locator)


def _detect_folder(locator: str, path: Path) -> str:
    """Return the reader of a folder.

    Raises:
        SourceError: if it holds neither a dataset nor skills. The message names a file in it that can be added.
    """
    if (path / "corpus.jsonl").is_file():
        return "folder"
    from toolscout.sources.skills import find_skills

    if next(find_skills(path), None):
        return "skills"
    inside = next((name for name in _FILES_IN_FOLDERS if (path / name).is_file()), None)
    advice = "" if inside is None else f". Did you mean '{os.path.join(locator, inside)}'?"
    missing = "expected a folder with corpus.jsonl or SKILL.md, found a folder without them"
    raise SourceError(f"{locator}: {missing}{advice}")


def _detect_command(locator: str) -> str:
    """Return the reader of MCP servers, if the locator is a command line that can run.

    Raises:
        SourceError: if no program on PATH has the name of its first word.
    """
    words = _split_command(locator)
    if words and shutil.which(words[0]):
        return "mcp"
    if len(words) == 1 and (os.sep in locator or Path(locator).suffix):
        advice = name_nearest(
            Path(locator).name, _list_names(Path(os.path.expanduser(locator)).parent), "Check its path."
        )
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
        what = "it is empty" if document is None else f"it holds only {describe_type(document)}"
        raise SourceError(f"{path}: this file describes no tools: {what}. See  toolscout add --help")
    if isinstance(document, Mapping):
        if "openapi" in document or "swagger" in document:
            return "openapi"
        return _detect_object(path, document)
    return "schemas"


def _detect_object(path: Path, document: Mapping[str, Any]) -> str:
    """Return the reader of a JSON or YAML object that is no OpenAPI document.

    Raises:
        SourceError: if it is the manifest of an npm package.
    """
    from toolscout.sources.agents import is_card

    servers = (document.get(key) for key in ("servers", "mcp"))
    if "mcpServers" in document or any(isinstance(value, Mapping) for value in servers):
        return "mcp"
    if "name" in document and "version" in document and _MANIFEST_KEYS & document.keys():
        raise SourceError(f"{path}: the manifest of a package describes no tools. See  toolscout add --help")
    return "agents" if is_card(document) else "schemas"


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
