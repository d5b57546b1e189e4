"""Finds the tools of one server that differ in the action: `add_label` and `remove_label`.

The names decide. *Siblings* are equal but for a verb that `toolscout.search.actions.words` knows, and for words that
only join others: `add_to_cart`, `remove_from_cart`. A *pair* shares half of the other words or more, and one of the two
has no nearer opposite: `hideCommunityPost`, `restoreHiddenCommunityPost`.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from toolscout.encoders import split_identifiers
from toolscout.home.catalogue.store import Catalogue
from toolscout.search.actions.words import are_opposites, find_verb

__all__ = ["find_families"]

NAME_WORD: Final = re.compile(r"[^\W_]+")
MAX_VERB_WORDS: Final = 2
MIN_ALIKE: Final = 0.5  # of the other words of two names
MAX_SHARING: Final = 100  # tools of one server with the same word; a word of more tells too little
MAX_PAIRED_TOOLS: Final = 5_000  # of one server; more would take too long to compare
JOINING_WORDS: Final = frozenset(
    ("to", "from", "in", "into", "on", "onto", "out", "of", "for", "by", "with", "at", "a", "an", "the", "all", "my")
)
"""Words of a tool's name that do not tell what it acts on."""
STATES: Final = frozenset(("new", "blank", "empty", "hidden", "sent", "existing", "specific", "item", "id", "name"))
"""Words that one of two opposites often has alone: `insert_blank_slide`, `delete_slide`."""

NOUNS: Final = frozenset(
    ("issue", "order", "book", "record", "call", "log", "post", "store", "place", "link", "sale", "run")
)
"""Verbs that are nouns where they stand last: `transition_issue`."""

NOT_PAIRED: Final = frozenset(
    ("get", "list", "show", "view", "fetch", "find", "search", "check", "set", "update", "edit")
)
"""Verbs that most names have: pairs of them differ in what they read or change."""

Rest = tuple[str, ...]
"""The words of a name without the verb and without joining words, in alphabetical order."""

Family = dict[str, str]
"""Maps the ids of tools to their verbs."""


class _Mark(NamedTuple):
    """A verb of a name.

    Attributes:
        verb: as the table of verbs has it.
        rest: the other words.
        path: what stands before the name itself, up to the last full stop; empty or one text.
        is_last: whether the verb is the last word.
    """

    verb: str
    rest: Rest
    path: Rest
    is_last: bool


class _Named(NamedTuple):
    """A tool by one of the verbs of its name."""

    tool_id: str
    verb: str
    rest: frozenset[str]
    words: frozenset[str]


def find_families(catalogue: Catalogue, key: str) -> list[Family]:
    """Return the siblings and pairs of a snapshot; none is of two sources.

    Those of sources that have not changed are taken over from the snapshot before, which stored them under the key.
    """
    encoded, positions = catalogue.list_changed_sources(key)
    servers: defaultdict[tuple[str, str], dict[str, list[_Mark]]] = defaultdict(dict)
    changed = range(len(catalogue)) if positions is None else positions.tolist()
    marked = {catalogue.ids[position]: list(_mark_verbs(catalogue.names[position])) for position in changed}
    for tool in catalogue.tools(sorted(tool_id for tool_id, marks in marked.items() if marks)):
        servers[tool.id.partition("/")[0], tool.path[0] if tool.path else ""][tool.id] = marked[tool.id]
    families = [family for tools in servers.values() for family in _group(tools)]
    if encoded is None or catalogue.earlier is None:
        return families
    sources = catalogue.earlier.sources
    families += [one for one in msgspec.json.decode(encoded, type=list[Family]) if _find_source(one) in sources]
    ranks = {source: rank for rank, source in enumerate(catalogue.list_sources())}
    return sorted(families, key=lambda one: ranks[_find_source(one)])


def _find_source(siblings: Mapping[str, str]) -> str:
    """Return the source of a family."""
    return next(iter(siblings)).partition("/")[0]


def _group(marked: Mapping[str, Sequence[_Mark]]) -> Iterator[Family]:
    """Yield the siblings of one server, then its pairs. `marked` maps ids to the verbs of their names."""
    by_rest: defaultdict[Rest, Family] = defaultdict(dict)
    for tool_id, marks in marked.items():
        for mark in marks:
            by_rest[mark.path + mark.rest][tool_id] = mark.verb
    siblings = [family for family in by_rest.values() if _has_opposites(family.values())]
    yield from siblings
    if len(marked) > MAX_PAIRED_TOOLS:
        return
    sibling_pairs = {frozenset(pair) for family in siblings for pair in itertools.combinations(family, 2)}
    for one, other in _pair_alike([tool for tool_id, marks in marked.items() for tool in _describe(tool_id, marks)]):
        if frozenset((one.tool_id, other.tool_id)) not in sibling_pairs:
            yield {one.tool_id: one.verb, other.tool_id: other.verb}


def _has_opposites(verbs: Iterable[str]) -> bool:
    return any(are_opposites(*pair) for pair in itertools.combinations(set(verbs), 2))


def _describe(tool_id: str, marks: Sequence[_Mark]) -> Iterator[_Named]:
    """Yield a tool by the first verb of its name, the longest that starts there."""
    acting = [mark for mark in marks if not (mark.is_last and mark.rest and mark.verb in NOUNS)]
    for verb, rest, *_ in [mark for mark in acting if mark.verb.startswith(f"{acting[0].verb}_")] or acting[:1]:
        words = frozenset(find_verb(word) or word for word in rest if word not in STATES)
        if verb not in NOT_PAIRED:
            yield _Named(tool_id, verb, words, words | {verb})


def _pair_alike(tools: Sequence[_Named]) -> Iterator[tuple[_Named, _Named]]:
    """Yield the opposites whose names are alike, where one of both has none that is more alike."""
    by_word: defaultdict[str, list[int]] = defaultdict(list)
    for number, tool in enumerate(tools):
        for word in tool.words:
            by_word[word].append(number)
    shared = (itertools.combinations(numbers, 2) for numbers in by_word.values() if len(numbers) <= MAX_SHARING)
    alike: dict[tuple[int, int], float] = {}
    for pair in set(itertools.chain.from_iterable(shared)):
        one, other = tools[pair[0]], tools[pair[1]]
        if one.tool_id != other.tool_id and are_opposites(one.verb, other.verb):
            alike[pair] = _compare(one, other)
    nearest: defaultdict[int, float] = defaultdict(lambda: MIN_ALIKE)
    for pair, share in alike.items():
        for number in pair:
            nearest[number] = max(nearest[number], share)
    for (left, right), share in sorted(alike.items()):
        if share >= min(nearest[left], nearest[right]):
            yield tools[left], tools[right]


def _compare(one: _Named, other: _Named) -> float:
    """Return the share of the other words that two names have in common.

    The verb of one may be the object of the other: `recordMeeting`, `stopRecording`.
    """
    pairs = ((one.rest, other.rest), (one.words, other.rest), (one.rest, other.words))
    return max((len(left & right) / len(left | right) for left, right in pairs if left or right), default=0.0)


def _mark_verbs(name: str) -> Iterator[_Mark]:
    """Yield each verb of a name with the other words. A plural `s` does not count."""
    path, _, name = name.rpartition(".")
    words = NAME_WORD.findall(split_identifiers(name).lower())
    for start in range(len(words)):
        for end in range(start + 1, min(start + MAX_VERB_WORDS, len(words)) + 1):
            verb = find_verb("_".join(words[start:end])) or find_verb("".join(words[start:end]))
            if verb is not None:
                object_words = [word for word in (*words[:start], *words[end:]) if word not in JOINING_WORDS]
                rest = tuple(sorted(word.rstrip("s") for word in object_words))
                is_last = end == len(words) and verb == words[start]
                yield _Mark(verb, rest, (path,) if path else (), is_last)
