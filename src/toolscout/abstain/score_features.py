"""What a catalogue's answer to a query says about whether it fits: numbers from the scores of all visible tools.

Each tool is scored by several *views*: words (BM25, as a share of the score of a tool that would hold every word of the
query) and the cosines of one encoder or more. What counts is how the scores are spread: does one tool stand out, or do
many stand a little above the rest, as they do for any text at all? Nothing here depends on which recipe ranks the hits,
or on the form of the query's text: questions, long texts and code are no reason by themselves.
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
    """What the columns of a row are called, for views of these names; `words` is the first of them.

    Of each view: `top` score; what it is above the `second`, above the mean of the `next4` and of the `next15` after
    those; the mean of the `first10`; what the top is `above` the mean of all tools, and that in standard `deviations`;
    how `sharp` it stands out of the twenty first. Of each pair of views, a>b: how far below its own top b puts the
    first tool of a. `points`: the top BM25 score itself; `known`: the share of the query's terms that the catalogue
    has; `size`: log of one more than the number of tools.
    """
    pairs = (f"{a}>{b}" for a, b in itertools.permutations(views, 2))
    return (*(f"{view}.{each}" for view in views for each in VIEW_FEATURES), *pairs, "points", "known", "size")


def _numbers(best: Floats, mean: Floats, deviation: Floats) -> Floats:
    """The part of the rows that comes from each view alone, see `names`.

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
    """The rows of queries against one catalogue.

    Attributes:
        names: of the columns.
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
        """(queries, columns); a row of zeros where no tool is visible.

        Args:
            texts: the queries.
            vectors: of each meaning, `(queries, d)` unit rows; a row of zeros says nothing.
            visible: a mask over the tools for each query, or None for all of them.
        """
        rows = np.zeros((len(texts), len(self.names)))
        limits, size = masks(visible, len(texts)), len(self.words.ids)
        counts = [size if mask is None else int(mask.sum()) for mask in limits]
        some = [number for number, count in enumerate(counts) if count]
        if not some:
            return rows
        asked, seen = [texts[number] for number in some], [limits[number] for number in some]
        views: list[tuple[Any, Any]] = [(self.words, asked)]
        for index, each in zip(self.meanings.values(), vectors, strict=True):
            views.append((index, each[some]))
        spreads = [index.spreads(queries, SCORES_READ, seen) for index, queries in views]
        mass, known = np.array([self.words.mass(text) for text in asked]).T
        scale = np.ones((len(some), len(views)))
        scale[:, 0] = np.maximum(mass, MIN_DEVIATION)
        best = np.stack([[each.best for each in view] for view in spreads], axis=1) / scale[..., None]
        mean = np.array([[each.mean for each in view] for view in spreads]).T / scale
        deviation = np.array([[each.deviation for each in view] for view in spreads]).T / scale
        firsts = np.array([[each.first for each in view] for view in spreads]).T.tolist()
        there = [
            [index.at(each, first) for each, first in zip(queries, firsts, strict=True)] for index, queries in views
        ]
        crossed = np.stack(there, axis=1) / scale[..., None]  # [q, b, a]: what b says of the first of a
        pairs = [best[:, b, 0] - crossed[:, b, a] for a, b in itertools.permutations(range(len(views)), 2)]
        points = [each.best[0] for each in spreads[0]]
        rows[some] = np.column_stack(
            [_numbers(best, mean, deviation), *pairs, points, known, np.log1p([counts[number] for number in some])]
        )
        return rows
