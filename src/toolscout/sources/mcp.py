"""Reads tools from MCP servers, several at once. A broken server is named and does not affect the others."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from toolscout.errors import BadEntry, SourceError, require
from toolscout.location import Home
from toolscout.settings import Settings
from toolscout.sources.clients import Entry, read_configuration
from toolscout.sources.mcp_config import (
    Server,
    discover,
    load_entries,
    parse_server,
    server_from_locator,
    split_project,
)
from toolscout.sources.mcp_oauth import PersonRequired, has_terminal
from toolscout.sources.mcp_session import McpConnection, SignInRequired, connect
from toolscout.sources.mcp_skills import ListedSkill, build_listed_skill, name_by_path, name_skill
from toolscout.sources.own_gateway import find_own_gateways
from toolscout.sources.reading import Problem, RawTool, Reading, as_object, build_tool, collect, report, source_name
from toolscout.sources.sandbox.servers import Sandbox, find_sandbox, read_sandboxes
from toolscout.types import Hints, Tool

if TYPE_CHECKING:
    import anyio

__all__ = [
    "PAGE",
    "TASK_ONLY",
    "ListedTools",
    "McpConnection",
    "Server",
    "SignInRequired",
    "connect",
    "discover",
    "has_moved",
    "load_entries",
    "parse_server",
    "read",
    "server_from_locator",
]

_log: Final = logging.getLogger("toolscout.sources.mcp")
MAX_SERVERS_AT_ONCE: Final = 16
MAX_SERVERS_NAMED: Final = 3  # of those that have not answered yet
NO_SANDBOXES: Final[Mapping[str, Sandbox]] = {}
REQUIRES_KEYS: Final = ("toolscout/depends_on", "depends_on")  # of `_meta`
CONFIGURATION_SUFFIXES: Final = frozenset({".json", ".jsonc", ".toml", ".yaml", ".yml"})
TASK_ONLY: Final = "task_only"  # key in `Tool.meta`
PAGE: Final = "ui"  # key in `Tool.meta`, and in `_meta` of a tool


class ListedTools(NamedTuple):
    """The tools of a server as it sent them, its name and version (`about`), and why tools may be missing (`fault`)."""

    tools: list[Any]
    about: Mapping[str, Any]
    fault: str = ""


def read(locator: str, *, name: str | None, settings: Settings, only: frozenset[str] = frozenset()) -> list[Reading]:
    """Read the tools of every server behind a configuration file, a URL or a command line. Returns one Reading each.

    At most 16 servers are read at once, each within its own timeout, in a thread with its own event loop. With `only`
    just these sources are read.

    Raises:
        SourceError: if the locator names no server.
        MissingExtra: without the extra `mcp`.
    """
    require("mcp", "mcp")
    import anyio
    from anyio.from_thread import start_blocking_portal

    plans = plan_servers(locator, name, read_sandboxes(settings.home), settings.place)
    if only:
        plans = {source: server for source, server in plans.items() if source in only}
    outcomes: dict[str, ListedTools | SourceError] = {}
    to_read = [source for source, plan in plans.items() if isinstance(plan, Server)]
    can_sign_in = has_terminal()

    async def read_one(source: str, server: Server, limiter: anyio.CapacityLimiter) -> None:
        """List the tools of one server, and keep them or the error under its source."""
        try:
            async with limiter, connect(server, settings=settings, person=can_sign_in) as connection:
                tools = await connection.list_tools(settings.max_tools)
                outcomes[source] = ListedTools(tools, connection.about, connection.list_fault)
        except SourceError as error:
            outcomes.setdefault(source, error)  # an error at the end of the session does not discard the tools
        _report_unread(to_read, outcomes)

    async def read_all() -> None:
        _report_unread(to_read, outcomes)
        limiter = anyio.CapacityLimiter(MAX_SERVERS_AT_ONCE)
        async with anyio.create_task_group() as group:
            for source, server in plans.items():
                if isinstance(server, Server):  # not a Reading, which says why there is none to read
                    group.start_soon(read_one, source, server, limiter)

    with start_blocking_portal() as portal:
        portal.call(read_all)
    return [
        build_reading(source, server, outcomes[source]) if isinstance(server, Server) else server
        for source, server in plans.items()
    ]


def _report_unread(to_read: Sequence[str], outcomes: Mapping[str, object]) -> None:
    """Name the servers that have not answered yet, for whoever waits."""
    unread = [source for source in to_read if source not in outcomes]
    if unread:
        more = f" and {len(unread) - MAX_SERVERS_NAMED} more" if len(unread) > MAX_SERVERS_NAMED else ""
        names = ", ".join(unread[:MAX_SERVERS_NAMED])
        report(f"reading {names}{more}", len(to_read) - len(unread), len(to_read))


def plan_servers(
    locator: str,
    name: str | None,
    sandboxes: Mapping[str, Sandbox] = NO_SANDBOXES,
    home: Home | None = None,
) -> dict[str, Server | Reading]:
    """Map each source name to the server to read, or to the Reading of one that is disabled or invalid.

    Args:
        locator: a configuration file, a URL or a command line.
        name: of the source, or a prefix for several. None: each has the name of its entry.
        sandboxes: as `read_sandboxes` returns them.
        home: whose own gateway is left out of a configuration file, with a warning. None: leave out nothing.

    Raises SourceError if the locator names no server.
    """
    path = Path(os.path.expanduser(locator))
    if not _is_file(split_project(locator)[0]):
        server = server_from_locator(locator)
        source = name or source_name(server.name)
        return {source: _put_in_sandbox(server, source, sandboxes)}
    entries = load_entries(path)
    if not entries:
        raise SourceError(f"{path}: expected at least one server, found none: add it there")
    if home is not None:
        entries = _leave_out_gateway(path, entries, home)
    plans: dict[str, Server | Reading] = {}
    titles: dict[str, str] = {}  # source → the name of its entry in the file
    for title, entry in entries.items():
        preferred = source_name(title)
        if name is not None:
            preferred = name if len(entries) == 1 else f"{name}-{preferred}"
        source = next(candidate for candidate in _number_names(preferred) if candidate not in plans)
        titles[source] = title
        if source == preferred:
            plans[source] = _plan_server(path, title, entry, source, sandboxes)
        else:
            first = titles[preferred]
            message = f"{title} and {first!r} would both become the source {preferred!r}. Rename one of them."
            plans[source] = Reading(source=source, kind="mcp", state="error", message=message)
    return plans


def _plan_server(
    path: Path, title: str, entry: Entry, source: str, sandboxes: Mapping[str, Sandbox]
) -> Server | Reading:
    """Return the server of one entry of a file, or the Reading of one that is disabled or invalid."""
    try:
        server = parse_server(title, entry, path)
    except SourceError as error:
        return Reading(source=source, kind="mcp", state="error", message=f"{title}: {error}")
    if server.disabled:
        message = f"{title} is disabled in {path}: enable it there to use its tools"
        return Reading(source=source, kind="mcp", state="disabled", message=message)
    return _put_in_sandbox(server, source, sandboxes)


def has_moved(source: str, old_locator: str, locator: str, name: str | None) -> bool:
    """Return whether a server moved from one configuration file to another.

    It has moved if the old file is gone, no longer has the server, or has it with the same entry as the new file: a
    copy, made before the gateway takes the place of the servers in the old file.

    Args:
        source: the name of the server's source.
        old_locator: of the file from which the source was read.
        locator: of the file from which it is read now.
        name: of both, as in `plan_servers`.
    """
    old_file, file = split_project(old_locator)[0], split_project(locator)[0]
    is_configuration = old_file.suffix in CONFIGURATION_SUFFIXES and os.path.isdir(old_file.parent)
    if not (is_configuration and _is_file(file)):  # a URL or a command line
        return False
    if not _is_file(old_file):
        return True
    try:
        old_servers = plan_servers(old_locator, name) if read_configuration(*split_project(old_locator)) else {}
        servers = plan_servers(locator, name)
    except SourceError:  # a file that cannot be read says nothing about its servers
        return False
    old_server, server = old_servers.get(source), servers.get(source)
    if old_server is None:
        return True
    if not (isinstance(old_server, Server) and isinstance(server, Server)):  # one is disabled or invalid
        return False
    return _drop_file(old_server) == _drop_file(server)


def _drop_file(server: Server) -> Server:
    """Return a server without the file that names it, to compare it with a server of another file."""
    return dataclasses.replace(server, origin="", folder=Path())


def _leave_out_gateway(path: Path, entries: dict[str, Entry], home: Home) -> dict[str, Entry]:
    """Return the entries without the gateway of this home, which would read its own tools.

    Raises:
        SourceError: if nothing else is left. An empty result would remove the sources that were read from the file.
    """
    own_gateways = find_own_gateways(entries, home)
    if not own_gateways:
        return entries
    if len(own_gateways) == len(entries):
        raise SourceError(
            f"{path}: it has only toolscout's own gateway. Write your servers into another file, "
            "and run  toolscout add  with that file"
        )
    _log.warning("toolscout: %s: toolscout's own gateway is left out", path)
    return {title: entry for title, entry in entries.items() if title not in own_gateways}


def _put_in_sandbox(server: Server, source: str, sandboxes: Mapping[str, Sandbox]) -> Server:
    """Return the server with the sandbox that the home has for it. A server at a URL has none."""
    sandbox = find_sandbox(sandboxes, source) if server.transport == "stdio" else None
    return dataclasses.replace(server, sandbox=sandbox)


def _number_names(name: str) -> Iterator[str]:
    """Yield a name, then the name with -2, -3 and so on, without end."""
    yield name
    for number in itertools.count(2):
        yield f"{name}-{number}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a locator that is no path: too long, or with a zero byte
        return False


def build_reading(source: str, server: Server, outcome: ListedTools | SourceError) -> Reading:
    """Build the Reading of one server from its raw tools, or from the error that it gave instead."""
    if isinstance(outcome, SourceError):
        awaits_person = isinstance(outcome, PersonRequired)
        message = f"{source}: {str(outcome).removeprefix(f'{server.name}: ')}"
        return Reading(source=source, kind="mcp", state="error", message=message, awaits_person=awaits_person)
    listed, about, fault = outcome
    permitted = [tool for tool in listed if server.permits(tool.get("name") if isinstance(tool, Mapping) else tool)]
    tool_names = Counter(str(tool.get("name")) for tool in permitted if isinstance(tool, Mapping))
    skill_names = Counter(name_skill(tool.uri) for tool in permitted if isinstance(tool, ListedSkill))
    build = partial(_build_entry, source, server, tool_names.keys(), tool_names + skill_names)
    entries = ((_name_entry(tool, number), partial(build, tool)) for number, tool in enumerate(permitted, 1))
    problems = [Problem("list of tools", fault)] if fault else []
    reading = collect(source, "mcp", entries, problems=problems)
    # The version is in this message for people, and in no tool, so a new version changes no tool.
    message = " ".join(str(about[key]) for key in ("name", "version") if about.get(key))[:200]
    n_left_out = len(listed) - len(permitted)
    if n_left_out:
        message += f"; its configuration leaves out {n_left_out} of {len(listed)} tools"
    return msgspec.structs.replace(reading, message=message)


def _name_entry(tool: object, number: int) -> str:
    """Name a tool or a skill in the list of problems: by its position in the server's list if it has no name."""
    if isinstance(tool, ListedSkill):
        return tool.uri[:200]
    name = tool.get("name") if isinstance(tool, Mapping) else None
    return name[:200] if isinstance(name, str) and name.strip() else f"tool {number}"


def _read_requires(meta: object) -> list[str]:
    """Return the prerequisites that the `_meta` of a tool names. A value that is no list of names is ignored."""
    for key in REQUIRES_KEYS:
        names = as_object(meta).get(key)
        if isinstance(names, list):
            return [name for name in names if isinstance(name, str)]
    return []


def _read_execution(execution: object) -> dict[str, object]:
    """Return what `Tool.meta` gets if a tool runs only as a task, which the protocol 2025-11-25 can say."""
    is_task = isinstance(execution, Mapping) and execution.get("taskSupport") == "required"
    return {TASK_ONLY: True} if is_task else {}


def _read_page(meta: object) -> dict[str, Any]:
    """Return what `Tool.meta` gets for the page that an app shows for a tool (MCP Apps)."""
    if not isinstance(meta, Mapping):
        return {}
    page = meta.get(PAGE)
    uri = meta.get("ui/resourceUri")
    if page is None and isinstance(uri, str):  # as older servers say it
        page = {"resourceUri": uri}
    return {PAGE: dict(page)} if isinstance(page, Mapping) else {}


def _build_entry(source: str, server: Server, tools: Collection[str], counts: Mapping[str, int], raw: object) -> Tool:
    """Build the record of a listed tool or skill. A skill whose name is not unique has its path as id.

    `tools` are the names of the source's tools. `counts` maps a name to how many tools and skills have it.
    """
    if not isinstance(raw, ListedSkill):
        return _build_tool(source, server, raw)
    is_unique = counts[name_skill(raw.uri)] == 1
    identity = "" if is_unique else name_by_path(raw.uri)
    return build_listed_skill(source, raw, tools, identity)


def _build_tool(source: str, server: Server, raw: object) -> Tool:
    """Build a tool from the object that a server lists. What is optional and has the wrong type is left out."""
    if not isinstance(raw, Mapping):
        raise BadEntry("expected an object with a name and an inputSchema, found something else")
    schema = raw.get("inputSchema")
    if schema is None:
        schema = {"type": "object"}  # as of a tool without arguments
    if not isinstance(schema, Mapping):
        raise BadEntry("expected a JSON Schema object as inputSchema, found something else")
    annotations = as_object(raw.get("annotations"))
    hints = [annotations.get(key) for key in ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")]
    title = raw.get("title") or annotations.get("title")
    returns = raw.get("outputSchema")
    fields = RawTool(
        id=raw.get("name"),
        description=raw.get("description"),
        parameters=schema,
        path=(server.name,),
        returns=returns if isinstance(returns, Mapping) else None,
        hints=Hints(*(hint if isinstance(hint, bool) else None for hint in hints)),
        callable=True,
        meta={
            **({"title": title} if isinstance(title, str) else {}),
            **_read_execution(raw.get("execution")),
            **_read_page(raw.get("_meta")),
        },
        requires=_read_requires(raw.get("_meta")),
    )
    return build_tool(source, fields)
