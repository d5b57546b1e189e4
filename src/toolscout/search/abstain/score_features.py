"""Score features: statistics of the scores of all tools, which show whether a catalogue fits a query.

Several *views* score each tool: words (BM25, divided by the greatest score that any tool could have) and the cosines of
one or more encoders. The features describe the spread of the scores: if a tool serves the request, it stands out; for
any other text, many tools score a little above the rest. No feature depends on the recipe that ranks the hits, or on
the form of the query: questions, long texts and code do not count by themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from toolscout.arrays import Array, Floats, Mask
from toolscout.indexes import masks
from toolscout.indexes.bm25 import BM25
from toolscout.indexes.exact import Exact

__all__ = ["ScoreFeatures", "names"]

SCORES_READ: Final = 20  # greatest scores of each view, which the features read
VIEW_FEATURES: Final = ("top", "second", "next4", "next15", "first10", "above", "deviations", "sharp")
MIN_DEVIATION: Final = 1e-3  # smaller deviations count as this one


def _weigh_mean(start: int, stop: int) -> Floats:
    """Return a weight for each rank. Scores times weights sum to the mean score of the ranks `start` to `stop` - 1."""
    ranks = np.arange(SCORES_READ)
    return np.where((ranks >= start) & (ranks < stop), 1 / (stop - start), 0.0)


_TOP: Final = _weigh_mean(0, 1)
_SCORE_WEIGHTS: Final = np.stack(
    [
        _TOP,
        _TOP - _weigh_mean(1, 2),  # second
        _TOP - _weigh_mean(1, 5),  # next4
        _TOP - _weigh_mean(5, SCORES_READ),  # next15
        _weigh_mean(0, 10),  # first10
        _TOP - _weigh_mean(1, 11),  # the numerator of `sharp`
    ],
    axis=1,
)
"""(best scores, features): the weights with which the best scores of a view add up to its features."""


def names(views: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns for these views; the first view is `words`.

    For each view: the `top` score; its distance to the `second`, to the mean of the `next4`, and to the mean of the
    `next15` after those; the mean of the `first10`; the distance of the top to the mean of all tools (`above`), and the
    same in standard `deviations`; the distance of the top to the mean of the ten after it, in deviations of the first
    twenty without the top (`sharp`). For each pair of views, `a>b`: the top score of b, less the score that b gives the
    first tool of a. `points`: the top BM25 score, not divided; `known`: the share of the query's terms that the
    catalogue has; `size`: log of one more than the number of tools.
    """
    pairs = (f"{a}>{b}" for a, b in itertools.permutations(views, 2))
    return (*(f"{view}.{feature}" for view in views for feature in VIEW_FEATURES), *pairs, "points", "known", "size")


def _describe_views(best: Floats, mean: Floats, deviation: Floats) -> Floats:
    """Compute the features of each view alone, (queries, views · features); see `names`.

    Args:
        best: the best scores, (queries, views, SCORES_READ), descending.
        mean: mean of all scores, (queries, views).
        deviation: standard deviation of all scores, (queries, views).
    """
    weighted = np.einsum("qvs,sf->qvf", best, _SCORE_WEIGHTS)
    above = best[..., 0] - mean
    deviations = above / (deviation + MIN_DEVIATION)
    sharp = weighted[..., -1] / (best[..., 1:].std(axis=2) + MIN_DEVIATION)
    from_all_scores = np.stack([above, deviations, sharp], axis=2)
    return np.concatenate([weighted[..., :-1], from_all_scores], axis=2).reshape(len(best), -1)


class ScoreFeatures:
    """Computes the score features of queries over one catalogue.

    Attributes:
        names: names of the columns.
    """

    def __init__(self, words: BM25, meanings: dict[str, Exact]) -> None:
        """Read indexes over the same tools; `meanings`: name of the view → vectors of the tools."""
        self.words, self.meanings = words, meanings
        self.names = names(("words", *meanings))

    def rows(
        self, texts: Sequence[str], vectors: Sequence[Array], visible: Sequence[Mask | None] | None = None
    ) -> Floats:
        """Return the features, (queries, columns); a row of zeros where no tool is visible.

        Args:
            texts: the queries.
            vectors: for each encoder, `(queries, d)` unit rows; a row of zeros if the encoder knows no word of a text.
            visible: a mask over the tools for each query, or None for all tools; None: all tools for every query.
        """
        rows = np.zeros((len(texts), len(self.names)))
        query_masks, size = masks(visible, len(texts)), len(self.words.ids)
        counts = [size if mask is None else int(mask.sum()) for mask in query_masks]
        answerable = [number for number, count in enumerate(counts) if count]
        if answerable:
            rows[answerable] = self._describe_queries(
                [texts[number] for number in answerable],
                [query_rows[answerable] for query_rows in vectors],
                [query_masks[number] for number in answerable],
                [counts[number] for number in answerable],
            )
        return rows

    def _describe_queries(
        self, texts: Sequence[str], vectors: Sequence[Array], visible: Sequence[Mask | None], counts: Sequence[int]
    ) -> Floats:
        """Compute the features of one or more queries with visible tools; see `rows`.

        `counts` has the number of visible tools for each query.
        """
        indexes: tuple[Any, ...] = (self.words, *self.meanings.values())  # one for each view, words first
        queries: tuple[Any, ...] = (texts, *vectors)  # what each index reads
        spreads = [index.spreads(view, SCORES_READ, visible) for index, view in zip(indexes, queries, strict=True)]
        max_scores, known_share = np.array([self.words.mass(text) for text in texts]).T
        scale = np.ones((len(texts), len(indexes)))
        scale[:, 0] = np.maximum(max_scores, MIN_DEVIATION)  # BM25 scores become shares of the greatest possible score
        # Each field of the spreads: (queries, views), and for the best scores one more axis.
        best, first, mean, deviation = (
            np.stack([[spread[field] for spread in view] for view in spreads], axis=1) for field in range(4)
        )
        best, mean, deviation = best / scale[..., None], mean / scale, deviation / scale
        # [query, b, a]: the score that view b gives the first tool of view a.
        scored = [
            [index.at(query, tools) for query, tools in zip(view, first.tolist(), strict=True)]
            for index, view in zip(indexes, queries, strict=True)
        ]
        first_scores = np.stack(scored, axis=1) / scale[..., None]
        pairs = [best[:, b, 0] - first_scores[:, b, a] for a, b in itertools.permutations(range(len(indexes)), 2)]
        word_spreads = spreads[0]
        points = [spread.best[0] for spread in word_spreads]
        return np.column_stack([_describe_views(best, mean, deviation), *pairs, points, known_share, np.log1p(counts)])
