"""Journal routes: callers report calls and feedback; operators read, import and export events."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from toolscout.errors import NotFound
from toolscout.home.journal.journal import MAX_SEARCH_EVENTS, JournalFilter
from toolscout.scout import Scout
from toolscout.trust.policy import Caller
from toolscout_server.catalogue import require_visible
from toolscout_server.service import ApiRequest, RequestRefused
from toolscout_server.shapes import (
    CallRequest,
    Done,
    FeedbackRequest,
    ImportAnswer,
    JournalAnswer,
    JournalRequest,
    LineProblem,
    Nothing,
    TrendsAnswer,
    TrendsRequest,
    UnansweredAnswer,
    UnansweredRequest,
)
from toolscout_server.trends import count_days, list_unanswered

__all__ = [
    "export_lines",
    "import_lines",
    "list_unanswered_queries",
    "read_journal",
    "read_stats",
    "read_trends",
    "report_call",
    "report_feedback",
]

IMPORT_MEMORY_BYTES: Final = 4 << 20  # a longer import is kept on disk
EXPORT_BATCH_EVENTS: Final = 500  # events in one chunk of an export


def _require_own_search(scout: Scout, caller: Caller, search_id: str) -> None:
    """Check that the caller made this search, and that it may get another event.

    Raises:
        NotFound: if another caller made it. The message does not tell whether it exists.
        RequestRefused: 422, if the search has the maximum number of events.
    """
    search = scout.journal.search(search_id)
    if search is None or search["caller"] != caller.name:
        raise NotFound(f"expected the id of one of your searches, found {search_id!r:.80}. Take it from an answer.")
    if scout.journal.is_full(search_id):
        raise RequestRefused(422, f"This search has {MAX_SEARCH_EVENTS} events, the maximum. Search again.")


def report_call(request: ApiRequest[CallRequest]) -> Done:
    """Record that a tool was called. It is in the journal before the answer."""
    parameters, caller = request.parameters, request.caller
    require_visible(request.view, caller, parameters.tool)
    if parameters.search_id is not None:
        _require_own_search(request.scout, caller, parameters.search_id)
    request.scout.called(
        parameters.tool, ok=parameters.ok, search_id=parameters.search_id, ms=parameters.ms, caller=caller.name
    )
    request.service.metrics.count_event("call")
    return Done(True)


def report_feedback(request: ApiRequest[FeedbackRequest]) -> Done:
    """Record which tools were right or wrong, or withdraw that. It is in the journal before the answer."""
    parameters, caller = request.parameters, request.caller
    _require_own_search(request.scout, caller, parameters.search_id)
    require_visible(request.view, caller, *parameters.good, *parameters.bad, *parameters.withdrawn)
    request.scout.feedback(
        parameters.search_id,
        good=parameters.good,
        bad=parameters.bad,
        withdrawn=parameters.withdrawn,
        caller=caller.name,
    )
    request.service.metrics.count_event("feedback")
    return Done(True)


def read_journal(request: ApiRequest[JournalRequest]) -> JournalAnswer:
    """Read a page of the journal, newest first. Ids of tools that the operator may not see are left out."""
    parameters = request.parameters
    only = JournalFilter(
        event=parameters.event,
        caller=parameters.caller,
        search_id=parameters.search_id,
        text=parameters.text,
        # Only for a caller without rules, who sees every tool, is `text` also looked for in ids of tools. For others it
        # would reveal the id of a hidden tool.
        tools=request.caller.rules is None,
        since=parameters.since,
        until=parameters.until,
    )
    events, next_before = request.scout.journal.page(only, before=parameters.before, limit=parameters.limit)
    return JournalAnswer([_hide_tools(request, event) for event in events], next_before)


def _hide_tools(request: ApiRequest[Any], event: dict[str, Any]) -> dict[str, Any]:
    """Remove the ids of tools that the operator's own rules hide."""
    caller = request.caller
    if caller.rules is None:
        return event
    view = request.view
    redacted = dict(event)
    for key in ("shown", "good", "bad", "withdrawn"):
        if isinstance(ids := event.get(key), list):
            redacted[key] = [id for id in ids if isinstance(id, str) and view.sees(caller, id)]
    if event["event"] == "call" and not view.sees(caller, event["tool"]):
        redacted["tool"] = ""
    return redacted


def read_stats(request: ApiRequest[Nothing]) -> dict[str, Any]:
    """Count events and callers, with the first and last instant."""
    return request.scout.journal.stats()


def read_trends(request: ApiRequest[TrendsRequest]) -> TrendsAnswer:
    """Count the events of each day."""
    since = _find_day(request.parameters.days)
    return TrendsAnswer(since, count_days(request.scout.journal, since))


def list_unanswered_queries(request: ApiRequest[UnansweredRequest]) -> UnansweredAnswer:
    """List the queries that got no tool, the most frequent first."""
    parameters = request.parameters
    since = _find_day(parameters.days)
    queries = list_unanswered(request.scout.journal, since, abstained=parameters.abstained, limit=parameters.limit)
    return UnansweredAnswer(queries)


def _find_day(days: int) -> str:
    """Return the first day of a span that ends today, in UTC."""
    return (datetime.now(timezone.utc) - timedelta(days=days - 1)).date().isoformat()


async def export_lines(request: ApiRequest[Nothing]) -> Response:
    """Export all events as JSON lines."""
    lines = (msgspec.json.encode(_hide_tools(request, event)) + b"\n" for event in request.scout.journal.read())

    def read_chunk() -> bytes:
        return b"".join(islice(lines, EXPORT_BATCH_EVENTS))

    async def stream() -> AsyncIterator[bytes]:
        while chunk := await request.service.run_in_thread(read_chunk):
            yield chunk

    name = 'attachment; filename="journal.jsonl"'
    return StreamingResponse(stream(), media_type="application/x-ndjson", headers={"Content-Disposition": name})


async def import_lines(request: ApiRequest[Nothing]) -> ImportAnswer:
    """Import events. Bad lines are named and skipped; events that are there already are not added twice."""
    with tempfile.SpooledTemporaryFile(IMPORT_MEMORY_BYTES) as file:
        async for chunk in request.body:
            file.write(chunk)
        file.seek(0)
        new, problems, bad = await request.service.run_in_thread(request.scout.journal.import_lines, file)
    return ImportAnswer(new, [LineProblem(entry, message) for entry, message in problems], bad)
