"""Rerank-m (Nogueira and Cho, 2019): a cross-encoder scores the query with each of the first m tools, pair by pair.

It works over any first stage (`base`). It learns from gold pairs and from hard negatives that the first stage ranked
high. The fit then writes it as an ONNX graph with 8-bit integers, so that a search needs no torch. All choices on dev
use that graph.

The paper orders by the cross-encoder alone. Here the first stage's score is added to the logit with a weight chosen on
dev, which may be 0. A logistic curve, fitted on dev, turns the sum into the probability that the tool is needed.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import numpy as np

from toolscout import metrics
from toolscout.arrays import Array, Floats, Places
from toolscout.errors import ConfigError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.rankers import Artifacts, BaseRule, Batch, Count, NonNegative, Positive
from toolscout.rankers.lesson import DEV_METRICS, Lesson
from toolscout.search.abstain.calibration import sigmoid
from toolscout.search.pipeline import DEPTH, Fuse, Pipeline, Rerank, Retrieve, Stage
from toolscout.search.resources import BASE_FOLDER, Resources
from toolscout.types import Search, Tool, digest, render
from toolscout_lab.encoders.onnx_export import EXPORT_PACKAGES, trace_to_onnx
from toolscout_lab.encoders.onnx_int8 import to_int8
from toolscout_lab.encoders.onnx_pairs import INPUTS, MAX_CHARS_PER_PIECE, OUTPUT, OnnxPairs, write
from toolscout_lab.encoders.pair_cache import PairCache, PairScorer, cache_pairs
from toolscout_lab.encoders.transformer import TransformerEncoder
from toolscout_lab.rankers import LabMethod
from toolscout_lab.rankers.shared.reranking import RankedQueries, choose_blend
from toolscout_lab.rankers.shared.tuning import (
    ENCODER_FOLDER,
    Tuning,
    describe_training,
    make_tower,
    require_tunable,
    train_task,
)
from toolscout_lab.resources import find_pairs
from toolscout_lab.training.logistic import logistic

if TYPE_CHECKING:
    from toolscout_lab.training.crossencoders import CrossEncoder

__all__ = [
    "CROSSENCODER_BASE",
    "CrossEncoderOptions",
    "CrossEncoderRerank",
    "CrossEncoderStage",
    "LogitBlend",
    "NeedScorer",
    "cache_scorer",
    "export",
    "score_candidates",
    "split_crossencoder",
]

PAIR_GRAPH_FOLDER: Final = "pairs"  # subfolder of a model that holds the exported cross-encoder
CROSSENCODER_LABEL: Final = "crossencoder"
PAIR_TEXT_STYLE: Final = "short"
CROSSENCODER_BASE: Final = BaseRule("precise", "the recipe crossencoder")
CROSSENCODER_BLEND_GRID: Final = (
    0.0,
    0.25,
    0.5,
    1.0,
    2.0,
    4.0,
    8.0,
    16.0,
    32.0,
)  # with the last one, the first stage decides all but near ties
CALIBRATION_RIDGE: Final = 1e-3
CALIBRATION_PAIRS: Final = 64  # pairs that measure the peaks of the activations
QUERIES_PER_PROGRESS_LINE: Final = 50


class CrossEncoderOptions(Tuning, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit; `batch` counts queries.

    Attributes:
        base: the recipe of the first stage.
        candidates: m, the number of tools of the first stage that are scored; no search ranks more than 100.
        length: maximum tokens of a pair; the longer of query and tool is cut first.
        layers: number of layers to keep from the encoder, the lowest ones; 0: all.
        negatives: hard negatives of a query per step, drawn from its candidates.
        unused: whether tools that no training query needs may be negatives. Nothing proves that they are not needed.
        loss: yes or no for each pair (`binary`), or this and a list-wise softmax over a query's pairs (`joint`).
        start: the encoder to tune: the tuned one of the first stage if there is one (`base`), or the original one.
        blend: weight of the first stage's score; None: chosen on dev (see `choose_blend`).
        precise: number format of the written graph.
        judged: maximum number of dev queries for choosing the epoch and the blend.
        fast: factor of the learning rate for the new layer.
        patience: epochs without improvement on dev before training stops.
    """

    base: str = "hybrid-dpr"
    candidates: Annotated[int, msgspec.Meta(ge=2, le=DEPTH)] = 50
    length: Annotated[int, msgspec.Meta(ge=16, le=512)] = 64
    layers: NonNegative = 0
    negatives: Count = 6
    unused: bool = False
    loss: Literal["binary", "joint"] = "joint"
    start: Literal["base", "encoder"] = "base"
    blend: Annotated[float, msgspec.Meta(ge=0)] | None = None
    precise: Literal["int8", "float32"] = "int8"
    judged: Count = 600
    epochs: Count = 4
    batch: Batch = 8
    rate: Positive = 1e-4
    fast: Positive = 10.0
    patience: Count = 2


def render_pair_text(tool: Tool, length: int) -> str:
    """Render the text of a tool, cut to what fits into `length` tokens."""
    return render(tool, PAIR_TEXT_STYLE)[: MAX_CHARS_PER_PIECE * length]


# --- scoring ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LogitBlend:
    """Turns a cross-encoder's logit and the first stage's score into a probability.

    `p = σ(slope · (logit + weight · z) + offset)`, `z = (score - highest score) / spread`.

    Attributes:
        weight: weight of the first stage.
        spread: mean standard deviation of its scores for a query.
        far: z of a tool outside the candidates: the mean z of last candidates.
        slope: of the logistic curve.
        offset: of the logistic curve.
    """

    weight: float = 0.0
    spread: float = 1.0
    far: float = 0.0
    slope: float = 1.0
    offset: float = 0.0

    def distances(self, scores: Array) -> Floats:
        """Return z of the scores of candidates, best first, `(…, n)`."""
        return np.asarray((scores - scores[..., :1]) / self.spread)

    def probabilities(self, logits: Array, distances: Array | float) -> Floats:
        """Return the probability that each tool is needed."""
        return sigmoid(self.slope * (logits + self.weight * np.asarray(distances)) + self.offset)


class NeedScorer:
    """Estimates the probability that a query needs each of some tools.

    It reads the caller's wording, as in the fit, even if the first stage rewrites the query.
    """

    def __init__(self, reader: PairScorer, tools: Sequence[Tool], blend: LogitBlend) -> None:
        """Score tools of a catalogue with a graph; `blend` turns its logits into probabilities."""
        self.reader, self.blend = reader, blend
        self.tools = {tool.id: tool for tool in tools}

    def logits(self, query: str, ids: Sequence[str], deadline: float | None = None) -> Floats:
        """Return the logits of the tools, in this order; fewer if the deadline comes first."""
        texts = [render_pair_text(self.tools[tool], self.reader.length) for tool in ids]
        return self.reader.logits(query, texts, deadline)

    def score_others(self, search: Search, ids: Sequence[str]) -> Floats:
        """Return the probabilities of tools that the first stage did not name; fewer if the deadline comes first."""
        return self.blend.probabilities(self.logits(search.query, ids, search.deadline), self.blend.far)

    def __call__(self, searches: Sequence[Search]) -> list[list[float]]:
        """Score each hit of each search. A single search takes one thread; a batch runs in parallel."""
        if len(searches) == 1:
            return [self._score_hits(searches[0])]
        return list(_start_threads().map(self._score_hits, searches))

    def _score_hits(self, search: Search) -> list[float]:
        logits = self.logits(search.query, search.ids, search.deadline)
        distances = self.blend.distances(np.array([hit.score for hit in search.hits]))
        probabilities: list[float] = self.blend.probabilities(logits, distances[: len(logits)]).tolist()
        return probabilities


@functools.cache
def _start_threads() -> ThreadPoolExecutor:
    """Start the threads of the process. They are shared, because the pair cache opens a connection per thread."""
    return ThreadPoolExecutor(os.cpu_count(), "pairs")


if hasattr(os, "register_at_fork"):  # a forked child inherits the pool without its threads
    os.register_at_fork(after_in_child=_start_threads.cache_clear)


class CrossEncoderStage(Rerank):
    """Orders the first hits by a `NeedScorer`."""

    def __init__(self, need_scorer: NeedScorer, depth: int, below: Stage | None = None) -> None:
        """Score the first `depth` hits of the first stage.

        A cross-encoder over another one gets a numbered label.
        """
        stages = below.stages if isinstance(below, Pipeline) else ()
        n_below = sum(isinstance(stage, CrossEncoderStage) for stage in stages)
        label = f"{CROSSENCODER_LABEL} {n_below + 1}" if n_below else CROSSENCODER_LABEL
        super().__init__(need_scorer, label=label, depth=depth)
        self.need_scorer = need_scorer


def split_crossencoder(stage: Stage, name: str) -> tuple[Stage, CrossEncoderStage]:
    """Split the pipeline of a cross-encoder's recipe into its first stage and the cross-encoder.

    Raises:
        ConfigError: if the recipe `name` does not end with a cross-encoder.
    """
    last = stage.stages[-1] if isinstance(stage, Pipeline) else stage
    if not isinstance(stage, Pipeline) or not isinstance(last, CrossEncoderStage):
        raise ConfigError(f"expected a cross-encoder, found {name}")
    return Pipeline(stage.stages[:-1]), last


# --- the fit ----------------------------------------------------------------------------------------------------------


def _load_tuned_encoder(model: Model | None) -> TransformerEncoder | None:
    """Load the tuned encoder of the first stage, or of the nearest base below it; None: there is none."""
    folder = model.folder if model is not None else None
    while folder is not None and folder.is_dir():
        if (folder / ENCODER_FOLDER).is_dir():
            return TransformerEncoder(str(folder / ENCODER_FOLDER))
        folder = folder / BASE_FOLDER
    return None


def _uses_encoder(stage: Stage) -> bool:
    """Return whether a first stage that is not fitted uses the encoder of the settings."""
    if isinstance(stage, Pipeline | Fuse):
        return any(map(_uses_encoder, stage.stages if isinstance(stage, Pipeline) else stage.branches))
    return isinstance(stage, Retrieve) and stage.encode is not None


def _collect_negatives(train_candidates: RankedQueries, gold: Sequence[Places], n: int, unused: bool) -> list[Places]:
    """Return for each query the candidates that may serve as negatives, as positions of tools.

    Args:
        train_candidates: the training queries with their candidates.
        gold: the gold tools of each query.
        n: number of tools.
        unused: whether tools that no training query needs may be negatives.
    """
    allowed = np.zeros(n, dtype=np.bool_)
    allowed[np.unique(np.concatenate(gold))] = True
    if unused:
        allowed[:] = True
    rows = [
        row[~is_gold & (row >= 0)]
        for row, is_gold in zip(train_candidates.candidates, train_candidates.gold, strict=True)
    ]
    return [row[allowed[row]] for row in rows]


def _measure_scale(train_candidates: RankedQueries) -> LogitBlend:
    """Measure `spread` and `far` of the blend on the first stage's scores for the training queries."""
    rows = [
        row[candidates >= 0]
        for row, candidates in zip(train_candidates.scores, train_candidates.candidates, strict=True)
    ]
    rows = [row for row in rows if len(row) > 1]
    spread = float(np.mean([row.std() for row in rows])) if rows else 1.0
    spread = spread or 1.0
    return LogitBlend(spread=spread, far=float(np.mean([(row[-1] - row[0]) / spread for row in rows])) if rows else 0.0)


class _DevPairs:
    """The dev queries with their candidates, on which the epoch and the blend are chosen.

    Attributes:
        lesson, dev, options: of the fit.
        scale: turns logits and scores of the first stage into one scale.
        is_candidate: `(queries, N)`; false where a query has fewer candidates.
        ids: of the tools.
        distances: of the first stage's scores, in the same shape.
    """

    def __init__(self, lesson: Lesson, dev: RankedQueries, scale: LogitBlend, options: CrossEncoderOptions) -> None:
        self.lesson, self.dev, self.scale, self.options = lesson, dev, scale, options
        self.is_candidate = dev.candidates >= 0
        self.ids = [tool.id for tool in lesson.tools]
        self.distances = np.where(self.is_candidate, scale.distances(dev.scores), 0.0)

    def pairs(self, texts: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the query text and the tool text of every pair."""
        rows, columns = np.nonzero(self.is_candidate)
        queries = self.lesson.texts_of(self.dev.queries)
        return [queries[row] for row in rows], [
            texts[position_of] for position_of in self.dev.candidates[rows, columns]
        ]

    def evaluate(self, totals: Floats) -> metrics.PerQuery:
        """Return the figures of the candidates, ordered by `totals`."""
        rankings = self.dev.rankings(totals, self.ids)
        golds = {query: self.lesson.dev[query] for query in self.dev.queries}
        return metrics.score(rankings, golds, DEV_METRICS)

    def choose(self, logits: Floats) -> tuple[LogitBlend, dict[str, float]]:
        """Choose the weight of the first stage (`choose_blend`) and fit the curve; return the blend and its figures."""
        if logits.ndim == 1:
            logits, flat = np.zeros(self.is_candidate.shape), logits
            logits[self.is_candidate] = flat
        weights = CROSSENCODER_BLEND_GRID if self.options.blend is None else (self.options.blend,)
        figures_by_weight = {weight: self.evaluate(logits + weight * self.distances) for weight in weights}
        best = choose_blend(figures_by_weight)
        blend = dataclasses.replace(self.scale, weight=best, slope=1 / (1 + best))
        totals = (logits + best * self.distances)[self.is_candidate]
        if totals.size:
            slope, offset = logistic(totals[:, None], self.dev.gold[self.is_candidate], CALIBRATION_RIDGE).tolist()
            if slope > 0:
                blend = dataclasses.replace(blend, slope=slope, offset=offset)
        return blend, figures_by_weight[best].means()


def cache_scorer(resources: Resources, lesson: Lesson, scorer: NeedScorer) -> NeedScorer:
    """Return a scorer for a fit that caches its logits, so that an interrupted fit can resume."""
    cache = find_pairs(resources) or PairCache(resources.run.work)
    return NeedScorer(cache_pairs(scorer.reader, cache), lesson.tools, scorer.blend)


def score_candidates(resources: Resources, lesson: Lesson, ranked: RankedQueries, scorer: NeedScorer) -> Floats:
    """Return the logits of every query with each of its candidates, from the exported graph.

    Args:
        resources: receive the progress.
        lesson: has the texts and the tools.
        ranked: the queries with their candidates, (queries, N).
        scorer: runs the graph.

    Returns:
        `(queries, N)`; 0 where a query has fewer candidates.
    """
    logits = np.zeros(ranked.candidates.shape)
    for row, query in enumerate(ranked.queries):
        if row % QUERIES_PER_PROGRESS_LINE == 0:
            resources.say(f"reading: {row:,} of {len(ranked.queries):,} dev queries with {logits.shape[1]} tools each")
        ids = [lesson.tools[position_of].id for position_of in ranked.candidates[row] if position_of >= 0]
        logits[row, : len(ids)] = scorer.logits(lesson.texts[query], ids)
    return logits


def _draw_pairs(resources: Resources, lesson: Lesson, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Draw random pairs of a training query and a tool."""
    queries = [lesson.texts[query] for query in lesson.train]
    random = np.random.default_rng(resources.run.seed)
    return [
        (queries[int(query)], texts[int(tool)])
        for query, tool in zip(
            random.integers(len(queries), size=CALIBRATION_PAIRS),
            random.integers(len(texts), size=CALIBRATION_PAIRS),
            strict=True,
        )
    ]


def export(
    net: CrossEncoder, folder: Path, precise: Literal["int8", "float32"], calibration_pairs: Sequence[tuple[str, str]]
) -> None:
    """Write a cross-encoder as a folder that `OnnxPairs` reads.

    Args:
        net: the cross-encoder.
        folder: the folder to make.
        precise: number format of the graph.
        calibration_pairs: queries with a tool, on which the peaks of the activations are measured.
    """
    model = net.tower.model.float().to("cpu")
    graph = trace_to_onnx(net.float().to("cpu"), INPUTS if net.typed else INPUTS[:2], OUTPUT)
    tokenizer = str(model.tokenizer.backend_tokenizer.to_str())
    write(folder, graph, tokenizer)
    if precise == "int8":
        reader = OnnxPairs(folder, net.length)
        to_int8(graph, [reader.feed(reader.pieces(query, [text])) for query, text in calibration_pairs])
        write(folder, graph, tokenizer)


class CrossEncoderRerank(LabMethod):
    """Reranks the first tools of another recipe with a cross-encoder."""

    options_type = CrossEncoderOptions
    fit_packages = tuple((package, "train") for package in EXPORT_PACKAGES)

    def fit(self, resources: Resources, lesson: Lesson, options: CrossEncoderOptions) -> Artifacts:
        """Rank the queries with the first stage, tune the cross-encoder, write its graph, and choose the blend on dev.

        Raises:
            MissingExtra: without torch, sentence-transformers or onnx.
            ConfigError: if the encoder cannot be tuned, or there is nothing to train on.
        """
        from toolscout_lab.training.crossencoders import CrossEncoder, PairData, PairTask

        assert lesson.base is not None
        raw = require_tunable(resources.load_encoder())
        tuned = _load_tuned_encoder(lesson.base.model) if options.start == "base" else None
        start = tuned or raw
        resources.say(f"ranking {len(lesson.train) + len(lesson.dev):,} queries with {lesson.base.recipe}")
        position_of, gold = lesson.positions(), lesson.gold_positions()
        sample = dict(list(lesson.dev.items())[:: -(-len(lesson.dev) // options.judged)])
        train_candidates, dev = (
            RankedQueries(lesson, qrels, options.candidates, position_of) for qrels in (lesson.train, sample)
        )
        tower = make_tower(start, options)
        net = CrossEncoder(tower, length=options.length, layers=options.layers, seed=resources.run.seed)
        texts = [render_pair_text(tool, options.length) for tool in lesson.tools]
        dev_pairs = _DevPairs(lesson, dev, _measure_scale(train_candidates), options)
        pairs = net.pairs(*dev_pairs.pairs(texts))
        negatives = _collect_negatives(train_candidates, gold, len(texts), options.unused)
        task = PairTask(
            net,
            PairData([lesson.texts[query] for query in lesson.train], texts, gold, negatives),
            negatives=options.negatives,
            loss=options.loss,
            fast=options.fast,
            evaluate=lambda: dev_pairs.choose(net.logits(pairs))[1],
            identity=digest("crossencoder/1", [start.fingerprint, lesson.base.identity, lesson.fingerprint, options]),
        )
        done = train_task(resources, options, task, tower)
        resources.say(f"writing the graph in {options.precise}")
        graphs = resources.run.work / PAIR_GRAPH_FOLDER
        export(net, graphs, options.precise, _draw_pairs(resources, lesson, texts))
        scorer = cache_scorer(
            resources, lesson, NeedScorer(OnnxPairs(graphs, options.length), lesson.tools, LogitBlend())
        )
        logits = score_candidates(resources, lesson, dev, scorer)
        blend, figures = dev_pairs.choose(logits)
        base = lesson.base

        def write_files(folder: Path) -> None:
            base.save(folder)
            graphs.rename(folder / PAIR_GRAPH_FOLDER)

        return Artifacts(
            {},
            metrics=figures,
            encoder=raw if base.model is None and _uses_encoder(base.stage) else None,
            chosen={"blend": blend.weight} if options.blend is None else {},
            values={
                "blend": dataclasses.asdict(blend),
                "first_stage": dev_pairs.evaluate(dev.scores).means(),
                "logits_alone": dev_pairs.evaluate(logits).means(),
                "in_training": done.figures,
                "judged": len(sample),
                **describe_training(done),
            },
            seconds_before=done.earlier,
            files=write_files,
        )

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build the first stage, followed by the cross-encoder over its first tools."""
        settings = model.manifest.settings
        reader = OnnxPairs(model.folder / PAIR_GRAPH_FOLDER, settings["length"].value)
        blend = LogitBlend(**model.manifest.values["blend"])
        scorer = NeedScorer(cache_pairs(reader, find_pairs(resources)), catalogue.tools(), blend)
        first = resources.build_base(catalogue, model)
        return first >> CrossEncoderStage(scorer, settings["candidates"].value, first)
