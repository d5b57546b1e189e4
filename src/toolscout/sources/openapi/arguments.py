"""Reads the parameters and the body of an OpenAPI operation: one schema for all, and how each argument is sent.

`meta` of a tool says how (`toolscout_gateway.calls.openapi` sends them):

* `in`: property → path, query, querystring, header, cookie or body; `names`: property → the name to send
* `style`: property → `style`, `explode` and `content_type` of a parameter
* `body`: the property that is the entire body; `content_type`: the media type of the body
* `parts`: property of a form → the same keys, and `file` if its text is the base64 of a file; "" is the entire body
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from toolscout.errors import BadEntry
from toolscout.sources.documents import Library
from toolscout.sources.openapi.schemas import Detail, Schemas, TooLarge, shorten_text
from toolscout.sources.reading import Schema, as_list, as_object, as_text, describe_value

__all__ = [
    "DETAILS",
    "MAX_ENTRIES",
    "MULTIPART_FORM",
    "URL_FORM",
    "Input",
    "OperationBody",
    "choose_media",
    "fit_arguments",
    "read_parameter",
]

MAX_ENTRIES: Final = 1_000  # in one list of an operation: parameters, tags, servers, security, responses
AIM_PARAMETERS_BYTES: Final = 32_000  # above it, less detail is tried
MAX_PARAMETERS_BYTES: Final = 96_000  # with the least detail
#: How much of a schema is written out. The first with which it is small enough is used.
DETAILS: Final = (Detail(8), *(Detail(depth, brief=True) for depth in (8, 6, 5, 4, 3, 2, 1, 0)))
PLACES: Final = ("path", "query", "querystring", "header", "cookie", "body", "formData")  # values of a parameter's `in`
URL_FORM: Final = "application/x-www-form-urlencoded"
MULTIPART_FORM: Final = "multipart/form-data"
JSON_PATCH: Final = "application/json-patch+json"
#: The content types that are preferred, in this order: other relatives of JSON follow, then forms, then all others.
PREFERRED_MEDIA: Final = (
    *("application/json", "application/merge-patch+json", "application/strategic-merge-patch+json"),
    *("+json", JSON_PATCH, URL_FORM, MULTIPART_FORM),
)
#: Parts of the names of media types that are text. A body of another type is a file.
TEXT_MEDIA: Final = ("text/", "xml", "yaml", "csv", "graphql", "script", "jsonl", "ndjson", "sql", "toml")
#: `collectionFormat` of Swagger 2.0 → how OpenAPI 3 says it. `tabDelimited` is a style of our own.
COLLECTIONS: Final[Mapping[str, Schema]] = {
    "csv": {"explode": False},
    "multi": {"explode": True},
    "ssv": {"style": "spaceDelimited", "explode": False},
    "tsv": {"style": "tabDelimited", "explode": False},
    "pipes": {"style": "pipeDelimited", "explode": False},
}
FILE_HINT: Final = (
    "The file in base64, or a data: URL with its type and name (data:text/csv;name=a.csv;base64,…). A text that is not "
    "base64 is sent as it is."
)
_PATCH_STEP: Final[Schema] = {
    "type": "object",
    "properties": {
        "op": {"enum": ["add", "remove", "replace", "move", "copy", "test"]},
        "path": {"type": "string", "description": "JSON pointer, such as /metadata/labels/app"},
        "from": {"type": "string"},
        "value": {},
    },
    "required": ["op", "path"],
}


class Input(NamedTuple):
    """One parameter: its name, its place in the request (its `in`), and its schema in the document at `base`.

    `style`: how its value is written in the request: `style`, `explode` and `content_type`.
    """

    name: str
    place: str
    schema: object
    base: str
    required: bool = False
    description: str = ""
    style: Mapping[str, object] = {}


class OperationBody(NamedTuple):
    """The body of a request: its schema in the document at `base`, its media type, and how parts of a form are sent."""

    schema: object
    base: str
    media: str
    required: bool = False
    description: str = ""
    parts: Mapping[str, Mapping[str, object]] = {}


def read_parameter(library: Library, node: object, base: str) -> Input:
    """Read one parameter of OpenAPI 3 or Swagger 2.0, or a reference to one.

    Raises:
        BadEntry: if it has no name, or no known place.
    """
    node, base = library.follow(node, base)
    fields = as_object(node)
    name, place = as_text(fields.get("name")), fields.get("in")
    if not name or place not in PLACES:
        raise BadEntry(
            f"expected a parameter with a name and a place (in: path, query, …), found {describe_value(node)}"
        )
    schema = fields.get("schema")
    style: Schema = {}
    if schema is not None:
        style = {key: fields[key] for key in ("style", "explode") if isinstance(fields.get(key), (str, bool))}
    elif fields.get("content"):
        style["content_type"], media, base = choose_media(library, fields["content"], base)
        schema = media.get("schema", {})
    else:
        schema = {key: value for key, value in fields.items() if key not in ("name", "in", "required", "description")}
        if fields.get("type") == "array":
            style = COLLECTIONS.get(as_text(fields.get("collectionFormat")) or "csv", {})
    required = place == "path" or fields.get("required") is True
    return Input(name, str(place), schema, base, required, as_text(fields.get("description")), style)


def choose_media(library: Library, content: object, base: str) -> tuple[str, Mapping[str, object], str]:
    """Choose a content type: JSON, a relative of JSON, a form, or the first.

    Args:
        library: where references are followed.
        content: media type → object with its schema, in the document at `base`.
        base: the location of that document.

    Returns:
        The media type as it is written there, its object, and the location of the object's document.

    Raises:
        BadEntry: if there is none.
    """
    content, base = library.follow(content, base)
    if not isinstance(content, Mapping) or not content:
        raise BadEntry(f"expected content with a media type, found {describe_value(content)}")
    keys = {_normalize_media(str(key)): key for key in itertools.islice(content, MAX_ENTRIES)}
    chosen = min(keys, key=_rank_media)
    media, where = library.follow(content[keys[chosen]], base)
    schema = as_object(as_object(media).get("schema"))
    # The patches that are preferred to it are objects, so a list can only be a JSON patch.
    if JSON_PATCH in keys and chosen in PREFERRED_MEDIA[1:] and _read_type(library, schema, where) == "array":
        chosen = JSON_PATCH
    return str(keys[chosen]), as_object(media), where


def _normalize_media(media: str) -> str:
    """Return a media type in lower case, without its parameters such as `; charset=utf-8`."""
    return media.partition(";")[0].strip().lower()


def _rank_media(kind: str) -> int:
    """Return the position of a normalized media type in `PREFERRED_MEDIA`; its length if it is not there.

    A relative of JSON that is not listed has the position of `+json`. NDJSON is none: it has several values.
    """
    group = kind if kind in PREFERRED_MEDIA else "+json" if kind.endswith("json") and "nd" not in kind else ""
    return PREFERRED_MEDIA.index(group) if group else len(PREFERRED_MEDIA)


def _read_type(library: Library, schema: Mapping[str, object], base: str) -> object:
    """Return the type of a schema or of what it refers to. None if that cannot be read: a problem says so elsewhere."""
    try:
        return as_object(library.follow(schema, base)[0]).get("type")
    except BadEntry:
        return None


def fit_arguments(schemas: Schemas, inputs: Sequence[Input], body: OperationBody | None) -> tuple[Schema, Schema]:
    """Build the schema of all arguments with as much detail as fits into 32 kB (without nested schemas: 96 kB).

    Returns the schema, and the keys of `meta` that say how each argument is sent.

    Raises:
        BadEntry: if it is too large even with the least detail.
    """
    for detail in DETAILS:
        size = MAX_PARAMETERS_BYTES if detail.depth <= 1 else AIM_PARAMETERS_BYTES
        try:
            parameters, wire = _Arguments(schemas, detail, size).build(inputs, body)
        except TooLarge:  # try less detail
            continue
        if len(msgspec.json.encode(parameters)) <= size:
            return parameters, wire
    raise BadEntry(f"expected parameters of at most {MAX_PARAMETERS_BYTES:,} bytes, found more: split the operation")


class _Arguments:
    """The arguments of one operation, written out with one degree of detail. `size`: the largest, in characters."""

    def __init__(self, schemas: Schemas, detail: Detail, size: int) -> None:
        self._schemas, self._detail, self._size = schemas, detail, size
        self._properties: Schema = {}
        self._required: list[str] = []
        self._wire: Schema = {"in": {}, "names": {}, "style": {}}  # how arguments are sent; see the module

    def build(self, inputs: Sequence[Input], body: OperationBody | None) -> tuple[Schema, Schema]:
        """Build the schema of the arguments, and the keys of `meta` that say how each is sent.

        Raises:
            TooLarge: if one of the schemas exceeds the size.
        """
        for field in inputs:
            schema = self._expand(field.schema, field.base, self._detail.inner)
            key = f"{field.name}_{field.place}" if field.name in self._properties else field.name
            key = self._add_property(key, field.place, schema, field.description, required=field.required)
            if key != field.name:
                self._wire["names"][key] = field.name
            if field.style:
                self._wire["style"][key] = dict(field.style)
        if body is not None:
            self._add_body(body)
        required = {"required": self._required} if self._required else {}
        return {"type": "object", "properties": self._properties, **required}, self._wire

    def _expand(self, node: object, base: str, detail: Detail) -> Schema | bool:
        return self._schemas.expand(node, base, detail, hidden="readOnly", size=self._size)

    def _add_property(self, key: str, place: str, schema: Schema | bool, description: str, *, required: bool) -> str:
        """Add a property under `key`, or `key` with underscores if that is taken. Returns the key."""
        while key in self._properties:
            key += "_"
        text = shorten_text(description) if self._detail.brief else description
        keywords = schema if isinstance(schema, dict) else {}
        self._properties[key] = {**keywords, **({"description": text} if text else {})}
        self._wire["in"][key] = place
        if required:
            self._required.append(key)
        return key

    def _add_body(self, body: OperationBody) -> None:
        """Add the body: each of its properties next to the parameters, or else the body as one property.

        It is one property if it is no plain object, or a property has the name of a parameter.
        """
        schema = self._expand(body.schema, body.base, self._detail)
        schema, self._wire["parts"] = _describe_media(schema, body)
        keywords = schema if isinstance(schema, dict) and _is_plain_object(schema) else {}
        fields = keywords.get("properties", {})
        if fields and not fields.keys() & self._properties.keys():
            self._properties.update(fields)
            self._wire["in"].update(dict.fromkeys(fields, "body"))
            self._required += keywords.get("required", []) if body.required else []
        else:
            self._wire["body"] = self._add_property("body", "body", schema, body.description, required=body.required)


def _describe_media(schema: Schema | bool, body: OperationBody) -> tuple[Schema | bool, Schema]:
    """Return the schema by which an agent writes a body of this media type, and how the parts of a form are sent.

    Args:
        schema: the expanded schema of the body, as the document has it.
        body: gives the media type, and how the document says that parts are sent.
    """
    kind = _normalize_media(body.media)
    if kind in (URL_FORM, MULTIPART_FORM):
        keywords = schema if isinstance(schema, dict) else {}
        return _describe_parts(keywords, body.parts, is_multipart=kind == MULTIPART_FORM)
    if kind == JSON_PATCH:
        return (schema if as_object(schema).get("type") == "array" else {"type": "array", "items": _PATCH_STEP}), {}
    if kind == "*/*" and not is_file(schema):
        return schema, {}  # it is sent as JSON
    is_json = _rank_media(kind) < len(PREFERRED_MEDIA)
    return (schema, {}) if is_json else _describe_other_media(schema, kind)


def _is_plain_object(schema: Schema) -> bool:
    """Return whether a schema describes an object of one form. Its properties can become arguments of their own."""
    kinds = schema.get("type", "object")
    is_object = "object" in kinds if isinstance(kinds, list) else kinds == "object"
    return is_object and not schema.keys() & {"anyOf", "oneOf"}


def _describe_parts(
    schema: Schema, encoding: Mapping[str, Mapping[str, object]], *, is_multipart: bool
) -> tuple[Schema, Schema]:
    """Return the schema of a form, with a description of how files are given, and how each part is sent.

    Args:
        schema: the expanded schema of the form.
        encoding: property → how the document says that it is sent.
        is_multipart: whether the form is `multipart/form-data`. Only such a form can have files.
    """
    properties, parts = {}, {}
    for name, inner in schema.get("properties", {}).items():
        part = dict(encoding.get(name, {}))
        if is_multipart and part.get("style") == "form":  # the default, which some generators write out
            part = {key: item for key, item in part.items() if key not in ("style", "explode")}
        if is_multipart and (is_file(inner) or _is_file_type(inner, str(part.get("content_type", "")))):
            part["file"] = True
            media_types = (alternative.get("contentMediaType", "") for alternative in _list_alternatives(inner))
            part.setdefault("content_type", str(next(filter(None, media_types), "")))
            inner = _describe_file(as_object(inner))
        properties[name] = inner
        if part := {key: value for key, value in part.items() if value != ""}:
            parts[name] = part
    return {**schema, "properties": properties} if properties else schema, parts


def _describe_other_media(schema: Schema | bool, kind: str) -> tuple[Schema, Schema]:
    """Return the schema of a body that is neither JSON nor a form, and how it is sent: as a text or as a file."""
    keywords = as_object(schema)
    is_text = any(part in kind for part in TEXT_MEDIA)
    if is_file(schema) or not is_text:
        file_schema = _describe_file(keywords if keywords.get("type") == "string" else {"type": "string"})
        return file_schema, {"": {"file": True}}  # "": the entire body
    if not keywords or keywords.get("type") == "string":
        return {"type": "string", **keywords}, {}
    note = f"{keywords.get('description', '')} Written as {kind}.".strip()
    return {"type": "string", "description": note, "contentMediaType": kind, "contentSchema": keywords}, {}


def _describe_file(schema: Mapping[str, object]) -> Schema:
    """Return a schema of text whose description says how a file is given."""
    description = f"{schema.get('description', '')} {FILE_HINT}".strip()
    return {**schema, "description": description}


def is_file(schema: object) -> bool:
    """Return whether values of a schema, or the items of its list, are files."""
    return any(
        alternative.get("format") in ("binary", "byte", "base64")
        or {"contentMediaType", "contentEncoding"} & alternative.keys()
        for alternative in _list_alternatives(schema)
    )


def _is_file_type(schema: object, media: str) -> bool:
    """Return whether a part of a form is a file by its content type `media`: it is a text, or may be anything."""
    may_be_text = all(alternative.get("type", "string") == "string" for alternative in _list_alternatives(schema))
    return bool(media) and may_be_text and "json" not in media and not any(text in media for text in TEXT_MEDIA)


def _list_alternatives(schema: object) -> Iterator[Mapping[str, object]]:
    """Yield the alternatives of a schema, or the schema if it has none. A list is replaced by its items.

    `null` and alternatives that have alternatives themselves are left out.
    """
    outer = as_object(schema)
    for alternative in (outer, *as_list(outer.get("anyOf")), *as_list(outer.get("oneOf"))):
        inner = as_object(alternative)
        inner = as_object(inner.get("items")) if inner.get("type") == "array" else inner
        if inner and inner.get("type") != "null" and not inner.keys() & {"anyOf", "oneOf"}:
            yield inner
