"""Refuses useless synthetic queries: repeated or nearly repeated ones, names of tools, and texts of a test set."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from toolscout.home.catalogue.store import Catalogue
from toolscout.search.exact_names import Names
from toolscout.types import Search, Tool

__all__ = ["NearDuplicates", "Sieve", "normalise"]

SHINGLE_WORDS: Final = 3
NEAR_JACCARD: Final = 0.6
QUERY_WORDS: Final = (3, 150)


def normalise(text: str) -> str:
    """Keep letters and digits only, case folded, with single spaces."""
    return " ".join(re.sub(r"[\W_]+", " ", text.casefold()).split())


class NearDuplicates:
    """Holds texts by their runs of three words, and finds nearly equal ones (a Jaccard index of at least 0.6)."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts: dict[str, int] = {}  # normalised text → its number
        self._sizes: list[int] = []  # runs of each text
        self._holders: dict[tuple[str, ...], set[int]] = {}  # run → numbers of the texts that have it
        for text in texts:
            self.add(text)

    def __contains__(self, text: str) -> bool:
        """Return whether it holds the same text, apart from case, spacing and punctuation."""
        return normalise(text) in self._texts

    def add(self, text: str) -> None:
        """Add a text, unless it holds the same one."""
        key = normalise(text)
        if key in self._texts:
            return
        number = self._texts[key] = len(self._sizes)
        shingles = _shingles(key)
        self._sizes.append(len(shingles))
        for shingle in shingles:
            self._holders.setdefault(shingle, set()).add(number)

    def has_near_duplicate(self, text: str) -> bool:
        """Return whether it holds a text that shares most of its runs of words with this one.

        Near texts share at least 0.6 of their runs. So each holds one of the other's rarest runs, which few texts have.
        """
        shingles = _shingles(normalise(text))
        holders = sorted((self._holders.get(shingle, set()) for shingle in shingles), key=len)
        rarest = holders[: len(holders) - math.ceil(NEAR_JACCARD * len(holders) - 1e-9) + 1]
        candidates = set().union(*rarest)
        shared = Counter(number for group in holders for number in candidates & group)
        return any(
            count / (len(shingles) + self._sizes[number] - count) >= NEAR_JACCARD for number, count in shared.items()
        )


def _shingles(key: str) -> set[tuple[str, ...]]:
    words = key.split()
    return {tuple(words[start : start + SHINGLE_WORDS]) for start in range(max(1, len(words) - SHINGLE_WORDS + 1))}


class Sieve:
    """Accepts a query, or refuses it with a reason of one word.

    Reasons: `length`, `duplicate` (of an accepted query or an example), `near_duplicate`, `leak` (equal or nearly equal
    to a held-out text), `names_tool` (it names one of its tools, so that no search is needed).
    """

    def __init__(self, tools: Sequence[Tool], *, known: Iterable[str] = (), held_out: Iterable[str] = ()) -> None:
        """Prepare the checks.

        Args:
            tools: tools that a query must not name.
            known: texts that count as accepted queries.
            held_out: texts that no query may repeat.
        """
        self._accepted, self._held_out = NearDuplicates(known), NearDuplicates(held_out)
        self._names = Names(Catalogue.of(tools))

    def refuses(self, text: str, gold: Sequence[str]) -> str | None:
        """Return why a query is refused. None: it is accepted, and later queries must not repeat it."""
        if not QUERY_WORDS[0] <= len(text.split()) <= QUERY_WORDS[1]:
            return "length"
        if text in self._accepted:
            return "duplicate"
        if self._accepted.has_near_duplicate(text):
            return "near_duplicate"
        if text in self._held_out or self._held_out.has_near_duplicate(text):
            return "leak"
        [search] = self._names([Search(query=text, k=2 * len(self._names.catalogue))])
        if set(search.ids) & set(gold):
            return "names_tool"
        self._accepted.add(text)
        return None


def summarise_lengths(texts: Sequence[str]) -> Mapping[str, int]:
    """Return minimum, median, 90th percentile and maximum of the lengths in words."""
    counts = sorted(len(text.split()) for text in texts)
    if not counts:
        return {}
    quantiles = {"least": 0.0, "median": 0.5, "p90": 0.9, "most": 1.0}
    return {name: counts[round(quantile * (len(counts) - 1))] for name, quantile in quantiles.items()}
