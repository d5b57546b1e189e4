"""Folds the same tool of several sources into one hit, which names the others.

`search.relations.duplicates` says which tools are the same. The hit takes the place of the best of its group. The
preferred tool that the caller may see stands for the group, or that of the source which the query names most exactly:
"my-todoist" names `my-todoist` more exactly than `todoist`. The others can be called by their ids too.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.words import list_source_words, tokenize
from toolscout.search.exact_names import EXACT, parse_selection
from toolscout.search.pipeline import Stage
from toolscout.search.relations.duplicates import Duplicates
from toolscout.types import Answer, Explanation, Hit

__all__ = ["FoldSimilar"]

_SAID_WORD: Final = re.compile(r"[^\W_]+")


class FoldSimilar(Stage):
    """Shows each group of duplicates once.

    A tool keeps its own hit if the query names it, its source and no other of the group, or something with a digit that
    only its own text says, such as the warehouse 7.
    """

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits"})

    def __init__(self, catalogue: Catalogue, duplicates: Duplicates) -> None:
        """Fold the duplicates of a snapshot."""
        self.catalogue, self.duplicates = catalogue, duplicates
        self._own_numbers: dict[str, frozenset[str]] = {}  # by id: words with a digit that the first of its group lacks

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        """Return the searches with one hit for each group."""
        if not self.duplicates.first:
            return list(searches)
        return [self._fold(search) for search in searches]

    def _fold(self, search: Answer) -> Answer:
        """Show one tool for each group of the same tools, at the best place of any; the others are in its `similar`.

        Tools that the request names are shown each by itself.
        """
        first = self.duplicates.first
        if parse_selection(search.query) is not None or first.keys().isdisjoint(search.ids):
            return search
        named, standing = self._find_named(search)
        hits: list[Hit] = []
        shown: set[str] = set()
        for hit in search.hits:
            group = first.get(hit.id)
            if group is None or hit.id in named:
                hits.append(hit)
            elif group not in shown:
                shown.add(group)
                members = [tool_id for tool_id in self._list_visible(search, group) if tool_id not in named]
                shown_id = standing.get(group, members[0])
                similar = tuple(tool_id for tool_id in members if tool_id != shown_id)
                hits.append(msgspec.structs.replace(hit, id=shown_id, similar=similar))
        return msgspec.structs.replace(search, hits=tuple(hits))

    def _find_named(self, search: Answer) -> tuple[set[str], dict[str, str]]:
        """Find the tools that keep their own hit, and by group those that stand for others, as the query names them."""
        words, first = set(tokenize(search.query)), self.duplicates.first
        kept = {hit.id for hit in search.hits if hit.why == EXACT}
        numbers = set(filter(_has_digit, words))
        copies = [hit.id for hit in search.hits if hit.id in first and hit.id not in kept]
        if numbers:
            kept |= {tool_id for tool_id in copies if not numbers.isdisjoint(self._find_own_numbers(tool_id))}
        named: dict[str, dict[str, list[str]]] = {}  # group → named source → its tools
        for tool_id in copies:
            if tool_id not in kept and _is_source_named(words, tool_id):
                named.setdefault(first[tool_id], {}).setdefault(tool_id.partition("/")[0], []).append(tool_id)
        standing: dict[str, str] = {}
        for group, tools in named.items():
            order = [tool_id.partition("/")[0] for tool_id in self.duplicates.groups[group]]
            best = max(tools, key=lambda source: (_count_said_words(search.query, source), -order.index(source)))
            if len(tools) > 1:
                standing[group] = tools[best].pop(0)
            kept.update(tools[best])
        return kept, standing

    def _find_own_numbers(self, tool_id: str) -> frozenset[str]:
        """Find the words with a digit in a tool's name and description that the first tool of its group lacks."""
        if tool_id not in self._own_numbers:
            standing = self.duplicates.groups[self.duplicates.first[tool_id]][0]
            texts = {tool.id: f"{tool.name} {tool.description}" for tool in self.catalogue.tools([tool_id, standing])}
            own = set(tokenize(texts.get(tool_id, ""))) - set(tokenize(texts.get(standing, "")))
            self._own_numbers[tool_id] = frozenset(filter(_has_digit, own))
        return self._own_numbers[tool_id]

    def _list_visible(self, search: Answer, group: str) -> list[str]:
        """Return the tools of a group that the caller may see, the preferred first."""
        members, mask = self.duplicates.groups[group], self.catalogue.mask(search.visible)
        if mask is None:
            return list(members)
        return [tool_id for tool_id in members if mask[bisect_left(self.catalogue.ids, tool_id)]]

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        """Return which tool stands for the tool, or for how many it takes the place; None if it stands for itself."""
        group = self.duplicates.first.get(tool_id)
        if group is None or tool_id not in search.ids:
            return None
        [folded] = self.run([search])
        if tool_id in folded.ids:
            hit = folded.hits[folded.ids.index(tool_id)]
            note = f"it stands for {len(hit.similar)} that do the same"
            return Explanation(self.name, folded.ids.index(tool_id) + 1, hit.score, note) if hit.similar else None
        standing = next((hit for hit in folded.hits if tool_id in hit.similar), None)
        if standing is None:
            return None
        rank = folded.ids.index(standing.id) + 1
        return Explanation(self.name, rank, standing.score, f"{standing.id} stands for it: it does the same")

    def note(self, search: Answer) -> str:
        """Return how many tools are folded into others."""
        count = sum([len(hit.similar) for hit in search.hits if hit.similar])
        return f"{count} duplicates folded" if count else ""


def _has_digit(word: str) -> bool:
    return any(letter.isdigit() for letter in word)


def _is_source_named(words: AbstractSet[str], tool_id: str) -> bool:
    """Tell whether the words of the query hold all words of the name of a tool's source."""
    name = list_source_words(tool_id.partition("/")[0])
    return bool(name) and name <= words


def _count_said_words(query: str, source: str) -> int:
    """Return the number of words in the name of a source if the query says them one after the other, or 0."""
    name, said = (_SAID_WORD.findall(text.casefold()) for text in (source, query))
    return len(name) if f" {' '.join(name)} " in f" {' '.join(said)} " else 0
