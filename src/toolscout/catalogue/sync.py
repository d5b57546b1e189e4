"""The catalogue of a home, before anything is searched: sources are read into it, and kept in step with the world."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from toolscout import sources
from toolscout.catalogue.approvals import needs_approval
from toolscout.catalogue.screening import vet
from toolscout.catalogue.store import Changes, Origin, Source, Store, Waiting
from toolscout.config import Settings, load_settings
from toolscout.errors import NotFound, SourceError
from toolscout.types import Tool

__all__ = ["Inventory"]


class Inventory:
    """The sources and tools of one folder; `toolscout.scout.Scout` searches them."""

    def __init__(self, home: str | Path | None = None, **settings: Any) -> None:
        """Open the catalogue in `home`, or make an empty one; see `Scout`."""
        self.settings: Settings = load_settings(home=home, **settings)
        scan = self.settings.trust_scan
        self.store = Store(self.settings.home, pin=self.settings.trust == "pin", vet=vet if scan else None)

    def add(
        self, source: str | Path | Iterable[object], *, name: str | None = None, kind: str | None = None
    ) -> list[Changes]:
        """Read a source and put its tools into the catalogue; adding it again reads it again.

        Args:
            source: a locator (`toolscout.sources.KINDS`), or objects: functions, LangChain tools, schemas as mappings.
            name: the source's name, which begins the ids of its tools; by default the reader finds one.
            kind: which reader; by default it is found out.

        Returns:
            What changed, one entry a source; bad entries are named in `problems`, a source that could not be read has
            the state `error` and a message.

        Raises:
            SourceError: if nothing could be read.
        """
        if not isinstance(source, (str, Path)):
            return self._add_objects(source, name)
        locator = _absolute(str(source))
        kind = kind or sources.detect(locator)
        origin = Origin(locator, kind, name)
        readings = sources.read(locator, name=self._name_of(origin), kind=kind, settings=self.settings)
        return list(self._take(origin, readings))

    def _name_of(self, origin: Origin) -> str | None:
        """The name under which an origin is read.

        A document of somebody else keeps the name that its first title gave: approvals and credentials go by the name
        of a source, and another title would leave them behind.
        """
        if origin.name is None and origin.kind == "openapi" and needs_approval(origin.kind, origin.locator):
            return next((source.name for source in self.brought_by(origin)), None)
        return origin.name

    def _add_objects(self, objects: Iterable[object], name: str | None) -> list[Changes]:
        from toolscout.sources.schemas import from_objects

        if not name:
            raise SourceError("expected a name for tools given as objects, found none: add(objects, name='mine')")
        reading = from_objects(sources.source_name(name), objects)
        return list(self._take(Origin(f"objects:{reading.source}", "objects"), [reading]))

    def _take(self, origin: Origin, readings: Sequence[sources.Reading]) -> Iterator[Changes]:
        for reading in readings:
            yield self.put(origin, reading)
        present = {reading.source for reading in readings}
        for source in self.brought_by(origin):
            if source.name not in present:
                gone = self.store.remove_source(source.name)
                yield Changes(source=source.name, kind=source.kind, message="no longer there", gone=gone)

    def brought_by(self, origin: Origin) -> list[Source]:
        """The sources that an origin has brought into the catalogue."""
        ids = {each.id for each in self.store.origins() if (each.locator, each.name) == (origin.locator, origin.name)}
        return [source for source in self.store.sources() if source.origin in ids]

    def put(self, origin: Origin, reading: sources.Reading) -> Changes:
        """Make the catalogue hold what a source was read to hold; a name that another origin has is an error."""
        owner = self.store.owner(reading.source)
        problems = [(problem.entry, problem.message) for problem in reading.problems]
        if owner is not None and (owner.locator, owner.name) != (origin.locator, origin.name):
            message = (
                f"expected a new source name, but {reading.source!r} is already there from {owner.locator}: "
                "give another with --name, or remove that one"
            )
            return Changes(source=reading.source, kind=reading.kind, state="error", message=message)
        return self.store.put_source(
            origin,
            reading.source,
            kind=reading.kind,
            state=reading.state,
            message=reading.message,
            tools=reading.tools,
            problems=problems,
        )

    def sync(self, names: Sequence[str] = ()) -> Iterator[Changes]:
        """Read the origins again, and yield what changed, source by source.

        What is new comes in, what changed is replaced, what is gone goes; a source that cannot be read keeps its tools.

        Args:
            names: sources whose origins to read; by default all.

        Raises:
            NotFound: for a name that is no source.
        """
        held = {source.name: source for source in self.store.sources()}
        for name in names:
            if name not in held:
                raise NotFound(f"expected the name of a source, found {name!r}; there are: {', '.join(held) or 'none'}")
        wanted = {held[name].origin for name in names}
        for origin in self.store.origins():
            if origin.kind == "objects" or (names and origin.id not in wanted):
                continue
            yield from self._sync_origin(origin)

    def _sync_origin(self, origin: Origin) -> Iterator[Changes]:
        try:
            name = self._name_of(origin)
            readings = sources.read(origin.locator, name=name, kind=origin.kind, settings=self.settings)
        except SourceError as error:
            for source in self.brought_by(origin):
                yield self.store.put_source(origin, source.name, kind=source.kind, state="error", message=str(error))
        else:
            yield from self._take(origin, readings)

    def sources(self) -> list[Source]:
        """What the catalogue holds, source by source."""
        return self.store.sources()

    def tool(self, tool_id: str) -> Tool:
        """One tool by its id.

        Raises:
            NotFound: if there is none.
        """
        return self.store.tool(tool_id)

    def remove(self, names: Sequence[str]) -> int:
        """Forget sources (by name) and single tools (by id). Returns how many tools went.

        Raises:
            NotFound: if one of them is neither; then nothing is removed.
        """
        held = {source.name for source in self.store.sources()}
        tools = [name for name in names if name not in held]
        known = {tool.id for tool in self.store.tools(tools)}
        for name in tools:
            if name not in known:
                raise NotFound(
                    f"expected the name of a source or the id of a tool, found {name!r}: see  toolscout list"
                )
        gone = sum(self.store.remove_source(name) for name in names if name in held)
        return gone + (self.store.remove_tools(tools) if tools else 0)

    def enable(self, source: str, enabled: bool = True) -> None:
        """Put a source into the search, or out of it without forgetting it."""
        self.store.set_enabled(source, enabled)

    def waiting(self, names: Sequence[str] = ()) -> list[Waiting]:
        """The definitions that wait for approval, by id.

        Args:
            names: ids of tools or names of sources; by default all.

        Raises:
            NotFound: for a name of which nothing waits.
        """
        held = self.store.waiting()
        for name in names:
            if not any(name in (each.id, each.tool.source) for each in held):
                raise NotFound(f"expected what waits for approval, found {name!r}: see  toolscout approve")
        return [each for each in held if not names or each.id in names or each.tool.source in names]

    def approve(self, chosen: Sequence[Waiting]) -> int:
        """Take definitions that wait into the catalogue, and pin them. Returns how many; see `Store.approve`."""
        return self.store.approve(chosen)

    def advice(self) -> list[str]:
        """What the user may want to know of the present catalogue, one sentence each."""
        tools = self.store.tools([id for id, _ in self.store.page(limit=-1)][:: max(1, self._size() // 500)])
        foreign = sum(_is_foreign(tool.description or tool.name) for tool in tools)
        if self.settings.encoder == "static" and foreign * 2 > len(tools):
            return [
                "most tools are not described in English: the bundled encoder knows English only, so for them only "
                "words count; a multilingual model can be set with --encoder"
            ]
        return []

    def _size(self) -> int:
        return sum(source.tools for source in self.store.sources())


def _is_foreign(text: str) -> bool:
    """Whether most letters of a text are not Latin."""
    letters = [letter for letter in text[:2000] if letter.isalpha()]
    return sum(letter > "\u024f" for letter in letters) * 2 > len(letters)


def _absolute(locator: str) -> str:
    """Paths are kept absolute, so that `sync` finds them from anywhere; other locators as they are."""
    path = Path(locator).expanduser()
    return os.path.abspath(path) if path.exists() else locator
