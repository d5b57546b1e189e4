"""Finds the tools that a caller names, and explains why there is none. Answers use only what the caller may see."""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import logging
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from toolscout.checks.references import explain_unknown, list_policy_names, list_profile_names, list_setting_names
from toolscout.errors import StoreError, UserError, find_close
from toolscout.home.access.profiles import Profile
from toolscout.home.catalogue.store import Catalogue, WaitingDefinition
from toolscout.search.relations.dependencies import find_dependencies
from toolscout.trust.policy import Caller
from toolscout.types import OfKind, Tool
from toolscout_gateway import text as show

if TYPE_CHECKING:
    from toolscout.scout import Scout
    from toolscout_gateway.sessions.upstreams import Upstreams

__all__ = ["Lookup", "say_unknown_names"]

MAX_COMPARED_IDS: Final = 2_000  # ids of a source that are compared with a misspelt one
MAX_ID_CHARS: Final = 500
MAX_NEAR_IDS: Final = 3
MAX_NAMED_SKILLS: Final = 5  # of one tool
MAX_KEPT_TOOLS: Final = 1_024  # tools that were looked up last
CLIENT_PREFIXES: Final = ("mcp__", "functions.", "tools.")  # that clients put before the names of tools
LISTED_POLL_S: Final = 0.2
_log: Final = logging.getLogger("toolscout.gateway.lookup")
SEPARATORS: Final = ("__", "_", ".", "::", ":", "#", "-")


class _Snapshot(NamedTuple):
    """A catalogue and the set of its ids."""

    catalogue: Catalogue
    ids: frozenset[str]


class Lookup:
    """The catalogue as callers see it, by the ids of its tools."""

    def __init__(self, scout: Scout, collect_notes: Callable[[Caller], list[str]]) -> None:
        """Look tools up in a catalogue. `collect_notes`: notes for a caller on servers that start or fail."""
        self.scout, self.collect_notes = scout, collect_notes
        self._snapshot: _Snapshot | None = None  # what was loaded last
        self._tools: dict[str, Tool] = {}  # that were looked up last, by id
        self._tools_generation = -1  # of the catalogue that they are from; -1: of none
        self._lock = threading.Lock()

    def load_catalogue(self) -> _Snapshot:
        """Load the current catalogue and its ids."""
        with self._lock:
            snapshot = self._snapshot
            if snapshot is None or snapshot.catalogue.generation != self.scout.store.generation():
                catalogue = self.scout.store.catalogue()
                snapshot = self._snapshot = _Snapshot(catalogue, frozenset(catalogue.ids))
            return snapshot

    def is_mixed(self, visible: Callable[[Tool], bool] | None, runnable: Callable[[Tool], bool]) -> bool:
        """Return whether some of the visible tools (not skills, not agents) are in `runnable`, and some are not."""
        catalogue, _ = self.load_catalogue()
        tools, can_run = catalogue.mask(OfKind("tool", visible)), catalogue.mask(OfKind("tool", runnable))
        return tools is not None and can_run is not None and 0 < int(can_run.sum()) < int(tools.sum())

    def was_listed(self, id: str) -> bool:
        """Return whether an id was in the catalogue when it was loaded last. Works while a database does not answer."""
        return self._snapshot is not None and id in self._snapshot.ids

    def find_tools(self, caller: Caller, ids: Iterable[str]) -> tuple[dict[str, Tool], dict[str, str]]:
        """Return the visible tools, and for every other id a sentence that does not reveal whether it exists."""
        catalogue, present = self.load_catalogue()
        tools: dict[str, Tool] = {}
        missing: dict[str, str] = {}
        for id in ids:
            tool = next(iter(catalogue.tools([id])), None) if id in present else None
            if tool is not None and caller.sees(tool):
                tools[id] = tool
            else:
                missing[id] = self._explain_missing(caller, catalogue, id)
        return tools, missing

    def find_for_app(self, caller: Caller, name: str) -> Tool | None:
        """Return the one visible tool of this id or bare name that only apps may use, which no search shows."""
        disabled = self.load_catalogue().catalogue.disabled
        ids = [id for id in self.scout.store.list_app_tools() if name in (id, id.partition("/")[2])]
        tools = [each for each in self.scout.store.tools(ids) if each.source not in disabled and caller.sees(each)]
        return tools[0] if len(tools) == 1 else None

    def find_skills(self, caller: Caller, ids: Iterable[str]) -> dict[str, list[str]]:
        """Return tool id → ids of the visible skills that name the tool, for the tools that a skill names."""
        catalogue, _ = self.load_catalogue()
        skills = catalogue.share("skills of tools", functools.partial(_map_skills, catalogue))
        visible = {id: [skill.id for skill in skills[id] if caller.sees(skill)] for id in ids if id in skills}
        return {id: names[:MAX_NAMED_SKILLS] for id, names in visible.items() if names}

    def find_now(self, caller: Caller, id: str, generation: int | None) -> Tool | None:
        """Return a visible tool, if the loaded catalogue is of this generation; otherwise None. It needs no thread."""
        snapshot = self._snapshot
        if snapshot is None or id not in snapshot.ids or snapshot.catalogue.generation != generation:
            return None
        if self._tools_generation != generation:
            self._tools, self._tools_generation = {}, generation
        if id not in self._tools:
            self._tools.update((tool.id, tool) for tool in snapshot.catalogue.tools([id]))
            while len(self._tools) > MAX_KEPT_TOOLS:
                del self._tools[next(iter(self._tools))]  # the oldest
        return self.recall(caller, id)

    def recall(self, caller: Caller, id: str) -> Tool | None:
        """Return a visible tool as it was looked up last, which may be older than the catalogue."""
        tool = self._tools.get(id)
        return tool if tool is not None and caller.sees(tool) else None

    def _explain_missing(self, caller: Caller, catalogue: Catalogue, id: str) -> str:
        """Explain why a caller gets no tool for an id. The sentence uses only what the caller may see."""
        what = (
            f"expected the id of a tool that you may see, found {show.clip(show.make_plain(id), show.MAX_ID_CHARS)!r}"
        )
        if waiting := self.find_waiting(caller, catalogue, id):
            return f"{what}: its definition waits for approval ( toolscout approve ), because {waiting.why}"
        source = id.partition("/")[0]
        mask = catalogue.mask(caller.visible)
        visible = catalogue.ids if mask is None else [id for id, sees in zip(catalogue.ids, mask, strict=True) if sees]
        prefix = f"{source}/"
        first = bisect.bisect_left(visible, prefix)
        siblings = list(
            itertools.takewhile(lambda id: id.startswith(prefix), visible[first : first + MAX_COMPARED_IDS])
        )
        if near := find_close(id[:MAX_ID_CHARS], siblings, cutoff=0.75):
            return f"{what}: did you mean {near[0]!r}?"
        states = [note for note in self.collect_notes(caller) if repr(source) in note]
        why, ids = catalogue.disabled.get(source, ("", {}))  # ids: in lower case → as written
        if caller.rules is None and why:
            states.append(f"source {source!r} is {why}")
        elif any(caller.sees(tool) for tool in catalogue.tools([ids.get(id.casefold(), "")])):
            states.append(f"source {source!r} is disabled")
        if not states and (near := _find_near(id[:MAX_ID_CHARS], visible)):
            return f"{what}: did you mean {' or '.join(map(repr, near))}?"
        return ": ".join([what, *states, "use an id from search_tools, unchanged"])

    def resolve_id(self, caller: Caller, text: str) -> str:
        """Return the id that a caller means by a text that is no id. Empty if not exactly one visible tool fits.

        A bare name counts if only one visible tool has it, and so do an id with its signature, in quotes, or with the
        separators that clients put in its place. Letters and case must agree.
        """
        catalogue, _ = self.load_catalogue()
        text = text[:MAX_ID_CHARS].strip().partition("(")[0].strip(" `'\"")
        mask = catalogue.mask(caller.visible)
        visible = catalogue.ids if mask is None else [id for id, sees in zip(catalogue.ids, mask, strict=True) if sees]
        spellings = {text, *(text.removeprefix(prefix) for prefix in CLIENT_PREFIXES)}
        spellings |= {
            f"{spelling[: match.start()]}/{spelling[match.end() :]}"
            for spelling in tuple(spellings)
            for separator in SEPARATORS
            for match in re.finditer(re.escape(separator), spelling)
        }
        present = {id for id in spellings if _contains(visible, id)}
        if not present:
            present = {id for id in visible if id.partition("/")[2] == text}
        return present.pop() if len(present) == 1 else ""

    def find_waiting(self, caller: Caller, catalogue: Catalogue, id: str) -> WaitingDefinition | None:
        """Find the definition that waits for approval under an id, if the caller may see it."""
        definitions = catalogue.waiting.get(id.casefold(), ())
        return next((waiting for waiting in definitions if waiting.id == id and caller.sees(waiting.tool)), None)


def _map_skills(catalogue: Catalogue) -> dict[str, list[Tool]]:
    """Return tool id → the skills that name the tool."""
    declared = {
        id: [tool_id for need in needs if need.origin == "declared" for tool_id in need.tools]
        for id, needs in find_dependencies(catalogue).items()
    }
    skills: dict[str, list[Tool]] = collections.defaultdict(list)
    for skill in catalogue.tools([id for id, named in declared.items() if named]):
        for tool_id in declared[skill.id] if skill.kind == "skill" else ():
            skills[tool_id].append(skill)
    return dict(skills)


def _contains(ids: Sequence[str], id: str) -> bool:
    """Return whether a sorted list contains an id."""
    index = bisect.bisect_left(ids, id)
    return index < len(ids) and ids[index] == id


def _find_near(id: str, visible: Sequence[str]) -> list[str]:
    """Find the tools with the name in an id, or nearly this name, whatever their source and case."""
    name = id.rpartition("/")[2].casefold()
    names = {other: other.partition("/")[2].casefold() for other in visible}
    if same := [other for other, its_name in names.items() if its_name == name]:
        return same[:MAX_NEAR_IDS]
    alike = [other for other, its_name in names.items() if its_name[:1] == name[:1]]
    for others in (alike, list(names)):  # a slip in the first letter is rare, and costs more to find
        compared = {other: names[other] for other in others[:MAX_COMPARED_IDS]}
        if near := find_close(name, list(compared.values()), cutoff=0.75):
            return [other for other, its_name in compared.items() if its_name in near][:MAX_NEAR_IDS]
    return []


# --- names in options and files ---------------------------------------------------------------------------------------


async def say_unknown_names(
    upstreams: Upstreams, pins: Sequence[str], callers: Sequence[Caller], profiles: Sequence[Profile]
) -> None:
    """Warn of names that belong to no tool, once all servers were read or the time for that is over.

    A name of a server whose tools could not be read is not judged.

    Args:
        upstreams: the servers; their `host.say` prints the warnings.
        pins: ids of pinned tools.
        callers: their patterns are checked.
        profiles: their patterns, pins and tags are checked.
    """
    import anyio

    scout = upstreams.host.scout
    await anyio.sleep(LISTED_POLL_S)  # until the task of the servers runs
    await upstreams.wait_planned()
    with anyio.move_on_after(scout.settings.mcp_timeout):
        while upstreams.list_unlisted():
            await anyio.sleep(LISTED_POLL_S)
    try:
        references = [
            *list_setting_names(scout.settings, pins),
            *list_policy_names(callers),
            *list_profile_names(profiles),
        ]
        sources = await upstreams.host.run_in_thread(scout.sources)
        awaited = set(upstreams.servers) - {source.name for source in sources if source.tools}
        explain = functools.partial(explain_unknown, scout, references, awaited)
        for sentence in await upstreams.host.run_in_thread(explain):
            upstreams.host.say(sentence)
    except StoreError as error:
        _log.info("Names are not checked: %s", error)  # what follows the home says so
    except UserError as error:
        upstreams.host.say(str(error))
