"""Repairs obvious slips of models in arguments, and suggests a repair for those that are not obvious.

Only arguments that a schema refuses are touched. A repair is taken if the schema accepts its result, and the answer
says what was read. Everything else comes back as a suggestion, which the caller may send.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from toolscout.errors import UserError, find_close
from toolscout.types import Tool
from toolscout_gateway.calls.arguments import Validators
from toolscout_gateway.text import (
    MAX_IDS_PER_DESCRIPTION,
    MAX_QUERIES_PER_SEARCH,
    META_TOOL_RECORDS,
    clip,
    format_signature,
    make_plain,
)

__all__ = ["add_notes", "check_arguments", "read_request", "repair_request"]

MAX_REPAIR_DEPTH: Final = 6
MAX_REPAIR_S: Final = 0.5
MAX_RENAMED: Final = 20  # unknown names of one object that are compared with the declared ones
MAX_UNKNOWN: Final = 50  # unknown names that a meta-tool takes, as the arguments of a tool
MAX_ENCODED_CHARS: Final = 100_000  # of a text that may show JSON or a list: its parser lets no other thread run
MAX_PYTHON_CHARS: Final = 10_000  # of one in Python's words: its parser is slow, and lets no other thread run
MAX_SHOWN_CHARS: Final = 60
MAX_SUGGESTED_CHARS: Final = 400
WHOLE_NUMBER: Final = re.compile(r"-?(0|[1-9]\d{0,17})")  # a leading zero suggests an identifier
NUMBER: Final = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d{1,15})?")
LIST_SEPARATORS: Final = re.compile(r"[,;|\n]")
WORDS_FOR: Final = {"yes": True, "y": True, "on": True, "1": True, "no": False, "n": False, "off": False, "0": False}
ARGUMENT_WRAPPERS: Final = ("arguments", "args", "params", "parameters", "input", "inputs", "kwargs")
MOST_ITEMS: Final = {
    "search_tools": ("queries", MAX_QUERIES_PER_SEARCH),
    "describe_tools": ("ids", MAX_IDS_PER_DESCRIPTION),
}
ALIASES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "search_tools": {
        "queries": ("query", "q", "search", "text", "requests", "questions"),
        "limit": ("top_k", "k", "n", "max_results"),
    },
    "describe_tools": {"ids": ("id", "tools", "tool", "names", "name", "tool_ids")},
    "read_result": {"handle": ("result", "id", "result_id"), "grep": ("pattern", "search", "query")},
    "call_tool": {
        "id": ("tool_id", "tool", "tool_name", "name"),
        "arguments": ("args", "params", "parameters", "input", "inputs", "tool_input", "kwargs"),
        "search_id": ("searchId",),
    },
    "run_code": {"code": ("program", "script", "source", "python"), "search_id": ("searchId",)},
}
Arguments = dict[str, Any]


def read_request(validators: Validators, name: str, given: Arguments) -> tuple[Arguments, list[str], list[str]]:
    """Check the arguments of a meta-tool, and repair them if they have faults.

    Returns:
        The arguments, a sentence for each repair, and a sentence for each fault that remains.
    """
    record = META_TOOL_RECORDS[name]
    unknown = given.keys() - _properties(record.parameters or {}).keys() if len(given) > MAX_UNKNOWN else ()
    if len(unknown) > MAX_UNKNOWN:
        return given, [], [f"expected the arguments of {name}, found {len(unknown)} unknown names"]
    if validators.accepts_at_once(record, given):
        return given, [], []
    if too_many := _count_items(name, given):
        return given, [], too_many
    faults = _explain_own_faults(validators, name, given)
    if not faults:
        return given, [], []
    arguments, notes = repair_request(validators, name, given)  # `given` itself if there is no repair
    return arguments, notes, faults if arguments is given else []


def repair_request(validators: Validators, name: str, given: Arguments) -> tuple[Arguments, list[str]]:
    """Repair the arguments of a meta-tool.

    Args:
        validators: check them.
        name: of the meta-tool.
        given: its arguments.

    Returns:
        The arguments and a sentence for each repair; `given` itself if there is nothing or no way to repair.
    """
    if not _explain_own_faults(validators, name, given):
        return given, []
    notes: list[str] = []
    arguments = _use_names(name, dict(given), notes)
    if name == "call_tool":
        _find_call_arguments(arguments, notes)
    if name == "search_tools" and isinstance(queries := arguments.get("queries"), list):
        texts = [query.get("query") if isinstance(query, dict) and len(query) == 1 else query for query in queries]
        if texts != queries:
            notes.append("'queries' was read as a list of texts")
        arguments["queries"] = texts
    arguments = _Repairer(notes, meta_tool=True).repair_object(arguments, META_TOOL_RECORDS[name].parameters or {}, "")
    return (arguments, notes) if not _explain_own_faults(validators, name, arguments) else (given, [])


def _explain_own_faults(validators: Validators, name: str, arguments: Arguments) -> list[str]:
    """Explain the faults in the arguments of a meta-tool. What cannot be checked in bounded steps is a fault."""
    record = META_TOOL_RECORDS[name]
    return _count_items(name, arguments) or validators.explain_faults(record, arguments, must_end=True)


def _count_items(name: str, arguments: Arguments) -> list[str]:
    """Explain that a list has more items than a meta-tool takes. Empty if none has."""
    parameter, most = MOST_ITEMS.get(name, ("", 0))
    items = arguments.get(parameter)
    if not isinstance(items, list) or len(items) <= most:
        return []
    return [f"parameter {parameter!r}: expected at most {most} items, found {len(items):,}: send them in several calls"]


def _use_names(name: str, arguments: Arguments, notes: list[str]) -> Arguments:
    """Replace the wrong names of parameters that models use by the right ones, in `arguments` itself."""
    for right, aliases in ALIASES[name].items():
        present = [alias for alias in aliases if alias in arguments]
        if right in arguments or len(present) != 1:
            continue
        [wrong] = present
        value = arguments[wrong]
        if right == "arguments" and not (isinstance(value, dict) or str(value).lstrip().startswith("{")):
            continue
        arguments[right] = arguments.pop(wrong)
        notes.append(f"{wrong!r} was read as {right!r}")
    return arguments


def _find_call_arguments(arguments: Arguments, notes: list[str]) -> None:
    """Move the values beside `id` into `arguments` if that is missing; without any it becomes an empty object."""
    value = arguments.get("arguments")
    beside = {key: arguments[key] for key in arguments if key not in ("id", "arguments", "search_id", "detail")}
    if value in (None, "", [], {}) and beside and "id" in arguments:
        for key in beside:
            del arguments[key]
        arguments["arguments"] = beside
        notes.append("what stood beside 'id' was read as 'arguments'")
    elif value in (None, "", []):
        arguments["arguments"] = {}
    elif isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        arguments["arguments"] = value[0]
        notes.append("the one object in the list was read as 'arguments'")


def check_arguments(
    validators: Validators, tool: Tool, arguments: dict[str, object], notes: list[str]
) -> dict[str, object]:
    """Return the arguments of a call, with obvious slips repaired. Each repair becomes a note.

    Raises:
        UserError: on what is wrong, with the arguments that the caller may have meant.
    """
    wrong = validators.explain_faults(tool, arguments)
    if not wrong:
        return arguments
    repaired, repairs = _repair_arguments(validators, tool, arguments)
    if repairs:
        notes += repairs
        return repaired
    meant = _suggest_arguments(validators, tool, arguments)
    advice = f"if you mean {meant}, send that" if meant else f"its signature is {format_signature(tool)}"
    raise UserError(f"wrong arguments for {tool.id}: {'; '.join(wrong)}; {advice}")


def add_notes(result: Any, notes: Sequence[str]) -> Any:
    """Add to a result what was read differently from what was sent. The tool's own parts stay as they are."""
    from mcp_types import InputRequiredResult, TextContent

    if not notes or isinstance(result, InputRequiredResult):
        return result
    note = TextContent(text=f"Note of the gateway: {'; '.join(notes)}.")
    return result.model_copy(update={"content": [*result.content, note]})


def _repair_arguments(validators: Validators, tool: Tool, given: Arguments) -> tuple[Arguments, list[str]]:
    """Repair the arguments of a tool. Returns them with a sentence for each repair, or as given without one."""
    schema = tool.parameters or {}
    for arguments, unwrap_notes in _unwrap(schema, given):
        notes = list(unwrap_notes)
        repaired = _Repairer(notes).repair_object(arguments, schema, "")
        if notes and not validators.explain_faults(tool, repaired):
            return repaired, notes
    return given, []


def _suggest_arguments(validators: Validators, tool: Tool, given: Arguments) -> str:
    """Suggest arguments without fault that the caller may have meant, as JSON. Empty if there are none."""
    schema = tool.parameters or {}
    for arguments, unwrap_notes in _unwrap(schema, given):
        notes = list(unwrap_notes)
        guessed = _Repairer(notes, guesses=True).repair_object(arguments, schema, "")
        if notes and not validators.explain_faults(tool, guessed):
            return clip(make_plain(_encode(guessed)), MAX_SUGGESTED_CHARS)
    return ""


def _unwrap(schema: Mapping[str, object], given: Arguments) -> list[tuple[Arguments, list[str]]]:
    """Return the arguments as given, and, if one object is around them that the schema does not know, those inside it.

    Each comes with its notes: none, or a sentence on the object that was taken off.
    """
    readings: list[tuple[Arguments, list[str]]] = [(given, [])]
    if len(given) == 1:
        [(key, inner)] = given.items()
        if isinstance(inner, dict) and key in ARGUMENT_WRAPPERS and key not in _properties(schema):
            readings.append((inner, [f"the object in {key!r} was read as the arguments"]))
    return readings


class _Repairer:
    """Repairs a value by its schema, in all its levels. Values that no repair makes valid stay as they are.

    Attributes:
        notes: receives a sentence for each repair.
        guesses: whether a reading that is only likely counts too.
        meta_tool: whether the schema is that of a meta-tool: a text for `queries` is one query, one for `ids` may be
            several ids.
        ends: on the clock of `time.monotonic`, when the rest is left as it is.
    """

    def __init__(
        self, notes: list[str], *, guesses: bool = False, meta_tool: bool = False, ends: float | None = None
    ) -> None:
        self.notes, self.guesses, self.meta_tool = notes, guesses, meta_tool
        self.ends = time.monotonic() + MAX_REPAIR_S if ends is None else ends

    def repair_object(self, value: Arguments, schema: Mapping[str, object], where: str, depth: int = 0) -> Arguments:
        """Repair the names and values of an object."""
        properties = _properties(schema)
        names = schema.get("required")
        required = {name for name in names if isinstance(name, str)} if isinstance(names, (list, tuple)) else set()
        value = self._rename(value, properties, required, schema.get("additionalProperties") is False)
        repaired: Arguments = {}
        for name, inner in value.items():
            place = f"{where}.{name}" if where else str(name)
            own = _resolve(properties.get(name))
            if inner is None and own is not None and name not in required and not _accepts(own, None):
                self.notes.append(f"{place!r}: null was read as left out")
                continue
            repaired[name] = inner if own is None else self._repair(inner, own, place, depth + 1)
        return repaired

    def _rename(
        self, value: Arguments, properties: Mapping[str, object], required: set[str], closed: bool
    ) -> Arguments:
        """Use declared names for names that differ in case, hyphens and underscores, or, as a guess, in letters.

        `closed`: whether the schema allows no other names. If it allows them, only required names are used.
        """
        renamed = dict(value)
        unknown = list(itertools.islice((name for name in value if name not in properties), MAX_RENAMED))
        free = [other for other in properties if unknown and other not in value and (closed or other in required)]
        folded: dict[str, list[str]] = {}
        for other in free:
            folded.setdefault(_fold_name(other), []).append(other)
        for name in unknown:
            same = folded.get(_fold_name(name), [])
            if self.guesses and not same and time.monotonic() < self.ends:
                same = find_close(name, free, cutoff=0.6)
            if len(same) == 1:
                renamed = {same[0] if key == name else key: inner for key, inner in renamed.items()}
                self.notes.append(f"{name!r} was read as {same[0]!r}")
        return renamed

    def _repair(self, value: object, schema: Mapping[str, object], where: str, depth: int) -> object:
        """Repair one value."""
        if depth > MAX_REPAIR_DEPTH or time.monotonic() > self.ends:
            return value
        if isinstance(value, dict) and _properties(schema):
            return self.repair_object(value, schema, where, depth)
        items = _resolve(schema.get("items"))
        if isinstance(value, list) and items is not None and "array" in _types(schema):
            return [self._repair(inner, items, f"{where}.{n}", depth + 1) for n, inner in enumerate(value)]
        if _accepts(schema, value):
            return self._choose(value, schema, where)
        for converted in self._convert(value, schema, where):
            if _accepts(schema, converted):
                self.notes.append(f"{where!r}: {_show(value)} was read as {_show(converted)}")
                return self._silence()._repair(converted, schema, where, depth + 1)  # the note above is enough
        return value

    def _choose(self, value: object, schema: Mapping[str, object], where: str) -> object:
        """Use the one choice of a schema that differs from a text in case, hyphens and underscores only."""
        choices = schema.get("enum")
        if not isinstance(value, str) or not isinstance(choices, list) or value in choices:
            return value
        texts = [choice for choice in choices if isinstance(choice, str)]
        folded = _fold_name(value)  # once: text and choices may both be long
        same = [choice for choice in texts if _fold_name(choice) == folded]
        if self.guesses and not same:
            same = find_close(value, texts, cutoff=0.6)
        if len(same) != 1:
            return value
        self.notes.append(f"{where!r}: {_show(value)} was read as {_show(same[0])}")
        return same[0]

    def _convert(self, value: object, schema: Mapping[str, object], where: str) -> list[object]:
        """List the values that a value of a wrong type may stand for, the likeliest first. They may not be valid."""
        types, items = _types(schema), _resolve(schema.get("items"))
        if isinstance(value, str):
            candidates = self._read_text(value, types)
            candidates += self._split_text(value, items, where) if "array" in types else []
        elif isinstance(value, list):  # a list of one value where the value itself is wanted
            candidates = [*value] if len(value) == 1 and not isinstance(value[0], (list, type(None))) else []
        else:
            candidates = self._read_scalar(value, types)
        if "array" in types and not isinstance(value, (list, str, type(None))):  # one value where a list is wanted
            item = self._silence()._repair(value, items or {}, where, 1)
            candidates += [[item]] if items is None or _accepts(items, item) else []
        return candidates

    def _read_scalar(self, value: object, types: frozenset[str]) -> list[object]:
        """Read a number, a boolean or null as a value of another type."""
        if "string" in types and isinstance(value, int) and not isinstance(value, bool):
            return [str(value)]
        if "string" in types and self.guesses and isinstance(value, (float, bool)):
            return [_encode(value)]
        if "boolean" in types and self.guesses and value in (0, 1):
            return [bool(value)]
        return []

    def _silence(self) -> _Repairer:
        """Return a repairer like this one, but with notes that nobody reads."""
        return _Repairer([], guesses=self.guesses, meta_tool=self.meta_tool, ends=self.ends)

    def _read_text(self, text: str, types: frozenset[str]) -> list[object]:
        """Read a text as the JSON value that it shows, or else as the one that it may mean."""
        shown = text.strip()
        readings = _read_json(shown, types)
        return _guess_value(shown, types) if self.guesses and not readings else readings

    def _split_text(self, text: str, items: Mapping[str, object] | None, where: str) -> list[object]:
        """Read a text as a list with this text as its only item.

        A text that may be several values is split only as a guess.
        """
        if items is None or len(text) > MAX_ENCODED_CHARS:
            return []
        one_query = self.meta_tool and where == "queries"
        parts = [text] if one_query else [part.strip() for part in LIST_SEPARATORS.split(text) if part.strip()]
        if len(parts) > 1 and not (self.guesses or self.meta_tool):
            return []
        silent = self._silence()
        return [[silent._repair(part, items, where, 1) for part in parts]] if parts else []


def _read_json(shown: str, types: frozenset[str]) -> list[object]:
    """Read a text as the JSON value that it shows, if it is of one of the types."""
    if "integer" in types and WHOLE_NUMBER.fullmatch(shown):
        return [int(shown)]
    if "number" in types and NUMBER.fullmatch(shown):
        return [_parse_number(shown)]
    if "boolean" in types and shown.casefold() in ("true", "false"):
        return [shown.casefold() == "true"]
    if {"{": "object", "[": "array"}.get(shown[:1]) in types:
        return _decode(shown)
    return [None] if "null" in types and shown == "null" else []


def _guess_value(shown: str, types: frozenset[str]) -> list[object]:
    """Read a text as the value that it may mean: `yes`, `1,000`."""
    if "boolean" in types and shown.casefold() in WORDS_FOR:
        return [WORDS_FOR[shown.casefold()]]
    bare = shown.replace(",", "").replace("_", "").lstrip("+").lstrip("0") or "0"
    return [_parse_number(bare)] if {"integer", "number"} & types and NUMBER.fullmatch(bare) else []


def _parse_number(text: str) -> int | float:
    return float(text) if "." in text else int(text)


# --- schemas ----------------------------------------------------------------------------------------------------------


def _properties(schema: Mapping[str, object]) -> Mapping[str, object]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _resolve(schema: object) -> Mapping[str, object] | None:
    """Return the schema that a value must match. None if it is a reference, or not one kind of value.

    A choice (`anyOf`) between one kind and `null` becomes that kind with `null` allowed.
    """
    if not isinstance(schema, Mapping):
        return None
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        if isinstance(branches, list):
            real = [branch for branch in branches if isinstance(branch, Mapping) and branch.get("type") != "null"]
            if len(real) == 1:
                kind = real[0].get("type")
                has_null = len(real) < len(branches)
                return {**real[0], "type": [kind, "null"]} if has_null and isinstance(kind, str) else real[0]
            return _join_kinds(branches)
    return schema if "$ref" not in schema else None


def _join_kinds(branches: Sequence[object]) -> Mapping[str, object] | None:
    """Return a schema with the types of all branches. None if one of them names none."""
    kinds = [branch.get("type") for branch in branches if isinstance(branch, Mapping)]
    return {"type": [kind for kind in kinds if isinstance(kind, str)]} if all(kinds) else None


def _types(schema: Mapping[str, object]) -> frozenset[str]:
    """Return the types that a schema names. Empty: it names none."""
    kind = schema.get("type")
    kinds = [kind] if isinstance(kind, str) else kind if isinstance(kind, (list, tuple)) else []
    return frozenset(name for name in kinds if isinstance(name, str))


def _accepts(schema: Mapping[str, object], value: object) -> bool:
    """Return whether a value has a type of the schema. Every value has, if the schema names none."""
    types = _types(schema)
    if not types:
        return True
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return bool({"integer", "number"} & types)
    names = {str: "string", float: "number", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value), "") in types


def _decode(text: str) -> list[Any]:
    """Decode JSON, or the same with the quotes and words of Python."""
    if len(text) > MAX_ENCODED_CHARS:
        return []
    for decode in (json.loads, ast.literal_eval)[: 2 if len(text) <= MAX_PYTHON_CHARS else 1]:
        with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return [json.loads(json.dumps(decode(text), allow_nan=False))]  # Python knows values that JSON does not
    return []


def _fold_name(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()


def _encode(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return repr(value)


def _show(value: object) -> str:
    return clip(make_plain(_encode(value)), MAX_SHOWN_CHARS)
