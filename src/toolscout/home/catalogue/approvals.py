"""Approvals: remembers the approved definition of each foreign tool, and holds back changed ones.

Foreign tools come from MCP servers and from OpenAPI documents at a URL. For such documents, hosts and credentials are
approved as well: a new operation may use only those that approved operations of its source use.

A definition is compared and then approved or held back in the same write transaction that would put it into the
catalogue. So all functions take the connection of a transaction.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    "Definitions",
    "Vet",
    "WaitingDefinition",
    "count_approved",
    "describe_change",
    "explain_waiting",
    "fingerprint_definition",
    "hold_back",
    "list_waiting_ids",
    "needs_approval",
    "pin_placeholders",
    "record_approved",
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
LOST: Final = "lost approvals of"  # a key in the table meta, before the name of a source that may have lost some
MAX_FLIPS: Final = 2  # changes of one definition within the window; one change and its reversal are harmless
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


Definitions = Mapping[str, tuple[Tool, str]]  # id → (definition, its fingerprint; see `fingerprint_definition`)
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


def fingerprint_definition(tool: Tool) -> str:
    """Return the fingerprint of a tool, or `GROUP:FINGERPRINT` of other definitions, as `prompts:…` (see `OFFER`)."""
    group = tool.meta.get(OFFER)
    return f"{group}:{tool.fingerprint}" if isinstance(group, str) else tool.fingerprint


def _bound_ids(source: str) -> tuple[str, str]:
    """Return two texts between which the ids of a source, `SOURCE/…`, are sorted; "0" follows "/"."""
    return f"{source}/", f"{source}0"


def _read_approved(connection: Connection, source: str) -> dict[str, str]:
    """Return id → fingerprint of the approved definitions of a source."""
    query = "SELECT id, fingerprint FROM pins WHERE id > ? AND id < ?"
    return dict(connection.execute(query, _bound_ids(source)))


def _is_in_group(fingerprint: str, group: str) -> bool:
    """Return whether a fingerprint of `fingerprint_definition` is of a group; the group of tools is empty."""
    return fingerprint.rpartition(":")[0] == group


def hold_back(
    connection: Connection,
    source: str,
    definitions: Definitions,
    vet: Vet | None,
    at: str,
    *,
    group: str = "",
    whole: bool = True,
) -> dict[str, bool]:
    """Compare the definitions of a source with the approved ones: approve new ones, and hold back changed ones.

    Afterwards the quarantine has no other definitions of the group and the source than those that wait now. If
    `definitions` are not all of the group, this is true of their ids alone.

    Args:
        connection: in a write transaction.
        source: its name, with which all ids begin.
        definitions: what was read now.
        vet: screens definitions that were never approved.
        at: the present instant.
        group: what the definitions are: tools (empty), or what `OFFER` names. Other groups of the source stay.
        whole: whether `definitions` are all of the group. Others of the group then leave the quarantine.

    Returns:
        Id → whether it waits since now, for each definition that waits.
    """
    approved = _read_approved(connection, source)
    waited = {  # id → fingerprint of the definition that waited until now
        id: fingerprint
        for id, fingerprint in list_waiting_ids(connection, source)
        if _is_in_group(fingerprint, group) and (whole or id in definitions)
    }
    # Approved definitions are needed only to compare hosts and credentials, which only operations of documents have.
    needs_tools = bool(approved) and any(
        "server" in tool.meta and approved.get(id) != fingerprint for id, (tool, fingerprint) in definitions.items()
    )
    approved_tools = _read_approved_tools(connection, source) if needs_tools else {}
    alternating = _track_alternation(connection, source, definitions, {**approved, **waited}, at)
    reasons = _find_reasons(definitions, approved, approved_tools, alternating, vet)
    record_approved(connection, [definitions[id] for id in definitions if id not in approved and id not in reasons], at)
    return _replace_quarantine(connection, source, definitions, reasons, waited, at)


def _find_reasons(
    definitions: Definitions,
    approved: Mapping[str, str],
    approved_tools: Mapping[str, Tool],
    alternating: AbstractSet[str],
    vet: Vet | None,
) -> dict[str, str]:
    """Return id → why its definition must wait, for each definition that must.

    Args:
        definitions: what was read now.
        approved: id → fingerprint of the approved definition.
        approved_tools: id → approved definition; empty if no host or credential can have changed.
        alternating: ids of tools that alternate between definitions.
        vet: screens definitions that were never approved.
    """
    destinations = frozenset().union(*map(_list_destinations, approved_tools.values()))
    reasons: dict[str, str] = {}
    for id, (tool, fingerprint) in definitions.items():
        why = None
        if id in alternating:
            why = ALTERNATES
        elif id not in approved:
            why = vet(tool) if vet else None
            if not why and approved_tools:  # at the first reading of a source no host is approved yet
                why = _explain_new_destination(tool, destinations)
        elif approved[id] == _make_placeholder(id).fingerprint:
            why = LOST_APPROVAL
        elif approved[id] != fingerprint:
            why = _explain_change(approved_tools[id], tool) if id in approved_tools else CHANGED
        if why is not None:
            reasons[id] = why
    return reasons


def _replace_quarantine(
    connection: Connection,
    source: str,
    definitions: Definitions,
    reasons: Mapping[str, str],
    waited: Mapping[str, str],
    at: str,
) -> dict[str, bool]:
    """Make the quarantine of a source contain the definitions in `reasons`.

    A row stays as it is, with its instant, if the same definition waited for the same reason.

    Args:
        connection: in a write transaction.
        source: its name.
        definitions: id → (definition, fingerprint), as read now.
        reasons: id → why the definition must wait.
        waited: id → fingerprint of the definition that waited until now; all of them are replaced.
        at: the present instant.

    Returns:
        Id → whether it waits since now, for each id in `reasons`.
    """
    old_reasons = dict(connection.execute("SELECT id, why FROM quarantine WHERE source = ?", (source,)))
    is_new = {id: (waited.get(id), old_reasons.get(id)) != (definitions[id][1], why) for id, why in reasons.items()}
    obsolete = [(id,) for id in waited if is_new.get(id, True)]
    connection.executemany("DELETE FROM quarantine WHERE id = ?", obsolete)
    added = [(id, *definitions[id]) for id, new in is_new.items() if new]
    connection.executemany(
        "INSERT INTO quarantine VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET source = excluded.source, "
        "fingerprint = excluded.fingerprint, body = excluded.body, since = excluded.since, why = excluded.why",
        [(id, source, fingerprint, _encode(tool), at, reasons[id]) for id, tool, fingerprint in added],
    )
    return is_new


def _read_approved_tools(connection: Connection, source: str) -> dict[str, Tool]:
    """Return id → approved definition, for a source."""
    rows = connection.execute("SELECT id, body FROM pins WHERE id > ? AND id < ?", _bound_ids(source))
    return {id: _DECODER.decode(body) for id, body in rows}


def _list_destinations(tool: Tool) -> frozenset[tuple[str, ...]]:
    """List where calls of an operation go: (host,), and (host, name, scheme as JSON) of each credential it receives."""
    if "server" not in tool.meta:
        return frozenset()
    host = _format_host(tool.meta["server"])
    schemes: Mapping[str, object] = tool.meta.get("security_schemes", {})
    credentials = (
        (host, name, msgspec.json.encode(scheme, order="deterministic").decode()) for name, scheme in schemes.items()
    )
    return frozenset([(host,), *credentials])


def _format_host(server: str) -> str:
    """Return scheme, host and port of a server's URL, the same for all spellings; a text that is no URL as it is."""
    try:
        parts = urlsplit(server)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        return f"{parts.scheme}://{parts.hostname}:{port}"
    except ValueError:
        return server


def _explain_new_destination(tool: Tool, destinations: frozenset[tuple[str, ...]]) -> str | None:
    """Return why an operation that was never approved must wait, or None.

    Args:
        tool: the operation.
        destinations: of all approved operations of its source; see `_list_destinations`.
    """
    unknown = _list_destinations(tool) - destinations
    if not unknown:
        return None
    is_new_host = any(len(destination) == 1 for destination in unknown)  # (host,)
    return NEW_SERVER if is_new_host else NEW_CREDENTIALS


def _explain_change(approved: Tool, tool: Tool) -> str:
    """Return the most important change of a definition as a clause: the server, the credentials, or anything else."""
    if approved.meta.get("server") != tool.meta.get("server"):
        return OTHER_SERVER
    keys = ("security", "security_schemes")
    return CHANGED if all(approved.meta.get(key) == tool.meta.get(key) for key in keys) else OTHER_CREDENTIALS


def _track_alternation(
    connection: Connection, source: str, definitions: Definitions, last: Mapping[str, str], at: str
) -> set[str]:
    """Record each definition that changed since the last reading (a flip), and find tools that alternate.

    Args:
        connection: in a write transaction.
        source: its name.
        definitions: what was read now.
        last: id → fingerprint of the definition that waited, or else of the approved one.
        at: the present instant.

    Returns:
        Ids that changed more than `MAX_FLIPS` times within `FLIP_WINDOW_H` hours, and ids that already wait for this
        reason. Such a tool waits for approval, not for the end of the window.
    """
    query = "SELECT id FROM quarantine WHERE source = ? AND why = ?"
    alternating = {id for (id,) in connection.execute(query, (source, ALTERNATES))}
    query = "SELECT id, fingerprint FROM flips WHERE id > ? AND id < ? ORDER BY at, rowid"
    last_flips = dict(connection.execute(query, _bound_ids(source)))  # of several flips of an id, the last remains
    last = {**last, **last_flips}  # a tool that went back to its approved definition has left the quarantine
    flips = [
        (id, at, fingerprint)
        for id, (_, fingerprint) in definitions.items()
        if last.get(id, fingerprint) != fingerprint and id not in alternating
    ]
    connection.executemany("INSERT INTO flips VALUES (?, ?, ?)", flips)
    begin = datetime.fromisoformat(at.replace("Z", "+00:00")) - timedelta(hours=FLIP_WINDOW_H)
    connection.execute("DELETE FROM flips WHERE at < ?", (format_instant(begin),))
    query = "SELECT id FROM flips WHERE id > ? AND id < ? GROUP BY id HAVING count(*) > ?"
    return alternating | {id for (id,) in connection.execute(query, (*_bound_ids(source), MAX_FLIPS))}


def record_approved(connection: Connection, approved: list[tuple[Tool, str]], at: str) -> None:
    """Record (definition, fingerprint) pairs as approved.

    A definition that its server changes to and fro counts as alternating. The table `flips` has these changes, and an
    approval deletes them, so the count begins anew. `approved_at` remains the instant of the first approval.
    """
    connection.executemany("DELETE FROM flips WHERE id = ?", ((tool.id,) for tool, _ in approved))
    connection.executemany(
        "INSERT INTO pins VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint, "
        "body = excluded.body",
        ((tool.id, fingerprint, _encode(tool), at) for tool, fingerprint in approved),
    )


def pin_placeholders(connection: Connection, ids: Iterable[str], at: str) -> None:
    """Record a placeholder for each tool without an approved definition, so that any definition of it must wait.

    Otherwise the next definition that is read would count as new, and new definitions need no approval.
    """
    approved_ids = {id for (id,) in connection.execute("SELECT id FROM pins")}
    placeholders = [_make_placeholder(id) for id in ids if id not in approved_ids]
    record_approved(connection, [(tool, tool.fingerprint) for tool in placeholders], at)


def _make_placeholder(tool_id: str) -> Tool:
    """Return a definition that stands for a lost approval: its fingerprint is that of no tool that a server offers."""
    return Tool(id=tool_id, name=tool_id.partition("/")[2], description="No definition of this tool is approved.")


def explain_waiting(
    connection: Connection, source: str, group: str, definitions: Definitions, *, whole: bool
) -> dict[str, str] | None:
    """Return id → why for the definitions that wait, if `hold_back` has compared exactly these; otherwise None.

    So definitions that have not changed since need no write transaction. The arguments are those of `hold_back`.
    """
    approved = _read_approved(connection, source)
    query = "SELECT id, fingerprint, why FROM quarantine WHERE source = ?"
    waiting = {
        id: (fingerprint, why)
        for id, fingerprint, why in connection.execute(query, (source,))
        if _is_in_group(fingerprint, group) and (whole or id in definitions)
    }
    is_compared = all(
        (waiting[id][0] if id in waiting else approved.get(id)) == fingerprint
        for id, (_, fingerprint) in definitions.items()
    )
    if not is_compared or waiting.keys() - definitions.keys():
        return None
    return {id: why for id, (_, why) in waiting.items()}


def count_approved(connection: Connection, source: str, group: str) -> int:
    """Return how many definitions of a source and a group of `OFFER` (not tools) are approved."""
    query = "SELECT count(*) FROM pins WHERE id > ? AND id < ? AND fingerprint LIKE ?"
    (count,) = connection.execute(query, (*_bound_ids(source), f"{group}:%")).fetchone()
    return int(count)


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
            fingerprint=fingerprint,
            since=since,
            why=why,
            approved=None if approved is None else _DECODER.decode(approved),
        )
        for body, fingerprint, since, why, approved in rows
    ]


def _encode(tool: Tool) -> bytes:
    return msgspec.json.encode(tool)


SERVER: Final = "sent to"
CREDENTIALS: Final = "with the credentials"
EQUAL_LINES: Final = 2  # around each change of a definition
_LINE_BREAKING: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def describe_change(waiting: WaitingDefinition) -> list[str]:
    """List the fields that differ from the approved definition, or all fields if the tool is new.

    The lines after a field's name begin with `- ` (approved before), `+ ` (now) or two spaces (both). A line of two
    spaces and `…` stands for equal lines ::

        description
        - Refund an order and send the money back.
        + Refund an order.
    """
    approved_fields = _format_definition(waiting.approved) if waiting.approved else {}
    fields = _format_definition(waiting.tool)
    lines: list[str] = []
    for field in dict.fromkeys((*fields, *approved_fields)):
        before, now = approved_fields.get(field, []), fields.get(field, [])
        if before != now:
            lines += [field, *_compare_lines(before, now)]
        elif field == CREDENTIALS and SERVER in lines:  # a person sees what the new server would get
            lines += [field, *(f"  {line}" for line in now)]
    return lines


def _compare_lines(before: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a diff, with a few equal lines around each change."""
    for number, group in enumerate(difflib.SequenceMatcher(None, before, now).get_grouped_opcodes(EQUAL_LINES)):
        if number:
            yield "  …"
        for tag, before_start, before_end, start, end in group:
            if tag == "equal":
                yield from (f"  {line}" for line in now[start:end])
            else:
                yield from (f"- {line}" for line in before[before_start:before_end])
                yield from (f"+ {line}" for line in now[start:end])


def _format_definition(tool: Tool) -> dict[str, list[str]]:
    """Map the fields of a definition to their lines: sentences of the description, or lines of JSON.

    Hidden characters are spelled out, so that a person sees them.
    """
    lines = {"name": [_spell_line(tool.name)]}
    if "server" in tool.meta:
        lines[SERVER] = [_spell_line(str(tool.meta["server"]))]
        for name, scheme in tool.meta.get("security_schemes", {}).items():
            parts = " ".join(str(scheme[key]) for key in ("type", "scheme", "in", "name") if key in scheme)
            lines.setdefault(CREDENTIALS, []).append(f"{_spell_line(name)} ({_spell_line(parts)})")
    sentences = re.split(r"(?<=[.!?])\s+|\n+", tool.description)
    lines["description"] = [spelled_out(sentence) for sentence in sentences]
    values = msgspec.to_builtins(tool)
    for field in ("path", "hints", "tags", "parameters", "returns", "meta"):
        if field in values:
            text = msgspec.json.format(msgspec.json.encode(values[field], order="deterministic"), indent=2).decode()
            lines[field] = [spelled_out(line) for line in text.split("\n")]
    return lines


def _spell_line(text: str) -> str:
    """Spell out hidden characters and line ends, so that the text stays on its line."""
    return spelled_out(_LINE_BREAKING.sub(lambda match: f"\\x{ord(match[0]):02x}", text))
