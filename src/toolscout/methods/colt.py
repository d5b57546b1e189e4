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
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from toolscout.encoders import Vectors, unit_rows
from toolscout.indexes import top_k
from toolscout.indexes.exact import Exact
from toolscout.methods import Fitting, Parts, dpr
from toolscout.methods.dpr import FittedEncoder
from toolscout.methods.shared.novelty import behind, margin
from toolscout.methods.shared.tool_sets import Sets
from toolscout.methods.shared.tuning import FOLDER, Amount, Graphs, about, kept, trained, tunable
from toolscout.search.fusion import DEPTH
from toolscout.search.pipeline import Retrieve, Stage
from toolscout.types import Tool, digest, render

__all__ = ["Options", "fit", "make"]

OVER: Final = dpr.BRINGS
TOOL_LENGTH: Final = 64


class Options(Graphs, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit; the defaults are those of the released code, λ and τ chosen on dev in the paper's grids.

    Attributes:
        base: the recipe whose encoder stage 1 is; None: the encoder as it was before any training on the data.
        collaborative: whether there is a stage 2.
        margin: by how much nearer a tool that training did not use must be, in cosine; None: the best on dev (see
            `methods.novelty`).
    """

    base: str | None = "dpr-inbatch"
    collaborative: bool = True
    margin: Amount | None = None


def fit(job: Fitting) -> None:
    """Take the vectors of stage 1, and train stage 2 over them.

    Raises:
        MissingExtra: without torch.
        ConfigError: if there is nothing to train on.
    """
    from toolscout.training.collaboration import Collaboration, Shape

    options: Options = job.options
    encoder = _stage_one(job)
    place = {tool.id: number for number, tool in enumerate(job.tools)}
    gold = [np.array(sorted(place[tool] for tool in tools), dtype=np.intp) for tools in job.train.values()]
    job.say("encoding queries and tools")
    queries, tools = job.query_rows(encoder, [*job.train, *job.dev]), job.tool_rows(encoder, dpr.STYLE)
    used = np.zeros(len(tools), dtype=np.bool_)
    used[np.concatenate(gold)] = True
    _, scene_of = Sets.among(gold)

    def judge(rows: Vectors) -> dict[str, float]:
        cosines = queries[len(gold) :] @ unit_rows(rows).T
        found = zip(job.dev, cosines, strict=True)
        return job.judge({query: [job.tools[number].id for number in top_k(row, 10)] for query, row in found})

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
            identity=digest("colt/1", [encoder.fingerprint, job.data.fingerprint, options]),
        )
        done = trained(job, task, warmup=0.0, schedule="constant", clip=float("inf"))
        tools = np.where(used[:, None], unit_rows(task.tool_rows()), tools)
        values |= about(done)
        earlier = done.earlier
    chosen, figures = margin(job, queries[len(gold) :] @ tools.T, used, options.margin)
    job.save(
        {"tools": tools, "used": used},
        metrics=figures,
        chosen={"margin": chosen} if options.margin is None else {},
        values=values,
        earlier=earlier,
        files=kept(encoder.model),
    )


def _stage_one(job: Fitting) -> FittedEncoder:
    if job.base is None:
        return FittedEncoder(tunable(job.loaded()).name, TOOL_LENGTH)
    return dpr.encoder_of_base(job.base)


def make(parts: Parts, settings: Mapping[str, Any]) -> Stage:
    """The tools nearest to the encoder's vector of the query."""
    model = parts.load(bound=False)
    encoder = FittedEncoder(model.folder / FOLDER, model.manifest.values["tool_length"])
    tools: list[Tool] = parts.catalogue.tools()
    places = model.places(tools)
    known = np.flatnonzero(places >= 0)
    rows = np.empty((len(tools), encoder.dim), dtype=np.float32)
    rows[known] = model.arrays["tools"][places[known]]
    new = np.flatnonzero(places < 0)
    rows[new] = encoder.encode([render(tools[number], dpr.STYLE) for number in new], "tool")
    index = Exact(encoder.dim)
    index.upsert(parts.catalogue.ids, rows)
    encode = functools.partial(encoder.encode, kind="query")
    found = Retrieve(index, label="colt", encode=encode, mask=parts.catalogue.mask, depth=DEPTH)
    return behind(found, parts, model)
