"""Opposite tools of one server, such as `add_label` and `remove_label`: the one that the request asks for comes first.

They share nearly all words, and vectors of opposites are near to each other, so which of the two ranks first is often
chance. The names decide which tools are *siblings*: equal but for a verb that we know, and for words that only join
others (`add_to_cart`, `remove_from_cart`). Siblings change places among themselves; no other tool moves.

`words/LANG.actions.txt` has the pairs of opposite verbs, the cues of each verb, and cues of all verbs with one effect:
"no longer" asks for something that is gone. A cue of several words holds if its words come in this order in one clause,
with at most `MAX_GAP` others between two of them. A cue behind a negation speaks against. "Stop pinning" and "un-pin"
ask for `unpin`; "any open tickets?" reads, and opens nothing. LAB.md, 2026-11-27, names the finer rules that changed no
dev request.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from toolscout.encoders import split_identifiers
from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.words import list_stems_in_order
from toolscout.search.pipeline import Stage
from toolscout.search.steps.splitter import find_cuts, is_command
from toolscout.types import Answer, Explanation, Hit, digest
from toolscout.vocabulary import WORDS_FOLDER, join_phrases, list_words

__all__ = ["QUOTATION", "OrderActions", "are_opposites", "find_verb", "get_cues", "has_more_words"]

ACTIONS_FORMAT: Final = "actions/5"  # raise it whenever the result for an unchanged catalogue and vocabulary changes
MAX_READ_CHARS: Final = 2_000
MAX_READ_WORDS: Final = 40  # of a request that is read at all; a longer one has several steps
MIN_HEAD: Final = 60  # first hits of which one takes part in every change: so many may move up later
MAX_GAP: Final = 4
MAX_VERB_WORDS: Final = 2
MIN_STEM_LETTERS: Final = 3
MAX_CACHED_PATTERNS: Final = 10_000
LITERAL_WEIGHT: Final = 3.0  # of the verb itself in the request
ENDING_WEIGHT: Final = 4.0  # of words that end something: they turn the verb beside them around
MIN_LEAD: Final = 0.5  # evidence that one sibling must have more than another to stand before it
MIN_DERIVED_EVIDENCE: Final = 2.0  # for `unfollow` where the request says "follow"
EFFECT_SHARE: Final = 0.5  # of the weights of cues that hold for all verbs with one effect
GONE, PRESENT, UNDO, BACK = "-", "+", "undo", "back"  # groups of such cues
CLAUSE_END: Final = "|"
NAMED_THING: Final = "x"  # in place of quoted words
MOVED: Final = "action word"
VERB_ENDINGS: Final = ("ation", "ing", "ion", "ed", "al", "s")
JOINING_WORDS: Final = frozenset(list_words("actions.joining"))
COMMON_VERBS: Final = frozenset(list_words("actions.common"))
ENDINGS: Final = frozenset(list_words("actions.endings"))
CLOSING_PARTICLES: Final = frozenset(list_words("actions.particles"))
NEGATING_STEMS: Final = frozenset(list_words("actions.negations"))
_NAME_WORD: Final = re.compile(r"[^\W_]+")
_CLAUSE: Final = re.compile(
    rf"[.,;:!?]+(?=\s|$)|[，。；：！？]|\s(?=(?:{join_phrases(list_words('actions.turns'))})\s)"
)
QUOTATION: Final = re.compile(
    r'"[^"]{1,200}"|“[^”]{1,200}”|„[^“”]{1,200}[“”]|「[^」]{1,200}」|(?<!\w)\'[^\']{1,200}\'(?!\w)'
)
_POLITE_START: Final = re.compile(rf"\A(?:(?:{'|'.join(list_words('actions.polite'))}) )*")
_NEGATION: Final = re.compile(r"(?:\b(?:not?|never|nobodi|noth|no one|[a-z]+n t))(?: \w+){0,2} \Z")
_INNER_NEGATION: Final = re.compile(r" (?:not?|never|n t) ")
_NEGATED_CUE: Final = re.compile(r"\b(?:not?|never|without|nobody|nothing|[a-z]+n t|any ?(?:more|longer))\b")
_APART: Final = re.compile(r"\bun[-‐ ](?=([^\W\d_]+))", re.IGNORECASE)  # "un-pin"
_STOPPING: Final = re.compile(rf"\b({join_phrases(list_words('actions.stopping'))})\s+([^\W\d_]+ing)\b", re.IGNORECASE)
_ASKING: Final = re.compile(rf"\W*(?:{'|'.join(list_words('actions.asking'))})\b", re.IGNORECASE)
DOERS: Final = frozenset(list_words("actions.doers"))
READING_VERBS: Final = frozenset(list_words("actions.reading"))
_NEGATING_WORD: Final = re.compile(r"\b(?:not?|never|nobody|nothing|without|cannot|dont|\w+n['’]t)\b", re.IGNORECASE)

Family = dict[str, str]
"""Maps the ids of siblings to their verbs."""


class OrderActions(Stage):
    """Swaps siblings where the request asks for the action of the lower one."""

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits"})
    name = "actions"

    def __init__(self, catalogue: Catalogue) -> None:
        """Find the siblings of a snapshot, once for each generation."""
        key = f"{ACTIONS_FORMAT}/{digest('verbs/1', [sorted(get_cues()), sorted(_read_pairs())])}"
        encoded = catalogue.load_or_build(key, lambda: msgspec.json.encode(find_families(catalogue, key)))
        self._families = msgspec.json.decode(encoded, type=list[Family])
        self._of_tool: defaultdict[str, list[int]] = defaultdict(list)  # tool → numbers of its families
        for number, siblings in enumerate(self._families):
            for tool_id in siblings:
                self._of_tool[tool_id].append(number)

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        """Return the searches with siblings in the order of their evidence."""
        return [self._reorder(search) for search in searches] if self._families else list(searches)

    def _reorder(self, search: Answer) -> Answer:
        """Swap siblings among the hits. Only families with a hit in the head and at least two hits are looked at."""
        text, hits, of_tool = search.query[:MAX_READ_CHARS], list(search.hits), self._of_tool
        head = {number for hit in hits[: max(search.k, MIN_HEAD)] for number in of_tool.get(hit.id, ())}
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, hit in enumerate(hits) if head else ():
            for number in head.intersection(of_tool.get(hit.id, ())):
                places[number].append(place)
        contested = [(number, rivals) for number, rivals in places.items() if len(rivals) > 1]
        if not contested or (len(text) > MAX_READ_WORDS and has_more_words(text, MAX_READ_WORDS)):
            return search
        evidence = ActionEvidence(text)
        swaps = [evidence.swap_siblings(hits, rivals, self._families[number]) for number, rivals in contested]
        return msgspec.structs.replace(search, hits=tuple(hits)) if any(swaps) else search

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        """Return rank and score of a tool that changes its place; None if it keeps it."""
        [result] = self.run([search])
        if tool_id not in search.ids:
            return None
        before, after = search.ids.index(tool_id), result.ids.index(tool_id)
        if before == after:
            return None
        note = f"{before + 1} before; the request's words ask for its action"
        note = note if after < before else f"the request asks for the action of {search.ids[after]}"
        return Explanation(self.name, after + 1, result.hits[after].score, note)

    def note(self, search: Answer) -> str:
        """Return how many hits changed their places."""
        count = sum([hit.why.endswith(MOVED) for hit in search.hits])
        return f"{count} siblings by their action" if count else ""


# --- siblings ---------------------------------------------------------------------------------------------------------


def find_families(catalogue: Catalogue, key: str) -> list[Family]:
    """Return the siblings of a snapshot; none is of two sources.

    Those of sources that have not changed are taken over from the snapshot before, which stored them under the key.
    """
    encoded, positions = catalogue.list_changed_sources(key)
    changed = range(len(catalogue)) if positions is None else positions.tolist()
    marked = {catalogue.ids[position]: list(_mark_verbs(catalogue.names[position])) for position in changed}
    by_rest: defaultdict[tuple[str, ...], Family] = defaultdict(dict)
    for tool in catalogue.tools(sorted(tool_id for tool_id, marks in marked.items() if marks)):
        for verb, rest in marked[tool.id]:
            by_rest[(tool.source, tool.path[0] if tool.path else "", *rest)][tool.id] = verb
    families = [some for some in by_rest.values() if _have_opposites(some)]
    if encoded is not None and catalogue.earlier is not None:
        earlier = msgspec.json.decode(encoded, type=list[Family])
        families += [some for some in earlier if next(iter(some)).partition("/")[0] in catalogue.earlier.sources]
    return sorted(families, key=lambda siblings: next(iter(siblings)))


def _have_opposites(siblings: Family) -> bool:
    return any(are_opposites(*pair) for pair in itertools.combinations(set(siblings.values()), 2))


def _mark_verbs(name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each verb of a name with the other words in alphabetical order. A plural `s` does not count."""
    path, _, name = name.rpartition(".")
    words = _NAME_WORD.findall(split_identifiers(name).lower())
    for start in range(len(words)):
        for end in range(start + 1, min(start + MAX_VERB_WORDS, len(words)) + 1):
            verb = find_verb("_".join(words[start:end])) or find_verb("".join(words[start:end]))
            if verb is not None:
                others = [word.rstrip("s") for word in (*words[:start], *words[end:]) if word not in JOINING_WORDS]
                yield verb, (path, *sorted(others))


@functools.lru_cache(maxsize=MAX_CACHED_PATTERNS)
def find_verb(word: str) -> str | None:
    """Return the verb with cues of which a word of a name is a form: `cancelling`, `deletion`. None: there is none."""
    verbs = get_cues()
    if word in verbs:
        return word
    for ending in VERB_ENDINGS:
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= MIN_STEM_LETTERS:
            single = stem[:-1] if stem[-1] == stem[-2] else stem
            known_verb = next((verb for verb in (stem, f"{stem}e", single) if verb in verbs), None)
            if known_verb is not None:
                return known_verb
    return None


# --- what a request asks for ------------------------------------------------------------------------------------------


class VerbEvidence(NamedTuple):
    """How strongly a request speaks for a verb, and against it: sums of the weights of cues."""

    weight: float
    against: float


class RequestStems(NamedTuple):
    """The stems of a request in order, with `CLAUSE_END` between clauses, and the set of both."""

    text: str
    stems: frozenset[str]

    def negates(self, cue: re.Match[str]) -> bool:
        """Tell whether a negation stands before a cue or between its words."""
        if self.stems.isdisjoint(NEGATING_STEMS):
            return False
        return bool(_NEGATION.search(self.text, 0, cue.start()) or _INNER_NEGATION.search(cue[0]))


def read_request(text: str) -> RequestStems:
    """Return the stems of a request. A quotation becomes `NAMED_THING`."""
    clauses = _CLAUSE.split(QUOTATION.sub(f" {NAMED_THING} ", text))
    stems = [_POLITE_START.sub("", " ".join(list_stems_in_order(clause))) for clause in clauses]
    joined = f" {CLAUSE_END} ".join(filter(None, stems))
    return RequestStems(joined, frozenset(joined.split()))


def join_reversed_verbs(text: str) -> str:
    """Return a request with "un-pin" as one word, and "stop pinning" as what it means: "stop unpinning".

    Without such an opposite, "stop saving" becomes "stop not saving", so that "save" is negated.
    """

    def reverse(match: re.Match[str]) -> str:
        verb = find_verb(match[2].lower())
        if verb is None:
            return match[0]
        return f"{match[1]} {'un' if f'un{verb}' in get_cues() else 'not '}{match[2].lower()}"

    joined = _APART.sub(lambda match: "un" if find_verb(f"un{match[1].lower()}") else match[0], text)
    return _STOPPING.sub(reverse, joined)


def find_states(text: str) -> frozenset[str]:
    """Return the verbs that a request has as adjectives: "any open tickets?" reads and opens nothing."""
    if not _ASKING.match(text):
        return frozenset()
    words = _NAME_WORD.findall(text.lower())
    verbs = [(find_verb(word), before) for before, word in itertools.pairwise(words)]
    acting = {verb for verb, before in verbs if before in DOERS}
    return frozenset(verb for verb, _ in verbs if verb and verb not in READING_VERBS) - acting


def has_more_words(text: str, limit: int) -> bool:
    """Tell whether a text has more words than the limit. A quotation counts as one."""
    return len(text.split()) > limit and len(QUOTATION.sub(f" {NAMED_THING} ", text).split()) > limit


class _Cue(NamedTuple):
    """The stems of a cue, its weight, and whether it contains a negation itself."""

    stems: tuple[str, ...]
    weight: float
    is_negated: bool


class ActionCues:
    """The cues of one verb, or of one effect, where the verb is empty."""

    def __init__(self, verb: str, cues: frozenset[str]) -> None:
        """Take the cues. They are sorted at their first use."""
        self._verb, self._cues = verb.replace("_", " "), cues

    @functools.cached_property
    def _literal(self) -> tuple[str, ...]:
        """Stems of the verb itself; none for the commonest verbs."""
        return list_stems_in_order(self._verb) if self._verb and self._verb not in COMMON_VERBS else ()

    @functools.cached_property
    def _by_first_stem(self) -> dict[str, list[_Cue]]:
        """The cues by their first stem, each with its weight: longer cues weigh more."""
        weights = {cue: ENDING_WEIGHT if cue in ENDINGS else float(cue.count(" ") + 1) for cue in self._cues}
        if self._verb:
            weights[self._verb] = 1.0 if self._verb in COMMON_VERBS else LITERAL_WEIGHT
        cues: dict[tuple[str, ...], _Cue] = {}  # cues with the same stems count once
        for text, weight in weights.items():
            stems = list_stems_in_order(text)
            weight = max(weight, cues[stems].weight if stems in cues else 0.0)
            cues[stems] = _Cue(stems, weight, bool(_NEGATED_CUE.search(text)))
        by_first: defaultdict[str, list[_Cue]] = defaultdict(list)
        for cue in cues.values():
            by_first[cue.stems[0]].append(cue)
        return by_first

    def stands_in(self, words: RequestStems) -> bool:
        """Tell whether the verb itself is in a request."""
        return words.stems.issuperset(self._literal) and bool(
            self._literal and _compile_cue(self._literal).search(words.text)
        )

    def weigh(self, words: RequestStems) -> VerbEvidence:
        """Return how strongly a request asks for what the verb does, and how strongly it forbids it."""
        weight = against = 0.0
        for cue in (cue for first in self._by_first_stem.keys() & words.stems for cue in self._by_first_stem[first]):
            match = _compile_cue(cue.stems).search(words.text) if words.stems.issuperset(cue.stems) else None
            if match is not None and not cue.is_negated and words.negates(match):
                against += cue.weight
            elif match is not None:
                weight += cue.weight
        return VerbEvidence(weight, against)


@functools.lru_cache(maxsize=MAX_CACHED_PATTERNS)
def _compile_cue(stems: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that finds the stems of a cue in one clause of a request."""
    gap = rf"(?: [^\s{CLAUSE_END}]+)"
    *start, last = map(re.escape, stems)
    end = rf"{gap}{{0,{MAX_GAP}}} {last}(?!\S)" if start else rf"{last}(?!\S)"
    if start and stems[-1] in CLOSING_PARTICLES:
        end = rf"(?:{end}|{gap}* {last}(?= \{CLAUSE_END}|\Z))"
    return re.compile(r"(?<!\S)" + rf"{gap}{{0,{MAX_GAP}}} ".join(start) + end)


class ActionEvidence:
    """What the words of one request say about actions: "take the label away" asks for `remove_label`."""

    def __init__(self, text: str) -> None:
        """Read the request, and weigh the words that ask for an effect without a verb, such as "no longer"."""
        text = join_reversed_verbs(text)
        self._text, self._words, self._states = text, read_request(text), find_states(text)
        self._effects = {effect: cues.weigh(self._words) for effect, cues in get_effect_cues().items()}
        self._weighed: dict[str, tuple[bool, VerbEvidence]] = {}  # verb → (whether it is in the request, evidence)

    def swap_siblings(self, hits: list[Hit], rivals: Sequence[int], verbs: Family) -> bool:
        """Swap tools such as `add_label` and `remove_label` if the request asks for the action of the lower one.

        A family is the tools of one source whose names differ only by their verbs. Two tools of a family swap only if
        their verbs are opposites and the evidence differs by `MIN_LEAD`. The scores stay at their places.

        A sibling that reads also comes before one that would change a state which the request only reads.

        Args:
            hits: changed in place.
            rivals: indices into `hits` at which the tools of the family were, ascending. If another family has moved
                one of them, it is left out.
            verbs: tool id → verb, of the whole family.

        Returns:
            Whether any tools were swapped.
        """
        places = [place for place in rivals if hits[place].id in verbs]
        moved = False
        for _ in places:  # a swap may bring two others into the wrong order
            swapped = False
            for left, right in itertools.combinations(places, 2):
                front, behind = verbs[hits[left].id], verbs[hits[right].id]
                asked = are_opposites(front, behind) and self.prefers(behind, front)
                if asked or (behind in READING_VERBS and self._changes_state(front)):
                    one, other = hits[left], hits[right]
                    hits[left], hits[right] = _move(other, one.score), _move(one, other.score)
                    swapped = moved = True
            if not swapped:
                break
        return moved

    def prefers(self, behind: str, front: str) -> bool:
        """Tell whether the evidence puts a tool that does `behind` before one that does `front`, its opposite.

        A verb that is in the request yields only if it is negated, or to one that is made from it: "stop following
        her" means `unfollow`. There the shared stem speaks for neither if enough else speaks for the longer verb.
        """
        (front_stands, first), (behind_stands, second) = self._weigh(front), self._weigh(behind)
        for_front, for_behind = first.weight, second.weight
        if first.against or second.against:
            for_front, for_behind = for_front + self._weigh_negation(second), for_behind + self._weigh_negation(first)
        for_front += self._weigh_effect(front, behind)
        for_behind += self._weigh_effect(behind, front)
        if behind.endswith(front):
            for_front -= LITERAL_WEIGHT if front_stands and for_behind >= MIN_DERIVED_EVIDENCE else 0.0
        elif front_stands and not first.against:
            return False
        elif front.endswith(behind):
            for_behind -= LITERAL_WEIGHT if behind_stands and for_front >= MIN_DERIVED_EVIDENCE else 0.0
        return for_behind - for_front >= MIN_LEAD

    def _changes_state(self, verb: str) -> bool:
        """Tell whether a verb would change the state that the request only reads."""
        return any(verb.endswith(state) or are_opposites(verb, state) for state in self._states)

    def _weigh(self, verb: str) -> tuple[bool, VerbEvidence]:
        """Return whether a verb itself is in the request, and the evidence for it; each verb is weighed once."""
        if verb not in self._weighed:
            cues = get_cues()[verb]
            self._weighed[verb] = cues.stands_in(self._words), cues.weigh(self._words)
        return self._weighed[verb]

    def _weigh_negation(self, evidence: VerbEvidence) -> float:
        """Return how strongly the negation of a verb speaks for its opposite: not at all where a request asks more.

        "Do not delete it" may mean that something shall be there. "Do not delete it, just rename it" says what it
        means, and that is none of the two.
        """
        return evidence.against if evidence.against and not self._asks_besides else 0.0

    @functools.cached_property
    def _asks_besides(self) -> bool:
        """Whether a request with a negation also asks for something."""
        cuts = find_cuts(self._text)
        edges = zip([0, *(cut.end for cut in cuts)], [*(cut.start for cut in cuts), len(self._text)], strict=True)
        clauses = [self._text[start:end] for start, end in edges]
        return any(is_command(clause) for clause in clauses if not _NEGATING_WORD.search(clause))

    def _weigh_effect(self, verb: str, other: str) -> float:
        """Return how strongly the request asks for the effect of a verb; 0 if its opposite has the same effect."""
        mine, its = get_effects().get(verb), get_effects().get(other)
        if mine is None or its is None or mine == its:
            return 0.0
        weight = EFFECT_SHARE * (self._effects[mine].weight + self._weigh_negation(self._effects[its]))
        pairs = _read_pairs()
        if (other, verb) in pairs and (verb, other) not in pairs:  # the verb undoes the other
            weight += self._effects[UNDO].weight + (self._effects[BACK].weight if mine == PRESENT else 0.0)
        return weight


def _move(hit: Hit, score: float) -> Hit:
    """Return a hit at another place."""
    return Hit(hit.id, score, f"{hit.why.removesuffix(f', {MOVED}')}, {MOVED}")


# --- the vocabulary ---------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _read_lines() -> list[str]:
    files = sorted(WORDS_FOLDER.glob("*.actions.txt"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


@functools.lru_cache(maxsize=1)
def _read_pairs() -> frozenset[tuple[str, str]]:
    """Return the pairs of verbs of which a request asks for one or for the other; the second may undo the first."""
    lines = [line for line in _read_lines() if "=" not in line and line[0] not in (PRESENT, GONE)]
    pairs = [pair.partition("/") for line in lines for pair in line.split()]
    return frozenset(
        pair for firsts, _, seconds in pairs for pair in itertools.product(firsts.split("+"), seconds.split("+"))
    )


def are_opposites(verb: str, other: str) -> bool:
    """Tell whether a request asks for one of two verbs or for the other."""
    pairs = _read_pairs()
    return (verb, other) in pairs or (other, verb) in pairs


@functools.lru_cache(maxsize=1)
def get_effects() -> dict[str, str]:
    """Return what verbs bring about: `+` if something is there afterwards, `-` if it is gone."""
    return {verb: line[0] for line in _read_lines() if line[0] in (PRESENT, GONE) for verb in line[1:].split()}


@functools.lru_cache(maxsize=1)
def _read_cues() -> dict[str, ActionCues]:
    """Map each verb, and each effect in brackets, to its cues."""
    cues: defaultdict[str, set[str]] = defaultdict(set)
    for line in _read_lines():
        verbs, equals, words = line.partition(" = ")
        for verb in verbs.split() if equals else ():
            cues[verb].update(filter(None, map(str.strip, words.split(","))))
    return {verb: ActionCues("" if verb[0] == "[" else verb, frozenset(words)) for verb, words in cues.items()}


@functools.lru_cache(maxsize=1)
def get_cues() -> dict[str, ActionCues]:
    """Return the cues of each verb. A verb with several words is joined by `_`."""
    return {verb: cues for verb, cues in _read_cues().items() if verb[0] != "["}


@functools.lru_cache(maxsize=1)
def get_effect_cues() -> dict[str, ActionCues]:
    """Return the cues of each effect, and those of the second verb of a pair, which undoes the first.

    Those of `UNDO` hold whatever its effect is, those of `BACK` if something is there again afterwards.
    """
    return {effect.strip("[]"): cues for effect, cues in _read_cues().items() if effect[0] == "["}
