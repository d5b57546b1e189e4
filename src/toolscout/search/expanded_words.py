"""Searches with words of tools for phrases of everyday life: those of the thesaurus (`search.everyday_words`).

The words count for little beside those of the request: a small weight in BM25, and a share of its vector. A short
request says little by its own words, so its share is larger, most of all for a phrase of several words.

A phrase adds nothing where the request's own words serve already: where many tools have them, and in a long request
where any tool has them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.arrays import Mask, Vectors
from toolscout.encoders import Encoder, unit_rows
from toolscout.encoders.languages import is_foreign
from toolscout.encoders.static import load_static
from toolscout.indexes.bm25 import BM25
from toolscout.indexes.large import Postings
from toolscout.indexes.words import tokenize
from toolscout.search.everyday_words import Phrase, Thesaurus, list_stems
from toolscout.types import Explanation

__all__ = ["EVERYDAY_WEIGHT", "Addition", "ExpandedWords", "encode_expanded"]

EVERYDAY_WEIGHT: Final = 0.3  # of an added word in BM25, beside 1 for a word of the request; chosen on dev (LAB.md)
LONG_VECTOR_SHARE: Final = 0.33  # of this weight: length of the added words' vector, beside 1 for that of the request
WORD_VECTOR_SHARE: Final = 0.67  # the same in a short request, whose own words say less
PHRASE_VECTOR_SHARE: Final = 1.67  # the same for a phrase of several words, which means one thing
MAX_SHORT_VECTOR_REQUEST: Final = 12  # words of a request that is short here
MAX_SERVED_SHARE: Final = 0.03  # of the tools that have the words of a phrase: more of them, and it adds nothing
MAX_SHORT_REQUEST: Final = 10  # words; in a longer request, a phrase whose words some tool has adds nothing
MAX_CACHED_ADDITIONS: Final = 256  # queries
MAX_CACHED_ADDED_WORDS: Final = 8192


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
        self._additions: dict[str, tuple[Addition, ...]] = {}
        self._tools_with: dict[str, int] = {}

    def find_additions(self, query: str) -> tuple[Addition, ...]:
        """Return the phrases of a query and what they add. A query in another language has none."""
        if (cached := self._additions.get(query)) is not None:
            return cached
        stems = list_stems(query)
        phrases = self._load_thesaurus().find(stems)
        if phrases and is_foreign(query, load_static().pieces.is_word):
            phrases = []
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
