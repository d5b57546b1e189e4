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
    """The catalogue as callers see it, by the ids of its tools.

    Attributes:
        known_ids: all ids of the catalogue that was loaded last. They are there while a database does not answer.
    """

    def __init__(self, scout: Scout, collect_notes: Callable[[Caller], list[str]]) -> None:
        """Look tools up in a catalogue. `collect_notes`: notes for a caller on servers that start or fail."""
        self.scout, self.collect_notes = scout, collect_notes
        self.known_ids: frozenset[str] = frozenset()
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
                self.known_ids = snapshot.ids
            return snapshot

    def is_mixed(self, visible: Callable[[Tool], bool] | None, runnable: Callable[[Tool], bool]) -> bool:
        """Return whether some, but not all, of the visible tools (not skills, not agents) are in `runnable`."""
        catalogue, _ = self.load_catalogue()
        tools, runnable_tools = catalogue.mask(OfKind("tool", visible)), catalogue.mask(OfKind("tool", runnable))
        assert tools is not None and runnable_tools is not None  # there is a mask for each predicate
        return 0 < int(runnable_tools.sum()) < int(tools.sum())

    def find_tools(self, caller: Caller, ids: Iterable[str]) -> tuple[dict[str, Tool], dict[str, str]]:
        """Return the visible tools, and for every other id a sentence that does not reveal whether it exists."""
        catalogue, present = self.load_catalogue()
        tools: dict[str, Tool] = {}
        missing: dict[str, str] = {}
        for id in ids:
            visible = [tool for tool in catalogue.tools([id]) if caller.sees(tool)] if id in present else []
            if visible:
                tools[id] = visible[0]
            else:
                missing[id] = self._explain_missing(caller, catalogue, id)
        return tools, missing

    def find_for_app(self, caller: Caller, name: str) -> Tool | None:
        """Find a tool for apps alone by its id or bare name; None if not exactly one fits. No search shows it."""
        disabled = self.load_catalogue().catalogue.disabled
        ids = [id for id in self.scout.store.list_app_tools() if name in (id, _name_of(id))]
        tools = [tool for tool in self.scout.store.tools(ids) if tool.source not in disabled and caller.sees(tool)]
        return tools[0] if len(tools) == 1 else None

    def find_skills(self, caller: Caller, ids: Iterable[str]) -> dict[str, list[str]]:
        """Return tool id → ids of the visible skills that name the tool, for the tools that a skill names."""
        catalogue, _ = self.load_catalogue()
        skills = catalogue.share("skills of tools", functools.partial(_map_skills, catalogue))
        visible = {id: [skill.id for skill in skills[id] if caller.sees(skill)] for id in ids if id in skills}
        return {id: names[:MAX_NAMED_SKILLS] for id, names in visible.items() if names}

    def find_now(self, caller: Caller, id: str, generation: int | None) -> Tool | None:
        """Return a visible tool if the loaded catalogue has this generation. It is fast enough for the event loop."""
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
        shown = show.clip(show.make_plain(id), show.MAX_ID_CHARS)
        problem = f"expected the id of a tool that you may see, found {shown!r}"
        if waiting := self.find_waiting(caller, catalogue, id):
            return f"{problem}: its definition waits for approval ( toolscout approve ), because {waiting.why}"
        visible, compared = _list_visible(catalogue, caller), id[:MAX_ID_CHARS]
        siblings = _list_siblings(visible, id.partition("/")[0])
        if near := find_close(compared, siblings, cutoff=0.75):
            return f"{problem}: did you mean {near[0]!r}?"
        states = self._describe_source(caller, catalogue, id)
        if not states and (near := _find_near(compared, visible)):
            return f"{problem}: did you mean {' or '.join(map(repr, near))}?"
        return ": ".join([problem, *states, "use an id from search_tools, unchanged"])

    def _describe_source(self, caller: Caller, catalogue: Catalogue, id: str) -> list[str]:
        """Return what a caller may know of the state of an id's source: it starts, fails or is disabled."""
        source = id.partition("/")[0]
        states = [note for note in self.collect_notes(caller) if repr(source) in note]
        reason, ids_by_lower_case = catalogue.disabled.get(source, ("", {}))
        disabled_id = ids_by_lower_case.get(id.casefold(), "")
        if caller.rules is None and reason:
            states.append(f"source {source!r} is {reason}")
        elif any(caller.sees(tool) for tool in catalogue.tools([disabled_id])):  # other callers get no reason
            states.append(f"source {source!r} is disabled")
        return states

    def resolve_id(self, caller: Caller, text: str) -> str:
        """Return the id that a caller means by a text that is no id. Empty if not exactly one visible tool fits.

        The text may be the name without the source, or the id with a signature, in quotes, or as a client spells it:
        `mcp__github__create_issue` is `github/create_issue`. Upper and lower case must agree.
        """
        catalogue, _ = self.load_catalogue()
        text = text[:MAX_ID_CHARS].strip().partition("(")[0].strip(" `'\"")
        visible = _list_visible(catalogue, caller)
        spellings = {text, *(text.removeprefix(prefix) for prefix in CLIENT_PREFIXES)}
        for spelling in tuple(spellings):
            for separator in SEPARATORS:  # each one may stand where the id has its slash
                for match in re.finditer(re.escape(separator), spelling):
                    spellings.add(f"{spelling[: match.start()]}/{spelling[match.end() :]}")
        meant = {id for id in spellings if _contains(visible, id)} or {id for id in visible if _name_of(id) == text}
        return meant.pop() if len(meant) == 1 else ""

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
    for tool in catalogue.tools([id for id, named in declared.items() if named]):
        if tool.kind == "skill":
            for tool_id in declared[tool.id]:
                skills[tool_id].append(tool)
    return dict(skills)


def _name_of(id: str) -> str:
    """Return the part of an id after its source."""
    return id.partition("/")[2]


def _list_visible(catalogue: Catalogue, caller: Caller) -> Sequence[str]:
    """List the ids that a caller may see, sorted."""
    mask = catalogue.mask(caller.visible)
    return catalogue.ids if mask is None else [id for id, sees in zip(catalogue.ids, mask, strict=True) if sees]


def _list_siblings(ids: Sequence[str], source: str) -> list[str]:
    """List the first `MAX_COMPARED_IDS` ids of a source in a sorted list."""
    prefix = f"{source}/"
    first = bisect.bisect_left(ids, prefix)
    return list(itertools.takewhile(lambda id: id.startswith(prefix), ids[first : first + MAX_COMPARED_IDS]))


def _contains(ids: Sequence[str], id: str) -> bool:
    """Return whether a sorted list contains an id."""
    index = bisect.bisect_left(ids, id)
    return index < len(ids) and ids[index] == id


def _find_near(id: str, visible: Sequence[str]) -> list[str]:
    """Find the tools with the name in an id, or nearly this name, whatever their source and case."""
    name = id.rpartition("/")[2].casefold()
    names = {other: _name_of(other).casefold() for other in visible}
    same_name = [other for other in visible if names[other] == name]
    if same_name:
        return same_name[:MAX_NEAR_IDS]
    same_letter = [other for other in visible if names[other][:1] == name[:1]]
    for others in (same_letter, visible):  # a mistake in the first letter is rare, and takes more time to find
        compared = others[:MAX_COMPARED_IDS]
        near_names = find_close(name, [names[other] for other in compared], cutoff=0.75)
        if near_names:
            return [other for other in compared if names[other] in near_names][:MAX_NEAR_IDS]
    return []


# --- names in options and files ---------------------------------------------------------------------------------------


async def say_unknown_names(
    upstreams: Upstreams, pins: Sequence[str], callers: Sequence[Caller], profiles: Sequence[Profile]
) -> None:
    """Warn of pins, and of names in callers' policies and in profiles, that belong to no tool.

    It waits until all servers were read or the time for that is over. A name of a server whose tools could not be read
    may be right, so there is no warning.
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
        _log.info("Names are not checked: %s", error)  # `Upstreams` tells the user that the home does not answer
    except UserError as error:
        upstreams.host.say(str(error))
