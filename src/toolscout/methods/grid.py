"""ToolRerank's search for its five numbers: every candidate of the dev queries is read once, then all is arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout import metrics
from toolscout.encoders import Vectors
from toolscout.methods import JUDGED, Fitting
from toolscout.methods.crossencoder import Judge
from toolscout.methods.families import Chosen, Families, extends
from toolscout.methods.hierarchy import diverse, extended, truncated
from toolscout.methods.ranked import Ranked
from toolscout.types import Search

__all__ = ["DEPTH", "Grid"]

DEPTH: Final = 50
LIMITS: Final = ((10, 50), (10, 30), (30, 50), (10, 10), (30, 30), (50, 50), (30, 10), (50, 30), (50, 10))
THRESHOLDS: Final = (0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)
MOST: Final = (4, 3, 2)


class Grid:
    """The dev queries with their candidates, all read: the search for the best settings.

    Attributes:
        by_limits: "m_s/m_u" → the best figures with these limits.
    """

    def __init__(
        self,
        job: Fitting,
        options: Any,
        ranked: Ranked,
        logits: npt.NDArray[np.float64],
        families: Families,
        seen: set[tuple[str, ...]],
        judge: Judge,
        rows: Vectors,
        single: Sequence[bool],
    ) -> None:
        self.job, self.options, self.ranked, self.families, self.seen = job, options, ranked, families, seen
        self.judge, self.rows, self.single = judge, rows, single
        self.tools = [tool.id for tool in job.tools]
        self.shares = judge.blend.shares(logits, judge.blend.distances(ranked.scores))
        self.by_limits: dict[str, dict[str, float]] = {}
        self._known: dict[tuple[int, Hashable], dict[str, float]] = {}

    def ids(self, row: int) -> list[str]:
        """The candidates of a query, as the first stage has them."""
        return [self.tools[place] for place in self.ranked.candidates[row] if place >= 0]

    def figures(self, rankings: Sequence[Sequence[str]]) -> dict[str, float]:
        """Of a ranking for each query."""
        return self._over(range(len(rankings)), rankings)

    def search(self, hierarchical: bool) -> tuple[Chosen, dict[str, float]]:
        """The best settings, and their figures; each half of the hierarchy is chosen by its own queries."""
        options, best, figures = self.options, Chosen(DEPTH, DEPTH), dict.fromkeys(JUDGED, -1.0)
        given = {(options.seen or one, options.unseen or other): None for one, other in LIMITS}
        for done, limits in enumerate(given, 1):
            chosen = Chosen(*limits)
            lists = [self._read(row, limits) for row in range(len(self.ranked.queries))]
            if hierarchical:
                chosen = self._halves(chosen, lists)
            found = self.figures([self._final(row, each, chosen) for row, each in enumerate(lists)])
            self.by_limits["/".join(map(str, limits))] = found
            told = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
            self.job.say(f"limits {limits[0]} and {limits[1]} ({done} of {len(given)}): {told}")
            if sum(found.values()) > sum(figures.values()):
                best, figures = chosen, found
        return best, figures

    def _halves(self, chosen: Chosen, lists: Sequence[Sequence[int]]) -> Chosen:
        options, rows = self.options, range(len(lists))
        ones = [row for row in rows if self.single[row]]
        others = [row for row in rows if not self.single[row]]
        for half, grid in (
            (ones, [{"sure": sure} for sure in ([*THRESHOLDS, 0.0] if options.sure is None else [options.sure])]),
            (others, self._pairs()),
        ):
            tried = [msgspec.structs.replace(chosen, **each) for each in grid]
            quality = [
                sum(self._over(half, [self._final(row, lists[row], each) for row in half]).values()) for each in tried
            ]
            chosen = tried[int(np.argmax(quality))]
        return chosen

    def _pairs(self) -> list[dict[str, Any]]:
        options = self.options
        cosines = THRESHOLDS if options.alike is None else (options.alike,)
        numbers = MOST if options.each is None else (options.each,)
        pairs = [{"alike": one, "each": other} for one, other in itertools.product(cosines, numbers)]
        return [*pairs, {"alike": cosines[0], "each": 0}] if options.each is None else pairs

    def _read(self, row: int, limits: tuple[int, int]) -> list[int]:
        """R: the columns of a query's candidates that are kept, in the order of the cross-encoder."""
        ids = self.ids(row)
        kept = truncated(range(len(ids)), lambda column: self.families.of[ids[column]] in self.seen, *limits)
        return sorted(kept, key=lambda column: (-self.shares[row, column], ids[column]))

    def _final(self, row: int, columns: Sequence[int], chosen: Chosen) -> list[str]:
        """F."""
        ids = self.ids(row)
        ranked = [ids[column] for column in columns]
        if self.single[row] and chosen.sure:
            scores = dict(zip(ranked, self.shares[row, columns].tolist(), strict=True))
            tool_of = self.families.of.__getitem__
            return extended(ranked, scores, tool_of, chosen.sure, lambda tools: self._more(row, ranked, tools))[0]
        if not self.single[row] and chosen.each:
            rows = self.rows[self.ranked.candidates[row, columns]]
            return diverse(ranked, self.families.of.__getitem__, rows @ rows.T, chosen.alike, chosen.each)
        return ranked

    def _more(self, row: int, ranked: Sequence[str], tools: set[Any]) -> dict[str, float]:
        """What a query's likely families bring in."""
        found: dict[str, float] = {}
        for family in tools:
            if extends(self.options.extend, family in self.seen):
                found |= {tool: share for tool, share in self._others(row, family).items() if tool not in ranked}
        return found

    def _others(self, row: int, family: Hashable) -> dict[str, float]:
        """How likely a family's tools are, as if none were a candidate; read once."""
        if (row, family) not in self._known:
            ids = self.families.members[family]  # type: ignore[index]
            search = Search(query=self.job.texts[self.ranked.queries[row]])
            self._known[row, family] = dict(zip(ids, self.judge.others(search, ids).tolist(), strict=True))
        return self._known[row, family]

    def _over(self, rows: Sequence[int], rankings: Sequence[Sequence[str]]) -> dict[str, float]:
        if not rankings:
            return dict.fromkeys(JUDGED, 0.0)
        queries = [self.ranked.queries[row] for row in rows]
        golds = {query: self.job.dev[query] for query in queries}
        return metrics.score(dict(zip(queries, rankings, strict=True)), golds, JUDGED).means()
