"""Expands the schemas of an OpenAPI document to JSON Schema 2020-12, within a bound.

References are resolved and OpenAPI's own dialect is translated. Documents are untrusted, so every value is checked. A
part that cannot be read stays open (any value fits it) and is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from toolscout.errors import BadEntry, SourceError
from toolscout.sources.documents import MAX_CHAIN, Library, hide_credentials
from toolscout.sources.reading import Schema, as_list, as_object, describe_value
from toolscout.types import clean

__all__ = ["Detail", "Schemas", "TooLarge", "shorten_text"]

MAX_REF_NAME_CHARS: Final = 200
MAX_BRIEF_TEXT_CHARS: Final = 200
MAX_BRIEF_ENUM_VALUES: Final = 200
MAX_VALUE_DEPTH: Final = 8  # of a default or an enum value
MAX_UNREAD_PARTS: Final = 1_000  # that are named
# Bounds for all schemas of a document together, also those that turned out too large and were expanded again. A second
# writes some three million characters. GitHub's whole API, 13 MB, takes nine million; of the documents measured, none
# takes more than three characters for each of its bytes.
MIN_EXPANSION_CHARS: Final = 10_000_000  # allowed to a document of any size
EXPANSION_CHARS_PER_BYTE: Final = 2  # allowed in addition
MAX_EXPANSION_CHARS: Final = 100_000_000
_SCHEMA_KEYWORDS: Final = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_SCHEMA_LIST_KEYWORDS: Final = ("anyOf", "oneOf", "prefixItems")
_PROPERTY_KEYWORDS: Final = ("properties", "patternProperties", "dependentSchemas")
#: Keywords about the parts of a schema. They are left out below the depth asked for.
_PART_KEYWORDS: Final = frozenset((*_SCHEMA_KEYWORDS, *_SCHEMA_LIST_KEYWORDS, *_PROPERTY_KEYWORDS, "required"))
_TEXT_KEYWORDS: Final = ("title", "description", "format", "pattern", "contentEncoding", "contentMediaType")
_VALUE_KEYWORDS: Final = (
    *("default", "const", "nullable", "readOnly", "writeOnly", "deprecated", "multipleOf", "uniqueItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
)
#: Keyword → the types of value that can be expanded. Other keywords and other values are left out.
_VALUE_TYPES: Final[Mapping[object, type | tuple[type, ...]]] = {
    **dict.fromkeys(_VALUE_KEYWORDS, object),
    **dict.fromkeys(_TEXT_KEYWORDS, str),
    **dict.fromkeys(_SCHEMA_KEYWORDS, (Mapping, bool)),
    **dict.fromkeys(_SCHEMA_LIST_KEYWORDS, list),
    **dict.fromkeys(_PROPERTY_KEYWORDS, object),
    "enum": (list, Mapping),
    "required": (list, Mapping),
    "type": (str, list),
}


class Detail(NamedTuple):
    """How much of a schema is expanded: `depth` levels of parts; `brief` shortens texts and drops long enums."""

    depth: int
    brief: bool = False

    @property
    def inner(self) -> Detail:
        """The detail of the schemas directly inside: one level less."""
        return self._replace(depth=max(self.depth - 1, 0))


class TooLarge(Exception):
    """A schema with this much detail exceeds the size asked for. Less detail may fit."""


class Schemas:
    """Expands the schemas of a document and of the documents to which it refers.

    References and `allOf` are merged. If the parts of an `allOf` disagree, the first wins. Examples, XML and vendor
    keys are dropped. A schema inside itself becomes an object with a description that says so. Below the depth asked
    for, a schema keeps what describes it as a whole (type, description, …) and loses its properties and items.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        # Cache of `expand`: (id of a node, detail, hidden, size) → the node, and its schema; None: it is too large
        self._memo: dict[tuple[int, Detail, str, int], tuple[object, Schema | bool | None]] = {}
        self._unread: dict[str, None] = {}  # messages about parts that cannot be read, in their order
        self._n_taken = 0  # messages that `take_unread` has returned already
        self._allowed_chars = self._spent_chars = 0  # for all schemas together; see `_count_work`
        # Of the schema that is being expanded:
        self._chars_left = 0
        self._hidden_keyword = ""
        self._brief = False

    def expand(self, node: object, base: str, detail: Detail, *, hidden: str, size: int) -> Schema | bool:
        """Expand a schema, or return it if it is a boolean.

        Args:
            node: the schema.
            base: location of the document that contains it.
            detail: how much of it is expanded.
            hidden: properties with this keyword are left out: readOnly in requests, writeOnly in results.
            size: approximate limit of the result, in characters. TooLarge is raised above it.
        """
        if isinstance(node, Mapping) and list(node) == ["$ref"]:  # all references to a schema share its memo
            try:
                node, base = self._library.follow(node, base)
            except BadEntry as error:
                return self._leave_open(error)
        key = (id(node), detail, hidden, size)  # the memo keeps the node alive, so no other gets its id
        if key not in self._memo:
            self._chars_left, self._hidden_keyword, self._brief = size, hidden, detail.brief
            try:
                self._memo[key] = node, self._expand_schema(node, base, detail.depth, frozenset())
            except TooLarge:
                self._memo[key] = node, None
        _, expanded = self._memo[key]
        if expanded is None:
            raise TooLarge
        return expanded

    def take_unread(self) -> list[str]:
        """Return a message about each part that could not be read since the last call."""
        new_messages = list(self._unread)[self._n_taken :]
        self._n_taken = len(self._unread)
        return new_messages

    def _leave_open(self, problem: object) -> Schema:
        """Note what cannot be read, and return the schema that any value fits."""
        if len(self._unread) < MAX_UNREAD_PARTS:
            self._unread.setdefault(f"{problem} (this part is left open)")
        return {}

    def _expand_schema(self, node: object, base: str, depth: int, outer: frozenset[int]) -> Schema | bool:
        """Expand a schema to `depth` levels of parts. `outer`: ids of the schemas around it."""
        if isinstance(node, bool):
            return node
        return self._translate_dialect(self._expand_branches(node, base, depth, outer))

    def _expand_branches(self, node: object, base: str, depth: int, outer: frozenset[int]) -> Schema:
        """Expand a schema, its reference and its `allOf`, and merge them. A boolean has no keywords to merge."""
        if isinstance(node, bool):
            return {}
        if not isinstance(node, Mapping):
            return self._leave_open(f"expected a schema, found {describe_value(node)}")
        if len(outer) > MAX_CHAIN:
            return self._leave_open(f"expected at most {MAX_CHAIN} levels of references, found more")
        self._count_chars(10)  # braces, a comma and the shortest keyword
        self._count_work(len(node))
        if id(node) in outer:
            return {"type": "object", "description": "Recursive: the same kind of value as the one around it."}
        outer = outer | {id(node)}
        own_keywords: Schema = {}
        for key, value, location in self._list_keywords(node, base, depth):
            try:
                expanded = self._expand_keyword(key, value, location, depth - 1, outer)
            except BadEntry as error:
                self._leave_open(error)
                continue
            if key in _PROPERTY_KEYWORDS:  # `_list_keywords` yields one twice if its value has a `$ref`
                expanded = {**own_keywords.get(key, {}), **as_object(expanded)}
            own_keywords[key] = expanded
        parts = [own_keywords]
        if isinstance(node.get("$ref"), str):
            parts.append(self._expand_reference(node, base, depth, outer))
        parts += [self._expand_branches(branch, base, depth, outer) for branch in as_list(node.get("allOf"))]
        return _merge(parts)

    def _list_keywords(self, node: Mapping[str, object], base: str, depth: int) -> Iterator[tuple[str, object, str]]:
        """Yield each keyword to expand, with its value and the location of the value's document.

        If a value is a reference, such as `"properties": {"$ref": …}`, its other keys and its target are yielded one
        after the other. In a value that is a schema, `_expand_branches` follows the reference.
        """
        for key, value in node.items():
            if not _is_expanded(key, value, depth):
                continue
            location = base
            is_schema = key in _SCHEMA_KEYWORDS
            if not is_schema and isinstance(value, Mapping) and isinstance(value.get("$ref"), str):
                siblings = {name: inner for name, inner in value.items() if name != "$ref"}
                if siblings:
                    yield key, siblings, base
                try:
                    value, location = self._library.follow(value, base)
                except BadEntry as error:
                    self._leave_open(error)
                    continue
            if self._is_usable(key, value):
                yield key, value, location

    def _is_usable(self, key: str, value: object) -> bool:
        """Return False for an `enum`, `required` or `type` of a wrong type, and for an enum too long for `brief`."""
        if key == "enum":
            return isinstance(value, list) and (len(value) <= MAX_BRIEF_ENUM_VALUES or not self._brief)
        is_list_of_names = isinstance(value, list) and all(isinstance(name, str) for name in value)
        if key == "required":
            return is_list_of_names
        return key != "type" or isinstance(value, str) or is_list_of_names

    def _expand_reference(self, node: Mapping[str, object], base: str, depth: int, outer: frozenset[int]) -> Schema:
        """Expand the target of a schema's `$ref`. A schema inside itself (in `outer`) is named, not expanded again."""
        try:
            target, location = self._library.follow(node, base)
        except BadEntry as error:
            return self._leave_open(error)
        if id(target) in outer:
            _, _, name = unquote(str(node["$ref"])).rpartition("/")
            return {"type": "object", "description": f"Recursive: {clean(name[:MAX_REF_NAME_CHARS])} again."}
        return self._expand_branches(target, location, depth, outer)

    def _expand_keyword(self, key: str, value: object, base: str, depth: int, outer: frozenset[int]) -> object:
        """Expand the value of one keyword: a schema, a list or an object of schemas, or a plain value."""
        self._count_chars(len(key) + 4)  # quotes, colon and comma
        if key in _SCHEMA_KEYWORDS:
            return self._expand_schema(value, base, depth, outer)
        if key in _SCHEMA_LIST_KEYWORDS and isinstance(value, list):
            return [self._expand_schema(inner, base, depth, outer) for inner in value]
        if key in _PROPERTY_KEYWORDS:
            if not isinstance(value, Mapping):
                raise BadEntry(f"expected an object as {key}, found {describe_value(value)}")
            self._count_chars(sum(len(str(name)) + 4 for name in value))
            return {
                str(clean(str(name))): self._expand_schema(inner, base, depth, outer) for name, inner in value.items()
            }
        if key == "description" and self._brief:
            value = shorten_text(str(value))
        return self._copy_value(value, MAX_VALUE_DEPTH)

    def _copy_value(self, value: object, depth: int) -> object:
        """Copy a plain value, such as a default or an enum, as `types.clean` does, and count its size."""
        if isinstance(value, (list, Mapping)) and depth == 0:
            raise BadEntry(f"expected at most {MAX_VALUE_DEPTH} levels in a default or enum value, found more")
        if isinstance(value, list):
            self._count_chars(2)
            return [self._copy_value(inner, depth - 1) for inner in value]
        if isinstance(value, Mapping):
            self._count_chars(2 + sum(len(str(name)) + 4 for name in value))
            return {str(clean(str(name))): self._copy_value(inner, depth - 1) for name, inner in value.items()}
        size = len(value) + 3 if isinstance(value, str) else 5  # quotes and a comma; `null` and a comma
        self._count_chars(size)
        copied: object = clean(value)
        return copied

    def _translate_dialect(self, schema: Schema) -> Schema:
        """Convert OpenAPI's own keywords and types to JSON Schema, in place, and remove hidden properties."""
        kind = schema.get("type")
        if kind == "file":
            schema.update(type="string", format="binary")
        elif kind == "array":
            schema.setdefault("items", {})
        if schema.pop("nullable", None) is True:
            _allow_null(schema)
        for bound in ("minimum", "maximum"):
            exclusive = f"exclusive{bound.capitalize()}"
            if isinstance(schema.get(exclusive), bool):  # in OpenAPI 3.0 a flag, in JSON Schema the bound itself
                is_exclusive = schema.pop(exclusive)
                if is_exclusive and bound in schema:
                    schema[exclusive] = schema.pop(bound)
        self._remove_hidden(schema)
        return schema

    def _remove_hidden(self, schema: Schema) -> None:
        properties = schema.get("properties", {})
        hidden_names = [name for name, inner in properties.items() if as_object(inner).get(self._hidden_keyword)]
        for name in hidden_names:
            del properties[name]
        if hidden_names:
            schema["required"] = [name for name in schema.get("required", []) if name not in hidden_names]

    def _count_chars(self, size: int) -> None:
        """Count characters of the expanded schema. Raises TooLarge if it has more than `expand` was asked for."""
        self._count_work(size)
        self._chars_left -= size
        if self._chars_left < 0:
            raise TooLarge

    def _count_work(self, size: int) -> None:
        """Count characters of work, also for schemas that turn out too large. Raises SourceError if it is too much."""
        self._spent_chars += size
        if self._spent_chars > self._allowed_chars:
            # More documents may have been read since this was last computed, and each allows more work.
            by_size = MIN_EXPANSION_CHARS + EXPANSION_CHARS_PER_BYTE * self._library.bytes_read
            self._allowed_chars = min(by_size, MAX_EXPANSION_CHARS)
        if self._spent_chars > self._allowed_chars:
            raise SourceError(
                f"{hide_credentials(self._library.root)}: its schemas are too large once their references are "
                "written out. Split the document."
            )


def _allow_null(schema: Schema) -> None:
    """Express OpenAPI's `nullable: true` in JSON Schema. Changes `schema`."""
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    for key in schema.keys() & {"anyOf", "oneOf"}:
        schema[key] = [*schema[key], {"type": "null"}]
    if "enum" in schema and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]


def _is_expanded(key: object, value: object, depth: int) -> bool:
    """Return whether a keyword is known, has a value of its type, and is expanded at this depth."""
    types = _VALUE_TYPES.get(key)
    if types is None or (depth <= 0 and key in _PART_KEYWORDS):
        return False
    if key in _PROPERTY_KEYWORDS and value in (None, []):  # written by some generators for "no properties"
        return False
    return isinstance(value, types)


def shorten_text(text: str) -> str:
    """Return a text, or whole words from its beginning if it has more than 200 characters."""
    if len(text) <= MAX_BRIEF_TEXT_CHARS:
        return text
    beginning = text[: MAX_BRIEF_TEXT_CHARS - len(" …")]
    whole_words, _, _ = beginning.rpartition(" ")
    return f"{whole_words or beginning} …"


def _merge(parts: list[Schema]) -> Schema:
    """Merge schemas. The first that has a keyword wins, but required names and properties are united."""
    merged: Schema = {}
    for part in parts:
        for key, value in part.items():
            if key == "required":
                merged[key] = list(dict.fromkeys([*merged.get(key, []), *value]))
            elif key == "properties":
                properties = merged.setdefault(key, {})
                for name, inner in value.items():
                    first = properties.setdefault(name, inner)
                    if first is not inner and isinstance(first, dict) and isinstance(inner, dict):
                        properties[name] = _merge([first, inner])
            else:
                merged.setdefault(key, value)
    return merged
