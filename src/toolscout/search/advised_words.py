"""Chooses the words of a request that the description of a missing tool could take up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from toolscout.indexes.words import tokenize
from toolscout.types import Tool

__all__ = ["keep_advisable", "sort_by_rarity"]

REQUEST_WORDS = frozenset(  # words of any request, which say nothing about a tool
    (
        *("want", "need", "help", "please", "like", "much", "find", "know", "give", "tell", "get", "show", "could"),
        *("would", "let", "make", "use", "using", "able", "trying", "looking", "look", "see", "going", "go", "got"),
        *("take", "put", "think", "say", "come", "thanks", "thank", "hello", "hi", "hey", "ok", "okay", "sure", "well"),
        *("something", "anything", "everything", "someone", "thing", "things", "way", "really", "quickly", "also"),
        *("now", "today", "tomorrow", "yesterday", "tonight", "right", "currently", "recently", "soon", "later"),
        *("then", "next", "first", "second", "last", "after", "before", "afterwards", "finally", "one", "two", "three"),
        *("many", "every", "new", "good", "best", "great"),
        *("nice", "big", "interested", "wondering", "maybe", "possible"),
        *("amazing", "interesting", "perfect", "heard", "mood", "ones", "kind", "bit", "lot", "certain", "specific"),
        *("available", "regarding", "related", "wanted", "needed", "asked", "gave", "following", "via"),
    )
)
_NAME = re.compile(r"(?<=[^\s.?!:])\s+([A-Z][\w'’-]*)")  # a capital in mid-sentence


def keep_advisable(words: Sequence[str], query: str, part: str | None) -> tuple[str, ...]:
    """Return the words that a description could take up.

    Left out are words of any request, values (numbers, and names, which are written with a capital), and words of
    another part of the request.
    """
    names = {word.casefold() for word in _NAME.findall(query)}
    words_of_part = set(re.findall(r"\w+", part.casefold())) if part else None
    return tuple(
        word
        for word in words
        if word.casefold() not in REQUEST_WORDS | names
        and not any(letter.isdigit() for letter in word)
        and (words_of_part is None or word.casefold() in words_of_part)
    )


def sort_by_rarity(words: Sequence[str], tools: Sequence[Tool]) -> list[str]:
    """Sort words, the rarest in the catalogue first. Words of no tool come last, words of any request are dropped."""
    terms = {word: set(tokenize(word)) for word in words if word.casefold() not in REQUEST_WORDS}
    frequency = Counter[str]()
    for tool in tools:
        tool_terms = set(tokenize(f"{tool.name} {tool.description}"))
        frequency.update(word for word, parts in terms.items() if parts & tool_terms)
    return sorted(terms, key=lambda word: (frequency[word] == 0, frequency[word]))
