"""Tools that imitate others, and sources that flood: what came later must not displace what was there before.

Only tools and sources of different age are compared. A tool is a *copy* of an older one of another source if their
descriptions are nearly the same, or if their names look alike (`toolscout.confusables`) and their descriptions have
much in common. It is a *twin* if their names look alike and their descriptions, though nearly the same, are too short
to tell. Tools of one younger source that are nearly the same form a *group*. A younger source is *scattered* if it
brings many tools about all sorts of things: servers are about something, floods are about whatever people ask for.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import numpy as np

from toolscout.confusables import skeleton
from toolscout.indexes.words import tokenize
from toolscout.store import Catalogue
from toolscout.types import Tool

__all__ = ["Rivals", "find_rivals"]

SAME_ARRIVAL_H: Final = 1.0
"""Sources of one file answer at different times: within so many hours none of them is the older."""
MIN_SHARED: Final = 0.6  # share of words in common from which descriptions are nearly the same
MIN_SHARED_OF_NAMESAKES: Final = 0.3  # where the names look alike
MIN_SHARED_IN_GROUP: Final = 0.8
MIN_DESCRIPTION_WORDS: Final = 4  # fewer tell nothing
MIN_SKELETON_CHARS: Final = 3
MAX_HOLDERS: Final = 500  # of a word that is looked up; commoner words find no pairs
MIN_SCATTERED_TOOLS: Final = 20
MIN_COHERENCE: Final = 0.35  # mean cosine between tools; of 160 published MCP servers with as many tools, 156 are above
FORMAT: Final = "rivals/1"  # to be raised whenever the same catalogue would be judged otherwise

Rows = np.ndarray[Any, np.dtype[np.float32]]


class Rivals(msgspec.Struct, frozen=True):
    """What stands behind what, in one snapshot.

    Attributes:
        added: source → when it was added, ISO 8601; sources of unknown age are not there.
        copies: tool id → the older tool that it copies.
        twins: tool id → the older tool that it may copy.
        groups: tool id → the first of the nearly identical tools of its source.
        scattered: younger sources whose tools are about all sorts of things.
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
    """The rivals of a snapshot, found once for each generation; None if all tools came at the same time.

    Args:
        catalogue: the snapshot.
        rows: makes the unit vectors of its tools, in the order of its ids; zeros for what the encoder does not know.
    """
    if len(set(catalogue.added.values())) < 2 and len(set(catalogue.first_seen.values())) < 2:
        return None
    found = catalogue.cached(FORMAT, lambda: msgspec.json.encode(_compare(catalogue, rows())))
    return msgspec.json.decode(found, type=Rivals)


def _compare(catalogue: Catalogue, rows: Rows) -> Rivals:
    tools = catalogue.tools()
    age = {tool.id: catalogue.first_seen.get(tool.id) or catalogue.added.get(tool.source, "") for tool in tools}
    oldest = min(catalogue.added.values(), default="")
    words = [frozenset(tokenize(tool.description[:4000])) for tool in tools]
    copies: dict[str, str] = {}
    twins: dict[str, str] = {}
    groups: dict[str, str] = {}

    def note_copy(into: dict[str, str], one: Tool, other: Tool) -> None:
        older, younger = (one, other) if age[one.id] < age[other.id] else (other, one)
        arrived_together = catalogue.added.get(one.source) == catalogue.added.get(other.source) and (
            _hours_between(age[older.id], age[younger.id]) < SAME_ARRIVAL_H
        )
        if age[older.id] < age[younger.id] and not arrived_together:
            held = into.get(younger.id)
            into[younger.id] = older.id if held is None else min(held, older.id, key=lambda each: (age[each], each))

    for a, b in _pairs_of_words(words):
        one, other, shared = tools[a], tools[b], _shared(words[a], words[b])
        if one.source != other.source:
            if shared >= MIN_SHARED:
                note_copy(copies, one, other)
        elif shared >= MIN_SHARED_IN_GROUP and catalogue.added.get(one.source, "") > oldest:
            groups.setdefault(other.id, groups.get(one.id, one.id))
            groups.setdefault(one.id, groups[other.id])
    for a, b in _pairs_of_names(tools):
        one, other, shared = tools[a], tools[b], _shared(words[a], words[b])
        telling = min(len(words[a]), len(words[b])) >= MIN_DESCRIPTION_WORDS
        if _is_disguised(one.name) != _is_disguised(other.name) or (telling and shared >= MIN_SHARED_OF_NAMESAKES):
            note_copy(copies, one, other)
        elif shared >= MIN_SHARED:
            note_copy(twins, one, other)
    twins = {id: original for id, original in twins.items() if id not in copies}
    scattered = _find_scattered(catalogue, rows, oldest)
    return Rivals(dict(catalogue.added), copies, twins, groups, scattered)


def _hours_between(older: str, younger: str) -> float:
    """Hours between two ages, which begin with an instant; 0 where one has none."""
    try:
        start, end = (datetime.fromisoformat(age.partition(" ")[0].replace("Z", "+00:00")) for age in (older, younger))
    except ValueError:
        return 0.0
    return (end - start).total_seconds() / 3600


def _is_disguised(name: str) -> bool:
    """Whether a name has letters that look like others, or marks at its ends."""
    return not name.isascii() or not (name[:1].isalnum() and name[-1:].isalnum())


def _shared(one: frozenset[str], other: frozenset[str]) -> float:
    """Share of words in common, 0 to 1."""
    both = len(one & other)
    return both / (len(one) + len(other) - both) if both else 0.0


def _pairs_of_words(words: Sequence[frozenset[str]]) -> Iterator[tuple[int, int]]:
    """Pairs of descriptions that may share enough words: one of the rarest words of each is in both."""
    frequency = Counter(word for each in words for word in each)
    holders: dict[str, list[int]] = defaultdict(list)
    for number, each in enumerate(words):
        if len(each) < MIN_DESCRIPTION_WORDS:
            continue
        rarest = sorted(each, key=lambda word: (frequency[word], word))
        prefix = rarest[: len(each) - math.ceil(MIN_SHARED * len(each)) + 1]
        near = {other for word in prefix for other in holders[word]}
        yield from ((other, number) for other in sorted(near))
        for word in prefix:
            if len(holders[word]) < MAX_HOLDERS:
                holders[word].append(number)


def _pairs_of_names(tools: Sequence[Tool]) -> Iterator[tuple[int, int]]:
    """Pairs of tools of different sources whose names look alike."""
    namesakes: dict[str, list[int]] = defaultdict(list)
    for number, tool in enumerate(tools):
        bare = skeleton(tool.name)
        if len(bare) >= MIN_SKELETON_CHARS:
            yield from ((other, number) for other in namesakes[bare] if tools[other].source != tool.source)
            if len(namesakes[bare]) < MAX_HOLDERS:
                namesakes[bare].append(number)


def _find_scattered(catalogue: Catalogue, rows: Rows, oldest: str) -> frozenset[str]:
    """The younger sources whose tools have, on average, little to do with one another."""
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
    """The mean cosine between different rows."""
    count = len(rows)
    total = float(np.square(rows.sum(axis=0, dtype=np.float64)).sum())
    return (total - count) / (count * (count - 1))
