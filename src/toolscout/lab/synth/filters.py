"""Refuses useless synthetic queries: repeated or nearly repeated ones, names of tools, and texts of a test set."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from toolscout.catalogue.store import Catalogue
from toolscout.search.exact_names import Names
from toolscout.search.pipeline import Stage
from toolscout.types import Search, Tool

__all__ = ["Near", "Sieve", "normalise"]

SHINGLE_WORDS: Final = 3
NEAR_JACCARD: Final = 0.6
QUERY_WORDS: Final = (3, 150)


def normalise(text: str) -> str:
    """Keep letters and digits only, case folded, with single spaces."""
    return " ".join(re.sub(r"[\W_]+", " ", text.casefold()).split())


class Near:
    """Texts by their runs of three words; finds one that shares most of them (Jaccard of at least 0.6)."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts: dict[str, int] = {}
        self._sizes: list[int] = []
        self._holders: dict[tuple[str, ...], set[int]] = {}
        for text in texts:
            self.add(text)

    def __contains__(self, text: str) -> bool:
        """Whether the same text is there, ignoring case, spacing and punctuation."""
        return normalise(text) in self._texts

    def add(self, text: str) -> None:
        """Take in a text."""
        key = normalise(text)
        if key in self._texts:
            return
        number = self._texts[key] = len(self._sizes)
        shingles = _shingles(key)
        self._sizes.append(len(shingles))
        for shingle in shingles:
            self._holders.setdefault(shingle, set()).add(number)

    def near(self, text: str) -> bool:
        """Whether a text that shares most of its runs of words is there.

        A near text shares at least 0.6 of these runs. So it holds one of the rarest ones, whose holders are few.
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
    """Lets a query through, or says in one word why not.

    Reasons: `length`, `duplicate` (of a query or an example), `near_duplicate`, `leak` (a held-out set has it, or
    nearly), `names_tool` (it names one of its tools, so that no search is needed).
    """

    def __init__(self, tools: Sequence[Tool], *, known: Iterable[str] = (), held_out: Iterable[str] = ()) -> None:
        """Take the tools, texts that count as written already, and texts that must not come up."""
        self._near, self._held_out = Near(known), Near(held_out)
        self._names: Stage = Names(Catalogue.of(tools))

    def refuses(self, text: str, gold: Sequence[str]) -> str | None:
        """Return the reason against a text; None: the text is accepted and counts as written."""
        if not QUERY_WORDS[0] <= len(text.split()) <= QUERY_WORDS[1]:
            return "length"
        if text in self._near:
            return "duplicate"
        if self._near.near(text):
            return "near_duplicate"
        if text in self._held_out or self._held_out.near(text):
            return "leak"
        [search] = self._names([Search(query=text)])
        if set(search.ids) & set(gold):
            return "names_tool"
        self._near.add(text)
        return None


def lengths(texts: Sequence[str]) -> Mapping[str, int]:
    """Return minimum, median, 90th percentile and maximum of the lengths in words."""
    counts = sorted(len(text.split()) for text in texts)
    if not counts:
        return {}
    at = {"least": 0.0, "median": 0.5, "p90": 0.9, "most": 1.0}
    return {name: counts[round(place * (len(counts) - 1))] for name, place in at.items()}
