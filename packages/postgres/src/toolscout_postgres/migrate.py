"""Copies a home to another one: a folder to a database, a database to a folder, or either to its own kind.

Row ids of the journal stay, because models remember up to which row they have learned. The copy can be repeated: the
catalogue is written in one transaction, the journal continues after its last row, and a model that is there is not
copied again. At the end both homes are read and their digests compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from toolscout.errors import ConfigError, StoreError
from toolscout.home.access.live_policy import POLICY_FILE
from toolscout.home.access.profiles import PROFILE_FILE
from toolscout.home.access.vault import list_entry_names
from toolscout.home.catalogue.store import Store
from toolscout.home.database import Connection, Database, now, open_home
from toolscout.home.journal.journal import Journal
from toolscout.home.models import champion, model_store
from toolscout.home.models.champion import fetch_model, publish_model
from toolscout.location import DEFAULT_TENANT, Home, describe_home

__all__ = ["MigrationReport", "has_catalogue", "migrate_home"]

#: Table → its columns. A table comes after those that it refers to.
CATALOGUE_TABLES: Final = {
    "origins": ("id", "locator", "kind", "name", "added_at"),
    "sources": ("name", "origin", "kind", "state", "message", "enabled", "read_at"),
    "tools": ("id", "source", "name", "fingerprint", "body"),
    "problems": ("source", "entry", "message"),
    "pins": ("id", "fingerprint", "body", "approved_at"),
    "quarantine": ("id", "source", "fingerprint", "body", "since", "why"),
    "flips": ("id", "at", "fingerprint"),
    "hidden": ("id", "hidden_at"),
    "meta": ("key", "value"),
}
EVENT_TABLE: Final = ("id", "uid", "at", "event", "caller", "search_id", "body")
DOCUMENTS: Final = (
    "learn/looks.json",
    "learn/last.json",
    "learn/run.json",
    POLICY_FILE,
    PROFILE_FILE,
    champion.CHAMPION_FILE,
)
MARK_FILE: Final = "migration.json"  # in the new home until the copy is verified
COPY_BATCH_ROWS: Final = 1000


class MigrationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a home contains after a migration: numbers of tools, events, models and documents, and what to check.

    Attributes:
        documents: files such as the policy and the profiles.
        catalogue_digest: of all tools and approvals; equal in both homes.
        journal_digest: of all events; equal in both homes.
        other_tenants: tenants of the first home that were not copied.
    """

    tools: int
    events: int
    models: int
    documents: int
    catalogue_digest: str
    journal_digest: str
    other_tenants: tuple[str, ...] = ()


class _Mark(msgspec.Struct, frozen=True):
    """The content of `MARK_FILE`: which home is being copied, and when the copy began."""

    source: str
    at: str


def migrate_home(source: Home, target: Home, say: Callable[[str], None] = lambda text: None) -> MigrationReport:
    """Copy a home to an empty one, or continue a copy that was interrupted, and verify it.

    Caches, the trusted folders and the sign-ins at MCP servers belong to a machine, and are not copied.

    Args:
        source: the home to read. It is not changed. Nobody should write to it meanwhile.
        target: the home to write.
        say: called with one line of progress at a time.

    Raises:
        ConfigError: if both are the same, or the target is neither empty nor an unfinished copy of the source.
        StoreError: if a home cannot be used, or the copy differs.
    """
    if source == target:
        raise ConfigError(f"{describe_home(source)}: a home cannot be copied to itself. Name another one.")
    if not has_catalogue(source):
        raise ConfigError(f"{source} holds no catalogue. Name the folder of a home, or the address of a database.")
    with contextlib.ExitStack() as stack:
        for home in (source, target):
            stack.callback(open_home(home).close)
        old_store, new_store = stores = [
            stack.enter_context(contextlib.closing(Store(home))) for home in (source, target)
        ]
        old_journal, new_journal = journals = [
            stack.enter_context(contextlib.closing(Journal(home))) for home in (source, target)
        ]
        _begin(source, target, new_store, new_journal)
        say("copying the catalogue")
        tools = _copy_catalogue(old_store, new_store)
        say("copying the journal")
        _copy_journal(old_journal, new_journal, say)
        models = _copy_models(source, target, say)
        names = [*DOCUMENTS, *list_entry_names(source)]
        documents = sum(_copy_document(source, target, name) for name in names)
        say("comparing both homes")
        catalogue_digest = _compare("catalogue", stores, _read_catalogue)
        journal_digest = _compare("journal", journals, _read_events)
        with new_journal.reading() as connection:
            (events,) = connection.execute("SELECT count(*) FROM events").fetchone()
        open_home(target).delete_document(MARK_FILE)
    # A tenant does not see the others. `default` does: it is the first of the list, and was copied.
    is_tenant = not isinstance(source, Path) and source.tenant != DEFAULT_TENANT
    return MigrationReport(
        tools=tools,
        events=events,
        models=models,
        documents=documents,
        catalogue_digest=catalogue_digest,
        journal_digest=journal_digest,
        other_tenants=() if is_tenant else tuple(tenant.name for tenant in open_home(source).list_tenants()[1:]),
    )


def has_catalogue(home: Home) -> bool:
    """Tell whether a home can have a catalogue: for a folder, whether its file is there; for a database, always."""
    return not isinstance(home, Path) or (home / "catalogue.db").is_file()


def _begin(source: Home, target: Home, store: Store, journal: Journal) -> None:
    """Write the mark of an unfinished copy into an empty target; a target that has this mark stays as it is.

    Raises:
        ConfigError: if the target is not empty, and not an unfinished copy of the source.
    """
    try:
        mark = msgspec.json.decode(open_home(target).read_document(MARK_FILE), type=_Mark)
    except (OSError, msgspec.MsgspecError):
        mark = None
    if mark is None and not store.origins() and not journal.last() and not champion.history(target):
        open_home(target).write_document(MARK_FILE, msgspec.json.encode(_Mark(describe_home(source), now())))
    elif mark is None or mark.source != describe_home(source):
        raise ConfigError(
            f"{describe_home(target)} is not empty, and not an unfinished copy of {describe_home(source)}. Name an "
            "empty home."
        )


def _copy_catalogue(source: Store, target: Store) -> int:
    """Replace the catalogue of the target, in one transaction. Returns the number of tools."""
    with source.reading() as reader, target.writing() as writer:
        for table in reversed(CATALOGUE_TABLES):
            writer.execute(f"DELETE FROM {table}")
        writer.execute("DELETE FROM caches")
        for table, columns in CATALOGUE_TABLES.items():
            rows = map(tuple, _read_table(reader, table, columns))
            placeholders = ", ".join("?" * len(columns))
            writer.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({placeholders})", rows)
        (last,) = writer.execute("SELECT max(id) FROM origins").fetchone()
        _set_sequence(target, writer, "origins", last or 0)
        (n_tools,) = writer.execute("SELECT count(*) FROM tools").fetchone()
    return int(n_tools)


def _copy_journal(source: Journal, target: Journal, say: Callable[[str], None]) -> None:
    """Copy the events after the last one of the target, with their row ids, in batches."""
    columns, placeholders = ", ".join(EVENT_TABLE), ", ".join("?" * len(EVENT_TABLE))
    with target.reading() as connection:
        (last_id,) = connection.execute("SELECT max(id) FROM events").fetchone()
    last_copied = last_id or 0
    while True:
        with source.reading() as reader:
            rows = reader.execute(
                f"SELECT {columns} FROM events WHERE id > ? ORDER BY id LIMIT ?", (last_copied, COPY_BATCH_ROWS)
            ).fetchall()
        if not rows:
            break
        with target.writing() as writer:
            writer.executemany(f"INSERT INTO events ({columns}) VALUES ({placeholders})", rows)
        last_copied = rows[-1][0]
        say(f"copied the events up to row {last_copied:,}")
    last = source.last()  # also if events up to it were removed
    with target.writing() as writer:
        _set_sequence(target, writer, "events", last)
        if not target.dialect.is_file:
            writer.execute("UPDATE pruned SET last = ?", (last,))


def _set_sequence(database: Database, writer: Connection, table: str, last: int) -> None:
    """Let the next row id of a table be above `last`, even if the rows up to it were removed."""
    if not database.dialect.is_file:
        if last:
            sequence = f"pg_get_serial_sequence('{table}', 'id')"  # all tenants share it, so it never goes back
            writer.execute(f"SELECT setval({sequence}, greatest(?::bigint, nextval({sequence})))", (last,))
    elif table == "events":  # SQLite remembers it for tables with AUTOINCREMENT alone
        writer.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        writer.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (table, last))


def _copy_models(source: Home, target: Home, say: Callable[[str], None]) -> int:
    """Copy the models of the source that are not damaged. Returns their number.

    Raises:
        StoreError: if the champion is damaged.
    """
    n_copied = 0
    current_champion = champion.current(source)
    for folder, manifest in champion.list_models(source):
        if isinstance(manifest, str):  # why the model is damaged
            if current_champion is not None and folder.name == current_champion.name:
                raise StoreError(f"The champion cannot be copied: {manifest}")
            say(f"left out a model: {manifest}")
            continue
        copy = champion.shelf(target) / folder.name
        if not isinstance(target, Path):
            publish_model(target, folder)
            fetch_model(target, copy)  # read back, so that the copy in the database is verified
        elif not (copy / model_store.MANIFEST).is_file():
            shutil.copytree(folder, copy, dirs_exist_ok=True)
        if model_store.verify(copy).digest != manifest.digest:
            raise StoreError(f"{copy} differs from {folder}. Run the command again.")
        n_copied += 1
    return n_copied


def _copy_document(source: Home, target: Home, name: str) -> bool:
    """Copy a small file of the home if the source has it, and return whether it has."""
    try:
        content = open_home(source).read_document(name)
    except OSError:
        return False
    open_home(target).write_document(name, content)
    if open_home(target).read_document(name) != content:
        raise StoreError(f"{name} differs in {describe_home(target)}. Run the command again.")
    return True


# --- the comparison


def _compare(part: str, databases: Sequence[Any], read: Callable[[Any], Iterable[Any]]) -> str:
    """Return the digest of a part of both homes.

    Args:
        part: its name, for the message.
        databases: the part in the old home, and in the new one.
        read: yields what the digest covers.

    Raises:
        StoreError: if the digests differ.
    """
    digests = []
    for database in databases:
        digest = hashlib.blake2b(digest_size=16)
        for row in read(database):
            digest.update(msgspec.json.encode(row) + b"\n")
        digests.append(digest.hexdigest())
    (old, new), (old_digest, new_digest) = databases, digests
    if old_digest != new_digest:
        raise StoreError(
            f"The {part} in {new.label} differs from that in {old.label} ({new_digest}, not {old_digest}). "
            "Make sure that nobody writes to either, and run the command again."
        )
    return old_digest


def _read_catalogue(store: Store) -> Iterator[Any]:
    """Yield what the digest of the catalogue covers: the name of each table, followed by its rows in order."""
    with store.reading() as connection:
        for table, columns in CATALOGUE_TABLES.items():
            yield table
            yield from _read_table(connection, table, columns)


def _read_events(journal: Journal) -> Iterator[Any]:
    """Yield what the digest of the journal covers: its events in order, and the number of the last one."""
    after = 0
    while True:
        with journal.reading() as connection:
            rows = connection.execute(
                f"SELECT {', '.join(EVENT_TABLE)} FROM events WHERE id > ? ORDER BY id LIMIT ?",
                (after, COPY_BATCH_ROWS),
            ).fetchall()
        yield from rows
        if len(rows) < COPY_BATCH_ROWS:
            yield journal.last()
            return
        after = rows[-1][0]


def _read_table(connection: Connection, table: str, columns: Sequence[str]) -> Iterator[list[Any]]:
    """Yield the rows of a table, sorted, with values of the same types from SQLite and PostgreSQL."""
    names = ", ".join(columns)
    for row in connection.execute(f"SELECT {names} FROM {table} ORDER BY {names}"):
        yield [bool(value) if column == "enabled" else value for column, value in zip(columns, row, strict=True)]
