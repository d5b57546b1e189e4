"""Generates synthetic queries from tool definitions, for catalogues without logged queries.

A tool with parameters is treated as a function: people command it, with many of its own words, and give values for its
parameters. A tool without parameters is treated as a service: people describe their situation in words of their own and
do not know the tool's name. Some queries need two or three tools, of one path or of any; some need none. Every random
choice is seeded by a hash of the seed and the tool id. The query for a tool therefore does not depend on the rest of
the catalogue.

Synthetic queries cannot measure how well people are served. They can compare recipes (`toolscout.checks.selftest`).
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Final, Literal

import msgspec

from toolscout.types import Tool, digest

__all__ = [
    "CHAT_QUERIES",
    "QueryGenerator",
    "SyntheticQuery",
    "generate_queries",
    "make_chat_queries",
    "sample_tools",
]

Kind = Literal["command", "situation"]

MAX_COMMAND_WORDS: Final = 14
SITUATION_WORD_RANGE: Final = (4, 8)
MIN_SITUATION_WORDS: Final = 3  # a description may have fewer
SYNONYM_RATE: Final = {"command": 0.4, "situation": 0.9}  # of the words with a synonym, replaced by one
OMISSION_RATE: Final = {"command": 0.6, "situation": 0.9}  # of the words of one tool only, which people do not know
RARE_WORD_TOOLS: Final = 3  # words of more tools are never left out
NUMBER_CHANGE_RATE: Final = 0.4  # of the words, changed between singular and plural
COMMAND_BY_NAME_RATE: Final = 0.4  # of the commands, written with the words of the tool's name
UNION_RATE: Final = {"command": 0.4, "situation": 0.15}  # of the queries, which need several tools
UNION_WITHIN_PATH_RATE: Final = 0.5  # of the queries for several tools, which need tools of one path
SMALL_TALK_RATE: Final = 0.25  # of the queries, with a sentence beside them that asks for nothing

COMMAND_TEMPLATES: Final = (
    "Please {}.",
    "{}.",
    "I need you to {}.",
    "Can you {}?",
    "Could you please {}?",
    "I would like to {}.",
    "I want to {}.",
    "Help me {}.",
)
SITUATION_TEMPLATES: Final = (
    "I'm looking for something about {}.",
    "What do you have for {}?",
    "Where do I go for {}?",
    "We are busy with {} this week.",
    "My sister asked me about {}, any suggestions?",
    "I'm not good at {}. What should I do?",
    "How do I get started with {}?",
    "Something to do with {}, please.",
)
SMALL_TALK: Final = (
    "I just came home from work.",
    "It is for a friend of mine.",
    "There is no hurry.",
    "We talked about it yesterday.",
    "Thank you in advance!",
    "I have tried it twice already.",
)
CHAT_QUERIES: Final = (
    "Hello, how are you today?",
    "Thanks, that was very kind of you.",
    "Tell me something nice.",
    "What do you think about being alone?",
    "Why do people laugh?",
    "Good morning!",
    "I feel a bit sad and cannot say why.",
    "Is it wrong to lie to protect somebody?",
    "Who are you?",
    "Never mind, forget what I said.",
    "Would you rather be early or late?",
    "Explain to me why the sky is blue.",
)
VALUES_BY_TYPE: Final = {
    "integer": ("3", "12", "250", "1000"),
    "number": ("0.5", "7.5", "42", "500"),
    "boolean": ("yes", "no"),
}
TEXT_VALUES: Final = (
    "Lisbon",
    "ABC123",
    "Martin",
    "blue",
    "next Monday",
    "Acme",
    "2024-05-01",
    "Kenya",
    "premium",
    "north",
)
FUNCTION_WORDS: Final = frozenset(
    (
        *("a", "an", "the", "of", "for", "to", "in", "on", "at", "by", "with", "and", "or", "from", "as", "is", "are"),
        *("be", "that", "this", "it", "its", "into", "over", "you", "your", "based", "their", "which", "can", "will"),
        *("any", "all", "using", "used", "use", "such", "given", "e", "g", "i", "user", "users", "tool", "api"),
        *("allows", "allow", "provides", "provide"),
    )
)
_WORD: Final = re.compile(r"[^\W\d_](?:[^\W\d_]|['’-])*|\d+")
_NAME_PART: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


class SyntheticQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query with its gold tools, made by rule.

    Attributes:
        id: identifies the query.
        text: the query.
        tools: ids of the gold tools.
        kind: command, situation, union (of several tools), no-tool, or logged (from the journal, in a selftest).
    """

    id: str
    text: str
    tools: tuple[str, ...]
    kind: str


def sample_tools(tools: Sequence[Tool], max_tools: int, seed: int) -> list[Tool]:
    """Return the tools with a description, or a seeded sample of `max_tools` of them."""
    described = [tool for tool in tools if _find_words(tool.description or "")]
    if len(described) > max_tools:
        described = sorted(described, key=lambda tool: _seed_rng(tool.id, seed, "sample").random())[:max_tools]
        described.sort(key=lambda tool: tool.id)
    return described


def generate_queries(
    tools: Sequence[Tool], *, max_queries: int = 1_000, seed: int = 0, unions: bool = True
) -> list[SyntheticQuery]:
    """Generate one query for each described tool of a catalogue, or for a sample of them.

    Args:
        tools: the catalogue.
        max_queries: upper bound; a larger catalogue is sampled.
        seed: seeds every random choice.
        unions: whether some queries need several tools.
    """
    return QueryGenerator(tools, sample_tools(tools, max_queries, seed), unions=unions).generate(seed)


def make_chat_queries() -> tuple[SyntheticQuery, ...]:
    """Return queries that need no tool."""
    return tuple(
        SyntheticQuery(id=f"none-{n}", text=text, tools=(), kind="no-tool") for n, text in enumerate(CHAT_QUERIES)
    )


class QueryGenerator:
    """Generates the synthetic queries of one catalogue."""

    def __init__(self, tools: Sequence[Tool], targets: Sequence[Tool], *, unions: bool = True) -> None:
        """Count how many tools have each word.

        Args:
            tools: the catalogue.
            targets: the tools to generate queries for; see `sample_tools`.
            unions: whether some queries need several tools.
        """
        self.targets, self.unions = targets, unions
        self.tool_counts = Counter(word for tool in tools for word in {_fold_word(w) for w in _list_words(tool)})
        # path → its targets, which are siblings
        self.tools_by_path: dict[tuple[str, ...], list[Tool]] = defaultdict(list)
        for tool in targets:
            self.tools_by_path[tool.path].append(tool)

    def generate(self, seed: int) -> list[SyntheticQuery]:
        """Generate a query for each target."""
        return [self.generate_for(tool, seed) for tool in self.targets]

    def generate_for(self, tool: Tool, seed: int) -> SyntheticQuery:
        """Generate the query for one tool; it may need up to two other tools too."""
        rng = _seed_rng(tool.id, seed, "probe")
        kind, text = self.write_request(tool, rng)
        gold = [tool]
        if self.unions and len(self.targets) > 3 and rng.random() < UNION_RATE[kind]:
            kind = "union"
            for partner in self._draw_partners(tool, rng):
                gold.append(partner)
                _, partner_text = self.write_request(partner, rng)
                text = f"{text} {partner_text}"
        if rng.random() < SMALL_TALK_RATE:
            sentence = rng.choice(SMALL_TALK)
            text = f"{text} {sentence}" if rng.random() < 0.5 else f"{sentence} {text}"
        return SyntheticQuery(id=f"p-{tool.id}", text=text, tools=tuple(sorted({t.id for t in gold})), kind=kind)

    def _draw_partners(self, tool: Tool, rng: random.Random) -> list[Tool]:
        """Return one or two other tools for a query that needs several."""
        siblings = self.tools_by_path[tool.path]
        is_within_path = len(siblings) > 1 and rng.random() < UNION_WITHIN_PATH_RATE
        pool = siblings if is_within_path else self.targets
        drawn = rng.sample(list(pool), min(3, len(pool)))  # one more than needed, since the tool itself may be drawn
        count = rng.choice((1, 1, 2))
        return [partner for partner in drawn if partner.id != tool.id][:count]

    def write_request(self, tool: Tool, rng: random.Random) -> tuple[str, str]:
        """Return the kind and the text of a request for one tool."""
        if _read_properties(tool):
            return "command", self.write_command(tool, rng)
        return "situation", self.write_situation(tool, rng)

    def write_command(self, tool: Tool, rng: random.Random) -> str:
        """Write an order from the name or the first sentence, with values for one to three parameters."""
        name_words = [part.lower() for part in _NAME_PART.findall(tool.name) if part.isalpha()]
        words = _find_words(_first_sentence(tool.description))[:MAX_COMMAND_WORDS]
        if len(name_words) > 1 and rng.random() < COMMAND_BY_NAME_RATE:
            words = name_words
        text = " ".join(self.paraphrase(words, "command", rng))
        properties = sorted(_read_properties(tool).items())
        n_values = min(len(properties), rng.randint(1, 3))
        values = [_write_value(name, schema, rng) for name, schema in rng.sample(properties, n_values)]
        command = rng.choice(COMMAND_TEMPLATES).format(f"{text} with {' and '.join(values)}")
        return command[0].upper() + command[1:]

    def write_situation(self, tool: Tool, rng: random.Random) -> str:
        """Describe a situation with some words of the description, in their order, without the tool's name.

        Words with a synonym are preferred, because `paraphrase` can replace them. One other word is added, or more if
        the situation would have fewer than `MIN_SITUATION_WORDS`.
        """
        name_parts = {part.casefold() for part in _NAME_PART.findall(tool.name)}
        content = [word for word in _find_words(tool.description) if word.casefold() not in FUNCTION_WORDS]
        nameless = [word for word in dict.fromkeys(content) if word.casefold() not in name_parts]
        candidates = nameless or content or _find_words(tool.description)
        max_words = min(len(candidates), rng.randint(*SITUATION_WORD_RANGE))
        replaceable = [word for word in candidates if word.casefold() in load_synonyms()]
        chosen = rng.sample(replaceable, min(max_words, len(replaceable)))
        rest = [word for word in candidates if word not in chosen]
        n_more = min(max(1, MIN_SITUATION_WORDS - len(chosen)), len(rest))
        chosen += rng.sample(rest, n_more)
        chosen.sort(key=candidates.index)
        return rng.choice(SITUATION_TEMPLATES).format(" ".join(self.paraphrase(chosen, "situation", rng)))

    def paraphrase(self, words: Sequence[str], kind: Kind, rng: random.Random) -> list[str]:
        """Reword a text as somebody would who has not read the description.

        Some words are replaced by synonyms, some change between singular and plural, and some that few tools have are
        left out. At least two words remain.
        """
        paraphrased, remaining = [], len(words)
        for word in words:
            synonyms = load_synonyms().get(word.casefold(), ())
            if synonyms and rng.random() < SYNONYM_RATE[kind]:
                paraphrased.append(rng.choice(synonyms))
            elif remaining > 2 and rng.random() < self.omission_rate(word, kind):
                remaining -= 1
            elif word.isalpha() and word.casefold() not in FUNCTION_WORDS:
                paraphrased.append(_change_number(word.lower(), rng))
            else:
                paraphrased.append(word)
        return paraphrased

    def omission_rate(self, word: str, kind: Kind) -> float:
        """Return the probability with which a word is left out: the fewer tools have it, the higher."""
        n_tools = max(1, self.tool_counts[_fold_word(word)])
        return OMISSION_RATE[kind] / n_tools if n_tools <= RARE_WORD_TOOLS else 0.0


def _list_words(tool: Tool) -> list[str]:
    """Return the words of a tool's name and description, repeated ones too."""
    return [*_NAME_PART.findall(tool.name), *_find_words(tool.description)]


def _fold_word(word: str) -> str:
    """Return a word in the form in which it is counted: lower case, singular."""
    return word.casefold().removesuffix("s")


def _change_number(word: str, rng: random.Random) -> str:
    """Return the word, or with a probability of `NUMBER_CHANGE_RATE` its plural or singular."""
    if len(word) < 4 or rng.random() >= NUMBER_CHANGE_RATE:
        return word
    is_plural = word.endswith("s") and not word.endswith("ss")
    return word.removesuffix("s") if is_plural else f"{word}s"


def _seed_rng(tool: str, seed: int, purpose: str) -> random.Random:
    """Return the random numbers for a tool, by its id. Each purpose has its own, so that none shifts another."""
    return random.Random(digest("probe/1", [purpose, seed, tool]))


def _write_value(name: str, schema: object, rng: random.Random) -> str:
    """Write the words of a parameter's name and a value: one that the schema lists, else any of its type."""
    schema = schema if isinstance(schema, Mapping) else {}
    name_words = " ".join(_NAME_PART.findall(name)).lower() or name
    values = schema.get("enum") or schema.get("examples")
    if not isinstance(values, list) or not values:
        json_type = schema.get("type")
        values = VALUES_BY_TYPE.get(json_type, TEXT_VALUES) if isinstance(json_type, str) else TEXT_VALUES
    return f"{name_words} {rng.choice(values)!s}"


def _read_properties(tool: Tool) -> Mapping[str, object]:
    """Return name → schema of the tool's parameters; empty if it has none, or its schema is malformed."""
    properties = (tool.parameters or {}).get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0]


def _find_words(text: str) -> list[str]:
    return _WORD.findall(text)


@functools.cache
def load_synonyms() -> dict[str, tuple[str, ...]]:
    """Read the synonyms: word → words that people use instead."""
    lines = files("toolscout").joinpath("learn/data/synonyms.txt").read_text(encoding="utf-8").splitlines()
    groups = (line.split() for line in lines if line and not line.startswith("#"))
    return {first: tuple(synonyms) for first, *synonyms in groups}
