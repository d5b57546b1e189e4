"""The catalogue in its database: origins, sources, tools, problems and caches.

Every change is one transaction, so a process killed at any instant leaves the old or the new state of each source.
Every change raises the *generation*; a search reads it, the tools and the caches in one read transaction, so that it
never sees half of a change that another process makes.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from toolscout.errors import BadEntry, NotFound, StoreError
from toolscout.home.catalogue import approvals
from toolscout.home.catalogue.approvals import Vet, WaitingDefinition
from toolscout.home.catalogue.snapshot import (
    APP_ONLY,
    LAST_CACHED,
    MIN_MAPPED_TOOLS,
    SEALED,
    STAMP_KEY,
    Catalogue,
    allows,
    read_snapshot,
    read_stamp,
    seal,
)
from toolscout.home.catalogue.snapshot_files import SNAPSHOTS_FOLDER
from toolscout.home.database import Connection, Database, now
from toolscout.home.database.folder import open_home
from toolscout.location import Home, local_folder
from toolscout.trust.private_files import read_plain_file, tighten
from toolscout.types import Tool, clean

__all__ = [
    "CATALOGUE_MIGRATIONS",
    "ORIGINS_FILE",
    "Catalogue",
    "CatalogueSource",
    "Changes",
    "Origin",
    "Store",
    "WaitingDefinition",
    "allows",
    "read_origins_file",
]

CATALOGUE_MIGRATIONS: Final = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
    INSERT INTO meta VALUES ('generation', 0);
    CREATE TABLE origins (
        id INTEGER PRIMARY KEY, locator TEXT NOT NULL, kind TEXT NOT NULL, name TEXT, added_at TEXT NOT NULL);
    CREATE UNIQUE INDEX origins_by_locator ON origins (locator, ifnull(name, ''));
    CREATE TABLE sources (
        name TEXT PRIMARY KEY, origin INTEGER NOT NULL REFERENCES origins ON DELETE CASCADE, kind TEXT NOT NULL,
        state TEXT NOT NULL, message TEXT NOT NULL, enabled BOOLEAN NOT NULL DEFAULT TRUE, read_at TEXT NOT NULL);
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
    approvals.FLIPS_MIGRATION,
    "CREATE TABLE hidden (id TEXT PRIMARY KEY, hidden_at TEXT NOT NULL)",
    "",  # separates tenants in a database; a file belongs to one
)


MAX_IDS_IN_QUERY: Final = 500  # SQLite bounds the number of parameters of a statement
ORIGINS_FILE: Final = "origins.json"
#: Tables with definitions, and what messages call a row of each.
DEFINITIONS: Final = {"tools": "tool", "pins": "approved definition", "quarantine": "definition that waits"}
_log: Final = logging.getLogger("toolscout.catalogue.store")
READ_GENERATION: Final = "SELECT value FROM meta WHERE key = 'generation'"
MAX_APPROVED_OFFERS: Final = 20_000  # of one kind and one server, in the course of time
PUT_TOOL: Final = (
    "INSERT INTO tools VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET source = excluded.source, "
    "name = excluded.name, fingerprint = excluded.fingerprint, body = excluded.body"
)


Record = TypeVar("Record", bound=msgspec.Struct)


class Origin(msgspec.Struct, frozen=True):
    """An origin is a locator that the user added and each sync reads again. It may bring several sources.

    Attributes:
        locator: a file, a URL or a command.
        kind: name of the reader, such as `mcp`.
        name: name of its source as the user chose it; None: derived from the locator.
        added_at: instant, ISO 8601.
        id: 0 until the store has a row for it.
    """

    locator: str
    kind: str
    name: str | None = None
    added_at: str = ""
    id: int = 0


class CatalogueSource(msgspec.Struct, frozen=True, array_like=True):
    """One source in the catalogue.

    Attributes:
        origin: id of its `Origin`.
        kind: name of the reader, such as `mcp`.
        state: `ok`, `error` (its former tools stay) or `disabled` (its tools are not searched).
        message: why the state is not `ok`.
        enabled: whether the user lets it be searched, whatever its state.
        read_at: instant of the last reading, ISO 8601.
        tools: number of its tools in the catalogue.
        problems: number of entries that could not be read.
        waiting: number of definitions that wait for approval.
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
    """The changes that one reading of a source made.

    Attributes:
        kind: name of the reader; `state` and `message` are those of the source after the reading.
        new: number of tools that were added; `changed`, `gone` and `same` count the others.
        quarantined: number of definitions that wait for approval since this reading.
        problems: (entry, message) of each entry that could not be read.
    """

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
        """Whether the catalogue changed."""
        return bool(self.new or self.changed or self.gone or self.quarantined)


class Store(Database):
    """The catalogue of a home.

    Attributes:
        follower: called with the connection at the end of each transaction that raises the generation, to change in the
            same transaction what must stay in step with the tools, such as an index. None: nothing must.
        has_lost_approvals: whether every foreign tool without an approval waits for one, also if it is new, because its
            approval may have been lost with a damaged catalogue.
    """

    def __init__(self, home: Home, *, requires_approval: bool = True, vet: Vet | None = None) -> None:
        """Open or create the catalogue.

        Args:
            home: the folder that contains `catalogue.db`, or the address of a database.
            requires_approval: whether changed definitions from MCP servers and documents at URLs wait for approval.
            vet: returns why a tool that was never approved must wait, or None. By default no new tool waits.
        """
        super().__init__(home, "catalogue", CATALOGUE_MIGRATIONS)
        self.requires_approval, self.vet = requires_approval, vet
        self.follower: Callable[[Connection], None] | None = None
        self.has_lost_approvals = False
        self._damaged: set[str] = set()  # ids of tools that the log has named
        self._listener = open_home(home).listen()  # hears when another machine changes a shared home; else None
        tighten(local_folder(home) / ORIGINS_FILE)

    # --- reading

    def generation(self) -> int:
        """Return the generation, which every change raises.

        In a shared home, other machines announce each change. Outside of a transaction the generation announced last is
        returned without asking the database.
        """
        if self._listener and not self.in_transaction:
            announced = self._listener.hear()
            if announced is not None:
                return announced
        rows = self.ask(READ_GENERATION)
        generation = rows[0][0] if rows else None
        if not isinstance(generation, int):
            raise StoreError(f"{self.label} is damaged: it has no generation; run  toolscout doctor --repair")
        if self._listener:
            self._listener.learn(generation)
        return generation

    def generation_now(self) -> int | None:
        """Return the generation of a catalogue in a folder. None: it is in a database, which takes too long to ask."""
        return self.generation() if self.dialect.is_file else None

    @contextlib.contextmanager
    def writing(self, *, wait: bool = True) -> Iterator[Connection]:
        """Open a write transaction, as `Database.writing` does, and call `follower` if the generation changed.

        Afterwards the next read asks the database for the generation, since the listener has not heard of this change.
        """
        try:
            with super().writing(wait=wait) as connection:
                old_generation = _read_generation(connection) if self.follower else None
                yield connection
                if self.follower and _read_generation(connection) != old_generation:
                    self.follower(connection)
        finally:
            if self._listener:
                self._listener.doubt()

    def close(self) -> None:
        """Close the connections of all threads."""
        if self._listener:
            self._listener.close()
        super().close()

    def catalogue(self) -> Catalogue:
        """Return a snapshot of the present generation. Its tools load from the store on demand."""
        snapshot = read_snapshot(self, local_folder(self.home) / SNAPSHOTS_FOLDER)
        lost_origins = self.find_lost_origins()
        if lost_origins:
            _log.warning("%s", _describe_loss(self.label, lost_origins))
        return snapshot

    def tools(self, ids: Sequence[str]) -> list[Tool]:
        """Return tools in the order of `ids`, without unknown ids."""
        tools_by_id = self._read_few(ids) if len(ids) <= MAX_IDS_IN_QUERY else self._read_many(set(ids))
        return [tools_by_id[id] for id in ids if id in tools_by_id]

    def _read_few(self, ids: Sequence[str]) -> dict[str, Tool]:
        """Return id → tool of at most `MAX_IDS_IN_QUERY` ids."""
        placeholders = ",".join("?" * len(ids))
        query = f"SELECT id, fingerprint, body FROM tools WHERE id IN ({placeholders})"
        return self._decode(self.ask(query, tuple(ids)))

    def _read_many(self, ids: Collection[str]) -> dict[str, Tool]:
        """Return id → tool by reading all tools from the lowest to the highest id, without comparing fingerprints."""
        query = "SELECT id, body FROM tools WHERE id BETWEEN ? AND ?"
        with self.reading() as connection:
            rows = connection.execute(query, (min(ids), max(ids)))
            return self._decode((id, None, body) for id, body in rows if id in ids)

    def _decode(self, rows: Iterable[tuple[str, str | None, bytes]]) -> dict[str, Tool]:
        """Return id → tool, without damaged ones, which the log names once.

        Args:
            rows: (id, fingerprint, body). A fingerprint of None is not compared: a comparison takes 11 µs, which is
                too long if many tools are read.
        """
        tools: dict[str, Tool] = {}
        for id, fingerprint, body in rows:
            try:
                tool = _DECODER.decode(body)
                if tool.id != id or (fingerprint is not None and tool.fingerprint != fingerprint):
                    raise BadEntry("its content does not match its fingerprint")
                tools[id] = tool
            except (msgspec.MsgspecError, BadEntry, TypeError, UnicodeDecodeError) as error:
                if id not in self._damaged:
                    message = "%s is damaged: the tool %s is left out: %s; run  toolscout doctor --repair"
                    _log.warning(message, self.label, id, error)
                self._damaged.add(id)
        return tools

    def tools_at(self, generation: int, ids: Collection[str]) -> dict[str, Tool] | None:
        """Return id → tool for some ids, or None if the catalogue has another generation now.

        Of at most `MAX_IDS_IN_QUERY` ids, one statement reads both, so it needs no transaction.
        """
        if len(ids) > MAX_IDS_IN_QUERY:
            with self.reading():
                if self.generation() != generation:
                    return None
                listed = tuple(ids)
                starts = range(0, len(listed), MAX_IDS_IN_QUERY)
                parts = [self._read_few(listed[start : start + MAX_IDS_IN_QUERY]) for start in starts]
                return {id: tool for part in parts for id, tool in part.items()}
        placeholders = ",".join("?" * len(ids))
        rows = self.ask(
            "SELECT value, id, fingerprint, body FROM meta "
            f"LEFT JOIN tools ON id IN ({placeholders}) WHERE key = 'generation'",
            tuple(ids),
        )
        present, *_ = rows[0]
        if self._listener:
            self._listener.learn(present)
        if present != generation:
            return None
        # without any of the tools, the join has one row without an id
        return self._decode((id, fingerprint, body) for _, id, fingerprint, body in rows if id is not None)

    def tool(self, tool_id: str) -> Tool:
        """Return one tool.

        Raises:
            NotFound: if the catalogue has no tool of that id.
        """
        tools = self.tools([tool_id])
        if not tools:
            raise NotFound(f"expected the id of a tool in the catalogue, found {tool_id!r}: see  toolscout list")
        return tools[0]

    def origins(self) -> list[Origin]:
        """Return the origins in the order in which they were added."""
        with self.reading() as connection:
            return _read_origins(connection)

    def sources(self) -> list[CatalogueSource]:
        """Return all sources, by name."""
        with self.reading() as connection:
            rows = connection.execute(
                "SELECT name, origin, kind, state, message, enabled, read_at, "
                "(SELECT count(*) FROM tools WHERE source = sources.name), "
                "(SELECT count(*) FROM problems WHERE source = sources.name), "
                "(SELECT count(*) FROM quarantine WHERE source = sources.name) FROM sources ORDER BY name"
            )
            return [_convert_row(row, CatalogueSource) for row in rows]

    def problems(self, source: str) -> list[tuple[str, str]]:
        """Return (entry, message) of each bad entry in the last reading of the source."""
        with self.reading() as connection:
            return connection.execute("SELECT entry, message FROM problems WHERE source = ?", (source,)).fetchall()

    def waiting(self) -> list[WaitingDefinition]:
        """Return the definitions that wait for approval, by id."""
        with self.reading() as connection:
            return approvals.waiting(connection)

    def count_waiting(self) -> int:
        """Return how many definitions wait for approval."""
        with self.reading() as connection:
            (count,) = connection.execute("SELECT count(*) FROM quarantine").fetchone()
            return int(count)

    def page(self, source: str | None = None, after: str = "", limit: int | None = 100) -> list[tuple[str, str]]:
        """Return (id, name) of at most `limit` tools, of one source or of all, with an id after `after`, by id."""
        limit = sys.maxsize if limit is None else limit
        if source is None:
            return self.ask("SELECT id, name FROM tools WHERE id > ? ORDER BY id LIMIT ?", (after, limit))
        query = "SELECT id, name FROM tools WHERE source = ? AND id > ? ORDER BY id LIMIT ?"
        return self.ask(query, (source, after, limit))

    # --- writing

    def owner(self, source: str) -> Origin | None:
        """Return the origin that brought a source, or None if the catalogue has no such source."""
        with self.reading() as connection:
            row = connection.execute(
                "SELECT locator, origins.kind, origins.name, added_at, origins.id FROM origins "
                "JOIN sources ON sources.origin = origins.id WHERE sources.name = ?",
                (source,),
            ).fetchone()
            return _convert_row(row, Origin) if row else None

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
        """Write one reading of a source in one transaction. Only changes are written.

        A source in state `error` or `disabled` keeps its former tools. A tool with a definition that waits for approval
        leaves the catalogue: neither its new nor its old definition is searched.

        Args:
            origin: what the user added; it is stored if it is new.
            name: name of the source.
            kind: as in `CatalogueSource`.
            state: as in `CatalogueSource`.
            message: why the state is not `ok`.
            tools: all tools of the source; those that are not among them leave the catalogue.
            problems: (entry, message) of each entry that could not be read.

        Raises:
            BadEntry: if a tool cannot be written as JSON.
        """
        definitions = {tool.id: (tool, tool.fingerprint) for tool in map(_make_storable, tools)}
        with self.writing() as connection:
            for tool_id in _list_hidden(connection):
                definitions.pop(tool_id, None)
            old_origins = _read_origins(connection)
            origin_id = _put_origin(connection, origin)
            row = connection.execute("SELECT origin, state FROM sources WHERE name = ?", (name,)).fetchone()
            is_new = row is None
            old_origin_id, old_state = (None, None) if is_new else row
            fingerprints = dict(connection.execute("SELECT id, fingerprint FROM tools WHERE source = ?", (name,)))
            changes = Changes(
                source=name, kind=kind, state=state, message=message, same=len(fingerprints), problems=tuple(problems)
            )
            _put_source_row(connection, origin_id, changes)
            old_waiting = approvals.list_waiting_ids(connection, name)
            app_tools_changed = False
            if state == "ok":
                held_back = self._hold_back(connection, origin, name, kind, definitions)
                changes = _replace_tools(connection, changes, definitions, held_back, fingerprints)
                app_tools_changed = _note_app_tools(connection, name, definitions)
            waiting_changed = old_waiting != approvals.list_waiting_ids(connection, name)
            was_disabled, is_disabled = old_state == "disabled", state == "disabled"
            state_changed = is_new or was_disabled != is_disabled
            if changes.any or app_tools_changed or waiting_changed or state_changed:
                _raise_generation(connection)
            if origin_id != old_origin_id:
                self._write_origins_file(connection, old_origins)
        return changes

    def _hold_back(
        self, connection: Connection, origin: Origin, name: str, kind: str, definitions: approvals.Definitions
    ) -> Mapping[str, bool]:
        """Hold back definitions that must wait for approval. Return id → whether it waits since now, for each."""
        needs_approval = self.requires_approval and approvals.needs_approval(kind, origin.locator)
        if not needs_approval:
            # definitions may wait since the source had another origin, or the user other settings
            connection.execute("DELETE FROM quarantine WHERE source = ?", (name,))
            return {}
        key = f"{approvals.LOST} {name}"  # a repair wrote this key if the source may have lost approvals
        may_have_lost = connection.execute("DELETE FROM meta WHERE key = ?", (key,)).rowcount > 0
        if may_have_lost or self.has_lost_approvals:
            approvals.pin_placeholders(connection, definitions, now())  # makes definitions without an approval wait
        return approvals.hold_back(connection, name, definitions, self.vet, now())

    def find_lost_origins(self) -> list[Origin]:
        """Return the origins that `ORIGINS_FILE` names and the catalogue lacks, since its file was lost.

        Origins of Python objects are left out, because no repair can read them again.
        """
        if not self.dialect.is_file:
            return []
        lost_origins = _leave_out(read_origins_file(local_folder(self.home)), self.origins())
        return [origin for origin in lost_origins if origin.kind != "objects"]

    def _write_origins_file(self, connection: Connection, old_origins: Sequence[Origin]) -> None:
        """Write the origins into a small file, from which a repair builds a lost catalogue again.

        Origins that the file names and the catalogue lacked before this change stay in it: no repair has read them yet.

        Args:
            connection: of the transaction that changes the origins, so that no other change comes between.
            old_origins: the origins before the change.
        """
        if not self.dialect.is_file or self.read_only:
            return
        lost_origins = _leave_out(read_origins_file(local_folder(self.home)), old_origins)
        origins = _read_origins(connection)
        origins += _leave_out(lost_origins, origins)
        content = msgspec.json.encode([Origin(origin.locator, origin.kind, origin.name) for origin in origins])
        try:
            open_home(self.home).write_document(ORIGINS_FILE, content)
        except (OSError, StoreError) as error:
            _log.warning("%s is not written: %s", ORIGINS_FILE, error)

    def hold_back_offers(self, source: str, group: str, offers: Iterable[Tool], *, whole: bool) -> dict[str, str]:
        """Compare resources, templates or prompts of a server with the approved ones, and hold back what must wait.

        Args:
            source: name of the server's source.
            group: `resources`, `templates` or `prompts`; each definition has it in its `meta` under `approvals.OFFER`.
            offers: the definitions. They never enter the catalogue.
            whole: whether the server offers no others of the group. Others that wait for approval are then forgotten,
                because the server has taken them back.

        Returns:
            Id → why, for each definition that nobody may see before it is approved.

        Raises:
            NotFound: if something new has to be written, and the catalogue does not have the source.
        """
        definitions = {tool.id: (tool, approvals.fingerprint_definition(tool)) for tool in map(_make_storable, offers)}
        if not self.requires_approval:
            return {}
        with self.reading() as connection:
            waiting = approvals.explain_waiting(connection, source, group, definitions, whole=whole)
        if waiting is not None:  # these were compared before, so nothing has to be written
            return waiting
        with self.writing() as connection:
            if connection.execute("SELECT 1 FROM sources WHERE name = ?", (source,)).fetchone() is None:
                raise NotFound(f"The catalogue has no source {source!r}")
            n_more = MAX_APPROVED_OFFERS - approvals.count_approved(connection, source, group)
            vet = _limit_passed(self.vet, n_more)  # new definitions that it lets pass are approved, the others wait
            approvals.hold_back(connection, source, definitions, vet, now(), group=group, whole=whole)
            _raise_generation(connection)
            return approvals.explain_waiting(connection, source, group, definitions, whole=whole) or {}

    def set_enabled(self, source: str, enabled: bool) -> None:
        """Include a source in the search, or exclude it. Its tools stay in the store.

        Raises:
            NotFound: if the catalogue does not have the source.
        """
        with self.writing() as connection:
            n_updated = connection.execute("UPDATE sources SET enabled = ? WHERE name = ?", (enabled, source)).rowcount
            if not n_updated:
                raise NotFound(f"expected the name of a source, found {source!r}: see  toolscout list")
            _raise_generation(connection)

    def remove_source(self, name: str) -> int:
        """Remove a source and its tools, and its origin if it has no other source. Returns the number of tools."""
        with self.writing() as connection:
            old_origins = _read_origins(connection)
            (count,) = connection.execute("SELECT count(*) FROM tools WHERE source = ?", (name,)).fetchone()
            connection.execute("DELETE FROM sources WHERE name = ?", (name,))
            connection.execute("DELETE FROM origins WHERE id NOT IN (SELECT origin FROM sources)")
            _raise_generation(connection)
            self._write_origins_file(connection, old_origins)
        return int(count)

    def approve(self, chosen: Iterable[WaitingDefinition]) -> int:
        """Approve waiting definitions, put the tools among them into the catalogue, and return how many were approved.

        A definition that has changed since `chosen` was read continues to wait.
        """
        with self.writing() as connection:
            approved = []
            for definition in chosen:
                query = "DELETE FROM quarantine WHERE id = ? AND fingerprint = ?"
                was_waiting = connection.execute(query, (definition.id, definition.fingerprint)).rowcount > 0
                if was_waiting:
                    approved.append((definition.tool, definition.fingerprint))
            # the fingerprints of resources and prompts have a colon; see `fingerprint_definition`
            rows = [
                _build_row(tool.source, tool, fingerprint) for tool, fingerprint in approved if ":" not in fingerprint
            ]
            connection.executemany(PUT_TOOL, rows)
            approvals.record_approved(connection, approved, now())
            if approved:
                _raise_generation(connection)
            return len(approved)

    def remove_tools(self, ids: Sequence[str]) -> int:
        """Remove single tools, and return how many. The next sync of their source brings them back if it has them."""
        with self.writing() as connection:
            n_removed = sum(connection.execute("DELETE FROM tools WHERE id = ?", (id,)).rowcount for id in ids)
            if n_removed:
                _raise_generation(connection)
            return n_removed

    def list_app_tools(self) -> list[str]:
        """Return the ids of the tools that no search sees, because only apps may use them."""
        with self.reading() as connection:
            query = f"SELECT key FROM meta WHERE key LIKE '{APP_ONLY}%' ORDER BY key"
            return [key.removeprefix(APP_ONLY) for (key,) in connection.execute(query)]

    def hidden(self) -> list[str]:
        """Return the ids of the hidden tools."""
        with self.reading() as connection:
            return _list_hidden(connection)

    def hide(self, ids: Sequence[str], hide: bool = True) -> None:
        """Remove tools so that no sync brings them back. `hide=False` lets the next sync bring them back."""
        with self.writing() as connection:
            for id in ids:
                if hide:
                    connection.execute("INSERT INTO hidden VALUES (?, ?) ON CONFLICT (id) DO NOTHING", (id, now()))
                    connection.execute("DELETE FROM tools WHERE id = ?", (id,))
                    connection.execute("DELETE FROM quarantine WHERE id = ?", (id,))
                else:
                    connection.execute("DELETE FROM hidden WHERE id = ?", (id,))
            _raise_generation(connection)

    def keep(self, catalogue: Catalogue) -> None:
        """Store the values that were built for this snapshot, and remove the files of older snapshots.

        While another process is writing, the values of a small catalogue are not stored: they are soon built again. For
        a large one this waits.
        """
        if catalogue.is_outdated:  # the values were built from tools of a later generation
            catalogue.pending.clear()
        if catalogue.pending:
            with contextlib.suppress(StoreError):  # another process is writing, or the file cannot be written
                self._write_values(catalogue)
            catalogue.pending.clear()
        catalogue.replace_earlier()

    def _write_values(self, catalogue: Catalogue) -> None:
        """Write the pending values of a snapshot, except where a later generation has written its own.

        The stamp that is in the database afterwards may come from another process.
        """
        stamp = catalogue.pending.pop(STAMP_KEY, None)
        values = {SEALED + key: seal(value) for key, value in catalogue.pending.items()}
        if stamp is not None:
            values[STAMP_KEY] = stamp
        with self.writing(wait=len(catalogue) >= MIN_MAPPED_TOOLS) as connection:
            connection.executemany(
                "INSERT INTO caches VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET generation = "
                "excluded.generation, value = excluded.value WHERE caches.generation < excluded.generation",
                [(key, catalogue.generation, value) for key, value in values.items()],
            )
            row = connection.execute(LAST_CACHED, (STAMP_KEY,)).fetchone()
        catalogue.mark_known(read_stamp(row[0]) if row else "")

    # --- health

    def check(self) -> list[str]:
        """Return the defects that the engine finds, or if there are none, damaged definitions and lost origins."""
        findings = super().check()
        if findings:
            return findings
        findings = [f"{DEFINITIONS[table]} {id}: {damage}" for table, id, damage in self._find_damaged_definitions()]
        lost_origins = self.find_lost_origins()
        if lost_origins:
            findings.append(_describe_loss(self.label, lost_origins))
        return findings

    def _find_damaged_definitions(self) -> list[tuple[str, str, str]]:
        """Return (table, id, what is wrong) of definitions that are not what was written."""
        damaged = []
        with self._engine.reading() as connection:  # not `self.reading`, which calls `check` after an error
            for table in DEFINITIONS:
                for id, fingerprint, body in connection.execute(f"SELECT id, fingerprint, body FROM {table}"):
                    damage = _describe_damage(id, fingerprint, body)
                    if damage is not None:
                        damaged.append((table, id, damage))
        return damaged

    def repair(self) -> list[str]:
        """Drop caches and unreadable definitions, and rebuild the indexes. Returns one sentence for each step."""
        steps = []
        damaged = self._find_damaged_definitions()
        with self.writing() as connection:
            for table, id, _ in damaged:
                connection.execute(f"DELETE FROM {table} WHERE id = ?", (id,))
                outlook = "the next sync brings it back" if table == "tools" else "it must be approved again"
                steps.append(f"dropped the damaged {DEFINITIONS[table]} {id}: {outlook}")
                if table == "pins":  # without a placeholder, the next sync would take the tool for new and approve it
                    approvals.pin_placeholders(connection, [id], now())
                    connection.execute("DELETE FROM tools WHERE id = ?", (id,))
            connection.execute("DELETE FROM caches")
            self._engine.rebuild_indexes()
            _raise_generation(connection)
        return [*steps, "emptied the caches and rebuilt the indexes"]


_DECODER: Final = msgspec.json.Decoder(Tool)


def _describe_damage(id: str, fingerprint: str, body: bytes) -> str | None:
    """Return what is wrong with a stored definition, or None."""
    try:
        tool = _DECODER.decode(body)
        is_right = tool.id == id and approvals.fingerprint_definition(tool) == fingerprint
    except (msgspec.MsgspecError, BadEntry, TypeError, UnicodeDecodeError) as error:
        return f"its definition cannot be read: {error}"
    return None if is_right else f"its content does not match its fingerprint {fingerprint}"


def _read_origins(connection: Connection) -> list[Origin]:
    rows = connection.execute("SELECT locator, kind, name, added_at, id FROM origins ORDER BY id")
    return [_convert_row(row, Origin) for row in rows]


def _convert_row(row: Sequence[object], type_: type[Record]) -> Record:
    """Return a row as a struct with its columns in order. Flipped bits can give a value another type, or remove it."""
    is_list = type_.__struct_config__.array_like
    values = row if is_list else dict(zip(type_.__struct_fields__, row, strict=True))
    try:
        return msgspec.convert(values, type_, strict=False)
    except msgspec.ValidationError as error:
        message = (
            f"the catalogue: expected a healthy store, found a damaged row: {error}; run  toolscout doctor --repair"
        )
        raise StoreError(message) from None


def _put_origin(connection: Connection, origin: Origin) -> int:
    """Return the row id of an origin, and insert the row if it is new."""
    connection.execute(
        "INSERT INTO origins (locator, kind, name, added_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (origin.locator, origin.kind, origin.name, now()),
    )
    query = "SELECT id FROM origins WHERE locator = ? AND coalesce(name, '') = ?"
    return int(connection.execute(query, (origin.locator, origin.name or "")).fetchone()[0])


def _put_source_row(connection: Connection, origin_id: int, source: Changes) -> None:
    """Write the state and the problems of a source, and remove origins that have no source any more."""
    connection.execute(
        "INSERT INTO sources (name, origin, kind, state, message, read_at) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (name) DO UPDATE SET origin = excluded.origin, kind = excluded.kind, "
        "state = excluded.state, message = excluded.message, read_at = excluded.read_at",
        (source.source, origin_id, source.kind, source.state, source.message, now()),
    )
    connection.execute("DELETE FROM origins WHERE id NOT IN (SELECT origin FROM sources)")
    connection.execute("DELETE FROM problems WHERE source = ?", (source.source,))
    rows = [(source.source, entry, message) for entry, message in source.problems]
    connection.executemany("INSERT INTO problems VALUES (?, ?, ?)", rows)


def _replace_tools(
    connection: Connection,
    changes: Changes,
    definitions: approvals.Definitions,
    held_back: Mapping[str, bool],
    fingerprints: Mapping[str, str],
) -> Changes:
    """Write the tools of a source that do not wait, and return the changes with their numbers.

    Args:
        connection: in a write transaction.
        changes: of the source, without numbers.
        definitions: id → (tool, fingerprint), as read now.
        held_back: id → whether the definition waits since this reading, for each tool that waits for approval.
        fingerprints: id → fingerprint, of the tools that the catalogue has from the source.
    """
    served = {id: pair for id, pair in definitions.items() if id not in held_back}
    new = [id for id in served if id not in fingerprints]
    changed = [id for id, (_, fingerprint) in served.items() if id in fingerprints and fingerprints[id] != fingerprint]
    gone = [id for id in fingerprints if id not in definitions]
    withdrawn = [id for id in held_back if id in fingerprints]  # they were served until now
    connection.executemany("DELETE FROM tools WHERE id = ?", [(id,) for id in (*gone, *withdrawn)])
    connection.executemany(PUT_TOOL, [_build_row(changes.source, *served[id]) for id in (*new, *changed)])
    return msgspec.structs.replace(
        changes,
        new=len(new),
        changed=len(changed),
        gone=len(gone),
        same=len(served) - len(new) - len(changed),
        quarantined=sum(held_back.values()),
    )


def _limit_passed(vet: Vet | None, n_left: int) -> Vet:
    """Return a check like `vet` that lets at most `n_left` definitions pass, and holds back all further ones."""

    def check(tool: Tool) -> str | None:
        nonlocal n_left
        why = vet(tool) if vet else None
        if why is not None:
            return why
        if n_left <= 0:
            return "its server has offered too many in the course of time"
        n_left -= 1
        return None

    return check


def _make_storable(tool: Tool) -> Tool:
    """Return the tool as the store will return it: itself, unless it contains values that JSON cannot express."""
    try:
        msgspec.json.encode(tool)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return msgspec.convert(clean(tool), Tool)
    return tool


def _build_row(source: str, tool: Tool, fingerprint: str) -> tuple[str, str, str, str, bytes]:
    """Return the values for `PUT_TOOL`."""
    return tool.id, source, tool.name, fingerprint, msgspec.json.encode(tool)


def _note_app_tools(connection: Connection, source: str, definitions: approvals.Definitions) -> bool:
    """Store which tools of a source only apps may use, and no model. Return whether this changed something."""
    prefix = f"{APP_ONLY}{source}/"
    query = "SELECT key FROM meta WHERE substr(key, 1, ?) = ?"
    old_keys = {key for (key,) in connection.execute(query, (len(prefix), prefix))}
    keys = {f"{APP_ONLY}{id}" for id, (tool, _) in definitions.items() if not tool.is_for_model}
    connection.executemany("DELETE FROM meta WHERE key = ?", [(key,) for key in old_keys - keys])
    connection.executemany("INSERT INTO meta VALUES (?, ?)", [(key, 1) for key in keys - old_keys])
    return old_keys != keys


def _list_hidden(connection: Connection) -> list[str]:
    return [id for (id,) in connection.execute("SELECT id FROM hidden ORDER BY id")]


def read_origins_file(home: Path) -> list[Origin]:
    """Read `ORIGINS_FILE`. Empty if it is not there, or damaged."""
    try:
        return msgspec.json.decode(read_plain_file(home / ORIGINS_FILE), type=list[Origin])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return []


def _leave_out(origins: Iterable[Origin], known: Iterable[Origin]) -> list[Origin]:
    """Return the origins whose locator and name are not those of a known one."""
    known_keys = {(origin.locator, origin.name) for origin in known}
    return [origin for origin in origins if (origin.locator, origin.name) not in known_keys]


def _describe_loss(label: str, lost: Sequence[Origin]) -> str:
    sources = "a source" if len(lost) == 1 else f"{len(lost):,} sources"
    advice = f"run  toolscout doctor --repair  or, to forget what is lost, delete {ORIGINS_FILE}"
    return f"{label} lacks {sources} that {ORIGINS_FILE} names; {advice}"


def _read_generation(connection: Connection) -> int:
    return int(connection.execute(READ_GENERATION).fetchone()[0])


def _raise_generation(connection: Connection) -> None:
    connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'generation'")
