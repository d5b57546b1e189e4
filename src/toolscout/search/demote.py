"""Demotion: moves suspicious tools behind the others. `toolscout.recipes.builder` adds this stage to every recipe.

Suspicious tools (they give orders to the model, or are stuffed: written for the search) and copies of other tools come
after all others. Twins, which may be copies, come right behind the tool that they may copy. Tools of a hollow source,
which has many tools that say nothing but their names, must fit clearly better than others; so must tools whose text
mostly addresses the reader or claims a rank. `toolscout.search.relations.similar` finds copies, twins and hollow
sources. When a source was added does not count.

A tool keeps its place if the query contains its id or selects it with `select:`. Copies and tools of a hollow source
also keep it if the query names their source. A suspicious tool that the query names by its name alone is returned last.
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

LIGHT_WEIGHT: Final = 0.35  # factor on the score above the lowest, of a tool of a hollow source or with claims


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
        self.behind = suspicious | self.rivals.copies.keys()  # ids that come after all others

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        """Return the searches with their hits in the new order."""
        return [self._reorder(search) for search in searches]

    def _reorder(self, search: Answer) -> Answer:
        """Return the search with demoted hits last. Those that the query names are the last of the first k."""
        if not any(map(self._may_demote, search.ids)) or parse_selection(search.query) is not None:
            return search
        named_sources = self._find_named_sources(search.query, search.ids)
        front, named_last, last = self._divide(search, named_sources)
        if not front:
            return search
        front = self._follow_originals(self._weigh(front, named_sources), named_sources)
        n_front = max(0, search.k - len(named_last))  # so many of the others stay in the answer
        hits = (*front[:n_front], *named_last, *front[n_front:], *last)
        return msgspec.structs.replace(search, hits=_lower(hits))

    def _may_demote(self, tool_id: str) -> bool:
        """Tell whether there is any finding about a tool, so that it may have to move."""
        rivals = self.rivals
        is_rival = tool_id in rivals.twins or _source(tool_id) in rivals.hollow
        return is_rival or tool_id in self.behind or tool_id in self.claimants

    def _divide(self, search: Answer, named_sources: AbstractSet[str]) -> tuple[list[Hit], list[Hit], list[Hit]]:
        """Divide the hits into those that keep their place, the last ones of the answer, and those behind all others.

        The last ones of the answer are those that the query names, though not by their ids.
        """
        front: list[Hit] = []
        named_last: list[Hit] = []
        last: list[Hit] = []
        for hit in search.hits:
            is_named = hit.why == EXACT
            is_held_back = self._is_doubted if is_named else self._is_demoted
            if is_named and hit.id.casefold() in search.query.casefold():
                front.append(hit)
            elif is_held_back(search, hit.id, named_sources):
                (named_last if is_named else last).append(hit)
            else:
                front.append(hit)
        return front, named_last, last

    def find_doubted(self, search: Answer, ids: Sequence[str]) -> frozenset[str]:
        """Find the tools among `ids` that come last although the query has their name."""
        named_sources = self._find_named_sources(search.query, ids)
        return frozenset(tool_id for tool_id in ids if self._is_doubted(search, tool_id, named_sources))

    def _find_named_sources(self, query: str, ids: Iterable[str]) -> frozenset[str]:
        """Return those sources of demotable tools among `ids` that the query names: all words of the name are in it."""
        candidates = {_source(tool_id) for tool_id in ids if self._may_demote(tool_id)}
        words = set(tokenize(query)) if candidates else set()
        return frozenset(source for source in candidates if (name := list_source_words(source)) and name <= words)

    def _is_demoted(self, search: Answer, tool_id: str, named_sources: AbstractSet[str]) -> bool:
        """Tell whether a tool is suspicious, or a copy of a tool that the caller may see."""
        if tool_id in self.suspicious:
            return True
        original = self.rivals.copies.get(tool_id)
        return original is not None and _source(tool_id) not in named_sources and self._is_visible(search, original)

    def _is_doubted(self, search: Answer, tool_id: str, named_sources: AbstractSet[str]) -> bool:
        """Tell whether a tool comes last although the query names it.

        A tool of a hollow source does, because such a source has a tool for every word of a query. If all hits are of
        hollow sources, the named tool comes first, as everywhere.
        """
        if self._is_demoted(search, tool_id, named_sources):
            return True
        return self._is_hollow(tool_id, named_sources) and not all(
            self._is_hollow(other_id, named_sources) for other_id in search.ids
        )

    def _is_hollow(self, tool_id: str, named_sources: AbstractSet[str]) -> bool:
        """Tell whether a tool is of a hollow source that the query does not name."""
        return (source := _source(tool_id)) in self.rivals.hollow and source not in named_sources

    def _is_visible(self, search: Answer, tool_id: str) -> bool:
        """Tell whether the caller may see a tool. Without a catalogue, all tools count as visible."""
        mask = self.catalogue.mask(search.visible) if self.catalogue else None
        if mask is None or self.catalogue is None:
            return True
        position = self.catalogue.position(tool_id)
        return position is not None and bool(mask[position])

    def _weigh(self, hits: list[Hit], named_sources: AbstractSet[str]) -> list[Hit]:
        """Lower the scores of tools with claims or of hollow sources, and return all hits in their new order.

        `LIGHT_WEIGHT` applies to what a score exceeds the lowest one by, since scores may be negative. Tools that the
        query names stay first.
        """
        lowest = hits[-1].score
        weighed = [
            msgspec.structs.replace(hit, score=lowest + LIGHT_WEIGHT * (hit.score - lowest))
            if hit.why != EXACT and (hit.id in self.claimants or self._is_hollow(hit.id, named_sources))
            else hit
            for hit in hits
        ]
        return sorted(weighed, key=lambda hit: (hit.why != EXACT, -hit.score))

    def _follow_originals(self, hits: list[Hit], named_sources: AbstractSet[str]) -> list[Hit]:
        """Move each twin right behind the tool that it may copy, if it stands before it. Changes and returns `hits`."""
        for hit in [hit for hit in hits if hit.id in self.rivals.twins and _source(hit.id) not in named_sources]:
            ids = [other.id for other in hits]
            original = self.rivals.twins[hit.id]
            if original in ids and ids.index(original) > ids.index(hit.id):
                hits.remove(hit)
                hits.insert(ids.index(original), hit)  # without the hit, this is the place behind the original
        return hits

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        """Return why the tool is demoted, or None if it is not."""
        if not self._would_move(search, tool_id):
            return None
        if tool_id in self.suspicious:
            note = f"its text gives orders or was written for the search: see  toolscout show {tool_id}"
        else:
            note = f"it copies {self.rivals.copies[tool_id]}"
        return Explanation(self.name, None, None, note)

    def _would_move(self, search: Answer, tool_id: str) -> bool:
        """Tell whether the stage moves a tool behind the others, or would if it were a hit."""
        if tool_id not in self.behind or parse_selection(search.query) is not None:
            return False
        named_sources = self._find_named_sources(search.query, (*search.ids, tool_id))
        if tool_id not in search.ids:
            return self._is_demoted(search, tool_id, named_sources)
        front, _, _ = self._divide(search, named_sources)
        return bool(front) and tool_id not in [hit.id for hit in front]

    def note(self, search: Answer) -> str:
        """Return how many hits are demoted."""
        count = sum(hit.id in self.behind for hit in search.hits)
        return f"{count} suspicious or copied, behind the others" if count else ""


def _source(tool_id: str) -> str:
    return tool_id.partition("/")[0]


def _lower(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Return the hits in this order; a score that would rise becomes a little lower than the one before."""
    lowered: list[Hit] = []
    highest = math.inf
    for hit in hits:
        score = hit.score if hit.score <= highest else highest - 1e-6
        lowered.append(hit if score == hit.score else msgspec.structs.replace(hit, score=score))
        highest = score
    return tuple(lowered)
