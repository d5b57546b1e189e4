"""Splits a request into its steps, without a language model.

"Find flights to Rome, check the weather there and email the plan to Anna" has three steps. A *cut* is a place where a
step may begin: a *mark* (punctuation, a line, a list mark), a connector ("then", "and"; `search.steps.words`), or both.
The text between two cuts is a *piece*. A logistic regression decides for each cut whether a step begins there, from its
marks and connectors and from the verbs, questions and lengths of the pieces on both sides. Nothing inside quotes or
brackets is a cut.

The numbers (`data/steps.json`) were fitted by `benchmarks/fit_steps.py`; the file names its data.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.search.shipped import read_shipped
from toolscout.search.steps import words
from toolscout.vocabulary import join_phrases

__all__ = [
    "BUNDLED_STEPS",
    "CLASSES",
    "FEATURES",
    "STEPS_FORMAT",
    "SplitPoint",
    "Splitter",
    "describe_cuts",
    "find_cuts",
    "is_command",
    "load_splitter",
    "uses_other_result",
]

BUNDLED_STEPS: Final = Path(__file__).parents[1] / "data" / "steps.json"
STEPS_FORMAT: Final = "steps/1"
MAX_DESCRIBED_REQUESTS: Final = 64  # requests whose cuts are cached
MAX_SPLIT_CHARS: Final = 3_000  # longer requests are documents, and are not split
MAX_STEPS: Final = 8  # a request with more is a document too
MAX_LEAD_IN_TOKENS: Final = 8  # of a piece such as "that reminds me:"
MAX_WORD_BEFORE_CHARS: Final = 40  # before a cut, which are searched for the last word

_PROTECTED: Final = re.compile(
    r"\"[^\"\n]{1,300}\"|“[^”\n]{1,300}”|„[^“”\n]{1,300}[“”]|«[^»\n]{1,300}»|「[^」\n]{1,300}」|『[^』\n]{1,300}』"
    r"|`[^`\n]{1,300}`|(?<!\w)['‘][^'’\n]{1,300}['’](?!\w)|\([^()\n]{3,300}\)"
    r"|\[(?!\d{1,2}\])[^\[\]\n]{1,300}\]|\{[^{}\n]{1,300}\}"
    rf"|{words.PASTED_TEXT}"
    r"|\b(?:https?://|www\.)\S+|(?<!\S)[^\s@]{1,64}@[^\s@]{1,255}\.\w+|\d[\d.,:/-]*\d"
    r"|\b(?:e\.g|i\.e|etc|vs|mr|mrs|ms|dr|st|no|a\.m|p\.m|u\.s|inc|ltd|approx|z\.\s?b|bzw|núm|sr|sra)\.",
    re.IGNORECASE,
)
_NUMBER_MARK: Final = (
    r"\(?\d{1,2}[.)]|\[\d{1,2}\]|\(?[a-hA-H]\)|\((?:i{1,3}|iv|v)\)|(?:one|two|three|four|five)[:)]"
    r"|(?:step|task|item|part|request|question|point|to-?do|q|no\.|nr\.)\s*#?\d{1,2}\s*[:.)-]"
)
_BULLET: Final = r"(?:\d?\ufe0f?\u20e3|[•◦‣·\u2460-\u27bf\U0001f446-\U0001f449]\ufe0f?)"  # 1️⃣ ① ✅ ➤ 👉
_LIST_MARK: Final = rf"(?:{_NUMBER_MARK}|{_BULLET}|[-*–—]|#\d)"
_INLINE_MARK: Final = rf"(?:{_NUMBER_MARK}|{_BULLET}|\*)"
_SEPARATOR: Final = r"[^\w\s.,;:!?'\"()\[\]{}&@#=<*%^$€£°–—-]{1,3}"  # any sign that stands alone, such as ~ » // +
_NOT_IN_WORD: Final = r"(?!\B\w)"  # no mark begins inside a word; one look saves a try of every alternative
_BLANKS: Final = r"(?<!\s)\s+"  # a run from its beginning: tried from each of its places, a long one takes seconds
_CUT: Final = re.compile(
    rf"{_NOT_IN_WORD}(?:"
    rf"(?P<line>(?:{_BLANKS})?\n\s*(?:{_LIST_MARK}[ \t]+|{_LIST_MARK}(?=\S))?)"
    rf"|(?P<item>(?:(?<=\s)|^){_INLINE_MARK}[ \t]*(?=\S))"
    r"|(?P<end>[.!?…]+[\"”»]?(?=\s|$)|[。！？]+)"
    r"|(?P<semicolon>[;；|](?=\s|\S))"
    r"|(?P<colon>[:：](?=\s)|：)"
    rf"|(?P<dash>{_BLANKS}[-–—]+\s+|—)"
    r"|(?P<comma>[,，、،](?=\s)|[，、،])"
    rf"|(?P<slash>{_BLANKS}{_SEPARATOR}\s+|\t+|(?:{_BLANKS})?(?:->|→|=>)\s*))",
    re.IGNORECASE,
)
_FIRST_MARK: Final = re.compile(rf"\s*{_LIST_MARK}\s+(?=\S)", re.IGNORECASE)
_LETTER_MARK: Final = re.compile(r"(?<!\S)([a-hA-H])[.:]\s+")  # counts if all in the text are in order: a. b.
_TOKEN: Final = re.compile(r"[\w'’-]+")
_UNSPACED: Final = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
_CHARS_PER_UNSPACED_TOKEN: Final = 2
_TRY_AND: Final = re.compile(rf"\b(?:{join_phrases(words.TRY_VERBS)})\s*\Z", re.IGNORECASE)
MAX_TRY_CHARS: Final = max(map(len, words.TRY_VERBS))
_DUTCH_AND: Final = re.compile(r"(?<!\S)en\s+(\w+)", re.IGNORECASE)  # also Spanish and French for "in"
_LIST_MARKS: Final = frozenset(("line", "item"))
_GAP: Final = re.compile(r"[\s,，]*")


class SplitPoint(NamedTuple):
    """A cut: a place where a step may begin.

    Attributes:
        start: where the piece before it ends.
        end: where the piece after it begins, behind marks and connectors.
        marks: kinds of marks in between: line, item (a list mark), end (of a sentence), semicolon, colon, dash, comma,
            slash (a sign that stands alone).
        links: kinds of connectors in between: then ("then", "after that"), also ("also", "in addition"), joint ("and"),
            lead (a lead-in such as "besides all that,").
    """

    start: int
    end: int
    marks: frozenset[str]
    links: frozenset[str]


def find_cuts(text: str) -> list[SplitPoint]:
    """Return the cuts of a request in order, without those in a lead-in before a list."""
    start = _find_lead_end(text)
    return [cut for cut in _find_all_cuts(text) if cut.start >= start]


@functools.lru_cache(maxsize=MAX_DESCRIBED_REQUESTS)
def _find_lead_end(text: str) -> int:
    """Return where a lead-in before a list ends, behind the first list mark ("I need to (1) …"); 0 if there is none."""
    list_cuts = [cut for cut in _find_all_cuts(text) if cut.marks & _LIST_MARKS]
    if len(list_cuts) < 2 or _FIRST_MARK.match(text):
        return 0
    first = list_cuts[0]
    is_lead_in = words.is_lead_in(text[: first.start], text[first.start : first.end])
    return first.end if is_lead_in else 0


@functools.lru_cache(maxsize=MAX_DESCRIBED_REQUESTS)
def _find_all_cuts(text: str) -> tuple[SplitPoint, ...]:
    """Return all cuts, those in a lead-in too. Marks and connectors that touch each other make one cut."""
    masked = _PROTECTED.sub(_mask_text, text)
    cuts: list[SplitPoint] = []
    for start, end, kind in _find_marks(masked):
        marks, links = frozenset([kind] if kind else []), frozenset[str]()
        if cuts and start <= cuts[-1].end:  # inside or directly behind the cut before it: both become one
            before = cuts.pop()
            start, end, marks, links = before.start, max(end, before.end), marks | before.marks, before.links
        end, links_behind = _skip_links(masked, end)
        cuts.append(SplitPoint(start, end, marks, links | links_behind))
    return tuple(cut for cut in cuts if _separates_pieces(cut, masked))


def _mask_text(match: re.Match[str]) -> str:
    """Replace what could be a cut in protected text (quotes, brackets, addresses). The length stays the same.

    A bracket with a further command, "(and book a table)", is a step instead. For this, a comma that needs no space
    behind it replaces the opening bracket.
    """
    protected = match[0]
    if protected.startswith("("):
        inside = protected[1:-1]
        start, links = _skip_links(inside, 0)
        if links and _is_active(_read_piece(inside[start:])):
            return f"、{inside} "
    return re.sub(r"\W", "x", protected)


def _find_marks(masked: str) -> list[tuple[int, int, str]]:
    """Return (start, end, kind) of marks and of connectors without a mark, in order.

    A connector has the kind "" and the length 0: `_skip_links` reads it.
    """
    marks = [(match.start(), match.end(), str(match.lastgroup)) for match in _CUT.finditer(masked)]
    letters = list(_LETTER_MARK.finditer(masked))
    are_in_order = "".join(match[1] for match in letters).lower() in "abcdefgh"
    if len(letters) > 1 and are_in_order:
        marks += [(match.start(), match.end(), "item") for match in letters]
    marks += [(match.start(), match.start(), "") for match in words.SEQUENCE.finditer(masked)]
    marks += [(match.start(), match.start(), "") for match in _DUTCH_AND.finditer(masked) if _is_verb(match[1])]
    return sorted(marks)


def _separates_pieces(cut: SplitPoint, masked: str) -> bool:
    """Tell whether there is text on both sides of a cut, and the cut is not the "and" of "go and get"."""
    before, after = masked[: cut.start].rstrip(), masked[cut.end :].strip(" \t\n.!?")
    if not before or not after:
        return False
    is_try_and = not cut.marks and _TRY_AND.search(before, max(0, len(before) - MAX_TRY_CHARS))
    return not is_try_and


def _skip_links(text: str, place: int) -> tuple[int, set[str]]:
    """Skip spaces, commas and connectors from a place on. Returns where they end, and the kinds of the connectors.

    A connector at the end of the text joins nothing, and is not skipped.
    """
    links: set[str] = set()
    place = _skip_gap(text, place)
    while (connector := words.CONNECTOR.match(text, place)) and connector.end() < len(text):
        links.add(str(connector.lastgroup))
        place = _skip_gap(text, connector.end())
    return place, links


def _skip_gap(text: str, place: int) -> int:
    """Return where the spaces and commas end that begin at a place."""
    gap = _GAP.match(text, place)
    return gap.end() if gap else place


def _is_verb(word: str) -> bool:
    return word.lower() in words.VERBS


class _Piece(NamedTuple):
    """A piece of a request, and how it begins.

    Attributes:
        text: as it is in the request.
        words: its words in small letters.
        size: number of words, and a half for each letter of a script without spaces.
        verb: whether it begins with a verb, as a command does; polite words before the verb do not count.
        question: whether it begins with a question word or ends with a question mark.
        request: whether it begins as a wish: "I want to".
        pronoun: whether it begins with a pronoun.
        bound: whether it begins as a subordinate clause: "because", "if".
        has_verb: whether it has a verb anywhere.
    """

    text: str
    words: list[str]
    size: float
    verb: bool
    question: bool
    request: bool
    pronoun: bool
    bound: bool
    has_verb: bool


@functools.lru_cache(maxsize=256)
def _read_piece(text: str) -> _Piece:
    """Read a piece of a request; see `_Piece`."""
    tokens = [token.lower().replace("’", "'") for token in _TOKEN.findall(text)]
    unspaced = len(_UNSPACED.findall(text))
    size = len(tokens) + unspaced / _CHARS_PER_UNSPACED_TOKEN
    request = bool(words.REQUESTS.match(text.lstrip()))
    n_polite = next((number for number, token in enumerate(tokens) if token not in words.POLITE), 0)
    main_word, word_behind = (*tokens[n_polite : n_polite + 2], "", "")[:2]
    start = tokens[0] if tokens else ""
    begins_with_verb = main_word in words.VERBS and word_behind != "of"  # "merge of" is a noun
    verb = begins_with_verb or (unspaced > 0 and text.lstrip().startswith(words.UNSPACED_VERBS))
    question = start in words.QUESTIONS or text.rstrip().endswith(("?", "？", "吗"))
    pronoun, bound = start in words.PRONOUNS, start in words.SUBORDINATORS
    has_verb = verb or request or question or not words.VERBS.isdisjoint(tokens)
    return _Piece(text, tokens, size, verb, question, request, pronoun, bound, has_verb)


#: Names of the features of a cut. "before_" and "after_" tell of the pieces on both sides, "active" is a piece that
#: begins as a command, a wish or a question. Each feature has a weight of its own in each of the three `CLASSES` of
#: cuts: at lines and items of a list, at ends of sentences, and at the rest.
FEATURES: Final = (
    *("bias", "line", "item", "end", "semicolon", "colon", "dash", "comma", "slash", "then", "also", "joint", "lead"),
    *("asked", "exclaimed", "after_verb", "after_request", "after_question", "after_pronoun", "after_bound"),
    *("after_active", "after_has_verb", "after_one", "after_two", "after_log", "after_refers", "after_number"),
    *("before_verb", "before_request", "before_question", "before_pronoun", "before_active", "before_has_verb"),
    *("before_one", "before_two", "before_log", "both_active", "both_named", "pair_of_verbs", "both_short"),
    *("same_start", "active_so_far", "header", "joint_without_mark", "verb_after_joint", "then_and_verb"),
    *("regular", "thanks", "verb_and_object", "verb_refers", "share_active", "all_active", "short_request"),
    *("verb_after_comma", "starts_active", "verb_after_active", "question_after_active"),
    *("request_after_active", "told", "leads_to_active", "short_before_active"),
    *("short_before_comma", "short_before_colon", "behind_short", "linked_thing"),
)
CLASSES: Final = ("list", "sentence", "inner")


def describe_cuts(text: str, cuts: Sequence[SplitPoint]) -> list[dict[str, float]]:
    """Return the features of each cut that are not 0, by name (`class.feature`)."""
    starts = [_find_lead_end(text), *(cut.end for cut in cuts)]
    ends = [*(cut.start for cut in cuts), len(text)]
    pieces = [_read_piece(text[start:end]) for start, end in zip(starts, ends, strict=True)]
    shapes = [(cut.marks - {"end"}, cut.links) for cut in cuts]
    n_cuts_by_shape = Counter(shapes)
    share_active = sum(_is_active(piece) for piece in pieces) / len(pieces)
    of_request = {
        "share_active": share_active,
        "all_active": share_active == 1.0,
        "short_request": sum(piece.size for piece in pieces) < 25,  # words
        "starts_active": _is_active(pieces[0]),
    }
    rows, active_so_far = [], False
    for number, cut in enumerate(cuts):
        before, after = pieces[number : number + 2]
        active_so_far = active_so_far or _is_active(before)
        regular = n_cuts_by_shape[shapes[number]] > 1  # another cut has the same marks and connectors
        of_neighbours = _describe_lead_in(cuts, pieces, number)
        context = {**of_request, "active_so_far": active_so_far, "regular": regular, **of_neighbours}
        rows.append(_describe_cut(text, cut, before, after, context))
    return rows


def _describe_lead_in(cuts: Sequence[SplitPoint], pieces: Sequence[_Piece], number: int) -> dict[str, float]:
    """Return the features for a short piece, such as "that reminds me:", on either side of the cut `number`.

    Piece n is before cut n, so there is one more piece than cuts.
    """
    before, after = pieces[number : number + 2]
    next_marks = cuts[number + 1].marks if number + 1 < len(cuts) else frozenset[str]()
    # A short piece that ends with a comma or colon may lead to the piece behind it.
    leads = bool(next_marks & {"comma", "colon"}) and after.size <= MAX_LEAD_IN_TOKENS
    leads_to_active = leads and _is_active(pieces[number + 2])
    is_behind_short = number > 0 and before.size <= MAX_LEAD_IN_TOKENS and not _is_active(before)
    return {
        "leads_to_active": leads_to_active,
        "short_before_active": leads_to_active and not _is_active(after),
        "short_before_comma": leads and "comma" in next_marks,
        "short_before_colon": leads and "colon" in next_marks,
        "behind_short": is_behind_short and bool(cuts[number - 1].marks - {"comma", "colon"}),
    }


def is_command(step: str) -> bool:
    """Tell whether a step is a command or a question, and not a remark beside the request."""
    piece = _read_piece(step)
    return piece.verb or piece.question


def uses_other_result(step: str) -> bool:
    """Tell whether a step is a command for what another step makes, such as "email it to Anna"."""
    piece = _read_piece(step)
    return piece.verb and not words.THING_REFERENCES.isdisjoint(piece.words)


def _is_active(piece: _Piece) -> bool:
    """Tell whether a piece begins as a command, a wish or a question."""
    return piece.verb or piece.request or piece.question


def _describe_after(after: _Piece, first_word: str) -> dict[str, float]:
    """Return the features that the piece after a cut alone decides."""
    return {
        "after_verb": after.verb,
        "after_request": after.request,
        "after_question": after.question,
        "after_pronoun": after.pronoun,
        "after_bound": after.bound,
        "after_has_verb": after.has_verb,
        "after_one": after.size <= 1,
        "after_two": after.size <= 2,
        "after_log": math.log1p(min(after.size, 20.0)),
        "after_refers": _refers(after),
        "after_number": first_word[:1].isdigit(),
        "verb_and_object": after.verb and after.size >= 3,
        "verb_refers": after.verb and _refers(after),
    }


def _describe_before(before: _Piece) -> dict[str, float]:
    """Return the features that the piece before a cut alone decides."""
    return {
        "before_verb": before.verb,
        "before_request": before.request,
        "before_question": before.question,
        "before_pronoun": before.pronoun,
        "before_has_verb": before.has_verb,
        "before_one": before.size <= 1,
        "before_two": before.size <= 2,
        "before_log": math.log1p(min(before.size, 20.0)),
        "told": not words.TELLING_STARTS.isdisjoint(before.words[:1]),
    }


def _describe_edge(text: str, cut: SplitPoint, before: _Piece, after: _Piece, first_word: str) -> dict[str, float]:
    """Return the features that both sides of a cut and the text between them decide together."""
    between = text[cut.start : cut.end]
    last_words = _TOKEN.findall(before.text[-MAX_WORD_BEFORE_CHARS:])
    last_word = last_words[-1] if last_words else ""
    return {
        "asked": "?" in between or "？" in between,
        "exclaimed": "!" in between,
        "both_named": last_word[:1].isupper() and text[cut.end : cut.end + 1].isupper(),
        "pair_of_verbs": last_word.lower() in words.VERBS and first_word in words.VERBS,
        "both_short": before.size <= 3 and after.size <= 3,
        "same_start": bool(before.words) and before.words[:1] == after.words[:1],
        "thanks": bool(words.THANKS.match(after.text) or words.THANKS.match(before.text)),
    }


def _describe_sequence(cut: SplitPoint, after: _Piece, context: Mapping[str, float]) -> dict[str, float]:
    """Return the features that the piece after a cut decides together with the cut or with the pieces before it.

    `context["active_so_far"]` says whether any piece before the cut is a command, a wish or a question.
    """
    has_mark, active_so_far = bool(cut.marks), bool(context["active_so_far"])
    return {
        "joint_without_mark": not has_mark and "joint" in cut.links,
        "verb_after_joint": not has_mark and after.verb,  # a cut without a mark is a connector, mostly "and"
        "verb_after_comma": after.verb and "comma" in cut.marks,
        "verb_after_active": after.verb and active_so_far,
        "question_after_active": after.question and active_so_far,
        "request_after_active": after.request and active_so_far,
    }


def _refers(piece: _Piece) -> bool:
    """Tell whether one of a piece's first six words is for something that was named before: "it", "there"."""
    return not words.ANAPHORA.isdisjoint(piece.words[:6])


def _describe_cut(
    text: str, cut: SplitPoint, before: _Piece, after: _Piece, context: Mapping[str, float]
) -> dict[str, float]:
    """Return the features of one cut that are not 0, by name.

    `context` has the features of the request, and those that depend on other cuts.
    """
    before_active, after_active = _is_active(before), _is_active(after)
    first_word = after.words[0] if after.words else ""
    values: dict[str, float] = {
        "bias": 1.0,
        # Sorted, because the weights are summed in this order, and sets have another one in each process.
        **dict.fromkeys((*sorted(cut.marks), *sorted(cut.links)), 1.0),
        **_describe_after(after, first_word),
        **_describe_before(before),
        **_describe_edge(text, cut, before, after, first_word),
        **_describe_sequence(cut, after, context),
        "after_active": after_active,
        "before_active": before_active,
        "both_active": before_active and after_active,
        "header": "colon" in cut.marks and not before_active,
        "then_and_verb": "then" in cut.links and after_active,
        "linked_thing": bool(cut.marks and cut.links) and not after_active,  # "Apart from that, the latest scores"
        **context,
    }
    kind = "list" if cut.marks & _LIST_MARKS else "sentence" if cut.marks & {"end", "semicolon"} else "inner"
    return {f"{kind}.{name}": float(value) for name, value in values.items() if value}


class Splitter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Splits requests by fitted weights.

    Attributes:
        format: `STEPS_FORMAT`.
        about: record of the data and the command of the fit; JSON values.
        weights: feature of `describe_cuts` → its weight; a feature without one has 0.
        threshold: probability from which a step begins at a cut.
    """

    format: str
    about: dict[str, Any]
    weights: dict[str, float]
    threshold: float = 0.5

    def split(self, text: str) -> tuple[str, ...]:
        """Return the steps of a request. If there is only one, it is the request itself, unchanged."""
        logits = self.score_cuts(text)
        if not logits:
            return (text,)
        min_logit = math.log(self.threshold / (1 - self.threshold))
        likely = [cut for cut, logit in logits.items() if logit >= min_logit]
        kept = _drop_continuations(text, list(logits), likely)
        if not kept or len(kept) >= MAX_STEPS:
            return (text,)
        has_list = any(cut.marks & _LIST_MARKS for cut in logits)
        first_mark = _FIRST_MARK.match(text) if has_list else None  # at the very beginning of a text, it is no cut
        starts = [first_mark.end() if first_mark else _find_lead_end(text), *(cut.end for cut in kept)]
        ends = [*(cut.start for cut in kept), len(text)]
        return tuple([text[start:end].strip() for start, end in zip(starts, ends, strict=True)])

    def score_cuts(self, text: str) -> dict[SplitPoint, float]:
        """Return cut → logit of the probability that a step begins there; {} for a document."""
        if len(text) > MAX_SPLIT_CHARS:
            return {}
        return {
            cut: sum(self.weights.get(name, 0.0) * value for name, value in features.items())
            for cut, features in _describe_request(text)
        }


@functools.lru_cache(maxsize=MAX_DESCRIBED_REQUESTS)
def _describe_request(text: str) -> tuple[tuple[SplitPoint, dict[str, float]], ...]:
    """Return each cut of a request with its features. Cached, as a search asks twice: for steps, then for coverage."""
    cuts = find_cuts(text)
    return tuple(zip(cuts, describe_cuts(text, cuts), strict=True))


def _drop_continuations(text: str, cuts: Sequence[SplitPoint], likely: Sequence[SplitPoint]) -> list[SplitPoint]:
    """Return the `likely` ones of the cuts of a request without those inside a step.

    Cuts at list marks stay. Others are dropped between two verbs with one object, inside the text of a message, before
    a piece that goes on with its step ("… and make it loud"), and behind a prelude ("when you get a chance, …").
    """
    piece_ends = {cut.end: later.start for cut, later in itertools.pairwise(cuts)}  # by start of the piece
    step_starts = {later.start: cut.end for cut, later in itertools.pairwise(likely)}  # by end of the step
    message = words.MESSAGE.search(text) if likely and ":" in text else None
    message_start, message_end = (message.end(), _find_message_end(text, message.end())) if message else (0, 0)
    kept = []
    for cut in likely:
        step_before = text[step_starts.get(cut.start, 0) : cut.start]
        piece_behind = text[cut.end : piece_ends.get(cut.end, len(text))]
        is_inside_step = (
            _joins_verbs(text, cut)
            or message_start < cut.start < message_end
            or words.CONTINUATION.match(piece_behind)
            or words.PRELUDE.match(step_before)
        )
        if cut.marks & _LIST_MARKS or not is_inside_step:
            kept.append(cut)
    return kept


def _joins_verbs(text: str, cut: SplitPoint) -> bool:
    """Tell whether a cut is an "and" between two verbs with one object: "read and write rights"."""
    if cut.marks or cut.links != {"joint"}:
        return False
    before = _TOKEN.findall(text[max(0, cut.start - MAX_WORD_BEFORE_CHARS) : cut.start])
    after = _TOKEN.match(text, cut.end)
    return bool(before) and after is not None and _is_verb(before[-1]) and _is_verb(after[0])


def _find_message_end(text: str, start: int) -> int:
    """Return where the message that starts at a place ends: with its first sentence or line."""
    end = re.compile(r"[.!?](?=\s+[A-Z])|\n").search(text, start)
    return end.start() if end else len(text)


@functools.cache
def load_splitter(file: Path = BUNDLED_STEPS) -> Splitter:
    """Read the splitter that ships with toolscout, or the splitter in another file.

    Raises:
        StoreError: if the file is damaged or no splitter.
    """
    return read_shipped(file, Splitter, STEPS_FORMAT, lambda splitter: 0 < splitter.threshold < 1)
