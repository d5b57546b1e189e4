"""Benchmark jobs: what to measure, and the names of the files that hold the result."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolscout.config import Settings
from toolscout.dataset import Dataset, NoTool
from toolscout.errors import ConfigError
from toolscout.llm import SharedLLM
from toolscout.recipes import registry

__all__ = ["Job", "label_of"]


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
        held_out: any id → text of further queries that the fit must not see; see `transfer`.
        seed: seed of everything random.
        changes: settings that replace the recipe's own.
        settings: timeouts, and where vectors are kept.
        llm: the language model, which jobs may share with its budget.
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
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Settings = dataclasses.field(default_factory=Settings)
    llm: SharedLLM | None = None

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

    def identity(self) -> dict[str, Any]:
        """Return the values that are equal in two runs of the same job."""
        recipe = registry.recipe(self.recipe)
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
            },
        }


def label_of(recipe: str, label: str | None, *, seed: int = 0, folds: str | None = None) -> str:
    """Return the name of the result files: `label` or the recipe's name, with the suffixes of formats.md.

    Raises:
        ConfigError: for a label that cannot be a file name.
    """
    base = label or recipe
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", base):
        raise ConfigError(f"label: expected letters, digits, '.', '_', '+' or '-', found {base!r}")
    parent = "-parent" if folds and folds.startswith("parent") else ""
    return f"{base}{parent}{f'-s{seed}' if seed else ''}"
