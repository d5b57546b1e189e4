"""Searching: one query, several, and why a tool is not among the answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from toolscout.access.policy import Caller
from toolscout.errors import NotFound, StoreError
from toolscout.search.why import Why
from toolscout.server.catalogue import present
from toolscout.server.service import Ask, Refused, Service
from toolscout.server.shapes import BatchRequest, SearchRequest, WhyRequest
from toolscout.types import Search, as_json

__all__ = ["batch", "search", "why"]


async def search(ask: Ask[SearchRequest]) -> dict[str, Any]:
    """The tools for one request, best first, or the reason why there are none."""
    [found] = await _search(ask.service, ask.caller, [ask.asked.query], ask.asked)
    return _shown(found, ask.asked.trace)


async def batch(ask: Ask[BatchRequest]) -> dict[str, Any]:
    """Several searches at once."""
    found = await _search(ask.service, ask.caller, ask.asked.queries, ask.asked)
    return {"results": [_shown(each, ask.asked.trace) for each in found]}


async def why(ask: Ask[WhyRequest]) -> Why:
    """Why a tool is not among the answers, and what would lift it. Not journaled."""
    asked, service = ask.asked, ask.service
    await service.thread(present, service, ask.caller, asked.tool)
    async with service.heavy:
        with _model_there():
            return await service.thread(
                service.scout.why,
                asked.query,
                asked.tool,
                asked.k,
                recipe=asked.recipe,
                visible=ask.caller.visible,
                cures=asked.cures,
            )


async def _search(
    service: Service, caller: Caller, queries: Sequence[str], asked: SearchRequest | BatchRequest
) -> list[Search]:
    if len(service.batches) + len(queries) > service.limits.waiting:
        raise Refused(503, "expected a moment of less traffic, found a full queue: ask again", {"Retry-After": "1"})
    with _model_there():
        found = await service.batches.search(queries, asked.k, asked.recipe, caller)
    service.unready = None
    for each in found:
        service.metrics.search(each.answer)
    return found


@contextlib.contextmanager
def _model_there() -> Iterator[None]:
    """What is not found here is no part of the request: a setting names a model that is not there."""
    try:
        yield
    except NotFound as error:
        raise StoreError(str(error)) from None


def _shown(found: Search, trace: bool) -> dict[str, Any]:
    shown = as_json(found)
    if trace:
        shown["trace"] = [
            {"stage": step.stage, "ms": round(step.seconds * 1000, 3), "note": step.note} for step in found.trace
        ]
    return shown
