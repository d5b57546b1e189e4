"""Runners run tools for real while an agent is measured: Python functions, and tools of MCP servers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from toolscout.errors import SourceError
from toolscout.settings import Settings
from toolscout.sources import Reading
from toolscout.sources.sandbox.servers import read_sandboxes
from toolscout.types import Tool

__all__ = ["MAX_RESULT_CHARS", "MCP", "TYPICAL_RESULT", "DryRunner", "Python", "Runner"]

MAX_RESULT_CHARS: Final = 4_000
TYPICAL_RESULT: Final = '{"status": "ok", "items": [{"name": "one", "value": 3}]}'
PYTHON_CALL_TIMEOUT_S: Final = 20.0


class Runner(Protocol):
    """Runs tools for real.

    Attributes:
        name: the modules or servers of its tools.
    """

    name: str

    def takes(self, tool: Tool) -> bool:
        """Whether this tool is run, not simulated."""
        ...

    def run(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Call the tool; return the result, and whether the call succeeded."""
        ...


class DryRunner:
    """Takes the same tools as another runner but runs nothing, to estimate the cost."""

    def __init__(self, runner: Runner) -> None:
        self.takes, self.name = runner.takes, runner.name

    def run(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Return a result of typical length and True, without calling the tool."""
        return TYPICAL_RESULT, True


class Python:
    """Runs functions of the given modules, each call in its own process and empty folder.

    A function may do anything that the user may, so only modules that the user named are run.
    """

    def __init__(self, modules: Sequence[str], *, seconds: float = PYTHON_CALL_TIMEOUT_S) -> None:
        self.modules, self.seconds = tuple(modules), seconds
        self.name = f"the modules {', '.join(modules)}"

    def takes(self, tool: Tool) -> bool:
        """Whether it is a function, not a method, of one of the modules."""
        module = str(tool.meta.get("module", ""))
        inside = any(module == name or module.startswith(f"{name}.") for name in self.modules)
        return inside and "." not in str(tool.meta.get("qualname", "."))

    def run(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Call the function; return its result as JSON, or its repr. An exception is a failed call."""
        # The child is isolated from its folder and the environment, so it gets the absolute paths as data.
        paths = [os.path.abspath(path) for path in sys.path]
        all_arguments = {**arguments, **tool.meta.get("arguments", {})}  # with those that the source fixed
        request = json.dumps([paths, tool.meta["module"], tool.meta["qualname"], all_arguments])
        with tempfile.TemporaryDirectory() as folder:
            try:
                process = subprocess.run(
                    [sys.executable, "-I", "-c", _CHILD],
                    input=request,
                    capture_output=True,
                    text=True,
                    timeout=self.seconds,
                    cwd=folder,
                )
            except subprocess.TimeoutExpired:
                return f"no answer within {self.seconds:g} seconds", False
        succeeded = process.returncode == 0
        output = process.stdout if succeeded else (process.stderr.strip().splitlines() or ["failed"])[-1]
        return output.strip()[:MAX_RESULT_CHARS], succeeded


_CHILD: Final = """
import importlib, inspect, json, sys
sys.path[:], module, name, arguments = json.load(sys.stdin)
function = getattr(importlib.import_module(module), name)
try:
    parameters = inspect.signature(function).parameters.items()
except ValueError:  # written in C without a signature: pass all arguments by position
    positional = list(arguments)
else:
    only = [key for key, parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY]
    positional = [key for key in only if key in arguments]
value = function(*[arguments.pop(key) for key in positional], **arguments)
json.dump(value, sys.stdout, default=repr)
"""


class MCP:
    """Calls tools of the given MCP servers, each call in its own session."""

    def __init__(self, locators: Sequence[str], settings: Settings) -> None:
        """Plan the connections.

        Args:
            locators: MCP servers, as `add` takes them. Their names must be the sources of the tools.
            settings: timeouts.

        Raises:
            SourceError: for a locator that names no server.
        """
        from toolscout.sources import mcp

        plans = [mcp.plan_servers(locator, None, read_sandboxes(settings.home)) for locator in locators]
        planned = {source: server for plan in plans for source, server in plan.items()}
        self.settings = settings
        self.name = f"the servers {', '.join(locators)}"
        self.servers = {source: server for source, server in planned.items() if not isinstance(server, Reading)}

    def takes(self, tool: Tool) -> bool:
        """Whether the tool belongs to one of the servers."""
        return tool.source in self.servers

    def run(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Call the tool; return the texts of its result. An error of the server is a failed call."""
        try:
            return asyncio.run(asyncio.wait_for(self._call(tool, arguments), self.settings.call_timeout))
        except asyncio.TimeoutError:
            return f"no answer within {self.settings.call_timeout:g} seconds", False
        except SourceError as error:
            return str(error)[:MAX_RESULT_CHARS], False

    async def _call(self, tool: Tool, arguments: Mapping[str, object]) -> tuple[str, bool]:
        """Call a tool of a server in a session of its own.

        Returns its text, cut to `MAX_RESULT_CHARS`, and whether it went well.
        """
        from toolscout.sources.mcp_session import connect

        async with connect(self.servers[tool.source], settings=self.settings) as connection:
            result: Any = await connection.client.call_tool(tool.name, dict(arguments))
        texts = [part.text for part in result.content if part.type == "text"]
        return "\n".join(texts)[:MAX_RESULT_CHARS], not result.is_error
