"""The classifier of ToolRerank (arXiv:2403.06551, 3.3): predicts whether one parent serves a query or several do.

It is a logistic regression over the vector of a query and the presence of common words, which a twentieth of the
training queries contain. The vector captures the topic of a query, but hardly the words that join requests ("also",
"as well as").

Cross-validation on the training queries chooses the ridge, because dev is too small for it. The paper tunes BERT.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from toolscout.arrays import Array, Arrays, Checksums, Floats, Mask, Vectors
from toolscout.dataset import Qrels
from toolscout.encoders import Encoder
from toolscout.indexes.words import tokenize
from toolscout.rankers.lesson import Lesson
from toolscout.search.abstain.calibration import sigmoid
from toolscout.search.resources import Resources
from toolscout_lab.rankers.toolrerank.stages import Families
from toolscout_lab.training.logistic import logistic

__all__ = ["OneParentClassifier", "fit_classifier"]

RIDGE_GRID: Final = (1e-3, 3e-3, 1e-2)
CROSS_VALIDATION_FOLDS: Final = 5
MIN_WORD_SHARE: Final = 0.05
WORD_WEIGHT: Final = 0.15  # of a word of mean 0 and variance 1, beside a vector of length 1
CLASSIFIER_ARRAY: Final = "classifier"
CLASSIFIER_WORDS_ARRAY: Final = "classifier_words"


class OneParentClassifier:
    """The fitted classifier.

    Attributes:
        weights: (d + w + 1,) of the vector, of the words, and the constant.
        words: (w,) checksums of the words; a model holds no word in readable form.
    """

    def __init__(self, arrays: Arrays) -> None:
        """Load the classifier from the arrays of a model."""
        self.weights: Floats = np.asarray(arrays[CLASSIFIER_ARRAY], dtype=np.float64)
        self.words: Checksums = np.asarray(arrays.get(CLASSIFIER_WORDS_ARRAY, ()), dtype=np.uint32)

    def __call__(self, texts: Sequence[str], rows: Vectors) -> list[bool]:
        """Predict from queries and their vectors, `(n, d)`, whether one parent serves each."""
        return _decide(np.concatenate([rows, _mark_words(texts, self.words)], axis=1), self.weights)


def fit_classifier(
    resources: Resources, lesson: Lesson, families: Families, encoder: Encoder
) -> tuple[dict[str, Array], dict[str, float | int]]:
    """Fit the classifier that says whether a query needs one family of tools or several.

    Args:
        resources: receive the progress, and have the seed.
        lesson: the queries.
        families: of the tools; they give the labels.
        encoder: of the queries.

    Returns:
        Its arrays and its figures: accuracy on dev (`accuracy`), cross-validated accuracy on train (`crossed`), and the
        accuracy of always naming the commoner kind of dev (`majority`).
    """
    resources.say(f"fitting the classifier of queries on {len(lesson.train):,} of them")
    labels, dev_labels = (_label_queries(part, families) for part in (lesson.train, lesson.dev))
    words = _find_common([lesson.texts[query] for query in lesson.train])
    rows, dev = (_encode_rows(resources, lesson, encoder, list(part), words) for part in (lesson.train, lesson.dev))
    fold_of = np.random.default_rng(resources.run.seed).permutation(len(rows)) % CROSS_VALIDATION_FOLDS
    accuracies = [_cross_validate(rows, labels, fold_of, ridge, len(words)) for ridge in RIDGE_GRID]
    best = int(np.argmax(accuracies))
    weights = _fit_weights(rows, labels, RIDGE_GRID[best], len(words))
    single_share = float(np.mean(dev_labels))
    facts: dict[str, float | int] = {
        "accuracy": float(np.mean(np.array(_decide(dev, weights)) == dev_labels)),
        "crossed": accuracies[best],
        "majority": max(single_share, 1 - single_share),
        "single": single_share,
        "ridge": RIDGE_GRID[best],
        "words": len(words),
    }
    resources.say(
        f"the classifier is right on {facts['accuracy']:.1%} of dev ({accuracies[best]:.1%} of the training queries, "
        f"each left out once); the commoner kind is {facts['majority']:.1%}"
    )
    return {CLASSIFIER_ARRAY: weights, CLASSIFIER_WORDS_ARRAY: words}, facts


def _label_queries(qrels: Qrels, families: Families) -> Mask:
    """Return whether the gold tools of each query have one parent, `(queries,)`."""
    return np.array([families.are_one_family(list(tools)) for tools in qrels.values()], dtype=np.bool_)


def _hash_words(text: str) -> list[int]:
    return [zlib.crc32(word.encode()) for word in set(tokenize(text, stem=False, stopwords=False))]


def _find_common(texts: Sequence[str]) -> Checksums:
    """Return the checksums, ascending, of words that enough of the texts have, but not nearly all."""
    words, counts = np.unique([checksum for text in texts for checksum in _hash_words(text)], return_counts=True)
    shares = counts / len(texts)
    return words[(shares >= MIN_WORD_SHARE) & (shares <= 1 - MIN_WORD_SHARE)].astype(np.uint32)


def _mark_words(texts: Sequence[str], words: Checksums) -> Floats:
    """Mark the words that each text has, `(n, w)`."""
    marks = [np.isin(words, _hash_words(text)) for text in texts]
    return np.array(marks, dtype=np.float64).reshape(len(texts), len(words))


def _encode_rows(
    resources: Resources, lesson: Lesson, encoder: Encoder, queries: Sequence[str], words: Checksums
) -> Floats:
    """Return the vectors of queries, followed by the marks of their words, `(queries, d + w)`."""
    present = _mark_words([lesson.texts[query] for query in queries], words)
    return np.concatenate([resources.encode_queries(encoder, lesson.texts_of(queries)), present], axis=1)


def _fit_weights(rows: Floats, labels: Mask, ridge: float, words: int) -> Floats:
    """Fit the weights, `(d + words + 1,)`, constant last, for rows as `_encode_rows` returns them.

    The last `words` columns mark words. They are standardised for the regression, so that the ridge treats rare and
    frequent words alike. The scale is then folded into the weights.
    """
    mean, scale = np.zeros(rows.shape[1]), np.ones(rows.shape[1])
    if words:
        mean[-words:] = rows[:, -words:].mean(axis=0)
        scale[-words:] = WORD_WEIGHT / np.maximum(rows[:, -words:].std(axis=0), MIN_WORD_SHARE)
    weights = logistic((rows - mean) * scale, labels, ridge)
    weights[:-1] *= scale
    weights[-1] -= weights[:-1] @ mean
    return weights


def _cross_validate(rows: Floats, labels: Mask, fold_of: Array, ridge: float, words: int) -> float:
    """Return the accuracy over all rows, each predicted by weights that were fitted on the other folds."""
    if len(rows) < CROSS_VALIDATION_FOLDS:
        return 0.0
    correct = np.zeros(len(rows), dtype=np.bool_)
    for fold in range(CROSS_VALIDATION_FOLDS):
        held_out = fold_of == fold
        weights = _fit_weights(rows[~held_out], labels[~held_out], ridge, words)
        correct[held_out] = np.array(_decide(rows[held_out], weights)) == labels[held_out]
    return float(correct.mean())


def _decide(rows: Array, weights: Floats) -> list[bool]:
    return [bool(share > 0.5) for share in sigmoid(rows @ weights[:-1] + weights[-1])]
