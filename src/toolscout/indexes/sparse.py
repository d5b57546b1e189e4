"""BM25 over tools: matches the words of a query with names, descriptions, parameters and paths."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.errors import ConfigError, StoreError
from toolscout.indexes.ranking import Mask, Spread, masks, pad_best, place, rank, spread, top_k
from toolscout.indexes.words import Tokenizer, tokenize, tokenizer_for
from toolscout.types import MAX_RENDERED_CHARS, STYLES, Explanation, Tool, digest, parameter_names, render

__all__ = ["BM25", "CODE_SETTINGS", "PLAIN_SETTINGS", "BM25Settings", "tokenize"]

BM25_FORMAT: Final = "bm25/2"  # raise it whenever the same settings would give other terms or scores
MAX_CACHED_SCORES: Final = 2_000_000
WRITTEN_MARK: Final = "="  # begins a term that is the written form of a word, not its stem; no tokenizer yields it


class BM25Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a BM25 index. The defaults were chosen on train and dev queries of datasets (LAB.md).

    Attributes:
        tokenizer, stem, stopwords, fold: see `tokenize`.
        written: the share of a score that counts words as they are written; the rest counts their stems. Among tools
            that differ in little else, `list` and `listing` are not the same. Without stems it has no effect.
        repeats: whether a repeated word of a query counts each time, or once.
        fields: weight of each field of a tool (a style of `render`). A word in a field of weight 2 counts twice.
        k1: saturation of term frequency; higher lets repeated words count more.
        b: length normalisation, 0 to 1; higher discounts long tools more.
    """

    tokenizer: Tokenizer = "code"
    stem: bool = True
    stopwords: bool = True
    fold: bool = True
    written: float = 0.3
    repeats: bool = False
    fields: dict[str, float] = msgspec.field(
        default_factory=lambda: {
            "name": 2.0,
            "description": 1.0,
            "parameters": 0.5,
            "parameter_descriptions": 0.5,
            "path": 0.25,
        }
    )
    k1: float = 2.0
    b: float = 0.75

    def __post_init__(self) -> None:
        unknown = [name for name in self.fields if name not in STYLES]
        if unknown or not self.fields or not all(0 < weight < math.inf for weight in self.fields.values()):
            raise ConfigError(f"fields: expected weights above 0 for any of {', '.join(STYLES)}, found {self.fields!r}")
        if not (0 <= self.k1 < math.inf and 0 <= self.b <= 1):
            raise ConfigError(f"expected k1 of 0 or more and b from 0 to 1, found k1={self.k1} and b={self.b}")
        if not 0 <= self.written <= 1:
            raise ConfigError(f"expected written from 0 to 1, found {self.written}")

    @property
    def fingerprint(self) -> str:
        """Hash of settings and format. An index with another fingerprint must not be reused."""
        return digest(BM25_FORMAT, self)

    def replace(self, **changes: Any) -> BM25Settings:
        """Return these settings with some values replaced.

        Raises:
            ConfigError: for an unknown setting or an invalid value.
        """
        try:
            return msgspec.convert(msgspec.to_builtins(self) | changes, BM25Settings)
        except msgspec.ValidationError as error:
            raise ConfigError(f"A BM25 setting is not valid: {error}") from None


CODE_SETTINGS: Final = BM25Settings()
PLAIN_SETTINGS: Final = BM25Settings(
    tokenizer="plain",
    stem=False,
    fold=False,
    repeats=True,
    fields={"name": 1.0, "description": 1.0, "parameters": 1.0},
    k1=1.5,
)


class _ScoredQuery(NamedTuple):
    """The weight of each term of a query, and the score of every tool."""

    terms: Mapping[str, int]
    scores: npt.NDArray[np.float32]


class BM25:
    """An immutable BM25 index (Lucene's formula over the weighted sums of the fields' counts and lengths).

    `build` computes the score of every (term, tool) pair and stores it by term. The tools of term `t` are
    `indices[indptr[t]:indptr[t + 1]]`, ascending positions; their scores are at the same places of `data`. Terms are
    the stems of words and, after `WRITTEN_MARK`, the words as written. Each kind has its own frequencies, and the two
    scores are averaged with the weight `settings.written`.

    Attributes:
        ids: tool ids, ascending.
        settings: the settings it was built with.
    """

    def __init__(
        self,
        ids: Sequence[str],
        vocabulary: Mapping[str, int],
        data: npt.NDArray[np.float32],
        indices: npt.NDArray[np.int32],
        indptr: npt.NDArray[np.int32],
        settings: BM25Settings,
    ) -> None:
        self.ids = tuple(ids)
        self.settings = settings
        self._vocabulary = vocabulary
        self._data, self._indices, self._indptr = data, indices, indptr
        self._bounds = indptr.tolist()
        self._token_kinds = _make_token_kinds(settings)
        self._query_cache: dict[str, _ScoredQuery] = {}

    @classmethod
    def build(cls, tools: Sequence[Tool], settings: BM25Settings = CODE_SETTINGS, **changes: Any) -> BM25:
        """Build an index of `tools`; their ids must be unique.

        Args:
            tools: in any order.
            settings: `CODE_SETTINGS`, `PLAIN_SETTINGS`, or others.
            changes: settings to replace, by the names of `BM25Settings`.

        Raises:
            ConfigError: for an unknown setting or an invalid value.
        """
        settings = settings.replace(**changes)
        text = render if settings.tokenizer == "code" else _render_plain
        tools = sorted(tools, key=lambda tool: tool.id)
        vocabulary: defaultdict[str, int] = defaultdict()
        vocabulary.default_factory = vocabulary.__len__
        parts = []
        for kind in _make_token_kinds(settings):
            n_earlier = len(vocabulary)
            terms, lengths = array("i"), array("i")
            for tool in tools:
                for field in settings.fields:
                    words = kind.tokens(text(tool, field))
                    terms.extend(vocabulary[kind.mark + word] for word in words)
                    lengths.append(len(words))
            parts.append(
                _score_terms(
                    np.array(terms, dtype=np.int64) - n_earlier,
                    np.array(lengths).reshape(len(tools), len(settings.fields)),
                    len(vocabulary) - n_earlier,
                    settings,
                    kind.share,
                )
            )
        return cls([tool.id for tool in tools], dict(vocabulary), *_concatenate(parts), settings)

    def search(
        self, queries: Sequence[str], k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[npt.NDArray[np.float32]]]:
        """Find the best tools for each query that share a term with it: `(ids, scores)`, best first.

        Args:
            queries: texts.
            k: maximum tools per query.
            visible: boolean mask over `ids`, one for all queries or one (or None) per query.
        """
        ids, values = [], []
        for query, mask in zip(queries, masks(visible, len(queries)), strict=True):
            scores = self.scores(query)
            best = top_k(scores, k, mask, floor=0.0)
            ids.append([self.ids[position] for position in best])
            values.append(scores[best])
        return ids, values

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Score every tool for a query, `(len(ids),)`, read only; 0 where no term is shared.

        The last results are cached, because ranking and abstention need them one after the other.
        """
        return self._score_query(query).scores

    def _score_query(self, query: str) -> _ScoredQuery:
        """Score every tool for a query, and cache the result."""
        cache = self._query_cache
        if (scored := cache.get(query)) is not None:
            return scored
        terms = self._count_terms(query)
        scores = np.zeros(len(self.ids), dtype=np.float32)
        for term, count in terms.items():
            number = self._vocabulary.get(term)
            if number is not None:
                start, end = self._bounds[number], self._bounds[number + 1]
                part = self._data[start:end]
                scores[self._indices[start:end]] += part if count == 1 else part * np.float32(count)
        scores.flags.writeable = False
        if (len(cache) + 1) * len(scores) > MAX_CACHED_SCORES:
            self._query_cache = cache = {}
        cache[query] = scored = _ScoredQuery(terms, scores)
        return scored

    def spreads(self, queries: Sequence[str], depth: int, visible: Sequence[Mask | None] | None = None) -> list[Spread]:
        """Summarise the distribution of scores over all visible tools for each query.

        Args:
            queries: texts.
            depth: number of best scores.
            visible: a mask for each query with at least one tool, or None.
        """
        limits = masks(visible, len(queries))
        return [
            self._summarise_scores(self.scores(query), depth, mask) for query, mask in zip(queries, limits, strict=True)
        ]

    def _summarise_scores(self, scores: npt.NDArray[np.float32], depth: int, mask: Mask | None) -> Spread:
        """Compute `spread`, but sort only the few tools with a score above 0."""
        best = top_k(scores, depth, mask, floor=0.0)
        if not len(best):
            return spread(scores, depth, mask)
        row = (scores if mask is None else scores[mask]).astype(np.float64)
        first = scores[best] if len(best) == min(depth, len(row)) else np.append(scores[best], np.float32(0.0))
        return Spread(pad_best(first, depth), int(best[0]), float(row.mean()), float(row.std()))

    def at(self, query: str, positions: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the scores of the tools at some positions."""
        return self.scores(query)[np.array(positions, dtype=np.intp)]

    def mass(self, query: str) -> tuple[float, float]:
        """Compute an upper bound of a query's scores, and the share of its terms that occur in some tool.

        The bound is the score of a tool that repeats every term without end. Terms of no tool count as the rarest.
        """
        upper_bound, n_known, total = 0.0, 0, 0
        for term, count in self._score_query(query).terms.items():
            number = self._vocabulary.get(term)
            frequency = 0 if number is None else int(self._bounds[number + 1] - self._bounds[number])
            rarity = math.log(1 + (len(self.ids) - frequency + 0.5) / (frequency + 0.5))
            is_written = term.startswith(WRITTEN_MARK)
            upper_bound += count * rarity * self._token_kinds[is_written].share
            if not is_written:
                n_known, total = n_known + (frequency > 0), total + 1
        return upper_bound, n_known / max(total, 1)

    def explain(self, query: str, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain rank and score of one tool by its terms, exact at any rank.

        Args:
            query: the text.
            tool_id: id of the tool.
            visible: boolean mask over `ids`; the tool itself is ranked as if it were visible.

        Raises:
            NotFound: if the index has no such tool.
        """
        position = place(self.ids, tool_id)
        scores = self.scores(query)
        score = scores[position]
        counts = self._score_query(query).terms
        parts: dict[str, float] = {}
        for term, (stem, count) in self._find_stems(query, counts).items():
            if part := self._score_term(term, position):
                parts[stem] = parts.get(stem, 0.0) + count * part
        missing = [term for term in counts if not term.startswith(WRITTEN_MARK) and term not in parts]
        if not score:
            return Explanation("bm25", None, 0.0, "no word in common", missing=tuple(missing))
        terms = dict(sorted(parts.items(), key=lambda part: -part[1]))
        return Explanation("bm25", rank(scores, position, visible), float(score), terms=terms, missing=tuple(missing))

    def _score_term(self, term: str, position: int) -> float:
        """Return what one occurrence of a term in the query adds to the score of the tool at a position."""
        number = self._vocabulary.get(term)
        if number is None:
            return 0.0
        start, end = self._bounds[number], self._bounds[number + 1]
        place = start + int(np.searchsorted(self._indices[start:end], position))
        return float(self._data[place]) if place < end and self._indices[place] == position else 0.0

    def weigh_tool(self, tool: Tool) -> dict[str, float]:
        """Return the weight of each term of a tool of the index, apart from how rare the term is.

        The score of a query is the sum of the products of these weights and those of `weigh_query`: another engine can
        compute it. They change with the mean length of the tools, but not with the tools that have the same terms.
        """
        position = place(self.ids, tool.id)
        text = render if self.settings.tokenizer == "code" else _render_plain
        terms = {
            kind.mark + word
            for kind in self._token_kinds
            for field in self.settings.fields
            for word in kind.tokens(text(tool, field))
        }
        return {term: self._score_term(term, position) / self._measure_rarity(term) for term in terms}

    def weigh_query(self, query: str) -> dict[str, float]:
        """Return the weight of each term of a query that occurs in some tool: how rare it is, times its count."""
        counts = self._count_terms(query).items()
        return {term: n * self._measure_rarity(term) for term, n in counts if self._vocabulary.get(term) is not None}

    def _measure_rarity(self, term: str) -> float:
        number = self._vocabulary.get(term)
        frequency = 0 if number is None else int(self._indptr[number + 1] - self._indptr[number])
        return math.log(1 + (len(self.ids) - frequency + 0.5) / (frequency + 0.5))

    def _count_terms(self, query: str) -> Counter[str]:
        """Count each term of a query, once or as often as it occurs, depending on the settings."""
        terms = [kind.mark + word for kind in self._token_kinds for word in kind.tokens(query)]
        return Counter(terms if self.settings.repeats else list(dict.fromkeys(terms)))

    def _find_stems(self, query: str, counts: Mapping[str, int]) -> dict[str, tuple[str, int]]:
        """Map each term of a query to its stem, under which people read it, and its count."""
        words = [kind.tokens(query) for kind in self._token_kinds]
        stem_of = {kind.mark + word: stem for kind, part in zip(self._token_kinds, words, strict=True)
                   for stem, word in zip(words[0], part, strict=True)}  # fmt: skip
        return {term: (stem_of[term], count) for term, count in counts.items()}

    @property
    def meta(self) -> dict[str, Any]:
        """JSON values that `from_arrays` needs besides the arrays."""
        return {"settings": msgspec.to_builtins(self.settings), "fingerprint": self.settings.fingerprint}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the index as flat arrays; ids and vocabulary are the bytes of JSON lists."""
        return {
            "ids": np.frombuffer(msgspec.json.encode(self.ids), dtype=np.uint8),
            "vocabulary": np.frombuffer(msgspec.json.encode(list(self._vocabulary)), dtype=np.uint8),
            "data": self._data,
            "indices": self._indices,
            "indptr": self._indptr,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any]) -> BM25:
        """Rebuild an index from `arrays` and `meta`.

        Raises:
            StoreError: if they are damaged or of another format.
        """
        try:
            settings = CODE_SETTINGS.replace(**meta["settings"])
            ids = msgspec.json.decode(arrays["ids"].tobytes(), type=list[str])
            vocabulary = msgspec.json.decode(arrays["vocabulary"].tobytes(), type=list[str])
            data, indices, indptr = arrays["data"], arrays["indices"], arrays["indptr"]
            intact = (
                meta["fingerprint"] == settings.fingerprint
                and indptr.shape == (len(vocabulary) + 1,)
                and data.shape == indices.shape == (indptr[-1],)
                and (indptr[0], indices.min(initial=0)) == (0, 0)
                and indices.max(initial=-1) < len(ids)
                and bool((np.diff(indptr) >= 0).all())
            )
        except (KeyError, TypeError, ValueError, AttributeError, msgspec.MsgspecError, ConfigError):
            intact = False
        if not intact:
            raise StoreError(f"The stored BM25 index is damaged or not of format {BM25_FORMAT}. Build it again.")
        return cls(ids, dict(zip(vocabulary, range(len(vocabulary)), strict=True)), data, indices, indptr, settings)


class _TokenKind(NamedTuple):
    """One kind of terms: what marks them, how a text is split into them, and their share of the score."""

    mark: str
    tokens: Callable[[str], list[str]]
    share: float


def _make_token_kinds(settings: BM25Settings) -> tuple[_TokenKind, ...]:
    """Return the kinds of terms of an index: stems and, where they count, words as written."""
    tokens = tokenizer_for(settings.tokenizer, settings.stem, settings.stopwords, settings.fold)
    share = settings.written if settings.stem else 0.0
    if not share:
        return (_TokenKind("", tokens, 1.0),)
    written = tokenizer_for(settings.tokenizer, False, settings.stopwords, settings.fold)
    return (_TokenKind("", tokens, 1.0 - share), _TokenKind(WRITTEN_MARK, written, share))


_WORD_BOUNDARY: Final = re.compile(r"_|(?<=[a-z0-9])(?=[A-Z])")


def _render_plain(tool: Tool, field: str) -> str:
    """Render a field like the published baseline: names split into words, and only the outermost parameters.

    A dataset entry without a title (ToolLens) is only its text.
    """
    if tool.meta.get("title") == "" and tool.meta.get("text"):
        return render(tool, "raw") if field == "description" else ""
    if field == "name":
        return _WORD_BOUNDARY.sub(" ", render(tool, "name"))
    if field == "parameters":
        return _WORD_BOUNDARY.sub(" ", " ".join(parameter_names(tool.parameters, depth=1)))[:MAX_RENDERED_CHARS]
    return render(tool, field)


def _score_terms(
    terms: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], n_terms: int, settings: BM25Settings, share: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Compute the scores of all (term, tool) pairs, by term: data, indices, indptr as `BM25` stores them.

    Args:
        terms: the term of every word of the catalogue, tool by tool, field by field.
        lengths: `(tools, fields)`, number of words in each field.
        n_terms: size of the vocabulary.
        settings: weights, k1 and b.
        share: factor of all scores.
    """
    n_tools = len(lengths)
    weights = np.array(list(settings.fields.values()))
    tools = np.repeat(np.arange(n_tools), lengths.sum(axis=1))
    pairs, words = np.unique(terms * n_tools + tools, return_inverse=True)
    counts = np.bincount(words, np.repeat(np.tile(weights, n_tools), lengths.ravel()), len(pairs))
    term, tool = pairs // max(n_tools, 1), pairs % max(n_tools, 1)
    frequency = np.bincount(term, minlength=n_terms)
    rarity = np.log(1 + (n_tools - frequency + 0.5) / (frequency + 0.5))
    length = lengths @ weights
    relative = length / (length.sum() / max(n_tools, 1) or 1.0)
    data = rarity[term] * counts / (counts + settings.k1 * (1 - settings.b + settings.b * relative[tool]))
    indptr = np.concatenate([[0], np.cumsum(frequency)])
    return (share * data).astype(np.float32), tool.astype(np.int32), indptr.astype(np.int32)


def _concatenate(
    parts: Sequence[tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.int32]]],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Join the data, indices and indptr of one kind of terms after the other."""
    data, indices, bounds = zip(*parts, strict=True)
    starts = np.cumsum([0, *(part[-1] for part in bounds)])[: len(parts)]
    pointers = [part[1:] + start for part, start in zip(bounds, starts, strict=True)]
    joined = np.concatenate([np.zeros(1, dtype=np.int64), *pointers]).astype(np.int32)
    return np.concatenate(data), np.concatenate(indices), joined
