"""Writes what people say when they need a tool, for `lint`.

A phrase keeps to the tool's own words: the first sentence of its description as an order, its name in words, and the
order with a few synonyms. Where the name is short, people say which service they mean, so its source is added.
"""

from __future__ import annotations

import random
import re
from typing import Final

from toolscout.checks.synthetic_queries import FUNCTION_WORDS, load_synonyms
from toolscout.encoders import split_identifiers
from toolscout.types import Tool, digest

__all__ = ["PHRASES_PER_TOOL", "write_phrases"]

PHRASES_PER_TOOL: Final = 3
MAX_PHRASE_WORDS: Final = 14
MAX_SHORT_NAME_WORDS: Final = 3
REWORDING_RATE: Final = 0.25
SERVER_WORDS: Final = frozenset(("mcp", "server", "servers", "api", "tool", "tools", "client", "local", "remote"))
TEMPLATES: Final = ("{}", "please {}", "can you {}?", "I want to {}", "I need to {}")
_PREAMBLE: Final = re.compile(
    r"^(?:(?:this|the|a|an) +)?(?:tool|function|endpoint|method|api)\b[\s:,]*"
    r"(?:(?:that|which|is used|can be used|used|lets you|allows you|to|for) +)*|^to +",
    re.IGNORECASE,
)
_INSERT: Final = re.compile(r"\s*(?:\([^)]*\)|\[[^\]]*\]|\{[^}]*\})")
_END: Final = re.compile(r"\s*(?:\b(?:args|arguments|parameters|params|returns?|example|examples)\s*:|[([{|]).*", re.I)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s")
_IES: Final = re.compile(r"(?<=[^aeiou])ies$")
_ES: Final = re.compile(r"(?<=ch|sh|ss|zz)es$|(?<=x)es$")


def write_phrases(tool: Tool, seed: int = 0) -> list[str]:
    """Return the phrases for one tool, `PHRASES_PER_TOOL` at most, each once."""
    rng = random.Random(digest("phrases/1", [seed, tool.id]))
    order = _make_order(tool)
    name = _name_tool(tool)
    phrases = [rng.choice(TEMPLATES).format(order or name), name]
    phrases.append(rng.choice(TEMPLATES).format(_reword(order or name, rng)))
    return list(dict.fromkeys(phrases))


def _make_order(tool: Tool) -> str:
    """Return the first sentence of the description as an order; empty if there is none."""
    text = _INSERT.sub("", " ".join(tool.description.split())).strip()
    sentence = _SENTENCE_END.split(text, maxsplit=1)[0]
    words = _END.sub("", _PREAMBLE.sub("", sentence)).strip(" .!?:;,-*#`").split()[:MAX_PHRASE_WORDS]
    while words and words[-1].casefold() in FUNCTION_WORDS:
        words.pop()
    if len(words) < 2:
        return ""
    first = words[0] if words[0][1:] != words[0][1:].lower() else words[0].lower()
    return " ".join([_strip_person(first), *words[1:]])


def _strip_person(verb: str) -> str:
    """Return a verb without the ending of the third person: "gets" becomes "get"."""
    if not verb.islower() or len(verb) < 4 or verb.endswith(("ss", "us", "is")):
        return verb
    plain = _IES.sub("y", verb)
    plain = _ES.sub("", plain) if plain == verb else plain
    return plain[:-1] if plain == verb and verb.endswith("s") else plain


def _name_tool(tool: Tool) -> str:
    """Return the words of the name, and of its service if they are few."""
    words = split_identifiers(tool.name).replace("-", " ").casefold().split()
    if len(words) > MAX_SHORT_NAME_WORDS:
        return " ".join(words)
    parent = re.split(r"[/_@]", (*tool.path, tool.source)[0 if not tool.path else len(tool.path) - 1])[-1]
    service = [
        word for word in re.findall(r"[^\W_]+", split_identifiers(parent).casefold()) if word not in SERVER_WORDS
    ]
    service = [word for word in service if word not in words]
    return " ".join([*words, *(["in", *service] if service else [])])


def _reword(order: str, rng: random.Random) -> str:
    """Replace some words by synonyms."""
    words = []
    for word in order.split():
        synonyms = load_synonyms().get(word.casefold(), ())
        words.append(rng.choice(synonyms) if synonyms and rng.random() < REWORDING_RATE else word)
    return " ".join(words)
