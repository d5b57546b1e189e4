"""Pinned definitions: what a tool of somebody else was when it was approved, and what waits because it changed.

Somebody else's are the tools of MCP servers and of OpenAPI documents that are read from a URL. Of the latter, hosts and
credentials are approved as well: a new operation may use only those that approved operations of its source use.

All functions work within a write transaction of the store, so that a definition is compared, and taken or held back,
in the very step that would put it into the catalogue.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from toolscout.types import Tool

__all__ = [
    "ADDED",
    "ALTERNATES",
    "CHANGED",
    "FLIPS",
    "MIGRATION",
    "REMOTE_DOCUMENTS_MIGRATION",
    "Bodies",
    "Vet",
    "Waiting",
    "first_seen",
    "hold_back",
    "needs_approval",
    "pin",
    "waiting",
]

CHANGED: Final = "its definition changed"
OTHER_SERVER: Final = "its definition changed, and with it the server that calls are sent to"
OTHER_CREDENTIALS: Final = "its definition changed, and with it how credentials are sent"
NEW_SERVER: Final = "it is new, and calls would go to a server that nobody has approved"
NEW_CREDENTIALS: Final = "it is new, and credentials would be sent in a way that nobody has approved"
ALTERNATES: Final = "this server alternates between definitions"
MAX_FLIPS: Final = 2  # changes of one tool in the window: once changed and changed back is all right
FLIP_WINDOW_H: Final = 24
MIGRATION: Final = """
    CREATE TABLE pins (id TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, body BLOB NOT NULL, approved_at TEXT NOT NULL);
    CREATE TABLE quarantine (
        id TEXT PRIMARY KEY, source TEXT NOT NULL REFERENCES sources ON DELETE CASCADE, fingerprint TEXT NOT NULL,
        body BLOB NOT NULL, since TEXT NOT NULL, why TEXT NOT NULL);
    CREATE INDEX quarantine_by_source ON quarantine (source, id);
    INSERT INTO pins SELECT tools.id, fingerprint, body, read_at FROM tools
        JOIN sources ON sources.name = tools.source WHERE kind = 'mcp'
    """
# What is served of documents at URLs when they come under approval counts as approved.
REMOTE_DOCUMENTS_MIGRATION: Final = """
    INSERT OR IGNORE INTO pins SELECT tools.id, fingerprint, body, read_at FROM tools
        JOIN sources ON sources.name = tools.source JOIN origins ON origins.id = sources.origin
        WHERE sources.kind = 'openapi' AND (locator LIKE 'http://%' OR locator LIKE 'https://%')
    """

FLIPS: Final = """
    CREATE TABLE flips (id TEXT NOT NULL, at TEXT NOT NULL, fingerprint TEXT NOT NULL);
    CREATE INDEX flips_by_id ON flips (id, at)
    """

ADDED: Final = """
    SELECT sources.name, added_at || printf(' %09d', origins.id) FROM sources
        JOIN origins ON origins.id = sources.origin
    """
FIRST_SEEN: Final = """
    SELECT pins.id, approved_at || printf(' %09d', sources.origin) FROM pins
        JOIN tools ON tools.id = pins.id JOIN sources ON sources.name = tools.source
    """

Bodies = Mapping[str, tuple[Tool, str]]  # id → (tool, fingerprint)
Vet = Callable[[Tool], str | None]  # why a tool may not come in unseen, or None
_DECODER: Final = msgspec.json.Decoder(Tool)


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A definition that is not served until somebody approves it.

    Attributes:
        tool: the definition that waits.
        fingerprint: its fingerprint.
        since: when it was first read.
        why: half a sentence.
        approved: the definition that was approved before, if there was one.
    """

    tool: Tool
    fingerprint: str
    since: str
    why: str
    approved: Tool | None = None

    @property
    def id(self) -> str:
        """The tool's id."""
        return self.tool.id


def needs_approval(kind: str, locator: str) -> bool:
    """Whether somebody else can change the tools of a source; other files and modules are the owner's own."""
    return kind == "mcp" or (kind == "openapi" and locator.lower().startswith(("http://", "https://")))


def hold_back(connection: sqlite3.Connection, source: str, bodies: Bodies, vet: Vet | None, at: str) -> dict[str, bool]:
    """Compare what a source brings with its pins; approve what is new, put what changed into quarantine.

    Args:
        connection: in a write transaction.
        source: its name, which begins all ids of `bodies`.
        bodies: everything that it brings now.
        vet: looks at tools that were never approved.
        at: the present instant.

    Returns:
        Id → whether this definition was not already waiting, for each that waits now. The quarantine of the source
        holds exactly those when this returns.
    """
    between = (f"{source}/", f"{source}0")  # ids of the source: "0" follows "/"
    pins = dict(connection.execute("SELECT id, fingerprint FROM pins WHERE id > ? AND id < ?", between))
    before = dict(connection.execute("SELECT id, fingerprint FROM quarantine WHERE source = ?", (source,)))
    altered = any(pins.get(id) != mark and "server" in tool.meta for id, (tool, mark) in bodies.items())
    approved = _approved(connection, between) if pins and altered else {}
    destinations = frozenset().union(*map(_destinations, approved.values()))
    unsteady = find_unsteady(connection, source, bodies, {**pins, **before}, at)
    held: dict[str, str] = {}
    fresh = []
    for id, (tool, mark) in bodies.items():
        why = None
        if id in unsteady:
            why = ALTERNATES
        elif id not in pins:
            why = (vet(tool) if vet else None) or (_new_destination(tool, destinations) if approved else None)
            if why is None:
                fresh.append((tool, mark))
        elif pins[id] != mark:
            why = _change(approved[id], tool) if id in approved else CHANGED
        if why is not None:
            held[id] = why
    pin(connection, fresh, at)
    reasons = dict(connection.execute("SELECT id, why FROM quarantine WHERE source = ?", (source,)))
    gone = [(id,) for id, mark in before.items() if id not in held or (bodies[id][1], held[id]) != (mark, reasons[id])]
    connection.executemany("DELETE FROM quarantine WHERE id = ?", gone)
    newly = {id: (before.get(id), reasons.get(id)) != (bodies[id][1], why) for id, why in held.items()}
    connection.executemany(
        "INSERT INTO quarantine VALUES (?, ?, ?, ?, ?, ?)",
        ((id, source, bodies[id][1], _encode(bodies[id][0]), at, held[id]) for id, new in newly.items() if new),
    )
    return newly


def _approved(connection: sqlite3.Connection, between: tuple[str, str]) -> dict[str, Tool]:
    rows = connection.execute("SELECT id, body FROM pins WHERE id > ? AND id < ?", between)
    return {id: _DECODER.decode(body) for id, body in rows}


def _destinations(tool: Tool) -> frozenset[tuple[str, ...]]:
    """Where calls of an operation go, and every credential that goes there with the place it is put in."""
    if "server" not in tool.meta:
        return frozenset()
    host = _origin(tool.meta["server"])
    schemes: Mapping[str, Any] = tool.meta.get("security_schemes", {})
    sent = (
        (host, name, msgspec.json.encode(scheme, order="deterministic").decode()) for name, scheme in schemes.items()
    )
    return frozenset([(host,), *sent])


def _origin(server: str) -> str:
    """Scheme, host and port of a server as its document spells them."""
    try:
        parts = urlsplit(server)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        return f"{parts.scheme}://{parts.hostname}:{port}"
    except ValueError:
        return server


def _new_destination(tool: Tool, destinations: frozenset[tuple[str, ...]]) -> str | None:
    """Why an operation that was never approved must wait, or None."""
    unknown = _destinations(tool) - destinations
    if not unknown:
        return None
    return NEW_SERVER if any(len(each) == 1 for each in unknown) else NEW_CREDENTIALS


def _change(before: Tool, now: Tool) -> str:
    """What changed, as far as it matters most."""
    if before.meta.get("server") != now.meta.get("server"):
        return OTHER_SERVER
    keys = ("security", "security_schemes")
    return CHANGED if all(before.meta.get(key) == now.meta.get(key) for key in keys) else OTHER_CREDENTIALS


def find_unsteady(
    connection: sqlite3.Connection, source: str, bodies: Bodies, last: Mapping[str, str], at: str
) -> set[str]:
    """Note every definition that is another than at the last reading; find those that change to and fro.

    Args:
        connection: in a write transaction.
        source: its name.
        bodies: everything that it brings now.
        last: id → fingerprint at the last reading.
        at: the present instant.

    Returns:
        Ids that changed more than `MAX_FLIPS` times within `FLIP_WINDOW_H` hours, and those that wait for that reason
        already: whoever alternates waits for approval, not for a day to pass.
    """
    query = "SELECT id FROM quarantine WHERE source = ? AND why = ?"
    held = {id for (id,) in connection.execute(query, (source, ALTERNATES))}
    between = (f"{source}/", f"{source}0")
    query = "SELECT id, fingerprint FROM flips WHERE id > ? AND id < ? ORDER BY at, rowid"
    last = {**last, **dict(connection.execute(query, between))}  # the last flip of each outlives its quarantine
    changed = [(id, at, mark) for id, (_, mark) in bodies.items() if last.get(id, mark) != mark and id not in held]
    connection.executemany("INSERT INTO flips VALUES (?, ?, ?)", changed)
    connection.execute("DELETE FROM flips WHERE julianday(at) < julianday(?, ?)", (at, f"-{FLIP_WINDOW_H} hours"))
    counts = connection.execute(
        "SELECT id FROM flips WHERE id > ? AND id < ? GROUP BY id HAVING count(*) > ?",
        (*between, MAX_FLIPS),
    )
    return held | {id for (id,) in counts}


def pin(connection: sqlite3.Connection, approved: list[tuple[Tool, str]], at: str) -> None:
    """Remember definitions with their fingerprints as approved, in place of what was approved before.

    `approved_at` stays what it was at the first approval: it says which of two tools that look alike is the older.
    """
    connection.executemany("DELETE FROM flips WHERE id = ?", ((tool.id,) for tool, _ in approved))
    connection.executemany(
        "INSERT INTO pins VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint, "
        "body = excluded.body",
        ((tool.id, mark, _encode(tool), at) for tool, mark in approved),
    )


def first_seen(connection: sqlite3.Connection) -> dict[str, str]:
    """Id → when the tool was first approved, for the tools of the catalogue that are pinned."""
    return dict(connection.execute(FIRST_SEEN))


def waiting(connection: sqlite3.Connection) -> list[Waiting]:
    """Everything in quarantine, by id."""
    rows = connection.execute(
        "SELECT quarantine.body, quarantine.fingerprint, since, why, pins.body FROM quarantine "
        "LEFT JOIN pins USING (id) ORDER BY id"
    )
    return [
        Waiting(
            tool=_DECODER.decode(body),
            fingerprint=mark,
            since=since,
            why=why,
            approved=None if approved is None else _DECODER.decode(approved),
        )
        for body, mark, since, why, approved in rows
    ]


def _encode(tool: Tool) -> bytes:
    return msgspec.json.encode(tool)
