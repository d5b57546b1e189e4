"""A fine-tuned bi-encoder: queries and tools are texts of one encoder, which learns to bring them together.

`dpr` sets all gold tools of a query against the whole catalogue; `dpr-inbatch` is the recipe of the papers, one
positive against the other tools of its batch. Tools that training never saw are found by the same encoder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.dataset import Qrels
from toolscout.encoders import Kind, Vectors, split_identifiers
from toolscout.encoders.transformer import TransformerEncoder
from toolscout.indexes import top_k
from toolscout.indexes.sparse import BM25
from toolscout.methods import Base, Fitting, Parts, zero_shot
from toolscout.methods.shared.novelty import behind, margin
from toolscout.methods.shared.tuning import (
    FOLDER,
    Amount,
    Batch,
    Count,
    Positive,
    Tuning,
    Whole,
    about,
    kept,
    tower_of,
    trained,
    tunable,
)
from toolscout.models.model_store import Model
from toolscout.search.pipeline import Stage
from toolscout.types import Tool, digest, render

__all__ = ["BRINGS", "STYLE", "FittedEncoder", "Options", "encoder_of", "encoder_of_base", "fit", "make", "nearest"]

STYLE: Final = "short"
BRINGS: Final = ("tool_length", "a recipe that tunes an encoder (dpr)")
DEPTH: Final = 10
NEAR: Final = 30  # wrong tools by words, from which the first hard negatives of a query are drawn


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
            `methods.novelty`).
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
        return super().encode(self._cut(texts) if kind == "tool" else texts, kind)

    def _cut(self, texts: Sequence[str]) -> list[str]:
        whole = [split_identifiers(text) for text in texts]
        if not whole:
            return whole
        found = self.model.tokenizer(whole, truncation=True, max_length=self.tool_length, return_offsets_mapping=True)
        ends = [max(end for _, end in spans) for spans in found["offset_mapping"]]
        return [text[:end] for text, end in zip(whole, ends, strict=True)]


def fit(job: Fitting) -> None:
    """Tune the job's encoder on its queries, and keep the epoch that is best on dev by ndcg@5.

    Raises:
        MissingExtra: without torch or sentence-transformers.
        ConfigError: if the encoder cannot be tuned, or there is nothing to train on.
    """
    from toolscout.training.biencoders import InBatch, Lists, Texts

    options: Options = job.options
    encoder = tunable(job.loaded())
    tower = tower_of(encoder, options)
    place = {tool.id: number for number, tool in enumerate(job.tools)}
    texts = Texts(
        tower=tower,
        queries=tower.tokens([job.texts[query] for query in job.train], "query"),
        tools=tower.tokens([render(tool, STYLE) for tool in job.tools], "tool", options.tool_length),
        gold=[np.array([place[tool] for tool in tools], dtype=np.intp) for tools in job.train.values()],
        dev=tower.tokens([job.texts[query] for query in job.dev], "query"),
        judge=lambda cosines: job.judge(nearest(cosines, job.dev, job.tools)),
        identity=digest("dpr/1", [encoder.fingerprint, job.data.fingerprint, options]),
        temperature=options.temperature,
        hold=options.hold,
    )
    task: Lists | InBatch
    if options.negatives == "batch":
        task = InBatch(texts)
    elif len(job.tools) <= options.whole:
        task = Lists(texts)
    else:
        task = Lists(texts, sampled=options.sampled, hard=options.hard, by_words=lambda: _by_words(job, place))
    done = trained(job, task, tower)
    used = np.zeros(len(job.tools), dtype=np.bool_)
    used[np.concatenate(texts.gold)] = True
    chosen, figures = options.margin or 0.0, done.figures
    if job.dev and not used.all():
        chosen, figures = margin(job, texts.cosines(), used, options.margin)
    job.save(
        {"used": used},
        metrics=figures,
        chosen={"margin": chosen} if options.margin is None else {},
        values=about(done),
        earlier=done.earlier,
        files=kept(tower.model),
    )


def nearest(cosines: Vectors, queries: Qrels, tools: Sequence[Tool]) -> dict[str, list[str]]:
    """Query id → the ids of its nearest tools; rows in the order of the queries."""
    return {
        query: [tools[number].id for number in top_k(row, DEPTH)] for query, row in zip(queries, cosines, strict=True)
    }


def _by_words(job: Fitting, place: Mapping[str, int]) -> list[npt.NDArray[np.intp]]:
    depth = NEAR + max(map(len, job.train.values()))
    ids, _ = BM25.build(job.tools).search([job.texts[query] for query in job.train], depth)
    return [np.array([place[tool] for tool in found], dtype=np.intp) for found in ids]


def make(parts: Parts, settings: Mapping[str, Any]) -> Stage:
    """The nearest tools by the fitted encoder."""
    model = parts.load(bound=False)
    return behind(
        zero_shot.dense(dataclasses.replace(parts, encoder=encoder_of(model)), {"style": STYLE}), parts, model
    )


def encoder_of(model: Model) -> FittedEncoder:
    """The encoder that a model brings, for methods that go on from it."""
    return FittedEncoder(model.folder / FOLDER, model.manifest.settings["tool_length"].value)


def encoder_of_base(base: Base) -> FittedEncoder:
    """The encoder that the first stage of another method brings; that it has one, `BRINGS` has seen to."""
    assert base.model is not None
    return encoder_of(base.model)
