"""Finds sentences of a tool that address the reader or claim a rank, by their likeness to such claims in any language.

"Use this for every request", "the best of all tools" and "completes whatever people ask for" say nothing about what a
tool does. Rules in words (`toolscout.trust.injection`) know some languages and wordings. Here a logistic regression on
the sentence's vector decides: the bundled encoder gives a sentence and its translation nearly the same vector.

A sentence with words of the tool's name counts less. A tool makes claims only if sentences that make claims have half
of the characters of its description.

The weights (`data/claims.json`) were fitted by `benchmarks/fit_claims.py`; the file names its data.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from toolscout.arrays import Floats
from toolscout.encoders import Kind, split_identifiers
from toolscout.encoders.static import load_static
from toolscout.search.shipped import read_shipped
from toolscout.types import Tool

__all__ = ["BUNDLED_CLAIMS", "CLAIMS_FORMAT", "find_claimants", "list_sentences", "rate_tools"]

BUNDLED_CLAIMS: Final = Path(__file__).with_name("data") / "claims.json"
CLAIMS_FORMAT: Final = "claims/1"
ENCODED_AS: Final[Kind] = "query"  # the encoder reads other languages better in queries than in tools
MAX_RATED_SENTENCES: Final = 12  # of a tool
MAX_CLAIM_CHARS: Final = 4_000  # of a description
NAME_DISCOUNT: Final = 2.0  # of the logit, for each word of the tool's name in a sentence: it says what the tool does
MIN_NAME_WORD_CHARS: Final = 4
NAME_STEM_CHARS: Final = 5
_CLAIM_WORD: Final = re.compile(r"[^\W\d_]+")
_CLAIM_BREAK: Final = re.compile(r"(?<=[.!?;。！？])\s+|\n+|<!--|-->")


class ClaimModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A logistic regression on the vector of a sentence.

    Attributes:
        format: `CLAIMS_FORMAT`.
        about: record of the data and the command of the fit; JSON values.
        encoder: fingerprint of the encoder.
        weights: of each dimension, and a constant.
        threshold: a tool makes claims if its rating (see `rate_tools`) is above this logit.
    """

    format: str
    about: dict[str, Any]
    encoder: str
    weights: tuple[float, ...]
    threshold: float


@functools.cache
def load_claims(file: Path = BUNDLED_CLAIMS) -> ClaimModel:
    """Read the model that ships with toolscout, or the model in another file.

    Raises:
        StoreError: if the file is damaged or no such model.
    """
    return read_shipped(file, ClaimModel, CLAIMS_FORMAT, lambda model: len(model.weights) > 1)


def list_sentences(tool: Tool) -> list[str]:
    """Return the sentences of a tool's description; an HTML comment counts as one."""
    parts = (part.strip() for part in _CLAIM_BREAK.split(tool.description[:MAX_CLAIM_CHARS]))
    return [part for part in parts if part][:MAX_RATED_SENTENCES]


def find_claimants(tools: Sequence[Tool]) -> set[str]:
    """Return the ids of the tools that mostly address the reader or claim a rank."""
    model = load_claims()
    ratings = rate_tools(tools, np.array(model.weights))
    return {tool.id for tool, rating in zip(tools, ratings.tolist(), strict=True) if rating > model.threshold}


def rate_tools(tools: Sequence[Tool], weights: Floats) -> Floats:
    """Rate how much each tool makes claims, (n,): the median of its sentences' logits, weighted by their lengths.

    A tool without text has -inf. `weights`: of each dimension, and a constant, as in `ClaimModel`.
    """
    by_tool = [list_sentences(tool) for tool in tools]
    pairs = [(tool, sentence) for tool, sentences in zip(tools, by_tool, strict=True) for sentence in sentences]
    if not pairs:
        return np.full(len(tools), -np.inf)
    vectors = load_static().encode([sentence for _, sentence in pairs], ENCODED_AS)
    name_words = np.array([_count_name_words(tool, sentence) for tool, sentence in pairs], dtype=np.float64)
    logits = vectors @ weights[:-1] + weights[-1] - NAME_DISCOUNT * name_words
    ends = np.cumsum([len(sentences) for sentences in by_tool])
    return np.array(list(map(_find_median, np.split(logits, ends[:-1]), by_tool)))


def _find_median(logits: Floats, sentences: Sequence[str]) -> float:
    """Return the median of the logits of sentences, weighted by their lengths; -inf without sentences."""
    if not sentences:
        return -np.inf
    order = np.argsort(-logits)
    n_chars = np.cumsum([len(sentences[number]) for number in order])
    middle = np.searchsorted(n_chars, n_chars[-1] / 2)  # the sentence with which half of the characters are reached
    return float(logits[order[middle]])


def _count_name_words(tool: Tool, sentence: str) -> int:
    """Count the words of a tool's name that a sentence has, compared by their first letters."""
    return len(_list_stems(split_identifiers(tool.name)) & _list_stems(sentence))


def _list_stems(text: str) -> set[str]:
    """Return the first letters of the longer words of a text, in small letters."""
    words = _CLAIM_WORD.findall(text.lower())
    return {word[:NAME_STEM_CHARS] for word in words if len(word) >= MIN_NAME_WORD_CHARS}
