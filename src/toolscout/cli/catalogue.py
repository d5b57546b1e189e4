"""The commands `add`, `sync`, `list`, `show`, `remove`, `hide`, `enable` and `disable`."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import click
import msgspec

from toolscout.cli.access import show_findings, show_waiting
from toolscout.cli.output import (
    Say,
    clip,
    count_things,
    echo,
    encoder_option,
    escape_line,
    format_changes,
    json_option,
    model_option,
    print_json,
    print_table,
    progress,
    ray_option,
    report_failures,
    suggest_names,
    with_scout,
)
from toolscout.errors import NotFound, SourceError, name_nearest
from toolscout.home.catalogue.store import CatalogueSource, Changes
from toolscout.indexes.engine import EngineInUse
from toolscout.scout import Scout
from toolscout.sources import DOCUMENT_KINDS, strip_locator
from toolscout.sources.reading import listen
from toolscout.trust import trusted_folders
from toolscout.trust.redaction import redact
from toolscout.types import KINDS, Kind, Tool

TOOLS_PER_TABLE = 500
MAX_NAMES_SHOWN = 12


@click.command("add")
@click.argument("locators", nargs=-1, metavar="SOURCE...")
@click.option("--name", help="Name of the source. The ids of its tools begin with it.")
@click.option(
    "--kind", help="Reader: mcp, openapi, schemas, python, folder, skills, agents or a plug-in. Default: detected."
)
@click.option("--server", metavar="URL", default="", help="Where the operations of an OpenAPI document are called.")
@click.option("--discover", is_flag=True, help="Look for MCP configurations in the usual places.")
@model_option
@encoder_option
@ray_option
@json_option
@with_scout
def add_command(
    scout: Scout,
    locators: tuple[str, ...],
    name: str | None,
    kind: str | None,
    server: str,
    discover: bool,
    as_json: bool,
) -> int:
    """Read SOURCEs of tools into the catalogue.

    A SOURCE is an mcpServers JSON file, the URL or the command of an MCP server, an OpenAPI document (file or URL),
    a .json or .jsonl file of function schemas, py:module[:name] (this imports the module), py:stdlib, a dataset
    folder, a folder of skills (SKILL.md), an A2A agent card (file or URL), an MCP bundle (.mcpb), or
    registry:NAME[@VERSION] for a server in the MCP registry.
    """
    _require_sources(locators, discover)
    all_locators = [*locators, *(_discover_configurations(scout) if discover else ())]
    for option, value in (("--name", name), ("--server", server)):
        if value and len(all_locators) != 1:
            raise click.UsageError(f"{option} goes with one SOURCE, found {len(all_locators)}")
    changes: list[Changes] = []
    with progress("reading") as say, listen(say):
        for number, locator in enumerate(all_locators):
            say(f"reading {redact(locator)}", number, len(all_locators) if len(all_locators) > 1 else 0)
            try:
                changes += scout.add(locator, name=name, kind=kind, server=server, embed=False)
            except SourceError as error:
                message = strip_locator(str(error), locator)
                changes.append(Changes(source=name or redact(locator), state="error", message=message))
        notes = _index_changes(scout, changes, say)
    return _report_changes(scout, changes, notes, as_json)


def _require_sources(locators: Sequence[str], discover: bool) -> None:
    """Raise a UsageError if no source is named, or an empty text: an empty path would be the working directory."""
    if not locators and not discover:
        raise click.UsageError("expected a SOURCE or --discover, found neither")
    if not all(locator.strip() for locator in locators):
        raise click.UsageError("expected a file, a URL or a command as SOURCE, found an empty text")


def _discover_configurations(scout: Scout) -> list[str]:
    """Return the MCP configurations of this machine, and print them. Folders that nobody trusted are left out."""
    from toolscout.sources.mcp import discover

    trusted = functools.partial(trusted_folders.is_configuration_trusted, scout.settings.home)
    paths = [str(path) for path in discover(trusted=trusted, catalogue=scout.settings.place)]
    echo("\n".join(["found:", *paths]) if paths else "found no MCP configuration", err=True)
    return paths


@click.command("sync")
@click.argument("names", nargs=-1, metavar="[SOURCE]...")
@model_option
@encoder_option
@ray_option
@json_option
@with_scout
def sync_command(scout: Scout, names: tuple[str, ...], as_json: bool) -> int:
    """Read the SOURCEs, or all sources, again, and update only what changed."""
    changes: list[Changes] = []
    total = len(names or scout.sources())
    with progress("reading") as say, listen(say):
        with suggest_names(scout, *names, kind="source"):
            for change in scout.sync(names):
                changes.append(change)
                say(f"read {change.source}", len(changes), max(total, len(changes)))
        notes = _index_changes(scout, changes, say)
    return _report_changes(scout, changes, notes, as_json)


def _index_changes(scout: Scout, changes: Sequence[Changes], say: Say) -> list[str]:
    """Compute the vectors of tools that changed. Returns a note if another process will index them; else none."""
    if any(change.any for change in changes):
        say("indexing")
    try:
        scout.embed(progress=functools.partial(_say_indexed, say))
    except EngineInUse as error:
        return [f"{error} It takes over these changes with its next search."]
    return []


def _say_indexed(say: Say, done: int, total: int) -> None:
    """Say how many tools an index has read. What follows on the last one compares all of them, and has no number."""
    if done < total:
        say("indexing tools", done, total)
    else:
        say(f"comparing {total:,} tools")


def _report_changes(scout: Scout, changes: Sequence[Changes], notes: Sequence[str], as_json: bool) -> int:
    """Print the changes of sources. Returns the exit code."""
    if as_json:
        print_json({"sources": changes, "generation": scout.store.generation()})
        return report_failures(changes)
    sources = scout.sources()
    n_waiting = {source.name: source.waiting for source in sources}
    for change in changes:
        if change.state != "error":  # `report_failures` says why
            echo(format_changes(change, n_waiting.get(change.source, 0)))
    if any(change.state != "error" for change in changes) or not changes:
        echo(f"{count_things(sum(source.tools for source in sources), 'tool')} in the catalogue")
    for sentence in [*notes, *_describe_failed_sources(scout, changes), *scout.advice()]:
        echo(escape_line(f"note: {sentence}"))
    for change in changes:
        if change.any:
            show_findings(_load_tools(scout, change.source, kind=None))
    return report_failures(changes)


def _describe_failed_sources(scout: Scout, changes: Sequence[Changes]) -> list[str]:
    """Say of sources that could not be read now whether the catalogue has tools of them, and what to do."""
    failed_sources = {change.source for change in changes if change.state == "error"}
    # a source that another file has already is not in state error: its name is taken, and a sync cannot help
    kept_sources = [source for source in scout.sources() if source.name in failed_sources and source.state == "error"]
    sentences: list[str] = []
    for names, fact in (
        ([source.name for source in kept_sources if source.tools], "the tools that were read before stay"),
        ([source.name for source in kept_sources if not source.tools], "the catalogue has no tools of it yet"),
    ):
        if names:
            command = f"toolscout sync {' '.join(names[:MAX_NAMES_SHOWN])}"  # which reads these again, and no other
            advice = f"correct what is wrong, then run  {command}  (or  toolscout remove)"
            sentences.append(f"{_join_names(names)}: {fact}; {advice}")
    return sentences


@click.command("list")
@click.argument("source", required=False)
@click.option("--tools", is_flag=True, help="List all tools instead of the sources.")
@click.option("--kind", type=click.Choice(KINDS), help="List only tools, only skills, or only agents.")
@json_option
@with_scout
def list_command(scout: Scout, source: str | None, tools: bool, kind: Kind | None, as_json: bool) -> None:
    """List the sources, or the tools of one SOURCE."""
    sources = scout.sources()
    if source is None and not tools and kind is None:
        _print_sources(scout, sources, as_json)
        return
    if source is not None:
        _require_source(scout, source, [known.name for known in sources])
    listed = _load_tools(scout, source, kind)
    if as_json:
        fields = ("id", "name", "kind", "path", "description")
        print_json([{field: getattr(tool, field) for field in fields} for tool in listed])
        return
    for start in range(0, len(listed), TOOLS_PER_TABLE):
        _print_tools(listed[start : start + TOOLS_PER_TABLE])
    _print_waiting_ids(scout, source, kind)


def _require_source(scout: Scout, name: str, known: Sequence[str]) -> None:
    """Raise NotFound if no source is called `name`. The message says if a tool is, or names the nearest source."""
    if name in known:
        return
    if name in scout.store.catalogue().ids:
        raise NotFound(f"{name} is a tool, not a source. See it with  toolscout show {name}")
    advice = name_nearest(name, known, f"The sources are: {_join_names(list(known))}")
    raise NotFound(f"expected the name of a source, found {name!r}. {advice}")


def _print_waiting_ids(scout: Scout, source: str | None, kind: Kind | None) -> None:
    """Print the ids of the definitions that wait for approval, of a source or of all; searches do not return them."""
    ids = [
        waiting.id
        for waiting in scout.waiting()
        if source in (None, waiting.tool.source) and kind in (None, waiting.tool.kind)
    ]
    if ids:
        waits = count_things(len(ids), "definition waits", "definitions wait")
        echo(escape_line(f"{waits} for approval: {_join_names(ids)}. See them with  toolscout approve"))


def _load_tools(scout: Scout, source: str | None, kind: Kind | None) -> list[Tool]:
    """Load the tools of a source and kind; None: of every source, of every kind."""
    ids = [id for id, _ in scout.store.page(source, limit=None)]
    return [tool for tool in scout.store.tools(ids) if kind in (None, tool.kind)]


def _join_names(names: list[str]) -> str:
    """Join the first names with commas, and say how many more there are. Without names: `none yet`."""
    and_more = f" and {len(names) - MAX_NAMES_SHOWN:,} more" if len(names) > MAX_NAMES_SHOWN else ""
    return ", ".join(names[:MAX_NAMES_SHOWN]) + and_more if names else "none yet"


def _print_sources(scout: Scout, sources: list[CatalogueSource], as_json: bool) -> None:
    origins = {origin.id: redact(origin.locator) for origin in scout.store.origins()}
    if as_json:
        print_json([{**msgspec.structs.asdict(source), "origin": origins[source.origin]} for source in sources])
        return
    if not sources:
        echo("The catalogue is empty. Add a source with  toolscout add SOURCE.")
        return
    print_table(
        [
            ("source", "left"),
            ("kind", "left"),
            ("tools", "right"),
            ("state", "left"),
            ("read", "left"),
            ("from", "wrap"),
        ],
        [
            (
                source.name,
                source.kind,
                f"{source.tools:,}",
                _describe_state(source),
                source.read_at[:16].replace("T", " "),
                origins[source.origin],
            )
            for source in sources
        ],
    )
    tools = count_things(sum(source.tools for source in sources), "tool")
    echo(f"{tools} in {count_things(len(sources), 'source')}")


def _describe_state(source: CatalogueSource) -> str:
    """Say whether a source was read, how many of its entries are bad, and how many definitions wait for approval."""
    state = source.state if source.enabled else "disabled"
    waits = "waits" if source.waiting == 1 else "wait"
    waiting = f", {source.waiting:,} {waits} for approval" if source.waiting else ""
    return state + (f", {source.problems:,} bad" if source.problems else "") + waiting


def _print_tools(tools: list[Tool]) -> None:
    print_table(
        [("tool", "id"), ("description", "wrap")],
        [(tool.id, clip(tool.description)) for tool in tools],
    )


@click.command("show")
@click.argument("tool_id", metavar="ID")
@json_option
@with_scout
def show_command(scout: Scout, tool_id: str, as_json: bool) -> None:
    """Show one tool by its ID, or the state and the bad entries of a source by its name."""
    sources = {source.name: source for source in scout.sources()}
    if tool_id in sources:
        _print_source(scout, sources[tool_id], as_json)
        return
    held_back = next((waiting for waiting in scout.waiting() if waiting.id == tool_id), None)
    if held_back is not None and not as_json:
        show_waiting(held_back)
        return
    with suggest_names(scout, tool_id):
        tool = scout.tool(tool_id) if held_back is None else held_back.tool
    if as_json:
        print_json(tool)
        return
    source = sources.get(tool.source)
    _print_tool(tool, is_document=source is None or source.kind in DOCUMENT_KINDS)


def _print_source(scout: Scout, source: CatalogueSource, as_json: bool) -> None:
    problems = scout.store.problems(source.name)
    if as_json:
        entries = [{"entry": entry, "message": text} for entry, text in problems]
        print_json({**msgspec.structs.asdict(source), "problems": entries})
        return
    tools = count_things(source.tools, "tool")
    echo(f"{source.name}: {source.kind}, {tools}, {_describe_state(source)}, read {source.read_at}")
    if source.message:
        echo(escape_line(source.message))
    for entry, text in problems:
        echo(escape_line(f"  {entry}: {text}"))


def _print_tool(tool: Tool, *, is_document: bool) -> None:
    """Print a tool. `is_document`: whether its source cannot name a Python function to run."""
    echo(f"{escape_line(tool.id)}\n{escape_line(' > '.join((*tool.path, tool.name)))}\n")
    echo(f"{tool.description or '(no description)'}\n")
    rows = _list_parameters(tool)
    if rows:
        print_table([("parameter", "left"), ("type", "left"), ("required", "left"), ("description", "wrap")], rows)
    hints = {name: value for name in tool.hints.__struct_fields__ if (value := getattr(tool.hints, name)) is not None}
    is_function = tool.kind == "tool" and bool(tool.meta.get("module")) and not is_document
    echo(
        f"callable: {'yes' if tool.callable else 'with --allow-python' if is_function else 'no'}"
        + "".join(f" · {name}: {value}" for name, value in hints.items())
    )
    echo(f"fingerprint: {tool.fingerprint}")
    show_findings([tool])


def _list_parameters(tool: Tool) -> list[tuple[str, str, str, str]]:
    """List the parameters: name, type, `yes` if it is required, description. What is malformed is left empty."""
    schema = tool.parameters or {}
    properties = schema.get("properties")
    required = schema.get("required")
    rows = []
    for name, property_schema in properties.items() if isinstance(properties, dict) else ():
        fields = property_schema if isinstance(property_schema, dict) else {}
        json_type = fields.get("type")
        types = json_type if isinstance(json_type, list) else [json_type] if isinstance(json_type, str) else []
        rows.append(
            (
                name,
                "|".join(map(str, types)),
                "yes" if isinstance(required, list) and name in required else "",
                clip(str(fields.get("description") or "")),
            )
        )
    return rows


@click.command("remove")
@click.argument("names", nargs=-1, required=True, metavar="ID...")
@with_scout
def remove_command(scout: Scout, names: tuple[str, ...]) -> None:
    """Remove sources (by name) and single tools (by id).

    A tool comes back at the next sync if its source still has it.
    """
    sources = [source.name for source in scout.sources() if source.name in names]
    with suggest_names(scout, *names):
        tools = count_things(scout.remove(names), "tool")
    sources_text = f"the source{'s' if len(sources) > 1 else ''} {_join_names(sources)} with " if sources else ""
    echo(escape_line(f"removed {sources_text}{tools}"))


@click.command("hide")
@click.argument("tool_ids", nargs=-1, metavar="[ID]...")
@click.option("--undo", is_flag=True, help="Show the tools again, and read their sources.")
@click.option("--list", "list_only", is_flag=True, help="List the hidden tools.")
@json_option
@with_scout
def hide_command(scout: Scout, tool_ids: tuple[str, ...], undo: bool, list_only: bool, as_json: bool) -> int:
    """Hide single tools for good: no sync brings them back.

    `remove` takes a tool out until the next sync, `disable` keeps a whole source out of the search.
    """
    if list_only == bool(tool_ids):
        raise click.UsageError("Name the tools by their ids, or use --list.")
    code = 0
    if undo:
        code = report_failures(scout.show(tool_ids))
    elif tool_ids:
        with suggest_names(scout, *tool_ids, kind="tool"):
            scout.hide(tool_ids)
    hidden = scout.store.hidden()
    if as_json:
        print_json({"hidden": hidden})
    elif list_only:
        echo("\n".join(map(escape_line, hidden)) or "no tool is hidden")
    else:
        outcome = "shown again" if undo else "hidden; show again with  toolscout hide --undo ID…"
        echo(f"{count_things(len(tool_ids), 'tool')} {outcome}")
    return code


@click.command("enable")
@click.argument("source")
@with_scout
def enable_command(scout: Scout, source: str) -> None:
    """Search SOURCE again."""
    with suggest_names(scout, source, kind="source"):
        scout.enable(source)
    echo(f"{source} is searched again")


@click.command("disable")
@click.argument("source")
@with_scout
def disable_command(scout: Scout, source: str) -> None:
    """Keep SOURCE in the catalogue, but do not search it."""
    with suggest_names(scout, source, kind="source"):
        scout.enable(source, False)
    echo(f"{source} is no longer searched")
