"""Finds which service a tool belongs to, by the name of its source, and whether its description names that service.

The source `acme_todoist-mcp` may be acme's or todoist's, so both words name its service. The description "Create a task
in Todoist" names it, "Create a task" does not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from toolscout.indexes.words import tokenize
from toolscout.search.relations.tool_words import ToolWords
from toolscout.vocabulary import list_words, read_pairs

__all__ = ["DescriptionWords", "Services"]

MAX_SERVICE_SHARE: Final = 0.08  # a word in the names of more sources than this share names no service,
MIN_COMMON_SOURCES: Final = 8  # if it is in the names of more sources than this
GENERIC_WORDS: Final = frozenset(list_words("services.generic"))
SAME_SERVICES: Final = read_pairs("services.same")

# Other names of services (`postgresql` for `postgres`): a pattern of them, and (words of the usual name, other name).
_OTHER_NAME: Final = re.compile(rf"(?<![a-z])({'|'.join(SAME_SERVICES)})(?![a-z])", re.IGNORECASE)
_SPELLINGS: Final = [(frozenset(tokenize(plain)), tokenize(other)[0]) for other, plain in SAME_SERVICES.items()]


class DescriptionWords(NamedTuple):
    """The words of a tool's description as numbers.

    Attributes:
        words: all words, but for addresses of the tool's source (`@acme/hubspot`).
        without_source: the words without the name of the source.
        service: the words that name the tool's service.
    """

    words: frozenset[int]
    without_source: frozenset[int]
    service: frozenset[int]


class Services:
    """The services of the tools of a snapshot. Each word has a number, and tools are given by their positions.

    Attributes:
        numbers: word → its number; words that no tool has are added.
        words: source → the words of its name that say which service it is.
        spellings: source → these words, with other ways to write them.
    """

    def __init__(self, sources: Sequence[str], tool_words: ToolWords) -> None:
        """Read the names of the sources. `sources`: the source of each tool, by position."""
        self.numbers = dict(tool_words.numbers)
        self._sources, self._tool_words = sources, tool_words
        self._mentions_source = (tool_words.source_mentions.sizes > 0).tolist()
        service_words = _find_services(sources)
        self.words = {source: self.number_words(words) for source, words in service_words.items()}
        self.spellings = {source: self.number_words(_add_spellings(words)) for source, words in service_words.items()}

    def number_words(self, words: Iterable[str]) -> frozenset[int]:
        """Return the numbers of words, which get one if they have none."""
        return frozenset(self.numbers.setdefault(word, len(self.numbers)) for word in words)

    def read_text(self, tool: int) -> DescriptionWords:
        """Return the words of a tool's description."""
        words = without_source = self._tool_words.texts.read(tool)
        if self._mentions_source[tool]:
            words = without_source | self._tool_words.source_mentions.read(tool)
        return DescriptionWords(words, without_source, self.spellings[self._sources[tool]] & words)

    def differ(self, one: int, other: int) -> bool:
        """Tell whether each of two tools names its own service, and neither names the other's service."""
        service, other_service = self.read_text(one).service, self.read_text(other).service
        if not service or not other_service:
            return False
        return service.isdisjoint(self._list_all_words(other)) and other_service.isdisjoint(self._list_all_words(one))

    def _list_all_words(self, tool: int) -> frozenset[int]:
        """Return the words of a tool's source, name and description."""
        return self.spellings[self._sources[tool]] | self._tool_words.names.read(tool) | self.read_text(tool).words


def _find_services(sources: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return for each source the words of its name that say which service it is."""
    names = {source: frozenset(tokenize(_OTHER_NAME.sub(_use_usual_name, source))) for source in set(sources)}
    counts = Counter(word for words in names.values() for word in words)
    max_sources = max(MIN_COMMON_SOURCES, MAX_SERVICE_SHARE * len(names))
    common = GENERIC_WORDS | {word for word, count in counts.items() if count > max_sources}
    return {source: frozenset(word for word in words - common if not word.isdigit()) for source, words in names.items()}


def _add_spellings(service: frozenset[str]) -> frozenset[str]:
    """Return the words of a service with other ways to write it: `postgresql` beside `postgres`."""
    return service.union(other for plain, other in _SPELLINGS if plain <= service)


def _use_usual_name(match: re.Match[str]) -> str:
    return SAME_SERVICES[match[0].casefold()]
