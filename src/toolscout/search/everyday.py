"""Adds words of tools to a request that has phrases of everyday life and work.

People ask whether they need an umbrella; tools say "weather forecast". `words/en.everyday.txt` lists such phrases,
each with the words that it adds. Any other `words/LANG.everyday.txt` is read too, and used for requests that are not
English. A phrase is found by its stems, function words included, the longest first. Determiners (articles, possessives,
*it*) do not count, and one other word may stand between two words of a phrase: "put it in the calendar" has "put in my
calendar".

The added words count for little beside those of the request: they have a small weight in BM25, and their vector, made
short, is added to the request's vector. A short request says little by its own words, so the added vector is longer
there, most of all for a phrase of several words. A phrase adds nothing if its own words find tools already: in any
request if many tools have all of them, in a long request if one tool has.
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

from toolscout.arrays import Mask, Vectors
from toolscout.encoders import Encoder, unit_rows
from toolscout.encoders.languages import is_foreign
from toolscout.encoders.static import load_static
from toolscout.errors import StoreError
from toolscout.indexes.bm25 import BM25
from toolscout.indexes.large import Postings
from toolscout.indexes.words import list_stems_in_order, tokenize, tokenizer_for
from toolscout.search.opposites import QUOTATION
from toolscout.search.pipeline import newest
from toolscout.search.steps.words import VERBS
from toolscout.types import Answer, Explanation
from toolscout.vocabulary import FIRST_LANGUAGE, WORDS_FOLDER, list_words

__all__ = [
    "EVERYDAY_WEIGHT",
    "EVERYDAY_WORDS_FILE",
    "Addition",
    "ExpandedWords",
    "Phrase",
    "Thesaurus",
    "drop_quotations",
    "encode_expanded",
    "list_everyday_words",
    "list_stems",
    "load_foreign_thesaurus",
    "load_thesaurus",
]

EVERYDAY_WEIGHT: Final = 0.3  # of an added word in BM25, beside 1 for a word of the request; chosen on dev (LAB.md)
LONG_VECTOR_SHARE: Final = 0.33  # times this weight: length of the added words' vector, beside 1 for the request's
WORD_VECTOR_SHARE: Final = 0.67  # the same in a short request, whose own words say less
PHRASE_VECTOR_SHARE: Final = 1.67  # the same in a short request with a phrase of several words, which means one thing
MAX_SHORT_VECTOR_REQUEST: Final = 12  # words of a request that is short for these shares
MAX_SERVED_SHARE: Final = 0.03  # of all tools: if more have all words of a phrase, the phrase adds nothing
MAX_SHORT_REQUEST: Final = 10  # words; in a longer request, a phrase whose words some tool has adds nothing
MAX_CACHED_ADDITIONS: Final = 256  # queries
MAX_CACHED_ADDED_WORDS: Final = 8192
EVERYDAY_SUFFIX: Final = ".everyday.txt"
EVERYDAY_WORDS_FILE: Final = WORDS_FOLDER / f"{FIRST_LANGUAGE}{EVERYDAY_SUFFIX}"
MAX_WORDS_BETWEEN: Final = 1  # other words between two words of a phrase
MAX_REACH: Final = 8  # words behind the first word of a phrase, among which the second is looked for
MAX_REMEMBERED_TEXTS: Final = 64  # a search asks twice for the stems of each step
ONE_WORD: Final = ""  # in place of the second stem, if the phrase has one word or its first has several stems: "mp3"
MIN_LOOSE_WORDS: Final = 2  # words of a phrase, apart from function words, from which others may be between them
FINDING_VERBS: Final = frozenset(list_words("operations.finding"))
_PHRASE_WORD: Final = re.compile(r"[^\W_A-Z]+")
_DETERMINERS: Final = frozenset(list_words("phrases.determiners"))
_CONTRACTIONS: Final[Mapping[str, str]] = {"s": "is", "re": "are", "ve": "have", "ll": "will", "m": "am"}
_all_words = tokenizer_for("code", True, False, True)  # stems, those of function words too, without accents
_main_words = tokenizer_for("code", True, True, True)  # the same without function words
_DETERMINER_STEMS: Final = frozenset(stem for word in _DETERMINERS for stem in _all_words(word))


class Phrase(NamedTuple):
    """A phrase of the thesaurus.

    Attributes:
        text: the phrase as it is in the file.
        words: the words that it adds: what tools call the same thing.
        stems: what a request must have in this order.
        has_function_words: whether some of the stems are of function words.
        is_loose: whether other words may be between the stems.
    """

    text: str
    words: tuple[str, ...]
    stems: tuple[str, ...]
    has_function_words: bool
    is_loose: bool


class Thesaurus:
    """Finds the phrases of requests.

    To keep loading fast, a line of the file becomes a `Phrase` only when a request has its first two stems,
    determiners left out.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        """Read lines with a phrase, a tab, and words. Empty lines and those that begin with `#` are skipped.

        Raises:
            ValueError: for a line without a tab, or without words on either side of it.
        """
        self._lines = defaultdict[str, list[str]](list)  # first word that counts → lines
        self._by_second: dict[str, dict[str, list[tuple[int, str]]]] = {}  # cache: first stem → `_group_lines`
        self._ranked: dict[tuple[str, str], list[tuple[int, int, Phrase]]] = {}  # cache of `_rank_phrases`
        for line in lines:
            if line and not line.startswith("#"):
                text, _, words = line.partition("\t")
                if not words.strip():
                    raise ValueError(f"expected a phrase, a tab and words, found {line!r}")
                self._lines[_find_first_word(text)].append(line)

    def find(self, stems: Sequence[str]) -> list[Phrase]:
        """Return the phrases of a request, given its `list_stems`, in order. No word belongs to two phrases."""
        phrases: list[Phrase] = []
        taken = [False] * len(stems)
        for start in range(len(stems)):
            if taken[start]:
                continue
            for phrase in self._list_phrases(stems, start):
                places = _find_places(phrase, stems, taken, start)
                if places:
                    phrases.append(phrase)
                    for place in places:
                        taken[place] = True
                    break
        return phrases

    def _list_phrases(self, stems: Sequence[str], start: int) -> list[Phrase]:
        """Return the phrases that may begin at a place of a request, the longest first."""
        by_second = self._group_lines(stems[start])
        if not by_second:
            return []
        seconds = dict.fromkeys(second for second in _list_second_stems(stems, start) if second in by_second)
        ranked = [phrase for second in seconds for phrase in self._rank_phrases(stems[start], second)]
        return [phrase for _, _, phrase in sorted(ranked)]

    def _group_lines(self, first: str) -> dict[str, list[tuple[int, str]]]:
        """Group the lines whose phrases begin with a stem: second stem, or `ONE_WORD` → (number, line) of each."""
        if first not in self._lines_by_stem:  # not cached: requests have new words without end
            return {}
        if first not in self._by_second:
            by_second = defaultdict[str, list[tuple[int, str]]](list)
            for number, line in enumerate(self._lines_by_stem[first]):
                words = _list_needed_words(line.partition("\t")[0])
                has_second = len(words) > 1 and len(_all_words.list_terms(words[0])) == 1
                second = _find_stem(words[1]) if has_second else ONE_WORD
                by_second[second].append((number, line))
            self._by_second[first] = dict(by_second)
        return self._by_second[first]

    def _rank_phrases(self, first: str, second: str) -> list[tuple[int, int, Phrase]]:
        """Return the phrases that begin with two stems, each as (- number of stems, number of its line, phrase).

        If these are sorted, the longest phrases come first, and of equally long ones those of earlier lines.
        """
        key = first, second
        if key not in self._ranked:
            phrases = [(number, _make_phrase(*line.split("\t", 1))) for number, line in self._by_second[first][second]]
            self._ranked[key] = [(-len(phrase.stems), number, phrase) for number, phrase in phrases]
        return self._ranked[key]

    @functools.cached_property
    def _lines_by_stem(self) -> dict[str, list[str]]:
        """The lines by the stem of their first word that counts; `_lines` has them by that word itself."""
        by_stem = defaultdict[str, list[str]](list)
        for word, lines in self._lines.items():
            by_stem[_find_stem(word)].extend(lines)
        return dict(by_stem)


@functools.cache
def list_everyday_words() -> frozenset[str]:
    """Return all words in the list of English phrases: words of the language, not names of people."""
    text = EVERYDAY_WORDS_FILE.read_text(encoding="utf-8")
    return frozenset(_PHRASE_WORD.findall(text.lower()))


@functools.lru_cache(maxsize=MAX_REMEMBERED_TEXTS)
def list_stems(text: str) -> tuple[str, ...]:
    """Return the stems of all words of a text in order. *What's* and *what is* are the same."""
    return tuple([_CONTRACTIONS.get(stem, stem) for stem in list_stems_in_order(text)])


def _find_stem(word: str) -> str:
    """Return the stem of a word, the first one if it has several ("mp3": `mp3`, `mp`)."""
    # `list_terms` does not fold accents ("müde" to "mude"), which takes time that a word without accents can save.
    stem = (_all_words.list_terms(word) if word.isascii() else _all_words(word))[0]
    return _CONTRACTIONS.get(stem, stem)


def _find_first_word(text: str) -> str:
    """Return the first of the words that `_list_needed_words` returns.

    Raises:
        ValueError: if the phrase does not begin with a word in small letters.
    """
    match = _PHRASE_WORD.match(text)
    if match is None:
        raise ValueError(f"expected a phrase in small letters, found {text!r}")
    return _list_needed_words(text)[0] if match[0] in _DETERMINERS else match[0]


def _list_needed_words(text: str) -> list[str]:
    """Return the words of a phrase that a request must have: all but determiners, if that leaves two or more."""
    words: list[str] = text.split(" ")
    if not "".join(words).isalnum():  # most phrases have no marks, and need no pattern
        words = _PHRASE_WORD.findall(text)
    main = [word for word in words if word not in _DETERMINERS]
    return main if len(main) > 1 else words


def _make_phrase(text: str, words: str) -> Phrase:
    """Make a phrase from the two columns of a line. Its stems are those of `_list_needed_words`."""
    stems = [_CONTRACTIONS.get(stem, stem) for stem in _all_words(text)]
    main = [stem for stem in stems if stem not in _DETERMINER_STEMS]
    needed = main if len(main) > 1 else stems
    n_main_words = len(_main_words(text))  # without function words
    return Phrase(
        text,
        words=tuple(words.split()),
        stems=tuple(needed),
        has_function_words=len(needed) > n_main_words,
        is_loose=n_main_words >= MIN_LOOSE_WORDS,
    )


def _list_second_stems(stems: Sequence[str], start: int) -> list[str]:
    """Return the stems that can be the second of a phrase that begins at a place of a request, and `ONE_WORD`."""
    seconds = [ONE_WORD]
    n_counting = 0  # stems that are no determiners
    for stem in itertools.islice(stems, start + 1, start + 1 + MAX_REACH):
        seconds.append(stem)
        n_counting += stem not in _DETERMINER_STEMS
        if n_counting > MAX_WORDS_BETWEEN:
            break
    return seconds


def _find_places(phrase: Phrase, stems: Sequence[str], taken: Sequence[bool], start: int) -> list[int]:
    """Return the places of a phrase's stems in a request, the first at `start`; empty if the phrase is not there.

    `taken` says for each stem of the request whether another phrase has it.
    """
    places = [start]
    n_allowed = MAX_WORDS_BETWEEN if phrase.is_loose else 0
    for phrase_stem in phrase.stems[1:]:
        place, n_between = places[-1] + 1, 0
        while place < len(stems) and not taken[place] and stems[place] != phrase_stem:
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
    """Return the index terms of an added word; cached, because many phrases add the same words."""
    return tuple(tokenize(word))


class Addition(NamedTuple):
    """A phrase of a request, and the words that the search adds to the request for it."""

    phrase: str
    words: tuple[str, ...]

    def describe(self) -> str:
        """Return both as people read it."""
        return f"“{self.phrase}” also searches for {', '.join(self.words)}"


class ExpandedWords(BM25):
    """A BM25 index that also searches for the words that everyday phrases of a query add.

    It shares the arrays of a plain index, which stays as it is and answers queries without such phrases.

    Attributes:
        weight: of an added word, beside 1 for a word of the query.
        last_encoded: queries and encoder of the last call of `encode_expanded`, and its result.
    """

    def __init__(self, words: BM25, thesaurus: Callable[[], Thesaurus], weight: float = EVERYDAY_WEIGHT) -> None:
        """Expand the plain index `words`. `thesaurus`: loads the phrases; `weight`: see the attribute."""
        super().__init__(words.ids, words._vocabulary, words._arrays, words.settings)
        self._plain, self._load_thesaurus, self.weight = words, thesaurus, weight
        self.last_encoded: tuple[list[str], Encoder | None, Vectors] = [], None, np.empty((0, 0), dtype=np.float32)
        self._additions: dict[str, tuple[Addition, ...]] = {}  # cache: query → added words
        self._tools_with: dict[str, int] = {}  # cache: phrase → number of tools that have all its words

    def find_additions(self, query: str) -> tuple[Addition, ...]:
        """Return the phrases that add words to a query; no word is in the query already, or in two additions."""
        cached = self._additions.get(query)
        if cached is not None:
            return cached
        stems = list_stems(query)
        additions: list[Addition] = []
        present, added = set(stems), set[str]()
        for phrase in self._find_phrases(query, stems):
            words = [word for word in phrase.words if word not in added and not present.issuperset(_list_terms(word))]
            if words and not self._is_served(phrase, len(stems)):
                added.update(words)
                additions.append(Addition(phrase.text, tuple(words)))
        if len(self._additions) >= MAX_CACHED_ADDITIONS:
            self._additions = {}
        self._additions[query] = result = tuple(additions)
        return result

    def _find_phrases(self, query: str, stems: Sequence[str]) -> list[Phrase]:
        """Find the phrases of a query: English ones in an English query, phrases of other languages in any other."""
        phrases, foreign = self._load_thesaurus().find(stems), load_foreign_thesaurus()
        foreign_phrases = foreign.find(stems) if foreign is not None else []
        if (phrases or foreign_phrases) and is_foreign(query, load_static().pieces.is_word):
            return foreign_phrases
        return phrases

    def count_added_words(self, addition: Addition, ids: Sequence[str]) -> int:
        """Return the greatest number of an addition's words that one of the tools `ids` has."""
        # One row of booleans for each word: a tool has the word if it has a score for any of the word's terms.
        has_word = [(self._plain.score_terms(word, ids) > 0).any(axis=0) for word in addition.words]
        return int(np.sum(has_word, axis=0).max(initial=0))

    def _is_served(self, phrase: Phrase, n_words: int) -> bool:
        """Tell whether a request of `n_words` words needs nothing added, because the phrase's own words find tools."""
        if phrase.text not in self._tools_with:
            self._tools_with[phrase.text] = self._plain.count_tools(phrase.text)
        n_tools = self._tools_with[phrase.text]
        if n_tools > MAX_SERVED_SHARE * len(self.ids):
            return True
        is_long_request = n_words > MAX_SHORT_REQUEST
        return is_long_request and n_tools > 0 and not phrase.has_function_words

    def _look_up_terms(self, query: str) -> tuple[Mapping[str, float], dict[str, Postings]]:
        """Return term → weight for a query and its additions, and the postings of the terms that some tool has."""
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

    def explain(self, query: str, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain rank and score of one tool; see `BM25.explain`. A note says which phrase added which words."""
        explanation = super().explain(query, tool_id, visible)
        additions = self.find_additions(query)
        if not additions:
            return explanation
        query_terms, _ = self._plain._look_up_terms(query)
        notes = [explanation.note, *(addition.describe() for addition in additions)]
        return msgspec.structs.replace(
            explanation,
            note="; ".join(filter(None, notes)),
            # A tool lacks words of the query, and not those that were only added.
            missing=tuple(term for term in explanation.missing if term in query_terms),
        )

    def _label_terms(self, query: str) -> dict[str, str]:
        """Map the terms of a query and its additions to what an explanation calls them."""
        return self._list_added_terms(query) | self._plain._label_terms(query)


def encode_expanded(texts: list[str], encoder: Encoder, words: ExpandedWords) -> Vectors:
    """Encode queries, each with the words that its phrases add: unit rows, `(n, dim)`, read only.

    The last result is cached, because ranking and abstention need it one after the other.
    """
    last_texts, last_encoder, rows = words.last_encoded
    if last_encoder is encoder and last_texts == texts:
        return rows
    rows = _encode_expanded(texts, encoder, words)
    rows.flags.writeable = False
    words.last_encoded = list(texts), encoder, rows
    return rows


def _encode_expanded(texts: list[str], encoder: Encoder, words: ExpandedWords) -> Vectors:
    """Encode queries, and add to the row of each the vector of its added words; see `encode_expanded`."""
    rows = encoder.encode(texts, kind="query")
    added = [" ".join(word for addition in words.find_additions(text) for word in addition.words) for text in texts]
    expanded = [number for number, added_text in enumerate(added) if added_text]
    if not expanded:
        return rows
    lengths = np.array([words.weight * _choose_length(texts[number], words) for number in expanded], dtype=np.float32)
    added_rows = encoder.encode([added[number] for number in expanded], kind="query")
    rows = rows.copy()
    rows[expanded] = unit_rows(rows[expanded] + lengths[:, None] * added_rows)
    return rows


def _choose_length(text: str, words: ExpandedWords) -> float:
    """Return how long the vector of the added words is, beside 1 for the request's, before `words.weight` counts."""
    if len(list_stems(text)) > MAX_SHORT_VECTOR_REQUEST:
        return LONG_VECTOR_SHARE
    has_phrase = any(" " in addition.phrase for addition in words.find_additions(text))
    return PHRASE_VECTOR_SHARE if has_phrase else WORD_VECTOR_SHARE


def drop_quotations(search: Answer) -> str:
    """Return the text to search for: in a command, without quoted titles and messages, which name no action.

    For "create an issue 'Search is slow'", a tool that searches must not be found. A command to find something keeps
    its quotations. So does a request that is no command: there they are mostly values that tools know.
    """
    text = newest(search)
    outside = QUOTATION.sub(" ", text)
    if outside == text:
        return text
    first_word = next(iter(re.findall(r"[^\W_]+", outside.lower())), "")
    return outside if first_word in VERBS and first_word not in FINDING_VERBS else text
