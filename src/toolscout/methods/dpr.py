"""A fine-tuned bi-encoder: queries and tools are texts of one encoder, which learns to bring them together.

`dpr` sets all gold tools of a query against the whole catalogue; `dpr-inbatch` is the recipe of the papers, one
positive against the other tools of its batch. Tools that training never saw are found by the same encoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import numpy as np

from toolscout.arrays import Places, Vectors
from toolscout.catalogue.store import Catalogue
from toolscout.dataset import Qrels
from toolscout.encoders import Kind, split_identifiers
from toolscout.encoders.transformer import TransformerEncoder
from toolscout.indexes import top_k
from toolscout.indexes.sparse import BM25
from toolscout.methods import Artifacts, BaseRule, zero_shot
from toolscout.methods.lesson import Base, Lesson
from toolscout.methods.shared.novelty import choose_margin, set_new_tools_back
from toolscout.methods.shared.tuning import (
    FOLDER,
    Amount,
    Batch,
    Count,
    Positive,
    Tuning,
    Whole,
    describe_training,
    make_tower,
    require_tunable,
    save_encoder,
    train_task,
)
from toolscout.models.model_store import Model
from toolscout.search.pipeline import Stage
from toolscout.types import Tool, digest, render
from toolscout.workspace import Workspace

__all__ = [
    "STYLE",
    "TUNES_ENCODER",
    "Dpr",
    "FittedEncoder",
    "Options",
    "SearchTuned",
    "encoder_of",
    "encoder_of_base",
    "nearest",
    "tune",
]

STYLE: Final = "short"
TUNES_ENCODER: Final = BaseRule("tool_length", "a recipe that tunes an encoder (dpr)")
DEV_DEPTH: Final = 10
HARD_NEGATIVE_DEPTH: Final = 30  # wrong tools by words, from which the first hard negatives of a query are drawn


class Options(Tuning, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit; `batch` counts pairs where `negatives` is `batch`.

    Attributes:
        negatives: `catalogue`: all gold tools of a query against the catalogue; `batch`: one against its batch.
        whole: a catalogue of more tools than this is sampled at each step.
        sampled: tools drawn at random for a step, of such a catalogue.
        hard: hard negatives of a query at a step, of such a catalogue.
        patience: epochs without a better dev before it stops.
        temperature: cosines are divided by it.
        tool_length: tokens after which the text of a tool is cut, in training and later.
        margin: by how much nearer a tool that training did not use must be, in cosine; None: the best on dev (see
            `methods.shared.novelty`).
        hold: tokens of a step that are held with their graph, 150 KB each in MiniLM; gradients of larger steps are
            cached, which costs a third more time.
    """

    negatives: Literal["catalogue", "batch"] = "catalogue"
    whole: Count = 1_000
    sampled: Count = 512
    hard: Whole = 2
    epochs: Count = 4
    batch: Batch = 384
    rate: Positive = 2e-4
    patience: Count = 2
    temperature: Positive = 0.05
    tool_length: Annotated[int, msgspec.Meta(ge=8)] = 64
    margin: Amount | None = None
    hold: Whole = 32_768


class FittedEncoder(TransformerEncoder):
    """The encoder of a fitted model; texts of tools are cut where they were cut in training.

    Attributes:
        tool_length: in tokens.
    """

    def __init__(self, folder: Path | str, tool_length: int) -> None:
        """Load the folder of the encoder, or whatever else an encoder is loaded from."""
        super().__init__(str(folder))
        self.tool_length = tool_length
        self.fingerprint = digest("fitted/1", [self.fingerprint, tool_length])

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Texts → `(n, dim)` float32 unit rows."""
        return super().encode(self._shorten(texts) if kind == "tool" else texts, kind)

    def _shorten(self, texts: Sequence[str]) -> list[str]:
        whole = [split_identifiers(text) for text in texts]
        if not whole:
            return whole
        found = self.model.tokenizer(whole, truncation=True, max_length=self.tool_length, return_offsets_mapping=True)
        ends = [max(end for _, end in spans) for spans in found["offset_mapping"]]
        return [text[:end] for text, end in zip(whole, ends, strict=True)]


def nearest(cosines: Vectors, queries: Qrels, tools: Sequence[Tool]) -> dict[str, list[str]]:
    """Query id → the ids of its nearest tools; rows in the order of the queries."""
    return {
        query: [tools[number].id for number in top_k(row, DEV_DEPTH)]
        for query, row in zip(queries, cosines, strict=True)
    }


def _by_words(lesson: Lesson, place: Mapping[str, int]) -> list[Places]:
    depth = HARD_NEGATIVE_DEPTH + max(map(len, lesson.train.values()))
    ids, _ = BM25.build(lesson.tools).search([lesson.texts[query] for query in lesson.train], depth)
    return [np.array([place[tool] for tool in found], dtype=np.intp) for found in ids]


def encoder_of(model: Model) -> FittedEncoder:
    """The encoder that a model brings, for methods that go on from it."""
    return FittedEncoder(model.folder / FOLDER, model.manifest.settings["tool_length"].value)


def encoder_of_base(base: Base) -> FittedEncoder:
    """The encoder that the first stage of another method brings; that it has one, `TUNES_ENCODER` has seen to."""
    assert base.model is not None
    return encoder_of(base.model)


def tune(workspace: Workspace, lesson: Lesson, options: Options) -> Artifacts:
    """Tune the encoder on the training queries, and keep the epoch that is best on dev by ndcg@5.

    Raises:
        MissingExtra: without torch or sentence-transformers.
        ConfigError: if the encoder cannot be tuned, or there is nothing to train on.
    """
    from toolscout.training.biencoders import InBatch, Lists, Texts

    encoder = require_tunable(workspace.load_encoder())
    tower = make_tower(encoder, options)
    place = {tool.id: number for number, tool in enumerate(lesson.tools)}
    texts = Texts(
        tower=tower,
        queries=tower.tokens([lesson.texts[query] for query in lesson.train], "query"),
        tools=tower.tokens([render(tool, STYLE) for tool in lesson.tools], "tool", options.tool_length),
        gold=[np.array([place[tool] for tool in tools], dtype=np.intp) for tools in lesson.train.values()],
        dev=tower.tokens([lesson.texts[query] for query in lesson.dev], "query"),
        judge=lambda cosines: lesson.evaluate(nearest(cosines, lesson.dev, lesson.tools)).means(),
        identity=digest("dpr/1", [encoder.fingerprint, lesson.fingerprint, options]),
        temperature=options.temperature,
        hold=options.hold,
    )
    task: Lists | InBatch
    if options.negatives == "batch":
        task = InBatch(texts)
    elif len(lesson.tools) <= options.whole:
        task = Lists(texts)
    else:
        task = Lists(texts, sampled=options.sampled, hard=options.hard, by_words=lambda: _by_words(lesson, place))
    done = train_task(workspace, options, task, tower)
    used = np.zeros(len(lesson.tools), dtype=np.bool_)
    used[np.concatenate(texts.gold)] = True
    chosen, figures = options.margin or 0.0, done.figures
    if lesson.dev and not used.all():
        chosen, figures = choose_margin(lesson, texts.cosines(), used, options.margin)
    return Artifacts(
        {"used": used},
        metrics=figures,
        chosen={"margin": chosen} if options.margin is None else {},
        values=describe_training(done),
        seconds_before=done.earlier,
        files=save_encoder(tower.model),
    )


class SearchTuned:
    """What methods share that tune an encoder and search with it."""

    needs_usage = True
    transfers = True
    abstains = False
    base: BaseRule | None = None

    def build(self, workspace: Workspace, catalogue: Catalogue, model: Model) -> Stage:
        """The nearest tools by the fitted encoder."""
        stage = zero_shot.search_vectors(workspace, catalogue, encoder_of(model), STYLE)
        return set_new_tools_back(stage, catalogue, model)


class Dpr(SearchTuned):
    """Tunes an encoder, and finds the tools nearest to the query."""

    options_type = Options

    def fit(self, workspace: Workspace, lesson: Lesson, options: Options) -> Artifacts:
        """See `tune`."""
        return tune(workspace, lesson, options)
