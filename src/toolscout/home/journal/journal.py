"""The journal records searches, the tools that were shown, calls and their outcome.

It has a database of its own, so an event never waits for a change of the catalogue. An event is written when the call
returns, and survives a crash of the process. Only `prune` and the setting `journal_keep_days` remove events.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import re
import sqlite3
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.errors import SourceError, StoreError
from toolscout.home.database import BUSY_SECONDS, Connection, Database, Dialect, now
from toolscout.home.database.folder import open_home
from toolscout.location import Home
from toolscout.trust.redaction import redact
from toolscout.types import clean, digest

__all__ = [
    "DAMAGED_EVENT",
    "EVENTS",
    "EVENT_COLUMNS",
    "IMPORT_TABLE",
    "JOURNAL_MIGRATIONS",
    "MAX_SEARCH_EVENTS",
    "NUMBERED_EVENTS",
    "PUT_EVENT",
    "SCHEMA",
    "TAKE_IMPORTED",
    "ImportReport",
    "Journal",
    "JournalFilter",
    "PruneReport",
    "Trail",
    "build_line",
    "parse_row",
    "read_rows",
    "redact",
]

# Row ids are never reused after events are removed: models remember up to which row they have learned.
NUMBERED_EVENTS: Final = """
    CREATE TABLE numbered (
        id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE, at TEXT NOT NULL, event TEXT NOT NULL,
        caller TEXT NOT NULL, search_id TEXT, body TEXT NOT NULL);
    INSERT INTO numbered SELECT id, uid, at, event, caller, search_id, body FROM events;
    DROP TABLE events;
    ALTER TABLE numbered RENAME TO events;
    CREATE INDEX events_by_search ON events (search_id);
    CREATE INDEX events_by_time ON events (at);
    """
JOURNAL_MIGRATIONS: Final = (
    """
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, at TEXT NOT NULL, event TEXT NOT NULL, caller TEXT NOT NULL,
        search_id TEXT, body TEXT NOT NULL);
    CREATE INDEX events_by_search ON events (search_id);
    """,
    NUMBERED_EVENTS,
    "",  # separates tenants in a database; a file belongs to one
)
EVENT_COLUMNS: Final = "uid, at, event, caller, search_id, body"
PUT_EVENT: Final = f"INSERT INTO events ({EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
IMPORT_TABLE: Final = """
    CREATE TEMP TABLE imported (
        line INTEGER PRIMARY KEY, uid TEXT, at TEXT, event TEXT, caller TEXT, search_id TEXT, body TEXT)
    """
TAKE_IMPORTED: Final = f"""
    INSERT INTO events ({EVENT_COLUMNS}) SELECT {EVENT_COLUMNS} FROM imported WHERE TRUE ORDER BY line
        ON CONFLICT DO NOTHING
    """


SCHEMA: Final = 1
EVENTS: Final[dict[str, dict[str, type]]] = {
    "search": {"search_id": str, "query": str, "shown": list},
    "call": {"tool": str, "ok": bool},
    "feedback": {"search_id": str},
}
"""Kind of event → its required fields and their types."""
ID_FIELDS: Final = {"search": ("shown",), "feedback": ("good", "bad", "withdrawn")}  # fields that list ids of tools


def build_line(uid: str, at: str, event: str, caller: str, body: str) -> dict[str, object]:
    """Build the object of a row in an export: its columns and the fields in its `body`.

    Required fields (`EVENTS`) that `body` lacks get an empty value.

    Args:
        uid: identifies the event, so that a second import skips it.
        at: instant, ISO 8601.
        event: `search`, `call` or `feedback`.
        caller: name of who caused it.
        body: JSON with the other fields of the event.

    Raises:
        StoreError: if `body` is damaged.
    """
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError):
        raise StoreError(f"The event {uid} of the journal is damaged; run  toolscout doctor --repair") from None
    defaults = {key: kind() for key, kind in EVENTS.get(event, {}).items()}
    return {"schema": SCHEMA, "uid": uid, "at": at, "event": event, "caller": caller, **defaults, **fields}


def parse_row(line: bytes, count_copies: Callable[[bytes], int]) -> tuple[object, ...]:
    """Parse an export line into a row: uid, at, event, caller, search_id, body.

    Args:
        line: one line of JSON.
        count_copies: counts the line, and returns how often it has come so far. The number makes the uids of equal
            lines different, if they have none.

    Raises:
        SourceError: saying what was expected and found.
    """
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"expected a JSON object, found something else: {error}") from None
    if not isinstance(value, dict):
        raise SourceError(f"expected a JSON object, found a {type(value).__name__}")
    schema = value.pop("schema", SCHEMA)
    event = value.pop("event", None)
    if schema != SCHEMA:
        raise SourceError(f'expected "schema": {SCHEMA}, found {schema!r:.40}. This version cannot read it')
    if event not in EVENTS:
        raise SourceError(f'expected "event" of {", ".join(EVENTS)}, found {event!r:.40}')
    at, caller, uid = value.pop("at", None), value.pop("caller", None), value.pop("uid", None)
    if not isinstance(at, str) or not at:
        raise SourceError(f'expected "at", an ISO 8601 instant, found {at!r:.40}')
    _check_fields(event, value)
    if not isinstance(uid, str) or not uid:
        uid = digest("event/1", [at, event, caller, count_copies(line), clean(value)])
    if not isinstance(caller, str):
        caller = "unknown"
    return uid, at, event, caller, value.get("search_id"), msgspec.json.encode(clean(value)).decode()


def _check_fields(event: str, value: Mapping[str, object]) -> None:
    """Refuse an event without its required fields, or with fields of the wrong type.

    Raises:
        SourceError: saying what was expected and found.
    """
    for key, kind in EVENTS[event].items():
        if not isinstance(value.get(key), kind):
            raise SourceError(f'expected "{key}" ({kind.__name__}) in a {event} event, found {value.get(key)!r:.40}')
    for key in ID_FIELDS.get(event, ()):
        if value.get(key) is not None and not _is_list_of_texts(value[key]):
            raise SourceError(f'expected "{key}" to be a list of texts, found {value[key]!r:.40}')
    search_id = value.get("search_id")
    if search_id is not None and not isinstance(search_id, str):
        raise SourceError(f'expected "search_id" to be text, found {search_id!r:.40}')


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


MAX_SEARCH_EVENTS: Final = 200  # events of one search after which callers may add no more
MAX_NAMED_LINES: Final = 100  # bad lines that an import names
IMPORT_BATCH_LINES: Final = 500  # lines of an import in memory at a time
READ_BATCH_EVENTS: Final = 1000
TRAILS_PER_READ: Final = 500  # trails in one read transaction
DAMAGED_EVENT: Final = "NOT json_valid(body) OR json_type(body) <> 'object'"  # in SQLite
VACUUM_WAIT_S: Final = 5.0  # time that a prune waits for readers; then the next prune compacts the file
_log: Final = logging.getLogger("toolscout.journal.journal")


class Trail(NamedTuple):
    """A search and what followed it: the row id of the search, and all events of its search id, in order."""

    row: int
    events: list[dict[str, Any]]


class JournalFilter(NamedTuple):
    """Which events a page shows: those that meet every condition. None: no condition.

    Attributes:
        event: kind of event.
        caller: name of the caller.
        search_id: id of the search.
        text: part of a query or of the id of a called tool. The case of ASCII letters is ignored.
        tools: whether `text` is also looked for in the ids of called tools.
        since: instant, included.
        until: instant, excluded.
    """

    event: str | None = None
    caller: str | None = None
    search_id: str | None = None
    text: str | None = None
    tools: bool = True
    since: str | None = None
    until: str | None = None

    def list_conditions(self, dialect: Dialect) -> dict[str, str]:
        """Return SQL condition → value of its parameter, for the conditions that are set."""
        conditions: dict[str, str | None] = {
            "event = ?": self.event,
            "caller = ?": self.caller,
            "search_id = ?": self.search_id,
            "at >= ?": self.since,
            "at < ?": self.until,
        }
        if self.text is not None:
            searched = dialect.read_text("body", "query")
            if self.tools:  # an event has a query or a tool
                searched = f"coalesce({searched}, {dialect.read_text('body', 'tool')})"
            escaped = re.sub(r"([\\%_])", r"\\\1", self.text)
            conditions[f"{searched} LIKE ? ESCAPE '\\'"] = f"%{escaped}%"
        return {condition: value for condition, value in conditions.items() if value is not None}


class ImportReport(NamedTuple):
    """The result of an import.

    Attributes:
        new: number of new events.
        problems: (line, message) of the first bad lines.
        bad: number of bad lines.
    """

    new: int
    problems: list[tuple[str, str]]
    bad: int


class PruneReport(NamedTuple):
    """The result of a prune.

    Attributes:
        removed: number of removed events.
        undated: number of events that stay because their time cannot be read; they come from imports.
        compacted: whether the file was rewritten. If others were using it, the next prune rewrites it.
    """

    removed: int
    undated: int
    compacted: bool


class Journal(Database):
    """The journal of a home."""

    def __init__(self, home: Home, *, queries: str = "full", personal: bool = False, keep_days: float = 0.0) -> None:
        """Open or create the journal, and remove events older than `keep_days`.

        Args:
            home: the folder that contains `journal.db`, or the address of a database.
            queries: how queries are recorded: `full` (credentials redacted), `hash` or `none`.
            personal: whether e-mail addresses and telephone numbers are redacted too.
            keep_days: number of days that events stay; 0: for ever.
        """
        super().__init__(home, "journal", JOURNAL_MIGRATIONS, pragmas=self.pragmas())
        self._shared = open_home(home).open_journal_writer(self)
        self.queries, self.personal = queries, personal
        if keep_days and not self.read_only:
            try:
                self._delete_older(_subtract_days(keep_days))
            except StoreError as error:
                _log.warning("Events older than %g days were not removed: %s", keep_days, error)

    def pragmas(self) -> tuple[str, ...]:
        """Return the pragmas of every connection. SQLite overwrites removed content with zeros, so no page keeps it."""
        return ("secure_delete = ON",)

    def prune(self, days: float) -> PruneReport:
        """Remove the events older than `days`, and in a file every trace of them.

        Raises:
            StoreError: if the file cannot be written.
        """
        removed = self._delete_older(_subtract_days(days))
        with self.reading() as connection:
            (undated,) = connection.execute(
                f"SELECT count(*) FROM events WHERE {self.dialect.instant.format('at')} IS NULL"
            ).fetchone()
        return PruneReport(removed, int(undated), self._compact())

    def _delete_older(self, instant: str) -> int:
        """Remove the events before an instant (ISO 8601, UTC), and return how many.

        The column `at` is indexed as text, and imported events may have any UTC offset. So the index narrows the search
        to texts up to a day later, which is more than any offset, and then instants are compared.
        """
        next_day = (datetime.fromisoformat(instant) + timedelta(days=1)).isoformat()
        where = f"at < ? AND {self.dialect.instant.format('at')} < {self.dialect.instant.format('?')}"
        with self.reading() as connection:
            first = connection.execute(f"SELECT 1 FROM events WHERE {where} LIMIT 1", (next_day, instant)).fetchone()
        if first is None:  # the usual case: nothing is old, so no write transaction is needed
            return 0
        with self.writing() as connection:
            if self.dialect.note_last_event:
                connection.execute(self.dialect.note_last_event)
            removed = connection.execute(f"DELETE FROM events WHERE {where}", (next_day, instant)).rowcount
        self._empty_log()
        return removed

    def _compact(self) -> bool:
        """Rewrite the file without free pages. Returns False if others were using it all the time."""
        if not self.dialect.is_file:
            return True  # a database server frees the pages of removed rows by itself
        connection = self.connection
        connection.execute(f"PRAGMA busy_timeout = {int(VACUUM_WAIT_S * 1000)}")
        try:
            connection.execute("VACUUM")
            return self._empty_log()
        except sqlite3.OperationalError as error:
            _log.warning("%s was not compacted: %s", self.label, error)
            return False
        finally:
            connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")

    def _empty_log(self) -> bool:
        """Move the write-ahead log into the file and empty it, because it contains pages with removed rows.

        Returns False if others are reading the log.
        """
        if not self.dialect.is_file:
            return True
        with self.errors():
            (is_busy, _, _) = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy

    def append(self, event: str, *, caller: str = "local", at: str | None = None, **fields: Any) -> None:
        """Write one event; docs/reference/formats.md names the `fields`. Unknown fields are written too."""
        self.append_all([(event, caller, fields)], at=at)

    def append_all(
        self, events: Iterable[tuple[str, str, Mapping[str, object]]], *, at: str | None = None, wait: bool = True
    ) -> None:
        """Write events in one transaction.

        If the database of a shared home does not answer, this machine keeps the events until it does.

        Args:
            events: (kind of event, caller, fields) of each.
            at: instant, ISO 8601; by default the present one.
            wait: whether to wait for another writer of a file. Otherwise StoreError is raised at once.
        """
        instant, rows = at or now(), []
        for event, caller, fields in events:
            body = msgspec.json.encode(clean(self._protect(fields) if event == "search" else fields)).decode()
            rows.append((uuid.uuid4().hex, instant, event, caller, fields.get("search_id"), body))
        if self._shared is not None:
            self._shared.write(rows)
            return
        with self.writing(wait=wait) as connection:
            connection.executemany(PUT_EVENT, rows)

    def check(self) -> list[str]:
        """Return the faults of the file, one sentence each. Empty if it is sound."""
        findings = super().check()
        if not findings and self.dialect.is_file:
            (count,) = self.ask(f"SELECT count(*) FROM events WHERE {DAMAGED_EVENT}")[0]
            findings = [f"{count:,} events cannot be read"] if count else []
        return findings

    def close(self) -> None:
        """Close the connections."""
        if self._shared is not None:
            self._shared.close()
        super().close()

    def _protect(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of a search with the query as the setting asks: redacted, hashed, or left out."""
        query = fields.get("query")
        if not isinstance(query, str):
            return fields
        if self.queries == "none":
            protected = ""
        elif self.queries == "hash":
            protected = f"blake2b:{hashlib.blake2b(query.encode(), digest_size=16).hexdigest()}"
        else:
            protected = redact(query, personal=self.personal)
        return {**fields, "query": protected}

    def read(self, *, event: str | None = None, after: int = 0, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield at most `limit` events, of one kind or of all, with a row id above `after`, in the order of writing.

        Each is the object of an export; see `build_line`.
        """
        of_kind = "" if event is None else "AND event = ?"
        kind = () if event is None else (event,)
        query = f"SELECT id, uid, at, event, caller, body FROM events WHERE id > ? {of_kind} ORDER BY id LIMIT ?"
        n_left = sys.maxsize if limit is None else limit
        while n_left > 0:
            size = min(READ_BATCH_EVENTS, n_left)
            rows = self.ask(query, (after, *kind, size))
            for row, *columns in rows:
                yield build_line(*columns)
                after = row
            if len(rows) < size:
                return
            n_left -= size

    def search(self, search_id: str) -> dict[str, Any] | None:
        """Return the search of that id, without its calls and feedback; None: there is none."""
        if self._shared is not None and (recent := self._shared.find_search(search_id)) is not None:
            return recent
        with self.reading() as connection:
            row = connection.execute(
                "SELECT uid, at, event, caller, body FROM events WHERE search_id = ? AND event = 'search' "
                "ORDER BY id LIMIT 1",
                (search_id,),
            ).fetchone()
        return None if row is None else build_line(*row)

    def is_full(self, search_id: str) -> bool:
        """Return whether a search has so many events that callers may add no more. Imports may always add events.

        While a shared database does not answer, callers may add events to all searches.
        """
        if self._shared is not None and self._shared.is_waiting():
            return False
        try:
            with self.reading() as connection:
                query = "SELECT 1 FROM events WHERE search_id = ? LIMIT ?"  # quicker than counting all
                rows = connection.execute(query, (search_id, MAX_SEARCH_EVENTS)).fetchall()
                return len(rows) >= MAX_SEARCH_EVENTS
        except StoreError as error:
            if self._shared is not None and self._shared.is_absence(error):
                return False
            raise

    def find(self, search_id: str) -> list[dict[str, Any]]:
        """Return all events of one search."""
        with self.reading() as connection:
            rows = connection.execute(
                "SELECT uid, at, event, caller, body FROM events WHERE search_id = ? ORDER BY id",
                (search_id,),
            ).fetchall()
        return [build_line(*row) for row in rows]

    def page(
        self, only: JournalFilter | None = None, *, before: int | None = None, limit: int = 50
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Return a page of events, the newest first.

        Args:
            only: the events to choose from; None: all.
            before: the second value that the previous page returned.
            limit: maximum number of events.

        Returns:
            The events, and the value of `before` for the next page; None: there are no more.
        """
        conditions: dict[str, str | int] = {**(only or JournalFilter()).list_conditions(self.dialect)}
        if before is not None:
            conditions["id < ?"] = before
        where = " AND ".join(conditions) or "TRUE"
        rows = self.ask(
            f"SELECT id, uid, at, event, caller, body FROM events WHERE {where} ORDER BY id DESC LIMIT ?",
            (*conditions.values(), limit + 1),  # one more shows whether there is a next page
        )
        shown, has_next_page = rows[:limit], len(rows) > limit
        last_row = shown[-1][0] if has_next_page else None
        return [build_line(*columns) for _, *columns in shown], last_row

    def last(self) -> int:
        """Return the row id of the newest event ever written, removed ones included; 0: there was none."""
        return self.read_bounds()[1]

    def read_bounds(self) -> tuple[int, int]:
        """Return the row ids of the oldest event that is there and of the newest ever written; 0: there is none."""
        with self.reading() as connection:
            first, last = connection.execute(
                f"SELECT (SELECT min(id) FROM events), ({self.dialect.last_event})"
            ).fetchone()
            return int(first or 0), int(last or 0)

    def trails(self, *, after: int = 0, until: int | None = None) -> Iterator[Trail]:
        """Yield trails, the newest first: a search that a call or feedback followed, with all its events.

        Args:
            after: searches with a row id above this.
            until: events with a row id up to this; None: all events that exist at the start.
        """
        if until is None:
            until = self.last()
        before = until + 1
        while True:
            with self.reading() as connection:
                rows = connection.execute(
                    "SELECT id, search_id FROM events AS search WHERE event = 'search' AND id > ? AND id < ? "
                    "AND EXISTS (SELECT 1 FROM events WHERE search_id = search.search_id AND event <> 'search' "
                    "AND id <= ?) "
                    "ORDER BY id DESC LIMIT ?",
                    (after, before, until, TRAILS_PER_READ),
                ).fetchall()
                trails = self._read_trails(connection, rows, until)
            yield from trails
            if len(trails) < TRAILS_PER_READ:
                return
            before = trails[-1].row

    def trails_since(self, row: int, *, until: int) -> list[Trail]:
        """Return the newest `TRAILS_PER_READ` trails (see `trails`) with an event after a row, the oldest trail first.

        Args:
            row: a row id. The search itself may be older; one of its events must have a greater row id.
            until: events with a row id up to this.
        """
        with self.reading() as connection:
            rows = connection.execute(
                "SELECT id, search_id FROM events AS search WHERE event = 'search' AND id <= ? AND search_id IN "
                "(SELECT search_id FROM events WHERE id > ? AND id <= ?) "
                "AND EXISTS (SELECT 1 FROM events WHERE search_id = search.search_id AND event <> 'search' "
                "AND id <= ?) ORDER BY id DESC LIMIT ?",
                (until, row, until, until, TRAILS_PER_READ),
            ).fetchall()
            oldest_first = rows[::-1]
            return self._read_trails(connection, oldest_first, until)

    def trails_at(self, rows: Sequence[int], *, until: int) -> Iterator[Trail]:
        """Yield the trails of the searches with these row ids, with events up to the row id `until`.

        Searches that were removed are left out.
        """
        for start in range(0, len(rows), TRAILS_PER_READ):
            batch = rows[start : start + TRAILS_PER_READ]
            with self.reading() as connection:
                placeholders = ",".join("?" * len(batch))
                searches = connection.execute(
                    f"SELECT id, search_id FROM events WHERE id IN ({placeholders}) ORDER BY id", batch
                ).fetchall()
                trails = self._read_trails(connection, searches, until)
            yield from trails

    def _read_trails(self, connection: Connection, searches: Sequence[tuple[int, str]], until: int) -> list[Trail]:
        """Return the trails of searches, each given as (row id, search id), with events up to the row id `until`."""
        placeholders = ",".join("?" * len(searches))
        rows = connection.execute(
            "SELECT search_id, uid, at, event, caller, body FROM events "
            f"WHERE search_id IN ({placeholders}) AND id <= ? ORDER BY id",
            (*(search_id for _, search_id in searches), until),
        )
        events: dict[str, list[dict[str, Any]]] = {}
        for search_id, *columns in rows:
            events.setdefault(search_id, []).append(build_line(*columns))
        return [Trail(row, events[search_id]) for row, search_id in searches]

    def count_unnamed_calls(self, until: int) -> int:
        """Count the successful calls up to a row id that name no search."""
        with self.reading() as connection:
            row = connection.execute(
                "SELECT count(*) FROM events WHERE event = 'call' AND search_id IS NULL AND id <= ? "
                f"AND {self.dialect.json_true.format(column='body', key='ok')}",
                (until,),
            ).fetchone()
            return int(row[0])

    def stats(self) -> dict[str, Any]:
        """Return counts by event, first and last instant, callers, and searches with a later successful call."""
        with self.reading() as connection:
            counts = dict(connection.execute("SELECT event, count(*) FROM events GROUP BY event"))
            first, last, callers = connection.execute(
                "SELECT min(at), max(at), count(DISTINCT caller) FROM events"
            ).fetchone()
            (n_successful,) = connection.execute(
                "SELECT count(DISTINCT search_id) FROM events WHERE event = 'call' AND search_id IS NOT NULL "
                f"AND {self.dialect.json_true.format(column='body', key='ok')}"
            ).fetchone()
        return {
            "events": {name: counts.get(name, 0) for name in EVENTS} | counts,
            "first": first,
            "last": last,
            "callers": callers,
            "searches_followed_by_a_successful_call": n_successful,
        }

    def export(self) -> Iterator[bytes]:
        """Yield the lines of an export."""
        for line in self.read():
            yield msgspec.json.encode(line) + b"\n"

    def import_lines(self, lines: Iterable[bytes]) -> ImportReport:
        """Import the lines of an export. Texts stay as they are; known events are not written twice.

        All events are written together, or none if reading `lines` fails. They are collected in a temporary table, so
        that memory use stays small and others can write meanwhile. Bad lines are counted and left out.
        """
        problems: list[tuple[str, str]] = []
        n_bad = 0
        with self._open_import_table() as connection, _open_counter() as count_copies:
            numbered = enumerate(lines, 1)
            with self.reading():  # only the temporary table is written, which needs no write transaction
                while batch := list(itertools.islice(numbered, IMPORT_BATCH_LINES)):
                    rows = []
                    for number, line in batch:
                        if not line.strip():
                            continue
                        try:
                            rows.append(parse_row(line, count_copies))
                        except SourceError as error:
                            n_bad += 1
                            if n_bad <= MAX_NAMED_LINES:
                                problems.append((f"line {number}", str(error)))
                    connection.executemany(f"INSERT INTO imported ({EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", rows)
            with self.writing():
                new = connection.execute(TAKE_IMPORTED).rowcount
        return ImportReport(new, problems, n_bad)

    @contextlib.contextmanager
    def _open_import_table(self) -> Iterator[Connection]:
        """Create the temporary table for the rows of an import, and drop it at the end."""
        with self.session() as connection:
            self._engine.run_script(IMPORT_TABLE)
            try:
                yield connection
            finally:
                with self.errors():
                    connection.execute("DROP TABLE imported")


@contextlib.contextmanager
def _open_counter() -> Iterator[Callable[[bytes], int]]:
    """Yield a function that counts a line, and returns how often it has counted the same line, this time included.

    The counts are kept in a temporary file, because an imported journal may have more lines than fit in memory.
    """
    with contextlib.closing(sqlite3.connect("", isolation_level=None)) as connection:  # "": a temporary file
        connection.execute("CREATE TABLE copies (line BLOB PRIMARY KEY, n INTEGER) WITHOUT ROWID")
        connection.execute("BEGIN")  # never committed: nobody needs the counts later

        def count_copies(line: bytes) -> int:
            key = hashlib.blake2b(line, digest_size=16).digest()
            connection.execute("INSERT INTO copies VALUES (?, 1) ON CONFLICT DO UPDATE SET n = n + 1", (key,))
            return int(connection.execute("SELECT n FROM copies WHERE line = ?", (key,)).fetchone()[0])

        yield count_copies


def _subtract_days(days: float) -> str:
    """Return the instant `days` ago in UTC, or the earliest that Python can represent."""
    try:
        instant = datetime.now(timezone.utc) - timedelta(days=days)
    except OverflowError:
        instant = datetime.min.replace(tzinfo=timezone.utc) + timedelta(days=1)  # with room for another UTC offset
    return instant.isoformat()


def read_rows(
    journal: Journal, event: str, *, after: int = 0, until: int, limit: int, newest: bool = False
) -> list[tuple[int, dict[str, Any]]]:
    """Return (row id, object of an export) of events of one kind, in the order of writing; see `build_line`.

    Their row ids are above `after` and at most `until`. If there are more than `limit`, these are the oldest, or the
    `newest`.
    """
    with journal.reading() as connection:
        rows = connection.execute(
            "SELECT id, uid, at, event, caller, body FROM events WHERE event = ? AND id > ? AND id <= ? "
            f"ORDER BY id {'DESC' if newest else 'ASC'} LIMIT ?",
            (event, after, until, limit),
        ).fetchall()
    oldest_first = reversed(rows) if newest else rows
    return [(row, build_line(*columns)) for row, *columns in oldest_first]
