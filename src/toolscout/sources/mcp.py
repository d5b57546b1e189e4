"""Reads tools from MCP servers, several at once. A broken server is named and does not affect the others."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolscout.errors import BadEntry, SourceError, require
from toolscout.settings import Settings
from toolscout.sources.mcp_config import Server, discover, load_entries, parse_server, server_from_locator
from toolscout.sources.mcp_oauth import PersonRequired, has_terminal
from toolscout.sources.mcp_session import Connection, SignInRequired, connect
from toolscout.sources.reading import RawTool, Reading, build_tool, collect, source_name
from toolscout.sources.sandbox.servers import Sandbox, find_sandbox, read_sandboxes
from toolscout.types import Hints, Tool

if TYPE_CHECKING:
    import anyio

__all__ = [
    "TASK_ONLY",
    "Connection",
    "Server",
    "SignInRequired",
    "connect",
    "discover",
    "load_entries",
    "parse_server",
    "read",
    "server_from_locator",
]

MAX_SERVERS_AT_ONCE: Final = 16
NO_SANDBOXES: Final[Mapping[str, Sandbox]] = {}
REQUIRES_KEYS: Final = ("toolscout/depends_on", "depends_on")  # of `_meta`
TASK_ONLY: Final = "task_only"  # key in `Tool.meta`
Outcome = tuple[list[Any], Mapping[str, Any]]  # raw tools; name and version of the server


def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Read the tools of every server behind a configuration file, a URL or a command line. Returns one Reading each.

    At most 16 servers are read at once, each within its own timeout, in a thread with its own event loop.

    Raises:
        SourceError: if the locator names no server.
        MissingExtra: without the extra `mcp`.
    """
    require("mcp", "mcp")
    import anyio
    from anyio.from_thread import start_blocking_portal

    plans = plan_servers(locator, name, read_sandboxes(settings.home))
    outcomes: dict[str, Outcome | SourceError] = {}
    person = has_terminal()

    async def read_one(source: str, server: Server, turns: anyio.CapacityLimiter) -> None:
        try:
            async with turns, connect(server, settings=settings, person=person) as connection:
                outcomes[source] = await connection.list_tools(settings.max_tools), connection.about
        except SourceError as error:
            outcomes.setdefault(source, error)  # an error at the end of the session does not discard the tools

    async def read_all() -> None:
        turns = anyio.CapacityLimiter(MAX_SERVERS_AT_ONCE)
        async with anyio.create_task_group() as group:
            for source, server in plans.items():
                if isinstance(server, Server):
                    group.start_soon(read_one, source, server, turns)

    with start_blocking_portal() as portal:
        portal.call(read_all)
    return [
        build_reading(source, server, outcomes[source]) if isinstance(server, Server) else server
        for source, server in plans.items()
    ]


def plan_servers(
    locator: str, name: str | None, sandboxes: Mapping[str, Sandbox] = NO_SANDBOXES
) -> dict[str, Server | Reading]:
    """Map each source name to the server to read, or to the Reading of one that is disabled or invalid.

    Args:
        locator: a configuration file, a URL or a command line.
        name: of the source, or a prefix for several. None: each has the name of its entry.
        sandboxes: as `read_sandboxes` returns them.

    Raises:
        SourceError: if the locator names no server.
    """
    path = Path(os.path.expanduser(locator))
    if not _is_file(path):
        server = server_from_locator(locator)
        source = name or source_name(server.name)
        return {source: _put_in_sandbox(server, source, sandboxes)}
    entries = load_entries(path)
    if not entries:
        raise SourceError(f"{path}: expected at least one server, found none: add it there")
    plans: dict[str, Server | Reading] = {}
    owners: dict[str, str] = {}
    for title, entry in entries.items():
        preferred = source_name(title)
        if name is not None:
            preferred = name if len(entries) == 1 else f"{name}-{preferred}"
        source = next(free for free in _number_names(preferred) if free not in plans)
        if source != preferred:
            owner = owners[preferred]
            message = f"{title} and {owner!r} would both become the source {preferred!r}. Rename one of them."
            plans[source] = Reading(source=source, kind="mcp", state="error", message=message)
            continue
        owners[source] = title
        try:
            server = parse_server(title, entry, path)
        except SourceError as error:
            plans[source] = Reading(source=source, kind="mcp", state="error", message=f"{title}: {error}")
            continue
        plans[source] = _put_in_sandbox(server, source, sandboxes)
        if server.disabled:
            message = f"{title} is disabled in {path}: enable it there to use its tools"
            plans[source] = Reading(source=source, kind="mcp", state="disabled", message=message)
    return plans


def _put_in_sandbox(server: Server, source: str, sandboxes: Mapping[str, Sandbox]) -> Server:
    """Return the server with the sandbox that the home has for it. A server at a URL has none."""
    sandbox = find_sandbox(sandboxes, source) if server.transport == "stdio" else None
    return dataclasses.replace(server, sandbox=sandbox)


def _number_names(name: str) -> Iterator[str]:
    yield name
    for number in itertools.count(2):
        yield f"{name}-{number}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def build_reading(source: str, server: Server, outcome: Outcome | SourceError) -> Reading:
    """Build the Reading of one server from its raw tools, or from the error that it gave instead."""
    if isinstance(outcome, SourceError):
        awaits_person = isinstance(outcome, PersonRequired)
        message = f"{source}: {str(outcome).removeprefix(f'{server.name}: ')}"
        return Reading(source=source, kind="mcp", state="error", message=message, awaits_person=awaits_person)
    raw, about = outcome
    build = partial(_build_tool, source, server)
    reading = collect(source, "mcp", ((_name_entry(tool, i), partial(build, tool)) for i, tool in enumerate(raw, 1)))
    who = " ".join(
        str(about[key]) for key in ("name", "version") if about.get(key)
    )  # shown to people; not part of a tool's identity
    return msgspec.structs.replace(reading, message=who[:200])


def _name_entry(tool: object, number: int) -> str:
    name = tool.get("name") if isinstance(tool, Mapping) else None
    return name[:200] if isinstance(name, str) and name.strip() else f"tool {number}"


def _read_requires(meta: object) -> list[str]:
    """Return the prerequisites that the `_meta` of a tool names. Values of another shape mean something else."""
    values = [meta[key] for key in REQUIRES_KEYS if key in meta] if isinstance(meta, Mapping) else []
    names = next((value for value in values if isinstance(value, list)), [])
    return [name for name in names if isinstance(name, str)]


def _read_execution(execution: object) -> dict[str, Any]:
    """Return in the form of `Tool.meta` that a tool runs only as a task, as the protocol 2025-11-25 can say."""
    is_task = isinstance(execution, Mapping) and execution.get("taskSupport") == "required"
    return {TASK_ONLY: True} if is_task else {}


def _build_tool(source: str, server: Server, raw: object) -> Tool:
    if not isinstance(raw, Mapping):
        raise BadEntry("expected an object with a name and an inputSchema, found something else")
    if not isinstance(raw.get("inputSchema"), Mapping):
        raise BadEntry("expected a JSON Schema object as inputSchema, found something else")
    notes = raw.get("annotations")
    notes = notes if isinstance(notes, Mapping) else {}
    hints = (notes.get(key) for key in ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"))
    title = raw.get("title") or notes.get("title")
    fields = RawTool(
        id=raw.get("name"),
        description=raw.get("description"),
        parameters=raw["inputSchema"],
        path=(server.name,),
        returns=raw["outputSchema"] if isinstance(raw.get("outputSchema"), Mapping) else None,
        hints=Hints(*(hint if isinstance(hint, bool) else None for hint in hints)),
        callable=True,
        meta={**({"title": title} if isinstance(title, str) else {}), **_read_execution(raw.get("execution"))},
        requires=_read_requires(raw.get("_meta")),
    )
    return build_tool(source, fields)
