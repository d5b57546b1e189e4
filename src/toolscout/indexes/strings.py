"""Tables of strings in flat arrays, which a process can map from a file without reading them.

`Strings` is a sequence of strings that decodes one when it is asked for. `StringIndex` finds the places of a string by
its hash.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array, Arrays

__all__ = ["StringIndex", "Strings", "Vocabulary"]

MAX_CACHED_TERMS: Final = 50_000
SURROGATES: Final = "surrogatepass"  # a lone surrogate in an id must not end a search


class Strings(Sequence[str]):
    """An immutable sequence of strings: string `i` is `text[ends[i]:ends[i + 1]]`, UTF-8.

    The order of UTF-8 bytes is that of Python's strings, so `bisect` works on ascending strings.
    """

    def __init__(self, text: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> None:
        """Take the arrays of `arrays`."""
        self._text, self._ends = text, ends

    @classmethod
    def of(cls, strings: Iterable[str]) -> Strings:
        """Build the table of some strings."""
        encoded = [string.encode("utf-8", SURROGATES) for string in strings]
        ends = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)), out=ends[1:])
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), ends)

    @classmethod
    def from_arrays(cls, arrays: Arrays, name: str) -> Strings:
        """Take the table of that name out of some arrays.

        Raises:
            KeyError, ValueError: if it is not there, or no table.
        """
        text, ends = arrays[f"{name}.text"], arrays[f"{name}.ends"]
        if text.dtype != np.uint8 or ends.dtype != np.int64 or ends.ndim != 1 or not len(ends):
            raise ValueError(f"expected a table of strings, found something else as {name}")
        if ends[0] != 0 or ends[-1] != len(text):
            raise ValueError(f"the table {name} is not complete")
        return cls(text, ends)

    def arrays(self, name: str) -> dict[str, Array]:
        """Return the arrays of this table, under its name."""
        return {f"{name}.text": self._text, f"{name}.ends": self._ends}

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self._read(number) for number in range(*place.indices(len(self)))]
        number = int(place) + len(self) if place < 0 else int(place)
        if not 0 <= number < len(self):
            raise IndexError(f"expected a place below {len(self)}, found {place}")
        return self._read(number)

    def _read(self, number: int) -> str:
        return self._text[self._ends[number] : self._ends[number + 1]].tobytes().decode("utf-8", SURROGATES)

    def __iter__(self) -> Iterator[str]:
        text, ends = self._text.tobytes(), self._ends.tolist()
        for start, end in itertools.pairwise(ends):
            yield text[start:end].decode("utf-8", SURROGATES)

    def __contains__(self, string: object) -> bool:
        """Tell whether an ascending table holds a string."""
        return isinstance(string, str) and self.find(string) is not None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Strings):
            return np.array_equal(self._ends, other._ends) and np.array_equal(self._text, other._text)
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]  # compared by content

    def find(self, string: str) -> int | None:
        """Return the place of a string in an ascending table, or None."""
        place = bisect.bisect_left(self, string)
        return place if place < len(self) and self[place] == string else None


class StringIndex:
    """Finds the places of keys: 64-bit hashes, ascending, and the place of each."""

    def __init__(self, hashes: npt.NDArray[np.uint64], places: npt.NDArray[np.int32]) -> None:
        """Take the arrays of `arrays`."""
        self._hashes, self._places = hashes, places
        # One number is read four times as fast as from an array, and in a mapped file it need not be aligned.
        self._read_hashes: Sequence[int] = hashes.view(np.uint8).data.cast("Q") if len(hashes) else ()

    @classmethod
    def of(cls, keys: Iterable[str]) -> StringIndex:
        """Index keys by their places; they may repeat."""
        hashes = np.fromiter(map(_hash, keys), dtype=np.uint64)
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        return cls(hashes[order], order)

    @classmethod
    def from_arrays(cls, arrays: Arrays, name: str) -> StringIndex:
        """Take the index of that name out of some arrays.

        Raises:
            KeyError, ValueError: if it is not there, or no index.
        """
        hashes, places = arrays[f"{name}.hashes"], arrays[f"{name}.places"]
        if hashes.dtype != np.uint64 or places.dtype != np.int32 or hashes.shape != places.shape:
            raise ValueError(f"expected an index of strings, found something else as {name}")
        return cls(hashes, places)

    def arrays(self, name: str) -> dict[str, Array]:
        """Return the arrays of this index, under its name."""
        return {f"{name}.hashes": self._hashes, f"{name}.places": self._places}

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, key: str, read: Callable[[int], str]) -> list[int]:
        """Return the places of a key, ascending. `read` returns the key at a place, since hashes may collide."""
        number, hashes = _hash(key), self._read_hashes
        start = bisect.bisect_left(hashes, number)
        places = []
        while start < len(hashes) and hashes[start] == number:
            place = int(self._places[start])
            if read(place) == key:
                places.append(place)
            start += 1
        return places


Lookup = StringIndex  # renamed


class Vocabulary:
    """Terms and their numbers: the first term has the number 0."""

    def __init__(self, terms: Strings, lookup: StringIndex) -> None:
        """Take the terms and their index."""
        self.terms, self._lookup = terms, lookup

    @classmethod
    def of(cls, terms: Iterable[str]) -> Vocabulary:
        """Number terms in their order."""
        table = Strings.of(terms)
        return cls(table, StringIndex.of(table))

    @classmethod
    def from_arrays(cls, arrays: Arrays, name: str) -> Vocabulary:
        """Take the vocabulary of that name out of some arrays.

        Raises:
            KeyError, ValueError: if it is not there, or damaged.
        """
        vocabulary = cls(Strings.from_arrays(arrays, name), StringIndex.from_arrays(arrays, name))
        if len(vocabulary.terms) != len(vocabulary._lookup):
            raise ValueError(f"the vocabulary {name} is not complete")
        return vocabulary

    def arrays(self, name: str) -> dict[str, Array]:
        """Return the arrays of this vocabulary, under its name."""
        return self.terms.arrays(name) | self._lookup.arrays(name)

    def __len__(self) -> int:
        return len(self.terms)

    @functools.cached_property
    def get(self) -> Callable[[str], int | None]:
        """Returns the number of a term, or None. Not so many terms are read at once, others one by one."""
        if len(self.terms) <= MAX_CACHED_TERMS:
            return {term: number for number, term in enumerate(self.terms)}.get
        find = functools.partial(_find_number, self.terms, self._lookup)  # a method would keep the arrays alive
        return functools.lru_cache(MAX_CACHED_TERMS)(find)


def _find_number(terms: Strings, lookup: StringIndex, term: str) -> int | None:
    return next(iter(lookup.find(term, terms.__getitem__)), None)


def _hash(string: str) -> int:
    """Return 64 bits that depend on the string alone, in every process."""
    return int.from_bytes(hashlib.blake2b(string.encode("utf-8", SURROGATES), digest_size=8).digest(), "little")
