"""Tells which sources are files of the user, whose descriptions can be edited."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

from toolscout.errors import SourceError
from toolscout.sources.documents import split_server
from toolscout.sources.mcp import plan_servers
from toolscout.sources.mcp_config import Server, split_project

__all__ = ["is_editable"]

INSTALLED_FOLDERS: Final = {"node_modules", "site-packages", "dist-packages"}
SCRIPT_ENDINGS: Final = (".py", ".js", ".mjs", ".cjs", ".ts")


def is_editable(locator: str, kind: str, name: str | None, source: str) -> bool:
    """Tell whether the texts of a source are in a file that is no installed package.

    An MCP server is, if its command names a script. Its source in a configuration file is `source`.

    Args:
        locator: where the source was read.
        kind: name of the reader.
        name: of the source, as the user chose it.
        source: the name of the source.
    """
    if kind == "python":
        return _is_own_module(locator.removeprefix("py:").partition(":")[0])
    if kind == "mcp":
        return _runs_own_script(locator, name, source)
    path, _ = split_project(split_server(locator)[0])
    return _is_own_file(str(path))


def _is_own_module(module: str) -> bool:
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return False
    try:
        spec = importlib.util.find_spec(top)  # imports nothing, since there is no parent
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None and _is_own_file(spec.origin)


def _runs_own_script(locator: str, name: str | None, source: str) -> bool:
    try:
        server = plan_servers(locator, name).get(source)
    except (SourceError, OSError):  # a file that is gone
        return False
    if not isinstance(server, Server):
        return False
    folder = server.cwd or str(server.folder)
    words = [word for word in (server.command, *server.args) if word.endswith(SCRIPT_ENDINGS)]
    return any(_is_own_file(str(Path(folder, word))) for word in words)


def _is_own_file(path: str) -> bool:
    try:
        return os.path.exists(path) and not INSTALLED_FOLDERS.intersection(Path(path).parts)
    except ValueError:  # a locator that is no path
        return False
