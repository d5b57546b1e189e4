"""ToolRerank's search for its five settings. Every candidate of the dev queries is scored once; the rest is arithmetic.

Dev is small, so the best of many settings there is often the best by chance. The search therefore starts with a default
and leaves it only for a setting that is better by two standard errors over the queries (`exceeds_noise`). The defaults
and the number of errors come from dev too: we chose them on two thirds of it and checked the rest (benchmarks/LAB.md).

* Limits: score all candidates, as the cross-encoder itself does. Few dev queries need tools that training never saw. So
  dev shows how many of the seen tools to score, but next to nothing about unseen ones. A short m_u that is no worse on
  dev is no evidence; the paper scores more of the unseen tools, not fewer.
* Algorithm 1: on, with a threshold of 0.8. The choice within the paper's grid hardly matters.
* Algorithm 2: off.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from toolscout import metrics
from toolscout.arrays import Floats, Vectors
from toolscout.rankers.lesson import DEV_METRICS, Lesson
from toolscout.types import Search
from toolscout_lab.machine import Record
from toolscout_lab.rankers.crossencoder import NeedScorer
from toolscout_lab.rankers.shared.reranking import RankedQueries, exceeds_noise
from toolscout_lab.rankers.toolrerank.hierarchy import diversify, extend_list, truncate
from toolscout_lab.rankers.toolrerank.stages import ChosenSettings, Families, adds_all_members

__all__ = ["Grid", "ScoredQueries", "limits"]

LIMIT_GRID: Final = ((50, 50), (30, 50), (10, 50), (30, 30), (10, 30), (10, 10), (50, 30), (50, 10), (30, 10))
THRESHOLD_GRID: Final = (0.8, 0.9, 0.85, 0.75, 0.7, 0.65, 0.6)
GROUP_SIZE_GRID: Final = (4, 3, 2)
MIN_STANDARD_ERRORS: Final = 2.0


def limits(options: Any) -> list[tuple[int, int]]:
    """Return the pairs of m_s and m_u to try."""
    return list(dict.fromkeys((options.seen or seen, options.unseen or unseen) for seen, unseen in LIMIT_GRID))


class ScoredQueries(NamedTuple):
    """The dev queries with their candidates, all scored by the cross-encoder.

    Attributes:
        ranked: the candidates.
        logits: (queries, N) of the cross-encoder.
        single: whether one parent serves each query.
        rows: (tools, d) vectors of the tools.
    """

    ranked: RankedQueries
    logits: Floats
    single: Sequence[bool]
    rows: Vectors


class Grid:
    """The search for the best settings over dev queries with scored candidates.

    Attributes:
        by_limits: "m_s/m_u" → the best figures with these limits.
    """

    def __init__(
        self,
        lesson: Lesson,
        options: Any,
        queries: ScoredQueries,
        families: Families,
        seen: set[tuple[str, ...]],
        scorer: NeedScorer,
        say: Callable[[str], None],
    ) -> None:
        """Prepare the search.

        Args:
            lesson: has the tools and the qrels.
            options: of the fit.
            queries: dev queries with their candidates and logits.
            families: of the tools.
            seen: parents of the tools that training saw, as paths.
            scorer: the cross-encoder.
            say: receives the progress.
        """
        self.lesson, self.options, self.families, self.seen, self.say = lesson, options, families, seen, say
        self.ranked, logits, self.single, self.rows = queries
        self.scorer, ranked = scorer, queries.ranked
        self.tools = [tool.id for tool in lesson.tools]
        self.probabilities = scorer.blend.probabilities(logits, scorer.blend.distances(ranked.scores))
        self.by_limits: dict[str, dict[str, float]] = {}
        # (row of the query, family) → tool → probability; a family is scored once
        self._family_probabilities: dict[tuple[int, Hashable], dict[str, float]] = {}

    def ids(self, row: int) -> list[str]:
        """Return the candidates of a query, in the order of the first stage."""
        return [self.tools[place] for place in self.ranked.candidates[row] if place >= 0]

    def figures(self, rankings: Sequence[Sequence[str]]) -> dict[str, float]:
        """Return the figures of one ranking per query."""
        return self._score(range(len(rankings)), rankings).means()

    def search(self, hierarchical: bool) -> tuple[ChosenSettings, dict[str, float]]:
        """Choose the settings; return them with their figures. Each algorithm is chosen on the queries it serves."""
        rows = range(len(self.ranked.queries))
        tried, results = [], []
        for pair in (offered := limits(self.options)):
            lists = [self._rank_candidates(row, pair) for row in rows]
            tried.append(
                self._choose_hierarchy(ChosenSettings(*pair), lists) if hierarchical else ChosenSettings(*pair)
            )
            results.append(self._score(rows, [self._rank_query(row, lists[row], tried[-1]) for row in rows]))
            self.by_limits["/".join(map(str, pair))] = means = results[-1].means()
            summary = ", ".join(f"{name} {value:.4f}" for name, value in means.items())
            self.say(f"limits {pair[0]} and {pair[1]} ({len(tried)} of {len(offered)}): {summary}")
        best = _choose_setting(results)
        return tried[best], results[best].means()

    def _choose_hierarchy(self, chosen: ChosenSettings, lists: Sequence[Sequence[int]]) -> ChosenSettings:
        """Choose the setting of each algorithm on the queries that it orders; without such queries, its default."""
        for single, offered in ((True, self._list_thresholds()), (False, self._list_groups())):
            served = [row for row in range(len(lists)) if self.single[row] == single]
            tried = [msgspec.structs.replace(chosen, **changes) for changes in offered]
            chosen = tried[0]
            if served:
                results = [
                    self._score(served, [self._rank_query(row, lists[row], setting) for row in served])
                    for setting in tried
                ]
                chosen = tried[_choose_setting(results)]
        return chosen

    def _list_thresholds(self) -> list[Record]:
        """Return the settings of algorithm 1 to try."""
        thresholds = (*THRESHOLD_GRID, 0.0) if self.options.sure is None else (self.options.sure,)
        return [{"sure": threshold} for threshold in thresholds]

    def _list_groups(self) -> list[Record]:
        """Return the settings of algorithm 2 to try."""
        options = self.options
        cosines = THRESHOLD_GRID if options.alike is None else (options.alike,)
        off = [{"alike": cosines[0], "each": 0}] if options.each is None else []
        pairs = itertools.product(GROUP_SIZE_GRID if options.each is None else (options.each,), cosines)
        return [*off, *({"alike": cosine, "each": size} for size, cosine in pairs)]

    def _rank_candidates(self, row: int, limits: tuple[int, int]) -> list[int]:
        """Return R: the columns of a query's candidates after truncation, in the order of the cross-encoder."""
        ids = self.ids(row)
        columns = truncate(range(len(ids)), lambda column: self.families.family_of[ids[column]] in self.seen, *limits)
        return sorted(columns, key=lambda column: (-self.probabilities[row, column], ids[column]))

    def _rank_query(self, row: int, columns: Sequence[int], chosen: ChosenSettings) -> list[str]:
        """Return F, the final ranking of a query."""
        ids = self.ids(row)
        ranked = [ids[column] for column in columns]
        if self.single[row] and chosen.sure:
            scores = dict(zip(ranked, self.probabilities[row, columns].tolist(), strict=True))
            tool_of = self.families.family_of.__getitem__
            ordered, _ = extend_list(
                ranked, scores, tool_of, chosen.sure, lambda tools: self._score_members(row, ranked, tools)
            )
            return ordered
        if not self.single[row] and chosen.each:
            rows = self.rows[self.ranked.candidates[row, columns]]
            return diversify(ranked, self.families.family_of.__getitem__, rows @ rows.T, chosen.alike, chosen.each)
        return ranked

    def _score_members(self, row: int, ranked: Sequence[str], tools: set[Any]) -> dict[str, float]:
        """Score the tools that a query's likely families add."""
        added: dict[str, float] = {}
        for family in tools:
            if adds_all_members(self.options.extend, family in self.seen, len(self.families.members[family])):
                scores = self._score_family(row, family)
                added |= {tool: score for tool, score in scores.items() if tool not in ranked}
        return added

    def _score_family(self, row: int, family: Hashable) -> dict[str, float]:
        """Score the tools of a family once, as if none were a candidate."""
        if (row, family) not in self._family_probabilities:
            ids = self.families.members[family]  # type: ignore[index]
            search = Search(query=self.lesson.texts[self.ranked.queries[row]])
            probabilities = self.scorer.score_others(search, ids).tolist()
            self._family_probabilities[row, family] = dict(zip(ids, probabilities, strict=True))
        return self._family_probabilities[row, family]

    def _score(self, rows: Sequence[int], rankings: Sequence[Sequence[str]]) -> metrics.PerQuery:
        queries = [self.ranked.queries[row] for row in rows]
        golds = {query: self.lesson.dev[query] for query in queries}
        return metrics.score(dict(zip(queries, rankings, strict=True)), golds, DEV_METRICS)


def _choose_setting(results: Sequence[metrics.PerQuery]) -> int:
    """Choose the best setting if it is clearly better than the first, else the first."""
    totals = [np.sum(list(result.values.values()), axis=0) for result in results]
    best = int(np.argmax([total.mean() for total in totals]))
    return best if exceeds_noise(totals[best] - totals[0], MIN_STANDARD_ERRORS) else 0
