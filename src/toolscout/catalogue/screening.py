"""What a tool's own text tries to do to whoever reads it: hidden instructions, invisible characters, look-alike names.

`scan` looks at one tool, `vet` decides whether it may come in unseen, `sanitise` makes a text fit to be shown to a
model. What is in `toolscout.catalogue.stuffing` looks at stuffed texts, which harm the ranking and not the reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from toolscout.catalogue.confusables import find_look_alike
from toolscout.catalogue.injection import ORDERS, find_orders, select_orders
from toolscout.catalogue.invisible import find_invisible, quote, sanitise, spelled_out
from toolscout.catalogue.store import Catalogue
from toolscout.catalogue.stuffing import find_stuffing
from toolscout.types import Tool

__all__ = ["Finding", "sanitise", "scan", "spelled_out", "suspects", "vet"]

Kind = Literal["instructions", "invisible", "look-alike", "stuffing"]


_LOWERED: Final = ("instructions", "stuffing")
_BREAK: Final = re.compile("[\n\r\v\f\x85\u2028\u2029]")
FORMAT: Final = "suspects/2"  # to be raised whenever the same tool would be judged otherwise


class Finding(msgspec.Struct, frozen=True):
    """Something in a tool's definition that a person should see.

    Attributes:
        kind: instructions (addressed to the model), invisible (characters), look-alike (letters of a name), stuffing.
        field: where: `name`, `description`, or a way into the definition such as `parameters.properties.q.description`.
        message: what was found; quotes at most 80 characters, made visible.
    """

    kind: Kind
    field: str
    message: str


def scan(tool: Tool) -> list[Finding]:
    """Everything suspicious about a tool, by field."""
    found: dict[tuple[str, str], Finding] = {}  # a text that stands in two fields is found once
    body = msgspec.json.encode(tool).decode()
    escaped = "\\u00" in body or "\x7f" in body
    odd = escaped or not body.isascii()
    orders = list(ORDERS) if escaped else select_orders(body)
    for field, text in _texts(tool) if odd or orders else ():
        for message in find_invisible(text):
            found.setdefault(("invisible", message), Finding("invisible", field, message))
        for message in find_orders(text, orders):
            found.setdefault(("instructions", message), Finding("instructions", field, message))
    if not tool.name.isascii() and (seems := find_look_alike(tool.name, tool.description)):
        found["look-alike", seems] = Finding("look-alike", "name", seems)
    if _BREAK.search(tool.name):
        found["invisible", "name"] = Finding("invisible", "name", f"a line break in the name “{quote(tool.name)}”")
    if stuffing := find_stuffing(tool):
        found["stuffing", stuffing[1]] = Finding("stuffing", *stuffing)
    return list(found.values())


def vet(tool: Tool) -> str | None:
    """Why a tool that nobody has approved must wait, or None."""
    for finding in scan(tool):
        if finding.kind == "instructions":
            return f"its {finding.field} gives orders to the model"
        if finding.kind == "invisible":
            return f"its {finding.field} holds characters that nobody sees"
    return None


def suspects(catalogue: Catalogue) -> frozenset[str]:
    """Ids of the tools that a search puts behind all others: they give orders, or are stuffed."""

    def found() -> bytes:
        return msgspec.json.encode(
            [tool.id for tool in catalogue.tools() if any(each.kind in _LOWERED for each in scan(tool))]
        )

    return frozenset(msgspec.json.decode(catalogue.cached(FORMAT, found), type=list[str]))


def _texts(tool: Tool) -> Iterator[tuple[str, str]]:
    """(field, text) of everything a model may get to read: values, and the names of parameters."""
    waiting: list[tuple[str, Any]] = [
        ("tags", list(tool.tags)),
        ("meta", tool.meta),
        ("returns", tool.returns),
        ("parameters", tool.parameters),
        ("description", tool.description),
        ("name", tool.name),
    ]
    while waiting:
        field, value = waiting.pop()
        if isinstance(value, str):
            yield field, value
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                yield f"{field} (a key)", key
                waiting.append((f"{field}.{sanitise(key)[:40]}", inner))
        elif isinstance(value, list):
            waiting += [(field, inner) for inner in value]
