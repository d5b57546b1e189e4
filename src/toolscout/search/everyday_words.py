"""Finds phrases of everyday life and work in a request, with the words that tools use for the same thing.

People ask whether they need an umbrella; tools say "weather forecast". `data/everyday_words.txt` lists such phrases. A
phrase is found by its stems, function words included, the longest first. Articles, possessives and *it* do not count,
and one other word may stand between two words of a phrase: "put it in the calendar" holds "put in my calendar".
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from toolscout.errors import StoreError
from toolscout.indexes.words import list_stems_in_order, tokenizer_for

__all__ = ["EVERYDAY_WORDS_FILE", "Phrase", "Thesaurus", "list_stems", "load_thesaurus"]

EVERYDAY_WORDS_FILE: Final = Path(__file__).with_name("data") / "everyday_words.txt"
MAX_WORDS_BETWEEN: Final = 1  # other words between two words of a phrase
MAX_REACH: Final = 8  # words within which the second word of a phrase stands, articles among them
MAX_REMEMBERED_TEXTS: Final = 64  # a search asks twice for the stems of each step
ONE_WORD: Final = ""  # in place of the second word, where the first is all or has several forms: "mp3"
MIN_LOOSE_WORDS: Final = 2  # words of a phrase, apart from function words, from which others may stand between
_PHRASE_WORD: Final = re.compile(r"[a-z0-9]+")
_DETERMINERS: Final = frozenset(
    [
        *("a", "an", "the", "my", "our", "ours", "your", "yours", "his", "her", "hers", "their", "theirs", "it", "its"),
        *("this", "that", "these", "those"),
    ]
)
_CONTRACTIONS: Final[Mapping[str, str]] = {"s": "is", "re": "are", "ve": "have", "ll": "will", "m": "am"}
_all_words = tokenizer_for("code", True, False, True)
_main_words = tokenizer_for("code", True, True, True)
_DETERMINER_STEMS: Final = frozenset(stem for word in _DETERMINERS for stem in _all_words(word))


class Phrase(NamedTuple):
    """A phrase of the thesaurus.

    Attributes:
        text: as it stands in the file.
        words: of tools, for the same thing.
        stems: that a request must have in this order.
        has_function_words: whether some of them are function words.
        is_loose: whether other words may stand between them.
    """

    text: str
    words: tuple[str, ...]
    stems: tuple[str, ...]
    has_function_words: bool
    is_loose: bool


class Thesaurus:
    """Phrases and the words of tools that stand for them.

    A request looks at the phrases of which it has the first two words that count. They are split into stems when the
    first request looks at them, which keeps loading fast.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        """Take lines with a phrase, a tab, and words. Empty lines and those that begin with `#` are skipped.

        Raises:
            ValueError: for a line without a tab, or without words on either side of it.
        """
        self._lines = defaultdict[str, list[str]](list)
        self._by_second: dict[str, dict[str, list[tuple[int, str]]]] = {}
        self._ranked: dict[tuple[str, str], list[tuple[int, int, Phrase]]] = {}
        for line in lines:
            if line and not line.startswith("#"):
                text, _, words = line.partition("\t")
                self._lines[_find_first_word(text)].append(line)
                if not words.strip():
                    raise ValueError(f"expected a phrase, a tab and words, found {line!r}")

    def find(self, stems: Sequence[str]) -> list[Phrase]:
        """Return the phrases of a request in its order. No word of the request belongs to two of them.

        Args:
            stems: of the request, from `list_stems`.
        """
        phrases: list[Phrase] = []
        taken = [False] * len(stems)
        for start, stem in enumerate(stems):
            if taken[start] or not (by_second := self._split_lines(stem)):
                continue
            near = [word for word in _list_near(stems, start) if word in by_second]
            for phrase in self._list_phrases(stem, near) if near else ():
                if places := _place(phrase, stems, taken, start):
                    phrases.append(phrase)
                    for place in places:
                        taken[place] = True
                    break
        return phrases

    def _list_phrases(self, first: str, seconds: Sequence[str]) -> list[Phrase]:
        """Return the phrases that begin with a stem and one of these, the longest first."""
        ranked = [phrase for second in dict.fromkeys(seconds) for phrase in self._rank_phrases(first, second)]
        return [phrase for *_, phrase in (sorted(ranked) if len(ranked) > 1 else ranked)]

    def _split_lines(self, first: str) -> dict[str, list[tuple[int, str]]]:
        """Map the second stem of the phrases that begin with a stem to their lines and these lines' numbers."""
        if (by_second := self._by_second.get(first)) is None:
            by_second = {}
            for number, line in enumerate(self._lines_by_stem.get(first, ())):
                word, *more = _list_needed_words(line.partition("\t")[0])
                is_one = not more or len(_all_words.list_terms(word)) > 1
                by_second.setdefault(ONE_WORD if is_one else _find_stem(more[0]), []).append((number, line))
            self._by_second[first] = by_second
        return by_second

    def _rank_phrases(self, first: str, second: str) -> list[tuple[int, int, Phrase]]:
        """Return the phrases that begin with two stems; the longest and of those the earliest have the lowest ranks."""
        if (ranked := self._ranked.get((first, second))) is None:
            phrases = [(number, _make_phrase(*line.split("\t", 1))) for number, line in self._by_second[first][second]]
            ranked = [(-len(phrase.stems), number, phrase) for number, phrase in phrases]
            self._ranked[first, second] = ranked
        return ranked

    @functools.cached_property
    def _lines_by_stem(self) -> dict[str, list[str]]:
        by_stem = defaultdict[str, list[str]](list)
        for word, lines in self._lines.items():
            by_stem[_find_stem(word)].extend(lines)
        return dict(by_stem)


@functools.lru_cache(maxsize=MAX_REMEMBERED_TEXTS)
def list_stems(text: str) -> tuple[str, ...]:
    """Return the stems of all words of a text in order. *What's* and *what is* are the same."""
    return tuple([_CONTRACTIONS.get(stem, stem) for stem in list_stems_in_order(text)])


def _find_stem(word: str) -> str:
    """Return the stem of a word; of several forms (`mp3`, `mp`) that of the word itself."""
    stem = _all_words.list_terms(word)[0]
    return _CONTRACTIONS.get(stem, stem)


def _find_first_word(text: str) -> str:
    """Return the first word of a phrase that a request must have.

    Raises:
        ValueError: if there is none.
    """
    first = _PHRASE_WORD.match(text)
    if first is None:
        raise ValueError(f"expected a phrase in small letters, found {text!r}")
    return first[0] if first[0] not in _DETERMINERS else _list_needed_words(text)[0]


def _list_needed_words(text: str) -> list[str]:
    """Return the words of a phrase that a request must have."""
    words: list[str] = text.split(" ")
    if not "".join(words).isalnum():
        words = _PHRASE_WORD.findall(text)
    main = [word for word in words if word not in _DETERMINERS]
    return main if len(main) > 1 else words


def _make_phrase(text: str, words: str) -> Phrase:
    stems = [_CONTRACTIONS.get(stem, stem) for stem in _all_words(text)]
    main = [stem for stem in stems if stem not in _DETERMINER_STEMS]
    needed = main if len(main) > 1 else stems
    n_main_words = len(_main_words(text))
    return Phrase(
        text, tuple(words.split()), tuple(needed), len(needed) > n_main_words, n_main_words >= MIN_LOOSE_WORDS
    )


def _list_near(stems: Sequence[str], start: int) -> list[str]:
    """Return the stems that can be the second of a phrase that begins at a place, and `ONE_WORD`."""
    near, n_between = [ONE_WORD], 0
    for stem in itertools.islice(stems, start + 1, start + 1 + MAX_REACH):
        near.append(stem)
        n_between += stem not in _DETERMINER_STEMS
        if n_between > MAX_WORDS_BETWEEN:
            break
    return near


def _place(phrase: Phrase, stems: Sequence[str], taken: Sequence[bool], start: int) -> list[int]:
    """Return the places of a phrase in the stems of a request, the first at `start`; empty if it is not there."""
    places = [start]
    n_allowed = MAX_WORDS_BETWEEN if phrase.is_loose else 0
    for wanted in phrase.stems[1:]:
        place, n_between = places[-1] + 1, 0
        while place < len(stems) and not taken[place] and stems[place] != wanted:
            n_between += stems[place] not in _DETERMINER_STEMS
            place += 1
            if n_between > n_allowed:
                return []
        if place == len(stems) or taken[place]:
            return []
        places.append(place)
    return places


@functools.lru_cache(maxsize=1)
def load_thesaurus() -> Thesaurus:
    """Return the thesaurus that ships with toolscout. A process reads it once.

    Raises:
        StoreError: if the file is missing or damaged.
    """
    try:
        return Thesaurus(EVERYDAY_WORDS_FILE.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError) as error:
        raise StoreError(f"{EVERYDAY_WORDS_FILE} is damaged ({error}). Install toolscout again.") from None
