"""Joins usage and description in one ranking, for methods that learn from logged queries.

From the queries that it has seen, such a method estimates how likely a query needs each tool: that is its usage side.
The words and the vector of a tool's own text give a second estimate, by its description. The more often a tool was
used, the more its usage counts ::

    p(tool | query) = w · usage(tool | query) + (1 - w) · description(tool | query),    w = n / (n + κ)
    score           = log p(tool | query) + λ · log description(tool | query)

with n the training queries that use the tool. A tool without usage ranks by its description alone. It competes with the
others, because both sides are probabilities over the same catalogue. Its probability is multiplied by ν, because
requests seldom need a tool that no request has needed before. With λ above 0, a tool with usage must fit by its
description too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from toolscout.arrays import Mask, Places, Scores, Vectors
from toolscout.encoders import Encoder, get_short_weight
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.journal.evidence import Example
from toolscout.home.models.model_store import Model
from toolscout.indexes import place, rank, top_k
from toolscout.indexes.bm25 import BM25
from toolscout.indexes.exact import MIN_COSINE_DEVIATION, Exact
from toolscout.rankers import Amount, Positive
from toolscout.search.home_resources import index_words
from toolscout.search.pipeline import DEPTH, WEIGHT, Retrieve, Stage, weigh_meaning
from toolscout.search.resources import LiveEvidence, Resources
from toolscout.types import Explanation, Tool

__all__ = [
    "DESCRIPTION_ENCODER",
    "Blend",
    "DescriptionScorer",
    "Encode",
    "FittedUsage",
    "Grow",
    "HybridScorer",
    "LiveEstimate",
    "LiveUsage",
    "Mix",
    "UsageIndex",
    "UsageSide",
    "build_usage_stage",
    "compute_standard_scores",
    "mix_usage",
    "softmax",
    "weigh_usage",
]

Usage = Callable[[str, Vectors], Scores]
"""(query, its vector) → probability of each tool of the model, `(tools,)`. All zeros: usage does not know the query."""
Encode = Callable[[Sequence[str]], Vectors]
"""Texts of queries → their vectors, a row for each."""


class LiveEstimate(NamedTuple):
    """What usage estimates for a query, when it has also learned from queries that came since the fit.

    Attributes:
        probabilities: of each tool, `(tools,)`; see `Usage`.
        fresh: the part of them that comes from the newer queries, `(tools,)`; None: the method cannot tell.
    """

    probabilities: Scores
    fresh: Scores | None = None


LiveUsage = Callable[[str, Vectors], LiveEstimate]
"""(query, its vector) → estimate for each tool of the model and each tool that only newer queries used."""
Grow = Callable[[Sequence[str], Sequence[Places], int], LiveUsage]
"""(texts of new queries, the positions of their tools, how many tools there are) → usage with the new queries.

The model stays as it was fitted; the queries since the fit are taken in beside it.
The tools of the model come first, then those that only new queries used.
"""

DESCRIPTION_ENCODER: Final = "static"  # encodes descriptions where the method's own encoder knows queries only
MIN_PROBABILITY: Final = 1e-12
Scorer = TypeVar("Scorer", bound="DescriptionScorer")


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


def softmax(scores: Scores) -> Scores:
    """Return the softmax along the last axis."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities: Scores = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def weigh_usage(uses: Scores, kappa: float) -> Scores:
    """Return the weight of usage, n / (n + κ), in the shape of `uses`; 0 where there was none."""
    return np.asarray(np.divide(uses, uses + kappa, out=np.zeros(uses.shape), where=uses > 0))


def mix_usage(
    usage: Scores,
    description: Scores,
    weight: Scores,
    agreement: float,
    novelty: float,
    fitted_weight: Scores | None = None,
) -> Scores:
    """Compute the score by the formula of this module, `(…, tools)`.

    If usage knows nothing of a query (all zeros), the description alone counts.

    Args:
        usage: probability by usage that each query needs each tool, `(…, tools)`.
        description: the same by description.
        weight: w of each tool, `(tools,)` or `(…, tools)`; 0 where there was no usage.
        agreement: λ.
        novelty: ν.
        fitted_weight: w at the fit, if `weight` counts newer queries too. Newer queries then add to usage, and take
            nothing from the description. Otherwise a caller could hide a tool by using it for meaningless requests.
    """
    described = weight if fitted_weight is None else fitted_weight  # 1 - described is the weight of the description
    description_part = np.where(described > 0, 1 - described, novelty) * description
    knows_query = usage.any(axis=-1, keepdims=True)
    probabilities = np.where(knows_query, weight * usage + description_part, description)
    scores: Scores = np.log(probabilities + MIN_PROBABILITY) + agreement * np.log(description + MIN_PROBABILITY)
    return scores


class DescriptionScorer:
    """Scores every tool of a catalogue by its description, with the formula of `hybrid`."""

    def __init__(self, words: BM25, meaning: Exact, encoder: Encoder) -> None:
        """Score with both indexes, which must have the same tools; `encoder` made the vectors."""
        self.words, self.meaning, self.encoder = words, meaning, encoder

    @classmethod
    def of(cls: type[Scorer], resources: Resources, catalogue: Catalogue, encoder: Encoder) -> Scorer:
        """Index a catalogue, and return the scorer of its tools."""
        return cls(index_words(catalogue), resources.index_tools(catalogue, encoder), encoder)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode queries as rows for `scores`."""
        return self.encoder.encode(texts, "query")

    def scores(self, text: str, row: Vectors) -> Scores:
        """Return BM25 + 5 · cosine for each tool, `(tools,)`. Cosines are scaled: the 100th best is 0, the best is 1.

        Args:
            text: the query.
            row: its vector, as `encode` makes it.
        """
        scores = np.asarray(self.words.scores(text), dtype=np.float64)
        cosines = np.einsum("nd,d->n", self.meaning.vectors, row)
        highest = cosines.max()
        lowest = np.partition(cosines, -DEPTH)[-DEPTH] if len(cosines) > DEPTH else cosines.min()
        if row.any() and highest > lowest:
            scores += WEIGHT * np.clip((cosines - lowest) / (highest - lowest), 0, None)
        return scores


class HybridScorer(DescriptionScorer):
    """Scores as `hybrid` does today, with standard scores. `DescriptionScorer` has the formula of its first version."""

    def scores(self, text: str, row: Vectors) -> Scores:
        """Return BM25 + weight · standard score, `(tools,)`; see `search.pipeline.add_standard_scores`."""
        scores = np.asarray(self.words.scores(text), dtype=np.float64)
        weight = weigh_meaning(text, get_short_weight(self.encoder))
        return scores + weight * compute_standard_scores(self.meaning, row)


def compute_standard_scores(index: Exact, row: Vectors) -> Scores:
    """Return the standard scores of all tools for a query's vector, `(tools,)`; 0 for cosines below the mean.

    See `toolscout.indexes.exact.StandardScores`.
    """
    mean, deviation = index.describe_cosines(row)
    if deviation < MIN_COSINE_DEVIATION:
        return np.zeros(len(index.vectors))
    scores: Scores = (np.einsum("nd,d->n", index.vectors, row) - mean) / deviation
    return np.clip(scores, 0, None)


class Mix(NamedTuple):
    """How usage and description are joined; see `Blend` and `UsageIndex.scores`.

    Attributes:
        sharpness: factor of description scores before the softmax.
        agreement: λ of `mix_usage`.
        novelty: ν of `mix_usage`.
        on_description_scale: whether the final scores have the scale of the description scores; False: they are log
            probabilities.
    """

    sharpness: float
    agreement: float
    novelty: float
    on_description_scale: bool = False


class FittedUsage(NamedTuple):
    """The usage side of a fitted model.

    Attributes:
        usage: see `Usage`; over the tools of the model.
        grow: see `Grow`, for methods that learn new queries without training; None: new queries wait for the next fit.
        encode: queries → rows for `usage`; None: it reads the rows of the description side.
    """

    usage: Usage
    grow: Grow | None = None
    encode: Encode | None = None


class UsageSide(NamedTuple):
    """The usage side of the ranking, aligned with a catalogue.

    Attributes:
        usage: see `Usage`; over the tools of the model.
        columns: position of each catalogue tool among the tools of the model; -1: none.
        weight: weight of usage for each catalogue tool; 0: there was none.
        fitted_weight: the weight that it had at the fit, without newer queries.
    """

    usage: Usage
    columns: Places
    weight: Scores
    fitted_weight: Scores

    @classmethod
    def of(
        cls, usage: Usage, columns: Places, uses: Scores, kappa: float, fitted_uses: Scores | None = None
    ) -> UsageSide:
        """Align usage with a catalogue, and weigh each tool by the number of queries that used it.

        Args:
            usage: scores the tools of the model.
            columns: position of each catalogue tool among the tools of the model; -1: none.
            uses: number of queries that used each tool, `(tools of the model,)`.
            kappa: number of uses at which usage and description count alike.
            fitted_uses: the same number at the fit; None: no query came after the fit.
        """

        def weigh(counts: Scores) -> Scores:
            """Return the weight of each catalogue tool, from the number of queries of each tool of the model."""
            return np.where(columns >= 0, weigh_usage(counts, kappa)[np.maximum(columns, 0)], 0.0)

        return cls(usage, columns, weigh(uses), weigh(uses if fitted_uses is None else fitted_uses))

    def estimate_probabilities(self, text: str, usage_row: Vectors) -> Scores:
        """Return the probability that the query needs each tool of the catalogue."""
        by_model = self.usage(text, usage_row)
        probabilities: Scores = by_model[np.maximum(self.columns, 0)] * (self.columns >= 0)  # 0 without a column
        return probabilities


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
        description: DescriptionScorer,
        mix: Mix,
    ) -> None:
        """Join both sides of the ranking.

        Args:
            ids: ids of the catalogue's tools, ascending.
            encode: queries → rows for the description side.
            encode_for_usage: queries → rows for the usage side; None: the same rows.
            load_usage: returns the present usage side.
            description: scores the tools by their descriptions.
            mix: how both are joined.
        """
        self.ids = tuple(ids)
        self._encode, self._encode_for_usage, self._load_usage = encode, encode_for_usage, load_usage
        self._description = description
        self._mix = mix

    def scores(self, text: str, row: Vectors, usage_row: Vectors, usage_side: UsageSide) -> Scores:
        """Score every tool, `(tools,)`, from the rows of both sides; -inf if neither side knows the query.

        With `Mix.on_description_scale`, a tool without usage has the score of its description, plus a constant for
        novelty. The order is the same, but scores of several queries are comparable, as the scores of `hybrid` are.
        `mix` of `rankers.shared.dev_choice` explains the formula.
        """
        usage = usage_side.estimate_probabilities(text, usage_row)
        description_scores = self._description.scores(text, row)
        if not usage.any() and not description_scores.any():
            return np.full(len(self.ids), -np.inf)
        mix, logits = self._mix, self._mix.sharpness * description_scores
        scores = mix_usage(
            usage, softmax(logits), usage_side.weight, mix.agreement, mix.novelty, usage_side.fitted_weight
        )
        if mix.on_description_scale:
            log_denominator = np.logaddexp.reduce(logits)
            scores = (scores / (1 + mix.agreement) + log_denominator) / mix.sharpness
        return scores

    def search(
        self, queries: Sequence[str], k: int, visible: Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[Vectors]]:
        """Return the likeliest tools of each query; see `toolscout.indexes`."""
        usage_side = self._load_usage()
        ids, values = [], []
        masks = visible if visible is not None else [None] * len(queries)
        for text, row, usage_row, mask in zip(queries, *self._encode_both(queries), masks, strict=True):
            scores = self.scores(text, row, usage_row, usage_side)
            chosen = top_k(scores, k, mask, floor=-np.inf)
            ids.append([self.ids[position] for position in chosen])
            values.append(scores[chosen].astype(np.float32))
        return ids, values

    def _encode_both(self, queries: Sequence[str]) -> tuple[Vectors, Vectors]:
        """Encode queries as rows for the description side, and rows for the usage side."""
        rows = self._encode(queries)
        return rows, rows if self._encode_for_usage is None else self._encode_for_usage(queries)

    def explain(self, query: str, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain the exact rank and score of one tool, with the words of the query that its text has.

        Raises:
            NotFound: if the index has no such tool.
        """
        position, usage_side = place(self.ids, tool_id), self._load_usage()  # `place` raises
        [row], [usage_row] = self._encode_both([query])
        scores = self.scores(query, row, usage_row, usage_side)
        words = self._description.words.explain(query, tool_id)
        if not np.isfinite(scores[position]):
            return Explanation("usage", None, None, "no word of the query is known", missing=words.missing)
        weight = usage_side.weight[position]
        note = f"{weight:.0%} by usage" if weight else "by its description alone: no training query uses it"
        standing = rank(scores, position, visible)
        return Explanation("usage", standing, float(scores[position]), note, terms=words.terms, missing=words.missing)


def build_usage_stage(
    resources: Resources,
    catalogue: Catalogue,
    model: Model,
    encoder: Encoder,
    learned: FittedUsage,
    *,
    label: str,
    description: DescriptionScorer | None = None,
) -> Stage:
    """Build the pipeline of a fitted method: usage and description over the present catalogue.

    Args:
        resources: settings and caches.
        catalogue: the tools to search.
        model: has the array `uses` and the settings `sharpness`, `kappa`, `agreement` and `novelty`.
        encoder: of the description side.
        learned: the usage side.
        label: name of the stage.
        description: scores the tools by their descriptions, and sets the scale of the final scores
            (`Mix.on_description_scale`). None: a `DescriptionScorer`, and the final scores are log probabilities.
    """
    settings = model.manifest.settings
    sharpness, kappa, agreement, novelty = (
        settings[name].value for name in ("sharpness", "kappa", "agreement", "novelty")
    )
    mix = Mix(sharpness, agreement, novelty, on_description_scale=description is not None)
    description = description or DescriptionScorer.of(resources, catalogue, encoder)
    tools = catalogue.tools()
    fitted = UsageSide.of(learned.usage, model.places(tools), model.arrays["uses"], kappa)
    grow, live = learned.grow, resources.live
    index = UsageIndex(
        catalogue.ids,
        encode=description.encode,
        encode_for_usage=learned.encode,
        load_usage=_make_growing(fitted, model, tools, grow, live, kappa) if grow and live else lambda: fitted,
        description=description,
        mix=mix,
    )
    return Retrieve(index, label=label, mask=catalogue.mask, depth=DEPTH)


def _make_growing(
    fitted: UsageSide,
    model: Model,
    tools: Sequence[Tool],
    grow: Grow,
    live: LiveEvidence,
    kappa: float,
) -> Callable[[], UsageSide]:
    """Return a function that loads the usage side with the examples since the fit.

    Args:
        fitted: the usage side of the model, without examples.
        model: the model behind the usage side.
        tools: of the catalogue.
        grow: learns from the examples.
        live: returns the examples, and a version that changes with them.
        kappa: as in `UsageSide.of`.
    """
    position_of = {tool.id: position for position, tool in enumerate(tools)}
    latest: tuple[int, UsageSide] = (0, fitted)  # version of the examples, and the usage side with them

    def load_usage() -> UsageSide:
        nonlocal latest
        version, examples = live()
        latest_version, _ = latest
        if latest_version != version:
            latest = version, grow_usage(examples)
        _, usage_side = latest
        return usage_side

    def grow_usage(examples: Sequence[Example]) -> UsageSide:
        """Learn from examples. A tool without usage in the model gets a column; one that is gone is left out."""
        columns, n_tools = fitted.columns.copy(), len(model.tools)
        texts, gold = [], []
        for example in examples:
            used = [position_of[tool] for tool in example.tools if tool in position_of]
            for position in used:
                if columns[position] < 0:
                    columns[position], n_tools = n_tools, n_tools + 1  # the next free column
            if used:
                texts.append(example.query)
                gold.append(columns[used])
        if not texts:
            return fitted
        fitted_uses = np.zeros(n_tools, dtype=np.float32)
        fitted_uses[: len(model.tools)] = model.arrays["uses"]
        uses = fitted_uses.copy()
        for used_columns in gold:
            uses[used_columns] += 1
        grown = grow(texts, gold, n_tools)
        return UsageSide.of(lambda text, row: grown(text, row).probabilities, columns, uses, kappa, fitted_uses)

    return load_usage
