"""Repairs a home in a folder: saves what can be read of damaged files, and reads lost tools from their sources again.

A damaged file is never deleted: it is kept beside its successor as `NAME.damaged-TIME`. An approval that may be lost is
never assumed: the tools of other people wait until they are approved again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from toolscout.errors import StoreError, UserError
from toolscout.home.catalogue.approvals import LOST, needs_approval
from toolscout.home.catalogue.store import (
    CATALOGUE_MIGRATIONS,
    ORIGINS_FILE,
    Changes,
    Origin,
    Store,
    read_origins_file,
)
from toolscout.home.catalogue.sync import CatalogueManager
from toolscout.home.database import Database, is_damage, now, salvage_file
from toolscout.home.journal.journal import DAMAGED_EVENT, JOURNAL_MIGRATIONS, Journal
from toolscout.home.models import champion
from toolscout.settings import Settings
from toolscout.sources import source_name, strip_locator

__all__ = ["repair_home"]

#: A catalogue that was begun anew counts from here, above all that a home reaches, so no older snapshot looks current.
FIRST_GENERATION: Final = 1_000_000_000


def repair_home(settings: Settings) -> Iterator[str]:
    """Repair the catalogue, the journal and the list of champions of a home, and yield a sentence for each step.

    Raises:
        StoreError: if the home cannot be written.
    """
    yield from _repair_journal(settings.home)
    yield from _repair_champion(settings.home)
    yield from _repair_catalogue(settings)


def _find_damage(path: Path, opener: type[Store] | type[Journal]) -> str | None:
    """Return the first fault that SQLite finds in a file that `opener` opens. None if the file is sound, or absent."""
    if not os.path.lexists(path):  # a link that leads nowhere is damage
        return None
    try:
        database = opener(path.parent)
    except StoreError as error:
        if is_damage(error):
            return str(error.__cause__)
        raise
    try:
        # Not `Store.check`, because damaged definitions alone need no new file.
        faults = [fault.removeprefix(f"{path}: ") for fault in Database.check(database)]
        if not faults and isinstance(database, Store):
            database.generation()  # raises if it is missing: then other rows may be missing too
    except StoreError as error:
        faults = [str(error).removeprefix(f"{path} is damaged: ")]
    finally:
        database.close()
    if not faults:
        return None
    first_fault, _, _advice = faults[0].partition("; run  ")
    return first_fault


def _repair_journal(home: Path) -> Iterator[str]:
    """Begin a damaged journal anew with the events that can be read, and delete unreadable ones. Yields what was done.

    A file can be damaged as a whole; in a sound file, single events can be.
    """
    path = home / "journal.db"
    if damage := _find_damage(path, Journal):
        salvage = salvage_file(path, JOURNAL_MIGRATIONS)
        yield (
            f"journal.db: {damage}: set aside as {salvage.aside.name}, begun anew with the {salvage.rows['events']:,} "
            "events that could be read"
        )
    if path.exists():
        with contextlib.closing(Journal(home)) as journal:
            if journal.check():
                with journal.writing() as connection:
                    count = connection.execute(f"DELETE FROM events WHERE {DAMAGED_EVENT}").rowcount
                yield f"journal.db: removed {count:,} events that cannot be read"


def _repair_champion(home: Path) -> Iterator[str]:
    """Set the file that names the promoted models aside if it is damaged. Yields what was done."""
    try:
        champion.history(home)
    except StoreError:
        file = home / champion.CHAMPION_FILE
        aside = file.with_name(f"{file.name}.damaged-{now().replace(':', '')}")
        try:
            file.rename(aside)
        except OSError as error:
            raise StoreError(f"{file} cannot be written: {error.strerror}. Check its permissions.") from None
        yield f"{champion.CHAMPION_FILE} was set aside as {aside.name}: promote a model again"


def _repair_catalogue(settings: Settings) -> Iterator[str]:
    """Begin a damaged catalogue anew with what can be read of it, and read its sources again. Yields what was done.

    If only definitions are damaged in a sound file, they are dropped (`Store.repair`). A catalogue that lacks sources
    of `ORIGINS_FILE` was lost: the file was missing, and the next command made a new one.
    """
    path = settings.home / "catalogue.db"
    damage = _find_damage(path, Store)
    if damage:
        salvage = salvage_file(path, CATALOGUE_MIGRATIONS)
        yield f"catalogue.db: {damage}: set aside as {salvage.aside.name}, begun anew"
        yield (
            f"catalogue.db: {salvage.rows['tools']:,} tools, {salvage.rows['pins']:,} approvals and "
            f"{salvage.rows['hidden']:,} hidden tools could be read; other approvals are lost"
        )
    if not path.exists() and not read_origins_file(settings.home):
        return
    manager = CatalogueManager(settings)
    with contextlib.closing(manager.store):
        is_lost = bool(manager.store.find_lost_origins())
        if is_lost and not damage:
            yield f"catalogue.db: its sources are missing: reading again what {ORIGINS_FILE} names"
        if damage or is_lost:
            _doubt_approvals(manager.store)
            yield from map(_describe, manager.sync())
            yield from _add_lost_sources(manager)
        elif manager.store.check():
            yield from manager.store.repair()
            yield from map(_describe, manager.sync())


def _doubt_approvals(store: Store) -> None:
    """Note for each source that needs approval that approvals may be lost, since nobody knows which ones were.

    The generation is raised above all earlier ones.
    """
    locators = {origin.id: origin.locator for origin in store.origins()}
    names = [source.name for source in store.sources() if needs_approval(source.kind, locators[source.origin])]
    with store.writing() as connection:
        connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, 1)", [(f"{LOST} {name}",) for name in names])
        connection.execute("DELETE FROM caches")  # they were built for the tools of the damaged file
        connection.execute(
            "INSERT INTO meta VALUES ('generation', ?) ON CONFLICT (key) DO UPDATE SET value = max(value, ?) + 1",
            (FIRST_GENERATION, FIRST_GENERATION),
        )


def _add_lost_sources(manager: CatalogueManager) -> Iterator[str]:
    """Add the sources that only `ORIGINS_FILE` still names, and yield a sentence for each."""
    store = manager.store
    # `_doubt_approvals` made a note only for sources that were still in the catalogue. Without a note, this flag makes
    # the tools of other people wait for approval.
    store.has_lost_approvals = True
    registered = {(origin.locator, origin.name) for origin in store.origins()}
    for origin in read_origins_file(manager.settings.home):
        if (origin.locator, origin.name) in registered:
            continue
        if origin.kind == "objects":  # Python objects that a program handed in; nothing on disk can be read again
            yield f"{origin.locator.partition(':')[2]}: these tools were added by a program: let it add them again"
            continue
        try:
            for change in manager.add(origin.locator, name=origin.name, kind=origin.kind):
                yield _describe(change)
                if change.state == "error":
                    _keep_unread(store, origin, change.source, change.message)
        except UserError as error:
            message = strip_locator(str(error), origin.locator)
            yield f"{origin.locator}: it is not read again: {message}"
            _keep_unread(store, origin, origin.name or source_name(Path(origin.locator).stem), message)
    store.has_lost_approvals = False
    if waiting := store.waiting():
        yield f"{len(waiting):,} definitions wait for approval: see  toolscout approve"


def _keep_unread(store: Store, origin: Origin, name: str, message: str) -> None:
    """Put a lost source that cannot be read now into the catalogue without tools, so that a later sync reads it."""
    if store.owner(name) is None:
        store.put_source(origin, name, kind=origin.kind, state="error", message=message)
        with store.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, 1)", (f"{LOST} {name}",))


def _describe(change: Changes) -> str:
    """Return a sentence with what changed when a source was read again."""
    if change.state != "ok":
        return f"{change.source}: it is not read again: {change.message}"
    counts = {"new": change.new, "changed": change.changed, "gone": change.gone}
    counts["waiting for approval"] = change.quarantined
    described = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f"{change.source}: read again: {described or 'no change'}"
