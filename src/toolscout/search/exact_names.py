"""Exact names win: a search always returns a tool that the query names.

A query names a tool in five ways: the whole query is its name or id; it contains the id; it contains a name that is an
identifier; it contains the name in quotes or backticks, and the name is written like an identifier or stands next to a
word for a tool (`use "copy"`, `the "copy" tool`); or it has the form `select:name,name`, which returns these tools and
nothing else. Case does not matter.

People write an identifier only when they mean a piece of software: words joined by underscores or dots
(`get_forecast`, `files.copy`) or by inner capitals (`getForecast`, `GetAirQuality`), or a word with a number of three
digits (`sha256`). Words that also occur in ordinary sentences (`YouTube`, `user_id`, `example.com`, `mp3`, `v2`) count
only if the query says that they are names: `run v2`, `the tool user_id`, `v2(…)`. A dictionary word inside a longer
query is never a name, whatever its case and the punctuation around it (`today.`, `_today`): people quote what they want
translated, sent or written.

If the query says more than names, several tools of one name take at most half of the places. The others stand where
they rank.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from toolscout.home.catalogue.snapshot import NameTable
from toolscout.home.catalogue.store import Catalogue, allows
from toolscout.indexes.words import list_source_words
from toolscout.search.pipeline import Stage, order
from toolscout.search.relations.services import GENERIC_WORDS
from toolscout.types import Answer, Explanation, Hit, Tool
from toolscout.vocabulary import join_phrases, list_words

__all__ = [
    "EXACT",
    "Names",
    "PreferSources",
    "explain_disabled",
    "explain_waiting",
    "find_named_tools",
    "has_source_name",
    "parse_selection",
]

EXACT: Final = "exact name"
_QUOTED_NAME: Final = re.compile(
    r"`([^`\n]{1,200})`|\"([^\"\n]{1,200})\"|“([^”\n]{1,200})”|(?<!\w)'([^'\n]{1,200})'(?!\w)"
)
_SOURCE_WORD: Final = re.compile(r"[^\W_]+")
_QUOTES: Final = re.compile("[`\"“']")
_MARKED: Final = re.compile(r"[_.\d/]|(?<=.)[A-Z].*[a-z]|[a-z].*[A-Z]")  # see `_is_marked`
_CLEAR_IDENTIFIER: Final = re.compile(  # nobody writes one by chance
    r"[A-Za-z][A-Za-z0-9]+(?:_[A-Za-z0-9]+)*_[A-Za-z0-9]{2,}"
    r"|[A-Za-z]\w+(?:\.\w{2,})+"
    r"|[a-z]{2,}[a-z0-9]*(?:[A-Z][a-z0-9]+)+|(?:[A-Z][a-z0-9]+){3,}"
    r"|[A-Za-z]{3,}\d{3,}",
    re.ASCII,
)
_VALUE: Final = re.compile(  # names of values, web addresses and files, which requests hold although they mean no tool
    r"\w+_(?:ids?|keys?|names?|dates?|types?|tokens?|urls?|numbers?|codes?|address|emails?"
    r"|passwords?|user|at|on|of|\d+)"
    r"|(?:\w+\.)+(?:com|org|net|io|edu|gov|co|uk|de|fr|cn|app|ai|dev|me|tv|js|ts|py|rb|txt|csv|tsv|pdf|json|ya?ml|xml"
    r"|html?|md|docx?|xlsx?|pptx?|jpe?g|png|gif|svg|mp[34]|wav|zip|gz|exe|log|sql|db|ini|toml|sh)|www\..*",
    re.IGNORECASE | re.ASCII,
)
_CALLS, _NOUNS, _LINKS, _NAMINGS = (
    frozenset(list_words(f"names.{name}")) for name in ("calls", "nouns", "links", "namings")
)
_QUOTE_MARK: Final = " \N{OBJECT REPLACEMENT CHARACTER} "  # stands for other quoted text
_CUES: Final = _CALLS | _NOUNS  # words that say that a tool follows
_SKIPPED_BEFORE_QUOTES: Final = _LINKS | _NAMINGS | {_QUOTE_MARK.strip()}  # words that may be between a cue and a quote
_ADDRESS_MARK: Final = re.compile(r"@|://")
_IDENTIFIER: Final = re.compile(r"\w(?:[\w./-]*\w)?", re.ASCII)
_EDGES: Final = ".,;:!?()[]{}<>\"'`“”‘’*，。？！、：；（）「」『』"
MAX_NAME_WORDS: Final = 8
MAX_NAME_CHARS: Final = 200  # of a word that is judged by its letters, which takes quadratic time
MAX_NAME_QUERY_CHARS: Final = 4_000  # names after that are not looked for
NAMED_SOURCE_POINTS: Final = 2.0  # of BM25, that a tool gains if the request names its source


class PreferSources(Stage):
    """Raises the tools of a source that the request names: "on zoom", "in my jira", "gitlab: …"."""

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits"})
    name = "sources"

    def __init__(self, catalogue: Catalogue) -> None:
        """Read the names of the sources of a snapshot, without words such as "mcp"."""
        self._sources: dict[str, str] = {}  # source → the words of its name, joined
        patterns: set[str] = set()
        for source in dict.fromkeys(tool_id.partition("/")[0] for tool_id in catalogue.ids):
            words = [word for word in _SOURCE_WORD.findall(source.lower()) if word not in GENERIC_WORDS]
            self._sources[source] = "".join(words)
            if words:
                patterns.add("[ _.-]?".join(words))
        names = "|".join(sorted(patterns, key=len, reverse=True))
        place = rf"\b(?:{join_phrases(list_words('names.places'))})\s+(?:(?:my|our|the)\s+)?({names})(?!\w)"
        mention = rf"{place}|^\W*({names})\s*:"  # a match has the name in one of the two groups
        has_choice = len(patterns) > 1  # with one source there is none to prefer
        self._mention = re.compile(mention, re.IGNORECASE) if has_choice else None

    def change(self, search: Answer) -> Answer:
        """Add points to the hits of named sources, and order all hits anew."""
        if self._mention is None:
            return search
        mentions = self._mention.finditer(search.query[:MAX_NAME_QUERY_CHARS])
        named = {"".join(_SOURCE_WORD.findall((match[1] or match[2]).lower())) for match in mentions}
        if not named:
            return search
        hits = [
            msgspec.structs.replace(hit, score=hit.score + NAMED_SOURCE_POINTS)
            if self._sources[hit.id.partition("/")[0]] in named
            else hit
            for hit in search.hits
        ]
        return msgspec.structs.replace(search, hits=order(hits))

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        """Return the rank of a tool that changes its place; None if it keeps it."""
        if tool_id not in search.ids:
            return None
        [result] = self.run([search])
        old_place, place = search.ids.index(tool_id), result.ids.index(tool_id)
        if place == old_place:
            return None
        return Explanation(self.name, place + 1, result.hits[place].score, f"{old_place + 1} before")


class Names(Stage):
    """Puts the tools that the query names before the other hits. Not part of `bench`."""

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits", "reason"})

    def __init__(
        self, catalogue: Catalogue, find_doubted: Callable[[Answer, Sequence[str]], AbstractSet[str]] | None = None
    ) -> None:
        """Look for the names of a snapshot.

        Args:
            catalogue: the snapshot.
            find_doubted: (search, ids) → those that come behind others of their name, because they are demoted; None:
                none does.
        """
        self.catalogue, self.find_doubted = catalogue, find_doubted

    def change(self, search: Answer) -> Answer:
        """Put the tools that the query names first. A query `select:…` gets only these tools.

        If the query names a tool that no search returns now, the reason says so.
        """
        reason = explain_waiting(self.catalogue, search) if self.catalogue.waiting else None
        if reason is None and self.catalogue.disabled:
            reason = explain_disabled(self.catalogue, search)
        if reason:
            search = msgspec.structs.replace(search, reason=reason)
        selection = parse_selection(search.query)
        if selection is not None:
            return self._select(search, selection)
        positions = find_named_tools(self.catalogue.table, search.query)
        ids = self._visible_ids(search, positions) if positions else []
        if not ids:
            return search
        ids = self._rank_named(search, ids)
        if not _is_nothing_else(self.catalogue.table, search.query):
            ids = self._limit_namesakes(search, ids)
        named = set(ids)
        rest = tuple(hit for hit in search.hits if hit.id not in named)
        return msgspec.structs.replace(search, hits=_as_hits(ids, search) + rest)

    def _rank_named(self, search: Answer, ids: Sequence[str]) -> list[str]:
        """Return the named tools: first those whose ids are in the query, then those not doubted, then by score."""
        scores = {hit.id: hit.score for hit in search.hits}
        doubted = self.find_doubted(search, ids) if self.find_doubted else frozenset[str]()
        query = search.query.casefold()

        def rank(tool_id: str) -> tuple[bool, bool, float, str]:
            return tool_id.casefold() not in query, tool_id in doubted, -scores.get(tool_id, -math.inf), tool_id

        return sorted(ids, key=rank)

    def _limit_namesakes(self, search: Answer, ids: Sequence[str]) -> list[str]:
        """Return the named tools, of each name at most as many as half of the hits.

        A tool whose id is in the query is kept, and does not count.
        """
        kept: list[str] = []
        counts = Counter[str]()
        query, max_namesakes = search.query.casefold(), math.ceil(search.k / 2)
        for tool in self.catalogue.tools(ids):
            name = tool.name.casefold()
            if tool.id.casefold() in query:
                kept.append(tool.id)
            elif counts[name] < max_namesakes:
                counts[name] += 1
                kept.append(tool.id)
        return kept

    def _select(self, search: Answer, names: Sequence[str]) -> Answer:
        """Return the search with the selected tools as its only hits, in the order of `names`."""
        table = self.catalogue.table
        ids_by_name = {name: self._visible_ids(search, itertools.chain(*table.find(name))) for name in names}
        missing = [repr(name) for name in names if not ids_by_name[name]]
        reason = search.reason
        if missing and not reason:
            reason = f"No visible tool is called {', '.join(missing)}."
        ids = dict.fromkeys(itertools.chain.from_iterable(ids_by_name.values()))  # each once
        return msgspec.structs.replace(search, hits=_as_hits(ids, search), reason=reason)

    def _visible_ids(self, search: Answer, positions: Iterable[int]) -> list[str]:
        """Return the ids of those tools that the caller may see."""
        mask = self.catalogue.mask(search.visible)
        return [self.catalogue.ids[position] for position in positions if mask is None or mask[position]]

    def note(self, search: Answer) -> str:
        count = sum(1 for _ in itertools.takewhile(lambda hit: hit.why == EXACT, search.hits))
        return f"{count} named exactly" if count else ""

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        """Return the rank of a tool if the query names it or any other tool; None if the query names no tool."""
        [named] = self.run([search])
        count = sum(hit.why == EXACT for hit in named.hits)
        if not count or tool_id not in named.ids:
            return None
        rank = named.ids.index(tool_id)
        note = "the request names it" if rank < count else f"behind {count} that the request names"
        return Explanation(self.name, rank + 1, named.hits[rank].score, note)


def parse_selection(query: str) -> list[str] | None:
    """Return the names after `select:`, or None if the query does not have that form."""
    head, colon, tail = query.strip().partition(":")
    if not colon or head.strip().lower() != "select":
        return None
    names = (part.strip().strip("`\"'") for part in tail.split(","))
    return [name for name in names if name]


def has_source_name(words: AbstractSet[str], source: str) -> bool:
    """Tell whether the terms of a query include all words of the name of a source."""
    name = list_source_words(source)
    return bool(name) and name <= words


def _as_hits(ids: Iterable[str], search: Answer) -> tuple[Hit, ...]:
    """Return hits for tools that the query names, with the highest score of the search, at least 1."""
    top = max([1.0, *(hit.score for hit in search.hits)])
    return tuple(Hit(tool_id, top, EXACT) for tool_id in ids)


def find_named_tools(table: NameTable, query: str) -> list[int]:
    """Return the positions of the tools that the query names, in the order of their first mention."""
    positions: list[int] = []
    query = query[:MAX_NAME_QUERY_CHARS]
    words = query.split()
    for text, place in _find_mentions(query, words, table.has_spaces):
        if place is not None and not _MARKED.search(text[:MAX_NAME_CHARS]):
            continue  # a bare word is neither an id nor an identifier
        ids, named = table.find(text)
        if place is None or ids or (_is_marked(text) and _is_identifier(text, _is_called(words, place))):
            positions += [*ids, *named]
    return list(dict.fromkeys(positions))  # each once


def _is_marked(word: str) -> bool:
    """Tell whether a word is spelt like a name: with `_`, `.`, `/`, a digit, or capitals inside."""
    return len(word) <= MAX_NAME_CHARS and bool(_MARKED.search(word))


def _is_identifier(text: str, is_called: bool) -> bool:
    """Tell whether a word of a query is a name.

    A name is spelt like one (`_is_marked`) and begins with a letter. In addition, the query calls it a tool (see
    `_is_called`), or nobody writes it by chance (`_CLEAR_IDENTIFIER`: `list_issues`) and it names no value or file
    (`_VALUE`: `user_id`).
    """
    core = text.strip("_.-/")
    if not core[:1].isalpha() or not _is_marked(core):
        return False
    # Inner capitals are the sign of an identifier, but not in a word that has only capitals ("A1B2C3").
    spelling = core.lower() if core.isupper() and "_" not in core else core
    return is_called or bool(_CLEAR_IDENTIFIER.fullmatch(spelling) and not _VALUE.fullmatch(core))


def _find_mentions(query: str, words: Sequence[str], has_spaces: bool) -> Iterator[tuple[str, int | None]]:
    """Yield the texts in a query that may name a tool, each with its place.

    The place is the number of the word at which the text begins. It is None for the whole query and for quoted text
    that is meant as a name: these name any tool with this name, even if the name is an ordinary word. If some id
    `has_spaces`, phrases of several words may be ids too.
    """
    yield query.strip(), None
    yield query.strip().strip(_EDGES), None
    if _QUOTES.search(query):
        yield from ((text, None) for text in _read_quotes(query))
    for place, word in enumerate(words):
        yield word, place
        if not word.isalnum():
            yield word.strip(_EDGES), place
        may_contain_names = not (word.isalnum() and word.isascii())  # as in "get_forecast(…)", or between Chinese words
        if may_contain_names and not _ADDRESS_MARK.search(word):
            yield from ((part, place) for part in _IDENTIFIER.findall(word))
        if has_spaces:
            yield from _read_phrases(words, place)


def _read_quotes(query: str) -> Iterator[str]:
    """Yield the texts in quotes and backticks that are meant as names."""
    for match in _QUOTED_NAME.finditer(query):
        text = _unquote(match)
        is_in_backticks = match[1] is not None
        may_be_name = is_in_backticks or not _is_value(text)
        if may_be_name and (_is_alone(query) or _is_meant(query, match)):
            yield text


def _unquote(match: re.Match[str]) -> str:
    """Return the text between the marks."""
    return next(group for group in match.groups() if group).strip()


def _is_nothing_else(table: NameTable, query: str) -> bool:
    """Tell whether a query is nothing but a name, or nothing but quoted names."""
    text = query.strip()
    return any((*table.find(text), *table.find(text.strip(_EDGES)))) or _is_alone(query)


def _is_alone(query: str) -> bool:
    """Tell whether all words of a query are in quotes or backticks."""
    return not any(letter.isalnum() for letter in _QUOTED_NAME.sub("", query))


def _is_meant(query: str, match: re.Match[str]) -> bool:
    """Tell whether quoted text is a name: it has the form of an identifier, or words beside it say that it is a tool.

    Such words are `use "copy"`, `the "copy" tool`, `the tool called "copy"`, `use "copy" or "search"`.
    """
    if any(_is_identifier(word, is_called=True) for word in _unquote(match).split()):
        return True
    words_behind = query[match.end() :].split(maxsplit=1)
    if words_behind and _plain(words_behind[0]) in _NOUNS:
        return True
    return _ends_with_call(_QUOTED_NAME.sub(_QUOTE_MARK, query[: match.start()]))


def _ends_with_call(text: str) -> bool:
    """Tell whether the last words of a text say that a tool follows: `use the`, `the tool called`."""
    last_words = text.split()[-MAX_NAME_WORDS:]
    for word in map(_plain, reversed(last_words)):
        if word in _CUES:
            return True
        if word not in _SKIPPED_BEFORE_QUOTES:
            return False
    return False


def _read_phrases(words: Sequence[str], place: int) -> Iterator[tuple[str, int]]:
    """Yield the phrases that begin at a word and may be ids with spaces in them."""
    for stop in range(place + 2, min(len(words), place + MAX_NAME_WORDS) + 1):
        phrase = " ".join(words[place:stop])
        if "/" in phrase or "_" in phrase:
            yield phrase.strip(_EDGES), place


def _is_value(text: str) -> bool:
    """Tell whether a text in quotation marks is a number, an address or a file, which is no tool's name."""
    return not any(letter.isalpha() for letter in text) or bool(_VALUE.fullmatch(text) or _ADDRESS_MARK.search(text))


def _is_called(words: Sequence[str], place: int) -> bool:
    """Tell whether a word of a query is said to be a tool: `run v2`, `run v1 and v2`, `v2(…)`, `the v2 tool`."""
    if not _is_marked(words[place]):
        return False
    is_function_call = re.match(r"[\w.]+\(", words[place])
    next_word = _plain(words[place + 1]) if place + 1 < len(words) else ""
    if is_function_call or next_word in _NOUNS:
        return True
    words_before = words[max(0, place - MAX_NAME_WORDS + 1) : place]
    for word in reversed(words_before):  # back over "the", "and" and other names
        if _plain(word) in _CUES:
            return True
        if _plain(word) not in _LINKS and not _is_identifier(word.strip(_EDGES), is_called=False):
            return False
    return False


def _plain(word: str) -> str:
    """Return a word in small letters, without the punctuation around it."""
    return word.strip(_EDGES).casefold()


def explain_disabled(catalogue: Catalogue, search: Answer) -> str | None:
    """Return one sentence if the query names a tool of a disabled source, visible to the caller; or None."""
    keys = list(_list_keys(search.query))
    for source, (message, ids_by_key) in catalogue.disabled.items():
        state = message if search.visible is None else "disabled"  # a message may name files of the service's operator
        ids = [ids_by_key[key] for key in keys if key in ids_by_key]
        for tool in catalogue.tools(ids) if ids else ():
            if _sees(search, tool):
                return f"{tool.id} is not searched: source {source!r} is {state}"
    return None


def explain_waiting(catalogue: Catalogue, search: Answer) -> str | None:
    """Return one sentence if the query names a tool that waits for approval, visible to the caller; or None."""
    for key in _list_keys(search.query):
        for definition in catalogue.waiting.get(key, ()):
            if _sees(search, definition.tool):
                return f"{definition.id} waits for approval: {definition.why}"
    return None


def _sees(search: Answer, tool: Tool) -> bool:
    """Tell whether the search's caller may see the tool; a predicate that raises hides it."""
    return search.visible is None or allows(search.visible, tool)


def _list_keys(query: str) -> Iterator[str]:
    """Yield casefolded names and ids that a query may contain."""
    selection = parse_selection(query)
    if selection is not None:
        yield from map(str.casefold, selection)
        return
    query = query[:MAX_NAME_QUERY_CHARS]
    words = query.split()
    for text, place in _find_mentions(query, words, has_spaces=False):
        if place is None or "/" in text or _is_identifier(text, _is_called(words, place)):
            yield text.casefold()
