"""From text to index terms: identifiers come apart, every script has words, English endings and function words go."""

from __future__ import annotations

import functools
import itertools
import re
import threading
import unicodedata
from collections.abc import Callable, Sequence
from typing import Final, Literal

__all__ = ["Tokenizer", "tokenize", "tokenizer_for"]

Tokenizer = Literal["code", "plain"]

_PLAIN_STOPWORDS: Final = frozenset(
    (
        *("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not"),
        *("of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was"),
        *("will", "with"),
    )
)
_STOPWORDS: Final = _PLAIN_STOPWORDS | frozenset(
    (
        # who speaks, and of whom
        *("i", "me", "my", "mine", "myself", "we", "us", "our", "ours", "you", "your", "yours", "yourself"),
        *("he", "him", "his", "she", "her", "hers", "its", "itself", "them", "theirs"),
        # helping verbs, and what an apostrophe leaves of them
        *("am", "been", "being", "were", "has", "have", "had", "having", "do", "does", "did", "doing", "done"),
        *("can", "could", "would", "should", "shall", "may", "might", "must", "please"),
        *("s", "t", "d", "m", "re", "ve", "ll", "aren", "couldn", "didn", "doesn", "don", "isn", "shouldn", "wasn"),
        *("won", "wouldn"),
        # question words and other joints of a sentence
        *("what", "which", "who", "whom", "whose", "where", "when", "why", "how"),
        *("about", "again", "all", "also", "any", "because", "both", "during", "each", "few", "from", "here", "just"),
        *("more", "most", "nor", "once", "only", "other", "out", "own", "same", "so", "some", "than", "through"),
        *("too", "until", "very", "while", "between"),
    )
)
# Scripts written without spaces, or with endings grown onto the word: runs of them become pairs of characters.
_RUNS: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
# Vowel signs and accents that belong to the word they stand in, though they are no letters of their own.
_MARKS: Final = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
_WORD: Final = re.compile(f"[{_RUNS}]+|[^\\W_{_RUNS}]+(?:[{_MARKS}]+[^\\W_{_RUNS}]*)*")
_RUN: Final = re.compile(f"[{_RUNS}]")
_PLAIN_WORD: Final = re.compile(r"\b\w\w+\b")
_DIGITS: Final = re.compile(r"\d+|\D+")
_ACCENTS: Final = re.compile("[\u0300-\u036f]")
_LONGEST_CACHED: Final = 64
_MOST_CACHED: Final = 100_000


def tokenize(
    text: str, *, tokenizer: Tokenizer = "code", stem: bool = True, stopwords: bool = True, fold: bool = True
) -> list[str]:
    """The index terms of a text, in order, repeated as often as they stand there.

    Args:
        text: anything.
        tokenizer: `code` splits identifiers, so that `getUserById`, `get_user_by_id` and "get user by id" meet; keeps
            the whole of a joined-up word as well (`sha256`, `YouTube`); and takes Chinese, Japanese, Korean, Thai, Lao,
            Burmese and Khmer by pairs of characters. `plain` takes words of two letters and more as they are written.
        stem: whether English endings are cut (Snowball).
        stopwords: whether English function words are left out (`plain`: only the commonest).
        fold: whether accents are taken off, and compatibility forms (full width, ligatures) made ordinary.
    """
    return tokenizer_for(tokenizer, stem, stopwords, fold)(text)


@functools.lru_cache(maxsize=32)
def tokenizer_for(tokenizer: Tokenizer, stem: bool, stopwords: bool, fold: bool) -> Callable[[str], list[str]]:
    """`tokenize` with its settings fixed: faster for many texts. Each combination has one cache of words."""
    code = tokenizer == "code"
    find, split = (_WORD.findall, _forms) if code else (_PLAIN_WORD.findall, _as_written)
    dropped = (_STOPWORDS if code else _PLAIN_STOPWORDS) if stopwords else frozenset[str]()
    ending = _stemmer() if stem else str

    class Known(dict[str, tuple[str, ...]]):
        def __missing__(self, word: str) -> tuple[str, ...]:
            terms = tuple(ending(form) for form in split(word) if form not in dropped)
            if len(word) <= _LONGEST_CACHED:
                if len(self) >= _MOST_CACHED:
                    self.clear()
                self[word] = terms
            return terms

    known = Known()

    def tokens(text: str) -> list[str]:
        if fold and not text.isascii():
            text = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))
        return list(itertools.chain.from_iterable(map(known.__getitem__, find(text if code else text.lower()))))

    return tokens


def _stemmer() -> Callable[[str], str]:
    import Stemmer

    stem, lock = Stemmer.Stemmer("english", 0).stemWord, threading.Lock()

    def locked(word: str) -> str:
        with lock:  # a stemmer works in a buffer of its own
            return str(stem(word))

    return locked


def _as_written(word: str) -> Sequence[str]:
    return (word,)


def _forms(word: str) -> Sequence[str]:
    """What one run of letters and digits is found under: pairs of characters, or the whole and its parts."""
    if _RUN.match(word):
        return [word[i : i + 2] for i in range(len(word) - 1)] or [word]
    pieces = _DIGITS.findall(word)
    parts = [*pieces, *(part for piece in pieces for part in _camel(piece))]
    forms = [word, *(part for part in parts if len(part) > 1)]
    return list(dict.fromkeys(form.casefold() for form in forms))


def _camel(word: str) -> list[str]:
    """The parts of a word that inner capitals mark: `getUser` at the U, `HTTPServer` at the S, `URLs` nowhere."""
    cuts = [0]
    for i in range(1, len(word)):
        before, here, after = word[i - 1], word[i], word[i + 1 : i + 3]
        if here.isupper() and (before.islower() or (before.isupper() and len(after) == 2 and after.islower())):
            cuts.append(i)
    return [word[start:end] for start, end in itertools.pairwise([*cuts, len(word)])]
