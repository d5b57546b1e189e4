"""Transfer: fits a recipe once, on one dataset, and scores it there and on datasets with other tools.

After TR-bench (arXiv:2406.17465, section 5.1). In-domain is the test split of the dataset of the fit. Out of domain are
the test splits of the other datasets, each over its own tools, whose descriptions are indexed anew. Training queries
with the text of one of these test queries are left out and counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from toolscout.dataset import Dataset
from toolscout.errors import ConfigError
from toolscout.lab.bench import Job, shares_tools
from toolscout.recipes import registry

__all__ = ["TRANSFER_MEASURES", "jobs"]

TRANSFER_MEASURES: Final = ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10")


def jobs(first: Job, targets: Sequence[Dataset]) -> list[Job]:
    """Plan the jobs of a transfer: in-domain first, then each target. All but the first may reuse its model.

    Args:
        first: the job on the dataset to fit on; its label says so already. The in-domain job is left out if that
            dataset lacks the split.
        targets: the other datasets. If the dataset to fit on is among them, it is scored once.

    Raises:
        ConfigError: with folds; or if the recipe learns its tools one by one and no target shares one of them.
    """
    source = first.dataset
    if first.folds:
        raise ConfigError("--train-on and --folds cannot be used together. Leave one of them out.")
    targets = [dataset for dataset in targets if dataset.name != source.name]
    recipe = registry.recipe(first.recipe)
    if (
        recipe.is_fitted
        and not recipe.method.transfers
        and targets
        and not any(shares_tools(source, dataset) for dataset in targets)
    ):
        raise ConfigError(
            f"--train-on: {first.recipe} learns the tools of {source.name} one by one, and "
            f"{', '.join(dataset.name for dataset in targets)} have none of them. Use a recipe over descriptions, "
            "such as dpr."
        )
    splits = set(first.split.split("+"))
    scored = [*([source] if splits <= source.qrels.keys() else []), *targets]
    texts = {
        f"{dataset.name}/{query}": text
        for dataset in scored
        if splits <= dataset.qrels.keys()
        for query, text in dataset.texts(first.split).items()
    }
    return [dataclasses.replace(first, dataset=dataset, train_on=source, held_out=texts) for dataset in scored]
