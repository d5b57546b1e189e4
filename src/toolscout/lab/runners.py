"""Tools that are run for real while an agent is measured: functions of Python, and tools of MCP servers, if named."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from toolscout.config import Settings
from toolscout.errors import SourceError
from toolscout.sources import Reading
from toolscout.types import Tool

__all__ = ["MCP", "MOST_RESULT", "TYPICAL", "Python", "Rehearsed", "Runner"]

MOST_RESULT: Final = 4_000
TYPICAL: Final = '{"status": "ok", "items": [{"name": "one", "value": 3}]}'
SECONDS: Final = 20.0


class Runner(Protocol):
    """Runs tools for real.

    Attributes:
        name: what it runs tools of.
    """

    name: str

    def takes(self, tool: Tool) -> bool:
        """Whether this tool is run, not simulated."""
        ...

    def run(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """What came back, and whether it went well."""
        ...


class Rehearsed:
    """Takes what another runner takes and runs nothing: for estimates."""

    def __init__(self, runner: Runner) -> None:
        self.takes, self.name = runner.takes, runner.name

    def run(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Something as long as a result may be."""
        return TYPICAL, True


class Python:
    """Runs functions of the given modules, each call in a process and an empty folder of its own.

    Only the modules that somebody named: a function may do anything that its user may.
    """

    def __init__(self, modules: Sequence[str], *, seconds: float = SECONDS) -> None:
        self.modules, self.seconds = tuple(modules), seconds
        self.name = f"the modules {', '.join(modules)}"

    def takes(self, tool: Tool) -> bool:
        """Whether it is a function, not a method, of one of the modules."""
        module = str(tool.meta.get("module", ""))
        inside = any(module == each or module.startswith(f"{each}.") for each in self.modules)
        return inside and "." not in str(tool.meta.get("qualname", "."))

    def run(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """The result as JSON where it can be, else as Python writes it; an exception is a failed call."""
        # Isolated, the child sees neither the folder it is in nor the environment: the places come as data, whole.
        places = [os.path.abspath(place) for place in sys.path]
        asked = json.dumps([places, tool.meta["module"], tool.meta["qualname"], dict(arguments)])
        with tempfile.TemporaryDirectory() as folder:
            try:
                done = subprocess.run(
                    [sys.executable, "-I", "-c", _CHILD],
                    input=asked,
                    capture_output=True,
                    text=True,
                    timeout=self.seconds,
                    cwd=folder,
                )
            except subprocess.TimeoutExpired:
                return f"no answer within {self.seconds:g} seconds", False
        said = done.stdout if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1]
        return said.strip()[:MOST_RESULT], done.returncode == 0


_CHILD: Final = """
import importlib, inspect, json, sys
sys.path[:], module, name, arguments = json.load(sys.stdin)
function = getattr(importlib.import_module(module), name)
try:
    known = inspect.signature(function).parameters.items()
except ValueError:  # written in C, and silent: the order of the arguments must do
    first = list(arguments)
else:
    first = [each for each, told in known if told.kind is told.POSITIONAL_ONLY and each in arguments]
value = function(*[arguments.pop(each) for each in first], **arguments)
json.dump(value, sys.stdout, default=repr)
"""


class MCP:
    """Calls tools of the given servers, each call in a session of its own."""

    def __init__(self, locators: Sequence[str], settings: Settings) -> None:
        """Take what `add` takes for servers of MCP; their names must be those that the tools' ids begin with.

        Raises:
            SourceError: for a locator that is none.
        """
        from toolscout.sources import mcp

        planned = {source: server for locator in locators for source, server in mcp.plan(locator, None).items()}
        self.settings = settings
        self.name = f"the servers {', '.join(locators)}"
        self.servers = {source: server for source, server in planned.items() if not isinstance(server, Reading)}

    def takes(self, tool: Tool) -> bool:
        """Whether it is of one of the servers."""
        return tool.source in self.servers

    def run(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """The texts of the result; what the server calls an error is a failed call."""
        try:
            return asyncio.run(asyncio.wait_for(self._call(tool, arguments), self.settings.call_timeout))
        except asyncio.TimeoutError:
            return f"no answer within {self.settings.call_timeout:g} seconds", False
        except SourceError as error:
            return str(error)[:MOST_RESULT], False

    async def _call(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        from toolscout.sources.mcp_session import connect

        async with connect(self.servers[tool.source], settings=self.settings) as connection:
            result: Any = await connection.client.call_tool(tool.name, dict(arguments))
        texts = [part.text for part in result.content if part.type == "text"]
        return "\n".join(texts)[:MOST_RESULT], not result.is_error
