"""Builds the arrays of a BM25 index from tools, some thousand at a time."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toolscout.encoders.gloss import load_glossary
from toolscout.indexes.bm25_settings import BM25Settings, TokenKind, list_kinds
from toolscout.indexes.term_counts import CountCodes, EarlierTerms, TermCounts
from toolscout.indexes.words import MAX_CACHED_WORD_CHARS, MAX_CACHED_WORDS
from toolscout.types import MAX_RENDERED_CHARS, Tool, parameter_names, render

__all__ = ["BM25Arrays", "build_arrays", "render_fields", "render_plain"]


class BM25Arrays(NamedTuple):
    """What a BM25 index is made of; see `indexes.sparse.BM25`. Terms are ascending within their kind.

    `counts` is what a later build needs besides: how often the tools have the terms.
    """

    ids: list[str]
    vocabulary: list[str]
    data: npt.NDArray[np.float32]
    indices: npt.NDArray[np.int32]
    indptr: npt.NDArray[np.int32]
    counts: TermCounts


def build_arrays(
    batches: Iterable[Sequence[Tool]], settings: BM25Settings, earlier: EarlierTerms | None = None
) -> BM25Arrays:
    """Score every (term, tool) pair.

    Args:
        batches: the tools, in ascending order of their ids, none twice.
        settings: fields, tokenizer, weights.
        earlier: the tools that are not among the batches.
    """
    kinds = [_KindOfTerms(kind, settings, earlier, number) for number, kind in enumerate(list_kinds(settings))]
    ids = _read_batches(batches, settings, kinds)
    parts = [kind.score() for kind in kinds]
    vocabulary = [term for kind in kinds for term in sorted(kind.vocabulary)]
    codes, n_terms = CountCodes.join([part.counts for part in parts]), [len(kind.vocabulary) for kind in kinds]
    counts = TermCounts(codes, kinds[0].step, np.stack([part.lengths for part in parts]), n_terms)
    return BM25Arrays(ids, vocabulary, *_concatenate(parts), counts)


def _read_batches(
    batches: Iterable[Sequence[Tool]], settings: BM25Settings, kinds: Sequence[_KindOfTerms]
) -> list[str]:
    """Read the terms of tools, which follow those before, and return their ids."""
    split = kinds[0].kind.tokens.split
    ids: list[str] = []
    for batch in batches:
        ids += [tool.id for tool in batch]
        words = [split(text) for tool in batch for text in render_fields(tool, settings)]
        for kind in kinds:
            kind.read(words)
    return ids


def render_fields(tool: Tool, settings: BM25Settings) -> list[str]:
    """Render the fields of a tool and, where they count, the glosses of its description."""
    render_field = render if settings.tokenizer == "code" else render_plain
    texts = [render_field(tool, field) for field in settings.fields]
    if settings.glosses:
        texts.append(" ".join(load_glossary().list_words(render(tool, "description"))))
    return texts


class _TermNumbers(dict[str, tuple[int, ...]]):
    """Word → the numbers of its terms in a vocabulary, which grows by terms that it lacks."""

    def __init__(self, kind: TokenKind, vocabulary: dict[str, int]) -> None:
        super().__init__()
        self._kind, self._vocabulary = kind, vocabulary

    def __missing__(self, word: str) -> tuple[int, ...]:
        mark, vocabulary = self._kind.mark, self._vocabulary
        terms = self._kind.tokens.list_terms(word)
        numbers = tuple([vocabulary.setdefault(mark + term, len(vocabulary)) for term in terms])
        if len(word) <= MAX_CACHED_WORD_CHARS:
            if len(self) >= MAX_CACHED_WORDS:
                self.clear()
            self[word] = numbers
        return numbers


class _ScoredTerms(NamedTuple):
    """The scores of one kind of terms: those of term `t` are `data[indptr[t]:indptr[t + 1]]`.

    `counts` has the count of each pair, and `lengths` the number of words, `(tools, fields)`.
    """

    data: npt.NDArray[np.float32]
    indices: npt.NDArray[np.int32]
    indptr: npt.NDArray[np.int32]
    counts: CountCodes
    lengths: npt.NDArray[np.int64]


class _KindOfTerms:
    """Collects the terms of one kind, and how often each tool has them."""

    def __init__(
        self, kind: TokenKind, settings: BM25Settings, earlier: EarlierTerms | None = None, number: int = 0
    ) -> None:
        """Begin with the tools of an earlier index that have not changed; the others are read.

        Args:
            kind: of the terms.
            settings: of the index.
            earlier: an index with the same settings, or None.
            number: of this kind in it.
        """
        self.kind, self._settings, self._earlier = kind, settings, earlier
        self.step = min(settings.fields.values())
        self._weights = np.array(list(settings.fields.values()))
        self._text_weights = np.append(self._weights, settings.glosses) if settings.glosses else self._weights
        self.vocabulary: dict[str, int] = {}
        self._numbers = _TermNumbers(kind, self.vocabulary)
        self._lengths: list[npt.NDArray[np.int64]] = []
        self._pairs: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float64]]] = []
        self._n_tools = 0  # that were read
        if earlier is not None:
            names, terms, tools, counts = earlier.list_pairs(number)
            self.vocabulary.update((name, term) for term, name in enumerate(names))
            self._pairs.append((terms, tools, counts))
            self._lengths.append(earlier.list_lengths(number))

    def read(self, words: Sequence[Sequence[str]]) -> None:
        """Count the terms of some tools, which follow those before.

        Args:
            words: of each text of each tool (`render_fields`), tool by tool.
        """
        number_terms = self._numbers.__getitem__
        terms, lengths = array("i"), array("q")
        for row in words:
            before = len(terms)
            for word in row:
                terms.extend(number_terms(word))
            lengths.append(len(terms) - before)
        shape = len(words) // len(self._text_weights), len(self._text_weights)
        self._add(np.array(terms, dtype=np.int64), np.array(lengths, dtype=np.int64).reshape(shape))

    def _add(self, terms: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        """Add the pairs of a batch.

        Args:
            terms: the term of every word, tool by tool, text by text.
            lengths: `(tools, texts)`, number of words in each text.
        """
        n_tools = len(lengths)
        if not n_tools:
            return
        tools = np.repeat(np.arange(n_tools), lengths.sum(axis=1))
        pairs, words = np.unique(terms * n_tools + tools, return_inverse=True)
        counts: npt.NDArray[np.float64] = np.bincount(
            words, np.repeat(np.tile(self._text_weights, n_tools), lengths.ravel()), len(pairs)
        ).astype(np.float64)
        places = (pairs % n_tools + self._n_tools).astype(np.int32)
        if self._earlier is not None:
            places = self._earlier.new_positions[places].astype(np.int32)
        self._pairs.append(((pairs // n_tools).astype(np.int32), places, counts))
        self._lengths.append(lengths[:, : len(self._weights)])
        self._n_tools += n_tools

    def score(self) -> _ScoredTerms:
        """Return the scores of all pairs by term, the terms ascending."""
        settings = self._settings
        lengths = np.concatenate([np.zeros((0, len(self._weights)), dtype=np.int64), *self._lengths])
        if self._earlier is not None:
            lengths = lengths[np.argsort(np.concatenate([self._earlier.kept_positions, self._earlier.new_positions]))]
        n_tools, frequency = len(lengths), np.zeros(len(self.vocabulary), dtype=np.int64)
        for terms, _, _ in self._pairs:
            frequency += np.bincount(terms, minlength=len(frequency))
        rarity = np.log(1 + (n_tools - frequency + 0.5) / (frequency + 0.5))
        length = lengths @ self._weights
        relative = length / (length.sum() / max(n_tools, 1) or 1.0)
        scale = settings.k1 * (1 - settings.b + settings.b * relative)
        term, tool = (np.concatenate([np.zeros(0, np.int32), *column]) for column in self._list_columns())
        data = np.empty(len(term), dtype=np.float32)
        codes = [CountCodes.of(np.zeros(0), self.step)]
        start = 0
        for terms, tools, counts in self._pairs:
            end = start + len(terms)
            data[start:end] = self.kind.share * (rarity[terms] * counts / (counts + scale[tools]))
            codes.append(CountCodes.of(counts, self.step))
            start = end
        self._pairs.clear()
        order, ends = self._order_pairs(term, tool, frequency)
        counted = CountCodes.join(codes).reorder(order)
        return _ScoredTerms(data[order], tool[order], ends.astype(np.int32), counted, lengths)

    def _order_pairs(
        self, term: npt.NDArray[np.int32], tool: npt.NDArray[np.int32], frequency: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """Return the order of the pairs by term, alphabetically, then by tool; and where each term ends, behind a 0."""
        # The batches are runs, which merge fast. Only those of an earlier index are not in the order of the tools.
        keys = term if self._earlier is None else (term.astype(np.int64) << 32) + tool
        order = np.argsort(keys, kind="stable")
        names = list(self.vocabulary)
        ranked = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
        starts, sizes = (np.cumsum(frequency) - frequency)[ranked], frequency[ranked]
        ends = np.cumsum(sizes)
        return order[np.repeat(starts - (ends - sizes), sizes) + np.arange(len(order))], np.concatenate([[0], ends])

    def _list_columns(self) -> tuple[list[npt.NDArray[np.int32]], list[npt.NDArray[np.int32]]]:
        """Return the terms and the tools of the pairs, batch by batch."""
        return [pairs[0] for pairs in self._pairs], [pairs[1] for pairs in self._pairs]


_WORD_BOUNDARY: Final = re.compile(r"_|(?<=[a-z0-9])(?=[A-Z])")


def render_plain(tool: Tool, field: str) -> str:
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


def _concatenate(
    parts: Sequence[_ScoredTerms],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Join the data, indices and indptr of one kind of terms after the other."""
    starts = np.cumsum([0, *(part.indptr[-1] for part in parts)])[: len(parts)]
    pointers = [part.indptr[1:] + start for part, start in zip(parts, starts, strict=True)]
    joined = np.concatenate([np.zeros(1, dtype=np.int64), *pointers]).astype(np.int32)
    return np.concatenate([part.data for part in parts]), np.concatenate([part.indices for part in parts]), joined
