"""The catalogue on disk: one SQLite file with origins, sources, tools, problems and caches.

Every change is one transaction, so a process killed at any instant leaves the old or the new state of each source.
Every change raises the *generation*; a search reads it, the tools and the caches in one read transaction, so that it
never sees half of a change that another process makes.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from toolscout.catalogue import approvals
from toolscout.catalogue.approvals import Vet, Waiting
from toolscout.database import BUSY_SECONDS, Database, now
from toolscout.errors import BadEntry, NotFound, StoreError
from toolscout.types import Tool, clean

__all__ = ["Catalogue", "Changes", "Origin", "Source", "Store", "Waiting", "allows"]

MIGRATIONS: Final = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
    INSERT INTO meta VALUES ('generation', 0);
    CREATE TABLE origins (
        id INTEGER PRIMARY KEY, locator TEXT NOT NULL, kind TEXT NOT NULL, name TEXT, added_at TEXT NOT NULL);
    CREATE UNIQUE INDEX origins_by_locator ON origins (locator, ifnull(name, ''));
    CREATE TABLE sources (
        name TEXT PRIMARY KEY, origin INTEGER NOT NULL REFERENCES origins ON DELETE CASCADE, kind TEXT NOT NULL,
        state TEXT NOT NULL, message TEXT NOT NULL, enabled INTEGER NOT NULL DEFAULT 1, read_at TEXT NOT NULL);
    CREATE TABLE tools (
        id TEXT PRIMARY KEY, source TEXT NOT NULL REFERENCES sources ON DELETE CASCADE, name TEXT NOT NULL,
        fingerprint TEXT NOT NULL, body BLOB NOT NULL);
    CREATE INDEX tools_by_source ON tools (source, id, name, fingerprint);
    CREATE TABLE problems (
        source TEXT NOT NULL REFERENCES sources ON DELETE CASCADE, entry TEXT NOT NULL, message TEXT NOT NULL);
    CREATE INDEX problems_by_source ON problems (source);
    CREATE TABLE caches (key TEXT PRIMARY KEY, generation INTEGER NOT NULL, value BLOB NOT NULL);
    """,
    approvals.MIGRATION,
    approvals.REMOTE_DOCUMENTS_MIGRATION,
    approvals.FLIPS,
)
Held = TypeVar("Held")


class Origin(msgspec.Struct, frozen=True):
    """What the user added: a locator to read again at each sync. It may bring several sources. `id` 0: not yet kept."""

    locator: str
    kind: str
    name: str | None = None
    added_at: str = ""
    id: int = 0


class Source(msgspec.Struct, frozen=True, array_like=True):
    """One source as the catalogue holds it. `state` is ok, error (former tools kept) or disabled (not searched).

    `waiting` counts tools that wait for approval; they are not among `tools`.
    """

    name: str
    origin: int
    kind: str
    state: str
    message: str
    enabled: bool
    read_at: str
    tools: int
    problems: int
    waiting: int = 0


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What one reading of a source changed. `quarantined`: definitions that wait for approval since this reading."""

    source: str
    kind: str = ""
    state: str = "ok"
    message: str = ""
    new: int = 0
    changed: int = 0
    gone: int = 0
    same: int = 0
    quarantined: int = 0
    problems: tuple[tuple[str, str], ...] = ()

    @property
    def any(self) -> bool:
        """Whether the catalogue is different now."""
        return bool(self.new or self.changed or self.gone or self.quarantined)


class Catalogue:
    """An immutable snapshot of what can be searched, at one generation.

    Attributes:
        generation: the store's generation when the snapshot was taken.
        ids: ids of the tools of enabled sources, ascending.
        names: their raw names, in the same order.
        disabled: source → (why it is not searched, {casefolded name or id: id} of the tools that it would bring).
        waiting: casefolded name or id → the definitions of that name that wait for approval.
        added: source → when its origin was added, ISO 8601 and a number that orders what came in the same instant.
        first_seen: id → the same for when a tool of a pinned source was first approved.
    """

    def __init__(
        self,
        generation: int,
        rows: Iterable[tuple[str, str]],
        load: Callable[[Sequence[str] | None], list[Tool]],
        *,
        disabled: dict[str, tuple[str, dict[str, str]]] | None = None,
        waiting: Iterable[Waiting] = (),
        cache: Callable[[str], bytes | None] | None = None,
        added: Mapping[str, str] | None = None,
        first_seen: Mapping[str, str] | None = None,
    ) -> None:
        """Take (id, name) rows, `load`: ids (or None for all of this snapshot) → tools, and where caches are read."""
        ordered = sorted(rows)
        self.generation = generation
        self.ids: tuple[str, ...] = tuple(row[0] for row in ordered)
        self.names: tuple[str, ...] = tuple(row[1] for row in ordered)
        self.disabled = disabled or {}
        self.waiting: dict[str, list[Waiting]] = {}
        for each in waiting:
            for key in {each.tool.name.casefold(), each.id.casefold()}:
                self.waiting.setdefault(key, []).append(each)
        self.added: Mapping[str, str] = added or {}
        self.first_seen: Mapping[str, str] = first_seen or {}
        self.pending: dict[str, bytes] = {}
        self._load, self._cache = load, cache
        self._shared: dict[str, Any] = {}
        self._masks: dict[Callable[[Tool], bool], np.ndarray[Any, np.dtype[np.bool_]]] = {}

    @classmethod
    def of(cls, tools: Iterable[Tool], *, added: Mapping[str, str] | None = None) -> Catalogue:
        """A snapshot of tools held in memory, without a store; `added`: source → when it was added."""
        held = {tool.id: tool for tool in tools}

        def load(ids: Sequence[str] | None) -> list[Tool]:
            return [held[each] for each in (sorted(held) if ids is None else ids) if each in held]

        return cls(0, ((tool.id, tool.name) for tool in held.values()), load, added=added)

    def __len__(self) -> int:
        return len(self.ids)

    def tools(self, ids: Sequence[str] | None = None) -> list[Tool]:
        """Tools by id, in the order asked for (unknown ids are left out); None: all, ascending."""
        return self._load(ids)

    def mask(self, visible: Callable[[Tool], bool] | None) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """A boolean mask over `ids`, computed once for each predicate; None lets everything through.

        A predicate that raises on a tool hides that tool. What the store has lost since the snapshot is hidden too.
        """
        if visible is None:
            return None
        found = self._masks.get(visible)
        if found is None:
            seen = {tool.id for tool in self.tools() if allows(visible, tool)}
            found = np.fromiter((id in seen for id in self.ids), dtype=np.bool_, count=len(self.ids))
            if len(self._masks) >= 256:
                self._masks.pop(next(iter(self._masks)), None)
            self._masks[visible] = found
        return found

    def held(self, key: str, make: Callable[[], Held]) -> Held:
        """What `make` makes of this snapshot, once for all who ask under the key; nobody may change it."""
        if key not in self._shared:
            self._shared[key] = make()
        found: Held = self._shared[key]
        return found

    def cached(self, key: str, build: Callable[[], bytes]) -> bytes:
        """What `build` makes of this snapshot; the store keeps it until the generation changes (`Store.keep`)."""
        found = self._cache(key) if self._cache else None
        if found is None:
            found = self.pending[key] = build()
        return found


def _by_name(rows: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, tool_id in rows:
        found[name.casefold()] = found[tool_id.casefold()] = tool_id
    return found


def allows(visible: Callable[[Tool], bool], tool: Tool) -> bool:
    """What the predicate says of the tool; one that raises says no."""
    try:
        return bool(visible(tool))
    except Exception:
        return False


class Store(Database):
    """The catalogue file."""

    def __init__(self, home: Path, *, pin: bool = True, vet: Vet | None = None) -> None:
        """Open or create the file.

        Args:
            home: the folder that holds `catalogue.db`.
            pin: whether tools of MCP servers and of documents at URLs must stay as they were approved.
            vet: why a tool that was never approved must wait, or None; by default none must.
        """
        super().__init__(home / "catalogue.db", MIGRATIONS)
        self.pin, self.vet = pin, vet

    # --- reading

    def generation(self) -> int:
        """The number that every change raises."""
        with self.reading() as connection:
            return int(connection.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()[0])

    def catalogue(self) -> Catalogue:
        """A snapshot of the present generation. Its tools load from the store on demand."""
        with self.reading() as connection:
            generation = self.generation()
            disabled: dict[str, tuple[str, dict[str, str]]] = {}
            for source, state, message, enabled in connection.execute(
                "SELECT name, state, message, enabled FROM sources WHERE NOT enabled OR state = 'disabled'"
            ):
                why = message.removeprefix(f"{source} is ") if state == "disabled" and message else "disabled"
                names = connection.execute("SELECT name, id FROM tools WHERE source = ?", (source,))
                disabled[source] = (why if enabled else "disabled", _by_name(names))
            rows = connection.execute(
                "SELECT tools.id, tools.name FROM sources JOIN tools ON tools.source = sources.name "
                "WHERE enabled AND state != 'disabled'"
            ).fetchall()
            waiting = approvals.waiting(connection)
            added = dict(connection.execute(approvals.ADDED))
            first_seen = approvals.first_seen(connection) if self.pin else {}

        def load(ids: Sequence[str] | None) -> list[Tool]:
            return self.tools(snapshot.ids if ids is None else ids)

        def cached(key: str) -> bytes | None:
            with self.reading() as connection:
                query = "SELECT value FROM caches WHERE key = ? AND generation = ?"
                row = connection.execute(query, (key, generation)).fetchone()
                return row and bytes(row[0])

        snapshot = Catalogue(
            generation,
            rows,
            load,
            disabled=disabled,
            waiting=waiting,
            cache=cached,
            added=added,
            first_seen=first_seen,
        )
        return snapshot

    def tools(self, ids: Sequence[str]) -> list[Tool]:
        """Tools by id, in the order asked for; ids that are not there are left out."""
        decode = _DECODER.decode
        with self.reading() as connection:
            if len(ids) > 500:
                wanted = set(ids)
                rows = connection.execute("SELECT id, body FROM tools")
                held = {id: decode(body) for id, body in rows if id in wanted}
            else:
                marks = ",".join("?" * len(ids))
                rows = connection.execute(f"SELECT id, body FROM tools WHERE id IN ({marks})", tuple(ids))
                held = {id: decode(body) for id, body in rows}
        return [held[id] for id in ids if id in held]

    def tool(self, tool_id: str) -> Tool:
        """One tool.

        Raises:
            NotFound: if the catalogue has none of that id.
        """
        for tool in self.tools([tool_id]):
            return tool
        raise NotFound(f"expected the id of a tool in the catalogue, found {tool_id!r}: see  toolscout list")

    def origins(self) -> list[Origin]:
        """What the user added, in the order it was added."""
        with self.reading() as connection:
            rows = connection.execute("SELECT locator, kind, name, added_at, id FROM origins ORDER BY id")
            return [Origin(*row) for row in rows]

    def sources(self) -> list[Source]:
        """All sources, by name."""
        with self.reading() as connection:
            rows = connection.execute(
                "SELECT name, origin, kind, state, message, enabled, read_at, "
                "(SELECT count(*) FROM tools WHERE source = sources.name), "
                "(SELECT count(*) FROM problems WHERE source = sources.name), "
                "(SELECT count(*) FROM quarantine WHERE source = sources.name) FROM sources ORDER BY name"
            )
            return [msgspec.convert(row, Source, strict=False) for row in rows]

    def problems(self, source: str) -> list[tuple[str, str]]:
        """(entry, message) of each bad entry when the source was last read."""
        with self.reading() as connection:
            return connection.execute("SELECT entry, message FROM problems WHERE source = ?", (source,)).fetchall()

    def waiting(self) -> list[Waiting]:
        """The definitions that wait for approval, by id."""
        with self.reading() as connection:
            return approvals.waiting(connection)

    def page(self, source: str | None = None, after: str = "", limit: int = 100) -> list[tuple[str, str]]:
        """(id, name) of tools in ascending order of id, following `after`; of one source, or of all."""
        with self.reading() as connection:
            return connection.execute(
                "SELECT id, name FROM tools WHERE id > ? AND (? IS NULL OR source = ?) ORDER BY id LIMIT ?",
                (after, source, source, limit),
            ).fetchall()

    # --- writing

    def owner(self, source: str) -> Origin | None:
        """The origin that brought a source, if the catalogue has it."""
        with self.reading() as connection:
            row = connection.execute(
                "SELECT locator, origins.kind, origins.name, added_at, origins.id FROM origins "
                "JOIN sources ON sources.origin = origins.id WHERE sources.name = ?",
                (source,),
            ).fetchone()
            return row and Origin(*row)

    def put_source(
        self,
        origin: Origin,
        name: str,
        *,
        kind: str,
        state: str = "ok",
        message: str = "",
        tools: Iterable[Tool] = (),
        problems: Iterable[tuple[str, str]] = (),
    ) -> Changes:
        """Make the catalogue hold what a source was read to hold: one transaction, only what changed is written.

        A source in state `error` keeps the tools it had; one in state `disabled` keeps them too, unsearched. Of a tool
        whose definition waits for approval, no definition is kept, neither the new one nor the old.

        Raises:
            BadEntry: if a tool cannot be written as JSON.
        """
        bodies = {tool.id: (tool, tool.fingerprint) for tool in map(_storable, tools)}
        problems = tuple(problems)
        with self.writing() as connection:
            origin_id = _put_origin(connection, origin)
            before = connection.execute("SELECT origin, state FROM sources WHERE name = ?", (name,)).fetchone()
            held = dict(connection.execute("SELECT id, fingerprint FROM tools WHERE source = ?", (name,)))
            connection.execute(
                "INSERT INTO sources (name, origin, kind, state, message, read_at) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (name) DO UPDATE SET origin = excluded.origin, kind = excluded.kind, "
                "state = excluded.state, message = excluded.message, read_at = excluded.read_at",
                (name, origin_id, kind, state, message, now()),
            )
            connection.execute("DELETE FROM problems WHERE source = ?", (name,))
            connection.executemany("INSERT INTO problems VALUES (?, ?, ?)", ((name, *each) for each in problems))
            changes = Changes(source=name, kind=kind, state=state, message=message, same=len(held), problems=problems)
            held_back: Mapping[str, bool] = {}
            before_waiting = _waiting_ids(connection, name)
            if state == "ok":
                if self.pin and approvals.needs_approval(kind, origin.locator):
                    held_back = approvals.hold_back(connection, name, bodies, self.vet, now())
                    bodies = {id: body for id, body in bodies.items() if id not in held_back}
                else:
                    connection.execute("DELETE FROM quarantine WHERE source = ?", (name,))
                changed = [id for id, (_, mark) in bodies.items() if id in held and held[id] != mark]
                new = [id for id in bodies if id not in held]
                gone = [id for id in held if id not in bodies and id not in held_back]
                connection.executemany(
                    "DELETE FROM tools WHERE id = ?", ((id,) for id in (*gone, *held_back) if id in held)
                )
                connection.executemany(
                    "INSERT OR REPLACE INTO tools VALUES (?, ?, ?, ?, ?)",
                    (_row(name, *bodies[id]) for id in (*new, *changed)),
                )
                changes = msgspec.structs.replace(
                    changes,
                    new=len(new),
                    changed=len(changed),
                    gone=len(gone),
                    same=len(held) - len(gone) - len(changed) - sum(id in held_back for id in held),
                    quarantined=sum(held_back.values()),
                )
            released = before_waiting != _waiting_ids(connection, name)
            if changes.any or released or before is None or (before[1] == "disabled") != (state == "disabled"):
                _raise_generation(connection)
        return changes

    def set_enabled(self, source: str, enabled: bool) -> None:
        """Put a source in or out of the search without forgetting its tools."""
        with self.writing() as connection:
            found = connection.execute("UPDATE sources SET enabled = ? WHERE name = ?", (enabled, source))
            if not found.rowcount:
                raise NotFound(f"expected the name of a source, found {source!r}: see  toolscout list")
            _raise_generation(connection)

    def remove_source(self, name: str) -> int:
        """Forget a source and its tools, and its origin if that brought nothing else. Returns how many tools went."""
        with self.writing() as connection:
            (count,) = connection.execute("SELECT count(*) FROM tools WHERE source = ?", (name,)).fetchone()
            connection.execute("DELETE FROM sources WHERE name = ?", (name,))
            connection.execute("DELETE FROM origins WHERE id NOT IN (SELECT origin FROM sources)")
            _raise_generation(connection)
            return int(count)

    def approve(self, chosen: Iterable[Waiting]) -> int:
        """Take definitions that wait into the catalogue, and pin them; one that has changed meanwhile goes on waiting.

        Returns:
            How many were taken.
        """
        with self.writing() as connection:
            query = "DELETE FROM quarantine WHERE id = ? AND fingerprint = ?"
            taken = [each for each in chosen if connection.execute(query, (each.id, each.fingerprint)).rowcount]
            connection.executemany(
                "INSERT OR REPLACE INTO tools VALUES (?, ?, ?, ?, ?)",
                (_row(each.tool.source, each.tool, each.fingerprint) for each in taken),
            )
            approvals.pin(connection, [(each.tool, each.fingerprint) for each in taken], now())
            if taken:
                _raise_generation(connection)
            return len(taken)

    def remove_tools(self, ids: Sequence[str]) -> int:
        """Forget single tools. They come back at the next sync of their source if it still brings them."""
        with self.writing() as connection:
            gone = sum(connection.execute("DELETE FROM tools WHERE id = ?", (id,)).rowcount for id in ids)
            if gone:
                _raise_generation(connection)
            return gone

    def keep(self, catalogue: Catalogue) -> None:
        """Keep what was built for this snapshot, unless somebody else writes just now: it can be built again."""
        connection = self.connection
        if not catalogue.pending:
            return
        connection.execute("PRAGMA busy_timeout = 0")
        try:
            with contextlib.suppress(StoreError), self.writing() as writer:
                writer.executemany(
                    "INSERT INTO caches VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET generation = "
                    "excluded.generation, value = excluded.value WHERE caches.generation < excluded.generation",
                    [(key, catalogue.generation, value) for key, value in catalogue.pending.items()],
                )
        finally:
            connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
        catalogue.pending.clear()

    # --- health

    def check(self) -> list[str]:
        """Everything wrong with the file: SQLite's own findings, unreadable tools, fingerprints that do not match."""
        found = super().check()
        if found:
            return found
        with self.reading() as connection:
            for id, mark, body in connection.execute("SELECT id, fingerprint, body FROM tools"):
                try:
                    right = _DECODER.decode(body).fingerprint == mark
                except (msgspec.DecodeError, BadEntry) as error:
                    found.append(f"tool {id}: expected a tool, found: {error}")
                else:
                    if not right:
                        found.append(f"tool {id}: its content does not match its fingerprint {mark}")
        return found

    def repair(self) -> list[str]:
        """Drop caches and unreadable tools, rebuild the indexes. Returns what was done."""
        done = []
        bad = [line.split(":")[0].removeprefix("tool ") for line in self.check() if line.startswith("tool ")]
        with self.writing() as connection:
            for id in bad:
                connection.execute("DELETE FROM tools WHERE id = ?", (id,))
                done.append(f"dropped the damaged tool {id}: the next sync brings it back")
            connection.execute("DELETE FROM caches")
            connection.execute("REINDEX")
            _raise_generation(connection)
        return [*done, "emptied the caches and rebuilt the indexes"]


_DECODER: Final = msgspec.json.Decoder(Tool)


def _put_origin(connection: sqlite3.Connection, origin: Origin) -> int:
    """The row of that locator and name, made if it is new."""
    connection.execute(
        "INSERT OR IGNORE INTO origins (locator, kind, name, added_at) VALUES (?, ?, ?, ?)",
        (origin.locator, origin.kind, origin.name, now()),
    )
    query = "SELECT id FROM origins WHERE locator = ? AND name IS ?"
    return int(connection.execute(query, (origin.locator, origin.name)).fetchone()[0])


def _waiting_ids(connection: sqlite3.Connection, source: str) -> list[tuple[str, str]]:
    return connection.execute(
        "SELECT id, fingerprint FROM quarantine WHERE source = ? ORDER BY id", (source,)
    ).fetchall()


def _storable(tool: Tool) -> Tool:
    """The tool as it will come back from the store: `tool` itself, unless it holds what JSON cannot."""
    try:
        msgspec.json.encode(tool)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return msgspec.convert(clean(tool), Tool)
    return tool


def _row(source: str, tool: Tool, fingerprint: str) -> tuple[str, str, str, str, bytes]:
    return tool.id, source, tool.name, fingerprint, msgspec.json.encode(tool)


def _raise_generation(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'generation'")
