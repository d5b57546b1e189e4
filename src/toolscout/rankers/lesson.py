"""The data that a fit may learn from: tools, queries with their gold tools, and the figures of rankings on dev."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from toolscout import metrics
from toolscout.arrays import Places
from toolscout.dataset import NoTool, Qrels
from toolscout.home.models import model_store
from toolscout.home.models.model_store import Data, Model
from toolscout.search.pipeline import Stage
from toolscout.search.resources import BASE_FOLDER
from toolscout.types import Tool, digest

__all__ = ["DEV_METRICS", "Base", "Lesson"]

DEV_METRICS: Final = ("recall@5", "ndcg@5", "comp@5")


@dataclasses.dataclass(frozen=True)
class Base:
    """The recipe that a fit builds on, fitted on the same queries.

    Attributes:
        recipe: its name.
        model: its model. None: it is not fitted.
        stage: its pipeline over the tools of the lesson.
        identity: digest of everything that its fit depends on.
    """

    recipe: str
    model: Model | None
    stage: Stage
    identity: str

    def save(self, folder: Path) -> None:
        """Copy its model into the folder of the model that builds on it; see `Resources.build_base`."""
        if self.model is not None:
            model_store.nest(self.model.folder, folder / BASE_FOLDER)


@dataclasses.dataclass(frozen=True)
class Lesson:
    """The data of a fit.

    Attributes:
        name: name of the dataset.
        tools: the catalogue, ascending by id.
        texts: query id → text, for all queries of `train` and `dev`.
        train: query id → `Tool.id` → grade.
        dev: the same for the queries on which choices are made; none of them is in train.
        dropped: ids of training queries that repeat a test query; they are not in `train`.
        no_tool: queries that need no tool, for methods that learn to abstain.
        licence: licence of the data, if known.
        base: the recipe that the fit builds on, if its options name one.
    """

    name: str
    tools: Sequence[Tool]
    texts: Mapping[str, str]
    train: Qrels
    dev: Qrels
    dropped: Sequence[str] = ()
    no_tool: NoTool | None = None
    licence: str | None = None
    base: Base | None = None

    @functools.cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the texts and gold tools of train and dev."""
        splits = [sorted(split.items()) for split in (self.train, self.dev)]
        return digest("lesson/1", [[[query, self.texts[query], gold] for query, gold in split] for split in splits])

    @property
    def data(self) -> Data:
        """The entry of a manifest about the data."""
        return Data(
            name=self.name,
            fingerprint=self.fingerprint,
            n_train=len(self.train),
            n_dev=len(self.dev),
            dropped_leaks=len(self.dropped),
        )

    @property
    def base_stage(self) -> Stage:
        """The pipeline of the base, for methods that always have one."""
        assert self.base is not None
        return self.base.stage

    def texts_of(self, queries: Iterable[str]) -> list[str]:
        """Return the texts of queries by id."""
        return [self.texts[query] for query in queries]

    def positions(self) -> dict[str, int]:
        """Map each tool id to its position in `tools`."""
        return {tool.id: position for position, tool in enumerate(self.tools)}

    def gold_positions(self) -> list[Places]:
        """Return for each training query, in the order of `train`, the positions of its gold tools in `tools`."""
        position = self.positions()
        return [np.array([position[tool] for tool in gold], dtype=np.intp) for gold in self.train.values()]

    def evaluate(self, rankings: Mapping[str, Sequence[str]]) -> metrics.PerQuery:
        """Score rankings of the dev queries: query id → tool ids, best first."""
        return metrics.score(rankings, self.dev, DEV_METRICS)
