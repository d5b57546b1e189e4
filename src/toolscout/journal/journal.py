"""What was searched, shown, called, and with what outcome: an append-only SQLite file beside the catalogue.

It is a file of its own so that appending an event never waits for a change of the catalogue. An event counts as written
when the call returns: it then survives a crash of the process.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.database import Database, now
from toolscout.errors import SourceError
from toolscout.types import clean, digest

__all__ = ["EVENTS", "MOST_EVENTS", "SCHEMA", "Imported", "Journal", "Trail", "new_id", "redact"]

SCHEMA: Final = 1
EVENTS: Final[dict[str, dict[str, type]]] = {
    "search": {"search_id": str, "query": str, "shown": list},
    "call": {"tool": str, "ok": bool},
    "feedback": {"search_id": str},
}
MOST_EVENTS: Final = 200  # of one search, that callers may bring
NAMED: Final = 100  # bad lines of an import, the first
AT_ONCE: Final = 500  # lines of an import that are held in memory
IDS: Final = {"search": ("shown",), "feedback": ("good", "bad")}  # fields that list ids of tools
MIGRATIONS: Final = (
    """
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, at TEXT NOT NULL, event TEXT NOT NULL, caller TEXT NOT NULL,
        search_id TEXT, body TEXT NOT NULL);
    CREATE INDEX events_by_search ON events (search_id);
    """,
)
_INSERT: Final = "INSERT OR IGNORE INTO events (uid, at, event, caller, search_id, body)"
_SECRETS: Final = re.compile(
    r"""
    (?P<key>\b(?:api[_-]?key|access[_-]?token|auth[_-]?token|secret|token|passw(?:or)?d|pwd|authorization)\b
        ["']?\s*[:=]\s*["']?(?:bearer\s+|basic\s+)?)(?P<value>[^\s"',;&]{4,})
    | \b(?P<bearer>bearer\s+)(?P<bearer_value>[\w.~+/=-]{8,})
    | (?P<user>\b[a-z][\w+.-]*://[^\s/:@]+:)(?P<password>[^\s/@]+)(?=@)
    | (?P<known>\btsk_[\w-]{20,}
        | \b(?:sk|pk|rk)[-_](?:live|test|proj|ant)?[\w-]{16,} | \bgh[pousr]_\w{20,} | \bgithub_pat_\w{20,}
        | \bxox[abprs]-[\w-]{10,} | \bAKIA[0-9A-Z]{16}\b | \bAIza[\w-]{30,} | \beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+
        | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----(?:.|\n)*?(?:-----END[ ][A-Z ]*PRIVATE[ ]KEY-----|\Z))
    """,
    re.X | re.I,
)


class Trail(NamedTuple):
    """A search and what followed it: the row id of the search, and all events of that search id, in order."""

    row: int
    events: list[dict[str, Any]]


class Imported(NamedTuple):
    """What an import found: how many events were new, (line, message) of the first bad lines, how many are bad."""

    new: int
    problems: list[tuple[str, str]]
    bad: int


def new_id() -> str:
    """A fresh identifier for a search."""
    return uuid.uuid4().hex


def redact(text: str) -> str:
    """`text` with what looks like a credential written `***`: keys, tokens, passwords in URLs, private keys."""

    def cover(match: re.Match[str]) -> str:
        return f"{match['key'] or match['bearer'] or match['user'] or ''}***"

    return _SECRETS.sub(cover, text)


class Journal(Database):
    """The journal file."""

    def __init__(self, home: Path, *, queries: str = "full") -> None:
        """Open or create it.

        Args:
            home: the folder that holds `journal.db`.
            queries: how the text of a query is written: `full` (credentials redacted), `hash` or `none`.
        """
        super().__init__(home / "journal.db", MIGRATIONS)
        self.queries = queries

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
        kept = dict(fields)
        if event == "search" and isinstance(kept.get("query"), str):
            if self.queries == "none":
                kept["query"] = ""
            elif self.queries == "hash":
                kept["query"] = "blake2b:" + hashlib.blake2b(kept["query"].encode(), digest_size=16).hexdigest()
            else:
                kept["query"] = redact(kept["query"])
        return kept

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
            found = connection.execute("SELECT 1 FROM events WHERE search_id = ? LIMIT ?", (search_id, MOST_EVENTS))
            return len(found.fetchall()) >= MOST_EVENTS

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
        given = {"id < ?": before, "event = ?": event, "caller = ?": caller, "search_id = ?": search_id}
        given |= {"at >= ?": since, "at < ?": until}
        looked_at = "json_extract(body, '$.query')"
        if tools:
            looked_at = f"coalesce({looked_at}, json_extract(body, '$.tool'))"
        given[f"{looked_at} LIKE ? ESCAPE '\\'"] = like
        asked = {condition: value for condition, value in given.items() if value is not None}
        where = " AND ".join(asked) or "TRUE"
        with self.reading() as connection:
            rows = connection.execute(
                f"SELECT id, uid, at, event, caller, body FROM events WHERE {where} ORDER BY id DESC LIMIT ?",
                (*asked.values(), limit + 1),
            ).fetchall()
        return [_line(*row[1:]) for row in rows[:limit]], rows[limit - 1][0] if len(rows) > limit else None

    def last(self) -> int:
        """Row id of the newest event; 0: there is none."""
        with self.reading() as connection:
            return int(connection.execute("SELECT ifnull(max(id), 0) FROM events").fetchone()[0])

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
                found = self._trails(connection, rows, until)
            yield from found
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
                found = connection.execute(f"SELECT id, search_id FROM events WHERE id IN ({marks}) ORDER BY id", piece)
                trails = self._trails(connection, found.fetchall(), until)
            yield from trails

    def _trails(self, connection: sqlite3.Connection, rows: Sequence[tuple[int, str]], until: int) -> list[Trail]:
        marks = ",".join("?" * len(rows))
        events = connection.execute(
            f"SELECT search_id, uid, at, event, caller, body FROM events WHERE search_id IN ({marks}) AND id <= ? "
            "ORDER BY id",
            (*(search_id for _, search_id in rows), until),
        )
        found: dict[str, list[dict[str, Any]]] = {}
        for search_id, *fields in events:
            found.setdefault(search_id, []).append(_line(*fields))
        return [Trail(row, found[search_id]) for row, search_id in rows]

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
                while piece := list(itertools.islice(numbered, AT_ONCE)):
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
