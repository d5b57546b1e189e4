"""Splits a request into its steps, without a language model.

"Find flights to Rome, check the weather there and email the plan to Anna" has three steps. The text is cut into pieces
at punctuation, list marks and connectors (`step_words`). A logistic regression decides for each cut whether a new step
begins there, from what stands on both sides: marks, connectors, verbs, questions, lengths. Nothing inside quotes or
brackets is a cut.

The numbers (`data/steps.json`) were fitted by `benchmarks/fit_steps.py`; the file names its data.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.search.shipped import read_shipped
from toolscout.search.steps import words

__all__ = [
    "BUNDLED_STEPS",
    "CLASSES",
    "FEATURES",
    "STEPS_FORMAT",
    "SplitPoint",
    "Splitter",
    "describe_cuts",
    "find_cuts",
    "hands_on",
    "is_command",
    "load_splitter",
]

BUNDLED_STEPS: Final = Path(__file__).parents[1] / "data" / "steps.json"
STEPS_FORMAT: Final = "steps/1"
MAX_DESCRIBED_REQUESTS: Final = 64  # whose cuts are remembered
MAX_SPLIT_CHARS: Final = 3_000  # longer requests are documents, and are not split
MAX_STEPS: Final = 8
MAX_LEAD_IN_TOKENS: Final = 8

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
_TRY_AND: Final = re.compile(r"\b(?:try|go|come|wait)\s*\Z", re.IGNORECASE)  # "go and get" is one step
MAX_TRY_CHARS: Final = 4  # of the longest of these verbs
_DUTCH_AND: Final = re.compile(r"(?<!\S)en\s+(\w+)", re.IGNORECASE)  # also Spanish and French for "in"
_LIST_MARKS: Final = frozenset(("line", "item"))
_GAP: Final = re.compile(r"[\s,，]*")


class SplitPoint(NamedTuple):
    """A place where a step may begin.

    Attributes:
        start: where the piece before it ends.
        end: where the piece after it begins, behind marks and connectors.
        marks: kinds of marks in between: line, item, end, semicolon, colon, dash, comma, slash.
        links: kinds of connectors in between: then, also, joint, lead (a lead-in).
    """

    start: int
    end: int
    marks: frozenset[str]
    links: frozenset[str]


def find_cuts(text: str) -> list[SplitPoint]:
    """Return the places where a step of a request may begin, in order; none before the first item of a list."""
    start = _find_lead_end(text)
    return [cut for cut in _find_all_cuts(text) if cut.start >= start]


@functools.lru_cache(maxsize=MAX_DESCRIBED_REQUESTS)
def _find_lead_end(text: str) -> int:
    """Return where a lead-in before a list ends, with the first mark ("I need to (1) …"); 0 if there is none."""
    marks = [cut for cut in _find_all_cuts(text) if cut.marks & _LIST_MARKS]
    if len(marks) < 2 or _FIRST_MARK.match(text):
        return 0
    first = marks[0]
    return first.end if words.is_lead_in(text[: first.start], text[first.start : first.end]) else 0


@functools.lru_cache(maxsize=MAX_DESCRIBED_REQUESTS)
def _find_all_cuts(text: str) -> tuple[SplitPoint, ...]:
    """Return the places where a step may begin, those in a lead-in too."""
    masked = _PROTECTED.sub(_mask_text, text)
    cuts: list[SplitPoint] = []
    for start, end, kind in _find_marks(masked):
        kinds = {kind} if kind else set()
        if cuts and start <= cuts[-1].end:  # inside or directly behind the last cut
            last = cuts.pop()
            if end <= last.end:
                cuts.append(last._replace(marks=last.marks | kinds))
                continue
            start, kinds, links = last.start, kinds | last.marks, set(last.links)
        else:
            links = set()
        end, more = _skip_links(masked, end)
        cuts.append(SplitPoint(start, end, frozenset(kinds), frozenset(links | more)))
    return tuple(cut for cut in cuts if _parts_text(cut, masked))


def _mask_text(match: re.Match[str]) -> str:
    """Return protected text without marks. A bracket with a further order, "(and book a table)", begins at a comma."""
    inside = match[0][1:-1]
    start, links = _skip_links(inside, 0) if match[0][0] == "(" else (0, set())
    if links and _is_active(_read_piece(inside[start:])):
        return f"、{inside} "
    return re.sub(r"[^\w\s]|\s", "x", match[0])


def _find_marks(masked: str) -> list[tuple[int, int, str]]:
    """Return start, end and kind of each mark, in order; a connector without a mark has no kind and no length."""
    marks = [(match.start(), match.end(), str(match.lastgroup)) for match in _CUT.finditer(masked)]
    letters = list(_LETTER_MARK.finditer(masked))
    if len(letters) > 1 and "".join(match[1] for match in letters).lower() in "abcdefgh":
        marks += [(match.start(), match.end(), "item") for match in letters]
    marks += [(match.start(), match.start(), "") for match in words.SEQUENCE.finditer(masked)]
    marks += [(match.start(), match.start(), "") for match in _DUTCH_AND.finditer(masked) if _is_verb(match[1])]
    return sorted(marks)


def _parts_text(cut: SplitPoint, masked: str) -> bool:
    """Tell whether there is text on both sides of a cut, and no "go and"."""
    if not masked[: cut.start].strip() or not masked[cut.end :].strip(" \t\n.!?"):
        return False
    if cut.marks:
        return True
    end = len(masked[: cut.start].rstrip())
    return not _TRY_AND.search(masked, max(0, end - MAX_TRY_CHARS), cut.start)


def _skip_links(text: str, place: int) -> tuple[int, set[str]]:
    """Return where the connectors from a place on end, and their kinds."""
    links: set[str] = set()
    gap = _GAP.match(text, place)
    place = gap.end() if gap else place
    while (match := words.CONNECTOR.match(text, place)) and match.end() < len(text):
        links.add(str(match.lastgroup))
        gap = _GAP.match(text, match.end())
        place = gap.end() if gap else match.end()
    return place, links


def _is_verb(word: str) -> bool:
    return word.lower() in words.VERBS


class _Piece(NamedTuple):
    """The words of a piece, in lower case, and what its beginning says."""

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
    """Return how long a piece of a request is, and how it begins: with a verb, a question, a pronoun, and so on."""
    tokens = [token.lower().replace("’", "'") for token in _TOKEN.findall(text)]
    unspaced = len(_UNSPACED.findall(text))
    size = len(tokens) + unspaced / _CHARS_PER_UNSPACED_TOKEN
    request = bool(words.REQUESTS.match(text.lstrip()))
    place = next((number for number, token in enumerate(tokens) if token not in words.POLITE), 0)
    first = tokens[place] if tokens and tokens[place + 1 : place + 2] != ["of"] else ""  # "merge of" is a noun
    start = tokens[0] if tokens else ""
    verb = first in words.VERBS or (unspaced > 0 and text.lstrip().startswith(words.UNSPACED_VERBS))
    question = start in words.QUESTIONS or text.rstrip().endswith(("?", "？", "吗"))
    pronoun, bound = start in words.PRONOUNS, start in words.SUBORDINATORS
    has_verb = verb or request or question or not words.VERBS.isdisjoint(tokens)
    return _Piece(text, tokens, size, verb, question, request, pronoun, bound, has_verb)


#: Names of the features of a cut; each counts separately for lines and items, for ends of sentences, and for the rest.
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
    edges = [_find_lead_end(text), *(cut.end for cut in cuts)]
    ends = [*(cut.start for cut in cuts), len(text)]
    pieces = [_read_piece(text[start:end]) for start, end in zip(edges, ends, strict=True)]
    rows, active = [], False
    shapes = [(cut.marks - {"end"}, cut.links) for cut in cuts]
    share = sum(_is_active(piece) for piece in pieces) / len(pieces)
    common = {
        "share_active": share,
        "all_active": share == 1.0,
        "short_request": sum(piece.size for piece in pieces) < 25,
        "starts_active": _is_active(pieces[0]),
    }
    for number, cut in enumerate(cuts):
        before, after = pieces[number], pieces[number + 1]
        active = active or _is_active(before)
        regular = sum(shape == shapes[number] for shape in shapes) > 1
        context = {**common, "active_so_far": active, "regular": regular, **_describe_lead_in(cuts, pieces, number)}
        rows.append(_describe_cut(text, cut, before, after, context))
    return rows


def _describe_lead_in(cuts: Sequence[SplitPoint], pieces: Sequence[_Piece], number: int) -> dict[str, float]:
    """Return whether a short piece, such as "that reminds me:", stands behind a cut or before it."""
    marks = cuts[number + 1].marks if number + 1 < len(cuts) else frozenset[str]()
    leads = bool(marks & {"comma", "colon"}) and pieces[number + 1].size <= MAX_LEAD_IN_TOKENS
    behind = number > 0 and pieces[number].size <= MAX_LEAD_IN_TOKENS and not _is_active(pieces[number])
    return {
        "leads_to_active": leads and _is_active(pieces[number + 2]),
        "short_before_active": leads and _is_active(pieces[number + 2]) and not _is_active(pieces[number + 1]),
        "short_before_comma": leads and "comma" in marks,
        "short_before_colon": leads and "colon" in marks,
        "behind_short": behind and bool(cuts[number - 1].marks - {"comma", "colon"}),
    }


def is_command(step: str) -> bool:
    """Tell whether a step is a command or a question, and not a remark beside the request."""
    piece = _read_piece(step)
    return piece.verb or piece.question


def hands_on(step: str) -> bool:
    """Tell whether a step is a command for what another step makes, such as "email it to Anna"."""
    piece = _read_piece(step)
    return piece.verb and not words.THING_REFERENCES.isdisjoint(piece.words)


def _is_active(piece: _Piece) -> bool:
    """Tell whether a piece begins as a command, a wish or a question."""
    return piece.verb or piece.request or piece.question


def _describe_after(after: _Piece, first_word: str) -> dict[str, float]:
    """Return what the piece after a cut says."""
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
    """Return what the piece before a cut says."""
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
    """Return what both sides of a cut and the marks between them say together."""
    between = text[cut.start : cut.end]
    last = _TOKEN.findall(before.text[-40:])
    last_word = last[-1] if last else ""
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
    """Return what the piece after a cut says together with the marks, and with the pieces before."""
    mark, is_active = bool(cut.marks), bool(context["active_so_far"])
    return {
        "joint_without_mark": not mark and "joint" in cut.links,
        "verb_after_joint": not mark and after.verb,
        "verb_after_comma": after.verb and "comma" in cut.marks,
        "verb_after_active": after.verb and is_active,
        "question_after_active": after.question and is_active,
        "request_after_active": after.request and is_active,
    }


def _refers(piece: _Piece) -> bool:
    """Tell whether a piece begins with a word for something that was named before."""
    return not words.ANAPHORA.isdisjoint(piece.words[:6])


def _describe_cut(
    text: str, cut: SplitPoint, before: _Piece, after: _Piece, context: Mapping[str, float]
) -> dict[str, float]:
    """Return the features of one cut that are not 0; `context`: those of the request and of the cuts before."""
    active = [_is_active(piece) for piece in (before, after)]
    first_word = after.words[0] if after.words else ""
    values: dict[str, float] = {
        "bias": 1.0,
        **dict.fromkeys((*sorted(cut.marks), *sorted(cut.links)), 1.0),  # a sum has one order in every process
        **_describe_after(after, first_word),
        **_describe_before(before),
        **_describe_edge(text, cut, before, after, first_word),
        **_describe_sequence(cut, after, context),
        "after_active": active[1],
        "before_active": active[0],
        "both_active": all(active),
        "header": "colon" in cut.marks and not active[0],
        "then_and_verb": "then" in cut.links and active[1],
        "linked_thing": bool(cut.marks and cut.links) and not active[1],  # "Apart from that, the latest scores"
        **context,
    }
    kind = "list" if cut.marks & {"line", "item"} else "sentence" if cut.marks & {"end", "semicolon"} else "inner"
    return {f"{kind}.{name}": float(value) for name, value in values.items() if value}


class Splitter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Splits requests by fitted weights.

    Attributes:
        format: `STEPS_FORMAT`.
        about: record of the data and the command of the fit; JSON values.
        weights: of each feature of `describe_cuts`; a feature without one counts 0.
        threshold: probability from which a step begins at a cut.
    """

    format: str
    about: dict[str, Any]
    weights: dict[str, float]
    threshold: float = 0.5

    def split(self, text: str) -> tuple[str, ...]:
        """Return the steps of a request; one step: the request itself, unchanged."""
        spans = self.find_spans(text)
        if len(spans) < 2:
            return (text,)
        return tuple([text[start:end].strip() for start, end in spans])

    def find_spans(self, text: str) -> list[tuple[int, int]]:
        """Return where each step starts and ends."""
        whole = [(0, len(text))]
        scored = self.score_cuts(text)
        if not scored:
            return whole
        limit = math.log(self.threshold / (1 - self.threshold))
        kept = _drop_continuations(text, [*scored], [cut for cut, logit in scored.items() if logit >= limit])
        if not kept or len(kept) >= MAX_STEPS:
            return whole
        first = _FIRST_MARK.match(text) if any(cut.marks & _LIST_MARKS for cut in scored) else None
        starts = [first.end() if first else _find_lead_end(text), *(cut.end for cut in kept)]
        return list(zip(starts, [*(cut.start for cut in kept), len(text)], strict=True))

    def score_cuts(self, text: str) -> dict[SplitPoint, float]:
        """Map each place of a request where a step may begin to the logit that one does; {} for a document."""
        weights = self.weights
        rows = _describe_request(text) if len(text) <= MAX_SPLIT_CHARS else ()
        return {cut: sum(weights.get(name, 0.0) * value for name, value in row.items()) for cut, row in rows}


@functools.lru_cache(maxsize=MAX_DESCRIBED_REQUESTS)
def _describe_request(text: str) -> tuple[tuple[SplitPoint, dict[str, float]], ...]:
    """Return the cuts of a request and their features. A search asks for them twice: for steps, then for coverage."""
    cuts = find_cuts(text)
    return tuple(zip(cuts, describe_cuts(text, cuts), strict=True))


def _drop_continuations(text: str, cuts: Sequence[SplitPoint], kept: Sequence[SplitPoint]) -> list[SplitPoint]:
    """Return the cuts without those inside a message, and those before a piece that goes on with its step."""
    ends = {cut.end: later.start for cut, later in itertools.pairwise(cuts)}
    starts = {later.start: cut.end for cut, later in itertools.pairwise(kept)}
    message = words.MESSAGE.search(text) if kept and ":" in text else None
    place, end = (message.end(), _find_message_end(text, message.end())) if message else (0, 0)
    return [
        cut
        for cut in kept
        if cut.marks & _LIST_MARKS
        or not (
            _parts_verbs(text, cut)
            or place < cut.start < end
            or words.CONTINUATION.match(text[cut.end : ends.get(cut.end, len(text))])
            or words.PRELUDE.match(text[starts.get(cut.start, 0) : cut.start])
        )
    ]


def _parts_verbs(text: str, cut: SplitPoint) -> bool:
    """Tell whether "and" parts two verbs with one object: "read and write rights"."""
    if cut.marks or cut.links != {"joint"}:
        return False
    before, after = _TOKEN.findall(text[max(0, cut.start - 40) : cut.start]), _TOKEN.match(text, cut.end)
    return bool(before) and after is not None and _is_verb(before[-1]) and _is_verb(after[0])


def _find_message_end(text: str, start: int) -> int:
    """Return where the sentence ends that begins at a place, or the line."""
    end = re.compile(r"[.!?](?=\s+[A-Z])|\n").search(text, start)
    return end.start() if end else len(text)


@functools.cache
def load_splitter(file: Path = BUNDLED_STEPS) -> Splitter:
    """Read the splitter that ships with toolscout, or another.

    Raises:
        StoreError: if the file is damaged or something else.
    """
    return read_shipped(file, Splitter, STEPS_FORMAT, lambda splitter: 0 < splitter.threshold < 1)
