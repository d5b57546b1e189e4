"""Reads the parameters and the body of an OpenAPI operation: one schema for all, and how form argument is sent.

`meta` of a tool says how (`toolscout_gateway.openapi` does it):

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
    "FORMS",
    "MAX_ENTRIES",
    "Input",
    "OperationBody",
    "choose_media",
    "fit_arguments",
    "read_parameter",
]

MAX_ENTRIES: Final = 1_000  # in one list of an operation: parameters, tags, servers, security, responses
AIM_PARAMETERS_BYTES: Final = 32_000
MAX_PARAMETERS_BYTES: Final = 96_000
#: How much of a schema is written out. The first that fits the allowance is used.
DETAILS: Final = (Detail(8), *(Detail(depth, brief=True) for depth in (8, 6, 5, 4, 3, 2, 1, 0)))
PLACES: Final = ("path", "query", "querystring", "header", "cookie", "body", "formData")
FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
JSON_PATCH: Final = "application/json-patch+json"
#: The content types that are preferred, in this order: other relatives of JSON follow, then forms, then all others.
PREFERRED_MEDIA: Final = (
    *("application/json", "application/merge-patch+json", "application/strategic-merge-patch+json"),
    *("+json", JSON_PATCH, *FORMS),
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
    """One parameter: its name and place in the request, and its schema in the document at `base`."""

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
    """Choose a content type: JSON, a relative of JSON, a form, or the first. Returns it, its object and location.

    A body that is a list is a JSON patch if that is allowed: the patches before it in the order are objects.

    Raises:
        BadEntry: if there is none.
    """
    content, base = library.follow(content, base)
    if not isinstance(content, Mapping) or not content:
        raise BadEntry(f"expected content with a media type, found {describe_value(content)}")
    kinds = {str(key).partition(";")[0].strip().lower(): key for key in itertools.islice(content, MAX_ENTRIES)}
    media, where = library.follow(content[kinds[chosen := min(kinds, key=_rank_media)]], base)
    schema = as_object(as_object(media).get("schema"))
    if JSON_PATCH in kinds and chosen in PREFERRED_MEDIA[1:] and _read_type(library, schema, where) == "array":
        chosen = JSON_PATCH
    return str(kinds[chosen]), as_object(media), where


def _rank_media(kind: str) -> int:
    group = kind if kind in PREFERRED_MEDIA else "+json" if kind.endswith("json") and "nd" not in kind else ""
    return PREFERRED_MEDIA.index(group) if group else len(PREFERRED_MEDIA)


def _read_type(library: Library, schema: Mapping[str, object], base: str) -> object:
    """Return the type of a schema or of what it refers to. None if that cannot be read: a problem says so elsewhere."""
    try:
        return as_object(library.follow(schema, base)[0]).get("type")
    except BadEntry:
        return None


def fit_arguments(schemas: Schemas, inputs: Sequence[Input], body: OperationBody | None) -> tuple[Schema, Schema]:
    """Build the schema of all arguments with as much detail as the allowance permits.

    Returns the schema, and the keys of `meta` that say how form argument is sent.

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
    """The arguments of one operation, written out with one degree of detail."""

    def __init__(self, schemas: Schemas, detail: Detail, size: int) -> None:
        self._schemas, self._detail, self._size = schemas, detail, size
        self._properties: Schema = {}
        self._required: list[str] = []
        self._wire: Schema = {"in": {}, "names": {}, "style": {}}

    def build(self, inputs: Sequence[Input], body: OperationBody | None) -> tuple[Schema, Schema]:
        """Build the schema and the wire keys; see `fit_arguments`.

        Raises:
            TooLarge: if one of the schemas exceeds the size.
        """
        for field in inputs:
            schema = self._expand(field.schema, field.base, self._detail.inner)
            wish = f"{field.name}_{field.place}" if field.name in self._properties else field.name
            key = self._add(wish, field.place, schema, field.description, required=field.required)
            if key != field.name:
                self._wire["names"][key] = field.name
            if field.style:
                self._wire["style"][key] = dict(field.style)
        if body is not None:
            self._add_body(body)
        needs = {"required": self._required} if self._required else {}
        return {"type": "object", "properties": self._properties, **needs}, self._wire

    def _expand(self, node: object, base: str, detail: Detail) -> Schema | bool:
        return self._schemas.expand(node, base, detail, hidden="readOnly", size=self._size)

    def _add(self, key: str, place: str, schema: Schema | bool, description: str, *, required: bool) -> str:
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
        """Add the body: its properties beside the parameters if they can stand there, else as one property."""
        schema = self._expand(body.schema, body.base, self._detail)
        schema, self._wire["parts"] = _describe_media(schema, body)
        keywords = schema if isinstance(schema, dict) and _is_plain_object(schema) else {}
        fields = keywords.get("properties", {})
        if fields and not fields.keys() & self._properties.keys():
            self._properties.update(fields)
            self._wire["in"].update(dict.fromkeys(fields, "body"))
            self._required += keywords.get("required", []) if body.required else []
        else:
            self._wire["body"] = self._add("body", "body", schema, body.description, required=body.required)


def _describe_media(schema: Schema | bool, body: OperationBody) -> tuple[Schema | bool, Schema]:
    """Return the schema of a body as an agent writes it in the media type, and how its parts are sent."""
    kind = body.media.partition(";")[0].strip().lower()
    if kind in FORMS:
        keywords = schema if isinstance(schema, dict) else {}
        return _describe_parts(keywords, body.parts, is_multipart=kind == FORMS[1])
    if kind == JSON_PATCH:
        return (schema if as_object(schema).get("type") == "array" else {"type": "array", "items": _PATCH_STEP}), {}
    if kind == "*/*" and not is_file(schema):
        return schema, {}
    return _describe_other_media(schema, kind) if _rank_media(kind) == len(PREFERRED_MEDIA) else (schema, {})


def _is_plain_object(schema: Schema) -> bool:
    """Return whether a schema describes an object whose properties can stand beside the parameters."""
    return "object" in schema.get("type", "object") and not schema.keys() & {"anyOf", "oneOf"}


def _describe_parts(
    schema: Schema, encoding: Mapping[str, Mapping[str, object]], *, is_multipart: bool
) -> tuple[Schema, Schema]:
    """Return the schema of a form, in which files say how they are given, and how form part is sent."""
    properties, parts = {}, {}
    for name, inner in schema.get("properties", {}).items():
        part = dict(encoding.get(name, {}))
        if is_multipart and part.get("style") == "form":  # the default, which some generators write out
            part = {key: item for key, item in part.items() if key not in ("style", "explode")}
        if is_multipart and (is_file(inner) or _is_file_type(inner, str(part.get("content_type", "")))):
            part["file"] = True
            media = next(
                (str(form["contentMediaType"]) for form in _list_forms(inner) if "contentMediaType" in form), ""
            )
            part.setdefault("content_type", media)
            inner = _describe_file(as_object(inner))
        properties[name] = inner
        if part := {key: value for key, value in part.items() if value != ""}:
            parts[name] = part
    return {**schema, "properties": properties} if properties else schema, parts


def _describe_other_media(schema: Schema | bool, kind: str) -> tuple[Schema, Schema]:
    """Return the schema of a body that is neither JSON nor a form: a text, or a file in base64."""
    keywords = as_object(schema)
    is_text = any(part in kind for part in TEXT_MEDIA)
    if is_file(schema) or not is_text:
        return _describe_file(keywords if keywords.get("type") == "string" else {"type": "string"}), {
            "": {"file": True}
        }
    if not keywords or keywords.get("type") == "string":
        return {"type": "string", **keywords}, {}
    note = f"{keywords.get('description', '')} Written as {kind}.".strip()
    return {"type": "string", "description": note, "contentMediaType": kind, "contentSchema": keywords}, {}


def _describe_file(schema: Mapping[str, object]) -> Schema:
    description = f"{schema.get('description', '')} {FILE_HINT}".strip()
    return {**schema, "description": description}


def is_file(schema: object) -> bool:
    """Return whether values of a schema, or the items of its list, are files."""
    return any(
        form.get("format") in ("binary", "byte", "base64") or {"contentMediaType", "contentEncoding"} & form.keys()
        for form in _list_forms(schema)
    )


def _is_file_type(schema: object, media: str) -> bool:
    """Return whether a part without a type, or a text, has the content type of a file."""
    is_open = all(form.get("type", "string") == "string" for form in _list_forms(schema))
    return bool(media) and is_open and "json" not in media and not any(text in media for text in TEXT_MEDIA)


def _list_forms(schema: object) -> Iterator[Mapping[str, object]]:
    """Yield a schema, its alternatives, and the items of lists among them. `null` is left out."""
    outer = as_object(schema)
    for form in (outer, *as_list(outer.get("anyOf")), *as_list(outer.get("oneOf"))):
        form = as_object(form)
        form = as_object(form.get("items")) if form.get("type") == "array" else form
        if form and form.get("type") != "null" and not form.keys() & {"anyOf", "oneOf"}:
            yield form
