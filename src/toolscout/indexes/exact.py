"""Exact nearest neighbours: compares the vectors of all tools with the query.

`StandardScores` turns the cosines of a search into standard scores, which are comparable between encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array, Arrays
from toolscout.errors import StoreError
from toolscout.indexes.ranking import Mask, Spread, check_rows, masks, pad_best, place, rank, spread, top_k
from toolscout.types import Explanation

if TYPE_CHECKING:
    from typing import Self  # new in Python 3.11

__all__ = ["MIN_COSINE_DEVIATION", "Exact", "StandardScores", "VectorIndex", "compute_unit_slack"]

Vectors = npt.NDArray[np.float32]
Positions = npt.NDArray[np.intp]
ReadRows = Callable[[Positions], Vectors]
EXACT_FORMAT: Final = "exact/2"
MIN_PRODUCT_QUERIES: Final = 4  # below this, one matrix product is as slow as comparing each query with every tool
EXACT_BATCH: Final = 64  # queries whose products with all tools are in memory at once
MAX_CACHED_NEAREST: Final = 1024  # queries whose nearest tools are cached
MIN_COSINE_DEVIATION: Final = 1e-4  # below it the cosines count as equal, and every standard score is 0


class VectorIndex(Protocol):
    """An index over the vectors of tools; the score is the cosine. See `toolscout.indexes` for what it promises."""

    @property
    def ids(self) -> Sequence[str]:
        """Tool ids, ascending."""
        ...

    def upsert(self, ids: Sequence[str], vectors: Array) -> None:
        """Add tools, or replace their vectors: `(len(ids), dim)` float32, unit rows."""
        ...

    def search(
        self, queries: Array, k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[Vectors]]:
        """Find the nearest tools of each query; a row of zeros finds nothing."""
        ...

    def explain(self, query: Array, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain rank and score of one tool."""
        ...


def compute_unit_slack(dim: int) -> float:
    """Compute the `slack` of an index whose longest vector has length 1; see `Exact` and `Exact._select_near`."""
    return 4 * dim * float(np.finfo(np.float32).eps)


class Exact:
    """Compares the vectors of tools one by one; the score is the cosine.

    Equal vectors get equal scores, and a query gets the same answer alone and in a batch. This needs sums in a fixed
    order, which matrix products do not guarantee. One matrix product per batch therefore only selects the tools that
    can be among the nearest; these are then compared one by one.

    A class for large catalogues extends this one, and finds candidates in another way (`find_candidates`).

    Attributes:
        ids: tool ids, ascending.
        vectors: `(len(ids), dim)` float32, unit rows, in the order of `ids`.
        dim: length of a vector.
        slack: how far below the k-th highest matrix product a tool among the `k` nearest can be; see `_select_near`.
    """

    key = "exact"  # names the folder of the stored index

    def __init__(self, dim: int) -> None:
        """Create an empty index for vectors of length `dim`."""
        self._replace((), np.empty((0, dim), dtype=np.float32))

    @classmethod
    def of(cls, ids: Sequence[str], vectors: Vectors) -> Self:
        """Make an index of vectors without copying them: `(len(ids), dim)` unit rows, in the order of ascending ids."""
        index = cls(vectors.shape[1])
        index._replace(ids, check_rows(vectors, (len(ids), index.dim)))
        return index

    def _replace(self, ids: Sequence[str], vectors: Vectors, slack: float | None = None) -> None:
        """Replace ids and vectors, and forget what was computed from the former ones. Without `slack`, compute it."""
        self.ids, self.vectors, self.dim = ids, vectors, int(vectors.shape[1])
        if slack is None:
            longest = float(np.sqrt(np.einsum("nd,nd->n", vectors, vectors)).max(initial=0.0))
            slack = compute_unit_slack(self.dim) * longest
        self.slack = slack
        # Caches, by the bytes of a query: nearest tools and their cosines, all cosines, mean and deviation.
        self._nearest: dict[bytes, tuple[Positions, Vectors]] = {}
        self._last_cosines: tuple[bytes | None, Vectors] = None, np.empty(0, dtype=np.float32)
        self._last_description: tuple[bytes | None, tuple[float, float]] = None, (0.0, 0.0)
        self._moments: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None

    def upsert(self, ids: Sequence[str], vectors: Array) -> None:
        """Add tools, or replace the vectors of tools that the index already has.

        Args:
            ids: without repetition, in any order.
            vectors: `(len(ids), dim)`, finite, unit rows.

        Raises:
            ValueError: for another shape, a value that is not finite, or a repeated id; the index is then unchanged.
        """
        new = set(ids)
        if len(new) != len(ids):
            raise ValueError("expected each id once, found one of them again")
        rows = check_rows(vectors, (len(ids), self.dim))
        unchanged = [position for position, tool_id in enumerate(self.ids) if tool_id not in new]
        all_ids = [*(self.ids[position] for position in unchanged), *ids]
        order = sorted(range(len(all_ids)), key=all_ids.__getitem__)
        all_rows = np.concatenate([self.vectors[unchanged], rows])
        self._replace(tuple(all_ids[position] for position in order), all_rows[order])

    def delete(self, ids: Iterable[str]) -> None:
        """Remove tools; unknown ids are ignored."""
        gone = set(ids)
        remaining = [position for position, tool_id in enumerate(self.ids) if tool_id not in gone]
        self._replace(tuple(self.ids[position] for position in remaining), self.vectors[remaining])

    def search(
        self, queries: Array, k: int, visible: Mask | Sequence[Mask | None] | None = None
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
        limits = masks(visible, len(rows))
        ids, values = [], []
        for start in range(0, len(rows), EXACT_BATCH):
            batch, batch_limits = rows[start : start + EXACT_BATCH], limits[start : start + EXACT_BATCH]
            candidates = self.find_candidates(batch, k, batch_limits)
            for row, positions, mask in zip(batch, candidates, batch_limits, strict=True):
                n_nearest = k if row.any() else 0  # a row of zeros has no direction, so no tool is near it
                best, scores = self._choose_best(row, positions, n_nearest, mask)
                ids.append([self.ids[position] for position in best.tolist()])
                values.append(scores)
        return ids, values

    def find_candidates(self, rows: Vectors, k: int, limits: Sequence[Mask | None]) -> Iterable[Positions]:
        """Yield for each query positions, ascending, that include its `k` nearest, as `top_k` orders them.

        Args:
            rows: `(n, dim)`, queries; `n` is at most `EXACT_BATCH`.
            k: number of nearest tools.
            limits: a mask over positions for each query; None shows all tools.
        """
        if len(rows) < MIN_PRODUCT_QUERIES:
            for row, mask in zip(rows, limits, strict=True):
                yield np.sort(top_k(self.cosines(row), k, mask))
            return
        # In this order of the factors, BLAS does not copy the tools.
        products = np.ascontiguousarray((self.vectors @ rows.T).T)
        for row, approximate, mask in zip(rows, products, limits, strict=True):
            yield self._select_near(row, approximate, k, mask)

    def _select_near(self, row: Vectors, approximate: Vectors, k: int, mask: Mask | None) -> Positions:
        """Return the positions, ascending, of all tools that can be among the `k` nearest.

        In any order of addition, a sum of d products is off by at most about d · eps / 2 · |a| · |b| (Higham, Accuracy
        and Stability of Numerical Algorithms, section 3.1). Two orders can differ by twice that, d · eps · |a| · |b|.
        From one order to the other, the k-th nearest can move down by this much, and a tool below it up by as much.
        `slack` is twice the sum of both moves, 4 · d · eps · |a| for the longest vector a; |b| is the query's length.
        `approximate` has the products of the query, `row`, with every vector, summed in any order.
        """
        best = top_k(approximate, k, mask)
        if not len(best):
            return best
        near = approximate >= approximate[best[-1]] - self.slack * float(np.linalg.norm(row))
        return np.flatnonzero(near if mask is None else near & mask)

    def _choose_best(self, row: Vectors, positions: Positions, k: int, mask: Mask | None) -> tuple[Positions, Vectors]:
        """Return positions and cosines of the nearest among some tools, best first.

        Without a mask, they are cached for `spreads`, which is called right after a search.
        """
        scores = self.at(row, positions)
        best = top_k(scores, k)
        nearest = positions[best], scores[best]
        if mask is None:
            if len(self._nearest) >= MAX_CACHED_NEAREST:
                self._nearest = {}
            self._nearest[row.tobytes()] = nearest
        return nearest

    def at(self, query: Vectors, positions: Sequence[int] | Positions) -> Vectors:
        """Compute the cosines of the tools at some positions with a query (a unit row).

        They are always summed in the same order, so they equal those of `search`.
        """
        scores: Vectors = np.einsum("nd,d->n", self.vectors[np.asarray(positions, dtype=np.intp)], query)
        return scores

    def spreads(self, queries: Array, depth: int, visible: Sequence[Mask | None] | None = None) -> list[Spread]:
        """Summarise the distribution of cosines over all visible tools for each query.

        Where all tools are visible, the best come from the last search, and mean and deviation from two moments of the
        tools' vectors, which are computed once.

        Args:
            queries: `(n, dim)`, unit rows.
            depth: number of best scores.
            visible: a mask for each query with at least one tool, or None.
        """
        rows = check_rows(queries, (len(queries), self.dim))
        return [self._summarise(row, depth, mask) for row, mask in zip(rows, masks(visible, len(rows)), strict=True)]

    def _summarise(self, row: Vectors, depth: int, mask: Mask | None) -> Spread:
        """Summarise the cosines of a query with the visible tools; see `spreads`."""
        if mask is not None or len(self.ids) <= self.dim:  # moments cost more than the cosines of few tools
            return spread(self.cosines(row), depth, mask)
        no_tools = np.empty(0, dtype=np.intp), row[:0]
        best, scores = self._nearest.get(row.tobytes(), no_tools)
        has_cached_too_few = len(best) < min(depth, len(self.ids))
        if has_cached_too_few:
            [positions] = self.find_candidates(row[None], depth, [None])
            best, scores = self._choose_best(row, positions, depth, None)
        return Spread(pad_best(scores, depth), int(best[0]), *self.describe_cosines(row))

    def describe_cosines(self, query: Vectors) -> tuple[float, float]:
        """Compute mean and standard deviation of all tools' cosines with a query (a unit row); (0, 0) without tools.

        The last result is cached, because ranking and abstention need it one after the other.
        """
        if not len(self.vectors):
            return 0.0, 0.0
        key = query.tobytes()
        last_key, description = self._last_description
        if last_key != key:
            mean_vector, products = self.compute_moments()
            row = query.astype(np.float64)
            mean_cosine = float(np.einsum("d,d->", mean_vector, row))
            mean_square = float(np.einsum("d,d->", np.einsum("de,e->d", products, row), row))
            deviation = max(mean_square - mean_cosine * mean_cosine, 0.0) ** 0.5
            description = mean_cosine, deviation
            self._last_description = key, description
        return description

    def compute_moments(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Compute the mean of the vectors, `(dim,)`, and of their outer products, `(dim, dim)`, and cache both."""
        if self._moments is None:
            products = (self.vectors.T @ self.vectors).astype(np.float64) / len(self.vectors)
            self._moments = self.vectors.mean(axis=0, dtype=np.float64), products
        return self._moments

    def cosines(self, query: Vectors) -> Vectors:
        """Compute the cosine of every tool with a query (a unit row), read only, equal to those of `search`.

        The last result is cached, because ranking and abstention need it one after the other.
        """
        key = query.tobytes()
        last_key, scores = self._last_cosines
        if last_key != key:
            scores = np.einsum("nd,d->n", self.vectors, query)
            scores.flags.writeable = False
            self._last_cosines = key, scores
        return scores

    def explain(self, query: Array, tool_id: str, visible: Mask | None = None) -> Explanation:
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
        scores = self.cosines(row)
        score = float(scores[position])
        return Explanation("exact", rank(scores, position, visible), score, f"cosine {score:.3f}")

    @property
    def meta(self) -> dict[str, Any]:
        """JSON values that `from_arrays` needs besides the arrays."""
        return {"format": EXACT_FORMAT, "dim": self.dim, "slack": self.slack}

    def arrays(
        self,
        meanwhile: Callable[[], object] | None = None,
        earlier: tuple[Arrays, npt.NDArray[np.int64]] | None = None,
    ) -> dict[str, Array]:
        """Return the index as arrays, without its ids: the vectors, and the moments that describe their cosines.

        Args:
            meanwhile: not used here. An index that takes long to build calls it while other threads build, so that the
                caller can work in that time; the caller must not rely on the call.
            earlier: not used here. An index that can grow from an earlier one takes over from its arrays; for each tool
                its position there (-1: it is new).
        """
        arrays: dict[str, Array] = {"vectors": self.vectors}
        if len(self.vectors):
            arrays["mean"], arrays["products"] = self.compute_moments()
        return arrays

    @classmethod
    def from_arrays(
        cls,
        arrays: Arrays,
        meta: Mapping[str, Any],
        ids: Sequence[str],
        readers: Mapping[str, ReadRows] | None = None,
    ) -> Self:
        """Rebuild an index from `arrays` and `meta`. Nothing is copied, so the arrays may be mapped from a file.

        Args:
            arrays: as `arrays` returned them.
            meta: as `meta` returned it.
            ids: tool ids, ascending.
            readers: name of an array → function that reads some of its rows from the file. Not used here: an index that
                needs few rows reads them this way.

        Raises:
            StoreError: if they are damaged or of another format.
        """
        try:
            index = cls(meta["dim"])
            vectors = arrays["vectors"]
            is_intact = (
                meta["format"] == EXACT_FORMAT
                and vectors.dtype == np.float32
                and vectors.shape == (len(ids), index.dim)
            )
            index._replace(ids, vectors, slack=float(meta["slack"]))
            if len(ids):
                mean, products = arrays["mean"], arrays["products"]
                index._moments = mean, products
                is_intact = is_intact and mean.shape == (index.dim,) and products.shape == (index.dim, index.dim)
        except (KeyError, TypeError, ValueError, AttributeError):
            is_intact = False
        if not is_intact:
            raise StoreError(f"The stored exact index is damaged or not of format {EXACT_FORMAT}. Build it again.")
        return index


class StandardScores:
    """Searches an index of vectors and turns its cosines into standard scores.

    A standard score says how many standard deviations a tool is nearer to a query than the average tool of the
    catalogue. Cosines of two encoders, or of two queries, are not comparable: one encoder gives unrelated texts 0.1,
    another 0.7. A standard score far above 0 says that few tools of the catalogue are as near.

    Mean and deviation are taken over all tools of the catalogue, also over hidden ones. They come from two moments of
    the vectors (`Exact.describe_cosines`), so only the cosines of candidates are computed.

    Attributes:
        index: finds the candidates and their cosines.
        exact: all vectors of the same catalogue.
    """

    def __init__(self, index: VectorIndex, exact: Exact) -> None:
        """Take the index, and the vectors behind it."""
        self.index, self.exact = index, exact

    @property
    def ids(self) -> Sequence[str]:
        """The ids of the tools, ascending."""
        return self.index.ids

    def search(
        self, queries: Array, k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[Vectors]]:
        """Find the nearest tools of each query: `(ids, standard scores)`, best first; see `Exact.search`."""
        ids, cosines = self.index.search(queries, k, visible)
        return ids, [self._standardise(row, part) for row, part in zip(queries, cosines, strict=True)]

    def explain(self, query: Array, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain rank and standard score of one tool.

        Raises:
            NotFound: if the index has no such tool.
        """
        explanation = self.index.explain(query, tool_id, visible)
        if explanation.score is None:
            return explanation
        cosine = np.array([explanation.score], dtype=np.float32)
        score = float(self._standardise(np.asarray(query, dtype=np.float32).ravel(), cosine)[0])
        return msgspec.structs.replace(explanation, score=score)

    def _standardise(self, query: Vectors, cosines: Vectors) -> Vectors:
        """Return (cosine - mean) / deviation, float32; zeros where all cosines are equal."""
        mean, deviation = self.exact.describe_cosines(query)
        if deviation < MIN_COSINE_DEVIATION:
            return np.zeros_like(cosines)
        return ((cosines - mean) / deviation).astype(np.float32)
