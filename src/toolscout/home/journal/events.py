"""Events of the journal as JSON lines and as database rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from toolscout.errors import SourceError
from toolscout.types import Search, clean, digest

__all__ = ["EVENTS", "SCHEMA", "build_line", "describe_answer", "encode_fields", "parse_row"]

SCHEMA: Final = 1
EVENTS: Final[dict[str, dict[str, type]]] = {
    "search": {"search_id": str, "query": str, "shown": list},
    "call": {"tool": str, "ok": bool},
    "feedback": {"search_id": str},
}
"""Kind of event → its required fields and their types."""
ID_FIELDS: Final = {"search": ("shown",), "feedback": ("good", "bad", "withdrawn")}  # fields that list ids of tools


def build_line(uid: str, at: str, event: str, caller: str, body: str) -> dict[str, Any]:
    """Return a row as the object of an export line. `body` is JSON with the other fields."""
    return {
        "schema": SCHEMA,
        "uid": uid,
        "at": at,
        "event": event,
        "caller": caller,
        **msgspec.json.decode(body),
    }


def describe_answer(search: Search) -> dict[str, Any]:
    """Return the fields of a journal event that say what was asked and answered."""
    fields: dict[str, Any] = {"search_id": search.search_id, "query": search.query, "shown": list(search.ids)}
    return fields if search.answer is None else {**fields, "answer": search.answer}


def encode_fields(fields: Mapping[str, Any]) -> str:
    """Encode the fields of an event as the JSON `body` of its row."""
    return msgspec.json.encode(clean(dict(fields))).decode()


def parse_row(line: bytes, count_copies: Callable[[bytes], int]) -> tuple[Any, ...]:
    """Parse an export line into a row: uid, at, event, caller, search_id, body.

    Args:
        line: one line of JSON.
        count_copies: counts the line, and returns how often it has come so far. Equal lines without a uid thus get
            different ones.

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
        raise SourceError(f'expected "schema": {SCHEMA}, found {schema!r:.40}. This version cannot read it')
    if event not in EVENTS:
        raise SourceError(f'expected "event" of {", ".join(EVENTS)}, found {event!r:.40}')
    at, caller, uid = value.pop("at", None), value.pop("caller", None), value.pop("uid", None)
    if not isinstance(at, str) or not at:
        raise SourceError(f'expected "at", an ISO 8601 instant, found {at!r:.40}')
    _check_fields(event, value)
    search_id = value.get("search_id")
    if not isinstance(uid, str) or not uid:
        uid = digest("event/1", [at, event, caller, count_copies(line), clean(value)])
    return uid, at, event, caller if isinstance(caller, str) else "unknown", search_id, encode_fields(value)


def _check_fields(event: str, value: Mapping[str, Any]) -> None:
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


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
