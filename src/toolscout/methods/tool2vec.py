"""Tool2Vec (arXiv:2409.02141): the vector of a tool is the mean of the vectors of the queries that used it.

`tool2vec` keeps the encoder as it is. `tool2vec-tuned` first tunes it with a triplet loss, drawn our own way: a query
must lie nearer to one that shares a tool with it than to one that shares none. The paper ranks by the cosine with
the mean. Here a softmax over it is the usage side of `methods.shared.usage`, so tools without usage rank by their
description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from toolscout import encoders
from toolscout.arrays import Arrays, Mask, Places, Scores, Vectors
from toolscout.catalogue.store import Catalogue
from toolscout.encoders import unit_rows
from toolscout.encoders.transformer import TransformerEncoder
from toolscout.methods import Artifacts
from toolscout.methods.lesson import Lesson
from toolscout.methods.shared.dev_choice import choose_best
from toolscout.methods.shared.tuning import (
    ENCODER_FOLDER,
    Amount,
    Batch,
    Count,
    NonNegative,
    Positive,
    describe_training,
    make_tower,
    require_tunable,
    save_encoder,
    train_task,
)
from toolscout.methods.shared.usage import (
    DESCRIPTION_ENCODER,
    Blend,
    Encode,
    Learned,
    LiveEstimate,
    LiveUsage,
    TunedBlend,
    Usage,
    build_usage_stage,
    softmax,
)
from toolscout.methods.shared.usage_fit import (
    Estimate,
    FitData,
    UsageMethod,
    read_settings,
    select_unset,
)
from toolscout.models.model_store import Model
from toolscout.search.pipeline import Stage
from toolscout.search.resources import Resources
from toolscout.types import digest

__all__ = ["Options", "Tool2Vec", "Tool2VecTuned", "TunedOptions"]

BETA_GRID: Final = (5.0, 10.0, 20.0, 40.0, 80.0)


class Options(Blend, frozen=True, forbid_unknown_fields=True):
    """Settings of `tool2vec`.

    Attributes:
        beta: factor of the cosine with a mean before the softmax; None: the likeliest on dev.
    """

    beta: Positive | None = None
    novelty: Amount = 0.6


class TunedOptions(TunedBlend, frozen=True, forbid_unknown_fields=True):
    """Settings of `tool2vec-tuned`, for the tuning and for the means.

    Attributes:
        beta: as in `Options`.
        refit: as in `Blend`.
        epochs: epochs of the tuning; one in the paper.
        margin: cosine by which the query that shares a tool must be nearer.
        hold: maximum tokens of a step in memory with their graph; larger steps cache gradients.
    """

    beta: Positive | None = None
    novelty: Amount = 0.6
    refit: bool = True
    epochs: Count = 1
    batch: Batch = 128
    rate: Positive = 5e-5
    margin: Positive = 0.3
    hold: NonNegative = 32_768


def _compute_means(data: FitData, rows: Vectors, n: int) -> tuple[Vectors, Mask]:
    """Return the unit mean of the first `n` queries that use each tool, `(tools, dim)`, and which tools have one."""
    return unit_rows(_sum_rows(data, rows, n)), data.uses(n) > 0


def _sum_rows(data: FitData, rows: Vectors, n: int) -> Vectors:
    sums = np.zeros((len(data.lesson.tools), rows.shape[1]), dtype=np.float32)
    for row, gold in zip(rows[:n], data.gold[:n], strict=True):
        sums[gold] += row
    return sums


def _softmax_over_used(cosines: Scores, used: Mask, beta: float) -> Scores:
    return softmax(np.where(used, beta * cosines, -np.inf))


def _make_usage(means: Vectors, used: Mask, beta: float) -> Usage:
    """Return the usage side by the means of queries, `(tools, dim)`; zeros for a query without a vector."""

    def usage(text: str, row: Vectors) -> Scores:
        if not row.any():
            return np.zeros(len(means))
        return _softmax_over_used(np.einsum("nd,d->n", means, row), used, beta)

    return usage


class Tool2Vec(UsageMethod):
    """Represents a tool by the mean vector of the queries that used it."""

    options_type: type[msgspec.Struct] = Options
    label = "tool2vec"

    def estimate(self, data: FitData) -> Estimate:
        """Average over train, choose on dev, then average over both (without `refit`, over train)."""
        return _estimate_means(data, data.rows)

    def load_usage(self, arrays: Arrays, settings: Mapping[str, Any], encode: Encode) -> Learned:
        """Load the means of a model; they grow with the queries used since the fit, if their lengths are known."""
        means, used, beta = arrays["means"], arrays["uses"] > 0, settings["beta"]

        def grow(texts: Sequence[str], new: Sequence[Places], n_tools: int) -> LiveUsage:
            sums = np.zeros((n_tools, means.shape[1]), dtype=np.float32)
            sums[: len(means)] = means * arrays["lengths"][:, None]
            for row, gold in zip(encode(texts), new, strict=True):
                sums[gold] += row
            any_use = np.concatenate([used, np.zeros(n_tools - len(used), dtype=np.bool_)])
            any_use[np.concatenate(new)] = True
            usage = _make_usage(unit_rows(sums), any_use, beta)
            return lambda text, row: LiveEstimate(usage(text, row))

        return Learned(_make_usage(means, used, beta), grow if "lengths" in arrays else None)


class Tool2VecTuned(Tool2Vec):
    """Tunes the encoder, then represents a tool by the mean vector of the queries that used it."""

    options_type = TunedOptions

    def fit(self, resources: Resources, lesson: Lesson, options: TunedOptions) -> Artifacts:
        """Tune the encoder on train, then continue as `Tool2Vec.fit`.

        Raises:
            MissingExtra: without torch or sentence-transformers.
            ConfigError: if the encoder cannot be tuned, or there is nothing to train on.
        """
        from toolscout.training.biencoders import Texts, Triplets

        encoder = require_tunable(resources.load_encoder())
        description_encoder = encoders.load(DESCRIPTION_ENCODER, resources.settings)
        data = FitData(resources, lesson, options, description_encoder)
        tower = make_tower(encoder, options)
        tokens = tower.tokens(data.texts, "query")
        texts = Texts(
            tower=tower,
            queries=tokens[: data.n_train],
            tools=[],
            gold=data.gold[: data.n_train],
            dev=[],
            evaluate=lambda cosines: {},
            identity=digest("tool2vec-tuned/1", [encoder.fingerprint, lesson.fingerprint, options]),
            hold=options.hold,
        )
        done = train_task(resources, options, Triplets(texts, options.margin), tower)
        resources.say("encoding the queries")
        estimate = _estimate_means(data, tower.vectors(tokens))
        chosen, scores = data.choose_mix(estimate.dev)
        return Artifacts(
            {**estimate.finish(), "uses": data.uses(data.n_final)},
            metrics=data.evaluate(scores),
            encoder=description_encoder,
            chosen=select_unset(options, {**estimate.chosen, **chosen}),
            values=describe_training(done),
            files=save_encoder(tower.model),
            refit=options.refit,
            seconds_before=done.earlier,
        )

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build the pipeline over a catalogue. It learns new queries only in the next fit: its encoder is slow."""
        description_encoder = encoders.load(DESCRIPTION_ENCODER, resources.settings)
        model.check_encoder(description_encoder)
        model.check_catalogue(catalogue.tools())
        usage = self.load_usage(model.arrays, read_settings(model), description_encoder.encode).usage
        tuned = TransformerEncoder(str(model.folder / ENCODER_FOLDER))
        learned = Learned(usage, encode=tuned.encode)
        return build_usage_stage(resources, catalogue, model, description_encoder, learned, label=self.label)


def _estimate_means(data: FitData, rows: Vectors) -> Estimate:
    """Compute the means, and choose β on dev. `rows`: vectors of the queries of the data."""
    data.resources.say("taking means and choosing on dev")
    means, used = _compute_means(data, rows, data.n_train)
    cosines = rows[data.n_train :] @ means.T

    def estimate_probabilities(beta: float) -> Scores:
        return _softmax_over_used(cosines, used, beta)

    beta = data.options.beta
    if beta is None:
        beta = choose_best(BETA_GRID, lambda tried: data.likelihood(estimate_probabilities(tried)))

    def finish() -> Arrays:
        sums = _sum_rows(data, rows, data.n_final)
        return {"means": unit_rows(sums), "lengths": np.sqrt(np.einsum("nd,nd->n", sums, sums))}

    return Estimate(
        dev=estimate_probabilities(beta),
        usage=_make_usage(means, used, beta),
        chosen={"beta": beta},
        finish=finish,
    )
