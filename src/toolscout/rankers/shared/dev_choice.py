"""Chooses the settings of `mix_usage` on dev queries, ranked as a search ranks them.

Some of the queries may need tools that were hidden from training (`rankers.shared.hidden_tools`). Then all settings
are chosen together, and each query counts by its weight. Dev alone hardly needs a new tool, so it would choose settings
that trust usage too much. What the queries for new tools lose against the description alone counts once more, in full.

Prerequisites follow the first matches of a search. A mixture that ranks them itself gains nothing by it, so rankings
get them before they are measured, where the catalogue has dependencies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from toolscout.arrays import Mask, Places, Scores
from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes import top_k
from toolscout.rankers.shared.usage import MIN_PROBABILITY, mix_usage, softmax, weigh_usage
from toolscout.search.prerequisites import Prerequisites
from toolscout.types import Answer, Hit

__all__ = ["QUALITY_CUTOFF", "DevQueries", "Rank", "choose_best", "measure_places", "rank_with_prerequisites"]

SHARPNESS_GRID: Final = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
KAPPA_GRID: Final = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
AGREEMENT_GRID: Final = (0.0, 0.25, 0.5, 1.0)
NOVELTY_GRID: Final = (1.0, 1.5, 2.0)  # at 3, MetaTool lost more than a point of the other queries on dev
SEARCH_ROUNDS: Final = 2  # times that each setting is chosen anew with the others as they are
DEFAULT_NOVELTY: Final = 1.0
QUALITY_CUTOFF: Final = 5
RANKING_DEPTH: Final = 20  # hits that may bring prerequisites, or be moved behind them
Choice = TypeVar("Choice")
Rank = Callable[[Scores], Places]
"""Scores on the scale of the description scores, `(n, tools)` → positions of the first tools of each query.

The positions are `(n, QUALITY_CUTOFF)`, or fewer where there are fewer tools.
"""


def choose_best(candidates: Iterable[Choice], quality: Callable[[Choice], float]) -> Choice:
    """Return the candidate of the highest quality; of several, the first."""
    return max(candidates, key=quality)


def rank_by_score(scores: Scores) -> Places:
    """Return the positions of the tools with the highest scores, best first; see `Rank`."""
    cut = min(QUALITY_CUTOFF, scores.shape[1])
    unordered = np.argpartition(-scores, cut - 1, axis=1)[:, :cut]
    order = np.argsort(-np.take_along_axis(scores, unordered, axis=1), axis=1, kind="stable")
    places: Places = np.take_along_axis(unordered, order, axis=1)
    return places


def rank_with_prerequisites(catalogue: Catalogue, prerequisites: Prerequisites) -> Rank:
    """Return a function that ranks by score and then brings prerequisites, as a search does."""
    ids, place_of = catalogue.ids, {tool: place for place, tool in enumerate(catalogue.ids)}
    cut = min(QUALITY_CUTOFF, len(ids))

    def rank(scores: Scores) -> Places:
        searches = [
            Answer(query="", k=RANKING_DEPTH, hits=tuple(Hit(ids[i], float(row[i])) for i in top_k(row, RANKING_DEPTH)))
            for row in scores
        ]
        ranked = [search.ids[:cut] for search in prerequisites(searches)]
        return np.array([[place_of[tool] for tool in tools] for tools in ranked], dtype=np.intp)

    return rank


def measure_places(places: Places, gold: Mask) -> Scores:
    """Return the mean of ndcg@5 (with equal grades) and comp@5 of each query, `(n,)`.

    Args:
        places: positions of the first tools, `(n, QUALITY_CUTOFF)`.
        gold: which tools each query needs, `(n, tools)`.
    """
    is_gold = np.take_along_axis(gold, places, axis=1)
    discounts = 1 / np.log2(np.arange(places.shape[1]) + 2)
    counts = gold.sum(axis=1)
    ideal = np.cumsum(discounts)[np.minimum(counts, places.shape[1]) - 1]  # all gold tools first
    comp = is_gold.sum(axis=1) == counts
    measured: Scores = (is_gold @ discounts / ideal + comp) / 2
    return measured


class DevQueries(NamedTuple):
    """Queries on which the settings of a mixture are chosen.

    Attributes:
        description: scores by description, `(n, tools)`.
        gold: which tools each query needs, `(n, tools)`.
        uses: training queries that use each tool, `(tools,)`, or `(n, tools)` if they differ by query.
        weights: how much each query counts, `(n,)`; they add up to 1.
        rank: ranks as a search does.
        needs_new: positions of the queries that need a tool which training did not see.
        needs_new_described: `measure` of these queries if the description alone ranks.
    """

    description: Scores
    gold: Mask
    uses: Scores
    weights: Scores
    rank: Rank = rank_by_score
    needs_new: Places = np.empty(0, dtype=np.intp)
    needs_new_described: Scores = np.empty(0)

    def measure(self, scores: Scores) -> Scores:
        """Return the mean of ndcg@5 (with equal grades) and comp@5 of each query, `(n,)`."""
        return measure_places(self.rank(scores), self.gold)

    def quality(self, scores: Scores) -> float:
        """Return what choices maximise: the weighted mean of `measure`, less what queries for new tools lose.

        That is by how much the description alone ranks them better, in the mean; 0 if it ranks them worse.
        """
        measured = self.measure(scores)
        mean = float(self.weights @ measured)
        if not self.needs_new.size:
            return mean
        return mean + min(0.0, float((measured[self.needs_new] - self.needs_new_described).mean()))

    def mark_new(self, needs_new: Mask) -> DevQueries:
        """Return the same queries, marked by whether they need a tool that training did not see, `(n,)`."""
        places = np.flatnonzero(needs_new)
        return self._replace(needs_new=places, needs_new_described=self.measure(self.description)[places])

    def likelihood(self, probabilities: Scores) -> float:
        """Return the mean log probability of the gold tools of a query, averaged by the weights of the queries."""
        logs = np.where(self.gold, np.log(probabilities + MIN_PROBABILITY), 0.0).sum(axis=1)
        return float(self.weights @ (logs / self.gold.sum(axis=1)))

    def choose_mix(self, usage: Scores, options: Any) -> tuple[dict[str, Any], Scores]:
        """Choose the settings of `mix_usage` that the options leave open; return all four with the scores of `mix`.

        Args:
            usage: probability that each query needs each tool, `(n, tools)`, learned without the query.
            options: with `sharpness`, `kappa`, `agreement` and `novelty`; None: to be chosen.
        """
        options_set = {name: getattr(options, name) for name in _GRIDS}
        grids = {name: grid if options_set[name] is None else (options_set[name],) for name, grid in _GRIDS.items()}
        if options.novelty is None and not self.needs_new.size:  # no query would show what it does
            grids["novelty"] = (DEFAULT_NOVELTY,)
        likeliest = choose_best(grids["sharpness"], lambda factor: self.likelihood(softmax(factor * self.description)))
        if self.needs_new.size:
            settings = self._climb(usage, grids, {**_START, "sharpness": likeliest})
        else:
            settings = self._search_all(usage, {**grids, "sharpness": (likeliest,)})
        return settings, self.mix(usage, settings)

    def _search_all(self, usage: Scores, grids: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """Return the best of all combinations of settings. The grid of the sharpness has one value."""
        tried = [dict(zip(grids, values, strict=True)) for values in itertools.product(*grids.values())]
        description = softmax(tried[0]["sharpness"] * self.description)
        return choose_best(tried, lambda settings: self.quality(self.mix(usage, settings, description)))

    def _climb(self, usage: Scores, grids: Mapping[str, Sequence[float]], start: Mapping[str, float]) -> dict[str, Any]:
        """Choose the settings one by one, `SEARCH_ROUNDS` times, each with the others as they are.

        Args:
            usage: as in `choose_mix`.
            grids: name of each setting → the values to try.
            start: name of each setting → its value at first, if the grid has it.
        """
        settings = {name: start[name] if start[name] in grid else grid[0] for name, grid in grids.items()}
        for name in list(grids) * SEARCH_ROUNDS:
            tried = [{**settings, name: value} for value in grids[name]]
            tried.sort(key=lambda choice: choice[name] != settings[name])  # the present value wins a tie
            settings = choose_best(tried, lambda choice: self.quality(self.mix(usage, choice)))
        return settings

    def mix(self, usage: Scores, settings: Mapping[str, Any], description: Scores | None = None) -> Scores:
        """Mix usage and description with settings of `mix_usage`; return scores on the scale of `description`.

        They are `(n, tools)`. A tool that no query used keeps the score of its description, plus a constant.

        Args:
            usage: as in `choose_mix`.
            settings: `sharpness`, `kappa`, `agreement` and `novelty`.
            description: probabilities by description with this sharpness; None: computed here.
        """
        sharpness, agreement = settings["sharpness"], settings["agreement"]
        logits = sharpness * self.description
        if description is None:
            description = softmax(logits)
        weight = weigh_usage(self.uses, settings["kappa"])
        mixed = mix_usage(usage, description, weight, agreement, settings["novelty"])
        # Without usage, `mixed` is (1 + agreement) times a log probability of the softmax, plus a constant. The log of
        # the softmax's denominator turns the log probability into a logit again, and the sharpness turns that into a
        # score.
        highest = logits.max(axis=1, keepdims=True)
        log_denominator = highest + np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
        scores: Scores = (mixed / (1 + agreement) + log_denominator) / sharpness
        return scores


_GRIDS: Final[Mapping[str, tuple[float, ...]]] = {
    "novelty": NOVELTY_GRID,
    "sharpness": SHARPNESS_GRID,
    "kappa": KAPPA_GRID,
    "agreement": AGREEMENT_GRID,
}
_START: Final = {"kappa": 3.0, "agreement": 0.25, "novelty": 1.5}
