"""Fusion of a BM25 ranking and an encoder's ranking into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from toolscout.encoders.languages import is_foreign
from toolscout.search.pipeline import Ranking
from toolscout.types import Search

__all__ = [
    "DEPTH",
    "add_by_language",
    "add_standard_scores",
    "words_and_meaning",
]

DEPTH: Final = 100
WEIGHT: Final = 5.0
STANDARD_WEIGHT: Final = 1.0  # points of BM25 for one standard deviation; chosen on train and dev queries (LAB.md)
FOREIGN_WEIGHT: Final = 2.0  # the same in another language than English, where equal words seldom mean the same


def add_standard_scores(
    rankings: Sequence[Ranking], search: Search, *, weight: float = STANDARD_WEIGHT
) -> dict[str, float]:
    """Score each tool by BM25 + `weight` · standard score, over the tools of either ranking.

    The balance between the two follows the query. A BM25 score is a sum of evidence: matching rare words bring many
    points and decide. A query in other words than the tool's brings few points, and the encoder decides. It brings many
    points only where few tools are as near as this one (`indexes.exact`), so a query that is near to everything
    leaves the decision to the words. A tool below the average gains and loses nothing.

    Args:
        rankings: the BM25 ranking and the encoder's standard scores, best first, each cut at `DEPTH`.
        search: not used.
        weight: points for one standard deviation; 0.2 more or less change little.
    """
    words, meaning = rankings
    scores = dict(words)
    for tool_id, standard_score in meaning:
        scores[tool_id] = scores.get(tool_id, 0.0) + (weight * standard_score if standard_score > 0 else 0.0)
    return scores


def add_by_language(rankings: Sequence[Ranking], search: Search, *, is_word: Callable[[str], bool]) -> dict[str, float]:
    """Score as `add_standard_scores` does, with twice the weight for the encoder if the query is foreign.

    Args:
        rankings: as there, of an encoder that understands other languages.
        search: its query tells the language.
        is_word: whether the bundled encoder knows a word, in small letters, as a whole.
    """
    weight = FOREIGN_WEIGHT if is_foreign(search.query, is_word) else STANDARD_WEIGHT
    return add_standard_scores(rankings, search, weight=weight)


def words_and_meaning(rankings: Sequence[Ranking], search: Search, *, weight: float = WEIGHT) -> dict[str, float]:
    """Score each tool by BM25 + `weight` · (cosine - lowest) / (highest - lowest), over the tools of either ranking.

    The balance between the two follows the query. A BM25 score is a sum of evidence: matching rare words bring many
    points and decide. A query in other words than the tool's brings few points, and the encoder decides, which adds at
    most `weight` points. Only the order and the spacing of the cosines count, so encoders with narrow and with wide
    ranges are treated alike. A tool that a ranking lacks gets no points from it.

    The default was chosen on validation queries of eight datasets; values between 4 and 6 change little.

    Args:
        rankings: the BM25 ranking and the encoder's, best first, each cut at `DEPTH`.
        search: not used.
        weight: points that the nearest tool gets; an encoder fitted on such queries may deserve more.
    """
    words, meaning = rankings
    scores = dict(words)
    if meaning:
        highest, lowest = meaning[0][1], meaning[-1][1]
        scale = weight / (highest - lowest) if highest > lowest else 0.0
        for tool_id, cosine in meaning:
            scores[tool_id] = scores.get(tool_id, 0.0) + scale * (cosine - lowest)
    return scores
