"""Tool2Vec (arXiv:2409.02141): the vector of a tool is the mean of the vectors of the queries that used it.

The paper ranks by the cosine with the mean. Here a softmax over it is the usage side of `rankers.shared.usage`, so
tools without usage rank by their description. `tool2vec` keeps the encoder as it is; `tool2vec_tuned` tunes it first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from toolscout.arrays import Arrays, Mask, Places, Scores, Vectors
from toolscout.encoders import unit_rows
from toolscout.rankers import Amount, Positive
from toolscout.rankers.declared import ArrayRule, ModelDeclaration
from toolscout.rankers.shared.dev_choice import choose_best
from toolscout.rankers.shared.usage import (
    Blend,
    Encode,
    FittedUsage,
    LiveEstimate,
    LiveUsage,
    Usage,
    softmax,
)
from toolscout.rankers.shared.usage_fit import Estimate, FitData, UsageMethod

__all__ = ["Tool2Vec", "Tool2VecOptions", "estimate_means"]

BETA_GRID: Final = (5.0, 10.0, 20.0, 40.0, 80.0)


class Tool2VecOptions(Blend, frozen=True, forbid_unknown_fields=True):
    """Settings of `tool2vec`.

    Attributes:
        beta: factor of the cosine with a mean before the softmax; None: the likeliest on dev.
    """

    beta: Positive | None = None
    novelty: Amount = 0.6


def _compute_means(data: FitData, rows: Vectors, n: int) -> tuple[Vectors, Mask]:
    """Return the unit mean of the first `n` queries that use each tool, `(tools, dim)`, and which tools have one."""
    return unit_rows(_sum_rows(data, rows, n)), data.uses(n) > 0


def _sum_rows(data: FitData, rows: Vectors, n: int) -> Vectors:
    """Return for each tool the sum of the rows of the queries that use it, `(tools, dim)`; `n`: only the first n."""
    sums = np.zeros((len(data.lesson.tools), rows.shape[1]), dtype=np.float32)
    for row, gold in zip(rows[:n], data.gold[:n], strict=True):
        sums[gold] += row
    return sums


def _softmax_over_used(cosines: Scores, used: Mask, beta: float) -> Scores:
    """Return probabilities of the tools by their cosines, `(…, tools)`; 0 for tools that no query used."""
    return softmax(np.where(used, beta * cosines, -np.inf))


def _make_usage(means: Vectors, used: Mask, beta: float) -> Usage:
    """Return a `Usage` that compares a query with the mean vectors of tools, `(tools, dim)`."""

    def usage(text: str, row: Vectors) -> Scores:
        if not row.any():  # the encoder knows no word of the query
            return np.zeros(len(means))
        return _softmax_over_used(np.einsum("nd,d->n", means, row), used, beta)

    return usage


class Tool2Vec(UsageMethod):
    """Represents a tool by the mean vector of the queries that used it."""

    options_type: type[msgspec.Struct] = Tool2VecOptions
    label = "tool2vec"

    def estimate(self, data: FitData) -> Estimate:
        """Average over train, choose on dev, then average over both (without `refit`, over train)."""
        return estimate_means(data, data.rows)

    def declare_usage(self, arrays: Arrays) -> ModelDeclaration:
        """Declare the means, and their lengths, which models of version 0.1 lack."""
        rules = {"means": ArrayRule("tools dim")}
        return ModelDeclaration(rules | ({"lengths": ArrayRule("tools")} if "lengths" in arrays else {}), ("beta",))

    def load_usage(self, arrays: Arrays, settings: Mapping[str, Any], encode: Encode) -> FittedUsage:
        """Load the means of a model. `FittedUsage.grow` adds new queries to them, if the model has their lengths."""
        means, used, beta = arrays["means"], arrays["uses"] > 0, settings["beta"]

        def grow(texts: Sequence[str], gold: Sequence[Places], n_tools: int) -> LiveUsage:
            """Add the vectors of new queries to the mean vector of each tool that they used."""
            sums = np.zeros((n_tools, means.shape[1]), dtype=np.float32)
            sums[: len(means)] = means * arrays["lengths"][:, None]  # the sums of the fit, before `finish` scaled them
            for row, tools in zip(encode(texts), gold, strict=True):
                sums[tools] += row
            used_now = np.concatenate([used, np.zeros(n_tools - len(used), dtype=np.bool_)])
            used_now[np.concatenate(gold)] = True
            usage = _make_usage(unit_rows(sums), used_now, beta)
            return lambda text, row: LiveEstimate(usage(text, row))

        return FittedUsage(_make_usage(means, used, beta), grow if "lengths" in arrays else None)


def estimate_means(data: FitData, rows: Vectors) -> Estimate:
    """Compute the mean vectors of the tools from train, and choose β on dev. `rows`: vectors of the data's queries."""
    data.resources.say("taking means and choosing on dev")
    means, used = _compute_means(data, rows, data.n_train)
    cosines = rows[data.n_train :] @ means.T  # (dev, tools)

    def estimate_probabilities(beta: float) -> Scores:
        return _softmax_over_used(cosines, used, beta)

    beta = data.options.beta
    if beta is None:
        beta = choose_best(BETA_GRID, lambda tried: data.likelihood(estimate_probabilities(tried)))

    def finish() -> Arrays:
        """Return the means of all queries that the model may learn from, and the lengths of the sums behind them."""
        sums = _sum_rows(data, rows, data.n_final)
        return {"means": unit_rows(sums), "lengths": np.sqrt(np.einsum("nd,nd->n", sums, sums))}

    return Estimate(
        dev=estimate_probabilities(beta),
        usage=_make_usage(means, used, beta),
        chosen={"beta": beta},
        finish=finish,
    )
