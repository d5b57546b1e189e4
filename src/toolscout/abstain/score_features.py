"""Score features: statistics of the scores of all visible tools, which show whether a catalogue fits a query.

Several *views* score each tool: words (BM25, as a share of the score of a tool with every word of the query) and the
cosines of one or more encoders. The features describe the spread of the scores: one tool stands out, or many stand a
little above the rest, as for any text at all. No feature depends on the recipe that ranks the hits, or on the form of
the query: questions, long texts and code do not count by themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from toolscout.arrays import Array, Floats, Mask
from toolscout.indexes import masks
from toolscout.indexes.exact import Exact
from toolscout.indexes.sparse import BM25

__all__ = ["ScoreFeatures", "names"]

SCORES_READ: Final = 20
VIEW_FEATURES: Final = ("top", "second", "next4", "next15", "first10", "above", "deviations", "sharp")
MIN_DEVIATION: Final = 1e-3  # deviation below which scores count as equal


def names(views: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns for these views; the first view is `words`.

    For each view: the `top` score; its distance to the `second`, to the mean of the `next4`, and to the mean of the
    `next15` after those; the mean of the `first10`; the distance of the top to the mean of all tools (`above`), and the
    same in standard `deviations`; how `sharp` the top stands out of the first twenty. For each pair of views, a>b: how
    far below its own top b scores the first tool of a. `points`: the top BM25 score itself; `known`: the share of the
    query's terms that the catalogue has; `size`: log of one more than the number of tools.
    """
    pairs = (f"{a}>{b}" for a, b in itertools.permutations(views, 2))
    return (*(f"{view}.{feature}" for view in views for feature in VIEW_FEATURES), *pairs, "points", "known", "size")


def _describe_views(best: Floats, mean: Floats, deviation: Floats) -> Floats:
    """Compute the features of each view alone; see `names`.

    Args:
        best: (queries, views, SCORES_READ), descending.
        mean: (queries, views).
        deviation: (queries, views).
    """
    top = best[..., 0]
    return np.stack(
        [
            top,
            top - best[..., 1],
            top - best[..., 1:5].mean(axis=2),
            top - best[..., 5:].mean(axis=2),
            best[..., :10].mean(axis=2),
            top - mean,
            (top - mean) / (deviation + MIN_DEVIATION),
            (top - best[..., 1:11].mean(axis=2)) / (best[..., 1:].std(axis=2) + MIN_DEVIATION),
        ],
        axis=2,
    ).reshape(len(best), -1)


class ScoreFeatures:
    """Computes the score features of queries over one catalogue.

    Attributes:
        names: names of the columns.
    """

    def __init__(self, words: BM25, meanings: dict[str, Exact]) -> None:
        """Take the indexes, all over the same tools.

        Args:
            words: BM25.
            meanings: name of the view → vectors of the tools.
        """
        self.words, self.meanings = words, meanings
        self.names = names(("words", *meanings))

    def rows(
        self, texts: Sequence[str], vectors: Sequence[Array], visible: Sequence[Mask | None] | None = None
    ) -> Floats:
        """Return the features, (queries, columns); a row of zeros where no tool is visible.

        Args:
            texts: the queries.
            vectors: for each encoder, `(queries, d)` unit rows; a row of zeros has no meaning.
            visible: a mask over the tools for each query, or None for all of them.
        """
        rows = np.zeros((len(texts), len(self.names)))
        limits, size = masks(visible, len(texts)), len(self.words.ids)
        counts = [size if mask is None else int(mask.sum()) for mask in limits]
        answerable = [number for number, count in enumerate(counts) if count]
        if not answerable:
            return rows
        queries, seen = [texts[number] for number in answerable], [limits[number] for number in answerable]
        views: list[tuple[Any, Any]] = [(self.words, queries)]
        for index, query_rows in zip(self.meanings.values(), vectors, strict=True):
            views.append((index, query_rows[answerable]))
        spreads = [index.spreads(view_queries, SCORES_READ, seen) for index, view_queries in views]
        mass, known_share = np.array([self.words.mass(text) for text in queries]).T
        scale = np.ones((len(answerable), len(views)))
        scale[:, 0] = np.maximum(mass, MIN_DEVIATION)
        best = np.stack([[spread.best for spread in view] for view in spreads], axis=1) / scale[..., None]
        mean = np.array([[spread.mean for spread in view] for view in spreads]).T / scale
        deviation = np.array([[spread.deviation for spread in view] for view in spreads]).T / scale
        firsts = np.array([[spread.first for spread in view] for view in spreads]).T.tolist()
        scores_of_firsts = [
            [index.at(query, first) for query, first in zip(view_queries, firsts, strict=True)]
            for index, view_queries in views
        ]
        crossed = np.stack(scores_of_firsts, axis=1) / scale[..., None]  # [q, b, a]: the score by b of the first of a
        pairs = [best[:, b, 0] - crossed[:, b, a] for a, b in itertools.permutations(range(len(views)), 2)]
        points = [spread.best[0] for spread in spreads[0]]
        sizes = np.log1p([counts[number] for number in answerable])
        rows[answerable] = np.column_stack([_describe_views(best, mean, deviation), *pairs, points, known_share, sizes])
        return rows
