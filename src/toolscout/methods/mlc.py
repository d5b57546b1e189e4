"""MLC (arXiv:2409.02141): a fine-tuned encoder under a linear layer, which says of every tool whether a query needs it.

Beside the tools, the sets of tools that training queries needed are classes too (`methods.sets`). Both are the usage
side of `methods.usage`, with the bundled encoder and words for the descriptions, so that a tool without usage is found.
The paper has the layer over the tools alone, and ranks by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np

from toolscout import encoders
from toolscout.encoders.transformer import TransformerEncoder
from toolscout.methods import Fitting, Parts
from toolscout.methods.shared.tool_sets import WEIGHTS, Sets
from toolscout.methods.shared.tuning import (
    FOLDER,
    Amount,
    Batch,
    Count,
    Positive,
    Share,
    Whole,
    about,
    kept,
    tower_of,
    trained,
    tunable,
)
from toolscout.methods.shared.usage import DESCRIBED, Floats, Rows, Study, TunedBlend, best, picked, softmax, stage
from toolscout.search.pipeline import Stage
from toolscout.types import digest

__all__ = ["Options", "fit", "make"]

SCALE: Final = 20.0


class Options(TunedBlend, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit.

    Attributes:
        loss: of the tools: list-wise `softmax`, or `binary` cross-entropy as published.
        start: the layer starts at the mean of the queries that used each tool (`usage`), or at `zeros`.
        sets: weight of the sets of tools; None: the best on dev; 0: they are not learned.
        fast: the layer learns so many times as fast.
        patience: epochs without a better dev before it stops.
        thinned: share of a query's tokens that are left out at random in training.
        hold: tokens of a step that are held with their graph; gradients of larger steps are cached.
    """

    loss: Literal["softmax", "binary"] = "softmax"
    start: Literal["usage", "zeros"] = "usage"
    sets: Amount | None = None
    epochs: Count = 6
    batch: Batch = 128
    rate: Positive = 2e-4
    fast: Positive = 10.0
    patience: Count = 2
    thinned: Share = 0.1
    hold: Whole = 32_768
    novelty: Amount = 0.5


def fit(job: Fitting) -> None:
    """Tune the job's encoder under the layers, keep the epoch that is best on dev, and choose the blend there.

    Raises:
        MissingExtra: without torch or sentence-transformers.
        ConfigError: if the encoder cannot be tuned, or there is nothing to train on.
    """
    from toolscout.training.classifiers import Classifier, Heads, Tuning

    options: Options = job.options
    encoder = tunable(job.loaded())
    tower = tower_of(encoder, options)
    described = encoders.load(DESCRIBED, job.settings)
    study = Study(job, described)
    n = study.n_train
    tokens = tower.tokens(study.texts, "query")
    gold = np.zeros((n, len(job.tools)), dtype=np.bool_)
    for row, tools in zip(gold, study.gold[:n], strict=True):
        row[tools] = True
    sets, set_of = Sets.among(study.gold[:n])
    learned = bool(len(sets)) and options.sets != 0
    heads = Heads(encoder.dim, {"tools": len(job.tools), **({"sets": len(sets)} if learned else {})}, SCALE)
    if options.start == "usage":
        job.say("starting the layer at the mean of the queries that used each tool")
        rows = tower.vectors(tokens[:n])
        heads.start(rows, gold, "tools")
        if learned:
            heads.start(rows, set_of[:, None] == np.arange(len(sets)), "sets")

    def usage(weight: float) -> Floats:
        found = task.shares(tokens[n:])
        return sets.join(found["tools"], found["sets"], weight) if learned else found["tools"]

    task = Classifier(
        tower,
        heads,
        queries=tokens[:n],
        gold=gold,
        set_of=set_of if learned else None,
        judge=lambda: study.judge(usage(1.0 if options.sets is None else options.sets)),
        identity=digest("mlc/1", [encoder.fingerprint, job.data.fingerprint, options]),
        tuning=Tuning(loss=options.loss, fast=options.fast, thinned=options.thinned, hold=options.hold),
    )
    done = trained(job, task, tower)
    weights = (options.sets,) if options.sets is not None else WEIGHTS if learned else WEIGHTS[:1]
    weight = best(weights, lambda each: study.quality(usage(each)))
    chosen, figures = study.joined(usage(weight))
    job.save(
        {
            **{name: value.detach().cpu().numpy() for name, value in heads.layers.state_dict().items()},
            **(sets.arrays() if learned else {}),
            "uses": study.uses(n),
        },
        metrics=figures,
        encoder=described,
        chosen=picked(options, {"sets": weight, **chosen}),
        values=about(done),
        earlier=done.earlier,
        files=kept(tower.model),
    )


def make(parts: Parts, settings: Mapping[str, Any]) -> Stage:
    """The pipeline over a catalogue."""
    described = encoders.load(DESCRIBED, parts.settings)
    model = parts.load(encoder=described)
    tuned = TransformerEncoder(str(model.folder / FOLDER))
    arrays, options = model.arrays, model.manifest.settings
    sets = Sets.of_arrays(arrays) if "sets.indptr" in arrays else None

    def logits(name: str, row: Rows) -> Floats:
        found = np.einsum("nd,d->n", arrays[f"{name}.weight"], row) + arrays[f"{name}.bias"]
        return np.asarray(SCALE * found.astype(np.float64))

    def usage(text: str, row: Rows) -> Floats:
        if options["loss"].value == "softmax":
            tools = softmax(logits("tools", row))
        else:
            tools = 1 / (1 + np.exp(-logits("tools", row)))
            tools /= tools.sum()
        if sets is None:
            return tools
        shares: Floats = sets.join(tools[None], softmax(logits("sets", row))[None], options["sets"].value)[0]
        return shares

    return stage(parts, model, described, usage, "mlc", own=tuned.encode)
