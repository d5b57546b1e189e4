"""Transfer: a recipe is fitted once, on one dataset, and scored there and on others, whose tools it has not seen.

After TR-bench (arXiv:2406.17465, section 5.1): in-domain is the test split of the dataset that it was fitted on, out of
domain are the test splits of the others, each over its own tools, whose descriptions are indexed anew. A training
query that says what any of these test queries says is left out, and counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from toolscout.dataset import Dataset
from toolscout.errors import ConfigError
from toolscout.lab.bench import Job, shares_tools
from toolscout.recipes import registry

__all__ = ["SHOWN", "jobs"]

SHOWN: Final = ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10")


def jobs(first: Job, targets: Sequence[Dataset]) -> list[Job]:
    """What has to be measured, in this order: in-domain, then each target; all but the first may reuse its model.

    Args:
        first: the job on the dataset to fit on, of which the label already says so. Its own test queries are left out
            where it has none.
        targets: the other datasets; the one to fit on may be among them, and is scored once.

    Raises:
        ConfigError: if the recipe knows single tools and none of the targets has one of them; or with folds.
    """
    source = first.dataset
    if first.folds:
        raise ConfigError("--train-on: expected one dataset to fit on, found --folds too: leave one of them out")
    others = [each for each in targets if each.name != source.name]
    chosen = registry.recipe(first.recipe)
    if (
        chosen.is_fitted
        and not chosen.method.transfers
        and others
        and not any(shares_tools(source, each) for each in others)
    ):
        raise ConfigError(
            f"--train-on: expected a recipe that serves tools it was not fitted on, found {first.recipe}, which learns "
            f"the tools of {source.name} one by one, and {', '.join(each.name for each in others)} have none of them: "
            "use a recipe over descriptions, such as dpr"
        )
    parts = set(first.split.split("+"))
    scored = [*([source] if parts <= source.qrels.keys() else []), *others]
    texts = {
        f"{each.name}/{query}": text
        for each in scored
        if parts <= each.qrels.keys()
        for query, text in each.texts(first.split).items()
    }
    return [dataclasses.replace(first, dataset=each, train_on=source, held_out=texts) for each in scored]
