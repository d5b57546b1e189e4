"""What a benchmark measures: a job, the dataset, folds and slices that belong to it, and jobs that test transfer.

Transfer follows TR-bench (arXiv:2406.17465, section 5.1): a recipe is fitted once, on one dataset, and scored there and
on datasets with other tools, whose descriptions are indexed anew.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from toolscout.dataset import Dataset, Fold, NoTool, Qrels, drop_leaks, in_dev, seen_labels
from toolscout.errors import ConfigError, NotFound, UserError, name_nearest
from toolscout.home.models.model_store import keys, places
from toolscout.recipes import registry
from toolscout.settings import Settings
from toolscout.sources.folder import read_tools
from toolscout.types import Tool
from toolscout_lab.llm import SharedLLM
from toolscout_lab.machine import Record

__all__ = [
    "TRANSFER_MEASURES",
    "Job",
    "groups",
    "label_of",
    "load_dataset",
    "load_tools",
    "make_folds",
    "plan_transfer",
    "shares_tools",
    "strip_source",
]
TRANSFER_MEASURES: Final = ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10")


@dataclasses.dataclass(frozen=True)
class Job:
    """One recipe to measure on one dataset.

    Attributes:
        dataset: the loaded dataset.
        recipe: name of the recipe.
        label: name of the result files.
        out: the folder of results.
        no_tool: queries that need no tool. The recipe must then estimate whether a query needs one.
        encoder: name of the encoder; None uses the recipe's own.
        split: the queries to score.
        folds: `query:5` or `parent:5`: fit on all folds but one, score on that one, pool the scores.
        train_on: another dataset to fit on; its name goes into the settings.
        held_out: any id → text of further queries that the fit must not see; see `plan_transfer`.
        seed: seed of everything random.
        changes: settings that replace the recipe's own.
        settings: timeouts, and where vectors are kept.
        llm: the language model, which jobs may share with its budget.
        installed: whether the whole search of an installed toolscout is measured, not the ranking alone.
    """

    dataset: Dataset
    recipe: str
    label: str
    out: Path
    no_tool: NoTool | None = None
    encoder: str | None = None
    split: str = "test"
    folds: str | None = None
    train_on: Dataset | None = None
    held_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seed: int = 0
    changes: Record = dataclasses.field(default_factory=dict)
    settings: Settings = dataclasses.field(default_factory=Settings)
    llm: SharedLLM | None = None
    installed: bool = False

    @property
    def json_path(self) -> Path:
        """The file of the figures."""
        return self.out / self.dataset.name / f"{self.label}.json"

    @property
    def run_path(self) -> Path:
        """The file of the rankings."""
        return self.out / self.dataset.name / f"{self.label}.run.gz"

    @property
    def detect_path(self) -> Path:
        """The file of the estimated need of each query, written if no-tool queries are given."""
        return self.out / self.dataset.name / f"{self.label}.detect.gz"

    def identity(self) -> Record:
        """Return the values that are equal in two runs of the same job."""
        recipe, budget = registry.recipe(self.recipe), self.settings.prerequisites
        return {
            "dataset": self.dataset.name,
            "recipe": self.recipe,
            "label": self.label,
            "encoder": (self.encoder or recipe.encoder or self.settings.encoder) if recipe.encodes else None,
            "split": self.split,
            "seed": self.seed,
            "settings": {
                **recipe.settings,
                **self.changes,
                **({"folds": self.folds} if self.folds else {}),
                **({"train_on": self.train_on.name} if self.train_on else {}),
                **({"no_tool": True} if self.no_tool else {}),
                **({"installed": True} if self.installed else {}),
                **({"prerequisites": budget} if budget != Settings.prerequisites else {}),
            },
        }


def label_of(
    recipe: str, label: str | None, *, seed: int = 0, folds: str | None = None, installed: bool = False
) -> str:
    """Return the name of the result files: `label` or the recipe's name, with the suffixes of formats.md.

    Raises:
        ConfigError: for a label that cannot be a file name.
    """
    base = label or (f"{recipe}-installed" if installed else recipe)
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", base):
        raise ConfigError(f"label: expected letters, digits, '.', '_', '+' or '-', found {base!r}")
    parent = "-parent" if folds and folds.startswith("parent") else ""
    return f"{base}{parent}{f'-s{seed}' if seed else ''}"


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

    These are the slices of `Dataset.groups`, and the slices `tools` and `parents`. In `tools`, the label of a query
    says whether training saw its gold tools: `seen` (all), `mixed` or `unseen` (none); see `seen_labels`. In `parents`,
    the label says the same of the parents of its gold tools. A tool without a parent counts as its own parent. There is
    no slice `parents` if all tools have the same one.

    With folds, a query is labelled by the training part of the fold that scores it. That part excludes the tenth that
    is dev, and the queries that `lesson` drops as leaks. After training on another dataset there is only the slice
    `tools`; two tools are the same if their ids and names are (`home.models.model_store.places`).
    """
    qrels, table = dataset.split(split), dataset.groups(split)
    if train_on is not None and train_on.name != dataset.name:
        trained_qrels = {"": _find_trained_tools(train_on, tools)}  # as if one query had needed all trained tools
        return {**table, "tools": seen_labels(trained_qrels, qrels)}
    fold_cut = make_folds(dataset, split, folds, tools)
    if fold_cut is not None:
        train_and_scored = [
            (
                {query: qrels[query] for query in fold.train if not in_dev(query)},
                {query: qrels[query] for query in fold.test},
            )
            for fold in fold_cut
        ]
    else:
        train_and_scored = [(dataset.qrels["train"], qrels)] if "train" in dataset.qrels else []
    parents = _parents(tools)
    for train_with_leaks, scored in train_and_scored:
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


def plan_transfer(first: Job, targets: Sequence[Dataset]) -> list[Job]:
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
