"""Words and pairs of words of a query as sparse features, and the little sparse algebra that learning from them needs.

A feature is known by the checksum of its words, so that a model holds no query in readable form.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from toolscout.arrays import Array, Checksums, Ints, Vectors
from toolscout.indexes.words import tokenize

__all__ = ["Bags", "Ngrams", "checksums"]

MIN_COUNT: Final = 2


def checksums(text: str) -> Checksums:
    """The distinct features of a text, ascending: its stems, and each two of them that follow one another."""
    words = tokenize(text)
    features = {*words, *(f"{one} {other}" for one, other in itertools.pairwise(words))}
    return np.array(sorted({zlib.crc32(feature.encode()) for feature in features}), dtype=np.uint32)


class Bags(NamedTuple):
    """Sparse rows: `indices[indptr[i]:indptr[i + 1]]` are the features of row i, ascending, `data` their weights."""

    indptr: Ints
    indices: Ints
    data: Vectors

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def take(self, rows: Ints) -> Bags:
        """Some of the rows, in the order asked for."""
        lengths = self.indptr[rows + 1] - self.indptr[rows]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(indptr[-1]) + np.repeat(self.indptr[rows] - indptr[:-1], lengths)
        return Bags(indptr, self.indices[places], self.data[places])

    def times(self, table: Vectors) -> Vectors:
        """The product with `table`, `(features, m)` → `(rows, m)`."""
        product = np.zeros((len(self), table.shape[1]), dtype=np.float32)
        filled = np.flatnonzero(np.diff(self.indptr))
        if filled.size:
            product[filled] = np.add.reduceat(table[self.indices] * self.data[:, None], self.indptr[filled])
        return product

    def block(self) -> tuple[Ints, Vectors]:
        """The features that occur, ascending, and the rows as a dense table over them, `(rows, occurring)`."""
        features, columns = np.unique(self.indices, return_inverse=True)
        table = np.zeros((len(self), len(features)), dtype=np.float32)
        table[np.repeat(np.arange(len(self)), np.diff(self.indptr)), columns] = self.data
        return features, table


class Ngrams:
    """The features that training queries share, and how rare each is.

    Attributes:
        keys: `(f,)` uint32, ascending: the checksum of each feature.
        rarity: `(f,)` float32: 1 + log(queries / queries that have it).
    """

    def __init__(self, keys: Checksums, rarity: Vectors) -> None:
        self.keys, self.rarity = keys, rarity

    @classmethod
    def of(cls, features: Sequence[Checksums]) -> Ngrams:
        """The features that at least two texts have; `features`: the `checksums` of each."""
        keys, counts = np.unique(np.concatenate(features), return_counts=True)
        kept = counts >= MIN_COUNT
        return cls(keys[kept], (1 + np.log(len(features) / counts[kept])).astype(np.float32))

    def bags(self, features: Sequence[Checksums]) -> Bags:
        """A unit row for each text, by its `checksums`; an empty one for a text without a known feature."""
        rows = [self._find_known(sums) for sums in features]
        weights = [self.rarity[row] for row in rows]
        units = [weight / np.sqrt(weight @ weight) for weight in weights if weight.size]
        indptr = np.cumsum([0, *(row.size for row in rows)])
        return Bags(indptr, np.concatenate([np.empty(0, np.int64), *rows]), _concatenate(units))

    def _find_known(self, sums: Checksums) -> Ints:
        places = np.searchsorted(self.keys, sums)
        inside = places < self.keys.size
        places, sums = places[inside], sums[inside]
        known: Ints = places[self.keys[places] == sums].astype(np.int64)
        return known


def _concatenate(parts: Sequence[Array]) -> Vectors:
    return np.concatenate([np.empty(0, np.float32), *parts]).astype(np.float32)
