"""Words that separate, begin and join the steps of a request: `search/words/LANG.toml`, section `steps`.

A word of a language without a file only loses a hint: punctuation and list marks work in every language.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from toolscout.vocabulary import join_phrases, list_words

__all__ = [
    "ANAPHORA",
    "CONNECTOR",
    "CONTINUATION",
    "MESSAGE",
    "PASTED_TEXT",
    "POLITE",
    "PRELUDE",
    "PRONOUNS",
    "QUESTIONS",
    "REQUESTS",
    "SEQUENCE",
    "SUBORDINATORS",
    "TELLING_STARTS",
    "THANKS",
    "THING_REFERENCES",
    "TRY_VERBS",
    "UNSPACED_VERBS",
    "VERBS",
    "is_lead_in",
]


def _read(*names: str) -> frozenset[str]:
    """Return the words of these entries of the section `steps`, in all languages."""
    return frozenset(word for name in names for word in list_words(f"steps.{name}"))


def _read_patterns(name: str) -> str:
    """Return a regular expression for any of the regular expressions of an entry."""
    return "|".join(list_words(f"steps.{name}"))


def _chain_words(chained: Iterable[str], mark: str) -> str:
    """Return a regular expression for one to eight of these words in a row, with a mark behind the last."""
    word = rf"(?:{join_phrases(chained)})(?:['’]\w{{1,2}})?"  # also with an ending, as in "what's"
    return rf"{word}(?:\s+{word}){{0,7}}\s*{mark}"


_AND: Final = _read("and")
_UNSPACED_THEN: Final = join_phrases(list_words("steps.unspaced_then"))
_COMMA: Final = r"[,，](?=\s)"
_COLON: Final = r"[:：](?=\s)"
#: A lead-in, which asks for nothing itself: "besides all that, …", "my second question is: …".
_LEAD: Final = rf"{_chain_words(_read('lead'), _COMMA)}|{_chain_words(_read('lead', 'wish'), _COLON)}"

#: A connector at the start of a piece. Its groups are the kinds of `SplitPoint.links`.
CONNECTOR: Final = re.compile(
    rf"(?:(?P<then>(?:{_read_patterns('done')}|{join_phrases(_read('then'))})(?![\w’'])"
    rf"|{_UNSPACED_THEN}|[再并还先](?=[\u3400-\u9fff]))"
    rf"|(?P<also>(?:{join_phrases(_read('also'))})(?![\w’']))"
    rf"|(?P<joint>(?:{join_phrases(_AND)})(?![\w’']))"
    rf"|(?P<lead>{_LEAD}))",
    re.IGNORECASE,
)
#: Connectors that end a piece without a punctuation mark before them. Dutch "en" is also Spanish and French for "in".
SEQUENCE: Final = re.compile(
    rf"(?<!\S)(?:{join_phrases(_AND - {'en'} | _read('unmarked'))})(?!\S)"
    rf"|(?<=[\u3040-\u9fff])(?:{_UNSPACED_THEN})",
    re.IGNORECASE,
)
VERBS: Final = _read("verbs")
#: Verbs that begin a piece of a language without spaces.
UNSPACED_VERBS: Final = list_words("steps.unspaced_verbs")
QUESTIONS: Final = _read("questions")
#: Beginnings of a request that is no imperative.
REQUESTS: Final = re.compile(rf"(?:{_read_patterns('requests')})(?!\w)".replace(" ", r"\s+"), re.IGNORECASE)
#: Polite words before a verb, which are skipped to see it.
POLITE: Final = _read("polite")
PRONOUNS: Final = _read("pronouns")
SUBORDINATORS: Final = _read("subordinators")
THING_REFERENCES: Final = _read("things")
ANAPHORA: Final = _read("anaphora")
TELLING_STARTS: Final = _read("telling_starts")
#: Verbs of "try and find" and "go and get", which are one step.
TRY_VERBS: Final = _read("try_and")
THANKS: Final = re.compile(rf"\W*(?:{_read_patterns('thanks')})\b", re.IGNORECASE)
PASTED_TEXT: Final = r"\b(?:(?-i:[A-Z]{2,12})|context|background)[:：][\s\S]{1,2000}?\s(?:query|question)[:：]"
"""Pattern of a text pasted before the request itself ("EMAIL: … query: …"), whatever the case of the other words."""
# How a piece begins that goes on with the step before it, and asks for nothing of its own.
CONTINUATION: Final = re.compile(_read_patterns("continuations"), re.IGNORECASE)
PRELUDE: Final = re.compile(
    rf"\W*(?:(?:could|can|would|will) you\W+)?(?:{_read_patterns('preludes')})\W*\Z", re.IGNORECASE
)
MESSAGE: Final = re.compile(  # what follows the colon is the text of a message
    rf"\b(?:{join_phrases(_read('messages'))})\b[^:.?!\n]{{0,80}}:\s", re.IGNORECASE
)

_ANNOUNCED: Final = _read("announced")  # what the words before a list call its items
_LEAD_IN_WORDS: Final = _ANNOUNCED | _read(  # words that ask for nothing themselves
    *("polite", "pronouns", "questions", "subordinators", "prepositions", "particles", "lead", "wish", "announcing")
)
_EMPTY_VERBS: Final = _read("empty_verbs")
_AFTER_NOUN: Final = _read("after_noun") | {""}
_ASKED: Final = _read("asked")
_ENDS_OPEN: Final = re.compile(rf"\b(?:{join_phrases(_read('open_ends'))})\W*\Z")
_LEAD_IN_WORD: Final = re.compile(r"[^\W\d_][\w'’-]*")
MAX_LEAD_IN_WORDS: Final = 12


def is_lead_in(text: str, mark: str) -> bool:
    """Tell whether the text before a list only announces it: "My tasks for today:", "I need to".

    Args:
        text: the text before the first mark of the list.
        mark: the mark, with a colon if there is one before it.
    """
    return all(_announces(sentence, mark) for sentence in re.split(r"[.!?]\s", text))


def _announces(sentence: str, mark: str) -> bool:
    """Tell whether a sentence before a list asks for nothing itself, and announces the list.

    A sentence announces a list if it names the list ("my tasks"), breaks off ("I need to"), has only words that every
    lead-in may have, or one other word before a colon ("Groceries:").
    """
    tokens = _LEAD_IN_WORD.findall(sentence.lower().replace("’", "'"))
    content = [token for token in tokens if token not in _LEAD_IN_WORDS]
    if _begins_request(tokens) or len(tokens) > MAX_LEAD_IN_WORDS or any(token in VERBS for token in content):
        return False
    if any(token in _ANNOUNCED for token in tokens) or _ENDS_OPEN.search(sentence):
        return True
    if not content:
        return bool(mark.strip(" \t\n.!?"))  # lines without marks are no list
    return len(content) == 1 and mark.strip().startswith((":", "："))


def _begins_request(tokens: list[str]) -> bool:
    """Tell whether a sentence begins as a question of its own or as a command: "what time", "order the following"."""
    first, second = (*tokens, "", "")[:2]  # "" for a missing word
    if first in _EMPTY_VERBS and second in _ASKED:  # "do you know …"
        return True
    if first in QUESTIONS - _EMPTY_VERBS and second not in _ASKED:  # "what time …", but not "what I want:"
        return True
    first, second = (*(token for token in tokens if token not in POLITE), "", "")[:2]
    return first in VERBS - _EMPTY_VERBS and second not in _AFTER_NOUN  # "order the …", but not "order of:"
