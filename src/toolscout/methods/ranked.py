"""Queries with the first tools of a first stage: what methods that put these in a new order learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolscout.dataset import Qrels
from toolscout.methods import Fitting
from toolscout.metrics import PerQuery
from toolscout.pipeline import Stage
from toolscout.types import Search

__all__ = ["Ranked", "clear", "placed", "trust"]

BATCH: Final = 512


class Ranked:
    """Queries with the first tools of the first stage.

    Attributes:
        queries: their ids.
        candidates: (queries, N) places of tools, best first; -1 where there are fewer.
        scores: (queries, N) of the first stage, 0 where there are fewer.
        gold: (queries, N) which of them are.
    """

    def __init__(
        self, job: Fitting, qrels: Qrels, n: int, place: Mapping[str, int], stage: Stage | None = None
    ) -> None:
        """Rank the queries with `stage`, or else with what the job goes on from."""
        assert job.base is not None
        stage = stage or job.base.stage
        self.queries = queries = list(qrels)
        self.candidates = np.full((len(queries), n), -1, dtype=np.intp)
        self.scores = np.zeros((len(queries), n))
        self.gold = np.zeros((len(queries), n), dtype=np.bool_)
        for start in range(0, len(queries), BATCH):
            some = queries[start : start + BATCH]
            found = stage([Search(query=job.texts[query], k=n) for query in some])
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


def placed(totals: npt.NDArray[np.float64], learned: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Scores under which tools that nothing was learned of keep their places.

    The others take the places that are left, in the order of their own scores. One that keeps its place gets a score
    between those around it, or one more or less for each place before the first or behind the last of them.

    Args:
        totals: (N,) of the first stage's tools, best first.
        learned: (N,) of which tools training said something.
    """
    spots = np.flatnonzero(learned)
    if len(spots) in (0, len(totals)):
        return totals if len(spots) else -np.arange(len(totals), dtype=np.float64)
    places, ordered = np.arange(len(totals)), np.sort(totals[spots])[::-1]
    beyond = np.maximum(spots[0] - places, 0) - np.maximum(places - spots[-1], 0)
    return np.where(learned, totals, np.interp(places, spots, ordered) + beyond)


def clear(gain: npt.NDArray[np.float64]) -> bool:
    """Whether what is gained, query by query, is more than one standard error of its mean; one query shows nothing.

    The one-standard-error rule of Breiman et al., Classification and Regression Trees, 1984, §3.4.3.
    """
    return len(gain) > 1 and bool(gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)))


def trust(found: Mapping[float, PerQuery]) -> float:
    """The weight of the first stage: the greatest that is not clearly worse on dev than the best one (see `clear`).

    A new order has to earn its place.

    Args:
        found: weight → ndcg@5 and comp@5 on dev.
    """
    totals = {weight: each.values["ndcg@5"] + each.values["comp@5"] for weight, each in found.items()}
    best = totals[max(totals, key=lambda weight: totals[weight].mean())]
    return max(weight for weight, values in totals.items() if not clear(best - values))
