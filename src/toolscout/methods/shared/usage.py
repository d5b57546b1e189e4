"""What the methods that learn from usage without a transformer share: usage and description in one ranking.

Each of them says how likely a query needs each tool, judging by the queries that it has seen; the words and the vector
of a tool's own text say it too. A tool counts by usage as far as there was any ::

    p(tool | query) = w · usage(tool | query) + (1 - w) · description(tool | query),    w = n / (n + κ)
    score           = log p(tool | query) + λ · log description(tool | query)

with n the training queries that use the tool. A tool without usage is found by its description alone, and as both sides
are probabilities over the same catalogue it competes with the others; its share counts ν-fold, because requests seldom
need what nobody has needed before. With λ above 0 a tool with usage must fit by its description too.
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
from toolscout.methods.lesson import Lesson
from toolscout.methods.shared.ngrams import checksums
from toolscout.methods.shared.tuning import Amount, Positive, Tuning
from toolscout.models.model_store import Model
from toolscout.search.fusion import DEPTH, WEIGHT
from toolscout.search.pipeline import Retrieve, Stage
from toolscout.types import Explanation, Tool
from toolscout.workspace import LiveEvidence, Workspace, index_words

__all__ = [
    "DESCRIBED",
    "Blend",
    "Described",
    "Grow",
    "Known",
    "Study",
    "TunedBlend",
    "UsageIndex",
    "best",
    "build_usage_stage",
    "keep_unset",
    "mix_usage",
    "softmax",
    "weights",
]

Usage = Callable[[str, Vectors], Scores]
"""(query, its vector) → how likely it needs each tool of the model, `(tools,)`, sum 1; all zeros: nothing is known."""
Encode = Callable[[Sequence[str]], Vectors]
Grow = Callable[[Sequence[str], Sequence[Places], int], Usage]
"""(texts of new queries, the positions of their tools, how many tools there are) → usage that knows these too.

The tools are those of the model, then those that only new queries used.
"""

DESCRIBED: Final = "static"  # the encoder of the description side of methods whose own knows queries only
SHARPNESS_GRID: Final = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
KAPPA_GRID: Final = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
AGREEMENT_GRID: Final = (0.0, 0.25, 0.5, 1.0)
MIN_SHARE: Final = 1e-12
QUALITY_CUTOFF: Final = 5
Choice = TypeVar("Choice")


class Blend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `mix_usage`, in every method of this kind; None: the best on dev.

    Attributes:
        sharpness: what description scores are multiplied with before their softmax; None: the likeliest on dev.
        kappa: so many training queries count as much as a description.
        agreement: how much a tool with usage must fit by its description too.
        novelty: how much the description of a tool without usage counts. Dev cannot tell: it comes from the same log as
            train, and hardly ever needs a new tool. The defaults come from validation queries of MetaTool with a fifth
            of its tools hidden (benchmarks/hidden_tools.py).
        refit: whether it learns from dev too once all is chosen. What another fit goes on from does not, unless it is
            told to: whoever chooses above it on dev would trust it more than new queries bear out.
    """

    sharpness: Positive | None = None
    kappa: Amount | None = None
    agreement: Amount | None = None
    novelty: Amount = 0.8
    refit: bool = True


class TunedBlend(Tuning, frozen=True, forbid_unknown_fields=True):
    """Settings of `mix_usage` beside those of the encoder that is tuned for it; see `Blend`."""

    sharpness: Positive | None = None
    kappa: Amount | None = None
    agreement: Amount | None = None
    novelty: Amount = 0.8


def softmax(scores: Scores) -> Scores:
    """Along the last axis."""
    risen = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Scores = risen / risen.sum(axis=-1, keepdims=True)
    return shares


def weights(uses: Scores, kappa: float) -> Scores:
    """How much usage counts, n / (n + κ), `(tools,)`; 0 where there was none."""
    return np.asarray(np.divide(uses, uses + kappa, out=np.zeros(len(uses)), where=uses > 0))


def mix_usage(usage: Scores, described: Scores, weight: Scores, agreement: float, novelty: float) -> Scores:
    """The score above, `(…, tools)`; where usage knows nothing of a query, the description alone.

    Args:
        usage: how likely each query needs each tool by usage, `(…, tools)`.
        described: the same by description.
        weight: w of each tool, `(tools,)`; 0 where there was no usage.
        agreement: λ.
        novelty: ν.
    """
    by_text = np.where(weight > 0, 1 - weight, novelty) * described
    shares = np.where(usage.any(axis=-1, keepdims=True), weight * usage + by_text, described)
    scores: Scores = np.log(shares + MIN_SHARE) + agreement * np.log(described + MIN_SHARE)
    return scores


class Described:
    """What tools say of themselves: the formula of `hybrid`, for every tool."""

    def __init__(self, words: BM25, meaning: Exact) -> None:
        """Take both indexes, over the same tools."""
        self.words, self.meaning = words, meaning

    @classmethod
    def of(cls, workspace: Workspace, catalogue: Catalogue, encoder: Encoder) -> Described:
        """Over a catalogue."""
        return cls(index_words(catalogue), workspace.index_tools(catalogue, encoder))

    def scores(self, text: str, row: Vectors) -> Scores:
        """BM25 + 5 · cosine, scaled to between 0 and 1 from the 100th best on, `(tools,)`."""
        scores = np.asarray(self.words.scores(text), dtype=np.float64)
        cosines = np.einsum("nd,d->n", self.meaning.vectors, row)
        highest = cosines.max()
        lowest = np.partition(cosines, -DEPTH)[-DEPTH] if len(cosines) > DEPTH else cosines.min()
        if row.any() and highest > lowest:
            scores += WEIGHT * np.clip((cosines - lowest) / (highest - lowest), 0, None)
        return scores


class Known(NamedTuple):
    """The side of usage: what it says, for which tool of the catalogue, and with which weight.

    Attributes:
        usage: see `Usage`; over its own tools.
        columns: which of these each tool of the catalogue is; -1: none.
        weight: of usage, for each tool of the catalogue; 0: there was none.
    """

    usage: Usage
    columns: Places
    weight: Scores

    @classmethod
    def of(cls, usage: Usage, columns: Places, uses: Scores, kappa: float) -> Known:
        """From how often each of its tools was used."""
        weight = weights(uses, kappa)[np.maximum(columns, 0)]
        return cls(usage, columns, np.where(columns >= 0, weight, 0.0))

    def shares(self, text: str, own: Vectors) -> Scores:
        """How likely the query needs each tool of the catalogue."""
        found: Scores = self.usage(text, own)[np.maximum(self.columns, 0)] * (self.columns >= 0)
        return found


class UsageIndex:
    """An index over texts whose scores are those of `mix_usage`.

    Attributes:
        ids: of the catalogue's tools, ascending.
    """

    def __init__(
        self,
        ids: Sequence[str],
        *,
        encode: Encode,
        own: Encode | None,
        known: Callable[[], Known],
        described: Described,
        sharpness: float,
        agreement: float,
        novelty: float,
    ) -> None:
        """Take both sides.

        Args:
            ids: of the catalogue's tools, ascending.
            encode: queries → rows of the description side.
            own: queries → the rows that usage is given; None: the same.
            known: the side of usage as it is now.
            described: over the catalogue.
            sharpness: what description scores are multiplied with before the softmax.
            agreement: see `mix_usage`.
            novelty: see `mix_usage`.
        """
        self.ids = tuple(ids)
        self._encode, self._own, self._known, self._described = encode, own, known, described
        self._sharpness, self._agreement, self._novelty = sharpness, agreement, novelty

    def scores(self, text: str, row: Vectors, own: Vectors, known: Known) -> Scores:
        """The score of every tool, `(tools,)`, by the rows of both sides; -inf where neither knows a word of it."""
        usage, described = known.shares(text, own), self._described.scores(text, row)
        if not usage.any() and not described.any():
            return np.full(len(self.ids), -np.inf)
        return mix_usage(usage, softmax(self._sharpness * described), known.weight, self._agreement, self._novelty)

    def search(
        self, queries: Sequence[str], k: int, visible: Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[Vectors]]:
        """The likeliest tools of each query; see `toolscout.indexes`."""
        ids, values, known = [], [], self._known()
        masks = visible if visible is not None else [None] * len(queries)
        for text, row, own, mask in zip(queries, *self._rows(queries), masks, strict=True):
            scores = self.scores(text, row, own, known)
            chosen = top_k(scores, k, mask, floor=-np.inf)
            ids.append([self.ids[position] for position in chosen])
            values.append(scores[chosen].astype(np.float32))
        return ids, values

    def _rows(self, queries: Sequence[str]) -> tuple[Vectors, Vectors]:
        rows = self._encode(queries)
        return rows, rows if self._own is None else self._own(queries)

    def explain(self, query: str, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Rank and score of one tool, exact however far down it is, and the words of the query that its text has.

        Raises:
            NotFound: if the index has no such tool.
        """
        position, known = place(self.ids, tool_id), self._known()
        [row], [own] = self._rows([query])
        scores = self.scores(query, row, own, known)
        said = self._described.words.explain(query, tool_id)
        if not np.isfinite(scores[position]):
            return Explanation("usage", None, None, "no word of the query is known", missing=said.missing)
        weight = known.weight[position]
        note = f"{weight:.0%} by usage" if weight else "by its description alone: no training query uses it"
        standing = rank(scores, position, visible)
        return Explanation("usage", standing, float(scores[position]), note, terms=said.terms, missing=said.missing)


def build_usage_stage(
    workspace: Workspace,
    catalogue: Catalogue,
    model: Model,
    encoder: Encoder,
    usage: Usage,
    *,
    label: str,
    own: Encode | None = None,
    grow: Grow | None = None,
) -> Stage:
    """The pipeline of a fitted method: usage and description over the present catalogue.

    Args:
        workspace: its surroundings.
        catalogue: the tools to search.
        model: has the array `uses` and the settings `sharpness`, `kappa`, `agreement` and `novelty`.
        encoder: of the description side.
        usage: of the usage side.
        label: name of the stage.
        own: queries → the rows that `usage` is given; None: those of `encoder`.
        grow: see `Grow`, for methods that need no training to know more; None: what the model does not know waits.
    """
    settings = model.manifest.settings
    tools = catalogue.tools()
    columns, kappa = model.places(tools), settings["kappa"].value
    fitted = Known.of(usage, columns, model.arrays["uses"], kappa)
    index = UsageIndex(
        catalogue.ids,
        encode=lambda texts: encoder.encode(texts, "query"),
        own=own,
        known=_growing(fitted, model, tools, grow, workspace.live, kappa)
        if grow and workspace.live
        else lambda: fitted,
        described=Described.of(workspace, catalogue, encoder),
        sharpness=settings["sharpness"].value,
        agreement=settings["agreement"].value,
        novelty=settings["novelty"].value,
    )
    return Retrieve(index, label=label, mask=catalogue.mask, depth=DEPTH)


def _growing(
    fitted: Known,
    model: Model,
    tools: Sequence[Tool],
    grow: Grow,
    live: LiveEvidence,
    kappa: float,
) -> Callable[[], Known]:
    """What usage says as examples come in; made anew when there are others than the last time."""
    place_of = {tool.id: row for row, tool in enumerate(tools)}
    held: list[tuple[int, Known]] = [(0, fitted)]

    def read_known() -> Known:
        version, examples = live()
        if held[0][0] != version:
            held[0] = version, _grown(examples)
        return held[0][1]

    def _grown(examples: Sequence[Example]) -> Known:
        columns, count = fitted.columns.copy(), len(model.tools)
        texts, gold = [], []
        for each in examples:
            used = [place_of[tool] for tool in each.tools if tool in place_of]
            for row in used:
                if columns[row] < 0:
                    columns[row], count = count, count + 1
            if used:
                texts.append(each.query)
                gold.append(columns[used])
        uses = np.zeros(count, dtype=np.float32)
        uses[: len(model.tools)] = model.arrays["uses"]
        for places in gold:
            uses[places] += 1
        return Known.of(grow(texts, gold, count), columns, uses, kappa) if texts else fitted

    return read_known


# --- fitting ----------------------------------------------------------------------------------------------------------


def best(candidates: Iterable[Choice], quality: Callable[[Choice], float]) -> Choice:
    """The first candidate of the highest quality."""
    return max(candidates, key=quality)


class Study:
    """The queries of a fit as arrays, and what is chosen on dev.

    Attributes:
        ids: of the queries: train, then dev.
        texts: their texts.
        rows: their vectors, `(n, dim)` float32.
        gold: the positions of their tools.
        n_train: how many are train.
        n_kept: how many the model learns from in the end.
    """

    def __init__(self, workspace: Workspace, lesson: Lesson, options: Any, encoder: Encoder) -> None:
        position = {tool.id: place for place, tool in enumerate(lesson.tools)}
        judged = {**lesson.train, **lesson.dev}
        self.workspace, self.lesson, self.options = workspace, lesson, options
        self.ids = list(judged)
        self.texts = [lesson.texts[query] for query in self.ids]
        self.rows = workspace.encode_queries(encoder, self.texts)
        self.gold = [np.array(sorted(position[tool] for tool in judged[query])) for query in self.ids]
        self.n_train = len(lesson.train)
        self.n_kept = len(self.ids) if getattr(options, "refit", False) else self.n_train
        self._wanted = np.zeros((len(lesson.dev), len(lesson.tools)), dtype=np.bool_)
        for row, gold in zip(self._wanted, self.gold[self.n_train :], strict=True):
            row[gold] = True
        self._described = self._describe(encoder)

    def _describe(self, encoder: Encoder) -> Scores:
        """Description scores of the dev queries, `(dev, tools)`."""
        meaning = Exact(encoder.dim)
        meaning.upsert([tool.id for tool in self.lesson.tools], self.workspace.encode_tools(encoder, self.lesson.tools))
        described = Described(BM25.build(self.lesson.tools, CODE_SETTINGS), meaning)
        return np.array([described.scores(self.texts[i], self.rows[i]) for i in self.dev])

    @functools.cached_property
    def features(self) -> list[Checksums]:
        """Words and pairs of words of the texts; see `toolscout.methods.shared.ngrams`."""
        return [checksums(text) for text in self.texts]

    @property
    def dev(self) -> range:
        """Places of the dev queries."""
        return range(self.n_train, len(self.ids))

    def uses(self, n: int) -> Scores:
        """How many of the first `n` queries use each tool, `(tools,)`."""
        return np.bincount(np.concatenate(self.gold[:n]), minlength=len(self.lesson.tools)).astype(np.float32)

    def judge(self, scores: Scores) -> dict[str, float]:
        """The figures on dev of scores, `(dev, tools)`."""
        tools = [tool.id for tool in self.lesson.tools]
        rankings = {
            self.ids[i]: [tools[place] for place in top_k(row, 20)] for i, row in zip(self.dev, scores, strict=True)
        }
        return self.lesson.evaluate(rankings).means()

    def quality(self, scores: Scores) -> float:
        """What choices maximise on dev: the mean of ndcg@5 (every gold tool alike) and comp@5."""
        cut = min(QUALITY_CUTOFF, scores.shape[1])
        first = np.argpartition(-scores, cut - 1, axis=1)[:, :cut]
        order = np.argsort(-np.take_along_axis(scores, first, axis=1), axis=1, kind="stable")
        hits = np.take_along_axis(self._wanted, np.take_along_axis(first, order, axis=1), axis=1)
        discounts = 1 / np.log2(np.arange(cut) + 2)
        counts = self._wanted.sum(axis=1)
        ndcg = hits @ discounts / np.cumsum(discounts)[np.minimum(counts, cut) - 1]
        return float((ndcg.mean() + (hits.sum(axis=1) == counts).mean()) / 2)

    def likelihood(self, shares: Scores) -> float:
        """The mean logarithm of the share that falls on a gold tool of a dev query, of shares `(dev, tools)`."""
        return float(
            np.mean([np.log(row[self.gold[i]] + MIN_SHARE).mean() for i, row in zip(self.dev, shares, strict=True)])
        )

    def choose_mix(self, usage: Scores) -> tuple[dict[str, Any], dict[str, float]]:
        """The settings of `mix_usage` that are set or best on dev, and the figures there.

        Args:
            usage: how likely each dev query needs each tool, `(dev, tools)`, learned from train alone.
        """
        options = self.options
        sharpness = options.sharpness
        if sharpness is None:
            sharpness = best(SHARPNESS_GRID, lambda each: self.likelihood(softmax(each * self._described)))
        described, uses = softmax(sharpness * self._described), self.uses(self.n_train)

        names = ("kappa", "agreement")
        grids = [
            grid if getattr(options, name) is None else (getattr(options, name),)
            for name, grid in zip(names, (KAPPA_GRID, AGREEMENT_GRID), strict=True)
        ]

        def scores(choice: tuple[float, ...]) -> Scores:
            kappa, agreement = choice
            return mix_usage(usage, described, weights(uses, kappa), agreement, options.novelty)

        choice = best(itertools.product(*grids), lambda each: self.quality(scores(each)))
        return {"sharpness": sharpness, **dict(zip(names, choice, strict=True))}, self.judge(scores(choice))


def keep_unset(options: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Of `chosen`, what was not set."""
    return {name: value for name, value in chosen.items() if getattr(options, name) is None}
