"""Search routes: one query, several queries, why a tool is missing from the answer, and examples of queries."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from toolscout.errors import NotFound, StoreError
from toolscout.home.access.telemetry import record_searches
from toolscout.indexes.words import tokenize
from toolscout.search.why import Why
from toolscout.trust.policy import Caller
from toolscout.types import Search, Tool, as_json, render
from toolscout_server.batches import SearchOptions
from toolscout_server.catalogue import require_visible
from toolscout_server.service import ApiRequest, RequestRefused, Service
from toolscout_server.shapes import (
    BatchRequest,
    ExamplesAnswer,
    ExamplesRequest,
    SearchRequest,
    SearchSettings,
    WhyRequest,
)
from toolscout_server.view import RowFilter

__all__ = ["explain_missing", "list_examples", "search", "search_batch"]

MAX_MARKED_CHARS: Final = 2_000  # of name and description in which matched words are looked for
_TEXT_WORD: Final = re.compile(r"[^\W_]+")
NO_VERBS: Final = frozenset(("this", "these", "it", "its", "the", "a", "an", "is", "has", "as"))
EXAMPLE_WORD_RANGE: Final = (3, 11)
MAX_CACHED_EXAMPLES: Final = 64
SAMPLE_PER_EXAMPLE: Final = 6  # tools that are looked at for each example: not every description makes a query
DRAWN_PER_SAMPLE: Final = 4  # tools that are drawn for one that is looked at, so that these are of many sources
#: Of a description's first sentence: what is cut off its edges, all that it may contain, and how it must not begin.
_EDGE: Final = re.compile(r"^[^\w]+|[\s.!?:;,]+$")
_PLAIN: Final = re.compile(r"[\w\s,'’()-]+")
_OPENING: Final = re.compile(r"(?:this|the) (?:tool|function|api|endpoint) |(?:allows|enables) (?:you|users) to ", re.I)


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
    words = dict.fromkeys(_TEXT_WORD.findall(text))
    return [word for word in words if not terms.isdisjoint(tokenize(word))]


async def search_batch(request: ApiRequest[BatchRequest]) -> dict[str, Any]:
    """Run several searches on one state of the catalogue."""
    results = await _run_searches(request.service, request.caller, request.parameters.queries, request.parameters)
    return {"results": [_to_json(result, request.parameters.trace) for result in results]}


def explain_missing(request: ApiRequest[WhyRequest]) -> Why:
    """Explain why a tool is missing from the answer, and what would lift it. Not journaled."""
    parameters = request.parameters
    require_visible(request.view, request.caller, parameters.tool)
    with _report_missing_model():
        return request.scout.why(
            parameters.query,
            parameters.tool,
            parameters.k,
            recipe=parameters.recipe,
            visible=request.caller.visible,
            cures=parameters.cures,
            words=parameters.words,
        )


async def _run_searches(
    service: Service, caller: Caller, queries: Sequence[str], parameters: SearchSettings
) -> list[Search]:
    """Run the searches of a request with those of other requests, and record them.

    Raises:
        RequestRefused: if too many queries wait, or their turn comes too late.
    """
    if len(service.batches) + len(queries) > service.limits.waiting:
        raise RequestRefused(
            503, "The service has too many waiting queries. Try again in a second.", {"Retry-After": "1"}
        )
    preview = isinstance(parameters, SearchRequest) and parameters.preview
    deadline = None if parameters.deadline is None else time.monotonic() + parameters.deadline
    options = SearchOptions(caller, parameters.k, parameters.recipe, parameters.kind, preview, deadline)
    try:
        with _report_missing_model():
            searches = await service.batches.search(queries, options)
    except (TimeoutError, asyncio.TimeoutError):
        raise RequestRefused(
            503, "The searches before this one took until its deadline. Try again.", {"Retry-After": "1"}
        ) from None
    service.not_ready_reason = None
    record_searches(searches)
    for search in searches:
        service.metrics.count_search(search.kind)
    return searches


@contextlib.contextmanager
def _report_missing_model() -> Iterator[None]:
    """Report a missing model as a fault of the service: a setting names it, not the request."""
    try:
        yield
    except NotFound as error:
        raise StoreError(str(error)) from None


def _to_json(result: Search, trace: bool) -> dict[str, Any]:
    """Return an answer as JSON, with the times of its stages if the request asks for them."""
    answer = as_json(result)
    if trace:
        answer["trace"] = [
            {"stage": step.stage, "ms": round(step.seconds * 1000, 3), "note": step.note} for step in result.trace
        ]
    return answer


# --- examples of queries ----------------------------------------------------------------------------------------------


async def list_examples(request: ApiRequest[ExamplesRequest]) -> ExamplesAnswer:
    """List queries to try, made from tools that the caller may see. Each finds its tools; nothing is journaled."""
    service, caller = request.service, request.caller
    key = (service.views.current(caller).generation, caller.rules, request.parameters.most)
    if key not in service.examples:
        if len(service.examples) >= MAX_CACHED_EXAMPLES:
            service.examples.clear()
        service.examples[key] = await _make_examples(request)
    return service.examples[key]


async def _make_examples(request: ApiRequest[ExamplesRequest]) -> ExamplesAnswer:
    """Return requests that find their own tool in this catalogue, to show what may be asked."""
    service, caller = request.service, request.caller
    candidates = await service.run_in_thread(_collect_candidates, service, caller, request.parameters.most)
    if not candidates:
        return ExamplesAnswer([])
    texts = [text for text, _ in candidates]
    answers = await service.batches.search(texts, SearchOptions(caller, preview=True))
    good = [
        text
        for (text, tool), answer in zip(candidates, answers, strict=True)
        if any(tool == hit.id or tool in hit.similar for hit in answer.hits)
    ]
    queries = good[: request.parameters.most]
    if len(good) > len(queries) > 1:  # the last example becomes a request of several steps, of two good queries
        second = good[len(queries)]
        queries[-1] = f"{queries[0]}, then {second[0].lower()}{second[1:]}"
    return ExamplesAnswer(queries)


def _collect_candidates(service: Service, caller: Caller, most: int) -> list[tuple[str, str]]:
    """Collect candidates for examples: (query, tool id) pairs of visible tools, with as many parents as possible.

    A parent is the path of a tool, or else its source. More tools are drawn than looked at, to have many parents among
    them, and more are looked at than are wanted, because not every description makes a query that finds its tool.

    Args:
        service: gives the views.
        caller: decides which tools are visible.
        most: number of examples that are wanted.
    """
    view = service.views.current(caller)
    rows, _ = view.page_tools(caller, RowFilter(kind="tool"), 0, len(view.rows))
    rng = random.Random(view.generation)
    sample = rng.sample(rows, min(len(rows), DRAWN_PER_SAMPLE * SAMPLE_PER_EXAMPLE * most))
    n_of_parent: dict[str, int] = {}
    ranked = []  # the first tool of each parent has rank 1, the second rank 2, and so on
    for row in sample:
        parent = "/".join(row.path) or row.id.partition("/")[0]
        n_of_parent[parent] = n_of_parent.get(parent, 0) + 1
        ranked.append((n_of_parent[parent], row.id))
    ids = [id for _, id in sorted(ranked)[: SAMPLE_PER_EXAMPLE * most]]
    tools = {tool.id: tool for tool in view.catalogue.tools(ids)}
    queries = ((_write_query(tools[id]), id) for id in ids if id in tools)
    return [(query, id) for query, id in queries if query]


def _write_query(tool: Tool) -> str:
    """Write a request from the first sentence of a description. Empty if the sentence does not serve as one."""
    sentence = _OPENING.sub("", _EDGE.sub("", render(tool, "sentence")))
    words = sentence.split()
    low, high = EXAMPLE_WORD_RANGE
    if not low <= len(words) <= high or not _PLAIN.fullmatch(sentence):
        return ""
    if words[0].lower() in NO_VERBS:
        return ""
    first = _make_imperative(words[0])
    return " ".join([first[:1].upper() + first[1:], *words[1:]])


def _make_imperative(word: str) -> str:
    """Turn "Sends" into "Send" and "Searches" into "Search"; other words stay."""
    if re.fullmatch(r"[A-Z]?[a-z]+(ch|sh|ss|x|zz)es", word):
        return word[:-2]
    if re.fullmatch(r"[A-Z]?[a-z]{2,}ies", word):
        return f"{word[:-3]}y"
    return word[:-1] if re.fullmatch(r"[A-Z]?[a-z]+[^s\W\d]s", word) else word
