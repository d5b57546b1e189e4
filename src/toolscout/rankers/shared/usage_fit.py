"""Fits methods that learn from logged queries: the queries as arrays, and the choices that are made on dev."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from toolscout.arrays import Arrays, Checksums, Mask, Places, Scores
from toolscout.encoders import Encoder
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.indexes import top_k
from toolscout.indexes.bm25 import BM25, CODE_SETTINGS
from toolscout.indexes.exact import Exact
from toolscout.rankers import Artifacts, BaseRule
from toolscout.rankers.declared import ArrayRule, ModelDeclaration
from toolscout.rankers.lesson import Lesson
from toolscout.rankers.shared.dev_choice import DevQueries, Rank, measure_places, rank_by_score
from toolscout.rankers.shared.sparse_features import hash_features
from toolscout.rankers.shared.usage import (
    DescriptionScorer,
    Encode,
    FittedUsage,
    Usage,
    build_usage_stage,
)
from toolscout.search.pipeline import Stage
from toolscout.search.resources import Resources

__all__ = ["MIX_SETTINGS", "Estimate", "FitData", "UsageMethod", "read_settings", "select_unset"]

EVALUATED_TOOLS: Final = 20  # of a ranking; more than `DEV_METRICS` read
MIX_SETTINGS: Final = ("sharpness", "kappa", "agreement", "novelty")
"""Settings of `Blend` that have a value in every model."""


class FitData:
    """The queries of a fit as arrays, and the choices that are made on dev.

    Attributes:
        ids: ids of the queries: train, then dev.
        texts: texts of the queries.
        rows: vectors of the queries, `(n, dim)` float32.
        gold: positions of the gold tools of each query.
        n_train: number of training queries.
        n_final: number of queries that the final model learns from.
        description_scores: scores of the dev queries by description, `(dev, tools)`.
        tuned_scores: scores by a tuned encoder, `(dev, tools)`, which may be added to these; only in a fit with one.
        dev_gold: which tools each dev query needs, `(dev, tools)`.
    """

    tuned_scores: Scores

    def __init__(
        self,
        resources: Resources,
        lesson: Lesson,
        options: Any,
        encoder: Encoder,
        scorer: type[DescriptionScorer] = DescriptionScorer,
    ) -> None:
        """Read the queries, and score the dev queries by description.

        Args:
            resources: encode the queries.
            lesson: tools, queries and their gold tools.
            options: of the method.
            encoder: makes the vectors of the queries.
            scorer: scores tools by description.
        """
        position = {tool.id: place for place, tool in enumerate(lesson.tools)}
        qrels = {**lesson.train, **lesson.dev}
        self.resources, self.lesson, self.options = resources, lesson, options
        self.ids = list(qrels)
        self.texts = [lesson.texts[query] for query in self.ids]
        self.rows = resources.encode_queries(encoder, self.texts)
        self.gold = [np.array(sorted(position[tool] for tool in qrels[query])) for query in self.ids]
        self.n_train = len(lesson.train)
        self.n_final = len(self.ids) if getattr(options, "refit", False) else self.n_train
        self.dev_gold = self._mark_gold()
        self.description_scores = self._score_by_description(encoder, scorer)

    def select_columns(self, columns: slice, options: Any) -> FitData:
        """Return the same data with some columns of the rows, for one part of a mixture with its options."""
        selected = copy.copy(self)
        selected.features = self.features  # hashed once for all parts
        selected.rows, selected.options = self.rows[:, columns], options
        return selected

    def regroup(self, train: Places, dev: Places, score_by_description: Callable[[FitData], Scores]) -> FitData:
        """Return data of the same fit with some of its queries as train, and others as dev.

        Args:
            train: positions of the new training queries.
            dev: positions of the new dev queries.
            score_by_description: returns the scores of the new dev queries by description, `(dev, tools)`.
        """
        regrouped, order = copy.copy(self), np.concatenate([train, dev])
        for name in ("ids", "texts", "gold", "features"):
            values = getattr(self, name)
            setattr(regrouped, name, [values[place] for place in order])
        regrouped.rows, regrouped.n_train, regrouped.n_final = self.rows[order], len(train), len(train)
        regrouped.dev_gold = regrouped._mark_gold()  # reads `gold` and `n_train`
        regrouped.description_scores = score_by_description(regrouped)
        return regrouped

    def _mark_gold(self) -> Mask:
        """Return which tools each dev query needs, `(dev, tools)`."""
        marked = np.zeros((len(self.dev), len(self.lesson.tools)), dtype=np.bool_)
        for row, gold in zip(marked, self.gold[self.n_train :], strict=True):
            row[gold] = True
        return marked

    def needs_new_tool(self) -> Mask:
        """Tell which dev queries need a tool that no training query needs, `(dev,)`."""
        return np.asarray((self.dev_gold & (self.uses(self.n_train) == 0)).any(axis=1))

    def _score_by_description(self, encoder: Encoder, scorer: type[DescriptionScorer]) -> Scores:
        """Score the dev queries by description, `(dev, tools)`."""
        meaning = Exact(encoder.dim)
        meaning.upsert([tool.id for tool in self.lesson.tools], self.resources.encode_tools(encoder, self.lesson.tools))
        description = scorer(BM25.build(self.lesson.tools, CODE_SETTINGS), meaning, encoder)
        return np.array([description.scores(self.texts[i], self.rows[i]) for i in self.dev])

    @functools.cached_property
    def features(self) -> list[Checksums]:
        """Checksums of the words and pairs of words of each text; see `hash_features`."""
        return [hash_features(text) for text in self.texts]

    @property
    def dev(self) -> range:
        """Positions of the dev queries."""
        return range(self.n_train, len(self.ids))

    def uses(self, n: int) -> Scores:
        """Count how many of the first `n` queries use each tool, `(tools,)`."""
        return np.bincount(np.concatenate(self.gold[:n]), minlength=len(self.lesson.tools)).astype(np.float32)

    def evaluate(self, scores: Scores) -> dict[str, float]:
        """Return the figures of `Lesson.evaluate` for scores, `(dev, tools)`: measure → its mean on dev."""
        tools = [tool.id for tool in self.lesson.tools]
        rankings = {
            self.ids[i]: [tools[place] for place in top_k(row, EVALUATED_TOOLS)]
            for i, row in zip(self.dev, scores, strict=True)
        }
        return self.lesson.evaluate(rankings).means()

    def quality(self, scores: Scores) -> float:
        """Return the mean of ndcg@5 (with equal grades) and comp@5 on dev, which choices maximise."""
        return float(self.measure(scores).mean())

    def measure(self, scores: Scores) -> Scores:
        """Return the mean of ndcg@5 (with equal grades) and comp@5 of each dev query, `(dev,)`."""
        return measure_places(rank_by_score(scores), self.dev_gold)

    def likelihood(self, probabilities: Scores) -> float:
        """Return the mean log probability of the gold tools of dev, given probabilities `(dev, tools)`."""
        return self.dev_queries().likelihood(probabilities)

    def dev_queries(self, rank: Rank = rank_by_score) -> DevQueries:
        """Return the dev queries, each with equal weight. `rank` orders the tools of a query as a search would."""
        weights = np.full(len(self.dev), 1 / len(self.dev))
        return DevQueries(self.description_scores, self.dev_gold, self.uses(self.n_train), weights, rank)

    def choose_mix(self, usage: Scores) -> tuple[dict[str, Any], Scores]:
        """Choose the settings of `mix_usage` on dev, from usage `(dev, tools)`; see `DevQueries.choose_mix`."""
        return self.dev_queries().choose_mix(usage, self.options)


def select_unset(options: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Select the entries of `chosen` that the options leave open."""
    return {name: value for name, value in chosen.items() if getattr(options, name) is None}


def read_settings(model: Model) -> dict[str, Any]:
    """Return the settings of a model, those that dev chose included: name → value."""
    return {name: setting.value for name, setting in model.manifest.settings.items()}


class Estimate(NamedTuple):
    """How likely queries need each tool, as one method learned it.

    Attributes:
        dev: probability that each dev query needs each tool, `(dev, tools)`, learned from train alone.
        usage: the same for any query, learned from train alone.
        chosen: settings that were chosen on dev.
        finish: returns the arrays of the model, learned from the queries that the final model may see.
    """

    dev: Scores
    usage: Usage
    chosen: Mapping[str, Any]
    finish: Callable[[], Arrays]


class UsageMethod:
    """Base of the methods that learn the usage of single tools with the encoder of the resources.

    Attributes:
        options_type: all options of the method.
        label: name of the stage.
    """

    options_type: type[msgspec.Struct]
    needs_usage = True
    transfers = False
    abstains = False
    base: BaseRule | None = None
    label: str

    def estimate(self, data: FitData) -> Estimate:
        """Learn usage from train, with the settings that are best on dev."""
        raise NotImplementedError

    def declare_usage(self, arrays: Arrays) -> ModelDeclaration:
        """Declare what `load_usage` reads of a model with these arrays, besides `uses`."""
        raise NotImplementedError

    def declare(self, options: msgspec.Struct, arrays: Arrays) -> ModelDeclaration:
        """Declare what a model has; see `DeclaringMethod`."""
        rules, settings = self.declare_usage(arrays)
        return ModelDeclaration({"uses": ArrayRule("tools"), **rules}, (*MIX_SETTINGS, *settings))

    def load_usage(self, arrays: Arrays, settings: Mapping[str, Any], encode: Encode) -> FittedUsage:
        """Return the usage side of a model.

        Args:
            arrays: what `Estimate.finish` returned, and `uses`: how many queries used each tool of the model.
            settings: of the model, by name.
            encode: new queries → rows.
        """
        raise NotImplementedError

    def fit(self, resources: Resources, lesson: Lesson, options: Any) -> Artifacts:
        """Learn from train, choose on dev, then learn from both (without `refit`, only from train)."""
        encoder = resources.load_encoder()
        data = FitData(resources, lesson, options, encoder)
        estimate = self.estimate(data)
        chosen, scores = data.choose_mix(estimate.dev)
        return Artifacts(
            {**estimate.finish(), "uses": data.uses(data.n_final)},
            metrics=data.evaluate(scores),
            encoder=encoder,
            chosen=select_unset(options, {**estimate.chosen, **chosen}),
            refit=options.refit,
        )

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build the pipeline over a catalogue.

        Raises:
            ConfigError: if the model was fitted with another encoder, or knows no tool of the catalogue.
        """
        encoder = resources.load_encoder()
        model.check_encoder(encoder)
        model.check_catalogue(catalogue.tools())
        learned = self.load_usage(model.arrays, read_settings(model), functools.partial(encoder.encode, kind="query"))
        return build_usage_stage(resources, catalogue, model, encoder, learned, label=self.label)
