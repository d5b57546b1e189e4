"""Which words of a request ask for which action: `take away` asks for `remove`, `put on` for `add`.

`data/action_words.txt` holds the pairs of opposite verbs, the cues of each verb that stands in names of tools, and the
cues of all verbs with one effect: "no longer" asks for something that is gone. A cue of several words holds if its
words come in this order in one clause, with at most `MAX_GAP` others between two of them. A cue behind a negation
speaks against. The first word of a clause counts more, a word behind "the" less, and a participle tells what was done.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

from toolscout.indexes.words import tokenizer_for

__all__ = [
    "BACK",
    "LITERAL_WEIGHT",
    "UNDO",
    "ActionCues",
    "Evidence",
    "RequestWords",
    "are_opposites",
    "find_verb",
    "get_cues",
    "get_effect_cues",
    "get_effects",
    "get_opposites",
    "get_reversals",
    "has_more_words",
    "read_words",
    "tokenize_in_order",
]

ACTION_WORDS_FILE: Final = Path(__file__).parents[1] / "data" / "action_words.txt"
MAX_GAP: Final = 4
MAX_PATTERNS: Final = 10_000
LITERAL_WEIGHT: Final = 3.0  # of the verb itself in the request
ENDING_WEIGHT: Final = 4.0  # of words that end something: they turn the verb beside them around
ENDINGS: Final = frozenset(("no longer", "no more", "any more", "anymore", "don t want", "get rid", "stop"))
QUESTION_WEIGHT: Final = 1.5
QUESTION_MARK: Final = "?"
EFFECTS: Final = "+-"
UNDO: Final = "undo"
BACK: Final = "back"
COMMON_VERBS: Final = frozenset(
    ("get", "set", "make", "put", "show", "read", "list", "find", "to", "from", "in", "out", "up", "down", "on", "off")
) | {"first", "last", "next", "before", "after"}
"""Verbs and particles that stand in requests of any kind. As literals they have the weight of a cue."""
CLAUSE_END: Final = "|"
CLAUSE_START: Final = ">"  # before the first word of a clause, behind "could you please"
TOLD: Final = "<"  # before a participle: "I archived it" tells what was done
TOLD_STEM: Final = "toldmark"  # the same in a text that is not yet tokenised
NAMED_THING: Final = "x"  # in place of words that name something
CLAUSE_MARKS: Final = frozenset((CLAUSE_END, CLAUSE_START, TOLD))
CLAUSE_START_WEIGHT: Final = 1.5  # factor of a cue with which a clause starts
NOUN_WEIGHT: Final = 0.5  # factor of a single word behind "the", "my": it may be a noun
TOLD_WEIGHT: Final = 1.0  # of the verb itself as a participle
NO_ACTION: Final = "[none]"
CLOSING_PARTICLES: Final = frozenset(("out", "off", "away", "down", "up", "in", "on", "back", "apart", "together")) | {
    *("hoch", "runter", "herunter", "ab", "an", "aus", "auf", "ein", "zu", "zuruck", "weg", "raus")
}
"""Stems that close a clause and belong to its verb, however far away that is."""
VERB_ENDINGS: Final = ("ation", "ing", "ion", "ed", "al", "s")
MIN_STEM_LETTERS: Final = 3
_CLAUSE: Final = re.compile(r"[.,;:!?]+(?=\s|$)|[，。；：！？]|\s(?=(?:but|and then|then|pero|mais|aber)\s)")
_QUOTATION: Final = re.compile(
    r'"[^"]{1,200}"|“[^”]{1,200}”|„[^“”]{1,200}[“”]|「[^」]{1,200}」|(?<!\w)\'[^\']{1,200}\'(?!\w)'
)
_QUOTATION_MARK: Final = re.compile(r"[\"“„「']")
_INNER_MARK: Final = re.compile(r"[./@]\b")  # without one there is no path
_PATH_OR_ADDRESS: Final = re.compile(r"[!-~]*\w[./@]\w[!-~]*", re.ASCII)  # a file, an address, a domain
_ENDING_OF_PARTICIPLE: Final = re.compile(r"[eE][dD]\b")
_TOLD_WORD: Final = re.compile(r"\b\w+[eE][dD]\b")
NEVER_TOLD: Final = ("need", "feed", "embed", "speed", "seed", "bed", "red", "unneeded")
_I_DID: Final = re.compile(
    r"[iI](?<!\w[iI]) "
    r"((?i:sent|put|set|made|bought|sold|built|began|ran|held|hid|kept|left|lent|paid|shut|took|wrote))\b"
)
_WISH: Final = re.compile(
    r"\b(?:be|being|gets?|wants?|needs?|like|keep|leave|make|have|has)\s+(?:(?!have|has|been)\w+\s+){0,3}?\Z",
    re.IGNORECASE,
)  # before a participle: "I want it archived" asks for it
_HAVE_JUST: Final = re.compile(
    r"(?:have|has)\s+(?:just|already|once|accidentally|only|ever|recently)?\s*", re.IGNORECASE
)
_POLITE_START: Final = re.compile(
    r"\A(?:(?:pleas|now|then|and|also|so|just|ok|okay|hey|hi|but|can you|could you|would you|will you|can i|can we"
    r"|i (?:want|need|would like|d like|wish)(?: you)? to|i ll|let s|let us|kind|help me(?: to)?|bitt|por favor) )*"
)
_NEGATION: Final = re.compile(r"(?:\b(?:not?|never|nobodi|noth|no one|[a-z]+n t))(?: [\w<]+){0,2} \Z")
_INNER_NEGATION: Final = re.compile(r" (?:not?|never|n t) ")
PAST_STEMS: Final = ("was", "were", "been")
NEGATING_STEMS: Final = ("no", "not", "never", "nobodi", "noth", "t")  # one of them stands in each negation
_PAST: Final = re.compile(r"\b(?:was|were|been)(?: <)? \Z")  # "it was switched off" tells, and does not ask
ARTICLES: Final = frozenset(
    ("a", "an", "the", "my", "your", "our", "his", "her", "their", "this", "that", "these", "s", "der", "die", "das")
) | {"den", "mein", "meine", "meinen", "ein", "eine", "einen", "el", "la", "mi", "le", "un", "une", "una"}
_NEGATED_CUE: Final = re.compile(r"\b(?:not?|never|without|nobody|nothing|[a-z]+n t|any ?(?:more|longer))\b")


class Evidence(NamedTuple):
    """How strongly a request speaks for a verb, and against it: sums of the weights of cues."""

    weight: float
    against: float


class RequestWords(NamedTuple):
    """A request as `read_words` returns it: its stems in order with `CLAUSE_MARKS`, the set of both, their count."""

    text: str
    stems: frozenset[str]
    n_stems: int

    def tells_of_past(self, cue: re.Match[str]) -> bool:
        """Tell whether "was" or the like stands before a cue."""
        return not self.stems.isdisjoint(PAST_STEMS) and bool(_PAST.search(self.text, 0, cue.start()))

    def negates(self, cue: re.Match[str]) -> bool:
        """Tell whether a negation stands before a cue or between its words."""
        if self.stems.isdisjoint(NEGATING_STEMS):
            return False
        return bool(_NEGATION.search(self.text, 0, cue.start()) or _INNER_NEGATION.search(cue[0]))


class _Cue:
    """A cue as its stems, with its weight. Its pattern is compiled when all its stems stand in a request."""

    __slots__ = ("_pattern", "is_negated", "stems", "weight")

    def __init__(self, stems: tuple[str, ...], weight: float, is_negated: bool) -> None:
        """Take what `ActionCues` knows; `is_negated` tells that the cue holds a negation itself."""
        self.stems, self.weight, self.is_negated = stems, weight, is_negated
        self._pattern: re.Pattern[str] | None = None

    def find(self, words: RequestWords) -> re.Match[str] | None:
        """Return the first place of the cue in one clause of a request."""
        if len(self.stems) > 1 and not words.stems.issuperset(self.stems):
            return None
        self._pattern = self._pattern or _compile(self.stems)
        return self._pattern.search(words.text)


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
    def _cues_by_first_stem(self) -> dict[str, list[_Cue]]:
        """Map the first stem of a cue to the cues with it."""
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
        by_first: defaultdict[str, list[_Cue]] = defaultdict(list)
        for stems, (weight, is_negated) in patterns.items():
            by_first[stems[0]].append(_Cue(stems, weight, is_negated))
        return by_first

    def stands_in(self, words: RequestWords) -> bool:
        """Tell whether the verb itself stands in a request, and not as told; False for the commonest verbs."""
        if not self._literal or not words.stems.issuperset(self._literal):
            return False
        places = _compile(self._literal).finditer(words.text)
        return any(not words.text.endswith(f"{TOLD} ", 0, place.start()) for place in places)

    def weigh(self, words: RequestWords, is_question: bool) -> Evidence:
        """Return how strongly a request asks for what the verb does, and how strongly it asks for the reverse.

        Args:
            words: the request, from `read_words`.
            is_question: whether it asks for information.
        """
        weight, against = QUESTION_WEIGHT if is_question and self.is_answer else 0.0, 0.0
        firsts = self._cues_by_first_stem.keys() & words.stems
        for cue in (cue for first in firsts for cue in self._cues_by_first_stem[first]):
            match = cue.find(words)
            if match is None or words.tells_of_past(match):
                continue
            value = cue.weight * self._find_factor(cue.stems, words.text, match.start())
            if not cue.is_negated and words.negates(match):
                against += value
            else:
                weight += value
        return Evidence(weight, against)

    def _find_factor(self, stems: tuple[str, ...], words: str, start: int) -> float:
        """Return the factor of a cue by the word before it."""
        factor = 1.0
        if stems == self._literal and words.endswith(f"{TOLD} ", 0, start):
            factor = TOLD_WEIGHT / LITERAL_WEIGHT
        if words.endswith(f"{CLAUSE_START} ", 0, start):
            return factor * CLAUSE_START_WEIGHT
        is_noun = len(stems) == 1 and words[: start - 1].rpartition(" ")[2] in ARTICLES
        return factor * (NOUN_WEIGHT if is_noun else 1.0)


@functools.lru_cache(maxsize=MAX_PATTERNS)
def _compile(stems: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that finds the stems of a cue in one clause of a request."""
    gap = rf"(?: [^\s{CLAUSE_END}]+)"
    *start, last = map(re.escape, stems)
    end = rf"{last}(?!\S)"
    if start:
        end = rf"{gap}{{0,{MAX_GAP}}} {end}"
    if start and stems[-1] in CLOSING_PARTICLES:
        end = rf"(?:{end}|{gap}* {last}(?= \{CLAUSE_END}|\Z))"
    return re.compile(r"(?<!\S)" + rf"{gap}{{0,{MAX_GAP}}} ".join(start) + end)


def tokenize_in_order(text: str) -> list[str]:
    """Return the stems of all words of a text, in order."""
    return tokenizer_for("code", True, False, True)(text)


def has_more_words(text: str, limit: int) -> bool:
    """Tell whether a text has more words than the limit. A quotation counts as one."""
    return len(text.split()) > limit and len(_QUOTATION.sub(f" {NAMED_THING} ", text).split()) > limit


def read_words(text: str) -> RequestWords:
    """Return the stems of a text in order, clause by clause. A quotation and a path become `NAMED_THING`."""
    if _QUOTATION_MARK.search(text):
        text = _QUOTATION.sub(f" {NAMED_THING} ", text)
    if _INNER_MARK.search(text):
        text = _PATH_OR_ADDRESS.sub(f" {NAMED_THING} ", text)
    parts = _CLAUSE.split(_mark_participles(text))
    clauses = [_POLITE_START.sub("", " ".join(_leave_idle_phrases_out(tokenize_in_order(part)))) for part in parts]
    words = f" {CLAUSE_END} ".join([f"{CLAUSE_START} {clause}" for clause in clauses if clause])
    marked = words.split()
    return RequestWords(words, frozenset(marked), len(marked) - sum(map(CLAUSE_MARKS.__contains__, marked)))


def _mark_participles(text: str) -> str:
    """Put `TOLD_STEM` before each participle, but those that somebody wishes: "have it archived"."""
    told_spans = (
        []
        if _ENDING_OF_PARTICIPLE.search(text) is None
        else [match.span() for match in _TOLD_WORD.finditer(text) if not match[0].lower().startswith(NEVER_TOLD)]
    )
    told_spans += [match.span(1) for match in _I_DID.finditer(text)]
    if not told_spans:
        return text
    parts, end = [], 0
    for start, stop in sorted(told_spans):
        wish = _WISH.search(text, end, start)
        is_wished = wish is not None and not _HAVE_JUST.fullmatch(wish[0])
        parts += [text[end:start], "" if is_wished else f"{TOLD_STEM} ", text[start:stop]]
        end = stop
    return "".join((*parts, text[end:]))


def _leave_idle_phrases_out(stems: list[str]) -> list[str]:
    """Put `NAMED_THING` in place of the phrases that ask for no action, and `TOLD` in place of its stem."""
    phrases, present = _get_idle_phrases(), set(stems)
    if not any(present.issuperset(some) for first in phrases.keys() & present for some in phrases[first]):
        return stems
    kept: list[str] = []
    place = 0
    while place < len(stems):
        phrase = next((one for one in phrases.get(stems[place], ()) if stems[place : place + len(one)] == one), None)
        kept.append(stems[place] if phrase is None else TOLD if phrase == [TOLD_STEM] else NAMED_THING)
        place += len(phrase or "1")
    return kept


@functools.lru_cache(maxsize=1)
def _get_idle_phrases() -> dict[str, list[list[str]]]:
    """Map a stem to the phrases with it that ask for no action, the longest first: "end of the month"."""
    phrases: defaultdict[str, list[list[str]]] = defaultdict(list)
    phrases[TOLD_STEM] = [[TOLD_STEM]]
    for phrase in sorted({" ".join(tokenize_in_order(phrase)) for phrase in _read_cues()[NO_ACTION]}, key=len)[::-1]:
        phrases[phrase.partition(" ")[0]].append(phrase.split())
    return dict(phrases)


@functools.lru_cache(maxsize=1)
def _read_lines() -> list[str]:
    lines = ACTION_WORDS_FILE.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@functools.lru_cache(maxsize=1)
def _read_pairs() -> tuple[tuple[str, str], ...]:
    lines = [line for line in _read_lines() if "=" not in line and line[0] not in EFFECTS]
    pairs = [pair.partition("/") for line in lines for pair in line.split()]
    return tuple(
        pair for firsts, _, seconds in pairs for pair in itertools.product(firsts.split("+"), seconds.split("+"))
    )


@functools.lru_cache(maxsize=1)
def get_opposites() -> frozenset[frozenset[str]]:
    """Return the pairs of verbs of which a request asks for one or for the other."""
    return frozenset(map(frozenset, _read_pairs()))


def are_opposites(verb: str, other: str) -> bool:
    """Tell whether a request asks for one of two verbs or for the other."""
    return frozenset((verb, other)) in get_opposites()


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


@functools.lru_cache(maxsize=MAX_PATTERNS)
def find_verb(word: str) -> str | None:
    """Return the verb with cues of which a word of a name is a form: `cancelling`, `deletion`. None: there is none."""
    verbs = get_cues()
    if word in verbs:
        return word
    for ending in VERB_ENDINGS:
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= MIN_STEM_LETTERS:
            single = stem[:-1] if stem[-1] == stem[-2] else stem
            known_verb = next((verb for verb in (stem, f"{stem}e", single) if verb in verbs), None)
            if known_verb is not None:
                return known_verb
    return None


@functools.lru_cache(maxsize=1)
def get_effect_cues() -> dict[str, ActionCues]:
    """Return the cues of each effect, and those of the second verb of a pair, which undoes the first.

    Those of `UNDO` hold whatever its effect is, those of `BACK` if something is there again afterwards.
    """
    return {
        verb.strip("[]"): ActionCues("", words)
        for verb, words in _read_cues().items()
        if verb[0] == "[" and verb != NO_ACTION
    }


@functools.lru_cache(maxsize=1)
def _read_cues() -> dict[str, frozenset[str]]:
    cues: dict[str, frozenset[str]] = {}
    for line in _read_lines():
        verbs, equals, words = line.partition(" = ")
        group = frozenset(filter(None, map(str.strip, words.split(","))))
        for verb in verbs.split() if equals else ():
            cues[verb] = cues.get(verb, frozenset()) | group
    return cues
