"""Which words of a request ask for which action: `take away` asks for `remove`, `put on` for `add`.

`data/action_words.txt` holds the pairs of opposite verbs, and the cues of each verb that stands in names of tools. A
cue of several words holds if its words come in this order, with at most `MAX_GAP` others between two of them.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

from toolscout.indexes.words import tokenizer_for

__all__ = ["LITERAL_WEIGHT", "ActionCues", "get_cues", "get_opposites", "tokenize_in_order"]

ACTION_WORDS_FILE: Final = Path(__file__).with_name("data") / "action_words.txt"
MAX_GAP: Final = 4
LITERAL_WEIGHT: Final = 3.0  # of the verb itself in the request
ENDING_WEIGHT: Final = 4.0  # of words that end something: they turn the verb beside them around
ENDINGS: Final = frozenset(("no longer", "no more", "any more", "anymore", "don t want", "get rid", "stop"))
QUESTION_WEIGHT: Final = 1.5
QUESTION_MARK: Final = "?"
COMMON_VERBS: Final = frozenset(
    ("get", "set", "make", "put", "show", "read", "list", "find", "to", "from", "in", "out", "up", "down", "on", "off")
) | {"first", "last", "next", "before", "after"}
"""Verbs and particles that stand in requests of any kind. As literals they have the weight of a cue."""


class ActionCues:
    """The cues of one verb, as they stand in a tokenised request."""

    def __init__(self, verb: str, cues: frozenset[str]) -> None:
        """Take the cues of a verb. They are compiled when a request is first compared with them."""
        self._verb, self._cues = verb, cues
        self.is_answer = QUESTION_MARK in cues

    @functools.cached_property
    def _literal(self) -> re.Pattern[str] | None:
        return None if self._verb in COMMON_VERBS else _compile(self._verb.replace("_", " "))

    @functools.cached_property
    def _patterns(self) -> tuple[tuple[re.Pattern[str], float], ...]:
        weighted = {
            cue: ENDING_WEIGHT if cue in ENDINGS else float(cue.count(" ") + 1)
            for cue in self._cues
            if cue != QUESTION_MARK
        }
        weighted[self._verb.replace("_", " ")] = 1.0 if self._verb in COMMON_VERBS else LITERAL_WEIGHT
        patterns: dict[re.Pattern[str], float] = {}  # cues with the same stems count once
        for cue, weight in weighted.items():
            patterns[_compile(cue)] = max(weight, patterns.get(_compile(cue), 0.0))
        return tuple(patterns.items())

    def stands_in(self, words: str) -> bool:
        """Tell whether the verb itself stands in a request; False for the commonest verbs."""
        return self._literal is not None and self._literal.search(words) is not None

    def weigh(self, words: str, is_question: bool) -> float:
        """Return how strongly a request asks for what the verb does: the sum of the weights of its cues.

        Args:
            words: the request, from `tokenize_in_order`, joined by blanks.
            is_question: whether it asks for information.
        """
        return sum(weight for pattern, weight in self._patterns if pattern.search(words)) + (
            QUESTION_WEIGHT if is_question and self.is_answer else 0.0
        )


def _compile(cue: str) -> re.Pattern[str]:
    """Return a pattern that finds a cue in the stems of a request. Equal patterns are one object (`re` caches them)."""
    stems = rf"(?: \S+){{0,{MAX_GAP}}} ".join(re.escape(word) for word in tokenize_in_order(cue))
    return re.compile(f"(?<!\\S){stems}(?!\\S)")


def tokenize_in_order(text: str) -> list[str]:
    """Return the stems of all words of a text, in order."""
    return tokenizer_for("code", True, False, True)(text)


@functools.lru_cache(maxsize=1)
def _read_lines() -> list[str]:
    lines = ACTION_WORDS_FILE.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@functools.lru_cache(maxsize=1)
def get_opposites() -> frozenset[frozenset[str]]:
    """Return the pairs of verbs of which a request asks for one or for the other."""
    return frozenset(frozenset(pair.split("/")) for line in _read_lines() if "=" not in line for pair in line.split())


@functools.lru_cache(maxsize=1)
def get_cues() -> dict[str, ActionCues]:
    """Return the cues of each verb. A verb with several words is joined by `_`."""
    cues: dict[str, frozenset[str]] = {}
    for line in _read_lines():
        verbs, equals, words = line.partition(" = ")
        group = frozenset(word.strip() for word in words.split(","))
        for verb in verbs.split() if equals else ():
            cues[verb] = cues.get(verb, frozenset()) | group
    return {verb: ActionCues(verb, words) for verb, words in cues.items()}
