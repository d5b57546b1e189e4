"""Expands schemas: resolves references, bounds the size, and turns OpenAPI's dialects into JSON Schema 2020-12."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from toolscout.errors import BadEntry, SourceError
from toolscout.sources.documents import MAX_CHAIN, Library, describe_value, hide_credentials
from toolscout.types import clean

__all__ = ["Detail", "Schemas", "TooLarge", "brief"]

MAX_REF_NAME_CHARS: Final = 200
MAX_ENUM: Final = 200
# All attempts at all schemas of a document together; a second writes some three million characters. GitHub's whole API,
# 13 MB, takes nine million; of the documents measured, none takes more than three characters for each of its bytes.
MIN_EXPANSION_CHARS: Final = 10_000_000  # allowed to a document of any size
EXPANSION_CHARS_PER_BYTE: Final = 2  # allowed in addition
MAX_EXPANSION_CHARS: Final = 100_000_000
_TEXT_KEYWORDS: Final = frozenset(["title", "description", "format", "pattern", "contentEncoding", "contentMediaType"])
_VALUES: Final = frozenset(
    {"default", "enum", "const", "nullable", "readOnly", "writeOnly", "deprecated", "multipleOf", "uniqueItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"}
    | {"minItems", "maxItems", "minProperties", "maxProperties"}
)
_SCHEMA: Final = frozenset(["items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"])
_SCHEMAS: Final = frozenset(["anyOf", "oneOf", "prefixItems"])
_PROPERTY_KEYWORDS: Final = frozenset(["properties", "patternProperties", "dependentSchemas"])


class Detail(NamedTuple):
    """How much of a schema is written out: levels of parts; in brief, long texts are cut and long enums left out."""

    depth: int
    brief: bool = False

    @property
    def inner(self) -> Detail:
        """The same, one level further in."""
        return self._replace(depth=max(self.depth - 1, 0))


class TooLarge(Exception):
    """This detail gives more than the allowance; a smaller one is tried."""


class Schemas:
    """Writes schemas out: references and `allOf` merged; examples, XML and vendor keys dropped.

    A schema inside itself becomes an object called recursive. Below the depth asked for, a schema keeps only what
    it says of itself (type, description, …), not of its parts. Where the parts of an `allOf` disagree, the
    first wins.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._memo: dict[tuple[int, Detail, str, int], tuple[Any, Any]] = {}
        self._left = 0
        self._allowed = self._total_left = 0
        self._hidden = ""
        self._brief = False

    def plain(self, node: Any, base: str, detail: Detail, *, hidden: str, size: int) -> Any:
        """`node` of the document `base` written out.

        Args:
            node: a schema as found; a boolean is one too.
            base: location of the document that holds it.
            detail: how much of it.
            hidden: properties with this mark are left out: readOnly for requests, writeOnly for answers.
            size: allowance in characters, approximately.

        Raises:
            BadEntry: no schema, or a reference that leads nowhere.
            TooLarge: over the allowance.
        """
        node, base = self._library.follow(node, base) if _is_bare_ref(node) else (node, base)
        key = (id(node), detail, hidden, size)  # the node is kept as well: its id stays its own
        if key not in self._memo:
            self._left, self._hidden, self._brief = size, hidden, detail.brief
            try:
                self._memo[key] = node, self._expand(node, base, detail.depth, frozenset())
            except TooLarge:
                self._memo[key] = node, TooLarge
        expanded = self._memo[key][1]
        if expanded is TooLarge:
            raise TooLarge
        return expanded

    def _expand(self, node: Any, base: str, depth: int, outer: frozenset[int]) -> Any:
        if isinstance(node, bool):
            return node
        return self._finish(self._expand_branches(node, base, depth, outer))

    def _expand_branches(self, node: Any, base: str, depth: int, outer: frozenset[int]) -> dict[str, Any]:
        if isinstance(node, bool):
            return {}
        if not isinstance(node, Mapping):
            raise BadEntry(f"expected a schema, found {describe_value(node)}")
        if len(outer) > MAX_CHAIN:
            raise BadEntry(f"expected at most {MAX_CHAIN} levels of references, found more")
        self._spend(10)
        self._charge(len(node))
        ref = node.get("$ref")
        if id(node) in outer:
            return {
                "type": "object",
                "description": "Recursive: the same kind of value as the one around it.",
            }
        outer = outer | {id(node)}
        parts = [
            {
                key: self._keyword(key, node[key], base, depth - 1, outer)
                for key in node
                if _is_written_out(key, node[key], depth)
                and not (self._brief and key == "enum" and len(node[key]) > MAX_ENUM)
            }
        ]
        if isinstance(ref, str):
            target, where = self._library.follow(node, base)
            if id(target) in outer:
                name = str(clean(unquote(ref).rpartition("/")[2][:MAX_REF_NAME_CHARS]))
                parts.append({"type": "object", "description": f"Recursive: {name} again."})
            else:
                parts.append(self._expand_branches(target, where, depth, outer))
        branches = node.get("allOf")
        for branch in branches if isinstance(branches, list) else ():
            parts.append(self._expand_branches(branch, base, depth, outer))
        return _merge(parts)

    def _keyword(self, key: str, value: Any, base: str, depth: int, outer: frozenset[int]) -> Any:
        self._spend(len(key) + 4)
        if key in _SCHEMA:
            return self._expand(value, base, depth, outer)
        if key in _SCHEMAS:
            return [self._expand(inner, base, depth, outer) for inner in value]
        if key in _PROPERTY_KEYWORDS:
            if not isinstance(value, Mapping):
                raise BadEntry(f"expected an object as {key}, found {describe_value(value)}")
            self._spend(sum(len(str(name)) + 4 for name in value))
            return {str(clean(str(name))): self._expand(inner, base, depth, outer) for name, inner in value.items()}
        if key == "description" and self._brief:
            value = brief(value)
        return self._value(value, 8)

    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, (list, Mapping)) and depth == 0:
            raise BadEntry("expected at most 8 levels in a default or enum value, found more")
        if isinstance(value, list):
            self._spend(2)
            return [self._value(inner, depth - 1) for inner in value]
        if isinstance(value, Mapping):
            self._spend(2 + sum(len(str(name)) + 4 for name in value))
            return {str(clean(str(name))): self._value(inner, depth - 1) for name, inner in value.items()}
        self._spend(len(value) + 3 if isinstance(value, str) else 5)
        return clean(value)

    def _finish(self, schema: dict[str, Any]) -> dict[str, Any]:
        kind = schema.get("type")
        if kind == "file":
            schema.update(type="string", format="binary")
        elif kind == "array":
            schema.setdefault("items", {})
        if schema.pop("nullable", None) is True:
            _allow_null(schema)
        for bound in ("minimum", "maximum"):
            exclusive = f"exclusive{bound.capitalize()}"
            if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and bound in schema:
                schema[exclusive] = schema.pop(bound)
        properties = schema.get("properties", {})
        for name in [name for name, inner in properties.items() if isinstance(inner, dict) and inner.get(self._hidden)]:
            del properties[name]
            schema["required"] = [other for other in schema.get("required", []) if other != name]
        return schema

    def _spend(self, size: int) -> None:
        self._charge(size)
        self._left -= size
        if self._left < 0:
            raise TooLarge

    def _charge(self, size: int) -> None:
        """Count work that does not end up in a schema.

        Raises:
            SourceError: a document asks for more than anybody waits for.
        """
        self._total_left -= size
        if self._total_left < 0:
            self._raise_allowance()
        if self._total_left < 0:
            raise SourceError(
                f"{hide_credentials(self._library.root)}: its schemas are too large once their references are "
                "written out: split the document"
            )

    def _raise_allowance(self) -> None:
        """Allow what the documents read by now permit; each may add to it."""
        by_size = MIN_EXPANSION_CHARS + EXPANSION_CHARS_PER_BYTE * self._library.bytes_read
        allowed = min(by_size, MAX_EXPANSION_CHARS)
        self._total_left += allowed - self._allowed
        self._allowed = allowed


def _allow_null(schema: dict[str, Any]) -> None:
    """Say `nullable: true` in the words of JSON Schema."""
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    for key in schema.keys() & {"anyOf", "oneOf"}:
        schema[key] = [*schema[key], {"type": "null"}]
    if None not in schema.get("enum", [None]):
        schema["enum"] = [*schema["enum"], None]


def _is_written_out(key: Any, value: Any, depth: int) -> bool:
    """Return whether a keyword is written out at this depth; one of an unknown shape is left out."""
    if key in _PROPERTY_KEYWORDS:
        return depth > 0 and value not in (None, [])
    if key == "required":
        return depth > 0 and isinstance(value, list) and all(isinstance(name, str) for name in value)
    if key == "type":
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(kind, str) for kind in value))
    if key in _TEXT_KEYWORDS:
        return isinstance(value, str)
    if key in _SCHEMAS:
        return depth > 0 and isinstance(value, list)
    if key in _SCHEMA:
        return depth > 0 and isinstance(value, (Mapping, bool))
    return key in _VALUES and (key != "enum" or isinstance(value, list))


def brief(text: str) -> str:
    """Return the beginning of a long text, at most 200 characters, whole words."""
    beginning = text[: MAX_REF_NAME_CHARS - 2]
    return text if len(text) <= MAX_REF_NAME_CHARS else f"{beginning.rpartition(' ')[0] or beginning} …"


def _is_bare_ref(node: Any) -> bool:
    return isinstance(node, Mapping) and len(node) == 1 and "$ref" in node


def _merge(parts: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if key == "required":
                merged[key] = list(dict.fromkeys([*merged.get(key, []), *value]))
            elif key == "properties":
                properties = merged.setdefault(key, {})
                for name, inner in value.items():
                    mergeable = isinstance(properties.get(name), dict) and isinstance(inner, dict)
                    properties[name] = _merge([properties[name], inner]) if mergeable else properties.get(name, inner)
            else:
                merged.setdefault(key, value)
    return merged
