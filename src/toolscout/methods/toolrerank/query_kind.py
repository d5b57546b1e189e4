"""Whether one parent serves a query, or several are needed: the classifier of ToolRerank (arXiv:2403.06551, 3.3).

A logistic regression over a query's vector and over which of the common words stand in it, those of a twentieth of the
training queries. A vector says what a query is about; that it joins requests ("also", "as well as") it hardly says.

Its ridge is chosen by parts of the training queries that were left out: dev is too small for it. The paper tunes BERT.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from toolscout.abstain.logistic import logistic, sigmoid
from toolscout.arrays import Array, Arrays, Checksums, Floats, Mask, Vectors
from toolscout.dataset import Qrels
from toolscout.encoders import Encoder
from toolscout.indexes.words import tokenize
from toolscout.methods.lesson import Lesson
from toolscout.methods.toolrerank.stages import Families
from toolscout.workspace import Workspace

__all__ = ["OneParent", "learn"]

RIDGE_GRID: Final = (1e-3, 3e-3, 1e-2)
CROSS_VALIDATION_FOLDS: Final = 5
MIN_WORD_SHARE: Final = 0.05
WORD_WEIGHT: Final = 0.15  # of a word of mean 0 and variance 1, beside a vector of length 1
CLASSIFIER_ARRAY: Final = "classifier"
CLASSIFIER_WORDS_ARRAY: Final = "classifier_words"


class OneParent:
    """The classifier, fitted.

    Attributes:
        weights: (d + w + 1,) of the vector, of the words, and the constant.
        words: (w,) checksums of the words, so that a model holds none in readable form.
    """

    def __init__(self, arrays: Arrays) -> None:
        """Take the arrays of a model."""
        self.weights: Floats = np.asarray(arrays[CLASSIFIER_ARRAY], dtype=np.float64)
        self.words: Checksums = np.asarray(arrays.get(CLASSIFIER_WORDS_ARRAY, ()), dtype=np.uint32)

    def __call__(self, texts: Sequence[str], rows: Vectors) -> list[bool]:
        """Queries and their vectors, `(n, d)` → whether one parent serves each."""
        return _decide(np.concatenate([rows, _mark_words(texts, self.words)], axis=1), self.weights)


def learn(
    workspace: Workspace, lesson: Lesson, families: Families, encoder: Encoder
) -> tuple[dict[str, Array], dict[str, float | int]]:
    """Fit it.

    Returns:
        Its arrays, and how often it is right: on dev (`accuracy`), on training queries that were left out (`crossed`),
        and if it always named the kind that is commoner on dev (`majority`).
    """
    workspace.say(f"fitting the classifier of queries on {len(lesson.train):,} of them")
    labels, wanted = (_labels(part, families) for part in (lesson.train, lesson.dev))
    words = _find_common([lesson.texts[query] for query in lesson.train])
    rows, dev = (_rows(workspace, lesson, encoder, list(part), words) for part in (lesson.train, lesson.dev))
    part = np.random.default_rng(workspace.seed).permutation(len(rows)) % CROSS_VALIDATION_FOLDS
    crossed = [_cross_validate(rows, labels, part, ridge, len(words)) for ridge in RIDGE_GRID]
    best = int(np.argmax(crossed))
    weights = _fit_weights(rows, labels, RIDGE_GRID[best], len(words))
    often = float(np.mean(wanted))
    told: dict[str, float | int] = {
        "accuracy": float(np.mean(np.array(_decide(dev, weights)) == wanted)),
        "crossed": crossed[best],
        "majority": max(often, 1 - often),
        "single": often,
        "ridge": RIDGE_GRID[best],
        "words": len(words),
    }
    workspace.say(
        f"the classifier is right on {told['accuracy']:.1%} of dev ({crossed[best]:.1%} of the training queries, each "
        f"left out once); the commoner kind is {told['majority']:.1%}"
    )
    return {CLASSIFIER_ARRAY: weights, CLASSIFIER_WORDS_ARRAY: words}, told


def _labels(qrels: Qrels, families: Families) -> Mask:
    return np.array([families.one(list(tools)) for tools in qrels.values()], dtype=np.bool_)


def _sums(text: str) -> list[int]:
    return [zlib.crc32(word.encode()) for word in set(tokenize(text, stem=False, stopwords=False))]


def _find_common(texts: Sequence[str]) -> Checksums:
    """The checksums of words that enough of the texts have, and not nearly all, ascending."""
    found, counts = np.unique([each for text in texts for each in _sums(text)], return_counts=True)
    shares = counts / len(texts)
    return found[(shares >= MIN_WORD_SHARE) & (shares <= 1 - MIN_WORD_SHARE)].astype(np.uint32)


def _mark_words(texts: Sequence[str], words: Checksums) -> Floats:
    """Which of the words each text has, `(n, w)`."""
    return np.array([np.isin(words, _sums(text)) for text in texts], dtype=np.float64).reshape(len(texts), len(words))


def _rows(workspace: Workspace, lesson: Lesson, encoder: Encoder, queries: Sequence[str], words: Checksums) -> Floats:
    present = _mark_words([lesson.texts[query] for query in queries], words)
    return np.concatenate([workspace.encode_queries(encoder, lesson.texts_of(queries)), present], axis=1)


def _fit_weights(rows: Floats, labels: Mask, ridge: float, words: int) -> Floats:
    """The weights for rows as they are, of a regression over rows whose last columns, of the words, are to scale."""
    mean, scale = np.zeros(rows.shape[1]), np.ones(rows.shape[1])
    if words:
        mean[-words:] = rows[:, -words:].mean(axis=0)
        scale[-words:] = WORD_WEIGHT / np.maximum(rows[:, -words:].std(axis=0), MIN_WORD_SHARE)
    weights = logistic((rows - mean) * scale, labels, ridge)
    weights[:-1] *= scale
    weights[-1] -= weights[:-1] @ mean
    return weights


def _cross_validate(rows: Floats, labels: Mask, part: Array, ridge: float, words: int) -> float:
    """How often it is right on each part when it is fitted on the others."""
    if len(rows) < CROSS_VALIDATION_FOLDS:
        return 0.0
    right = np.zeros(len(rows), dtype=np.bool_)
    for left in range(CROSS_VALIDATION_FOLDS):
        out = part == left
        right[out] = np.array(_decide(rows[out], _fit_weights(rows[~out], labels[~out], ridge, words))) == labels[out]
    return float(right.mean())


def _decide(rows: Array, weights: Floats) -> list[bool]:
    return [bool(share > 0.5) for share in sigmoid(rows @ weights[:-1] + weights[-1])]
