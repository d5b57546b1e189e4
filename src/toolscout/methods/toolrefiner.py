"""ToolRefiner (arXiv:2409.02141): one look at a query and all its candidates together, each tool as a single vector.

Over any first stage (`base`). The query's tokens are followed by the vectors of the first N tools, projected to the
width of the encoder; each tool gets one logit, learned with a list-wise softmax. All tools have the same position, and
their order is shuffled in training, so that the order of the first stage cannot leak. A tool's vector is the mean of
the queries that used it, or that of its description; without usage it is always the description.

The paper orders by the logits alone. Here the first stage's score is added with a weight chosen on dev, which may be 0:
the greatest that is within a standard error of the best. And a tool that no training query needs keeps the place that
the first stage gave it (see `keep_places`): all that the logits could have learned is that it is never needed. With
`give_way` all such tools but the first let one more of the others pass: over a first stage that orders badly, where the
refiner brings what is needed to the top, they would crowd it out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np

from toolscout.arrays import Places, Vectors
from toolscout.catalogue.store import Catalogue
from toolscout.encoders import Encoder, unit_rows
from toolscout.encoders.transformer import TransformerEncoder
from toolscout.errors import ConfigError
from toolscout.methods import Artifacts, BaseRule
from toolscout.methods.lesson import Lesson
from toolscout.methods.shared.reranking import Ranked, keep_places, trust
from toolscout.methods.shared.tuning import (
    FOLDER,
    Amount,
    Batch,
    Count,
    Positive,
    Share,
    Tuning,
    describe_training,
    make_tower,
    require_tunable,
    save_encoder,
    train_task,
)
from toolscout.metrics import PerQuery
from toolscout.models.model_store import Model
from toolscout.search.fusion import DEPTH
from toolscout.search.pipeline import Rerank, Stage
from toolscout.types import Search, Tool, digest, render
from toolscout.workspace import BASE_FOLDER, Workspace

__all__ = ["Options", "ToolRefiner"]

REFINER_BLEND_GRID: Final = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
REFINER_STYLE: Final = "short"


class Options(Tuning, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit.

    Attributes:
        base: the recipe of the first stage.
        candidates: N, how many tools of the first stage are put in a new order; no search ranks more than 100.
        tool_vectors: the mean of the queries that used a tool (`usage`), or its `description`.
        start: the encoder to tune: that of the first stage, if it has one (`base`), or the one it began from.
        blend: weight of the first stage's score; None: chosen on dev (see `trust`).
        give_way: whether tools that no training query needs give way, all but the first (see `keep_places`). Dev shows
            only what this gains: none of its queries needs such a tool.
        part: share of the training queries that are used; for sweeps.
        fast: the new layers learn so many times as fast.
        patience: epochs without a better dev before it stops.
        thinned: share of a query's tokens that are left out at random in training.
    """

    base: str = "mlc"
    candidates: Annotated[int, msgspec.Meta(ge=2, le=DEPTH)] = 32
    tool_vectors: Literal["usage", "description"] = "usage"
    start: Literal["base", "encoder"] = "base"
    blend: Amount | None = None
    give_way: bool = False
    part: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    epochs: Count = 3
    batch: Batch = 64
    rate: Positive = 1e-4
    fast: Positive = 5.0
    patience: Count = 2
    thinned: Share = 0.1


def _of_base(lesson: Lesson) -> TransformerEncoder | None:
    """The encoder that the first stage brings; None: it has none of its own."""
    assert lesson.base is not None
    if lesson.base.model is None or not (lesson.base.model.folder / FOLDER).is_dir():
        return None
    return TransformerEncoder(str(lesson.base.model.folder / FOLDER))


def _vectors(
    workspace: Workspace, lesson: Lesson, encoder: Encoder, by_usage: bool, place: Mapping[str, int]
) -> Vectors:
    """(tools, dim) unit rows: what each tool is to the refiner."""
    described = workspace.encode_tools(encoder, lesson.tools, REFINER_STYLE)
    if not by_usage:
        return described
    sums, used = np.zeros_like(described), np.zeros(len(described), dtype=np.bool_)
    for row, tools in zip(
        workspace.encode_queries(encoder, lesson.texts_of(lesson.train)), lesson.train.values(), strict=True
    ):
        places = [place[tool] for tool in tools]
        sums[places] += row
        used[places] = True
    return np.where(used[:, None], unit_rows(sums), described)


def _known_or_described(workspace: Workspace, model: Model, tools: Sequence[Tool], places: Places) -> Vectors:
    """(tools, dim): as the model has them at these places, and by their description where it has not (-1)."""
    rows = model.arrays["tools"][np.maximum(places, 0)]
    new = np.flatnonzero(places < 0)
    if new.size:
        inside = model.folder / BASE_FOLDER / FOLDER
        encoder: Encoder = (
            TransformerEncoder(str(inside)) if model.manifest.encoder is None else workspace.load_encoder()
        )
        if model.manifest.encoder is not None:
            model.check_encoder(encoder)
        rows[new] = encoder.encode([render(tools[int(number)], REFINER_STYLE) for number in new], "tool")
    return rows


class ToolRefiner:
    """Reads the query with all first tools of another recipe together, and puts them in a new order."""

    options_type = Options
    needs_usage = True
    transfers = False
    abstains = False
    base: BaseRule | None = None

    def fit(self, workspace: Workspace, lesson: Lesson, options: Options) -> Artifacts:
        """Rank the queries with the first stage, tune the refiner on its first tools, and choose the blend on dev.

        Raises:
            MissingExtra: without torch or sentence-transformers.
            ConfigError: if the encoder cannot be tuned, or there is nothing to train on.
        """
        from toolscout.training.refiners import Refine, Refiner

        assert lesson.base is not None
        raw = require_tunable(workspace.load_encoder())
        own = _of_base(lesson)
        chosen = dict(itertools.islice(lesson.train.items(), math.ceil(options.part * len(lesson.train))))
        workspace.say(f"ranking {len(chosen) + len(lesson.dev):,} queries with {lesson.base.recipe}")
        place = {tool.id: number for number, tool in enumerate(lesson.tools)}
        learned, dev = (Ranked(lesson, qrels, options.candidates, place) for qrels in (chosen, lesson.dev))
        there = np.asarray(learned.gold.any(axis=1))
        if not there.any():
            raise ConfigError(
                f"none of the first {options.candidates} tools of {lesson.base.recipe} is needed by a training query. "
                "Set another base, or more candidates"
            )
        encoder = own or raw
        used = np.zeros(len(place), dtype=np.bool_)
        used[[place[tool] for tools in chosen.values() for tool in tools]] = True
        by_usage = options.tool_vectors == "usage"
        vectors = _vectors(workspace, lesson, encoder if by_usage else raw, by_usage, place)
        started = own if own is not None and options.start == "base" else raw
        tower = make_tower(started, options)
        refiner = Refiner(tower, vectors, workspace.seed)

        def score_blend(logs: Any, blend: float, give_way: bool = options.give_way) -> PerQuery:
            totals = logs + blend * dev.scores
            for row, tools in zip(totals, dev.candidates, strict=True):
                row[:] = keep_places(row, used[tools] & (tools >= 0), give_way)
            return lesson.evaluate(dev.rankings(totals, 0.0, [tool.id for tool in lesson.tools]))

        def choose(logs: Any) -> tuple[float, dict[str, float]]:
            found = {
                blend: score_blend(logs, blend)
                for blend in (REFINER_BLEND_GRID if options.blend is None else (options.blend,))
            }
            blend = trust(found)
            return blend, found[blend].means()

        dev_tokens = tower.tokens([lesson.texts[query] for query in lesson.dev], "query")
        tokens = tower.tokens([lesson.texts[query] for query in chosen], "query")
        task = Refine(
            refiner,
            queries=list(itertools.compress(tokens, there)),
            candidates=learned.candidates[there],
            gold=learned.gold[there],
            judge=lambda: choose(refiner.shares(dev_tokens, dev.candidates))[1],
            identity=digest("toolrefiner/1", [started.fingerprint, lesson.base.identity, lesson.fingerprint, options]),
            fast=options.fast,
            thinned=options.thinned,
        )
        done = train_task(workspace, options, task, tower)
        logs = refiner.shares(dev_tokens, dev.candidates)
        blend, figures = choose(logs)
        base = lesson.base

        def files(folder: Any) -> None:
            base.save(folder)
            save_encoder(tower.model)(folder)

        return Artifacts(
            {
                "tools": vectors,
                "used": used.astype(np.uint8),
                **{
                    f"project.{name}": each.detach().cpu().numpy()
                    for name, each in refiner.project.state_dict().items()
                },
                **{f"score.{name}": each.detach().cpu().numpy() for name, each in refiner.score.state_dict().items()},
            },
            metrics=figures,
            encoder=raw if own is None or options.tool_vectors == "description" else None,
            chosen={"blend": blend} if options.blend is None else {},
            values={
                "first_stage": score_blend(np.zeros(dev.scores.shape), 1.0, False).means(),
                "logits_alone": score_blend(logs, 0.0).means(),
                "keeping_places": score_blend(logs, blend, False).means(),
                "giving_way": score_blend(logs, blend, True).means(),
                **describe_training(done),
            },
            seconds_before=done.earlier,
            files=files,
        )

    def build(self, workspace: Workspace, catalogue: Catalogue, model: Model) -> Stage:
        """The first stage, and its first tools in a new order."""
        import torch

        from toolscout.training.refiners import Refiner
        from toolscout.training.towers import Tower

        settings = model.manifest.settings
        first = workspace.build_base(catalogue, model)
        tools: list[Tool] = catalogue.tools()
        place = {tool.id: number for number, tool in enumerate(tools)}
        known = model.places(tools)
        used = (known >= 0) & (model.arrays["used"][known] > 0)
        tower = Tower(TransformerEncoder(str(model.folder / FOLDER)).model, dropout=0.0, precision="float32")
        refiner = Refiner(tower, _known_or_described(workspace, model, tools, known))
        for name, layer in (("project", refiner.project), ("score", refiner.score)):
            layer.load_state_dict({key: torch.from_numpy(model.arrays[f"{name}.{key}"]) for key in ("weight", "bias")})
        refiner.eval()
        blend, give_way = settings["blend"].value, settings["give_way"].value

        def scorer(searches: Sequence[Search]) -> list[list[float]]:
            candidates = np.full(
                (len(searches), max((len(search.hits) for search in searches), default=0)), -1, dtype=np.intp
            )
            for row, search in zip(candidates, searches, strict=True):
                row[: len(search.hits)] = [place[hit.id] for hit in search.hits]
            asked = [number for number, search in enumerate(searches) if search.hits]
            texts = [search.query for search in searches if search.hits]  # as in training, whatever the base made of it
            logs = np.zeros(candidates.shape)
            logs[asked] = refiner.shares(tower.tokens(texts, "query"), candidates[asked])
            found = []
            for log, row, search in zip(logs, candidates, searches, strict=True):
                n = len(search.hits)
                totals = log[:n] + blend * np.array([hit.score for hit in search.hits])
                found.append(keep_places(totals, used[row[:n]], give_way).tolist())
            return found

        return first >> Rerank(scorer, label="toolrefiner", depth=settings["candidates"].value)
