"""Rerank-m (Nogueira and Cho, 2019): a cross-encoder reads the query with each of the first m tools, pair by pair.

Over any first stage (`base`). It learns from gold pairs and from hard negatives that the first stage put high, and is
then written as an ONNX graph in whole numbers of 8 bits: a search needs no torch for it. What is chosen on dev is
chosen with that graph.

The paper orders by the cross-encoder alone. Here the first stage's score is added to the logit with a weight chosen on
dev, which may be 0; a logistic curve over the sum, fitted on dev, makes it the probability that the tool is needed.
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
from toolscout.abstain.logistic import logistic, sigmoid
from toolscout.arrays import Array, Floats, Places
from toolscout.catalogue.store import Catalogue
from toolscout.encoders.onnx_pairs import INPUTS, MAX_CHARS_PER_PIECE, OUTPUT, OnnxPairs, write
from toolscout.encoders.pair_cache import PairCache, PairScorer, cache_pairs
from toolscout.encoders.transformer import TransformerEncoder
from toolscout.errors import ConfigError
from toolscout.methods import Artifacts, BaseRule
from toolscout.methods.lesson import DEV_METRICS, Lesson
from toolscout.methods.shared.reranking import Ranked, trust
from toolscout.methods.shared.tuning import (
    FOLDER,
    Batch,
    Count,
    Positive,
    Tuning,
    Whole,
    describe_training,
    make_tower,
    require_tunable,
    train_task,
)
from toolscout.models.model_store import Model
from toolscout.search.fusion import DEPTH
from toolscout.search.pipeline import Fuse, Pipeline, Rerank, Retrieve, Stage
from toolscout.types import Search, Tool, digest, render
from toolscout.workspace import BASE_FOLDER, Workspace

if TYPE_CHECKING:
    from toolscout.training.crossencoders import CrossEncoder

__all__ = [
    "READS_PAIRS",
    "Blend",
    "CrossEncoderRerank",
    "Judge",
    "Judging",
    "Options",
    "cache_judge",
    "export",
    "read_all",
    "split_stage",
]

GRAPHS: Final = "pairs"  # of the exported cross-encoder, in a model's own
CROSSENCODER_LABEL: Final = "crossencoder"
STYLE: Final = "short"
READS_PAIRS: Final = BaseRule("precise", "the recipe crossencoder")
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
)  # the last is the first stage, but for near ties
CALIBRATION_RIDGE: Final = 1e-3
CALIBRATION_PAIRS: Final = 64  # pairs in which the peaks of the activations are looked for
QUERIES_PER_PROGRESS_LINE: Final = 50


class Options(Tuning, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit; `batch` counts queries.

    Attributes:
        base: the recipe of the first stage.
        candidates: m, how many tools of the first stage are read; no search ranks more than 100.
        length: pieces that are read of a pair; the longer of query and tool is cut first.
        layers: the first so many layers of the encoder alone; 0: all.
        negatives: hard negatives of a query at a step, drawn from its candidates.
        unused: whether tools that no training query needs may be negatives: nothing says that they are not needed.
        loss: yes or no for each pair (`binary`), or this and a list-wise softmax over a query's pairs (`joint`).
        start: the encoder to tune: that of the first stage, if it has one (`base`), or the one it began from.
        blend: weight of the first stage's score; None: chosen on dev (see `trust`).
        precise: how the graph computes once it is written.
        judged: dev queries that an epoch, and the blend, are chosen by, at most.
        fast: the new layer learns so many times as fast.
        patience: epochs without a better dev before it stops.
    """

    base: str = "hybrid-dpr"
    candidates: Annotated[int, msgspec.Meta(ge=2, le=DEPTH)] = 50
    length: Annotated[int, msgspec.Meta(ge=16, le=512)] = 64
    layers: Whole = 0
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


def text_of(tool: Tool, length: int) -> str:
    """What is read of a tool, in so many pieces."""
    return render(tool, STYLE)[: MAX_CHARS_PER_PIECE * length]


# --- the judge --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Blend:
    """From a cross-encoder's logit and the first stage's score to a probability.

    `p = σ(slope · (logit + weight · z) + offset)`, `z = (score - highest score) / spread`.

    Attributes:
        weight: of the first stage.
        spread: mean deviation of its scores for a query.
        far: z of a tool that is none of the candidates: the mean of the last ones.
        slope: of the logistic curve.
        offset: of the logistic curve.
    """

    weight: float = 0.0
    spread: float = 1.0
    far: float = 0.0
    slope: float = 1.0
    offset: float = 0.0

    def distances(self, scores: Array) -> Floats:
        """Z of candidates, best first, `(…, n)`."""
        return np.asarray((scores - scores[..., :1]) / self.spread)

    def shares(self, logits: Array, distances: Array | float) -> Floats:
        """How likely each tool is needed, 0 to 1."""
        return sigmoid(self.slope * (logits + self.weight * np.asarray(distances)) + self.offset)


class Judge:
    """Reads a query with tools of a catalogue → how likely it needs each.

    It is the caller's wording that is read, as in the fit, also over a first stage that rewrites.
    """

    def __init__(self, reader: PairScorer, tools: Sequence[Tool], blend: Blend) -> None:
        """Take the graph, the catalogue, and what makes a probability of a logit."""
        self.reader, self.blend = reader, blend
        self.tools = {tool.id: tool for tool in tools}

    def logits(self, query: str, ids: Sequence[str], deadline: float | None = None) -> Floats:
        """Of the tools, in this order; fewer where the deadline came first."""
        return self.reader.logits(query, [text_of(self.tools[each], self.reader.length) for each in ids], deadline)

    def others(self, search: Search, ids: Sequence[str]) -> Floats:
        """How likely tools are that the first stage did not name; fewer where the deadline came first."""
        return self.blend.shares(self.logits(search.query, ids, search.deadline), self.blend.far)

    def __call__(self, searches: Sequence[Search]) -> list[list[float]]:
        """A score for each hit of each search. One search takes one thread; of a batch, many are done side by side."""
        if len(searches) == 1:
            return [self._of(searches[0])]
        return list(_threads().map(self._of, searches))

    def _of(self, search: Search) -> list[float]:
        logits = self.logits(search.query, search.ids, search.deadline)
        distances = self.blend.distances(np.array([hit.score for hit in search.hits]))
        shares: list[float] = self.blend.shares(logits, distances[: len(logits)]).tolist()
        return shares


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Of the process: what is kept of readings has one connection for each."""
    return ThreadPoolExecutor(os.cpu_count(), "pairs")


if hasattr(os, "register_at_fork"):  # a child has none of these threads
    os.register_at_fork(after_in_child=_threads.cache_clear)


class Judging(Rerank):
    """The first hits in the order of a `Judge`."""

    def __init__(self, judge: Judge, depth: int, below: Stage | None = None) -> None:
        """Take the judge, how many hits it reads, and the first stage: one over another one has a label of its own."""
        stages = below.stages if isinstance(below, Pipeline) else ()
        others = sum(isinstance(stage, Judging) for stage in stages)
        super().__init__(
            judge, label=f"{CROSSENCODER_LABEL} {others + 1}" if others else CROSSENCODER_LABEL, depth=depth
        )
        self.judge = judge


def split_stage(stage: Stage, name: str) -> tuple[Stage, Judging]:
    """The first stage of a cross-encoder's recipe, and its judge.

    Raises:
        ConfigError: if the recipe `name` is another one.
    """
    last = stage.stages[-1] if isinstance(stage, Pipeline) else stage
    if not isinstance(stage, Pipeline) or not isinstance(last, Judging):
        raise ConfigError(f"expected a cross-encoder, found {name}")
    return Pipeline(stage.stages[:-1]), last


# --- the fit ----------------------------------------------------------------------------------------------------------


def _of_base(model: Model | None) -> TransformerEncoder | None:
    """The tuned encoder that the first stage, or what that goes on from, brings; None: there is none."""
    folder = model.folder if model is not None else None
    while folder is not None and folder.is_dir():
        if (folder / FOLDER).is_dir():
            return TransformerEncoder(str(folder / FOLDER))
        folder = folder / BASE_FOLDER
    return None


def _encodes(stage: Stage) -> bool:
    """Whether a first stage that is not fitted asks the encoder that is set."""
    if isinstance(stage, Pipeline | Fuse):
        return any(map(_encodes, stage.stages if isinstance(stage, Pipeline) else stage.branches))
    return isinstance(stage, Retrieve) and stage.encode is not None


def _wrong(learned: Ranked, gold: Sequence[Places], n: int, unused: bool) -> list[Places]:
    """Places of the candidates of each query that it does not need."""
    allowed = np.zeros(n, dtype=np.bool_)
    allowed[np.unique(np.concatenate(gold))] = True
    if unused:
        allowed[:] = True
    rows = [row[~right & (row >= 0)] for row, right in zip(learned.candidates, learned.gold, strict=True)]
    return [row[allowed[row]] for row in rows]


def _scale(learned: Ranked) -> Blend:
    """The blend's constants, from the first stage's scores for the training queries."""
    rows = [row[there >= 0] for row, there in zip(learned.scores, learned.candidates, strict=True)]
    rows = [row for row in rows if len(row) > 1]
    spread = float(np.mean([row.std() for row in rows])) if rows else 1.0
    spread = spread or 1.0
    return Blend(spread=spread, far=float(np.mean([(row[-1] - row[0]) / spread for row in rows])) if rows else 0.0)


class _Study:
    """The dev queries with their candidates: where the epoch and the blend are chosen."""

    def __init__(self, lesson: Lesson, dev: Ranked, scale: Blend, options: Options) -> None:
        self.lesson, self.dev, self.scale, self.options = lesson, dev, scale, options
        self.there = dev.candidates >= 0
        self.ids = [tool.id for tool in lesson.tools]
        self.distances = np.where(self.there, scale.distances(dev.scores), 0.0)

    def pairs(self, texts: Sequence[str]) -> tuple[list[str], list[str]]:
        """The texts of every query, once for each of its candidates, and of these."""
        rows, columns = np.nonzero(self.there)
        asked = [self.lesson.texts[query] for query in self.dev.queries]
        return [asked[row] for row in rows], [texts[place] for place in self.dev.candidates[rows, columns]]

    def judge(self, totals: Floats) -> metrics.PerQuery:
        """The figures of the candidates in this order."""
        rankings = self.dev.rankings(totals, 0.0, self.ids)
        golds = {query: self.lesson.dev[query] for query in self.dev.queries}
        return metrics.score(rankings, golds, DEV_METRICS)

    def choose(self, logits: Floats) -> tuple[Blend, dict[str, float]]:
        """The weight of the first stage (see `trust`), as a curve over all pairs, and its figures."""
        if logits.ndim == 1:
            logits, flat = np.zeros(self.there.shape), logits
            logits[self.there] = flat
        weights = CROSSENCODER_BLEND_GRID if self.options.blend is None else (self.options.blend,)
        found = {weight: self.judge(logits + weight * self.distances) for weight in weights}
        best = trust(found)
        blend = dataclasses.replace(self.scale, weight=best, slope=1 / (1 + best))
        totals = (logits + best * self.distances)[self.there]
        if totals.size:
            slope, offset = logistic(totals[:, None], self.dev.gold[self.there], CALIBRATION_RIDGE).tolist()
            if slope > 0:
                blend = dataclasses.replace(blend, slope=slope, offset=offset)
        return blend, found[best].means()


def cache_judge(workspace: Workspace, lesson: Lesson, judge: Judge) -> Judge:
    """The judge for a fit: what it reads is kept, so that a fit that was interrupted goes on where it was."""
    return Judge(cache_pairs(judge.reader, workspace.pairs or PairCache(workspace.work)), lesson.tools, judge.blend)


def read_all(workspace: Workspace, lesson: Lesson, ranked: Ranked, judge: Judge) -> Floats:
    """The logits of every query with each of its candidates, (queries, N), by the graph that will serve."""
    found = np.zeros(ranked.candidates.shape)
    for row, query in enumerate(ranked.queries):
        if row % QUERIES_PER_PROGRESS_LINE == 0:
            workspace.say(f"reading: {row:,} of {len(ranked.queries):,} dev queries with {found.shape[1]} tools each")
        ids = [lesson.tools[place].id for place in ranked.candidates[row] if place >= 0]
        found[row, : len(ids)] = judge.logits(lesson.texts[query], ids)
    return found


def _probes(workspace: Workspace, lesson: Lesson, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Some pairs of a training query and a tool."""
    queries = [lesson.texts[query] for query in lesson.train]
    random = np.random.default_rng(workspace.seed)
    return [
        (queries[int(one)], texts[int(other)])
        for one, other in zip(
            random.integers(len(queries), size=CALIBRATION_PAIRS),
            random.integers(len(texts), size=CALIBRATION_PAIRS),
            strict=True,
        )
    ]


def export(
    net: CrossEncoder, folder: Path, precise: Literal["int8", "float32"], probes: Sequence[tuple[str, str]]
) -> None:
    """Write a cross-encoder as a folder that `OnnxPairs` reads.

    Args:
        net: the cross-encoder.
        folder: where to; it is made.
        precise: how the graph computes.
        probes: some queries with a tool, in which the peaks of the activations are looked for.
    """
    from toolscout.encoders.onnx_export import trace_to_onnx
    from toolscout.encoders.onnx_int8 import to_int8

    model = net.tower.model.float().to("cpu")
    graph = trace_to_onnx(net.float().to("cpu"), INPUTS if net.typed else INPUTS[:2], OUTPUT)
    tokenizer = str(model.tokenizer.backend_tokenizer.to_str())
    write(folder, graph, tokenizer)
    if precise == "int8":
        made = OnnxPairs(folder, net.length)
        to_int8(graph, [made.feed(made.pieces(query, [text])) for query, text in probes])
        write(folder, graph, tokenizer)


class CrossEncoderRerank:
    """Reads the query with each of the first tools of another recipe."""

    options_type = Options
    needs_usage = True
    transfers = True
    abstains = False
    base: BaseRule | None = None

    def fit(self, workspace: Workspace, lesson: Lesson, options: Options) -> Artifacts:
        """Rank the queries with the first stage, tune the cross-encoder, write its graph, and choose the blend on dev.

        Raises:
            MissingExtra: without torch, sentence-transformers or onnx.
            ConfigError: if the encoder cannot be tuned, or there is nothing to train on.
        """
        from toolscout.training.crossencoders import CrossEncoder, PairData, PairTask

        assert lesson.base is not None
        raw = require_tunable(workspace.load_encoder())
        own = _of_base(lesson.base.model) if options.start == "base" else None
        started = own or raw
        workspace.say(f"ranking {len(lesson.train) + len(lesson.dev):,} queries with {lesson.base.recipe}")
        place = {tool.id: number for number, tool in enumerate(lesson.tools)}
        judged = dict(list(lesson.dev.items())[:: -(-len(lesson.dev) // options.judged)])
        learned, dev = (Ranked(lesson, qrels, options.candidates, place) for qrels in (lesson.train, judged))
        tower = make_tower(started, options)
        net = CrossEncoder(tower, length=options.length, layers=options.layers, seed=workspace.seed)
        texts = [text_of(tool, options.length) for tool in lesson.tools]
        gold = [np.array([place[tool] for tool in tools], dtype=np.intp) for tools in lesson.train.values()]
        study = _Study(lesson, dev, _scale(learned), options)
        pairs = net.pairs(*study.pairs(texts))
        wrong = _wrong(learned, gold, len(texts), options.unused)
        task = PairTask(
            net,
            PairData([lesson.texts[query] for query in lesson.train], texts, gold, wrong),
            negatives=options.negatives,
            loss=options.loss,
            fast=options.fast,
            judge=lambda: study.choose(net.logits(pairs))[1],
            identity=digest("crossencoder/1", [started.fingerprint, lesson.base.identity, lesson.fingerprint, options]),
        )
        done = train_task(workspace, options, task, tower)
        workspace.say(f"writing the graph in {options.precise}")
        graphs = workspace.work / GRAPHS
        export(net, graphs, options.precise, _probes(workspace, lesson, texts))
        judge = cache_judge(workspace, lesson, Judge(OnnxPairs(graphs, options.length), lesson.tools, Blend()))
        logits = read_all(workspace, lesson, dev, judge)
        blend, figures = study.choose(logits)
        base = lesson.base

        def files(folder: Path) -> None:
            base.save(folder)
            graphs.rename(folder / GRAPHS)

        return Artifacts(
            {},
            metrics=figures,
            encoder=raw if base.model is None and _encodes(base.stage) else None,
            chosen={"blend": blend.weight} if options.blend is None else {},
            values={
                "blend": dataclasses.asdict(blend),
                "first_stage": study.judge(dev.scores).means(),
                "logits_alone": study.judge(logits).means(),
                "in_training": done.figures,
                "judged": len(judged),
                **describe_training(done),
            },
            seconds_before=done.earlier,
            files=files,
        )

    def build(self, workspace: Workspace, catalogue: Catalogue, model: Model) -> Stage:
        """The first stage, and its first tools in the order of the cross-encoder."""
        settings = model.manifest.settings
        reader = OnnxPairs(model.folder / GRAPHS, settings["length"].value)
        judge = Judge(cache_pairs(reader, workspace.pairs), catalogue.tools(), Blend(**model.manifest.values["blend"]))
        first = workspace.build_base(catalogue, model)
        return first >> Judging(judge, settings["candidates"].value, first)
