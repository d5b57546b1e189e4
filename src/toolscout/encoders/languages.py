"""Tells whether a text is in a language that an encoder understands, cheaply and without a model.

An encoder declares its `languages`: codes such as `en`, or None for all languages or where it is not known. Only
English can be told from other languages here, by three signs: the script, function words of English (`what`, `please`)
or of other languages (`und`, `para`), and the share of words that the bundled encoder knows as a whole.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable
from typing import Final

from toolscout.encoders.encoder import split_identifiers
from toolscout.vocabulary import list_words

__all__ = ["is_english", "is_foreign", "is_plainly_foreign"]

MAX_REMEMBERED_LANGUAGES: Final = 256
MAX_JUDGED_CHARS: Final = 2_000
MAX_OTHER_SCRIPT_SHARE: Final = 0.25  # of the letters; with more letters that are not Latin, the script is another one
MIN_FOREIGN_LEAD: Final = 2  # function words of other languages beyond those of English: then a text is foreign
MIN_KNOWN_SHARE: Final = 0.5  # of the words; with fewer known ones a text is not English, whatever its function words
MIN_KNOWN_SHARE_UNSUPPORTED: Final = 0.8  # the same for a text whose function words do not show that it is English

_LATIN_LETTERS: Final = r"a-zA-Z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff"
_LATIN_WORD: Final = re.compile(f"[{_LATIN_LETTERS}]+")
ADDRESS_MARKS: Final = ("://", "@", "www.")
_ADDRESS: Final = re.compile(r"(?<!\S)(?:[^\s:@]*(?:://|@)|www\.)\S*")  # its words are of no language

#: Function words of English that the other languages below seldom use.
ENGLISH_WORDS: Final = frozenset(list_words("function_words", "en"))
#: Function words of other languages in Latin script, without those that are frequent in English requests too.
OTHER_WORDS: Final = frozenset(list_words("function_words")) - ENGLISH_WORDS


def is_english(text: str, is_known: Callable[[str], bool]) -> bool:
    """Tell whether a text is surely English. A text without words, such as `2+2`, counts as English.

    Args:
        text: a query; only its beginning counts.
        is_known: whether the bundled encoder knows a word, in small letters, as a whole.
    """
    words, is_other_script, n_english, n_other = _read_words(text[:MAX_JUDGED_CHARS])
    if is_other_script:
        return False
    if not words:
        return True
    known_share = _compute_known_share(words, is_known)
    if n_english > n_other:
        return bool(known_share >= MIN_KNOWN_SHARE)
    return n_english == n_other and bool(known_share >= MIN_KNOWN_SHARE_UNSUPPORTED)


def is_foreign(text: str, is_known: Callable[[str], bool]) -> bool:
    """Tell whether a query should be read as text in another language than English.

    This is not the opposite of `is_english`, which must be sure. Keywords such as `delete memo` do not prove that a
    query is English, but the vectors of another language would rank worse for them. So a query without function words
    counts as foreign only if most of its words are unknown.

    Args:
        text: a query; only its beginning counts.
        is_known: as in `is_english`.
    """
    words, is_other_script, n_english, n_other = _read_words(text[:MAX_JUDGED_CHARS])
    if is_other_script or not words:
        return is_other_script
    if n_english != n_other:
        return n_other > n_english
    return _compute_known_share(words, is_known) < MIN_KNOWN_SHARE


def is_plainly_foreign(text: str) -> bool:
    """Tell whether script or function words show that a text is not English.

    Words that the encoder does not know show nothing, because the texts of tools have many names and much jargon.

    Args:
        text: the text of a tool; only its beginning counts.
    """
    _, is_other_script, n_english, n_other = _read_words(text[:MAX_JUDGED_CHARS])
    if is_other_script:
        return True
    return n_other - n_english >= MIN_FOREIGN_LEAD


@functools.lru_cache(maxsize=MAX_REMEMBERED_LANGUAGES)
def _compute_known_share(words: tuple[str, ...], is_known: Callable[[str], bool]) -> float:
    """Return the share of words that the bundled encoder knows. Words with letters beyond ASCII count as unknown."""
    return sum(word.isascii() and is_known(word.lower()) for word in words) / len(words)


@functools.lru_cache(maxsize=MAX_REMEMBERED_LANGUAGES)
def _read_words(text: str) -> tuple[tuple[str, ...], bool, int, int]:
    """Return the signs of a text's language. They are cached, because one search asks several times for them.

    Returns:
        The words in Latin script with at least two letters; whether too many letters are of another script; the number
        of function words of English, and of other languages.
    """
    composed = unicodedata.normalize("NFC", text)
    if any(mark in composed for mark in ADDRESS_MARKS):
        composed = _ADDRESS.sub(" ", composed)
    latin_words = _LATIN_WORD.findall(split_identifiers(composed))
    is_other_script = False
    if not composed.isascii():
        n_letters = sum(map(str.isalpha, composed))
        is_other_script = n_letters - sum(map(len, latin_words)) > MAX_OTHER_SCRIPT_SHARE * n_letters
    words = tuple([word for word in latin_words if len(word) > 1])
    lowered = [word.lower() for word in words]
    n_english, n_other = sum(map(ENGLISH_WORDS.__contains__, lowered)), 0
    if not OTHER_WORDS.isdisjoint(lowered):
        # A capital inside a text begins a name, such as `La Paz`.
        may_count = [word.islower() or place == 0 or text.isupper() for place, word in enumerate(words)]
        n_other = sum(counts and word in OTHER_WORDS for counts, word in zip(may_count, lowered, strict=True))
    return words, is_other_script, n_english, n_other
