"""Screens tool text for hidden instructions, invisible characters, look-alike names and stuffing.

`scan` returns the findings of one tool, `vet` decides whether a person must approve it first, and `sanitise` cleans a
text before a model reads it. Stuffed texts (`toolscout.trust.stuffing`) harm the ranking rather than the reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal
from urllib.parse import unquote

import msgspec

from toolscout.trust.confusables import find_look_alike
from toolscout.trust.injection import ORDERS, find_orders, select_orders
from toolscout.trust.invisible import find_invisible, quote, sanitise, spelled_out
from toolscout.trust.stuffing import find_stuffing
from toolscout.types import Tool

__all__ = ["Finding", "sanitise", "scan", "spelled_out", "vet"]

Kind = Literal["instructions", "invisible", "look-alike", "stuffing"]
URI_FIELDS: Final = ("uri", "uriTemplate")  # of resources and their templates, in `meta`
_BETWEEN_WORDS: Final = re.compile(r"[\W_]+")
_BREAK: Final = re.compile("[\n\r\v\f\x85\u2028\u2029]")


class Finding(msgspec.Struct, frozen=True):
    """Something in a tool's definition that a person should see.

    Attributes:
        kind: instructions (addressed to the model), invisible (characters), look-alike (letters of a name), stuffing.
        field: `name`, `description`, or a path into the definition such as `parameters.properties.q.description`.
        message: one sentence. It quotes at most 80 characters, with invisible ones made visible.
    """

    kind: Kind
    field: str
    message: str


def scan(tool: Tool) -> list[Finding]:
    """Return everything suspicious about a tool, by field."""
    findings: list[Finding] = []
    body = "\n".join([msgspec.json.encode(tool).decode(), *(words for _, words in _spell_out_uris(tool))])
    has_controls = "\\u00" in body or "\x7f" in body  # JSON escapes control codes, but for DEL
    orders = list(ORDERS) if has_controls else select_orders(body)  # controls inside of words hide the cues in `body`
    if orders or not body.isascii():  # in ASCII without cues of orders, no text has anything to find
        for field, text in _list_texts(tool):
            findings += [Finding("invisible", field, message) for message in find_invisible(text)]
            findings += [Finding("instructions", field, message) for message in find_orders(text, orders)]
    findings += _scan_name(tool)
    if stuffing := find_stuffing(tool):
        field, message = stuffing
        findings.append(Finding("stuffing", field, message))
    unique: dict[tuple[str, str], Finding] = {}
    for finding in findings:  # the same text in two fields counts once
        unique.setdefault((finding.kind, finding.message), finding)
    return list(unique.values())


def _scan_name(tool: Tool) -> Iterator[Finding]:
    """Yield the findings that only a name can have."""
    if not tool.name.isascii() and (message := find_look_alike(tool.name, tool.description)):
        yield Finding("look-alike", "name", message)
    if _BREAK.search(tool.name):
        yield Finding("invisible", "name", f"a line break in the name “{quote(tool.name)}”")


def vet(tool: Tool) -> str | None:
    """Return why a tool that nobody has approved must wait, or None."""
    for finding in scan(tool):
        if finding.kind == "instructions":
            return f"its {finding.field} gives orders to the model"
        if finding.kind == "invisible":
            return f"its {finding.field} holds characters that nobody sees"
    return None


def _list_texts(tool: Tool) -> Iterator[tuple[str, str]]:
    """Yield (field, text) for each text that a model may read: values, and the names of parameters."""
    yield from _spell_out_uris(tool)
    unread: list[tuple[str, object]] = [  # the last one is read next
        ("tags", list(tool.tags)),
        ("meta", tool.meta),
        ("returns", tool.returns),
        ("parameters", tool.parameters),
        ("description", tool.description),
        ("name", tool.name),
    ]
    while unread:
        field, value = unread.pop()
        if isinstance(value, str):
            yield field, value
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                yield f"{field} (a key)", key
                unread.append((f"{field}.{sanitise(key)[:40]}", inner))
        elif isinstance(value, list):
            unread += [(field, inner) for inner in value]


def _spell_out_uris(tool: Tool) -> Iterator[tuple[str, str]]:
    """Yield (field, words) for each URI in `meta`: a model reads `x/ignore_all%20rules` as words."""
    for key in URI_FIELDS:
        if isinstance(uri := tool.meta.get(key), str):
            yield f"meta.{key}", _BETWEEN_WORDS.sub(" ", unquote(uri))
