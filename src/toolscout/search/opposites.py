"""Opposite tools of one server, such as `add_label` and `remove_label`: the one that the request asks for comes first.

They share nearly all words, and vectors of opposites are near to each other, so which of the two ranks first is often
chance. The names decide which tools are *siblings*: equal but for a verb that we know, and for words that only join
others (`add_to_cart`, `remove_from_cart`). Siblings change places among themselves; no other tool moves.

A *cue* of a verb is a word or phrase that asks for its action: "take away" is a cue of `remove`. The files
`words/LANG.actions.txt` have the pairs of opposite verbs, the cues of each verb, and cues of all verbs with one effect:
"no longer" asks that something be gone. A cue of several words holds if its words come in this order in one clause,
with at most `MAX_GAP` others between two of them. A cue behind a negation counts against its verb. "Stop pinning" and
"un-pin" ask for `unpin`; "any open tickets?" reads, and opens nothing. LAB.md, 2026-11-27, names the finer rules that
changed no dev request.
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
MIN_HEAD: Final = 60  # first hits; siblings move only if one of them is among these, as later stages move up so many
MAX_GAP: Final = 4
MAX_VERB_WORDS: Final = 2  # of a verb in a tool's name: "sign_up"
MIN_STEM_LETTERS: Final = 3
MAX_CACHED_PATTERNS: Final = 10_000
LITERAL_WEIGHT: Final = 3.0  # of the verb itself in the request
ENDING_WEIGHT: Final = 4.0  # of words that end something: they turn the verb beside them around
MIN_LEAD: Final = 0.5  # by which the evidence for one sibling must exceed that for another to put it first
MIN_DERIVED_EVIDENCE: Final = 2.0  # for `unfollow` where the request says "follow"
EFFECT_SHARE: Final = 0.5  # factor on the weights of cues that hold for all verbs with one effect
GONE, PRESENT, UNDO, BACK = "-", "+", "undo", "back"  # effects that have cues of their own; see `get_effect_cues`
CLAUSE_END: Final = "|"  # between the stems of two clauses
NAMED_THING: Final = "x"  # in place of quoted words
MOVED: Final = "action word"  # what a swapped hit says of its origin
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
_HYPHENATED: Final = re.compile(r"\bun[-‐ ](?=([^\W\d_]+))", re.IGNORECASE)  # "un-pin"
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
        """Find the siblings of a snapshot, once for each generation and vocabulary."""
        key = f"{ACTIONS_FORMAT}/{digest('verbs/1', [sorted(get_cues()), sorted(_read_pairs())])}"
        encoded = catalogue.load_or_build(key, lambda: msgspec.json.encode(find_families(catalogue, key)))
        self._families = msgspec.json.decode(encoded, type=list[Family])
        self._of_tool: defaultdict[str, list[int]] = defaultdict(list)  # tool → numbers of its families
        for number, siblings in enumerate(self._families):
            for tool_id in siblings:
                self._of_tool[tool_id].append(number)

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        """Return the searches with opposite siblings in the order that each request asks for."""
        return [self._reorder(search) for search in searches] if self._families else list(searches)

    def _reorder(self, search: Answer) -> Answer:
        """Swap siblings among the hits, in families with at least two hits, one of them among the first."""
        text, hits, of_tool = search.query[:MAX_READ_CHARS], list(search.hits), self._of_tool
        first = {number for hit in hits[: max(search.k, MIN_HEAD)] for number in of_tool.get(hit.id, ())}
        places_by_family: defaultdict[int, list[int]] = defaultdict(list)
        for place, hit in enumerate(hits) if first else ():
            for number in first.intersection(of_tool.get(hit.id, ())):
                places_by_family[number].append(place)
        contested = [(number, places) for number, places in places_by_family.items() if len(places) > 1]
        # A text with more words than `MAX_READ_WORDS` has more characters too, which are counted sooner.
        if not contested or (len(text) > MAX_READ_WORDS and has_more_words(text, MAX_READ_WORDS)):
            return search
        evidence = ActionEvidence(text)
        swaps = [evidence.swap_siblings(hits, places, self._families[number]) for number, places in contested]
        return msgspec.structs.replace(search, hits=tuple(hits)) if any(swaps) else search

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        """Return rank and score of a tool that changes its place; None if it keeps it."""
        [result] = self.run([search])
        if tool_id not in search.ids:
            return None
        before, after = search.ids.index(tool_id), result.ids.index(tool_id)
        if before == after:
            return None
        moves_up = f"{before + 1} before; the request's words ask for its action"
        note = moves_up if after < before else f"the request asks for the action of {search.ids[after]}"
        return Explanation(self.name, after + 1, result.hits[after].score, note)

    def note(self, search: Answer) -> str:
        """Return how many hits changed their places."""
        count = sum([hit.why.endswith(MOVED) for hit in search.hits])
        return f"{count} siblings by their action" if count else ""


# --- siblings ---------------------------------------------------------------------------------------------------------


def find_families(catalogue: Catalogue, key: str) -> list[Family]:
    """Return the families of a snapshot that have opposites. The tools of a family are all of one source.

    Families of sources that have not changed are taken over from the snapshot before, which stored them under the key.
    """
    encoded, positions = catalogue.load_earlier_value(key)
    changed = range(len(catalogue)) if positions is None else positions.tolist()
    readings = {catalogue.ids[position]: list(_split_name(catalogue.names[position])) for position in changed}
    by_rest: defaultdict[tuple[str, ...], Family] = defaultdict(dict)
    for tool in catalogue.tools(sorted(tool_id for tool_id, pairs in readings.items() if pairs)):
        for verb, rest in readings[tool.id]:
            by_rest[(tool.source, tool.path[0] if tool.path else "", *rest)][tool.id] = verb
    families = [family for family in by_rest.values() if _has_opposites(family)]
    if encoded is not None and catalogue.earlier is not None:
        earlier = msgspec.json.decode(encoded, type=list[Family])
        families += [family for family in earlier if _get_source(family) in catalogue.earlier.unchanged_sources]
    return sorted(families, key=lambda family: next(iter(family)))


def _get_source(family: Family) -> str:
    return next(iter(family)).partition("/")[0]


def _has_opposites(family: Family) -> bool:
    return any(are_opposites(*pair) for pair in itertools.combinations(set(family.values()), 2))


def _split_name(name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each verb of a tool's name with the rest: what stands before the last dot, and the other words.

    Words that only join others are left out. The words are in alphabetical order, without the `s` of a plural.
    """
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
    """Return the verb that a word of a name is a form of: `cancel` for `cancelling`. None: no verb with cues."""
    verbs = get_cues()
    if word in verbs:
        return word
    for ending in VERB_ENDINGS:
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= MIN_STEM_LETTERS:
            undoubled = stem[:-1] if stem[-1] == stem[-2] else stem  # "cancell" → "cancel"
            known_verb = next((verb for verb in (stem, f"{stem}e", undoubled) if verb in verbs), None)
            if known_verb is not None:
                return known_verb
    return None


# --- what a request asks for ------------------------------------------------------------------------------------------


class VerbEvidence(NamedTuple):
    """How strongly a request asks for a verb's action, and how strongly against it: sums of the weights of cues."""

    weight: float
    against: float


class RequestStems(NamedTuple):
    """The stems of a request: joined by spaces in their order, and as a set. `CLAUSE_END` is between clauses."""

    text: str
    stems: frozenset[str]

    def negates(self, cue: re.Match[str]) -> bool:
        """Tell whether a negation stands before a cue or between its words."""
        if self.stems.isdisjoint(NEGATING_STEMS):
            return False
        return bool(_NEGATION.search(self.text, 0, cue.start()) or _INNER_NEGATION.search(cue[0]))


def read_request(text: str) -> RequestStems:
    """Return the stems of a request, without polite words at the start of a clause. Quotations become `NAMED_THING`."""
    clauses = _CLAUSE.split(QUOTATION.sub(f" {NAMED_THING} ", text))
    stems = [_POLITE_START.sub("", " ".join(list_stems_in_order(clause))) for clause in clauses]
    joined = f" {CLAUSE_END} ".join(filter(None, stems))
    return RequestStems(joined, frozenset(joined.split()))


def join_reversed_verbs(text: str) -> str:
    """Rewrite "un-pin" as "unpin", and "stop pinning" as "stop unpinning", so that the cues of `unpin` are found.

    If no verb has the opposite meaning, "stop saving" becomes "stop not saving", so that "save" is negated.
    """

    def reverse(match: re.Match[str]) -> str:
        verb = find_verb(match[2].lower())
        if verb is None:
            return match[0]
        return f"{match[1]} {'un' if f'un{verb}' in get_cues() else 'not '}{match[2].lower()}"

    joined = _HYPHENATED.sub(lambda match: "un" if find_verb(f"un{match[1].lower()}") else match[0], text)
    return _STOPPING.sub(reverse, joined)


def find_states(text: str) -> frozenset[str]:
    """Return the verbs that a question has as adjectives: "any open tickets?" reads and opens nothing.

    A verb behind someone who acts is none: "which ticket should I close?". Verbs such as "show" are no states either.
    """
    if not _ASKING.match(text):
        return frozenset()
    words = _NAME_WORD.findall(text.lower())
    verbs = [(find_verb(word), word_before) for word_before, word in itertools.pairwise(words)]
    acting = {verb for verb, word_before in verbs if word_before in DOERS}
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
    """The cues of one verb or of one effect."""

    def __init__(self, verb: str, cues: frozenset[str]) -> None:
        """Take the cues, which are read at their first use. `verb`: empty for an effect, which is no word itself."""
        self._verb, self._cues = verb.replace("_", " "), cues

    @functools.cached_property
    def _literal(self) -> tuple[str, ...]:
        """Stems of the verb itself; none for the commonest verbs ("get"), which are in requests of all kinds."""
        return list_stems_in_order(self._verb) if self._verb and self._verb not in COMMON_VERBS else ()

    @functools.cached_property
    def _by_first_stem(self) -> dict[str, list[_Cue]]:
        """The cues and the verb itself by their first stem. A cue weighs its number of words; an ending more."""
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

    def is_literally_in(self, request: RequestStems) -> bool:
        """Tell whether the verb itself is in a request."""
        if not self._literal or not request.stems.issuperset(self._literal):  # the pattern takes longer
            return False
        return bool(_compile_cue(self._literal).search(request.text))

    def weigh(self, request: RequestStems) -> VerbEvidence:
        """Return how strongly a request asks for what the verb does, and how strongly it forbids it.

        A cue that contains a negation itself ("no longer") is not turned around by it.
        """
        weight = against = 0.0
        for cue in (cue for first in self._by_first_stem.keys() & request.stems for cue in self._by_first_stem[first]):
            match = _compile_cue(cue.stems).search(request.text) if request.stems.issuperset(cue.stems) else None
            if match is not None and not cue.is_negated and request.negates(match):
                against += cue.weight
            elif match is not None:
                weight += cue.weight
        return VerbEvidence(weight, against)


@functools.lru_cache(maxsize=MAX_CACHED_PATTERNS)
def _compile_cue(stems: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that finds the stems of a cue in one clause of `RequestStems.text`.

    Between two stems there may be `MAX_GAP` others; before a particle that ends the clause ("turn … off"), any number.
    """
    gap = rf"(?: [^\s{CLAUSE_END}]+)"  # one other stem
    *start, last = map(re.escape, stems)
    end = rf"{gap}{{0,{MAX_GAP}}} {last}(?!\S)" if start else rf"{last}(?!\S)"
    if start and stems[-1] in CLOSING_PARTICLES:
        end = rf"(?:{end}|{gap}* {last}(?= \{CLAUSE_END}|\Z))"
    return re.compile(r"(?<!\S)" + rf"{gap}{{0,{MAX_GAP}}} ".join(start) + end)


class ActionEvidence:
    """What the words of one request say about actions: "take the label away" asks for `remove_label`."""

    def __init__(self, text: str) -> None:
        """Read the request, and weigh the cues of effects, such as "no longer"."""
        text = join_reversed_verbs(text)
        self._text, self._request, self._states = text, read_request(text), find_states(text)
        self._effects = {effect: cues.weigh(self._request) for effect, cues in get_effect_cues().items()}
        self._weighed: dict[str, tuple[bool, VerbEvidence]] = {}  # verb → (whether it is in the request, evidence)

    def swap_siblings(self, hits: list[Hit], family_places: Sequence[int], verbs: Family) -> bool:
        """Swap tools such as `add_label` and `remove_label` if the request asks for the action of the lower one.

        A family is the tools of one source whose names differ only by their verbs. Two tools of a family swap only if
        their verbs are opposites and the evidence differs by `MIN_LEAD`. The scores stay at their places.

        A sibling that reads also comes before one that would change a state which the request only reads.

        Args:
            hits: changed in place.
            family_places: indices into `hits` at which the tools of the family were, ascending. If another family has
                moved one of them, it is left out.
            verbs: tool id → verb, of the whole family.

        Returns:
            Whether any tools were swapped.
        """
        places = [place for place in family_places if hits[place].id in verbs]
        moved = False
        for _ in places:  # a swap may bring two others into the wrong order
            swapped = False
            for left, right in itertools.combinations(places, 2):
                front, behind = verbs[hits[left].id], verbs[hits[right].id]
                asked = are_opposites(front, behind) and self.prefers(behind, front)
                if asked or (behind in READING_VERBS and self._changes_state(front)):
                    higher, lower = hits[left], hits[right]
                    hits[left], hits[right] = _move(lower, higher.score), _move(higher, lower.score)
                    swapped = moved = True
            if not swapped:
                break
        return moved

    def prefers(self, behind: str, front: str) -> bool:
        """Tell whether the evidence puts a tool that does `behind` before one that does `front`, its opposite.

        If `front` itself is in the request, its tool stays before, unless it is negated, or `behind` is made from it.
        So "stop following her" means `unfollow`. If one verb is made from the other, "follow" is part of both. Then it
        counts for neither, if enough else asks for the longer verb.
        """
        (has_front, front_evidence), (has_behind, behind_evidence) = self._weigh(front), self._weigh(behind)
        for_front = front_evidence.weight + self._weigh_negation(behind_evidence)
        for_behind = behind_evidence.weight + self._weigh_negation(front_evidence)
        for_front += self._weigh_effect(front, behind)
        for_behind += self._weigh_effect(behind, front)
        if behind.endswith(front):  # `unfollow` behind `follow`
            for_front -= LITERAL_WEIGHT if has_front and for_behind >= MIN_DERIVED_EVIDENCE else 0.0
        elif has_front and not front_evidence.against:
            return False
        elif front.endswith(behind):  # `follow` behind `unfollow`
            for_behind -= LITERAL_WEIGHT if has_behind and for_front >= MIN_DERIVED_EVIDENCE else 0.0
        return for_behind - for_front >= MIN_LEAD

    def _changes_state(self, verb: str) -> bool:
        """Tell whether a verb would change the state that the request only reads."""
        return any(verb.endswith(state) or are_opposites(verb, state) for state in self._states)

    def _weigh(self, verb: str) -> tuple[bool, VerbEvidence]:
        """Return whether a verb itself is in the request, and the evidence from its cues; each verb is weighed once."""
        if verb not in self._weighed:
            cues = get_cues()[verb]
            self._weighed[verb] = cues.is_literally_in(self._request), cues.weigh(self._request)
        return self._weighed[verb]

    def _weigh_negation(self, evidence: VerbEvidence) -> float:
        """Return how strongly the negation of a verb or effect asks for its opposite: 0 if the request asks more.

        "Do not delete it" may mean that something shall be there. "Do not delete it, just rename it" says what it
        means, and that is none of the two.
        """
        # Whether it asks more takes long to find out, so the evidence is looked at first.
        return evidence.against if evidence.against and not self._asks_besides else 0.0

    @functools.cached_property
    def _asks_besides(self) -> bool:
        """Whether a request with a negation also has a command in a clause without one."""
        cuts = find_cuts(self._text)
        edges = zip([0, *(cut.end for cut in cuts)], [*(cut.start for cut in cuts), len(self._text)], strict=True)
        clauses = [self._text[start:end] for start, end in edges]
        return any(is_command(clause) for clause in clauses if not _NEGATING_WORD.search(clause))

    def _weigh_effect(self, verb: str, other: str) -> float:
        """Return how strongly the request asks for the effect of a verb rather than for the effect of its opposite.

        0 if the two have the same effect, or if one has none that is known.
        """
        effect, other_effect = get_effects().get(verb), get_effects().get(other)
        if effect is None or other_effect is None or effect == other_effect:
            return 0.0
        weight = EFFECT_SHARE * (self._effects[effect].weight + self._weigh_negation(self._effects[other_effect]))
        pairs = _read_pairs()
        if (other, verb) in pairs and (verb, other) not in pairs:  # the verb undoes the other
            weight += self._effects[UNDO].weight + (self._effects[BACK].weight if effect == PRESENT else 0.0)
        return weight


def _move(hit: Hit, score: float) -> Hit:
    """Return a hit for another place: with the score of that place, and once with the note that it was moved."""
    return Hit(hit.id, score, f"{hit.why.removesuffix(f', {MOVED}')}, {MOVED}")


# --- the vocabulary ---------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _read_lines() -> list[str]:
    """Return the lines of `words/LANG.actions.txt` for all languages, without comments and empty lines.

    There are three forms: `add/remove+delete` (pairs of opposite verbs), `+ add create` or `- remove` (the effect of
    verbs), and `remove delete = take away, get rid` (the cues of verbs, or of an effect such as `[undo]`).
    """
    files = sorted(WORDS_FOLDER.glob("*.actions.txt"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


@functools.lru_cache(maxsize=1)
def _read_pairs() -> frozenset[tuple[str, str]]:
    """Return the pairs of opposite verbs. The second may undo the first; if neither does, both orders are there."""
    lines = [line for line in _read_lines() if "=" not in line and line[0] not in (PRESENT, GONE)]
    pairs = [pair.partition("/") for line in lines for pair in line.split()]
    return frozenset(
        pair for firsts, _, seconds in pairs for pair in itertools.product(firsts.split("+"), seconds.split("+"))
    )


def are_opposites(verb: str, other: str) -> bool:
    """Tell whether two verbs are opposites, so that a request asks for one of them only."""
    pairs = _read_pairs()
    return (verb, other) in pairs or (other, verb) in pairs


@functools.lru_cache(maxsize=1)
def get_effects() -> dict[str, str]:
    """Return verb → its effect: `+` if something is there afterwards, `-` if it is gone."""
    return {verb: line[0] for line in _read_lines() if line[0] in (PRESENT, GONE) for verb in line[1:].split()}


@functools.lru_cache(maxsize=1)
def _read_cues() -> dict[str, ActionCues]:
    """Map each verb, and each effect such as `[undo]`, to its cues."""
    cues_by_key: defaultdict[str, set[str]] = defaultdict(set)
    for line in _read_lines():
        keys, equals, cues = line.partition(" = ")
        for key in keys.split() if equals else ():
            cues_by_key[key].update(filter(None, map(str.strip, cues.split(","))))
    return {key: ActionCues("" if key[0] == "[" else key, frozenset(cues)) for key, cues in cues_by_key.items()}


@functools.lru_cache(maxsize=1)
def get_cues() -> dict[str, ActionCues]:
    """Return verb → its cues. The words of a verb are joined by `_`."""
    return {verb: cues for verb, cues in _read_cues().items() if verb[0] != "["}


@functools.lru_cache(maxsize=1)
def get_effect_cues() -> dict[str, ActionCues]:
    """Return effect → its cues: `PRESENT`, `GONE`, `UNDO`, `BACK`.

    The last two ask for the verb of a pair that undoes the other: `UNDO` for any such verb, `BACK` only if something
    is there again afterwards.
    """
    return {effect.strip("[]"): cues for effect, cues in _read_cues().items() if effect[0] == "["}
