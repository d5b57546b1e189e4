"""Sparse features of a query (its words and pairs of adjacent words), and the sparse algebra that training needs.

A feature is stored as the checksum of its words, so a model contains no query in readable form.

Sets of tools that were needed together (the scenes of COLT, arXiv:2405.16089) are sparse rows too, as classes for a
classifier: it learns which tools go together. Its probability for a tool is the sum over all sets that contain the
tool. A weighted geometric mean joins it with the probability from a classifier of tools ::

    p(tool | query) ∝ (p(tool | query) · (p(a set that contains the tool | query) + ε) ^ w) ^ (1 / (1 + w))
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from toolscout.arrays import Array, Arrays, Checksums, Ints, Places, Scores, Vectors
from toolscout.indexes.words import tokenize
from toolscout.rankers.declared import ArrayRule

__all__ = [
    "FEATURE_RULES",
    "SET_RULES",
    "SET_WEIGHT_GRID",
    "Bags",
    "Ngrams",
    "ToolSets",
    "declare_bags",
    "hash_features",
]

MIN_FEATURE_QUERIES: Final = 2  # a feature of a single query teaches nothing about others
SET_WEIGHT_GRID: Final = (0.0, 0.5, 1.0, 2.0, 4.0)
MAX_TOOL_SETS: Final = 4_000
SET_SMOOTHING: Final = 1e-3


def declare_bags(name: str, rows: str, entries: str, columns: str) -> dict[str, ArrayRule]:
    """Declare the arrays of `Bags` in a model.

    Args:
        name: the arrays are called `NAME.data` and so on.
        rows: name of the axis of rows, such as `queries`.
        entries: name of the axis of values that are not 0.
        columns: name of the axis of columns, such as `features`.
    """
    return {
        f"{name}.indptr": ArrayRule(f"{rows}+1", f"starts {entries}"),
        f"{name}.indices": ArrayRule(entries, f"places {columns}"),
        f"{name}.data": ArrayRule(entries),
    }


FEATURE_RULES: Final = {"keys": ArrayRule("features", "integers"), "rarity": ArrayRule("features")}
"""The arrays of `Ngrams` in a model."""
SET_RULES: Final = declare_bags("sets", "sets", "members", "tools")
"""The arrays of `ToolSets` in a model."""


def hash_features(text: str) -> Checksums:
    """Return the distinct features of a text, ascending: its stems and its pairs of adjacent stems."""
    words = tokenize(text)
    features = {*words, *(f"{left} {right}" for left, right in itertools.pairwise(words))}
    return np.array(sorted({zlib.crc32(feature.encode()) for feature in features}), dtype=np.uint32)


class Bags(NamedTuple):
    """Sparse rows, as in scipy's CSR format.

    `indices[indptr[i]:indptr[i + 1]]` are the columns of row i, ascending. The same slice of `data` has the weights.
    """

    indptr: Ints
    indices: Ints
    data: Vectors

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def take(self, rows: Ints) -> Bags:
        """Select rows, in the order of `rows`."""
        lengths = self.indptr[rows + 1] - self.indptr[rows]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        # new position of an entry → its old one: by row, the distance between where it begins in both
        places = np.arange(indptr[-1]) + np.repeat(self.indptr[rows] - indptr[:-1], lengths)
        return Bags(indptr, self.indices[places], self.data[places])

    def multiply(self, table: Vectors) -> Vectors:
        """Return the product with a table, `(columns, m)`: `(rows, m)`."""
        product = np.zeros((len(self), table.shape[1]), dtype=np.float32)
        filled = np.flatnonzero(np.diff(self.indptr))  # `reduceat` does not give 0 for an empty row
        if filled.size:
            product[filled] = np.add.reduceat(table[self.indices] * self.data[:, None], self.indptr[filled])
        return product

    def to_dense(self) -> tuple[Ints, Vectors]:
        """Return the columns that occur, ascending, and the rows as a dense table over them, `(rows, occurring)`."""
        occurring, positions = np.unique(self.indices, return_inverse=True)
        table = np.zeros((len(self), len(occurring)), dtype=np.float32)
        row_of_entry = np.repeat(np.arange(len(self)), np.diff(self.indptr))
        table[row_of_entry, positions] = self.data
        return occurring, table


class Ngrams:
    """Features that training queries share, with the rarity of each.

    Attributes:
        keys: `(f,)` uint32, ascending: checksums of the features.
        rarity: `(f,)` float32: 1 + log(queries / queries with the feature).
    """

    def __init__(self, keys: Checksums, rarity: Vectors) -> None:
        self.keys, self.rarity = keys, rarity

    @classmethod
    def of(cls, features: Sequence[Checksums]) -> Ngrams:
        """Keep the features that at least two texts have; `features`: the `hash_features` of each text."""
        keys, counts = np.unique(np.concatenate(features), return_counts=True)
        shared = counts >= MIN_FEATURE_QUERIES
        return cls(keys[shared], (1 + np.log(len(features) / counts[shared])).astype(np.float32))

    def make_bags(self, features: Sequence[Checksums]) -> Bags:
        """Make a row of length 1 for each text from its `hash_features`, weighted by rarity.

        A text without a known feature gets an empty row.
        """
        rows = [self._look_up(checksums) for checksums in features]
        rarities = [self.rarity[row] for row in rows]
        units = [weights / np.sqrt(weights @ weights) for weights in rarities if weights.size]
        indptr = np.cumsum([0, *(row.size for row in rows)])
        return Bags(indptr, np.concatenate([np.empty(0, np.int64), *rows]), _concatenate(units))

    def _look_up(self, checksums: Checksums) -> Ints:
        """Return the positions in `keys` of the checksums that are there, ascending."""
        places = np.searchsorted(self.keys, checksums)
        inside = places < self.keys.size  # a checksum above all keys has no position
        places, checksums = places[inside], checksums[inside]
        matches: Ints = places[self.keys[places] == checksums].astype(np.int64)
        return matches


def _concatenate(parts: Sequence[Array]) -> Vectors:
    """Concatenate arrays as float32; without any, return an empty one."""
    return np.concatenate([np.empty(0, np.float32), *parts]).astype(np.float32)


class ToolSets:
    """The distinct sets of tools that queries needed. It is empty if they are more than 4,000, or if each is one tool.

    Attributes:
        bags: the tools of each set, as sparse rows of ones.
    """

    def __init__(self, bags: Bags) -> None:
        """Index the sets by their tools, so that `join` can sum over the sets that contain a tool."""
        self.bags = bags
        order = np.argsort(bags.indices, kind="stable")
        # The sets that contain tool `_tools_in_sets[i]` begin at `_set_numbers[_starts[i]]`.
        self._set_numbers = np.repeat(np.arange(len(bags)), np.diff(bags.indptr))[order]
        self._tools_in_sets, self._starts = np.unique(bags.indices[order], return_index=True)

    def __len__(self) -> int:
        return len(self.bags)

    @classmethod
    def group(cls, gold: Sequence[Places]) -> tuple[ToolSets, Places]:
        """Group queries by their set of tools: return the sets, and the set number of each query, `(queries,)`.

        Args:
            gold: the tools of each query, ascending.

        Returns:
            Sets and set numbers. There are no sets if there would be more than `MAX_TOOL_SETS`, or if each has only one
            tool. Then the set numbers mean nothing.
        """
        numbers: dict[bytes, int] = {}  # the bytes of a set's array → its number, by first occurrence
        set_of = np.array([numbers.setdefault(tools.tobytes(), len(numbers)) for tools in gold], dtype=np.intp)
        sets = [np.frombuffer(tools, dtype=gold[0].dtype) for tools in numbers]
        if len(sets) > MAX_TOOL_SETS or max(map(len, sets)) == 1:
            sets = []
        indptr = np.cumsum([0, *map(len, sets)])
        bags = Bags(indptr, np.concatenate([np.empty(0, np.int64), *sets]), np.ones(indptr[-1], np.float32))
        return cls(bags), set_of

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that `from_arrays` reads."""
        return {f"sets.{name}": array for name, array in self.bags._asdict().items()}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> ToolSets:
        """Restore the sets from the arrays of a model."""
        return cls(Bags(*(arrays[f"sets.{name}"] for name in Bags._fields)))

    def join(self, tools: Scores, sets: Scores, weight: float) -> Scores:
        """Join the probabilities of tools and of sets by the formula in the docstring of this module.

        Args:
            tools: probabilities of the tools, `(n, tools)`.
            sets: probabilities of the sets, `(n, sets)`.
            weight: w.
        """
        if not len(self) or not weight:
            return tools
        by_set = np.zeros_like(tools)  # for each tool, the sum over the sets that contain it
        by_set[:, self._tools_in_sets] = np.add.reduceat(sets[:, self._set_numbers], self._starts, axis=1)
        joined = (tools * (by_set + SET_SMOOTHING) ** weight) ** (1 / (1 + weight))
        probabilities: Scores = joined / joined.sum(axis=1, keepdims=True)
        return probabilities
