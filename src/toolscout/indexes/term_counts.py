"""How often tools have the terms of a BM25 index. A build takes over those of tools that have not changed.

A score holds how rare the term is and how long the tools are, which any new tool changes. The counts do not change, so
a build that knows them reads the new tools alone and computes all scores again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing import Self  # new in Python 3.11

__all__ = ["TERM_COUNTS_FORMAT", "CountCodes", "EarlierTerms", "TermCounts"]

TERM_COUNTS_FORMAT: Final = "terms/1"
ODD_CODE: Final = 255  # stands for a count that is no small multiple of the step

Counts = npt.NDArray[np.float64]


class CountCodes(NamedTuple):
    """Counts in a byte each: as multiples of a step, with others apart.

    Attributes:
        codes: `(postings,)` uint8.
        odd: the counts with `ODD_CODE`, in their order.
    """

    codes: npt.NDArray[np.uint8]
    odd: Counts

    @classmethod
    def of(cls, counts: Counts, step: float) -> Self:
        """Encode counts, which are sums of the weights of fields; `step`: the smallest weight."""
        multiples = np.rint(counts / step)
        is_odd = (multiples * step != counts) | (multiples >= ODD_CODE)
        return cls(np.where(is_odd, ODD_CODE, multiples).astype(np.uint8), counts[is_odd])

    @classmethod
    def join(cls, parts: Sequence[CountCodes]) -> Self:
        """Return the counts of some parts, one after the other."""
        return cls(np.concatenate([part.codes for part in parts]), np.concatenate([part.odd for part in parts]))

    def decode(self, step: float) -> Counts:
        """Return the counts."""
        counts: Counts = self.codes.astype(np.float64) * step
        counts[self.codes == ODD_CODE] = self.odd
        return counts

    def reorder(self, order: npt.NDArray[np.intp]) -> Self:
        """Return the counts in another order."""
        codes = self.codes[order]
        places = np.flatnonzero(self.codes == ODD_CODE)
        odd = self.odd[np.searchsorted(places, order[codes == ODD_CODE])]
        return type(self)(codes, odd)


class TermCounts(NamedTuple):
    """What a later build takes over of a BM25 index, besides its postings.

    Attributes:
        counts: of each posting, in the order of `indexes.sparse.BM25`.
        step: see `CountCodes.of`.
        lengths: `(kinds of terms, tools, fields)`, number of words.
        n_terms: number of terms of each kind.
    """

    counts: CountCodes
    step: float
    lengths: npt.NDArray[np.int64]
    n_terms: Sequence[int]

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the counts as arrays."""
        return {
            "codes": self.counts.codes,
            "odd": self.counts.odd,
            "step": np.array([self.step]),
            "lengths": self.lengths.astype(np.int32),
            "n_terms": np.array(self.n_terms, dtype=np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Take the arrays of `arrays`."""
        codes = CountCodes(arrays["codes"], arrays["odd"])
        lengths = arrays["lengths"].astype(np.int64)
        return cls(codes, float(arrays["step"][0]), lengths, arrays["n_terms"].tolist())


class EarlierTerms:
    """The postings of an earlier index, of which those of tools that have not changed are taken over."""

    def __init__(
        self,
        places: npt.NDArray[np.int64],
        vocabulary: Sequence[str],
        postings: Mapping[str, npt.NDArray[Any]],
        counts: TermCounts,
    ) -> None:
        """Take over from an index.

        Args:
            places: `(tools,)`, for each tool of the new index its position in the earlier one; -1: it is read again.
            vocabulary: terms of the earlier index.
            postings: its arrays `indices` and `indptr`.
            counts: of the earlier index.
        """
        self.places, self._vocabulary, self._counts = places, vocabulary, counts
        self.kept_positions, self.new_positions = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
        self._indices, self._indptr = postings["indices"], postings["indptr"]
        self._positions = np.full(self._counts.lengths.shape[1], -1, dtype=np.int32)
        self._positions[places[self.kept_positions]] = self.kept_positions

    def list_pairs(self, kind: int) -> tuple[list[str], npt.NDArray[np.int32], npt.NDArray[np.int32], Counts]:
        """Return the terms of a kind that unchanged tools have, and for each pair its term, its tool and its count.

        The pairs are ordered by term, then by tool. Terms are numbered in the order of the list.
        """
        first = sum(self._counts.n_terms[:kind])
        last = first + self._counts.n_terms[kind]
        part = slice(int(self._indptr[first]), int(self._indptr[last]))
        codes = self._counts.counts.codes
        n_odd = int((codes[: part.start] == ODD_CODE).sum())
        taken = CountCodes(codes[part], self._counts.counts.odd[n_odd:][: int((codes[part] == ODD_CODE).sum())])
        tools = self._positions[self._indices[part]]
        terms = np.repeat(np.arange(last - first, dtype=np.int32), np.diff(self._indptr[first : last + 1]))
        chosen = tools >= 0
        is_used = np.zeros(last - first, dtype=np.bool_)
        is_used[terms[chosen]] = True
        numbers = (np.cumsum(is_used) - 1).astype(np.int32)
        vocabulary = [self._vocabulary[first + number] for number in np.flatnonzero(is_used).tolist()]
        return vocabulary, numbers[terms[chosen]], tools[chosen], taken.decode(self._counts.step)[chosen]

    def list_lengths(self, kind: int) -> npt.NDArray[np.int64]:
        """Return `(unchanged tools, fields)`, the number of words of the tools that are taken over."""
        lengths: npt.NDArray[np.int64] = self._counts.lengths[kind][self.places[self.kept_positions]]
        return lengths
