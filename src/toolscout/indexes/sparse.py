"""BM25 over tools: matches the words of a query with names, descriptions, parameters and paths."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.errors import ConfigError, StoreError
from toolscout.indexes.bm25_build import build_arrays, render_fields
from toolscout.indexes.bm25_settings import (
    BM25_FORMAT,
    CODE_SETTINGS,
    PLAIN_SETTINGS,
    WRITTEN_MARK,
    BM25Settings,
    list_kinds,
)
from toolscout.indexes.impact import ImpactLists, Postings, make_impact_arrays, score_all, score_positions
from toolscout.indexes.ranking import Mask, Spread, masks, pad_best, place, rank, top_k
from toolscout.indexes.score_sample import ScoreSample, make_sample_arrays
from toolscout.indexes.strings import Vocabulary
from toolscout.indexes.term_counts import EarlierTerms, TermCounts
from toolscout.indexes.words import tokenize
from toolscout.types import Explanation, Tool

__all__ = ["BM25", "CODE_SETTINGS", "PLAIN_SETTINGS", "BM25Settings", "tokenize"]

MAX_CACHED_SCORES: Final = 2_000_000
MAX_CACHED_BEST: Final = 256  # queries with cached best tools
MAX_CACHED_SPLITS: Final = 64  # queries whose terms are cached
MIN_PRUNED_TOOLS: Final = 20_000  # from here on, a search reads parts of the lists of common words


class BM25:
    """An immutable BM25 index (Lucene's formula over the weighted sums of the fields' counts and lengths).

    `build` computes the score of every (term, tool) pair and stores it by term. The tools of term `t` are
    `indices[indptr[t]:indptr[t + 1]]`, ascending positions; their scores are at the same places of `data`. Terms are
    the stems of words and, after `WRITTEN_MARK`, the words as written. Each kind has its own frequencies, and the two
    scores are averaged with the weight `settings.written`.

    Attributes:
        ids: tool ids, ascending.
        settings: the settings it was built with.
        counts: how often the tools have the terms; None: it was not built here.
    """

    counts: TermCounts | None = None

    def __init__(
        self,
        ids: Sequence[str],
        vocabulary: Vocabulary,
        arrays: Mapping[str, npt.NDArray[Any]],
        settings: BM25Settings,
    ) -> None:
        """Take what `from_arrays` has checked."""
        self.ids, self.settings = ids, settings
        self._vocabulary, self._arrays = vocabulary, arrays
        self._data, self._indices, self._indptr = arrays["data"], arrays["indices"], arrays["indptr"]
        self._token_kinds = list_kinds(settings)
        self._query_cache: dict[str, npt.NDArray[np.float32]] = {}
        self._best_cache: dict[str, tuple[npt.NDArray[np.intp], npt.NDArray[np.float32], bool]] = {}
        self._terms_cache: dict[str, tuple[Mapping[str, float], dict[str, Postings]]] = {}
        self._impacts = self._sample = None
        if "impact_terms" in arrays:
            self._impacts = ImpactLists(arrays, self._data, self._indices)
            self._sample = ScoreSample(arrays)

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
        return cls.build_batches([sorted(tools, key=lambda tool: tool.id)], settings)

    @classmethod
    def build_batches(
        cls,
        batches: Iterable[Sequence[Tool]],
        settings: BM25Settings = CODE_SETTINGS,
        *,
        min_pruned_tools: int = MIN_PRUNED_TOOLS,
        ids: Sequence[str] | None = None,
        earlier: EarlierTerms | None = None,
    ) -> BM25:
        """Build an index of tools that come batch by batch, in ascending order of their ids.

        Args:
            batches: the tools.
            settings: as in `build`.
            min_pruned_tools: number of tools from which a search reads parts of the lists of common words.
            ids: of all tools; None: those of the batches.
            earlier: the tools that are not among the batches; the index is the same as if they were.
        """
        read_ids, terms, data, indices, indptr, counts = build_arrays(batches, settings, earlier)
        ids = tuple(read_ids) if ids is None else ids
        arrays: dict[str, npt.NDArray[Any]] = {"data": data, "indices": indices, "indptr": indptr}
        if len(ids) >= max(1, min_pruned_tools):
            arrays |= make_impact_arrays(data, indices, indptr)
            arrays |= make_sample_arrays(data, indices, indptr, len(ids))
        index = cls(ids, Vocabulary.of(terms), arrays, settings)
        index.counts = counts
        return index

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
            best, scores = self._find_best(query, k, mask)
            ids.append([self.ids[position] for position in best])
            values.append(scores)
        return ids, values

    def _find_best(self, query: str, k: int, mask: Mask | None) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
        """Return positions and scores of the best tools with a score above 0, from the cache if it has them."""
        if mask is None and (cached := self._best_cache.get(query)) and (len(cached[0]) >= k or cached[2]):
            return cached[0][:k], cached[1][:k]
        pruned = None
        if self._impacts is not None and 0 < k < len(self.ids):
            pruned = self._impacts.find_best(self._list_postings(query), k, len(self.ids), mask)
        if pruned is None:
            scores = self.scores(query)
            positions = top_k(scores, k, mask, floor=0.0)
            pruned = positions, scores[positions]
        if mask is None:
            if len(self._best_cache) >= MAX_CACHED_BEST:
                self._best_cache = {}
            self._best_cache[query] = *pruned, len(pruned[0]) < k
        return pruned

    def _list_postings(self, query: str) -> list[Postings]:
        """Return the known terms of a query, in its order."""
        return list(self._look_up_terms(query)[1].values())

    def _count_terms(self, query: str) -> Mapping[str, float]:
        """Count each term of a query, once or as often as it occurs, depending on the settings."""
        return self._look_up_terms(query)[0]

    def _look_up_terms(self, query: str) -> tuple[Mapping[str, float], dict[str, Postings]]:
        """Return the counts of a query's terms, and the known terms. One search asks for them five times."""
        if (cached := self._terms_cache.get(query)) is not None:
            return cached
        words = self._token_kinds[0].tokens.split(query)  # all kinds share the tokenizer
        kinds = self._token_kinds
        terms = [kind.mark + term for kind in kinds for word in words for term in kind.tokens.list_terms(word)]
        counts = Counter(terms if self.settings.repeats else list(dict.fromkeys(terms)))
        postings = self._find_postings(counts)
        if len(self._terms_cache) >= MAX_CACHED_SPLITS:
            self._terms_cache = {}
        self._terms_cache[query] = counts, postings
        return counts, postings

    def _find_postings(self, counts: Mapping[str, float]) -> dict[str, Postings]:
        """Return those of some terms that a tool has."""
        postings = {}
        for term, count in counts.items():
            number = self._vocabulary.get(term)
            if number is not None:
                postings[term] = Postings(number, self._indptr.item(number), self._indptr.item(number + 1), count)
        return postings

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Score every tool for a query, `(len(ids),)`, read only; 0 where no term is shared.

        The last results are cached, because ranking and abstention need them one after the other.
        """
        if (cached := self._query_cache.get(query)) is not None:
            return cached
        scores = score_all(len(self.ids), self._list_postings(query), self._data, self._indices)
        scores.flags.writeable = False
        if (len(self._query_cache) + 1) * len(scores) > MAX_CACHED_SCORES:
            self._query_cache = {}
        self._query_cache[query] = scores
        return scores

    def spreads(self, queries: Sequence[str], depth: int, visible: Sequence[Mask | None] | None = None) -> list[Spread]:
        """Summarise the distribution of scores over all visible tools for each query.

        Args:
            queries: texts.
            depth: number of best scores.
            visible: a mask for each query with at least one tool, or None.
        """
        limits = masks(visible, len(queries))
        return [self._summarise(query, depth, mask) for query, mask in zip(queries, limits, strict=True)]

    def _summarise(self, query: str, depth: int, mask: Mask | None) -> Spread:
        """Compute `spread`; a large catalogue estimates mean and deviation from a sample of its tools."""
        best, scores = self._find_best(query, depth, mask)
        n_tools = len(self.ids) if mask is None else int(np.count_nonzero(mask))
        first = int(best[0]) if len(best) else 0 if mask is None else int(np.argmax(mask))
        row = scores if len(best) == min(depth, n_tools) else np.append(scores, np.float32(0.0))
        moments = self._sample.describe(self._list_postings(query), mask) if self._sample and len(best) else None
        return Spread(pad_best(row, depth), first, *(moments or self._describe_scores(query, n_tools, mask)))

    def _describe_scores(self, query: str, n_tools: int, mask: Mask | None) -> tuple[float, float]:
        """Return mean and standard deviation of the scores of all visible tools."""
        scores = self.scores(query)
        row = (scores if mask is None else scores[mask]).astype(np.float64)
        mean, mean_square = float(row.sum()) / n_tools, float(np.einsum("n,n->", row, row)) / n_tools
        return mean, max(mean_square - mean * mean, 0.0) ** 0.5

    def at(self, query: str, positions: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the scores of the tools at some positions."""
        if self._impacts is None:
            return self.scores(query)[np.array(positions, dtype=np.intp)]
        places, order = np.unique(np.array(positions, dtype=np.int32), return_inverse=True)
        return score_positions(places, self._list_postings(query), self._data, self._indices)[order]

    def score_terms(self, query: str, ids: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return what each known term of a query adds to the score of each tool, `(terms, len(ids))`.

        Args:
            query: the text.
            ids: of tools of the index.
        """
        positions = np.array([bisect.bisect_left(self.ids, tool_id) for tool_id in ids], dtype=np.int32)
        postings = self._list_postings(query)
        table = np.zeros((len(postings), len(ids)), dtype=np.float32)
        if postings and self._impacts is None:
            self._read_scores(table, positions, postings)
        else:
            self._look_up_scores(table, positions, postings)
        return table

    def _read_scores(
        self, table: npt.NDArray[np.float32], positions: npt.NDArray[np.int32], postings: Sequence[Postings]
    ) -> None:
        """Fill the table of `score_terms`. The lists of all terms are read at once, which suits short ones."""
        columns = np.full(len(self.ids), -1, dtype=np.int32)
        columns[positions] = np.arange(len(positions))
        starts, ends = np.array([(start, end) for _, start, end, _ in postings]).T
        counts = np.array([count for *_, count in postings], dtype=np.float32)
        column = columns[np.concatenate([self._indices[start:end] for _, start, end, _ in postings])]
        places = np.flatnonzero(column >= 0)
        ends_read = np.cumsum(ends - starts)
        rows = np.searchsorted(ends_read, places, side="right")
        values = self._data[places + (ends - ends_read)[rows]]
        table[rows, column[places]] = values * counts[rows]

    def _look_up_scores(
        self, table: npt.NDArray[np.float32], positions: npt.NDArray[np.int32], postings: Sequence[Postings]
    ) -> None:
        """Fill the table of `score_terms`. Each tool is looked up in the list of each term, which may be long."""
        for row, (_, start, end, count) in zip(table, postings, strict=True):
            tools = self._indices[start:end]
            places = np.searchsorted(tools, positions)
            places[places == len(tools)] = 0
            has_term = tools[places] == positions
            row[has_term] = self._data[start + places[has_term]] * np.float32(count)

    def count_tools(self, text: str) -> int:
        """Count the tools that have every word of a text, function words aside; 0 if it has no other words."""
        terms = dict.fromkeys(self._token_kinds[0].tokens(text), 1.0)
        postings = self._find_postings(terms)
        if not terms or len(postings) < len(terms):
            return 0
        lists = sorted((self._indices[start:end] for _, start, end, _ in postings.values()), key=len)
        tools = lists[0]
        for others in lists[1:]:
            places = np.searchsorted(others, tools)
            tools = tools[others[np.minimum(places, len(others) - 1)] == tools]
        return len(tools)

    def mass(self, query: str) -> tuple[float, float]:
        """Compute an upper bound of a query's scores, and the share of its terms that occur in some tool.

        The bound is the score of a tool that repeats every term without end. Terms of no tool count as the rarest.
        """
        upper_bound, n_known, total = 0.0, 0, 0
        counts, postings = self._look_up_terms(query)
        for term, count in counts.items():
            frequency = known.end - known.start if (known := postings.get(term)) else 0
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
        counts = self._count_terms(query)
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
        start, end = int(self._indptr[number]), int(self._indptr[number + 1])
        place = start + int(np.searchsorted(self._indices[start:end], position))
        return float(self._data[place]) if place < end and self._indices[place] == position else 0.0

    def weigh_tool(self, tool: Tool) -> dict[str, float]:
        """Return the weight of each term of a tool of the index, apart from how rare the term is.

        The score of a query is the sum of the products of these weights and those of `weigh_query`: another engine can
        compute it. They change with the mean length of the tools, but not with the tools that have the same terms.
        """
        position = place(self.ids, tool.id)
        texts = render_fields(tool, self.settings)
        terms = {kind.mark + word for kind in self._token_kinds for text in texts for word in kind.tokens(text)}
        return {term: self._score_term(term, position) / self._measure_rarity(term) for term in terms}

    def weigh_query(self, query: str) -> dict[str, float]:
        """Return the weight of each term of a query that occurs in some tool: how rare it is, times its count."""
        counts = self._count_terms(query).items()
        return {term: n * self._measure_rarity(term) for term, n in counts if self._vocabulary.get(term) is not None}

    def _measure_rarity(self, term: str) -> float:
        number = self._vocabulary.get(term)
        frequency = 0 if number is None else int(self._indptr[number + 1] - self._indptr[number])
        return math.log(1 + (len(self.ids) - frequency + 0.5) / (frequency + 0.5))

    def _find_stems(self, query: str, counts: Mapping[str, float]) -> dict[str, tuple[str, float]]:
        """Map each term of a query to its stem, under which people read it, and its count."""
        words = [kind.tokens(query) for kind in self._token_kinds]
        stem_of = {kind.mark + word: stem for kind, part in zip(self._token_kinds, words, strict=True)
                   for stem, word in zip(words[0], part, strict=True)}  # fmt: skip
        return {term: (stem_of[term], count) for term, count in counts.items()}

    @property
    def meta(self) -> dict[str, Any]:
        """JSON values that `from_arrays` needs besides the arrays."""
        return {
            "settings": msgspec.to_builtins(self.settings),
            "fingerprint": self.settings.fingerprint,
            "n_tools": len(self.ids),
        }

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the index as flat arrays, without its ids."""
        return {**self._arrays, **self._vocabulary.arrays("vocabulary")}

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, npt.NDArray[Any]],
        meta: Mapping[str, Any],
        ids: Sequence[str],
        *,
        is_checked: bool = False,
    ) -> BM25:
        """Rebuild an index from `arrays` and `meta`. Nothing is copied, so the arrays may be mapped from a file.

        Args:
            arrays: as `arrays` returned them.
            meta: as `meta` returned it.
            ids: tool ids, ascending.
            is_checked: whether a checksum covers the arrays, so that not all of them need to be read.

        Raises:
            StoreError: if they are damaged or of another format.
        """
        try:
            settings = CODE_SETTINGS.replace(**meta["settings"])
            vocabulary = Vocabulary.from_arrays(arrays, "vocabulary")
            data, indices, indptr = arrays["data"], arrays["indices"], arrays["indptr"]
            is_intact = (
                meta["fingerprint"] == settings.fingerprint
                and meta["n_tools"] == len(ids)
                and indptr.shape == (len(vocabulary) + 1,)
                and data.shape == indices.shape == (indptr[-1],)
                and indptr[0] == 0
                and bool((np.diff(indptr) >= 0).all())
                and (is_checked or _are_positions(indices, len(ids)))
            )
        except (KeyError, TypeError, ValueError, AttributeError, ConfigError):
            is_intact = False
        if not is_intact:
            raise StoreError(f"The stored BM25 index is damaged or not of format {BM25_FORMAT}. Build it again.")
        return cls(ids, vocabulary, arrays, settings)


def _are_positions(indices: npt.NDArray[np.int32], n_tools: int) -> bool:
    """Tell whether all values are positions of tools."""
    return bool(indices.min(initial=0) == 0 and indices.max(initial=-1) < n_tools)
