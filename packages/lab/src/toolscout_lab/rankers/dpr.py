"""A fine-tuned bi-encoder: one encoder for queries and tools learns to place a query near its gold tools.

`dpr` contrasts all gold tools of a query with the whole catalogue. `dpr-inbatch` is the recipe of the papers: one
positive against the other tools of its batch. The same encoder serves tools that training never saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import numpy as np

from toolscout.arrays import Places, Vectors
from toolscout.dataset import Qrels
from toolscout.encoders import Kind, split_identifiers
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.indexes import top_k
from toolscout.indexes.bm25 import BM25
from toolscout.rankers import (
    Amount,
    Artifacts,
    BaseRule,
    Batch,
    Count,
    NonNegative,
    Positive,
    zero_shot,
)
from toolscout.rankers.lesson import Base, Lesson
from toolscout.search.pipeline import Stage
from toolscout.search.resources import Resources
from toolscout.types import Tool, digest, render
from toolscout_lab.encoders.transformer import TransformerEncoder
from toolscout_lab.rankers import LabMethod
from toolscout_lab.rankers.shared.novelty import choose_margin, demote_new_tools
from toolscout_lab.rankers.shared.tuning import (
    ENCODER_FOLDER,
    Tuning,
    describe_training,
    make_tower,
    require_tunable,
    save_encoder,
    train_task,
)

__all__ = [
    "TUNED_TEXT_STYLE",
    "TUNES_ENCODER",
    "Dpr",
    "DprOptions",
    "FittedEncoder",
    "SearchTuned",
    "load_base_encoder",
    "load_model_encoder",
    "rank_nearest",
    "tune_encoder",
]

TUNED_TEXT_STYLE: Final = "short"
TUNES_ENCODER: Final = BaseRule("tool_length", "a recipe that tunes an encoder (dpr)")
DEV_DEPTH: Final = 10
HARD_NEGATIVE_DEPTH: Final = 30  # wrong tools by BM25; the first epoch draws hard negatives from them


class DprOptions(Tuning, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit. `batch` counts pairs if `negatives` is `batch`.

    Attributes:
        negatives: `catalogue`: all gold tools of a query against the catalogue; `batch`: one against its batch.
        whole: maximum number of tools in a step; a step samples tools from a larger catalogue.
        sampled: tools that a step draws at random from such a catalogue.
        hard: hard negatives of a query per step in such a catalogue.
        patience: epochs without improvement on dev before training stops.
        temperature: divisor of the cosines.
        tool_length: maximum tokens of a tool's text, in training and in search.
        margin: cosine by which a tool that training did not use must be nearer; None: the best on dev (see
            `rankers.shared.novelty`).
        hold: maximum tokens of a step in memory with their graph, 150 KB each in MiniLM. Larger steps cache
            gradients, which costs a third more time.
    """

    negatives: Literal["catalogue", "batch"] = "catalogue"
    whole: Count = 1_000
    sampled: Count = 512
    hard: NonNegative = 2
    epochs: Count = 4
    batch: Batch = 384
    rate: Positive = 2e-4
    patience: Count = 2
    temperature: Positive = 0.05
    tool_length: Annotated[int, msgspec.Meta(ge=8)] = 64
    margin: Amount | None = None
    hold: NonNegative = 32_768


class FittedEncoder(TransformerEncoder):
    """The encoder of a fitted model. It cuts texts of tools as training did.

    Attributes:
        tool_length: maximum tokens of a tool's text.
    """

    def __init__(self, folder: Path | str, tool_length: int) -> None:
        """Load the encoder from a folder or by its name."""
        super().__init__(str(folder))
        self.tool_length = tool_length
        self.fingerprint = digest("fitted/1", [self.fingerprint, tool_length])

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Encode texts as `(n, dim)` float32 unit rows."""
        return super().encode(self._shorten(texts) if kind == "tool" else texts, kind)

    def _shorten(self, texts: Sequence[str]) -> list[str]:
        """Cut texts where the model would cut them, so that equal inputs have equal texts."""
        split = [split_identifiers(text) for text in texts]
        if not split:
            return split
        tokens = self.model.tokenizer(split, truncation=True, max_length=self.tool_length, return_offsets_mapping=True)
        ends = [max(end for _, end in spans) for spans in tokens["offset_mapping"]]
        return [text[:end] for text, end in zip(split, ends, strict=True)]


def rank_nearest(cosines: Vectors, queries: Qrels, tools: Sequence[Tool]) -> dict[str, list[str]]:
    """Map each query id to the ids of its nearest tools. Rows are in the order of the queries."""
    return {
        query: [tools[number].id for number in top_k(row, DEV_DEPTH)]
        for query, row in zip(queries, cosines, strict=True)
    }


def _rank_by_words(lesson: Lesson) -> list[Places]:
    """Return the positions of the first tools of each training query by BM25, for hard negatives."""
    place = lesson.positions()
    depth = HARD_NEGATIVE_DEPTH + max(map(len, lesson.train.values()))
    ids, _ = BM25.build(lesson.tools).search([lesson.texts[query] for query in lesson.train], depth)
    return [np.array([place[tool] for tool in ranking], dtype=np.intp) for ranking in ids]


def load_model_encoder(model: Model) -> FittedEncoder:
    """Load the encoder of a model, for methods that use it as their base."""
    return FittedEncoder(model.folder / ENCODER_FOLDER, model.manifest.settings["tool_length"].value)


def load_base_encoder(base: Base) -> FittedEncoder:
    """Load the encoder of a base. `TUNES_ENCODER` guarantees that it has one."""
    assert base.model is not None
    return load_model_encoder(base.model)


def tune_encoder(resources: Resources, lesson: Lesson, options: DprOptions) -> Artifacts:
    """Tune the encoder on the training queries; keep the epoch with the best ndcg@5 on dev.

    Raises:
        MissingExtra: without torch or sentence-transformers.
        ConfigError: if the encoder cannot be tuned, or there is nothing to train on.
    """
    from toolscout_lab.training.biencoders import InBatch, Lists, Texts

    encoder = require_tunable(resources.load_encoder())
    tower = make_tower(encoder, options)
    texts = Texts(
        tower=tower,
        queries=tower.tokens([lesson.texts[query] for query in lesson.train], "query"),
        tools=tower.tokens([render(tool, TUNED_TEXT_STYLE) for tool in lesson.tools], "tool", options.tool_length),
        gold=lesson.gold_positions(),
        dev=tower.tokens([lesson.texts[query] for query in lesson.dev], "query"),
        evaluate=lambda cosines: lesson.evaluate(rank_nearest(cosines, lesson.dev, lesson.tools)).means(),
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
        task = Lists(texts, sampled=options.sampled, hard=options.hard, by_words=lambda: _rank_by_words(lesson))
    done = train_task(resources, options, task, tower)
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


class SearchTuned(LabMethod):
    """Base of the methods that tune an encoder and search with it."""

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build the search for the nearest tools by the fitted encoder."""
        stage = zero_shot.search_vectors(resources, catalogue, load_model_encoder(model), TUNED_TEXT_STYLE)
        return demote_new_tools(stage, catalogue, model)


class Dpr(SearchTuned):
    """Tunes an encoder and returns the tools nearest to the query."""

    options_type = DprOptions

    def fit(self, resources: Resources, lesson: Lesson, options: DprOptions) -> Artifacts:
        """Tune the encoder; see `tune_encoder`."""
        return tune_encoder(resources, lesson, options)
