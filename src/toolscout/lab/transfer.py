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
        first: the job on the dataset to fit on; its label names that dataset. The in-domain job is left out if the
            dataset lacks the split.
        targets: the other datasets. If the dataset to fit on is among them, it is scored once.

    Raises:
        ConfigError: with folds; or if the recipe learns its tools one by one and no target shares one of them.
    """
    source = first.dataset
    if first.folds:
        raise ConfigError("--train-on and --folds cannot be used together. Leave one of them out.")
    targets = [dataset for dataset in targets if dataset.name != source.name]
    _check_transferable(first.recipe, source, targets)
    splits = set(first.split.split("+"))
    scored = [*([source] if splits <= source.qrels.keys() else []), *targets]
    texts = {
        f"{dataset.name}/{query}": text
        for dataset in scored
        if splits <= dataset.qrels.keys()
        for query, text in dataset.texts(first.split).items()
    }
    return [dataclasses.replace(first, dataset=dataset, train_on=source, held_out=texts) for dataset in scored]


def _check_transferable(name: str, source: Dataset, targets: Sequence[Dataset]) -> None:
    """Refuse a recipe that would know no tool of any target."""
    recipe = registry.recipe(name)
    serves_other_tools = not recipe.is_fitted or recipe.method.transfers
    if serves_other_tools or not targets or any(shares_tools(source, dataset) for dataset in targets):
        return
    raise ConfigError(
        f"--train-on: {name} learns the tools of {source.name} one by one, and "
        f"{', '.join(dataset.name for dataset in targets)} have none of them. Use a recipe over descriptions, such as "
        "dpr."
    )
