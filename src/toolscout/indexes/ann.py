"""Approximate nearest neighbours for large catalogues: a graph finds candidates, exact cosines order them.

The graph (HNSW, package usearch) holds the first principal components of the vectors as 8-bit integers with one scale
per row. Its candidates are scored with the float vectors, so scores and order are those of the exact index; only a tool
that the graph misses is lost.

A mask that leaves few tools is searched by comparing these tools one by one. With more of them, the graph returns as
many more candidates as the mask hides, and the tools are compared one by one if that is not enough.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from toolscout.errors import StoreError, require
from toolscout.indexes.exact import Exact
from toolscout.indexes.ranking import Mask, Spread, check_rows, masks, pad_best, top_k
from toolscout.indexes.rounded import Codes, make_codes

if TYPE_CHECKING:
    from typing import Self  # new in Python 3.11

__all__ = ["ANN_FORMAT", "Ann", "EarlierGraph", "count_candidates", "is_available", "make_codes"]

ANN_FORMAT: Final = "ann/2"  # raise it whenever the arrays change

CONNECTIVITY: Final = 16  # neighbours of a tool in the graph; twice as many on its lowest level
EXPANSION_ADD: Final = 96
MIN_SQUARE_SHARE: Final = 0.85  # of the squared lengths of all vectors that the components of the graph hold
COMPONENTS_STEP: Final = 32
MIN_CANDIDATES: Final = 256  # that the graph returns at least
CANDIDATES_PER_ROOT: Final = 1.5  # candidates for each unit of the square root of the number of tools
MAX_CANDIDATES: Final = 4_096  # from here on, the tools are compared one by one
MAX_CHANGED_SHARE: Final = 0.1  # of the tools, up to which a graph grows instead of being built anew
MAX_COMPARED_TOOLS: Final = 20_000  # visible tools that are compared one by one at once
MASK_MARGIN: Final = 1.5  # candidates in reserve, because a mask need not hide tools evenly
COMPARED_BATCH: Final = 65_536
CHECKED_NEAREST: Final = 16  # tools near to a tool among which it must find itself
TWIN_DISTANCE: Final = 1e-4  # cosine distance below which two tools have the same code
MOMENT_TOOLS: Final = 4_096  # visible tools from which the distribution of their cosines is estimated

Vectors = npt.NDArray[np.float32]
Graph = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]  # its bytes; for each key the position of its tool, or -1


def is_available() -> bool:
    """Tell whether the package that searches graphs is installed."""
    return find_spec("usearch") is not None


def count_candidates(n_tools: int) -> int:
    """Return how many candidates a search without a mask takes. In a larger graph, the same number misses more."""
    return max(MIN_CANDIDATES, int(CANDIDATES_PER_ROOT * math.sqrt(n_tools)))


class Ann(Exact):
    """Searches a graph of the vectors; everything else is as in `Exact`."""

    def __init__(self, dim: int) -> None:
        """Create an empty index for vectors of length `dim`.

        Raises:
            MissingExtra: if the package usearch is not installed.
        """
        super().__init__(dim)
        _import_usearch()
        self._graph: Any = None
        self._graph_bytes: npt.NDArray[np.uint8] | None = None
        self._codes: Codes = np.empty((0, dim), dtype=np.int8)
        self._components: Vectors = np.eye(dim, dtype=np.float32)
        self._keyed: npt.NDArray[np.int32] | None = None
        self._lock = threading.Lock()

    def upsert(self, ids: Sequence[str], vectors: npt.NDArray[Any]) -> None:
        """Add tools, or replace their vectors, as in `Exact`; the graph is built again with the next search."""
        super().upsert(ids, vectors)
        self._graph = self._graph_bytes = self._read_rows = None

    def delete(self, ids: Any) -> None:
        """Remove tools; unknown ids are ignored. The graph is built again with the next search."""
        super().delete(ids)
        self._graph = self._graph_bytes = self._read_rows = None

    def search(
        self, queries: npt.NDArray[Any], k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[Vectors]]:
        """Find the nearest tools of each query: `(ids, scores)`, best first; see `Exact.search`."""
        rows = check_rows(queries, (len(queries), self.dim))
        ids, values = [], []
        for row, mask in zip(rows, masks(visible, len(rows)), strict=True):
            best, scores = self._find_best(row, k if row.any() else 0, mask)
            ids.append([self.ids[position] for position in best.tolist()])
            values.append(scores)
            if mask is None:
                self._cache_nearest(row, best, scores)
        return ids, values

    def _find_best(self, row: Vectors, k: int, mask: Mask | None) -> tuple[npt.NDArray[np.intp], Vectors]:
        """Return positions and cosines of the nearest tools, best first."""
        k = min(k, len(self.ids))
        if k <= 0:
            return np.empty(0, dtype=np.intp), np.empty(0, dtype=np.float32)
        candidates = self._find_candidates(row, k, mask)
        scores = self._compute_cosines(row, candidates)
        best = top_k(scores, k)
        return candidates[best], scores[best]

    def _find_candidates(self, row: Vectors, k: int, mask: Mask | None) -> npt.NDArray[np.intp]:
        """Return positions, ascending, that include nearly all of the nearest tools."""
        self._open_graph()
        wanted = max(MIN_CANDIDATES, 2 * k)
        if mask is None:
            count = max(wanted, count_candidates(len(self.ids)))
            if count >= min(len(self.ids), MAX_CANDIDATES + 1):  # a walk to every tool may still miss one
                return np.arange(len(self.ids))
            nearest = max(wanted, count // 2)  # the others only widen the walk, and hardly ever hold one of the ten
            return self._search_graph(row, count, nearest)
        n_visible = int(mask.sum())
        share = n_visible / max(1, len(self.ids))
        count = int(MASK_MARGIN * wanted / share) + 1 if n_visible > MAX_COMPARED_TOOLS else MAX_CANDIDATES + 1
        if count <= MAX_CANDIDATES:
            positions = self._search_graph(row, count)
            positions = positions[mask[positions]]
            if len(positions) >= wanted:
                return positions
        return self._compare(make_codes(row[None])[0], np.flatnonzero(mask), wanted)

    def make_graph_code(self, row: Vectors) -> Codes:
        """Return the components of a vector as the graph holds them."""
        code: Codes = make_codes(row[None] @ self._components)[0]
        return code

    def _search_graph(self, row: Vectors, count: int, nearest: int | None = None) -> npt.NDArray[np.intp]:
        """Return positions, ascending, of the `nearest` of so many candidates, or of all of them."""
        code = self.make_graph_code(row)
        with self._lock:  # the breadth of a search is a property of the graph, and it has one buffer
            self._graph.expansion_search = max(count, MIN_CANDIDATES)
            keys = self._graph.search(code, count, threads=1).keys[:nearest]
        positions = np.asarray(keys).astype(np.intp)
        if self._keyed is not None:
            positions = self._keyed[positions].astype(np.intp)
        return np.unique(positions[positions >= 0])

    def _compare(self, code: Codes, positions: npt.NDArray[np.intp], wanted: int) -> npt.NDArray[np.intp]:
        """Return the positions, ascending, of the nearest of some tools by their codes."""
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

    def spreads(
        self, queries: npt.NDArray[Any], depth: int, visible: Sequence[Mask | None] | None = None
    ) -> list[Spread]:
        """Summarise the distribution of cosines; see `Exact.spreads`.

        Of masked tools, mean and deviation are estimated from some thousand.
        """
        rows = check_rows(queries, (len(queries), self.dim))
        return [
            self._summarise_scores(row, depth) if mask is None or not row.any() else self._summarise(row, depth, mask)
            for row, mask in zip(rows, masks(visible, len(rows)), strict=True)
        ]

    def _summarise(self, row: Vectors, depth: int, mask: Mask) -> Spread:
        best, scores = self._find_best(row, depth, mask)
        positions = np.flatnonzero(mask)
        sample = self._score_codes(make_codes(row[None])[0], positions[:: 1 + len(positions) // MOMENT_TOOLS])
        return Spread(pad_best(scores, depth), int(best[0]), float(sample.mean()), float(sample.std()))

    def _open_graph(self) -> None:
        """Open the graph, or build it if the vectors have none."""
        if self._graph is not None:
            return
        usearch = _import_usearch()
        with self._lock:
            if self._graph_bytes is None:
                self._codes, self._components = make_codes(self.vectors), self._choose_components()
                self._graph_bytes, self._keyed = build_graph(self.vectors, self._components)
            graph = usearch.Index.restore(self._graph_bytes.data, view=True)
            n_keys = len(self.ids if self._keyed is None else self._keyed)
            if graph is None or graph.ndim != self._components.shape[1] or len(graph) != n_keys:
                raise StoreError("The stored graph of the index is damaged. Run  toolscout doctor --repair")
            self._graph = graph

    def _choose_components(self) -> Vectors:
        """Return the directions in which the vectors are longest, `(dim, components)`, that hold most of them."""
        if not len(self.vectors):
            return self._components
        _, products = self._compute_moments()
        squares, directions = np.linalg.eigh(products)
        shares = np.cumsum(squares[::-1]) / max(squares.sum(), np.finfo(np.float64).tiny)
        enough = int(np.searchsorted(shares, MIN_SQUARE_SHARE)) + 1
        count = min(self.dim, -(-enough // COMPONENTS_STEP) * COMPONENTS_STEP)
        return np.ascontiguousarray(directions[:, ::-1][:, :count], dtype=np.float32)

    def arrays(
        self, meanwhile: Callable[[], object] | None = None, earlier: EarlierGraph | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the index as arrays, without its ids.

        Args:
            meanwhile: called while other threads build the graph.
            earlier: a graph that most of the tools are in. The others are added to it.
        """
        arrays = super().arrays()
        if earlier is not None and earlier.is_worthwhile:
            components, make = earlier.components, functools.partial(earlier.grow, self.vectors)
        else:
            components = self._choose_components()
            make = functools.partial(build_graph, self.vectors, components)
        with ThreadPoolExecutor(1) as pool:
            building = pool.submit(make)
            if meanwhile is not None:
                meanwhile()
            arrays |= {"codes": make_codes(self.vectors), "components": components}
            graph, keyed = building.result()
            return arrays | {"graph": graph, "keyed": keyed}

    @property
    def reads_few_rows(self) -> bool:
        """Whether a search reads the vectors of its candidates only."""
        return True

    def _round(self) -> None:
        """Make no 8-bit copies besides those of the graph."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any], ids: Sequence[str]) -> Self:
        """Rebuild an index from `arrays` and `meta`; see `Exact.from_arrays`."""
        index = super().from_arrays(arrays, meta, ids)
        try:
            index._codes, index._graph_bytes = arrays["codes"], arrays["graph"]
            index._components, index._keyed = arrays["components"], arrays["keyed"]
            is_intact = index._codes.shape == index.vectors.shape and index._codes.dtype == np.int8
            is_intact = is_intact and index._components.shape[:1] == (index.dim,)
        except KeyError:
            is_intact = False
        if not is_intact:
            raise StoreError("The stored graph of the index is damaged. Build it again.")
        return index


class EarlierGraph:
    """The graph of an earlier index, to which new tools are added. Those that are gone stay in it, and are not found.

    Attributes:
        components: see `Ann`.
        keyed: for each key of the graph with the new tools the position of its tool; -1: it is gone.
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], places: npt.NDArray[np.int64]) -> None:
        """Take over the graph of an index.

        Args:
            arrays: of the index.
            places: `(tools,)`, for each tool of the new index its position in the earlier one; -1: it is new.
        """
        self.components, self._graph_bytes = arrays["components"], arrays["graph"]
        positions = np.full(len(arrays["vectors"]) + 1, -1, dtype=np.int32)  # the last stands for tools that were gone
        positions[places[places >= 0]] = np.flatnonzero(places >= 0)
        self._new = np.flatnonzero(places < 0)
        self._n_keys = len(arrays["keyed"])
        self.keyed = np.concatenate([positions[arrays["keyed"]], self._new.astype(np.int32)])

    @property
    def is_worthwhile(self) -> bool:
        """Whether few tools are new or gone. With more of them, the graph would lose recall, and is built anew."""
        n_gone = int((self.keyed < 0).sum())
        return n_gone + len(self._new) <= MAX_CHANGED_SHARE * self._n_keys

    def grow(self, vectors: Vectors) -> Graph:
        """Return the graph with the new tools; `vectors`: of all tools."""
        graph = _make_graph(self.components.shape[1])
        graph.load(self._graph_bytes.tobytes())
        if len(graph) != self._n_keys:
            raise StoreError("The stored graph of the index is damaged. Run  toolscout doctor --repair")
        lost = _add_codes(graph, make_codes(vectors[self._new] @ self.components))
        keyed = np.concatenate([self.keyed, self._new[lost].astype(np.int32)])
        return np.frombuffer(graph.save() or b"", dtype=np.uint8), keyed


def build_graph(vectors: Vectors, components: Vectors) -> Graph:
    """Build the graph of the components of vectors.

    Returns:
        The bytes of the graph, and for each of its keys the position of its tool.
    """
    codes: Codes = np.empty((len(vectors), components.shape[1]), dtype=np.int8)
    for start in range(0, len(vectors), COMPARED_BATCH):
        codes[start : start + COMPARED_BATCH] = make_codes(vectors[start : start + COMPARED_BATCH] @ components)
    graph = _make_graph(codes.shape[1])
    keyed = np.concatenate([np.arange(len(codes)), _add_codes(graph, codes)]).astype(np.int32)
    return np.frombuffer(graph.save() or b"", dtype=np.uint8), keyed


def _add_codes(graph: Any, codes: Codes) -> npt.NDArray[np.intp]:
    """Add codes to a graph under its next keys, and those that no walk reaches once more.

    Threads that add tools at the same time overwrite each other's edges. A tool that loses all of its edges cannot be
    found; a second entry, added by one thread, can.

    Returns:
        The positions of the codes that were added once more.
    """
    if not len(codes):
        return np.empty(0, dtype=np.intp)
    first, threads = len(graph), os.cpu_count() or 1
    keys = np.arange(first, first + len(codes))
    graph.add(keys, codes, threads=threads)
    graph.expansion_search = CHECKED_NEAREST
    nearest = graph.search(codes, min(CHECKED_NEAREST, len(graph)), threads=threads)
    found = (np.atleast_2d(nearest.keys) == keys[:, None]).any(axis=1)
    has_many_twins = np.atleast_2d(nearest.distances)[:, -1] < TWIN_DISTANCE  # they take all places
    lost: npt.NDArray[np.intp] = np.flatnonzero(~found & ~has_many_twins)
    if len(lost):
        graph.add(len(graph) + np.arange(len(lost)), codes[lost], threads=1)
    return lost


def _import_usearch() -> ModuleType:
    """Import the package of the graph. onnxruntime ends the process if it is imported after it, so it comes first."""
    if "usearch" not in sys.modules and find_spec("onnxruntime") is not None:
        with contextlib.suppress(ImportError):
            importlib.import_module("onnxruntime")
    return require("usearch.index", "scale")


def _make_graph(n_components: int) -> Any:
    return _import_usearch().Index(
        ndim=n_components,
        metric="cos",
        dtype="i8",
        connectivity=CONNECTIVITY,
        expansion_add=EXPANSION_ADD,
        enable_key_lookups=False,
    )
