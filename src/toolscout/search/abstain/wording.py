"""Reads from the words of a request, beside its vector, whether it needs a tool.

`mark_terms` returns the terms from which the need is estimated: "poem" and "explain" are signs of chat. Only which
terms occur counts. The form of the text does not: its length, its lines, whether it is a question.

`is_small_talk` recognises requests that are nothing but greetings, thanks and small talk: they need no tool in any
catalogue. `data/small_talk.txt` has the phrases, in the languages of the bundled encoder. Only a request of such
phrases alone counts, beside a name: "good morning, Anna! how are you?". So no request for a tool is lost by it.

`names_object` tells whether a short request names the object of its best tool: "write down a note" and `add_note`. The
need of a request is estimated from its own words for the most part, and "write" is a sign of chat. But who names the
object of the tool that ranks first asks for this tool, whatever the verb is. The same holds for an everyday phrase
(`search.everyday`), if one of the first tools has the words that it adds (`serves_phrase`).
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from toolscout.arrays import Vectors
from toolscout.encoders import split_identifiers
from toolscout.indexes.words import list_stems_in_order
from toolscout.search.everyday import ExpandedWords
from toolscout.search.opposites import get_cues

__all__ = ["TERMS_VIEW", "find_terms", "is_small_talk", "mark_terms", "names_object", "serves_phrase"]

TERMS_VIEW: Final = "terms"
MAX_CACHED_REQUESTS: Final = 64
MAX_CHARS_READ: Final = 600  # of a request; long prompts say at the beginning what is wanted
SMALL_TALK_FILE: Final = Path(__file__).with_name("data") / "small_talk.txt"
MAX_SMALL_TALK_CHARS: Final = 120
ADDITIONS: Final = "+"  # begins the line of words that may stand beside small talk, where others have a language
_LETTERS: Final = re.compile(r"[^\W_]+")
_WORD_CATEGORIES: Final = "LMN"  # Unicode's letters, marks and numbers
_UNSPACED_LETTER: Final = "[\u3040-\u30ff\u3400-\u9fff]"  # scripts in which phrases follow each other without a space
MAX_NAMING_WORDS: Final = 12  # longer requests share a word with some tool by chance
MIN_OBJECT_LETTERS: Final = 3
MAX_SERVING_TOOLS: Final = 3  # first tools that may serve a phrase
MIN_SERVED_WORDS: Final = 2  # words of those that a phrase adds, which a tool must have to serve it
_REQUEST_WORD: Final = re.compile(r"\w+")
_NAME_WORD: Final = re.compile(r"[^\W_]+")


# --- terms ------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=MAX_CACHED_REQUESTS)
def find_terms(text: str) -> frozenset[str]:
    """Return the terms of a request. They are cached, because a search asks for the terms of each step twice."""
    return frozenset(list_stems_in_order(text[:MAX_CHARS_READ]))


@functools.lru_cache(maxsize=4)
def _number_terms(terms: tuple[str, ...]) -> dict[str, int]:
    """Map each term to its column."""
    return {term: column for column, term in enumerate(terms)}


def mark_terms(texts: Sequence[str], terms: tuple[str, ...]) -> dict[str, Vectors]:
    """Return the view `terms` of requests: its name → a unit row for each request, (n, terms).

    A row has equal values for the terms that occur, and zeros for the others. Without terms there is no such view.
    """
    if not terms:
        return {}
    columns = _number_terms(terms)
    rows = np.zeros((len(texts), len(terms)), dtype=np.float32)
    for row, text in zip(rows, texts, strict=True):
        row[[columns[term] for term in find_terms(text) & columns.keys()]] = 1.0
    return {TERMS_VIEW: rows / np.sqrt(np.maximum(rows.sum(axis=1, keepdims=True), 1.0))}


# --- small talk -------------------------------------------------------------------------------------------------------


def is_small_talk(text: str) -> bool:
    """Tell whether a request consists of greetings, thanks and small talk alone."""
    if len(text) > MAX_SMALL_TALK_CHARS:
        return False
    phrases = _compile_phrases()
    if not phrases.match(_normalise(text)):  # most requests do not even begin with a phrase
        return False
    texts = itertools.chain([text], _drop_names(text))
    return any(phrases.fullmatch(_normalise(text)) for text in texts)


def _drop_names(text: str) -> Iterator[str]:
    """Yield the text without one word, for each capitalised word behind the first: it may be a name ("hello Anna")."""
    later_words = list(_LETTERS.finditer(text))[1:]
    for word in later_words:
        if word[0].istitle():
            yield text[: word.start()] + text[word.end() :]


def _normalise(text: str) -> str:
    """Return the words of a text in small letters, without accents and punctuation, with a space between two words."""
    decomposed = unicodedata.normalize("NFD", text.casefold())  # makes each accent a character of its own
    plain = (char for char in decomposed if not unicodedata.combining(char))
    spaced = "".join(char if unicodedata.category(char)[0] in _WORD_CATEGORIES else " " for char in plain)
    return " ".join(spaced.split())


@functools.lru_cache(maxsize=1)
def _compile_phrases() -> re.Pattern[str]:
    """Return a pattern of one phrase of small talk or more, with additions before, between and behind them."""
    phrases: set[str] = set()
    additions: set[str] = set()
    for line in SMALL_TALK_FILE.read_text(encoding="utf-8").splitlines():
        key, _, words = line.partition(" = ")
        if not line.startswith("#"):
            group = additions if key == ADDITIONS else phrases
            group.update(map(_normalise, words.split(",")))
    word_end = rf"(?: |\Z|(?<={_UNSPACED_LETTER}))"
    phrase = rf"(?:{_join_longest_first(phrases)}){word_end}"
    any_additions = rf"(?:(?:{_join_longest_first(additions)}){word_end})*"
    return re.compile(rf"{any_additions}(?:{phrase}{any_additions})+")


def _join_longest_first(phrases: set[str]) -> str:
    """Return a pattern for any of the phrases. Longer ones come first, so that they are not cut short."""
    return "|".join(map(re.escape, sorted(phrases, key=lambda phrase: (-len(phrase), phrase))))


# --- what a tool does -------------------------------------------------------------------------------------------------


def names_object(text: str, tool_id: str) -> bool:
    """Tell whether a request of few words has all words of a tool's name but its verb.

    A name without a verb that we know (`search.opposites.get_cues`) has no object.
    """
    if len(_REQUEST_WORD.findall(text)) > MAX_NAMING_WORDS:
        return False
    words = _NAME_WORD.findall(split_identifiers(tool_id.rpartition("/")[2]).lower())
    object_words = [word for word in words if word not in get_cues()]
    if len(object_words) == len(words):
        return False  # the name has no verb
    stems = {stem for word in object_words for stem in list_stems_in_order(word) if len(stem) >= MIN_OBJECT_LETTERS}
    return bool(stems) and stems <= set(list_stems_in_order(text))


def serves_phrase(text: str, tool_ids: Sequence[str], words: ExpandedWords) -> bool:
    """Tell whether a request of few words has an everyday phrase of several words that one of its first tools serves.

    A tool serves a phrase if it has enough of the words that the phrase adds. `tool_ids`: best first.
    """
    if len(_REQUEST_WORD.findall(text)) > MAX_NAMING_WORDS:
        return False
    additions = [addition for addition in words.find_additions(text) if " " in addition.phrase]
    first = tool_ids[:MAX_SERVING_TOOLS]
    return any(words.count_added_words(addition, first) >= MIN_SERVED_WORDS for addition in additions)
