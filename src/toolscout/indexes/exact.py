"""Exact nearest neighbours: every vector is compared with the query. Good up to about 100,000 tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.errors import StoreError
from toolscout.indexes import Mask, Spread, filled, masks, place, rank, spread, top_k
from toolscout.types import Explanation

__all__ = ["Exact"]

Vectors = npt.NDArray[np.float32]
FORMAT: Final = "exact/1"
FEW: Final = 4
BATCH: Final = 64  # queries whose products with all tools are in memory at once
KEPT: Final = 1024  # queries whose nearest tools are kept


class Exact:
    """Vectors of tools, compared one by one; the score is the cosine.

    Equal vectors have equal scores, and a query has the same answer alone and in a batch: each product is summed in
    the same order, which matrix products do not promise. So one matrix product for the whole batch only says which
    tools can be among the nearest; these are then compared one by one.

    Attributes:
        ids: tool ids, ascending.
        vectors: `(len(ids), dim)` float32, unit rows, in the order of `ids`.
    """

    def __init__(self, dim: int) -> None:
        """An empty index for vectors of length `dim`."""
        self.ids: tuple[str, ...] = ()
        self.vectors: Vectors = np.empty((0, dim), dtype=np.float32)
        self._slack = 0.0
        self._last: tuple[Vectors, Vectors, Vectors] = (self.vectors[:0], self.vectors[:0], self.vectors[:0])
        self._found: tuple[Vectors, dict[bytes, tuple[npt.NDArray[np.intp], Vectors]]] = (self.vectors, {})
        self._sums: tuple[Vectors, npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return int(self.vectors.shape[1])

    def upsert(self, ids: Sequence[str], vectors: npt.NDArray[Any]) -> None:
        """Add tools, or give those that are there new vectors.

        Args:
            ids: without repetition, in any order.
            vectors: `(len(ids), dim)`, finite, unit rows.

        Raises:
            ValueError: for another shape, a value that is no number, or an id given twice; nothing is changed then.
        """
        if len(set(ids)) != len(ids):
            raise ValueError("expected each id once, found one of them again")
        rows = self._checked(vectors, len(ids))
        new = set(ids)
        kept = [position for position, tool_id in enumerate(self.ids) if tool_id not in new]
        every = [*(self.ids[position] for position in kept), *ids]
        order = sorted(range(len(every)), key=every.__getitem__)
        self.vectors = np.concatenate([self.vectors[kept], rows])[order]
        self.ids = tuple(every[position] for position in order)
        longest = float(np.sqrt(np.einsum("nd,nd->n", self.vectors, self.vectors)).max(initial=0.0))
        self._slack = 4 * self.dim * float(np.finfo(np.float32).eps) * longest

    def delete(self, ids: Iterable[str]) -> None:
        """Forget tools; ids that are not there are no error."""
        gone = set(ids)
        kept = [position for position, tool_id in enumerate(self.ids) if tool_id not in gone]
        self.vectors = self.vectors[kept]
        self.ids = tuple(self.ids[position] for position in kept)

    def search(
        self, queries: npt.NDArray[Any], k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[Vectors]]:
        """The nearest tools of each query: `(ids, scores)`, best first.

        Args:
            queries: `(n, dim)`, finite, unit rows; a row of zeros finds nothing.
            k: how many tools a query at most.
            visible: boolean mask over `ids`, for all queries or one (or None) for each.

        Raises:
            ValueError: for another shape or a value that is no number.
        """
        rows = self._checked(queries, len(queries))
        ids, values, limits = [], [], masks(visible, len(rows))
        for start in range(0, len(rows), BATCH):
            some, theirs = rows[start : start + BATCH], limits[start : start + BATCH]
            # This way round BLAS need not copy the tools. For few queries the product is as slow as comparing them all.
            products = np.ascontiguousarray((self.vectors @ some.T).T) if len(some) >= FEW else [None] * len(some)
            for row, about, mask in zip(some, products, theirs, strict=True):
                wanted = k if row.any() else 0
                if about is None:
                    scores = self._scores(row)
                    best = chosen = top_k(scores, wanted, mask)
                else:
                    near = self._near(row, about, wanted, mask)
                    scores = self._scores(row, near)
                    chosen = top_k(scores, wanted)
                    best = near[chosen]
                ids.append([self.ids[position] for position in best])
                values.append(scores[chosen])
                if mask is None:
                    self._keep(row, best, values[-1])
        return ids, values

    def _keep(self, row: Vectors, best: npt.NDArray[np.intp], scores: Vectors) -> None:
        vectors, found = self._found
        if vectors is not self.vectors or len(found) >= KEPT:
            self._found = self.vectors, (found := {})
        found[row.tobytes()] = best, scores

    def _nearest(self, row: Vectors, depth: int) -> tuple[npt.NDArray[np.intp], Vectors]:
        """Positions and cosines of so many tools, or more; kept from the last searches, if they were asked."""
        vectors, found = self._found
        kept = found.get(row.tobytes()) if vectors is self.vectors else None
        if kept is None or len(kept[0]) < min(depth, len(self.ids)):
            scores = self._scores(row)
            best = top_k(scores, depth)
            kept = best, scores[best]
            self._keep(row, *kept)
        return kept

    def spreads(
        self, queries: npt.NDArray[Any], depth: int, visible: Sequence[Mask | None] | None = None
    ) -> list[Spread]:
        """How the cosines of all visible tools lie for each query.

        Of a large catalogue not every cosine is worked out again: the best are kept from the search before, mean and
        deviation follow from the mean of the tools' vectors and from the mean of their products, once and for all.

        Args:
            queries: `(n, dim)`, unit rows.
            depth: how many of the best.
            visible: a mask for each query, with a tool at least, or None.
        """
        rows = self._checked(queries, len(queries))
        limits = masks(visible, len(rows))
        large = len(self.ids) > self.dim
        _, found = self._found
        new = [
            number
            for number, (row, mask) in enumerate(zip(rows, limits, strict=True))
            if large and mask is None and row.tobytes() not in found
        ]
        if len(new) >= FEW:
            self.search(rows[new], depth)
        return [
            self._spread(row, depth) if large and mask is None else spread(self.cosines(row), depth, mask)
            for row, mask in zip(rows, limits, strict=True)
        ]

    def _spread(self, row: Vectors, depth: int) -> Spread:
        best, scores = self._nearest(row, depth)
        mean, products = self._moments()
        query = row.astype(np.float64)
        middle = float(np.einsum("d,d->", mean, query))
        square = float(np.einsum("d,d->", np.einsum("de,e->d", products, query), query))
        return Spread(filled(scores, depth), int(best[0]), middle, max(square - middle * middle, 0.0) ** 0.5)

    def _moments(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """(dim,) mean of the vectors, (dim, dim) mean of their products."""
        if self._sums is None or self._sums[0] is not self.vectors:
            products = (self.vectors.T @ self.vectors).astype(np.float64) / len(self.vectors)
            self._sums = self.vectors, self.vectors.mean(axis=0, dtype=np.float64), products
        return self._sums[1], self._sums[2]

    def at(self, query: Vectors, positions: Sequence[int]) -> Vectors:
        """The cosines of the tools at some positions, as `search` finds them.

        Args:
            query: `(dim,)`, a unit row.
            positions: of tools.
        """
        return self._scores(query, np.array(positions, dtype=np.intp))

    def _near(self, row: Vectors, about: Vectors, k: int, mask: Mask | None) -> npt.NDArray[np.intp]:
        """Positions, ascending, among which the `k` nearest are, with all that equal the last of them.

        In whatever order its d products are added, a sum is off by about d · eps / 2 · |a| · |b| at most (Higham,
        Accuracy and Stability of Numerical Algorithms, section 3.1). Two ways of adding can lie apart by twice that;
        the k-th nearest can move so far down, and a tool below it so far up. `_slack` is twice the sum of both.

        Args:
            row: `(dim,)`, the query.
            about: `(len(ids),)`, products with every vector, in any order of adding.
            k: how many.
            mask: over positions; None: all.
        """
        best = top_k(about, k, mask)
        if not len(best):
            return best
        near = about >= about[best[-1]] - self._slack * float(np.linalg.norm(row))
        return np.flatnonzero(near if mask is None else near & mask)

    def explain(self, query: npt.NDArray[Any], tool_id: str, visible: Mask | None = None) -> Explanation:
        """Rank and score of one tool, exact however far down it is.

        Args:
            query: `(dim,)`, a unit row.
            tool_id: which tool.
            visible: boolean mask over `ids`; the tool itself is ranked as if it were visible.

        Raises:
            NotFound: if the index has no such tool.
        """
        position = place(self.ids, tool_id)
        [row] = self._checked(np.atleast_2d(query), 1)
        if not row.any():
            return Explanation("exact", None, None, "no word of the query is known to the encoder")
        scores = self._scores(row)
        score = float(scores[position])
        return Explanation("exact", rank(scores, position, visible), score, f"cosine {score:.3f}")

    def cosines(self, query: Vectors) -> Vectors:
        """`(len(ids),)`, read only: the cosine of every tool, as `search` finds it.

        The last ones are kept: what ranks the tools and what judges whether any fits ask one after the other.

        Args:
            query: `(dim,)`, a unit row.
        """
        vectors, last, scores = self._last
        if vectors is not self.vectors or not np.array_equal(last, query):
            scores = np.einsum("nd,d->n", self.vectors, query)
            scores.flags.writeable = False
            self._last = self.vectors, query.copy(), scores
        return scores

    def _scores(self, row: Vectors, positions: npt.NDArray[np.intp] | None = None) -> Vectors:
        """The cosines of the tools at some positions, or of all, each summed in the same order whatever is asked."""
        if positions is None:
            return self.cosines(row)
        scores: Vectors = np.einsum("nd,d->n", self.vectors[positions], row)
        return scores

    def _checked(self, vectors: npt.NDArray[Any], n: int) -> Vectors:
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
        if rows.shape != (n, self.dim):
            raise ValueError(f"expected vectors of shape ({n}, {self.dim}), found {rows.shape}")
        if not np.isfinite(rows).all():
            raise ValueError("expected finite vectors, found one with a value that is no number")
        return rows

    @property
    def meta(self) -> dict[str, Any]:
        """What `from_arrays` needs besides the arrays; JSON values."""
        return {"format": FORMAT, "dim": self.dim}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The whole index as arrays; the ids are the bytes of a JSON list."""
        return {"ids": np.frombuffer(msgspec.json.encode(self.ids), dtype=np.uint8), "vectors": self.vectors}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any]) -> Exact:
        """The index that `arrays` and `meta` were taken from.

        Raises:
            StoreError: if they are damaged or of another format.
        """
        try:
            index = cls(meta["dim"])
            ids = msgspec.json.decode(arrays["ids"].tobytes(), type=list[str])
            whole = meta["format"] == FORMAT and arrays["vectors"].dtype == np.float32
            index.upsert(ids, arrays["vectors"])
            whole = whole and list(index.ids) == ids
        except (KeyError, TypeError, ValueError, AttributeError, msgspec.MsgspecError):
            whole = False
        if not whole:
            raise StoreError(
                f"expected an exact index of format {FORMAT}, found a damaged or another one: build it again"
            )
        return index
