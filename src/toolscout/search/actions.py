"""Among tools of one source that differ in the action alone, puts the one first whose action the request asks for.

`add_label` and `remove_label` share nearly all words, and word vectors of opposites lie close together. So which of the
two stands first is often chance. The names decide who is a sibling: they are equal but for a verb that
`toolscout.search.action_words` knows, and for words that only join others: `add_to_cart`, `remove_from_cart`. Siblings
only change places among themselves; no other tool moves.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from toolscout.catalogue.store import Catalogue
from toolscout.encoders import split_identifiers
from toolscout.encoders.languages import is_plainly_foreign
from toolscout.search.action_words import (
    BACK,
    LITERAL_WEIGHT,
    UNDO,
    Evidence,
    count_stems,
    find_verb,
    get_cues,
    get_effect_cues,
    get_effects,
    get_opposites,
    get_reversals,
    read_words,
)
from toolscout.search.pipeline import Stage
from toolscout.types import Explanation, Hit, Search, digest

__all__ = ["OrderActions", "is_question"]

MAX_READ_CHARS: Final = 2_000
MAX_TERMS: Final = 30  # longer requests have several steps, and a cue may belong to another one
MAX_VERB_WORDS: Final = 2
MIN_LEAD: Final = 0.5  # evidence that one sibling must have more than another to stand before it
MIN_DERIVED_EVIDENCE: Final = 2.0  # for `unfollow` where the request says "follow"
EFFECT_SHARE: Final = 0.5  # of the weights of cues that hold for all verbs with one effect
CHANGING: Final = frozenset(("set", "update", "write", "put"))
READING: Final = frozenset(("get", "read", "list", "show", "view", "fetch", "find"))
MOVED: Final = "action word"
ACTIONS_FORMAT: Final = "actions/3"  # raise it whenever the result for an unchanged catalogue and vocabulary changes
_POLITE_ORDER: Final = re.compile(r"\W*(?:can|could|would|will)\s+you\b(?!\s+(?:tell|see|say))", re.IGNORECASE)
_QUESTION_START: Final = re.compile(
    r"\W*(?:what|which|who|whose|whom|where|when|why|how|is|are|am|was|were|does|do|did|has|have|had)\b", re.IGNORECASE
)

JOINING_WORDS: Final = frozenset(
    ("to", "from", "in", "into", "on", "onto", "out", "of", "for", "by", "with", "at", "a", "an", "the", "all", "my")
)
"""Words of a tool's name that do not tell what it acts on."""

Rest = tuple[str, ...]
"""The words of a name without the verb and without joining words, in alphabetical order."""


class OrderActions(Stage):
    """Orders siblings by the evidence for their actions."""

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits"})

    def __init__(self, catalogue: Catalogue) -> None:
        """Find the siblings of a snapshot, once for each generation."""
        key = f"{ACTIONS_FORMAT}/{digest('verbs/1', [sorted(get_cues()), sorted(map(sorted, get_opposites()))])}"
        encoded = catalogue.load_or_build(key, lambda: msgspec.json.encode(_find_families(catalogue, key)))
        self._families = msgspec.json.decode(encoded, type=list[dict[str, str]])
        self._of_tool: defaultdict[str, list[int]] = defaultdict(list)
        for number, siblings in enumerate(self._families):
            for tool_id in siblings:
                self._of_tool[tool_id].append(number)

    @property
    def name(self) -> str:
        """The stage's name in traces and messages."""
        return "actions"

    def run(self, searches: Sequence[Search]) -> list[Search]:
        """Return the searches with siblings in the order of their evidence."""
        return [self._reorder(search) for search in searches] if self._families else list(searches)

    def _reorder(self, search: Search) -> Search:
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, hit in enumerate(search.hits):
            for number in self._of_tool.get(hit.id, ()):
                places[number].append(place)
        contested = {number: held for number, held in places.items() if len(held) > 1}
        if not contested:
            return search
        text = search.query[:MAX_READ_CHARS]
        words = read_words(text)
        if count_stems(words) > MAX_TERMS:
            return search
        request = _Request(words, is_question(text), is_plainly_foreign(text))
        hits = list(search.hits)
        for number, held in contested.items():
            siblings = self._families[number]
            present = [place for place in held if hits[place].id in siblings]
            _swap_opposites(hits, present, {hits[place].id: siblings[hits[place].id] for place in present}, request)
        return msgspec.structs.replace(search, hits=tuple(hits))

    def explain(self, search: Search, tool_id: str) -> Explanation | None:
        """Return rank and score of a tool that changes its place; None if it keeps it."""
        [result] = self.run([search])
        for rank, (before, after) in enumerate(zip(search.hits, result.hits, strict=True), 1):
            if after.id == tool_id and before.id != tool_id:
                note = f"{search.ids.index(tool_id) + 1} before; the request's words ask for its action"
                note = note if rank <= search.ids.index(tool_id) else f"the request asks for the action of {before.id}"
                return Explanation(self.name, rank, after.score, note)
        return None

    def note(self, search: Search) -> str:
        """Return how many hits changed their places."""
        count = sum(hit.why.endswith(MOVED) for hit in search.hits)
        return f"{count} siblings by their action" if count else ""


def _find_families(catalogue: Catalogue, key: str) -> list[dict[str, str]]:
    """Return the siblings of a snapshot: tools of one server, with the same name but for opposite verbs.

    Each family is a mapping of the tools' ids to their verbs, none from two sources. Those of sources that have not
    changed are taken over from the snapshot before, which stored them under the key.
    """
    named: defaultdict[tuple[str, Rest], dict[str, str]] = defaultdict(dict)
    encoded, positions = catalogue.list_changed_sources(key)
    for position in range(len(catalogue)) if positions is None else positions.tolist():
        tool_id = catalogue.ids[position]
        for verb, rest in _mark_verbs(catalogue.names[position]):
            named[tool_id.partition("/")[0], rest][tool_id] = verb
    siblings = _split_by_path(catalogue, [verbs for verbs in named.values() if _has_opposites(verbs.values())])
    if encoded is None or catalogue.earlier is None:
        return siblings
    sources = catalogue.earlier.sources
    siblings += [one for one in msgspec.json.decode(encoded, type=list[dict[str, str]]) if _find_source(one) in sources]
    ranks = {source: rank for rank, source in enumerate(catalogue.list_sources())}
    return sorted(siblings, key=lambda one: ranks[_find_source(one)])


def _split_by_path(catalogue: Catalogue, families: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Split families by the first part of their tools' paths, the server; return those that still hold opposites."""
    paths = {tool.id: tool.path for tool in catalogue.tools(sorted({id for verbs in families for id in verbs}))}
    all_siblings: list[dict[str, str]] = []
    for verbs in families:
        by_path: defaultdict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
        for tool_id, verb in verbs.items():
            by_path[paths[tool_id][:1]][tool_id] = verb
        all_siblings += [siblings for siblings in by_path.values() if _has_opposites(siblings.values())]
    return all_siblings


def _find_source(siblings: Mapping[str, str]) -> str:
    """Return the source of a family."""
    return next(iter(siblings)).partition("/")[0]


def _has_opposites(verbs: Iterable[str]) -> bool:
    return any(frozenset(pair) in get_opposites() for pair in itertools.combinations(set(verbs), 2))


def is_question(text: str) -> bool:
    """Tell whether a request asks for information. "Can you delete it?" does not."""
    if _POLITE_ORDER.match(text):
        return False
    return bool(_QUESTION_START.match(text)) or text.rstrip().endswith("?")


class _Request:
    """What the words of a request say about actions."""

    def __init__(self, words: str, asks: bool, is_foreign: bool = False) -> None:
        """Read the cues of effects.

        Args:
            words: the request, from `read_words`.
            asks: whether it asks for information; only English questions are known.
            is_foreign: whether it is plainly in another language; then a missing cue says nothing.
        """
        self._words = words
        self._asks = asks
        self._is_foreign = is_foreign
        self._effects = {effect: cues.weigh(words, asks) for effect, cues in get_effect_cues().items()}
        self._weighed: dict[str, tuple[bool, Evidence]] = {}

    def prefers(self, behind: str, front: str) -> bool:
        """Tell whether the evidence puts a tool that does `behind` before one that does `front`, its opposite.

        A verb that stands in the request yields only if it is negated, or to one that is made from it: "stop following
        her" means `unfollow`. There the shared stem speaks for neither if enough else speaks for the longer verb.
        """
        scores = {front: self._score(front, behind), behind: self._score(behind, front)}
        short, long = sorted(scores, key=len)
        is_derived = long.endswith(short)
        if is_derived and scores[long] >= MIN_DERIVED_EVIDENCE and self._weigh(short)[0]:
            scores[short] -= LITERAL_WEIGHT
        stands_in, evidence = self._weigh(front)
        if stands_in and not evidence.against and not (is_derived and front == short):
            return False
        lead = scores[behind] - scores[front]
        return lead >= (0.0 if self._is_likelier(behind, front) else MIN_LEAD)

    def _is_likelier(self, verb: str, other: str) -> bool:
        """Tell whether a request that speaks for neither verb means this one.

        Whoever wants something ended says so, and whoever wants to know something asks. So an order with no such word
        means the verb that makes or changes something.
        """
        is_ending = get_effects().get(other) == "-" and (other, verb) in get_reversals()
        if self._asks or self._is_foreign or not (is_ending or (verb in CHANGING and other in READING)):
            return False
        return (
            not any(self._effects[effect].weight for effect in ("-", UNDO, BACK)) and not self._weigh(other)[1].weight
        )

    def _score(self, verb: str, other: str) -> float:
        """Return how strongly the request asks for a verb rather than for its opposite."""
        return self._weigh(verb)[1].weight + self._weigh(other)[1].against + self._weigh_effect(verb, other)

    def _weigh(self, verb: str) -> tuple[bool, Evidence]:
        """Return whether a verb itself stands in the request, and the evidence for it; each verb is weighed once."""
        if verb not in self._weighed:
            cues = get_cues()[verb]
            self._weighed[verb] = cues.stands_in(self._words), cues.weigh(self._words, self._asks)
        return self._weighed[verb]

    def _weigh_effect(self, verb: str, other: str) -> float:
        """Return how strongly the request asks for the effect of a verb; 0 if its opposite has the same effect."""
        mine, its = get_effects().get(verb), get_effects().get(other)
        if mine is None or its is None or mine == its:
            return 0.0
        weight = EFFECT_SHARE * (self._effects[mine].weight + self._effects[its].against)
        if (verb, other) in get_reversals():
            weight += self._effects[UNDO].weight + (self._effects[BACK].weight if mine == "+" else 0.0)
        return weight


def _swap_opposites(hits: list[Hit], places: Sequence[int], verbs: Mapping[str, str], request: _Request) -> None:
    """Swap opposites at these places where the evidence differs enough. The scores stay at their places.

    Args:
        hits: changed in place.
        places: of the siblings, ascending.
        verbs: id → verb.
        request: what the request says.
    """
    for _ in places:  # a swap may bring two others into the wrong order
        swaps = [_swap_pair(hits, *pair, verbs, request) for pair in itertools.combinations(places, 2)]
        if not any(swaps):
            return


def _swap_pair(hits: list[Hit], left: int, right: int, verbs: Mapping[str, str], request: _Request) -> bool:
    """Swap two siblings if they are opposites and the request prefers the one behind. Tell whether it did."""
    one, other = hits[left], hits[right]
    front, behind = verbs[one.id], verbs[other.id]
    if frozenset((front, behind)) not in get_opposites() or not request.prefers(behind, front):
        return False
    hits[left], hits[right] = _move(other, one.score), _move(one, other.score)
    return True


def _move(hit: Hit, score: float) -> Hit:
    """Return a hit at another place."""
    return Hit(hit.id, score, f"{hit.why.removesuffix(f', {MOVED}')}, {MOVED}")


def _mark_verbs(name: str) -> Iterator[tuple[str, Rest]]:
    """Yield (verb, the other words) for each verb of a name. A plural `s` does not count."""
    words = re.findall(r"[^\W_]+", split_identifiers(name).lower())
    for start in range(len(words)):
        for end in range(start + 1, min(start + MAX_VERB_WORDS, len(words)) + 1):
            verb = find_verb("_".join(words[start:end]))
            if verb is not None:
                object_words = [word for word in (*words[:start], *words[end:]) if word not in JOINING_WORDS]
                yield verb, tuple(sorted(word.rstrip("s") for word in object_words))
