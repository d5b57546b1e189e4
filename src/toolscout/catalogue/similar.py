"""Near-duplicates: finds tools that imitate older ones, and sources that flood the catalogue.

A newer tool must not displace an older one, so only tools and sources of different age are compared.

* A tool is a *copy* of an older tool of another source if their descriptions are nearly the same, or if their names
  look alike (`toolscout.catalogue.confusables`) and their descriptions have much in common.
* A tool is a *twin* of an older one if the names look alike and the descriptions are nearly the same, but too short to
  be sure.
* Nearly identical tools of one younger source form a *group*.
* A younger source is *scattered* if it has many unrelated tools. An honest server has one subject; a flood has many.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import numpy as np

from toolscout.catalogue.confusables import skeleton
from toolscout.catalogue.store import Catalogue
from toolscout.indexes.words import tokenize
from toolscout.types import Tool

__all__ = ["Rivals", "find_rivals", "word_overlap"]

SAME_ARRIVAL_H: Final = 1.0  # sources added together are read one after the other; within so many hours none is older
MIN_SHARED: Final = 0.6  # overlap of words from which descriptions count as nearly the same
MIN_SHARED_OF_NAMESAKES: Final = 0.3  # smaller overlap that is enough if the names look alike
MIN_SHARED_IN_GROUP: Final = 0.8
MIN_DESCRIPTION_WORDS: Final = 4  # shorter descriptions say too little
MIN_SKELETON_CHARS: Final = 3
MAX_COMPARED_CHARS: Final = 4_000  # of each description
MAX_HOLDERS: Final = 500  # tools remembered for one word or name while pairs are formed
MIN_SCATTERED_TOOLS: Final = 20
MIN_COHERENCE: Final = 0.35  # mean cosine between tools; of 160 published MCP servers with as many tools, 156 are above
RIVALS_FORMAT: Final = "rivals/4"  # raise it whenever the result for an unchanged catalogue changes

Rows = np.ndarray[Any, np.dtype[np.float32]]


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


def find_rivals(catalogue: Catalogue, rows: Callable[[], Rows]) -> Rivals | None:
    """Return the rivals of a snapshot; None if all tools came at the same time.

    They are computed once for each generation.

    Args:
        catalogue: the snapshot.
        rows: returns the unit vectors of its tools, `(n, d)` float32, in the order of its ids. A tool without any word
            that the encoder knows has zeros.
    """
    if len(set(catalogue.added.values())) < 2 and len(set(catalogue.first_seen.values())) < 2:
        return None
    encoded = catalogue.load_or_build(RIVALS_FORMAT, lambda: msgspec.json.encode(_compare_tools(catalogue, rows())))
    return msgspec.json.decode(encoded, type=Rivals)


def _compare_tools(catalogue: Catalogue, rows: Rows) -> Rivals:
    tools = catalogue.tools()
    words = [_find_compared_words(tool) for tool in tools]
    oldest = min(catalogue.added.values(), default="")
    ages = _find_ages(catalogue, tools)
    copies, groups = _compare_descriptions(catalogue, tools, words, ages)
    twins = _compare_names(catalogue, tools, words, ages, copies)
    return Rivals(dict(catalogue.added), copies, twins, groups, _find_scattered(catalogue, rows, oldest))


def _find_compared_words(tool: Tool) -> frozenset[str]:
    """Return the words of a description without numbers: a flood may count its tools and change nothing else."""
    words = tokenize(tool.description[:MAX_COMPARED_CHARS])
    return frozenset(word for word in words if not word.isdecimal())


def _compare_descriptions(
    catalogue: Catalogue, tools: Sequence[Tool], words: Sequence[frozenset[str]], ages: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Find the copies and the groups of tools with nearly the same descriptions."""
    oldest = min(catalogue.added.values(), default="")
    copies: dict[str, str] = {}
    groups: dict[str, str] = {}
    for a, b in _find_similar_texts(words):
        one, second, shared = tools[a], tools[b], word_overlap(words[a], words[b])
        if one.source != second.source:
            if shared >= MIN_SHARED:
                _note_copy(copies, catalogue, ages, one, second)
        elif shared >= MIN_SHARED_IN_GROUP and catalogue.added.get(one.source, "") > oldest:
            groups.setdefault(second.id, groups.get(one.id, one.id))
            groups.setdefault(one.id, groups[second.id])
    return copies, groups


def _compare_names(
    catalogue: Catalogue,
    tools: Sequence[Tool],
    words: Sequence[frozenset[str]],
    ages: Mapping[str, str],
    copies: dict[str, str],
) -> dict[str, str]:
    """Add tools with names that look alike to `copies`, and return the twins."""
    twins: dict[str, str] = {}
    for a, b in _find_similar_names(tools):
        one, second, shared = tools[a], tools[b], word_overlap(words[a], words[b])
        are_long = min(len(words[a]), len(words[b])) >= MIN_DESCRIPTION_WORDS
        if _is_disguised(one.name) != _is_disguised(second.name) or (are_long and shared >= MIN_SHARED_OF_NAMESAKES):
            _note_copy(copies, catalogue, ages, one, second)
        elif shared >= MIN_SHARED:
            _note_copy(twins, catalogue, ages, one, second)
    return {id: original for id, original in twins.items() if id not in copies}


def _note_copy(
    originals: dict[str, str], catalogue: Catalogue, ages: Mapping[str, str], one: Tool, second: Tool
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


def _find_ages(catalogue: Catalogue, tools: Sequence[Tool]) -> dict[str, str]:
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


def word_overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard overlap of two sets of words, 0 to 1."""
    count = len(one & other)
    return count / (len(one) + len(other) - count) if count else 0.0


def _find_similar_texts(words: Sequence[frozenset[str]]) -> Iterator[tuple[int, int]]:
    """Yield pairs of descriptions that may share `MIN_SHARED` of their words, as positions, the smaller one first.

    Two sets that share so many words have a word in common among the rarest of each (prefix filtering), and nearly the
    same size. Only these words are indexed, so that not every pair must be compared.
    """
    sizes = [len(terms) for terms in words]
    frequency = Counter(word for terms in words for word in terms)
    holders: dict[str, list[int]] = defaultdict(list)
    for number, terms in enumerate(words):
        size = sizes[number]
        if size < MIN_DESCRIPTION_WORDS:
            continue
        smallest, largest = MIN_SHARED * size, size / MIN_SHARED
        rarest = sorted(terms, key=lambda word: (frequency[word], word))
        prefix = rarest[: size - math.ceil(MIN_SHARED * size) + 1]
        candidates = {other for word in prefix for other in holders[word] if smallest <= sizes[other] <= largest}
        yield from ((other, number) for other in sorted(candidates))
        for word in prefix:
            if len(holders[word]) < MAX_HOLDERS:
                holders[word].append(number)


def _find_similar_names(tools: Sequence[Tool]) -> Iterator[tuple[int, int]]:
    """Yield pairs of tools of different sources with names that look alike, as positions."""
    namesakes: dict[str, list[int]] = defaultdict(list)
    for number, tool in enumerate(tools):
        shape = skeleton(tool.name)
        if len(shape) >= MIN_SKELETON_CHARS:
            yield from ((other, number) for other in namesakes[shape] if tools[other].source != tool.source)
            if len(namesakes[shape]) < MAX_HOLDERS:
                namesakes[shape].append(number)


def _find_scattered(catalogue: Catalogue, rows: Rows, oldest: str) -> frozenset[str]:
    """Return the younger sources with tools that are, on average, unrelated."""
    members: dict[str, list[int]] = defaultdict(list)
    for position, tool_id in enumerate(catalogue.ids):
        source = tool_id.partition("/")[0]
        if catalogue.added.get(source, "") > oldest and rows[position].any():
            members[source].append(position)
    return frozenset(
        source
        for source, positions in members.items()
        if len(positions) >= MIN_SCATTERED_TOOLS and _coherence(rows[positions]) < MIN_COHERENCE
    )


def _coherence(rows: Rows) -> float:
    """Return the mean cosine between different rows, which have length 1."""
    count = len(rows)  # each row's cosine with itself is 1, so these cosines sum to `count`
    total = float(np.square(rows.sum(axis=0, dtype=np.float64)).sum())
    return (total - count) / (count * (count - 1))
