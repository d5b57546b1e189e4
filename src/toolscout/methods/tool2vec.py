"""Tool2Vec (arXiv:2409.02141): the vector of a tool is the mean of the vectors of the queries that used it.

The encoder stays as it is, or is tuned first with a triplet loss (`tool2vec-tuned`), as in the paper: a query is to be
nearer to one that shares a tool with it than to one that shares none. The paper ranks by the cosine with the mean; here
a softmax over it is the usage side of `methods.usage`, so that tools without usage are found by their description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolscout import encoders
from toolscout.encoders import Vectors, unit_rows
from toolscout.encoders.transformer import TransformerEncoder
from toolscout.methods import Fitting, Parts
from toolscout.methods.shared.tuning import (
    FOLDER,
    Amount,
    Batch,
    Count,
    Positive,
    Whole,
    about,
    kept,
    tower_of,
    trained,
    tunable,
)
from toolscout.methods.shared.usage import (
    DESCRIBED,
    Blend,
    Floats,
    Rows,
    Study,
    TunedBlend,
    Usage,
    best,
    picked,
    softmax,
    stage,
)
from toolscout.search.pipeline import Stage
from toolscout.types import digest

__all__ = ["Options", "TunedOptions", "fit", "fit_tuned", "make"]

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


def fit(job: Fitting) -> None:
    """Take means over train, choose on dev, take means over both (over train again without `refit`)."""
    encoder = job.loaded()
    study = Study(job, encoder)
    _fit(job, study, study.rows, encoder=encoder)


def fit_tuned(job: Fitting) -> None:
    """Tune the encoder on train, then as `fit`.

    Raises:
        MissingExtra: without torch or sentence-transformers.
        ConfigError: if the encoder cannot be tuned, or there is nothing to train on.
    """
    from toolscout.training.biencoders import Texts, Triplets

    options: TunedOptions = job.options
    encoder = tunable(job.loaded())
    described = encoders.load(DESCRIBED, job.settings)
    study = Study(job, described)
    tower = tower_of(encoder, options)
    tokens = tower.tokens(study.texts, "query")
    texts = Texts(
        tower=tower,
        queries=tokens[: study.n_train],
        tools=[],
        gold=study.gold[: study.n_train],
        dev=[],
        judge=lambda cosines: {},
        identity=digest("tool2vec-tuned/1", [encoder.fingerprint, job.data.fingerprint, options]),
        hold=options.hold,
    )
    done = trained(job, Triplets(texts, options.margin), tower)
    job.say("encoding the queries")
    _fit(
        job,
        study,
        tower.vectors(tokens),
        encoder=described,
        values=about(done),
        earlier=done.earlier,
        files=kept(tower.model),
    )


def _fit(job: Fitting, study: Study, rows: Rows, **more: Any) -> None:
    """Choose on dev and save; `rows` are those of the queries of the study."""
    job.say("taking means and choosing on dev")
    means, used = _means(study, rows, study.n_train)
    cosines = rows[study.n_train :] @ means.T

    def shares(beta: float) -> Floats:
        return _shares(cosines, used, beta)

    beta = job.options.beta
    if beta is None:
        beta = best(SHARPEST, lambda each: study.likelihood(shares(each)))
    chosen, figures = study.joined(shares(beta))
    sums = _sums(study, rows, study.n_kept)
    means, lengths = unit_rows(sums), np.sqrt(np.einsum("nd,nd->n", sums, sums))
    job.save(
        {"means": means, "lengths": lengths, "uses": study.uses(study.n_kept)},
        metrics=figures,
        chosen=picked(job.options, {"beta": beta, **chosen}),
        refit=job.options.refit,
        **more,
    )


def _means(study: Study, rows: Rows, n: int) -> tuple[Vectors, npt.NDArray[np.bool_]]:
    """The unit mean of the first `n` queries that use each tool, `(tools, dim)`, and which tools have one."""
    return unit_rows(_sums(study, rows, n)), study.uses(n) > 0


def _sums(study: Study, rows: Rows, n: int) -> Rows:
    sums = np.zeros((len(study.job.tools), rows.shape[1]), dtype=np.float32)
    for row, gold in zip(rows[:n], study.gold[:n], strict=True):
        sums[gold] += row
    return sums


def _shares(cosines: Floats, used: npt.NDArray[np.bool_], beta: float) -> Floats:
    return softmax(np.where(used, beta * cosines, -np.inf))


def make(parts: Parts, settings: Mapping[str, Any]) -> Stage:
    """The pipeline over a catalogue."""
    tuned = parts.model is not None and (parts.model / FOLDER).is_dir()
    encoder = encoders.load(DESCRIBED, parts.settings) if tuned else parts.loaded()
    model = parts.load(encoder=encoder)
    means, used = model.arrays["means"], model.arrays["uses"] > 0
    beta = model.manifest.settings["beta"].value

    def usage(text: str, row: Rows) -> Floats:
        if not row.any():
            return np.zeros(len(means))
        return _shares(np.einsum("nd,d->n", means, row), used, beta)

    own = TransformerEncoder(str(model.folder / FOLDER)).encode if tuned else None

    def grow(texts: Sequence[str], new: Sequence[npt.NDArray[np.intp]], n_tools: int) -> Usage:
        sums = np.zeros((n_tools, means.shape[1]), dtype=np.float32)
        sums[: len(means)] = means * model.arrays["lengths"][:, None]
        for row, gold in zip(encoder.encode(texts, "query"), new, strict=True):
            sums[gold] += row
        grown, any_use = unit_rows(sums), np.concatenate([used, np.zeros(n_tools - len(used), dtype=np.bool_)])
        any_use[np.concatenate(new)] = True

        def usage(text: str, row: Rows) -> Floats:
            return _shares(np.einsum("nd,d->n", grown, row), any_use, beta) if row.any() else np.zeros(n_tools)

        return usage

    grows = grow if own is None and "lengths" in model.arrays else None  # a tuned encoder is too slow to grow by
    return stage(parts, model, encoder, usage, "tool2vec", own=own, grow=grows)
