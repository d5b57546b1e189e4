"""Duplicates: finds the same tool where several sources offer it, so that an answer shows it once.

Two tools of different sources are the same if their definitions and their texts agree: the names of the sources share
a word, both descriptions have nearly the same words, and the parameters are the same; with the same name a smaller
overlap is enough. All words of each tool's name, and of its service if the description names it, must be in the other
tool.

Sources without a common word may be different services ("add a reaction" in two chat programs, the same query of two
databases). Their tools are the same in two cases only. First, if the sources are forks of one server, with most of
their tools in common: at least three of these need descriptions of four words, as a shorter one ("run a SQL query")
says too little. Second, if the tools have a *public subject*, for which it does not matter whose account is used: the
weather, the time, a page in a browser.

Of the same tools, one is shown: the tool of a preferred source, or else of the source with the smaller share of such
tools, because an imitation consists of copies. When a source was added does not count.
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
MIN_SAME_TEXT_OF_NAMESAKES: Final = 0.45  # the same for tools with the same name
MIN_SAME_PARAMETERS: Final = 0.5  # overlap from which parameters are the same
MIN_FORKED_TOOLS: Final = 3  # two sources are forks if they have so many same tools at least,
MIN_FORKED_SHARE: Final = 0.6  # and so large a share of the tools of the smaller one
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
    """Group the most preferred tool with the tools that are the same as it, then the next tool that has no group.

    Tools that are the same as a member, but not as the first tool of a group, do not belong to it: there are no chains.
    """
    ids = catalogue.ids
    partners: dict[int, set[int]] = defaultdict(set)  # position → positions of the tools that are the same
    for one, other in _find_same(catalogue):
        partners[one].add(other)
        partners[other].add(one)
    ranks = {source: rank for rank, source in enumerate(preferred)}
    n_tools = Counter(tool_id.partition("/")[0] for tool_id in ids)  # of each source
    n_shared = Counter(ids[position].partition("/")[0] for position in partners)  # those that other sources have too

    def rank_tool(position: int) -> tuple[int, float, str]:
        """Put preferred sources first, then those with the smaller share of tools that others have too."""
        tool_id = ids[position]
        source = tool_id.partition("/")[0]
        return ranks.get(source, len(ranks)), n_shared[source] / n_tools[source], tool_id

    first: dict[str, str] = {}
    groups: dict[str, tuple[str, ...]] = {}
    for position in sorted(partners, key=rank_tool):
        ungrouped = [other for other in partners[position] if ids[other] not in first]
        if ids[position] in first or not ungrouped:
            continue
        members = tuple(ids[member] for member in (position, *sorted(ungrouped, key=rank_tool)))
        groups[ids[position]] = members
        first.update(dict.fromkeys(members, ids[position]))
    return Duplicates(first, groups)


class _ToolReadings:
    """What is compared of each tool, by its position. Each word has a number.

    Attributes:
        sources: the source of each tool.
        source_numbers: the sources as numbers, `(tools,)`.
        words: words of the descriptions, without the names of the sources.
        checksums: of all words of each description, `(tools,)`: equal checksums mean the same words.
        names: words of the names.
        parameters: all parameters.
        required: the parameters that a call needs.
        services: which service each source belongs to.
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
        """Return a function that selects the pairs of positions whose tools may be the same.

        Their sources differ. Their descriptions are equal, or may overlap by `least` without the names of the sources.
        """

        def select(ones: Places, others: Places) -> npt.NDArray[np.bool_]:
            selected: npt.NDArray[np.bool_] = self.source_numbers[ones] != self.source_numbers[others]
            ones, others = ones[selected], others[selected]
            are_equal = self.checksums[ones] == self.checksums[others]
            selected[selected] = are_equal | self.words.may_overlap(ones, others, least)
            return selected

        return select

    def are_same(self, one: int, other: int, least_of_namesakes: float = MIN_SAME_TEXT_OF_NAMESAKES) -> bool:
        """Tell whether two tools are the same, if their sources may be the same service.

        For example, `github/create_issue` ("Create a GitHub issue") and `github-mcp/github_create_issue` ("Create an
        issue") are the same. Without the words of the sources, both names are {create, issue}. The word "github" of the
        first description is not in the second one, but in the name of the second source.
        """
        source, other_source = self.sources[one], self.sources[other]
        text, other_text = self.services.read_text(one), self.services.read_text(other)
        name, other_name = self.names.read(one), self.names.read(other)
        short_name = name - self.services.words[source]
        other_short_name = other_name - self.services.words[other_source]
        least = least_of_namesakes if short_name == other_short_name else MIN_SAME_TEXT
        if _overlap_texts(text, other_text) < least:
            return False
        # The words of a tool's name and service must be among all words of the other tool.
        naming_words, other_naming_words = text.service | short_name, other_text.service | other_short_name
        words = self.services.spellings[source] | name | text.words
        other_words = self.services.spellings[other_source] | other_name | other_text.words
        agree = naming_words <= other_words and other_naming_words <= words
        return agree and _overlap(self.parameters.read(one), self.parameters.read(other)) >= MIN_SAME_PARAMETERS

    def are_same_in_public(self, one: int, other: int) -> bool:
        """Tell whether two tools with the same public subject are the same, whatever their sources are."""
        text, other_text = self.services.read_text(one), self.services.read_text(other)
        if _overlap_texts(text, other_text) < MIN_SAME_TEXT_OF_NAMESAKES:
            return False
        words, other_words = self.names.read(one) | text.words, self.names.read(other) | other_text.words
        agree = text.service <= other_words and other_text.service <= words  # each names the other's service too
        required, other_required = self.required.read(one), self.required.read(other)
        # Weather by city is not weather by coordinates.
        can_call_both = required == other_required or not required or not other_required
        return agree and can_call_both


def _find_same(catalogue: Catalogue) -> list[tuple[int, int]]:
    """Return the pairs of positions of tools that are the same, the smaller position first."""
    readings = _ToolReadings(catalogue)
    same = {pair for pair in _list_candidates(readings) if readings.are_same(*pair)}
    return sorted(same | _find_forked(readings) | _find_public(readings))


def _find_public(readings: _ToolReadings) -> set[tuple[int, int]]:
    """Return the same tools among those with a public subject, from any two sources.

    Only tools with the same name are compared. Words of the source, words such as "browser" and verbs such as "get" do
    not count as parts of a name.
    """
    sources, services = readings.sources, readings.services
    plain_verbs = services.number_words(tokenize(" ".join(list_words("duplicates.plain_verbs"))))
    browsers = services.number_words(tokenize(" ".join(list_words("duplicates.browsers"))))
    namesakes: dict[frozenset[int], list[int]] = defaultdict(list)  # words of a name → positions of tools
    pairs: set[tuple[int, int]] = set()
    for position, subject in _find_subjects(readings):
        source_words = services.words[sources[position]] - subject
        name = readings.names.read(position) - browsers - source_words
        name = name - plain_verbs or name  # a name of verbs alone keeps them
        for other in namesakes[name]:
            if sources[other] != sources[position] and readings.are_same_in_public(other, position):
                pairs.add((other, position))
        if len(namesakes[name]) < limit_holders(len(sources)):
            namesakes[name].append(position)
    return pairs


def _find_subjects(readings: _ToolReadings) -> Iterator[tuple[int, frozenset[int]]]:
    """Yield (position, words of its public subjects) for each tool whose name or description has any, ascending."""
    subjects = [
        readings.services.number_words(tokenize(subject)) for subject in list_words("duplicates.public_subjects")
    ]
    has_word = {
        word: readings.names.find_holders(word) | readings.words.find_holders(word)
        for word in frozenset().union(*subjects)
    }
    has_subject = [np.logical_and.reduce([has_word[word] for word in subject]) for subject in subjects]  # (tools,) each
    for position in np.flatnonzero(np.logical_or.reduce(has_subject)).tolist():
        tool_subjects = (subject for subject, has in zip(subjects, has_subject, strict=True) if has[position])
        yield position, frozenset().union(*tool_subjects)


def _find_forked(readings: _ToolReadings) -> set[tuple[int, int]]:
    """Return the same tools of forks: sources that have most of their tools in common, whatever they are called."""
    sources, n_tools = readings.sources, len(readings.sources)
    name_numbers: dict[frozenset[int], int] = {}
    names = (readings.names.read(position) for position in range(n_tools))
    groups = np.array([name_numbers.setdefault(name, len(name_numbers)) for name in names])
    candidates = pair_holders(groups, np.arange(n_tools), limit_holders(n_tools), readings.select_near(MIN_SAME_TEXT))
    same_tools: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)  # two sources → their same tools
    for earlier, later in candidates:
        for one, other in zip(earlier.tolist(), later.tolist(), strict=True):
            if readings.are_same(one, other, MIN_SAME_TEXT):
                source, other_source = sorted((sources[one], sources[other]))
                same_tools[source, other_source].append((one, other))
    sizes, has_long_text = Counter(sources), (readings.words.sizes >= MIN_FORKED_WORDS).tolist()
    forked: set[tuple[int, int]] = set()
    for (source, other_source), pairs in same_tools.items():
        min_tools = MIN_FORKED_SHARE * min(sizes[source], sizes[other_source])
        n_long = sum(has_long_text[one] and has_long_text[other] for one, other in pairs)
        if len(pairs) >= min_tools and n_long >= MIN_FORKED_TOOLS:
            forked.update(pairs)
    return forked


def _list_candidates(readings: _ToolReadings) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions of tools whose sources name the same service, and whose descriptions may agree."""
    # Each word that names a service is a group, and each tool is a member of the groups of its source's words.
    service_words = [readings.services.words[source] for source in readings.sources]
    groups = np.array([word for words in service_words for word in words])
    n_words = np.array([len(words) for words in service_words], dtype=np.int64)
    members = np.repeat(np.arange(len(service_words), dtype=np.int64), n_words)
    select = readings.select_near(MIN_SAME_TEXT_OF_NAMESAKES)
    for earlier, later in pair_holders(groups, members, limit_holders(len(readings.sources)), select):
        yield from zip(earlier.tolist(), later.tolist(), strict=True)


def _overlap_texts(one: DescriptionWords, other: DescriptionWords) -> float:
    """Return the Jaccard overlap of two descriptions without the names of their sources, 0 to 1."""
    # Without its source's name, "Add a Todoist task" of `todoist` is shorter than the equal text of `my-tasks`.
    if one.words == other.words:
        return 1.0 if one.words else 0.0
    return word_overlap(one.without_source, other.without_source)


def _overlap(one: frozenset[int], other: frozenset[int]) -> float:
    """Return the Jaccard overlap of two sets of parameters; 1 if one is empty, as many sources list no parameters."""
    return word_overlap(one, other) if one and other else 1.0
