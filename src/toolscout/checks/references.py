"""Finds names in settings, policies, profiles and sandboxes that no tool and no source of the catalogue has.

Such a name is no error, because its source may be added later. But nobody would notice a misspelled one: a pin that
shows nothing, or a pattern that denies nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from toolscout.errors import ConfigError, name_nearest
from toolscout.home.access.live_policy import find_policy
from toolscout.home.access.profiles import Profile, Profiles
from toolscout.scout import Scout
from toolscout.settings import Settings
from toolscout.sources.sandbox.servers import ANY_SOURCE, SANDBOX_FILE, read_sandboxes
from toolscout.trust.policy import Caller, Policies, Rules

__all__ = [
    "Reference",
    "check_home",
    "explain_unknown",
    "list_policy_names",
    "list_profile_names",
    "list_setting_names",
]

MAX_SENTENCES: Final = 5
EVERYTHING: Final = frozenset({"**"})
MISSING: Final = {
    "tool": "no tool has this id",
    "source": "no source has this name",
    "allowed": "no tool matches this pattern",
    "denied": "no tool matches this pattern",
}


class Reference(NamedTuple):
    """A name that somebody wrote down.

    Attributes:
        place: where it stands, as the subject of a sentence.
        name: the name or the pattern.
        kind: what it names: a tool by its id, a source, or a pattern of tools that are allowed or denied.
    """

    place: str
    name: str
    kind: Literal["tool", "source", "allowed", "denied"]


def list_setting_names(settings: Settings, pins: Iterable[str]) -> list[Reference]:
    """List the names in the settings and in the sandboxes of a home. `pins` are those in force.

    Raises:
        ConfigError: if the file of the sandboxes is invalid.
    """
    dependencies = [name for pair in settings.dependencies for name in pair.split("=", 1)]
    names = [Reference("A pin names", pin, "tool") for pin in pins]
    names += [Reference("The setting dependencies has", name, "tool") for name in dependencies]
    for setting in ("preferred_sources", "shared_sessions"):
        names += [Reference(f"The setting {setting} has", name, "source") for name in getattr(settings, setting)]
    sandboxes = read_sandboxes(settings.home)
    return names + [Reference(f"{SANDBOX_FILE} has", name, "source") for name in sandboxes if name != ANY_SOURCE]


def list_policy_names(callers: Iterable[Caller]) -> list[Reference]:
    """List the patterns in the rules of callers."""
    names: list[Reference] = []
    for caller in callers:
        if caller.rules:
            names += _list_patterns(f"The policy of {caller.name!r}", caller.rules.allow, caller.rules.deny)
    return names


def list_profile_names(profiles: Iterable[Profile]) -> list[Reference]:
    """List the patterns and the pins of profiles."""
    names: list[Reference] = []
    for profile in profiles:
        place = f"The profile {profile.name!r}"
        names += _list_patterns(place, profile.allow, profile.deny)
        names += [Reference(f"{place} pins", pin, "tool") for pin in profile.pins]
    return names


def _list_patterns(place: str, allow: Iterable[str], deny: Iterable[str]) -> Iterator[Reference]:
    yield from (Reference(f"{place} allows", pattern, "allowed") for pattern in sorted(allow))
    yield from (Reference(f"{place} denies", pattern, "denied") for pattern in sorted(deny))


def explain_unknown(
    scout: Scout, references: Sequence[Reference], awaited: Collection[str] = (), limit: int = MAX_SENTENCES
) -> list[str]:
    """Say in a sentence each which names nothing in the catalogue has, with the nearest name that something has.

    Args:
        scout: whose catalogue.
        references: the names.
        awaited: sources that may still bring tools. Names of theirs are not judged.
        limit: of sentences. A further one says how many more names there are.
    """
    if not references:
        return []
    names = _Names(scout, awaited)
    unknown = [reference for reference in references if names.lacks(reference)]
    sentences = [f"{place} {name!r}, but {MISSING[kind]}. {names.advise(name, kind)}" for place, name, kind in unknown]
    rest = len(unknown) - limit
    return sentences[:limit] + ([f"{rest:,} more such names are in  toolscout doctor"] if rest > 0 else [])


class _Names:
    """The names of sources and tools in a catalogue."""

    def __init__(self, scout: Scout, awaited: Collection[str]) -> None:
        """Read the catalogue, with what waits for approval and what is hidden: these names are no mistakes.

        Args:
            scout: whose catalogue.
            awaited: sources that are not read yet, such as servers that start.
        """
        self._store = scout.store
        self._sources = [source.name for source in scout.sources()]
        self._ids = {id for id, _ in scout.store.page(limit=None)} | {waiting.id for waiting in scout.waiting()}
        self._ids |= set(scout.store.hidden())
        self._awaited = awaited

    def lacks(self, reference: Reference) -> bool:
        """Tell whether nothing has the name, and no source is awaited that may bring it."""
        name, kind = reference.name, reference.kind
        if name in self._ids or name.partition("/")[0] in self._awaited:
            return False
        if kind in ("tool", "source"):
            return kind == "tool" or name not in self._sources
        return not self._may_match(name, is_denial=kind == "denied")

    def _may_match(self, pattern: str, *, is_denial: bool) -> bool:
        """Tell whether a pattern may match a tool. One with * is judged by its source alone.

        A pattern that denies is read in other spellings too, as the policy does.
        """
        source = pattern.partition("/")[0]
        folded = {name for name in self._sources if name.casefold() == source.casefold()}
        sources = folded if is_denial else folded & {source}
        if "*" in pattern or not sources:
            return "*" in source or bool(sources)
        rules = Rules(EVERYTHING, frozenset({pattern})) if is_denial else Rules(frozenset({pattern}))
        ids = [id for name in sources for id, _ in self._store.page(name, limit=None)]
        return any(rules(tool) != is_denial for tool in self._store.tools(ids))

    def advise(self, name: str, kind: str) -> str:
        """Ask for the nearest id, or for the nearest source if the name begins with an unknown one."""
        source = name.partition("/")[0]
        if kind == "tool" or (kind != "source" and source in self._sources):
            return name_nearest(name, self._ids, "See  toolscout list")
        return name_nearest(source, self._sources, "See  toolscout list")


def check_home(scout: Scout) -> list[str]:
    """Return `explain_unknown` for all names of a home, or what is wrong with the file that is invalid."""
    settings = scout.settings
    try:
        callers = Policies.load(find_policy(settings.place)).callers
        names = [
            *list_setting_names(settings, settings.pins),
            *list_policy_names(callers),
            *list_profile_names(Profiles(settings.place).all),
        ]
    except ConfigError as error:
        return [str(error)]
    return explain_unknown(scout, names, limit=len(names))
