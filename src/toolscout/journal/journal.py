"""What was searched, shown, called, and with what outcome: an SQLite file beside the catalogue, which only grows.

It is a file of its own so that appending an event never waits for a change of the catalogue. An event counts as written
when the call returns: it then survives a crash of the process. Events go by `prune` and the setting
`journal_keep_days` alone.
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

__all__ = ["EVENTS", "MOST_EVENTS", "SCHEMA", "Imported", "Journal", "Pruned", "Trail", "new_id", "redact"]

SCHEMA: Final = 1
EVENTS: Final[dict[str, dict[str, type]]] = {
    "search": {"search_id": str, "query": str, "shown": list},
    "call": {"tool": str, "ok": bool},
    "feedback": {"search_id": str},
}
MOST_EVENTS: Final = 200  # of one search, that callers may bring
NAMED: Final = 100  # bad lines of an import, the first
EVENTS_PER_READ: Final = 500  # lines of an import that are held in memory
IDS: Final = {"search": ("shown",), "feedback": ("good", "bad")}  # fields that list ids of tools
JOURNAL_MIGRATIONS: Final = (
    """
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, at TEXT NOT NULL, event TEXT NOT NULL, caller TEXT NOT NULL,
        search_id TEXT, body TEXT NOT NULL);
    CREATE INDEX events_by_search ON events (search_id);
    """,
    # Row ids are never given twice, although events go: models remember up to which row they have learned.
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
VACUUM_WAIT_S: Final = 5.0  # for others to stop reading, before a prune leaves the space to the next one
_log: Final = logging.getLogger("toolscout.journal.journal")


class Trail(NamedTuple):
    """A search and what followed it: the row id of the search, and all events of that search id, in order."""

    row: int
    events: list[dict[str, Any]]


class Imported(NamedTuple):
    """What an import found: how many events were new, (line, message) of the first bad lines, how many are bad."""

    new: int
    problems: list[tuple[str, str]]
    bad: int


class Pruned(NamedTuple):
    """What a prune did.

    Attributes:
        removed: how many events went.
        undated: how many stay because their time cannot be read; imports bring such.
        compacted: whether the file was written anew; False: others were using it, the next prune does it.
    """

    removed: int
    undated: int
    compacted: bool


def new_id() -> str:
    """A fresh identifier for a search."""
    return uuid.uuid4().hex


class Journal(Database):
    """The journal file."""

    def __init__(self, home: Path, *, queries: str = "full", personal: bool = False, keep_days: float = 0.0) -> None:
        """Open or create it; what is older than `keep_days` goes.

        Args:
            home: the folder that holds `journal.db`.
            queries: how the text of a query is written: `full` (credentials redacted), `hash` or `none`.
            personal: whether e-mail addresses and telephone numbers are redacted too.
            keep_days: how long events are kept; 0: for ever.
        """
        super().__init__(home / "journal.db", JOURNAL_MIGRATIONS)
        self.queries, self.personal = queries, personal
        if keep_days and not self.read_only:
            try:
                self._delete_older(_instant(keep_days))
            except StoreError as error:
                _log.warning("events older than %g days are not removed: %s", keep_days, error)

    def pragmas(self) -> tuple[str, ...]:
        """Pruned queries are overwritten with zeros, so that nothing of them is left in free pages."""
        return ("secure_delete = ON",)

    def prune(self, days: float) -> Pruned:
        """Remove the events that are older than so many days, and every trace of them in the file.

        Raises:
            StoreError: if the file cannot be written.
        """
        removed = self._delete_older(_instant(days))
        with self.reading() as connection:
            (undated,) = connection.execute("SELECT count(*) FROM events WHERE julianday(at) IS NULL").fetchone()
        return Pruned(removed, int(undated), self._compact())

    def _delete_older(self, instant: str) -> int:
        """Remove events before an instant. The index narrows by text; times with an offset differ by a day at most."""
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
        """Write the file anew without free pages. Returns False if others were using it all the time."""
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
        """Bring the write-ahead log into the file and empty it: it holds former pages. False: others are reading it."""
        with self.errors():
            (busy, _, _) = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    def append(self, event: str, *, caller: str = "local", at: str | None = None, **fields: Any) -> None:
        """Write one event; `fields` as docs/formats.md names them. Unknown fields are kept."""
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
        """Events in the order they were written, as the lines of an export; at most `limit`, with row id > `after`."""
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
        """The search of that id, without what followed it; None: there is none."""
        with self.reading() as connection:
            row = connection.execute(
                "SELECT uid, at, event, caller, body FROM events WHERE search_id = ? AND event = 'search' "
                "ORDER BY id LIMIT 1",
                (search_id,),
            ).fetchone()
        return None if row is None else _line(*row)

    def is_full(self, search_id: str) -> bool:
        """Whether a search has as many events as callers may bring; what imports bring counts, but is not refused."""
        with self.reading() as connection:
            events = connection.execute("SELECT 1 FROM events WHERE search_id = ? LIMIT ?", (search_id, MOST_EVENTS))
            return len(events.fetchall()) >= MOST_EVENTS

    def find(self, search_id: str) -> list[dict[str, Any]]:
        """All events of one search."""
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
        """Events that pass all filters, newest first.

        Args:
            event: its kind.
            caller: whose.
            search_id: of which search.
            text: what the query of a search contains, or the id of a called tool; case of ASCII letters is ignored.
            tools: whether `text` looks at the ids of called tools too.
            since: instant, included.
            until: instant, excluded.
            before: what the page before returned.
            limit: how many.

        Returns:
            The events, and what to give as `before` for the next page; None: there are no more.
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
        """Searches that a call or feedback followed, the newest first, each with what followed it.

        Args:
            after: searches with a row id above this.
            until: events with a row id up to this; None: all that there are at the start.
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
        """The searches of these row ids, each with what followed it up to `until`."""
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
        """Counts by event, first and last instant, callers, and the searches that a successful call followed."""
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
        """The lines of an export."""
        for line in self.read():
            yield msgspec.json.encode(line) + b"\n"

    def import_lines(self, lines: Iterable[bytes]) -> Imported:
        """Read lines of an export; texts are kept as given, lines already there are not written twice.

        All events come in together, or none if the lines break off. Till then they wait in a temporary file, so that
        memory stays small and others write meanwhile.
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
                            problems += [(f"line {number}", str(error))] if bad <= NAMED else []
                    connection.executemany("INSERT INTO waiting VALUES (?, ?, ?, ?, ?, ?)", rows)
            with self.writing():
                new = connection.execute(f"{_INSERT} SELECT * FROM waiting ORDER BY rowid").rowcount
        return Imported(new, problems, bad)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[sqlite3.Connection]:
        """Temporary tables for the rows of an import, and for how often each line came."""
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
    """The instant so many days ago, UTC; the first that there is for more days than that."""
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


def _event(line: bytes, copy: Callable[[bytes], int]) -> tuple[Any, ...]:
    """One row from one line; `copy` says the how manieth of equal lines in its file it is.

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
    for key, kind in EVENTS[event].items():
        if not isinstance(value.get(key), kind):
            raise SourceError(f'expected "{key}" ({kind.__name__}) in a {event} event, found {value.get(key)!r:.40}')
    for key in IDS.get(event, ()):
        if value.get(key) is not None and not _is_texts(value[key]):
            raise SourceError(f'expected "{key}" to be a list of texts, found {value[key]!r:.40}')
    search_id = value.get("search_id")
    if search_id is not None and not isinstance(search_id, str):
        raise SourceError(f'expected "search_id" to be text, found {search_id!r:.40}')
    if not isinstance(uid, str) or not uid:
        uid = digest("event/1", [at, event, caller, copy(line), clean(value)])
    return uid, at, event, caller if isinstance(caller, str) else "unknown", search_id, _encode(value)
