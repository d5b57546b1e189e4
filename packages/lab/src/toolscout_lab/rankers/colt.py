"""COLT (arXiv:2405.16089): graphs of tools that queries need together refine the vectors of a fine-tuned encoder.

Stage 1 is another recipe (`base`). Its encoder gives the first vectors of queries and tools. Stage 2 turns the vectors
of tools and training queries into free parameters. The tools of a query form its scene; vectors propagate along
query-scene and query-tool edges (`training.collaboration`). A later query has no edges: both views use its vector from
the encoder, so the score (eq. 7) is twice its cosine with the tool. A tool that no training query used keeps the
encoder's vector of its text, and never serves as a negative.

The paper picks the epoch on its test queries; we pick it on dev.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from toolscout.arrays import Vectors
from toolscout.encoders import unit_rows
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.rankers import Amount, Artifacts
from toolscout.rankers.lesson import Lesson
from toolscout.search.pipeline import DEPTH, Retrieve, Stage
from toolscout.search.resources import Resources
from toolscout.types import digest
from toolscout_lab.rankers import LabMethod, dpr
from toolscout_lab.rankers.dpr import FittedEncoder
from toolscout_lab.rankers.shared.novelty import choose_margin, demote_new_tools
from toolscout_lab.rankers.shared.tool_rows import EncodedLesson, index_rows, load_tool_rows
from toolscout_lab.rankers.shared.tuning import (
    ENCODER_FOLDER,
    Graphs,
    describe_training,
    require_tunable,
    save_encoder,
    train_task,
)

__all__ = ["Colt", "ColtOptions"]

UNTUNED_TOOL_TOKENS: Final = 64  # cut of tool texts where the encoder was not tuned


class ColtOptions(Graphs, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit. The defaults come from the released code; λ and τ were chosen on dev in the paper's grids.

    Attributes:
        base: the recipe with the encoder of stage 1; None: the encoder before any training on the data.
        collaborative: whether there is a stage 2.
        margin: cosine by which a tool that training did not use must be nearer; None: the best on dev (see
            `rankers.shared.novelty`).
    """

    base: str | None = "dpr-inbatch"
    collaborative: bool = True
    margin: Amount | None = None


def _load_stage_one(resources: Resources, lesson: Lesson) -> FittedEncoder:
    if lesson.base is None:
        return FittedEncoder(require_tunable(resources.load_encoder()).name, UNTUNED_TOOL_TOKENS)
    return dpr.load_base_encoder(lesson.base)


class Colt(LabMethod):
    """Tunes vectors of tools over graphs of tools that were needed together."""

    options_type = ColtOptions
    base = dpr.TUNES_ENCODER

    def fit(self, resources: Resources, lesson: Lesson, options: ColtOptions) -> Artifacts:
        """Encode with stage 1, then train stage 2 over its vectors.

        Raises:
            MissingExtra: without torch.
            ConfigError: if there is nothing to train on.
        """
        from toolscout_lab.training.collaboration import Collaboration

        encoder = _load_stage_one(resources, lesson)
        data = EncodedLesson.encode(resources, lesson, encoder)
        tools = data.tools

        def evaluate(rows: Vectors) -> dict[str, float]:
            cosines = data.dev @ unit_rows(rows).T
            return lesson.evaluate(dpr.rank_nearest(cosines, lesson.dev, lesson.tools)).means()

        values: dict[str, Any] = {"stage_one": evaluate(tools), "tool_length": encoder.tool_length}
        earlier = 0.0
        if options.collaborative:
            task = Collaboration(
                queries=data.train,
                tools=tools,
                gold=data.gold,
                scene_of=data.scene_of,
                evaluate=evaluate,
                shape=options,
                identity=digest("colt/1", [encoder.fingerprint, lesson.fingerprint, options]),
            )
            done = train_task(resources, options, task, warmup=0.0, schedule="constant", clip=float("inf"))
            tools = data.replace_used(task.tool_rows())
            values |= describe_training(done)
            earlier = done.earlier
        chosen, figures = choose_margin(lesson, data.dev @ tools.T, data.used, options.margin)
        return Artifacts(
            {"tools": tools, "used": data.used},
            metrics=figures,
            chosen={"margin": chosen} if options.margin is None else {},
            values=values,
            seconds_before=earlier,
            files=save_encoder(encoder.model),
        )

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build the search for the tools nearest to the query."""
        encoder = FittedEncoder(model.folder / ENCODER_FOLDER, model.manifest.values["tool_length"])
        index = index_rows(catalogue, load_tool_rows(catalogue, model, encoder))
        encode = functools.partial(encoder.encode, kind="query")
        stage = Retrieve(index, label="colt", encode=encode, mask=catalogue.mask, depth=DEPTH)
        return demote_new_tools(stage, catalogue, model)
