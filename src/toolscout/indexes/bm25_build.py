"""Builds the arrays of a BM25 index from tools, some thousand at a time, or from an earlier index and new tools.

A score depends on how rare the term is and how long the tools are, which any new tool changes. How often a tool has a
term does not change. So a build that has these counts from an earlier index (`EarlierTerms`) reads only the new tools,
and computes all scores again.

Terms are of one or two *kinds*: stems, and words as written (`bm25_settings.list_kinds`).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array, Arrays
from toolscout.encoders.gloss import load_glossary
from toolscout.indexes.bm25_settings import BM25Settings, TokenKind, list_kinds
from toolscout.types import MAX_RENDERED_CHARS, Tool, gather_properties, parameter_names, render

if TYPE_CHECKING:
    from typing import Self  # new in Python 3.11

__all__ = [
    "TERM_COUNTS_FORMAT",
    "BM25Arrays",
    "EarlierTerms",
    "TermCounts",
    "build_arrays",
    "drop_parameters",
    "find_shared_parameters",
    "render_fields",
]

TERM_COUNTS_FORMAT: Final = "terms/2"
SCORED_PAIRS: Final = 1 << 20  # pairs whose scores are computed at once
MIN_SHARING_TOOLS: Final = 8  # of a source whose parameters are compared
MIN_SHARED_PART: Final = 0.75  # a parameter that so many of a source's tools take is shared (dev; LAB.md, 2026-11-27)
WORD_BOUNDARY: Final = re.compile(r"_|(?<=[a-z0-9])(?=[A-Z])")

Numbers = npt.NDArray[np.int32]
Counts = npt.NDArray[np.float32]


class TermCounts(NamedTuple):
    """How often the tools of a BM25 index have its terms.

    Attributes:
        counts: `(postings,)`, how often the tool has the term, each time weighted by the field; ordered as `data`.
        lengths: `(tools, fields)`, number of words in each field.
        n_terms: `(kinds,)`, number of terms of each kind.
    """

    counts: Counts
    lengths: Numbers
    n_terms: Numbers

    def arrays(self) -> dict[str, Array]:
        """Return the three arrays, by their names."""
        return self._asdict()

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Read the counts from the arrays of a file, as `arrays` returned them."""
        return cls(*(arrays[name] for name in cls._fields))


class BM25Arrays(NamedTuple):
    """What a BM25 index is made of: a sparse matrix of terms and tools. Terms are ascending within their kind.

    Attributes:
        ids: of the tools; a position in it is a column.
        vocabulary: the terms; a position in it is a row.
        data: BM25 weights of the (term, tool) pairs, row after row.
        indices: column of each weight.
        indptr: `(terms + 1,)`: row `t` is `data[indptr[t]:indptr[t + 1]]`.
        counts: what a later index is built faster from.
    """

    ids: list[str]
    vocabulary: list[str]
    data: npt.NDArray[np.float32]
    indices: Numbers
    indptr: Numbers
    counts: TermCounts


class _Pairs(NamedTuple):
    """Pairs of a term and a tool that has it, in three arrays of the same length.

    Attributes:
        terms: number of the term.
        tools: position of the tool.
        counts: how often the tool has the term, each time weighted by the field.
    """

    terms: Numbers
    tools: Numbers
    counts: Counts


class EarlierTerms:
    """The terms of an earlier index, for the tools of a new index that have not changed since.

    Attributes:
        kept_positions: positions in the new index of the tools that the earlier index has too.
        new_positions: positions in the new index of the other tools, ascending.
        lengths: `(kept tools, fields)`, number of words in each field, in the order of `kept_positions`.
    """

    def __init__(
        self,
        places: npt.NDArray[np.int64],
        vocabulary: Sequence[str],
        postings: Arrays,
        counts: TermCounts,
    ) -> None:
        """Match the tools of a new index with those of an earlier one.

        Args:
            places: `(tools,)`, for each tool of the new index its position in the earlier one; -1: it is read again.
            vocabulary: terms of the earlier index.
            postings: arrays `indices` and `indptr` of the earlier index.
            counts: of the earlier index.
        """
        self.kept_positions, self.new_positions = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
        self.lengths = counts.lengths[places[self.kept_positions]]
        self._vocabulary, self._counts = vocabulary, counts
        self._indices, self._indptr = postings["indices"], postings["indptr"]
        # For each tool of the earlier index its position in the new one; -1: it is gone or has changed.
        self._new_position_of = np.full(len(counts.lengths), -1, dtype=np.int32)
        self._new_position_of[places[self.kept_positions]] = self.kept_positions

    def list_pairs(self, kind: int) -> tuple[list[str], _Pairs]:
        """Return the terms of a kind that kept tools have, and the pairs of these terms and tools.

        Args:
            kind: its place in `list_kinds`, from 0.

        Returns:
            The terms; the pairs, in which the number of a term is its place among these terms.
        """
        # The terms of a kind are neighbours in the vocabulary, and so are their postings.
        first = int(self._counts.n_terms[:kind].sum())
        end = first + int(self._counts.n_terms[kind])
        postings = slice(int(self._indptr[first]), int(self._indptr[end]))
        tools = self._new_position_of[self._indices[postings]]
        terms = np.repeat(np.arange(first, end), np.diff(self._indptr[first : end + 1]))
        is_kept = tools >= 0
        kept_terms, numbers = np.unique(terms[is_kept], return_inverse=True)
        names = [self._vocabulary[term] for term in kept_terms.tolist()]
        return names, _Pairs(numbers.astype(np.int32), tools[is_kept], self._counts.counts[postings][is_kept])


class _KindOfTerms:
    """Collects the terms of one kind, and how often each tool has them.

    Attributes:
        kind: the kind.
        vocabulary: term → number, in the order in which the terms were first seen.
    """

    def __init__(self, kind: TokenKind, settings: BM25Settings) -> None:
        """Start without terms."""
        self.kind = kind
        weights = [*settings.fields.values()]  # one for each text of `render_fields`
        if settings.glosses:
            weights.append(settings.glosses)
        self._text_weights = np.array(weights)
        self.vocabulary: dict[str, int] = {}
        self._term_numbers_of: dict[str, tuple[int, ...]] = {}  # word → numbers of its terms
        self._pairs: list[_Pairs] = []

    def take_over(self, terms: Sequence[str], pairs: _Pairs) -> None:
        """Add the terms and pairs that `EarlierTerms.list_pairs` returned, before anything else is added."""
        self.vocabulary.update((term, number) for number, term in enumerate(terms))
        self._pairs.append(pairs)

    def read(self, words: Sequence[Sequence[str]], positions: Numbers) -> npt.NDArray[np.int64]:
        """Count the terms of a batch of tools, each time weighted by the text, and keep the pairs of terms and tools.

        Args:
            words: the words of each text of each tool (`render_fields`), tool by tool.
            positions: positions of the tools in the index.

        Returns:
            Number of terms in each text, `(tools, texts)`.
        """
        terms = array("i")  # the numbers of the terms of all texts, one text after the other
        lengths = []
        for text in words:
            n_before = len(terms)
            for word in text:
                numbers = self._term_numbers_of.get(word)
                terms.extend(self._number_terms(word) if numbers is None else numbers)
            lengths.append(len(terms) - n_before)
        n_tools = len(positions)
        n_terms = np.array(lengths, dtype=np.int64).reshape(n_tools, len(self._text_weights))
        tools = np.repeat(np.arange(n_tools), n_terms.sum(axis=1))  # for each term its tool, counted in this batch
        # One key for each pair of a term and a tool: sorting them once brings equal pairs together.
        keys, pair_of_term = np.unique(np.array(terms, dtype=np.int64) * n_tools + tools, return_inverse=True)
        weights = np.repeat(np.tile(self._text_weights, n_tools), n_terms.ravel())
        counts = np.bincount(pair_of_term, weights, len(keys)).astype(np.float32)
        self._pairs.append(_Pairs((keys // n_tools).astype(np.int32), positions[keys % n_tools], counts))
        return n_terms

    def _number_terms(self, word: str) -> tuple[int, ...]:
        """Return the numbers of the terms of a word that is read for the first time; a new term gets the next one."""
        terms = [self.kind.mark + term for term in self.kind.tokens.list_terms(word)]
        self._term_numbers_of[word] = tuple([self.vocabulary.setdefault(term, len(self.vocabulary)) for term in terms])
        return self._term_numbers_of[word]

    def sort(self) -> tuple[list[str], _Pairs]:
        """Return all terms, ascending, and for each term and tool the count, ordered by term and then by tool.

        In these pairs, the number of a term is its place among the ascending terms. Call this once, at the end: to free
        memory, the pairs are deleted here.
        """
        names = list(self.vocabulary)
        order = sorted(range(len(names)), key=names.__getitem__)
        ranks = np.empty(len(names), dtype=np.int32)
        ranks[order] = np.arange(len(names), dtype=np.int32)
        empty = _Pairs(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32))  # if there are no tools
        terms, tools, counts = (np.concatenate(column) for column in zip(empty, *self._pairs, strict=True))
        self._pairs.clear()  # frees their memory before the arrays are copied once more
        terms = ranks[terms]
        # In one 64-bit key, the term is the upper half and the tool the lower half. So it orders by term, then by tool.
        by_term = np.argsort((terms.astype(np.int64) << 32) + tools)
        return [names[number] for number in order], _Pairs(terms[by_term], tools[by_term], counts[by_term])


def build_arrays(
    batches: Iterable[Sequence[Tool]], settings: BM25Settings, earlier: EarlierTerms | None = None
) -> BM25Arrays:
    """Build a BM25 index: score every pair of a term and a tool that has it.

    Args:
        batches: the tools, in ascending order of their ids, none twice.
        settings: settings of the index.
        earlier: terms of the tools that are not in the batches. Then `ids` of the result lacks these tools.
    """
    kinds = [_KindOfTerms(kind, settings) for kind in list_kinds(settings)]
    ids, lengths = _read_tools(batches, settings, kinds, earlier)
    n_words = lengths @ np.array(list(settings.fields.values()))  # of each tool, weighted by field
    mean_words = n_words.sum() / max(len(n_words), 1) or 1.0  # without any words, 1 avoids a division by 0
    saturation = settings.k1 * (1 - settings.b + settings.b * n_words / mean_words)
    vocabulary: list[str] = []
    scores, indices, frequencies, counts = [], [], [], []
    for kind in kinds:
        terms, pairs = kind.sort()
        frequency = np.bincount(pairs.terms, minlength=len(terms))
        vocabulary += terms
        scores.append(_score_pairs(pairs, frequency, saturation, kind.kind.weight))
        indices.append(pairs.tools)
        frequencies.append(frequency)
        counts.append(pairs.counts)
    n_terms = np.array([len(frequency) for frequency in frequencies], dtype=np.int32)
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(frequencies))]).astype(np.int32)
    term_counts = TermCounts(np.concatenate(counts), lengths, n_terms)
    return BM25Arrays(ids, vocabulary, np.concatenate(scores), np.concatenate(indices), indptr, term_counts)


def _read_tools(
    batches: Iterable[Sequence[Tool]],
    settings: BM25Settings,
    kinds: Sequence[_KindOfTerms],
    earlier: EarlierTerms | None,
) -> tuple[list[str], Numbers]:
    """Add the terms of all tools to each kind: first those of the earlier index, then those of the batches.

    Returns:
        Ids of the tools in the batches; number of words in each field of all tools, `(tools, fields)`, by position.
    """
    n_fields, split = len(settings.fields), kinds[0].kind.tokens.split
    ids: list[str] = []
    lengths: list[Array] = [np.empty((0, n_fields), dtype=np.int32)]
    if earlier is not None:
        lengths.append(earlier.lengths)
        for number, kind in enumerate(kinds):
            terms, pairs = earlier.list_pairs(number)
            kind.take_over(terms, pairs)
    for batch in batches:
        if not batch:
            continue
        positions = np.arange(len(ids), len(ids) + len(batch), dtype=np.int32)
        if earlier is not None:  # `positions` count only the new tools: look up their positions among all tools
            positions = earlier.new_positions[positions].astype(np.int32)
        ids += [tool.id for tool in batch]
        words = [split(text) for tool in batch for text in render_fields(tool, settings)]
        n_terms = [kind.read(words, positions) for kind in kinds]
        lengths.append(n_terms[0][:, :n_fields])  # all kinds have as many terms, and glosses do not lengthen a tool
    all_lengths = np.concatenate(lengths).astype(np.int32)
    # The lengths of the kept tools come first. Bring all into the order of the positions of their tools.
    if earlier is not None:
        all_lengths = all_lengths[np.argsort(np.concatenate([earlier.kept_positions, earlier.new_positions]))]
    return ids, all_lengths


def _score_pairs(
    pairs: _Pairs, frequency: npt.NDArray[np.int64], saturation: npt.NDArray[np.float64], weight: float
) -> npt.NDArray[np.float32]:
    """Return the score of each pair (Lucene's BM25).

    Args:
        pairs: of one kind of terms.
        frequency: `(terms,)`, number of tools with each term.
        saturation: `(tools,)`, the count at which a term has half of its greatest score.
        weight: weight of this kind of terms in a score; see `TokenKind`.
    """
    # The inverse document frequency of each term.
    rarity = np.log(1 + (len(saturation) - frequency + 0.5) / (frequency + 0.5))
    scores = np.empty(len(pairs.terms), dtype=np.float32)
    for start in range(0, len(scores), SCORED_PAIRS):
        terms, tools, counts = (column[start : start + SCORED_PAIRS] for column in pairs)
        scores[start : start + SCORED_PAIRS] = weight * (rarity[terms] * counts / (counts + saturation[tools]))
    return scores


def render_fields(tool: Tool, settings: BM25Settings) -> list[str]:
    """Render each field of a tool as a text.

    The last text has the *glosses* of the description: English words for words of another language. It is left out if
    the settings give glosses the weight 0.
    """
    # The other tokenizers are for comparison with published baselines, which index the texts as they are.
    render_field = render if settings.tokenizer == "code" else _render_plain
    texts = [render_field(tool, field) for field in settings.fields]
    if settings.glosses:
        texts.append(" ".join(load_glossary().list_words(render(tool, "description"))))
    return texts


def _render_plain(tool: Tool, field: str) -> str:
    """Render a field like the published baseline: names split into words, and only the outermost parameters.

    A dataset entry without a title (ToolLens) has one text, which is rendered as its description.
    """
    has_only_text = tool.meta.get("title") == "" and tool.meta.get("text")
    if has_only_text:
        return render(tool, "raw") if field == "description" else ""
    if field == "name":
        return WORD_BOUNDARY.sub(" ", render(tool, "name"))
    if field == "parameters":
        return WORD_BOUNDARY.sub(" ", " ".join(parameter_names(tool.parameters, depth=1)))[:MAX_RENDERED_CHARS]
    return render(tool, field)


# --- parameters that most tools of a source share ---------------------------------------------------------------------


def find_shared_parameters(tools: Iterable[Tool]) -> dict[str, list[str]]:
    """Return for each source the parameters that most of its tools take, since they don't distinguish its tools.

    Sources with fewer than `MIN_SHARING_TOOLS` tools, or without such a parameter, are left out.
    """
    sizes: Counter[str] = Counter()
    counts = defaultdict[str, Counter[str]](Counter)
    for tool in tools:
        sizes[tool.source] += 1
        counts[tool.source].update(set(parameter_names(tool.parameters, depth=1)))
    shared: dict[str, list[str]] = {}
    for source, count in counts.items():
        names = sorted(name for name, n_tools in count.items() if n_tools >= MIN_SHARED_PART * sizes[source])
        if names and sizes[source] >= MIN_SHARING_TOOLS:
            shared[source] = names
    return shared


def drop_parameters(tool: Tool, names: Sequence[str]) -> Tool:
    """Return a tool without some of its outermost parameters; its schema then has only properties and definitions."""
    if not names or not isinstance(tool.parameters, Mapping):
        return tool
    all_properties, _ = gather_properties(tool.parameters)
    properties = {name: schema for name, schema in all_properties.items() if name not in names}
    definitions = {key: tool.parameters[key] for key in tool.parameters.keys() & {"$defs", "definitions", "components"}}
    return msgspec.structs.replace(tool, parameters={**definitions, "properties": properties})
