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

MAX_HIDDEN_SHARE: Final = 0.25  # of the training queries, that may need a hidden tool
MAX_TRIALS: Final = 500  # queries that need a hidden tool and are ranked
MIN_TRIALS: Final = 20
MIN_NEW_QUERIES: Final = 10  # dev queries that need a new tool, from which they count beside those for hidden tools
NEW_TOOL_RATE: Final = 0.5  # how often a tool without usage is needed, against others


def expect_new_tools(data: FitData) -> float:
    """Return the share of requests that are expected to need a tool without usage; 0 if every tool has some."""
    uses = data.uses(data.n_train)
    unused_share, mean_gold = float((uses == 0).mean()), float(uses.sum()) / data.n_train
    expected = float(1 - (1 - NEW_TOOL_RATE * unused_share) ** mean_gold)  # see the formula above
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
        """Set the probabilities of hidden tools to 0, and scale the other ones to the sum 1, `(n, tools)`.

        A part that has learned from all queries before may know the hidden tools. All zeros stay as they are.
        """
        shown = np.where(self.hidden, 0.0, usage)
        totals = shown.sum(axis=1, keepdims=True)
        cleared: Scores = shown / np.where(totals > 0, totals, 1.0)
        return cleared

    def join(self, data: FitData, share: float, rank: Rank) -> DevQueries:
        """Join the dev queries of a fit with the queries that need a hidden tool, and weigh them.

        Dev queries that really need a new tool show more than queries whose tool is hidden, but there are often few. If
        there are `MIN_NEW_QUERIES` or more, they get half of `share`; if there are fewer, their weight is 0.

        Args:
            data: the fit in which no tool is hidden.
            share: the weight of all queries together that need a tool without usage.
            rank: orders the tools of a query by their scores, as a search would.

        Returns:
            The dev queries, then the others. Those that need a new or hidden tool are marked as such.
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
        return queries.mark_new(np.concatenate([needs_new, np.ones(n_hidden, dtype=np.bool_)]))


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
    queries for these tools, so it would look better there than on new queries. For these queries the estimate of
    another part is taken in its place (`Part.stand_ins`).

    Args:
        data: the fit in which no tool is hidden.
        parts: the parts of the mixture, by name.
        estimates: what the parts have learned from `data`.
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
    stand_ins = {name: next((other for other in parts[name].stand_ins if other in usages), name) for name in usages}
    hidden_usages = {name: fit.clear(parts[name].estimate(fit.data).dev) for name in set(stand_ins.values())}
    joined = {name: np.vstack([usage, hidden_usages[stand_ins[name]]]) for name, usage in usages.items()}
    return fit.join(data, share, rank), joined


def hide_tools(data: FitData, score_by_description: Callable[[FitData], Scores]) -> HiddenTools | None:
    """Hide some tools from training. None: too few queries need them, or too few are left to train on.

    Args:
        data: the fit in which no tool is hidden.
        score_by_description: returns the scores of the dev queries by description, `(dev, tools)`.
    """
    hidden = _draw_tools(data)
    needs_hidden = np.array([bool(hidden[gold].any()) for gold in data.gold])
    train, trials = np.flatnonzero(~needs_hidden[: data.n_train]), np.flatnonzero(needs_hidden)
    if len(trials) < MIN_TRIALS or not len(train):
        return None
    trials = trials[:: -(-len(trials) // MAX_TRIALS)]  # every n-th of them, n rounded up
    return HiddenTools(data.regroup(train, trials, score_by_description), hidden)


def _draw_tools(data: FitData) -> Mask:
    """Draw tools to hide, in random order, as long as at most `MAX_HIDDEN_SHARE` of the training queries need one.

    A tool that would exceed this share is passed over.
    """
    queries_of: Mapping[int, list[int]] = _list_queries(data)
    order = np.random.default_rng(data.resources.run.seed).permutation(sorted(queries_of))
    hidden = np.zeros(len(data.lesson.tools), dtype=np.bool_)
    needing: set[int] = set()  # queries that need a hidden tool
    for tool in order.tolist():
        needing_also = needing.union(queries_of[tool])
        if len(needing_also) <= MAX_HIDDEN_SHARE * data.n_train:
            hidden[tool], needing = True, needing_also
    return hidden


def _list_queries(data: FitData) -> dict[int, list[int]]:
    """Map each tool that a training query needs to the queries that need it, all by position."""
    queries_of: dict[int, list[int]] = {}
    gold_of_train: list[Places] = data.gold[: data.n_train]
    for query, gold in enumerate(gold_of_train):
        for tool in gold.tolist():
            queries_of.setdefault(tool, []).append(query)
    return queries_of
