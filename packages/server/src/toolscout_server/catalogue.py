"""Catalogue routes: sources, the tree of paths, lists and facets of tools, one tool; changes and approvals.

Operators add, sync and disable sources, and approve definitions that wait. Over HTTP only addresses can be added, and
tools given as JSON. Everything else that `toolscout add` takes reads files of this machine or starts programs on it.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Final

import msgspec

from toolscout.errors import NotFound, name_nearest
from toolscout.home.catalogue.approvals import describe_change
from toolscout.home.catalogue.store import Changes, Store, WaitingDefinition
from toolscout.scout import Scout
from toolscout.trust.policy import Caller
from toolscout.trust.redaction import redact
from toolscout.trust.screening import scan, spelled_out
from toolscout.types import Tool
from toolscout_server.service import ApiRequest, RequestRefused, Service, may_manage
from toolscout_server.shapes import (
    AddRequest,
    ApprovalsAnswer,
    ApprovalsRequest,
    Approved,
    ApproveRequest,
    ChangesAnswer,
    Enabled,
    EnableRequest,
    Facet,
    FacetsAnswer,
    FacetsRequest,
    Nothing,
    Row,
    SourceRow,
    SourcesAnswer,
    SyncRequest,
    ToolFilters,
    ToolRequest,
    ToolsAnswer,
    ToolsRequest,
    TreeAnswer,
    TreeRequest,
    WaitingRow,
)
from toolscout_server.view import MAX_ROW_DESCRIPTION_CHARS, CatalogueView, RowFilter

__all__ = [
    "add_source",
    "approve",
    "count_facets",
    "enable_source",
    "list_approvals",
    "list_sources",
    "list_tools",
    "read_tool",
    "read_tree",
    "require_visible",
    "sync_sources",
]

MAX_DIFF_LINES: Final = 600  # of one definition
_log: Final = logging.getLogger("toolscout.server")


def require_visible(view: CatalogueView, caller: Caller, *ids: str) -> None:
    """Check that the caller may see all these tools.

    Raises:
        NotFound: with the first id that they may not see. The message does not tell whether it exists.
    """
    for id in ids:
        if not view.sees(caller, id):
            raise _refuse_hidden(view, caller, id)


def _refuse_hidden(view: CatalogueView, caller: Caller, id: str) -> NotFound:
    """Build the error for an id that the caller may not see, or that there is not."""
    near = view.name_nearest_tool(caller, id, "Take one from a search.")
    return NotFound(f"expected the id of a tool that you may see, found {id!r:.200}. {near}")


def list_sources(request: ApiRequest[Nothing]) -> SourcesAnswer:
    """List the sources with tools for the caller. Their state is shown to callers who see everything."""
    view, caller = request.view, request.caller
    sources = request.scout.sources()
    if caller.rules is None or may_manage(caller):
        rows = [msgspec.convert(source, SourceRow, from_attributes=True) for source in sources]
        for row, source in zip(rows, sources, strict=True):
            row.state = source.state if source.enabled else "disabled"
    else:
        known = {source.name: (source.kind, source.read_at) for source in sources}
        _, _, nodes, _ = view.page_nodes(caller, key=None, offset=0, limit=len(view.rows))  # all sources
        rows = []
        for node in nodes:
            kind, read_at = known.get(node.name, ("", ""))
            rows.append(
                SourceRow(
                    node.name, kind, state="ok", message="", read_at=read_at, tools=node.tools, problems=0, waiting=0
                )
            )
    return SourcesAnswer(rows, view.generation)


def read_tree(request: ApiRequest[TreeRequest]) -> TreeAnswer:
    """Read the nodes directly below a node of the path tree."""
    parameters, view = request.parameters, request.view
    place, tools, nodes, total = view.page_nodes(request.caller, parameters.within, parameters.offset, parameters.limit)
    return TreeAnswer(list(place), tools, nodes, total, view.generation)


def list_tools(request: ApiRequest[ToolsRequest]) -> ToolsAnswer:
    """List a page of the tools below a node, or of the tools that contain some words.

    The view has only tools that are searched. Hidden, waiting and disabled ones are read from the store.
    """
    parameters, view = request.parameters, request.view
    _require_known_source(request, view)
    if parameters.state == "searched":
        only = RowFilter(parameters.within, parameters.text, parameters.source, parameters.kind, parameters.parent)
        rows, total = view.page_tools(request.caller, only, parameters.offset, parameters.limit)
    else:
        rows = _list_unsearched(request)
        total, rows = len(rows), rows[parameters.offset : parameters.offset + parameters.limit]
    return ToolsAnswer(rows, total, parameters.offset, view.generation)


def _require_known_source(request: ApiRequest[ToolFilters], view: CatalogueView) -> None:
    """Raise NotFound for a source that there is not. A source without visible tools exists only for managers."""
    name, caller = request.parameters.source, request.caller
    view.require_source(
        caller, name, [source.name for source in request.scout.sources()] if name and may_manage(caller) else ()
    )


def _list_unsearched(request: ApiRequest[ToolFilters]) -> list[Row]:
    """List the tools that are not searched, in one state, for a caller who may manage the catalogue; else none."""
    if not may_manage(request.caller):
        return []
    parameters = request.parameters
    words = (parameters.text or "").casefold().split()
    return [
        row
        for row in _read_unsearched(request.scout.store, parameters.state)
        if parameters.source in (None, row.id.partition("/")[0])
        and parameters.kind in (None, row.kind)
        and all(word in f"{row.id} {row.description}".casefold() for word in words)
    ]


def _read_unsearched(store: Store, state: str) -> list[Row]:
    """List the tools in a state in which no search finds them: `hidden`, `waiting`, or those of disabled sources."""
    if state == "hidden":
        return [Row(id, id.partition("/")[2], [], "") for id in store.hidden()]
    if state == "waiting":
        return [_make_row(definition.tool) for definition in store.waiting()]
    names = [source.name for source in store.sources() if not source.enabled]
    ids = [id for name in names for id, _ in store.page(name, limit=None)]
    return [_make_row(tool) for tool in store.tools(ids)]


def _make_row(tool: Tool) -> Row:
    """Make the row of a tool in a list, with the beginning of its description."""
    return Row(tool.id, tool.name, list(tool.path), tool.description[:MAX_ROW_DESCRIPTION_CHARS], tool.kind)


def count_facets(request: ApiRequest[FacetsRequest]) -> FacetsAnswer:
    """Count the tools in one state by source, kind and parent, and those of each state.

    Only searched tools are in the tree, so those in another state have no parents. They are counted only for callers
    who see everything.
    """
    parameters, view = request.parameters, request.view
    _require_known_source(request, view)
    if parameters.state == "searched":
        only = RowFilter(text=parameters.text, source=parameters.source, kind=parameters.kind, parent=parameters.parent)
        counts = view.count_facets(request.caller, only, parameters.limit)
    else:
        rows = _list_unsearched(request)
        sources, kinds = Counter(row.id.partition("/")[0] for row in rows), Counter(row.kind for row in rows)
        counts = {
            "sources": [Facet(name, name, count) for name, count in sorted(sources.items())[: parameters.limit]],
            "kinds": [Facet(name, name, count) for name, count in sorted(kinds.items())],
            "parents": [],
        }
    return FacetsAnswer(**counts, states=_count_states(request, view))


def _count_states(request: ApiRequest[FacetsRequest], view: CatalogueView) -> list[Facet]:
    """Count the tools in each state, without the other filters."""
    if not may_manage(request.caller):
        return []
    sources = request.scout.sources()
    counts = {
        "searched": len(view.rows),
        "waiting": sum(source.waiting for source in sources),
        "disabled": sum(source.tools for source in sources if not source.enabled),
        "hidden": len(request.scout.store.hidden()),
    }
    return [Facet(name, name, count) for name, count in counts.items() if count or name == "searched"]


def read_tool(request: ApiRequest[ToolRequest]) -> dict[str, Any]:
    """Read one tool with its complete definition."""
    id, view, caller = request.parameters.id, request.view, request.caller
    require_visible(view, caller, id)
    tool: Tool = request.scout.tool(id)
    if not caller.sees(tool):  # it changed a moment ago, and the policy now hides it
        raise _refuse_hidden(view, caller, id)
    return msgspec.structs.asdict(tool) | {"source": tool.source, "fingerprint": tool.fingerprint}


# --- changes of sources, and approvals --------------------------------------------------------------------------------


def add_source(request: ApiRequest[AddRequest]) -> ChangesAnswer:
    """Add a source by its address, or tools given as JSON."""
    parameters = request.parameters
    if bool(parameters.locator) == bool(parameters.tools):
        raise RequestRefused(422, "expected either `locator` or `tools`, found both or neither")
    if parameters.locator and not parameters.locator.lower().startswith(("http://", "https://")):
        raise RequestRefused(
            422,
            "Only addresses that begin with http:// or https:// can be added here. For files, commands and Python "
            "modules run  toolscout add SOURCE  on the machine of the service.",
        )
    if parameters.tools and not parameters.name:
        raise RequestRefused(422, "expected a `name` for the source of these tools, found none")
    source = parameters.locator or parameters.tools
    changes = request.scout.add(source, name=parameters.name or None, kind=parameters.kind)
    _log.info("%s added %s", request.caller.name, redact(parameters.locator) or f"{len(parameters.tools)} tools")
    return _embed_changes(request.service, changes)


def sync_sources(request: ApiRequest[SyncRequest]) -> ChangesAnswer:
    """Read sources again, and update what changed."""
    return _embed_changes(request.service, list(request.scout.sync(request.parameters.sources)))


def _embed_changes(service: Service, changes: list[Changes]) -> ChangesAnswer:
    """Index what changed, so that the next search does not wait for it."""
    if any(change.any for change in changes):
        service.scout.embed()
    view = service.views.current()
    return ChangesAnswer(changes, len(view.rows), view.generation)


def enable_source(request: ApiRequest[EnableRequest]) -> Enabled:
    """Search a source, or keep it out of the search. Its tools stay in the catalogue."""
    parameters = request.parameters
    _require_source(request.scout, parameters.source)
    request.scout.enable(parameters.source, parameters.enabled)
    _log.info("%s %s %s", request.caller.name, "enabled" if parameters.enabled else "disabled", parameters.source)
    return Enabled(parameters.source, parameters.enabled)


def _require_source(scout: Scout, name: str) -> None:
    """Refuse the name of a source that the catalogue does not have, with the nearest one."""
    names = [source.name for source in scout.sources()]
    if name not in names:
        advice = name_nearest(name, names, "See  toolscout list")
        raise RequestRefused(404, f"expected the name of a source, found {name!r:.200}. {advice}")


def list_approvals(request: ApiRequest[ApprovalsRequest]) -> ApprovalsAnswer:
    """List definitions that wait for approval, with what changed in them."""
    parameters, scout = request.parameters, request.scout
    if parameters.source is not None:
        _require_source(scout, parameters.source)
    waiting = [definition for definition in scout.waiting() if parameters.source in (None, definition.tool.source)]
    page = waiting[parameters.offset : parameters.offset + parameters.limit]
    return ApprovalsAnswer([_describe_waiting(definition) for definition in page], len(waiting))


def _describe_waiting(definition: WaitingDefinition) -> WaitingRow:
    """Describe a definition that waits for approval, with at most `MAX_DIFF_LINES` of its changes."""
    lines = describe_change(definition)
    return WaitingRow(
        id=definition.id,
        fingerprint=definition.fingerprint,
        since=definition.since,
        why=definition.why,
        new=definition.approved is None,
        changes=lines[:MAX_DIFF_LINES],
        cut=len(lines) > MAX_DIFF_LINES,
        findings=[
            spelled_out(f"{finding.kind} in {finding.field}: {finding.message}") for finding in scan(definition.tool)
        ],
    )


def approve(request: ApiRequest[ApproveRequest]) -> Approved:
    """Approve waiting definitions. One that changed since it was read still waits."""
    chosen = {(approval.id, approval.fingerprint) for approval in request.parameters.approvals}
    definitions = [item for item in request.scout.waiting() if (item.id, item.fingerprint) in chosen]
    count = request.scout.approve(definitions)
    if count:
        request.scout.embed()
    _log.info("%s approved %d definitions", request.caller.name, count)
    return Approved(count)
