"""Turns a collection of an engine into an index: exact scores, ties by tool id, visibility."""

from __future__ import annotations

import bisect
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Vectors
from toolscout.indexes.exact import Exact
from toolscout.indexes.ranking import Mask, check_rows, masks, place, top_k
from toolscout.types import Explanation, digest
from toolscout_postgres.engines.contract import Candidates, Collection, Mark, Mend, Numbers, ToolRows, View

__all__ = ["EngineIndex"]

MIN_SPARE: Final = 64  # candidates beyond k: the engine's order is approximate, and other tools may be among them
WIDEN: Final = 4  # factor by which a search that may have missed a tool looks for more
MARK_CHECK_S: Final = 1.0  # how long a search trusts the mark that it read


class EngineIndex:
    """The index over one collection; the score is the cosine.

    The engine finds candidates. Their cosines are computed again here from the vectors as they were written, so equal
    vectors get equal scores, ordered by tool id. If the last answer and the last candidate are about equally near,
    more candidates are read, because a tie could reach beyond them. No tool is returned that is not in `ids`.

    Attributes:
        ids: tool ids, ascending, of the snapshot that is searched.
        collection: holds the vectors.
    """

    def __init__(
        self,
        collection: Collection,
        ids: Sequence[str] = (),
        *,
        mark: Mark | None = None,
        mend: Mend | None = None,
        exact: Exact | None = None,
    ) -> None:
        """Search a collection.

        Args:
            collection: holds at least the tools of `ids`.
            ids: ascending.
            mark: of the collection, when it was in step with `ids`.
            mend: called when the mark has changed.
            exact: all vectors, if they are at hand, to explain any rank. None: they are read from the engine.
        """
        self.ids: tuple[str, ...] = tuple(ids)
        self.collection = collection
        self._mark, self._mend, self._exact = mark, mend, exact
        self._checked_at = time.monotonic() if mark else 0.0
        self._numbers: Numbers | None = None
        self._lock = threading.Lock()

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.collection.key.dim

    def upsert(self, ids: Sequence[str], vectors: npt.NDArray[Any]) -> None:
        """Add tools, or replace their vectors: `(len(ids), dim)`, finite, unit rows.

        Raises:
            ValueError: for another shape, a value that is not finite, or a repeated id; nothing is then written.
        """
        if len(set(ids)) != len(ids):
            raise ValueError("expected each id once, found one of them again")
        rows = check_rows(vectors, (len(ids), self.dim))
        marks = [digest("row/1", row.tobytes().hex()) for row in rows]
        self._change(ToolRows(ids, marks, rows), (), {*self.ids, *ids})

    def delete(self, ids: Iterable[str]) -> None:
        """Remove tools; unknown ids are ignored."""
        gone = set(ids) & set(self.ids)
        rows = ToolRows((), (), np.empty((0, self.dim), dtype=np.float32))
        self._change(rows, sorted(gone), set(self.ids) - gone)

    def _change(self, rows: ToolRows, gone: Sequence[str], ids: set[str]) -> None:
        mark = self.collection.read_mark()
        self._mark = self.collection.change(rows, gone, mark.generation + 1 if mark else 0)
        self.ids, self._numbers, self._exact = tuple(sorted(ids)), None, None

    def search(
        self, queries: npt.NDArray[Any], k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[Vectors]]:
        """Find the nearest tools of each query: `(ids, scores)`, best first; see `Exact.search`."""
        rows = check_rows(queries, (len(queries), self.dim))
        limits = masks(visible, len(rows))
        self.check_mark()
        ids: list[list[str]] = [[] for _ in rows]
        scores: list[Vectors] = [np.empty(0, dtype=np.float32) for _ in rows]
        groups: dict[int, list[int]] = defaultdict(list)
        for number, mask in enumerate(limits):
            if rows[number].any():
                groups[id(mask)].append(number)
        for numbers in groups.values():
            answers = self._search_alike(rows[numbers], k, limits[numbers[0]])
            for number, (positions, values) in zip(numbers, answers, strict=True):
                ids[number] = [self.ids[position] for position in positions]
                scores[number] = values
        return ids, scores

    def _search_alike(self, rows: Vectors, k: int, mask: Mask | None) -> list[tuple[npt.NDArray[np.intp], Vectors]]:
        """Search for queries that may return the same tools: positions and scores, best first."""
        if mask is not None and mask.shape != (len(self.ids),):
            raise ValueError(f"expected a mask of shape {(len(self.ids),)}, found {mask.shape}")
        n_visible = len(self.ids) if mask is None else int(mask.sum())
        wanted = min(k, n_visible)
        nothing = np.empty(0, dtype=np.intp), np.empty(0, dtype=np.float32)
        answers = [nothing] * len(rows)
        pending = list(range(len(rows))) if wanted > 0 else []
        limit, view = max(2 * wanted, wanted + MIN_SPARE), None if mask is None else self.view(mask)
        while pending:
            limit = min(limit, self.collection.max_limit)
            uncertain = []
            for number, candidates in zip(pending, self.collection.find(rows[pending], limit, view), strict=True):
                answers[number], is_certain = self._rank(rows[number], candidates, wanted, mask)
                if not is_certain:
                    uncertain.append(number)
            if limit == self.collection.max_limit and view is not None:
                break
            view = view or self.view(np.ones(len(self.ids), dtype=np.bool_))  # other tools can crowd these out
            pending, limit = uncertain, limit * WIDEN
        return answers

    def _rank(
        self, row: Vectors, candidates: Candidates, wanted: int, mask: Mask | None
    ) -> tuple[tuple[npt.NDArray[np.intp], Vectors], bool]:
        """Return positions and scores of the nearest candidates, and whether no other tool can belong to them."""
        scores = np.einsum("nd,d->n", candidates.vectors, row)
        lowest = float(scores.min(initial=np.inf))
        positions = np.array([self.find_position(tool_id) for tool_id in candidates.ids], dtype=np.intp)
        allowed = positions >= 0
        if mask is not None:
            allowed &= mask[positions]
        order = np.argsort(positions[allowed], kind="stable")
        positions, scores = positions[allowed][order], scores[allowed][order]
        best = top_k(scores, wanted)
        is_certain = candidates.complete or (
            len(best) == wanted and float(scores[best[-1]]) > lowest + candidates.slack
        )
        return (positions[best], scores[best]), is_certain

    def find_position(self, tool_id: str) -> int:
        """Return the position of a tool, or -1 if the snapshot has no such tool."""
        position = bisect.bisect_left(self.ids, tool_id)
        return position if position < len(self.ids) and self.ids[position] == tool_id else -1

    def view(self, mask: Mask) -> View:
        """Return what the engine filters by, for the tools of a mask."""
        with self._lock:
            if self._numbers is None:
                self._numbers = self.collection.number_tools(self.ids)
            return View(self._numbers, mask)

    def check_mark(self) -> None:
        """Mend the collection if somebody has changed it since it was in step with `ids`."""
        if self._mend is None or time.monotonic() - self._checked_at < MARK_CHECK_S:
            return
        mark = self.collection.read_mark()
        if mark != self._mark:
            self._mark, self._numbers = self._mend(), None
        self._checked_at = time.monotonic()

    def explain(self, query: npt.NDArray[Any], tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain rank and score of one tool, exact at any rank.

        Raises:
            NotFound: if the index has no such tool.
        """
        place(self.ids, tool_id)
        return self._load_exact().explain(query, tool_id, visible)

    def _load_exact(self) -> Exact:
        """Return all vectors of the snapshot."""
        with self._lock:
            if self._exact is None:
                ids, vectors = self.collection.read_vectors()
                exact = Exact(self.dim)
                exact.upsert(ids, vectors)
                exact.delete(set(ids) - set(self.ids))
                self._exact = exact
            return self._exact
