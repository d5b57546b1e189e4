"""Parses untrusted JSON and YAML with bounds on depth, values and work.

The values of YAML are built here from libyaml's events, which come one by one at any depth. The loaders of PyYAML
compose nodes recursively in C: a document of 120 kB with 60,000 levels overflows the stack and ends the process.
"""

from __future__ import annotations

import codecs
import contextlib
import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.errors import SourceError

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "MAX_DOCUMENT_DEPTH",
    "MAX_DOCUMENT_VALUES",
    "describe_json_error",
    "load_document",
    "parse_counted",
    "parse_document",
    "read_text",
]

MAX_DOCUMENT_BYTES: Final = 50_000_000
MAX_SNIFFED_BYTES: Final = 1_000
MAX_DOCUMENT_DEPTH: Final = 200
MAX_DOCUMENT_VALUES: Final = 2_000_000
MAX_COMMENTED_CHARS: Final = 2_000_000  # of JSON with comments, which people write by hand
MAX_TAGGED_CHARS: Final = 200  # a longer scalar is never a number or a date
CHARS_PER_VALUE: Final = 64  # of text behind an alias; each further 64 characters count as one more value
_MERGE: Final = "tag:yaml.org,2002:merge"
_TEXT_TAGS: Final = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:value")  # the latter is a bare =
_SCALARS: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "timestamp"))


def load_document(path: Path) -> Any:
    """Read a JSON or YAML file. JSON may contain comments, as editors allow them.

    Raises:
        SourceError: naming the file and the place of the error.
    """
    return parse_document(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Read a file of at most 50 MB as UTF-8.

    Raises:
        SourceError: naming the file and, if it is not UTF-8, the first wrong byte.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{path}: expected a readable file, found: {error.strerror}") from None
    if len(content) > MAX_DOCUMENT_BYTES:
        raise SourceError(f"{path}: expected at most {MAX_DOCUMENT_BYTES / 1e6:g} MB, found more: split the document")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if b"\0" in content[:MAX_SNIFFED_BYTES] and not is_utf16:
            raise SourceError(
                f"{path}: this is a binary file. Tools are described in text, such as JSON or YAML"
            ) from None
        raise SourceError(
            f"{path}: expected UTF-8 text, found byte {error.object[error.start]:#04x} "
            f"at offset {error.start}: save it as UTF-8"
        ) from None


def parse_document(text: str, where: str) -> Any:
    """Parse JSON or YAML. Errors name `where`.

    Raises:
        SourceError: if the text is neither, or has too many values or levels.
    """
    return parse_counted(text, where, MAX_DOCUMENT_VALUES)[0]


def parse_counted(text: str, where: str, max_values: int) -> tuple[Any, int]:
    """Parse a document of at most `max_values` values. Returns it and its number of values.

    Raises:
        SourceError: as `parse_document`.
    """
    _reject_many_values(text, where, max_values)
    try:
        return _count_values(msgspec.json.decode(text), where)
    except (msgspec.DecodeError, RecursionError):
        pass
    if not where.endswith((".yaml", ".yml")) and text.lstrip()[:1] in ("{", "[", "/"):
        plain = _strip_comments(text) if len(text) <= MAX_COMMENTED_CHARS else text
        if plain.lstrip()[:1] in ("{", "["):
            try:
                return _count_values(msgspec.json.decode(plain), where)
            except (msgspec.DecodeError, RecursionError) as error:
                reason = describe_json_error(plain, error)
            if "\n{" in text.strip():  # JSON lines in a file with the suffix of JSON
                with contextlib.suppress(msgspec.DecodeError, RecursionError):
                    return _count_values(msgspec.json.Decoder().decode_lines(text), where)
            raise SourceError(f"{where}: expected JSON, found an error {reason}")
    return _parse_yaml(text, where, max_values)


def describe_json_error(text: str | bytes, error: Exception) -> str:
    """Say where a JSON text is wrong and how: `in line 3, column 18: invalid character`, counted from 1."""
    reason = str(error).removeprefix("JSON is malformed: ") or "it is too deeply nested"
    content = text.encode() if isinstance(text, str) else text
    place = re.search(r" \(byte (\d+)\)$", reason)
    if place is not None:
        reason, content = reason[: place.start()], content[: int(place[1])]
    elif reason == "Input data was truncated":
        reason = "it ends too early"
    else:
        return f"in it: {reason}"
    line, column = content.count(b"\n") + 1, len(content.rpartition(b"\n")[2].decode(errors="replace")) + 1
    return f"in line {line}, column {column}: {reason}"


def _report_too_many(where: str) -> SourceError:
    return SourceError(
        f"{where}: the document holds more than {MAX_DOCUMENT_VALUES:,} values, counting those behind its aliases: "
        "split it"
    )


def _report_too_deep(where: str) -> SourceError:
    return SourceError(f"{where}: the document nests deeper than {MAX_DOCUMENT_DEPTH} levels: flatten it")


def _reject_many_values(text: str, where: str, max_values: int) -> None:
    """Refuse JSON with too many values before it is decoded.

    Each value follows a bracket or a comma. Only if there are too many, those inside strings are subtracted.
    """
    if text.count(",") + text.count("[") + text.count("{") <= max_values:
        return
    if text.lstrip()[:1] not in ("{", "["):
        return  # the builder of YAML counts values itself
    outside = re.sub(r'"[^"]*"?', "", text.replace("\\\\", "").replace('\\"', ""))
    if outside.count(",") + outside.count("[") + outside.count("{") > max_values:
        raise _report_too_many(where)


def _count_values(value: Any, where: str) -> tuple[Any, int]:
    """Return a value and its number of values. Raises SourceError below 200 levels; the decoder stops at 1,000."""
    level, count = [value], 0
    for _ in range(MAX_DOCUMENT_DEPTH + 1):
        count += len(level)
        parts = [node for node in level if isinstance(node, (dict, list)) and node]
        if not parts:
            return value, count
        level = [inner for node in parts for inner in (node.values() if isinstance(node, dict) else node)]
    raise _report_too_deep(where)


_STRING: Final = r'"(?:[^"\\]+|\\.?)*(?:"|\Z)'  # an open string ends with the text: no backtracking
_COMMENT: Final = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?(?:\*/|\Z)", re.S)
_TRAILING_COMMA: Final = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.S)


def _strip_comments(text: str) -> str:
    """Replace `//` and `/* */` comments and trailing commas in JSON by spaces. Strings and lines stay as they are."""
    text = _COMMENT.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), text)
    return _TRAILING_COMMA.sub(lambda match: match[1] or " ", text)


# --- YAML -------------------------------------------------------------------------------------------------------------


class _Anchored(NamedTuple):
    """A value with an anchor: the value, its levels, and its number of values with all aliases expanded."""

    value: Any
    depth: int
    weight: int


class _Open:
    """A collection that has begun and not yet ended."""

    __slots__ = ("anchor", "depth", "items", "key", "merged", "value", "weight")

    def __init__(self, value: Any, anchor: str | None) -> None:
        self.value, self.anchor = value, anchor
        self.key: Any = _NO_KEY
        self.merged: list[Any] = []
        self.depth = self.weight = 1


_NO_KEY: Final = object()
_MERGE_KEY: Final = object()


def _parse_yaml(text: str, where: str, max_values: int) -> tuple[Any, int]:
    import yaml

    if re.search(r"^%TAG", text, re.M):  # libyaml needs quadratic time for them
        raise SourceError(f"{where}: expected YAML without %TAG directives, found one: write the tags out")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(where, max_values).build(yaml.parse(text, Loader=loader))
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, AttributeError, KeyError) as error:
        if "nesting depth" in str(getattr(error, "problem", None)):  # libyaml reads ahead, and has a limit of its own
            raise _report_too_deep(where) from None
        raise SourceError(f"{where}: expected JSON or YAML, found neither: {_describe_yaml_error(error)}") from None


def _describe_yaml_error(error: Exception) -> str:
    """Say where a YAML text is wrong, by line and column from 1 if they are known, and what is wrong there."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', None) or 'an error'}"
    return " ".join(str(getattr(error, "reason", None) or error).split())[:200] or type(error).__name__


class _Builder:
    """Builds the value of a YAML document from its events, with a stack of its own.

    It is stricter than PyYAML's safe loader. A value cannot contain itself. Values behind aliases and merge keys count
    as often as they occur. Only the tags of scalars, lists and objects are known.
    """

    def __init__(self, where: str, max_values: int) -> None:
        import yaml

        self._where, self._max_values = where, max_values
        self._types = yaml.events
        self._scalars: Any = yaml.SafeLoader("")  # resolves and constructs plain scalars
        self._node = yaml.ScalarNode
        self._anchors: dict[str, _Anchored] = {}
        self._stack: list[_Open] = []
        self._count = 0
        self._result: Any = None

    def build(self, events: Iterator[Any]) -> tuple[Any, int]:
        """Build the value of a document. Returns it and its number of values.

        Raises:
            ValueError: for a second document, an unknown tag or alias, or a key that is a collection.
            SourceError: for too many values or levels.
        """
        types, documents = self._types, 0
        for event in events:
            if isinstance(event, types.ScalarEvent):
                self._add_scalar(*self._read_scalar(event), event.anchor)
            elif isinstance(event, (types.MappingStartEvent, types.SequenceStartEvent)):
                self._open_collection(event, isinstance(event, types.MappingStartEvent))
            elif isinstance(event, (types.MappingEndEvent, types.SequenceEndEvent)):
                self._close_collection()
            elif isinstance(event, types.AliasEvent):
                self._add_alias(event.anchor)
            elif isinstance(event, types.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise ValueError("a second document in the same file")
        return self._result, self._count

    def _read_scalar(self, event: Any) -> tuple[Any, int]:
        """Return the value of a scalar, and as how many values it counts behind aliases."""
        text: str = event.value
        weight = 1 + len(text) // CHARS_PER_VALUE
        if not event.implicit[0] and event.tag is None:
            return text, weight  # quoted
        tag = event.tag
        if tag is None or tag == "!":
            if len(text) > MAX_TAGGED_CHARS or tag == "!":
                return text, weight
            tag = self._scalars.resolve(self._node, text, event.implicit)
        if tag in _TEXT_TAGS:
            return text, weight
        if tag == _MERGE:
            return (_MERGE_KEY if self._awaits_key() else text), weight
        if tag not in _SCALARS or len(text) > MAX_TAGGED_CHARS:
            raise ValueError(f"the tag {tag[:60]!r}, which is not known: leave it out")
        return self._scalars.construct_object(self._node(tag, text), deep=True), weight

    def _awaits_key(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1].value, dict) and self._stack[-1].key is _NO_KEY

    def _open_collection(self, event: Any, is_mapping: bool) -> None:
        if event.tag not in (None, "!", "tag:yaml.org,2002:map" if is_mapping else "tag:yaml.org,2002:seq"):
            raise ValueError(f"the tag {event.tag[:60]!r}, which is not known: leave it out")
        if self._awaits_key():
            raise ValueError("a list or an object as a key")
        if len(self._stack) >= MAX_DOCUMENT_DEPTH:
            raise _report_too_deep(self._where)
        self._charge(1)
        if event.anchor is not None:
            self._anchors.pop(event.anchor, None)  # no alias may name it before it ends
        self._stack.append(_Open({} if is_mapping else [], event.anchor))

    def _close_collection(self) -> None:
        closed = self._stack.pop()
        for merged in closed.merged:
            for key, value in merged.items():
                closed.value.setdefault(key, value)
        if closed.anchor is not None:
            self._anchors[closed.anchor] = _Anchored(closed.value, closed.depth, closed.weight)
        self._place_value(closed.value, closed.depth, closed.weight)

    def _add_alias(self, anchor: str) -> None:
        anchored = self._anchors.get(anchor)
        if anchored is None:
            inside = any(collection.anchor == anchor for collection in self._stack)
            what = "a value that contains itself" if inside else "no value before it"
            raise ValueError(f"the alias {anchor[:60]!r} of {what}")
        self._charge(anchored.weight)
        self._place_value(*anchored)

    def _add_scalar(self, value: Any, weight: int, anchor: str | None) -> None:
        self._charge(1)
        if anchor is not None:
            self._anchors[anchor] = _Anchored(value, 0, weight)
        self._place_value(value, 0, weight)

    def _charge(self, weight: int) -> None:
        self._count += weight
        if self._count > self._max_values:
            raise _report_too_many(self._where)

    def _place_value(self, value: Any, depth: int, weight: int) -> None:
        """Put a complete value into the innermost open collection, as a key, a value or an item."""
        if not self._stack:
            self._result = value
            return
        holder = self._stack[-1]
        holder.depth = max(holder.depth, depth + 1)
        holder.weight += weight
        if len(self._stack) + depth > MAX_DOCUMENT_DEPTH:
            raise _report_too_deep(self._where)
        if isinstance(holder.value, list):
            holder.value.append(value)
        elif holder.key is _NO_KEY:
            if not isinstance(value, Hashable):
                raise ValueError("a list or an object as a key")
            holder.key = value
        elif holder.key is _MERGE_KEY:
            self._merge(holder, value)
            holder.key = _NO_KEY
        else:
            holder.value[holder.key] = value
            holder.key = _NO_KEY

    def _merge(self, holder: _Open, value: Any) -> None:
        """Remember the objects that `<<` names. Keys of the holder itself win, then those of the first object."""
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                raise ValueError("something else than an object to merge with '<<'")
            self._charge(len(part))
            holder.merged.append(part)
