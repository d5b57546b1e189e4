"""The journal: what callers report, and what operators read, bring in and take out."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from toolscout.access.policy import Caller
from toolscout.errors import NotFound
from toolscout.journal.journal import MAX_SEARCH_EVENTS, Imported
from toolscout.server.catalogue import present
from toolscout.server.service import Ask, Refused, Service
from toolscout.server.shapes import (
    CallRequest,
    Done,
    FeedbackRequest,
    ImportAnswer,
    JournalAnswer,
    JournalRequest,
    LineProblem,
    Nothing,
)

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["called", "export_lines", "feedback", "import_lines", "read", "stats"]

IN_MEMORY: Final = 4 << 20  # bytes of an import; what is longer waits on disk
AT_ONCE: Final = 500  # lines of an export in one piece


def _own(service: Service, caller: Caller, search_id: str) -> None:
    """Check that the caller made that search, and may say more of it.

    Raises:
        NotFound: if not; nobody hears of searches of others.
        Refused: 422, if it has as many events as one may have.
    """
    search = service.scout.journal.search(search_id)
    if search is None or search["caller"] != caller.name:
        raise NotFound(f"expected the id of a search of yours in the journal, found {search_id!r:.80}")
    if service.scout.journal.is_full(search_id):
        raise Refused(422, f"expected at most {MAX_SEARCH_EVENTS} events of one search, found as many: search again")


async def called(ask: Ask[CallRequest]) -> Done:
    """Write that a tool was called; it is in the journal before the answer."""
    await ask.service.thread(_called, ask.service, ask.caller, ask.asked)
    ask.service.metrics.event("call")
    return Done(True)


def _called(service: Service, caller: Caller, asked: CallRequest) -> None:
    present(service, caller, asked.tool)
    if asked.search_id is not None:
        _own(service, caller, asked.search_id)
    service.scout.called(asked.tool, ok=asked.ok, search_id=asked.search_id, ms=asked.ms, caller=caller.name)


async def feedback(ask: Ask[FeedbackRequest]) -> Done:
    """Write which tools were right and which were wrong; it is in the journal before the answer."""
    await ask.service.thread(_feedback, ask.service, ask.caller, ask.asked)
    ask.service.metrics.event("feedback")
    return Done(True)


def _feedback(service: Service, caller: Caller, asked: FeedbackRequest) -> None:
    _own(service, caller, asked.search_id)
    present(service, caller, *asked.good, *asked.bad)
    service.scout.feedback(asked.search_id, good=asked.good, bad=asked.bad, caller=caller.name)


async def read(ask: Ask[JournalRequest]) -> JournalAnswer:
    """A page of the journal, newest first; of tools, only what the operator may see."""
    return await ask.service.thread(_read, ask.service, ask.caller, ask.asked)


def _read(service: Service, caller: Caller, asked: JournalRequest) -> JournalAnswer:
    tools = caller.rules is None  # a filter that finds what is veiled would tell of it
    events, following = service.scout.journal.page(**msgspec.structs.asdict(asked), tools=tools)
    return JournalAnswer([_veiled(service, caller, each) for each in events], following)


def _veiled(service: Service, caller: Caller, event: dict[str, Any]) -> dict[str, Any]:
    """The event without ids of tools that the operator's own rules hide."""
    if caller.rules is None:
        return event
    view = service.views.now(caller)
    veiled = dict(event)
    for key in ("shown", "good", "bad"):
        if isinstance(ids := event.get(key), list):
            veiled[key] = [id for id in ids if isinstance(id, str) and view.sees(caller, id)]
    if event["event"] == "call" and not view.sees(caller, event["tool"]):
        veiled["tool"] = ""
    return veiled


async def stats(ask: Ask[Nothing]) -> dict[str, Any]:
    """Counts by event, first and last instant, callers."""
    return await ask.service.thread(ask.service.scout.journal.stats)


async def export_lines(ask: Ask[Nothing]) -> Response:
    """All events as JSON lines."""
    from starlette.responses import StreamingResponse

    service, caller = ask.service, ask.caller

    def lines() -> Iterable[bytes]:
        for event in service.scout.journal.read():
            yield msgspec.json.encode(_veiled(service, caller, event)) + b"\n"

    left = iter(lines())

    def piece() -> bytes:
        return b"".join(islice(left, AT_ONCE))

    async def pieces() -> AsyncIterator[bytes]:
        while found := await service.thread(piece):
            yield found

    name = 'attachment; filename="journal.jsonl"'
    return StreamingResponse(pieces(), media_type="application/x-ndjson", headers={"Content-Disposition": name})


async def import_lines(ask: Ask[Nothing]) -> ImportAnswer:
    """Take events in; a bad line is named and skipped, lines that are there already are not taken twice."""
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as held:
        async for piece in ask.body:
            held.write(piece)
        held.seek(0)
        new, problems, bad = await ask.service.thread(_import, ask.service, held)
    return ImportAnswer(new, [LineProblem(entry, message) for entry, message in problems], bad)


def _import(service: Service, held: IO[bytes]) -> Imported:
    return service.scout.journal.import_lines(held)
