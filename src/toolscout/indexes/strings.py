"""Tables of strings in flat arrays, which a process can map from a file without reading them.

`Strings` is a sequence that decodes a string only when the string is read. `StringIndex` finds the *places* of a
string in such a sequence, counted from 0, by its hash.
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
SURROGATES: Final = "surrogatepass"  # encodes a lone surrogate, so that one in an id raises no error


class Strings(Sequence[str]):
    """An immutable sequence of strings: string `i` is `text[ends[i]:ends[i + 1]]`, UTF-8.

    Some methods need a table whose strings ascend; they say so.
    """

    def __init__(self, text: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> None:
        """Take the bytes of all strings, and where each string ends, after a leading 0."""
        self._text, self._ends = text, ends

    @classmethod
    def of(cls, strings: Iterable[str]) -> Strings:
        """Build the table of strings, in their order."""
        encoded = [string.encode("utf-8", SURROGATES) for string in strings]
        ends = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)), out=ends[1:])
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), ends)

    @classmethod
    def from_arrays(cls, arrays: Arrays, name: str) -> Strings:
        """Read the table with a name from the arrays of a file, as `arrays` returned it.

        Raises:
            KeyError, ValueError: if the file has no table of that name, or a damaged one.
        """
        text, ends = arrays[f"{name}.text"], arrays[f"{name}.ends"]
        if text.dtype != np.uint8 or ends.dtype != np.int64 or ends.ndim != 1 or not len(ends):
            raise ValueError(f"expected a table of strings, found something else as {name}")
        if ends[0] != 0 or ends[-1] != len(text):
            raise ValueError(f"the table {name} is not complete")
        return cls(text, ends)

    def arrays(self, name: str) -> dict[str, Array]:
        """Return the arrays of this table, with names that begin with `name`."""
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
        """Decode the string at a place that exists."""
        return self._text[self._ends[number] : self._ends[number + 1]].tobytes().decode("utf-8", SURROGATES)

    def __iter__(self) -> Iterator[str]:
        """Decode all strings, faster than one by one: the whole table is copied once."""
        text, ends = self._text.tobytes(), self._ends.tolist()
        for start, end in itertools.pairwise(ends):
            yield text[start:end].decode("utf-8", SURROGATES)

    def __contains__(self, string: object) -> bool:
        """Tell whether an ascending table contains a string."""
        return isinstance(string, str) and self.find(string) is not None

    def __eq__(self, other: object) -> bool:
        """Compare with any sequence of strings, item by item."""
        if isinstance(other, Strings):
            return np.array_equal(self._ends, other._ends) and np.array_equal(self._text, other._text)
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]  # compared by content

    def find(self, string: str) -> int | None:
        """Return the place of a string in an ascending table, or None.

        Bisection works, because UTF-8 bytes have the same order as Python's strings.
        """
        place = bisect.bisect_left(self, string)
        return place if place < len(self) and self[place] == string else None


class StringIndex:
    """Finds the places of keys in the sequence that it was built of, by their 64-bit hashes."""

    def __init__(self, hashes: npt.NDArray[np.uint64], places: npt.NDArray[np.int32]) -> None:
        """Take the hashes of all keys, ascending, and the place of the key with each hash."""
        self._hashes, self._places = hashes, places
        # A memoryview of the hashes: it reads one number four times as fast as an array does, also an unaligned one.
        self._read_hashes: Sequence[int] = hashes.view(np.uint8).data.cast("Q") if len(hashes) else ()

    @classmethod
    def of(cls, keys: Iterable[str]) -> StringIndex:
        """Index a sequence of keys; the same key may be at several places."""
        hashes = np.fromiter(map(_hash, keys), dtype=np.uint64)
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        return cls(hashes[order], order)

    @classmethod
    def from_arrays(cls, arrays: Arrays, name: str) -> StringIndex:
        """Read the index with a name from the arrays of a file, as `arrays` returned it.

        Raises:
            KeyError, ValueError: if the file has no index of that name, or a damaged one.
        """
        hashes, places = arrays[f"{name}.hashes"], arrays[f"{name}.places"]
        if hashes.dtype != np.uint64 or places.dtype != np.int32 or hashes.shape != places.shape:
            raise ValueError(f"expected an index of strings, found something else as {name}")
        return cls(hashes, places)

    def arrays(self, name: str) -> dict[str, Array]:
        """Return the arrays of this index, with names that begin with `name`."""
        return {f"{name}.hashes": self._hashes, f"{name}.places": self._places}

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, key: str, read: Callable[[int], str]) -> list[int]:
        """Return the places of a key, ascending.

        Args:
            key: any string.
            read: returns the key at a place. It tells the key from others with the same hash.
        """
        key_hash, hashes = _hash(key), self._read_hashes
        row = bisect.bisect_left(hashes, key_hash)
        places = []
        while row < len(hashes) and hashes[row] == key_hash:
            place = int(self._places[row])
            if read(place) == key:
                places.append(place)
            row += 1
        return places


class Vocabulary:
    """Terms and their numbers: the first term has the number 0."""

    def __init__(self, terms: Strings, index: StringIndex) -> None:
        """Take the terms, in the order of their numbers, and their index."""
        self.terms, self._index = terms, index

    @classmethod
    def of(cls, terms: Iterable[str]) -> Vocabulary:
        """Number terms in their order."""
        table = Strings.of(terms)
        return cls(table, StringIndex.of(table))

    @classmethod
    def from_arrays(cls, arrays: Arrays, name: str) -> Vocabulary:
        """Read the vocabulary with a name from the arrays of a file, as `arrays` returned it.

        Raises:
            KeyError, ValueError: if the file has no vocabulary of that name, or a damaged one.
        """
        vocabulary = cls(Strings.from_arrays(arrays, name), StringIndex.from_arrays(arrays, name))
        if len(vocabulary.terms) != len(vocabulary._index):
            raise ValueError(f"the vocabulary {name} is not complete")
        return vocabulary

    def arrays(self, name: str) -> dict[str, Array]:
        """Return the arrays of this vocabulary, with names that begin with `name`."""
        return self.terms.arrays(name) | self._index.arrays(name)

    def __len__(self) -> int:
        return len(self.terms)

    @functools.cached_property
    def get(self) -> Callable[[str], int | None]:
        """A function that returns the number of a term, or None.

        With at most `MAX_CACHED_TERMS` terms, it looks in a dictionary of all terms. With more, it searches the table,
        and caches the last results.
        """
        if len(self.terms) <= MAX_CACHED_TERMS:
            return {term: number for number, term in enumerate(self.terms)}.get
        # A method would refer to `self`, which refers to the method. The mapped files of such a cycle would stay open
        # until the garbage collector runs, so this is a function of the module.
        find = functools.partial(_find_number, self.terms, self._index)
        return functools.lru_cache(MAX_CACHED_TERMS)(find)


def _find_number(terms: Strings, index: StringIndex, term: str) -> int | None:
    """Return the number of a term, or None; see `Vocabulary.get`."""
    numbers = index.find(term, terms.__getitem__)
    return numbers[0] if numbers else None


def _hash(string: str) -> int:
    """Return 64 bits that depend on the string alone, in every process."""
    return int.from_bytes(hashlib.blake2b(string.encode("utf-8", SURROGATES), digest_size=8).digest(), "little")
