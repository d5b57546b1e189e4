"""Hides tools from training, so that dev shows what a mixture does for tools without usage.

Dev comes from the same log as train, and hardly needs a tool that no training query needs. So tools are hidden at
random, until a quarter of the training queries need one. The parts learn from the other queries once more, and all
queries that need a hidden tool join dev. Together they count as much as requests for tools without usage can be
expected to::

    share = max(share in dev, 1 - (1 - u / 2) ^ n)

with u the share of the tools that no training query needs, and n the mean number of gold tools. A tool that the log
never needed is expected to be needed half as often as others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from toolscout.arrays import Mask, Places, Scores
from toolscout.rankers.shared.dev_choice import DevQueries, Rank
from toolscout.rankers.shared.mixture import Part
from toolscout.rankers.shared.usage_fit import Estimate, FitData

__all__ = ["HiddenTools", "expect_new_tools", "hide_tools", "make_trial"]

HIDDEN_QUERIES: Final = 0.25  # share of the training queries that may need a hidden tool
MAX_TRIALS: Final = 500  # queries for hidden tools that are ranked
MIN_TRIALS: Final = 20
MIN_NEW_QUERIES: Final = 10  # dev queries that need a new tool, from which they count beside those for hidden tools
NEW_TOOL_RATE: Final = 0.5  # how often a tool without usage is needed, against others


def expect_new_tools(data: FitData) -> float:
    """Return the share of requests that are expected to need a tool without usage; 0 if every tool has some."""
    uses = data.uses(data.n_train)
    unused, gold_count = float((uses == 0).mean()), float(uses.sum()) / data.n_train
    expected = float(1 - (1 - NEW_TOOL_RATE * unused) ** gold_count)
    return max(float(data.needs_new_tool().mean()), expected)


class HiddenTools(NamedTuple):
    """A second fit, without the queries that need some tools.

    Attributes:
        data: the other training queries, and as dev those that need a hidden tool.
        hidden: which tools are hidden, `(tools,)`.
    """

    data: FitData
    hidden: Mask

    def clear(self, usage: Scores) -> Scores:
        """Return probabilities without those of hidden tools."""
        shown = np.where(self.hidden, 0.0, usage)
        totals = shown.sum(axis=1, keepdims=True)
        cleared: Scores = shown / np.where(totals > 0, totals, 1.0)
        return cleared

    def join(self, data: FitData, share: float, rank: Rank) -> DevQueries:
        """Join the dev queries of a fit with those for hidden tools.

        Dev queries that really need a new tool are worth more than those for which it is hidden, but often few. From
        `MIN_NEW_QUERIES` on they get half of the share, whatever the number of the others; fewer get nothing.

        Args:
            data: the fit in which no tool is hidden.
            share: of the weight, for queries that need a tool without usage.
            rank: orders the tools of a query by their scores, as a search would.

        Returns:
            The queries of both, which know that those with a new or hidden tool need a tool that training did not see.
        """
        hidden_data = self.data
        needs_new, n_hidden = data.needs_new_tool(), len(hidden_data.dev)
        n_new = needs_new.sum()
        weights = np.where(needs_new, 0.0, (1 - share) / max(len(needs_new) - n_new, 1))
        hidden_share = share
        if n_new >= MIN_NEW_QUERIES:
            hidden_share = share / 2
            weights[needs_new] = hidden_share / n_new
        weights = np.concatenate([weights, np.full(n_hidden, hidden_share / n_hidden)])
        uses = [np.broadcast_to(fit.uses(fit.n_train), fit.description_scores.shape) for fit in (data, hidden_data)]
        queries = DevQueries(
            description=np.vstack([data.description_scores, hidden_data.description_scores]),
            gold=np.vstack([data.dev_gold, hidden_data.dev_gold]),
            uses=np.vstack(uses),
            weights=weights / weights.sum(),
            rank=rank,
        )
        return queries.compare_new(np.concatenate([needs_new, np.ones(n_hidden, dtype=np.bool_)]))


def make_trial(
    data: FitData,
    parts: Mapping[str, Part],
    estimates: Mapping[str, Estimate],
    chosen: Mapping[str, Any],
    score_by_description: Callable[[FitData], Scores],
    rank: Rank,
) -> tuple[DevQueries, dict[str, Scores]]:
    """Return the queries on which a mixture is chosen, and what each part estimates for them, `(n, tools)`.

    Where tools have no usage, the parts learn once more without some tools. A part that was tuned before has seen the
    queries for these tools, so it looks better there than on new ones: its stand-in speaks for it.

    Args:
        data: the fit in which no tool is hidden.
        parts: of the mixture, by name.
        estimates: of these parts from `data`.
        chosen: settings of the parts that were chosen on dev.
        score_by_description: see `hide_tools`.
        rank: orders the tools of a query by their scores, as a search would.
    """
    usages = {name: estimate.dev for name, estimate in estimates.items()}
    share = expect_new_tools(data)
    fit = hide_tools(data, score_by_description) if share else None
    if fit is None:
        return data.dev_queries(rank), usages
    data.resources.say(
        f"learning without {fit.hidden.sum()} tools: {len(fit.data.dev)} queries for them count {share:.2f} of dev"
    )
    settings = {name: value for name, value in chosen.items() if hasattr(data.options, name)}
    fit.data.options = msgspec.structs.replace(data.options, **settings)
    speakers = {name: next((other for other in parts[name].stand_ins if other in usages), name) for name in usages}
    anew = {name: fit.clear(parts[name].estimate(fit.data).dev) for name in set(speakers.values())}
    return fit.join(data, share, rank), {
        name: np.vstack([usage, anew[speakers[name]]]) for name, usage in usages.items()
    }


def hide_tools(data: FitData, score_by_description: Callable[[FitData], Scores]) -> HiddenTools | None:
    """Hide some tools from training. None if too few queries need the hidden tools to measure anything.

    Args:
        data: the fit in which no tool is hidden.
        score_by_description: returns the scores of the dev queries by description, `(dev, tools)`.
    """
    hidden = _draw_tools(data)
    needs_hidden = np.array([bool(hidden[gold].any()) for gold in data.gold])
    train, trials = np.flatnonzero(~needs_hidden[: data.n_train]), np.flatnonzero(needs_hidden)
    if len(trials) < MIN_TRIALS or not len(train):
        return None
    trials = trials[:: -(-len(trials) // MAX_TRIALS)]
    return HiddenTools(data.regroup(train, trials, score_by_description), hidden)


def _draw_tools(data: FitData) -> Mask:
    """Draw tools until `HIDDEN_QUERIES` of the training queries need one; leave out those that would exceed it."""
    queries_of: Mapping[int, list[int]] = _list_queries(data)
    order = np.random.default_rng(data.resources.run.seed).permutation(sorted(queries_of))
    hidden = np.zeros(len(data.lesson.tools), dtype=np.bool_)
    touched: set[int] = set()
    for tool in order.tolist():
        reached = touched.union(queries_of[tool])
        if len(reached) <= HIDDEN_QUERIES * data.n_train:
            hidden[tool], touched = True, reached
    return hidden


def _list_queries(data: FitData) -> dict[int, list[int]]:
    queries_of: dict[int, list[int]] = {}
    places: list[Places] = data.gold[: data.n_train]
    for query, gold in enumerate(places):
        for tool in gold.tolist():
            queries_of.setdefault(tool, []).append(query)
    return queries_of
