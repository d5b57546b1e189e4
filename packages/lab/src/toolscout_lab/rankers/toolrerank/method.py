"""ToolRerank (arXiv:2403.06551): scores more of the unseen tools, and keeps tools of one parent together.

`Tool.parent` stands for the paper's tool of an API. The base is a cross-encoder's recipe (`base`):

1. Adaptive truncation keeps candidates up to place m_s if training saw their parent, and up to place m_u if not.
2. The cross-encoder estimates probabilities.
3. A classifier, fitted on the training queries, predicts whether one parent serves the query (`toolrerank.query_kind`).
4. Algorithm 1 or 2 of the paper orders the hits (`toolrerank.hierarchy`). For one parent, the cross-encoder also scores
   those of its tools that training never saw.

The settings are the best of the paper's grid on dev, if they clearly beat the defaults: all candidates are scored,
algorithm 1 has a τ_s of 0.8, algorithm 2 is off (`toolrerank.settings_search`). With flat paths the hierarchy is off,
and the trace says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
import numpy as np

from toolscout.arrays import Array, Vectors
from toolscout.dataset import Qrels
from toolscout.encoders import Encoder
from toolscout.errors import ConfigError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.rankers import Artifacts, Count, NonNegative
from toolscout.rankers.lesson import Lesson
from toolscout.rankers.shared.usage_fit import select_unset
from toolscout.search.pipeline import DEPTH, Stage
from toolscout.search.resources import Resources
from toolscout.types import Search, Tool
from toolscout_lab.machine import Record
from toolscout_lab.rankers import LabMethod
from toolscout_lab.rankers.crossencoder import (
    CROSSENCODER_BASE,
    CrossEncoderStage,
    cache_scorer,
    score_candidates,
    split_crossencoder,
)
from toolscout_lab.rankers.shared.reranking import RankedQueries
from toolscout_lab.rankers.toolrerank import query_kind
from toolscout_lab.rankers.toolrerank.settings_search import Grid, ScoredQueries, limits
from toolscout_lab.rankers.toolrerank.stages import (
    FLAT_NOTE,
    UNUSED_NOTE,
    ChosenSettings,
    Families,
    Hierarchy,
    Truncate,
)
from toolscout_lab.resources import find_gold

__all__ = ["ToolRerank", "ToolRerankOptions"]

HIERARCHY_TEXT_STYLE: Final = "short"

Threshold = Annotated[float, msgspec.Meta(ge=0, le=1)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=DEPTH)]


class ToolRerankOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit. With `seen` = `unseen` = m and no hierarchy this is the paper's Rerank-m.

    Attributes:
        base: the recipe of the cross-encoder.
        seen: m_s, the last place that is scored if training saw the parent of a tool; None: the best on dev, as below.
        unseen: m_u, the same for other tools.
        sure: τ_s, the probability above which a parent is likely, for queries that one parent serves; 0: no change.
        alike: τ_m, the cosine above which two tools are similar, for the other queries.
        each: n, the number of tools of each group of similar tools that come first; 0: no change.
        extend: the likely parents (seen or unseen) with all tools scored, for queries that one parent serves. Parents
            with more than 50 tools are not extended.
        hierarchy: the source of the algorithm for a query: the `classifier`, `none`, one for all, or its gold tools
            (`oracle`), which only `bench` knows.
        judged: maximum number of dev queries for these choices.
    """

    base: str = "crossencoder"
    seen: Limit | None = None
    unseen: Limit | None = None
    sure: Threshold | None = None
    alike: Threshold | None = None
    each: NonNegative | None = None
    extend: Literal["unseen", "none", "seen", "both"] = "unseen"
    hierarchy: Literal["classifier", "none", "single", "multi", "oracle"] = "classifier"
    judged: Count = 600


# --- the pipeline -----------------------------------------------------------------------------------------------------


def _build_hierarchy(
    resources: Resources,
    catalogue: Catalogue,
    model: Model,
    families: Families,
    seen: Callable[[str], bool],
    reranker: CrossEncoderStage,
    chosen: ChosenSettings,
) -> Hierarchy:
    """Build the last stage. It embeds tools and queries only if there is a hierarchy."""
    algorithm = model.manifest.settings["hierarchy"].value
    one_parent = query_kind.OneParentClassifier(model.arrays) if "classifier" in model.arrays else None
    ids = catalogue.ids
    place = {tool: number for number, tool in enumerate(ids)}
    flat = families.flat or one_parent is None  # a fit on flat paths leaves no classifier
    off = FLAT_NOTE if flat else "" if chosen.sure or chosen.each else UNUSED_NOTE
    encoder = None if off else resources.load_encoder()
    if encoder is not None:
        model.check_encoder(encoder)
    rows = np.empty((len(ids), 0), dtype=np.float32)
    if encoder is not None and chosen.each:
        rows = resources.encode_tools(encoder, catalogue.tools(), HIERARCHY_TEXT_STYLE)

    def predict_one_parent(searches: Sequence[Search]) -> Sequence[bool]:
        if algorithm in ("single", "multi"):
            return [algorithm == "single"] * len(searches)
        if algorithm == "oracle":
            gold = find_gold(resources)
            if gold is None:
                raise ConfigError(
                    "hierarchy=oracle needs the gold tools of each query, which only `toolscout lab bench` knows. Set "
                    "another hierarchy."
                )
            return [families.are_one_family(gold(search.query)) for search in searches]
        assert encoder is not None and one_parent is not None
        texts = [search.query for search in searches]
        return one_parent(texts, encoder.encode(texts, "query"))

    def compute_cosines(tools: Sequence[str]) -> Array:
        tool_rows = rows[[place[tool] for tool in tools]]
        return np.asarray(tool_rows @ tool_rows.T)

    def get_visibility(search: Search) -> Callable[[str], bool]:
        mask = catalogue.mask(search.visible)
        return lambda tool: mask is None or bool(mask[place[tool]])

    return Hierarchy(
        families,
        seen,
        reranker,
        chosen,
        predict_one_parent=predict_one_parent,
        compute_cosines=compute_cosines,
        get_visibility=get_visibility,
        off=off,
    )


# --- the fit ----------------------------------------------------------------------------------------------------------


class _FittedHierarchy(NamedTuple):
    """The parts of the hierarchy that the search for settings needs.

    Attributes:
        encoder: of tools and queries; None: the hierarchy is off.
        classifier: arrays of the classifier; empty if the hierarchy is off.
        single: whether one parent serves each dev query, by the source that the options name.
        rows: (tools, d) vectors of the tools.
        values: notes for the manifest.
    """

    encoder: Encoder | None
    classifier: dict[str, Array]
    single: Sequence[bool]
    rows: Vectors
    values: Record


def _fit_hierarchy(
    resources: Resources, lesson: Lesson, options: ToolRerankOptions, families: Families, sample: Qrels
) -> _FittedHierarchy:
    """Fit the classifier on train, and say for the dev queries of `sample` whether one parent serves them."""
    single: Sequence[bool] = [options.hierarchy == "single"] * len(sample)
    rows = np.empty((len(lesson.tools), 0), dtype=np.float32)
    if options.hierarchy == "none" or families.flat:
        note = "off" if options.hierarchy == "none" else FLAT_NOTE
        return _FittedHierarchy(None, {}, single, rows, {"hierarchy": note})
    encoder = resources.load_encoder()
    rows = resources.encode_tools(encoder, lesson.tools, HIERARCHY_TEXT_STYLE)
    classifier, facts = query_kind.fit_classifier(resources, lesson, families, encoder)
    if options.hierarchy == "oracle":
        single = [families.are_one_family(list(tools)) for tools in sample.values()]
    elif options.hierarchy == "classifier":
        texts = lesson.texts_of(sample)
        single = query_kind.OneParentClassifier(classifier)(texts, resources.encode_queries(encoder, texts))
    values = {"hierarchy": "on", **{f"classifier_{name}": value for name, value in facts.items()}}
    return _FittedHierarchy(encoder, classifier, single, rows, values)


class ToolRerank(LabMethod):
    """Scores more of the unseen tools, and keeps tools of one parent together."""

    options_type = ToolRerankOptions
    base = CROSSENCODER_BASE

    def fit(self, resources: Resources, lesson: Lesson, options: ToolRerankOptions) -> Artifacts:
        """Fit the classifier on train, score the candidates of dev once, and choose the settings on them.

        Raises:
            ConfigError: if the base is no cross-encoder.
        """
        assert lesson.base is not None
        first, reranker = split_crossencoder(lesson.base.stage, lesson.base.recipe)
        families = Families(lesson.tools)
        seen = {families.family_of[tool] for tools in lesson.train.values() for tool in tools}
        sample = dict(list(lesson.dev.items())[:: math.ceil(len(lesson.dev) / options.judged)])
        resources.say(f"ranking {len(sample):,} dev queries with the first stage of {lesson.base.recipe}")
        ranked = RankedQueries(lesson, sample, max(map(max, limits(options))), lesson.positions(), first)
        scorer = cache_scorer(resources, lesson, reranker.need_scorer)
        logits = score_candidates(resources, lesson, ranked, scorer)
        hierarchy = _fit_hierarchy(resources, lesson, options, families, sample)
        queries = ScoredQueries(ranked, logits, hierarchy.single, hierarchy.rows)
        grid = Grid(lesson, options, queries, families, seen, scorer, resources.say)
        chosen, figures = grid.search(hierarchy.encoder is not None)
        return Artifacts(
            {
                "seen": np.array([families.family_of[tool.id] in seen for tool in lesson.tools], dtype=np.uint8),
                **hierarchy.classifier,
            },
            metrics=figures,
            encoder=hierarchy.encoder,
            chosen=select_unset(options, msgspec.structs.asdict(chosen)),
            values={
                **hierarchy.values,
                "first_stage": grid.figures([grid.ids(row) for row in range(len(sample))]),
                "truncation": grid.by_limits,
                "judged": len(sample),
            },
            files=lesson.base.save,
        )

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build the first stage, the truncation, the cross-encoder, and the hierarchy."""
        settings = {name: setting.value for name, setting in model.manifest.settings.items()}
        first, reranker = split_crossencoder(resources.build_base(catalogue, model), settings["base"])
        tools: list[Tool] = catalogue.tools()
        families = Families(tools)
        places = model.places(tools)
        trained = {
            families.family_of[tool.id]
            for tool, place in zip(tools, places, strict=True)
            if place >= 0 and model.arrays["seen"][place]
        }

        def is_seen(tool: str) -> bool:
            return families.family_of[tool] in trained

        chosen = ChosenSettings(
            **{name: settings[name] for name in ChosenSettings.__struct_fields__ if settings[name] is not None}
        )
        reranker = CrossEncoderStage(reranker.need_scorer, max(chosen.seen, chosen.unseen), first)
        stages = first >> Truncate(is_seen, chosen.seen, chosen.unseen) >> reranker
        if settings["hierarchy"] == "none":
            return stages
        return stages >> _build_hierarchy(resources, catalogue, model, families, is_seen, reranker, chosen)
