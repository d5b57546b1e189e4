"""ToolRerank's search for its five numbers: every candidate of the dev queries is read once, then all is arithmetic.

Dev is small: the best of many settings there is often the best by chance. So there is a first one, and it is left only
for what is better by two standard errors, query by query (`exceeds_noise`). What stands first, and that it takes two,
was itself found on dev, by choosing on two thirds of it and looking at the rest (benchmarks/LAB.md).

* Of the limits it is to read all, as the cross-encoder itself does, with the weight that dev gave it. Few of the dev
  queries need what training never saw: dev says how far to read of what it saw, and next to nothing of the rest, which
  the paper would have read further, not less. A short m_u that is no worse on dev is no evidence.
* Of algorithm 1 it is to use it, with a threshold of 0.8; which of the paper's grid hardly matters.
* Of algorithm 2 it is to leave it out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from toolscout import metrics
from toolscout.arrays import Floats, Vectors
from toolscout.methods.crossencoder import NeedScorer
from toolscout.methods.lesson import DEV_METRICS, Lesson
from toolscout.methods.shared.reranking import RankedQueries, exceeds_noise
from toolscout.methods.toolrerank.hierarchy import diversify, extend_list, truncate
from toolscout.methods.toolrerank.stages import Chosen, Families, extends
from toolscout.types import Search

__all__ = ["Grid", "ReadQueries", "limits"]

LIMIT_GRID: Final = ((50, 50), (30, 50), (10, 50), (30, 30), (10, 30), (10, 10), (50, 30), (50, 10), (30, 10))
THRESHOLD_GRID: Final = (0.8, 0.9, 0.85, 0.75, 0.7, 0.65, 0.6)
GROUP_SIZE_GRID: Final = (4, 3, 2)
MIN_STANDARD_ERRORS: Final = 2.0


def limits(options: Any) -> list[tuple[int, int]]:
    """m_s and m_u on offer."""
    return list(dict.fromkeys((options.seen or one, options.unseen or other) for one, other in LIMIT_GRID))


class ReadQueries(NamedTuple):
    """The dev queries with their candidates, all read by the cross-encoder.

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
    """The search for the best settings over queries whose candidates are all read.

    Attributes:
        by_limits: "m_s/m_u" → the best figures with these limits.
    """

    def __init__(
        self,
        lesson: Lesson,
        options: Any,
        queries: ReadQueries,
        families: Families,
        seen: set[tuple[str, ...]],
        scorer: NeedScorer,
        say: Callable[[str], None],
    ) -> None:
        """Take the queries, the families of the tools and which of them training saw, and the cross-encoder."""
        self.lesson, self.options, self.families, self.seen, self.say = lesson, options, families, seen, say
        self.ranked, logits, self.single, self.rows = queries
        self.scorer, ranked = scorer, queries.ranked
        self.tools = [tool.id for tool in lesson.tools]
        self.shares = scorer.blend.shares(logits, scorer.blend.distances(ranked.scores))
        self.by_limits: dict[str, dict[str, float]] = {}
        self._known: dict[tuple[int, Hashable], dict[str, float]] = {}

    def ids(self, row: int) -> list[str]:
        """The candidates of a query, as the first stage has them."""
        return [self.tools[place] for place in self.ranked.candidates[row] if place >= 0]

    def figures(self, rankings: Sequence[Sequence[str]]) -> dict[str, float]:
        """Of a ranking for each query."""
        return self._over(range(len(rankings)), rankings).means()

    def search(self, hierarchical: bool) -> tuple[Chosen, dict[str, float]]:
        """The settings, and their figures; each half of the hierarchy is chosen by its own queries."""
        rows = range(len(self.ranked.queries))
        tried, found = [], []
        for pair in (offered := limits(self.options)):
            lists = [self._read(row, pair) for row in rows]
            tried.append(self._halves(Chosen(*pair), lists) if hierarchical else Chosen(*pair))
            found.append(self._over(rows, [self._final(row, lists[row], tried[-1]) for row in rows]))
            self.by_limits["/".join(map(str, pair))] = means = found[-1].means()
            told = ", ".join(f"{name} {value:.4f}" for name, value in means.items())
            self.say(f"limits {pair[0]} and {pair[1]} ({len(tried)} of {len(offered)}): {told}")
        best = _choose_setting(found)
        return tried[best], found[best].means()

    def _halves(self, chosen: Chosen, lists: Sequence[Sequence[int]]) -> Chosen:
        for single, offered in ((True, self._sure()), (False, self._groups())):
            half = [row for row in range(len(lists)) if self.single[row] == single]
            tried = [msgspec.structs.replace(chosen, **each) for each in offered]
            chosen = tried[
                _choose_setting(
                    [self._over(half, [self._final(row, lists[row], each) for row in half]) for each in tried]
                )
                if half
                else 0
            ]
        return chosen

    def _sure(self) -> list[dict[str, Any]]:
        """What algorithm 1 may be told."""
        given = self.options.sure
        return [{"sure": each} for each in ((*THRESHOLD_GRID, 0.0) if given is None else (given,))]

    def _groups(self) -> list[dict[str, Any]]:
        """What algorithm 2 may be told."""
        options = self.options
        cosines = THRESHOLD_GRID if options.alike is None else (options.alike,)
        off = [{"alike": cosines[0], "each": 0}] if options.each is None else []
        pairs = itertools.product(GROUP_SIZE_GRID if options.each is None else (options.each,), cosines)
        return [*off, *({"alike": one, "each": other} for other, one in pairs)]

    def _read(self, row: int, limits: tuple[int, int]) -> list[int]:
        """R: the columns of a query's candidates that are kept, in the order of the cross-encoder."""
        ids = self.ids(row)
        kept = truncate(range(len(ids)), lambda column: self.families.of[ids[column]] in self.seen, *limits)
        return sorted(kept, key=lambda column: (-self.shares[row, column], ids[column]))

    def _final(self, row: int, columns: Sequence[int], chosen: Chosen) -> list[str]:
        """F."""
        ids = self.ids(row)
        ranked = [ids[column] for column in columns]
        if self.single[row] and chosen.sure:
            scores = dict(zip(ranked, self.shares[row, columns].tolist(), strict=True))
            tool_of = self.families.of.__getitem__
            return extend_list(ranked, scores, tool_of, chosen.sure, lambda tools: self._more(row, ranked, tools))[0]
        if not self.single[row] and chosen.each:
            rows = self.rows[self.ranked.candidates[row, columns]]
            return diversify(ranked, self.families.of.__getitem__, rows @ rows.T, chosen.alike, chosen.each)
        return ranked

    def _more(self, row: int, ranked: Sequence[str], tools: set[Any]) -> dict[str, float]:
        """What a query's likely families bring in."""
        found: dict[str, float] = {}
        for family in tools:
            if extends(self.options.extend, family in self.seen, len(self.families.members[family])):
                found |= {tool: share for tool, share in self._others(row, family).items() if tool not in ranked}
        return found

    def _others(self, row: int, family: Hashable) -> dict[str, float]:
        """How likely a family's tools are, as if none were a candidate; read once."""
        if (row, family) not in self._known:
            ids = self.families.members[family]  # type: ignore[index]
            search = Search(query=self.lesson.texts[self.ranked.queries[row]])
            self._known[row, family] = dict(zip(ids, self.scorer.score_others(search, ids).tolist(), strict=True))
        return self._known[row, family]

    def _over(self, rows: Sequence[int], rankings: Sequence[Sequence[str]]) -> metrics.PerQuery:
        queries = [self.ranked.queries[row] for row in rows]
        golds = {query: self.lesson.dev[query] for query in queries}
        return metrics.score(dict(zip(queries, rankings, strict=True)), golds, DEV_METRICS)


def _choose_setting(found: Sequence[metrics.PerQuery]) -> int:
    """Which of the settings on offer: the best, if it is clearly better than the first; else the first."""
    totals = [np.sum(list(each.values.values()), axis=0) for each in found]
    best = int(np.argmax([each.mean() for each in totals]))
    return best if exceeds_noise(totals[best] - totals[0], MIN_STANDARD_ERRORS) else 0
