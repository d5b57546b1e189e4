"""Tells whether a short request names what one of its best tools does: "write down a note" and `add_note`.

The need of a request is estimated from its own words for the most part, and "write" speaks of chat. But who names the
object of the tool that ranks first asks for this tool, whatever the verb is. The same holds for an everyday phrase
(`search.everyday_words`) whose words for the same thing stand in one of the first tools.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from toolscout.encoders import split_identifiers
from toolscout.search.actions.words import get_cues, tokenize_in_order
from toolscout.search.expanded_words import ExpandedWords

__all__ = ["names_object", "serves_phrase"]

MAX_NAMING_WORDS: Final = 12  # longer requests share a word with some tool by chance
MIN_OBJECT_LETTERS: Final = 3
MAX_SERVING_TOOLS: Final = 3  # the first ones, which may serve a phrase
MIN_SERVED_WORDS: Final = 2  # words that a phrase adds and one tool has
_REQUEST_WORD: Final = re.compile(r"\w+")
_NAME_WORD: Final = re.compile(r"[^\W_]+")


def names_object(text: str, tool_id: str) -> bool:
    """Tell whether a request of few words holds all words of a tool's name but its verb.

    Args:
        text: the request.
        tool_id: of the tool; its last part is the name. A name without a verb that we know names no object.
    """
    if len(_REQUEST_WORD.findall(text)) > MAX_NAMING_WORDS:
        return False
    words = _NAME_WORD.findall(split_identifiers(tool_id.rpartition("/")[2]).lower())
    objects = {stem for word in words if word not in get_cues() for stem in tokenize_in_order(word)}
    objects = {stem for stem in objects if len(stem) >= MIN_OBJECT_LETTERS}
    return bool(objects) and any(word in get_cues() for word in words) and objects <= set(tokenize_in_order(text))


def serves_phrase(text: str, tool_ids: Sequence[str], words: ExpandedWords) -> bool:
    """Tell whether a request of few words has an everyday phrase of several words that one of its first tools serves.

    Args:
        text: the request.
        tool_ids: its tools, best first.
        words: finds the phrases, and the words that a tool has.
    """
    if len(_REQUEST_WORD.findall(text)) > MAX_NAMING_WORDS:
        return False
    additions = [addition for addition in words.find_additions(text) if " " in addition.phrase]
    first = tool_ids[:MAX_SERVING_TOOLS]
    return any(words.count_added_words(addition, first) >= MIN_SERVED_WORDS for addition in additions)
