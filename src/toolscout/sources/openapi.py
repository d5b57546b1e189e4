"""OpenAPI 3.x and Swagger 2.0: each operation of a document becomes one tool, with a schema that stands alone."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin, urlsplit

import msgspec

from toolscout.config import Settings
from toolscout.errors import BadEntry, SourceError
from toolscout.sources import Problem, Reading, build_tool, collect, source_name
from toolscout.sources.documents import Library, describe_value, hide_credentials
from toolscout.sources.expansion import Detail, Schemas, TooLarge, brief
from toolscout.sources.wire_limits import is_reserved_header
from toolscout.types import Hints, Tool, clean

__all__ = ["read"]

METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
AIM_PARAMETERS_BYTES: Final = 32_000
MAX_PARAMETERS_BYTES: Final = 96_000
MAX_RETURNS_BYTES: Final = 8_000
MAX_TOOLS_BYTES: Final = 200_000_000  # of all tools of a document together
MAX_ID_CHARS: Final = 500
MAX_PATH_CHARS: Final = 5_000
MAX_ENTRIES: Final = 1_000  # of one list of an operation: parameters, tags, servers, security, responses
DETAILS: Final = (Detail(8), *(Detail(depth, brief=True) for depth in (8, 6, 5, 4, 3, 2, 1, 0)))
_HINTS: Final = {
    **dict.fromkeys(("get", "head", "options"), Hints(read_only=True, destructive=False)),
    "put": Hints(idempotent=True),
    "delete": Hints(destructive=True, idempotent=True),
}
_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
_COLLECTIONS: Final[Mapping[str, dict[str, Any]]] = {
    "csv": {"explode": False},
    "multi": {"explode": True},
    "ssv": {"style": "spaceDelimited", "explode": False},
    "pipes": {"style": "pipeDelimited", "explode": False},
}
_HOLE: Final = re.compile(r"\{([^{}]+)\}")


def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Read one OpenAPI 3.x or Swagger 2.0 document, JSON or YAML.

    The arguments of a tool are one flat object: every parameter is a property, and so is every property of the
    request body. When a property of the body bears the name of a parameter, or the body is no plain object, the
    whole body is one property, `body`; `meta["body"]` then names it. Two parameters of one name (`id` in path and
    query) become `id` and `id_query`; `meta["names"]` then gives the name to send.

    `meta` holds what a caller needs: method, path, server, `in` (property → path, query, header, cookie or body),
    how lists are written (`style`), content type, and names and kinds of the security schemes (the caller uses
    those that it has credentials for).

    Args:
        locator: a file, or an http(s) URL; redirects are followed; at most 50 MB. Of a URL, only public addresses
            are asked, its own host if the user typed a local one, and those of the setting `private_hosts`.
        name: the source's name; by default the document's title in lower case, or the file's stem.
        settings: `http_timeout` in seconds; `max_tools`, the most operations; `private_hosts`.

    Raises:
        SourceError: the document cannot be fetched or parsed, is no OpenAPI, or holds no usable operation.
    """
    with Library(locator, settings.http_timeout, settings.private_hosts) as library:
        document, where = library.open_root(), hide_credentials(locator)
        if not isinstance(document, Mapping) or not ("openapi" in document or "swagger" in document):
            raise SourceError(f"{where}: expected an OpenAPI document ('openapi' or 'swagger' at the top), found none")
        version = document.get("openapi", document.get("swagger"))
        if not isinstance(version, (str, int, float)) or not re.match(r"3(\.|$)|2(\.0)?$", str(version)):
            raise SourceError(f"{where}: expected OpenAPI 3.x or Swagger 2.0, found version {describe_value(version)}")
        info = document.get("info")
        title = (_text(info.get("title")) if isinstance(info, Mapping) else "") or Path(where).stem
        return [_Api(library, document, title, settings.max_tools).reading(name or source_name(title.lower()))]


class _Operation(NamedTuple):
    """One operation as found: its path item, itself, and the locations of the documents that hold them."""

    method: str
    path: str
    item: Mapping[Any, Any]
    item_base: str
    node: Mapping[Any, Any]
    base: str

    @property
    def entry(self) -> str:
        return f"{self.method.upper()} {self.path}"

    @property
    def own_name(self) -> str:
        name = self.node.get("operationId")  # one that is far too long counts as none
        return _text(name) if isinstance(name, str) and len(name) <= MAX_ID_CHARS else ""

    @property
    def own_id(self) -> str:
        return re.sub(r"\s+", "-", self.own_name)


class _Input(NamedTuple):
    """One argument as found: the name to send, where to, its schema and the document that holds it."""

    name: str
    place: str
    schema: Any
    base: str
    required: bool = False
    description: str = ""
    style: Mapping[str, Any] = {}


class _Api:
    """One document: finds its operations and builds their tools."""

    def __init__(self, library: Library, document: Mapping[Any, Any], title: str, max_tools: int) -> None:
        self._library = library
        self._document = document
        self._title = title
        self._max_tools = max_tools
        self._swagger = "openapi" not in document
        self._schemas = Schemas(library)
        self._problems: list[Problem] = []
        self._bytes_left = MAX_TOOLS_BYTES

    def reading(self, source: str) -> Reading:
        """Everything usable in the document, as tools of `source`."""
        where = hide_credentials(self._library.root)
        operations = list(itertools.islice(self._operations(), self._max_tools + 1))
        if len(operations) > self._max_tools:
            raise SourceError(
                f"{where}: expected at most {self._max_tools:,} operations, found more: "
                "raise max_tools to read them all"
            )
        ids = Counter(operation.own_id for operation in operations)
        entries = []
        for operation in operations:
            unique = operation.own_id and ids[operation.own_id] == 1
            raw_id = operation.own_id if unique else re.sub(r"\s+", "-", f"{operation.method}:{operation.path}")
            entries.append((operation.entry, functools.partial(self._tool, source, raw_id, operation)))
        reading = collect(source, "openapi", entries)
        problems = [*self._problems, *reading.problems]
        if not reading.tools:
            first = f"{problems[0].entry}: {problems[0].message}" if problems else "none"
            raise SourceError(f"{where}: expected at least one usable operation under 'paths', found {first}")
        return msgspec.structs.replace(reading, problems=problems)

    def _operations(self) -> Iterator[_Operation]:
        paths, base = self._library.follow(self._document.get("paths"), self._library.root)
        for key, value in paths.items() if isinstance(paths, Mapping) else ():
            if str(key).startswith("x-"):
                continue
            if len(str(key)) > MAX_PATH_CHARS:
                self._problems.append(
                    Problem(str(key)[:60], f"expected a path of at most {MAX_PATH_CHARS:,} characters")
                )
                continue
            path = "/" + str(clean(str(key))).strip().lstrip("/")
            item, item_base = self._object("a path item", value, base, entry=path) or ({}, base)
            for method in METHODS:
                if method in item:
                    entry = f"{method.upper()} {path}"
                    operation = self._object("an operation", item[method], item_base, entry=entry)
                    if operation:
                        yield _Operation(method, path, item, item_base, *operation)

    def _object(self, what: str, node: Any, base: str, *, entry: str) -> tuple[Mapping[Any, Any], str] | None:
        """The object that `node` stands for and its document; None, and a problem named `entry`, if it is none."""
        try:
            node, base = self._library.follow(node, base)
            if isinstance(node, Mapping):
                return node, base
            raise BadEntry(f"expected {what} (an object), found {describe_value(node)}")
        except BadEntry as error:
            self._problems.append(Problem(entry, str(error)))
            return None

    def _tool(self, source: str, raw_id: str, operation: _Operation) -> Tool:
        node = operation.node
        inputs = self._inputs(operation)
        fields = [one for one in inputs if one.place in ("body", "formData")]
        body, content_type = self._fields_body(operation, fields) if fields else self._request_body(operation)
        parameters, wire = self._arguments([one for one in inputs if one not in fields], body)
        server = self._server(operation)
        meta = {
            "method": operation.method.upper(),
            "path": operation.path,
            "server": server,
            **wire,
            "content_type": content_type,
            **self._security(node.get("security", self._document.get("security"))),
            "deprecated": node.get("deprecated") is True,
        }
        tags = [tag.strip() for tag in _list(node.get("tags")) if isinstance(tag, str) and tag.strip()]
        tool = build_tool(
            source,
            raw_id,
            name=(operation.own_id and _text(node.get("operationId")))
            or re.sub(r"\W+", "_", operation.entry).strip("_").lower(),
            description=_description(node, operation.item),
            parameters=parameters,
            path=[self._title, *tags[:1]],
            parent=[self._title],
            returns=self._returns(operation),
            tags=tags,
            hints=_HINTS.get(operation.method),
            callable=re.match(r"https?://[^/{}]+[^{}]*$", server) is not None,
            meta={key: value for key, value in meta.items() if value or key == "in"},
        )
        self._bytes_left -= len(msgspec.json.encode(tool))
        if self._bytes_left < 0:
            raise SourceError(
                f"{hide_credentials(self._library.root)}: its tools are larger than {MAX_TOOLS_BYTES / 1e6:g} MB once "
                "their references are written out: split the document"
            )
        return tool

    # --- what goes in ---

    def _inputs(self, operation: _Operation) -> list[_Input]:
        """Return the parameters of the path item and the operation; the latter win. Holes of the path are added."""
        inputs: dict[tuple[str, str], _Input] = {}
        for holder, base in ((operation.item, operation.item_base), (operation.node, operation.base)):
            listed, where = self._library.follow(holder.get("parameters"), base)
            if listed is not None and not isinstance(listed, list):
                raise BadEntry(f"expected a list as parameters, found {describe_value(listed)}")
            if listed is not None and len(listed) > MAX_ENTRIES:
                raise BadEntry(f"expected at most {MAX_ENTRIES:,} parameters, found more")
            for entry in listed or ():
                one = _input(*self._library.follow(entry, where))
                inputs[one.name, one.place] = one
        for name in _HOLE.findall(operation.path):
            inputs.setdefault((name, "path"), _Input(name, "path", {"type": "string"}, operation.base, required=True))
        reserved = set() if self._swagger else {"accept", "content-type", "authorization"}
        return [
            one
            for one in inputs.values()
            if one.place != "header" or not (one.name.lower() in reserved or is_reserved_header(one.name))
        ]

    def _fields_body(self, operation: _Operation, fields: list[_Input]) -> tuple[_Input, str]:
        """Return the body of Swagger 2.0 (one parameter in body, or several in formData), and its content type."""
        consumes = _list(operation.node.get("consumes", self._document.get("consumes")))
        kinds = [kind for kind in consumes if isinstance(kind, str)]
        for field in fields:
            if field.place == "body":
                return field, _media(dict.fromkeys(kinds or ["application/json"]))[0]
        properties = {field.name: _add_description(field.schema, field.description) for field in fields}
        required = [field.name for field in fields if field.required]
        schema = {"type": "object", "properties": properties, "required": required}
        upload = any(isinstance(field.schema, Mapping) and field.schema.get("type") == "file" for field in fields)
        form = _FORMS[1] if upload or _FORMS[1] in kinds else _FORMS[0]
        return _Input("body", "body", schema, operation.base, required=bool(required)), form

    def _request_body(self, operation: _Operation) -> tuple[_Input | None, str]:
        """Return the request body of OpenAPI 3 as one input, and its content type."""
        node, base = self._library.follow(operation.node.get("requestBody"), operation.base)
        if node is None:
            return None, ""
        content = node.get("content") if isinstance(node, Mapping) else None
        if not isinstance(content, Mapping):
            raise BadEntry(f"expected a request body with content, found {describe_value(node)}")
        if not content:
            return None, ""
        media, schema = _media(content)
        return _Input("body", "body", schema, base, node.get("required") is True, _text(node.get("description"))), media

    def _arguments(self, inputs: list[_Input], body: _Input | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the schema of all arguments, as deep as the allowance permits, and what `meta` says of them."""
        for detail in DETAILS:
            size = MAX_PARAMETERS_BYTES if detail.depth <= 1 else AIM_PARAMETERS_BYTES
            try:
                parameters, wire = self._assemble(inputs, body, detail, size)
            except TooLarge:
                continue
            if len(msgspec.json.encode(parameters)) <= size:
                return parameters, wire
        raise BadEntry(
            f"expected parameters of at most {MAX_PARAMETERS_BYTES:,} bytes, found more: split the operation"
        )

    def _assemble(
        self, inputs: list[_Input], body: _Input | None, detail: Detail, size: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        wire: dict[str, Any] = {"in": {}, "names": {}, "style": {}}

        def add(field: _Input, wanted: str, schema: Any) -> str:
            key = wanted
            while key in properties:
                key += "_"
            text = brief(field.description) if detail.brief else field.description
            properties[key] = {
                **(schema if isinstance(schema, dict) else {}),
                **({"description": text} if text else {}),
            }
            wire["in"][key] = field.place
            if field.required:
                required.append(key)
            return key

        for field in inputs:
            schema = self._schemas.plain(field.schema, field.base, detail.inner, hidden="readOnly", size=size)
            key = add(field, f"{field.name}_{field.place}" if field.name in properties else field.name, schema)
            if key != field.name:
                wire["names"][key] = field.name
            if field.style:
                wire["style"][key] = field.style
        if body:
            schema = self._schemas.plain(body.schema, body.base, detail, hidden="readOnly", size=size)
            fields = schema.get("properties", {}) if _is_plain_object(schema) else {}
            if fields and not fields.keys() & properties.keys():
                properties.update(fields)
                wire["in"].update(dict.fromkeys(fields, "body"))
                required += schema.get("required", []) if body.required else []
            else:
                wire["body"] = add(body, "body", schema)
        needs = {"required": required} if required else {}
        return {"type": "object", "properties": properties, **needs}, wire

    # --- what comes out, and where it is sent ---

    def _returns(self, operation: _Operation) -> Any:
        """Schema of the first 2xx answer, or its description; an unreadable one is named, and the tool goes on."""
        try:
            return self._answer(operation)
        except BadEntry as error:
            self._problems.append(Problem(operation.entry, f"{error} (the tool is kept without its result)"))
            return None

    def _answer(self, operation: _Operation) -> Any:
        responses, base = self._library.follow(operation.node.get("responses"), operation.base)
        codes = itertools.islice(responses, MAX_ENTRIES) if isinstance(responses, Mapping) else ()
        good = [code for code in codes if str(code).startswith("2")]
        if not good:
            return None
        node, base = self._library.follow(responses[good[0]], base)
        if not isinstance(node, Mapping):
            raise BadEntry(f"expected a response (an object), found {describe_value(node)}")
        content, schema = node.get("content"), node.get("schema")
        if isinstance(content, Mapping) and content:
            schema = _media(content)[1]
        for detail in DETAILS if isinstance(schema, Mapping) and schema else ():
            try:
                return self._schemas.plain(schema, base, detail, hidden="writeOnly", size=MAX_RETURNS_BYTES)
            except TooLarge:
                continue
        return _text(node.get("description")) or None

    def _server(self, operation: _Operation) -> str:
        """Where the path is appended: absolute if the document or its own address says so, else what is known of it."""
        if self._swagger:
            server = self._swagger_server(operation.node)
        else:
            holders = (operation.node, operation.item, self._document)
            listed = (one for holder in holders for one in _list(holder.get("servers")) if isinstance(one, Mapping))
            first = next(listed, None)
            server = _fill_variables(first) if first is not None else ""
        try:
            server = urljoin(hide_credentials(self._library.root), server or "/") if self._library.remote else server
        except ValueError:
            return ""
        return server.rstrip("/")

    def _swagger_server(self, node: Mapping[Any, Any]) -> str:
        host, base_path = _text(self._document.get("host")), _text(self._document.get("basePath"))
        if not host:
            return base_path
        listed = _list(node.get("schemes", self._document.get("schemes")))
        schemes = [scheme for scheme in listed if scheme in ("http", "https")]
        root_schemes = [urlsplit(self._library.root).scheme] if self._library.remote else []
        scheme = "https" if "https" in schemes else [*schemes, *root_schemes, "https"][0]
        return f"{scheme}://{host}/{base_path.lstrip('/')}"

    def _security(self, required: Any) -> dict[str, Any]:
        """Return names of the security schemes asked for, and what kinds they are; never a credential."""
        listed = (str(name) for one in _list(required) if isinstance(one, Mapping) for name in one)
        names = list(itertools.islice(listed, MAX_ENTRIES))
        components = self._document.get("components")
        definitions = components.get("securitySchemes") if isinstance(components, Mapping) else None
        definitions = self._document.get("securityDefinitions") if self._swagger else definitions
        schemes = {}
        for name in names:
            scheme = definitions.get(name) if isinstance(definitions, Mapping) else None
            if isinstance(scheme, Mapping):
                kinds = {key: _text(scheme.get(key)) for key in ("type", "scheme", "in", "name")}
                schemes[name] = {key: value for key, value in kinds.items() if value}
        return {"security": list(dict.fromkeys(names)), "security_schemes": schemes}


def _input(node: Any, base: str) -> _Input:
    """Return one parameter of either version."""
    name, place = (_text(node.get("name")), node.get("in")) if isinstance(node, Mapping) else ("", None)
    if not name or place not in ("path", "query", "header", "cookie", "body", "formData"):
        raise BadEntry(
            f"expected a parameter with a name and a place (in: path, query, …), found {describe_value(node)}"
        )
    schema, content = node.get("schema"), node.get("content")
    style: dict[str, Any] = {}
    if schema is not None:
        style = {key: node[key] for key in ("style", "explode") if isinstance(node.get(key), (str, bool))}
    elif isinstance(content, Mapping) and content:
        style["content_type"], schema = _media(content)
    else:
        schema = {key: value for key, value in node.items() if key not in ("name", "in", "required", "description")}
        if node.get("type") == "array":
            style = _COLLECTIONS.get(_text(node.get("collectionFormat")) or "csv", {})
    required = place == "path" or node.get("required") is True
    return _Input(name, str(place), schema, base, required, _text(node.get("description")), style)


def _description(node: Mapping[Any, Any], item: Mapping[Any, Any]) -> str:
    """Summary and description, neither twice."""
    summary, text = (_text(node.get(key)) or _text(item.get(key)) for key in ("summary", "description"))
    bare = summary.rstrip(". ")
    if text.lower().startswith(bare.lower()):
        summary = ""
    elif text and bare[-1:] not in "!?:":
        summary = f"{bare}."
    deprecated = "Deprecated." if node.get("deprecated") is True else ""
    return " ".join(part for part in (summary, text, deprecated) if part)


def _media(content: Mapping[Any, Any]) -> tuple[str, Any]:
    """Return the content type to use (JSON, a relative of JSON, a form, or the first) and its schema."""

    def rank(media: object) -> int:
        kind = str(media).partition(";")[0].strip().lower()
        return 0 if kind == "application/json" else 1 if kind.endswith("json") else 2 if kind in _FORMS else 3

    media = min(itertools.islice(content, MAX_ENTRIES), key=rank)
    schema = content[media].get("schema") if isinstance(content[media], Mapping) else None
    return str(media), {} if schema is None else schema


def _add_description(schema: Any, description: str) -> Any:
    return {"description": description, "allOf": [schema]} if description else schema


def _fill_variables(server: Mapping[Any, Any]) -> str:
    """Return the URL of a server with the defaults of its variables; a hole that has none stays."""
    variables = server.get("variables")

    def default(match: re.Match[str]) -> str:
        variable = variables.get(match[1]) if isinstance(variables, Mapping) else None
        value = variable.get("default") if isinstance(variable, Mapping) else None
        return str(clean(value)) if isinstance(value, (str, int)) else match[0]

    return _HOLE.sub(default, _text(server.get("url")))


def _is_plain_object(schema: Any) -> bool:
    return (
        isinstance(schema, dict) and "object" in schema.get("type", "object") and not schema.keys() & {"anyOf", "oneOf"}
    )


def _text(value: Any) -> str:
    return str(clean(value)).strip() if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value[:MAX_ENTRIES] if isinstance(value, list) else []
