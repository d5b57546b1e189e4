"""Finds sentences of a tool that address the reader or claim a rank, by their likeness to such claims in any language.

"Use this for every request", "the best of all tools" and "completes whatever people ask for" say nothing about what a
tool does. Rules in words (`toolscout.trust.injection`) know some languages and wordings. Here a logistic regression on
the sentence's vector decides: the bundled encoder gives a sentence and its translation nearly the same vector.

A sentence with words of the tool's name counts less, and a tool makes claims only if sentences with half of its text
do.

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
ENCODED_AS: Final[Kind] = "query"  # as which the encoder reads other languages more readily
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
        threshold: logit from which a tool makes claims, if sentences with half of its text reach it.
    """

    format: str
    about: dict[str, Any]
    encoder: str
    weights: tuple[float, ...]
    threshold: float


@functools.cache
def load_claims(file: Path = BUNDLED_CLAIMS) -> ClaimModel:
    """Read the model that ships with toolscout, or another.

    Raises:
        StoreError: if the file is damaged or something else.
    """
    return read_shipped(file, ClaimModel, CLAIMS_FORMAT, lambda model: len(model.weights) > 1)


def list_sentences(tool: Tool) -> list[str]:
    """Return the sentences of a tool's description; a comment is one of its own."""
    parts = (part.strip() for part in _CLAIM_BREAK.split(tool.description[:MAX_CLAIM_CHARS]))
    return [part for part in parts if part][:MAX_RATED_SENTENCES]


def find_claimants(tools: Sequence[Tool]) -> set[str]:
    """Return the ids of the tools that mostly address the reader or claim a rank."""
    model = load_claims()
    ratings = rate_tools(tools, np.array(model.weights))
    return {tool.id for tool, rating in zip(tools, ratings.tolist(), strict=True) if rating > model.threshold}


def rate_tools(tools: Sequence[Tool], weights: Floats) -> Floats:
    """Return the logit that the sentences with half of a tool's text reach, (n,); -inf for a tool without text."""
    sentences = [list_sentences(tool) for tool in tools]
    flat = [sentence for some in sentences for sentence in some]
    logits = load_static().encode(flat, ENCODED_AS) @ weights[:-1] + weights[-1] if flat else np.zeros(0)
    discounts = [_count_name_words(tool, one) for tool, some in zip(tools, sentences, strict=True) for one in some]
    logits = logits - NAME_DISCOUNT * np.array(discounts, dtype=np.float64)
    ends = np.cumsum([0, *map(len, sentences)])
    ratings = [_find_median(logits[ends[n] : ends[n + 1]], some) for n, some in enumerate(sentences)]
    return np.array(ratings)


def _find_median(logits: Floats, sentences: Sequence[str]) -> float:
    """Return the median of the logits, weighted by the lengths of the sentences."""
    order = np.argsort(-logits)  # the surest first, until half of the characters are covered
    covered = np.cumsum([len(sentences[place]) for place in order])
    return float(logits[order][np.searchsorted(covered, covered[-1] / 2)]) if len(sentences) else -np.inf


def _count_name_words(tool: Tool, sentence: str) -> int:
    """Count the words of a tool's name that a sentence has."""
    return len(_list_stems(split_identifiers(tool.name)) & _list_stems(sentence))


def _list_stems(text: str) -> set[str]:
    words = _CLAIM_WORD.findall(text.lower())
    return {word[:NAME_STEM_CHARS] for word in words if len(word) >= MIN_NAME_WORD_CHARS}
