"""Reads the nodes of an OpenAPI document (parameters, media types, servers) and expands its schemas.

The functions accept any JSON value, because documents are untrusted. A schema is expanded to JSON Schema 2020-12:
references are resolved, its size is bounded, and OpenAPI's own dialect is translated.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from toolscout.errors import BadEntry, SourceError
from toolscout.sources.documents import MAX_CHAIN, Library, hide_credentials
from toolscout.sources.reading import describe_value
from toolscout.types import clean

__all__ = [
    "FORMS",
    "MAX_ENTRIES",
    "TEMPLATE_VARIABLE",
    "Detail",
    "Input",
    "Schemas",
    "TooLarge",
    "add_description",
    "choose_media",
    "clean_text",
    "fill_variables",
    "is_plain_object",
    "join_description",
    "limit_list",
    "read_parameter",
    "shorten_text",
]

MAX_ENTRIES: Final = 1_000  # in one list of an operation: parameters, tags, servers, security, responses
FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
#: `{name}` in a path or a server address.
TEMPLATE_VARIABLE: Final = re.compile(r"\{([^{}]+)\}")
#: `collectionFormat` of Swagger 2.0 → the style of OpenAPI 3.
_COLLECTIONS: Final[Mapping[str, dict[str, Any]]] = {
    "csv": {"explode": False},
    "multi": {"explode": True},
    "ssv": {"style": "spaceDelimited", "explode": False},
    "pipes": {"style": "pipeDelimited", "explode": False},
}
MAX_REF_NAME_CHARS: Final = 200
MAX_BRIEF_TEXT_CHARS: Final = 200
MAX_BRIEF_ENUM_VALUES: Final = 200
MAX_VALUE_DEPTH: Final = 8  # of a default or an enum value
# All attempts at all schemas of a document together; a second writes some three million characters. GitHub's whole API,
# 13 MB, takes nine million; of the documents measured, none takes more than three characters for each of its bytes.
MIN_EXPANSION_CHARS: Final = 10_000_000  # allowed to a document of any size
EXPANSION_CHARS_PER_BYTE: Final = 2  # allowed in addition
MAX_EXPANSION_CHARS: Final = 100_000_000
_TEXT_KEYWORDS: Final = frozenset(["title", "description", "format", "pattern", "contentEncoding", "contentMediaType"])
_VALUE_KEYWORDS: Final = frozenset(
    {"default", "enum", "const", "nullable", "readOnly", "writeOnly", "deprecated", "multipleOf", "uniqueItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"}
    | {"minItems", "maxItems", "minProperties", "maxProperties"}
)
_SCHEMA_KEYWORDS: Final = frozenset(
    ["items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"]
)
_SCHEMA_LIST_KEYWORDS: Final = frozenset(["anyOf", "oneOf", "prefixItems"])
_PROPERTY_KEYWORDS: Final = frozenset(["properties", "patternProperties", "dependentSchemas"])
#: Keywords about the parts of a schema. They are left out below the depth asked for.
_PART_KEYWORDS: Final = _SCHEMA_KEYWORDS | _SCHEMA_LIST_KEYWORDS | _PROPERTY_KEYWORDS | {"required"}


class Input(NamedTuple):
    """One argument: its name and place in the request, and its schema.

    `base` is the location of the document that holds the schema.
    """

    name: str
    place: str
    schema: Any
    base: str
    required: bool = False
    description: str = ""
    style: Mapping[str, Any] = {}


def read_parameter(node: Any, base: str) -> Input:
    """Read one parameter of OpenAPI 3 or Swagger 2.0.

    Raises:
        BadEntry: if it has no name, or no known place.
    """
    name, place = (clean_text(node.get("name")), node.get("in")) if isinstance(node, Mapping) else ("", None)
    if not name or place not in ("path", "query", "header", "cookie", "body", "formData"):
        raise BadEntry(
            f"expected a parameter with a name and a place (in: path, query, …), found {describe_value(node)}"
        )
    schema, content = node.get("schema"), node.get("content")
    style: dict[str, Any] = {}
    if schema is not None:
        style = {key: node[key] for key in ("style", "explode") if isinstance(node.get(key), (str, bool))}
    elif isinstance(content, Mapping) and content:
        style["content_type"], schema = choose_media(content)
    else:
        schema = {key: value for key, value in node.items() if key not in ("name", "in", "required", "description")}
        if node.get("type") == "array":
            style = _COLLECTIONS.get(clean_text(node.get("collectionFormat")) or "csv", {})
    required = place == "path" or node.get("required") is True
    return Input(name, str(place), schema, base, required, clean_text(node.get("description")), style)


def join_description(node: Mapping[Any, Any], item: Mapping[Any, Any]) -> str:
    """Join summary and description. A summary that begins the description is not repeated."""
    summary, text = (clean_text(node.get(key)) or clean_text(item.get(key)) for key in ("summary", "description"))
    bare = summary.rstrip(". ")
    if text.lower().startswith(bare.lower()):
        summary = ""
    elif text and bare[-1:] not in "!?:":
        summary = f"{bare}."
    deprecated = "Deprecated." if node.get("deprecated") is True else ""
    return " ".join(part for part in (summary, text, deprecated) if part)


def choose_media(content: Mapping[Any, Any]) -> tuple[str, Any]:
    """Return the content type to use (JSON, a relative of JSON, a form, or the first) and its schema."""

    def rank_media(media: object) -> int:
        kind = str(media).partition(";")[0].strip().lower()
        return 0 if kind == "application/json" else 1 if kind.endswith("json") else 2 if kind in FORMS else 3

    media = min(itertools.islice(content, MAX_ENTRIES), key=rank_media)
    schema = content[media].get("schema") if isinstance(content[media], Mapping) else None
    return str(media), {} if schema is None else schema


def add_description(schema: Any, description: str) -> Any:
    """Give a schema a description, without changing one that other nodes refer to."""
    return {"description": description, "allOf": [schema]} if description else schema


def fill_variables(server: Mapping[Any, Any]) -> str:
    """Return the URL of a server with the defaults of its variables. A variable without a default stays."""
    variables = server.get("variables")

    def find_default(match: re.Match[str]) -> str:
        variable = variables.get(match[1]) if isinstance(variables, Mapping) else None
        value = variable.get("default") if isinstance(variable, Mapping) else None
        return str(clean(value)) if isinstance(value, (str, int)) else match[0]

    return TEMPLATE_VARIABLE.sub(find_default, clean_text(server.get("url")))


def is_plain_object(schema: Any) -> bool:
    """Return whether a schema describes an object whose properties can stand beside the parameters."""
    return (
        isinstance(schema, dict) and "object" in schema.get("type", "object") and not schema.keys() & {"anyOf", "oneOf"}
    )


def clean_text(value: Any) -> str:
    """Return a text as `clean` does, without white space around it. Empty for another type."""
    return str(clean(value)).strip() if isinstance(value, str) else ""


def limit_list(value: Any) -> list[Any]:
    """Return the first entries of a list. Empty for another type."""
    return value[:MAX_ENTRIES] if isinstance(value, list) else []


# --- schemas ----------------------------------------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_type(value: Any) -> bool:
    return isinstance(value, str) or _is_list_of_texts(value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, (Mapping, bool))


def _is_not_empty(value: Any) -> bool:
    return value not in (None, [])


def _is_anything(value: Any) -> bool:
    return True


#: Keyword → whether its value has a shape that can be expanded. Other keywords and other shapes are left out.
_SHAPE_CHECKS: Final[Mapping[Any, Callable[[Any], bool]]] = {
    **dict.fromkeys(_VALUE_KEYWORDS, _is_anything),
    **dict.fromkeys(_TEXT_KEYWORDS, _is_text),
    **dict.fromkeys(_SCHEMA_KEYWORDS, _is_schema),
    **dict.fromkeys(_SCHEMA_LIST_KEYWORDS, _is_list),
    **dict.fromkeys(_PROPERTY_KEYWORDS, _is_not_empty),
    "type": _is_type,
    "enum": _is_list,
    "required": _is_list_of_texts,
}


class Detail(NamedTuple):
    """How much of a schema is expanded.

    Attributes:
        depth: levels of parts.
        brief: whether long texts are shortened and long enums left out.
    """

    depth: int
    brief: bool = False

    @property
    def inner(self) -> Detail:
        """The detail of the parts: one level less."""
        return self._replace(depth=max(self.depth - 1, 0))


class TooLarge(Exception):
    """A schema with this much detail exceeds its allowance. Less detail may fit."""


class Schemas:
    """Expands the schemas of a document and of the documents to which it refers.

    References and `allOf` are merged. If the parts of an `allOf` disagree, the first wins. Examples, XML and vendor
    keys are dropped. A schema inside itself becomes an object whose description says so. Below the depth asked for, a
    schema keeps what describes it as a whole (type, description, …) and loses its parts.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._memo: dict[tuple[int, Detail, str, int], tuple[Any, Any]] = {}
        self._chars_left = 0
        self._allowed_chars = self._total_chars_left = 0
        self._hidden_mark = ""
        self._brief = False

    def expand(self, node: Any, base: str, detail: Detail, *, hidden: str, size: int) -> Any:
        """Expand a schema.

        Args:
            node: the schema. A boolean is a schema too.
            base: location of the document that holds it.
            detail: how much of it is expanded.
            hidden: properties with this mark are left out: readOnly for requests, writeOnly for responses.
            size: allowance in characters, approximately.

        Raises:
            BadEntry: if it is not a schema, or holds a reference that leads nowhere.
            TooLarge: if it exceeds the allowance.
        """
        node, base = self._library.follow(node, base) if _is_bare_ref(node) else (node, base)
        key = (id(node), detail, hidden, size)  # the memo keeps the node alive, so no other gets its id
        if key not in self._memo:
            self._chars_left, self._hidden_mark, self._brief = size, hidden, detail.brief
            try:
                self._memo[key] = node, self._expand_schema(node, base, detail.depth, frozenset())
            except TooLarge:
                self._memo[key] = node, TooLarge
        expanded = self._memo[key][1]
        if expanded is TooLarge:
            raise TooLarge
        return expanded

    def _expand_schema(self, node: Any, base: str, depth: int, outer: frozenset[int]) -> Any:
        if isinstance(node, bool):
            return node
        return self._translate_dialect(self._expand_branches(node, base, depth, outer))

    def _expand_branches(self, node: Any, base: str, depth: int, outer: frozenset[int]) -> dict[str, Any]:
        """Merge a schema with its reference and its `allOf`. `outer` holds the ids of the schemas around it."""
        if isinstance(node, bool):
            return {}
        if not isinstance(node, Mapping):
            raise BadEntry(f"expected a schema, found {describe_value(node)}")
        if len(outer) > MAX_CHAIN:
            raise BadEntry(f"expected at most {MAX_CHAIN} levels of references, found more")
        self._spend(10)
        self._charge(len(node))
        if id(node) in outer:
            return {"type": "object", "description": "Recursive: the same kind of value as the one around it."}
        outer = outer | {id(node)}
        parts = [
            {
                key: self._expand_keyword(key, node[key], base, depth - 1, outer)
                for key in node
                if _is_expanded(key, node[key], depth)
                and not (self._brief and key == "enum" and len(node[key]) > MAX_BRIEF_ENUM_VALUES)
            }
        ]
        if isinstance(node.get("$ref"), str):
            parts.append(self._expand_reference(node, base, depth, outer))
        branches = node.get("allOf")
        for branch in branches if isinstance(branches, list) else ():
            parts.append(self._expand_branches(branch, base, depth, outer))
        return _merge(parts)

    def _expand_reference(
        self, node: Mapping[Any, Any], base: str, depth: int, outer: frozenset[int]
    ) -> dict[str, Any]:
        target, location = self._library.follow(node, base)
        if id(target) in outer:
            name = str(clean(unquote(node["$ref"]).rpartition("/")[2][:MAX_REF_NAME_CHARS]))
            return {"type": "object", "description": f"Recursive: {name} again."}
        return self._expand_branches(target, location, depth, outer)

    def _expand_keyword(self, key: str, value: Any, base: str, depth: int, outer: frozenset[int]) -> Any:
        """Expand the value of one keyword: a schema, a list or an object of schemas, or a plain value."""
        self._spend(len(key) + 4)
        if key in _SCHEMA_KEYWORDS:
            return self._expand_schema(value, base, depth, outer)
        if key in _SCHEMA_LIST_KEYWORDS:
            return [self._expand_schema(inner, base, depth, outer) for inner in value]
        if key in _PROPERTY_KEYWORDS:
            if not isinstance(value, Mapping):
                raise BadEntry(f"expected an object as {key}, found {describe_value(value)}")
            self._spend(sum(len(str(name)) + 4 for name in value))
            return {
                str(clean(str(name))): self._expand_schema(inner, base, depth, outer) for name, inner in value.items()
            }
        if key == "description" and self._brief:
            value = shorten_text(value)
        return self._copy_value(value, MAX_VALUE_DEPTH)

    def _copy_value(self, value: Any, depth: int) -> Any:
        if isinstance(value, (list, Mapping)) and depth == 0:
            raise BadEntry(f"expected at most {MAX_VALUE_DEPTH} levels in a default or enum value, found more")
        if isinstance(value, list):
            self._spend(2)
            return [self._copy_value(inner, depth - 1) for inner in value]
        if isinstance(value, Mapping):
            self._spend(2 + sum(len(str(name)) + 4 for name in value))
            return {str(clean(str(name))): self._copy_value(inner, depth - 1) for name, inner in value.items()}
        self._spend(len(value) + 3 if isinstance(value, str) else 5)
        return clean(value)

    def _translate_dialect(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Convert what OpenAPI says in its own words, and remove hidden properties."""
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
        for name in [
            name for name, inner in properties.items() if isinstance(inner, dict) and inner.get(self._hidden_mark)
        ]:
            del properties[name]
            schema["required"] = [other for other in schema.get("required", []) if other != name]
        return schema

    def _spend(self, size: int) -> None:
        """Count characters of the expanded schema.

        Raises:
            TooLarge: if they exceed the allowance.
            SourceError: as `_charge`.
        """
        self._charge(size)
        self._chars_left -= size
        if self._chars_left < 0:
            raise TooLarge

    def _charge(self, size: int) -> None:
        """Count work on the document, whether or not its result is used.

        Raises:
            SourceError: if all attempts together exceed what the size of the documents allows.
        """
        self._total_chars_left -= size
        if self._total_chars_left < 0:
            self._raise_allowance()
        if self._total_chars_left < 0:
            raise SourceError(
                f"{hide_credentials(self._library.root)}: its schemas are too large once their references are "
                "written out. Split the document."
            )

    def _raise_allowance(self) -> None:
        """Allow what the documents read by now permit; each may add to it."""
        by_size = MIN_EXPANSION_CHARS + EXPANSION_CHARS_PER_BYTE * self._library.bytes_read
        allowed = min(by_size, MAX_EXPANSION_CHARS)
        self._total_chars_left += allowed - self._allowed_chars
        self._allowed_chars = allowed


def _allow_null(schema: dict[str, Any]) -> None:
    """Express `nullable: true` in JSON Schema."""
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    for key in schema.keys() & {"anyOf", "oneOf"}:
        schema[key] = [*schema[key], {"type": "null"}]
    if None not in schema.get("enum", [None]):
        schema["enum"] = [*schema["enum"], None]


def _is_expanded(key: Any, value: Any, depth: int) -> bool:
    """Return whether a keyword is expanded at this depth."""
    has_shape = _SHAPE_CHECKS.get(key)
    return has_shape is not None and (depth > 0 or key not in _PART_KEYWORDS) and has_shape(value)


def shorten_text(text: str) -> str:
    """Return a text, or whole words from its beginning if it has more than 200 characters."""
    beginning = text[: MAX_BRIEF_TEXT_CHARS - 2]
    return text if len(text) <= MAX_BRIEF_TEXT_CHARS else f"{beginning.rpartition(' ')[0] or beginning} …"


def _is_bare_ref(node: Any) -> bool:
    return isinstance(node, Mapping) and len(node) == 1 and "$ref" in node


def _merge(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the parts of an `allOf`. The first wins, but required names and properties are united."""
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
