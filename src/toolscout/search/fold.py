"""Folds the same tool of several sources into one hit, which names the others.

`search.relations.duplicates` says which tools are the same: they form a *group*. The hit of a group has the place of
the best of its tools. It shows one tool, the *representative*: the preferred one that the caller may see, or the tool
of the source that the query names most exactly ("my-todoist" names `my-todoist` more exactly than `todoist`). The hit
lists the others, which can be called by their ids too.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

import msgspec

from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.words import tokenize
from toolscout.search.exact_names import EXACT, has_source_name, parse_selection
from toolscout.search.pipeline import Stage
from toolscout.search.relations.duplicates import Duplicates
from toolscout.types import Answer, Explanation, Hit

__all__ = ["FoldSimilar"]

_SAID_WORD: Final = re.compile(r"[^\W_]+")


class FoldSimilar(Stage):
    """Shows each group of duplicates once.

    A tool keeps a hit of its own if the query names the tool, if it names the tool's source and no other source of the
    group, or if it has a word with a digit, such as the 7 of "warehouse 7", that only the text of this tool has.
    """

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits"})

    def __init__(self, catalogue: Catalogue, duplicates: Duplicates) -> None:
        """Fold the duplicates of a snapshot."""
        self.catalogue, self.duplicates = catalogue, duplicates
        self._own_numbers: dict[str, frozenset[str]] = {}  # cache of `_find_own_numbers`, by tool id

    def change(self, search: Answer) -> Answer:
        """Replace the hits of each group by one, at the place of the best; the other tools are in its `similar`.

        Tools that keep a hit of their own are left out of their groups.
        """
        group_of = self.duplicates.first  # a group is called by the id of its preferred tool
        if parse_selection(search.query) is not None or group_of.keys().isdisjoint(search.ids):
            return search
        unfolded, representatives = self._find_named(search)
        hits: list[Hit] = []
        shown_groups: set[str] = set()
        for hit in search.hits:
            group = group_of.get(hit.id)
            if group is None or hit.id in unfolded:
                hits.append(hit)
            elif group not in shown_groups:
                shown_groups.add(group)
                members = [tool_id for tool_id in self._list_visible(search, group) if tool_id not in unfolded]
                shown_id = representatives.get(group, members[0])
                similar = tuple(tool_id for tool_id in members if tool_id != shown_id)
                hits.append(msgspec.structs.replace(hit, id=shown_id, similar=similar))
        return msgspec.structs.replace(search, hits=tuple(hits))

    def _find_named(self, search: Answer) -> tuple[set[str], dict[str, str]]:
        """Find what the query says about the tools of groups.

        Returns:
            The tools that keep hits of their own; group → the representative that the query chooses.
        """
        words = set(tokenize(search.query))
        group_of = self.duplicates.first
        unfolded = {hit.id for hit in search.hits if hit.why == EXACT}
        members = [hit.id for hit in search.hits if hit.id in group_of and hit.id not in unfolded]
        numbers = set(filter(_has_digit, words))
        if numbers:
            unfolded |= {tool_id for tool_id in members if not numbers.isdisjoint(self._find_own_numbers(tool_id))}
        named: dict[str, dict[str, list[str]]] = {}  # group → named source → its tools
        for tool_id in members:
            source = tool_id.partition("/")[0]
            if tool_id not in unfolded and has_source_name(words, source):
                named.setdefault(group_of[tool_id], {}).setdefault(source, []).append(tool_id)
        representatives: dict[str, str] = {}
        for group, tools_by_source in named.items():
            tools = tools_by_source[self._choose_source(search.query, group, tools_by_source)]
            if len(tools_by_source) > 1:
                # "my-todoist" also names the source `todoist`. Only one is meant, so the group stays folded.
                representatives[group] = tools.pop(0)
            unfolded.update(tools)
        return unfolded, representatives

    def _choose_source(self, query: str, group: str, sources: Iterable[str]) -> str:
        """Return the source that the query names most exactly; of equals, the source of the most preferred tool."""
        order = [tool_id.partition("/")[0] for tool_id in self.duplicates.groups[group]]
        return max(sources, key=lambda source: (_count_said_words(query, source), -order.index(source)))

    def _find_own_numbers(self, tool_id: str) -> frozenset[str]:
        """Find the words with a digit in a tool's name and description that the preferred tool of its group lacks."""
        if tool_id not in self._own_numbers:
            preferred = self.duplicates.first[tool_id]
            texts = {tool.id: f"{tool.name} {tool.description}" for tool in self.catalogue.tools([tool_id, preferred])}
            own_words = set(tokenize(texts.get(tool_id, ""))) - set(tokenize(texts.get(preferred, "")))
            self._own_numbers[tool_id] = frozenset(filter(_has_digit, own_words))
        return self._own_numbers[tool_id]

    def _list_visible(self, search: Answer, group: str) -> list[str]:
        """Return the tools of a group that the caller may see, the preferred first."""
        members, mask = self.duplicates.groups[group], self.catalogue.mask(search.visible)
        if mask is None:
            return list(members)
        return [tool_id for tool_id in members if mask[bisect_left(self.catalogue.ids, tool_id)]]

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        """Return which tool represents this one, or how many others this one represents; None: it is not folded."""
        group = self.duplicates.first.get(tool_id)
        if group is None or tool_id not in search.ids:
            return None
        [folded] = self.run([search])
        if tool_id in folded.ids:
            hit = folded.hits[folded.ids.index(tool_id)]
            note = f"it stands for {len(hit.similar)} that do the same"
            return Explanation(self.name, folded.ids.index(tool_id) + 1, hit.score, note) if hit.similar else None
        representative = next((hit for hit in folded.hits if tool_id in hit.similar), None)
        if representative is None:
            return None
        rank = folded.ids.index(representative.id) + 1
        return Explanation(
            self.name, rank, representative.score, f"{representative.id} stands for it: it does the same"
        )

    def note(self, search: Answer) -> str:
        """Return how many tools are folded into others."""
        count = sum([len(hit.similar) for hit in search.hits if hit.similar])
        return f"{count} duplicates folded" if count else ""


def _has_digit(word: str) -> bool:
    return any(letter.isdigit() for letter in word)


def _count_said_words(query: str, source: str) -> int:
    """Count the words in the name of a source; 0 if the query does not say them one after the other."""
    name_words, query_words = (_SAID_WORD.findall(text.casefold()) for text in (source, query))
    is_said = f" {' '.join(name_words)} " in f" {' '.join(query_words)} "
    return len(name_words) if is_said else 0
