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
MIN_STUFFED_PARAMETERS: Final = 3
MIN_BARE_PARAMETERS: Final = 30  # parameters without a description
#: Share of them that have a word of the tool's name or description. For tools of cloud vendors it is 0.17 or more.
MAX_RELATED_SHARE: Final = 0.05
MIN_LISTED_WORDS: Final = 8  # in the description of a parameter
MAX_UNLISTED_CHARS: Final = 32  # a description up to this length is too short for a list
MAX_LISTED_FUNCTION_SHARE: Final = 0.05  # share of function words in it
MIN_PHRASES: Final = 4  # of an enumeration
MIN_PHRASE_WORDS: Final = 3  # on average

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_STUFFING_WORD: Final = re.compile(r"[^\W_]+(?:['’][a-z]+)?")
_TERM: Final = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_SENTENCE: Final = re.compile(r"(?:[^.?!\n:;|]|(?<=\d)[.:](?=\d))+[.?!]*")
_REQUEST: Final = re.compile(  # for text in lower case
    r"\bi(?:['’](?:m|d|ve|ll)|\s+(?:am|was|want|wanna|need|would|have|had|can|could|should|do|don['’]t|did"
    r"|feel|like|love|hate|hope|wish|think|know|wonder|plan|lost|found|just|also|really|recently|prefer|must|got))\b"
    r"|(?:^|,)\W*we(?:['’](?:d|re)|\s+(?:want\s+to|need\s+to|would|plan\s+to|wish|hope"
    r"|are\s+(?:planning|looking|organi[sz]ing|going|trying)))\b"
    r"|\b(?:can|could|would|will)\s+(?:you|i|we)\b|\b(?:please|kindly|help|tell|show|give|send|find|get"
    r"|recommend|suggest|teach|let|provide|fetch|bring|remind|update|advise|guide|book|buy|explain)\s+(?:to\s+)?me\b"
    r"|\bplease(?!\s+(?:note|see|refer|use|be|make|ensure|check|contact|read|visit|do|don['’]t|set|specify"
    r"|inform|follow|translate|ask|try|call|keep|avoid|pass|only|wait|show\s+the|send\s+it)\b)"
    r"|^\W*(?:is\s+there|are\s+there|do\s+you|what['’]s|where['’]s|how\s+(?:do|can|could|should|would)\s+(?:i|we))\b"
    r"|^\W*(?:what|which|who|whose|where|when|why|how|is|are|do|does|did|was|were|has|have|should|may)\b[^?]*\?"
)
# Many functions are documented by a question such as "Is this logger enabled for a level?"
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


def _is_enumeration(text: str, n_words: int) -> bool:
    """Tell whether a text lists phrases of several words, such as purposes. That is prose, not stuffing."""
    n_phrases = text.count(",") + 1
    return n_phrases >= MIN_PHRASES and n_words >= MIN_PHRASE_WORDS * n_phrases


def _find_stuffed_parameters(tool: Tool) -> str | None:
    """Say why parameters look written for the search; None: they do not."""
    parameters = tool.parameters or {}
    texts = [text[:MAX_FIELD_CHARS].lower() for text in _list_parameter_texts(parameters)]
    if not texts:
        return _find_unrelated_names(tool, parameters.get("properties"))
    for text in texts:
        if len(text) >= LONG_PARAMETER_CHARS and (reason := _find_requests(text)):
            return reason
    n_asking = sum(_find_requests(text) is not None for text in texts)
    if _is_common(n_asking, len(texts)):
        return f"{n_asking} of {len(texts)} parameters are described by requests, as a person would make them"
    n_listing = sum(_is_listing(text) for text in texts)
    if _is_common(n_listing, len(texts)):
        return f"{n_listing} of {len(texts)} parameters are described by lists of terms, and no sentence"
    return None


def _is_common(n_stuffed: int, n_described: int) -> bool:
    """Tell whether too many parameters are stuffed to be an accident: a few, and at least half of the described."""
    return n_stuffed >= MIN_STUFFED_PARAMETERS and 2 * n_stuffed >= n_described


def _find_unrelated_names(tool: Tool, properties: object) -> str | None:
    """Say that the tool has many parameters with names unrelated to it; None: they are few, or related.

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
    is_short = len(text) <= MAX_UNLISTED_CHARS or len(words) < MIN_LISTED_WORDS
    has_punctuation = re.search(r"[^\w\s,'’-]", text) is not None
    if is_short or has_punctuation:
        return False
    n_function_words = sum(word in _FUNCTION_WORDS for word in words)
    return n_function_words <= MAX_LISTED_FUNCTION_SHARE * len(words)


def _list_parameter_texts(schema: Mapping[str, object], depth: int = 3) -> Iterator[str]:
    """Yield the descriptions of parameters, outer before inner, down to `depth` levels of nesting."""
    properties = schema.get("properties")
    if depth == 0 or not isinstance(properties, Mapping):
        return
    for inner in properties.values():
        if isinstance(inner, Mapping):
            text = inner.get("description")
            if isinstance(text, str):
                yield text
            yield from _list_parameter_texts(inner, depth - 1)


def _find_requests(text: str) -> str | None:
    """Say that a description consists of requests, as people make them to an agent; None: it does not."""
    if not _REQUEST.search(text) or _is_documenting_question(text):
        return None
    requests = [sentence for sentence in _SENTENCE.findall(text) if _REQUEST.search(sentence)]
    n_words = len(_STUFFING_WORD.findall(text))
    n_request_words = sum(len(_STUFFING_WORD.findall(request)) for request in requests)
    if n_words < MIN_WORDS or n_request_words < MIN_REQUEST_SHARE * n_words:
        return None
    return f"{n_request_words} of {n_words} words stand in requests, as a person would make them"


def _is_documenting_question(text: str) -> bool:
    """Tell whether a text is one short yes-or-no question without "you" or "I", as some functions are documented."""
    is_short = len(_STUFFING_WORD.findall(text)) <= MAX_DOCUMENTING_WORDS
    names_person = _PERSON.search(text) is not None
    return is_short and not names_person and _DOCUMENTING.search(text) is not None


def _find_list(text: str) -> str | None:
    """Say that a long part of the text is a list of terms, with few function words; None: it is not."""
    n_longest = 0  # words of the longest list
    for part in _BREAKS.split(text):
        if len(part) <= 2 * MIN_LIST_WORDS:  # too short for so many words
            continue
        words = _TERM.findall(part)
        n_function_words = sum(word in _FUNCTION_WORDS for word in words)
        is_prose = n_function_words > MAX_FUNCTION_WORD_SHARE * len(words) or _is_enumeration(part, len(words))
        if not is_prose:
            n_longest = max(n_longest, len(words))
    if n_longest < MIN_LIST_WORDS:
        return None
    n_words = len(_TERM.findall(text))
    if n_longest < MIN_LIST_SHARE * n_words:
        return None
    return f"{n_longest} of {n_words} words are a list of terms, and no sentence"
