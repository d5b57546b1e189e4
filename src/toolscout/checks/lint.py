"""Finds tools that a search misses or confuses, and advises what to change in their descriptions.

Each tool gets a few synthetic queries (`toolscout.checks.synthetic_queries`). A tool that its own queries rarely find
is hidden. Two tools that stand in each other's place are confused. The advice rests on what can be checked: a missing
or short description, a near-duplicate, words that stand only in the parameters.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from toolscout.checks.synthetic_queries import QueryGenerator, sample_tools
from toolscout.indexes.words import tokenize
from toolscout.search.pipeline import Decide, Pipeline, Stage
from toolscout.types import Search, Tool, parameter_names

__all__ = ["Confused", "Finding", "Lint", "lint"]

QUERIES_PER_TOOL: Final = 3
LINT_DEPTH: Final = 5
MIN_FOUND_SHARE: Final = 0.5
"""A tool that a smaller share of its queries finds is hidden."""
DUPLICATE_OVERLAP: Final = 0.8
"""Two descriptions that share at least so many of their words are near-duplicates."""
MIN_DESCRIPTION_WORDS: Final = 4


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that is hard to find.

    Attributes:
        tool: its id.
        found: share of its queries that found it.
        missed: a query that missed it.
        instead: ids of the tools that stood in its place, the most frequent first.
        causes: what makes it hard to find.
        fixes: what to do about each cause.
    """

    tool: str
    found: float
    missed: str
    instead: tuple[str, ...]
    causes: tuple[str, ...]
    fixes: tuple[str, ...]


class Confused(msgspec.Struct, frozen=True, kw_only=True):
    """Two tools, one of which stood first for queries of the other.

    Attributes:
        one: id of a tool.
        other: id of the other tool.
        times: how often one stood first for a query of the other.
        twins: whether their descriptions are near-duplicates.
        fix: what to do about it.
    """

    one: str
    other: str
    times: int
    twins: bool
    fix: str


class Lint(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `lint`.

    Attributes:
        asked: number of tools that queries were generated for.
        silent: ids of the tools without a description.
        hidden: the hidden tools, the least found first.
        confused: the confused pairs, the most frequent first.
    """

    asked: int
    silent: tuple[str, ...]
    hidden: tuple[Finding, ...]
    confused: tuple[Confused, ...]


def lint(
    tools: Sequence[Tool],
    stage: Stage,
    *,
    max_tools: int = 1_000,
    seed: int = 0,
    visible: Callable[[Tool], bool] | None = None,
) -> Lint:
    """Search for each tool, or for a sample, and report the tools that are not found.

    Args:
        tools: the tools to check. They are those that `visible` allows.
        stage: searches them. Abstention is left out: it does not count here.
        max_tools: a larger catalogue is sampled.
        seed: seed of the synthetic queries.
        visible: which tools are searched; None: all.
    """
    if isinstance(stage, Pipeline):
        stage = Pipeline(part for part in stage.stages if not isinstance(part, Decide))
    by_id = {tool.id: tool for tool in tools}
    tries: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    instead: dict[str, Counter[str]] = defaultdict(Counter)
    missed: dict[str, str] = {}
    swaps: Counter[tuple[str, str]] = Counter()
    generator = QueryGenerator(tools, sample_tools(tools, max_tools, seed), unions=False)
    for round_number in range(QUERIES_PER_TOOL):
        queries = generator.generate(seed + round_number)
        answers = stage([Search(query=query.text, k=LINT_DEPTH, visible=visible) for query in queries])
        for query, answer in zip(queries, answers, strict=True):
            [gold], top = query.tools, answer.ids[:LINT_DEPTH]
            tries[gold] += 1
            hits[gold] += gold in top
            if gold not in top:
                instead[gold].update(top)
                missed.setdefault(gold, query.text)
            if top and top[0] != gold:
                swaps[min(gold, top[0]), max(gold, top[0])] += 1
    hidden = []
    for tool_id, count in tries.items():
        if hits[tool_id] / count < MIN_FOUND_SHARE:
            rivals = [rival for rival, _ in instead[tool_id].most_common(3)]
            hidden.append(_explain_hidden(by_id, tool_id, hits[tool_id] / count, missed[tool_id], rivals))
    return Lint(
        asked=len(tries),
        silent=tuple(sorted(tool.id for tool in tools if not tool.description.strip())),
        hidden=tuple(sorted(hidden, key=lambda finding: (finding.found, finding.tool))),
        confused=tuple(
            _describe_confusion(by_id[one], by_id[other], times)
            for (one, other), times in swaps.most_common()
            if times > 1
        ),
    )


def _explain_hidden(tools: dict[str, Tool], tool_id: str, share: float, missed: str, instead: Sequence[str]) -> Finding:
    tool = tools[tool_id]
    causes, fixes = [], []
    words = tokenize(tool.description)
    if len(words) < MIN_DESCRIPTION_WORDS:
        causes.append(f"its description has only {len(words)} words that a search can match")
        fixes.append("describe in a sentence what it does, to what, and what for")
    duplicates = [rival for rival in instead if _word_overlap(tool, tools[rival]) >= DUPLICATE_OVERLAP]
    if duplicates:
        causes.append(f"{duplicates[0]} has almost the same description")
        fixes.append(f"describe what it does that {duplicates[0]} does not, or remove one of them")
    described = set(words)
    undescribed = [name for name in parameter_names(tool) if not described & set(tokenize(name))]
    if undescribed and not duplicates:
        causes.append(f"its description does not mention {', '.join(undescribed[:3])}")
        fixes.append(f"mention its parameters in the description: {', '.join(undescribed[:3])}")
    if not causes:
        causes.append("many other tools use the same words")
        fixes.append("describe what only this tool does, in the words that people ask with")
    return Finding(
        tool=tool_id,
        found=round(share, 3),
        missed=missed,
        instead=tuple(instead),
        causes=tuple(causes),
        fixes=tuple(fixes),
    )


def _describe_confusion(one: Tool, other: Tool, times: int) -> Confused:
    duplicates = _word_overlap(one, other) >= DUPLICATE_OVERLAP
    fix = "remove one of them, or describe in each what the other does not do"
    if not duplicates:
        fix = "describe in each when not to use it"
    return Confused(one=one.id, other=other.id, times=times, twins=duplicates, fix=fix)


def _word_overlap(one: Tool, other: Tool) -> float:
    """Return the Jaccard overlap of two descriptions, 0 to 1; of the names if there are no descriptions."""
    words, other_words = (set(tokenize(tool.description or tool.name)) for tool in (one, other))
    return len(words & other_words) / len(words | other_words) if words | other_words else 0.0
