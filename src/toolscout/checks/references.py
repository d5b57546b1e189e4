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
#: Kind of a reference → what is wrong with an unknown one.
MISSING: Final = {
    "tool": "no tool has this id",
    "source": "no source has this name",
    "allowed": "no tool matches this pattern",
    "denied": "no tool matches this pattern",
}


class Reference(NamedTuple):
    """A name of a tool or a source in the configuration.

    Attributes:
        place: where it was written, as the beginning of a sentence: "The profile 'x' pins".
        name: the name or the pattern.
        kind: what it names: a tool by its id, a source, or the tools that a pattern allows or denies.
    """

    place: str
    name: str
    kind: Literal["tool", "source", "allowed", "denied"]


def list_setting_names(settings: Settings, pins: Iterable[str]) -> list[Reference]:
    """List the names in the settings and in the sandboxes of a home.

    Args:
        settings: of the home.
        pins: ids of the pinned tools that are in force.

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
    """Yield the patterns of a rule, sorted; `place`: the beginning of a sentence, such as "The profile 'x'"."""
    yield from (Reference(f"{place} allows", pattern, "allowed") for pattern in sorted(allow))
    yield from (Reference(f"{place} denies", pattern, "denied") for pattern in sorted(deny))


def explain_unknown(
    scout: Scout, references: Sequence[Reference], awaited: Collection[str] = (), limit: int = MAX_SENTENCES
) -> list[str]:
    """Write a sentence for each name that no tool and no source has, with the nearest name that exists.

    Args:
        scout: its catalogue has the names that exist.
        references: the names to check.
        awaited: sources that are not read yet, such as servers that start. Names of their tools are not checked.
        limit: maximum number of such sentences. One more says how many further names there are.
    """
    if not references:
        return []
    names = _Names(scout, awaited)
    unknown = [reference for reference in references if names.lacks(reference)]
    sentences = [f"{place} {name!r}, but {MISSING[kind]}. {names.advise(name, kind)}" for place, name, kind in unknown]
    n_left_out = len(unknown) - limit
    return sentences[:limit] + ([f"{n_left_out:,} more such names are in  toolscout doctor"] if n_left_out > 0 else [])


class _Names:
    """The names of sources and tools in a catalogue."""

    def __init__(self, scout: Scout, awaited: Collection[str]) -> None:
        """Read the names of the catalogue, and of tools that wait for approval or are hidden: all of these exist.

        Args:
            scout: has the catalogue.
            awaited: as in `explain_unknown`.
        """
        self._store = scout.store
        self._sources = [source.name for source in scout.sources()]
        self._ids = {id for id, _ in scout.store.page(limit=None)} | {waiting.id for waiting in scout.waiting()}
        self._ids |= set(scout.store.hidden())
        self._awaited = awaited

    def lacks(self, reference: Reference) -> bool:
        """Tell whether no tool and no source has the name, and no awaited source may bring it."""
        name, kind = reference.name, reference.kind
        source, _, _ = name.partition("/")
        if name in self._ids or source in self._awaited:
            return False
        if kind == "tool":
            return True
        if kind == "source":
            return name not in self._sources
        return not self._may_match(name, is_denial=kind == "denied")

    def _may_match(self, pattern: str, *, is_denial: bool) -> bool:
        """Tell whether a pattern may match a tool. For a pattern with *, it is enough that its source exists.

        A pattern that denies also matches other spellings, as in the policy.
        """
        source = pattern.partition("/")[0]
        folded = {name for name in self._sources if name.casefold() == source.casefold()}
        sources = folded if is_denial else folded & {source}
        if "*" in pattern or not sources:
            return "*" in source or bool(sources)
        rules = Rules(EVERYTHING, frozenset({pattern})) if is_denial else Rules(frozenset({pattern}))
        ids = [id for name in sources for id, _ in self._store.page(name, limit=None)]
        # Under a denial alone, a tool that the pattern matches is not visible; else it is.
        return any(rules(tool) != is_denial for tool in self._store.tools(ids))

    def advise(self, name: str, kind: str) -> str:
        """Name the nearest tool id, or the nearest source if the name begins with an unknown source."""
        source = name.partition("/")[0]
        if kind == "tool" or (kind != "source" and source in self._sources):
            return name_nearest(name, self._ids, "See  toolscout list")
        return name_nearest(source, self._sources, "See  toolscout list")


def check_home(scout: Scout) -> list[str]:
    """Return sentences about callers of no use and names of nothing; if a file is invalid, only its error."""
    settings = scout.settings
    try:
        policies = Policies.load(find_policy(settings.place))
        names = [
            *list_setting_names(settings, settings.pins),
            *list_policy_names(policies.callers),
            *list_profile_names(Profiles(settings.place).all),
        ]
    except ConfigError as error:
        return [str(error)]
    return policies.explain_idle_callers() + explain_unknown(scout, names, limit=len(names))
