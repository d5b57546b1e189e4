"""Demotion: moves suspicious tools behind the others. `toolscout.recipes.builder` adds this stage to every recipe.

Tools that give orders to the model, stuffed tools, and copies of older tools come after all others. Tools of a younger
source yield to older tools that fit nearly as well in three cases: the source is scattered, they are nearly the same as
another hit of it, or the source already has its share of the answer (`toolscout.search.relations.similar`).

A tool keeps its place if the query contains its id or selects it with `select:`. So does a tool of a scattered source
whose name has the path to it (`urllib.parse.urlsplit`). A suspicious tool that the query names in another way is
returned last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.words import list_source_words, tokenize
from toolscout.search.exact_names import EXACT, holds_path, parse_selection
from toolscout.search.pipeline import Stage
from toolscout.search.relations.similar import Rivals
from toolscout.types import Explanation, Hit, Search

__all__ = ["Demote"]

SCATTERED_WEIGHT: Final = 0.35  # factor on the score of a tool of a scattered source
GROUP_WEIGHT: Final = 0.5  # factor on the score of the second and later of nearly identical tools
MAX_ANSWER_SHARE: Final = 0.6  # share of the answer that one younger source may have
MIN_OLDER_SCORE: Final = 0.85  # an older tool takes the place if it has this part of the score


class Demote(Stage):
    """Moves suspicious tools and copies to the end, and keeps younger sources within bounds."""

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits"})

    def __init__(
        self, suspicious: AbstractSet[str], rivals: Rivals | None = None, catalogue: Catalogue | None = None
    ) -> None:
        """Demote by these findings about a snapshot.

        Args:
            suspicious: ids of the tools that give orders to the model or are stuffed.
            rivals: near-duplicates of the snapshot; None: all its tools came at the same time.
            catalogue: the snapshot, which says what a caller may see; needed with rivals.
        """
        self.suspicious, self.rivals, self.catalogue = suspicious, rivals, catalogue
        oldest = rivals.oldest if rivals else ""
        self.younger = frozenset(source for source, added in (rivals.added if rivals else {}).items() if added > oldest)
        self.behind = suspicious | set(rivals.copies if rivals else ())

    def run(self, searches: Sequence[Search]) -> list[Search]:
        """Return the searches with their hits in the new order."""
        if not self.behind and not self.younger:
            return list(searches)
        return [self._reorder(search) for search in searches]

    def _reorder(self, search: Search) -> Search:
        """Return the search with demoted hits last, but those that the query names at the end of the first k."""
        if not self._has_demotable_hit(search.hits) or parse_selection(search.query) is not None:
            return search
        sources = self._find_named_sources(search.query, search.ids)
        front, named_last, last = self._divide(search, sources)
        if not front:
            return search
        if self.younger:
            front = self._limit_younger(front, search.k, sources)
        kept = max(0, search.k - len(named_last))  # so many of the others stay in the answer
        return msgspec.structs.replace(search, hits=_lower((*front[:kept], *named_last, *front[kept:], *last)))

    def _divide(self, search: Search, sources: AbstractSet[str]) -> tuple[list[Hit], list[Hit], list[Hit]]:
        """Return the hits that keep their place, those that come last in the answer, and those behind all others."""
        front: list[Hit] = []
        last: list[Hit] = []
        named_last: list[Hit] = []
        for hit in search.hits:
            exact = hit.why == EXACT
            if exact and hit.id.casefold() in search.query.casefold():
                front.append(hit)
            elif self._is_demoted(search, hit.id, sources) or (exact and self._is_doubtful_name(hit.id, sources)):
                (named_last if exact else last).append(hit)
            else:
                front.append(hit)
        return front, named_last, last

    def find_doubted(self, search: Search, ids: Sequence[str]) -> frozenset[str]:
        """Find the tools among `ids` that come last although the query has their name."""
        if not self.behind and not self.younger:
            return frozenset()
        sources = self._find_named_sources(search.query, ids)
        return frozenset(
            tool_id
            for tool_id in ids
            if self._is_demoted(search, tool_id, sources) or self._is_doubtful_name(tool_id, sources)
        )

    def _has_demotable_hit(self, hits: Sequence[Hit]) -> bool:
        if not self.behind.isdisjoint(hit.id for hit in hits):
            return True
        return bool(self.younger) and any(_source(hit.id) in self.younger for hit in hits)

    def _find_named_sources(self, query: str, ids: Iterable[str]) -> frozenset[str]:
        """Return the sources of these tools that the query names; their tools are not held back."""
        candidates = set(map(_source, ids)) if self.rivals else set()
        words = set(tokenize(query)) if candidates else set()
        return frozenset(source for source in candidates if (name := list_source_words(source)) and name <= words)

    def _is_demoted(self, search: Search, tool_id: str, sources: AbstractSet[str]) -> bool:
        if tool_id not in self.behind:
            return False
        if tool_id in self.suspicious:
            return True
        original = self.rivals.copies.get(tool_id) if self.rivals else None
        return original is not None and _source(tool_id) not in sources and self._is_visible(search, original)

    def _is_doubtful_name(self, tool_id: str, sources: AbstractSet[str]) -> bool:
        """Tell whether a tool may be named by chance: a source with tools of all kinds has a name for every word."""
        return self._is_scattered(tool_id, sources) and not holds_path(tool_id.partition("/")[2])

    def _is_scattered(self, tool_id: str, sources: AbstractSet[str]) -> bool:
        source = _source(tool_id)
        return self.rivals is not None and source in self.rivals.scattered and source not in sources

    def _is_visible(self, search: Search, tool_id: str) -> bool:
        mask = self.catalogue.mask(search.visible) if self.catalogue else None
        if mask is None or self.catalogue is None:
            return True
        position = self.catalogue.position(tool_id)
        return position is not None and bool(mask[position])

    def _limit_younger(self, hits: list[Hit], k: int, sources: AbstractSet[str]) -> list[Hit]:
        """Return the hits in an order that keeps younger sources within their bounds."""
        assert self.rivals is not None
        exact = [hit for hit in hits if hit.why == EXACT]
        ranked = [hit for hit in hits if hit.why != EXACT]
        if ranked:
            ranked = self._weigh(ranked, sources)
            ranked = self._share_out(ranked, max(0, k - len(exact)), k, sources)
        ordered = [*exact, *ranked]
        places = {hit.id: place for place, hit in enumerate(ordered)}
        for hit in [hit for hit in ordered if hit.id in self.rivals.twins]:
            original = self.rivals.twins[hit.id]
            if places.get(original, -1) > places[hit.id] and _source(hit.id) not in sources:
                ordered.remove(hit)
                ordered.insert(next(n for n, ranked in enumerate(ordered) if ranked.id == original) + 1, hit)
                places = {ranked.id: place for place, ranked in enumerate(ordered)}
        return ordered

    def _weigh(self, hits: list[Hit], sources: AbstractSet[str]) -> list[Hit]:
        """Return the hits ordered by their weighted scores above the lowest score."""
        assert self.rivals is not None
        floor = hits[-1].score
        seen: set[str] = set()
        weighed = []
        for hit in hits:
            worth = SCATTERED_WEIGHT if self._is_scattered(hit.id, sources) else 1.0
            group = self.rivals.groups.get(hit.id)
            if group is not None:
                worth *= GROUP_WEIGHT if group in seen and _source(hit.id) not in sources else 1.0
                seen.add(group)
            score = hit.score if worth == 1.0 else floor + worth * (hit.score - floor)
            weighed.append(hit if worth == 1.0 else msgspec.structs.replace(hit, score=score))
        return sorted(weighed, key=lambda hit: -hit.score)

    def _share_out(self, hits: list[Hit], places: int, k: int, sources: AbstractSet[str]) -> list[Hit]:
        """Return the hits with older tools that fit nearly as well among the first places."""
        max_hits_per_source = math.ceil(MAX_ANSWER_SHARE * k)
        floor = hits[-1].score
        counts: Counter[str] = Counter()
        first: list[Hit] = []
        left = list(hits)
        while left and len(first) < places:
            chosen = 0
            source = _source(left[0].id)
            if source in self.younger and source not in sources and counts[source] >= max_hits_per_source:
                least = floor + MIN_OLDER_SCORE * (left[0].score - floor)
                older = (n for n, hit in enumerate(left) if hit.score >= least and _source(hit.id) not in self.younger)
                chosen = next(older, 0)
            hit = left.pop(chosen)
            counts[_source(hit.id)] += 1
            first.append(hit)
        return [*first, *left]

    def explain(self, search: Search, tool_id: str) -> Explanation | None:
        """Return why the tool is demoted, or None if it is not."""
        if not self._moves(search, tool_id):
            return None
        if tool_id in self.suspicious:
            note = f"its text gives orders or was written for the search: see  toolscout show {tool_id}"
        else:
            assert self.rivals is not None
            note = f"it copies {self.rivals.copies[tool_id]}, which was there before it"
        return Explanation(self.name, None, None, note)

    def _moves(self, search: Search, tool_id: str) -> bool:
        """Tell whether the search moves a tool behind the others, or would if it were a hit."""
        if tool_id not in self.behind or parse_selection(search.query) is not None:
            return False
        sources = self._find_named_sources(search.query, (*search.ids, tool_id))
        if tool_id not in search.ids:
            return self._is_demoted(search, tool_id, sources)
        front = [hit.id for hit in self._divide(search, sources)[0]]
        return bool(front) and tool_id not in front

    def note(self, search: Search) -> str:
        """Return how many hits are demoted."""
        count = sum(hit.id in self.behind for hit in search.hits)
        return f"{count} suspicious or copied, behind the others" if count else ""


def _source(tool_id: str) -> str:
    return tool_id.partition("/")[0]


def _lower(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Return the hits in this order, with scores that never rise."""
    lowered: list[Hit] = []
    highest = math.inf
    for hit in hits:
        score = hit.score if hit.score <= highest else highest - 1e-6
        lowered.append(hit if score == hit.score else msgspec.structs.replace(hit, score=score))
        highest = score
    return tuple(lowered)
