"""Finds names in settings, policies, profiles and sandboxes that no tool and no source of the catalogue has.

Such a name is no error, because its source may be added later. But nobody would notice a misspelled one: a pin that
shows nothing, or a pattern that denies nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from toolscout.access.policy import Caller, Policies, Rules
from toolscout.access.policy_file import find_policy
from toolscout.access.profiles import Profile, Profiles
from toolscout.config import Settings
from toolscout.errors import ConfigError, name_nearest
from toolscout.sandbox.servers import ANY_SOURCE, SANDBOX_FILE, read_sandboxes
from toolscout.scout import Scout

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
    sources = [source.name for source in scout.sources()]
    ids = {id for id, _ in scout.store.page(limit=None)} | {waiting.id for waiting in scout.waiting()}
    ids |= set(scout.store.hidden())
    unknown = []
    for reference in references:
        source = reference.name.partition("/")[0]
        if reference.name in ids or source in awaited or _names_something(scout, reference, sources):
            continue
        is_tool = reference.kind == "tool" or (reference.kind != "source" and source in sources)
        unknown.append((reference, is_tool))
    sentences = []
    for (place, name, kind), is_tool in unknown[:limit]:
        searched = name if is_tool else name.partition("/")[0]
        advice = name_nearest(searched, ids if is_tool else sources, "See  toolscout list")
        sentences.append(f"{place} {name!r}, but {MISSING[kind]}. {advice}")
    rest = len(unknown) - limit
    return sentences if rest <= 0 else [*sentences, f"{rest:,} more such names are in  toolscout doctor"]


def _names_something(scout: Scout, reference: Reference, sources: Sequence[str]) -> bool:
    """Tell whether a source has the name, or a pattern may match a tool. A pattern with * is judged by its source.

    A pattern that denies is read in other spellings too, as the policy does.
    """
    source, _, rest = reference.name.partition("/")
    if reference.kind in ("tool", "source"):
        return reference.kind == "source" and reference.name in sources
    if "*" in source:
        return True
    is_denial = reference.kind == "denied"
    same = [name for name in sources if name == source or (is_denial and name.casefold() == source.casefold())]
    if not same or "*" in rest:
        return bool(same)
    pattern = frozenset({reference.name})
    rules = Rules(EVERYTHING, pattern) if is_denial else Rules(pattern)
    ids = [id for name in same for id, _ in scout.store.page(name, limit=None)]
    return any(rules(tool) != is_denial for tool in scout.store.tools(ids))


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
