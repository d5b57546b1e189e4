"""Recognises requests that are nothing but greetings, thanks and small talk: they need no tool in any catalogue.

`data/small_talk.txt` holds the phrases, in the languages of the bundled encoder. Only a request that consists of such
phrases alone counts, beside a name: "good morning, Anna! how are you?". So no request for a tool is lost by it.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["is_small_talk"]

SMALL_TALK_FILE: Final = Path(__file__).with_name("data") / "small_talk.txt"
MAX_SMALL_TALK_CHARS: Final = 120
ADDITIONS: Final = "+"
_LETTERS: Final = re.compile(r"[^\W_]+")
_UNSPACED_LETTER: Final = "[\u3040-\u30ff\u3400-\u9fff]"  # scripts in which phrases follow each other without a space


def is_small_talk(text: str) -> bool:
    """Tell whether a request consists of greetings, thanks and small talk alone."""
    if len(text) > MAX_SMALL_TALK_CHARS:
        return False
    phrases = _compile_phrases()
    if not phrases.match(_normalise(text)):
        return False
    return any(phrases.fullmatch(_normalise(shorter)) for shorter in itertools.chain([text], _drop_names(text)))


def _drop_names(text: str) -> Iterator[str]:
    """Yield a text without each of its capitalised words but the first, which may be a name: "hello Anna"."""
    for word in list(_LETTERS.finditer(text))[1:]:
        if word[0].istitle():
            yield text[: word.start()] + text[word.end() :]


def _normalise(text: str) -> str:
    """Return the words of a text in small letters and without marks, a space between two of them."""
    spaced = "".join(
        letter if unicodedata.category(letter)[0] in "LMN" else " "
        for letter in unicodedata.normalize("NFD", text.casefold())
    )
    return " ".join("".join(letter for letter in spaced if not unicodedata.combining(letter)).split())


@functools.lru_cache(maxsize=1)
def _compile_phrases() -> re.Pattern[str]:
    """Return a pattern of one phrase or more, with additions between and behind them."""
    phrases: set[str] = set()
    additions: set[str] = set()
    for line in SMALL_TALK_FILE.read_text(encoding="utf-8").splitlines():
        key, _, words = line.partition(" = ")
        if not line.startswith("#"):
            (additions if key == ADDITIONS else phrases).update(map(_normalise, words.split(",")))
    phrase, addition = (_join_longest_first(group) for group in (phrases, additions))
    end = rf"(?: |\Z|(?<={_UNSPACED_LETTER}))"
    return re.compile(rf"(?:(?:{addition}){end})*(?:(?:{phrase}){end}(?:(?:{addition}){end})*)+")


def _join_longest_first(phrases: set[str]) -> str:
    return "|".join(map(re.escape, sorted(phrases, key=lambda phrase: (-len(phrase), phrase))))
