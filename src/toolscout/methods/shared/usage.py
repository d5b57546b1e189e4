"""Joins usage and description in one ranking, for methods that learn from logged queries.

From the queries it has seen, such a method estimates how likely a query needs each tool (usage). The words and the
vector of a tool's own text give a second estimate (description). The more often a tool was used, the more its usage
counts ::

    p(tool | query) = w · usage(tool | query) + (1 - w) · description(tool | query),    w = n / (n + κ)
    score           = log p(tool | query) + λ · log description(tool | query)

with n the training queries that use the tool. A tool without usage ranks by its description alone. It competes with the
others, because both sides are probabilities over the same catalogue. Its probability counts ν-fold, because requests
seldom need a tool that no request has needed before. With λ above 0, a tool with usage must fit by its description too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from toolscout.arrays import Checksums, Mask, Places, Scores, Vectors
from toolscout.catalogue.store import Catalogue
from toolscout.encoders import Encoder
from toolscout.indexes import place, rank, top_k
from toolscout.indexes.exact import Exact
from toolscout.indexes.sparse import BM25, CODE_SETTINGS
from toolscout.journal.evidence import Example
from toolscout.methods import BaseRule
from toolscout.methods.lesson import Lesson
from toolscout.methods.shared.ngrams import hash_features
from toolscout.methods.shared.tuning import Amount, Positive, Tuning
from toolscout.models.model_store import Model
from toolscout.search.fusion import DEPTH, WEIGHT
from toolscout.search.pipeline import Retrieve, Stage
from toolscout.types import Explanation, Tool
from toolscout.workspace import LiveEvidence, Workspace, index_words

__all__ = [
    "DESCRIPTION_ENCODER",
    "Blend",
    "DescriptionScorer",
    "FitData",
    "Grow",
    "TunedBlend",
    "UsageIndex",
    "UsageMethod",
    "UsageSide",
    "build_usage_stage",
    "choose_best",
    "mix_usage",
    "select_unset",
    "softmax",
    "weigh_usage",
]

Usage = Callable[[str, Vectors], Scores]
"""(query, its vector) → probability of each tool of the model, `(tools,)`. All zeros: usage does not know the query."""
Encode = Callable[[Sequence[str]], Vectors]
Grow = Callable[[Sequence[str], Sequence[Places], int], Usage]
"""(texts of new queries, the positions of their tools, how many tools there are) → usage that includes the new queries.

The tools of the model come first, then those that only new queries used.
"""

DESCRIPTION_ENCODER: Final = "static"  # encodes descriptions where the method's own encoder knows queries only
SHARPNESS_GRID: Final = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
KAPPA_GRID: Final = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
AGREEMENT_GRID: Final = (0.0, 0.25, 0.5, 1.0)
MIN_SHARE: Final = 1e-12
QUALITY_CUTOFF: Final = 5
Choice = TypeVar("Choice")


class Blend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `mix_usage`, for every method of this kind. None: the best on dev.

    Attributes:
        sharpness: factor of description scores before their softmax; None: the likeliest on dev.
        kappa: number of training queries that count as much as a description.
        agreement: how much a tool with usage must fit by its description too.
        novelty: how much the description of a tool without usage counts. Dev cannot choose it: dev comes from the same
            log as train and hardly ever needs a new tool. The defaults come from validation queries of MetaTool with a
            fifth of its tools hidden (benchmarks/hidden_tools.py).
        refit: whether the model is fitted on train and dev together in the end. It is off by default for a base of
            another fit: a base that has learned from dev looks better there than on new queries.
    """

    sharpness: Positive | None = None
    kappa: Amount | None = None
    agreement: Amount | None = None
    novelty: Amount = 0.8
    refit: bool = True


class TunedBlend(Tuning, frozen=True, forbid_unknown_fields=True):
    """Settings of `mix_usage` and of the encoder that is tuned for it; see `Blend`."""

    sharpness: Positive | None = None
    kappa: Amount | None = None
    agreement: Amount | None = None
    novelty: Amount = 0.8


def softmax(scores: Scores) -> Scores:
    """Return the softmax along the last axis."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Scores = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return shares


def weigh_usage(uses: Scores, kappa: float) -> Scores:
    """Return the weight of usage, n / (n + κ), `(tools,)`; 0 where there was none."""
    return np.asarray(np.divide(uses, uses + kappa, out=np.zeros(len(uses)), where=uses > 0))


def mix_usage(usage: Scores, described: Scores, weight: Scores, agreement: float, novelty: float) -> Scores:
    """Compute the score above, `(…, tools)`. Where usage knows nothing of a query, the description alone counts.

    Args:
        usage: probability by usage that each query needs each tool, `(…, tools)`.
        described: the same by description.
        weight: w of each tool, `(tools,)`; 0 where there was no usage.
        agreement: λ.
        novelty: ν.
    """
    by_text = np.where(weight > 0, 1 - weight, novelty) * described
    shares = np.where(usage.any(axis=-1, keepdims=True), weight * usage + by_text, described)
    scores: Scores = np.log(shares + MIN_SHARE) + agreement * np.log(described + MIN_SHARE)
    return scores


class DescriptionScorer:
    """Scores every tool of a catalogue by its description, with the formula of `hybrid`."""

    def __init__(self, words: BM25, meaning: Exact) -> None:
        """Score with both indexes, which hold the same tools."""
        self.words, self.meaning = words, meaning

    @classmethod
    def of(cls, workspace: Workspace, catalogue: Catalogue, encoder: Encoder) -> DescriptionScorer:
        """Index a catalogue."""
        return cls(index_words(catalogue), workspace.index_tools(catalogue, encoder))

    def scores(self, text: str, row: Vectors) -> Scores:
        """Return BM25 + 5 · cosine, `(tools,)`; cosines are scaled to 0 to 1, from the 100th best to the best."""
        scores = np.asarray(self.words.scores(text), dtype=np.float64)
        cosines = np.einsum("nd,d->n", self.meaning.vectors, row)
        highest = cosines.max()
        lowest = np.partition(cosines, -DEPTH)[-DEPTH] if len(cosines) > DEPTH else cosines.min()
        if row.any() and highest > lowest:
            scores += WEIGHT * np.clip((cosines - lowest) / (highest - lowest), 0, None)
        return scores


class UsageSide(NamedTuple):
    """The usage side of the ranking, aligned with a catalogue.

    Attributes:
        usage: see `Usage`; over the tools of the model.
        columns: position of each catalogue tool among the tools of the model; -1: none.
        weight: weight of usage for each catalogue tool; 0: there was none.
    """

    usage: Usage
    columns: Places
    weight: Scores

    @classmethod
    def of(cls, usage: Usage, columns: Places, uses: Scores, kappa: float) -> UsageSide:
        """Weigh usage by `uses`, the number of queries that used each tool of the model."""
        weight = weigh_usage(uses, kappa)[np.maximum(columns, 0)]
        return cls(usage, columns, np.where(columns >= 0, weight, 0.0))

    def shares(self, text: str, usage_row: Vectors) -> Scores:
        """Return the probability that the query needs each tool of the catalogue."""
        shares: Scores = self.usage(text, usage_row)[np.maximum(self.columns, 0)] * (self.columns >= 0)
        return shares


class UsageIndex:
    """An index that scores tools with `mix_usage`.

    Attributes:
        ids: ids of the catalogue's tools, ascending.
    """

    def __init__(
        self,
        ids: Sequence[str],
        *,
        encode: Encode,
        encode_for_usage: Encode | None,
        load_usage: Callable[[], UsageSide],
        described: DescriptionScorer,
        sharpness: float,
        agreement: float,
        novelty: float,
    ) -> None:
        """Join both sides of the ranking.

        Args:
            ids: ids of the catalogue's tools, ascending.
            encode: queries → rows for the description side.
            encode_for_usage: queries → rows for the usage side; None: the same rows.
            load_usage: returns the present usage side.
            described: the description side.
            sharpness: factor of description scores before the softmax.
            agreement: see `mix_usage`.
            novelty: see `mix_usage`.
        """
        self.ids = tuple(ids)
        self._encode, self._encode_for_usage, self._load_usage = encode, encode_for_usage, load_usage
        self._described = described
        self._sharpness, self._agreement, self._novelty = sharpness, agreement, novelty

    def scores(self, text: str, row: Vectors, usage_row: Vectors, side: UsageSide) -> Scores:
        """Score every tool, `(tools,)`, from the rows of both sides; -inf if neither side knows the query."""
        usage, described = side.shares(text, usage_row), self._described.scores(text, row)
        if not usage.any() and not described.any():
            return np.full(len(self.ids), -np.inf)
        return mix_usage(usage, softmax(self._sharpness * described), side.weight, self._agreement, self._novelty)

    def search(
        self, queries: Sequence[str], k: int, visible: Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[Vectors]]:
        """Return the likeliest tools of each query; see `toolscout.indexes`."""
        ids, values, side = [], [], self._load_usage()
        masks = visible if visible is not None else [None] * len(queries)
        for text, row, usage_row, mask in zip(queries, *self._rows(queries), masks, strict=True):
            scores = self.scores(text, row, usage_row, side)
            chosen = top_k(scores, k, mask, floor=-np.inf)
            ids.append([self.ids[position] for position in chosen])
            values.append(scores[chosen].astype(np.float32))
        return ids, values

    def _rows(self, queries: Sequence[str]) -> tuple[Vectors, Vectors]:
        rows = self._encode(queries)
        return rows, rows if self._encode_for_usage is None else self._encode_for_usage(queries)

    def explain(self, query: str, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain the exact rank and score of one tool, with the words of the query that its text has.

        Raises:
            NotFound: if the index has no such tool.
        """
        position, side = place(self.ids, tool_id), self._load_usage()
        [row], [usage_row] = self._rows([query])
        scores = self.scores(query, row, usage_row, side)
        words = self._described.words.explain(query, tool_id)
        if not np.isfinite(scores[position]):
            return Explanation("usage", None, None, "no word of the query is known", missing=words.missing)
        weight = side.weight[position]
        note = f"{weight:.0%} by usage" if weight else "by its description alone: no training query uses it"
        standing = rank(scores, position, visible)
        return Explanation("usage", standing, float(scores[position]), note, terms=words.terms, missing=words.missing)


def build_usage_stage(
    workspace: Workspace,
    catalogue: Catalogue,
    model: Model,
    encoder: Encoder,
    usage: Usage,
    *,
    label: str,
    encode_for_usage: Encode | None = None,
    grow: Grow | None = None,
) -> Stage:
    """Build the pipeline of a fitted method: usage and description over the present catalogue.

    Args:
        workspace: settings and caches.
        catalogue: the tools to search.
        model: has the array `uses` and the settings `sharpness`, `kappa`, `agreement` and `novelty`.
        encoder: of the description side.
        usage: of the usage side.
        label: name of the stage.
        encode_for_usage: queries → rows for `usage`; None: those of `encoder`.
        grow: see `Grow`, for methods that learn new queries without training; None: new queries wait for the next fit.
    """
    settings = model.manifest.settings
    tools = catalogue.tools()
    columns, kappa = model.places(tools), settings["kappa"].value
    fitted = UsageSide.of(usage, columns, model.arrays["uses"], kappa)
    index = UsageIndex(
        catalogue.ids,
        encode=lambda texts: encoder.encode(texts, "query"),
        encode_for_usage=encode_for_usage,
        load_usage=_make_growing(fitted, model, tools, grow, workspace.live, kappa)
        if grow and workspace.live
        else lambda: fitted,
        described=DescriptionScorer.of(workspace, catalogue, encoder),
        sharpness=settings["sharpness"].value,
        agreement=settings["agreement"].value,
        novelty=settings["novelty"].value,
    )
    return Retrieve(index, label=label, mask=catalogue.mask, depth=DEPTH)


class UsageMethod:
    """Base of the methods that learn the usage of single tools with the encoder of the workspace.

    Attributes:
        label: name of the stage.
    """

    needs_usage = True
    transfers = False
    abstains = False
    base: BaseRule | None = None
    label: str

    def load_usage(self, model: Model, encoder: Encoder) -> tuple[Usage, Grow | None]:
        """Return the usage side of a fitted model, and how it grows; see `Usage` and `Grow`."""
        raise NotImplementedError

    def build(self, workspace: Workspace, catalogue: Catalogue, model: Model) -> Stage:
        """Build the pipeline over a catalogue.

        Raises:
            ConfigError: if the model was fitted with another encoder, or knows no tool of the catalogue.
        """
        encoder = workspace.load_encoder()
        model.check_encoder(encoder)
        model.check_catalogue(catalogue.tools())
        usage, grow = self.load_usage(model, encoder)
        return build_usage_stage(workspace, catalogue, model, encoder, usage, label=self.label, grow=grow)


def _make_growing(
    fitted: UsageSide,
    model: Model,
    tools: Sequence[Tool],
    grow: Grow,
    live: LiveEvidence,
    kappa: float,
) -> Callable[[], UsageSide]:
    """Return a function that loads the usage side with the live examples, rebuilt when these change."""
    place_of = {tool.id: row for row, tool in enumerate(tools)}
    latest: list[tuple[int, UsageSide]] = [(0, fitted)]

    def load_usage() -> UsageSide:
        version, examples = live()
        if latest[0][0] != version:
            latest[0] = version, grow_usage(examples)
        return latest[0][1]

    def grow_usage(examples: Sequence[Example]) -> UsageSide:
        columns, count = fitted.columns.copy(), len(model.tools)
        texts, gold = [], []
        for example in examples:
            used = [place_of[tool] for tool in example.tools if tool in place_of]
            for row in used:
                if columns[row] < 0:  # a tool without usage in the model gets the next free column
                    columns[row], count = count, count + 1
            if used:
                texts.append(example.query)
                gold.append(columns[used])
        uses = np.zeros(count, dtype=np.float32)
        uses[: len(model.tools)] = model.arrays["uses"]
        for places in gold:
            uses[places] += 1
        return UsageSide.of(grow(texts, gold, count), columns, uses, kappa) if texts else fitted

    return load_usage


# --- fitting ----------------------------------------------------------------------------------------------------------


def choose_best(candidates: Iterable[Choice], quality: Callable[[Choice], float]) -> Choice:
    """Return the first candidate of the highest quality."""
    return max(candidates, key=quality)


class FitData:
    """The queries of a fit as arrays, and the choices that are made on dev.

    Attributes:
        ids: ids of the queries: train, then dev.
        texts: texts of the queries.
        rows: vectors of the queries, `(n, dim)` float32.
        gold: positions of the gold tools of each query.
        n_train: number of training queries.
        n_final: number of queries that the final model learns from.
    """

    def __init__(self, workspace: Workspace, lesson: Lesson, options: Any, encoder: Encoder) -> None:
        position = {tool.id: place for place, tool in enumerate(lesson.tools)}
        qrels = {**lesson.train, **lesson.dev}
        self.workspace, self.lesson, self.options = workspace, lesson, options
        self.ids = list(qrels)
        self.texts = [lesson.texts[query] for query in self.ids]
        self.rows = workspace.encode_queries(encoder, self.texts)
        self.gold = [np.array(sorted(position[tool] for tool in qrels[query])) for query in self.ids]
        self.n_train = len(lesson.train)
        self.n_final = len(self.ids) if getattr(options, "refit", False) else self.n_train
        self._dev_gold = np.zeros((len(lesson.dev), len(lesson.tools)), dtype=np.bool_)
        for row, gold in zip(self._dev_gold, self.gold[self.n_train :], strict=True):
            row[gold] = True
        self._described = self._describe(encoder)

    def _describe(self, encoder: Encoder) -> Scores:
        """Score the dev queries by description, `(dev, tools)`."""
        meaning = Exact(encoder.dim)
        meaning.upsert([tool.id for tool in self.lesson.tools], self.workspace.encode_tools(encoder, self.lesson.tools))
        described = DescriptionScorer(BM25.build(self.lesson.tools, CODE_SETTINGS), meaning)
        return np.array([described.scores(self.texts[i], self.rows[i]) for i in self.dev])

    @functools.cached_property
    def features(self) -> list[Checksums]:
        """Words and pairs of words of the texts; see `toolscout.methods.shared.ngrams`."""
        return [hash_features(text) for text in self.texts]

    @property
    def dev(self) -> range:
        """Positions of the dev queries."""
        return range(self.n_train, len(self.ids))

    def uses(self, n: int) -> Scores:
        """Count how many of the first `n` queries use each tool, `(tools,)`."""
        return np.bincount(np.concatenate(self.gold[:n]), minlength=len(self.lesson.tools)).astype(np.float32)

    def evaluate(self, scores: Scores) -> dict[str, float]:
        """Return the dev figures of scores, `(dev, tools)`."""
        tools = [tool.id for tool in self.lesson.tools]
        rankings = {
            self.ids[i]: [tools[place] for place in top_k(row, 20)] for i, row in zip(self.dev, scores, strict=True)
        }
        return self.lesson.evaluate(rankings).means()

    def quality(self, scores: Scores) -> float:
        """Return the mean of ndcg@5 (with equal grades) and comp@5 on dev, which choices maximise."""
        cut = min(QUALITY_CUTOFF, scores.shape[1])
        first = np.argpartition(-scores, cut - 1, axis=1)[:, :cut]
        order = np.argsort(-np.take_along_axis(scores, first, axis=1), axis=1, kind="stable")
        hits = np.take_along_axis(self._dev_gold, np.take_along_axis(first, order, axis=1), axis=1)
        discounts = 1 / np.log2(np.arange(cut) + 2)
        counts = self._dev_gold.sum(axis=1)
        ndcg = hits @ discounts / np.cumsum(discounts)[np.minimum(counts, cut) - 1]
        return float((ndcg.mean() + (hits.sum(axis=1) == counts).mean()) / 2)

    def likelihood(self, shares: Scores) -> float:
        """Return the mean log probability of the gold tools of dev, given probabilities `(dev, tools)`."""
        return float(
            np.mean([np.log(row[self.gold[i]] + MIN_SHARE).mean() for i, row in zip(self.dev, shares, strict=True)])
        )

    def choose_mix(self, usage: Scores) -> tuple[dict[str, Any], dict[str, float]]:
        """Choose on dev the settings of `mix_usage` that are not set; return them with their figures.

        Args:
            usage: probability that each dev query needs each tool, `(dev, tools)`, learned from train alone.
        """
        options = self.options
        sharpness = options.sharpness
        if sharpness is None:
            sharpness = choose_best(SHARPNESS_GRID, lambda factor: self.likelihood(softmax(factor * self._described)))
        described, uses = softmax(sharpness * self._described), self.uses(self.n_train)

        names = ("kappa", "agreement")
        grids = [
            grid if getattr(options, name) is None else (getattr(options, name),)
            for name, grid in zip(names, (KAPPA_GRID, AGREEMENT_GRID), strict=True)
        ]

        def scores(choice: tuple[float, ...]) -> Scores:
            kappa, agreement = choice
            return mix_usage(usage, described, weigh_usage(uses, kappa), agreement, options.novelty)

        choice = choose_best(itertools.product(*grids), lambda pair: self.quality(scores(pair)))
        return {"sharpness": sharpness, **dict(zip(names, choice, strict=True))}, self.evaluate(scores(choice))


def select_unset(options: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Select the entries of `chosen` that the options leave open."""
    return {name: value for name, value in chosen.items() if getattr(options, name) is None}
