"""Reads sources into the catalogue and keeps the catalogue in step with them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from toolscout import sources
from toolscout.errors import NotFound, SourceError, name_nearest
from toolscout.home.catalogue.editable import is_editable
from toolscout.home.catalogue.store import CatalogueSource, Changes, Origin, Store, WaitingDefinition
from toolscout.home.database import BUSY_SECONDS, hold_lock
from toolscout.location import find_shared
from toolscout.settings import Settings
from toolscout.sources import mcp
from toolscout.sources.documents import join_server, split_server
from toolscout.sources.mcp_config import name_projects, split_project
from toolscout.sources.published import is_published, prepare
from toolscout.trust.screening import vet
from toolscout.types import Tool

__all__ = ["CatalogueManager"]

MIN_ADVICE_SAMPLE: Final = 500  # of a larger catalogue, advice looks at this to twice as many tools
MAX_LANGUAGE_CHARS: Final = 2000  # of a description, read to guess its script
LAST_LATIN_LETTER: Final = "\u024f"


class CatalogueManager:
    """Manages the sources and tools of one home.

    Attributes:
        settings: of the home.
        store: where the tools are kept.
    """

    def __init__(self, settings: Settings) -> None:
        """Open the catalogue in the home of the settings, or make an empty one.

        Raises:
            StoreError
        """
        self.settings = settings
        vet_tools = vet if settings.trust_scan else None
        self.store = Store(settings.place, requires_approval=settings.trust == "pin", vet=vet_tools)

    def add(
        self,
        source: str | Path | Iterable[object],
        *,
        name: str | None = None,
        kind: str | None = None,
        server: str = "",
    ) -> list[Changes]:
        """Read a source and put its tools into the catalogue. A second call reads the source again.

        Args:
            source: a locator (`toolscout.sources.SOURCE_KINDS`), or objects: functions, LangChain tools, or schemas as
                mappings.
            name: the source's name, with which the ids of its tools begin; by default the reader derives one. If
                another source has that name, the new one is numbered (`tools-2`); a server in a configuration file is
                not, since its name is the user's.
            kind: which reader to use; by default it is detected from the locator.
            server: address to which the operations of an OpenAPI document are sent, in place of the document's own.

        Returns:
            The changes, one entry for each source. `problems` names bad entries. A source that could not be read has
            the state `error` and a message. It stays in the catalogue, to be read again, if a configuration file
            names it, if it was read before, or if its server waits for somebody to sign in.

        Raises:
            SourceError: if nothing could be read.
        """
        if not isinstance(source, (str, Path)):
            return self._add_objects(source, name)
        if not str(source).strip():  # an empty path would be the working directory
            raise SourceError("The SOURCE is empty. Name a file, a URL or a command.")
        typed_locator, stored_server = split_server(str(source))  # a locator from the catalogue may contain a server
        # a client's configuration file may also have servers of the project in this folder, which have own locators
        locator, *project_locators = name_projects(_make_absolute(typed_locator), Path.cwd())
        changes = self._add_locator(locator, name, kind, server or stored_server)
        for project_locator in project_locators:
            changes += self._add_locator(project_locator, name, kind, "")
        return changes

    def _add_locator(self, locator: str, name: str | None, kind: str | None, server: str) -> list[Changes]:
        """Read an origin and write what it has.

        An origin that cannot be read is not added, so that a typing error leaves nothing behind. Three kinds are added
        all the same, because a later sync may read them: a local file, an origin at which a person has to sign in, and
        one that is already in the catalogue.
        """
        path, _ = split_project(locator)
        is_file = os.path.isfile(path) and not is_published(locator)
        origin = self._build_origin(locator, name, kind, server)
        source_name = self._choose_name(origin)
        readings = sources.read(origin.locator, name=source_name, kind=origin.kind, settings=self.settings)
        lists_servers = is_file and origin.kind == "mcp"
        if not lists_servers and source_name is None and self._is_name_taken(origin, readings):
            origin, readings = self._read_under_free_name(origin, readings[0].source)
        has_failed = all(reading.state == "error" and not reading.awaits_person for reading in readings)
        if has_failed and not is_file and not self.brought_by(origin):
            return [
                Changes(source=reading.source, kind=reading.kind, state="error", message=reading.message)
                for reading in readings
            ]
        return list(self._write_readings(origin, readings, may_move=True))

    def _is_name_taken(self, origin: Origin, readings: Sequence[sources.Reading]) -> bool:
        """Tell whether a single source would have the name of a source that another origin brought."""
        owner = self.store.owner(readings[0].source) if len(readings) == 1 else None
        return owner is not None and not _is_same_origin(owner, origin)

    def _read_under_free_name(self, origin: Origin, name: str) -> tuple[Origin, list[sources.Reading]]:
        """Read an origin, whose source would have a name that is taken, as if the user had numbered it: `tools-2`.

        An origin that was numbered before gets the same number again.
        """
        numbered = (msgspec.structs.replace(origin, name=f"{name}-{number}") for number in itertools.count(2))
        for candidate in numbered:
            owner = self.store.owner(candidate.name or "")
            if owner is None or _is_same_origin(owner, candidate):
                break
        readings = sources.read(candidate.locator, name=candidate.name, kind=candidate.kind, settings=self.settings)
        return candidate, readings

    def _build_origin(self, locator: str, name: str | None, kind: str | None, server: str) -> Origin:
        """Return the origin of a locator. A published server (`is_published`) is prepared so that it can be started.

        Raises:
            SourceError: if no reader understands it, or a server is given for something else than an OpenAPI document.
        """
        if kind is None and is_published(locator):
            locator, kind = str(prepare(locator, name, self.settings)), "mcp"
        kind = kind or sources.detect(locator)
        if server and kind != "openapi":
            raise SourceError(
                f"{locator}: a server's address goes with an OpenAPI document, found {kind}. Leave out --server."
            )
        return Origin(join_server(locator, server) if server else locator, kind, name)

    def _choose_name(self, origin: Origin) -> str | None:
        """Return the name under which an origin is read; None: its reader derives one.

        An OpenAPI document and a single MCP server keep the name that they got first. Approvals, credentials and the
        journal belong to the name of a source, so a new title, or a new way to derive names, must not change it.
        """
        path, _ = split_project(origin.locator)
        is_single_server = origin.kind == "mcp" and not os.path.isfile(path)
        brings_one = origin.kind == "openapi" or is_single_server
        if origin.name is None and brings_one:
            return next((source.name for source in self.brought_by(origin)), None)
        return origin.name

    def _add_objects(self, objects: Iterable[object], name: str | None) -> list[Changes]:
        """Add tools given as Python objects. They need a name, because nothing else identifies their source."""
        from toolscout.sources.schemas import read_objects

        if not name:
            raise SourceError("expected a name for tools given as objects, found none: add(objects, name='mine')")
        reading = read_objects(sources.source_name(name), objects)
        return list(self._write_readings(Origin(f"objects:{reading.source}", "objects"), [reading]))

    def _write_readings(
        self,
        origin: Origin,
        readings: Sequence[sources.Reading],
        only: frozenset[str] = frozenset(),
        *,
        may_move: bool = False,
    ) -> Iterator[Changes]:
        """Write the readings of an origin, and remove those of its sources that it has no longer.

        If the origin was read in part, `only` has the names of the sources that were read. The others stay. For
        `may_move` see `put_reading`.
        """
        for reading in readings:
            yield self.put_reading(origin, reading, may_move=may_move)
        present = {reading.source for reading in readings}
        for source in self.brought_by(origin):
            was_read = not only or source.name in only
            if was_read and source.name not in present:
                gone = self.store.remove_source(source.name)
                yield Changes(source=source.name, kind=source.kind, message="no longer there", gone=gone)

    def brought_by(self, origin: Origin) -> list[CatalogueSource]:
        """Return the sources of the catalogue that came from an origin."""
        ids = {origin_row.id for origin_row in self.store.origins() if _is_same_origin(origin_row, origin)}
        return [source for source in self.store.sources() if source.origin in ids]

    def put_reading(self, origin: Origin, reading: sources.Reading, *, may_move: bool = False) -> Changes:
        """Write one reading of a source into the catalogue. A source name that another origin has is an error.

        With `may_move`, an MCP server that moved from one configuration file to another is read from the new one from
        now on (`mcp.has_moved`). Only `add` allows this: two files with the same server would take it from each other
        in every sync.
        """
        owner = self.store.owner(reading.source)
        problems = [(problem.entry, problem.message) for problem in reading.problems]
        is_other = owner is not None and not _is_same_origin(owner, origin)
        if owner is not None and is_other and not (may_move and _has_moved(owner, origin, reading.source)):
            message = (
                f"A source called {reading.source!r} is already in the catalogue, from {owner.locator}. "
                "Give this one another name with --name (the names of several servers then begin with it), or first "
                f"run  toolscout remove {reading.source}"
            )
            return Changes(source=reading.source, kind=reading.kind, state="error", message=message)
        changes = self.store.put_source(
            origin,
            reading.source,
            kind=reading.kind,
            state=reading.state,
            message=reading.message,
            tools=reading.tools,
            problems=problems,
        )
        if owner is not None and is_other and changes.state == "ok":
            moved = f"{changes.message}; now read from {origin.locator}, not from {owner.locator}"
            return msgspec.structs.replace(changes, message=moved)
        return changes

    def sync(self, names: Sequence[str] = ()) -> Iterator[Changes]:
        """Read the origins again, and yield the changes of each source.

        New tools are added, changed tools replaced, missing tools removed. A source that cannot be read keeps its
        tools.

        Args:
            names: sources to read again; by default all. Of a file with MCP servers only these are started, of any
                other origin all sources are read.

        Raises:
            NotFound: for a name that no source has.
            StoreError: if another machine reads the sources of the same home.
        """
        home = self.settings.place
        if find_shared(home):  # two replicas would read every source twice
            refusal = f"Another `toolscout sync` is running on {home}. Wait for it to finish."
            with hold_lock(home, "sync", refusal, wait=BUSY_SECONDS if names else 0.0):
                yield from self._sync(names)
        else:
            yield from self._sync(names)

    def _sync(self, names: Sequence[str]) -> Iterator[Changes]:
        """Read the origins of some sources again, or all origins if there are no names; see `sync`."""
        sources_by_name = {source.name: source for source in self.store.sources()}
        for name in names:
            if name not in sources_by_name:
                advice = name_nearest(name, sources_by_name, f"There are: {', '.join(sources_by_name) or 'none'}")
                raise NotFound(f"expected the name of a source, found {name!r}. {advice}")
        chosen_ids = {sources_by_name[name].origin for name in names}
        for origin in self.store.origins():
            is_readable = origin.kind != "objects"  # objects were passed to `add`; there is no place to read them from
            is_chosen = not names or origin.id in chosen_ids
            if is_readable and is_chosen:
                yield from self._sync_origin(origin, frozenset(names))

    def _sync_origin(self, origin: Origin, only: frozenset[str]) -> Iterator[Changes]:
        """Read one origin and write what it has. If it cannot be read, its sources keep their tools and get the error.

        `only` names the sources to read; empty: all. Only a file of MCP servers is read in part, because each server
        has to be started. Any other origin is read as a whole, so its sources that were not found are removed.
        """
        try:
            name = self._choose_name(origin)
            readings = sources.read(origin.locator, name=name, kind=origin.kind, settings=self.settings, only=only)
        except SourceError as error:
            for source in self.brought_by(origin):
                yield self.store.put_source(origin, source.name, kind=source.kind, state="error", message=str(error))
        else:
            names_read = only if origin.kind == "mcp" else frozenset[str]()
            yield from self._write_readings(origin, readings, names_read)

    def sources(self) -> list[CatalogueSource]:
        """Return the sources of the catalogue."""
        return self.store.sources()

    def find_editable(self) -> frozenset[str]:
        """Return the names of the sources that are files of the user, such as schemas or a script of a server."""
        origins = {origin.id: origin for origin in self.store.origins()}
        return frozenset(
            source.name
            for source in self.store.sources()
            if (origin := origins[source.origin]).kind != "objects"
            and is_editable(origin.locator, origin.kind, origin.name, source.name)
        )

    def tool(self, tool_id: str) -> Tool:
        """Return one tool by its id.

        Raises:
            NotFound: if there is no such tool.
        """
        return self.store.tool(tool_id)

    def remove(self, names: Sequence[str]) -> int:
        """Remove sources (by name) and single tools (by id). Returns the number of removed tools.

        Raises:
            NotFound: if a name is neither a source nor a tool; then nothing is removed.
        """
        source_names = {source.name for source in self.store.sources()}
        tool_ids = [name for name in names if name not in source_names]
        known_ids = {tool.id for tool in self.store.tools(tool_ids)}
        for tool_id in tool_ids:
            if tool_id not in known_ids:
                raise NotFound(
                    f"expected the name of a source or the id of a tool, found {tool_id!r}: see  toolscout list"
                )
        n_removed = sum(self.store.remove_source(name) for name in names if name in source_names)
        if tool_ids:
            n_removed += self.store.remove_tools(tool_ids)
        return n_removed

    def hide(self, ids: Sequence[str]) -> None:
        """Hide tools: they are not searched, and no sync brings them back. Only `show` brings them back.

        Raises:
            NotFound: for an id that no tool of the catalogue has; then nothing is hidden.
        """
        waiting = {definition.id for definition in self.store.waiting()}
        hidden = set(self.store.hidden())
        for tool_id in set(ids) - waiting - hidden:
            self.store.tool(tool_id)  # raises NotFound for an unknown id
        self.store.hide(ids)

    def show(self, ids: Sequence[str]) -> list[Changes]:
        """Show hidden tools again, and read their sources, which brings them back. Returns the changes.

        Raises:
            NotFound: for an id that is not hidden; then nothing is changed.
        """
        hidden = self.store.hidden()
        for tool_id in ids:
            if tool_id not in hidden:
                advice = name_nearest(tool_id, hidden, "See  toolscout hide --list")
                raise NotFound(f"expected the id of a hidden tool, found {tool_id!r}. {advice}")
        self.store.hide(ids, hide=False)
        present = {source.name for source in self.store.sources()}
        names = sorted(present & {tool_id.partition("/")[0] for tool_id in ids})
        if not names:
            return []  # without names, `sync` would read all sources
        return list(self.sync(names))

    def enable(self, source: str, enabled: bool = True) -> None:
        """Include a source in the search, or exclude it. Its tools stay in the store."""
        self.store.set_enabled(source, enabled)

    def waiting(self, names: Sequence[str] = ()) -> list[WaitingDefinition]:
        """Return the definitions that wait for approval, by id.

        Args:
            names: ids of tools or names of sources; by default all.

        Raises:
            NotFound: for a name that has no waiting definition.
        """
        definitions = self.store.waiting()
        if not names:
            return definitions
        ids_and_sources = {name for definition in definitions for name in (definition.id, definition.tool.source)}
        for name in names:
            if name not in ids_and_sources:
                raise NotFound(f"Nothing called {name!r} waits for approval. To see what waits, run  toolscout approve")
        return [each for each in definitions if each.id in names or each.tool.source in names]

    def approve(self, chosen: Sequence[WaitingDefinition]) -> int:
        """Approve waiting definitions and put them into the catalogue. Returns how many; see `Store.approve`."""
        return self.store.approve(chosen)

    def advice(self) -> list[str]:
        """Return sentences of advice about the present catalogue, for the user. Looks at evenly spaced tools."""
        if self.settings.encoder != "static":
            return []
        ids = [id for id, _ in self.store.page(limit=None)]
        step = max(1, len(ids) // MIN_ADVICE_SAMPLE)
        sample = self.store.tools(ids[::step])
        n_not_latin = sum(_is_mostly_not_latin(tool.description or tool.name) for tool in sample)
        if n_not_latin <= len(sample) / 2:
            return []
        return [
            "Most tools are not described in English. The bundled encoder reads such tools less well than English "
            "ones. A multilingual model finds them better: set one with --encoder."
        ]


def _is_mostly_not_latin(text: str) -> bool:
    """Return whether most letters of a text are not Latin."""
    letters = [letter for letter in text[:MAX_LANGUAGE_CHARS] if letter.isalpha()]
    n_not_latin = sum(letter > LAST_LATIN_LETTER for letter in letters)
    return n_not_latin > len(letters) / 2


def _is_same_origin(one: Origin, other: Origin) -> bool:
    """Return whether two origins are the same document or server. The address of an API may differ."""
    one_locator, _ = split_server(one.locator)
    other_locator, _ = split_server(other.locator)
    return one_locator == other_locator and one.name == other.name


def _has_moved(owner: Origin, origin: Origin, source: str) -> bool:
    """Return whether a server of the owner's file moved to the file of another origin."""
    are_servers = owner.kind == origin.kind == "mcp" and owner.name == origin.name
    return are_servers and mcp.has_moved(source, owner.locator, origin.locator, origin.name)


def _make_absolute(locator: str) -> str:
    """Make a path, or the path in `PREFIX:PATH` of a plug-in, absolute, so that `sync` finds it from any folder."""
    path = os.path.expanduser(locator)
    if os.path.exists(path):
        return os.path.abspath(path)
    prefix, _, plugin_locator = locator.partition(":")
    plugin_path = os.path.expanduser(plugin_locator)
    if plugin_path and os.path.exists(plugin_path) and sources.plugin_prefix(locator):
        return f"{prefix}:{os.path.abspath(plugin_path)}"
    return locator
