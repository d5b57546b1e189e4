"""Duplicates: finds the same tool where several sources offer it, so that an answer shows it once.

Two tools of different sources are the same if their definitions and their texts agree: the names of the sources share
a word, both descriptions have nearly the same words, and the parameters are the same; with the same name a smaller
overlap is enough. Sources without a common word may be different services ("add a reaction" in two chat programs, the
same query of two databases) and are never folded. A word of a tool's name, and its service if the description names it,
must not be missing in the other tool.

A preferred source stands for the others, or else the source that was added first: a copy that arrives later never
stands for the tool that it copies.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from toolscout.catalogue.similar import limit_holders, word_overlap
from toolscout.catalogue.store import Catalogue
from toolscout.encoders import split_identifiers
from toolscout.indexes.words import tokenize
from toolscout.types import digest, parameter_names

__all__ = ["Duplicates", "find_duplicates"]

MIN_SAME_TEXT: Final = 0.75  # overlap of words from which descriptions are the same
MIN_SAME_TEXT_OF_NAMESAKES: Final = 0.45
MIN_SAME_PARAMETERS: Final = 0.5
MIN_FORKED_TOOLS: Final = 3  # same tools that two sources have at least, and
MIN_FORKED_SHARE: Final = 0.6  # share of the smaller source's tools, from which they are forks of one server
MAX_SERVICE_SHARE: Final = 0.08  # a word in the names of more sources than this share names no service
MIN_COMMON_SOURCES: Final = 8
GENERIC_WORDS: Final = frozenset(("mcp", "server", "servers", "api", "tool", "tools", "client", "local", "the", "ai"))
MAX_COMPARED_CHARS: Final = 4_000
DUPLICATES_FORMAT: Final = "duplicates/2"  # raise it whenever the result for an unchanged catalogue changes


class Duplicates(msgspec.Struct, frozen=True):
    """The same tools of several sources in one snapshot.

    Attributes:
        first: tool id → the tool that stands for its group; only tools of a group with two or more.
        groups: the tool that stands for a group → all tools of the group, the preferred first.
    """

    first: dict[str, str] = {}
    groups: dict[str, tuple[str, ...]] = {}


def find_duplicates(catalogue: Catalogue, preferred: Sequence[str] = ()) -> Duplicates:
    """Return the duplicates of a snapshot. They are computed once for each generation.

    Args:
        catalogue: the snapshot.
        preferred: names of sources, the most preferred first.
    """
    key = f"{DUPLICATES_FORMAT}/{digest('preferred/1', list(preferred))}"
    encoded = catalogue.load_or_build(key, lambda: msgspec.json.encode(_group_tools(catalogue, preferred)))
    return msgspec.json.decode(encoded, type=Duplicates)


def _group_tools(catalogue: Catalogue, preferred: Sequence[str]) -> Duplicates:
    """Group each tool with those that are the same as it, from the most preferred tool on."""
    ids = catalogue.ids
    same: dict[int, set[int]] = {}
    for one, other in _find_same(catalogue):
        same.setdefault(one, set()).add(other)
        same.setdefault(other, set()).add(one)
    ranks = {source: rank for rank, source in enumerate(preferred)}

    def rank_tool(number: int) -> tuple[int, str, str]:
        tool_id = ids[number]
        source = tool_id.partition("/")[0]
        age = catalogue.first_seen.get(tool_id) or catalogue.added.get(source, "")
        return ranks.get(source, len(ranks)), age, tool_id

    duplicates = Duplicates({}, {})
    for number in sorted(same, key=rank_tool):  # only tools that are the same as the first one: no chains
        left = [other for other in same[number] if ids[other] not in duplicates.first]
        if ids[number] in duplicates.first or not left:
            continue
        members = tuple(ids[member] for member in (number, *sorted(left, key=rank_tool)))
        duplicates.groups[members[0]] = members
        duplicates.first.update(dict.fromkeys(members, members[0]))
    return duplicates


class _Readings:
    """What is compared of each tool, by its position: words without the name of its own source."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.sources: list[str] = []
        self.words: list[frozenset[str]] = []
        self.names: list[frozenset[str]] = []
        self.parameters: list[frozenset[str]] = []
        self._interned: dict[str, str] = {}  # each word is one object, however many tools have it
        name_patterns: dict[str, re.Pattern[str]] = {}
        for batch in catalogue.batches():
            for tool in batch:
                if tool.source not in name_patterns:
                    name_patterns[tool.source] = _compile_name(tool.source)
                text = name_patterns[tool.source].sub(" ", tool.description[:MAX_COMPARED_CHARS])
                self.sources.append(tool.source)
                self.words.append(self._intern(tokenize(text)))
                self.names.append(self._intern(tokenize(split_identifiers(tool.name))))
                self.parameters.append(self._intern(name.casefold() for name in parameter_names(tool.parameters, 1)))
        self.services = _find_services(self.sources)

    def _intern(self, words: Iterable[str]) -> frozenset[str]:
        return frozenset(self._interned.setdefault(word, word) for word in words)

    def are_same(self, one: int, other: int, least_of_namesakes: float = MIN_SAME_TEXT_OF_NAMESAKES) -> bool:
        """Tell whether two tools are the same, if their sources may be the same service."""
        words, names = self.words, self.names
        here, there = self.services[self.sources[one]], self.services[self.sources[other]]
        least = least_of_namesakes if names[one] - here == names[other] - there else MIN_SAME_TEXT
        if word_overlap(words[one], words[other]) < least:
            return False
        # words that one tool uses for itself: the service it belongs to, and its name
        ours, theirs = here & words[one] | names[one] - here, there & words[other] | names[other] - there
        agree = ours <= there | names[other] | words[other] and theirs <= here | names[one] | words[one]
        return agree and _overlap(self.parameters[one], self.parameters[other]) >= MIN_SAME_PARAMETERS


def _find_same(catalogue: Catalogue) -> list[tuple[int, int]]:
    """Return the pairs of positions of tools that are the same, the smaller position first."""
    readings = _Readings(catalogue)
    pairs = _list_candidates(readings.sources, readings.services)
    return sorted({pair for pair in pairs if readings.are_same(*pair)} | _find_forked(readings))


def _find_forked(readings: _Readings) -> set[tuple[int, int]]:
    """Return the same tools of forks: sources that have most of their tools in common, whatever they are called."""
    sources, sizes = readings.sources, Counter(readings.sources)
    namesakes: dict[frozenset[str], list[int]] = defaultdict(list)
    pairs: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for number, name in enumerate(readings.names):
        for other in namesakes[name]:
            if sources[other] != sources[number] and readings.are_same(other, number, MIN_SAME_TEXT):
                one, two = sorted((sources[other], sources[number]))
                pairs[one, two].append((other, number))
        if len(namesakes[name]) < limit_holders(len(sources)):
            namesakes[name].append(number)
    return {
        pair
        for (one, two), some in pairs.items()
        if len(some) >= max(MIN_FORKED_TOOLS, MIN_FORKED_SHARE * min(sizes[one], sizes[two]))
        for pair in some
    }


def _compile_name(source: str) -> re.Pattern[str]:
    """Return a pattern for the name of a source, however it joins its words."""
    return re.compile(r"[\W_]+".join(map(re.escape, re.findall(r"[^\W_]+", source))) or r"(?!)", re.IGNORECASE)


def _list_candidates(sources: Sequence[str], services: Mapping[str, frozenset[str]]) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions of tools whose sources name the same service."""
    holders: dict[str, list[int]] = defaultdict(list)
    for number, source in enumerate(sources):
        for service in sorted(services[source]):
            yield from ((other, number) for other in holders[service] if sources[other] != source)
            if len(holders[service]) < limit_holders(len(sources)):
                holders[service].append(number)


def _find_services(sources: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return for each source the words of its name that say which service it is."""
    words = {source: frozenset(tokenize(source)) for source in set(sources)}
    counts = Counter(word for some in words.values() for word in some)
    max_sources = max(MIN_COMMON_SOURCES, MAX_SERVICE_SHARE * len(words))
    common = GENERIC_WORDS | {word for word, count in counts.items() if count > max_sources}
    return {source: frozenset(word for word in some - common if not word.isdigit()) for source, some in words.items()}


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard overlap of two sets of parameters; 1 if a source gives none, as many leave them out."""
    return word_overlap(one, other) if one and other else 1.0
