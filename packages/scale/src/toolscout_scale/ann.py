"""Approximate nearest neighbours for large catalogues: a graph finds candidates, exact cosines order them.

The graph (`graph`) stores the first principal components of the vectors as 8-bit integers (*codes*). Its candidates are
scored with the float vectors, so scores and order are those of the exact index; only a tool that the graph misses is
lost. Of many tools with the same code (*twins*), the graph contains some, and the others are found through these.

If a mask leaves few tools visible, they are compared one by one. If it leaves more, the graph returns additional
candidates in place of the hidden ones; if too few are visible even so, the visible tools are compared one by one.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array, Arrays
from toolscout.errors import StoreError
from toolscout.indexes.exact import Exact
from toolscout.indexes.ranking import Mask, Spread, pad_best, top_k
from toolscout_scale.graph import EarlierGraph, Graph, Projection, build_graph, import_usearch, open_graph
from toolscout_scale.rounded import Codes, make_codes

if TYPE_CHECKING:
    from typing import Self  # new in Python 3.11

__all__ = ["ANN_FORMAT", "MIN_CANDIDATES", "Ann", "EarlierGraph", "advise_all", "advise_few", "count_candidates"]

ANN_FORMAT: Final = "ann/4"  # raise it whenever the arrays change

MIN_CANDIDATES: Final = 256  # of a walk through the graph
CANDIDATES_PER_ROOT: Final = 1.8  # candidates for each unit of the square root of the number of tools
MAX_CANDIDATES: Final = 4_096  # of a walk; where more are needed, comparing all tools takes less time
MAX_COMPARED_TOOLS: Final = 20_000  # up to so many visible tools are compared one by one, without a walk
MASK_MARGIN: Final = 1.5  # factor of the candidates with a mask, because a mask need not hide tools evenly
COMPARED_BATCH: Final = 65_536  # tools that are compared at once: it bounds the memory for their codes
MOMENT_TOOLS: Final = 4_096  # visible tools from which the distribution of their cosines is estimated
MIN_READ_TOOLS: Final = 200_000  # in larger catalogues, vectors of candidates are read from the file, not mapped
MAX_READ_ROWS: Final = 4_096  # rows that are read one by one; more are read from the mapped array

Vectors = npt.NDArray[np.float32]
Positions = npt.NDArray[np.intp]
ReadRows = Callable[[Positions], Vectors]


def count_candidates(n_tools: int) -> int:
    """Return how many candidates a search without a mask needs. In a larger graph, it would miss more with as many."""
    return max(MIN_CANDIDATES, int(CANDIDATES_PER_ROOT * math.sqrt(n_tools)))


class Ann(Exact):
    """Searches a graph of the vectors; everything else is as in `Exact`."""

    key = ANN_FORMAT

    def __init__(self, dim: int) -> None:
        """Create an empty index for vectors of length `dim`.

        Raises:
            MissingExtra: if the package usearch is not installed.
        """
        import_usearch()
        self._lock = threading.Lock()
        super().__init__(dim)

    def _replace(self, ids: Sequence[str], vectors: Vectors, slack: float | None = None) -> None:
        """Take ids and vectors, and forget the graph. The next search builds it."""
        super()._replace(ids, vectors, slack)
        self._graph: Any = None  # usearch's, opened from `_graph_arrays`
        self._graph_arrays: Graph | None = None
        self._codes: Codes = np.empty((0, self.dim), dtype=np.int8)  # of whole vectors, not of their projections
        self._projection = Projection(np.eye(self.dim, dtype=np.float32), scale=1.0)
        self._read_rows: ReadRows | None = None

    def find_candidates(self, rows: Vectors, k: int, limits: Sequence[Mask | None]) -> Iterable[Positions]:
        """Yield positions, ascending, that include nearly all of the nearest tools of each query."""
        for row, mask in zip(rows, limits, strict=True):
            n_nearest = min(k, len(self.ids))
            if n_nearest > 0 and row.any():
                yield self._find_candidates(row, n_nearest, mask)
            else:  # a row of zeros finds nothing
                yield np.empty(0, dtype=np.intp)

    def at(self, query: Vectors, positions: Sequence[int] | Positions) -> Vectors:
        """Compute the cosines of the tools at some positions; see `Exact.at`.

        In a large catalogue, few rows are read from the file (`_read_rows`), not from the mapped array. That takes
        eight times as long, but the pages of a mapped array count as memory of the process once they have been read.
        """
        if self._read_rows is None or len(positions) > MAX_READ_ROWS:
            return super().at(query, positions)
        scores: Vectors = np.einsum("nd,d->n", self._read_rows(np.asarray(positions, dtype=np.intp)), query)
        return scores

    def _find_candidates(self, row: Vectors, k: int, mask: Mask | None) -> npt.NDArray[np.intp]:
        """Return positions, ascending, that include nearly all of the `k` nearest visible tools."""
        self._open_graph()
        n_wanted = max(MIN_CANDIDATES, 2 * k)  # twice as many: the 8-bit components order near tools only roughly
        return self._find_among_all(row, k, n_wanted) if mask is None else self._find_visible(row, k, n_wanted, mask)

    def _find_among_all(self, row: Vectors, k: int, n_wanted: int) -> npt.NDArray[np.intp]:
        """Return the nearest candidates of a walk through the graph; all tools if the walk would be too long."""
        n_tools = len(self.ids)
        n_walked = max(n_wanted, count_candidates(n_tools))
        if n_walked >= n_tools or n_walked > MAX_CANDIDATES:  # a walk to every tool may still miss one
            return np.arange(n_tools)
        # The second half of the candidates only widens the walk: at k = 10 it hardly ever has one of the ten best.
        return self._search_graph(row, k, n_walked, n_nearest=max(n_wanted, n_walked // 2))

    def _find_visible(self, row: Vectors, k: int, n_wanted: int, mask: Mask) -> npt.NDArray[np.intp]:
        """Return the visible candidates of a walk. If it cannot find `n_wanted`, compare the visible tools one by one.

        The graph does not know the mask, so a walk needs more candidates, in proportion to the tools that are hidden.
        """
        n_visible = int(mask.sum())
        if n_visible > MAX_COMPARED_TOOLS:
            visible_share = n_visible / len(self.ids)
            n_walked = int(MASK_MARGIN * n_wanted / visible_share) + 1
            if n_walked <= MAX_CANDIDATES:
                positions = self._search_graph(row, k, n_walked, n_nearest=n_walked, mask=mask)
                positions = positions[mask[positions]]
                if len(positions) >= n_wanted:
                    return positions
        return self._choose_nearest(make_codes(row[None])[0], np.flatnonzero(mask), n_wanted)

    def make_graph_code(self, row: Vectors) -> Codes:
        """Return the code of a vector in the graph: its components in the directions of the projection."""
        code: Codes = self._projection.make_codes(row[None])[0]
        return code

    def _search_graph(
        self, row: Vectors, k: int, n_walked: int, n_nearest: int, mask: Mask | None = None
    ) -> npt.NDArray[np.intp]:
        """Walk the graph to a query. Returns positions, ascending, of the nearest candidates and of their twins.

        Args:
            row: `(dim,)`, the query.
            k: how many tools are wanted, and so how many twins of each candidate.
            n_walked: candidates of the walk; the more there are, the fewer near tools it misses.
            n_nearest: how many of the candidates are returned.
            mask: which twins are visible; None: all. The candidates themselves are not masked.
        """
        code = self.make_graph_code(row)
        with self._lock:  # threads share the graph, its number of candidates and its buffer
            self._graph.expansion_search = max(n_walked, MIN_CANDIDATES)
            keys = self._graph.search(code, n_walked, threads=1).keys  # the nearest first
        assert self._graph_arrays is not None
        nearest_keys = np.asarray(keys[:n_nearest]).astype(np.intp)
        positions = self._graph_arrays.position_of_key[nearest_keys].astype(np.intp)
        positions = positions[positions >= 0]  # a tool that is gone has the position -1
        if self._graph_arrays.twins.size:
            positions = np.concatenate([positions, self._graph_arrays.find_twins(positions, k, mask)])
        return np.unique(positions)  # a tool can have two keys

    def _choose_nearest(self, code: Codes, positions: npt.NDArray[np.intp], n_wanted: int) -> npt.NDArray[np.intp]:
        """Return the positions, ascending, of the `n_wanted` tools whose codes are nearest to the code of a query."""
        if len(positions) <= n_wanted:
            return positions
        scores = np.empty(len(positions), dtype=np.float32)
        for start in range(0, len(positions), COMPARED_BATCH):
            batch = slice(start, start + COMPARED_BATCH)
            scores[batch] = self._score_codes(code, positions[batch])
        return positions[np.sort(top_k(scores, n_wanted))]

    def _score_codes(self, code: Codes, positions: npt.NDArray[np.intp]) -> Vectors:
        """Return the cosines of the tools at some positions with a query, computed from 8-bit codes of whole vectors.

        These codes have all `dim` components, unlike the codes of the graph.
        """
        import numkong  # usearch brings it

        codes = self._codes[positions]
        distances = np.asarray(numkong.cdist(code[None], codes, metric="angular")).ravel()
        scores: Vectors = (1.0 - distances).astype(np.float32)
        return scores

    def _summarise(self, row: Vectors, depth: int, mask: Mask | None) -> Spread:
        """Summarise the distribution of cosines. With a mask, mean and deviation are estimated from a sample.

        Without a mask, `Exact` computes both from two moments of all vectors, which say nothing about a part of them.
        """
        is_zero = not row.any()  # all cosines are 0, and a walk has no direction
        if mask is None or is_zero:
            return super()._summarise(row, depth, mask)
        best, scores = self._choose_best(row, self._find_candidates(row, depth, mask), depth, mask)
        visible_positions = np.flatnonzero(mask)
        step = 1 + len(visible_positions) // MOMENT_TOOLS
        sample = self._score_codes(make_codes(row[None])[0], visible_positions[::step])
        return Spread(
            best=pad_best(scores, depth),
            first=int(best[0]),
            mean=float(sample.mean()),
            deviation=float(sample.std()),
        )

    def _open_graph(self) -> None:
        """Open the graph if it isn't open. Build it first if the vectors have none."""
        if self._graph is not None:
            return
        with self._lock:
            if self._graph_arrays is None:
                self._codes = make_codes(self.vectors)
                self._projection = self._choose_projection()
                self._graph_arrays = build_graph(self.vectors, self._projection, _count_cores)
            n_components = self._projection.components.shape[1]
            self._graph = open_graph(self._graph_arrays.content, n_components, len(self._graph_arrays.position_of_key))

    def _choose_projection(self) -> Projection:
        """Choose the directions that the graph stores by the vectors; without vectors, all directions."""
        if not len(self.vectors):
            return self._projection
        _, products = self.compute_moments()
        return Projection.of(self.vectors, products)

    def arrays(
        self,
        meanwhile: Callable[[], object] | None = None,
        earlier: tuple[Arrays, npt.NDArray[np.int64]] | None = None,
    ) -> dict[str, Array]:
        """Return the index as arrays, without its ids; see `Exact.arrays`.

        Args:
            meanwhile: called in this thread while other threads build the graph. They leave it one core.
            earlier: arrays of an earlier index, and for each tool its position there (-1: it is new). If few tools are
                new or gone, the graph of that index grows; else a graph is built anew.
        """
        earlier_graph = EarlierGraph(*earlier) if earlier else None
        arrays = super().arrays()
        may_use_all_cores = threading.Event()

        def count_threads() -> int:
            return _count_cores() if may_use_all_cores.is_set() else max(1, _count_cores() - 1)

        def make_graph() -> tuple[Projection, Graph]:
            if earlier_graph is not None and earlier_graph.is_worthwhile:
                return earlier_graph.projection, earlier_graph.grow(self.vectors, count_threads)
            projection = self._choose_projection()
            return projection, build_graph(self.vectors, projection, count_threads)

        with ThreadPoolExecutor(1) as pool:
            building = pool.submit(make_graph)
            try:
                if meanwhile is not None:
                    meanwhile()
                arrays["codes"] = make_codes(self.vectors)
            finally:
                may_use_all_cores.set()
            projection, graph = building.result()
        return arrays | projection.arrays() | graph.arrays()

    @classmethod
    def from_arrays(
        cls,
        arrays: Arrays,
        meta: Mapping[str, object],
        ids: Sequence[str],
        readers: Mapping[str, ReadRows] | None = None,
    ) -> Self:
        """Rebuild an index from `arrays` and `meta`; see `Exact.from_arrays`."""
        index = super().from_arrays(arrays, meta, ids, readers)
        if readers and len(ids) >= MIN_READ_TOOLS:
            index._read_rows = readers.get("vectors")
        try:
            index._codes = arrays["codes"]
            index._projection = Projection.from_arrays(arrays)
            index._graph_arrays = Graph.from_arrays(arrays, len(ids))
            are_codes_intact = index._codes.shape == index.vectors.shape and index._codes.dtype == np.int8
            is_intact = are_codes_intact and index._projection.components.shape[:1] == (index.dim,)
        except KeyError:
            is_intact = False
        if not is_intact:
            raise StoreError("The stored graph of the index is damaged. Build it again.")
        advise_few(index.vectors)
        advise_all(arrays["graph"])
        return index


def _count_cores() -> int:
    """Return the number of the machine's cores; 1 if the system does not say."""
    return os.cpu_count() or 1


# A mapped array is read page by page, and some disks read megabytes ahead of every page. A search needs a few hundred
# rows of the vectors, so reading ahead is in vain for them. A search reads scattered parts of the graph too, but so
# many that it takes less time to read the whole graph once in order.


def advise_few(array: Array) -> bool:
    """Tell the system that few rows of a mapped array will be read. Returns whether it took the advice (`_advise`)."""
    return _advise(array, "MADV_RANDOM")


def advise_all(array: Array) -> bool:
    """Tell the system that a mapped array will soon be read as a whole. Returns whether it took the advice."""
    return _advise(array, "MADV_WILLNEED")


def _advise(array: Array, name: str) -> bool:
    """Advise the system how the pages of an array will be read, by the name of a constant in `mmap`.

    Returns:
        Whether the advice was given: False if the array is in no mapped file, or the system does not know the advice.
    """
    owner: object = array  # followed from view to view, up to the mapped file
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    if not isinstance(owner, mmap.mmap) or not hasattr(mmap, name):
        return False
    first = _find_address(array) - _find_address(np.frombuffer(owner, dtype=np.uint8))
    start = first - first % mmap.PAGESIZE  # advice is for whole pages
    owner.madvise(getattr(mmap, name), start, first + array.nbytes - start)
    return True


def _find_address(array: Array) -> int:
    """Return the address of an array's first byte."""
    address: int = array.__array_interface__["data"][0]
    return address
