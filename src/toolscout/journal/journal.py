"""The journal records searches, the tools shown, the calls made and their outcome, in an SQLite file of its own.

Because the file is separate, an event never waits for a change of the catalogue. An event is written when the call
returns, and survives a crash of the process. Only `prune` and the setting `journal_keep_days` remove events.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.database import BUSY_SECONDS, Database, now
from toolscout.errors import SourceError, StoreError
from toolscout.privacy.redaction import redact
from toolscout.types import clean, digest

__all__ = ["EVENTS", "MAX_SEARCH_EVENTS", "SCHEMA", "Imported", "Journal", "Pruned", "Trail", "new_id", "redact"]

SCHEMA: Final = 1
EVENTS: Final[dict[str, dict[str, type]]] = {
    "search": {"search_id": str, "query": str, "shown": list},
    "call": {"tool": str, "ok": bool},
    "feedback": {"search_id": str},
}
MAX_SEARCH_EVENTS: Final = 200  # of one search, that callers may bring
MAX_NAMED_LINES: Final = 100  # bad lines of an import that are named
EVENTS_PER_READ: Final = 500  # lines of an import that are held in memory
ID_FIELDS: Final = {"search": ("shown",), "feedback": ("good", "bad")}  # fields that list ids of tools
JOURNAL_MIGRATIONS: Final = (
    """
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, at TEXT NOT NULL, event TEXT NOT NULL, caller TEXT NOT NULL,
        search_id TEXT, body TEXT NOT NULL);
    CREATE INDEX events_by_search ON events (search_id);
    """,
    # Row ids are never reused after events are removed: models remember up to which row they have learned.
    """
    CREATE TABLE numbered (
        id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE, at TEXT NOT NULL, event TEXT NOT NULL,
        caller TEXT NOT NULL, search_id TEXT, body TEXT NOT NULL);
    INSERT INTO numbered SELECT id, uid, at, event, caller, search_id, body FROM events;
    DROP TABLE events;
    ALTER TABLE numbered RENAME TO events;
    CREATE INDEX events_by_search ON events (search_id);
    CREATE INDEX events_by_time ON events (at);
    """,
)
_INSERT: Final = "INSERT OR IGNORE INTO events (uid, at, event, caller, search_id, body)"
VACUUM_WAIT_S: Final = 5.0  # a prune waits so long for readers; otherwise the next prune compacts the file
_log: Final = logging.getLogger("toolscout.journal.journal")


class Trail(NamedTuple):
    """A search and its outcome: the row id of the search, and all events of that search id, in order."""

    row: int
    events: list[dict[str, Any]]


class Imported(NamedTuple):
    """The result of an import: number of new events, (line, message) of the first bad lines, number of bad lines."""

    new: int
    problems: list[tuple[str, str]]
    bad: int


class Pruned(NamedTuple):
    """The result of a prune.

    Attributes:
        removed: number of removed events.
        undated: number of events that stay because their time cannot be read; they come from imports.
        compacted: whether the file was rewritten; False: others were using it, and the next prune will do it.
    """

    removed: int
    undated: int
    compacted: bool


def new_id() -> str:
    """Return a new identifier for a search."""
    return uuid.uuid4().hex


class Journal(Database):
    """The journal file."""

    def __init__(self, home: Path, *, queries: str = "full", personal: bool = False, keep_days: float = 0.0) -> None:
        """Open or create the file, and remove events older than `keep_days`.

        Args:
            home: the folder that holds `journal.db`.
            queries: how the text of a query is written: `full` (credentials redacted), `hash` or `none`.
            personal: whether e-mail addresses and telephone numbers are redacted too.
            keep_days: how long events stay, in days; 0: for ever.
        """
        super().__init__(home / "journal.db", JOURNAL_MIGRATIONS)
        self.queries, self.personal = queries, personal
        if keep_days and not self.read_only:
            try:
                self._delete_older(_instant(keep_days))
            except StoreError as error:
                _log.warning("Events older than %g days were not removed: %s", keep_days, error)

    def pragmas(self) -> tuple[str, ...]:
        """Return a setting that overwrites removed queries with zeros, so that free pages keep nothing of them."""
        return ("secure_delete = ON",)

    def prune(self, days: float) -> Pruned:
        """Remove the events older than `days`, and every trace of them in the file.

        Raises:
            StoreError: if the file cannot be written.
        """
        removed = self._delete_older(_instant(days))
        with self.reading() as connection:
            (undated,) = connection.execute("SELECT count(*) FROM events WHERE julianday(at) IS NULL").fetchone()
        return Pruned(removed, int(undated), self._compact())

    def _delete_older(self, instant: str) -> int:
        """Remove events before an instant. The text index preselects; UTC offsets shift times by a day at most."""
        next_day = (datetime.fromisoformat(instant) + timedelta(days=1)).isoformat()
        where = "at < ? AND julianday(at) < julianday(?)"
        with self.reading() as connection:
            if (
                connection.execute(f"SELECT 1 FROM events WHERE {where} LIMIT 1", (next_day, instant)).fetchone()
                is None
            ):
                return 0
        with self.writing() as connection:
            removed = connection.execute(f"DELETE FROM events WHERE {where}", (next_day, instant)).rowcount
        self._empty_log()
        return removed

    def _compact(self) -> bool:
        """Rewrite the file without free pages. Returns False if others were using it all the time."""
        connection = self.connection
        connection.execute(f"PRAGMA busy_timeout = {int(VACUUM_WAIT_S * 1000)}")
        try:
            connection.execute("VACUUM")
            return self._empty_log()
        except sqlite3.OperationalError as error:
            _log.warning("%s was not compacted: %s", self.path, error)
            return False
        finally:
            connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")

    def _empty_log(self) -> bool:
        """Empty the write-ahead log, which has former pages, into the file. Returns False if others are reading it."""
        with self.errors():
            (busy, _, _) = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    def append(self, event: str, *, caller: str = "local", at: str | None = None, **fields: Any) -> None:
        """Write one event; docs/reference/formats.md names the `fields`. Unknown fields are written too."""
        self.append_all([(event, caller, fields)], at=at)

    def append_all(self, events: Iterable[tuple[str, str, Mapping[str, Any]]], *, at: str | None = None) -> None:
        """Write (event, caller, fields) rows in one transaction."""
        moment = at or now()
        rows = [
            (new_id(), moment, event, caller, fields.get("search_id"), _encode(self._protect(event, fields)))
            for event, caller, fields in events
        ]
        with self.writing() as connection:
            connection.executemany(f"{_INSERT} VALUES (?, ?, ?, ?, ?, ?)", rows)

    def _protect(self, event: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        protected = dict(fields)
        if event == "search" and isinstance(protected.get("query"), str):
            if self.queries == "none":
                protected["query"] = ""
            elif self.queries == "hash":
                protected["query"] = (
                    "blake2b:" + hashlib.blake2b(protected["query"].encode(), digest_size=16).hexdigest()
                )
            else:
                protected["query"] = redact(protected["query"], personal=self.personal)
        return protected

    def read(self, *, event: str | None = None, after: int = 0, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield events in the order of writing, as export lines; at most `limit`, with a row id above `after`."""
        query = (
            "SELECT id, uid, at, event, caller, body FROM events WHERE id > ? AND (? IS NULL OR event = ?) "
            "ORDER BY id LIMIT ?"
        )
        left = limit
        while left is None or left > 0:
            size = 1000 if left is None else min(1000, left)
            with self.reading() as connection:
                rows = connection.execute(query, (after, event, event, size)).fetchall()
            for row in rows:
                yield _line(*row[1:])
            after = rows[-1][0] if rows else after
            if len(rows) < size:
                return
            left = None if left is None else left - size

    def search(self, search_id: str) -> dict[str, Any] | None:
        """Return the search of that id, without its calls and feedback; None: there is none."""
        with self.reading() as connection:
            row = connection.execute(
                "SELECT uid, at, event, caller, body FROM events WHERE search_id = ? AND event = 'search' "
                "ORDER BY id LIMIT 1",
                (search_id,),
            ).fetchone()
        return None if row is None else _line(*row)

    def is_full(self, search_id: str) -> bool:
        """Return whether a search has as many events as callers may add. Imported events count but are not refused."""
        with self.reading() as connection:
            events = connection.execute(
                "SELECT 1 FROM events WHERE search_id = ? LIMIT ?", (search_id, MAX_SEARCH_EVENTS)
            )
            return len(events.fetchall()) >= MAX_SEARCH_EVENTS

    def find(self, search_id: str) -> list[dict[str, Any]]:
        """Return all events of one search."""
        with self.reading() as connection:
            rows = connection.execute(
                "SELECT uid, at, event, caller, body FROM events WHERE search_id = ? ORDER BY id",
                (search_id,),
            ).fetchall()
        return [_line(*row) for row in rows]

    def page(
        self,
        *,
        event: str | None = None,
        caller: str | None = None,
        search_id: str | None = None,
        text: str | None = None,
        tools: bool = True,
        since: str | None = None,
        until: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Return events that pass all filters, newest first.

        Args:
            event: kind of event.
            caller: name of the caller.
            search_id: id of the search.
            text: part of a query or of the id of a called tool; the case of ASCII letters is ignored.
            tools: whether `text` is also looked for in the ids of called tools.
            since: instant, included.
            until: instant, excluded.
            before: the second value that the previous page returned.
            limit: the most events to return.

        Returns:
            The events, and the value of `before` for the next page; None: there are no more.
        """
        like = None if text is None else "%" + re.sub(r"([\\%_])", r"\\\1", text) + "%"
        filters = {"id < ?": before, "event = ?": event, "caller = ?": caller, "search_id = ?": search_id}
        filters |= {"at >= ?": since, "at < ?": until}
        looked_at = "json_extract(body, '$.query')"
        if tools:
            looked_at = f"coalesce({looked_at}, json_extract(body, '$.tool'))"
        filters[f"{looked_at} LIKE ? ESCAPE '\\'"] = like
        active = {condition: value for condition, value in filters.items() if value is not None}
        where = " AND ".join(active) or "TRUE"
        with self.reading() as connection:
            rows = connection.execute(
                f"SELECT id, uid, at, event, caller, body FROM events WHERE {where} ORDER BY id DESC LIMIT ?",
                (*active.values(), limit + 1),
            ).fetchall()
        return [_line(*row[1:]) for row in rows[:limit]], rows[limit - 1][0] if len(rows) > limit else None

    def last(self) -> int:
        """Row id of the newest event that there ever was; 0: there was none."""
        with self.reading() as connection:
            row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
            return int(row[0]) if row else 0

    def trails(self, *, after: int = 0, until: int | None = None) -> Iterator[Trail]:
        """Yield searches with a later call or feedback, the newest first, each with all its events.

        Args:
            after: searches with a row id above this.
            until: events with a row id up to this; None: all events that exist at the start.
        """
        until = self.last() if until is None else until
        before = until + 1
        while True:
            with self.reading() as connection:
                rows = connection.execute(
                    "SELECT id, search_id FROM events AS search WHERE event = 'search' AND id > ? AND id < ? "
                    "AND EXISTS (SELECT 1 FROM events WHERE search_id = search.search_id AND event <> 'search' "
                    "AND id <= ?) "
                    "ORDER BY id DESC LIMIT 500",
                    (after, before, until),
                ).fetchall()
                trails = self._trails(connection, rows, until)
            yield from trails
            if len(rows) < 500:
                return
            before = rows[-1][0]

    def trails_since(self, row: int, *, until: int) -> list[Trail]:
        """The newest 500 searches of which an event came after row id `row`, up to `until`, as in `trails`; the oldest
        first.
        """
        with self.reading() as connection:
            rows = connection.execute(
                "SELECT id, search_id FROM events AS search WHERE event = 'search' AND id <= ? AND search_id IN "
                "(SELECT search_id FROM events WHERE id > ? AND id <= ?) "
                "AND EXISTS (SELECT 1 FROM events WHERE search_id = search.search_id AND event <> 'search' "
                "AND id <= ?) ORDER BY id DESC LIMIT 500",
                (until, row, until, until),
            ).fetchall()
            return self._trails(connection, rows[::-1], until)

    def trails_at(self, rows: Sequence[int], *, until: int) -> Iterator[Trail]:
        """Yield the searches of these row ids, each with its events up to `until`."""
        for start in range(0, len(rows), 500):
            piece = rows[start : start + 500]
            with self.reading() as connection:
                marks = ",".join("?" * len(piece))
                matches = connection.execute(
                    f"SELECT id, search_id FROM events WHERE id IN ({marks}) ORDER BY id", piece
                )
                trails = self._trails(connection, matches.fetchall(), until)
            yield from trails

    def _trails(self, connection: sqlite3.Connection, rows: Sequence[tuple[int, str]], until: int) -> list[Trail]:
        marks = ",".join("?" * len(rows))
        events = connection.execute(
            f"SELECT search_id, uid, at, event, caller, body FROM events WHERE search_id IN ({marks}) AND id <= ? "
            "ORDER BY id",
            (*(search_id for _, search_id in rows), until),
        )
        events_of: dict[str, list[dict[str, Any]]] = {}
        for search_id, *fields in events:
            events_of.setdefault(search_id, []).append(_line(*fields))
        return [Trail(row, events_of[search_id]) for row, search_id in rows]

    def stats(self) -> dict[str, Any]:
        """Return counts by event, first and last instant, callers, and searches with a later successful call."""
        with self.reading() as connection:
            counts = dict(connection.execute("SELECT event, count(*) FROM events GROUP BY event"))
            first, last, callers = connection.execute(
                "SELECT min(at), max(at), count(DISTINCT caller) FROM events"
            ).fetchone()
            (served,) = connection.execute(
                "SELECT count(DISTINCT search_id) FROM events WHERE event = 'call' AND search_id IS NOT NULL "
                "AND json_extract(body, '$.ok') = 1"
            ).fetchone()
        return {
            "events": {name: counts.get(name, 0) for name in EVENTS} | counts,
            "first": first,
            "last": last,
            "callers": callers,
            "searches_followed_by_a_successful_call": served,
        }

    def export(self) -> Iterator[bytes]:
        """Yield the lines of an export."""
        for line in self.read():
            yield msgspec.json.encode(line) + b"\n"

    def import_lines(self, lines: Iterable[bytes]) -> Imported:
        """Import the lines of an export. Texts stay as they are; known events are not written twice.

        All events are written together, or none if reading fails. Until then they are in a temporary table, so that
        memory use stays small and others can write.
        """
        problems: list[tuple[str, str]] = []
        bad = 0
        with self._waiting() as connection:

            def copy(line: bytes) -> int:
                key = hashlib.blake2b(line, digest_size=16).digest()
                connection.execute("INSERT INTO copies VALUES (?, 1) ON CONFLICT DO UPDATE SET n = n + 1", (key,))
                return int(connection.execute("SELECT n FROM copies WHERE line = ?", (key,)).fetchone()[0])

            numbered = enumerate(lines, 1)
            with self.reading():  # of the temporary tables alone
                while piece := list(itertools.islice(numbered, EVENTS_PER_READ)):
                    rows = []
                    for number, line in piece:
                        try:
                            rows += [_event(line, copy)] if line.strip() else []
                        except SourceError as error:
                            bad += 1
                            problems += [(f"line {number}", str(error))] if bad <= MAX_NAMED_LINES else []
                    connection.executemany("INSERT INTO waiting VALUES (?, ?, ?, ?, ?, ?)", rows)
            with self.writing():
                new = connection.execute(f"{_INSERT} SELECT * FROM waiting ORDER BY rowid").rowcount
        return Imported(new, problems, bad)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[sqlite3.Connection]:
        """Open temporary tables for the rows of an import, and for the count of each line."""
        connection = self.connection
        with self.errors():
            connection.execute("CREATE TEMP TABLE waiting (uid, at, event, caller, search_id, body)")
            connection.execute("CREATE TEMP TABLE copies (line PRIMARY KEY, n) WITHOUT ROWID")
        try:
            yield connection
        finally:
            with self.errors():
                connection.execute("DROP TABLE temp.waiting")
                connection.execute("DROP TABLE temp.copies")


def _instant(days: float) -> str:
    """Return the instant `days` ago, UTC; or nearly the first one that Python knows, if that is earlier."""
    try:
        moment = datetime.now(timezone.utc) - timedelta(days=days)
    except OverflowError:
        moment = datetime.min.replace(tzinfo=timezone.utc) + timedelta(days=1)
    return moment.isoformat()


def _line(uid: str, at: str, event: str, caller: str, body: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "uid": uid,
        "at": at,
        "event": event,
        "caller": caller,
        **msgspec.json.decode(body),
    }


def _encode(fields: Mapping[str, Any]) -> str:
    return msgspec.json.encode(clean(dict(fields))).decode()


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _check_fields(event: str, value: Mapping[str, Any]) -> None:
    """Refuse an event without its required fields, or with fields of the wrong type.

    Raises:
        SourceError: saying what was expected and found.
    """
    for key, kind in EVENTS[event].items():
        if not isinstance(value.get(key), kind):
            raise SourceError(f'expected "{key}" ({kind.__name__}) in a {event} event, found {value.get(key)!r:.40}')
    for key in ID_FIELDS.get(event, ()):
        if value.get(key) is not None and not _is_texts(value[key]):
            raise SourceError(f'expected "{key}" to be a list of texts, found {value[key]!r:.40}')
    search_id = value.get("search_id")
    if search_id is not None and not isinstance(search_id, str):
        raise SourceError(f'expected "search_id" to be text, found {search_id!r:.40}')


def _event(line: bytes, copy: Callable[[bytes], int]) -> tuple[Any, ...]:
    """Read one row from one line. `copy` returns the number of equal lines so far, this one included.

    Raises:
        SourceError: saying what was expected and found.
    """
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"expected a JSON object, found something else: {error}") from None
    if not isinstance(value, dict):
        raise SourceError(f"expected a JSON object, found a {type(value).__name__}")
    schema, event = value.pop("schema", SCHEMA), value.pop("event", None)
    if schema != SCHEMA:
        raise SourceError(f'expected "schema": {SCHEMA}, found {schema!r:.40}: this version cannot read it')
    if event not in EVENTS:
        raise SourceError(f'expected "event" of {", ".join(EVENTS)}, found {event!r:.40}')
    at, caller, uid = value.pop("at", None), value.pop("caller", None), value.pop("uid", None)
    if not isinstance(at, str) or not at:
        raise SourceError(f'expected "at", an ISO 8601 instant, found {at!r:.40}')
    _check_fields(event, value)
    search_id = value.get("search_id")
    if not isinstance(uid, str) or not uid:
        uid = digest("event/1", [at, event, caller, copy(line), clean(value)])
    return uid, at, event, caller if isinstance(caller, str) else "unknown", search_id, _encode(value)
