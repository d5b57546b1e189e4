"""Findability: which tools are not found by requests made for them, what stands in their place, and what would help.

Each tool is asked for in a few ways (`toolscout.checks.synthetic_queries`). One that is hardly ever among the
answers is hidden; two that
are taken for one another are confused. What is advised rests on what can be seen: a missing or short description, a
twin that says the same, words that only its parameters or its path say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from toolscout.checks.synthetic_queries import Maker, sample
from toolscout.indexes.words import tokenize
from toolscout.search.pipeline import Decide, Pipeline, Stage
from toolscout.types import Search, Tool, parameter_names

__all__ = ["Confused", "Finding", "Lint", "lint"]

WAYS: Final = 3  # in which each tool is asked for
K: Final = 5
FOUND: Final = 0.5  # share of the requests that must find a tool
TWIN: Final = 0.8  # share of words in common from which two tools are called twins
SHORT: Final = 4  # words of a description


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that is hard to find: the share of requests that found it, one that missed it, who stood there instead,
    and what to do.
    """

    tool: str
    found: float
    missed: str
    instead: tuple[str, ...]
    causes: tuple[str, ...]
    fixes: tuple[str, ...]


class Confused(msgspec.Struct, frozen=True, kw_only=True):
    """Two tools of which one stood first when the other was asked for: how often, and whether they say the same."""

    one: str
    other: str
    times: int
    twins: bool
    fix: str


class Lint(msgspec.Struct, frozen=True, kw_only=True):
    """What was found: tools that nothing can be asked of, hidden tools, confused pairs, and how many were asked for."""

    asked: int
    silent: tuple[str, ...]
    hidden: tuple[Finding, ...]
    confused: tuple[Confused, ...]


def lint(
    tools: Sequence[Tool],
    stage: Stage,
    *,
    most: int = 1_000,
    seed: int = 0,
    visible: Callable[[Tool], bool] | None = None,
) -> Lint:
    """Ask for each tool, or a sample of `most`, and say which are not found.

    Args:
        tools: of the catalogue; where not all are visible, those that are.
        stage: what searches it; whether a request would be turned away does not count here.
        most: tools at most.
        seed: of the requests.
        visible: whose tools are searched; None: all.
    """
    if isinstance(stage, Pipeline):
        stage = Pipeline(each for each in stage.stages if not isinstance(each, Decide))
    by_id = {tool.id: tool for tool in tools}
    tries: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    instead: dict[str, Counter[str]] = defaultdict(Counter)
    missed: dict[str, str] = {}
    firsts: Counter[tuple[str, str]] = Counter()
    maker = Maker(tools, sample(tools, most, seed), unions=False)
    for way in range(WAYS):
        single = maker.probes(seed + way)
        answers = stage([Search(query=probe.text, k=K, visible=visible) for probe in single])
        for probe, answer in zip(single, answers, strict=True):
            [wanted], shown = probe.tools, answer.ids[:K]
            tries[wanted] += 1
            hits[wanted] += wanted in shown
            if wanted not in shown:
                instead[wanted].update(shown)
                missed.setdefault(wanted, probe.text)
            if shown and shown[0] != wanted:
                firsts[min(wanted, shown[0]), max(wanted, shown[0])] += 1
    hidden = [
        _finding(
            by_id, tool, hits[tool] / tries[tool], missed[tool], [other for other, _ in instead[tool].most_common(3)]
        )
        for tool in tries
        if hits[tool] / tries[tool] < FOUND
    ]
    return Lint(
        asked=len(tries),
        silent=tuple(sorted(tool.id for tool in tools if not tool.description.strip())),
        hidden=tuple(sorted(hidden, key=lambda each: (each.found, each.tool))),
        confused=tuple(
            _confused(by_id[one], by_id[other], times) for (one, other), times in firsts.most_common() if times > 1
        ),
    )


def _finding(tools: dict[str, Tool], tool_id: str, found: float, missed: str, instead: Sequence[str]) -> Finding:
    tool = tools[tool_id]
    causes, fixes = [], []
    words = tokenize(tool.description)
    if len(words) < SHORT:
        causes.append(f"its description says {len(words)} words that can be searched for")
        fixes.append("say in a sentence what it does, to what, and what for")
    twins = [other for other in instead if _alike(tool, tools[other]) >= TWIN]
    if twins:
        causes.append(f"{twins[0]} says almost the same")
        fixes.append(f"say in its description what it does that {twins[0]} does not, or remove one of them")
    said = set(words)
    unsaid = [name for name in parameter_names(tool) if not said & set(tokenize(name))]
    if unsaid and not twins:
        causes.append(f"its description does not speak of {', '.join(unsaid[:3])}")
        fixes.append(f"name in the description what it takes: {', '.join(unsaid[:3])}")
    if not causes:
        causes.append("its words are those of many other tools")
        fixes.append("say in its description what only this tool does, in the words of those who ask")
    return Finding(
        tool=tool_id,
        found=round(found, 3),
        missed=missed,
        instead=tuple(instead),
        causes=tuple(causes),
        fixes=tuple(fixes),
    )


def _confused(one: Tool, other: Tool, times: int) -> Confused:
    twins = _alike(one, other) >= TWIN
    fix = "remove one of them, or say in each what the other does not do" if twins else "say in each when not to use it"
    return Confused(one=one.id, other=other.id, times=times, twins=twins, fix=fix)


def _alike(one: Tool, other: Tool) -> float:
    """Share of words in common of the descriptions, 0 to 1; of the names where there are none."""
    a, b = (set(tokenize(tool.description or tool.name)) for tool in (one, other))
    return len(a & b) / len(a | b) if a | b else 0.0
