"""Demotion: moves suspicious tools behind the others. `toolscout.recipes.builder` adds this stage to every recipe.

Tools that give orders to the model, stuffed tools, and copies of other tools come after all others. Twins come right
behind the tool that they may copy (`toolscout.search.relations.similar`). Tools of a hollow source, and tools whose
text mostly addresses the reader or claims a rank, must fit clearly better than others. When a source was added does
not count.

A tool keeps its place if the query contains its id or selects it with `select:`. Copies and tools of a hollow source
also do if the query names their source. A suspicious tool that the query names in another way is returned last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.words import list_source_words, tokenize
from toolscout.search.exact_names import EXACT, parse_selection
from toolscout.search.pipeline import Stage
from toolscout.search.relations.similar import Rivals
from toolscout.types import Answer, Explanation, Hit

__all__ = ["Demote"]

LIGHT_WEIGHT: Final = 0.35  # factor on the score of a tool of a hollow source, or with claims


class Demote(Stage):
    """Moves suspicious tools and copies to the end."""

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits"})

    def __init__(
        self,
        suspicious: AbstractSet[str],
        rivals: Rivals | None = None,
        catalogue: Catalogue | None = None,
        claimants: AbstractSet[str] = frozenset(),
    ) -> None:
        """Demote by these findings about a snapshot.

        Args:
            suspicious: ids of the tools that give orders to the model or are stuffed.
            rivals: near-duplicates of the snapshot; None: not known.
            catalogue: the snapshot, which says what a caller may see; needed with rivals.
            claimants: ids of the tools that mostly address the reader or claim a rank.
        """
        self.suspicious, self.rivals, self.catalogue = suspicious, rivals or Rivals(), catalogue
        self.claimants = claimants
        self.behind = suspicious | self.rivals.copies.keys()

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        """Return the searches with their hits in the new order."""
        return [self._reorder(search) for search in searches]

    def _reorder(self, search: Answer) -> Answer:
        """Return the search with demoted hits last, but those that the query names at the end of the first k."""
        if not any(map(self._may_demote, search.ids)) or parse_selection(search.query) is not None:
            return search
        sources = self._find_named_sources(search.query, search.ids)
        front, named_last, last = self._divide(search, sources)
        if not front:
            return search
        front = self._follow_originals(self._weigh(front, sources), sources)
        kept = max(0, search.k - len(named_last))  # so many of the others stay in the answer
        return msgspec.structs.replace(search, hits=_lower((*front[:kept], *named_last, *front[kept:], *last)))

    def _may_demote(self, tool_id: str) -> bool:
        rivals = self.rivals
        return any((tool_id in self.behind, tool_id in self.claimants, tool_id in rivals.twins)) or (
            _source(tool_id) in rivals.hollow
        )

    def _divide(self, search: Answer, sources: AbstractSet[str]) -> tuple[list[Hit], list[Hit], list[Hit]]:
        """Return the hits that keep their place, those that come last in the answer, and those behind all others."""
        front: list[Hit] = []
        last: list[Hit] = []
        named_last: list[Hit] = []
        for hit in search.hits:
            exact = hit.why == EXACT
            if exact and hit.id.casefold() in search.query.casefold():
                front.append(hit)
            elif self._is_doubted(search, hit.id, sources) if exact else self._is_demoted(search, hit.id, sources):
                (named_last if exact else last).append(hit)
            else:
                front.append(hit)
        return front, named_last, last

    def find_doubted(self, search: Answer, ids: Sequence[str]) -> frozenset[str]:
        """Find the tools among `ids` that come last although the query has their name."""
        sources = self._find_named_sources(search.query, ids)
        return frozenset(tool_id for tool_id in ids if self._is_doubted(search, tool_id, sources))

    def _find_named_sources(self, query: str, ids: Iterable[str]) -> frozenset[str]:
        """Return the sources of these tools that the query names; their tools are not held back."""
        candidates = {_source(tool_id) for tool_id in ids if self._may_demote(tool_id)}
        words = set(tokenize(query)) if candidates else set()
        return frozenset(source for source in candidates if (name := list_source_words(source)) and name <= words)

    def _is_demoted(self, search: Answer, tool_id: str, sources: AbstractSet[str]) -> bool:
        if tool_id in self.suspicious:
            return True
        original = self.rivals.copies.get(tool_id)
        return original is not None and _source(tool_id) not in sources and self._is_visible(search, original)

    def _is_doubted(self, search: Answer, tool_id: str, sources: AbstractSet[str]) -> bool:
        """Tell whether a tool that the query names comes last: a hollow source has a name for every word.

        Among tools of hollow sources alone the one that is named comes first, as everywhere.
        """
        if self._is_demoted(search, tool_id, sources):
            return True
        return self._is_hollow(tool_id, sources) and not all(self._is_hollow(id, sources) for id in search.ids)

    def _is_hollow(self, tool_id: str, sources: AbstractSet[str]) -> bool:
        return (source := _source(tool_id)) in self.rivals.hollow and source not in sources

    def _is_visible(self, search: Answer, tool_id: str) -> bool:
        mask = self.catalogue.mask(search.visible) if self.catalogue else None
        if mask is None or self.catalogue is None:
            return True
        position = self.catalogue.position(tool_id)
        return position is not None and bool(mask[position])

    def _weigh(self, hits: list[Hit], sources: AbstractSet[str]) -> list[Hit]:
        """Return the hits with the light ones ordered by their weighted scores above the lowest score."""
        floor = hits[-1].score
        weighed = [
            msgspec.structs.replace(hit, score=floor + LIGHT_WEIGHT * (hit.score - floor))
            if hit.why != EXACT and (hit.id in self.claimants or self._is_hollow(hit.id, sources))
            else hit
            for hit in hits
        ]
        return sorted(weighed, key=lambda hit: (hit.why != EXACT, -hit.score))

    def _follow_originals(self, hits: list[Hit], sources: AbstractSet[str]) -> list[Hit]:
        """Return the hits with each twin behind the tool that it may copy."""
        for hit in [hit for hit in hits if hit.id in self.rivals.twins and _source(hit.id) not in sources]:
            ids = [other.id for other in hits]
            original = self.rivals.twins[hit.id]
            if original in ids and ids.index(original) > ids.index(hit.id):
                hits.remove(hit)
                hits.insert(ids.index(original), hit)
        return hits

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        """Return why the tool is demoted, or None if it is not."""
        if not self._moves(search, tool_id):
            return None
        if tool_id in self.suspicious:
            note = f"its text gives orders or was written for the search: see  toolscout show {tool_id}"
        else:
            note = f"it copies {self.rivals.copies[tool_id]}"
        return Explanation(self.name, None, None, note)

    def _moves(self, search: Answer, tool_id: str) -> bool:
        """Tell whether the search moves a tool behind the others, or would if it were a hit."""
        if tool_id not in self.behind or parse_selection(search.query) is not None:
            return False
        sources = self._find_named_sources(search.query, (*search.ids, tool_id))
        if tool_id not in search.ids:
            return self._is_demoted(search, tool_id, sources)
        front = [hit.id for hit in self._divide(search, sources)[0]]
        return bool(front) and tool_id not in front

    def note(self, search: Answer) -> str:
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
