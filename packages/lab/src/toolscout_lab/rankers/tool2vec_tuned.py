"""Tool2Vec (arXiv:2409.02141) over an encoder that is tuned with a triplet loss.

A query must be nearer to one that shares a tool with it than to one that shares none. Both are drawn from the batch,
which is our own way, or mined among the nearest queries, as in the paper's released code (`mined`).
"""

from __future__ import annotations

from toolscout import encoders
from toolscout.arrays import Arrays
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.rankers import Amount, Artifacts, Batch, Count, NonNegative, Positive
from toolscout.rankers.declared import ArrayRule, ModelDeclaration
from toolscout.rankers.lesson import Lesson
from toolscout.rankers.shared.usage import DESCRIPTION_ENCODER, FittedUsage, build_usage_stage
from toolscout.rankers.shared.usage_fit import FitData, read_settings, select_unset
from toolscout.rankers.tool2vec import Tool2Vec, estimate_means
from toolscout.search.pipeline import Stage
from toolscout.search.resources import Resources
from toolscout.types import digest
from toolscout_lab.encoders.transformer import TransformerEncoder
from toolscout_lab.rankers.shared.tuning import (
    ENCODER_FOLDER,
    TunedBlend,
    describe_training,
    make_tower,
    require_tunable,
    save_encoder,
    train_task,
)

__all__ = ["Tool2VecTuned", "Tool2VecTunedOptions"]


class Tool2VecTunedOptions(TunedBlend, frozen=True, forbid_unknown_fields=True):
    """Settings of `tool2vec-tuned`, for the tuning and for the means.

    Attributes:
        beta: as in `Tool2VecOptions`.
        refit: as in `Blend`.
        epochs: epochs of the tuning; one in the paper.
        margin: cosine by which the query that shares a tool must be nearer.
        mined: nearest queries of each query among which its triplets are mined; 0: triplets are drawn from the batch.
        each: the most mined queries that share a tool, and the most that share none.
        hold: maximum tokens of a step in memory with their graph; larger steps cache gradients.
    """

    beta: Positive | None = None
    novelty: Amount = 0.6
    refit: bool = True
    epochs: Count = 1
    batch: Batch = 128
    rate: Positive = 5e-5
    margin: Positive = 0.3
    mined: NonNegative = 0
    each: Count = 5
    hold: NonNegative = 32_768


class Tool2VecTuned(Tool2Vec):
    """Tunes the encoder, then represents a tool by the mean vector of the queries that used it."""

    options_type = Tool2VecTunedOptions

    def fit(self, resources: Resources, lesson: Lesson, options: Tool2VecTunedOptions) -> Artifacts:
        """Tune the encoder on train, then continue as `Tool2Vec.fit`.

        Raises:
            MissingExtra: without torch or sentence-transformers.
            ConfigError: if the encoder cannot be tuned, or there is nothing to train on.
        """
        from toolscout_lab.training.biencoders import MinedTriplets, Texts, Triplets

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
        task = (
            MinedTriplets(texts, options.margin, nearest=options.mined, each=options.each)
            if options.mined
            else Triplets(texts, options.margin)
        )
        done = train_task(resources, options, task, tower)
        resources.say("encoding the queries")
        estimate = estimate_means(data, tower.vectors(tokens))
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

    def declare_usage(self, arrays: Arrays) -> ModelDeclaration:
        """Declare the means, which have the width of the tuned encoder."""
        rules, settings = super().declare_usage(arrays)
        return ModelDeclaration({**rules, "means": ArrayRule("tools width")}, settings)

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build the pipeline over a catalogue. It learns new queries only in the next fit: its encoder is slow."""
        description_encoder = encoders.load(DESCRIPTION_ENCODER, resources.settings)
        model.check_encoder(description_encoder)
        model.check_catalogue(catalogue.tools())
        usage = self.load_usage(model.arrays, read_settings(model), description_encoder.encode).usage
        tuned = TransformerEncoder(str(model.folder / ENCODER_FOLDER))
        learned = FittedUsage(usage, encode=tuned.encode)
        return build_usage_stage(resources, catalogue, model, description_encoder, learned, label=self.label)
