"""Requests by rule, for a catalogue of which nobody has logged any: what its tools say, in other words.

A tool with parameters is a function: people command it, in much of its own words, and say values of its parameters. A
tool without is a service: people describe what they are about, in words of their own, and do not know its name. Some
requests need two tools or three, of one path or from anywhere; some need none. Every choice is drawn from a hash of the
seed and the tool, so that a tool is asked for alike whatever else the catalogue holds.

Rules cannot say how well people are served; they can say which way to search serves better
(`toolscout.checks.selftest`).
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

import msgspec

from toolscout.types import Tool, digest

__all__ = ["NO_TOOL", "Maker", "Probe", "chatter", "probes", "sample"]

MOST_WORDS: Final = 14  # of a command; longer descriptions are cut
SITUATION_WORDS: Final = (4, 8)
LITERAL: Final = 3  # words of a situation at least; one of them at least as the description has it
SWAPPED: Final = {"command": 0.4, "situation": 0.9}  # of the words that can be said otherwise
DROPPED: Final = {"command": 0.6, "situation": 0.9}  # of the words that no other tool has: askers do not know them
FEW: Final = 3  # a word that two or three tools have is left out so many times less often
BENT: Final = 0.4  # of the words stand in another number
BY_NAME: Final = 0.4  # of the commands say what the name says, where it is made of words
UNIONS: Final = {True: 0.4, False: 0.15}  # of requests, by whether the tool has parameters: functions are composed
NEIGHBOURLY: Final = 0.5  # of unions stay within one path
CHATTY: Final = 0.25  # of requests have something beside them that is no request

COMMANDS: Final = (
    "Please {}.",
    "{}.",
    "I need you to {}.",
    "Can you {}?",
    "Could you please {}?",
    "I would like to {}.",
    "I want to {}.",
    "Help me {}.",
)
SITUATIONS: Final = (
    "I'm looking for something about {}.",
    "What do you have for {}?",
    "Where do I go for {}?",
    "We are busy with {} this week.",
    "My sister asked me about {}, any suggestions?",
    "I'm not good at {}. What should I do?",
    "How do I get started with {}?",
    "Something to do with {}, please.",
)
BESIDE: Final = (
    "I just came home from work.",
    "It is for a friend of mine.",
    "There is no hurry.",
    "We talked about it yesterday.",
    "Thank you in advance!",
    "I have tried it twice already.",
)
NO_TOOL: Final = (
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
VALUES: Final = {"integer": ("3", "12", "250", "1000"), "number": ("0.5", "7.5", "42", "500"), "boolean": ("yes", "no")}
NAMES: Final = ("Lisbon", "ABC123", "Martin", "blue", "next Monday", "Acme", "2024-05-01", "Kenya", "premium", "north")
SMALL: Final = frozenset(
    (
        *("a", "an", "the", "of", "for", "to", "in", "on", "at", "by", "with", "and", "or", "from", "as", "is", "are"),
        *("be", "that", "this", "it", "its", "into", "over", "you", "your", "based", "their", "which", "can", "will"),
        *("any", "all", "using", "used", "use", "such", "given", "e", "g", "i", "user", "users", "tool", "api"),
        *("allows", "allow", "provides", "provide"),
    )
)
_WORD: Final = re.compile(r"[^\W\d_](?:[^\W\d_]|['’-])*|\d+")
_PARTS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A request made by rule.

    Attributes:
        id: of the request.
        text: what is asked.
        tools: ids of the tools that it needs.
        kind: command, situation or union.
    """

    id: str
    text: str
    tools: tuple[str, ...]
    kind: str


def sample(tools: Sequence[Tool], most: int, seed: int) -> list[Tool]:
    """The tools that say enough of themselves to be asked for, or `most` of them, drawn by the seed."""
    asked = [tool for tool in tools if _words(tool.description or "")]
    if len(asked) > most:
        asked = sorted(asked, key=lambda tool: _draw(tool.id, seed, "sample").random())[:most]
        asked.sort(key=lambda tool: tool.id)
    return asked


def probes(tools: Sequence[Tool], *, most: int = 1_000, seed: int = 0, unions: bool = True) -> list[Probe]:
    """Requests for the tools of a catalogue that say enough of themselves, one a tool, or of a sample of `most`.

    Args:
        tools: of the catalogue.
        most: requests at most.
        seed: of every choice.
        unions: whether some need several tools.
    """
    return Maker(tools, sample(tools, most, seed), unions=unions).probes(seed)


def chatter() -> tuple[Probe, ...]:
    """Requests that need no tool."""
    return tuple(Probe(id=f"none-{n}", text=text, tools=(), kind="no-tool") for n, text in enumerate(NO_TOOL))


class Maker:
    """Makes the requests of one catalogue."""

    def __init__(self, tools: Sequence[Tool], asked: Sequence[Tool], *, unions: bool = True) -> None:
        """Take the catalogue, the tools to ask for (`sample`), and whether some requests need several tools."""
        self.asked, self.unions = asked, unions
        self.holders = Counter(term for tool in tools for term in {_term(word) for word in _told(tool)})
        self.paths: dict[tuple[str, ...], list[Tool]] = defaultdict(list)
        for tool in asked:
            self.paths[tool.path].append(tool)

    def probes(self, seed: int) -> list[Probe]:
        """A request for each tool that is asked for."""
        return [self.probe(tool, seed) for tool in self.asked]

    def probe(self, tool: Tool, seed: int) -> Probe:
        """The request for a tool, and maybe for others at once."""
        rng = _draw(tool.id, seed, "probe")
        kind, text = self.single(tool, rng)
        needed = [tool]
        if self.unions and len(self.asked) > 3 and rng.random() < UNIONS[bool(_properties(tool))]:
            near = self.paths[tool.path]
            pool = near if len(near) > 1 and rng.random() < NEIGHBOURLY else self.asked
            others = [other for other in rng.sample(list(pool), min(3, len(pool))) if other.id != tool.id]
            needed += others[: rng.choice((1, 1, 2))]
            kind, text = "union", " ".join([text, *(self.single(other, rng)[1] for other in needed[1:])])
        if rng.random() < CHATTY:
            beside = rng.choice(BESIDE)
            text = f"{text} {beside}" if rng.random() < 0.5 else f"{beside} {text}"
        return Probe(id=f"p-{tool.id}", text=text, tools=tuple(sorted({each.id for each in needed})), kind=kind)

    def single(self, tool: Tool, rng: random.Random) -> tuple[str, str]:
        """The kind and the text of a request for one tool."""
        if _properties(tool):
            return "command", self.command(tool, rng)
        return "situation", self.situation(tool, rng)

    def command(self, tool: Tool, rng: random.Random) -> str:
        """What the name or the first sentence says, as an order, with values for some parameters."""
        named = [part.lower() for part in _PARTS.findall(tool.name) if part.isalpha()]
        words = _words(_first_sentence(tool.description))[:MOST_WORDS]
        if len(named) > 1 and rng.random() < BY_NAME:
            words = named
        text = " ".join(self.spoken(words, "command", rng))
        held = sorted(_properties(tool).items())
        values = [_value(*each, rng) for each in rng.sample(held, min(len(held), rng.randint(1, 3)))]
        order = rng.choice(COMMANDS).format(f"{text} with {' and '.join(values)}")
        return order[0].upper() + order[1:]

    def situation(self, tool: Tool, rng: random.Random) -> str:
        """A few things that the description speaks of, mostly in other words, and not by the tool's name."""
        named = {part.casefold() for part in _PARTS.findall(tool.name)}
        told = [word for word in _words(tool.description) if word.casefold() not in SMALL]
        telling = [word for word in dict.fromkeys(told) if word.casefold() not in named] or told
        telling = telling or _words(tool.description)
        count = min(len(telling), rng.randint(*SITUATION_WORDS))
        otherwise = [word for word in telling if word.casefold() in _wordings()]
        chosen = rng.sample(otherwise, min(count, len(otherwise)))
        left = [word for word in telling if word not in chosen]
        chosen += rng.sample(left, min(max(1, LITERAL - len(chosen)), len(left)))
        chosen.sort(key=telling.index)
        return rng.choice(SITUATIONS).format(" ".join(self.spoken(chosen, "situation", rng)))

    def spoken(self, words: Sequence[str], kind: str, rng: random.Random) -> list[str]:
        """Words as somebody says them who has not read them: others for some, and some left out, two stay at least."""
        said, left = [], len(words)
        for word in words:
            others = _wordings().get(word.casefold(), ())
            if others and rng.random() < SWAPPED[kind]:
                said.append(rng.choice(others))
            elif left <= 2 or rng.random() >= self.dropped(word, kind):
                said.append(_bent(word.lower(), rng) if word.isalpha() and word.casefold() not in SMALL else word)
            else:
                left -= 1
        return said

    def dropped(self, word: str, kind: str) -> float:
        """How often a word is left out: the fewer tools have it, the less likely an asker says it."""
        holders = max(1, self.holders[_term(word)])
        return DROPPED[kind] / holders if holders <= FEW else 0.0


def _told(tool: Tool) -> list[str]:
    return [*_PARTS.findall(tool.name), *_words(tool.description)]


def _term(word: str) -> str:
    return word.casefold().removesuffix("s")


def _bent(word: str, rng: random.Random) -> str:
    """The word, or its other number."""
    if len(word) < 4 or rng.random() >= BENT:
        return word
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else f"{word}s"


def _draw(tool: str, seed: int, what: str) -> random.Random:
    return random.Random(digest("probe/1", [what, seed, tool]))


def _value(name: str, schema: Any, rng: random.Random) -> str:
    """One parameter and a value: one that the schema names, else any of its type."""
    schema = schema if isinstance(schema, Mapping) else {}
    spoken = " ".join(_PARTS.findall(name)).lower() or name
    held = schema.get("enum") or schema.get("examples")
    kind = schema.get("type")
    if isinstance(held, list) and held:
        value = str(rng.choice(held))
    else:
        value = rng.choice(VALUES.get(kind, NAMES) if isinstance(kind, str) else NAMES)
    return f"{spoken} {value}"


def _properties(tool: Tool) -> Mapping[str, Any]:
    held = (tool.parameters or {}).get("properties")
    return held if isinstance(held, Mapping) else {}


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0]


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


@functools.cache
def _wordings() -> dict[str, tuple[str, ...]]:
    """Word → words that are used in its place."""
    lines = files("toolscout").joinpath("checks/data/wordings.txt").read_text(encoding="utf-8").splitlines()
    groups = (line.split() for line in lines if line and not line.startswith("#"))
    return {first: tuple(others) for first, *others in groups}
