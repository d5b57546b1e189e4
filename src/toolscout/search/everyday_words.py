"""Finds phrases of everyday life and work in a request, with the words that tools use for the same thing.

People ask whether they need an umbrella; tools say "weather forecast". `data/everyday_words.txt` lists such phrases. A
phrase is found by its stems, function words included, the longest first. Articles, possessives and *it* do not count,
and one other word may stand between two words of a phrase: "put it in the calendar" holds "put in my calendar".
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from toolscout.errors import StoreError
from toolscout.indexes.words import tokenizer_for

__all__ = ["EVERYDAY_WORDS_FILE", "Phrase", "Thesaurus", "list_stems", "load_thesaurus"]

EVERYDAY_WORDS_FILE: Final = Path(__file__).with_name("data") / "everyday_words.txt"
MAX_WORDS_BETWEEN: Final = 1  # other words between two words of a phrase
MIN_LOOSE_WORDS: Final = 2  # words of a phrase, apart from function words, from which others may stand between
_PHRASE_WORD: Final = re.compile(r"[a-z0-9]+")
_DETERMINERS: Final = frozenset(
    ["a", "an", "the", "my", "our", "your", "his", "her", "their", "its", "this", "that", "these", "those"]
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

    A phrase is split into stems when the first request comes that has its first word, which keeps loading fast.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        """Take lines with a phrase, a tab, and words. Empty lines and those that begin with `#` are skipped.

        Raises:
            ValueError: for a line without a tab, or without words on either side of it.
        """
        self._lines = defaultdict[str, list[tuple[str, str]]](list)
        self._phrases: dict[str, list[Phrase]] = {}
        for line in lines:
            if line and not line.startswith("#"):
                text, _, words = line.partition("\t")
                self._lines[_find_first_word(text)].append((text, words))
                if not words.strip():
                    raise ValueError(f"expected a phrase, a tab and words, found {line!r}")

    def find(self, stems: Sequence[str]) -> list[Phrase]:
        """Return the phrases of a request in its order. No word of the request belongs to two of them.

        Args:
            stems: of the request, from `list_stems`.
        """
        phrases: list[Phrase] = []
        present, taken = set(stems), [False] * len(stems)
        for start, stem in enumerate(stems):
            if taken[start]:
                continue
            for phrase in self._list_phrases(stem):
                if present.issuperset(phrase.stems) and (places := _place(phrase, stems, taken, start)):
                    phrases.append(phrase)
                    for place in places:
                        taken[place] = True
                    break
        return phrases

    def _list_phrases(self, stem: str) -> list[Phrase]:
        """Return the phrases that begin with a stem, the longest first."""
        if (phrases := self._phrases.get(stem)) is None:
            if not self._lines_by_stem.get(stem):
                return []
            made: dict[tuple[str, ...], Phrase] = {}
            for text, words in self._lines_by_stem[stem]:
                phrase = _make_phrase(text, words)
                made.setdefault(phrase.stems, phrase)
            phrases = sorted(made.values(), key=lambda phrase: -len(phrase.stems))
            self._phrases[stem] = phrases
        return phrases

    @functools.cached_property
    def _lines_by_stem(self) -> dict[str, list[tuple[str, str]]]:
        by_stem = defaultdict[str, list[tuple[str, str]]](list)
        for word, lines in self._lines.items():
            stem = _all_words(word)[0]
            by_stem[_CONTRACTIONS.get(stem, stem)].extend(lines)
        return dict(by_stem)


def list_stems(text: str) -> list[str]:
    """Return the stems of all words of a text in order. *What's* and *what is* are the same."""
    return [_CONTRACTIONS.get(stem, stem) for stem in _all_words(text)]


def _find_first_word(text: str) -> str:
    """Return the first word that a request must have.

    Raises:
        ValueError: if there is none.
    """
    first = _PHRASE_WORD.match(text)
    if first is None:
        raise ValueError(f"expected a phrase in small letters, found {text!r}")
    if first[0] not in _DETERMINERS:
        return first[0]
    main = [word for word in _PHRASE_WORD.findall(text) if word not in _DETERMINERS]
    return main[0] if len(main) > 1 else first[0]


def _make_phrase(text: str, words: str) -> Phrase:
    stems = list_stems(text)
    main = [stem for stem in stems if stem not in _DETERMINER_STEMS]
    needed = main if len(main) > 1 else stems
    n_main_words = len(_main_words(text))
    return Phrase(
        text, tuple(words.split()), tuple(needed), len(needed) > n_main_words, n_main_words >= MIN_LOOSE_WORDS
    )


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
