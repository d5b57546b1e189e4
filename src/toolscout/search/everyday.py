"""Searches with words of tools for phrases of everyday life and work in a request.

People ask whether they need an umbrella; tools say "weather forecast". `words/en.everyday.txt` lists such phrases. Any
other `words/LANG.everyday.txt` is read too, and used for requests that are not English. A phrase is found by its stems,
function words included, the longest first. Articles, possessives and *it* do not count, and one other word may stand
between two words of a phrase: "put it in the calendar" has "put in my calendar".

The words that a phrase adds count for little beside those of the request: a small weight in BM25, and a share of its
vector. A short request says little by its own words, so its share is larger, most of all for a phrase of several words.
A phrase adds nothing where the request's own words serve already: where many tools have them, and in a long request
where any tool has them.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.arrays import Mask, Vectors
from toolscout.encoders import Encoder, unit_rows
from toolscout.encoders.languages import is_foreign
from toolscout.encoders.static import load_static
from toolscout.errors import StoreError
from toolscout.indexes.bm25 import BM25
from toolscout.indexes.large import Postings
from toolscout.indexes.words import list_stems_in_order, tokenize, tokenizer_for
from toolscout.types import Explanation
from toolscout.vocabulary import FIRST_LANGUAGE, WORDS_FOLDER, list_words

__all__ = [
    "EVERYDAY_WEIGHT",
    "EVERYDAY_WORDS_FILE",
    "Addition",
    "ExpandedWords",
    "Phrase",
    "Thesaurus",
    "encode_expanded",
    "list_everyday_words",
    "list_stems",
    "load_foreign_thesaurus",
    "load_thesaurus",
]

EVERYDAY_WEIGHT: Final = 0.3  # of an added word in BM25, beside 1 for a word of the request; chosen on dev (LAB.md)
LONG_VECTOR_SHARE: Final = 0.33  # of this weight: length of the added words' vector, beside 1 for that of the request
WORD_VECTOR_SHARE: Final = 0.67  # the same in a short request, whose own words say less
PHRASE_VECTOR_SHARE: Final = 1.67  # the same for a phrase of several words, which means one thing
MAX_SHORT_VECTOR_REQUEST: Final = 12  # words of a request that is short here
MAX_SERVED_SHARE: Final = 0.03  # of the tools that have the words of a phrase: more of them, and it adds nothing
MAX_SHORT_REQUEST: Final = 10  # words; in a longer request, a phrase whose words some tool has adds nothing
MAX_CACHED_ADDITIONS: Final = 256  # queries
MAX_CACHED_ADDED_WORDS: Final = 8192
EVERYDAY_SUFFIX: Final = ".everyday.txt"
EVERYDAY_WORDS_FILE: Final = WORDS_FOLDER / f"{FIRST_LANGUAGE}{EVERYDAY_SUFFIX}"
MAX_WORDS_BETWEEN: Final = 1  # other words between two words of a phrase
MAX_REACH: Final = 8  # words within which the second word of a phrase stands, articles among them
MAX_REMEMBERED_TEXTS: Final = 64  # a search asks twice for the stems of each step
ONE_WORD: Final = ""  # in place of the second word, where the first is all or has several forms: "mp3"
MIN_LOOSE_WORDS: Final = 2  # words of a phrase, apart from function words, from which others may stand between
_PHRASE_WORD: Final = re.compile(r"[^\W_A-Z]+")
_DETERMINERS: Final = frozenset(list_words("phrases.determiners"))
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
        # Caches of `_split_lines` (first stem → second stem → lines) and `_rank_phrases`
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
        if first not in self._lines_by_stem:  # not cached: requests have new words without end
            return {}
        if (by_second := self._by_second.get(first)) is None:
            by_second = {}
            for number, line in enumerate(self._lines_by_stem[first]):
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


@functools.cache
def list_everyday_words() -> frozenset[str]:
    """Return the words of the English phrases and of what they stand for: words of the language, not names."""
    text = EVERYDAY_WORDS_FILE.read_text(encoding="utf-8")
    return frozenset(_PHRASE_WORD.findall(text.lower()))


@functools.lru_cache(maxsize=MAX_REMEMBERED_TEXTS)
def list_stems(text: str) -> tuple[str, ...]:
    """Return the stems of all words of a text in order. *What's* and *what is* are the same."""
    return tuple([_CONTRACTIONS.get(stem, stem) for stem in list_stems_in_order(text)])


def _find_stem(word: str) -> str:
    """Return the stem of a word; of several forms (`mp3`, `mp`) that of the word itself."""
    # Only a text is folded ("müde" to "mude"). A word without accents needs no folding, which keeps loading fast.
    stem = (_all_words.list_terms(word) if word.isascii() else _all_words(word))[0]
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
    """Split a phrase of the file into stems. Determiners are needed only where hardly anything else is left."""
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
    """Return the thesaurus of English phrases that ships with toolscout. A process reads it once.

    Raises:
        StoreError: if the file is missing or damaged.
    """
    return _read_thesaurus([EVERYDAY_WORDS_FILE])


@functools.lru_cache(maxsize=1)
def load_foreign_thesaurus() -> Thesaurus | None:
    """Return the thesaurus of the phrases of all other languages; None if there is no file of such phrases.

    Raises:
        StoreError: if a file is damaged.
    """
    files = [file for file in sorted(WORDS_FOLDER.glob(f"*{EVERYDAY_SUFFIX}")) if file != EVERYDAY_WORDS_FILE]
    return _read_thesaurus(files) if files else None


def _read_thesaurus(files: Sequence[Path]) -> Thesaurus:
    """Read files of phrases into one thesaurus."""
    lines: list[str] = []
    try:
        for file in files:
            lines += file.read_text(encoding="utf-8").splitlines()
        return Thesaurus(lines)
    except (OSError, ValueError) as error:
        names = " or ".join(map(str, files))
        raise StoreError(f"{names} is damaged ({error}). Install toolscout again.") from None


# --- searching with them ----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=MAX_CACHED_ADDED_WORDS)
def _list_terms(word: str) -> tuple[str, ...]:
    """Return the terms of an added word. Few words are added by many phrases."""
    return tuple(tokenize(word))


class Addition(NamedTuple):
    """A phrase of a request, and the words that it adds."""

    phrase: str
    words: tuple[str, ...]

    def describe(self) -> str:
        """Return both as people read it."""
        return f"“{self.phrase}” also searches for {', '.join(self.words)}"


class ExpandedWords(BM25):
    """A BM25 index that also searches for the words that everyday phrases of a query add.

    It shares the arrays of the index that it expands, which stays as it is. A query without such phrases is left to it.

    Attributes:
        weight: of an added word, beside 1 for a word of the query.
        last_encoded: queries, their encoder, and the last result of `encode_expanded`.
    """

    def __init__(self, words: BM25, thesaurus: Callable[[], Thesaurus], weight: float = EVERYDAY_WEIGHT) -> None:
        """Take the index, the function that loads the thesaurus, and the weight of an added word."""
        super().__init__(words.ids, words._vocabulary, words._arrays, words.settings)
        self._plain, self._load_thesaurus, self.weight = words, thesaurus, weight
        self.last_encoded: tuple[list[str], Encoder | None, Vectors] = [], None, np.empty((0, 0), dtype=np.float32)
        self._additions: dict[str, tuple[Addition, ...]] = {}  # cache: query → added words
        self._tools_with: dict[str, int] = {}  # cache: phrase → number of tools that have all its words

    def find_additions(self, query: str) -> tuple[Addition, ...]:
        """Return the phrases of a query and what they add."""
        if (cached := self._additions.get(query)) is not None:
            return cached
        stems = list_stems(query)
        phrases = self._find_phrases(query, stems)
        additions: list[Addition] = []
        present, added = set(stems), set[str]()
        for phrase in phrases:
            words = [word for word in phrase.words if word not in added and not present.issuperset(_list_terms(word))]
            if words and not self._is_served(phrase, len(stems)):
                added.update(words)
                additions.append(Addition(phrase.text, tuple(words)))
        if len(self._additions) >= MAX_CACHED_ADDITIONS:
            self._additions = {}
        self._additions[query] = tuple(additions)
        return self._additions[query]

    def _find_phrases(self, query: str, stems: Sequence[str]) -> list[Phrase]:
        """Find English phrases in an English query, and those of the other languages in any other query."""
        phrases, foreign = self._load_thesaurus().find(stems), load_foreign_thesaurus()
        foreign_phrases = foreign.find(stems) if foreign is not None else []
        if (phrases or foreign_phrases) and is_foreign(query, load_static().pieces.is_word):
            return foreign_phrases
        return phrases

    def count_added_words(self, addition: Addition, ids: Sequence[str]) -> int:
        """Count the words of an addition that a tool has: the most that one of these tools has."""
        present = [(self._plain.score_terms(word, ids) > 0).any(axis=0) for word in addition.words]
        return int(np.sum(present, axis=0).max(initial=0))

    def _is_served(self, phrase: Phrase, n_words: int) -> bool:
        """Tell whether the words of a phrase find its tools without others, in a request of so many words."""
        if (n_tools := self._tools_with.get(phrase.text)) is None:
            n_tools = self._tools_with[phrase.text] = self._plain.count_tools(phrase.text)
        if n_tools > MAX_SERVED_SHARE * len(self.ids):
            return True
        return n_words > MAX_SHORT_REQUEST and n_tools > 0 and not phrase.has_function_words

    def _look_up_terms(self, query: str) -> tuple[Mapping[str, float], dict[str, Postings]]:
        """Return the weights of the terms of a query and of its additions, and the known terms."""
        if (cached := self._terms_cache.get(query)) is not None:
            return cached
        counts, postings = self._plain._look_up_terms(query)
        added = {term: self.weight for term in self._list_added_terms(query) if term not in counts}
        return self._remember_terms(query, {**counts, **added}, postings | self._find_postings(added))

    def _list_added_terms(self, query: str) -> dict[str, str]:
        """Map each term that a query adds to the words by which people read it."""
        return {
            kind.mark + term: f"{word} (for “{addition.phrase}”)"
            for kind in self._token_kinds
            for addition in self.find_additions(query)
            for word in addition.words
            for term in kind.tokens(word)
        }

    def _find_best(self, query: str, k: int, mask: Mask | None) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
        return (
            super()._find_best(query, k, mask) if self.find_additions(query) else self._plain._find_best(query, k, mask)
        )

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Score every tool for a query and its additions; see `BM25.scores`."""
        return super().scores(query) if self.find_additions(query) else self._plain.scores(query)

    def explain(self, query: str, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain rank and score of one tool; see `BM25.explain`. A note says which phrase added which words."""
        explanation = super().explain(query, tool_id, visible)
        additions = self.find_additions(query)
        if not additions:
            return explanation
        query_terms = self._plain._look_up_terms(query)[0]
        return msgspec.structs.replace(
            explanation,
            note="; ".join([*filter(None, [explanation.note]), *(addition.describe() for addition in additions)]),
            missing=tuple(term for term in explanation.missing if term in query_terms),
        )

    def _label_terms(self, query: str) -> dict[str, str]:
        return self._list_added_terms(query) | self._plain._label_terms(query)


def encode_expanded(texts: list[str], encoder: Encoder, words: ExpandedWords) -> Vectors:
    """Encode queries, each with the words that its phrases add: unit rows, `(n, dim)`, read only.

    The last result is cached, because ranking and abstention need it one after the other.

    Args:
        texts: the queries.
        encoder: reads queries and added words.
        words: finds the additions, and weighs them.
    """
    last_texts, last_encoder, rows = words.last_encoded
    if last_encoder is encoder and last_texts == texts:
        return rows
    rows = _encode_expanded(texts, encoder, words)
    rows.flags.writeable = False
    words.last_encoded = list(texts), encoder, rows
    return rows


def _encode_expanded(texts: list[str], encoder: Encoder, words: ExpandedWords) -> Vectors:
    """Encode queries, and add to each row the vector of its added words, by their share."""
    rows = encoder.encode(texts, kind="query")
    added = [" ".join(word for one in words.find_additions(text) for word in one.words) for text in texts]
    places = [place for place, text in enumerate(added) if text]
    if not places:
        return rows
    shares = np.array([words.weight * _choose_share(texts[place], words) for place in places], dtype=np.float32)
    added_rows = encoder.encode([added[place] for place in places], kind="query")
    rows = rows.copy()
    rows[places] = unit_rows(rows[places] + shares[:, None] * added_rows)
    return rows


def _choose_share(text: str, words: ExpandedWords) -> float:
    if len(list_stems(text)) > MAX_SHORT_VECTOR_REQUEST:
        return LONG_VECTOR_SHARE
    has_phrase = any(" " in addition.phrase for addition in words.find_additions(text))
    return PHRASE_VECTOR_SHARE if has_phrase else WORD_VECTOR_SHARE
