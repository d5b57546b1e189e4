"""Among tools of one source that differ in the action alone, puts the one first whose action the request asks for.

`add_label` and `remove_label` share nearly all words, and word vectors of opposites lie close together. So which of the
two stands first is often chance. `toolscout.search.actions.families` tells which tools are such opposites. They only
change places among themselves. Beside another order, what the request forbids goes behind the other first hits ("do not
delete it, just rename it"); no other tool moves.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from toolscout.encoders.languages import is_plainly_foreign
from toolscout.home.catalogue.store import Catalogue
from toolscout.search.actions.families import find_families
from toolscout.search.actions.words import (
    BACK,
    LITERAL_WEIGHT,
    NEGATING_STEMS,
    UNDO,
    Evidence,
    RequestWords,
    are_opposites,
    get_cues,
    get_effect_cues,
    get_effects,
    get_opposites,
    get_reversals,
    has_more_words,
    read_words,
)
from toolscout.search.pipeline import Stage
from toolscout.search.steps.splitter import find_cuts, is_command
from toolscout.search.steps.words import SUBORDINATORS
from toolscout.types import Explanation, Hit, Search, digest

__all__ = ["OrderActions", "Request", "is_question"]

MAX_READ_CHARS: Final = 2_000
MIN_HEAD: Final = 60  # first hits of which one takes part in every change: so many may move up later
MAX_TERMS: Final = 30  # longer requests have several steps, and a cue may belong to another one
MAX_WORDS: Final = 40  # of a request that is read at all: hardly a word has no stem
MAX_REMEMBERED_ORDERS: Final = 10_000
MIN_LEAD: Final = 0.5  # evidence that one sibling must have more than another to stand before it
MIN_DERIVED_EVIDENCE: Final = 2.0  # for `unfollow` where the request says "follow"
EFFECT_SHARE: Final = 0.5  # of the weights of cues that hold for all verbs with one effect
CHANGING: Final = frozenset(("set", "update", "write", "put"))
READING: Final = frozenset(("get", "read", "list", "show", "view", "fetch", "find"))
MAX_PUT_BACK: Final = 5  # first hits among which what the request forbids goes back
MOVED: Final = "action word"
ACTIONS_FORMAT: Final = "actions/4"  # raise it whenever the result for an unchanged catalogue and vocabulary changes
_POLITE_ORDER: Final = re.compile(r"\W*(?:can|could|would|will)\s+you\b(?!\s+(?:tell|see|say))", re.IGNORECASE)
_NEGATING_WORD: Final = re.compile(r"\b(?:not?|never|nobody|nothing|without|cannot|dont|\w+n['’]t)\b", re.IGNORECASE)
_BEFORE_COMMAND: Final = re.compile(
    r"\W*(?:(?:(?:i|we)(?:['’]d| would| just| only)* (?:want|need|like|prefer|rather|wish)(?: you)?(?: to)?"
    r"|just|only|simply|merely|instead|rather|better|know)\b\W*)*",
    re.IGNORECASE,
)  # "I only want to know", "just"
_VERB_AND_OBJECT: Final = re.compile(r"\W*([a-z]{3,}) (?:it|them)\b", re.IGNORECASE)
_QUESTION_START: Final = re.compile(
    r"\W*(?:what|which|who|whose|whom|where|when|why|how|is|are|am|was|were|does|do|did|has|have|had)\b", re.IGNORECASE
)


class OrderActions(Stage):
    """Orders siblings by the evidence for their actions."""

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits"})

    def __init__(self, catalogue: Catalogue) -> None:
        """Find the siblings of a snapshot, once for each generation."""
        key = f"{ACTIONS_FORMAT}/{digest('verbs/1', [sorted(get_cues()), sorted(map(sorted, get_opposites()))])}"
        encoded = catalogue.load_or_build(key, lambda: msgspec.json.encode(find_families(catalogue, key)))
        self._families = msgspec.json.decode(encoded, type=list[dict[str, str]])
        self._of_tool: dict[str, list[int]] = {}
        for number, siblings in enumerate(self._families):
            for tool_id in siblings:
                self._of_tool.setdefault(tool_id, []).append(number)

    @property
    def name(self) -> str:
        """The stage's name in traces and messages."""
        return "actions"

    def run(self, searches: Sequence[Search]) -> list[Search]:
        """Return the searches with siblings in the order of their evidence."""
        return [self._reorder(search) for search in searches] if self._families else list(searches)

    def _reorder(self, search: Search) -> Search:
        text, hits, of_tool = search.query[:MAX_READ_CHARS], search.hits, self._of_tool
        if has_more_words(text, MAX_WORDS):
            return search
        head = {number for hit in hits[: max(search.k, MIN_HEAD)] for number in of_tool.get(hit.id, ())}
        near_siblings = set().union(*[self._families[number] for number in head])
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, numbers in [(place, of_tool[hit.id]) for place, hit in enumerate(hits) if hit.id in near_siblings]:
            for number in numbers:
                places[number].append(place)
        contested = [(rivals, self._families[number]) for number, rivals in places.items() if len(rivals) > 1]
        if not contested:
            return search
        request, moved = Request(text), list(hits)
        swaps = [_swap_opposites(moved, rivals, siblings, request) for rivals, siblings in contested]
        swaps.append(_put_back(moved, _join_families(contested), request))
        return msgspec.structs.replace(search, hits=tuple(moved)) if any(swaps) else search

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
        count = sum([hit.why.endswith(MOVED) for hit in search.hits])
        return f"{count} siblings by their action" if count else ""


def is_question(text: str) -> bool:
    """Tell whether a request asks for information. "Can you delete it?" does not."""
    if _POLITE_ORDER.match(text):
        return False
    return bool(_QUESTION_START.match(text)) or text.rstrip().endswith("?")


def asks_besides_negation(text: str) -> bool:
    """Tell whether a request with a negation also asks for something: "do not delete it, just rename it"."""
    cuts = find_cuts(text)
    edges = zip([0, *(cut.end for cut in cuts)], [*(cut.start for cut in cuts), len(text)], strict=True)
    clauses = [text[start:end] for start, end in edges]
    rest = [_BEFORE_COMMAND.sub("", one, 1) for one in clauses if not _NEGATING_WORD.search(one)]
    return any(is_command(one) or _is_order_by_form(one) for one in rest)


def _is_order_by_form(clause: str) -> bool:
    """Tell whether a clause begins as an order with a verb that is not known: "defragment it"."""
    match = _VERB_AND_OBJECT.match(clause)
    return match is not None and match[1].lower() not in SUBORDINATORS


@functools.lru_cache(maxsize=MAX_REMEMBERED_ORDERS)
def _list_opposites(done: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    """Return the pairs (verb, a later verb that is its opposite)."""
    return frozenset(pair for pair in itertools.combinations(done, 2) if are_opposites(*pair))


class Request:
    """What the words of a request say about actions. They are read when two opposites are compared."""

    def __init__(self, text: str) -> None:
        """Take the text of the request."""
        self._text = text
        self._words: RequestWords | None = None
        self._is_read = self._asks = False
        self._effects: dict[str, Evidence] = {}
        self._weighed: dict[str, tuple[bool, Evidence]] = {}
        self._preferred: dict[tuple[str, str], bool] = {}

    def prefers_later(self, pair: tuple[str, str]) -> bool:
        """Tell whether the evidence puts the second of two opposites before the first; each pair is compared once."""
        is_preferred = self._preferred.get(pair)
        if is_preferred is None:
            words = self._words if self._is_read else self._read()
            is_preferred = self._preferred[pair] = words is not None and self._prefers(pair[1], pair[0], words)
        return is_preferred

    def forbids(self, verb: str) -> bool:
        """Tell whether the request only negates a verb, and asks for something else."""
        words = self._words if self._is_read else self._read()
        if words is None or words.stems.isdisjoint(NEGATING_STEMS):
            return False
        evidence = self._weigh(verb, words)[1]
        return evidence.against > 0 and not evidence.weight and self._asks_besides

    def _read(self) -> RequestWords | None:
        """Read the request; None if it is too long, and may ask for several actions."""
        self._is_read = True
        words = read_words(self._text)
        if words.n_stems <= MAX_TERMS:
            self._words, self._asks = words, is_question(self._text)
            self._effects = {effect: cues.weigh(words, self._asks) for effect, cues in get_effect_cues().items()}
        return self._words

    def _prefers(self, behind: str, front: str, words: RequestWords) -> bool:
        """Tell whether the evidence puts a tool that does `behind` before one that does `front`, its opposite.

        A verb that stands in the request yields only if it is negated, or to one that is made from it: "stop following
        her" means `unfollow`. There the shared stem speaks for neither if enough else speaks for the longer verb.
        """
        (front_stands, first), (behind_stands, second) = self._weigh(front, words), self._weigh(behind, words)
        for_front = first.weight + self._weigh_negation(second) + self._weigh_effect(front, behind)
        for_behind = second.weight + self._weigh_negation(first) + self._weigh_effect(behind, front)
        if behind.endswith(front):
            for_front -= LITERAL_WEIGHT if front_stands and for_behind >= MIN_DERIVED_EVIDENCE else 0.0
        elif front_stands and not first.against:
            return False
        elif front.endswith(behind):
            for_behind -= LITERAL_WEIGHT if behind_stands and for_front >= MIN_DERIVED_EVIDENCE else 0.0
        lead = for_behind - for_front
        return lead >= MIN_LEAD or (lead >= 0.0 and self._is_likelier(behind, front, first))

    def _weigh_negation(self, evidence: Evidence) -> float:
        """Return how strongly the negation of a verb speaks for its opposite: not at all where a request asks more.

        "Do not delete it" may mean that something shall be there. "Do not delete it, just rename it" says what it
        means, and that is none of the two.
        """
        return evidence.against if evidence.against and not self._asks_besides else 0.0

    @functools.cached_property
    def _asks_besides(self) -> bool:
        return asks_besides_negation(self._text)

    def _is_likelier(self, verb: str, other: str, for_other: Evidence) -> bool:
        """Tell whether a request that speaks for neither verb means this one.

        Whoever wants something ended says so, and whoever wants to know something asks. So an order with no such word
        means the verb that makes or changes something.
        """
        if for_other.weight or for_other.against > self._weigh_negation(for_other):
            return False
        is_ending = get_effects().get(other) == "-" and (other, verb) in get_reversals()
        if self._asks or not (is_ending or (verb in CHANGING and other in READING)) or is_plainly_foreign(self._text):
            return False
        return not any(self._effects[effect].weight for effect in ("-", UNDO, BACK))

    def _weigh(self, verb: str, words: RequestWords) -> tuple[bool, Evidence]:
        """Return whether a verb itself stands in the request, and the evidence for it; each verb is weighed once."""
        weighed = self._weighed.get(verb)
        if weighed is None:
            cues = get_cues()[verb]
            weighed = self._weighed[verb] = cues.stands_in(words), cues.weigh(words, self._asks)
        return weighed

    def _weigh_effect(self, verb: str, other: str) -> float:
        """Return how strongly the request asks for the effect of a verb; 0 if its opposite has the same effect."""
        mine, its = get_effects().get(verb), get_effects().get(other)
        if mine is None or its is None or mine == its:
            return 0.0
        weight = EFFECT_SHARE * (self._effects[mine].weight + self._weigh_negation(self._effects[its]))
        if (verb, other) in get_reversals():
            weight += self._effects[UNDO].weight + (self._effects[BACK].weight if mine == "+" else 0.0)
        return weight


def _swap_opposites(hits: list[Hit], rivals: Sequence[int], verbs: Mapping[str, str], request: Request) -> bool:
    """Swap siblings that are opposites where the evidence differs enough. The scores stay at their places.

    Args:
        hits: changed in place.
        rivals: places of the siblings, ascending. Those that an earlier family moved away are left out.
        verbs: id → verb, of all siblings.
        request: what the request says.

    Returns:
        Whether any were swapped.
    """
    places = [place for place in rivals if hits[place].id in verbs]
    done = [verbs[hits[place].id] for place in places]
    if not any(map(request.prefers_later, _list_opposites(tuple(done)))):
        return False
    wrong = frozenset(filter(request.prefers_later, _list_opposites((*done, *done))))
    for _ in places:  # a swap may bring two others into the wrong order
        before = done.copy()
        for left, right in itertools.combinations(range(len(places)), 2):
            if (done[left], done[right]) in wrong:
                _swap(hits, places[left], places[right])
                done[left], done[right] = done[right], done[left]
        if done == before:
            break
    return True


def _join_families(contested: Sequence[tuple[list[int], dict[str, str]]]) -> dict[str, str]:
    """Map the id of each tool that has an opposite among the hits to its verb."""
    return {tool_id: verb for _, siblings in contested for tool_id, verb in siblings.items()}


def _put_back(hits: list[Hit], verbs: Mapping[str, str], request: Request) -> bool:
    """Put what the request forbids behind the other first hits, if it asks for something else. The scores stay."""
    head = hits[:MAX_PUT_BACK]
    forbidden = [hit for hit in head if hit.id in verbs and request.forbids(verbs[hit.id])]
    allowed = [hit for hit in head if hit not in forbidden]
    if not forbidden or not allowed or head[: len(allowed)] == allowed:
        return False
    hits[: len(head)] = [
        hit if hit.id == old.id else _move(hit, old.score)
        for hit, old in zip([*allowed, *forbidden], head, strict=True)
    ]
    return True


def _swap(hits: list[Hit], left: int, right: int) -> None:
    """Swap two hits. The scores stay."""
    one, other = hits[left], hits[right]
    hits[left], hits[right] = _move(other, one.score), _move(one, other.score)


def _move(hit: Hit, score: float) -> Hit:
    """Return a hit at another place."""
    return Hit(hit.id, score, f"{hit.why.removesuffix(f', {MOVED}')}, {MOVED}")
