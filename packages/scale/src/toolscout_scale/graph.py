"""The graph of `ann`: which directions of the vectors it stores, how it is built, and how it grows.

The graph (HNSW, package usearch) stores the first principal components of each vector as 8-bit integers, the *code* of
the tool. All codes have the same scale and nearly the same length, so an inner product orders them as a cosine would,
at two thirds of the time. usearch knows a code by its *key*: the number of codes that were added before it.

Threads that add tools at the same time overwrite each other's edges, and a tool without edges to it cannot be found. So
the edges of a new graph are followed from its entry, and a tool that they do not reach is added once more, under a
second key. Some other tools are hard to find, because only far tools have edges to them. So a sample of the tools is
searched for, or all of them if many of the sample are missed; a tool that a search for its own code misses is added
once more too.

Tools with the same code are *twins*. The graph contains at most `MAX_TWINS` of them, because more would have edges only
to each other. The other twins are found through one of these (`Graph.find_twins`).
"""

from __future__ import annotations

import ctypes
import importlib
import math
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
MIN_SQUARE_SHARE: Final = 0.85  # of the squared lengths of all vectors, which the components in the graph must reach
COMPONENTS_STEP: Final = 32  # the number of components is a multiple of it: 32 of 8 bits fill a register of 256 bits
CLIPPED_SHARE: Final = 0.001  # of all components, the largest ones: they are clipped, so that the others are finer
MAX_SCALED_ROWS: Final = 20_000  # rows from which the scale is estimated
MAX_SIDES: Final = 10  # components by which tools are sorted before they are added; see `_sort_by_sides`
MAX_TWINS: Final = 4  # tools with the same code in the graph
MORE_TWINS: Final = 16  # twins of each code that are compared besides the `k` wanted; twins can differ a little
TWINS_PER_TOOL: Final = 2  # twins that are compared for each tool that the graph returns, on average
HASH_FACTOR: Final = -0x61C8864680B583EB  # component i of a code is multiplied by its power i + 1 in the code's hash
ADDED_BATCH: Final = 8_192  # tools that are added before the number of threads is chosen again
BATCH: Final = 65_536  # rows that are projected, hashed, searched or read at once: it bounds the memory for them
MAX_SAMPLED_TOOLS: Final = 4_000  # tools of a new graph that are searched for at first
MAX_MISSED_SHARE: Final = 0.001  # of this sample; if more are missed, all tools are searched for
CHECK_BREADTH: Final = 256  # candidates of such a search; with fewer, some tools of any large graph are missed
MAX_CHANGED_SHARE: Final = 0.1  # of the keys; if more tools are new or gone, the graph is built anew
MAGIC: Final = b"usearch\x02\x00"
DESCRIPTION_BYTES: Final = 64
NODE_HEAD_BYTES: Final = 10
SLOT_BYTES: Final = 4
DAMAGED: Final = "The stored graph of the index is damaged. Run  toolscout doctor --repair"

Vectors = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.int64]
CountThreads = Callable[[], int]
MakeCodes = Callable[[npt.NDArray[np.intp]], Codes]  # positions of tools → their codes


class Graph(NamedTuple):
    """A graph as arrays.

    Attributes:
        content: the bytes of usearch's graph.
        position_of_key: `(keys,)`, the position of the tool with each key; -1: the tool is gone.
        code_hashes: `(tools,)`, a number for each tool's code, equal for equal codes.
        twins: `(2, n)`, code hash and position of each tool with a code that more than `MAX_TWINS` tools have; ordered
            by hash, then by position.
    """

    content: npt.NDArray[np.uint8]
    position_of_key: Positions
    code_hashes: Hashes
    twins: Hashes

    @classmethod
    def from_arrays(cls, arrays: Arrays, n_tools: int) -> Self:
        """Make the graph from the arrays of an index file, which has other arrays too.

        Raises:
            KeyError: if one of the four is not in the file.
            StoreError: if their types, shapes or positions do not fit a graph of `n_tools` tools.
        """
        graph = cls(arrays["graph"], arrays["keyed"], arrays["marks"], arrays["twins"])
        for array, expected_type, expected_shape in (
            (graph.position_of_key, np.int32, (graph.position_of_key.size,)),
            (graph.code_hashes, np.int64, (n_tools,)),
            (graph.twins, np.int64, (2, graph.twins.size // 2)),
        ):
            if array.dtype != expected_type or array.shape != expected_shape:
                raise StoreError(DAMAGED)
        _, twin_positions = graph.twins
        for positions, lowest in ((graph.position_of_key, -1), (twin_positions, 0)):
            if len(positions) and not lowest <= positions.min() <= positions.max() < n_tools:
                raise StoreError(DAMAGED)
        return graph

    def arrays(self) -> dict[str, Array]:
        """Return the graph as arrays, under their names in an index file."""
        return {"graph": self.content, "keyed": self.position_of_key, "marks": self.code_hashes, "twins": self.twins}

    def find_twins(self, positions: npt.NDArray[np.intp], k: int, mask: Mask | None) -> npt.NDArray[np.intp]:
        """Find the twins of tools at some positions of the graph. Those of the first tool come first.

        Of each code, the first `k + MORE_TWINS` visible tools are enough: twins score nearly the same, and equal scores
        are ordered by id. Once there are `TWINS_PER_TOOL` twins for each given tool, further codes are left out.
        """
        twin_hashes, twin_positions = self.twins
        code_hashes = self.code_hashes[positions]
        # The twins of each given tool are `twin_positions[first:end]`.
        firsts = np.searchsorted(twin_hashes, code_hashes, "left")
        ends = np.searchsorted(twin_hashes, code_hashes, "right")
        has_twins = firsts < ends
        distinct_ranges = dict.fromkeys(zip(firsts[has_twins].tolist(), ends[has_twins].tolist(), strict=True))
        chosen = [twin_positions[:0]]  # there may be no twins to join
        n_left = TWINS_PER_TOOL * len(positions)
        for first, end in distinct_ranges:
            if n_left <= 0:
                break
            twins = twin_positions[first:end]
            if mask is not None:
                twins = twins[mask[twins]]
            twins = twins[: k + MORE_TWINS]
            chosen.append(twins)
            n_left -= len(twins)
        return np.concatenate(chosen).astype(np.intp)


class Projection:
    """Maps vectors to their codes: the 8-bit components that a graph stores.

    Attributes:
        components: `(dim, n)`, orthonormal columns: the directions that are stored.
        scale: a component times this, rounded, is its 8-bit value.
    """

    def __init__(self, components: Vectors, scale: float) -> None:
        """Take the attributes."""
        self.components, self.scale = components, scale

    @classmethod
    def of(cls, vectors: Vectors, products: npt.NDArray[np.float64]) -> Self:
        """Choose the principal directions of vectors, until they have `MIN_SQUARE_SHARE` of the squared lengths.

        `products` is the mean of the vectors' outer products, `(dim, dim)`.
        """
        # An eigenvalue is the mean squared length of the vectors in its direction. The lowest comes first.
        eigenvalues, directions = np.linalg.eigh(products)
        shares = np.cumsum(eigenvalues[::-1]) / max(eigenvalues.sum(), np.finfo(np.float64).tiny)
        n_needed = int(np.searchsorted(shares, MIN_SQUARE_SHARE)) + 1
        n_rounded = math.ceil(n_needed / COMPONENTS_STEP) * COMPONENTS_STEP
        highest_first = directions[:, ::-1]
        components = np.ascontiguousarray(highest_first[:, : min(n_rounded, vectors.shape[1])], dtype=np.float32)
        step = 1 + len(vectors) // MAX_SCALED_ROWS
        sample = _normalise(vectors[::step] @ components)
        largest = float(np.quantile(np.abs(sample), 1 - CLIPPED_SHARE)) or 1.0  # 0 if the vectors are zeros
        return cls(components, LEVELS / largest)

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Make the projection from the arrays of an index file, which has other arrays too.

        Raises:
            KeyError: if the file lacks `components` or `scale`.
        """
        return cls(arrays["components"], float(arrays["scale"][0]))

    def arrays(self) -> dict[str, Array]:
        """Return the projection as arrays, under their names in an index file."""
        return {"components": self.components, "scale": np.array([self.scale])}

    def make_codes(self, vectors: Vectors) -> Codes:
        """Return the codes of vectors, `(n, components)`.

        The components are scaled to length 1 before they are rounded, so all codes have nearly the same length.
        """
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
    """The graph of an earlier index, which grows by the tools that are new.

    Tools that are gone stay in the graph, but their keys lead to no position. Tools with the same code that were not in
    the graph take their places, so that each code has as many tools as in a new graph.

    Attributes:
        projection: of the earlier index.
        position_of_key: for each key of the earlier graph, the position of its tool in the new index; -1: it is gone.
    """

    def __init__(self, arrays: Arrays, earlier_positions: npt.NDArray[np.int64]) -> None:
        """Match the tools of the new index with those in the graph of an earlier one.

        Args:
            arrays: of the earlier index.
            earlier_positions: `(tools,)`, the position in the earlier index of each new one's tool; -1: it is new.

        Raises:
            StoreError: if the arrays are damaged.
        """
        n_earlier = len(arrays["vectors"])
        self._earlier = Graph.from_arrays(arrays, n_earlier)
        self.projection = Projection.from_arrays(arrays)
        kept = np.flatnonzero(earlier_positions >= 0)
        self._new = np.flatnonzero(earlier_positions < 0)
        # Earlier position → new one. One more value, at -1, is for the keys of tools that were gone before.
        new_positions = np.full(n_earlier + 1, -1, dtype=np.int32)
        new_positions[earlier_positions[kept]] = kept
        self.position_of_key = new_positions[self._earlier.position_of_key]
        self._code_hashes = np.empty(len(earlier_positions), dtype=np.int64)
        self._code_hashes[kept] = self._earlier.code_hashes[earlier_positions[kept]]

    @property
    def is_worthwhile(self) -> bool:
        """Whether few tools are new or gone. If many are, a grown graph would find less than one that is built anew."""
        n_gone = int((self.position_of_key < 0).sum())
        return n_gone + len(self._new) <= MAX_CHANGED_SHARE * len(self.position_of_key)

    def grow(self, vectors: Vectors, count_threads: CountThreads) -> Graph:
        """Add the new tools, and return the graph. `vectors` are those of all tools of the new index."""

        def make_codes(positions: npt.NDArray[np.intp]) -> Codes:
            return self.projection.make_codes(vectors[positions])

        graph = _make_graph(self.projection)
        graph.load(self._earlier.content.tobytes())
        if len(graph) != len(self.position_of_key):
            raise StoreError(DAMAGED)
        self._code_hashes[self._new] = _hash_codes(make_codes(self._new))
        present = np.unique(self.position_of_key[self.position_of_key >= 0])
        added, twins = _limit_twins(self._code_hashes, present)
        _add_codes(graph, make_codes(added), count_threads)
        position_of_key = np.concatenate([self.position_of_key, added.astype(np.int32)])
        content, position_of_key = _reach_all(graph, position_of_key, make_codes, count_threads)
        return Graph(content, position_of_key, self._code_hashes, twins)


def build_graph(vectors: Vectors, projection: Projection, count_threads: CountThreads) -> Graph:
    """Build the graph of vectors.

    Of more than `MAX_TWINS` tools with the same code, only the first are added. `count_threads` returns how many
    threads add the next batch.
    """
    codes = projection.make_codes(vectors)
    code_hashes = _hash_codes(codes)
    added, twins = _limit_twins(code_hashes, np.empty(0, dtype=np.int32))
    added = added[_sort_by_sides(codes[added])]
    graph = _make_graph(projection)
    _add_codes(graph, codes[added], count_threads)
    position_of_key = added.astype(np.int32)
    content, position_of_key = _reach_all(graph, position_of_key, lambda positions: codes[positions], count_threads)
    return Graph(content, position_of_key, code_hashes, twins)


def _hash_codes(codes: Codes) -> Hashes:
    """Return a number for each code, `(n,)`. Different codes hardly ever have the same number."""
    factors = np.cumprod(np.full(codes.shape[1], HASH_FACTOR, dtype=np.int64))  # its powers, modulo 2 ** 64
    code_hashes = np.empty(len(codes), dtype=np.int64)
    for start in range(0, len(codes), BATCH):
        code_hashes[start : start + BATCH] = codes[start : start + BATCH].astype(np.int64) @ factors
    return code_hashes


def _limit_twins(code_hashes: Hashes, present: Positions) -> tuple[npt.NDArray[np.intp], Hashes]:
    """Choose the tools to add to a graph: of each code the first ones, until the graph has `MAX_TWINS` of the code.

    Args:
        code_hashes: of all tools.
        present: positions of the tools that are in the graph already.

    Returns:
        Positions, ascending, of the tools to add; and `twins` of `Graph`.
    """
    absent = np.setdiff1d(np.arange(len(code_hashes)), present)
    # Sorted by hash, tools with the same code are neighbours, those in the graph first.
    positions = np.concatenate([present, absent]).astype(np.intp)
    positions = positions[np.argsort(code_hashes[positions], kind="stable")]
    sorted_hashes = code_hashes[positions]
    first_of_code = np.searchsorted(sorted_hashes, sorted_hashes)
    n_twins_before = np.arange(len(sorted_hashes)) - first_of_code
    left_out = positions[n_twins_before >= MAX_TWINS]
    twin_positions = np.flatnonzero(np.isin(code_hashes, code_hashes[left_out]))
    twin_positions = twin_positions[np.argsort(code_hashes[twin_positions], kind="stable")]
    return np.setdiff1d(absent, left_out), np.stack([code_hashes[twin_positions], twin_positions])


def _sort_by_sides(codes: Codes) -> npt.NDArray[np.intp]:
    """Return positions in an order in which near tools are neighbours: a graph is built faster, and finds a bit more.

    When a tool is added, it is compared with tools near to it. If these were added just before, their rows are still in
    the processor's cache. A rough order is enough: each of the first `MAX_SIDES` components is above its median or not,
    which gives one bit each. Tools are sorted by the number that these bits make, the first component the highest bit.
    """
    if not len(codes):
        return np.empty(0, dtype=np.intp)
    components = codes[:, :MAX_SIDES]
    bits = components > np.median(components, axis=0)
    bit_values = 1 << np.arange(components.shape[1])[::-1]
    return np.argsort(bits @ bit_values, kind="stable")


def _add_codes(graph: Any, codes: Codes, count_threads: CountThreads) -> None:
    """Add codes to a graph under the next keys: the first new key is the number of codes that the graph has."""
    for start in range(0, len(codes), ADDED_BATCH):
        batch = codes[start : start + ADDED_BATCH]
        first = len(graph)
        graph.add(np.arange(first, first + len(batch)), batch, threads=count_threads())


def _reach_all(
    graph: Any, position_of_key: Positions, make_codes: MakeCodes, count_threads: CountThreads
) -> tuple[npt.NDArray[np.uint8], Positions]:
    """Add tools that cannot be found once more, under new keys.

    A tool is *lost* if no walk along the edges reaches it, and *missed* if a search for its own code does not find it.
    New edges can replace others, so this goes on until all lost codes have been added again. Of tools with the same
    code, one is added.

    Returns:
        `content` and `position_of_key` of `Graph`.
    """
    added_again = {bytes(graph.ndim)}  # the code of zeros is never added again, because nothing is near to it
    missed = _find_missed(graph, position_of_key, make_codes, count_threads)
    while True:
        content = np.frombuffer(graph.save() or b"", dtype=np.uint8)
        unfound = missed
        if len(position_of_key):  # a graph without keys has no entry to walk from
            unfound = np.union1d(missed, _find_lost(content, position_of_key))
        position_of_code = {
            code.tobytes(): position for code, position in zip(make_codes(unfound), unfound, strict=True)
        }
        new_positions = [position for code, position in position_of_code.items() if code not in added_again]
        if not new_positions:
            return content, position_of_key
        added_again |= position_of_code.keys()
        chosen = np.array(new_positions, dtype=np.intp)
        _add_codes(graph, make_codes(chosen), count_threads=lambda: 1)  # one thread overwrites no edges
        position_of_key = np.concatenate([position_of_key, chosen.astype(np.int32)])


def _find_missed(
    graph: Any, position_of_key: Positions, make_codes: MakeCodes, count_threads: CountThreads
) -> npt.NDArray[np.intp]:
    """Return the positions of the tools that a search for their own code misses.

    First a sample of the tools is searched for. If few of them are missed, these are the result; else all tools are
    searched for.
    """
    positions = np.unique(position_of_key[position_of_key >= 0]).astype(np.intp)
    if not len(positions):
        return positions
    graph.expansion_search = CHECK_BREADTH

    def select_missed(searched: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        codes = make_codes(searched)
        nearest_distances = graph.search(codes, 1, threads=count_threads()).distances.reshape(len(searched))
        own_distances = 1 - np.square(codes, dtype=np.float32).sum(axis=1)  # usearch's "ip": 1 - the inner product
        # A tool with the same code, or a nearer one, counts as found too.
        missed: npt.NDArray[np.intp] = searched[nearest_distances > own_distances]
        return missed

    step = math.ceil(len(positions) / MAX_SAMPLED_TOOLS)
    sample = positions[::step]
    missed = select_missed(sample)
    if len(sample) == len(positions) or len(missed) <= MAX_MISSED_SHARE * len(sample):
        return missed
    starts = range(0, len(positions), BATCH)
    return np.concatenate([select_missed(positions[start : start + BATCH]) for start in starts])


def _find_lost(content: npt.NDArray[np.uint8], position_of_key: Positions) -> npt.NDArray[np.intp]:
    """Return the positions of the tools that no walk from the entry of a graph reaches, by any of their keys.

    The arguments are those of `Graph`. Tools that are gone are not looked for.
    """
    edges = _Edges(content)
    # For each slot, whether it is reached. The last value stands for "no neighbour" (`read_level`): not to be visited.
    is_reached = np.zeros(edges.n_nodes + 1, dtype=np.bool_)
    is_reached[-1] = True
    reached_slots = np.array([edges.entry])
    for level in range(edges.highest, -1, -1):  # the slots reached on one level are the entries to the next
        slots, neighbours = edges.read_level(level)
        frontier = reached_slots
        while len(frontier):
            is_reached[frontier] = True
            is_next = np.zeros(len(is_reached), dtype=np.bool_)
            is_next[neighbours[np.searchsorted(slots, frontier)]] = True
            frontier = np.flatnonzero(is_next & ~is_reached)
        reached_slots = np.flatnonzero(is_reached[:-1])
    position_of_slot = position_of_key[edges.read_keys()]
    return np.setdiff1d(position_of_slot[position_of_slot >= 0], position_of_slot[reached_slots]).astype(np.intp)


class _Edges:
    """Reads the edges from the bytes of a graph: version 2 of usearch's format, in this order.

    1. The rows: their number and their length, 4 bytes each, and the rows themselves.
    2. `DESCRIPTION_BYTES` that describe the graph. They begin with `MAGIC`.
    3. Five numbers of 8 bytes: how many nodes there are; how many neighbours a node can have, and how many on the
       lowest level; the highest level; the entry.
    4. The level of each node, 2 bytes.
    5. The nodes: a head (`NODE_HEAD_BYTES`: key and level), and for each level from the lowest on the number of the
       node's neighbours and room for as many as it can have, `SLOT_BYTES` each.

    Attributes:
        n_nodes: how many nodes there are. The file refers to a node by its index among them, its *slot*.
        highest: the highest level.
        entry: the slot from which every walk begins, on the highest level.
    """

    def __init__(self, content: npt.NDArray[np.uint8]) -> None:
        """Read the description.

        Raises:
            StoreError: if the bytes have another form.
        """
        n_rows, n_row_bytes = content[:8].view("<u4").tolist()
        description_start = 8 + n_rows * n_row_bytes
        numbers_start = description_start + DESCRIPTION_BYTES
        levels_start = numbers_start + 5 * 8
        numbers = content[numbers_start:levels_start].copy().view("<u8").tolist()
        self.n_nodes, self._upper_width, self._lowest_width, self.highest, self.entry = numbers
        nodes_start = levels_start + 2 * self.n_nodes
        self._content = content
        self._levels = content[levels_start:nodes_start].copy().view("<i2").astype(np.int64)
        # Bytes of a node on a level: the number of neighbours, and room for them.
        self._lowest_bytes = SLOT_BYTES * (1 + self._lowest_width)
        self._upper_bytes = SLOT_BYTES * (1 + self._upper_width)
        node_ends = nodes_start + np.cumsum(NODE_HEAD_BYTES + self._lowest_bytes + self._levels * self._upper_bytes)
        has_magic = content[description_start : description_start + len(MAGIC)].tobytes() == MAGIC
        if not (has_magic and n_rows == self.n_nodes and n_rows > 0 and node_ends[-1] == len(content)):
            raise StoreError("This version of usearch writes graphs in a new form. Run  pip install 'usearch>=2.26,<3'")
        self._node_starts = np.concatenate([[nodes_start], node_ends[:-1]])

    def read_keys(self) -> npt.NDArray[np.int64]:
        """Return the key of each node, by slot."""
        return self._read(self._node_starts, n_bytes=8).view("<i8")[:, 0]

    def read_level(self, level: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint32]]:
        """Return the slots on a level, ascending, and the slots of their neighbours on it, `(slots, width)`.

        A slot with fewer neighbours has `n_nodes`, which is no slot, in place of the missing ones.
        """
        slots = np.flatnonzero(self._levels >= level)
        if level == 0:
            width, n_bytes, n_skipped = self._lowest_width, self._lowest_bytes, NODE_HEAD_BYTES
        else:
            width, n_bytes = self._upper_width, self._upper_bytes
            n_skipped = NODE_HEAD_BYTES + self._lowest_bytes + (level - 1) * self._upper_bytes
        numbers = self._read(self._node_starts[slots] + n_skipped, n_bytes).view("<u4")
        n_neighbours, neighbours = numbers[:, :1], numbers[:, 1:]
        is_missing = np.arange(width) >= n_neighbours
        neighbours[is_missing] = self.n_nodes
        return slots, neighbours

    def _read(self, starts: npt.NDArray[np.int64], n_bytes: int) -> npt.NDArray[np.uint8]:
        """Return the `n_bytes` bytes from each start on, `(len(starts), n_bytes)`."""
        rows = np.empty((len(starts), n_bytes), dtype=np.uint8)
        for first in range(0, len(starts), BATCH):
            batch = slice(first, first + BATCH)
            rows[batch] = self._content[starts[batch, None] + np.arange(n_bytes)]
        return rows


def open_graph(content: npt.NDArray[np.uint8], n_components: int, n_keys: int) -> Any:
    """Open the bytes of a graph without copying them.

    Raises:
        StoreError: if `content` is not a graph of `n_keys` codes with `n_components` components.
    """
    graph = import_usearch().Index.restore(content.data, view=True)
    if graph is None or graph.ndim != n_components or len(graph) != n_keys:
        raise StoreError(DAMAGED)
    return graph


def import_usearch() -> ModuleType:
    """Import the package usearch in a way that lets onnxruntime be imported later.

    usearch brings a C++ library of its own that numbers the parts of its locale. The system's C++ library, which
    onnxruntime uses, would take over these numbers, and end the process. So the system's library is loaded first.
    """
    if "usearch" not in sys.modules and "onnxruntime" not in sys.modules and find_spec("onnxruntime") is not None:
        try:
            ctypes.CDLL("libstdc++.so.6")._ZNSt6locale7classicEv()  # std::locale::classic()
        except (OSError, AttributeError):  # another system: onnxruntime itself loads the library
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
