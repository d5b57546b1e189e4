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
import numpy.typing as npt

from toolscout.indexes import Mask, masks
from toolscout.indexes.exact import Exact
from toolscout.indexes.sparse import BM25

__all__ = ["Signals", "names", "of_scores"]

Floats = npt.NDArray[np.float64]
DEPTH: Final = 20
OF_VIEW: Final = ("top", "second", "next4", "next15", "first10", "above", "deviations", "sharp")
LEAST: Final = 1e-3  # deviation below which scores count as equal


def names(views: Sequence[str]) -> tuple[str, ...]:
    """What the columns of a row are called, for views of these names; `words` is the first of them.

    Of each view: `top` score; what it is above the `second`, above the mean of the `next4` and of the `next15` after
    those; the mean of the `first10`; what the top is `above` the mean of all tools, and that in standard `deviations`;
    how `sharp` it stands out of the twenty first. Of each pair of views, a>b: how far below its own top b puts the
    first tool of a. `points`: the top BM25 score itself; `known`: the share of the query's terms that the catalogue
    has; `size`: log of one more than the number of tools.
    """
    pairs = (f"{a}>{b}" for a, b in itertools.permutations(views, 2))
    return (*(f"{view}.{each}" for view in views for each in OF_VIEW), *pairs, "points", "known", "size")


def of_scores(scores: npt.NDArray[Any]) -> Floats:
    """The part of a row that comes from the scores alone; see `names`.

    Args:
        scores: (views, n) of the visible tools, n ≥ 1; higher is better.
    """
    table = np.asarray(scores, dtype=np.float64)
    mean = table.mean(axis=1)
    some = np.stack([_best(row, least) for row, least in zip(table, mean, strict=True)])
    top = some[:, 0]
    of_view = np.stack(
        [
            top,
            top - some[:, 1],
            top - some[:, 1:5].mean(axis=1),
            top - some[:, 5:].mean(axis=1),
            some[:, :10].mean(axis=1),
            top - mean,
            (top - mean) / (table.std(axis=1) + LEAST),
            (top - some[:, 1:11].mean(axis=1)) / (some[:, 1:].std(axis=1) + LEAST),
        ],
        axis=1,
    )
    firsts = table.argmax(axis=1)
    below = top[:, None] - table[:, firsts]  # [b, a]: how far below its own top b puts the first of a
    pairs = [below[b, a] for a, b in itertools.permutations(range(len(table)), 2)]
    return np.concatenate([of_view.ravel(), pairs])


def _best(row: Floats, mean: float) -> Floats:
    """The greatest twenty, descending; where there are fewer, the least of them again."""
    above = row[row > mean]  # of words, few tools have any: most scores are equal, which partitions dislike
    if len(above) < DEPTH:
        above = row
    best = np.sort(np.partition(above, len(above) - DEPTH)[-DEPTH:] if len(above) > DEPTH else above)[::-1]
    return best if len(best) == DEPTH else np.concatenate([best, np.full(DEPTH - len(best), best[-1])])


class Signals:
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
        self, texts: Sequence[str], vectors: Sequence[npt.NDArray[Any]], visible: Sequence[Mask | None] | None = None
    ) -> Floats:
        """(queries, columns); a row of zeros where no tool is visible.

        Args:
            texts: the queries.
            vectors: of each meaning, `(queries, d)` unit rows; a row of zeros says nothing.
            visible: a mask over the tools for each query, or None for all of them.
        """
        rows = np.zeros((len(texts), len(self.names)))
        for number, (text, mask) in enumerate(zip(texts, masks(visible, len(texts)), strict=True)):
            there = slice(None) if mask is None else mask
            points = self.words.scores(text)[there]
            if not len(points):
                continue
            most, known = self.words.mass(text)
            cosines = [
                index.cosines(each[number])[there] for index, each in zip(self.meanings.values(), vectors, strict=True)
            ]
            scores = np.stack([points / max(most, LEAST), *cosines])
            rows[number] = [*of_scores(scores), float(points.max()), known, float(np.log1p(len(points)))]
        return rows
