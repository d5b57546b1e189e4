"""Near-duplicates: finds tools that imitate older ones, and sources that flood the catalogue.

A newer tool must not displace an older one, so only tools and sources of different age are compared.

* A tool is a *copy* of an older tool of another source if their descriptions are nearly the same, or if their names
  look alike (`toolscout.trust.confusables`) and their descriptions have much in common. If each names its own
  service and not the other's ("Create a contact in HubSpot", "… in Salesforce"), it is no copy.
* A tool is a *twin* of an older one if the names look alike and the descriptions are nearly the same, but too short to
  be sure.
* Nearly identical tools of one younger source form a *group*.
* A younger source is *scattered* if it has many unrelated tools. An honest server has one subject; a flood has many.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from toolscout.home.catalogue.store import Catalogue
from toolscout.search.relations.services import Services
from toolscout.search.relations.tool_words import read_tool_words
from toolscout.search.relations.word_sets import Places, WordSets, pair_holders, rank_by_rarity
from toolscout.trust.confusables import skeleton
from toolscout.types import Tool

__all__ = ["Rivals", "find_rivals", "limit_holders", "word_overlap"]

SAME_ARRIVAL_H: Final = 1.0  # sources added together are read one after the other; within so many hours none is older
MIN_SHARED: Final = 0.6  # overlap of words from which descriptions count as nearly the same
MIN_SHARED_OF_NAMESAKES: Final = 0.3  # smaller overlap that is enough if the names look alike
MIN_SHARED_IN_GROUP: Final = 0.8
MIN_DESCRIPTION_WORDS: Final = 4  # shorter descriptions say too little
MIN_SKELETON_CHARS: Final = 3
MAX_HOLDERS: Final = 500  # tools remembered for one word or name while pairs are formed, and
MAX_REMEMBERED: Final = 10_000_000  # of a large catalogue so few that tools times holders stays below this
MIN_HOLDERS: Final = 8
MIN_SCATTERED_TOOLS: Final = 20
MAX_RELATED_TOOLS: Final = 2_048  # of a source with more than twice as many, every n-th tool is looked at
MIN_COHERENCE: Final = 0.35  # mean cosine between tools; of 160 published MCP servers with as many tools, 156 are above
RIVALS_FORMAT: Final = "rivals/6"  # raise it whenever the result for an unchanged catalogue changes
COHERENCE_KEY: Final = f"coherence of {RIVALS_FORMAT}"

Rows = np.ndarray[Any, np.dtype[np.float32]]
Encode = Callable[[Sequence[Tool]], Rows]


class Rivals(msgspec.Struct, frozen=True):
    """The near-duplicates and scattered sources of one snapshot.

    Attributes:
        added: source → when it was added, ISO 8601, without sources of unknown age.
        copies: tool id → the older tool that it copies.
        twins: tool id → the older tool that it may copy.
        groups: tool id → the first of the nearly identical tools of its source.
        scattered: younger sources with unrelated tools.
    """

    added: dict[str, str] = {}
    copies: dict[str, str] = {}
    twins: dict[str, str] = {}
    groups: dict[str, str] = {}
    scattered: frozenset[str] = frozenset()

    @property
    def oldest(self) -> str:
        """When the first source was added."""
        return min(self.added.values(), default="")


def find_rivals(catalogue: Catalogue, encode: Encode) -> Rivals | None:
    """Return the rivals of a snapshot; None if all tools came at the same time.

    They are computed once for each generation.

    Args:
        catalogue: the snapshot.
        encode: returns the unit vectors of some tools, `(n, d)` float32. A tool without any word that the encoder
            knows has zeros.
    """
    if len(set(catalogue.added.values())) < 2 and len(set(catalogue.first_seen.values())) < 2:
        return None
    encoded = catalogue.load_or_build(
        RIVALS_FORMAT, lambda: msgspec.json.encode(_compare_tools(catalogue, encode), order="deterministic")
    )
    return msgspec.json.decode(encoded, type=Rivals)


class _Compared(NamedTuple):
    """What is compared of a tool, besides the words of its description."""

    id: str
    source: str
    name: str


def _compare_tools(catalogue: Catalogue, encode: Encode) -> Rivals:
    sources = [sys.intern(tool_id.partition("/")[0]) for tool_id in catalogue.ids]
    tools = [_Compared(*row) for row in zip(catalogue.ids, sources, catalogue.names, strict=True)]
    words = read_tool_words(catalogue)
    ages = _find_ages(catalogue, tools)
    texts = rank_by_rarity(words.compared, words.numbers)
    services = Services(sources, words)
    copies, groups = _compare_descriptions(catalogue, tools, texts, ages, services)
    twins = _compare_names(catalogue, tools, texts, ages, services, copies)
    coherence = _measure_coherence(catalogue, sources, encode)
    catalogue.pending[COHERENCE_KEY] = msgspec.json.encode(coherence)
    scattered = frozenset(source for source, measured in coherence.items() if measured < MIN_COHERENCE)
    return Rivals(dict(catalogue.added), copies, twins, groups, scattered)


def _measure_coherence(catalogue: Catalogue, sources: Sequence[str], encode: Encode) -> dict[str, float]:
    """Return the mean cosine between tools of each younger source that may be scattered.

    That of a source whose tools have not changed is taken over from the snapshot before.
    """
    samples = _Samples(catalogue)
    chosen = [position for position, source in enumerate(sources) if samples.take(source)]
    earlier, coherence = catalogue.earlier, dict[str, float]()
    if earlier is not None and (encoded := earlier.load_value(COHERENCE_KEY)):
        measured = msgspec.json.decode(encoded, type=dict[str, float])
        coherence = {source: measured[source] for source in earlier.sources if source in measured}
    spreads: dict[str, _SourceSpread] = defaultdict(_SourceSpread)
    positions = np.array([position for position in chosen if sources[position] not in coherence], dtype=np.intp)
    for batch in catalogue.batches(positions):
        for tool, row in zip(batch, encode(batch), strict=True):
            spreads[tool.source].add(row)
    coherence = {source: coherence[source] for source in {sources[position] for position in chosen} & set(coherence)}
    return dict(sorted((coherence | {source: spread.coherence for source, spread in spreads.items()}).items()))


class _Samples:
    """Chooses the tools that show how related those of a younger source are: all, or every n-th of a large source."""

    def __init__(self, catalogue: Catalogue) -> None:
        oldest = min(catalogue.added.values(), default="")
        sizes = Counter(tool_id.partition("/")[0] for tool_id in catalogue.ids)
        self._steps = {
            source: max(1, size // MAX_RELATED_TOOLS)
            for source, size in sizes.items()
            if size >= MIN_SCATTERED_TOOLS and catalogue.added.get(source, "") > oldest
        }
        self._seen: Counter[str] = Counter()

    def take(self, source: str) -> bool:
        """Tell whether the next tool of a source is one of them."""
        self._seen[source] += 1
        step = self._steps.get(source)
        return step is not None and (self._seen[source] - 1) % step == 0


class _SourceSpread:
    """How related the tools of one source are."""

    def __init__(self) -> None:
        self._sum: Any = 0.0
        self._count = 0

    def add(self, row: Rows) -> None:
        """Add the vector of a tool; zeros do not count."""
        if row.any():
            self._sum = self._sum + row.astype(np.float64)
            self._count += 1

    @property
    def coherence(self) -> float:
        """The mean cosine between two tools; 1 if there are too few."""
        if self._count < MIN_SCATTERED_TOOLS:
            return 1.0
        total = float(np.square(self._sum).sum())
        return (total - self._count) / (self._count * (self._count - 1))


def _compare_descriptions(
    catalogue: Catalogue, tools: Sequence[_Compared], texts: WordSets, ages: Mapping[str, str], services: Services
) -> tuple[dict[str, str], dict[str, str]]:
    """Find the copies and the groups of tools with nearly the same descriptions."""
    oldest = min(catalogue.added.values(), default="")
    copies: dict[str, str] = {}
    groups: dict[str, str] = {}
    for a, b, shared in _measure_pairs(texts, _find_similar_texts(texts), MIN_SHARED):
        one, second = tools[a], tools[b]
        if one.source != second.source:
            if not _are_of_two_services(services, tools, a, b):
                _note_copy(copies, catalogue, ages, one, second)
        elif shared >= MIN_SHARED_IN_GROUP and catalogue.added.get(one.source, "") > oldest:
            groups.setdefault(second.id, groups.get(one.id, one.id))
            groups.setdefault(one.id, groups[second.id])
    return copies, groups


def _measure_pairs(
    texts: WordSets, pairs: Iterable[tuple[Places, Places]], least: float = 0.0
) -> Iterator[tuple[int, int, float]]:
    """Yield the pairs whose words overlap by so much, each with the overlap."""
    for ones, others in pairs:
        shared = texts.measure_overlap(ones, others)
        near = shared >= least
        yield from zip(ones[near].tolist(), others[near].tolist(), shared[near].tolist(), strict=True)


def _compare_names(
    catalogue: Catalogue,
    tools: Sequence[_Compared],
    texts: WordSets,
    ages: Mapping[str, str],
    services: Services,
    copies: dict[str, str],
) -> dict[str, str]:
    """Add tools with names that look alike to `copies`, and return the twins."""
    twins: dict[str, str] = {}
    for a, b, shared in _measure_pairs(texts, _find_similar_names(tools, texts)):
        one, second = tools[a], tools[b]
        are_long = min(texts.sizes[a], texts.sizes[b]) >= MIN_DESCRIPTION_WORDS
        is_disguise = _is_disguised(one.name) != _is_disguised(second.name)
        if not is_disguise and _are_of_two_services(services, tools, a, b):
            continue
        if is_disguise or (are_long and shared >= MIN_SHARED_OF_NAMESAKES):
            _note_copy(copies, catalogue, ages, one, second)
        elif shared >= MIN_SHARED:
            _note_copy(twins, catalogue, ages, one, second)
    return {id: original for id, original in twins.items() if id not in copies}


def _are_of_two_services(services: Services, tools: Sequence[_Compared], a: int, b: int) -> bool:
    """Tell whether two tools name two services, whose sources do not look alike."""
    return skeleton(tools[a].source) != skeleton(tools[b].source) and services.differ(a, b)


def _note_copy(
    originals: dict[str, str], catalogue: Catalogue, ages: Mapping[str, str], one: _Compared, second: _Compared
) -> None:
    """Note the older tool as the original of the younger one, unless they arrived together.

    Of several originals the oldest is kept.
    """
    older, younger = sorted((one.id, second.id), key=lambda id: ages[id])
    same_arrival = catalogue.added.get(one.source) == catalogue.added.get(second.source) and (
        _hours_between(ages[older], ages[younger]) < SAME_ARRIVAL_H
    )
    if ages[older] < ages[younger] and not same_arrival:
        originals[younger] = min(originals.get(younger, older), older, key=lambda id: (ages[id], id))


def _find_ages(catalogue: Catalogue, tools: Sequence[_Compared]) -> dict[str, str]:
    """Return id → when the tool was first approved, or else when its source was added, as `TIME` or `TIME more`."""
    return {tool.id: catalogue.first_seen.get(tool.id) or catalogue.added.get(tool.source, "") for tool in tools}


def _hours_between(older: str, younger: str) -> float:
    """Return the hours between the times at which two tools arrived; see `_find_ages`. 0 if one has no time."""
    try:
        start, end = (datetime.fromisoformat(age.partition(" ")[0].replace("Z", "+00:00")) for age in (older, younger))
    except ValueError:
        return 0.0
    return (end - start).total_seconds() / 3600


def _is_disguised(name: str) -> bool:
    """Tell whether a name has letters outside ASCII, which may look like others, or marks at its ends."""
    return not name.isascii() or not (name[:1].isalnum() and name[-1:].isalnum())


def limit_holders(n_tools: int) -> int:
    """Return how many tools are remembered for one word or name, so that the pairs do not grow with the square."""
    return max(MIN_HOLDERS, min(MAX_HOLDERS, MAX_REMEMBERED // max(1, n_tools)))


def word_overlap(one: AbstractSet[Hashable], other: AbstractSet[Hashable]) -> float:
    """Return the Jaccard overlap of two sets of words, 0 to 1."""
    count = len(one & other)
    return count / (len(one) + len(other) - count) if count else 0.0


def _find_similar_texts(texts: WordSets) -> Iterator[tuple[Places, Places]]:
    """Yield pairs of descriptions that may share `MIN_SHARED` of their words, as positions, the smaller one first.

    Two sets that share so many words have a word in common among the rarest of each (prefix filtering), and nearly the
    same size. Only these words are indexed, so that not every pair must be compared.

    Args:
        texts: with the rarest words first; see `rank_by_rarity`.
    """
    sizes, owners = texts.sizes, texts.list_owners()
    prefixes = sizes - np.ceil(MIN_SHARED * sizes).astype(np.int64) + 1
    places = np.arange(len(owners)) - texts.ends[owners]
    chosen = (places < prefixes[owners]) & (sizes[owners] >= MIN_DESCRIPTION_WORDS)

    def select(ones: Places, others: Places) -> np.ndarray[Any, np.dtype[np.bool_]]:
        smallest, largest = MIN_SHARED * sizes[others], sizes[others] / MIN_SHARED
        near = (smallest <= sizes[ones]) & (sizes[ones] <= largest)
        near[near] = texts.may_overlap(ones[near], others[near], MIN_SHARED)
        return near

    yield from pair_holders(texts.words[chosen], owners[chosen], limit_holders(len(texts)), select)


def _find_similar_names(tools: Sequence[_Compared], texts: WordSets) -> Iterator[tuple[Places, Places]]:
    """Yield pairs of tools of different sources with names that look alike, as positions.

    Pairs with too few words in common are left out, unless one of the names is disguised.
    """
    shapes: dict[str, int] = {}
    sources: dict[str, int] = {}
    groups = np.array([shapes.setdefault(skeleton(tool.name), len(shapes)) for tool in tools], dtype=np.int64)
    source_of = np.array([sources.setdefault(tool.source, len(sources)) for tool in tools], dtype=np.int64)
    disguised = np.array([_is_disguised(tool.name) for tool in tools], dtype=np.bool_)
    is_long = np.array([len(shape) >= MIN_SKELETON_CHARS for shape in shapes], dtype=np.bool_)
    members = np.flatnonzero(is_long[groups]) if len(tools) else groups

    def select(ones: Places, others: Places) -> np.ndarray[Any, np.dtype[np.bool_]]:
        near: np.ndarray[Any, np.dtype[np.bool_]] = disguised[ones] != disguised[others]
        near |= texts.may_overlap(ones, others, MIN_SHARED_OF_NAMESAKES)
        near &= source_of[ones] != source_of[others]
        return near

    yield from pair_holders(groups[members], members, limit_holders(len(tools)), select)
