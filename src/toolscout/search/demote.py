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
from toolscout.indexes.words import tokenize
from toolscout.search.exact_names import EXACT, has_source_name, parse_selection
from toolscout.search.pipeline import Stage
from toolscout.search.relations.similar import Rivals
from toolscout.types import Answer, Explanation, Hit

__all__ = ["Demote"]

LIGHT_WEIGHT: Final = 0.35  # factor on the score above the lowest, of a tool of a hollow source or with claims
MIN_SCORE_STEP: Final = 1e-6


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

    @property
    def has_findings(self) -> bool:
        """Whether any tool of the snapshot may have to move."""
        return bool(self.behind or self.claimants or self.rivals.twins or self.rivals.hollow)

    def change(self, search: Answer) -> Answer:
        """Return the search with demoted hits last. Those that the query names are the last of the first k."""
        has_findings = any(map(self._may_demote, search.ids))
        if not has_findings or parse_selection(search.query) is not None:
            return search
        named_sources = self._find_named_sources(search.query, search.ids)
        front, named_last, last = self._divide(search, named_sources)
        if not front:  # all hits are demoted, so there is none to put them behind
            return search
        front = self._follow_originals(self._weigh(front, named_sources), named_sources)
        n_front = max(0, search.k - len(named_last))  # so many of the others stay in the answer
        hits = (*front[:n_front], *named_last, *front[n_front:], *last)
        return msgspec.structs.replace(search, hits=_lower_rising_scores(hits))

    def _may_demote(self, tool_id: str) -> bool:
        """Tell whether there is any finding about a tool, so that it may have to move."""
        rivals = self.rivals
        is_rival = tool_id in rivals.twins or _source(tool_id) in rivals.hollow
        return is_rival or tool_id in self.behind or tool_id in self.claimants

    def _divide(self, search: Answer, named_sources: AbstractSet[str]) -> tuple[list[Hit], list[Hit], list[Hit]]:
        """Divide the hits into those that keep their place, demoted ones that the query names, and other demoted ones.

        A hit whose id is in the query keeps its place.
        """
        front: list[Hit] = []
        named_last: list[Hit] = []
        last: list[Hit] = []
        query = search.query.casefold()
        for hit in search.hits:
            is_named = hit.why == EXACT
            if is_named and hit.id.casefold() in query:
                front.append(hit)
            elif is_named and self._is_doubted(search, hit.id, named_sources):
                named_last.append(hit)
            elif not is_named and self._is_demoted(search, hit.id, named_sources):
                last.append(hit)
            else:
                front.append(hit)
        return front, named_last, last

    def find_doubted(self, search: Answer, ids: Sequence[str]) -> frozenset[str]:
        """Find the tools among `ids` that come last although the query has their name."""
        named_sources = self._find_named_sources(search.query, ids)
        return frozenset(tool_id for tool_id in ids if self._is_doubted(search, tool_id, named_sources))

    def _find_named_sources(self, query: str, ids: Iterable[str]) -> frozenset[str]:
        """Return the sources that the query names, of those tools among `ids` that may have to move."""
        candidates = {_source(tool_id) for tool_id in ids if self._may_demote(tool_id)}
        if not candidates:
            return frozenset()
        words = set(tokenize(query))
        return frozenset(source for source in candidates if has_source_name(words, source))

    def _is_demoted(self, search: Answer, tool_id: str, named_sources: AbstractSet[str]) -> bool:
        """Tell whether a tool is suspicious, or a copy of a tool that the caller may see."""
        if tool_id in self.suspicious:
            return True
        original = self.rivals.copies.get(tool_id)
        return original is not None and _source(tool_id) not in named_sources and self._is_visible(search, original)

    def _is_doubted(self, search: Answer, tool_id: str, named_sources: AbstractSet[str]) -> bool:
        """Tell whether a tool comes last although the query names it.

        A tool of a hollow source comes last, because such a source may have a tool for every word of a query. But if
        all hits are of hollow sources, the tool that the query names comes first, as it does elsewhere.
        """
        if self._is_demoted(search, tool_id, named_sources):
            return True
        if not self._is_hollow(tool_id, named_sources):
            return False
        return any(not self._is_hollow(other_id, named_sources) for other_id in search.ids)

    def _is_hollow(self, tool_id: str, named_sources: AbstractSet[str]) -> bool:
        """Tell whether a tool is of a hollow source that the query does not name."""
        source = _source(tool_id)
        return source in self.rivals.hollow and source not in named_sources

    def _is_visible(self, search: Answer, tool_id: str) -> bool:
        """Tell whether the caller may see a tool. Without a catalogue, all tools count as visible."""
        if self.catalogue is None:
            return True
        mask, position = self.catalogue.mask(search.visible), self.catalogue.position(tool_id)
        return mask is None or (position is not None and bool(mask[position]))

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
        """Move each twin from before to right behind the tool that it may copy. Changes and returns `hits`."""
        twins = [hit for hit in hits if hit.id in self.rivals.twins and _source(hit.id) not in named_sources]
        for twin in twins:
            ids = [hit.id for hit in hits]
            original = self.rivals.twins[twin.id]
            if original in ids and ids.index(original) > ids.index(twin.id):
                hits.remove(twin)  # the original moves up by one, so its former place is now the place behind it
                hits.insert(ids.index(original), twin)
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


def _lower_rising_scores(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Return the hits in this order; a score above the one before becomes a little lower than that one."""
    lowered: list[Hit] = []
    previous_score = math.inf
    for hit in hits:
        is_rising = hit.score > previous_score
        lowered.append(msgspec.structs.replace(hit, score=previous_score - MIN_SCORE_STEP) if is_rising else hit)
        previous_score = lowered[-1].score
    return tuple(lowered)
