"""ToolRefiner (arXiv:2409.02141): scores a query with all its candidates at once, each tool as a single vector.

It works over any first stage (`base`). The vectors of the first N tools, projected to the width of the encoder, follow
the tokens of the query. Each tool gets one logit, learned with a list-wise softmax. All tools have the same position,
and training shuffles them, so that the order of the first stage cannot leak. An encoder to which the order of its input
matters in another way, such as DeBERTa or MPNet, is refused (`training.refiners.check_order`). The vector of a tool is
the mean of the queries that used it, or the vector of its description. Without usage it is always the description.

The paper orders by the logits alone. Here the first stage's score is added with a weight chosen on dev, which may be 0:
the greatest within a standard error of the best. A tool that no training query needs keeps the place that the first
stage gave it (see `keep_places`), because the logits could only have learned that it is never needed. With `give_way`,
all such tools but the first let one more of the others pass. This matters over a first stage that orders badly: there
these tools would crowd out the needed ones that the refiner brings to the top.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np

from toolscout.arrays import Mask, Places, Vectors
from toolscout.dataset import Qrels
from toolscout.encoders import Encoder, unit_rows
from toolscout.errors import ConfigError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.metrics import PerQuery
from toolscout.rankers import Amount, Artifacts, Batch, Count, Positive, Share
from toolscout.rankers.lesson import Lesson
from toolscout.search.pipeline import Rerank, Stage
from toolscout.search.resources import BASE_FOLDER, Resources
from toolscout.types import Search, Tool, digest, render
from toolscout_lab.encoders.transformer import TransformerEncoder
from toolscout_lab.rankers import LabMethod
from toolscout_lab.rankers.shared.reranking import (
    RankDeeper,
    RankedQueries,
    choose_blend,
    keep_places,
)
from toolscout_lab.rankers.shared.tuning import (
    ENCODER_FOLDER,
    Tuning,
    describe_training,
    make_tower,
    require_tunable,
    save_encoder,
    train_task,
)

__all__ = ["ToolRefiner", "ToolRefinerOptions"]

REFINER_BLEND_GRID: Final = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
REFINER_STYLE: Final = "short"
MAX_REFINED_TOOLS: Final = 128  # the greatest N of the paper


class ToolRefinerOptions(Tuning, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit.

    Attributes:
        base: the recipe of the first stage.
        candidates: N, the number of tools of the first stage to rerank.
        tool_vectors: the mean of the queries that used a tool (`usage`), or its `description`.
        start: the encoder to tune: that of the first stage if it has one (`base`), or the original one.
        blend: weight of the first stage's score; None: chosen on dev (see `choose_blend`).
        give_way: whether tools that no training query needs give way, all but the first (see `keep_places`). Dev shows
            only the gain, because none of its queries needs such a tool.
        part: share of the training queries to use; for sweeps.
        fast: factor of the learning rate for the new layers.
        patience: epochs without improvement on dev before training stops.
        thinned: share of a query's tokens that training leaves out at random.
    """

    base: str = "mlc"
    candidates: Annotated[int, msgspec.Meta(ge=2, le=MAX_REFINED_TOOLS)] = 32
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


def _load_base_encoder(lesson: Lesson) -> TransformerEncoder | None:
    """Load the tuned encoder of the first stage; None: it has none."""
    assert lesson.base is not None
    if lesson.base.model is None or not (lesson.base.model.folder / ENCODER_FOLDER).is_dir():
        return None
    return TransformerEncoder(str(lesson.base.model.folder / ENCODER_FOLDER))


def _compute_tool_vectors(
    resources: Resources, lesson: Lesson, encoder: Encoder, by_usage: bool, position_of: Mapping[str, int]
) -> Vectors:
    """Return the vectors of the tools for the refiner, (tools, dim) unit rows."""
    description_rows = resources.encode_tools(encoder, lesson.tools, REFINER_STYLE)
    if not by_usage:
        return description_rows
    sums, used = np.zeros_like(description_rows), np.zeros(len(description_rows), dtype=np.bool_)
    query_rows = resources.encode_queries(encoder, lesson.texts_of(lesson.train))
    for row, tools in zip(query_rows, lesson.train.values(), strict=True):
        places = [position_of[tool] for tool in tools]
        sums[places] += row
        used[places] = True
    return np.where(used[:, None], unit_rows(sums), description_rows)


def _load_tool_vectors(resources: Resources, model: Model, tools: Sequence[Tool], places: Places) -> Vectors:
    """Return vectors of tools, (tools, dim): from the model at `places`, from the description for place -1."""
    rows = model.arrays["tools"][np.maximum(places, 0)]
    new = np.flatnonzero(places < 0)
    if new.size:
        # The fit embedded descriptions with the encoder in the manifest, or else with the one that the base tuned.
        base_encoder = model.folder / BASE_FOLDER / ENCODER_FOLDER
        encoder: Encoder = (
            TransformerEncoder(str(base_encoder)) if model.manifest.encoder is None else resources.load_encoder()
        )
        if model.manifest.encoder is not None:
            model.check_encoder(encoder)
        rows[new] = encoder.encode([render(tools[int(number)], REFINER_STYLE) for number in new], "tool")
    return rows


class _DevCandidates:
    """The dev queries with their candidates, on which the epoch and the blend are chosen."""

    def __init__(self, lesson: Lesson, dev: RankedQueries, used: Mask, options: ToolRefinerOptions) -> None:
        self.lesson, self.dev, self.used, self.options = lesson, dev, used, options
        self.ids = [tool.id for tool in lesson.tools]

    def evaluate(self, log_probabilities: Any, blend: float, *, give_way: bool) -> PerQuery:
        """Return the dev figures of the candidates by log-probability + blend · score of the first stage.

        Args:
            log_probabilities: (queries, N) log-probabilities of the refiner; see `Refiner.log_probabilities`.
            blend: weight of the first stage's score.
            give_way: see `keep_places`.
        """
        totals = log_probabilities + blend * self.dev.scores
        for row, tools in zip(totals, self.dev.candidates, strict=True):
            row[:] = keep_places(row, self.used[tools] & (tools >= 0), give_way)
        return self.lesson.evaluate(self.dev.rankings(totals, self.ids))

    def choose(self, log_probabilities: Any) -> tuple[float, dict[str, float]]:
        """Choose the blend (`choose_blend`); return it with its figures."""
        blends = REFINER_BLEND_GRID if self.options.blend is None else (self.options.blend,)
        figures = {blend: self.evaluate(log_probabilities, blend, give_way=self.options.give_way) for blend in blends}
        best = choose_blend(figures)
        return best, figures[best].means()


def _mark_used(qrels: Qrels, position_of: Mapping[str, int]) -> Mask:
    """Return whether a query needs each tool, (tools,)."""
    used = np.zeros(len(position_of), dtype=np.bool_)
    used[[position_of[tool] for tools in qrels.values() for tool in tools]] = True
    return used


def _export_layer(name: str, layer: Any) -> dict[str, Any]:
    """Return the weights of a layer of torch as arrays of a model."""
    return {f"{name}.{key}": values.detach().cpu().numpy() for key, values in layer.state_dict().items()}


class ToolRefiner(LabMethod):
    """Reranks the first tools of another recipe, scoring all of them at once."""

    options_type = ToolRefinerOptions
    transfers = False

    def fit(self, resources: Resources, lesson: Lesson, options: ToolRefinerOptions) -> Artifacts:
        """Rank the queries with the first stage, tune the refiner on its candidates, choose the blend on dev.

        Raises:
            MissingExtra: without torch or sentence-transformers.
            ConfigError: if the encoder cannot be tuned, if the order of the tools matters to it, or there is nothing
                to train on.
        """
        from toolscout_lab.training.refiners import Refine, Refiner, check_order

        assert lesson.base is not None
        base = lesson.base
        untuned = require_tunable(resources.load_encoder())
        base_encoder = _load_base_encoder(lesson)
        start = base_encoder if base_encoder is not None and options.start == "base" else untuned
        first_position = check_order(start.model[0].auto_model)
        chosen = dict(itertools.islice(lesson.train.items(), math.ceil(options.part * len(lesson.train))))
        resources.say(f"ranking {len(chosen) + len(lesson.dev):,} queries with {base.recipe}")
        position_of = lesson.positions()
        train_candidates, dev = (
            RankedQueries(lesson, qrels, options.candidates, position_of) for qrels in (chosen, lesson.dev)
        )
        has_gold = np.asarray(train_candidates.gold.any(axis=1))
        if not has_gold.any():
            raise ConfigError(
                f"No training query needs any of the first {options.candidates} tools that {base.recipe} finds for it. "
                "Set another base, or more candidates."
            )
        encoder = base_encoder or untuned
        used = _mark_used(chosen, position_of)
        by_usage = options.tool_vectors == "usage"
        vectors = _compute_tool_vectors(resources, lesson, encoder if by_usage else untuned, by_usage, position_of)
        tower = make_tower(start, options)
        refiner = Refiner(tower, vectors, resources.run.seed, first_position)

        dev_candidates = _DevCandidates(lesson, dev, used, options)
        dev_tokens = tower.tokens(lesson.texts_of(lesson.dev), "query")
        tokens = tower.tokens(lesson.texts_of(chosen), "query")
        task = Refine(
            refiner,
            queries=list(itertools.compress(tokens, has_gold)),
            candidates=train_candidates.candidates[has_gold],
            gold=train_candidates.gold[has_gold],
            evaluate=lambda: dev_candidates.choose(refiner.log_probabilities(dev_tokens, dev.candidates))[1],
            identity=digest("toolrefiner/2", [start.fingerprint, base.identity, lesson.fingerprint, options]),
            fast=options.fast,
            thinned=options.thinned,
        )
        done = train_task(resources, options, task, tower)
        log_probabilities = refiner.log_probabilities(dev_tokens, dev.candidates)
        blend, figures = dev_candidates.choose(log_probabilities)

        def write_files(folder: Any) -> None:
            base.save(folder)
            save_encoder(tower.model)(folder)

        return Artifacts(
            {
                "tools": vectors,
                "used": used.astype(np.uint8),
                **_export_layer("project", refiner.project),
                **_export_layer("score", refiner.score),
            },
            metrics=figures,
            encoder=untuned if base_encoder is None or options.tool_vectors == "description" else None,
            chosen={"blend": blend} if options.blend is None else {},
            values={
                "first_position": first_position,
                "first_stage": dev_candidates.evaluate(np.zeros(dev.scores.shape), 1.0, give_way=False).means(),
                "logits_alone": dev_candidates.evaluate(log_probabilities, 0.0, give_way=options.give_way).means(),
                "keeping_places": dev_candidates.evaluate(log_probabilities, blend, give_way=False).means(),
                "giving_way": dev_candidates.evaluate(log_probabilities, blend, give_way=True).means(),
                **describe_training(done),
            },
            seconds_before=done.earlier,
            files=write_files,
        )

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build the first stage, followed by the refiner over its first tools.

        Raises:
            ConfigError: if the model was fitted before encoders were checked, and the order of the tools matters to it.
        """
        import torch

        from toolscout_lab.training.refiners import Refiner, check_order
        from toolscout_lab.training.towers import Tower

        settings = model.manifest.settings
        first = resources.build_base(catalogue, model)
        tools: list[Tool] = catalogue.tools()
        position_of = {tool.id: number for number, tool in enumerate(tools)}
        places = model.places(tools)
        used = (places >= 0) & (model.arrays["used"][places] > 0)
        tower = Tower(TransformerEncoder(str(model.folder / ENCODER_FOLDER)).model, dropout=0.0, precision="float32")
        first_position = model.manifest.values.get("first_position")
        if first_position is None:  # fitted before encoders were checked, with positions from 0
            first_position = check_order(tower.model[0].auto_model, first_position=0)
        vectors = _load_tool_vectors(resources, model, tools, places)
        refiner = Refiner(tower, vectors, first_position=first_position)
        for name, layer in (("project", refiner.project), ("score", refiner.score)):
            layer.load_state_dict({key: torch.from_numpy(model.arrays[f"{name}.{key}"]) for key in ("weight", "bias")})
        refiner.eval()
        blend, give_way = settings["blend"].value, settings["give_way"].value

        def score(searches: Sequence[Search]) -> list[list[float]]:
            n_candidates = max((len(search.hits) for search in searches), default=0)
            candidates = np.full((len(searches), n_candidates), -1, dtype=np.intp)
            for row, search in zip(candidates, searches, strict=True):
                row[: len(search.hits)] = [position_of[hit.id] for hit in search.hits]
            rows = [number for number, search in enumerate(searches) if search.hits]
            # The caller's wording, as in training, even if the base rewrote it.
            texts = [search.query for search in searches if search.hits]
            log_probabilities = np.zeros(candidates.shape)
            log_probabilities[rows] = refiner.log_probabilities(tower.tokens(texts, "query"), candidates[rows])
            scores = []
            for query_log_probabilities, row, search in zip(log_probabilities, candidates, searches, strict=True):
                n = len(search.hits)
                totals = query_log_probabilities[:n] + blend * np.array([hit.score for hit in search.hits])
                scores.append(keep_places(totals, used[row[:n]], give_way).tolist())
            return scores

        depth = settings["candidates"].value
        return RankDeeper(first, depth) >> Rerank(score, label="toolrefiner", depth=depth)
