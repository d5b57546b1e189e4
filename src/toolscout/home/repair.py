"""Repairs a home in a folder: saves what can be read of damaged files, and reads lost tools from their sources again.

A damaged file is never deleted: it is kept beside its successor as `NAME.damaged-TIME`. An approval that may be lost is
never assumed: the tools of other people wait until they are approved again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from toolscout.errors import StoreError, UserError
from toolscout.home.catalogue.approvals import LOST, needs_approval
from toolscout.home.catalogue.store import CATALOGUE_MIGRATIONS, ORIGINS_FILE, Changes, Origin, Store
from toolscout.home.catalogue.sync import CatalogueManager
from toolscout.home.database import Database, is_damage, now, salvage_file
from toolscout.home.journal.journal import DAMAGED_EVENT, JOURNAL_MIGRATIONS, Journal
from toolscout.home.models import champion
from toolscout.settings import Settings

__all__ = ["repair_home"]

FIRST_GENERATION: Final = 1_000_000_000  # above what a home reaches by itself: no snapshot from before has this one


def repair_home(settings: Settings) -> Iterator[str]:
    """Repair the catalogue, the journal and the list of champions of a home, and yield a sentence for each step.

    Raises:
        StoreError: if the home cannot be written.
    """
    yield from _repair_journal(settings.home)
    yield from _repair_champion(settings.home)
    yield from _repair_catalogue(settings)


def _find_damage(path: Path, part: type[Store] | type[Journal]) -> str | None:
    """Return what SQLite finds wrong with a file; None: nothing, or the file is not there."""
    if not path.exists():
        return None
    try:
        database = part(path.parent)
    except StoreError as error:
        if is_damage(error):
            return str(error.__cause__)
        raise
    try:
        finding = next(iter(Database.check(database)), None)
        return finding and finding.removeprefix(f"{path}: ").partition("; run  ")[0]
    finally:
        database.close()


def _repair_journal(home: Path) -> Iterator[str]:
    """Set a damaged journal aside, save what can be read of it, and delete events that cannot. Yields what was done."""
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
    """Set a damaged note of the champion aside. Yields what was done."""
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
    """Set a damaged catalogue aside, save what can be read of it, and read the sources again. Yields what was done.

    Approvals that could not be read are lost, so every source that needs approval is noted as doubtful.
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
    if not path.exists():
        return
    manager = CatalogueManager(settings)
    with contextlib.closing(manager.store):
        if damage:
            _doubt_approvals(manager.store)
        elif manager.store.check():
            yield from manager.store.repair()
        else:
            return
        yield from _read_again(manager, has_lost=bool(damage))


def _doubt_approvals(store: Store) -> None:
    """Note that approvals of all sources may be lost."""
    names = [source.name for source in store.sources() if needs_approval(source.kind, _locate(store, source.origin))]
    with store.writing() as connection:
        connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, 1)", [(f"{LOST} {name}",) for name in names])
        connection.execute("DELETE FROM caches")
        connection.execute(
            "INSERT INTO meta VALUES ('generation', ?) ON CONFLICT (key) DO UPDATE SET value = max(value, ?) + 1",
            (FIRST_GENERATION, FIRST_GENERATION),
        )


def _locate(store: Store, origin_id: int) -> str:
    return next((origin.locator for origin in store.origins() if origin.id == origin_id), "")


def _read_again(manager: CatalogueManager, *, has_lost: bool) -> Iterator[str]:
    """Read the sources again: those that the catalogue has, and those that only the list of origins knows."""
    store = manager.store
    for change in manager.sync():
        yield _describe(change)
    if not has_lost:
        return
    store.has_lost_approvals = True  # of sources of which the catalogue knows nothing
    registered = {(origin.locator, origin.name) for origin in store.origins()}
    for origin in _read_origins(manager.settings.home):
        if (origin.locator, origin.name) in registered:
            continue
        if origin.kind == "objects":
            yield f"{origin.locator.partition(':')[2]}: these tools were added by a program: let it add them again"
            continue
        try:
            for change in manager.add(origin.locator, name=origin.name, kind=origin.kind):
                yield _describe(change)
        except UserError as error:
            yield f"{origin.locator}: it is not read again: {error}"
    store.has_lost_approvals = False
    if waiting := store.waiting():
        yield f"{len(waiting):,} definitions wait for approval: see  toolscout approve"


def _describe(change: Changes) -> str:
    if change.state != "ok":
        return f"{change.source}: it is not read again: {change.message}"
    counts = {"new": change.new, "changed": change.changed, "waiting for approval": change.quarantined}
    described = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f"{change.source}: read again: {described or 'no change'}"


def _read_origins(home: Path) -> list[Origin]:
    """Read the origins that are written beside the catalogue. Empty if the file is not there, or damaged too."""
    try:
        return msgspec.json.decode((home / ORIGINS_FILE).read_bytes(), type=list[Origin])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return []
