"""BM25 over tools: words of requests against words of names, descriptions, parameters and paths."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.errors import ConfigError, StoreError
from toolscout.indexes import Mask, Spread, filled, masks, place, rank, spread, top_k
from toolscout.indexes.words import Tokenizer, tokenize, tokenizer_for
from toolscout.types import MAX_TEXT, STYLES, Explanation, Tool, digest, parameter_names, render

__all__ = ["BM25", "CODE", "PLAIN", "BM25Settings", "tokenize"]

FORMAT: Final = "bm25/1"  # to be raised whenever the same settings would give other terms or scores
KEPT: Final = 2_000_000  # scores that are kept of the last queries


class BM25Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a BM25 index depends on besides its tools. The defaults were chosen on validation queries of eight datasets.

    Attributes:
        tokenizer, stem, stopwords, fold: see `tokenize`.
        repeats: whether a word that a query repeats counts each time, or once.
        fields: weight of each field of a tool: a style of `render`. A word of a field of
            weight 2 counts as if it stood there twice.
        k1: how slowly repeating a word in a tool stops counting.
        b: how much long tools are discounted, 0 to 1.
    """

    tokenizer: Tokenizer = "code"
    stem: bool = True
    stopwords: bool = True
    fold: bool = True
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

    @property
    def fingerprint(self) -> str:
        """Changes with every setting and with the format: an index under another fingerprint is not to be reused."""
        return digest(FORMAT, self)

    def changed(self, **changes: Any) -> BM25Settings:
        """These settings with some of them changed.

        Raises:
            ConfigError: for a setting that does not exist or cannot be so.
        """
        try:
            return msgspec.convert(msgspec.to_builtins(self) | changes, BM25Settings)
        except msgspec.ValidationError as error:
            raise ConfigError(f"expected settings of BM25, found something else: {error}") from None


CODE: Final = BM25Settings()
PLAIN: Final = BM25Settings(
    tokenizer="plain",
    stem=False,
    fold=False,
    repeats=True,
    fields={"name": 1.0, "description": 1.0, "parameters": 1.0},
    k1=1.5,
)


class _Asked(NamedTuple):
    """How often each term of a query counts, and the score of every tool."""

    terms: Mapping[str, int]
    scores: npt.NDArray[np.float32]


class BM25:
    """An immutable BM25 index (Lucene's formula; the fields' counts and lengths are weighted and added before it).

    The score of every (term, tool) pair is worked out when the index is built, and kept by term: the tools of term `t`
    are `indices[indptr[t]:indptr[t + 1]]`, ascending positions, and their scores are at the same places of `data`.

    Attributes:
        ids: tool ids, ascending.
        settings: what it was built with.
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
        self._tokens = tokenizer_for(settings.tokenizer, settings.stem, settings.stopwords, settings.fold)
        self._kept: dict[str, _Asked] = {}

    @classmethod
    def build(cls, tools: Sequence[Tool], settings: BM25Settings = CODE, **changes: Any) -> BM25:
        """Index `tools`, whose ids differ.

        Args:
            tools: in any order.
            settings: `CODE`, `PLAIN`, or one's own.
            changes: single settings that differ from those, by the names of `BM25Settings`.

        Raises:
            ConfigError: for a setting that cannot be.
        """
        settings = settings.changed(**changes)
        tokens = tokenizer_for(settings.tokenizer, settings.stem, settings.stopwords, settings.fold)
        text = render if settings.tokenizer == "code" else _plain_text
        tools = sorted(tools, key=lambda tool: tool.id)
        vocabulary: defaultdict[str, int] = defaultdict()
        vocabulary.default_factory = vocabulary.__len__
        terms, lengths = array("i"), array("i")
        for tool in tools:
            for field in settings.fields:
                found = tokens(text(tool, field))
                terms.extend(map(vocabulary.__getitem__, found))
                lengths.append(len(found))
        data, indices, indptr = _score(
            np.array(terms, dtype=np.int64),
            np.array(lengths).reshape(len(tools), len(settings.fields)),
            len(vocabulary),
            settings,
        )
        return cls([tool.id for tool in tools], dict(vocabulary), data, indices, indptr, settings)

    def search(
        self, queries: Sequence[str], k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[npt.NDArray[np.float32]]]:
        """The best tools for each query: `(ids, scores)`, best first, only those with a term in common.

        Args:
            queries: texts.
            k: how many tools a query at most.
            visible: boolean mask over `ids`, for all queries or one (or None) for each.
        """
        ids, values = [], []
        for query, mask in zip(queries, masks(visible, len(queries)), strict=True):
            scores = self.scores(query)
            best = top_k(scores, k, mask, floor=0.0)
            ids.append([self.ids[position] for position in best])
            values.append(scores[best])
        return ids, values

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """The score of every tool for a query, `(len(ids),)`, read only; 0 where no term is shared.

        The last ones are kept: what ranks the tools and what judges whether any fits ask one after the other.
        """
        return self._asked(query).scores

    def _asked(self, query: str) -> _Asked:
        kept = self._kept
        if (asked := kept.get(query)) is not None:
            return asked
        terms = self._terms(query)
        scores = np.zeros(len(self.ids), dtype=np.float32)
        for term, count in terms.items():
            number = self._vocabulary.get(term)
            if number is not None:
                start, end = self._bounds[number], self._bounds[number + 1]
                part = self._data[start:end]
                scores[self._indices[start:end]] += part if count == 1 else part * np.float32(count)
        scores.flags.writeable = False
        if (len(kept) + 1) * len(scores) > KEPT:
            self._kept = kept = {}
        kept[query] = asked = _Asked(terms, scores)
        return asked

    def spreads(self, queries: Sequence[str], depth: int, visible: Sequence[Mask | None] | None = None) -> list[Spread]:
        """How the scores of all visible tools lie for each query.

        Args:
            queries: texts.
            depth: how many of the best.
            visible: a mask for each query, with a tool at least, or None.
        """
        limits = masks(visible, len(queries))
        return [self._spread(self.scores(query), depth, mask) for query, mask in zip(queries, limits, strict=True)]

    def _spread(self, scores: npt.NDArray[np.float32], depth: int, mask: Mask | None) -> Spread:
        """As `spread` has it; but few tools have any score, and only those are put in order."""
        best = top_k(scores, depth, mask, floor=0.0)
        if not len(best):
            return spread(scores, depth, mask)
        row = (scores if mask is None else scores[mask]).astype(np.float64)
        first = scores[best] if len(best) == min(depth, len(row)) else np.append(scores[best], np.float32(0.0))
        return Spread(filled(first, depth), int(best[0]), float(row.mean()), float(row.std()))

    def at(self, query: str, positions: Sequence[int]) -> npt.NDArray[np.float32]:
        """The scores of the tools at some positions."""
        return self.scores(query)[np.array(positions, dtype=np.intp)]

    def mass(self, query: str) -> tuple[float, float]:
        """What a tool that held every term of the query without end would score, a bound that none reaches; and the
        share of the terms that some tool holds. A term that none holds counts as the rarest.
        """
        most, known, total = 0.0, 0, 0
        for term, count in self._asked(query).terms.items():
            number = self._vocabulary.get(term)
            held = 0 if number is None else int(self._bounds[number + 1] - self._bounds[number])
            most += count * math.log(1 + (len(self.ids) - held + 0.5) / (held + 0.5))
            known, total = known + (held > 0), total + 1
        return most, known / max(total, 1)

    def explain(self, query: str, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Rank, score and reasons of one tool, exact however far down it is.

        Args:
            query: the text.
            tool_id: which tool.
            visible: boolean mask over `ids`; the tool itself is ranked as if it were visible.

        Raises:
            NotFound: if the index has no such tool.
        """
        position = place(self.ids, tool_id)
        scores = self.scores(query)
        score = scores[position]
        parts, missing = {}, []
        for term, count in self._asked(query).terms.items():
            part = self._part(term, position)
            if part:
                parts[term] = count * part
            else:
                missing.append(term)
        if not score:
            return Explanation("bm25", None, 0.0, "no word in common", missing=tuple(missing))
        terms = dict(sorted(parts.items(), key=lambda part: -part[1]))
        return Explanation("bm25", rank(scores, position, visible), float(score), terms=terms, missing=tuple(missing))

    def _part(self, term: str, position: int) -> float:
        """What one occurrence of a term in the query brings to the tool at a position."""
        number = self._vocabulary.get(term)
        if number is None:
            return 0.0
        start, end = self._bounds[number], self._bounds[number + 1]
        place = start + int(np.searchsorted(self._indices[start:end], position))
        return float(self._data[place]) if place < end and self._indices[place] == position else 0.0

    def _terms(self, query: str) -> Counter[str]:
        """How often each term of a query counts."""
        tokens = self._tokens(query)
        return Counter(tokens if self.settings.repeats else list(dict.fromkeys(tokens)))

    @property
    def meta(self) -> dict[str, Any]:
        """What `from_arrays` needs besides the arrays; JSON values."""
        return {"settings": msgspec.to_builtins(self.settings), "fingerprint": self.settings.fingerprint}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The whole index as flat arrays; ids and vocabulary are the bytes of JSON lists."""
        return {
            "ids": np.frombuffer(msgspec.json.encode(self.ids), dtype=np.uint8),
            "vocabulary": np.frombuffer(msgspec.json.encode(list(self._vocabulary)), dtype=np.uint8),
            "data": self._data,
            "indices": self._indices,
            "indptr": self._indptr,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any]) -> BM25:
        """The index that `arrays` and `meta` were taken from.

        Raises:
            StoreError: if they are damaged or of another format.
        """
        try:
            settings = CODE.changed(**meta["settings"])
            ids = msgspec.json.decode(arrays["ids"].tobytes(), type=list[str])
            vocabulary = msgspec.json.decode(arrays["vocabulary"].tobytes(), type=list[str])
            data, indices, indptr = arrays["data"], arrays["indices"], arrays["indptr"]
            whole = (
                meta["fingerprint"] == settings.fingerprint
                and indptr.shape == (len(vocabulary) + 1,)
                and data.shape == indices.shape == (indptr[-1],)
                and (indptr[0], indices.min(initial=0)) == (0, 0)
                and indices.max(initial=-1) < len(ids)
                and bool((np.diff(indptr) >= 0).all())
            )
        except (KeyError, TypeError, ValueError, AttributeError, msgspec.MsgspecError, ConfigError):
            whole = False
        if not whole:
            raise StoreError(
                f"expected a BM25 index of format {FORMAT}, found a damaged or another one: build it again"
            )
        return cls(ids, dict(zip(vocabulary, range(len(vocabulary)), strict=True)), data, indices, indptr, settings)


_BREAK: Final = re.compile(r"_|(?<=[a-z0-9])(?=[A-Z])")


def _plain_text(tool: Tool, field: str) -> str:
    """The field as the published baseline has it: names broken into words, only the outermost parameters, and an entry
    of a dataset that has no title (ToolLens) as its text alone."""
    if tool.meta.get("title") == "" and tool.meta.get("text"):
        return render(tool, "raw") if field == "description" else ""
    if field == "name":
        return _BREAK.sub(" ", render(tool, "name"))
    if field == "parameters":
        return _BREAK.sub(" ", " ".join(parameter_names(tool.parameters, depth=1)))[:MAX_TEXT]
    return render(tool, field)


def _score(
    terms: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], n_terms: int, settings: BM25Settings
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The scores of all (term, tool) pairs, by term: data, indices, indptr as `BM25` keeps them.

    Args:
        terms: the term of every word of the catalogue, tool by tool, field by field.
        lengths: `(tools, fields)`, how many words each field has.
        n_terms: size of the vocabulary.
        settings: weights, k1 and b.
    """
    n_tools = len(lengths)
    weights = np.array(list(settings.fields.values()))
    tools = np.repeat(np.arange(n_tools), lengths.sum(axis=1))
    pairs, words = np.unique(terms * n_tools + tools, return_inverse=True)
    counts = np.bincount(words, np.repeat(np.tile(weights, n_tools), lengths.ravel()), len(pairs))
    term, tool = pairs // max(n_tools, 1), pairs % max(n_tools, 1)
    found_in = np.bincount(term, minlength=n_terms)
    rarity = np.log(1 + (n_tools - found_in + 0.5) / (found_in + 0.5))
    length = lengths @ weights
    relative = length / (length.sum() / max(n_tools, 1) or 1.0)
    data = rarity[term] * counts / (counts + settings.k1 * (1 - settings.b + settings.b * relative[tool]))
    indptr = np.concatenate([[0], np.cumsum(found_in)])
    return data.astype(np.float32), tool.astype(np.int32), indptr.astype(np.int32)
