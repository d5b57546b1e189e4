"""Queries with the first tools of a first stage: what methods that put these in a new order learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from toolscout.arrays import Floats, Mask
from toolscout.dataset import Qrels
from toolscout.methods.lesson import Lesson
from toolscout.metrics import PerQuery
from toolscout.search.pipeline import Stage
from toolscout.types import Search

__all__ = ["Ranked", "clear", "keep_places", "trust"]

RANKING_BATCH: Final = 512


class Ranked:
    """Queries with the first tools of the first stage.

    Attributes:
        queries: their ids.
        candidates: (queries, N) places of tools, best first; -1 where there are fewer.
        scores: (queries, N) of the first stage, 0 where there are fewer.
        gold: (queries, N) which of them are.
    """

    def __init__(
        self, lesson: Lesson, qrels: Qrels, n: int, place: Mapping[str, int], stage: Stage | None = None
    ) -> None:
        """Rank the queries with `stage`, or else with the base of the fit."""
        stage = stage or lesson.base_stage
        self.queries = queries = list(qrels)
        self.candidates = np.full((len(queries), n), -1, dtype=np.intp)
        self.scores = np.zeros((len(queries), n))
        self.gold = np.zeros((len(queries), n), dtype=np.bool_)
        for start in range(0, len(queries), RANKING_BATCH):
            some = queries[start : start + RANKING_BATCH]
            found = stage([Search(query=lesson.texts[query], k=n) for query in some])
            for row, (query, search) in enumerate(zip(some, found, strict=True), start):
                for column, hit in enumerate(search.hits[:n]):
                    self.candidates[row, column] = place[hit.id]
                    self.scores[row, column] = hit.score
                    self.gold[row, column] = hit.id in qrels[query]

    def rankings(self, logs: Any, blend: float, ids: Sequence[str]) -> dict[str, list[str]]:
        """Query id → its candidates in the order of logs + blend · score."""
        totals = np.where(self.candidates >= 0, logs + blend * self.scores, -np.inf)
        order = np.argsort(-totals, axis=1, kind="stable")
        rows = np.take_along_axis(self.candidates, order, axis=1)
        return {
            query: [ids[number] for number in row if number >= 0] for query, row in zip(self.queries, rows, strict=True)
        }


def keep_places(totals: Floats, learned: Mask, give_way: bool = False) -> Floats:
    """Scores under which tools that nothing was learned of keep their places, and the others change theirs around them.

    Each stays behind as many of the others as before. Their scores lie between those around them; before the first or
    behind the last of the others they are one more or less for each place.

    Args:
        totals: (N,) of the first stage's tools, best first.
        learned: (N,) of which tools training said something.
        give_way: all but the first of the rest move behind one more, so that they do not crowd out what requests are
            known to need.
    """
    if learned.all():
        return totals
    new, ordered = np.flatnonzero(~learned), np.sort(totals[learned])[::-1]
    before = np.cumsum(learned)[new] + (give_way & (np.arange(len(new)) > 0))
    spots = np.arange(len(new)) + np.minimum(before, len(ordered))  # of the new ones in the new order
    others = np.setdiff1d(np.arange(len(totals)), spots)
    found = totals.copy()
    if not len(ordered):
        found[new] = -spots
        return found
    beyond = np.maximum(others[0] - spots, 0) - np.maximum(spots - others[-1], 0)
    found[new] = np.interp(spots, others, ordered) + beyond
    return found


def clear(gain: Floats, errors: float = 1.0) -> bool:
    """Whether what is gained, query by query, is more than so many standard errors of its mean.

    One query shows nothing. With one error it is the rule of Breiman et al., Classification and Regression Trees, 1984,
    §3.4.3.
    """
    return len(gain) > 1 and bool(gain.mean() > errors * gain.std(ddof=1) / np.sqrt(len(gain)))


def trust(found: Mapping[float, PerQuery]) -> float:
    """The weight of the first stage: the greatest that is not clearly worse on dev than the best one (see `clear`).

    A new order has to earn its place.

    Args:
        found: weight → ndcg@5 and comp@5 on dev.
    """
    totals = {weight: each.values["ndcg@5"] + each.values["comp@5"] for weight, each in found.items()}
    best = totals[max(totals, key=lambda weight: totals[weight].mean())]
    return max(weight for weight, values in totals.items() if not clear(best - values))
