"""Approvals: remembers the approved definition of each foreign tool, and holds back changed ones.

Foreign tools come from MCP servers and from OpenAPI documents at a URL. For such documents, hosts and credentials are
approved as well: a new operation may use only those that approved operations of its source use.

All functions work within a write transaction of the store. A definition is compared and then approved or held back in
the same transaction that would put it into the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from toolscout.home.database import Connection, format_instant
from toolscout.types import Tool

__all__ = [
    "ALTERNATES",
    "CHANGED",
    "FLIPS_MIGRATION",
    "MIGRATION",
    "REMOTE_DOCUMENTS_MIGRATION",
    "Bodies",
    "Vet",
    "Waiting",
    "first_seen",
    "hold_back",
    "list_waiting_ids",
    "needs_approval",
    "pin",
    "read_source_ages",
    "waiting",
]

OWN_KINDS: Final = frozenset(
    {"schemas", "python", "folder", "objects", "skills"}
)  # kinds of sources that the user owns
CHANGED: Final = "its definition changed"
OTHER_SERVER: Final = "its definition changed, and with it the server that calls are sent to"
OTHER_CREDENTIALS: Final = "its definition changed, and with it how credentials are sent"
NEW_SERVER: Final = "it is new, and calls would go to a server that nobody has approved"
NEW_CREDENTIALS: Final = "it is new, and credentials would be sent in a way that nobody has approved"
ALTERNATES: Final = "this server alternates between definitions"
MAX_FLIPS: Final = 2  # changes of one tool within the window; one change and its reversal are harmless
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
# Tools of documents at URLs that were in the catalogue before documents needed approval count as approved.
REMOTE_DOCUMENTS_MIGRATION: Final = """
    INSERT INTO pins SELECT tools.id, fingerprint, body, read_at FROM tools
        JOIN sources ON sources.name = tools.source JOIN origins ON origins.id = sources.origin
        WHERE sources.kind = 'openapi' AND (locator LIKE 'http://%' OR locator LIKE 'https://%')
        ON CONFLICT DO NOTHING
    """

FLIPS_MIGRATION: Final = """
    CREATE TABLE flips (id TEXT NOT NULL, at TEXT NOT NULL, fingerprint TEXT NOT NULL);
    CREATE INDEX flips_by_id ON flips (id, at);
    """

ADDED: Final = """
    SELECT sources.name, added_at, origins.id FROM sources JOIN origins ON origins.id = sources.origin
    """
FIRST_SEEN: Final = """
    SELECT pins.id, approved_at, sources.origin FROM pins
        JOIN tools ON tools.id = pins.id JOIN sources ON sources.name = tools.source
    """

Bodies = Mapping[str, tuple[Tool, str]]  # id → (tool, fingerprint)
Vet = Callable[[Tool], str | None]  # why a tool must be approved by a person first, or None
_DECODER: Final = msgspec.json.Decoder(Tool)


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A definition that nobody can use until a person approves it.

    Attributes:
        tool: the definition that waits.
        fingerprint: its fingerprint.
        since: when it was first read.
        why: the reason, as a clause: "its definition changed".
        approved: the definition that was approved before, or None for a new tool.
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
    """Return whether somebody else can change the tools of a source. Local files and modules belong to the user.

    Where a plug-in reads from is not known, so its tools need approval.
    """
    if kind in ("openapi", "agents"):
        return locator.lower().startswith(("http://", "https://"))
    return kind not in OWN_KINDS


def hold_back(connection: Connection, source: str, bodies: Bodies, vet: Vet | None, at: str) -> dict[str, bool]:
    """Compare the definitions of a source with the approved ones. Approves new tools and holds back changed ones.

    Args:
        connection: in a write transaction.
        source: its name, with which all ids of `bodies` begin.
        bodies: all definitions of the present reading.
        vet: screens tools that were never approved.
        at: the present instant.

    Returns:
        For each definition that waits now: id → whether it is new in the quarantine. The quarantine of the source then
        holds exactly these definitions.
    """
    between = (f"{source}/", f"{source}0")  # ids of the source: "0" follows "/"
    pins = dict(connection.execute("SELECT id, fingerprint FROM pins WHERE id > ? AND id < ?", between))
    before = dict(connection.execute("SELECT id, fingerprint FROM quarantine WHERE source = ?", (source,)))
    altered = any(pins.get(id) != mark and "server" in tool.meta for id, (tool, mark) in bodies.items())
    approved_tools = _read_approved_tools(connection, between) if pins and altered else {}
    unsteady = find_unsteady(connection, source, bodies, {**pins, **before}, at)
    reasons = _find_reasons(bodies, pins, approved_tools, unsteady, vet)
    pin(connection, [bodies[id] for id in bodies if id not in pins and id not in reasons], at)
    return _replace_quarantine(connection, source, bodies, reasons, before, at)


def _find_reasons(
    bodies: Bodies,
    pins: Mapping[str, str],
    approved_tools: Mapping[str, Tool],
    unsteady: AbstractSet[str],
    vet: Vet | None,
) -> dict[str, str]:
    """Return id → why its definition must wait, for each definition that must.

    Args:
        bodies: all definitions of the present reading.
        pins: id → fingerprint of the approved definition.
        approved_tools: id → approved definition; empty if no host or credential can have changed.
        unsteady: ids of tools that alternate between definitions.
        vet: screens tools that were never approved.
    """
    destinations = frozenset().union(*map(_list_destinations, approved_tools.values()))
    reasons: dict[str, str] = {}
    for id, (tool, mark) in bodies.items():
        why = None
        if id in unsteady:
            why = ALTERNATES
        elif id not in pins:
            why = (vet(tool) if vet else None) or (
                _explain_new_destination(tool, destinations) if approved_tools else None
            )
        elif pins[id] != mark:
            why = _name_change(approved_tools[id], tool) if id in approved_tools else CHANGED
        if why is not None:
            reasons[id] = why
    return reasons


def _replace_quarantine(
    connection: Connection,
    source: str,
    bodies: Bodies,
    reasons: Mapping[str, str],
    before: Mapping[str, str],
    at: str,
) -> dict[str, bool]:
    """Make the quarantine of a source hold the definitions in `reasons`; returns as `hold_back` does.

    A row stays as it is, with its instant, if the same definition waits for the same reason.
    """
    old_reasons = dict(connection.execute("SELECT id, why FROM quarantine WHERE source = ?", (source,)))
    gone = [
        (id,)
        for id, mark in before.items()
        if id not in reasons or (bodies[id][1], reasons[id]) != (mark, old_reasons[id])
    ]
    connection.executemany("DELETE FROM quarantine WHERE id = ?", gone)
    newly = {id: (before.get(id), old_reasons.get(id)) != (bodies[id][1], why) for id, why in reasons.items()}
    connection.executemany(
        "INSERT INTO quarantine VALUES (?, ?, ?, ?, ?, ?)",
        ((id, source, bodies[id][1], _encode(bodies[id][0]), at, reasons[id]) for id, new in newly.items() if new),
    )
    return newly


def _read_approved_tools(connection: Connection, between: tuple[str, str]) -> dict[str, Tool]:
    rows = connection.execute("SELECT id, body FROM pins WHERE id > ? AND id < ?", between)
    return {id: _DECODER.decode(body) for id, body in rows}


def _list_destinations(tool: Tool) -> frozenset[tuple[str, ...]]:
    """List where calls of an operation go: the host, and every credential with the host that receives it."""
    if "server" not in tool.meta:
        return frozenset()
    host = _origin(tool.meta["server"])
    schemes: Mapping[str, Any] = tool.meta.get("security_schemes", {})
    sent = (
        (host, name, msgspec.json.encode(scheme, order="deterministic").decode()) for name, scheme in schemes.items()
    )
    return frozenset([(host,), *sent])


def _origin(server: str) -> str:
    """Return scheme, host and port of a server as its document spells them."""
    try:
        parts = urlsplit(server)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        return f"{parts.scheme}://{parts.hostname}:{port}"
    except ValueError:
        return server


def _explain_new_destination(tool: Tool, destinations: frozenset[tuple[str, ...]]) -> str | None:
    """Return why an operation that was never approved must wait, or None."""
    unknown = _list_destinations(tool) - destinations
    if not unknown:
        return None
    return NEW_SERVER if any(len(destination) == 1 for destination in unknown) else NEW_CREDENTIALS


def _name_change(before: Tool, now: Tool) -> str:
    """Return the most important change of a definition: the server, the credentials, or anything else."""
    if before.meta.get("server") != now.meta.get("server"):
        return OTHER_SERVER
    keys = ("security", "security_schemes")
    return CHANGED if all(before.meta.get(key) == now.meta.get(key) for key in keys) else OTHER_CREDENTIALS


def find_unsteady(connection: Connection, source: str, bodies: Bodies, last: Mapping[str, str], at: str) -> set[str]:
    """Record each definition that changed since the last reading, and find tools that alternate.

    Args:
        connection: in a write transaction.
        source: its name.
        bodies: all definitions of the present reading.
        last: id → fingerprint at the last reading.
        at: the present instant.

    Returns:
        Ids that changed more than `MAX_FLIPS` times within `FLIP_WINDOW_H` hours, and ids that already wait for this
        reason. Such a tool waits for approval, not for the end of the window.
    """
    query = "SELECT id FROM quarantine WHERE source = ? AND why = ?"
    alternating = {id for (id,) in connection.execute(query, (source, ALTERNATES))}
    between = (f"{source}/", f"{source}0")
    query = "SELECT id, fingerprint FROM flips WHERE id > ? AND id < ? ORDER BY at, rowid"
    last = {**last, **dict(connection.execute(query, between))}  # the last flip of a tool outlives its quarantine
    changed = [
        (id, at, mark) for id, (_, mark) in bodies.items() if last.get(id, mark) != mark and id not in alternating
    ]
    connection.executemany("INSERT INTO flips VALUES (?, ?, ?)", changed)
    begin = datetime.fromisoformat(at.replace("Z", "+00:00")) - timedelta(hours=FLIP_WINDOW_H)
    connection.execute("DELETE FROM flips WHERE at < ?", (format_instant(begin),))
    counts = connection.execute(
        "SELECT id FROM flips WHERE id > ? AND id < ? GROUP BY id HAVING count(*) > ?",
        (*between, MAX_FLIPS),
    )
    return alternating | {id for (id,) in counts}


def pin(connection: Connection, approved: list[tuple[Tool, str]], at: str) -> None:
    """Record (tool, fingerprint) pairs as the approved definitions, in place of earlier ones.

    `approved_at` keeps the instant of the first approval, because it shows which of two similar tools is older.
    """
    connection.executemany("DELETE FROM flips WHERE id = ?", ((tool.id,) for tool, _ in approved))
    connection.executemany(
        "INSERT INTO pins VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint, "
        "body = excluded.body",
        ((tool.id, mark, _encode(tool), at) for tool, mark in approved),
    )


def first_seen(connection: Connection) -> dict[str, str]:
    """Return id → when the tool was first approved, for tools with an approved definition."""
    return {id: _order_instant(*row) for id, *row in connection.execute(FIRST_SEEN)}


def read_source_ages(connection: Connection) -> dict[str, str]:
    """Return source → when its origin was added."""
    return {source: _order_instant(*row) for source, *row in connection.execute(ADDED)}


def _order_instant(at: str, number: int) -> str:
    """Return a text that sorts by an instant, and then by a number."""
    return f"{at} {number:09d}"


def list_waiting_ids(connection: Connection, source: str) -> list[tuple[str, str]]:
    """Return (id, fingerprint) of the definitions of a source in quarantine, by id."""
    query = "SELECT id, fingerprint FROM quarantine WHERE source = ? ORDER BY id"
    return connection.execute(query, (source,)).fetchall()


def waiting(connection: Connection) -> list[Waiting]:
    """Return all definitions in quarantine, by id."""
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
