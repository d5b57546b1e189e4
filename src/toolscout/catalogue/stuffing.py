"""Stuffing: text that is written for the search and not for its reader.

A description says what a tool does. One that consists of requests ("can you find me …?", "I need …") or of a long run
of terms without a sentence was written to be found; so were parameters that hold requests, lists of terms, or dozens of
unrelated names. Nothing here needs a query: a tool is judged once, when it is indexed, and by itself, so that no tool
can make another look bad.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from toolscout.types import Tool

__all__ = ["find_stuffing"]

MIN_WORDS: Final = 6
MIN_REQUEST_SHARE: Final = 0.5  # share of the words that stand in requests
MIN_LIST_WORDS: Final = 24  # so many terms in one list,
MIN_LIST_SHARE: Final = 0.4  # which is this share of all words,
MAX_JOINED_SHARE: Final = 0.15  # and at most this share of it joins words to sentences: half of what terse prose has
LONG_PARAMETER_CHARS: Final = 200  # shorter descriptions of parameters are often questions, and weigh little
MAX_FIELD_CHARS: Final = 4_000  # so many characters of a text are looked at
MIN_ASKING_PARAMETERS: Final = 3
MIN_BARE_PARAMETERS: Final = 30  # so many parameters that nothing describes,
MIN_BARE_WORDS_SHARE: Final = 1.0  # with as many different words in their names as there are parameters
MIN_LISTED_WORDS: Final = 8  # in the description of a parameter

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD: Final = re.compile(r"[^\W_]+(?:['’][a-z]+)?")
_TERM: Final = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_SENTENCE: Final = re.compile(r"(?:[^.?!\n:;|]|(?<=\d)[.:](?=\d))+[.?!]*")
_REQUEST: Final = re.compile(  # for text in lower case
    r"\bi(?:['’](?:m|d|ve|ll)|\s+(?:am|was|want|wanna|need|would|have|had|can|could|should|do|don['’]t|did|feel|like|love"
    r"|hate|hope|wish|think|know|wonder|plan|lost|found|just|also|really|recently|prefer|must|got))\b"
    r"|(?:^|,)\W*we(?:['’](?:d|re)|\s+(?:want\s+to|need\s+to|would|plan\s+to|wish|hope|are\s+(?:planning|looking|organi[sz]ing|going|trying)))\b"
    r"|\b(?:can|could|would|will)\s+(?:you|i|we)\b|\b(?:please|kindly|help|tell|show|give|send|find|get|recommend|suggest"
    r"|teach|let|provide|fetch|bring|remind|update|advise|guide|book|buy|explain)\s+(?:to\s+)?me\b"
    r"|\bplease(?!\s+(?:note|see|refer|use|be|make|ensure|check|contact|read|visit|do|don['’]t|set|specify|inform|follow"
    r"|translate|ask|try|call|keep|avoid|pass|only|wait|show\s+the|send\s+it)\b)"
    r"|^\W*(?:is\s+there|are\s+there|do\s+you|what['’]s|where['’]s|how\s+(?:do|can|could|should|would)\s+(?:i|we))\b"
    r"|^\W*(?:what|which|who|whose|where|when|why|how|is|are|do|does|did|was|were|has|have|should|may)\b[^?]*\?"
)
_JOINTS: Final = frozenset(
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
_BREAKS: Final = re.compile(r"[.!?:;(){}\[\]<>=|\n/\"“”`#*+_]|\s[-–—]\s|[^\W\d_a-zA-Z]+")


def find_stuffing(tool: Tool) -> tuple[str, str] | None:
    """(field, what makes it look as if it were written for the search), or None."""
    for name, field in (("description", tool.description), ("name", _CAMEL.sub(" ", tool.name).replace("_", " "))):
        lowered = field[:MAX_FIELD_CHARS].lower()
        if reason := _find_requests(lowered) or _find_list(lowered):
            return name, reason
    found = _find_stuffed_parameters(tool.parameters) if tool.parameters else None
    return ("parameters", found) if found else None


def _is_enumeration(part: str, words: int) -> bool:
    """Whether a part is a few phrases with commas between them, as in a sentence that says what a tool is good for."""
    commas = part.count(",")
    return commas >= 3 and words >= 3 * (commas + 1)


def _find_stuffed_parameters(parameters: Mapping[str, Any]) -> str | None:
    """What makes parameters look as if they were written for the search: requests, lists of terms, a vocabulary."""
    texts = [text[:MAX_FIELD_CHARS].lower() for text in _parameter_texts(parameters)]
    for text in texts:
        if len(text) >= LONG_PARAMETER_CHARS and (reason := _find_requests(text)):
            return reason
    asking = sum(_REQUEST.search(text) is not None and _find_requests(text) is not None for text in texts)
    if asking >= MIN_ASKING_PARAMETERS and 2 * asking >= len(texts):
        return f"{asking} of {len(texts)} parameters are described by requests, as a person would make them"
    listing = sum(len(text) > 4 * MIN_LISTED_WORDS and _is_listing(text) for text in texts)
    if listing >= MIN_ASKING_PARAMETERS and 2 * listing >= len(texts):
        return f"{listing} of {len(texts)} parameters are described by lists of terms, and no sentence"
    properties = parameters.get("properties")
    if isinstance(properties, Mapping) and len(properties) >= MIN_BARE_PARAMETERS and not texts:
        words = {word for name in properties for word in _WORD.findall(_CAMEL.sub(" ", str(name)).lower())}
        if len(words) >= MIN_BARE_WORDS_SHARE * len(properties):
            return f"{len(properties)} parameters without a description name {len(words)} different things"
    return None


def _is_listing(text: str) -> bool:
    """Whether a text is words side by side, with no marks and hardly anything that joins them."""
    words = _WORD.findall(text)
    joints = sum(word in _JOINTS for word in words)
    return len(words) >= MIN_LISTED_WORDS and not re.search(r"[^\w\s,'’-]", text) and joints <= 0.05 * len(words)


def _parameter_texts(schema: Mapping[str, Any], depth: int = 3) -> Iterator[str]:
    """The descriptions of parameters, outer before inner."""
    properties = schema.get("properties")
    for inner in properties.values() if isinstance(properties, Mapping) else ():
        if isinstance(inner, Mapping):
            if isinstance(text := inner.get("description"), str):
                yield text
            if depth > 1:
                yield from _parameter_texts(inner, depth - 1)


def _find_requests(text: str) -> str | None:
    if not _REQUEST.search(text):
        return None
    words = len(_WORD.findall(text))
    asked = sum(len(_WORD.findall(part)) for part in _SENTENCE.findall(text) if _REQUEST.search(part))
    if words < MIN_WORDS or asked < MIN_REQUEST_SHARE * words:
        return None
    return f"{asked} of {words} words stand in requests, as a person would make them"


def _find_list(text: str) -> str | None:
    """The longest part between marks that has too few words which join others to a sentence."""
    longest = 0
    for part in _BREAKS.split(text):
        words = _TERM.findall(part) if len(part) > 2 * MIN_LIST_WORDS else ()
        if _is_enumeration(part, len(words)):
            continue
        if len(words) > longest and sum(word in _JOINTS for word in words) <= MAX_JOINED_SHARE * len(words):
            longest = len(words)
    every = len(_TERM.findall(text)) if longest >= MIN_LIST_WORDS else 0
    if not every or longest < MIN_LIST_SHARE * every:
        return None
    return f"{longest} of {every} words are a list of terms, and no sentence"
