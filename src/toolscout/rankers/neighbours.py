"""Nearest logged queries: a query needs the tools that similar queries used. Nothing is trained.

Similarity is the mean of two cosines: of the encoder's vectors, and of words and pairs of words. The K most similar
queries vote for their tools with weights exp(focus · similarity).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from toolscout.arrays import Arrays, Places, Scores, Vectors
from toolscout.indexes import top_k
from toolscout.rankers import Amount, Count
from toolscout.rankers.declared import ArrayRule, ModelDeclaration
from toolscout.rankers.shared.dev_choice import choose_best
from toolscout.rankers.shared.sparse_features import FEATURE_RULES, Bags, Ngrams, declare_bags, hash_features
from toolscout.rankers.shared.usage import Blend, Encode, FittedUsage, LiveEstimate, LiveUsage
from toolscout.rankers.shared.usage_fit import Estimate, FitData, UsageMethod

__all__ = ["Log", "Neighbours", "NeighboursOptions"]

NEIGHBOUR_GRID: Final = (10, 20, 50, 100)
FOCUS_GRID: Final = (5.0, 10.0, 20.0, 40.0)
MAX_NEIGHBOURS: Final = max(NEIGHBOUR_GRID)


class NeighboursOptions(Blend, frozen=True, forbid_unknown_fields=True):
    """Settings of `neighbours`; None: the best on dev.

    Attributes:
        k: number of queries that vote.
        focus: how much more the nearer ones count, with weights exp(focus · similarity).
    """

    k: Count | None = None
    focus: Amount | None = None
    novelty: Amount = 1.0


class Log:
    """Logged queries with the tools that each used."""

    def __init__(self, rows: Vectors, bags: Bags, ngrams: Ngrams, gold: Bags, n_tools: int) -> None:
        """Store n logged queries.

        Args:
            rows: their vectors, `(n, dim)`.
            bags: their weighted n-grams, sparse, one row a query.
            ngrams: numbers the columns of `bags`.
            gold: the tools of each query, sparse; the shares of a row sum to 1.
            n_tools: number of columns of `gold`.
        """
        self.rows, self.bags, self.ngrams, self.gold, self.n_tools = rows, bags, ngrams, gold, n_tools
        # An inverted index: postings sorted by feature, each with its query and its weight in it. The postings of
        # feature f are those from `_bounds[f]` to `_bounds[f + 1]`.
        order = np.argsort(bags.indices, kind="stable")
        self._query_of_posting = np.repeat(np.arange(len(bags)), np.diff(bags.indptr))[order]
        self._weights = bags.data[order]
        self._bounds = np.searchsorted(bags.indices[order], np.arange(ngrams.keys.size + 1))

    @classmethod
    def of(cls, data: FitData, n: int) -> Log:
        """Build the log of the first `n` queries of a fit."""
        ngrams = Ngrams.of(data.features[:n])
        bags, gold = ngrams.make_bags(data.features[:n]), _share_evenly(data.gold[:n])
        return cls(data.rows[:n], bags, ngrams, gold, len(data.lesson.tools))

    def nearest(self, text: str, row: Vectors) -> tuple[Places, Scores]:
        """Return the positions and the similarities of at most `MAX_NEIGHBOURS` queries, the most similar first.

        Queries of similarity 0 or less are left out.

        Args:
            text: the query.
            row: its vector, `(dim,)`.
        """
        similarities = np.einsum("nd,d->n", self.rows, row)
        bag = self.ngrams.make_bags([hash_features(text)])  # one row
        for feature, weight in zip(bag.indices, bag.data, strict=True):
            postings = slice(self._bounds[feature], self._bounds[feature + 1])
            similarities[self._query_of_posting[postings]] += weight * self._weights[postings]
        similarities /= 2  # the mean of both cosines
        nearest = top_k(similarities, MAX_NEIGHBOURS, floor=0.0)
        return nearest, similarities[nearest]

    def votes(self, nearest: Places, similarities: Scores, k: int, focus: float) -> Scores:
        """Return the probability of each tool, `(tools,)`, by the votes of the `k` nearest queries.

        Args:
            nearest: positions of logged queries, the most similar first; none: all probabilities are 0.
            similarities: of these queries.
            k: how many of them vote.
            focus: the larger, the more the most similar ones count.
        """
        if not nearest.size:
            return np.zeros(self.n_tools)
        weights = np.exp(focus * (similarities[:k] - similarities[0]))  # 1 for the nearest, so none is too large
        return self.add_votes(nearest[:k], weights / weights.sum(), self.n_tools)

    def add_votes(self, queries: Places, weights: Scores, n_tools: int) -> Scores:
        """Return for each tool the sum of the weights of its queries, `(n_tools,)`.

        A query divides its weight among its tools.
        """
        votes, gold = np.zeros(n_tools), self.gold.take(queries)
        np.add.at(votes, gold.indices, gold.data * np.repeat(weights, np.diff(gold.indptr)))
        return votes

    def make_companion(self, rows: Vectors, texts: Sequence[str], gold: Sequence[Places], n_tools: int) -> Log:
        """Make a log of the queries that came since the fit, with the features of this log.

        Args:
            rows: vectors of the queries, `(n, dim)`.
            texts: the queries.
            gold: the tools that each used.
            n_tools: how many tools there are now.
        """
        bags = self.ngrams.make_bags([hash_features(text) for text in texts])
        return Log(rows, bags, self.ngrams, _share_evenly(gold), n_tools)


def _share_evenly(gold: Sequence[Places]) -> Bags:
    """Return the tools of each query as a sparse row of equal shares."""
    lengths = [len(tools) for tools in gold]
    shares = np.repeat([1 / length for length in lengths], lengths).astype(np.float32)
    return Bags(np.cumsum([0, *lengths]), np.concatenate(gold), shares)


def _vote_together(fitted: Log, fresh: Log, text: str, row: Vectors, k: int, focus: float) -> LiveEstimate:
    """Let the `k` nearest queries of two logs vote, as `Log.votes` does.

    Args:
        fitted: the log of the model.
        fresh: the log of the queries since the fit. Its tools begin with those of `fitted`.
        text: the query.
        row: its vector.
        k: how many queries of both logs vote.
        focus: see `Log.votes`.
    """
    fitted_queries, fitted_similarities = fitted.nearest(text, row)
    fresh_queries, fresh_similarities = fresh.nearest(text, row)
    similarities = np.concatenate([fitted_similarities, fresh_similarities])
    if not similarities.size:
        return LiveEstimate(np.zeros(fresh.n_tools), np.zeros(fresh.n_tools))
    voters = np.argsort(-similarities, kind="stable")[:k]  # positions in `similarities`
    weights = np.exp(focus * (similarities[voters] - similarities[voters[0]]))
    weights /= weights.sum()
    is_fitted = voters < len(fitted_queries)
    fitted_voters = fitted_queries[voters[is_fitted]]
    fresh_voters = fresh_queries[voters[~is_fitted] - len(fitted_queries)]
    fitted_votes = fitted.add_votes(fitted_voters, weights[is_fitted], fresh.n_tools)
    fresh_votes = fresh.add_votes(fresh_voters, weights[~is_fitted], fresh.n_tools)
    return LiveEstimate(fitted_votes + fresh_votes, fresh_votes)


class Neighbours(UsageMethod):
    """Lets the nearest logged queries vote for the tools that they used."""

    options_type = NeighboursOptions
    label = "neighbours"

    def estimate(self, data: FitData) -> Estimate:
        """Choose on dev among the neighbours in train. The model contains both, or without `refit` only train."""
        options, log = data.options, Log.of(data, data.n_train)
        data.resources.say("looking up the neighbours of the dev queries")
        neighbours = [log.nearest(data.texts[i], data.rows[i]) for i in data.dev]

        def count_votes(k: int, focus: float) -> Scores:
            """Return the votes for each dev query, `(dev, tools)`."""
            return np.array([log.votes(nearest, similarities, k, focus) for nearest, similarities in neighbours])

        ks = NEIGHBOUR_GRID if options.k is None else (options.k,)
        focuses = FOCUS_GRID if options.focus is None else (options.focus,)
        k, focus = choose_best(itertools.product(ks, focuses), lambda pair: data.quality(count_votes(*pair)))

        def finish() -> Arrays:
            """Build the log from all queries that may be learned from. Returns its arrays."""
            final_log = Log.of(data, data.n_final)
            return {
                "rows": final_log.rows,
                "keys": final_log.ngrams.keys,
                "rarity": final_log.ngrams.rarity,
                **{f"bags.{name}": array for name, array in final_log.bags._asdict().items()},
                **{f"gold.{name}": array for name, array in final_log.gold._asdict().items()},
            }

        return Estimate(
            dev=count_votes(k, focus),
            usage=lambda text, row: log.votes(*log.nearest(text, row), k, focus),
            chosen={"k": k, "focus": focus},
            finish=finish,
        )

    def declare_usage(self, arrays: Arrays) -> ModelDeclaration:
        """Declare the log: the vectors of its queries, their features, and their tools."""
        rules = {
            "rows": ArrayRule("queries dim"),
            **FEATURE_RULES,
            **declare_bags("bags", "queries", "postings", "features"),
            **declare_bags("gold", "queries", "golds", "tools"),
        }
        return ModelDeclaration(rules, ("k", "focus"))

    def load_usage(self, arrays: Arrays, settings: Mapping[str, Any], encode: Encode) -> FittedUsage:
        """Load the log of a model. `FittedUsage.grow` adds the log of the queries that came since the fit."""
        bags, gold = (Bags(*(arrays[f"{name}.{field}"] for field in Bags._fields)) for name in ("bags", "gold"))
        log = Log(arrays["rows"], bags, Ngrams(arrays["keys"], arrays["rarity"]), gold, len(arrays["uses"]))
        k, focus = settings["k"], settings["focus"]

        def usage(text: str, row: Vectors) -> Scores:
            return log.votes(*log.nearest(text, row), k, focus)

        def grow(texts: Sequence[str], gold: Sequence[Places], n_tools: int) -> LiveUsage:
            fresh = log.make_companion(encode(texts), texts, gold, n_tools)
            return lambda text, row: _vote_together(log, fresh, text, row, k, focus)

        return FittedUsage(usage, grow)
