"""Formats signatures with the type of the result, for agents that write programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolscout.types import Tool
from toolscout_gateway.text import clip, format_signature, format_type, make_plain

__all__ = ["format_stub", "reads_only"]

MAX_RESULT_FIELDS: Final = 12
MAX_RESULT_DEPTH: Final = 2
MAX_FIELD_NAME_CHARS: Final = 40
OUTSIDE_MARK: Final = " [not in run_code]"


def reads_only(tool: Tool) -> bool:
    """Return whether a tool says that it only reads."""
    return tool.hints.read_only is True and tool.hints.destructive is not True


def format_stub(tool: Tool, *, may_write: bool) -> str:
    """Format a tool as `id(param: type) -> {field: type}`, and mark one that programs may not call."""
    result = f" -> {_format_result(tool.returns, MAX_RESULT_DEPTH)}" if tool.returns else ""
    return f"{format_signature(tool)}{result}{'' if may_write or reads_only(tool) else OUTSIDE_MARK}"


def _format_result(schema: object, depth: int) -> str:
    """Format the type of a result. Objects show their fields, down to `depth` levels."""
    if not isinstance(schema, Mapping) or depth == 0:
        return format_type(schema)
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping):
        return f"[{_format_result(schema['items'], depth)}]"
    fields = schema.get("properties")
    if not isinstance(fields, Mapping) or not fields:
        return format_type(schema)
    return f"{{{', '.join(_format_fields(fields, schema.get('required'), depth))}}}"


def _format_fields(fields: Mapping[Any, Any], required: Any, depth: int) -> list[str]:
    names = list(fields)[:MAX_RESULT_FIELDS]
    always = set(required) if isinstance(required, (list, tuple)) else set()
    shown = [
        f"{clip(make_plain(str(name)), MAX_FIELD_NAME_CHARS)}{'' if name in always else '?'}: "
        f"{_format_result(fields[name], depth - 1)}"
        for name in names
    ]
    return shown if len(names) == len(fields) else [*shown, f"… {len(fields) - len(names)} more"]
