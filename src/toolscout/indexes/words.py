"""Turns text into index terms: splits identifiers, handles every script, drops English endings and function words."""

from __future__ import annotations

import functools
import itertools
import re
import threading
import unicodedata
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeVar

from toolscout.vocabulary import list_words

__all__ = ["Tokenizer", "WordSplitter", "list_source_words", "list_stems_in_order", "tokenize", "tokenizer_for"]

Tokenizer = Literal["code", "plain"]

_PLAIN_STOPWORDS: Final = frozenset(list_words("index.plain"))
_STOPWORDS: Final = _PLAIN_STOPWORDS.union(list_words("index.more"))
# Scripts written without spaces, or with endings attached to the word: their runs become pairs of characters.
_RUNS: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
# Vowel signs and accents: not letters, but part of the word that they stand in.
_COMBINING_MARKS: Final = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
_CODE_WORD: Final = re.compile(f"[{_RUNS}]+|[^\\W_{_RUNS}]+(?:[{_COMBINING_MARKS}]+[^\\W_{_RUNS}]*)*")
_WHOLE_WORD: Final = re.compile(r"[A-Z]?[a-z]*|[A-Z]+")  # as most are: there is nothing to split
_RUN: Final = re.compile(f"[{_RUNS}]")
_PLAIN_WORD: Final = re.compile(r"\b\w\w+\b")
_DIGITS: Final = re.compile(r"\d+|\D+")
_ACCENTS: Final = re.compile("[\u0300-\u036f]")
MAX_CACHED_WORD_CHARS: Final = 64
MAX_CACHED_WORDS: Final = 100_000
MAX_SHARED_WORDS: Final = 2_048
MAX_SHARED_TEXTS: Final = 64

Split = TypeVar("Split")


def tokenize(
    text: str, *, tokenizer: Tokenizer = "code", stem: bool = True, stopwords: bool = True, fold: bool = True
) -> list[str]:
    """Split a text into index terms, in order, with repetitions.

    Args:
        text: any text.
        tokenizer: `code` splits identifiers, so that `getUserById`, `get_user_by_id` and "get user by id" match. It
            also keeps the joined word (`sha256`, `YouTube`), and splits Chinese, Japanese, Korean, Thai, Lao, Burmese
            and Khmer into pairs of characters. `plain` takes words of two or more letters unchanged.
        stem: whether to remove English endings (Snowball).
        stopwords: whether to drop English function words (`plain`: only the commonest).
        fold: whether to remove accents and normalise compatibility forms (full width, ligatures).
    """
    return tokenizer_for(tokenizer, stem, stopwords, fold)(text)


@functools.lru_cache(maxsize=4096)
def list_source_words(source: str) -> frozenset[str]:
    """Return the terms of the name of a source. Every search asks for those of its hits."""
    return frozenset(tokenize(source))


@functools.lru_cache(maxsize=MAX_SHARED_TEXTS)
def list_stems_in_order(text: str) -> tuple[str, ...]:
    """Return the stems of all words of a text, in order. Several stages ask for those of the same request."""
    return tuple(tokenizer_for("code", True, False, True)(text))


class WordSplitter:
    """Splits texts into words, and words into terms, with fixed settings. Calling it gives the terms of a text."""

    def __init__(self, tokenizer: Tokenizer, stem: bool, stopwords: bool, fold: bool) -> None:
        """Fix the settings; the terms of a word are cached.

        Args:
            tokenizer: `code` splits identifiers, `plain` does not.
            stem: whether English endings are removed.
            stopwords: whether function words are dropped.
            fold: whether accents are removed.
        """
        self._code, self._fold = tokenizer == "code", fold
        self._find, split = (_CODE_WORD.findall, _index_forms) if self._code else (_PLAIN_WORD.findall, _keep_word)
        dropped = (_STOPWORDS if self._code else _PLAIN_STOPWORDS) if stopwords else frozenset[str]()
        ending = _stem_word if stem else str

        class WordCache(dict[str, tuple[str, ...]]):
            def __missing__(self, word: str) -> tuple[str, ...]:
                terms = tuple([ending(form) for form in split(word) if form not in dropped])
                if len(word) <= MAX_CACHED_WORD_CHARS:
                    if len(self) >= MAX_CACHED_WORDS:
                        self.clear()
                    self[word] = terms
                return terms

        self.list_terms: Callable[[str], tuple[str, ...]] = WordCache().__getitem__

    def split(self, text: str) -> list[str]:
        """Return the words of a text. They depend on the tokenizer and on `fold` alone."""
        if self._fold and not text.isascii():
            text = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))
        words: list[str] = self._find(text if self._code else text.lower())
        return words

    def __call__(self, text: str) -> list[str]:
        """Return the terms of a text, in order, with repetitions."""
        return list(itertools.chain.from_iterable(map(self.list_terms, self.split(text))))


@functools.lru_cache(maxsize=32)
def tokenizer_for(tokenizer: Tokenizer, stem: bool, stopwords: bool, fold: bool) -> WordSplitter:
    """Return the splitter with these settings, as `WordSplitter`; equal settings share one splitter and its cache."""
    return WordSplitter(tokenizer, stem, stopwords, fold)


def _remember(split: Callable[[str], Split]) -> Callable[[str], Split]:
    """Return a function that remembers its results for the last short words: splitters share them."""
    remembered = functools.lru_cache(MAX_SHARED_WORDS)(split)
    return lambda word: remembered(word) if len(word) <= MAX_CACHED_WORD_CHARS else split(word)


@functools.lru_cache(maxsize=1)
def _load_stemmer() -> tuple[Callable[[str], str], threading.Lock]:
    import Stemmer

    return Stemmer.Stemmer("english", 0).stemWord, threading.Lock()


@_remember
def _stem_word(word: str) -> str:
    """Return the stem of a word: Snowball's for English."""
    stem, lock = _load_stemmer()
    with lock:  # a stemmer uses one internal buffer
        return str(stem(word))


def _keep_word(word: str) -> Sequence[str]:
    return (word,)


@_remember
def _index_forms(word: str) -> Sequence[str]:
    """List the forms under which one run of letters and digits is indexed: pairs of characters, or word and parts."""
    if _WHOLE_WORD.fullmatch(word):
        return [word.lower()]
    if _RUN.match(word):
        return [word[i : i + 2] for i in range(len(word) - 1)] or [word]
    pieces = _DIGITS.findall(word)
    parts = [*pieces, *(part for piece in pieces for part in _split_camel_case(piece))]
    forms = [word, *(part for part in parts if len(part) > 1)]
    return list(dict.fromkeys(form.casefold() for form in forms))


def _split_camel_case(word: str) -> list[str]:
    """Split a word at inner capitals: `getUser` at the U, `HTTPServer` at the S, `URLs` nowhere."""
    cuts = [0]
    for i in range(1, len(word)):
        before, letter, after = word[i - 1], word[i], word[i + 1 : i + 3]
        if letter.isupper() and (before.islower() or (before.isupper() and len(after) == 2 and after.islower())):
            cuts.append(i)
    return [word[start:end] for start, end in itertools.pairwise([*cuts, len(word)])]
