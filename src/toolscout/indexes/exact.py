"""Exact nearest neighbours: compares every vector with the query, or 8-bit copies of them first (`rounded`).

`ann` serves larger catalogues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from toolscout.errors import StoreError
from toolscout.indexes.ranking import Mask, Spread, check_rows, masks, pad_best, place, rank, spread, top_k
from toolscout.indexes.rounded import MIN_ROUNDED_TOOLS, RoundedRows, is_available
from toolscout.types import Explanation

if TYPE_CHECKING:
    from typing import Self  # new in Python 3.11

__all__ = ["Exact"]

Vectors = npt.NDArray[np.float32]
ReadRows = Callable[[npt.NDArray[np.intp]], Vectors]
EXACT_FORMAT: Final = "exact/2"
MIN_PRODUCT_QUERIES: Final = 4  # below this, one matrix product is as slow as comparing each query with every tool
EXACT_BATCH: Final = 64  # queries whose products with all tools are in memory at once
MAX_READ_ROWS: Final = 4_096  # rows that are read one by one; more of them come from the array
MAX_CACHED_NEAREST: Final = 1024  # queries whose nearest tools are cached


class Exact:
    """Compares the vectors of tools one by one; the score is the cosine.

    Equal vectors get equal scores, and a query gets the same answer alone and in a batch. This needs sums in a fixed
    order, which matrix products do not guarantee. One matrix product per batch therefore only selects the tools that
    can be among the nearest; these are then compared one by one.

    Attributes:
        ids: tool ids, ascending.
        vectors: `(len(ids), dim)` float32, unit rows, in the order of `ids`.
    """

    def __init__(self, dim: int) -> None:
        """Create an empty index for vectors of length `dim`."""
        self.ids: Sequence[str] = ()
        self.vectors: Vectors = np.empty((0, dim), dtype=np.float32)
        self._slack = 0.0
        self._last_described = self.vectors[:0], self.vectors[:0], (0.0, 0.0)
        self._last: tuple[Vectors, Vectors, Vectors] = (self.vectors[:0], self.vectors[:0], self.vectors[:0])
        self._nearest_cache: tuple[Vectors, dict[bytes, tuple[npt.NDArray[np.intp], Vectors]]] = (self.vectors, {})
        self._rounded: RoundedRows | None = None
        self._read_rows: ReadRows | None = None
        self._sums: tuple[Vectors, npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None

    @classmethod
    def of(cls, ids: Sequence[str], vectors: Vectors) -> Self:
        """Return an index of vectors that are not copied: `(len(ids), dim)` unit rows, by ascending ids."""
        index = cls(vectors.shape[1])
        index.ids, index.vectors = ids, check_rows(vectors, (len(ids), index.dim))
        index._slack = index._measure_slack()
        return index

    def _measure_slack(self) -> float:
        """Return by how much a cosine can differ between two orders of its sum, twice; see `_find_near`."""
        longest = float(np.sqrt(np.einsum("nd,nd->n", self.vectors, self.vectors)).max(initial=0.0))
        return self._count_slack() * longest

    def _count_slack(self) -> float:
        """Return the slack for rows of length 1."""
        return 4 * self.dim * float(np.finfo(np.float32).eps)

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return int(self.vectors.shape[1])

    def upsert(self, ids: Sequence[str], vectors: npt.NDArray[Any]) -> None:
        """Add tools, or replace the vectors of tools that the index already holds.

        Args:
            ids: without repetition, in any order.
            vectors: `(len(ids), dim)`, finite, unit rows.

        Raises:
            ValueError: for another shape, a value that is not finite, or a repeated id; the index is then unchanged.
        """
        if len(set(ids)) != len(ids):
            raise ValueError("expected each id once, found one of them again")
        rows = check_rows(vectors, (len(ids), self.dim))
        new = set(ids)
        unchanged = [position for position, tool_id in enumerate(self.ids) if tool_id not in new]
        all_ids = [*(self.ids[position] for position in unchanged), *ids]
        order = sorted(range(len(all_ids)), key=all_ids.__getitem__)
        self.vectors = np.concatenate([self.vectors[unchanged], rows])[order]
        self.ids = tuple(all_ids[position] for position in order)
        self._slack = self._measure_slack()
        self._rounded = self._read_rows = None

    def delete(self, ids: Iterable[str]) -> None:
        """Remove tools; unknown ids are ignored."""
        gone = set(ids)
        remaining = [position for position, tool_id in enumerate(self.ids) if tool_id not in gone]
        self.vectors = self.vectors[remaining]
        self.ids = tuple(self.ids[position] for position in remaining)
        self._rounded = self._read_rows = None

    def search(
        self, queries: npt.NDArray[Any], k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[Vectors]]:
        """Find the nearest tools of each query: `(ids, scores)`, best first.

        Args:
            queries: `(n, dim)`, finite, unit rows; a row of zeros finds nothing.
            k: maximum tools per query.
            visible: boolean mask over `ids`, one for all queries or one (or None) per query.

        Raises:
            ValueError: for another shape or a value that is not finite.
        """
        rows = check_rows(queries, (len(queries), self.dim))
        ids, values, limits = [], [], masks(visible, len(rows))
        for start in range(0, len(rows), EXACT_BATCH):
            batch, batch_masks = rows[start : start + EXACT_BATCH], limits[start : start + EXACT_BATCH]
            products: Iterable[Vectors | None] = [None] * len(batch)
            if len(batch) >= MIN_PRODUCT_QUERIES:
                # In this order of the factors, BLAS does not copy the tools.
                products = np.ascontiguousarray((self.vectors @ batch.T).T)
            for row, approximate, mask in zip(batch, products, batch_masks, strict=True):
                limit = k if row.any() else 0
                if approximate is None:
                    best, scores = self._find_best(row, limit, mask)
                else:
                    near = self._find_near(row, approximate, limit, mask)
                    best, scores = self._choose_best(row, near, limit)
                ids.append([self.ids[position] for position in best.tolist()])
                values.append(scores)
                if mask is None:
                    self._cache_nearest(row, best, values[-1])
        return ids, values

    def _find_best(self, row: Vectors, k: int, mask: Mask | None) -> tuple[npt.NDArray[np.intp], Vectors]:
        """Return positions and cosines of the nearest tools, best first."""
        if self._rounded is not None and k > 0:
            near = self._rounded.find_near(row, k, mask, self._slack / self._count_slack())
            if near is not None:
                return self._choose_best(row, near, k)
        scores = self._compute_cosines(row)
        best = top_k(scores, k, mask)
        return best, scores[best]

    def _choose_best(
        self, row: Vectors, positions: npt.NDArray[np.intp], k: int
    ) -> tuple[npt.NDArray[np.intp], Vectors]:
        """Return positions and cosines of the nearest among the tools at some ascending positions, best first."""
        scores = self._compute_cosines(row, positions)
        best = top_k(scores, k)
        return positions[best], scores[best]

    def _cache_nearest(self, row: Vectors, best: npt.NDArray[np.intp], scores: Vectors) -> None:
        vectors, cache = self._nearest_cache
        if vectors is not self.vectors or len(cache) >= MAX_CACHED_NEAREST:
            self._nearest_cache = self.vectors, (cache := {})
        cache[row.tobytes()] = best, scores

    def _find_nearest(self, row: Vectors, depth: int) -> tuple[npt.NDArray[np.intp], Vectors]:
        """Return positions and cosines of at least `depth` nearest tools, from the cache if it has them."""
        vectors, cache = self._nearest_cache
        nearest = cache.get(row.tobytes()) if vectors is self.vectors else None
        if nearest is None or len(nearest[0]) < min(depth, len(self.ids)):
            nearest = self._find_best(row, depth, None)
            self._cache_nearest(row, *nearest)
        return nearest

    def spreads(
        self, queries: npt.NDArray[Any], depth: int, visible: Sequence[Mask | None] | None = None
    ) -> list[Spread]:
        """Summarise the distribution of cosines over all visible tools for each query.

        A large catalogue does not compute every cosine again. The best come from the cache of the last search; mean and
        deviation follow from two moments of the tools' vectors, which are computed once.

        Args:
            queries: `(n, dim)`, unit rows.
            depth: number of best scores.
            visible: a mask for each query with at least one tool, or None.
        """
        rows = check_rows(queries, (len(queries), self.dim))
        limits = masks(visible, len(rows))
        large = len(self.ids) > self.dim
        _, cache = self._nearest_cache
        new = [
            number
            for number, (row, mask) in enumerate(zip(rows, limits, strict=True))
            if large and mask is None and row.tobytes() not in cache
        ]
        if len(new) >= MIN_PRODUCT_QUERIES:
            self.search(rows[new], depth)
        return [
            self._summarise_scores(row, depth) if large and mask is None else spread(self.cosines(row), depth, mask)
            for row, mask in zip(rows, limits, strict=True)
        ]

    def _summarise_scores(self, row: Vectors, depth: int) -> Spread:
        best, scores = self._find_nearest(row, depth)
        return Spread(pad_best(scores, depth), int(best[0]), *self.describe_cosines(row))

    def describe_cosines(self, query: Vectors) -> tuple[float, float]:
        """Compute the mean and the standard deviation of a query's cosines with all tools, (0, 0) without tools.

        They follow from two moments of the tools' vectors, which are computed once. The last result is cached, because
        ranking and abstention need it one after the other.

        Args:
            query: `(dim,)`, a unit row.
        """
        if not len(self.vectors):
            return 0.0, 0.0
        vectors, last, described = self._last_described
        if vectors is not self.vectors or not np.array_equal(last, query):
            mean, products = self._compute_moments()
            row = query.astype(np.float64)
            mean_cosine = float(np.einsum("d,d->", mean, row))
            mean_square = float(np.einsum("d,d->", np.einsum("de,e->d", products, row), row))
            described = mean_cosine, max(mean_square - mean_cosine * mean_cosine, 0.0) ** 0.5
            self._last_described = self.vectors, query.copy(), described
        return described

    def _compute_moments(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Compute the (dim,) mean of the vectors and the (dim, dim) mean of their outer products."""
        if self._sums is None or self._sums[0] is not self.vectors:
            products = (self.vectors.T @ self.vectors).astype(np.float64) / len(self.vectors)
            self._sums = self.vectors, self.vectors.mean(axis=0, dtype=np.float64), products
        return self._sums[1], self._sums[2]

    def at(self, query: Vectors, positions: Sequence[int]) -> Vectors:
        """Compute the cosines of the tools at some positions, equal to those of `search`.

        Args:
            query: `(dim,)`, a unit row.
            positions: positions of tools.
        """
        return self._compute_cosines(query, np.array(positions, dtype=np.intp))

    def _find_near(self, row: Vectors, approximate: Vectors, k: int, mask: Mask | None) -> npt.NDArray[np.intp]:
        """Find positions, ascending, that include the `k` nearest and all that equal the last of them.

        In any order of addition, a sum of d products is off by at most about d · eps / 2 · |a| · |b| (Higham, Accuracy
        and Stability of Numerical Algorithms, section 3.1). Two orders can differ by twice that. The k-th nearest can
        move down by this much, and a tool below it up by as much. `_slack` is twice the sum of both.

        Args:
            row: `(dim,)`, the query.
            approximate: `(len(ids),)`, products with every vector, summed in any order.
            k: number of nearest tools.
            mask: mask over positions; None for all.
        """
        best = top_k(approximate, k, mask)
        if not len(best):
            return best
        near = approximate >= approximate[best[-1]] - self._slack * float(np.linalg.norm(row))
        return np.flatnonzero(near if mask is None else near & mask)

    def explain(self, query: npt.NDArray[Any], tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain rank and score of one tool, exact at any rank.

        Args:
            query: `(dim,)`, a unit row.
            tool_id: id of the tool.
            visible: boolean mask over `ids`; the tool itself is ranked as if it were visible.

        Raises:
            NotFound: if the index has no such tool.
        """
        position = place(self.ids, tool_id)
        [row] = check_rows(np.atleast_2d(query), (1, self.dim))
        if not row.any():
            return Explanation("exact", None, None, "no word of the query is known to the encoder")
        scores = self._compute_cosines(row)
        score = float(scores[position])
        return Explanation("exact", rank(scores, position, visible), score, f"cosine {score:.3f}")

    def cosines(self, query: Vectors) -> Vectors:
        """Compute the cosine of every tool, `(len(ids),)`, read only, equal to those of `search`.

        The last result is cached, because ranking and abstention need it one after the other.

        Args:
            query: `(dim,)`, a unit row.
        """
        vectors, last, scores = self._last
        if vectors is not self.vectors or not np.array_equal(last, query):
            scores = np.einsum("nd,d->n", self.vectors, query)
            scores.flags.writeable = False
            self._last = self.vectors, query.copy(), scores
        return scores

    def _compute_cosines(self, row: Vectors, positions: npt.NDArray[np.intp] | None = None) -> Vectors:
        """Compute the cosines of the tools at some positions, or of all, always summed in the same order."""
        if positions is None:
            return self.cosines(row)
        is_read = self._read_rows is not None and len(positions) <= MAX_READ_ROWS
        rows = self._read_rows(positions) if self._read_rows and is_read else self.vectors[positions]
        scores: Vectors = np.einsum("nd,d->n", rows, row)
        return scores

    @property
    def reads_few_rows(self) -> bool:
        """Whether a search reads the vectors of its candidates only."""
        return self._rounded is not None

    def read_rows_with(self, read_rows: ReadRows) -> None:
        """Read the vectors of candidates with a function, rather than from the mapped array.

        Pages of a mapped file count as memory of the process; what a function reads does not.
        """
        self._read_rows = read_rows

    def _round(self) -> None:
        """Make 8-bit copies of the vectors of a large catalogue."""
        if self._rounded is None and len(self.ids) >= MIN_ROUNDED_TOOLS and is_available():
            self._rounded = RoundedRows.of(self.vectors)

    @property
    def meta(self) -> dict[str, Any]:
        """JSON values that `from_arrays` needs besides the arrays."""
        return {"format": EXACT_FORMAT, "dim": self.dim, "slack": self._slack}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the index as arrays, without its ids: the vectors, and the moments that describe their cosines."""
        arrays: dict[str, npt.NDArray[Any]] = {"vectors": self.vectors}
        if len(self.vectors):
            arrays["mean"], arrays["products"] = self._compute_moments()
        self._round()
        return arrays | self._rounded.arrays() if self._rounded is not None else arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any], ids: Sequence[str]) -> Self:
        """Rebuild an index from `arrays` and `meta`. Nothing is copied, so the arrays may be mapped from a file.

        Args:
            arrays: as `arrays` returned them.
            meta: as `meta` returned it.
            ids: tool ids, ascending.

        Raises:
            StoreError: if they are damaged or of another format.
        """
        try:
            index = cls(meta["dim"])
            vectors, square = arrays["vectors"], (index.dim, index.dim)
            is_intact = (
                meta["format"] == EXACT_FORMAT
                and vectors.dtype == np.float32
                and vectors.shape == (len(ids), index.dim)
            )
            index.ids, index.vectors, index._slack = ids, vectors, float(meta["slack"])
            index._rounded = RoundedRows.from_arrays(arrays, vectors.shape) if is_available() else None
            if len(ids):
                index._sums = vectors, arrays["mean"], arrays["products"]
                is_intact = is_intact and arrays["mean"].shape + arrays["products"].shape == (index.dim, *square)
        except (KeyError, TypeError, ValueError, AttributeError):
            is_intact = False
        if not is_intact:
            raise StoreError(f"The stored exact index is damaged or not of format {EXACT_FORMAT}. Build it again.")
        return index
