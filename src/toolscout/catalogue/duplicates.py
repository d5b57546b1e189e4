"""Duplicates: finds the same tool where several sources offer it, so that an answer shows it once.

Two tools of different sources are the same if their definitions and their texts agree: the names of the sources share
a word, both descriptions have nearly the same words, and the parameters are the same; with the same name a smaller
overlap is enough. Sources without a common word may be different services ("add a reaction" in two chat programs, the
same query of two databases) and are folded in two cases only: forks of one server, and tools with a *public subject*,
which the world or the machine answers and no account: the weather, the time, a page in a browser. A word of a tool's
name, and its service if the description names it, must not be missing in the other tool.

A preferred source stands for the others, or else the source that was added first: a copy that arrives later never
stands for the tool that it copies.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from toolscout.catalogue.similar import word_overlap
from toolscout.catalogue.store import Catalogue
from toolscout.encoders import split_identifiers
from toolscout.indexes.words import tokenize
from toolscout.types import Tool, digest, parameter_names

__all__ = ["Duplicates", "find_duplicates"]

MIN_SAME_TEXT: Final = 0.75  # overlap of words from which descriptions are the same
MIN_SAME_TEXT_OF_NAMESAKES: Final = 0.45
MIN_SAME_PARAMETERS: Final = 0.5
MIN_FORKED_TOOLS: Final = 3  # same tools that two sources have at least, and
MIN_FORKED_SHARE: Final = 0.6  # share of the smaller source's tools, from which they are forks of one server
MAX_HOLDERS: Final = 500  # tools that are compared with each other for one service or name
MAX_SERVICE_SHARE: Final = 0.08  # a word in the names of more sources than this share names no service
MIN_COMMON_SOURCES: Final = 8
GENERIC_WORDS: Final = frozenset(("mcp", "server", "servers", "api", "tool", "tools", "client", "local", "the", "ai"))
MAX_COMPARED_CHARS: Final = 4_000
BROWSER_PREFIXES: Final = frozenset(("browser", "playwright", "puppeteer"))  # stand in the names of some tools
SAME_SERVICES: Final = {
    "gsuite": "google",
    "gcal": "google calendar",
    "gchat": "google chat",
    "gdrive": "google drive",
    "azdo": "azuredevops",
    "ms365": "m365",
    "postgresql": "postgres",
}
SAME_PARAMETERS: Final = {
    **dict.fromkeys(("city", "location", "place", "cityname", "locationname"), "place"),
    **dict.fromkeys(("lat", "latitude"), "latitude"),
    **dict.fromkeys(("lon", "lng", "long", "longitude"), "longitude"),
    **dict.fromkeys(("symbol", "ticker", "stocksymbol", "stock"), "symbol"),
    **dict.fromkeys(("domain", "domainname"), "domain"),
    **dict.fromkeys(("tz", "timezone"), "timezone"),
    **dict.fromkeys(("url", "link", "targeturl", "pageurl"), "url"),
    **dict.fromkeys(("command", "cmd"), "command"),
    **dict.fromkeys(("expression", "expr"), "expression"),
}
PLAIN_VERBS: Final = frozenset(("get", "fetch", "retrieve", "show", "lookup", "find", "go", "navigate"))
# Words of a tool's name and description that say together that no account or service stands behind the answer.
PUBLIC_SUBJECTS: Final = (
    *("weather", "forecast weather", "current time", "convert time timezone", "exchange rate", "convert currency"),
    *("stock price", "crypto price", "domain availability", "domain whois", "domain dns", "ip address location"),
    *("navigate url", "navigate page", "page forward", "page back", "page screenshot", "page pdf save"),
    *("click element page", "hover element page", "fill input field", "scrape url", "scrape page", "fetch url"),
    *("reflective thoughts", "execute command shell", "run command shell", "play audio file"),
    *("calculate expression", "evaluate expression", "add two numbers", "multiply two numbers", "divide two numbers"),
    *("subtract two numbers", "random number generate", "uuid generate"),
)
DUPLICATES_FORMAT: Final = "duplicates/3"  # raise it whenever the result for an unchanged catalogue changes

_SAME_SERVICE: Final = re.compile(rf"(?<![a-z])({'|'.join(SAME_SERVICES)})(?![a-z])", re.IGNORECASE)


class Duplicates(msgspec.Struct, frozen=True):
    """The same tools of several sources in one snapshot.

    Attributes:
        first: tool id → the tool that stands for its group; only tools of a group with two or more.
        groups: the tool that stands for a group → all tools of the group, the preferred first.
    """

    first: dict[str, str] = {}
    groups: dict[str, tuple[str, ...]] = {}


def find_duplicates(catalogue: Catalogue, preferred: Sequence[str] = ()) -> Duplicates:
    """Return the duplicates of a snapshot. They are computed once for each generation.

    Args:
        catalogue: the snapshot.
        preferred: names of sources, the most preferred first.
    """
    key = f"{DUPLICATES_FORMAT}/{digest('preferred/1', list(preferred))}"
    encoded = catalogue.load_or_build(key, lambda: msgspec.json.encode(_group_tools(catalogue, preferred)))
    return msgspec.json.decode(encoded, type=Duplicates)


def _group_tools(catalogue: Catalogue, preferred: Sequence[str]) -> Duplicates:
    """Group each tool with those that are the same as it, from the most preferred tool on."""
    tools = catalogue.tools()
    same: dict[int, set[int]] = {}
    for one, other in _find_same(tools):
        same.setdefault(one, set()).add(other)
        same.setdefault(other, set()).add(one)
    ranks = {source: rank for rank, source in enumerate(preferred)}

    def rank_tool(number: int) -> tuple[int, str, str]:
        tool = tools[number]
        age = catalogue.first_seen.get(tool.id) or catalogue.added.get(tool.source, "")
        return ranks.get(tool.source, len(ranks)), age, tool.id

    duplicates = Duplicates({}, {})
    for number in sorted(same, key=rank_tool):  # only tools that are the same as the first one: no chains
        left = [other for other in same[number] if tools[other].id not in duplicates.first]
        if tools[number].id in duplicates.first or not left:
            continue
        members = tuple(tools[member].id for member in (number, *sorted(left, key=rank_tool)))
        duplicates.groups[members[0]] = members
        duplicates.first.update(dict.fromkeys(members, members[0]))
    return duplicates


class _Readings:
    """What is compared of each tool, by its position: words without the name of its own source."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.sources = [tool.source for tool in tools]
        name_patterns = {source: _compile_name(source) for source in set(self.sources)}
        texts = [name_patterns[tool.source].sub(" ", tool.description[:MAX_COMPARED_CHARS]) for tool in tools]
        self.words = [frozenset(tokenize(text)) for text in texts]
        self.names = [frozenset(tokenize(split_identifiers(tool.name))) for tool in tools]
        self.parameters = [_name_parameters(parameter_names(tool.parameters, 1)) for tool in tools]
        self.required = [_name_parameters(_list_required(tool)) for tool in tools]
        self.services = _find_services(self.sources)

    def are_same(self, one: int, other: int, least_of_namesakes: float = MIN_SAME_TEXT_OF_NAMESAKES) -> bool:
        """Tell whether two tools are the same, if their sources may be the same service."""
        words, names = self.words, self.names
        here, there = self.services[self.sources[one]], self.services[self.sources[other]]
        least = least_of_namesakes if names[one] - here == names[other] - there else MIN_SAME_TEXT
        if word_overlap(words[one], words[other]) < least:
            return False
        # words that one tool uses for itself: the service it belongs to, and its name
        ours, theirs = here & words[one] | names[one] - here, there & words[other] | names[other] - there
        agree = ours <= there | names[other] | words[other] and theirs <= here | names[one] | words[one]
        return agree and _overlap(self.parameters[one], self.parameters[other]) >= MIN_SAME_PARAMETERS

    def are_same_in_public(self, one: int, other: int) -> bool:
        """Tell whether two tools with the same public subject are the same, whatever their sources are."""
        words, names = self.words, self.names
        if word_overlap(words[one], words[other]) < MIN_SAME_TEXT_OF_NAMESAKES:
            return False
        ours, theirs = (self.services[self.sources[tool]] & words[tool] for tool in (one, other))
        agree = ours <= names[other] | words[other] and theirs <= names[one] | words[one]
        required = self.required[one], self.required[other]
        return agree and (required[0] == required[1] or not all(required))


def _find_same(tools: Sequence[Tool]) -> list[tuple[int, int]]:
    """Return the pairs of positions of tools that are the same, the smaller position first."""
    readings = _Readings(tools)
    pairs = _list_candidates(readings.sources, readings.services)
    same = {pair for pair in pairs if readings.are_same(*pair)}
    return sorted(same | _find_forked(readings) | _find_public(readings))


def _find_public(readings: _Readings) -> set[tuple[int, int]]:
    """Return the same tools among those with a public subject, from any two sources."""
    subjects = [frozenset(tokenize(subject)) for subject in PUBLIC_SUBJECTS]
    verbs, prefixes = (frozenset(tokenize(" ".join(sorted(some)))) for some in (PLAIN_VERBS, BROWSER_PREFIXES))
    namesakes: dict[frozenset[str], list[int]] = defaultdict(list)
    pairs: set[tuple[int, int]] = set()
    for number, name in enumerate(readings.names):
        subject = frozenset().union(*(some for some in subjects if some <= name | readings.words[number]))
        if not subject:
            continue
        name -= prefixes | readings.services[readings.sources[number]] - subject
        key = name - verbs or name
        pairs |= {
            (other, number)
            for other in namesakes[key]
            if readings.sources[other] != readings.sources[number] and readings.are_same_in_public(other, number)
        }
        if len(namesakes[key]) < MAX_HOLDERS:
            namesakes[key].append(number)
    return pairs


def _find_forked(readings: _Readings) -> set[tuple[int, int]]:
    """Return the same tools of forks: sources that have most of their tools in common, whatever they are called."""
    sources, sizes = readings.sources, Counter(readings.sources)
    namesakes: dict[frozenset[str], list[int]] = defaultdict(list)
    pairs: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for number, name in enumerate(readings.names):
        for other in namesakes[name]:
            if sources[other] != sources[number] and readings.are_same(other, number, MIN_SAME_TEXT):
                one, two = sorted((sources[other], sources[number]))
                pairs[one, two].append((other, number))
        if len(namesakes[name]) < MAX_HOLDERS:
            namesakes[name].append(number)
    return {
        pair
        for (one, two), some in pairs.items()
        if len(some) >= max(MIN_FORKED_TOOLS, MIN_FORKED_SHARE * min(sizes[one], sizes[two]))
        for pair in some
    }


def _compile_name(source: str) -> re.Pattern[str]:
    """Return a pattern for the name of a source, however it joins its words."""
    return re.compile(r"[\W_]+".join(map(re.escape, re.findall(r"[^\W_]+", source))) or r"(?!)", re.IGNORECASE)


def _list_candidates(sources: Sequence[str], services: Mapping[str, frozenset[str]]) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions of tools whose sources name the same service."""
    holders: dict[str, list[int]] = defaultdict(list)
    for number, source in enumerate(sources):
        for service in sorted(services[source]):
            yield from ((other, number) for other in holders[service] if sources[other] != source)
            if len(holders[service]) < MAX_HOLDERS:
                holders[service].append(number)


def _name_parameters(names: Iterable[str]) -> frozenset[str]:
    """Return the names of parameters, each by the word that tools mostly use for the same value."""
    plain = (re.sub(r"[\W_]+", "", str(name)).casefold() for name in names)
    return frozenset(SAME_PARAMETERS.get(name, name) for name in plain)


def _list_required(tool: Tool) -> Sequence[str]:
    """Return the names of the parameters that a tool requires."""
    required = (tool.parameters or {}).get("required")
    return required if isinstance(required, list) else ()


def _find_services(sources: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return for each source the words of its name that say which service it is."""
    words = {source: frozenset(tokenize(_SAME_SERVICE.sub(_rename_service, source))) for source in set(sources)}
    counts = Counter(word for some in words.values() for word in some)
    max_sources = max(MIN_COMMON_SOURCES, MAX_SERVICE_SHARE * len(words))
    common = GENERIC_WORDS | {word for word, count in counts.items() if count > max_sources}
    return {source: frozenset(word for word in some - common if not word.isdigit()) for source, some in words.items()}


def _rename_service(match: re.Match[str]) -> str:
    return SAME_SERVICES[match[0].casefold()]


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard overlap of two sets of parameters; 1 if a source gives none, as many leave them out."""
    return word_overlap(one, other) if one and other else 1.0
