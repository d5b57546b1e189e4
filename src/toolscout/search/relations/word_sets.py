"""Keeps sets of words of many tools in flat arrays, and finds pairs of tools with similar sets.

A Python set for each tool would take gigabytes in a large catalogue, and comparing one pair after the other hours. Here
256 bits for each tool give an upper bound of the overlap of many pairs at once, and only the few pairs that may be
similar are compared word by word. The result is the same as of comparing all pairs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array

__all__ = ["PairSelector", "WordSets", "WordSetsBuilder", "pair_holders", "rank_by_rarity"]

Numbers = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]
"""Positions of sets, and so of tools; or positions in a flat array."""
PairSelector = Callable[[Places, Places], npt.NDArray[np.bool_]]
"""(positions of the first sets of the pairs, positions of the second), (n,) each → which pairs are selected, (n,)."""
MARK_LANES: Final = 4  # numbers of 64 bits for each set
PAIRS_BATCH: Final = 1 << 21  # pairs in memory at once
ROWS_BATCH: Final = 1 << 16  # sets or pairs that are worked on at once
_BIT_COUNTS: Final = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


class WordSetsBuilder:
    """Collects the sets of words of tools one by one. Several builders may share the numbers of words."""

    def __init__(self, numbers: dict[str, int]) -> None:
        """Begin without sets. `numbers`: word → number; new words are added to it."""
        self.numbers = numbers
        self._words, self._ends = array("i"), array("q", [0])

    def add(self, words: Iterable[str]) -> None:
        """Add the set of the next tool."""
        numbers = self.numbers
        self._words.extend({numbers.setdefault(word, len(numbers)) for word in words})
        self._ends.append(len(self._words))

    def build(self) -> WordSets:
        """Return the sets."""
        return WordSets(np.array(self._words, dtype=np.int32), np.array(self._ends, dtype=np.int64))


class WordSets:
    """Sets of words by number; set `i` is `words[ends[i]:ends[i + 1]]`.

    Attributes:
        words: numbers of words, no number twice in one set.
        ends: 0, and then where each set ends in `words`.
        sizes: number of words of each set.
    """

    def __init__(self, words: Numbers, ends: Places) -> None:
        """Take the arrays."""
        self.words, self.ends = words, ends
        self.sizes: Places = np.diff(ends)
        self._marks: npt.NDArray[np.uint64] | None = None  # cache of `_mark`

    @classmethod
    def of(cls, sets: Iterable[Iterable[str]]) -> WordSets:
        """Build the object from sets of words."""
        builder = WordSetsBuilder({})
        for words in sets:
            builder.add(words)
        return builder.build()

    def __len__(self) -> int:
        return len(self.sizes)

    def read(self, place: int) -> frozenset[int]:
        """Return the set at a position, as numbers of words."""
        return frozenset(self.words[self.ends[place] : self.ends[place + 1]].tolist())

    def renumber(self, numbers: Numbers) -> WordSets:
        """Return the sets with `numbers[old]` in place of each number, ascending in each set."""
        keys = (self.list_owners() << 32) + numbers[self.words]  # a key sorts by set, and then by number
        keys.sort()
        return WordSets((keys & 0xFFFFFFFF).astype(np.int32), self.ends)

    def take(self, places: Places) -> WordSets:
        """Return the sets at some positions."""
        sizes = self.sizes[places]
        return WordSets(self.words[_expand(self.ends[places], sizes)], np.concatenate([[0], np.cumsum(sizes)]))

    @classmethod
    def join(cls, tables: Sequence[WordSets]) -> WordSets:
        """Return the sets of several objects, which share the numbers of words, one object after the other."""
        sizes = np.concatenate([table.sizes for table in tables])
        words = np.concatenate([table.words for table in tables])
        return cls(words, np.concatenate([[0], np.cumsum(sizes)]))

    def list_owners(self) -> Places:
        """Return for each entry of `words` the position of its set."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.sizes)

    def find_holders(self, word: int) -> npt.NDArray[np.bool_]:
        """Return for each set whether it has a word, `(n,)`."""
        holders = np.searchsorted(self.ends, np.flatnonzero(self.words == word), side="right") - 1
        has_word = np.zeros(len(self), dtype=np.bool_)
        has_word[holders] = True
        return has_word

    def compute_checksums(self) -> npt.NDArray[np.uint64]:
        """Return a checksum of each set, `(n,)`: the sum of random numbers of its words.

        Sets with different words hardly ever have the same checksum.
        """
        n_words = int(self.words.max(initial=-1)) + 1
        values = np.random.default_rng(0).integers(0, 2**63, n_words, dtype=np.uint64)
        sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(values[self.words], dtype=np.uint64)])
        return np.diff(sums[self.ends])  # modulo 2^64

    def may_overlap(self, ones: Places, others: Places, least: float) -> npt.NDArray[np.bool_]:
        """Tell for each pair of sets whether their Jaccard overlap may reach `least`. False is certain.

        `ones` and `others` are positions of sets, `(n,)` each; the result is `(n,)`. For each bit in which the marks of
        two sets differ, at least one word is in only one of the sets. This bounds the number of shared words.
        """
        if least <= 0:
            return np.ones(len(ones), dtype=np.bool_)
        marks = self._mark()
        total = self.sizes[ones] + self.sizes[others]
        max_shared = (total - _count_bits(marks[ones] ^ marks[others])) / 2
        min_shared = least * (total - max_shared)  # overlap = shared / (total - shared)
        return max_shared >= min_shared * (1 - 1e-9)  # a little lower, as rounding must exclude no pair

    def measure_overlap(self, ones: Places, others: Places) -> npt.NDArray[np.float64]:
        """Return the Jaccard overlap, 0 to 1, of each pair of sets; all arguments and the result are `(n,)`."""
        overlaps = np.empty(len(ones), dtype=np.float64)
        for start in range(0, len(ones), ROWS_BATCH):
            batch = slice(start, start + ROWS_BATCH)
            first, second = ones[batch], others[batch]
            # Each word becomes the key (number of its pair, word). A word of both sets gives the same key twice.
            (words, pairs), (other_words, other_pairs) = self._list_words(first), self._list_words(second)
            keys = np.concatenate([(pairs << 32) + words, (other_pairs << 32) + other_words])
            keys.sort()
            shared_keys = keys[1:][keys[1:] == keys[:-1]]
            n_shared = np.bincount(shared_keys >> 32, minlength=len(first))
            n_either = self.sizes[first] + self.sizes[second] - n_shared
            overlaps[batch] = np.divide(n_shared, n_either, out=np.zeros(len(first)), where=n_shared > 0)
        return overlaps

    def _list_words(self, places: Places) -> tuple[Numbers, Places]:
        """Return the words of the sets at `places`, one set after the other, and each word's index in `places`."""
        sizes = self.sizes[places]
        owners = np.repeat(np.arange(len(places), dtype=np.int64), sizes)
        return self.words[_expand(self.ends[places], sizes)], owners

    def _mark(self) -> npt.NDArray[np.uint64]:
        """Return 256 bits for each set, `(n, MARK_LANES)`. Each word sets one bit, which other words may set too."""
        if self._marks is None:
            self._marks = np.zeros((len(self), MARK_LANES), dtype=np.uint64)
            for start in range(0, len(self), ROWS_BATCH):
                ends = self.ends[start : start + ROWS_BATCH + 1]
                filled = np.flatnonzero(np.diff(ends))  # sets with words; `reduceat` cannot reduce the others
                if not len(filled):
                    continue
                words = self.words[ends[0] : ends[-1]]
                bits = np.uint64(1) << (words & 63).astype(np.uint64)
                for lane in range(MARK_LANES):
                    lane_bits = np.where(words >> 6 & (MARK_LANES - 1) == lane, bits, np.uint64(0))
                    merged = np.bitwise_or.reduceat(lane_bits, ends[filled] - ends[0])
                    self._marks[start + filled, lane] = merged
        return self._marks


def rank_by_rarity(sets: WordSets, numbers: Mapping[str, int]) -> WordSets:
    """Return the sets with the rank of each word in place of its number. The rarest word has rank 0; ties by the word.

    `numbers`: word → number, for all words of the sets.
    """
    frequency = np.bincount(sets.words, minlength=len(numbers)).tolist()
    ranks = np.empty(len(numbers), dtype=np.int32)
    ordered = sorted(numbers.items(), key=lambda entry: (frequency[entry[1]], entry[0]))
    ranks[[number for _, number in ordered]] = np.arange(len(numbers), dtype=np.int32)
    return sets.renumber(ranks)


def pair_holders(groups: Array, members: Places, most: int, select: PairSelector) -> Iterator[tuple[Places, Places]]:
    """Yield pairs of members that share a group, as (earlier members, later members), in batches.

    No pair comes twice. The pairs are ordered by the later and then the earlier member. A member is paired with the
    earliest `most` members of the group that come before it, so that the number of pairs does not grow with the square.

    Args:
        groups: the group of each entry; an entry puts one member into one group.
        members: the member of each entry, ascending; no member twice in one group.
        most: members of one group with which a member is paired, at most.
        select: (earlier, later) → which pairs to yield.
    """
    if not len(groups):
        return
    holders, starts, counts = _find_partners(groups, members, most)
    n_pairs = np.cumsum(counts)  # of all entries up to each
    start = 0
    while start < len(groups):
        n_done = n_pairs[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(n_pairs, n_done + PAIRS_BATCH)))
        # Entries of one member stay in one batch, so that a pair with two common groups is yielded once.
        end = int(np.searchsorted(members, members[min(end, len(members)) - 1], side="right"))
        batch = slice(start, end)
        earlier = holders[_expand(starts[batch], counts[batch])]
        later = np.repeat(members[batch], counts[batch])
        chosen = select(earlier, later)
        keys = np.unique((later[chosen] << 32) + earlier[chosen])  # both in one number, which sorts by the later one
        yield keys & 0xFFFFFFFF, keys >> 32
        start = end


def _find_partners(groups: Array, members: Places, most: int) -> tuple[Places, Places, Places]:
    """Return `holders`, `starts` and `counts`: entry i is paired with the `counts[i]` holders from `starts[i]` on."""
    # Sorted by group, the members of a group are neighbours, ascending. So the partners of an entry are the first
    # members of its group, up to the entry itself or up to `most`.
    order = np.argsort(groups, kind="stable")
    sorted_groups = groups[order]
    begins = np.flatnonzero(np.concatenate([[True], sorted_groups[1:] != sorted_groups[:-1]]))
    sorted_starts = np.repeat(begins, np.diff(np.append(begins, len(groups))))
    starts, counts = np.empty(len(groups), dtype=np.int64), np.empty(len(groups), dtype=np.int64)
    starts[order] = sorted_starts
    counts[order] = np.minimum(np.arange(len(groups)) - sorted_starts, most)
    return members[order], starts, counts


def _expand(starts: Places, counts: Places) -> Places:
    """Return for each i the `counts[i]` consecutive numbers from `starts[i]` on, all in one array."""
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(int(ends[-1]) if len(ends) else 0)


def _count_bits(marks: npt.NDArray[np.uint64]) -> Places:
    """Return for each row how many bits are set; numpy below 2.0 cannot count them itself."""
    counts = np.bitwise_count(marks) if hasattr(np, "bitwise_count") else _BIT_COUNTS[marks.view(np.uint8)]
    n_bits: Places = counts.sum(axis=1, dtype=np.int64)
    return n_bits
