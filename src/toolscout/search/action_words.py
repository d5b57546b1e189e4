"""Which words of a request ask for which action: `take away` asks for `remove`, `put on` for `add`.

`data/action_words.txt` holds the pairs of opposite verbs, the cues of each verb that stands in names of tools, and the
cues of all verbs with one effect: "no longer" asks for something that is gone. A cue of several words holds if its
words come in this order, with at most `MAX_GAP` others between two of them. A cue behind a negation speaks against.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

from toolscout.indexes.words import tokenizer_for

__all__ = [
    "LITERAL_WEIGHT",
    "UNDO",
    "ActionCues",
    "Evidence",
    "count_stems",
    "get_cues",
    "get_effect_cues",
    "get_effects",
    "get_opposites",
    "get_reversals",
    "read_words",
    "tokenize_in_order",
]

ACTION_WORDS_FILE: Final = Path(__file__).with_name("data") / "action_words.txt"
MAX_GAP: Final = 4
MAX_PATTERNS: Final = 10_000
LITERAL_WEIGHT: Final = 3.0  # of the verb itself in the request
ENDING_WEIGHT: Final = 4.0  # of words that end something: they turn the verb beside them around
ENDINGS: Final = frozenset(("no longer", "no more", "any more", "anymore", "don t want", "get rid", "stop"))
QUESTION_WEIGHT: Final = 1.5
QUESTION_MARK: Final = "?"
EFFECTS: Final = "+-"
UNDO: Final = "undo"
COMMON_VERBS: Final = frozenset(
    ("get", "set", "make", "put", "show", "read", "list", "find", "to", "from", "in", "out", "up", "down", "on", "off")
) | {"first", "last", "next", "before", "after"}
"""Verbs and particles that stand in requests of any kind. As literals they have the weight of a cue."""
CLAUSE_END: Final = "|"
_CLAUSE: Final = re.compile(r"[.,;:!?]+(?=\s|$)|[，。；：！？]")
_NEGATION: Final = re.compile(r"(?:\b(?:not?|never|[a-z]+n t))(?: \w+){0,2} \Z")
_PAST: Final = re.compile(r"\b(?:was|were|been) \Z")  # "it was switched off" tells, and does not ask
_NEGATED_CUE: Final = re.compile(r"\b(?:not?|never|without|nobody|nothing|[a-z]+n t|any ?(?:more|longer))\b")


class Evidence(NamedTuple):
    """How strongly a request speaks for a verb, and against it: sums of the weights of cues."""

    weight: float
    against: float


class ActionCues:
    """The cues of one verb or of one effect, as they stand in a tokenised request."""

    def __init__(self, verb: str, cues: frozenset[str]) -> None:
        """Take the cues of a verb, or those of an effect, where there is none. They are sorted at their first use."""
        self._verb, self._cues = verb.replace("_", " "), cues
        self.is_answer = QUESTION_MARK in cues

    @functools.cached_property
    def _literal(self) -> tuple[str, ...] | None:
        return tuple(tokenize_in_order(self._verb)) if self._verb and self._verb not in COMMON_VERBS else None

    @functools.cached_property
    def _cues_by_first_stem(self) -> dict[str, list[tuple[tuple[str, ...], float, bool]]]:
        """Map the first stem of a cue to its stems, its weight, and whether it holds a negation itself."""
        weighted = {
            cue: ENDING_WEIGHT if cue in ENDINGS else float(cue.count(" ") + 1)
            for cue in self._cues
            if cue != QUESTION_MARK
        }
        if self._verb:
            weighted[self._verb] = 1.0 if self._verb in COMMON_VERBS else LITERAL_WEIGHT
        patterns: dict[tuple[str, ...], tuple[float, bool]] = {}  # cues with the same stems count once
        for cue, weight in weighted.items():
            stems = tuple(tokenize_in_order(cue))
            patterns[stems] = max(weight, patterns.get(stems, (0.0, False))[0]), bool(_NEGATED_CUE.search(cue))
        by_first = defaultdict(list)
        for stems, (weight, is_negated) in patterns.items():
            by_first[stems[0]].append((stems, weight, is_negated))
        return by_first

    def stands_in(self, words: str) -> bool:
        """Tell whether the verb itself stands in a request; False for the commonest verbs."""
        return self._literal is not None and _compile(self._literal).search(words) is not None

    def weigh(self, words: str, is_question: bool) -> Evidence:
        """Return how strongly a request asks for what the verb does, and how strongly it asks for the reverse.

        Args:
            words: the request, from `read_words`.
            is_question: whether it asks for information.
        """
        weight, against = QUESTION_WEIGHT if is_question and self.is_answer else 0.0, 0.0
        firsts = dict.fromkeys(words.split())
        for stems, value, is_negated in (cue for first in firsts for cue in self._cues_by_first_stem.get(first, ())):
            match = _compile(stems).search(words)
            if match is None or _PAST.search(words, 0, match.start()):
                continue
            if not is_negated and _NEGATION.search(words, 0, match.start()):
                against += value
            else:
                weight += value
        return Evidence(weight, against)


@functools.lru_cache(maxsize=MAX_PATTERNS)
def _compile(stems: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that finds the stems of a cue in those of a request."""
    pattern = rf"(?: \S+){{0,{MAX_GAP}}} ".join(re.escape(stem) for stem in stems)
    return re.compile(f"(?<!\\S){pattern}(?!\\S)")


def tokenize_in_order(text: str) -> list[str]:
    """Return the stems of all words of a text, in order."""
    return tokenizer_for("code", True, False, True)(text)


def read_words(text: str) -> str:
    """Return the stems of a text in order, with `CLAUSE_END` between its clauses."""
    clauses = (" ".join(tokenize_in_order(clause)) for clause in _CLAUSE.split(text))
    return f" {CLAUSE_END} ".join(clause for clause in clauses if clause)


def count_stems(words: str) -> int:
    """Return how many stems a request has; `words` is from `read_words`."""
    return sum(word != CLAUSE_END for word in words.split())


@functools.lru_cache(maxsize=1)
def _read_lines() -> list[str]:
    lines = ACTION_WORDS_FILE.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@functools.lru_cache(maxsize=1)
def _read_pairs() -> tuple[tuple[str, str], ...]:
    lines = [line for line in _read_lines() if "=" not in line and line[0] not in EFFECTS]
    pairs = [pair.partition("/") for line in lines for pair in line.split()]
    return tuple((first, second) for first, _, second in pairs)


@functools.lru_cache(maxsize=1)
def get_opposites() -> frozenset[frozenset[str]]:
    """Return the pairs of verbs of which a request asks for one or for the other."""
    return frozenset(map(frozenset, _read_pairs()))


@functools.lru_cache(maxsize=1)
def get_reversals() -> frozenset[tuple[str, str]]:
    """Return the pairs (verb, the verb that it undoes)."""
    pairs = set(_read_pairs())
    return frozenset((second, first) for first, second in pairs if (second, first) not in pairs)


@functools.lru_cache(maxsize=1)
def get_effects() -> dict[str, str]:
    """Return what verbs bring about: `+` if something is there afterwards, `-` if it is gone."""
    return {verb: line[0] for line in _read_lines() if line[0] in EFFECTS for verb in line[1:].split()}


@functools.lru_cache(maxsize=1)
def get_cues() -> dict[str, ActionCues]:
    """Return the cues of each verb. A verb with several words is joined by `_`."""
    return {verb: ActionCues(verb, words) for verb, words in _read_cues().items() if not verb.startswith("[")}


@functools.lru_cache(maxsize=1)
def get_effect_cues() -> dict[str, ActionCues]:
    """Return the cues of each effect, and those of `UNDO`: the second verb of a pair, which undoes the first."""
    return {verb.strip("[]"): ActionCues("", words) for verb, words in _read_cues().items() if verb.startswith("[")}


def _read_cues() -> dict[str, frozenset[str]]:
    cues: dict[str, frozenset[str]] = {}
    for line in _read_lines():
        verbs, equals, words = line.partition(" = ")
        group = frozenset(word.strip() for word in words.split(","))
        for verb in verbs.split() if equals else ():
            cues[verb] = cues.get(verb, frozenset()) | group
    return cues
