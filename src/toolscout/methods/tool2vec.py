"""Tool2Vec (arXiv:2409.02141): the vector of a tool is the mean of the vectors of the queries that used it.

The encoder stays as it is, or is tuned first with a triplet loss (`tool2vec-tuned`), as in the paper: a query shall lie
nearer to one that shares a tool with it than to one that shares none. The paper ranks by the cosine with the mean. Here
a softmax over it is the usage side of `methods.shared.usage`, so that tools without usage are found by their
description.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from toolscout import encoders
from toolscout.arrays import Mask, Places, Scores, Vectors
from toolscout.catalogue.store import Catalogue
from toolscout.encoders import unit_rows
from toolscout.encoders.transformer import TransformerEncoder
from toolscout.methods import Artifacts, BaseRule
from toolscout.methods.lesson import Lesson
from toolscout.methods.shared.tuning import (
    FOLDER,
    Amount,
    Batch,
    Count,
    Positive,
    Whole,
    describe_training,
    make_tower,
    require_tunable,
    save_encoder,
    train_task,
)
from toolscout.methods.shared.usage import (
    DESCRIBED,
    Blend,
    Study,
    TunedBlend,
    Usage,
    best,
    build_usage_stage,
    keep_unset,
    softmax,
)
from toolscout.models.model_store import Model
from toolscout.search.pipeline import Stage
from toolscout.types import digest
from toolscout.workspace import Workspace

__all__ = ["Options", "Tool2Vec", "Tool2VecTuned", "TunedOptions"]

SHARPEST: Final = (5.0, 10.0, 20.0, 40.0, 80.0)


class Options(Blend, frozen=True, forbid_unknown_fields=True):
    """Settings of `tool2vec`.

    Attributes:
        beta: what a cosine with a mean is multiplied with before the softmax; None: the likeliest on dev.
    """

    beta: Positive | None = None
    novelty: Amount = 0.6


class TunedOptions(TunedBlend, frozen=True, forbid_unknown_fields=True):
    """Settings of `tool2vec-tuned`: of the tuning, and of what comes after it.

    Attributes:
        beta: as in `Options`.
        refit: as in `Blend`.
        epochs: of the tuning; one in the paper.
        margin: by which the query that shares a tool must be nearer, in cosine.
        hold: tokens of a step that are held with their graph; gradients of larger steps are cached.
    """

    beta: Positive | None = None
    novelty: Amount = 0.6
    refit: bool = True
    epochs: Count = 1
    batch: Batch = 128
    rate: Positive = 5e-5
    margin: Positive = 0.3
    hold: Whole = 32_768


def _means(study: Study, rows: Vectors, n: int) -> tuple[Vectors, Mask]:
    """The unit mean of the first `n` queries that use each tool, `(tools, dim)`, and which tools have one."""
    return unit_rows(_sums(study, rows, n)), study.uses(n) > 0


def _sums(study: Study, rows: Vectors, n: int) -> Vectors:
    sums = np.zeros((len(study.lesson.tools), rows.shape[1]), dtype=np.float32)
    for row, gold in zip(rows[:n], study.gold[:n], strict=True):
        sums[gold] += row
    return sums


def _shares(cosines: Scores, used: Mask, beta: float) -> Scores:
    return softmax(np.where(used, beta * cosines, -np.inf))


class _Means:
    """What both methods share: the model is the means, and the stage compares queries with them."""

    needs_usage = True
    transfers = False
    abstains = False
    base: BaseRule | None = None

    def build(self, workspace: Workspace, catalogue: Catalogue, model: Model) -> Stage:
        """The pipeline over a catalogue."""
        tuned = (model.folder / FOLDER).is_dir()
        encoder = encoders.load(DESCRIBED, workspace.settings) if tuned else workspace.load_encoder()
        model.check_encoder(encoder)
        model.check_catalogue(catalogue.tools())
        means, used = model.arrays["means"], model.arrays["uses"] > 0
        beta = model.manifest.settings["beta"].value

        def usage(text: str, row: Vectors) -> Scores:
            if not row.any():
                return np.zeros(len(means))
            return _shares(np.einsum("nd,d->n", means, row), used, beta)

        own = TransformerEncoder(str(model.folder / FOLDER)).encode if tuned else None

        def grow(texts: Sequence[str], new: Sequence[Places], n_tools: int) -> Usage:
            sums = np.zeros((n_tools, means.shape[1]), dtype=np.float32)
            sums[: len(means)] = means * model.arrays["lengths"][:, None]
            for row, gold in zip(encoder.encode(texts, "query"), new, strict=True):
                sums[gold] += row
            grown, any_use = unit_rows(sums), np.concatenate([used, np.zeros(n_tools - len(used), dtype=np.bool_)])
            any_use[np.concatenate(new)] = True

            def usage(text: str, row: Vectors) -> Scores:
                return _shares(np.einsum("nd,d->n", grown, row), any_use, beta) if row.any() else np.zeros(n_tools)

            return usage

        grows = grow if own is None and "lengths" in model.arrays else None  # a tuned encoder is too slow to grow by
        return build_usage_stage(workspace, catalogue, model, encoder, usage, label="tool2vec", own=own, grow=grows)


class Tool2Vec(_Means):
    """Takes the mean of the queries that used a tool as its vector."""

    options_type = Options

    def fit(self, workspace: Workspace, lesson: Lesson, options: Options) -> Artifacts:
        """Take means over train, choose on dev, take means over both (over train again without `refit`)."""
        encoder = workspace.load_encoder()
        study = Study(workspace, lesson, options, encoder)
        return _fit_means(study, study.rows, encoder=encoder)


class Tool2VecTuned(_Means):
    """The same with an encoder that is tuned first."""

    options_type = TunedOptions

    def fit(self, workspace: Workspace, lesson: Lesson, options: TunedOptions) -> Artifacts:
        """Tune the encoder on train, then as `fit`.

        Raises:
            MissingExtra: without torch or sentence-transformers.
            ConfigError: if the encoder cannot be tuned, or there is nothing to train on.
        """
        from toolscout.training.biencoders import Texts, Triplets

        encoder = require_tunable(workspace.load_encoder())
        described = encoders.load(DESCRIBED, workspace.settings)
        study = Study(workspace, lesson, options, described)
        tower = make_tower(encoder, options)
        tokens = tower.tokens(study.texts, "query")
        texts = Texts(
            tower=tower,
            queries=tokens[: study.n_train],
            tools=[],
            gold=study.gold[: study.n_train],
            dev=[],
            judge=lambda cosines: {},
            identity=digest("tool2vec-tuned/1", [encoder.fingerprint, lesson.fingerprint, options]),
            hold=options.hold,
        )
        done = train_task(workspace, options, Triplets(texts, options.margin), tower)
        workspace.say("encoding the queries")
        return _fit_means(
            study,
            tower.vectors(tokens),
            encoder=described,
            values=describe_training(done),
            seconds_before=done.earlier,
            files=save_encoder(tower.model),
        )


def _fit_means(study: Study, rows: Vectors, **more: Any) -> Artifacts:
    """Take means and choose on dev; `rows` are those of the queries of the study."""
    options = study.options
    study.workspace.say("taking means and choosing on dev")
    means, used = _means(study, rows, study.n_train)
    cosines = rows[study.n_train :] @ means.T

    def shares(beta: float) -> Scores:
        return _shares(cosines, used, beta)

    beta = options.beta
    if beta is None:
        beta = best(SHARPEST, lambda each: study.likelihood(shares(each)))
    chosen, figures = study.choose_mix(shares(beta))
    sums = _sums(study, rows, study.n_kept)
    means, lengths = unit_rows(sums), np.sqrt(np.einsum("nd,nd->n", sums, sums))
    return Artifacts(
        {"means": means, "lengths": lengths, "uses": study.uses(study.n_kept)},
        metrics=figures,
        chosen=keep_unset(options, {"beta": beta, **chosen}),
        refit=options.refit,
        **more,
    )
