"""Search routes: one query, several queries, and why a tool is missing from the answer."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from toolscout.access.policy import Caller
from toolscout.access.telemetry import record_searches
from toolscout.errors import NotFound, StoreError
from toolscout.indexes.words import tokenize
from toolscout.search.why import Why
from toolscout.server.catalogue import require_visible
from toolscout.server.service import ApiRequest, RequestRefused, Service
from toolscout.server.shapes import BatchRequest, SearchRequest, WhyRequest
from toolscout.types import Search, as_json

__all__ = ["explain_missing", "search", "search_batch"]

MAX_MARKED_CHARS: Final = 2_000  # of name and description in which matched words are looked for
_NAME_WORD: Final = re.compile(r"[^\W_]+")


async def search(request: ApiRequest[SearchRequest]) -> dict[str, Any]:
    """Find the tools for one request, best first, or say why there are none."""
    parameters = request.parameters
    [result] = await _run_searches(request.service, request.caller, [parameters.query], parameters)
    answer = _to_json(result, parameters.trace)
    if parameters.matched:
        terms = set(tokenize(parameters.query))
        for hit in answer["hits"]:
            hit["matched"] = _list_matched_words(terms, f"{hit['name']} {hit['description']}"[:MAX_MARKED_CHARS])
    return answer


def _list_matched_words(terms: AbstractSet[str], text: str) -> list[str]:
    """List the words of a text that share an index term with the query, as the text spells them."""
    words = dict.fromkeys(_NAME_WORD.findall(text))
    return [word for word in words if not terms.isdisjoint(tokenize(word))]


async def search_batch(request: ApiRequest[BatchRequest]) -> dict[str, Any]:
    """Run several searches on one state of the catalogue."""
    results = await _run_searches(request.service, request.caller, request.parameters.queries, request.parameters)
    return {"results": [_to_json(result, request.parameters.trace) for result in results]}


async def explain_missing(request: ApiRequest[WhyRequest]) -> Why:
    """Explain why a tool is missing from the answer, and what would lift it. Not journaled."""
    parameters, service = request.parameters, request.service
    await service.run_in_thread(require_visible, service, request.caller, parameters.tool)
    async with service.slow_work:
        with _report_missing_model():
            return await service.run_in_thread(
                service.scout.why,
                parameters.query,
                parameters.tool,
                parameters.k,
                recipe=parameters.recipe,
                visible=request.caller.visible,
                cures=parameters.cures,
                words=parameters.words,
            )


async def _run_searches(
    service: Service, caller: Caller, queries: Sequence[str], parameters: SearchRequest | BatchRequest
) -> list[Search]:
    if len(service.batches) + len(queries) > service.limits.waiting:
        raise RequestRefused(
            503, "The service has too many waiting queries. Try again in a second.", {"Retry-After": "1"}
        )
    with _report_missing_model():
        preview = isinstance(parameters, SearchRequest) and parameters.preview
        searches = await service.batches.search(
            queries, parameters.k, parameters.recipe, caller, parameters.kind, preview=preview
        )
    service.not_ready_reason = None
    record_searches(searches)
    for search in searches:
        service.metrics.count_search(search.answer)
    return searches


@contextlib.contextmanager
def _report_missing_model() -> Iterator[None]:
    """Report a missing model as a fault of the service: a setting names it, not the request."""
    try:
        yield
    except NotFound as error:
        raise StoreError(str(error)) from None


def _to_json(result: Search, trace: bool) -> dict[str, Any]:
    answer = as_json(result)
    if trace:
        answer["trace"] = [
            {"stage": step.stage, "ms": round(step.seconds * 1000, 3), "note": step.note} for step in result.trace
        ]
    return answer
