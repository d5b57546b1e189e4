"""Duplicates: finds the same tool where several sources offer it, so that an answer shows it once.

Two tools of different sources are the same if their definitions and their texts agree: the names of the sources share
a word, both descriptions have nearly the same words, and the parameters are the same; with the same name a smaller
overlap is enough. Sources without a common word may be different services ("add a reaction" in two chat programs, the
same query of two databases) and are folded in two cases only: forks of one server, and tools with a *public subject*,
which the world or the machine answers and no account: the weather, the time, a page in a browser. Forks need at least
three tools with descriptions of four words: a shorter one ("run a SQL query") says too little. A word of a tool's name,
and its service if the description names it, must not be missing in the other tool.

A preferred source stands for the others, or else the source of whose tools the smaller share is the same as others': an
imitation consists of copies. When a source was added does not count.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.words import tokenize
from toolscout.search.relations.services import DescriptionWords, Services
from toolscout.search.relations.similar import limit_holders, word_overlap
from toolscout.search.relations.tool_words import read_tool_words
from toolscout.search.relations.word_sets import PairSelector, Places, pair_holders
from toolscout.types import digest
from toolscout.vocabulary import list_words

__all__ = ["Duplicates", "find_duplicates"]

MIN_SAME_TEXT: Final = 0.75  # overlap of words from which descriptions are the same
MIN_SAME_TEXT_OF_NAMESAKES: Final = 0.45
MIN_SAME_PARAMETERS: Final = 0.5
MIN_FORKED_TOOLS: Final = 3  # same tools that two sources have at least, and
MIN_FORKED_SHARE: Final = 0.6  # share of the smaller source's tools, from which they are forks of one server
MIN_FORKED_WORDS: Final = 4  # of a description: a shorter one does not show a fork
DUPLICATES_FORMAT: Final = "duplicates/5"  # raise it whenever the result for an unchanged catalogue changes


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
    sizes = Counter(tool_id.partition("/")[0] for tool_id in ids)
    copied = Counter(ids[number].partition("/")[0] for number in same)

    def rank_tool(number: int) -> tuple[int, float, str]:
        tool_id = ids[number]
        source = tool_id.partition("/")[0]
        return ranks.get(source, len(ranks)), copied[source] / sizes[source], tool_id

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
    """What is compared of each tool, by its position.

    Attributes:
        sources: the source of each tool.
        source_numbers: the same as numbers, `(tools,)`.
        words: of the descriptions, without the names of the sources.
        checksums: of all words of the descriptions, `(tools,)`: equal ones have the same words.
        names, parameters, required: words of the names, and the parameters, all and those that a call needs.
        services: which service each source is.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        tool_words = read_tool_words(catalogue)
        self.sources = [sys.intern(tool_id.partition("/")[0]) for tool_id in catalogue.ids]
        self.words, self.names = tool_words.texts, tool_words.names
        self.checksums = tool_words.texts.compute_checksums() + tool_words.source_mentions.compute_checksums()
        self.parameters, self.required = tool_words.parameters, tool_words.required
        self.services = Services(self.sources, tool_words)
        source_numbers = {source: number for number, source in enumerate(self.services.words)}
        self.source_numbers = np.array([source_numbers[source] for source in self.sources], dtype=np.int64)

    def select_near(self, least: float) -> PairSelector:
        """Return a function that selects pairs of tools to compare, with true for those that may be the same.

        These are from different sources, and the overlap of their descriptions may reach `least`: with the names of the
        sources the descriptions are equal (checksums), or without these names their words may overlap so much.
        """

        def select(ones: Places, others: Places) -> npt.NDArray[np.bool_]:
            """Choose pairs that can be duplicates: of two sources, with enough words in common or the same text."""
            chosen: npt.NDArray[np.bool_] = self.source_numbers[ones] != self.source_numbers[others]
            ones, others = ones[chosen], others[chosen]
            chosen[chosen] = self.words.may_overlap(ones, others, least) | (
                self.checksums[ones] == self.checksums[others]
            )
            return chosen

        return select

    def are_same(self, one: int, other: int, least_of_namesakes: float = MIN_SAME_TEXT_OF_NAMESAKES) -> bool:
        """Tell whether two tools are the same, if their sources may be the same service.

        `github/create_issue` ("Create a GitHub issue") and `github-mcp/github_create_issue` ("Create an issue") are:
        both names are {create, issue} without the word of the source, and "github", which only the first description
        has, is a word of the second source.
        """
        sources = self.sources[one], self.sources[other]
        text, other_text = self.services.read_text(one), self.services.read_text(other)
        name, other_name = self.names.read(one), self.names.read(other)
        short_name, other_short_name = (
            name - self.services.words[sources[0]],
            other_name - self.services.words[sources[1]],
        )
        least = least_of_namesakes if short_name == other_short_name else MIN_SAME_TEXT
        if _overlap_texts(text, other_text) < least:
            return False
        # words that one tool uses for itself: the service it belongs to, and its name
        ours, theirs = text.service | short_name, other_text.service | other_short_name
        known = self.services.spellings[sources[0]] | name | text.words
        other_known = self.services.spellings[sources[1]] | other_name | other_text.words
        agree = ours <= other_known and theirs <= known
        return agree and _overlap(self.parameters.read(one), self.parameters.read(other)) >= MIN_SAME_PARAMETERS

    def are_same_in_public(self, one: int, other: int) -> bool:
        """Tell whether two tools with the same public subject are the same, whatever their sources are."""
        text, other_text = self.services.read_text(one), self.services.read_text(other)
        if _overlap_texts(text, other_text) < MIN_SAME_TEXT_OF_NAMESAKES:
            return False
        name, other_name = self.names.read(one), self.names.read(other)
        agree = text.service <= other_name | other_text.words and other_text.service <= name | text.words
        required = self.required.read(one), self.required.read(other)
        return agree and (required[0] == required[1] or not all(required))


def _find_same(catalogue: Catalogue) -> list[tuple[int, int]]:
    """Return the pairs of positions of tools that are the same, the smaller position first."""
    readings = _Readings(catalogue)
    same = {pair for pair in _list_candidates(readings) if readings.are_same(*pair)}
    return sorted(same | _find_forked(readings) | _find_public(readings))


def _find_public(readings: _Readings) -> set[tuple[int, int]]:
    """Return the same tools among those with a public subject, from any two sources."""
    verbs, prefixes = (
        readings.services.number_words(tokenize(" ".join(sorted(list_words(f"duplicates.{name}")))))
        for name in ("plain_verbs", "browsers")
    )
    namesakes: dict[frozenset[int], list[int]] = defaultdict(list)
    pairs: set[tuple[int, int]] = set()
    for number, subject in _find_subjects(readings):
        if not subject:
            continue
        name = readings.names.read(number)
        name -= prefixes | readings.services.words[readings.sources[number]] - subject
        key = name - verbs or name
        pairs |= {
            (other, number)
            for other in namesakes[key]
            if readings.sources[other] != readings.sources[number] and readings.are_same_in_public(other, number)
        }
        if len(namesakes[key]) < limit_holders(len(readings.sources)):
            namesakes[key].append(number)
    return pairs


def _find_subjects(readings: _Readings) -> Iterator[tuple[int, frozenset[int]]]:
    """Yield the positions of the tools that may have a public subject, ascending, each with the words of all it has."""
    subjects = [
        readings.services.number_words(tokenize(subject)) for subject in list_words("duplicates.public_subjects")
    ]
    holders = {
        word: readings.names.find_holders(word) | readings.words.find_holders(word)
        for word in frozenset().union(*subjects)
    }
    having = [np.logical_and.reduce([holders[word] for word in subject]) for subject in subjects]
    for number in np.flatnonzero(np.logical_or.reduce(having)).tolist():
        yield number, frozenset().union(*(words for words, has in zip(subjects, having, strict=True) if has[number]))


def _find_forked(readings: _Readings) -> set[tuple[int, int]]:
    """Return the same tools of forks: sources that have most of their tools in common, whatever they are called."""
    sources, sizes = readings.sources, Counter(readings.sources)
    groups: dict[frozenset[int], int] = {}
    group_of = np.array([groups.setdefault(readings.names.read(number), len(groups)) for number in range(len(sources))])
    pairs: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    is_long = readings.words.sizes >= MIN_FORKED_WORDS
    everyone, most = np.arange(len(sources)), limit_holders(len(sources))
    for others, numbers in pair_holders(group_of, everyone, most, readings.select_near(MIN_SAME_TEXT)):
        for other, number in zip(others.tolist(), numbers.tolist(), strict=True):
            if readings.are_same(other, number, MIN_SAME_TEXT):
                one, two = sorted((sources[other], sources[number]))
                pairs[one, two].append((other, number))
    return {
        pair
        for (one, two), some in pairs.items()
        if len(some) >= MIN_FORKED_SHARE * min(sizes[one], sizes[two])
        and sum(bool(is_long[a] and is_long[b]) for a, b in some) >= MIN_FORKED_TOOLS
        for pair in some
    }


def _list_candidates(readings: _Readings) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions of tools whose sources name the same service, and whose descriptions may agree."""
    words_of_source = [sorted(words) for words in readings.services.words.values()]
    counts = np.array([len(words) for words in words_of_source], dtype=np.int64)[readings.source_numbers]
    # Each tool is a member of as many groups as its source has words: `github-mcp` puts its tools into `github`.
    members = np.repeat(np.arange(len(readings.source_numbers), dtype=np.int64), counts)
    groups = np.array([word for number in readings.source_numbers.tolist() for word in words_of_source[number]])
    select = readings.select_near(MIN_SAME_TEXT_OF_NAMESAKES)
    for others, numbers in pair_holders(groups, members, limit_holders(len(readings.sources)), select):
        yield from zip(others.tolist(), numbers.tolist(), strict=True)


def _overlap_texts(one: DescriptionWords, other: DescriptionWords) -> float:
    """Return how much of two descriptions is the same, without the names of the sources, 0 to 1.

    A source may name another's service ("todoist" in `my-tasks`), so it is 1 if they are the same with the names.
    """
    if one.words == other.words:
        return 1.0 if one.words else 0.0
    return word_overlap(one.without_source, other.without_source)


def _overlap(one: frozenset[int], other: frozenset[int]) -> float:
    """Return the Jaccard overlap of two sets of parameters; 1 if a source gives none, as many leave them out."""
    return word_overlap(one, other) if one and other else 1.0
