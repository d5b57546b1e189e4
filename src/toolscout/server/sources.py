"""Source routes: operators add, sync and disable sources, and approve definitions that wait.

Over HTTP only addresses can be added, and tools given as JSON. Everything else that `toolscout add` takes reads files
of this machine or starts programs on it.
"""

from __future__ import annotations

import logging
from typing import Final

from toolscout.access.policy import Caller
from toolscout.catalogue.definition_diff import describe_change
from toolscout.catalogue.screening import scan, spelled_out
from toolscout.catalogue.store import Changes, Waiting
from toolscout.errors import Denied, name_nearest
from toolscout.privacy.redaction import redact
from toolscout.server.operator_shapes import (
    AddRequest,
    ApprovalsAnswer,
    ApprovalsRequest,
    Approved,
    ApproveRequest,
    ChangesAnswer,
    Enabled,
    EnableRequest,
    SyncRequest,
    WaitingRow,
)
from toolscout.server.service import ApiRequest, RequestRefused, Service

__all__ = ["add_source", "approve", "enable_source", "list_approvals", "may_manage", "sync_sources"]

MAX_DIFF_LINES: Final = 600  # of one definition
_log: Final = logging.getLogger("toolscout.server")


def may_manage(caller: Caller) -> bool:
    """Return whether a caller may see and change sources: an operator from whom the policy hides nothing."""
    rules = caller.rules
    return caller.operator and (rules is None or ("**" in rules.allow and not rules.deny and not rules.read_only))


def _require_manager(caller: Caller) -> None:
    if not may_manage(caller):
        raise Denied("The policy hides tools from you, so you may not change sources. Ask an operator who sees all.")


async def add_source(request: ApiRequest[AddRequest]) -> ChangesAnswer:
    """Add a source by its address, or tools given as JSON."""
    _require_manager(request.caller)
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
    async with request.service.change_lock:
        return await request.service.run_in_thread(_add_source, request.service, request.caller, parameters)


def _add_source(service: Service, caller: Caller, parameters: AddRequest) -> ChangesAnswer:
    source = parameters.locator or parameters.tools
    changes = service.scout.add(source, name=parameters.name or None, kind=parameters.kind)
    _log.info("%s added %s", caller.name, redact(parameters.locator) or f"{len(parameters.tools)} tools")
    return _embed_changes(service, changes)


async def sync_sources(request: ApiRequest[SyncRequest]) -> ChangesAnswer:
    """Read sources again, and update what changed."""
    _require_manager(request.caller)
    async with request.service.change_lock:
        return await request.service.run_in_thread(_sync_sources, request.service, request.parameters.sources)


def _sync_sources(service: Service, names: list[str]) -> ChangesAnswer:
    return _embed_changes(service, list(service.scout.sync(names)))


def _embed_changes(service: Service, changes: list[Changes]) -> ChangesAnswer:
    """Index what changed, so that the next search does not wait for it."""
    if any(change.any for change in changes):
        service.scout.embed()
    view = service.views.current()
    return ChangesAnswer(changes, len(view.rows), view.generation)


async def enable_source(request: ApiRequest[EnableRequest]) -> Enabled:
    """Search a source, or keep it out of the search. Its tools stay in the catalogue."""
    _require_manager(request.caller)
    parameters = request.parameters
    async with request.service.change_lock:
        await request.service.run_in_thread(_enable_source, request.service, parameters)
    _log.info("%s %s %s", request.caller.name, "enabled" if parameters.enabled else "disabled", parameters.source)
    return Enabled(parameters.source, parameters.enabled)


def _require_source(service: Service, name: str) -> None:
    names = [source.name for source in service.scout.sources()]
    if name not in names:
        advice = name_nearest(name, names, "See  toolscout list")
        raise RequestRefused(404, f"expected the name of a source, found {name!r:.200}. {advice}")


def _enable_source(service: Service, parameters: EnableRequest) -> None:
    _require_source(service, parameters.source)
    service.scout.enable(parameters.source, parameters.enabled)


async def list_approvals(request: ApiRequest[ApprovalsRequest]) -> ApprovalsAnswer:
    """List definitions that wait for approval, with what changed in them."""
    _require_manager(request.caller)
    return await request.service.run_in_thread(_list_approvals, request.service, request.parameters)


def _list_approvals(service: Service, parameters: ApprovalsRequest) -> ApprovalsAnswer:
    if parameters.source is not None:
        _require_source(service, parameters.source)
    waiting = [
        definition for definition in service.scout.waiting() if parameters.source in (None, definition.tool.source)
    ]
    page = waiting[parameters.offset : parameters.offset + parameters.limit]
    return ApprovalsAnswer([_make_row(definition) for definition in page], len(waiting))


def _make_row(definition: Waiting) -> WaitingRow:
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


async def approve(request: ApiRequest[ApproveRequest]) -> Approved:
    """Approve waiting definitions. One that changed since it was read still waits."""
    _require_manager(request.caller)
    async with request.service.change_lock:
        return await request.service.run_in_thread(_approve, request.service, request.caller, request.parameters)


def _approve(service: Service, caller: Caller, parameters: ApproveRequest) -> Approved:
    chosen = {(approval.id, approval.fingerprint) for approval in parameters.approvals}
    definitions = [item for item in service.scout.waiting() if (item.id, item.fingerprint) in chosen]
    count = service.scout.approve(definitions)
    if count:
        service.scout.embed()
    _log.info("%s approved %d definitions", caller.name, count)
    return Approved(count)
