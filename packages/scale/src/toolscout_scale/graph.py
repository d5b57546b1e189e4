"""The graph of `ann`: which directions of the vectors it holds, how it is built, and how it grows.

The graph (HNSW, package usearch) holds the first principal components of the vectors as 8-bit integers. All rows have
the same scale and nearly the same length, so an inner product orders them as a cosine would, at two thirds of the time.

Threads that add tools at the same time overwrite each other's edges, and a tool without edges to it cannot be found. So
the edges of a new graph are followed from its entry, and a tool that none of them reaches gets a second entry. Others
are hard to find: only far tools lead to them. So a sample of the tools is searched for, or all of them if many of the
sample are missed. A tool that a search for itself misses gets a second entry too.

Tools with the same code are *twins*. The graph holds few of them, because more would have edges only to each other. Any
of these few leads to all its twins (`Graph.find_twins`).
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array, Arrays
from toolscout.errors import StoreError, require
from toolscout.indexes.ranking import Mask
from toolscout_scale.rounded import LEVELS, Codes

if TYPE_CHECKING:
    from typing import Self  # new in Python 3.11

__all__ = ["EarlierGraph", "Graph", "Projection", "build_graph", "import_usearch", "open_graph"]

CONNECTIVITY: Final = 16  # neighbours of a tool in the graph; twice as many on its lowest level. usearch's own default
EXPANSION_ADD: Final = 80  # candidates for the neighbours of a new tool: more build a better graph, more slowly
MIN_SQUARE_SHARE: Final = 0.85  # of the squared lengths of all vectors that the components of the graph hold
COMPONENTS_STEP: Final = 32  # their number is a multiple of it: 32 of 8 bits fill a register of 256 bits
CLIPPED_SHARE: Final = 0.001  # of the components, which 8 bits cut so that the others keep more of theirs
MAX_SCALED_ROWS: Final = 20_000  # from which the scale is estimated
MAX_SIDES: Final = 10  # components by whose side tools are sorted before they are added
MAX_TWINS: Final = 4  # tools with the same code in the graph
MORE_TWINS: Final = 16  # compared of each code, besides those wanted; tools with the same code can differ a little
TWINS_PER_TOOL: Final = 2  # compared at most for each tool that the graph returns
MARK_FACTOR: Final = -0x61C8864680B583EB  # its powers are the factors of the components in a mark
ADDED_BATCH: Final = 8_192  # tools between two looks at how many threads may build
BATCH: Final = 65_536  # rows that are projected, marked, searched or read at once: it bounds the memory for them
MAX_SAMPLED_TOOLS: Final = 4_000  # tools of a new graph that are searched for at first
MAX_MISSED_SHARE: Final = 0.001  # of these; if more are missed, all tools are searched for
CHECK_BREADTH: Final = 256  # a narrower search misses some tools of any large graph
MAX_CHANGED_SHARE: Final = 0.1  # of the tools, up to which a graph grows instead of being built anew
MAGIC: Final = b"usearch\x02\x00"
DESCRIPTION_BYTES: Final = 64
NODE_HEAD_BYTES: Final = 10
SLOT_BYTES: Final = 4
DAMAGED: Final = "The stored graph of the index is damaged. Run  toolscout doctor --repair"

Vectors = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int32]
Marks = npt.NDArray[np.int64]
CountThreads = Callable[[], int]
MakeCodes = Callable[[npt.NDArray[np.intp]], Codes]  # of the tools at some positions


class Graph(NamedTuple):
    """A graph as arrays.

    Attributes:
        content: its bytes.
        keyed: for each key the position of its tool; -1: the tool is gone.
        marks: `(tools,)`, the same number for tools with the same code.
        twins: `(2, n)`, mark and position of each tool whose code more have than the graph holds; both ascending.
    """

    content: npt.NDArray[np.uint8]
    keyed: Positions
    marks: Marks
    twins: Marks

    @classmethod
    def from_arrays(cls, arrays: Arrays, n_tools: int) -> Self:
        """Make the graph from the arrays of an index file, which has other arrays too.

        Raises:
            KeyError: if one of the four is not in the file.
            StoreError: if their types, shapes or positions do not fit a graph of `n_tools` tools.
        """
        graph = cls(arrays["graph"], arrays["keyed"], arrays["marks"], arrays["twins"])
        types = graph.keyed.dtype.name, graph.marks.dtype.name, graph.twins.dtype.name
        shapes = graph.keyed.shape, graph.marks.shape, graph.twins.shape
        if (
            types != ("int32", "int64", "int64")
            or shapes != ((graph.keyed.size,), (n_tools,), (2, graph.twins.size // 2))
            or not -1 <= graph.keyed.min(initial=0) <= graph.keyed.max(initial=-1) < n_tools
            or not 0 <= graph.twins[1].min(initial=0) <= graph.twins[1].max(initial=0) < max(1, n_tools)
        ):
            raise StoreError(DAMAGED)
        return graph

    def arrays(self) -> dict[str, Array]:
        """Return the graph as arrays."""
        return {"graph": self.content, "keyed": self.keyed, "marks": self.marks, "twins": self.twins}

    def find_twins(self, positions: npt.NDArray[np.intp], k: int, mask: Mask | None) -> npt.NDArray[np.intp]:
        """Return positions of tools with the same codes as some tools.

        The first visible ones of each code are enough: twins score nearly the same, and equal scores are ordered by id.
        `MORE_TWINS` more than `k` are taken, because twins may still differ a little. Codes that are further away are
        left out once there are many twins.

        Args:
            positions: those of tools in the graph, the nearest first.
            k: how many tools are wanted.
            mask: which tools are visible; None: all.
        """
        marks, (twin_marks, twins) = self.marks[positions], self.twins
        ranges = np.stack([np.searchsorted(twin_marks, marks, side) for side in ("left", "right")], axis=1)
        parts, n_left = [twins[:0]], TWINS_PER_TOOL * len(positions)
        for first, end in dict.fromkeys(map(tuple, ranges[ranges[:, 0] < ranges[:, 1]].tolist())):
            if n_left <= 0:
                break
            some = twins[first:end]
            parts.append((some if mask is None else some[mask[some]])[: k + MORE_TWINS])
            n_left -= len(parts[-1])
        return np.concatenate(parts).astype(np.intp)


class Projection:
    """Maps vectors to the 8-bit components that a graph holds.

    Attributes:
        components: `(dim, n)`, orthonormal columns.
        scale: a component times this, rounded, is its int8 code.
    """

    def __init__(self, components: Vectors, scale: float) -> None:
        """Take the attributes."""
        self.components, self.scale = components, scale

    @classmethod
    def of(cls, vectors: Vectors, products: npt.NDArray[np.float64]) -> Self:
        """Choose the directions in which vectors are longest, as many as hold most of their squared lengths.

        Args:
            vectors: `(n, dim)`.
            products: `(dim, dim)`, the mean of their outer products.
        """
        squares, directions = np.linalg.eigh(products)  # ascending: the last directions hold most
        shares = np.cumsum(squares[::-1]) / max(squares.sum(), np.finfo(np.float64).tiny)
        enough = int(np.searchsorted(shares, MIN_SQUARE_SHARE)) + 1
        count = min(vectors.shape[1], -(-enough // COMPONENTS_STEP) * COMPONENTS_STEP)
        components = np.ascontiguousarray(directions[:, ::-1][:, :count], dtype=np.float32)
        sample = _normalise(vectors[:: 1 + len(vectors) // MAX_SCALED_ROWS] @ components)
        largest = float(np.quantile(np.abs(sample), 1 - CLIPPED_SHARE))
        return cls(components, LEVELS / largest if largest else float(LEVELS))

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Make the projection from the arrays of an index file, which has other arrays too.

        Raises:
            KeyError: if the file lacks `components` or `scale`.
        """
        return cls(arrays["components"], float(arrays["scale"][0]))

    def arrays(self) -> dict[str, Array]:
        """Return the projection as arrays."""
        return {"components": self.components, "scale": np.array([self.scale])}

    def make_codes(self, vectors: Vectors) -> Codes:
        """Return the components of vectors, `(n, components)`, as rows of nearly the same length."""
        codes: Codes = np.empty((len(vectors), self.components.shape[1]), dtype=np.int8)
        for start in range(0, len(vectors), BATCH):
            rows = _normalise(vectors[start : start + BATCH] @ self.components) * np.float32(self.scale)
            codes[start : start + BATCH] = np.rint(rows).clip(-LEVELS, LEVELS)
        return codes


def _normalise(rows: Vectors) -> Vectors:
    """Scale rows to length 1; rows of zeros stay as they are."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units: Vectors = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return units


class EarlierGraph:
    """The graph of an earlier index, to which tools are added. Those that are gone stay in it, and are not found.

    Added are the new tools, and twins of tools that are gone. A code gets no more tools than in a new graph.

    Attributes:
        projection: that of the earlier index.
        keyed: for each key of the earlier graph the position of its tool; -1: it is gone.
    """

    def __init__(self, arrays: Arrays, places: npt.NDArray[np.int64]) -> None:
        """Take over the graph of an index.

        Args:
            arrays: of the index.
            places: `(tools,)`, for each tool of the new index its position in the earlier one; -1: it is new.

        Raises:
            StoreError: if the arrays are damaged.
        """
        n_earlier = len(arrays["vectors"])
        self._earlier, self.projection = Graph.from_arrays(arrays, n_earlier), Projection.from_arrays(arrays)
        kept, self._new = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
        positions = np.full(n_earlier + 1, -1, dtype=np.int32)  # the last stands for tools that were gone
        positions[places[kept]] = kept
        self.keyed = positions[self._earlier.keyed]
        self._marks = np.empty(len(places), dtype=np.int64)
        self._marks[kept] = self._earlier.marks[places[kept]]

    @property
    def is_worthwhile(self) -> bool:
        """Whether few tools are new or gone. With more of them, the graph would lose recall, and is built anew."""
        n_gone = int((self.keyed < 0).sum())
        return n_gone + len(self._new) <= MAX_CHANGED_SHARE * len(self.keyed)

    def grow(self, vectors: Vectors, count_threads: CountThreads) -> Graph:
        """Return the graph with the added tools; `vectors`: of all tools. `count_threads`: see `build_graph`."""

        def make_codes(positions: npt.NDArray[np.intp]) -> Codes:
            return self.projection.make_codes(vectors[positions])

        graph = _make_graph(self.projection)
        graph.load(self._earlier.content.tobytes())
        if len(graph) != len(self.keyed):
            raise StoreError(DAMAGED)
        self._marks[self._new] = _mark_codes(make_codes(self._new))
        added, twins = _limit_twins(self._marks, np.unique(self.keyed[self.keyed >= 0]))
        _add_codes(graph, make_codes(added), count_threads)
        keyed = np.concatenate([self.keyed, added.astype(np.int32)])
        return Graph(*_reach_all(graph, keyed, make_codes, count_threads), self._marks, twins)


def build_graph(vectors: Vectors, projection: Projection, count_threads: CountThreads) -> Graph:
    """Build the graph of vectors.

    Tools that are near to each other are added one after the other. So the rows that are compared are still in the
    processor's cache, and the graph finds slightly more. Of many tools with the same code, the first are added.

    Args:
        vectors: `(n, dim)`.
        projection: says which components the graph holds.
        count_threads: returns how many threads add the next batch.
    """
    codes = projection.make_codes(vectors)
    marks = _mark_codes(codes)
    added, twins = _limit_twins(marks, np.empty(0, dtype=np.int32))
    order = added[_sort_by_sides(codes[added])]
    graph = _make_graph(projection)
    _add_codes(graph, codes[order], count_threads)
    return Graph(*_reach_all(graph, order.astype(np.int32), codes.__getitem__, count_threads), marks, twins)


def _mark_codes(codes: Codes) -> Marks:
    """Return a number for each code. Different codes hardly ever have the same."""
    factors = np.cumprod(np.full(codes.shape[1], MARK_FACTOR, dtype=np.int64))
    marks = np.empty(len(codes), dtype=np.int64)
    for start in range(0, len(codes), BATCH):
        marks[start : start + BATCH] = codes[start : start + BATCH].astype(np.int64) @ factors
    return marks


def _limit_twins(marks: Marks, present: Positions) -> tuple[npt.NDArray[np.intp], Marks]:
    """Choose the tools to add to a graph: of each code the first ones, until the graph has `MAX_TWINS` of the code.

    Args:
        marks: of all tools.
        present: positions of the tools in the graph.

    Returns:
        Positions, ascending, of the tools to add, and `twins` of `Graph`.
    """
    absent = np.setdiff1d(np.arange(len(marks)), present)
    # Sorted by mark, tools with the same code are neighbours, those in the graph first.
    positions = np.concatenate([present, absent]).astype(np.intp)
    positions = positions[np.argsort(marks[positions], kind="stable")]
    ordered = marks[positions]
    place_among_twins = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    left_out = positions[place_among_twins >= MAX_TWINS]
    twins = np.flatnonzero(np.isin(marks, marks[left_out]))
    twins = twins[np.argsort(marks[twins], kind="stable")]
    return np.setdiff1d(absent, left_out), np.stack([marks[twins], twins])


def _sort_by_sides(codes: Codes) -> npt.NDArray[np.intp]:
    """Return positions in an order in which near tools are neighbours, so that a graph of them is built faster.

    A tool is compared with tools near to it. If these were added just before, their rows are still in the processor's
    cache. A rough order is enough: each of the first `MAX_SIDES` components of a code is above its median or not. These
    bits, the first component's highest, are a number, by which the positions are sorted.
    """
    if not len(codes):
        return np.empty(0, dtype=np.intp)
    first = codes[:, :MAX_SIDES]
    bits = first > np.median(first, axis=0)
    values = 1 << np.arange(first.shape[1])[::-1]  # of the bits, the highest first
    return np.argsort(bits @ values, kind="stable")


def _add_codes(graph: Any, codes: Codes, count_threads: CountThreads) -> None:
    """Add codes to a graph under its next keys."""
    for start in range(0, len(codes), ADDED_BATCH):
        batch = codes[start : start + ADDED_BATCH]
        first = len(graph)
        graph.add(np.arange(first, first + len(batch)), batch, threads=count_threads())


def _reach_all(
    graph: Any, keyed: Positions, make_codes: MakeCodes, count_threads: CountThreads
) -> tuple[npt.NDArray[np.uint8], Positions]:
    """Add tools that cannot be found a second time, until no edge or search would find more.

    Lost are tools that no walk along the edges reaches, missed are those that a search for themselves does not find.
    Of tools with the same code, one is added, and no code a third time.

    Returns:
        `content` and `keyed` of `Graph`.
    """
    entered = {bytes(graph.ndim)}  # codes that were added again; the code of zeros is near to nothing
    missed = _find_missed(graph, keyed, make_codes, count_threads)
    while True:
        content = np.frombuffer(graph.save() or b"", dtype=np.uint8)
        lost = np.union1d(_find_lost(content, keyed), missed) if len(keyed) else missed
        codes = {code.tobytes(): position for code, position in zip(make_codes(lost), lost, strict=True)}
        chosen = np.array([position for code, position in codes.items() if code not in entered], dtype=np.intp)
        if not len(chosen):
            return content, keyed
        entered |= codes.keys()
        _add_codes(graph, make_codes(chosen), lambda: 1)
        keyed = np.concatenate([keyed, chosen.astype(np.int32)])


def _find_missed(
    graph: Any, keyed: Positions, make_codes: MakeCodes, count_threads: CountThreads
) -> npt.NDArray[np.intp]:
    """Return the positions of the tools that a search for themselves misses.

    At first a sample is searched for. If few of it are missed, they are the result; else all tools are searched for.
    """
    positions = np.unique(keyed[keyed >= 0]).astype(np.intp)
    if not len(positions):
        return positions
    graph.expansion_search = CHECK_BREADTH

    def select_missed(some: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        codes = make_codes(some)
        nearest_distances = graph.search(codes, 1, threads=count_threads()).distances.reshape(len(some))
        own_distances = 1 - np.square(codes, dtype=np.float32).sum(axis=1)  # usearch's "ip": 1 - the inner product
        missed: npt.NDArray[np.intp] = some[nearest_distances > own_distances]
        return missed

    sample = positions[:: -(-len(positions) // MAX_SAMPLED_TOOLS)]
    missed = select_missed(sample)
    if len(sample) == len(positions) or len(missed) <= MAX_MISSED_SHARE * len(sample):
        return missed
    starts = range(0, len(positions), BATCH)
    return np.concatenate([select_missed(positions[start : start + BATCH]) for start in starts])


def _find_lost(content: npt.NDArray[np.uint8], keyed: Positions) -> npt.NDArray[np.intp]:
    """Return the positions of the tools that no walk from the entry of a graph reaches by any of their keys.

    Args:
        content: the bytes of the graph.
        keyed: as in `Graph`: for each key the position of its tool; -1: the tool is gone, and not looked for.
    """
    edges = _Edges(content)
    is_reached = np.zeros(edges.n_nodes + 1, dtype=np.bool_)
    is_reached[-1] = True  # stands for places without an edge
    reached = np.array([edges.entry])
    for level in range(edges.highest, -1, -1):  # what is reached on one level is an entry to the next
        slots, neighbours = edges.read_level(level)
        front = reached
        while len(front):
            is_reached[front] = True
            is_next = np.zeros(len(is_reached), dtype=np.bool_)
            is_next[neighbours[np.searchsorted(slots, front)]] = True
            front = np.flatnonzero(is_next & ~is_reached)
        reached = np.flatnonzero(is_reached[:-1])
    positions = keyed[edges.read_keys()]
    return np.setdiff1d(positions[positions >= 0], positions[reached]).astype(np.intp)


class _Edges:
    """Reads the edges from the bytes of a graph: version 2 of usearch's form, in this order.

    1. The rows: their number and their length, 4 bytes each, and the rows themselves.
    2. `DESCRIPTION_BYTES` that describe them. They begin with `MAGIC`.
    3. Five numbers of 8 bytes: nodes, neighbours of a node, the same on the lowest level, the highest level, the entry.
    4. The level of each node, 2 bytes.
    5. The nodes: a head (`NODE_HEAD_BYTES`: key and level), and for each level from the lowest on the number of the
       node's neighbours and places for as many as it can have, `SLOT_BYTES` each.

    Attributes:
        n_nodes: how many nodes there are. A node is known by its place among them, its *slot*.
        highest: the highest level.
        entry: the slot from which every walk begins, on the highest level.
    """

    def __init__(self, content: npt.NDArray[np.uint8]) -> None:
        """Read the description.

        Raises:
            StoreError: if the bytes have another form.
        """
        n_rows, n_bytes = content[:8].view("<u4").tolist()
        description = 8 + n_rows * n_bytes
        magic = content[description : description + len(MAGIC)].tobytes()
        start = description + DESCRIPTION_BYTES
        levels = start + 5 * 8
        numbers = content[start:levels].copy().view("<u8").tolist()
        self.n_nodes, n_upper, n_lowest, self.highest, self.entry = numbers
        self._widths = n_lowest, n_upper  # places for neighbours on the lowest level, and on each other one
        self._lowest_bytes, self._upper_bytes = (SLOT_BYTES * (1 + width) for width in self._widths)
        first = levels + 2 * self.n_nodes
        self._content, self._levels = content, content[levels:first].copy().view("<i2").astype(np.int64)
        ends = first + np.cumsum(NODE_HEAD_BYTES + self._lowest_bytes + self._levels * self._upper_bytes)
        if magic != MAGIC or self.n_nodes != n_rows or not n_rows or ends[-1] != len(content):
            raise StoreError("This version of usearch writes graphs in a new form. Run  pip install 'usearch>=2.26,<3'")
        self._starts = np.concatenate([[first], ends[:-1]])

    def read_keys(self) -> npt.NDArray[np.int64]:
        """Return the key of each node."""
        return self._read(self._starts, n_bytes=8).view("<i8")[:, 0]

    def read_level(self, level: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint32]]:
        """Return the slots on a level, ascending, and their neighbours there, filled up with the number of nodes."""
        slots = np.flatnonzero(self._levels >= level)
        width, n_bytes, skipped = self._widths[0], self._lowest_bytes, NODE_HEAD_BYTES
        if level > 0:
            width, n_bytes = self._widths[1], self._upper_bytes
            skipped += self._lowest_bytes + (level - 1) * self._upper_bytes
        numbers = self._read(self._starts[slots] + skipped, n_bytes).view("<u4")
        neighbours = numbers[:, 1:]
        neighbours[np.arange(width) >= numbers[:, :1]] = self.n_nodes
        return slots, neighbours

    def _read(self, starts: npt.NDArray[np.int64], n_bytes: int) -> npt.NDArray[np.uint8]:
        """Return so many bytes from each start, `(len(starts), n_bytes)`."""
        rows = np.empty((len(starts), n_bytes), dtype=np.uint8)
        for first in range(0, len(starts), BATCH):
            part = slice(first, first + BATCH)
            rows[part] = self._content[starts[part, None] + np.arange(n_bytes)]
        return rows


def open_graph(content: npt.NDArray[np.uint8], n_components: int, n_keys: int) -> Any:
    """Open the bytes of a graph without copying them.

    Raises:
        StoreError: if `content` is no graph over vectors of `n_components` with `n_keys` tools.
    """
    graph = import_usearch().Index.restore(content.data, view=True)
    if graph is None or graph.ndim != n_components or len(graph) != n_keys:
        raise StoreError(DAMAGED)
    return graph


def import_usearch() -> ModuleType:
    """Import the package of the graph so that onnxruntime can still be imported after it.

    usearch brings a C++ library of its own that numbers the parts of its locale. The system's C++ library, which
    onnxruntime uses, would take over these numbers, and end the process. So the system's comes first.
    """
    if "usearch" not in sys.modules and "onnxruntime" not in sys.modules and find_spec("onnxruntime") is not None:
        try:
            ctypes.CDLL("libstdc++.so.6")._ZNSt6locale7classicEv()  # std::locale::classic()
        except (OSError, AttributeError):  # another system
            importlib.import_module("onnxruntime")
    return require("usearch.index", "scale")


def _make_graph(projection: Projection) -> Any:
    """Make an empty graph for the codes of a projection. Inner products order them as cosines would."""
    return import_usearch().Index(
        ndim=projection.components.shape[1],
        metric="ip",
        dtype="i8",
        connectivity=CONNECTIVITY,
        expansion_add=EXPANSION_ADD,
        enable_key_lookups=False,
    )
