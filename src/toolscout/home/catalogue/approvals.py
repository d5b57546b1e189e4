"""Approvals: remembers the approved definition of each foreign tool, and holds back changed ones.

Foreign tools come from MCP servers and from OpenAPI documents at a URL. For such documents, hosts and credentials are
approved as well: a new operation may use only those that approved operations of its source use.

All functions work within a write transaction of the store. A definition is compared and then approved or held back in
the same transaction that would put it into the catalogue.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

import msgspec

from toolscout.home.database import Connection, format_instant
from toolscout.trust.screening import spelled_out
from toolscout.types import Tool

__all__ = [
    "ALTERNATES",
    "CHANGED",
    "FLIPS_MIGRATION",
    "MIGRATION",
    "OFFER",
    "REMOTE_DOCUMENTS_MIGRATION",
    "Bodies",
    "Vet",
    "WaitingDefinition",
    "count_approved",
    "describe_change",
    "explain_waiting",
    "hold_back",
    "list_waiting_ids",
    "mark_definition",
    "needs_approval",
    "pin",
    "pin_nothing",
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
OFFER: Final = "offer"  # key in `meta` of a definition that is no tool: a resource, a template or a prompt
ALTERNATES: Final = "this server alternates between definitions"
LOST_APPROVAL: Final = "its approval was lost with a damaged catalogue"
LOST: Final = "lost approvals of"  # begins the key in the table meta of a source whose approvals may be lost
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


Bodies = Mapping[str, tuple[Tool, str]]  # id → (tool, fingerprint)
Vet = Callable[[Tool], str | None]  # why a tool must be approved by a person first, or None
_DECODER: Final = msgspec.json.Decoder(Tool)


class WaitingDefinition(msgspec.Struct, frozen=True, kw_only=True):
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

    Nobody knows where a plug-in reads from, so its tools need approval.

    Args:
        kind: name of the reader, such as `openapi`.
        locator: an OpenAPI document or agent card needs approval only if this is a URL.
    """
    if kind in ("openapi", "agents"):
        return locator.lower().startswith(("http://", "https://"))
    return kind not in OWN_KINDS


def mark_definition(tool: Tool) -> str:
    """Return the fingerprint of a definition, with what it defines before it if that is no tool (`OFFER`)."""
    kind = tool.meta.get(OFFER)
    return f"{kind}:{tool.fingerprint}" if isinstance(kind, str) else tool.fingerprint


def hold_back(
    connection: Connection,
    source: str,
    bodies: Bodies,
    vet: Vet | None,
    at: str,
    *,
    group: str = "",
    whole: bool = True,
) -> dict[str, bool]:
    """Compare the definitions of a source with the approved ones. Approves new ones and holds back changed ones.

    Args:
        connection: in a write transaction.
        source: its name, with which all ids of `bodies` begin.
        bodies: all definitions of the present reading.
        vet: screens tools that were never approved.
        at: the present instant.
        group: what the definitions are: tools (empty), or what `OFFER` names. Other groups of the source stay.
        whole: whether the source has no other definitions of the group.

    Returns:
        For each definition that waits now: id → whether it is new in the quarantine. The quarantine of the source then
        holds exactly these definitions of the group, and those that are not in `bodies` if that is not the whole.
    """
    between = (f"{source}/", f"{source}0")  # ids of the source: "0" follows "/"
    pins = dict(connection.execute("SELECT id, fingerprint FROM pins WHERE id > ? AND id < ?", between))
    rows = list_waiting_ids(connection, source)
    before = {id: mark for id, mark in rows if mark.rpartition(":")[0] == group and (whole or id in bodies)}
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
        elif pins[id] == _make_unlike(id).fingerprint:
            why = LOST_APPROVAL
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
    """Make the quarantine of a source hold the definitions in `reasons`. Returns what `hold_back` returns.

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
        "INSERT INTO quarantine VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET source = excluded.source, "
        "fingerprint = excluded.fingerprint, body = excluded.body, since = excluded.since, why = excluded.why",
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
    schemes: Mapping[str, object] = tool.meta.get("security_schemes", {})
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
    """Record (tool, fingerprint) pairs as the approved definitions; `approved_at` stays that of the first approval."""
    connection.executemany("DELETE FROM flips WHERE id = ?", ((tool.id,) for tool, _ in approved))
    connection.executemany(
        "INSERT INTO pins VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint, "
        "body = excluded.body",
        ((tool.id, mark, _encode(tool), at) for tool, mark in approved),
    )


def pin_nothing(connection: Connection, ids: Iterable[str], at: str) -> None:
    """Let tools without an approved definition wait for an approval: as if one had been approved that none is like."""
    pinned_ids = {id for (id,) in connection.execute("SELECT id FROM pins")}
    unlike = [_make_unlike(id) for id in ids if id not in pinned_ids]
    pin(connection, [(tool, tool.fingerprint) for tool in unlike], at)


def _make_unlike(tool_id: str) -> Tool:
    return Tool(id=tool_id, name=tool_id.partition("/")[2], description="No definition of this tool is approved.")


def explain_waiting(
    connection: Connection, source: str, group: str, bodies: Bodies, *, whole: bool
) -> dict[str, str] | None:
    """Return id → why for the definitions in `bodies` that wait, if they are those of the last comparison.

    None: they must be compared with the approved ones. The arguments are those of `hold_back`.
    """
    between = (f"{source}/", f"{source}0")
    pins = dict(connection.execute("SELECT id, fingerprint FROM pins WHERE id > ? AND id < ?", between))
    query = "SELECT id, fingerprint, why FROM quarantine WHERE source = ?"
    rows = connection.execute(query, (source,))
    waiting = {
        id: (mark, why) for id, mark, why in rows if mark.rpartition(":")[0] == group and (whole or id in bodies)
    }
    is_known = all((waiting[id][0] if id in waiting else pins.get(id)) == mark for id, (_, mark) in bodies.items())
    return {id: why for id, (_, why) in waiting.items()} if is_known and waiting.keys() <= bodies.keys() else None


def count_approved(connection: Connection, source: str, group: str) -> int:
    """Return how many definitions of a group and a source are approved."""
    query = "SELECT count(*) FROM pins WHERE id > ? AND id < ? AND fingerprint LIKE ?"
    return int(connection.execute(query, (f"{source}/", f"{source}0", f"{group}:%")).fetchone()[0])


def list_waiting_ids(connection: Connection, source: str) -> list[tuple[str, str]]:
    """Return (id, fingerprint) of the definitions of a source in quarantine, by id."""
    query = "SELECT id, fingerprint FROM quarantine WHERE source = ? ORDER BY id"
    return connection.execute(query, (source,)).fetchall()


def waiting(connection: Connection) -> list[WaitingDefinition]:
    """Return all definitions in quarantine, by id."""
    rows = connection.execute(
        "SELECT quarantine.body, quarantine.fingerprint, since, why, pins.body FROM quarantine "
        "LEFT JOIN pins USING (id) ORDER BY id"
    )
    return [
        WaitingDefinition(
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


_LINE_BREAKING: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def describe_change(waiting: WaitingDefinition) -> list[str]:
    """List the lines of a unified diff from the approved definition, or from nothing if the tool is new."""
    before = list(_format_definition(waiting.approved)) if waiting.approved else []
    after = list(_format_definition(waiting.tool))
    return list(difflib.unified_diff(before, after, "approved", "now", n=1, lineterm=""))


def _format_definition(tool: Tool) -> Iterator[str]:
    """Yield the lines of a definition, one for each sentence of the description. Hidden characters are spelled out."""
    yield f"name: {_spell_line(tool.name)}"
    if "server" in tool.meta:
        yield f"sent to: {_spell_line(str(tool.meta['server']))}"
        for name, scheme in tool.meta.get("security_schemes", {}).items():
            parts = " ".join(str(scheme[key]) for key in ("type", "scheme", "in", "name") if key in scheme)
            yield f"with the credential: {_spell_line(name)} ({_spell_line(parts)})"
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", tool.description):
        yield f"description: {spelled_out(sentence)}"
    fields = msgspec.to_builtins(tool)
    for field in ("path", "hints", "tags", "parameters", "returns", "meta"):
        if field in fields:
            text = msgspec.json.format(msgspec.json.encode(fields[field], order="deterministic"), indent=2).decode()
            yield from (f"{field}: {spelled_out(line)}" for line in text.split("\n"))


def _spell_line(text: str) -> str:
    """Spell out hidden characters and line ends, so that the text stays on its line."""
    return spelled_out(_LINE_BREAKING.sub(lambda match: f"\\x{ord(match[0]):02x}", text))
