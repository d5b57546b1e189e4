"""Parses untrusted JSON and YAML with bounds on depth, values and work.

The values of YAML are built here from libyaml's events, which come one by one at any depth. The loaders of PyYAML
compose nodes recursively in C: a document of 120 kB with 60,000 levels overflows the stack and ends the process.
"""

from __future__ import annotations

import codecs
import contextlib
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from toolscout.errors import SourceError

if TYPE_CHECKING:
    import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
MAX_SNIFFED_BYTES: Final = 1_000  # in which a zero byte means a binary file
MAX_DOCUMENT_DEPTH: Final = 200
MAX_DOCUMENT_VALUES: Final = 2_000_000
MAX_TOML_CHARS: Final = 1_000_000  # which people write by hand; its parser takes 2 s for as many
MAX_COMMENTED_CHARS: Final = 2_000_000  # of JSON with comments, which people write by hand
MAX_YAML_S: Final = 10.0  # of processor time, for one document
EVENTS_PER_LOOK: Final = 5_000  # at the clock
MAX_RESOLVED_TEXTS: Final = 10_000  # plain scalars whose value is remembered
MAX_TYPED_CHARS: Final = 200  # a longer scalar is never a number, a boolean, null or a date
CHARS_PER_VALUE: Final = 64  # of text behind an alias; each further 64 characters count as one more value
_MERGE: Final = "tag:yaml.org,2002:merge"
_WHOLE_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_TEXT_TAGS: Final = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:value")  # the latter is a bare =
_SCALARS: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "timestamp"))


def load_document(path: Path) -> object:
    """Read a JSON, YAML or TOML file. JSON may contain comments, as editors allow them.

    Raises:
        SourceError: naming the file and the place of the error.
    """
    text = read_text(path)
    if path.suffix != ".toml":
        return parse_document(text, str(path))
    if len(text) > MAX_TOML_CHARS:
        raise SourceError(f"{path}: expected at most {MAX_TOML_CHARS:,} characters of TOML, found more: split it")
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SourceError(f"{path}: expected TOML, found an error: {error}") from None
    _count_values(document, str(path))  # refuses a document that nests too deep
    return document


def read_text(path: Path) -> str:
    """Read a file of at most 50 MB as UTF-8. Raises SourceError, which names the file and the first wrong byte."""
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


def parse_document(text: str, where: str) -> object:
    """Parse JSON or YAML. Errors name `where`.

    Raises:
        SourceError: if the text is neither, or has too many values or levels.
    """
    document, _ = parse_counted(text, where, MAX_DOCUMENT_VALUES)
    return document


def parse_counted(text: str, where: str, max_values: int) -> tuple[object, int]:
    """Parse a document of at most `max_values` values. Returns it and its number of values.

    Raises:
        SourceError: as `parse_document`.
    """
    _reject_many_values(text, where, max_values)
    with contextlib.suppress(msgspec.DecodeError, RecursionError):  # it may still be JSON with comments, or YAML
        document = msgspec.json.decode(text)
        return document, _count_values(document, where)
    may_be_json = not where.endswith((".yaml", ".yml")) and text.lstrip().startswith(("{", "[", "/"))
    plain = _strip_comments(text) if may_be_json and len(text) <= MAX_COMMENTED_CHARS else text
    if not may_be_json or not _begins_as_json(plain):
        return _parse_yaml(text, where, max_values)
    try:
        document = msgspec.json.decode(plain)
        return document, _count_values(document, where)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = describe_json_error(plain, error)
    if "\n{" in text.strip():  # it may be JSON lines, although the file has another suffix
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            documents = msgspec.json.Decoder().decode_lines(text)
            return documents, _count_values(documents, where)
    raise SourceError(f"{where}: expected JSON, found an error {reason}")


def _begins_as_json(text: str) -> bool:
    return text.lstrip().startswith(("{", "["))


def describe_json_error(text: str | bytes, error: Exception) -> str:
    """Say where a JSON text is wrong and how: `in line 3, column 18: invalid character`, counted from 1.

    `error` comes from msgspec's decoder. The message of a DecodeError may end with `(byte N)`.
    """
    if isinstance(error, RecursionError):
        return "in it: it is too deeply nested"
    reason = str(error).removeprefix("JSON is malformed: ")
    content = text.encode() if isinstance(text, str) else text
    offset_note = re.search(r" \(byte (\d+)\)$", reason)
    if offset_note is not None:
        content_before = content[: int(offset_note[1])]
        reason = reason[: offset_note.start()]
    elif reason == "Input data was truncated":
        content_before = content
        reason = "it ends too early"
    else:
        return f"in it: {reason}"
    line_number = content_before.count(b"\n") + 1
    _, _, line_before = content_before.rpartition(b"\n")
    column = len(line_before.decode(errors="replace")) + 1  # in characters
    return f"in line {line_number}, column {column}: {reason}"


def _build_count_error(where: str) -> SourceError:
    return SourceError(
        f"{where}: the document holds more than {MAX_DOCUMENT_VALUES:,} values, counting those behind its aliases: "
        "split it"
    )


def _build_depth_error(where: str) -> SourceError:
    return SourceError(f"{where}: the document nests deeper than {MAX_DOCUMENT_DEPTH} levels: flatten it")


def _reject_many_values(text: str, where: str, max_values: int) -> None:
    """Refuse JSON with too many values before it is decoded.

    Each value follows a bracket or a comma, so their number bounds the number of values. Strings are removed, which
    takes longer, only if there are too many brackets and commas with those inside strings.
    """
    if _count_separators(text) <= max_values or not _begins_as_json(text):
        return  # `_YamlBuilder` counts the values of YAML itself
    outside_strings = re.sub(r'"[^"]*"?', "", text.replace("\\\\", "").replace('\\"', ""))
    if _count_separators(outside_strings) > max_values:
        raise _build_count_error(where)


def _count_separators(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{")


def _count_values(value: object, where: str) -> int:
    """Return the number of values in a document. Raises SourceError if it nests deeper than 200 levels.

    The function goes down level by level, not recursively, because the decoder allows 1,000 levels.
    """
    level: list[object] = [value]
    count = 0
    for _ in range(MAX_DOCUMENT_DEPTH + 1):
        count += len(level)
        parts = [node for node in level if isinstance(node, (dict, list)) and node]
        if not parts:
            return count
        level = [inner for node in parts for inner in (node.values() if isinstance(node, dict) else node)]
    raise _build_depth_error(where)


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

    value: object
    depth: int
    weight: int


class _OpenCollection:
    """A collection that has begun and not yet ended: an object or a list.

    Attributes:
        pairs: the keys and values of an object so far. None: it is a list.
        items: the items of a list so far.
        anchor: the name by which an alias may repeat it.
        key: the key for the next value of the object. `_NO_KEY`: a key comes next.
        merged: objects that `<<` names.
        depth, weight: levels and values of what is in it so far, itself included; see `_YamlBuilder._place_value`.
    """

    __slots__ = ("anchor", "depth", "items", "key", "merged", "pairs", "weight")

    def __init__(self, anchor: str | None, *, is_mapping: bool) -> None:
        self.pairs: dict[object, object] | None = {} if is_mapping else None
        self.items: list[object] = []
        self.anchor, self.key = anchor, _NO_KEY
        self.merged: list[dict[object, object]] = []
        self.depth = self.weight = 1

    @property
    def awaits_key(self) -> bool:
        """Whether the next value is a key of an object."""
        return self.pairs is not None and self.key is _NO_KEY


_NO_KEY: Final = object()
_MERGE_KEY: Final = object()  # the key `<<`


def _parse_yaml(text: str, where: str, max_values: int) -> tuple[object, int]:
    """Parse YAML. Returns its value and the number of values in it. Raises SourceError as `parse_document` does."""
    import yaml

    if re.search(r"^%TAG", text, re.M):  # libyaml needs quadratic time for them
        raise SourceError(f"{where}: expected YAML without %TAG directives, found one: write the tags out")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _YamlBuilder(where, max_values).build(yaml.parse(text, Loader=loader))
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, AttributeError, KeyError) as error:
        if "nesting depth" in str(getattr(error, "problem", None)):  # libyaml reads ahead, and has a limit of its own
            raise _build_depth_error(where) from None
        raise SourceError(f"{where}: expected JSON or YAML, found neither: {_describe_yaml_error(error)}") from None


def _describe_yaml_error(error: Exception) -> str:
    """Say where a YAML text is wrong, by line and column from 1 if they are known, and what is wrong there."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        problem = getattr(error, "problem", None) or "an error"
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    reason = str(getattr(error, "reason", None) or error)
    return " ".join(reason.split())[:200] or type(error).__name__


class _YamlBuilder:
    """Builds the value of a YAML document from its events, with a stack of its own.

    It is stricter than PyYAML's safe loader. A value cannot contain itself. Values behind aliases and merge keys count
    as often as they occur. Only the tags of scalars, lists and objects are known.
    """

    def __init__(self, where: str, max_values: int) -> None:
        import yaml

        self._where, self._max_values = where, max_values
        self._node = yaml.ScalarNode
        self._scalars: Any = yaml.SafeLoader("")  # resolves and constructs plain scalars
        self._resolvable = frozenset(yaml.SafeLoader.yaml_implicit_resolvers)  # first characters; others are texts
        self._resolved: dict[str, object] = {}  # cache: plain text → value
        self._anchors: dict[str, _Anchored] = {}  # values that an alias may repeat
        self._stack: list[_OpenCollection] = []  # the innermost last
        self._count = 0  # values so far, with those behind aliases
        self._result: object = None
        self._deadline_s = time.thread_time() + MAX_YAML_S  # processor time of this thread

    def build(self, events: Iterable[yaml.Event]) -> tuple[object, int]:
        """Build the value of a document. Returns it and its number of values.

        Raises:
            ValueError: for a second document, an unknown tag or alias, or a key that is a collection.
            SourceError: for too many values or levels, and if it takes too long.
        """
        import yaml

        documents = 0
        for number, event in enumerate(events):
            if isinstance(event, yaml.ScalarEvent):
                self._add_scalar(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._close_collection()
            elif isinstance(event, yaml.CollectionStartEvent):
                self._open_collection(event, is_mapping=isinstance(event, yaml.MappingStartEvent))
            elif isinstance(event, yaml.AliasEvent):
                self._add_alias(str(event.anchor))
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise ValueError("a second document in the same file")
            if number % EVENTS_PER_LOOK == 0 and time.thread_time() > self._deadline_s:
                message = f"{self._where}: this YAML takes longer than {MAX_YAML_S:g} s to read: save it as JSON"
                raise SourceError(message)
        return self._result, self._count

    def _add_scalar(self, event: yaml.ScalarEvent) -> None:
        """Place a scalar. Plain text may be a number, a boolean or null; quoted text may not."""
        text = event.value
        is_plain, _ = event.implicit
        looks_typed = is_plain and text[:1] in self._resolvable
        value = self._resolve_scalar(event, text) if event.tag is not None or looks_typed else text
        weight = 1 + len(text) // CHARS_PER_VALUE
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(value, depth=0, weight=weight)
        self._add_to_count(1)  # the weight counts only where an alias repeats it
        self._place_value(value, 0, weight)

    def _resolve_scalar(self, event: yaml.ScalarEvent, text: str) -> object:
        """Return the value of a scalar that has a tag, or looks like a number, a boolean, null or a date."""
        if event.tag is not None:
            return text if event.tag == "!" else self._construct(event.tag, text)  # `!` alone means: a text
        if len(text) > MAX_TYPED_CHARS:
            return text
        if _WHOLE_NUMBER.fullmatch(text):
            return int(text)
        if text not in self._resolved:
            tag = self._scalars.resolve(self._node, text, event.implicit)
            try:
                value = self._construct(tag, text)
            except (ValueError, OverflowError):  # a date that no calendar has, such as 2023-13-45, or 0x_
                value = text
            # Whether `<<` merges depends on where it is, so its value cannot be kept for the next time.
            if tag == _MERGE or len(self._resolved) >= MAX_RESOLVED_TEXTS:
                return value
            self._resolved[text] = value
        return self._resolved[text]

    def _construct(self, tag: str, text: str) -> object:
        """Return the value of a scalar with a tag. Raises ValueError for a tag that is not known."""
        if tag in _TEXT_TAGS:
            return text
        if tag == _MERGE:
            return _MERGE_KEY if self._stack and self._stack[-1].awaits_key else text
        if tag not in _SCALARS or len(text) > MAX_TYPED_CHARS:
            raise ValueError(f"the tag {tag[:60]!r}, which is not known: leave it out")
        value: object = self._scalars.construct_object(self._node(tag, text), deep=True)
        return value

    def _open_collection(self, event: yaml.CollectionStartEvent, *, is_mapping: bool) -> None:
        """Begin a list or an object, if it is neither too deep, nor a key, nor of an unknown tag."""
        own_tag = "tag:yaml.org,2002:map" if is_mapping else "tag:yaml.org,2002:seq"
        if event.tag not in (None, "!", own_tag):
            raise ValueError(f"the tag {event.tag[:60]!r}, which is not known: leave it out")
        if self._stack and self._stack[-1].awaits_key:
            raise ValueError("a list or an object as a key")
        if len(self._stack) >= MAX_DOCUMENT_DEPTH:
            raise _build_depth_error(self._where)
        self._add_to_count(1)
        if event.anchor is not None:
            self._anchors.pop(event.anchor, None)  # no alias may name it before it ends
        self._stack.append(_OpenCollection(event.anchor, is_mapping=is_mapping))

    def _close_collection(self) -> None:
        """End the innermost collection, and place it in the one around it.

        A key of the objects that `<<` names is taken only if the collection itself does not have it.
        """
        closed = self._stack.pop()
        if closed.pairs is not None:
            for merged in closed.merged:
                for key, value in merged.items():
                    closed.pairs.setdefault(key, value)
        value = closed.items if closed.pairs is None else closed.pairs
        if closed.anchor is not None:
            self._anchors[closed.anchor] = _Anchored(value, closed.depth, closed.weight)
        self._place_value(value, closed.depth, closed.weight)

    def _add_alias(self, anchor: str) -> None:
        """Repeat a value with an anchor. It is counted again, so that aliases of aliases cannot grow without limit."""
        anchored = self._anchors.get(anchor)
        if anchored is None:
            is_inside = any(collection.anchor == anchor for collection in self._stack)
            target = "a value that contains itself" if is_inside else "no value before it"
            raise ValueError(f"the alias {anchor[:60]!r} of {target}")
        self._add_to_count(anchored.weight)
        self._place_value(*anchored)

    def _add_to_count(self, n_values: int) -> None:
        """Count values. Raises SourceError if the document has too many."""
        self._count += n_values
        if self._count > self._max_values:
            raise _build_count_error(self._where)

    def _place_value(self, value: object, depth: int, weight: int) -> None:
        """Put a scalar or a collection that has ended into the innermost open collection.

        `depth` is the levels of collections in the value: 0 for a scalar, 2 for `[[1]]`. `weight` is the number of
        values that it counts as where an alias repeats it.
        """
        if not self._stack:
            self._result = value
            return
        holder = self._stack[-1]
        holder.weight += weight
        if depth >= holder.depth:
            holder.depth = depth + 1
            if len(self._stack) + depth > MAX_DOCUMENT_DEPTH:
                raise _build_depth_error(self._where)
        if holder.pairs is None:
            holder.items.append(value)
        elif holder.key is _NO_KEY:
            if isinstance(value, (dict, list)):
                raise ValueError("a list or an object as a key")
            holder.key = value
        else:
            if holder.key is _MERGE_KEY:
                self._merge(holder, value)
            else:
                holder.pairs[holder.key] = value
            holder.key = _NO_KEY

    def _merge(self, holder: _OpenCollection, value: object) -> None:
        """Remember the objects that `<<` names, for `_close_collection`. If several have a key, the first counts."""
        objects = value if isinstance(value, list) else [value]
        for merged in objects:
            if not isinstance(merged, dict):
                raise ValueError("something else than an object to merge with '<<'")
            self._add_to_count(len(merged))
            holder.merged.append(merged)
