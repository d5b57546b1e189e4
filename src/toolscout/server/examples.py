"""Makes examples of queries from the descriptions of the caller's own tools. Each of them finds its tools."""

from __future__ import annotations

import random
import re
from typing import Final

from toolscout.access.policy import Caller
from toolscout.server.service import ApiRequest, Service
from toolscout.server.shapes import ExamplesAnswer, ExamplesRequest
from toolscout.server.view import RowFilter
from toolscout.types import Search, Tool, render

__all__ = ["list_examples"]

NO_VERBS: Final = frozenset(("this", "these", "it", "its", "the", "a", "an", "is", "has", "as"))
EXAMPLE_WORD_RANGE: Final = (3, 11)
MAX_CACHED_EXAMPLES: Final = 64
SAMPLE_PER_EXAMPLE: Final = 6  # tools that are looked at for each example
_EDGE: Final = re.compile(r"^[^\w]+|[\s.!?:;,]+$")
_PLAIN: Final = re.compile(r"[\w\s,'’()-]+")
_OPENING: Final = re.compile(r"(?:this|the) (?:tool|function|api|endpoint) |(?:allows|enables) (?:you|users) to ", re.I)


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
    service, caller = request.service, request.caller
    candidates = await service.run_in_thread(_collect_candidates, service, caller, request.parameters.most)
    if not candidates:
        return ExamplesAnswer([])
    texts = [text for text, _ in candidates]
    answers = await service.batches.search(texts, None, None, caller, preview=True)
    good = [text for (text, tool), answer in zip(candidates, answers, strict=True) if _is_found(tool, answer)]
    queries = good[: request.parameters.most]
    if len(good) > len(queries) > 1:  # one request of several steps
        compound = f"{queries[0]}, then {good[len(queries)][0].lower()}{good[len(queries)][1:]}"
        queries[-1] = compound
    return ExamplesAnswer(queries)


def _is_found(tool: str, answer: Search) -> bool:
    return any(tool == hit.id or tool in hit.similar for hit in answer.hits)


def _collect_candidates(service: Service, caller: Caller, most: int) -> list[tuple[str, str]]:
    """Collect (query, tool id) from a seeded sample of the visible tools, of as many sources as possible."""
    view = service.views.current(caller)
    rows, _ = view.page_tools(caller, RowFilter(kind="tool"), 0, len(view.rows))
    rng = random.Random(view.generation)
    sample = rng.sample(rows, min(len(rows), 4 * SAMPLE_PER_EXAMPLE * most))
    seen: dict[str, int] = {}
    ranked = []
    for row in sample:
        parent = "/".join(row.path) or row.id.partition("/")[0]
        seen[parent] = seen.get(parent, 0) + 1
        ranked.append((seen[parent], row.id))
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
