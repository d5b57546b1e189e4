"""Ranking that stuffing cannot buy: tools whose text is written for the search and not for its reader stand behind.

A description says what a tool does. One that consists of requests ("can you find me …?", "I need …"), of a long run of
terms without a sentence, or of the same few words again and again, was written to be found. Nothing here needs a query:
a text is judged once, when it is indexed, and by itself, so that no tool can make another look bad.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from toolscout.search.pipeline import Stage
from toolscout.types import Explanation, Hit, Search, Tool

__all__ = ["Prior", "stuffed"]

MIN_WORDS: Final = 6
REQUESTS: Final = 0.5  # share of the words that stand in requests
LIST: Final = 24  # so many terms in one list,
LIST_SHARE: Final = 0.4  # which is this share of all words,
JOINED: Final = 0.15  # and at most this share of it joins words to sentences: half of what terse prose has
LONG_PARAMETER: Final = 200  # characters; shorter descriptions of parameters are often questions, and weigh little
MOST: Final = 4_000  # so many characters of a text are looked at

_ID: Final = operator.attrgetter("id")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD: Final = re.compile(r"[^\W_]+(?:['’][a-z]+)?")
_SENTENCE: Final = re.compile(r"[^.?!\n:;|]+[.?!]*")
_REQUEST: Final = re.compile(  # for text in lower case
    r"\bi(?:['’](?:m|d|ve|ll)|\s+(?:am|was|want|wanna|need|would|have|had|can|could|should|do|don['’]t|did|feel|like|love"
    r"|hate|hope|wish|think|know|wonder|plan|lost|found|just|also|really|recently|prefer|must|got))\b"
    r"|\bwe(?:['’](?:d|re)|\s+(?:want\s+to|need\s+to|would|plan\s+to|wish|hope|are\s+(?:planning|looking|organi[sz]ing|going|trying)))\b"
    r"|\b(?:can|could|would|will)\s+(?:you|i|we)\b|\b(?:please|kindly|help|tell|show|give|send|find|get|recommend|suggest"
    r"|teach|let|provide|fetch|bring|remind|update|advise|guide|book|buy|explain)\s+(?:to\s+)?me\b"
    r"|\bplease(?!\s+(?:note|see|refer|use|be|make|ensure|check|contact|read|visit|do|don['’]t|set|specify)\b)"
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


def stuffed(tool: Tool) -> str | None:
    """What makes a tool's text look as if it were written for the search, or None."""
    for field in (tool.description, _CAMEL.sub(" ", tool.name)):
        lowered = field[:MOST].lower()
        if reason := _requests(lowered) or _list(lowered):
            return reason
    properties = (tool.parameters or {}).get("properties")
    for schema in properties.values() if isinstance(properties, Mapping) else ():
        text = schema.get("description") if isinstance(schema, Mapping) else None
        if isinstance(text, str) and len(text) >= LONG_PARAMETER and (reason := _requests(text[:MOST].lower())):
            return reason
    return None


def _requests(text: str) -> str | None:
    if not _REQUEST.search(text):
        return None
    words = len(_WORD.findall(text))
    asked = sum(len(_WORD.findall(part)) for part in _SENTENCE.findall(text) if _REQUEST.search(part))
    if words < MIN_WORDS or asked < REQUESTS * words:
        return None
    return f"{asked} of {words} words stand in requests, as a person would make them"


def _list(text: str) -> str | None:
    """The longest part between marks that has too few words which join others to a sentence."""
    longest = 0
    for part in _BREAKS.split(text):
        words = _WORD.findall(part) if len(part) > 2 * LIST else ()
        if len(words) > longest and sum(word in _JOINTS for word in words) <= JOINED * len(words):
            longest = len(words)
    every = len(_WORD.findall(text)) if longest >= LIST else 0
    if not every or longest < LIST_SHARE * every:
        return None
    return f"{longest} of {every} words are a list of terms, and no sentence"


class Prior(Stage):
    """hits → the same hits, with those of suspicious tools behind all others. Exact names come later, and still win."""

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits"})

    def __init__(self, suspects: AbstractSet[str]) -> None:
        """Take the ids of the tools whose texts were written for the search."""
        self.suspects = suspects

    def run(self, searches: Sequence[Search]) -> list[Search]:
        """The searches with their hits in the new order."""
        if not self.suspects:
            return list(searches)
        return [msgspec.structs.replace(search, hits=self._reorder(search.hits)) for search in searches]

    def _reorder(self, hits: tuple[Hit, ...]) -> tuple[Hit, ...]:
        if self.suspects.isdisjoint(map(_ID, hits)):
            return hits
        trusted = [hit for hit in hits if hit.id not in self.suspects]
        if not trusted:
            return hits
        floor = trusted[-1].score
        low = [hit for hit in hits if hit.id in self.suspects]
        behind = (Hit(hit.id, min(hit.score, floor - 1e-6 * step), hit.why) for step, hit in enumerate(low, 1))
        return (*trusted, *behind)

    def explain(self, search: Search, tool_id: str) -> Explanation | None:
        """That the tool stands behind, if it does."""
        if tool_id not in self.suspects:
            return None
        note = f"its text was written for the search and not for its reader: see  toolscout show {tool_id}"
        return Explanation(self.name, None, None, note)

    def note(self, search: Search) -> str:
        """How many stand behind."""
        count = sum(map(self.suspects.__contains__, map(_ID, search.hits)))
        return f"{count} suspicious, behind the others" if count else ""
