"""Sparse features of a query (its words and pairs of adjacent words), and the sparse algebra that training needs.

A feature is stored as the checksum of its words, so a model holds no query in readable form.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from toolscout.arrays import Array, Checksums, Ints, Vectors
from toolscout.indexes.words import tokenize

__all__ = ["Bags", "Ngrams", "hash_features"]

MIN_FEATURE_QUERIES: Final = 2  # a feature of a single query teaches nothing about others


def hash_features(text: str) -> Checksums:
    """Return the distinct features of a text, ascending: its stems and its pairs of adjacent stems."""
    words = tokenize(text)
    features = {*words, *(f"{left} {right}" for left, right in itertools.pairwise(words))}
    return np.array(sorted({zlib.crc32(feature.encode()) for feature in features}), dtype=np.uint32)


class Bags(NamedTuple):
    """Sparse rows: `indices[indptr[i]:indptr[i + 1]]` are the features of row i, ascending, `data` their weights."""

    indptr: Ints
    indices: Ints
    data: Vectors

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def take(self, rows: Ints) -> Bags:
        """Select rows, in the order of `rows`."""
        lengths = self.indptr[rows + 1] - self.indptr[rows]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(indptr[-1]) + np.repeat(self.indptr[rows] - indptr[:-1], lengths)
        return Bags(indptr, self.indices[places], self.data[places])

    def multiply(self, table: Vectors) -> Vectors:
        """Multiply by `table`, `(features, m)` → `(rows, m)`."""
        product = np.zeros((len(self), table.shape[1]), dtype=np.float32)
        filled = np.flatnonzero(np.diff(self.indptr))
        if filled.size:
            product[filled] = np.add.reduceat(table[self.indices] * self.data[:, None], self.indptr[filled])
        return product

    def to_dense(self) -> tuple[Ints, Vectors]:
        """Return the features that occur, ascending, and the rows as a dense table over them, `(rows, occurring)`."""
        features, columns = np.unique(self.indices, return_inverse=True)
        table = np.zeros((len(self), len(features)), dtype=np.float32)
        table[np.repeat(np.arange(len(self)), np.diff(self.indptr)), columns] = self.data
        return features, table


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
        """Make a unit row for each text from its `hash_features`. A text without a known feature gets an empty row."""
        rows = [self._look_up(checksums) for checksums in features]
        weights = [self.rarity[row] for row in rows]
        units = [weight / np.sqrt(weight @ weight) for weight in weights if weight.size]
        indptr = np.cumsum([0, *(row.size for row in rows)])
        return Bags(indptr, np.concatenate([np.empty(0, np.int64), *rows]), _concatenate(units))

    def _look_up(self, checksums: Checksums) -> Ints:
        """Return the positions of the features that occur in `keys`."""
        places = np.searchsorted(self.keys, checksums)
        inside = places < self.keys.size
        places, checksums = places[inside], checksums[inside]
        matches: Ints = places[self.keys[places] == checksums].astype(np.int64)
        return matches


def _concatenate(parts: Sequence[Array]) -> Vectors:
    return np.concatenate([np.empty(0, np.float32), *parts]).astype(np.float32)
