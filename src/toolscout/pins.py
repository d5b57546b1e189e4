"""Pinned definitions: what a tool of a foreign server was when it was approved, and what waits because it changed.

All functions work within a write transaction of the store, so that a definition is compared, and taken or held back,
in the very step that would put it into the catalogue.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from toolscout.types import Tool

__all__ = ["ADDED", "CHANGED", "MIGRATION", "Bodies", "Vet", "Waiting", "first_seen", "hold_back", "pin", "waiting"]

CHANGED: Final = "its definition changed"
MIGRATION: Final = """
    CREATE TABLE pins (id TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, body BLOB NOT NULL, approved_at TEXT NOT NULL);
    CREATE TABLE quarantine (
        id TEXT PRIMARY KEY, source TEXT NOT NULL REFERENCES sources ON DELETE CASCADE, fingerprint TEXT NOT NULL,
        body BLOB NOT NULL, since TEXT NOT NULL, why TEXT NOT NULL);
    CREATE INDEX quarantine_by_source ON quarantine (source, id);
    INSERT INTO pins SELECT tools.id, fingerprint, body, read_at FROM tools
        JOIN sources ON sources.name = tools.source WHERE kind = 'mcp'
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
    held: dict[str, str] = {}
    fresh = []
    for id, (tool, mark) in bodies.items():
        why = None
        if id not in pins:
            why = vet(tool) if vet else None
            if why is None:
                fresh.append((tool, mark))
        elif pins[id] != mark:
            why = CHANGED
        if why is not None:
            held[id] = why
    pin(connection, fresh, at)
    gone = [(id,) for id, mark in before.items() if id not in held or bodies[id][1] != mark]
    connection.executemany("DELETE FROM quarantine WHERE id = ?", gone)
    newly = {id: before.get(id) != bodies[id][1] for id in held}
    connection.executemany(
        "INSERT INTO quarantine VALUES (?, ?, ?, ?, ?, ?)",
        ((id, source, bodies[id][1], _encode(bodies[id][0]), at, held[id]) for id, new in newly.items() if new),
    )
    return newly


def pin(connection: sqlite3.Connection, approved: list[tuple[Tool, str]], at: str) -> None:
    """Remember definitions with their fingerprints as approved, in place of what was approved before.

    `approved_at` stays what it was at the first approval: it says which of two tools that look alike is the older.
    """
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
