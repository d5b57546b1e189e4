"""MLC (arXiv:2409.02141): a linear layer over a fine-tuned encoder estimates for every tool whether a query needs it.

The sets of tools that training queries needed are classes too (`rankers.shared.sparse_features`). Both give the usage
side of `rankers.shared.usage`. The bundled encoder and words give the description side, which ranks tools without
usage. The paper has the layer over the tools alone, and ranks by it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from toolscout import encoders
from toolscout.arrays import Arrays, Scores, Vectors
from toolscout.encoders import Encoder
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.rankers import (
    Artifacts,
    BaseRule,
    Count,
)
from toolscout.rankers.declared import ArrayRule, ModelDeclaration
from toolscout.rankers.lesson import Lesson
from toolscout.rankers.shared.dev_choice import choose_best
from toolscout.rankers.shared.sparse_features import SET_RULES, SET_WEIGHT_GRID, ToolSets
from toolscout.rankers.shared.usage import (
    DESCRIPTION_ENCODER,
    FittedUsage,
    Usage,
    build_usage_stage,
    softmax,
)
from toolscout.rankers.shared.usage_fit import MIX_SETTINGS, FitData, select_unset
from toolscout.search.pipeline import Stage
from toolscout.search.resources import Resources
from toolscout.types import digest
from toolscout_lab.encoders.transformer import TransformerEncoder
from toolscout_lab.rankers import LabMethod
from toolscout_lab.rankers.dpr import TUNES_ENCODER
from toolscout_lab.rankers.shared.tuning import (
    ENCODER_FOLDER,
    MlcOptions,
    describe_training,
    make_tower,
    require_tunable,
    save_encoder,
    train_task,
)

__all__ = ["Mlc", "MlcOnBase", "MlcOnBaseOptions", "load_classifier"]

LOGIT_SCALE: Final = 20.0


class MlcOnBaseOptions(MlcOptions, frozen=True, forbid_unknown_fields=True):
    """Settings of `mlc-dpr`.

    Attributes:
        base: the recipe whose encoder is tuned further.
    """

    base: str = "dpr"
    epochs: Count = 4


class Mlc(LabMethod):
    """Tunes an encoder under a classifier of tools and of sets of tools."""

    options_type = MlcOptions
    transfers = False

    def fit(self, resources: Resources, lesson: Lesson, options: MlcOptions) -> Artifacts:
        """Tune the encoder under the layers, keep the best epoch on dev, and choose the blend there.

        Raises:
            MissingExtra: without torch or sentence-transformers.
            ConfigError: if the encoder cannot be tuned, or there is nothing to train on.
        """
        from toolscout_lab.training.classifiers import Classifier, Heads

        encoder = require_tunable(self._load_start(resources, lesson))
        tower = make_tower(encoder, options)
        description_encoder = encoders.load(DESCRIPTION_ENCODER, resources.settings)
        data = FitData(resources, lesson, options, description_encoder)
        n = data.n_train
        tokens = tower.tokens(data.texts, "query")
        gold = np.zeros((n, len(lesson.tools)), dtype=np.bool_)
        for row, tools in zip(gold, data.gold[:n], strict=True):
            row[tools] = True
        sets, set_of = ToolSets.group(data.gold[:n])
        learns_sets = bool(len(sets)) and options.sets != 0
        heads = Heads(
            encoder.dim, {"tools": len(lesson.tools), **({"sets": len(sets)} if learns_sets else {})}, LOGIT_SCALE
        )
        if options.start == "usage":
            resources.say("starting the layer at the mean of the queries that used each tool")
            rows = tower.vectors(tokens[:n])
            heads.start(rows, gold, "tools")
            if learns_sets:
                heads.start(rows, set_of[:, None] == np.arange(len(sets)), "sets")

        def usage(weight: float) -> Scores:
            probabilities = task.probabilities(tokens[n:])
            if not learns_sets:
                return probabilities["tools"]
            return sets.join(probabilities["tools"], probabilities["sets"], weight)

        task = Classifier(
            tower,
            heads,
            queries=tokens[:n],
            gold=gold,
            set_of=set_of if learns_sets else None,
            evaluate=lambda: data.evaluate(usage(1.0 if options.sets is None else options.sets)),
            identity=digest("mlc/1", [encoder.fingerprint, lesson.fingerprint, options]),
            tuning=options,
        )
        done = train_task(resources, options, task, tower)
        grid = SET_WEIGHT_GRID if learns_sets else SET_WEIGHT_GRID[:1]
        weights = grid if options.sets is None else (options.sets,)
        weight = choose_best(weights, lambda tried: data.quality(usage(tried)))
        chosen, scores = data.choose_mix(usage(weight))
        write_encoder = save_encoder(tower.model)

        def write_files(folder: Path) -> None:
            if lesson.base is not None:
                lesson.base.save(folder)
            write_encoder(folder)

        return Artifacts(
            {
                **{name: value.detach().cpu().numpy() for name, value in heads.layers.state_dict().items()},
                **(sets.arrays() if learns_sets else {}),
                "uses": data.uses(n),
            },
            metrics=data.evaluate(scores),
            encoder=description_encoder,
            chosen=select_unset(options, {"sets": weight, **chosen}),
            values=describe_training(done),
            seconds_before=done.earlier,
            files=write_files,
        )

    def _load_start(self, resources: Resources, lesson: Lesson) -> Encoder:
        """Load the encoder to tune."""
        return resources.load_encoder()

    def declare(self, options: MlcOptions, arrays: Arrays) -> ModelDeclaration:
        """Return what a model has: the classifier over tools, and the one over sets if it learned them."""
        rules = {"uses": ArrayRule("tools"), "tools.weight": ArrayRule("tools width"), "tools.bias": ArrayRule("tools")}
        if "sets.indptr" in arrays:
            rules |= {**SET_RULES, "sets.weight": ArrayRule("sets width"), "sets.bias": ArrayRule("sets")}
        return ModelDeclaration(rules, (*MIX_SETTINGS, "sets"))

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build the pipeline over a catalogue."""
        description_encoder = encoders.load(DESCRIPTION_ENCODER, resources.settings)
        model.check_encoder(description_encoder)
        model.check_catalogue(catalogue.tools())
        tuned = TransformerEncoder(str(model.folder / ENCODER_FOLDER))
        learned = FittedUsage(load_classifier(model), encode=tuned.encode)
        return build_usage_stage(resources, catalogue, model, description_encoder, learned, label="mlc")


class MlcOnBase(Mlc):
    """Tunes the encoder of another recipe further, under the same classifier."""

    options_type = MlcOnBaseOptions
    base: BaseRule | None = TUNES_ENCODER

    def _load_start(self, resources: Resources, lesson: Lesson) -> Encoder:
        """Load the encoder that the base tuned."""
        assert lesson.base is not None and lesson.base.model is not None
        return TransformerEncoder(str(lesson.base.model.folder / ENCODER_FOLDER))


def load_classifier(model: Model) -> Usage:
    """Load the classifier of a model: (query, its vector by the encoder of the model) → probability of each tool."""
    arrays, settings = model.arrays, model.manifest.settings
    sets = ToolSets.from_arrays(arrays) if "sets.indptr" in arrays else None

    def logits(name: str, row: Vectors) -> Scores:
        products = np.einsum("nd,d->n", arrays[f"{name}.weight"], row) + arrays[f"{name}.bias"]
        return np.asarray(LOGIT_SCALE * products.astype(np.float64))

    def usage(text: str, row: Vectors) -> Scores:
        """Estimate the probability that each tool is needed. If sets of tools were learned, they take part in it.

        Args:
            text: unused; a `Usage` has it for methods that read words.
            row: vector of the query.
        """
        if settings["loss"].value == "softmax":
            tools = softmax(logits("tools", row))
        else:
            tools = 1 / (1 + np.exp(-logits("tools", row)))
            tools /= tools.sum()
        if sets is None:
            return tools
        set_probabilities, set_weight = softmax(logits("sets", row)), settings["sets"].value  # weight in the mean
        probabilities: Scores = sets.join(tools[None], set_probabilities[None], set_weight)[0]
        return probabilities

    return usage
