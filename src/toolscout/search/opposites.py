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
        self._numbers_of: defaultdict[str, list[int]] = defaultdict(list)  # tool → numbers of its families
        for number, siblings in enumerate(self._families):
            for tool_id in siblings:
                self._numbers_of[tool_id].append(number)

    def change(self, search: Answer) -> Answer:
        """Swap siblings among the hits, in families with at least two hits, one of them among the first."""
        text, hits = search.query[:MAX_READ_CHARS], list(search.hits)
        first_hits = hits[: max(search.k, MIN_HEAD)]
        families = {number for hit in first_hits for number in self._numbers_of.get(hit.id, ())}
        if not families:
            return search
        places_by_family: defaultdict[int, list[int]] = defaultdict(list)
        for place, hit in enumerate(hits):
            for number in families.intersection(self._numbers_of.get(hit.id, ())):
                places_by_family[number].append(place)
        contested = [(number, places) for number, places in places_by_family.items() if len(places) > 1]
        if not contested or has_more_words(text, MAX_READ_WORDS):
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
        note = f"the request asks for the action of {search.ids[after]}"
        if after < before:
            note = f"{before + 1} before; the request's words ask for its action"
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
    splits = {catalogue.ids[position]: list(_split_name(catalogue.names[position])) for position in changed}
    by_rest: defaultdict[tuple[str, ...], Family] = defaultdict(dict)  # (source, folder, rest of the name) → family
    for tool in catalogue.tools(sorted(tool_id for tool_id, verbs in splits.items() if verbs)):
        folder = tool.path[0] if tool.path else ""
        for verb, rest in splits[tool.id]:
            by_rest[(tool.source, folder, *rest)][tool.id] = verb
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
    """Yield each verb of a tool's name, with the rest of the name in a form that is equal for siblings.

    This is the text before the last dot, and then the other words in alphabetical order, without the `s` of a plural.
    Words that only join others, such as "to", are left out.
    """
    prefix, _, name = name.rpartition(".")
    words = _NAME_WORD.findall(split_identifiers(name).lower())
    for start in range(len(words)):
        for end in range(start + 1, min(start + MAX_VERB_WORDS, len(words)) + 1):
            verb = find_verb("_".join(words[start:end])) or find_verb("".join(words[start:end]))
            if verb is not None:
                others = [word.rstrip("s") for word in (*words[:start], *words[end:]) if word not in JOINING_WORDS]
                yield verb, (prefix, *sorted(others))


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
    """What a request says about a verb.

    Attributes:
        is_named: whether the verb itself is in the request.
        weight: how strongly the request asks for the verb's action: the sum of the weights of cues.
        against: how strongly it asks for the contrary.
    """

    is_named: bool
    weight: float
    against: float


class RequestStems(NamedTuple):
    """The stems of a request: joined by spaces in their order, and as a set. `CLAUSE_END` is between clauses."""

    text: str
    stems: frozenset[str]

    def negates(self, cue: re.Match[str]) -> bool:
        """Tell whether a negation is right before a cue or between its words."""
        if self.stems.isdisjoint(NEGATING_STEMS):
            return False
        text_before = self.text[: cue.start()]
        return bool(_NEGATION.search(text_before) or _INNER_NEGATION.search(cue[0]))


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

    def drop_hyphen(match: re.Match[str]) -> str:
        return "un" if find_verb(f"un{match[1].lower()}") else match[0]

    def reverse(match: re.Match[str]) -> str:
        stop, verb_form = match[1], match[2].lower()
        verb = find_verb(verb_form)
        if verb is None:
            return match[0]
        prefix = "un" if f"un{verb}" in get_cues() else "not "
        return f"{stop} {prefix}{verb_form}"

    return _STOPPING.sub(reverse, _HYPHENATED.sub(drop_hyphen, text))


def find_states(text: str) -> frozenset[str]:
    """Return the verbs that a question uses as adjectives: "any open tickets?" asks for a state, and opens nothing."""
    words = _NAME_WORD.findall(text.lower())
    verbs = [(find_verb(word), word_before) for word_before, word in itertools.pairwise(words)]
    # In "which ticket should I close?" somebody acts, so "close" is no state.
    acting = {verb for verb, word_before in verbs if word_before in DOERS}
    return frozenset(verb for verb, _ in verbs if verb and verb not in READING_VERBS) - acting


def has_more_words(text: str, limit: int) -> bool:
    """Tell whether a text has more words than the limit. A quotation counts as one word."""
    if len(text.split()) <= limit:  # most texts are short, and need not be searched for quotations
        return False
    return len(QUOTATION.sub(f" {NAMED_THING} ", text).split()) > limit


class _Cue(NamedTuple):
    """The stems of a cue, its weight, and whether it contains a negation itself, as "no longer" does."""

    stems: tuple[str, ...]
    weight: float
    has_negation: bool


class ActionCues:
    """The cues of one verb or of one effect."""

    def __init__(self, verb: str, cues: frozenset[str]) -> None:
        """Take the cues of a verb. `verb` is empty for the cues of an effect, which has no word of its own."""
        self._verb, self._cues = verb.replace("_", " "), cues

    @functools.cached_property
    def _literal(self) -> tuple[str, ...]:
        """Stems of the verb itself; none for the commonest verbs ("get"), which are in requests of all kinds."""
        return () if self._verb in COMMON_VERBS else list_stems_in_order(self._verb)

    @functools.cached_property
    def _by_first_stem(self) -> dict[str, list[_Cue]]:
        """The cues, and the verb itself, by their first stem. Of cues with the same stems, the heaviest counts."""
        weights = {cue: float(len(cue.split(" "))) for cue in self._cues}
        weights |= dict.fromkeys(self._cues & ENDINGS, ENDING_WEIGHT)
        if self._verb:
            weights[self._verb] = 1.0 if self._verb in COMMON_VERBS else LITERAL_WEIGHT
        by_stems: dict[tuple[str, ...], _Cue] = {}
        for text in sorted(weights, key=weights.__getitem__):  # so the heaviest cue replaces the others
            stems = list_stems_in_order(text)
            by_stems[stems] = _Cue(stems, weights[text], bool(_NEGATED_CUE.search(text)))
        by_first_stem: defaultdict[str, list[_Cue]] = defaultdict(list)
        for stems, cue in by_stems.items():
            by_first_stem[stems[0]].append(cue)
        return by_first_stem

    def weigh(self, request: RequestStems) -> VerbEvidence:
        """Return how strongly a request asks for what the verb does, and how strongly it forbids it."""
        is_named, weight, against = False, 0.0, 0.0
        for first_stem in self._by_first_stem.keys() & request.stems:
            for cue in self._by_first_stem[first_stem]:
                if not request.stems.issuperset(cue.stems):  # this takes less time than a search with the pattern
                    continue
                match = _compile_cue(cue.stems).search(request.text)
                if match is None:
                    continue
                is_named |= cue.stems == self._literal  # the verb is one of its cues
                # In "no longer", the negation is part of the cue, and does not turn it around.
                if not cue.has_negation and request.negates(match):
                    against += cue.weight
                else:
                    weight += cue.weight
        return VerbEvidence(is_named, weight, against)


@functools.lru_cache(maxsize=MAX_CACHED_PATTERNS)
def _compile_cue(stems: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that finds the stems of a cue in one clause of `RequestStems.text`.

    Between two stems there may be `MAX_GAP` others; before a particle that ends the clause ("turn … off"), any number.
    """
    *first_stems, last_stem = [re.escape(stem) for stem in stems]
    if not first_stems:
        return re.compile(rf"(?<!\S){last_stem}(?!\S)")
    other_stem = rf"(?: [^\s{CLAUSE_END}]+)"
    gap = rf"{other_stem}{{0,{MAX_GAP}}} "
    ending = rf"{gap}{last_stem}(?!\S)"
    if stems[-1] in CLOSING_PARTICLES:
        ending = rf"(?:{ending}|{other_stem}* {last_stem}(?= \{CLAUSE_END}|\Z))"
    return re.compile(r"(?<!\S)" + gap.join(first_stems) + ending)


class ActionEvidence:
    """What the words of one request say about actions: "take the label away" asks for `remove_label`."""

    def __init__(self, text: str) -> None:
        """Read the request, and weigh the cues of effects, such as "no longer"."""
        text = join_reversed_verbs(text)
        self._text, self._request = text, read_request(text)
        self._states = find_states(text) if _ASKING.match(text) else frozenset[str]()
        self._effects = {effect: cues.weigh(self._request) for effect, cues in get_effect_cues().items()}
        self._verbs: dict[str, VerbEvidence] = {}  # cache of `_weigh`

    def swap_siblings(self, hits: list[Hit], family_places: Sequence[int], verbs: Family) -> bool:
        """Swap siblings such as `add_label` and `remove_label` if the request asks for the action of the lower one.

        Args:
            hits: changed in place. Each place keeps its score.
            family_places: indices into `hits` at which the tools of the family were, ascending.
            verbs: the family, tool id → verb.

        Returns:
            Whether any were swapped.
        """
        places = [place for place in family_places if hits[place].id in verbs]  # another family may have moved a tool
        any_swapped = False
        for _ in places:  # a swap may bring two others into the wrong order, so all pairs are compared again
            swapped = False
            for upper, lower in itertools.combinations(places, 2):
                front, behind = hits[upper], hits[lower]
                front_verb, behind_verb = verbs[front.id], verbs[behind.id]
                asks_for_behind = are_opposites(front_verb, behind_verb) and self.prefers(behind_verb, front_verb)
                # A request that only reads a state wants the verb that reads it before the verb that changes it.
                only_reads = behind_verb in READING_VERBS and any(
                    front_verb.endswith(state) or are_opposites(front_verb, state) for state in self._states
                )
                if asks_for_behind or only_reads:
                    hits[upper], hits[lower] = _move(behind, front.score), _move(front, behind.score)
                    swapped = any_swapped = True
            if not swapped:
                break
        return any_swapped

    def prefers(self, behind: str, front: str) -> bool:
        """Tell whether the request asks for `behind` rather than for its opposite `front`."""
        front_evidence, behind_evidence = self._weigh(front), self._weigh(behind)
        for_front = front_evidence.weight + self._weigh_negation(behind_evidence) + self._weigh_effect(front, behind)
        for_behind = behind_evidence.weight + self._weigh_negation(front_evidence) + self._weigh_effect(behind, front)
        # The word "follow" is a part of "unfollow". If enough other evidence asks for `unfollow`, the word does not
        # count for `follow`.
        if behind.endswith(front):  # `unfollow` behind `follow`
            if front_evidence.is_named and for_behind >= MIN_DERIVED_EVIDENCE:
                for_front -= LITERAL_WEIGHT
        elif front_evidence.is_named and not front_evidence.against:
            return False  # the request has the verb itself, and does not negate it
        elif front.endswith(behind) and behind_evidence.is_named and for_front >= MIN_DERIVED_EVIDENCE:
            for_behind -= LITERAL_WEIGHT  # `follow` behind `unfollow`
        return for_behind - for_front >= MIN_LEAD

    def _weigh(self, verb: str) -> VerbEvidence:
        """Return the evidence from a verb and its cues."""
        if verb not in self._verbs:
            self._verbs[verb] = get_cues()[verb].weigh(self._request)
        return self._verbs[verb]

    def _weigh_negation(self, evidence: VerbEvidence) -> float:
        """Return how strongly the request asks for the opposite of a verb or effect by negating it.

        "Do not delete it" may ask for the opposite. "Do not delete it, just rename it" asks for something else.
        """
        if not evidence.against or self._has_positive_command:
            return 0.0
        return evidence.against

    @functools.cached_property
    def _has_positive_command(self) -> bool:
        """Whether the request has a command in a clause without a negation."""
        cuts = find_cuts(self._text)
        starts = [0, *(cut.end for cut in cuts)]
        ends = [*(cut.start for cut in cuts), len(self._text)]
        clauses = [self._text[start:end] for start, end in zip(starts, ends, strict=True)]
        return any(is_command(clause) for clause in clauses if not _NEGATING_WORD.search(clause))

    def _weigh_effect(self, verb: str, other: str) -> float:
        """Return how strongly the request asks for the effect of a verb rather than for the effect of its opposite."""
        effect, other_effect = get_effects().get(verb), get_effects().get(other)
        if effect is None or other_effect is None or effect == other_effect:
            return 0.0  # effects tell nothing about these two verbs
        weight = EFFECT_SHARE * (self._effects[effect].weight + self._weigh_negation(self._effects[other_effect]))
        pairs = _read_pairs()
        undoes_other = (other, verb) in pairs and (verb, other) not in pairs
        if undoes_other:
            weight += self._effects[UNDO].weight
        if undoes_other and effect == PRESENT:
            weight += self._effects[BACK].weight
        return weight


def _move(hit: Hit, score: float) -> Hit:
    """Return a hit with the score of its new place, and with a note that it was moved."""
    why = hit.why.removesuffix(f", {MOVED}")  # a hit that moves twice gets one note
    return Hit(hit.id, score, f"{why}, {MOVED}")


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
    """Return the pairs (verb, verb that undoes it), and in both orders the opposites that do not undo each other."""
    pairs: set[tuple[str, str]] = set()
    for line in _read_lines():
        if "=" in line or line[0] in (PRESENT, GONE):
            continue  # the line has cues or an effect
        for verbs, _, opposites in (group.partition("/") for group in line.split()):
            pairs.update(itertools.product(verbs.split("+"), opposites.split("+")))
    return frozenset(pairs)


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
    """Map each verb, and each effect in brackets, such as `[undo]`, to its cues."""
    cues_by_key: defaultdict[str, set[str]] = defaultdict(set)
    for line in _read_lines():
        keys, _, cues = line.partition(" = ")
        if not cues:
            continue  # the line has pairs or an effect
        for key in keys.split():
            cues_by_key[key].update(filter(None, map(str.strip, cues.split(","))))
    return {key: ActionCues("" if key.startswith("[") else key, frozenset(cues)) for key, cues in cues_by_key.items()}


@functools.lru_cache(maxsize=1)
def get_cues() -> dict[str, ActionCues]:
    """Return verb → its cues. The words of a verb are joined by `_`."""
    return {verb: cues for verb, cues in _read_cues().items() if not verb.startswith("[")}


@functools.lru_cache(maxsize=1)
def get_effect_cues() -> dict[str, ActionCues]:
    """Return effect → its cues: `PRESENT`, `GONE`, `UNDO`, `BACK`.

    The last two ask for the verb of a pair that undoes the other: `UNDO` for any such verb, `BACK` only if something
    is there again afterwards.
    """
    return {effect.strip("[]"): cues for effect, cues in _read_cues().items() if effect.startswith("[")}
