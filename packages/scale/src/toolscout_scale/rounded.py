"""The exact index of a large catalogue: 8-bit copies of the vectors show which tools can be among the nearest.

Each row is stored as whole numbers (*codes*) times a scale of its own. Its *residual* is the length of what rounding
lost. The residuals of two rows bound the error of their product (Cauchy-Schwarz). So a search of the copies rules out
only tools that cannot be among the nearest; the others are compared exactly. The copies have a quarter of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array, Arrays
from toolscout.errors import StoreError
from toolscout.indexes.exact import Exact, compute_unit_slack
from toolscout.indexes.ranking import Mask

if TYPE_CHECKING:
    from typing import Self  # new in Python 3.11

__all__ = ["LEVELS", "Codes", "RoundedExact", "RoundedRows", "make_codes"]

LEVELS: Final = 127  # codes are whole numbers from -127 to 127: the symmetric range of 8 bits
CODED_BATCH: Final = 16_384  # rows that are rounded at once: it bounds the memory for their copies
MAX_NEAR_SHARE: Final = 0.25  # of all tools; if more of them can be among the nearest, all are compared exactly
BOUND_ROUNDING: Final = 1e-6  # added to each error bound, because the bound itself is computed in float32

Vectors = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]


def make_codes(vectors: Vectors) -> Codes:
    """Round rows to whole numbers: each row is scaled so that its largest component is 127 or -127.

    The scale of a row does not change its cosines, so callers that need only cosines forget it.
    """
    codes: Codes = np.empty(vectors.shape, dtype=np.int8)
    for start in range(0, len(vectors), CODED_BATCH):
        rows = vectors[start : start + CODED_BATCH]
        largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
        scaled = np.divide(rows * LEVELS, largest, out=np.zeros_like(rows), where=largest > 0)
        codes[start : start + CODED_BATCH] = np.rint(scaled)
    return codes


class RoundedRows:
    """The rows of an index as 8-bit numbers."""

    def __init__(self, codes: Codes, scales: Vectors, residuals: Vectors) -> None:
        """Take the codes, `(n, dim)`, and for each row its scale and its residual, `(n,)`."""
        self.codes, self._scales, self._residuals = codes, scales, residuals

    @classmethod
    def of(cls, vectors: Vectors) -> Self:
        """Round rows, and compute the scale and the residual of each."""
        codes = make_codes(vectors)
        # A code times this scale is about the component: `make_codes` multiplied by the inverse.
        scales = np.abs(vectors).max(axis=1, initial=0.0) / np.float32(LEVELS)
        residuals = np.empty(len(vectors), dtype=np.float32)
        for start in range(0, len(vectors), CODED_BATCH):
            part = slice(start, start + CODED_BATCH)
            residuals[part] = np.linalg.norm(vectors[part] - codes[part] * scales[part, None], axis=1)
        return cls(codes, scales, residuals)

    @classmethod
    def from_arrays(cls, arrays: Arrays, shape: tuple[int, int]) -> Self | None:
        """Read the rows from the arrays of a stored index; None if it has no rounded rows.

        Raises:
            ValueError: if they have another shape.
        """
        if "rounded.codes" not in arrays:
            return None
        codes, scales, residuals = arrays["rounded.codes"], arrays["rounded.scales"], arrays["rounded.residuals"]
        n_rows, _ = shape
        is_intact = codes.dtype == np.int8 and codes.shape == shape and scales.shape == residuals.shape == (n_rows,)
        if not is_intact:
            raise ValueError(f"expected rounded rows of shape {shape}, found {codes.shape}")
        return cls(codes, scales, residuals)

    def arrays(self) -> dict[str, Array]:
        """Return the rows as arrays, under the names that `from_arrays` reads."""
        return {
            "rounded.codes": self.codes,
            "rounded.scales": self._scales,
            "rounded.residuals": self._residuals,
        }

    def find_near(self, row: Vectors, k: int, mask: Mask | None, longest: float) -> npt.NDArray[np.intp] | None:
        """Find the rows that can be among the `k` with the highest products with a query, `row`.

        Args:
            row: `(dim,)`.
            k: at least 1.
            mask: mask over positions; None for all.
            longest: length of the longest row.

        Returns:
            Positions, ascending; None if they are so many that comparing all rows takes less time.
        """
        products, errors = self._estimate_products(row, longest)
        lower_bounds = products - errors
        visible_bounds = lower_bounds if mask is None else lower_bounds[mask]
        n_visible = len(visible_bounds)
        if n_visible <= k:
            return np.arange(n_visible) if mask is None else np.flatnonzero(mask)
        # At least k rows reach the k-th lower bound. A row that may reach it too can be among the nearest.
        kth_bound = np.partition(visible_bounds, n_visible - k)[n_visible - k]
        is_near = products + errors >= kth_bound
        if mask is not None:
            is_near &= mask
        positions = np.flatnonzero(is_near)
        saves_time = len(positions) <= max(k, MAX_NEAR_SHARE * len(self.codes))
        return positions if saves_time else None

    def _estimate_products(self, row: Vectors, longest: float) -> tuple[Vectors, Vectors]:
        """Return the product of each row with a query, computed from codes, and by how much it can be wrong."""
        import numkong

        code = make_codes(row[None])
        scale = float(np.abs(row).max()) / LEVELS
        residual = float(np.linalg.norm(row - code[0] * np.float32(scale)))
        products: Vectors = np.asarray(numkong.cdist(code, self.codes, metric="dot")).ravel().astype(np.float32)
        products *= self._scales
        products *= np.float32(scale)
        # A row r and a query q, rounded to r' and q', are off by |qr - q'r'| <= |q - q'| |r| + |q'| |r - r'|.
        errors = self._residuals * np.float32(np.linalg.norm(row) + residual)
        errors += np.float32(residual * longest + BOUND_ROUNDING)
        return products, errors


class RoundedExact(Exact):
    """Compares 8-bit copies of the vectors first. The answers are those of `Exact`, to the last bit."""

    def __init__(self, dim: int) -> None:
        """Create an empty index for vectors of length `dim`."""
        self._rounded: RoundedRows | None = None  # made with the first search
        super().__init__(dim)

    def _replace(self, ids: Sequence[str], vectors: Vectors, slack: float | None = None) -> None:
        """Take ids and vectors. Their copies are made with the next search."""
        super()._replace(ids, vectors, slack)
        self._rounded = None

    def find_candidates(self, rows: Vectors, k: int, limits: Sequence[Mask | None]) -> Iterable[npt.NDArray[np.intp]]:
        """Yield positions that include the nearest tools of each query; see `Exact.find_candidates`."""
        rounded = self._round()
        longest = self.slack / compute_unit_slack(self.dim)  # the slack is in proportion to the longest vector
        for row, mask in zip(rows, limits, strict=True):
            near = rounded.find_near(row, k, mask, longest) if k > 0 else np.empty(0, dtype=np.intp)
            if near is None:  # too many tools could be near: compare all
                [near] = super().find_candidates(row[None], k, [mask])
            yield near

    def _round(self) -> RoundedRows:
        """Return the 8-bit copies, made at the first call."""
        if self._rounded is None:
            self._rounded = RoundedRows.of(self.vectors)
        return self._rounded

    def arrays(
        self,
        meanwhile: Callable[[], object] | None = None,
        earlier: tuple[Arrays, npt.NDArray[np.int64]] | None = None,
    ) -> dict[str, Array]:
        """Return the index as arrays, with the copies.

        Both arguments are for indexes with a graph, and are ignored here.
        """
        return super().arrays() | self._round().arrays()

    @classmethod
    def from_arrays(
        cls,
        arrays: Arrays,
        meta: Mapping[str, object],
        ids: Sequence[str],
        readers: Mapping[str, Callable[[npt.NDArray[np.intp]], Vectors]] | None = None,
    ) -> Self:
        """Rebuild an index from `arrays` and `meta`; see `Exact.from_arrays`.

        An index that was stored without copies has none at first: the first search makes them. Incomplete copies are
        damage.

        Raises:
            StoreError: if the copies are damaged.
        """
        index = super().from_arrays(arrays, meta, ids, readers)
        try:
            index._rounded = RoundedRows.from_arrays(arrays, index.vectors.shape)
        except (KeyError, ValueError) as error:
            raise StoreError(f"The stored exact index is damaged: {error}. Build it again.") from None
        return index
