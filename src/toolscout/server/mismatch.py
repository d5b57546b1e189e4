"""Says in a sentence how a request differs from what its route takes."""

from __future__ import annotations

import re
from typing import Any, Final, get_args

import msgspec

from toolscout.errors import name_nearest

__all__ = ["describe_mismatch"]

_UNKNOWN_FIELD: Final = re.compile(r"unknown field `(.+)`")
_WRONG_INSTANT: Final = re.compile(r"Expected `str` matching regex '.*'")
_UNKNOWN_VALUE: Final = re.compile(r"Invalid enum value '(.+)' - at `\$\.(\w+)`")


def describe_mismatch(error: msgspec.ValidationError, request_type: type) -> str:
    """Say what the request has and what is expected, with the nearest field or value for a misspelled one."""
    message = str(error)
    message = _WRONG_INSTANT.sub("a time that is not like 2026-05-31T12:00:00Z", message)
    sentence = f"expected a request as described in /openapi.json, found: {message}"
    fields = {field.encode_name: field for field in msgspec.structs.fields(request_type)}
    if match := _UNKNOWN_FIELD.search(message):
        return f"{sentence}. {name_nearest(match[1], fields, f'It takes {_join(fields)}.')}"
    if match := _UNKNOWN_VALUE.search(message):
        kind = fields[match[2]].type if match[2] in fields else ""
        values = _list_values(kind)
        allowed = f"It is {'a number or ' if _takes_number(kind) else ''}one of {_join(values)}."
        return f"{sentence}. {name_nearest(match[1], values, allowed) if values else ''}".strip()
    return sentence


def _list_values(annotation: Any) -> list[str]:
    """List the texts that a type of literals allows."""
    if isinstance(annotation, str):
        return [annotation]
    return [value for part in get_args(annotation) for value in _list_values(part)]


def _takes_number(annotation: Any) -> bool:
    """Tell whether a type allows whole numbers."""
    return annotation is int or any(_takes_number(part) for part in get_args(annotation))


def _join(names: Any) -> str:
    return ", ".join(names) or "nothing"
