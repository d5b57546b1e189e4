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
    same: dict[int, set[int]] = {}  # position → positions of the tools that are the same
    for one, other in _find_same(catalogue):
        same.setdefault(one, set()).add(other)
        same.setdefault(other, set()).add(one)
    ranks = {source: rank for rank, source in enumerate(preferred)}
    sizes = Counter(tool_id.partition("/")[0] for tool_id in ids)
    n_same = Counter(ids[position].partition("/")[0] for position in same)  # source → its tools that others have too

    def rank_tool(position: int) -> tuple[int, float, str]:
        """Put preferred sources first, then those with the smaller share of tools that others have too."""
        tool_id = ids[position]
        source = tool_id.partition("/")[0]
        return ranks.get(source, len(ranks)), n_same[source] / sizes[source], tool_id

    duplicates = Duplicates({}, {})
    for position in sorted(same, key=rank_tool):
        ungrouped = [other for other in same[position] if ids[other] not in duplicates.first]
        if ids[position] in duplicates.first or not ungrouped:
            continue
        members = tuple(ids[member] for member in (position, *sorted(ungrouped, key=rank_tool)))
        duplicates.groups[members[0]] = members
        duplicates.first.update(dict.fromkeys(members, members[0]))
    return duplicates


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
        """Return a function that tells for pairs of tools, given by positions, whether they may be the same.

        They may if they are of different sources, and if their descriptions are equal (checksums) or may overlap by
        `least` without the names of the sources.
        """

        def select(ones: Places, others: Places) -> npt.NDArray[np.bool_]:
            chosen: npt.NDArray[np.bool_] = self.source_numbers[ones] != self.source_numbers[others]
            ones, others = ones[chosen], others[chosen]  # only pairs of two sources are looked at further
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
        source, other_source = self.sources[one], self.sources[other]
        text, other_text = self.services.read_text(one), self.services.read_text(other)
        name, other_name = self.names.read(one), self.names.read(other)
        short_name = name - self.services.words[source]
        other_short_name = other_name - self.services.words[other_source]
        least = least_of_namesakes if short_name == other_short_name else MIN_SAME_TEXT
        if _overlap_texts(text, other_text) < least:
            return False
        # What a tool calls itself, its service and its name, must be among the words that the other one has.
        ours, theirs = text.service | short_name, other_text.service | other_short_name
        words = self.services.spellings[source] | name | text.words
        other_words = self.services.spellings[other_source] | other_name | other_text.words
        agree = ours <= other_words and theirs <= words
        return agree and _overlap(self.parameters.read(one), self.parameters.read(other)) >= MIN_SAME_PARAMETERS

    def are_same_in_public(self, one: int, other: int) -> bool:
        """Tell whether two tools with the same public subject are the same, whatever their sources are.

        They must require the same parameters, unless one requires none: weather by city is not weather by coordinates.
        """
        text, other_text = self.services.read_text(one), self.services.read_text(other)
        if _overlap_texts(text, other_text) < MIN_SAME_TEXT_OF_NAMESAKES:
            return False
        name, other_name = self.names.read(one), self.names.read(other)
        agree = text.service <= other_name | other_text.words and other_text.service <= name | text.words
        required, other_required = self.required.read(one), self.required.read(other)
        return agree and (required == other_required or not required or not other_required)


def _find_same(catalogue: Catalogue) -> list[tuple[int, int]]:
    """Return the pairs of positions of tools that are the same, the smaller position first."""
    readings = _ToolReadings(catalogue)
    same = {pair for pair in _list_candidates(readings) if readings.are_same(*pair)}
    return sorted(same | _find_forked(readings) | _find_public(readings))


def _find_public(readings: _ToolReadings) -> set[tuple[int, int]]:
    """Return the same tools among those with a public subject, from any two sources.

    Only tools with the same name are compared. Left out of a name are words of its source, words such as "browser" and
    verbs such as "get", unless it consists of verbs.
    """
    verbs, browsers = (
        readings.services.number_words(tokenize(" ".join(sorted(list_words(f"duplicates.{entry}")))))
        for entry in ("plain_verbs", "browsers")
    )
    namesakes: dict[frozenset[int], list[int]] = defaultdict(list)  # words of a name → positions of tools
    pairs: set[tuple[int, int]] = set()
    for position, subject in _find_subjects(readings):
        if not subject:
            continue
        source_words = readings.services.words[readings.sources[position]] - subject
        name = readings.names.read(position) - (browsers | source_words)
        key = name - verbs or name
        pairs |= {
            (other, position)
            for other in namesakes[key]
            if readings.sources[other] != readings.sources[position] and readings.are_same_in_public(other, position)
        }
        if len(namesakes[key]) < limit_holders(len(readings.sources)):
            namesakes[key].append(position)
    return pairs


def _find_subjects(readings: _ToolReadings) -> Iterator[tuple[int, frozenset[int]]]:
    """Yield (position, words of its public subjects) for each tool that may have any, ascending."""
    subjects = [
        readings.services.number_words(tokenize(subject)) for subject in list_words("duplicates.public_subjects")
    ]
    has_word = {
        word: readings.names.find_holders(word) | readings.words.find_holders(word)
        for word in frozenset().union(*subjects)
    }
    has_subject = [np.logical_and.reduce([has_word[word] for word in subject]) for subject in subjects]  # (tools,) each
    for position in np.flatnonzero(np.logical_or.reduce(has_subject)).tolist():
        own = (subject for subject, has in zip(subjects, has_subject, strict=True) if has[position])
        yield position, frozenset().union(*own)


def _find_forked(readings: _ToolReadings) -> set[tuple[int, int]]:
    """Return the same tools of forks: sources that have most of their tools in common, whatever they are called."""
    sources, sizes = readings.sources, Counter(readings.sources)
    groups: dict[frozenset[int], int] = {}  # words of a name → number of the group of tools with this name
    group_of = np.array([groups.setdefault(readings.names.read(tool), len(groups)) for tool in range(len(sources))])
    pairs_of: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)  # two sources → their same tools
    is_long = readings.words.sizes >= MIN_FORKED_WORDS
    all_tools, most = np.arange(len(sources)), limit_holders(len(sources))
    for earlier, later in pair_holders(group_of, all_tools, most, readings.select_near(MIN_SAME_TEXT)):
        for one, other in zip(earlier.tolist(), later.tolist(), strict=True):
            if readings.are_same(one, other, MIN_SAME_TEXT):
                source, other_source = sorted((sources[one], sources[other]))
                pairs_of[source, other_source].append((one, other))
    return {
        pair
        for (source, other_source), pairs in pairs_of.items()
        if len(pairs) >= MIN_FORKED_SHARE * min(sizes[source], sizes[other_source])
        and sum(bool(is_long[one] and is_long[other]) for one, other in pairs) >= MIN_FORKED_TOOLS
        for pair in pairs
    }


def _list_candidates(readings: _ToolReadings) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions of tools whose sources name the same service, and whose descriptions may agree."""
    words_of_source = [sorted(words) for words in readings.services.words.values()]
    counts = np.array([len(words) for words in words_of_source], dtype=np.int64)[readings.source_numbers]
    # Each tool is a member of as many groups as its source has words: `github-mcp` puts its tools into `github`.
    members = np.repeat(np.arange(len(readings.source_numbers), dtype=np.int64), counts)
    groups = np.array([word for number in readings.source_numbers.tolist() for word in words_of_source[number]])
    select = readings.select_near(MIN_SAME_TEXT_OF_NAMESAKES)
    for earlier, later in pair_holders(groups, members, limit_holders(len(readings.sources)), select):
        yield from zip(earlier.tolist(), later.tolist(), strict=True)


def _overlap_texts(one: DescriptionWords, other: DescriptionWords) -> float:
    """Return the Jaccard overlap of two descriptions without the names of their sources, 0 to 1.

    It is 1 if they are the same with these names. For the description "Add a Todoist task" is shortened in the source
    `todoist`, and not in the source `my-tasks`.
    """
    if one.words == other.words:
        return 1.0 if one.words else 0.0
    return word_overlap(one.without_source, other.without_source)


def _overlap(one: frozenset[int], other: frozenset[int]) -> float:
    """Return the Jaccard overlap of two sets of parameters; 1 if a source gives none, as many leave them out."""
    return word_overlap(one, other) if one and other else 1.0
