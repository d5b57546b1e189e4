"""Finds tools that a search misses or confuses, and advises what to change in their descriptions.

Each tool gets a few phrases that people say. A tool that its own phrases rarely find is hidden. Two tools are confused
if one is often first for phrases of the other. The advice names facts that anyone can check: a missing or short
description, a near-duplicate, words that occur only in the parameters.

A phrase keeps to the tool's own words: the first sentence of its description as an order, its name in words, and the
order with a few synonyms. Where the name is short, people say which service they mean, so its source is added.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from toolscout.encoders import split_identifiers
from toolscout.indexes.words import tokenize
from toolscout.learn.synthetic_queries import FUNCTION_WORDS, load_synonyms, sample_tools
from toolscout.search.pipeline import Decide, Pipeline, Stage
from toolscout.types import Hit, Search, Tool, digest, parameter_names, render

__all__ = ["PHRASES_PER_TOOL", "TEMPLATES", "ConfusedPair", "Lint", "LintFinding", "lint", "write_phrases"]

PHRASES_PER_TOOL: Final = 3
MAX_PHRASE_WORDS: Final = 14
MAX_SHORT_NAME_WORDS: Final = 3
REWORDING_RATE: Final = 0.25  # of the words that have synonyms
SERVER_WORDS: Final = frozenset(("mcp", "server", "servers", "api", "tool", "tools", "client", "local", "remote"))
TEMPLATES: Final = ("{}", "please {}", "can you {}?", "I want to {}", "I need to {}")
# What is removed from a description: a beginning such as "This tool is used to", brackets, and a list of parameters.
_PREAMBLE: Final = re.compile(
    r"^(?:(?:this|the|a|an) +)?(?:tool|function|endpoint|method|api)\b[\s:,]*"
    r"(?:(?:that|which|is used|can be used|used|lets you|allows you|to|for) +)*|^to +",
    re.IGNORECASE,
)
_BRACKETS: Final = re.compile(r"\s*(?:\([^)]*\)|\[[^\]]*\]|\{[^}]*\})")
_PARAMETER_LIST: Final = re.compile(
    r"\s*(?:\b(?:args|arguments|parameters|params|returns?|example|examples)\s*:|[([{|]).*", re.I
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s")
_IES: Final = re.compile(r"(?<=[^aeiou])ies$")
_ES: Final = re.compile(r"(?<=ch|sh|ss|zz)es$|(?<=x)es$")
LINT_DEPTH: Final = 5  # hits of a search that are looked at
SEARCH_BATCH: Final = 256  # phrases
MIN_FOUND_SHARE: Final = 0.5
"""A tool is hidden if a smaller share of its phrases finds it."""
DUPLICATE_OVERLAP: Final = 0.8
"""Jaccard overlap of words from which two descriptions are near-duplicates."""
FIT_SHARE: Final = 0.8
"""Share of a phrase's words that another tool has if the phrase could mean it too."""
PHRASE_FILLERS: Final = frozenset(("want", "need"))
MIN_DESCRIPTION_WORDS: Final = 4
MAX_NAMED_RIVALS: Final = 3


class LintFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that is hard to find.

    Attributes:
        tool: its id.
        found: share of its phrases that found it.
        missed: a phrase that did not find it.
        instead: ids of the tools that such phrases found instead, the most frequent first.
        causes: what makes it hard to find.
        fixes: what to do about each cause.
    """

    tool: str
    found: float
    missed: str
    instead: tuple[str, ...]
    causes: tuple[str, ...]
    fixes: tuple[str, ...]


class ConfusedPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two tools that a search confuses: one was the first hit for phrases of the other.

    Attributes:
        one: id of a tool.
        other: id of the other tool.
        times: how often that happened.
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
        asked: number of tools that phrases were made for.
        silent: ids of the tools without a description.
        hidden: the tools that fewer than half of their phrases found, the least found first.
        confused: the confused pairs, the most frequent first.

    In each list the tools come first whose sources the user can edit.
    """

    asked: int
    silent: tuple[str, ...]
    hidden: tuple[LintFinding, ...]
    confused: tuple[ConfusedPair, ...]


def lint(
    tools: Sequence[Tool],
    stage: Stage,
    *,
    max_tools: int = 1_000,
    seed: int = 0,
    visible: Callable[[Tool], bool] | None = None,
    editable: Collection[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Lint:
    """Search for each tool, or for a sample of them, and report hidden and confused tools.

    Args:
        tools: the tools to check, all of which `visible` must allow.
        stage: searches the tools. Its abstention is switched off.
        max_tools: maximum number of tools to search for; of a larger catalogue a sample is drawn.
        seed: seed of the phrases and of the sample.
        visible: which tools are searched; None: all.
        editable: names of the sources that the user can edit (`CatalogueManager.find_editable`).
        progress: called with how many phrases were searched for, and how many there are.
    """
    if isinstance(stage, Pipeline):  # without the part that abstains
        stage = Pipeline(part for part in stage.stages if not isinstance(part, Decide))
    by_id = {tool.id: tool for tool in tools}
    phrases = [
        (tool.id, phrase) for tool in sample_tools(tools, max_tools, seed) for phrase in write_phrases(tool, seed)
    ]
    tally = _search_for_tools(by_id, phrases, stage, visible, progress)
    hidden = [_explain_hidden(by_id, tool_id, tally) for tool_id in tally.tries if tally.is_hidden(tool_id)]
    swaps = [(by_id[one], by_id[other], times) for (one, other), times in tally.swaps.most_common() if times > 1]
    confused = [_describe_confusion(one, other, times) for one, other, times in swaps]

    def is_foreign(*ids: str) -> bool:
        return not any(by_id[tool_id].source in editable for tool_id in ids)

    silent = [tool.id for tool in tools if not tool.description.strip()]
    return Lint(
        asked=len(tally.tries),
        silent=tuple(sorted(silent, key=lambda tool_id: (is_foreign(tool_id), tool_id))),
        hidden=tuple(sorted(hidden, key=lambda finding: (is_foreign(finding.tool), finding.found, finding.tool))),
        confused=tuple(sorted(confused, key=lambda pair: is_foreign(pair.one, pair.other))),
    )


def _search_for_tools(
    by_id: Mapping[str, Tool],
    phrases: Sequence[tuple[str, str]],
    stage: Stage,
    visible: Callable[[Tool], bool] | None,
    progress: Callable[[int, int], None] | None,
) -> _Tally:
    """Search with the phrases, each with the id of its tool, and count what they find."""
    tally = _Tally()
    for start in range(0, len(phrases), SEARCH_BATCH):
        batch = phrases[start : start + SEARCH_BATCH]
        answers = stage([Search(query=text, k=LINT_DEPTH, visible=visible, split=False) for _, text in batch])
        for (tool_id, text), answer in zip(batch, answers, strict=True):
            first = by_id.get(answer.ids[0]) if answer.hits else None
            tally.count(tool_id, text, answer.hits[:LINT_DEPTH], fits=first is not None and _fits(first, text))
        if progress is not None:
            progress(start + len(batch), len(phrases))
    return tally


@dataclasses.dataclass
class _Tally:
    """Counts what the phrases of each tool found.

    Attributes:
        tries: tool id → number of its phrases.
        hits: tool id → number of its phrases that found it.
        instead: tool id → how often each other tool was a hit for a phrase that did not find the tool.
        missed: tool id → its first phrase that did not find it.
        swaps: pair of tool ids, ascending → how often one was the first hit for a phrase of the other.
    """

    tries: Counter[str] = dataclasses.field(default_factory=Counter)
    hits: Counter[str] = dataclasses.field(default_factory=Counter)
    instead: dict[str, Counter[str]] = dataclasses.field(default_factory=lambda: defaultdict(Counter))
    missed: dict[str, str] = dataclasses.field(default_factory=dict)
    swaps: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)

    def count(self, gold: str, text: str, hits: Sequence[Hit], *, fits: bool) -> None:
        """Count what one phrase of a tool found.

        A hit also finds the tool if the tool is folded into it: the same tool of another source (`Hit.similar`).

        Args:
            gold: id of the tool.
            text: the phrase.
            hits: the answer.
            fits: whether the phrase could mean the first hit; if not, the two tools are not confused.
        """
        is_right = [gold == hit.id or gold in hit.similar for hit in hits]
        self.tries[gold] += 1
        self.hits[gold] += any(is_right)
        if not any(is_right):
            self.instead[gold].update(hit.id for hit in hits)
            self.missed.setdefault(gold, text)
        if hits and not is_right[0] and fits:
            self.swaps[min(gold, hits[0].id), max(gold, hits[0].id)] += 1

    def found_share(self, tool_id: str) -> float:
        """Return the share of a tool's phrases that found it."""
        return self.hits[tool_id] / self.tries[tool_id]

    def is_hidden(self, tool_id: str) -> bool:
        """Tell whether too few of a tool's phrases found it."""
        return self.found_share(tool_id) < MIN_FOUND_SHARE


def _explain_hidden(tools: Mapping[str, Tool], tool_id: str, tally: _Tally) -> LintFinding:
    """Explain why a tool is hidden, with a fix for each cause.

    Args:
        tools: all tools, by id.
        tool_id: of the hidden tool.
        tally: what its phrases found.
    """
    tool = tools[tool_id]
    instead = [other for other, _ in tally.instead[tool_id].most_common(MAX_NAMED_RIVALS)]
    causes, fixes = [], []
    words = tokenize(tool.description)
    if len(words) < MIN_DESCRIPTION_WORDS:
        causes.append(f"its description has only {len(words)} words that a search can match")
        fixes.append("describe in a sentence what it does, to what, and what for")
    duplicates = [other for other in instead if _compute_word_overlap(tool, tools[other]) >= DUPLICATE_OVERLAP]
    if duplicates:
        causes.append(f"{duplicates[0]} has almost the same description")
        fixes.append(f"describe what it does that {duplicates[0]} does not, or remove one of them")
    undescribed = [name for name in parameter_names(tool) if not set(words) & set(tokenize(name))]
    if undescribed and not duplicates:
        causes.append(f"its description does not mention {', '.join(undescribed[:3])}")
        fixes.append(f"mention its parameters in the description: {', '.join(undescribed[:3])}")
    if not causes:
        causes.append("many other tools use the same words")
        fixes.append("describe what only this tool does, in the words that people ask with")
    return LintFinding(
        tool=tool_id,
        found=round(tally.found_share(tool_id), 3),
        missed=tally.missed[tool_id],
        instead=tuple(instead),
        causes=tuple(causes),
        fixes=tuple(fixes),
    )


def _fits(tool: Tool, text: str) -> bool:
    """Tell whether a phrase could mean a tool: the tool's name and texts have nearly all of its words."""
    words = set(tokenize(text)) - PHRASE_FILLERS
    return bool(words) and len(words & set(tokenize(render(tool)))) >= FIT_SHARE * len(words)


def _describe_confusion(one: Tool, other: Tool, times: int) -> ConfusedPair:
    """Describe two tools that were confused so many times, with a fix."""
    are_duplicates = _compute_word_overlap(one, other) >= DUPLICATE_OVERLAP
    fix = "describe in each when not to use it"
    if are_duplicates:
        fix = "remove one of them, or describe in each what the other does not do"
    return ConfusedPair(one=one.id, other=other.id, times=times, twins=are_duplicates, fix=fix)


def _compute_word_overlap(one: Tool, other: Tool) -> float:
    """Return the Jaccard overlap of the words of two descriptions, 0 to 1. A tool without one counts by its name."""
    words, other_words = (set(tokenize(tool.description or tool.name)) for tool in (one, other))
    return len(words & other_words) / len(words | other_words) if words | other_words else 0.0


def write_phrases(tool: Tool, seed: int = 0) -> list[str]:
    """Return the phrases for one tool, `PHRASES_PER_TOOL` at most, none twice.

    They are the first sentence of the description as an order, the name, and the order with synonyms.
    """
    rng = random.Random(digest("phrases/1", [seed, tool.id]))
    order = _make_order(tool)
    name = _name_tool(tool)
    phrases = [rng.choice(TEMPLATES).format(order or name), name]
    phrases.append(rng.choice(TEMPLATES).format(_reword(order or name, rng)))
    return list(dict.fromkeys(phrases))


def _make_order(tool: Tool) -> str:
    """Return the first sentence of the description as an order: "Gets the weather." becomes "get the weather".

    Returns "" if the sentence has fewer than two words.
    """
    text = _BRACKETS.sub("", " ".join(tool.description.split())).strip()
    sentence, *_ = _SENTENCE_END.split(text, maxsplit=1)
    words = _PARAMETER_LIST.sub("", _PREAMBLE.sub("", sentence)).strip(" .!?:;,-*#`").split()[:MAX_PHRASE_WORDS]
    while words and words[-1].casefold() in FUNCTION_WORDS:
        words.pop()
    if len(words) < 2:
        return ""
    verb, *others = words
    has_inner_capital = verb[1:] != verb[1:].lower()  # then it is a name, and stays as it is
    return " ".join([_strip_person(verb if has_inner_capital else verb.lower()), *others])


def _strip_person(verb: str) -> str:
    """Return a verb without the ending of the third person: "gets" becomes "get"."""
    if not verb.islower() or len(verb) < 4 or verb.endswith(("ss", "us", "is")):
        return verb
    for ending, replacement in ((_IES, "y"), (_ES, "")):
        plain = ending.sub(replacement, verb)
        if plain != verb:
            return plain
    return verb.removesuffix("s")


def _name_tool(tool: Tool) -> str:
    """Return the words of the name, and if they are few, also those of its service: "list issues in github"."""
    words = split_identifiers(tool.name).replace("-", " ").casefold().split()
    if len(words) > MAX_SHORT_NAME_WORDS:
        return " ".join(words)
    parent = tool.path[-1] if tool.path else tool.source
    *_, last_part = re.split(r"[/_@]", parent)
    service = [
        word
        for word in re.findall(r"[^\W_]+", split_identifiers(last_part).casefold())
        if word not in SERVER_WORDS and word not in words
    ]
    return " ".join([*words, *(["in", *service] if service else [])])


def _reword(order: str, rng: random.Random) -> str:
    """Replace some words by synonyms, chosen at random."""
    words = []
    for word in order.split():
        synonyms = load_synonyms().get(word.casefold(), ())
        words.append(rng.choice(synonyms) if synonyms and rng.random() < REWORDING_RATE else word)
    return " ".join(words)
