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

from toolscout.arrays import Array, Arrays
from toolscout.errors import ConfigError, StoreError
from toolscout.indexes.bm25_build import EarlierTerms, TermCounts, build_arrays, render_fields
from toolscout.indexes.bm25_settings import (
    BM25_FORMAT,
    CODE_SETTINGS,
    PLAIN_SETTINGS,
    WRITTEN_MARK,
    BM25Settings,
    list_kinds,
)
from toolscout.indexes.large import LargeWords, Postings, find_large
from toolscout.indexes.ranking import Mask, Spread, describe_scores, masks, pad_best, place, rank, top_k
from toolscout.indexes.strings import Vocabulary
from toolscout.types import Explanation, Tool

__all__ = ["BM25", "CODE_SETTINGS", "PLAIN_SETTINGS", "BM25Settings"]

MAX_CACHED_SCORES: Final = 2_000_000
MAX_CACHED_SPLITS: Final = 256  # queries whose terms are cached

Scores = npt.NDArray[np.float32]
Positions = npt.NDArray[np.intp]


class BM25:
    """An immutable BM25 index (Lucene's formula over the weighted sums of the fields' counts and lengths).

    `build` computes the score of every (term, tool) pair, a *posting*, and stores it by term. The tools of term `t` are
    `indices[indptr[t]:indptr[t + 1]]`, ascending positions; their scores are the same slice of `data`. Terms are the
    stems of words and, with the prefix `WRITTEN_MARK`, the words as written. Each kind has its own frequencies, and the
    two scores are averaged with the weight `settings.written`.

    Attributes:
        ids: tool ids, ascending.
        settings: the settings it was built with.
        counts: how often each tool has each term; None if the index was read from arrays.
    """

    counts: TermCounts | None = None

    def __init__(
        self,
        ids: Sequence[str],
        vocabulary: Vocabulary,
        arrays: Arrays,
        settings: BM25Settings,
    ) -> None:
        """Take ids, terms and arrays that fit together; `from_arrays` checks stored ones."""
        self.ids, self.settings = ids, settings
        self._vocabulary, self._arrays = vocabulary, arrays
        self._data, self._indices, self._indptr = arrays["data"], arrays["indices"], arrays["indptr"]
        self._token_kinds = list_kinds(settings)
        # Two caches by query, because one search asks for the same values several times. Emptied when they are full.
        self._scores_cache: dict[str, Scores] = {}
        self._terms_cache: dict[str, tuple[Mapping[str, float], dict[str, Postings]]] = {}
        # Of the package `toolscout-scale`, for a large catalogue: finds the best tools without scoring all.
        self._large: LargeWords | None = None
        open_large = find_large("large-words", len(ids))
        if open_large is not None:
            self._large = open_large(arrays, len(ids))
            self._arrays = {**arrays, **self._large.arrays()}

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
        ids: Sequence[str] | None = None,
        earlier: EarlierTerms | None = None,
    ) -> BM25:
        """Build an index of tools that come batch by batch, in ascending order of their ids.

        Args:
            batches: the tools.
            settings: as in `build`.
            ids: ids of all tools, required with `earlier`. By default, the batches contain all tools.
            earlier: terms of the tools that are not in the batches. The index equals one that is built of all tools.
        """
        built = build_arrays(batches, settings, earlier)
        arrays = {"data": built.data, "indices": built.indices, "indptr": built.indptr}
        all_ids = tuple(built.ids) if ids is None else ids
        index = cls(all_ids, Vocabulary.of(built.vocabulary), arrays, settings)
        index.counts = built.counts
        return index

    def search(
        self, queries: Sequence[str], k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[Scores]]:
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

    def _find_best(self, query: str, k: int, mask: Mask | None) -> tuple[Positions, Scores]:
        """Return positions and scores of the `k` best tools with a score above 0."""
        if self._large is not None:
            _, postings = self._look_up_terms(query)
            best = self._large.find_best([*postings.values()], k, mask)
            if best is not None:
                return best
        scores = self.scores(query)
        positions = top_k(scores, k, mask, floor=0.0)
        return positions, scores[positions]

    def scores(self, query: str) -> Scores:
        """Score every tool for a query, `(len(ids),)`, read only; 0 where no term is shared.

        The sums are in double precision, and in the order of the terms. The last results are cached, because ranking
        and abstention need them one after the other.
        """
        if (cached := self._scores_cache.get(query)) is not None:
            return cached
        _, postings = self._look_up_terms(query)
        scores = np.zeros(len(self.ids), dtype=np.float32)
        if postings:
            tools = np.concatenate([self._indices[start:end] for _, start, end, _ in postings.values()])
            term_scores = [
                self._data[start:end] if weight == 1 else self._data[start:end] * np.float32(weight)
                for _, start, end, weight in postings.values()
            ]
            # `bincount` adds the scores of each tool, in double precision.
            scores = np.bincount(tools, np.concatenate(term_scores), len(self.ids)).astype(np.float32)
        scores.flags.writeable = False
        if (len(self._scores_cache) + 1) * len(scores) > MAX_CACHED_SCORES:
            self._scores_cache = {}
        self._scores_cache[query] = scores
        return scores

    def _look_up_terms(self, query: str) -> tuple[Mapping[str, float], dict[str, Postings]]:
        """Return the count of each term of a query, and the postings of the terms that some tool has.

        With `settings.repeats`, a term counts as often as it occurs, else once. The last results are cached, because
        one search asks for them five times.
        """
        if (cached := self._terms_cache.get(query)) is not None:
            return cached
        kinds = self._token_kinds
        words = kinds[0].tokens.split(query)  # all kinds have the same tokenizer, and so the same words
        terms = [kind.mark + term for kind in kinds for word in words for term in kind.tokens.list_terms(word)]
        if not self.settings.repeats:
            terms = list(dict.fromkeys(terms))
        counts = Counter(terms)
        return self._remember_terms(query, counts, self._find_postings(counts))

    def _remember_terms(
        self, query: str, counts: Mapping[str, float], postings: dict[str, Postings]
    ) -> tuple[Mapping[str, float], dict[str, Postings]]:
        """Cache what `_look_up_terms` returns for a query, and return it."""
        if len(self._terms_cache) >= MAX_CACHED_SPLITS:
            self._terms_cache = {}
        self._terms_cache[query] = counts, postings
        return counts, postings

    def _find_postings(self, counts: Mapping[str, float]) -> dict[str, Postings]:
        """Find the postings of terms, weighted by their counts; a term of no tool is left out."""
        postings = {}
        for term, count in counts.items():
            number = self._vocabulary.get(term)
            if number is not None:
                postings[term] = Postings(number, self._indptr.item(number), self._indptr.item(number + 1), count)
        return postings

    def spreads(self, queries: Sequence[str], depth: int, visible: Sequence[Mask | None] | None = None) -> list[Spread]:
        """Summarise the distribution of scores over all visible tools for each query.

        Args:
            queries: texts.
            depth: number of best scores.
            visible: a mask for each query with at least one tool, or None.
        """
        spreads = []
        for query, mask in zip(queries, masks(visible, len(queries)), strict=True):
            best, scores = self._find_best(query, depth, mask)
            n_visible = len(self.ids) if mask is None else int(np.count_nonzero(mask))
            if len(best) < min(depth, n_visible):  # `_find_best` leaves out scores of 0, so the next best score is 0
                scores = np.append(scores, np.float32(0.0))
            estimate = None
            if len(best):
                first = int(best[0])
                if self._large is not None:
                    _, postings = self._look_up_terms(query)
                    estimate = self._large.describe_scores([*postings.values()], mask)
            else:  # all visible tools have the score 0, so the first of them is the best
                first = 0 if mask is None else int(np.argmax(mask))
            mean, deviation = estimate or describe_scores(self.scores(query), mask)
            spreads.append(Spread(pad_best(scores, depth), first, mean, deviation))
        return spreads

    def at(self, query: str, positions: Sequence[int]) -> Scores:
        """Return the scores of the tools at some positions, equal to those of `scores`."""
        if (scores := self._scores_cache.get(query)) is not None:
            return scores[np.array(positions, dtype=np.intp)]
        _, postings = self._look_up_terms(query)
        term_scores = self._score_terms_at(postings, np.array(positions, dtype=np.int32))
        totals: Scores = term_scores.sum(axis=0, dtype=np.float64).astype(np.float32)
        return totals

    def score_terms(self, query: str, ids: Sequence[str]) -> Scores:
        """Return what each term of a query that some tool has adds to the score of each tool, `(terms, len(ids))`.

        Every id must be in the index; for other ids the scores are wrong.
        """
        positions = np.array([bisect.bisect_left(self.ids, tool_id) for tool_id in ids], dtype=np.int32)
        _, postings = self._look_up_terms(query)
        return self._score_terms_at(postings, positions)

    def _score_terms_at(self, postings: Mapping[str, Postings], positions: npt.NDArray[np.int32]) -> Scores:
        """Return what each term adds to the scores of the tools at some positions, `(terms, tools)`."""
        table = np.zeros((len(postings), len(positions)), dtype=np.float32)
        for row, (_, start, end, _) in zip(table, postings.values(), strict=True):
            tools = self._indices[start:end]
            places = tools.searchsorted(positions)
            # A tool above all tools of the term has the place after the last one, which `take` clips to the last.
            has_term = (tools.take(places, mode="clip") == positions).nonzero()[0]
            row[has_term] = self._data[start:end][places[has_term]]
        weights = np.array([posting.weight for posting in postings.values()], dtype=np.float32)
        return table * weights[:, None]

    def count_tools(self, text: str) -> int:
        """Count the tools with the stem of every word of a text, except function words; 0 if it has only those."""
        stems = self._token_kinds[0]
        counts = dict.fromkeys(stems.tokens(text), 1.0)
        postings = self._find_postings(counts)
        has_unknown_stem = len(postings) < len(counts)
        if not counts or has_unknown_stem:
            return 0
        tools, *longer_lists = sorted((self._indices[start:end] for _, start, end, _ in postings.values()), key=len)
        for others in longer_lists:  # both lists ascend, so a binary search finds the tools that are in both
            places = np.minimum(np.searchsorted(others, tools), len(others) - 1)
            tools = tools[others[places] == tools]
        return len(tools)

    def mass(self, query: str) -> tuple[float, float]:
        """Compute an upper bound of a query's scores, and the share of its stems that occur in some tool.

        The bound is the score of a tool that repeats every term without end. Terms of no tool count as the rarest.
        """
        counts, postings = self._look_up_terms(query)
        weight_of_mark = {kind.mark: kind.weight for kind in self._token_kinds}
        upper_bound = 0.0
        for term, count in counts.items():
            mark = WRITTEN_MARK if term.startswith(WRITTEN_MARK) else ""
            upper_bound += count * self._measure_rarity(postings.get(term)) * weight_of_mark[mark]
        stems = [term for term in counts if not term.startswith(WRITTEN_MARK)]
        n_known = sum(stem in postings for stem in stems)
        return upper_bound, n_known / max(len(stems), 1)

    def _measure_rarity(self, postings: Postings | None) -> float:
        """Compute how rare a term is (its IDF, Lucene's form); `postings`: None if no tool has the term."""
        frequency = postings.end - postings.start if postings else 0
        return math.log(1 + (len(self.ids) - frequency + 0.5) / (frequency + 0.5))

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
        counts, postings = self._look_up_terms(query)
        label_of = self._label_terms(query)
        score_of_label: dict[str, float] = {}  # a stem and the words as written with that stem have one label
        for term, term_score in zip(postings, self._score_terms_of(position, postings), strict=True):
            if term_score:
                label = label_of[term]
                score_of_label[label] = score_of_label.get(label, 0.0) + term_score
        stems = [term for term in counts if not term.startswith(WRITTEN_MARK)]
        missing = tuple(stem for stem in stems if stem not in score_of_label)
        if not score:
            return Explanation("bm25", None, 0.0, "no word in common", missing=missing)
        best_first = sorted(score_of_label, key=score_of_label.__getitem__, reverse=True)
        terms = {label: score_of_label[label] for label in best_first}
        return Explanation("bm25", rank(scores, position, visible), float(score), terms=terms, missing=missing)

    def _score_terms_of(self, position: int, postings: Mapping[str, Postings]) -> list[float]:
        """Return what each term adds to the score of the tool at a position."""
        column = self._score_terms_at(postings, np.array([position], dtype=np.int32))[:, 0]
        scores: list[float] = column.tolist()
        return scores

    def _label_terms(self, query: str) -> dict[str, str]:
        """Map each term of a query to the text that `explain` shows for it: its stem, also for a word as written."""
        terms_of_kinds = [kind.tokens(query) for kind in self._token_kinds]
        stems = terms_of_kinds[0]
        return {
            kind.mark + term: stem
            for kind, terms in zip(self._token_kinds, terms_of_kinds, strict=True)
            for stem, term in zip(stems, terms, strict=True)
        }

    def weigh_tool(self, tool: Tool) -> dict[str, float]:
        """Return the weight of each term in a tool of the index: its score divided by its rarity.

        An engine that stores these weights computes a score as their dot product with those of `weigh_query`. The
        weights change with the mean length of all tools, but not with how many tools have a term.
        """
        position = place(self.ids, tool.id)
        texts = render_fields(tool, self.settings)
        terms = {kind.mark + word: 1.0 for kind in self._token_kinds for text in texts for word in kind.tokens(text)}
        postings = self._find_postings(terms)
        scores = self._score_terms_of(position, postings)
        return {
            term: score / self._measure_rarity(posting)
            for (term, posting), score in zip(postings.items(), scores, strict=True)
        }

    def weigh_query(self, query: str) -> dict[str, float]:
        """Return the weight of each term of a query that occurs in some tool: its rarity times its count."""
        _, postings = self._look_up_terms(query)
        return {term: posting.weight * self._measure_rarity(posting) for term, posting in postings.items()}

    @property
    def meta(self) -> dict[str, Any]:
        """JSON values that `from_arrays` needs besides the arrays."""
        return {
            "settings": msgspec.to_builtins(self.settings),
            "fingerprint": self.settings.fingerprint,
            "n_tools": len(self.ids),
        }

    def arrays(self) -> dict[str, Array]:
        """Return the index as flat arrays, without its ids."""
        return {**self._arrays, **self._vocabulary.arrays("vocabulary")}

    @classmethod
    def from_arrays(
        cls,
        arrays: Arrays,
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
            is_checked: whether a checksum has covered the arrays. If so, `indices` is not read to check its values.

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
    """Return whether all values are positions of tools."""
    return bool(indices.min(initial=0) >= 0 and indices.max(initial=-1) < n_tools)
