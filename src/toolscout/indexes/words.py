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
# Scripts written without spaces, or with endings attached to the word: a run of them becomes pairs of characters.
_RUN_CHARS: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
# Vowel signs and accents: not letters, but part of the word that they stand in.
_COMBINING_MARKS: Final = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
_CODE_WORD: Final = re.compile(f"[{_RUN_CHARS}]+|[^\\W_{_RUN_CHARS}]+(?:[{_COMBINING_MARKS}]+[^\\W_{_RUN_CHARS}]*)*")
_UNSPLIT_WORD: Final = re.compile(r"[A-Z]?[a-z]*|[A-Z]+")  # as most words are: no digits, no inner capitals
_RUN_CHAR: Final = re.compile(f"[{_RUN_CHARS}]")
_PLAIN_WORD: Final = re.compile(r"\b\w\w+\b")
_DIGITS_OR_OTHERS: Final = re.compile(r"\d+|\D+")
_ACCENTS: Final = re.compile("[\u0300-\u036f]")
MAX_CACHED_WORD_CHARS: Final = 64
MAX_CACHED_WORDS: Final = 100_000  # of each splitter
MAX_SHARED_WORDS: Final = 2_048  # words whose stems or forms are cached for all splitters
MAX_SHARED_TEXTS: Final = 64  # texts whose stems are cached for all stages

Forms = TypeVar("Forms")


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
    """Return the terms of the name of a source, cached, because every search asks for the sources of its hits."""
    return frozenset(tokenize(source))


@functools.lru_cache(maxsize=MAX_SHARED_TEXTS)
def list_stems_in_order(text: str) -> tuple[str, ...]:
    """Return the stems of all words of a text, function words too, in order.

    They are cached, because several stages ask for the stems of the same request.
    """
    # Keyword arguments would be another key in the cache of `tokenizer_for`, and make a second splitter.
    stem, stopwords, fold = True, False, True
    return tuple(tokenizer_for("code", stem, stopwords, fold)(text))


class WordSplitter:
    """Splits texts into words, and words into terms, with fixed settings. Calling it gives the terms of a text.

    Attributes:
        list_terms: word → its terms, from a cache; a word is one of those that `split` returns.
    """

    def __init__(self, tokenizer: Tokenizer, stem: bool, stopwords: bool, fold: bool) -> None:
        """Fix the settings, which `tokenize` describes."""
        self._splits_identifiers, self._fold = tokenizer == "code", fold
        if self._splits_identifiers:
            self._find_words, list_forms, function_words = _CODE_WORD.findall, _list_forms, _STOPWORDS
        else:
            self._find_words, list_forms, function_words = _PLAIN_WORD.findall, _keep_word, _PLAIN_STOPWORDS
        dropped = function_words if stopwords else frozenset[str]()
        make_term = _stem_word if stem else str  # `str` returns a form unchanged

        class WordCache(dict[str, tuple[str, ...]]):
            def __missing__(self, word: str) -> tuple[str, ...]:
                terms = tuple([make_term(form) for form in list_forms(word) if form not in dropped])
                if len(word) <= MAX_CACHED_WORD_CHARS:
                    if len(self) >= MAX_CACHED_WORDS:
                        self.clear()
                    self[word] = terms
                return terms

        self.list_terms: Callable[[str], tuple[str, ...]] = WordCache().__getitem__

    def split(self, text: str) -> list[str]:
        """Return the words of a text. They depend only on the tokenizer and on `fold`."""
        if self._fold and not text.isascii():
            decomposed = unicodedata.normalize("NFKD", text)  # an accent becomes a character of its own
            text = unicodedata.normalize("NFC", _ACCENTS.sub("", decomposed))
        # `code` needs the capitals to split identifiers, and lowers the words afterwards (`_list_forms`).
        words: list[str] = self._find_words(text if self._splits_identifiers else text.lower())
        return words

    def __call__(self, text: str) -> list[str]:
        """Return the terms of a text, in order, with repetitions."""
        return list(itertools.chain.from_iterable(map(self.list_terms, self.split(text))))


@functools.lru_cache(maxsize=32)
def tokenizer_for(tokenizer: Tokenizer, stem: bool, stopwords: bool, fold: bool) -> WordSplitter:
    """Return the `WordSplitter` with these settings. Equal settings share one splitter and its cache."""
    return WordSplitter(tokenizer, stem, stopwords, fold)


def _cache_short_words(compute: Callable[[str], Forms]) -> Callable[[str], Forms]:
    """Cache the results of a function of a word, except for long words. All splitters share the cache."""
    compute_cached = functools.lru_cache(MAX_SHARED_WORDS)(compute)

    def compute_or_recall(word: str) -> Forms:
        return compute_cached(word) if len(word) <= MAX_CACHED_WORD_CHARS else compute(word)

    return compute_or_recall


@functools.lru_cache(maxsize=1)
def _load_stemmer() -> tuple[Callable[[str], str], threading.Lock]:
    """Return the function that stems an English word, and the lock to hold while it is called."""
    import Stemmer

    max_cached_words = 0  # `_cache_short_words` caches the stems
    return Stemmer.Stemmer("english", max_cached_words).stemWord, threading.Lock()


@_cache_short_words
def _stem_word(word: str) -> str:
    """Remove the English ending of a word (Snowball)."""
    stem, lock = _load_stemmer()
    with lock:  # a stemmer writes each stem into the same buffer, so only one thread at a time may call it
        return str(stem(word))


def _keep_word(word: str) -> Sequence[str]:
    """Return the only form under which `plain` indexes a word: the word."""
    return (word,)


@_cache_short_words
def _list_forms(word: str) -> Sequence[str]:
    """List the forms, in lower case, under which `code` indexes one run of letters and digits.

    They are the word and its parts (`getUser2`: getuser2, get, user), or the pairs of characters of a script that is
    written without spaces.
    """
    if _UNSPLIT_WORD.fullmatch(word):
        return [word.lower()]
    if _RUN_CHAR.match(word):
        return [word[i : i + 2] for i in range(len(word) - 1)] or [word]  # one character alone has no pair
    pieces = _DIGITS_OR_OTHERS.findall(word)  # runs of digits and of letters
    parts = [*pieces, *(part for piece in pieces for part in _split_camel_case(piece))]
    forms = [word, *(part for part in parts if len(part) > 1)]
    return list(dict.fromkeys(form.casefold() for form in forms))


def _split_camel_case(word: str) -> list[str]:
    """Split a word at inner capitals: `getUser` at the U, `HTTPServer` at the S, `URLs` nowhere."""
    cuts = [0]
    for i in range(1, len(word)):
        if not word[i].isupper():
            continue
        before, next_two = word[i - 1], word[i + 1 : i + 3]
        # After another capital, a word begins only where two small letters follow: so `URLs` stays whole.
        begins_in_capitals = before.isupper() and len(next_two) == 2 and next_two.islower()
        if before.islower() or begins_in_capitals:
            cuts.append(i)
    return [word[start:end] for start, end in itertools.pairwise([*cuts, len(word)])]
