"""Finds near-duplicates (*rivals*): tools that imitate others, and sources whose tools say nothing but their names.

Nothing here depends on when a source was added, so the order in which sources are added changes no answer.

* A tool is a *copy* of a tool of another source if their descriptions are nearly the same, or if their names look alike
  (`toolscout.trust.confusables`) and their descriptions have much in common. If each names its own service and not the
  other's ("Create a contact in HubSpot", "… in Salesforce"), neither is a copy. The original is the tool without a
  disguised name (with letters that look like others), or else the tool that names its own service, or else the tool of
  the source that imitates the other source less: an imitation consists of copies, and the original has other tools
  besides. If all are equal, neither is a copy.
* A tool is a *twin* of another if the names look alike and the descriptions are nearly the same, but too short to be
  sure.
* A source is *hollow* if it has many tools that differ in little but their names: they say nothing besides, or all take
  the same parameters. Of 173 published MCP servers and datasets with as many tools, none is hollow.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import msgspec
import numpy as np

from toolscout.arrays import Mask
from toolscout.home.catalogue.store import Catalogue
from toolscout.search.relations.services import Services
from toolscout.search.relations.tool_words import ToolWords, read_tool_words
from toolscout.search.relations.word_sets import Places, WordSets, pair_holders, rank_by_rarity
from toolscout.trust.confusables import skeleton

__all__ = ["Rivals", "find_rivals", "limit_holders", "word_overlap"]

MIN_SHARED: Final = 0.6  # overlap of words from which descriptions count as nearly the same
MIN_SHARED_OF_NAMESAKES: Final = 0.3  # smaller overlap that is enough if the names look alike
MIN_DESCRIPTION_WORDS: Final = 4  # shorter descriptions say too little
MIN_SKELETON_CHARS: Final = 3
MAX_HOLDERS: Final = 500  # tools with the same word or name (its holders) that each of them is paired with at most,
MAX_REMEMBERED: Final = 10_000_000  # and in a large catalogue so few that tools times holders stays below this,
MIN_HOLDERS: Final = 8  # but never fewer
MIN_IMITATED_SHARE: Final = 0.5  # share of a source's tools that are like those of one other source
MIN_HOLLOW_TOOLS: Final = 20
MIN_HOLLOW_SHARE: Final = 0.75  # share of a source's tools that differ in nothing but their names
MAX_HOLLOW_WORDS: Final = 2  # of a description that says nothing but the name: "Handles today."
RIVALS_FORMAT: Final = "rivals/7"  # raise it whenever the result for an unchanged catalogue changes


class Rivals(msgspec.Struct, frozen=True):
    """The near-duplicates and hollow sources of one snapshot.

    Attributes:
        copies: tool id → the tool that it copies.
        twins: tool id → the tool that it may copy.
        hollow: sources with many tools that say nothing but their names.
    """

    copies: dict[str, str] = {}
    twins: dict[str, str] = {}
    hollow: frozenset[str] = frozenset()


def find_rivals(catalogue: Catalogue) -> Rivals:
    """Return the near-duplicates and hollow sources of a snapshot. They are computed once for each generation."""
    encoded = catalogue.load_or_build(
        RIVALS_FORMAT, lambda: msgspec.json.encode(_compare_tools(catalogue), order="deterministic")
    )
    return msgspec.json.decode(encoded, type=Rivals)


class _Pair(NamedTuple):
    """Two similar tools of different sources, as positions. `is_twin`: their descriptions are too short to be sure."""

    one: int
    other: int
    is_twin: bool


def _compare_tools(catalogue: Catalogue) -> Rivals:
    """Compare all tools of a snapshot, and tell for each two similar ones which is the original."""
    sources = [sys.intern(tool_id.partition("/")[0]) for tool_id in catalogue.ids]
    words = read_tool_words(catalogue)
    texts = rank_by_rarity(words.compared, words.numbers)
    services = Services(sources, words)
    pairs = [
        *_compare_descriptions(sources, texts, services),
        *_compare_names(sources, catalogue.names, texts, services),
    ]
    chooser = _OriginalChooser(sources, catalogue.names, services, pairs)
    copies, twins = dict[str, str](), dict[str, str]()
    for pair in pairs:
        ordered = chooser.order(pair)
        if ordered is None:
            continue
        original, copy = (catalogue.ids[position] for position in ordered)
        originals = twins if pair.is_twin else copies
        originals[copy] = min(originals.get(copy, original), original)  # of several, the first by id
    only_twins = {tool_id: original for tool_id, original in twins.items() if tool_id not in copies}
    return Rivals(copies, only_twins, _find_hollow_sources(sources, words))


class _CopyEvidence(NamedTuple):
    """The evidence that a tool is the copy of another, the strongest first, so that tuples can be compared.

    Attributes:
        is_disguised: its name has letters that look like others.
        names_no_service: its description does not name its service.
        share: share of its source's tools that are like tools of the other source.
    """

    is_disguised: bool
    names_no_service: bool
    share: float


class _OriginalChooser:
    """Tells which of two similar tools is the original, by evidence that does not depend on their age."""

    def __init__(
        self, sources: Sequence[str], names: Sequence[str], services: Services, pairs: Iterable[_Pair]
    ) -> None:
        """Count the similar tools of each two sources. `sources` and `names` are those of each tool, by position."""
        self._sources, self._names, self._services = sources, names, services
        self._sizes = Counter(sources)
        self._alike = defaultdict[tuple[str, str], set[int]](set)  # two sources → tools of the first like the second's
        for one, other, _ in pairs:
            self._alike[sources[one], sources[other]].add(one)
            self._alike[sources[other], sources[one]].add(other)

    def order(self, pair: _Pair) -> tuple[int, int] | None:
        """Return the positions of the original and of its copy; None: neither is a copy."""
        evidence = self._collect_evidence(pair.one, rival=pair.other)
        other_evidence = self._collect_evidence(pair.other, rival=pair.one)
        if evidence == other_evidence:
            return None
        original, copy = (pair.one, pair.other) if evidence < other_evidence else (pair.other, pair.one)
        against_copy = max(evidence, other_evidence)
        is_copy = against_copy.is_disguised or against_copy.share >= MIN_IMITATED_SHARE
        return (original, copy) if is_copy else None

    def _collect_evidence(self, tool: int, rival: int) -> _CopyEvidence:
        source = self._sources[tool]
        share = len(self._alike[source, self._sources[rival]]) / self._sizes[source]
        names_no_service = not self._services.read_text(tool).service
        return _CopyEvidence(_is_disguised(self._names[tool]), names_no_service, share)


def _find_hollow_sources(sources: Sequence[str], words: ToolWords) -> frozenset[str]:
    """Find the sources whose tools differ in nothing but their names."""
    sizes = Counter(sources)
    groups = defaultdict[str, Counter[frozenset[int]]](Counter)  # source → parameters → tools with these
    for position, source in enumerate(sources):
        if sizes[source] < MIN_HOLLOW_TOOLS:
            continue
        parameters = words.parameters.read(position)
        # Tools without parameters differ by their descriptions, unless these have hardly any words.
        if parameters or words.compared.sizes[position] <= MAX_HOLLOW_WORDS:
            groups[source][parameters] += 1
    return frozenset(
        source for source, counts in groups.items() if max(counts.values()) >= MIN_HOLLOW_SHARE * sizes[source]
    )


def _measure_pairs(
    texts: WordSets, pairs: Iterable[tuple[Places, Places]], least: float = 0.0
) -> Iterator[tuple[int, int, float]]:
    """Yield (one, other, overlap) for the pairs whose words have a Jaccard overlap of at least `least`.

    `pairs` come in batches of two arrays: positions of the first tool of each pair, and of the second.
    """
    for ones, others in pairs:
        overlaps = texts.measure_overlap(ones, others)
        near = overlaps >= least
        yield from zip(ones[near].tolist(), others[near].tolist(), overlaps[near].tolist(), strict=True)


def _compare_descriptions(sources: Sequence[str], texts: WordSets, services: Services) -> Iterator[_Pair]:
    """Yield the tools of different sources with nearly the same descriptions."""
    for one, other, _ in _measure_pairs(texts, _find_similar_texts(texts), MIN_SHARED):
        if sources[one] != sources[other] and not _are_of_two_services(services, sources, one, other):
            yield _Pair(one, other, is_twin=False)


def _compare_names(
    sources: Sequence[str], names: Sequence[str], texts: WordSets, services: Services
) -> Iterator[_Pair]:
    """Yield the tools of different sources with names that look alike, and descriptions that have much in common."""
    for one, other, overlap in _measure_pairs(texts, _find_similar_names(sources, names, texts)):
        are_long = min(texts.sizes[one], texts.sizes[other]) >= MIN_DESCRIPTION_WORDS
        is_disguise = _is_disguised(names[one]) != _is_disguised(names[other])
        if not is_disguise and _are_of_two_services(services, sources, one, other):
            continue
        if is_disguise or (are_long and overlap >= MIN_SHARED_OF_NAMESAKES):
            yield _Pair(one, other, is_twin=False)
        elif overlap >= MIN_SHARED:
            yield _Pair(one, other, is_twin=True)


def _are_of_two_services(services: Services, sources: Sequence[str], one: int, other: int) -> bool:
    """Tell whether two tools name two services, and the names of their sources do not look alike."""
    return skeleton(sources[one]) != skeleton(sources[other]) and services.differ(one, other)


def _is_disguised(name: str) -> bool:
    """Tell whether a name has letters outside ASCII, which may look like others, or punctuation at its ends."""
    has_plain_ends = name[:1].isalnum() and name[-1:].isalnum()
    return not name.isascii() or not has_plain_ends


def limit_holders(n_tools: int) -> int:
    """Return how many tools with the same word or name a tool is paired with, so that pairs do not grow squared."""
    return max(MIN_HOLDERS, min(MAX_HOLDERS, MAX_REMEMBERED // max(1, n_tools)))


def word_overlap(one: AbstractSet[Hashable], other: AbstractSet[Hashable]) -> float:
    """Return the Jaccard overlap of two sets of words, 0 to 1."""
    n_shared = len(one & other)
    return n_shared / (len(one) + len(other) - n_shared) if n_shared else 0.0


def _find_similar_texts(texts: WordSets) -> Iterator[tuple[Places, Places]]:
    """Yield pairs of descriptions that may have an overlap of `MIN_SHARED`, as positions, the smaller one first.

    The pairs come in batches of two arrays. Two sets with so large an overlap have one of their rarest words in common
    (prefix filtering), so only sets with a common rare word are compared. `texts` have the rarest words first.
    """
    sizes, owners = texts.sizes, texts.list_owners()
    n_rarest = sizes - np.ceil(MIN_SHARED * sizes).astype(np.int64) + 1  # words of each set of which one must be shared
    ranks_in_set = np.arange(len(owners)) - texts.ends[owners]  # of each word; 0 for the rarest
    indexed = (ranks_in_set < n_rarest[owners]) & (sizes[owners] >= MIN_DESCRIPTION_WORDS)

    def select(ones: Places, others: Places) -> Mask:
        smallest, largest = MIN_SHARED * sizes[others], sizes[others] / MIN_SHARED
        selected = (smallest <= sizes[ones]) & (sizes[ones] <= largest)
        selected[selected] = texts.may_overlap(ones[selected], others[selected], MIN_SHARED)
        return selected

    yield from pair_holders(texts.words[indexed], owners[indexed], limit_holders(len(texts)), select)


def _find_similar_names(
    tool_sources: Sequence[str], names: Sequence[str], texts: WordSets
) -> Iterator[tuple[Places, Places]]:
    """Yield pairs of tools of different sources with names that look alike, as positions, in batches of two arrays.

    Pairs with too few words in common are left out, unless one of the names is disguised.
    """
    skeletons = [skeleton(name) for name in names]  # the same for names that look alike
    skeleton_numbers = {text: number for number, text in enumerate(dict.fromkeys(skeletons))}
    source_numbers = {source: number for number, source in enumerate(dict.fromkeys(tool_sources))}
    groups = np.array([skeleton_numbers[text] for text in skeletons], dtype=np.int64)
    sources = np.array([source_numbers[source] for source in tool_sources], dtype=np.int64)
    is_disguised = np.array([_is_disguised(name) for name in names], dtype=np.bool_)
    is_long = np.array([len(text) >= MIN_SKELETON_CHARS for text in skeletons], dtype=np.bool_)
    members = np.flatnonzero(is_long)

    def select(ones: Places, others: Places) -> Mask:
        one_is_disguised: Mask = is_disguised[ones] != is_disguised[others]
        may_overlap = texts.may_overlap(ones, others, MIN_SHARED_OF_NAMESAKES)
        selected: Mask = (one_is_disguised | may_overlap) & (sources[ones] != sources[others])
        return selected

    yield from pair_holders(groups[members], members, limit_holders(len(names)), select)
