"""COLT (arXiv:2405.16089): tools that are needed together learn from one another, over a fine-tuned encoder.

Stage 1 is another recipe (`base`), whose encoder gives the first vectors of queries and tools. Stage 2 makes the
vectors of tools, and of training queries, free parameters; a query belongs to the scene that is its set of tools, and
vectors flow along query-scene and query-tool edges (`training.graph`). A later query has no edges: its vector is that
of the encoder in both views, so that the score (eq. 7) is twice its cosine with the tool. A tool that no training query
used keeps the encoder's vector of its text, and is nobody's negative.

The paper's epoch was picked on its test queries; here it is picked on dev.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

from toolscout.arrays import Vectors
from toolscout.catalogue.store import Catalogue
from toolscout.encoders import unit_rows
from toolscout.indexes import top_k
from toolscout.indexes.exact import Exact
from toolscout.methods import Artifacts, BaseRule, dpr
from toolscout.methods.dpr import FittedEncoder
from toolscout.methods.lesson import Lesson
from toolscout.methods.shared.novelty import choose_margin, set_new_tools_back
from toolscout.methods.shared.tool_sets import Sets
from toolscout.methods.shared.tuning import (
    FOLDER,
    Amount,
    Graphs,
    describe_training,
    require_tunable,
    save_encoder,
    train_task,
)
from toolscout.models.model_store import Model
from toolscout.search.fusion import DEPTH
from toolscout.search.pipeline import Retrieve, Stage
from toolscout.types import Tool, digest, render
from toolscout.workspace import Workspace

__all__ = ["Colt", "Options"]

TOOL_LENGTH: Final = 64


class Options(Graphs, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit; the defaults are those of the released code, λ and τ chosen on dev in the paper's grids.

    Attributes:
        base: the recipe whose encoder stage 1 is; None: the encoder as it was before any training on the data.
        collaborative: whether there is a stage 2.
        margin: by how much nearer a tool that training did not use must be, in cosine; None: the best on dev (see
            `methods.shared.novelty`).
    """

    base: str | None = "dpr-inbatch"
    collaborative: bool = True
    margin: Amount | None = None


def _stage_one(workspace: Workspace, lesson: Lesson) -> FittedEncoder:
    if lesson.base is None:
        return FittedEncoder(require_tunable(workspace.load_encoder()).name, TOOL_LENGTH)
    return dpr.encoder_of_base(lesson.base)


class Colt:
    """Tunes vectors of tools over graphs of what was needed together."""

    options_type = Options
    needs_usage = True
    transfers = True
    abstains = False
    base: BaseRule | None = dpr.TUNES_ENCODER

    def fit(self, workspace: Workspace, lesson: Lesson, options: Options) -> Artifacts:
        """Take the vectors of stage 1, and train stage 2 over them.

        Raises:
            MissingExtra: without torch.
            ConfigError: if there is nothing to train on.
        """
        from toolscout.training.collaboration import Collaboration, Shape

        encoder = _stage_one(workspace, lesson)
        place = {tool.id: number for number, tool in enumerate(lesson.tools)}
        gold = [np.array(sorted(place[tool] for tool in tools), dtype=np.intp) for tools in lesson.train.values()]
        workspace.say("encoding queries and tools")
        queries = workspace.encode_queries(encoder, lesson.texts_of([*lesson.train, *lesson.dev]))
        tools = workspace.encode_tools(encoder, lesson.tools, dpr.STYLE)
        used = np.zeros(len(tools), dtype=np.bool_)
        used[np.concatenate(gold)] = True
        _, scene_of = Sets.among(gold)

        def judge(rows: Vectors) -> dict[str, float]:
            cosines = queries[len(gold) :] @ unit_rows(rows).T
            found = zip(lesson.dev, cosines, strict=True)
            rankings = {query: [lesson.tools[number].id for number in top_k(row, 10)] for query, row in found}
            return lesson.evaluate(rankings).means()

        values: dict[str, Any] = {"stage_one": judge(tools), "tool_length": encoder.tool_length}
        earlier = 0.0
        if options.collaborative:
            task = Collaboration(
                queries=queries[: len(gold)],
                tools=tools,
                gold=gold,
                scene_of=scene_of,
                judge=judge,
                shape=Shape(**{name: getattr(options, name) for name in Shape.__dataclass_fields__}),
                identity=digest("colt/1", [encoder.fingerprint, lesson.fingerprint, options]),
            )
            done = train_task(workspace, options, task, warmup=0.0, schedule="constant", clip=float("inf"))
            tools = np.where(used[:, None], unit_rows(task.tool_rows()), tools)
            values |= describe_training(done)
            earlier = done.earlier
        chosen, figures = choose_margin(lesson, queries[len(gold) :] @ tools.T, used, options.margin)
        return Artifacts(
            {"tools": tools, "used": used},
            metrics=figures,
            chosen={"margin": chosen} if options.margin is None else {},
            values=values,
            seconds_before=earlier,
            files=save_encoder(encoder.model),
        )

    def build(self, workspace: Workspace, catalogue: Catalogue, model: Model) -> Stage:
        """The tools nearest to the encoder's vector of the query."""
        encoder = FittedEncoder(model.folder / FOLDER, model.manifest.values["tool_length"])
        tools: list[Tool] = catalogue.tools()
        places = model.places(tools)
        known = np.flatnonzero(places >= 0)
        rows = np.empty((len(tools), encoder.dim), dtype=np.float32)
        rows[known] = model.arrays["tools"][places[known]]
        new = np.flatnonzero(places < 0)
        rows[new] = encoder.encode([render(tools[number], dpr.STYLE) for number in new], "tool")
        index = Exact(encoder.dim)
        index.upsert(catalogue.ids, rows)
        encode = functools.partial(encoder.encode, kind="query")
        found = Retrieve(index, label="colt", encode=encode, mask=catalogue.mask, depth=DEPTH)
        return set_new_tools_back(found, catalogue, model)
