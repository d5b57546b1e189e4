"""Builds the arrays of a BM25 index from tools, some thousand at a time."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toolscout.indexes.bm25_settings import BM25Settings, TokenKind, list_kinds
from toolscout.types import MAX_RENDERED_CHARS, Tool, parameter_names, render

__all__ = ["BM25Arrays", "build_arrays", "render_plain"]


class BM25Arrays(NamedTuple):
    """What a BM25 index is made of; see `indexes.sparse.BM25`."""

    ids: list[str]
    vocabulary: list[str]
    data: npt.NDArray[np.float32]
    indices: npt.NDArray[np.int32]
    indptr: npt.NDArray[np.int32]


def build_arrays(batches: Iterable[Sequence[Tool]], settings: BM25Settings) -> BM25Arrays:
    """Score every (term, tool) pair.

    Args:
        batches: the tools, in ascending order of their ids, none twice.
        settings: fields, tokenizer, weights.
    """
    kinds = [_KindOfTerms(kind, settings) for kind in list_kinds(settings)]
    ids: list[str] = []
    for batch in batches:
        ids += [tool.id for tool in batch]
        for kind in kinds:
            kind.read(batch)
    parts = [kind.score() for kind in kinds]
    vocabulary = [term for kind in kinds for term in kind.vocabulary]
    return BM25Arrays(ids, vocabulary, *_concatenate(parts))


class _KindOfTerms:
    """Collects the terms of one kind, and how often each tool has them."""

    def __init__(self, kind: TokenKind, settings: BM25Settings) -> None:
        self._kind, self._settings = kind, settings
        self._render = render if settings.tokenizer == "code" else render_plain
        self.vocabulary: defaultdict[str, int] = defaultdict()
        self.vocabulary.default_factory = self.vocabulary.__len__
        self._lengths: list[npt.NDArray[np.int64]] = []
        self._pairs: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float64]]] = []
        self._n_tools = 0

    def read(self, tools: Sequence[Tool]) -> None:
        """Count the terms of some tools, which follow those before."""
        mark, tokens, vocabulary = self._kind.mark, self._kind.tokens, self.vocabulary
        terms, lengths = array("i"), array("i")
        for tool in tools:
            for field in self._settings.fields:
                words = tokens(self._render(tool, field))
                terms.extend([vocabulary[mark + word] for word in words])
                lengths.append(len(words))
        shape = len(tools), len(self._settings.fields)
        self._add(np.array(terms, dtype=np.int64), np.array(lengths, dtype=np.int64).reshape(shape))

    def _add(self, terms: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        """Add the pairs of a batch.

        Args:
            terms: the term of every word, tool by tool, field by field.
            lengths: `(tools, fields)`, number of words in each field.
        """
        n_tools = len(lengths)
        if not n_tools:
            return
        weights = np.array(list(self._settings.fields.values()))
        tools = np.repeat(np.arange(n_tools), lengths.sum(axis=1))
        pairs, words = np.unique(terms * n_tools + tools, return_inverse=True)
        counts: npt.NDArray[np.float64] = np.bincount(
            words, np.repeat(np.tile(weights, n_tools), lengths.ravel()), len(pairs)
        ).astype(np.float64)
        places = (pairs % n_tools + self._n_tools).astype(np.int32)
        self._pairs.append(((pairs // n_tools).astype(np.int32), places, counts))
        self._lengths.append(lengths)
        self._n_tools += n_tools

    def score(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the scores of all pairs by term: data, indices, indptr."""
        settings, n_tools = self._settings, self._n_tools
        weights = np.array(list(settings.fields.values()))
        lengths = np.concatenate([np.zeros((0, len(weights)), dtype=np.int64), *self._lengths])
        empty: tuple[Any, ...] = (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0))
        term, tool, counts = (np.concatenate(column) for column in zip(empty, *self._pairs, strict=True))
        self._pairs.clear()
        frequency = np.bincount(term, minlength=len(self.vocabulary))
        rarity = np.log(1 + (n_tools - frequency + 0.5) / (frequency + 0.5))
        length = lengths @ weights
        relative = length / (length.sum() / max(n_tools, 1) or 1.0)
        scale = settings.k1 * (1 - settings.b + settings.b * relative)
        data = (self._kind.share * (rarity[term] * counts / (counts + scale[tool]))).astype(np.float32)
        order = np.argsort(term, kind="stable")  # the batches are runs, which merge fast
        indptr = np.concatenate([[0], np.cumsum(frequency)])
        return data[order], tool[order], indptr.astype(np.int32)


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
    parts: Sequence[tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.int32]]],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Join the data, indices and indptr of one kind of terms after the other."""
    data, indices, bounds = zip(*parts, strict=True)
    starts = np.cumsum([0, *(part[-1] for part in bounds)])[: len(parts)]
    pointers = [part[1:] + start for part, start in zip(bounds, starts, strict=True)]
    joined = np.concatenate([np.zeros(1, dtype=np.int64), *pointers]).astype(np.int32)
    return np.concatenate(data), np.concatenate(indices), joined
