"""Terms of a request, from which the need of a tool is estimated beside its vector: "poem" and "explain" speak of chat.

Only which terms occur counts. The form of the text does not: its length, its lines, whether it is a question.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from toolscout.arrays import Vectors
from toolscout.indexes.words import list_stems_in_order

__all__ = ["TERMS_VIEW", "choose_terms", "mark_terms"]

TERMS_VIEW: Final = "terms"
MAX_TERMS_CHOSEN: Final = 600
MIN_TERM_GROUPS: Final = 3  # groups of requests in which a term must occur, so that it is of no single domain
MAX_CACHED_REQUESTS: Final = 64
MAX_CHARS_READ: Final = 600  # of a request; long prompts say at the beginning what is wanted


@functools.lru_cache(maxsize=MAX_CACHED_REQUESTS)
def _find_terms(text: str) -> frozenset[str]:
    """Return the terms of a request. A search asks for those of each step twice."""
    return frozenset(list_stems_in_order(text[:MAX_CHARS_READ]))


def choose_terms(texts: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Choose the terms that occur in most requests, and in several groups. Numbers are left out.

    Args:
        texts: group → requests.
    """
    frequency = Counter[str]()
    groups: defaultdict[str, set[str]] = defaultdict(set)
    for group, requests in texts.items():
        for text in requests:
            for term in _find_terms(text):
                frequency[term] += 1
                groups[term].add(group)
    common = [term for term in frequency if len(groups[term]) >= MIN_TERM_GROUPS and not term.isdigit()]
    return tuple(sorted(common, key=lambda term: (-frequency[term], term))[:MAX_TERMS_CHOSEN])


@functools.lru_cache(maxsize=4)
def _place_terms(terms: tuple[str, ...]) -> dict[str, int]:
    """Return the column of each term."""
    return {term: place for place, term in enumerate(terms)}


def mark_terms(texts: Sequence[str], terms: tuple[str, ...]) -> Vectors:
    """Return a row for each request, (n, terms): equal values for the terms that occur, unit length, else zeros."""
    places = _place_terms(terms)
    rows = np.zeros((len(texts), len(terms)), dtype=np.float32)
    for row, text in zip(rows, texts, strict=True):
        row[[places[term] for term in _find_terms(text) & places.keys()]] = 1.0
    units: Vectors = rows / np.sqrt(np.maximum(rows.sum(axis=1, keepdims=True), 1.0))
    return units
