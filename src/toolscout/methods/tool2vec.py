"""Tool2Vec (arXiv:2409.02141): the vector of a tool is the mean of the vectors of the queries that used it.

The encoder stays as it is; a tuned one can be given. The paper ranks by the cosine with that mean; here a softmax over
it is the usage side of `methods.usage`, so that tools without usage are found by their description.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.encoders import Vectors, unit_rows
from toolscout.methods import Fitting, Parts
from toolscout.methods.usage import Floats, Rows, Study, best, picked, softmax, stage
from toolscout.pipeline import Stage

__all__ = ["Options", "fit", "make"]

SHARPEST: Final = (5.0, 10.0, 20.0, 40.0, 80.0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `tool2vec`.

    Attributes:
        beta: what a cosine with a mean is multiplied with before the softmax; None: the likeliest on dev.
        sharpness: the same for description scores.
        kappa: so many training queries count as much as a description.
        agreement: how much a tool with usage must fit by its description too.
        novelty: how much the description of a tool without usage counts.
    """

    beta: float | None = None
    sharpness: float | None = None
    kappa: float | None = None
    agreement: float | None = None
    novelty: float | None = None


def fit(job: Fitting) -> None:
    """Take means over train, choose on dev, take means over both."""
    encoder = job.loaded()
    study = Study(job, encoder)
    job.say("taking means and choosing on dev")
    means, used = _means(study, study.n_train)
    cosines = study.rows[study.n_train :] @ means.T

    def shares(beta: float) -> Floats:
        return _shares(cosines, used, beta)

    beta = job.options.beta
    if beta is None:
        beta = best(SHARPEST, lambda each: study.likelihood(shares(each)))
    chosen, figures = study.joined(shares(beta))
    means, _ = _means(study, len(study.ids))
    job.save(
        {"means": means, "uses": study.uses(len(study.ids))},
        metrics=figures,
        encoder=encoder,
        chosen=picked(job.options, {"beta": beta, **chosen}),
        refit=True,
    )


def _means(study: Study, n: int) -> tuple[Vectors, npt.NDArray[np.bool_]]:
    """The unit mean of the first `n` queries that use each tool, `(tools, dim)`, and which tools have one."""
    sums = np.zeros((len(study.job.tools), study.rows.shape[1]), dtype=np.float32)
    for row, gold in zip(study.rows[:n], study.gold[:n], strict=True):
        sums[gold] += row
    return unit_rows(sums), study.uses(n) > 0


def _shares(cosines: Floats, used: npt.NDArray[np.bool_], beta: float) -> Floats:
    return softmax(np.where(used, beta * cosines, -np.inf))


def make(parts: Parts, settings: Mapping[str, Any]) -> Stage:
    """The pipeline over a catalogue."""
    encoder = parts.loaded()
    model = parts.load(encoder=encoder)
    means, used = model.arrays["means"], model.arrays["uses"] > 0
    beta = model.manifest.settings["beta"].value

    def usage(text: str, row: Rows) -> Floats:
        if not row.any():
            return np.zeros(len(means))
        return _shares(np.einsum("nd,d->n", means, row), used, beta)

    return stage(parts, model, encoder, usage, "tool2vec")
