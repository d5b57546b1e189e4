"""Datasets as the benchmark reads them: their tools, their folds, and the slices of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from toolscout.dataset import Dataset, Fold, Qrels, drop_leaks, in_dev, seen_labels
from toolscout.errors import NotFound, UserError, name_nearest
from toolscout.models.model_store import keys, places
from toolscout.sources.folder import read_tools
from toolscout.types import Tool

__all__ = ["groups", "load_dataset", "load_tools", "make_folds", "shares_tools", "strip_source"]


def load_dataset(name: str, root: Path | None) -> Dataset:
    """Load a dataset by its path below the data root, or by its folder.

    Raises:
        NotFound: naming both folders that were tried.
    """
    folders = [*([root / name] if root else []), Path(name)]
    for folder in folders:
        if (folder / "queries.jsonl").is_file():
            return Dataset.load(folder, root=root)
    tried = " and ".join(map(str, folders))
    hint = "Set --data or TOOLSCOUT_DATA to the folder of the datasets."
    if root:
        present = sorted(file.parent.name for file in root.glob("*/queries.jsonl"))
        hint = name_nearest(name, present, f"The datasets there are: {', '.join(present) or 'none'}")
    raise NotFound(f"expected a dataset folder with queries.jsonl, found none at {tried}. {hint}")


def load_tools(dataset: Dataset, qrels: Qrels) -> list[Tool]:
    """Read the tools of a dataset, and check that every gold tool of `qrels` is among them.

    Raises:
        UserError: naming the first gold tool that is missing, and the entries that could not be read.
    """
    reading = read_tools(dataset.folder, "d")
    present = {strip_source(tool.id) for tool in reading.tools}
    lost = sorted({tool for gold in qrels.values() for tool in gold} - present)
    if lost:
        raise UserError(
            f"{dataset.name}: expected every gold tool among the tools, found {len(lost)} missing, {lost[0]!r} first: "
            + "; ".join(f"{problem.entry}: {problem.message}" for problem in reading.problems[:3])
        )
    return list(reading.tools)


def strip_source(tool_id: str) -> str:
    """Return a tool id without its source, as the dataset's files have it."""
    return tool_id.partition("/")[2]


def make_folds(dataset: Dataset, split: str, spec: str | None, tools: Sequence[Tool]) -> list[Fold] | None:
    """Cut the queries of a split into folds; None without a `spec` such as `query:5`."""
    return dataset.folds(spec, parent_of=_parents(tools), split=split) if spec else None


def shares_tools(one: Dataset, other: Dataset) -> bool:
    """Whether a model that is fitted on one dataset would know a tool of the other."""
    return bool((places(keys(load_tools(one, {})), load_tools(other, {})) >= 0).any())


def groups(
    dataset: Dataset, split: str, tools: Sequence[Tool], folds: str | None = None, train_on: Dataset | None = None
) -> dict[str, dict[str, str]]:
    """Return the slices of a result: slice → query id → label.

    These are the slices of `Dataset.groups`, and two more that say what training saw of each query's gold tools:
    `seen`, `mixed` or `unseen` (`seen_labels`). The slice `tools` says it of the tools themselves. The slice `parents`
    says it of their parents, if the tools have more than one; a tool without a parent counts as its own.

    With folds, a query is labelled by the training part of the fold that scores it. That part excludes the tenth that
    is dev, and the queries that `lesson` drops as leaks. After training on another dataset there is only the slice
    `tools`; two tools are the same if their ids and names are (`models.places`).
    """
    qrels, table = dataset.split(split), dataset.groups(split)
    if train_on is not None and train_on.name != dataset.name:
        return {**table, "tools": seen_labels({"": _find_trained_tools(train_on, tools)}, qrels)}
    fold_cut = make_folds(dataset, split, folds, tools)
    if fold_cut is not None:
        pairs = [
            (
                {query: qrels[query] for query in fold.train if not in_dev(query)},
                {query: qrels[query] for query in fold.test},
            )
            for fold in fold_cut
        ]
    else:
        pairs = [(dataset.qrels["train"], qrels)] if "train" in dataset.qrels else []
    parents = _parents(tools)
    for train_with_leaks, scored in pairs:
        train, _ = drop_leaks(train_with_leaks, dataset.queries, {query: dataset.queries[query] for query in scored})
        table.setdefault("tools", {}).update(seen_labels(train, scored))
        if len(set(parents.values())) > 1:
            labels = seen_labels(train, scored, key=lambda tool: parents[tool] or tool)
            table.setdefault("parents", {}).update(labels)
    return table


def _find_trained_tools(source: Dataset, tools: Sequence[Tool]) -> list[str]:
    """Return the ids of the tools that are gold tools of the training queries of another dataset."""
    gold_ids = {tool for gold in source.qrels.get("train", {}).values() for tool in gold}
    trained = [tool for tool in load_tools(source, {}) if strip_source(tool.id) in gold_ids]
    return [
        strip_source(tool.id) for tool, place in zip(tools, places(keys(trained), tools), strict=True) if place >= 0
    ]


def _parents(tools: Sequence[Tool]) -> Mapping[str, tuple[str, ...]]:
    return {strip_source(tool.id): tool.parent or () for tool in tools}
