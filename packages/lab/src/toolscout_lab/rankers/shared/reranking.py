"""Training data and blend choice for methods that rerank the candidates of a first stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from toolscout.arrays import Floats, Mask
from toolscout.dataset import Qrels
from toolscout.metrics import PerQuery
from toolscout.rankers.lesson import Lesson
from toolscout.search.pipeline import Stage, begin_answer
from toolscout.types import Answer, Explanation, Request, Search

__all__ = ["RankDeeper", "RankedQueries", "choose_blend", "exceeds_noise", "keep_places"]

RANKING_BATCH: Final = 512


class RankDeeper(Stage):
    """Lets a stage rank at least N tools for searches that return fewer."""

    writes = frozenset({"hits"})

    def __init__(self, inner: Stage, depth: int) -> None:
        """Wrap a stage that writes hits; `depth` is N."""
        self.inner, self.depth, self.writes, self.asks = inner, depth, inner.writes, inner.asks
        self.name = inner.name

    def __call__(self, requests: Sequence[Request]) -> list[Search]:
        """Run the wrapped stage on requests for more tools; its traces are those of the answer."""
        searches = [one if isinstance(one, Answer) else begin_answer(one) for one in requests]
        return [
            msgspec.structs.replace(result, k=search.k)
            for search, result in zip(searches, self.inner(self._deepen(searches)), strict=True)
        ]

    def explain(self, search: Search, tool_id: str) -> Explanation | None:
        """Return the explanation of the wrapped stage."""
        return self.inner.explain(self._deepen([search])[0], tool_id)

    def _deepen(self, searches: Sequence[Search]) -> list[Search]:
        return [msgspec.structs.replace(search, k=max(search.k, self.depth)) for search in searches]


class RankedQueries:
    """Queries with their first N candidates from the first stage.

    Attributes:
        queries: ids of the queries.
        candidates: (queries, N) positions of tools, best first; -1 where there are fewer.
        scores: (queries, N) of the first stage, 0 where there are fewer.
        gold: (queries, N) whether the candidate is a gold tool.
    """

    def __init__(
        self, lesson: Lesson, qrels: Qrels, n: int, place: Mapping[str, int], stage: Stage | None = None
    ) -> None:
        """Rank queries.

        Args:
            lesson: has the texts.
            qrels: the queries, each with its gold tools.
            n: candidates of each query.
            place: id of a tool → its position.
            stage: ranks them; None: the base of the fit does.
        """
        stage = stage or lesson.base_stage
        self.queries = queries = list(qrels)
        self.candidates = np.full((len(queries), n), -1, dtype=np.intp)
        self.scores = np.zeros((len(queries), n))
        self.gold = np.zeros((len(queries), n), dtype=np.bool_)
        for start in range(0, len(queries), RANKING_BATCH):
            batch = queries[start : start + RANKING_BATCH]
            searches = stage([Search(query=lesson.texts[query], k=n) for query in batch])
            for row, (query, search) in enumerate(zip(batch, searches, strict=True), start):
                for column, hit in enumerate(search.hits[:n]):
                    self.candidates[row, column] = place[hit.id]
                    self.scores[row, column] = hit.score
                    self.gold[row, column] = hit.id in qrels[query]

    def rankings(self, totals: Any, ids: Sequence[str]) -> dict[str, list[str]]:
        """Map each query id to its candidates in the order of `totals`, their `(queries, N)` scores."""
        order = np.argsort(-np.where(self.candidates >= 0, totals, -np.inf), axis=1, kind="stable")
        rows = np.take_along_axis(self.candidates, order, axis=1)
        return {
            query: [ids[number] for number in row if number >= 0] for query, row in zip(self.queries, rows, strict=True)
        }


def keep_places(totals: Floats, learned: Mask, give_way: bool = False) -> Floats:
    """Rescore candidates so that tools unseen in training keep their places in the first stage's order.

    Each unseen tool stays behind as many seen tools as before. Its score lies between the scores around it. Before the
    first or behind the last seen tool, scores differ by one for each place.

    Args:
        totals: (N,) scores of the candidates, in the order of the first stage.
        learned: (N,) whether training learned anything about the tool.
        give_way: whether all unseen tools but the first move behind one more seen tool, so that they do not crowd out
            tools that requests are known to need.
    """
    if learned.all():
        return totals
    new, ordered = np.flatnonzero(~learned), np.sort(totals[learned])[::-1]
    seen_before = np.cumsum(learned)[new] + (give_way & (np.arange(len(new)) > 0))
    new_ranks = np.arange(len(new)) + np.minimum(seen_before, len(ordered))  # of the unseen tools, in the new order
    seen_ranks = np.setdiff1d(np.arange(len(totals)), new_ranks)
    rescored = totals.copy()
    if not len(ordered):
        rescored[new] = -new_ranks
        return rescored
    beyond_ends = np.maximum(seen_ranks[0] - new_ranks, 0) - np.maximum(new_ranks - seen_ranks[-1], 0)
    rescored[new] = np.interp(new_ranks, seen_ranks, ordered) + beyond_ends
    return rescored


def exceeds_noise(gain: Floats, errors: float = 1.0) -> bool:
    """Return whether the mean gain per query is more than `errors` standard errors.

    A single query is never enough. One standard error is the rule of Breiman et al., Classification and Regression
    Trees, 1984, §3.4.3.
    """
    return len(gain) > 1 and bool(gain.mean() > errors * gain.std(ddof=1) / np.sqrt(len(gain)))


def choose_blend(figures_by_weight: Mapping[float, PerQuery]) -> float:
    """Choose the greatest weight of the first stage that is not clearly worse on dev than the best weight.

    The greatest, because the order of the first stage is safer on new queries. `exceeds_noise` defines "clearly".

    Args:
        figures_by_weight: weight → ndcg@5 and comp@5 of each dev query.
    """
    totals = {
        weight: figures.values["ndcg@5"] + figures.values["comp@5"] for weight, figures in figures_by_weight.items()
    }
    best = totals[max(totals, key=lambda weight: totals[weight].mean())]
    return max(weight for weight, values in totals.items() if not exceeds_noise(best - values))
