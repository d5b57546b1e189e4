"""What a fit may learn from: tools, queries with their gold tools, and how rankings are judged on dev."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from toolscout import metrics
from toolscout.abstain import decision
from toolscout.catalogue.store import Catalogue
from toolscout.dataset import NoTool, Qrels
from toolscout.models import model_store
from toolscout.models.model_store import Data, Model
from toolscout.search.pipeline import Floors, Stage
from toolscout.types import Tool, digest
from toolscout.workspace import BASE_FOLDER, Workspace

__all__ = ["DEV_METRICS", "Base", "Lesson"]

DEV_METRICS: Final = ("recall@5", "ndcg@5", "comp@5")
MAX_ABSTENTION_QUERIES: Final = 4_000
"""Queries by which abstention thresholds are set, at most; 500 missed a budget of 2 % by 0.9 points."""


@dataclasses.dataclass(frozen=True)
class Base:
    """The recipe that a fit goes on from, fitted on the same queries.

    Attributes:
        recipe: its name.
        model: its model. None: it is not fitted.
        stage: its pipeline over the tools of the lesson.
        identity: of its fit.
    """

    recipe: str
    model: Model | None
    stage: Stage
    identity: str

    def save(self, folder: Path) -> None:
        """Put its model into the folder of the model that goes on from it; see `Workspace.build_base`."""
        if self.model is not None:
            model_store.nest(self.model.folder, folder / BASE_FOLDER)


@dataclasses.dataclass(frozen=True)
class Lesson:
    """What a fit may see.

    Attributes:
        name: of the dataset.
        tools: the catalogue, ascending by id.
        texts: query id → text, of all queries below.
        train: query id → `Tool.id` → grade.
        dev: the same for the queries to choose on; none of them is in train.
        dropped: ids of training queries that repeat a test query; they are not in `train`.
        no_tool: queries that need no tool, for methods that learn to abstain.
        licence: of the data, if known.
        base: the recipe that the fit goes on from, if its options name one.
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
        """What a manifest says of the data."""
        return Data(
            name=self.name,
            fingerprint=self.fingerprint,
            n_train=len(self.train),
            n_dev=len(self.dev),
            dropped_leaks=len(self.dropped),
        )

    @property
    def base_stage(self) -> Stage:
        """The pipeline of the base, for methods whose options always name one."""
        assert self.base is not None
        return self.base.stage

    def texts_of(self, queries: Iterable[str]) -> list[str]:
        """Return the texts of queries by id."""
        return [self.texts[query] for query in queries]

    def positions(self) -> dict[str, int]:
        """Map each tool id to its position in `tools`."""
        return {tool.id: position for position, tool in enumerate(self.tools)}

    def evaluate(self, rankings: Mapping[str, Sequence[str]]) -> metrics.PerQuery:
        """Score rankings of the dev queries: query id → tool ids, best first."""
        return metrics.score(rankings, self.dev, DEV_METRICS)

    @functools.cached_property
    def abstention_floors(self) -> Floors:
        """Thresholds of the bundled abstention decision, set by queries that these tools are known to serve."""
        queries = [*self.dev, *self.train]
        sample = queries[:: -(-len(queries) // MAX_ABSTENTION_QUERIES)]
        return decision.fit_floors(Workspace(), Catalogue.of(self.tools), self.texts_of(sample))
