"""ToolRerank's stages: families of tools, adaptive truncation, and the order by hierarchy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from toolscout.arrays import Array
from toolscout.search.pipeline import Stage
from toolscout.types import Explanation, Hit, Search, Tool
from toolscout_lab.rankers.crossencoder import CrossEncoderStage
from toolscout_lab.rankers.toolrerank.hierarchy import diversify, extend_list, truncate

__all__ = ["FLAT_NOTE", "UNUSED_NOTE", "ChosenSettings", "Families", "Hierarchy", "Truncate", "adds_all_members"]

SCORE_STEP: Final = 1e-9
MAX_FAMILY_SIZE: Final = 50
FLAT_NOTE: Final = "hierarchy off: the paths of the catalogue are flat"
UNUSED_NOTE: Final = "hierarchy off: algorithms 1 and 2 are both off"


class Families:
    """Groups the tools of a catalogue into families: tools of one source with one parent.

    Attributes:
        flat: whether the parents form no hierarchy: each has one tool, or one has all. Then each tool is a family.
        family_of: tool id → its family.
        members: family → the ids of its tools, ascending.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        """Group the tools of a catalogue."""
        parents = {tool.id: (tool.source, *tool.parent) if tool.parent else (tool.id,) for tool in tools}
        self.flat = not 1 < len(set(parents.values())) < len(parents)
        self.family_of: dict[str, tuple[str, ...]] = {tool: (tool,) for tool in parents} if self.flat else parents
        self.members: dict[tuple[str, ...], list[str]] = {}
        for tool in sorted(self.family_of):
            self.members.setdefault(self.family_of[tool], []).append(tool)

    def are_one_family(self, tools: Sequence[str]) -> bool:
        """Return whether all of these tools are of one family. Unknown tools do not count."""
        return len({self.family_of[tool] for tool in tools if tool in self.family_of}) <= 1


class ChosenSettings(msgspec.Struct, frozen=True):
    """The settings of a ToolRerank that the fit chose; `ToolRerankOptions` has the same before the fit.

    Attributes:
        seen: m_s, the last place that is kept for a tool of a family that training saw.
        unseen: m_u, the last place that is kept for any other tool.
        sure: τ_s, the probability above which a parent is likely, for queries that one parent serves; 0: no change.
        alike: τ_m, the cosine above which two tools are similar, for the other queries.
        each: n, how many tools of each group of similar tools come first; 0: no change.
        extend: the likely parents of which all tools are scored: unseen, none, seen or both.
    """

    seen: int
    unseen: int
    sure: float = 0.0
    alike: float = 0.0
    each: int = 0
    extend: str = "unseen"


# --- the stages -------------------------------------------------------------------------------------------------------


class Truncate(Stage):
    """Applies adaptive truncation: hits → fewer hits."""

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits"})

    def __init__(self, seen: Callable[[str], bool], max_seen_place: int, max_unseen_place: int) -> None:
        """Set the two limits of the truncation.

        Args:
            seen: returns whether training saw the family of the tool with this id.
            max_seen_place: m_s, the last place that is kept for such a tool.
            max_unseen_place: m_u, the last place that is kept for any other tool.
        """
        self.seen, self.max_seen_place, self.max_unseen_place = seen, max_seen_place, max_unseen_place

    def run(self, searches: Sequence[Search]) -> list[Search]:
        """Cut the hits of each search to the limits."""
        return [msgspec.structs.replace(search, hits=tuple(self._truncate(search))) for search in searches]

    def _truncate(self, search: Search) -> list[Hit]:
        return truncate(search.hits, lambda hit: self.seen(hit.id), self.max_seen_place, self.max_unseen_place)

    def note(self, search: Search) -> str:
        """Note how many hits remain."""
        fresh = sum(not self.seen(hit.id) for hit in search.hits)
        return f"{len(search.hits)} kept, {fresh} of them of parents that training never saw"


class Hierarchy(Stage):
    """Orders the hits by algorithm 1 or 2.

    Hits that were not scored before a deadline stay behind the others.
    """

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits"})

    def __init__(
        self,
        families: Families,
        seen: Callable[[str], bool],
        reranker: CrossEncoderStage,
        chosen: ChosenSettings,
        *,
        predict_one_parent: Callable[[Sequence[Search]], Sequence[bool]],
        compute_cosines: Callable[[Sequence[str]], Array],
        get_visibility: Callable[[Search], Callable[[str], bool]],
        off: str = "",
    ) -> None:
        """Set the parts that decide the order.

        Args:
            families: of the catalogue.
            seen: whether training saw a tool's family.
            reranker: the stage that scored the hits.
            chosen: the thresholds.
            predict_one_parent: searches → whether one parent serves each.
            compute_cosines: tool ids → (n, n) cosines of their descriptions.
            get_visibility: a search → (tool id → whether the caller may discover the tool).
            off: why the hierarchy is off; empty if it is on.
        """
        self.families, self.seen, self.reranker, self.chosen = families, seen, reranker, chosen
        self.predict_one_parent, self.compute_cosines = predict_one_parent, compute_cosines
        self.get_visibility, self.off = get_visibility, off

    def run(self, searches: Sequence[Search]) -> list[Search]:
        """Put the hits of each search in the order of its algorithm."""
        if self.off or not searches:
            return list(searches)
        return [
            msgspec.structs.replace(search, hits=self._order_single(search) if one else self._order_multi(search))
            for search, one in zip(searches, self.predict_one_parent(searches), strict=True)
        ]

    def note(self, search: Search) -> str:
        """Note the kind of query that was assumed, or that the hierarchy is off."""
        if self.off:
            return self.off
        kinds = {hit.why.rpartition(", ")[2] for hit in search.hits}
        kind = [text for text in ("one parent", "several parents") if text in kinds]
        return f"predicted to need {kind[0]}" if kind else "order unchanged"

    def explain(self, search: Search, tool_id: str) -> Explanation | None:
        """Explain rank and score among the hits; None for a tool that is not among them."""
        [ordered] = self.run([search])
        if tool_id not in ordered.ids:
            return None
        rank = ordered.ids.index(tool_id)
        before = f"{search.ids.index(tool_id) + 1} before" if tool_id in search.ids else "brought in by its parent"
        return Explanation(self.name, rank + 1, ordered.hits[rank].score, before)

    def _order_single(self, search: Search) -> tuple[Hit, ...]:
        """Apply algorithm 1: tools of likely parents first, with those of their tools that have no score yet."""
        n_scored = self.reranker.read(search)
        head, rest = search.hits[:n_scored], search.hits[n_scored:]
        if not head or not self.chosen.sure:
            return search.hits
        hit_of = {hit.id: hit for hit in head}
        scores = {hit.id: hit.score for hit in head}
        listed, added = extend_list(
            list(scores),
            scores,
            self.families.family_of.__getitem__,
            self.chosen.sure,
            lambda tools: self._score_members(search, tools),
        )
        why = f"of a likely parent, {self.reranker.label}"
        hits = [hit_of.get(tool) or Hit(tool, added[tool], why) for tool in listed]
        return _assign_falling_scores([*hits, *(hit for hit in rest if hit.id not in added)], "one parent")

    def _score_members(self, search: Search, tools: set[Any]) -> dict[str, float]:
        """Score the tools of likely parents that have no score yet."""
        is_visible, scored = self.get_visibility(search), set(search.ids[: self.reranker.read(search)])
        ids = [
            tool
            for family in sorted(tools)
            if self._adds_members(family)
            for tool in self.families.members[family]
            if tool not in scored and is_visible(tool)
        ]
        if not ids:
            return {}
        return dict(zip(ids, self.reranker.need_scorer.score_others(search, ids).tolist(), strict=False))

    def _adds_members(self, family: Any) -> bool:
        """Return whether a likely parent adds all its tools to the answer."""
        members = self.families.members[family]
        return adds_all_members(self.chosen.extend, self.seen(members[0]), len(members))

    def _order_multi(self, search: Search) -> tuple[Hit, ...]:
        """Apply algorithm 2 of the paper to the scored hits: the best of each group of similar tools come first.

        Tools with a cosine of at least `chosen.alike` are one group; `chosen.each` tools of a parent come first.
        """
        n_scored = self.reranker.read(search)
        head = search.hits[:n_scored]
        if not head or not self.chosen.each:
            return search.hits
        cosines = self.compute_cosines([hit.id for hit in head])
        families = {hit: self.families.family_of[hit.id] for hit in head}
        listed = diversify(head, families.__getitem__, cosines, self.chosen.alike, self.chosen.each)
        return _assign_falling_scores([*listed, *search.hits[n_scored:]], "several parents")


def adds_all_members(extend: str, seen: bool, size: int) -> bool:
    """Return whether a likely parent adds all its tools to the hits.

    Args:
        extend: the option: `seen`, `unseen`, `both` or `none`.
        seen: whether training saw the parent.
        size: number of its tools. Large parents add none, because to score them takes too long.
    """
    return size <= MAX_FAMILY_SIZE and (extend == "both" or extend == ("seen" if seen else "unseen"))


def _assign_falling_scores(hits: Sequence[Hit], why: str) -> tuple[Hit, ...]:
    """Return the hits in this order, with their scores reassigned: the highest to the first."""
    scores = sorted((hit.score for hit in hits), reverse=True)
    reordered: list[Hit] = []
    for hit, score in zip(hits, scores, strict=True):
        lower_score = min(score, reordered[-1].score - SCORE_STEP) if reordered else score
        reordered.append(Hit(hit.id, lower_score, f"{hit.why}, {why}"))
    return tuple(reordered)
