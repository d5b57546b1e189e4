"""Approximate nearest neighbours for large catalogues: a graph finds candidates, exact cosines order them.

The graph (`graph`) holds the first principal components of the vectors as 8-bit integers. Its candidates are scored
with the float vectors, so scores and order are those of the exact index; only a tool that the graph misses is lost.
Of many tools with the same components, the graph holds some, and these lead to the others.

A mask that leaves few tools is searched by comparing these tools one by one. With more of them, the graph returns as
many more candidates as the mask hides, and the tools are compared one by one if that is not enough.
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

MIN_CANDIDATES: Final = 256  # that the graph returns at least
CANDIDATES_PER_ROOT: Final = 1.8  # candidates for each unit of the square root of the number of tools
MAX_CANDIDATES: Final = 4_096  # of a walk; where more are needed, comparing all tools takes less time
MAX_COMPARED_TOOLS: Final = 20_000  # visible tools that are compared one by one at once
MASK_MARGIN: Final = 1.5  # candidates in reserve, because a mask need not hide tools evenly
COMPARED_BATCH: Final = 65_536
MOMENT_TOOLS: Final = 4_096  # visible tools from which the distribution of their cosines is estimated
MIN_READ_TOOLS: Final = 200_000  # from here on, the vectors of candidates are read from their file, not mapped
MAX_READ_ROWS: Final = 4_096  # rows that are read one by one; more of them come from the array

Vectors = npt.NDArray[np.float32]
Positions = npt.NDArray[np.intp]
ReadRows = Callable[[Positions], Vectors]


def count_candidates(n_tools: int) -> int:
    """Return how many candidates a search without a mask takes. In a larger graph, the same number misses more."""
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
        """Take ids and vectors. The graph is built with the next search."""
        super()._replace(ids, vectors, slack)
        self._graph: Any = None
        self._arrays: Graph | None = None
        self._codes: Codes = np.empty((0, self.dim), dtype=np.int8)
        self._projection = Projection(np.eye(self.dim, dtype=np.float32), scale=1.0)
        self._read_rows: ReadRows | None = None

    def find_candidates(self, rows: Vectors, k: int, limits: Sequence[Mask | None]) -> Iterable[Positions]:
        """Yield positions, ascending, that include nearly all of the nearest tools of each query."""
        for row, mask in zip(rows, limits, strict=True):
            wanted = min(k, len(self.ids)) if row.any() else 0
            yield self._find_candidates(row, wanted, mask) if wanted > 0 else np.empty(0, dtype=np.intp)

    def compute_cosines(self, row: Vectors, positions: Positions) -> Vectors:
        """Compute the cosines of the tools at some positions; see `Exact.compute_cosines`.

        Reading rows through the map of the file is eight times as fast, but the pages that were read count as memory of
        the process, in the end the whole file. Rows that `_read_rows` reads from the file do not, so it reads them if
        they are few.
        """
        if self._read_rows is None or len(positions) > MAX_READ_ROWS:
            return super().compute_cosines(row, positions)
        scores: Vectors = np.einsum("nd,d->n", self._read_rows(positions), row)
        return scores

    def _find_candidates(self, row: Vectors, k: int, mask: Mask | None) -> npt.NDArray[np.intp]:
        """Return positions, ascending, that include nearly all of the nearest tools.

        With a mask, the graph is walked only if many tools are visible: it doesn't know the mask, so it must return as
        many more candidates as the mask hides. Where that is too many, or still too few, visible tools are compared one
        by one.
        """
        self._open_graph()
        n_tools = len(self.ids)
        wanted = max(MIN_CANDIDATES, 2 * k)  # twice as many: the 8-bit components order near tools only roughly
        if mask is None:
            count = max(wanted, count_candidates(n_tools))
            if count >= n_tools or count > MAX_CANDIDATES:  # a walk to every tool may still miss one
                return np.arange(n_tools)
            # The second half of the candidates only widens the walk: at k = 10 it hardly ever has one of the ten best.
            return self._search_graph(row, k, count, nearest=max(wanted, count // 2))
        n_visible = int(mask.sum())
        if n_visible > MAX_COMPARED_TOOLS:
            visible_share = n_visible / n_tools
            count = int(MASK_MARGIN * wanted / visible_share) + 1
            if count <= MAX_CANDIDATES:
                positions = self._search_graph(row, k, count, nearest=count, mask=mask)
                positions = positions[mask[positions]]
                if len(positions) >= wanted:
                    return positions
        return self._compare(make_codes(row[None])[0], np.flatnonzero(mask), wanted)

    def make_graph_code(self, row: Vectors) -> Codes:
        """Return the components of a vector as the graph holds them."""
        code: Codes = self._projection.make_codes(row[None])[0]
        return code

    def _search_graph(
        self, row: Vectors, k: int, count: int, nearest: int, mask: Mask | None = None
    ) -> npt.NDArray[np.intp]:
        """Walk the graph to `count` candidates. Returns positions, ascending, of the nearest and of their twins.

        Args:
            row: `(dim,)`, the query.
            k: how many tools are wanted, and so how many twins of each candidate.
            count: candidates of the walk; more of them find more.
            nearest: how many of the candidates are returned.
            mask: which twins are visible; None: all. The candidates themselves are not masked.
        """
        code = self.make_graph_code(row)
        with self._lock:  # the breadth of a search is a property of the graph, and it has one buffer
            self._graph.expansion_search = max(count, MIN_CANDIDATES)
            keys = self._graph.search(code, count, threads=1).keys[:nearest]
        assert self._arrays is not None
        positions = self._arrays.keyed[np.asarray(keys).astype(np.intp)].astype(np.intp)
        positions = positions[positions >= 0]
        if self._arrays.twins.size:
            positions = np.concatenate([positions, self._arrays.find_twins(positions, k, mask)])
        return np.unique(positions)

    def _compare(self, code: Codes, positions: npt.NDArray[np.intp], wanted: int) -> npt.NDArray[np.intp]:
        """Return the positions, ascending, of the `wanted` nearest of some tools by their codes."""
        if len(positions) <= wanted:
            return positions
        scores = np.empty(len(positions), dtype=np.float32)
        for start in range(0, len(positions), COMPARED_BATCH):
            part = slice(start, start + COMPARED_BATCH)
            scores[part] = self._score_codes(code, positions[part])
        return positions[np.sort(top_k(scores, wanted))]

    def _score_codes(self, code: Codes, positions: npt.NDArray[np.intp]) -> Vectors:
        """Return the cosines of some tools with a query, from their codes."""
        import numkong  # usearch brings it

        codes = self._codes[positions]
        distances = np.asarray(numkong.cdist(code[None], codes, metric="angular")).ravel()
        scores: Vectors = (1.0 - distances).astype(np.float32)
        return scores

    def _summarise(self, row: Vectors, depth: int, mask: Mask | None) -> Spread:
        """Summarise the distribution of cosines. Of masked tools, mean and deviation are estimated from a sample.

        `Exact` computes those of all tools from two moments of the vectors, which say nothing about a part of them.
        """
        is_empty = not row.any()  # all cosines are 0, and no walk has a direction
        if mask is None or is_empty:
            return super()._summarise(row, depth, mask)
        best, scores = self._choose_best(row, self._find_candidates(row, depth, mask), depth)
        positions = np.flatnonzero(mask)
        sample = self._score_codes(make_codes(row[None])[0], positions[:: 1 + len(positions) // MOMENT_TOOLS])
        return Spread(
            best=pad_best(scores, depth),
            first=int(best[0]),
            mean=float(sample.mean()),
            deviation=float(sample.std()),
        )

    def _open_graph(self) -> None:
        """Open the graph, or build it if the vectors have none."""
        if self._graph is not None:
            return
        with self._lock:
            if self._arrays is None:
                self._codes, self._projection = make_codes(self.vectors), self._choose_projection()
                self._arrays = build_graph(self.vectors, self._projection, _count_cores)
            n_components = self._projection.components.shape[1]
            self._graph = open_graph(self._arrays.content, n_components, len(self._arrays.keyed))

    def _choose_projection(self) -> Projection:
        """Choose the directions that the graph holds from all vectors; without any, all directions."""
        if not len(self.vectors):
            return self._projection
        return Projection.of(self.vectors, self.compute_moments()[1])

    def arrays(
        self,
        meanwhile: Callable[[], object] | None = None,
        earlier: tuple[Arrays, npt.NDArray[np.int64]] | None = None,
    ) -> dict[str, Array]:
        """Return the index as arrays, without its ids; see `Exact.arrays`.

        Args:
            meanwhile: called while other threads build the graph. They leave it a core.
            earlier: an index that most of the tools are in. The others are added to its graph.
        """
        earlier_graph = EarlierGraph(*earlier) if earlier else None
        arrays = super().arrays()
        is_alone = threading.Event()

        def count_threads() -> int:
            return _count_cores() if is_alone.is_set() else max(1, _count_cores() - 1)

        def make() -> tuple[Projection, Graph]:
            if earlier_graph is not None and earlier_graph.is_worthwhile:
                return earlier_graph.projection, earlier_graph.grow(self.vectors, count_threads)
            projection = self._choose_projection()
            return projection, build_graph(self.vectors, projection, count_threads)

        with ThreadPoolExecutor(1) as pool:
            building = pool.submit(make)
            try:
                if meanwhile is not None:
                    meanwhile()
                arrays["codes"] = make_codes(self.vectors)
            finally:
                is_alone.set()
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
            index._codes, index._projection = arrays["codes"], Projection.from_arrays(arrays)
            index._arrays = Graph.from_arrays(arrays, len(ids))
            is_intact = index._codes.shape == index.vectors.shape and index._codes.dtype == np.int8
            is_intact = is_intact and index._projection.components.shape[:1] == (index.dim,)
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


# A mapped array is read by the page, and some disks read megabytes ahead of every page. A search needs a few hundred
# rows of the vectors, so that is in vain. A graph is read here and there too, but so often that one pass over it takes
# less time.


def advise_few(array: Array) -> bool:
    """Say that few rows of an array will be read. Returns whether it is mapped and the system takes advice."""
    return _advise(array, "MADV_RANDOM")


def advise_all(array: Array) -> bool:
    """Say that an array will soon be read as a whole. Returns as `advise_few`."""
    return _advise(array, "MADV_WILLNEED")


def _advise(array: Array, name: str) -> bool:
    """Advise the system how the pages of an array will be read.

    Args:
        array: views of it are followed to the file that is mapped.
        name: of an advice in the module `mmap`, which not every system has.

    Returns:
        Whether it was given: False if the array is in no mapped file, or the system does not know the advice.
    """
    owner: object = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    if not isinstance(owner, mmap.mmap) or not hasattr(mmap, name):
        return False
    first = _locate(array) - _locate(np.frombuffer(owner, dtype=np.uint8))
    start = first - first % mmap.PAGESIZE  # advice is for whole pages
    owner.madvise(getattr(mmap, name), start, first + array.nbytes - start)
    return True


def _locate(array: Array) -> int:
    """Return the address of an array's first byte."""
    address: int = array.__array_interface__["data"][0]
    return address
