"""Stuffing: finds tool text that was written for the search instead of its reader.

A description says what a tool does. A description that consists of requests ("can you find me …?", "I need …") or of a
long list of terms was written to be found. The same holds for parameters with requests, lists of terms, or dozens of
names that have nothing to do with what the tool says of itself. Each tool is checked by itself, without a query and
without other tools, so no tool can make another look bad. All texts are compared in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from toolscout.types import Tool

__all__ = ["find_stuffing"]

MIN_WORDS: Final = 6
MIN_REQUEST_SHARE: Final = 0.5  # share of the words that are in requests
MIN_LIST_WORDS: Final = 24  # terms in one list
MIN_LIST_SHARE: Final = 0.4  # share of all words that are in that list
MAX_FUNCTION_WORD_SHARE: Final = 0.15  # share of function words in the list; terse prose has twice as many
LONG_PARAMETER_CHARS: Final = 200  # shorter descriptions of parameters are often questions, and weigh little
MAX_FIELD_CHARS: Final = 4_000  # the rest of a text is not read
MIN_ASKING_PARAMETERS: Final = 3
MIN_BARE_PARAMETERS: Final = 30  # parameters without a description
#: Share of them that have a word of the tool's name or description. For tools of cloud vendors it is 0.17 or more.
MAX_RELATED_SHARE: Final = 0.05
MIN_LISTED_WORDS: Final = 8  # in the description of a parameter

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_STUFFING_WORD: Final = re.compile(r"[^\W_]+(?:['’][a-z]+)?")
_TERM: Final = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_SENTENCE: Final = re.compile(r"(?:[^.?!\n:;|]|(?<=\d)[.:](?=\d))+[.?!]*")
_REQUEST: Final = re.compile(  # for text in lower case
    r"\bi(?:['’](?:m|d|ve|ll)|\s+(?:am|was|want|wanna|need|would|have|had|can|could|should|do|don['’]t"
    r"|did|feel|like|love"
    r"|hate|hope|wish|think|know|wonder|plan|lost|found|just|also|really|recently|prefer|must|got))\b"
    r"|(?:^|,)\W*we(?:['’](?:d|re)|\s+(?:want\s+to|need\s+to|would|plan\s+to|wish|hope"
    r"|are\s+(?:planning|looking|organi[sz]ing|going|trying)))\b"
    r"|\b(?:can|could|would|will)\s+(?:you|i|we)\b|\b(?:please|kindly|help|tell|show|give|send|find|get"
    r"|recommend|suggest"
    r"|teach|let|provide|fetch|bring|remind|update|advise|guide|book|buy|explain)\s+(?:to\s+)?me\b"
    r"|\bplease(?!\s+(?:note|see|refer|use|be|make|ensure|check|contact|read|visit|do|don['’]t|set|specify"
    r"|inform|follow"
    r"|translate|ask|try|call|keep|avoid|pass|only|wait|show\s+the|send\s+it)\b)"
    r"|^\W*(?:is\s+there|are\s+there|do\s+you|what['’]s|where['’]s|how\s+(?:do|can|could|should|would)\s+(?:i|we))\b"
    r"|^\W*(?:what|which|who|whose|where|when|why|how|is|are|do|does|did|was|were|has|have|should|may)\b[^?]*\?"
)
# One short question without "you" or "I" is how many functions are documented: "Is this logger enabled for a level?"
_DOCUMENTING: Final = re.compile(r"^\W*(?:is|are|does|did|was|were|has|have|may)\b[^?.!]*\?\W*$")
_PERSON: Final = re.compile(r"\b(?:i|me|my|mine|you|your|we|us|our)\b")
MAX_DOCUMENTING_WORDS: Final = 12
#: Words that join others in a sentence, in English and languages of the same letters.
_FUNCTION_WORDS: Final = frozenset(
    re.findall(
        r"\w+",
        """a an the of to in on at by for from with without into as and or but not no if then than that this these those
        it its is are was were be been being has have had do does did can could will would may might must should shall
        which who whose what when where while how all any each every other such only also more most about between after
        before over under per via using used use you your they their there here so one two
        de da do das dos em um uma para por com que o e ou el la los las en y un una del con se le les des et du pour
        par der die das und von mit für den dem ein eine zu auf ist oder il di che non i dan yang untuk van het een op
        """,
    )
)
#: Ends a part of a text in which a list may be: a sign, or letters other than ASCII.
_BREAKS: Final = re.compile(r"[.!?:;(){}\[\]<>=|\n/\"“”`#*+_]|\s[-–—]\s|[^\W\d_a-zA-Z]+")


def find_stuffing(tool: Tool) -> tuple[str, str] | None:
    """Return (field, why its text looks written for the search), or None."""
    name_words = _CAMEL.sub(" ", tool.name).replace("_", " ")
    for field, text in (("description", tool.description), ("name", name_words)):
        lowered = text[:MAX_FIELD_CHARS].lower()
        if reason := _find_requests(lowered) or _find_list(lowered):
            return field, reason
    reason = _find_stuffed_parameters(tool) if tool.parameters else None
    return ("parameters", reason) if reason else None


def _is_enumeration(part: str, n_words: int) -> bool:
    """Tell whether a part lists phrases of three words or more, such as purposes. That is prose, and no stuffing."""
    n_commas = part.count(",")
    return n_commas >= 3 and n_words >= 3 * (n_commas + 1)


def _find_stuffed_parameters(tool: Tool) -> str | None:
    """Say why parameters look written for the search; None: they do not."""
    parameters = tool.parameters or {}
    texts = [text[:MAX_FIELD_CHARS].lower() for text in _list_parameter_texts(parameters)]
    reasons = (_find_requests(text) for text in texts if len(text) >= LONG_PARAMETER_CHARS)
    if reason := next(filter(None, reasons), None):
        return reason
    n_asking = sum(_find_requests(text) is not None for text in texts)
    if _is_habit(n_asking, len(texts)):
        return f"{n_asking} of {len(texts)} parameters are described by requests, as a person would make them"
    n_listing = sum(_is_listing(text) for text in texts)
    if _is_habit(n_listing, len(texts)):
        return f"{n_listing} of {len(texts)} parameters are described by lists of terms, and no sentence"
    return None if texts else _find_unrelated_names(tool, parameters.get("properties"))


def _is_habit(n_stuffed: int, n_described: int) -> bool:
    """Tell whether so many of the described parameters are stuffed that it is no accident: some, and half of all."""
    return n_stuffed >= MIN_ASKING_PARAMETERS and 2 * n_stuffed >= n_described


def _find_unrelated_names(tool: Tool, properties: object) -> str | None:
    """Say that many parameters have names that have nothing to do with the tool; None: they are few, or related.

    The caller has checked that no parameter has a description, so their names are all that they say.
    """
    if not isinstance(properties, Mapping) or len(properties) < MIN_BARE_PARAMETERS:
        return None
    own_stems = _list_word_stems(f"{tool.name} {tool.description[:MAX_FIELD_CHARS]}")
    n_related = sum(not own_stems.isdisjoint(_list_word_stems(str(name))) for name in properties)
    if n_related > MAX_RELATED_SHARE * len(properties):
        return None
    return f"{len(properties)} parameters without a description have nothing to do with the tool's own words"


def _list_word_stems(text: str) -> set[str]:
    """Return the first five letters of each word of three letters or more; identifiers are split."""
    words = _STUFFING_WORD.findall(_CAMEL.sub(" ", text).lower())
    return {word[:5] for word in words if len(word) >= 3}


def _is_listing(text: str) -> bool:
    """Tell whether a text is a list of words, without punctuation and with hardly any function word."""
    words = _STUFFING_WORD.findall(text)
    if len(text) <= 4 * MIN_LISTED_WORDS or len(words) < MIN_LISTED_WORDS or re.search(r"[^\w\s,'’-]", text):
        return False
    return sum(word in _FUNCTION_WORDS for word in words) <= 0.05 * len(words)


def _list_parameter_texts(schema: Mapping[str, object], depth: int = 3) -> Iterator[str]:
    """Yield the descriptions of parameters, outer before inner, down to `depth` levels of nesting."""
    properties = schema.get("properties")
    for inner in properties.values() if isinstance(properties, Mapping) else ():
        if isinstance(inner, Mapping):
            if isinstance(text := inner.get("description"), str):
                yield text
            if depth > 1:
                yield from _list_parameter_texts(inner, depth - 1)


def _find_requests(text: str) -> str | None:
    """Say that a description consists of requests, as people make them to an agent; None: it does not."""
    if not _REQUEST.search(text) or _asks_about_itself(text):
        return None
    requests = [sentence for sentence in _SENTENCE.findall(text) if _REQUEST.search(sentence)]
    n_words = len(_STUFFING_WORD.findall(text))
    n_request_words = sum(len(_STUFFING_WORD.findall(request)) for request in requests)
    if n_words < MIN_WORDS or n_request_words < MIN_REQUEST_SHARE * n_words:
        return None
    return f"{n_request_words} of {n_words} words stand in requests, as a person would make them"


def _asks_about_itself(text: str) -> bool:
    """Tell whether a text is one short yes-or-no question, as some functions are documented."""
    is_short = len(_STUFFING_WORD.findall(text)) <= MAX_DOCUMENTING_WORDS
    return is_short and bool(_DOCUMENTING.search(text)) and not _PERSON.search(text)


def _find_list(text: str) -> str | None:
    """Say that a long part of the text is a list of terms, with few function words; None: it is not."""
    n_longest = 0  # words of the longest list
    for part in _BREAKS.split(text):
        words = _TERM.findall(part) if len(part) > 2 * MIN_LIST_WORDS else ()  # a shorter part has too few words
        if len(words) <= n_longest or _is_enumeration(part, len(words)):
            continue
        if sum(word in _FUNCTION_WORDS for word in words) <= MAX_FUNCTION_WORD_SHARE * len(words):
            n_longest = len(words)
    if n_longest < MIN_LIST_WORDS:
        return None
    n_words = len(_TERM.findall(text))
    if n_longest < MIN_LIST_SHARE * n_words:
        return None
    return f"{n_longest} of {n_words} words are a list of terms, and no sentence"
