"""Reads OpenAPI 3.x and Swagger 2.0 documents: each operation becomes a tool.

The schema of a tool is complete in itself: `toolscout.sources.openapi_schemas` resolves references and bounds its size.
"""

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

from toolscout.errors import BadEntry, SourceError
from toolscout.settings import Settings
from toolscout.sources.addresses import is_reserved_header
from toolscout.sources.documents import Library, hide_credentials
from toolscout.sources.openapi_schemas import (
    FORMS,
    MAX_ENTRIES,
    TEMPLATE_VARIABLE,
    Detail,
    Input,
    Schemas,
    TooLarge,
    add_description,
    choose_media,
    clean_text,
    fill_variables,
    is_plain_object,
    join_description,
    limit_list,
    read_parameter,
    shorten_text,
)
from toolscout.sources.reading import Problem, RawTool, Reading, build_tool, collect, describe_value, source_name
from toolscout.types import Hints, Tool, clean

__all__ = ["read"]

METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
AIM_PARAMETERS_BYTES: Final = 32_000
MAX_PARAMETERS_BYTES: Final = 96_000
MAX_RETURNS_BYTES: Final = 8_000
MAX_TOOLS_BYTES: Final = 200_000_000  # of all tools of a document together
MAX_ID_CHARS: Final = 500
MAX_PATH_CHARS: Final = 5_000
#: How much of a schema is written out. The first that fits the allowance is used.
DETAILS: Final = (Detail(8), *(Detail(depth, brief=True) for depth in (8, 6, 5, 4, 3, 2, 1, 0)))
_HINTS: Final = {
    **dict.fromkeys(("get", "head", "options"), Hints(read_only=True, destructive=False)),
    "put": Hints(idempotent=True),
    "delete": Hints(destructive=True, idempotent=True),
}

#: Words at the ends of a title that say only that a document describes an interface, and versions.
_GENERIC_TITLE_WORD: Final = re.compile(
    r"the|apis?|rest(ful)?|open-?api|swagger|oas|spec(ification)?|definition|version|v?\d+(\.\w+)*"
)


def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Read one OpenAPI 3.x or Swagger 2.0 document, JSON or YAML.

    The arguments of a tool are one flat object. Every parameter is a property of it, and so is every property of the
    request body. If a property of the body has the name of a parameter, or the body is not a plain object, the entire
    body is one property, `body`, which `meta["body"]` names. Two parameters with the same name (`id` in path and
    query) become `id` and `id_query`, and `meta["names"]` gives the name to send.

    `meta` holds what a caller needs: method, path, server, `in` (property → path, query, header, cookie or body),
    how lists are written (`style`), content type, and names and kinds of the security schemes. The caller uses the
    schemes for which it has credentials.

    Args:
        locator: a file of at most 50 MB, or an http(s) URL. Redirects of a URL are followed. Requests go only to
            public addresses, to the URL's own host if the user typed a local one, and to the setting `private_hosts`.
        name: the source's name. By default the document's title in lower case, without words such as API, or the file's
            stem.
        settings: `http_timeout` in seconds, `max_tools` (the largest number of operations), and `private_hosts`.

    Raises:
        SourceError: if the document cannot be fetched or parsed, is not OpenAPI, or holds no usable operation.
    """
    with Library(locator, settings.http_timeout, settings.private_hosts) as library:
        document, where = library.open_root(), hide_credentials(locator)
        if not isinstance(document, Mapping) or not ("openapi" in document or "swagger" in document):
            raise SourceError(f"{where}: expected an OpenAPI document ('openapi' or 'swagger' at the top), found none")
        version = document.get("openapi", document.get("swagger"))
        if not isinstance(version, (str, int, float)) or not re.match(r"3(\.|$)|2(\.0)?$", str(version)):
            raise SourceError(f"{where}: expected OpenAPI 3.x or Swagger 2.0, found version {describe_value(version)}")
        info = document.get("info")
        stem = Path(where).stem
        title = (clean_text(info.get("title")) if isinstance(info, Mapping) else "") or stem
        source = name or _name_document(title, stem)
        return [_Document(library, document, title, settings.max_tools).build_reading(source)]


def _name_document(*titles: str) -> str:
    """Name a document by its title as people would: `petstore` for `Swagger Petstore - OpenAPI 3.0`.

    Words such as API and versions are dropped from both ends. A title of such words alone gives way to the next.
    """
    for title in titles:
        words = [word for word in re.split(r"[\s\-_/:|()]+", title.lower()) if word]
        while words and _GENERIC_TITLE_WORD.fullmatch(words[-1]):
            if words.pop() == "api" and words and words[-1] == "web":
                words.pop()
        while words and _GENERIC_TITLE_WORD.fullmatch(words[0]):
            del words[0]
        if words:
            return source_name("-".join(words))
    return source_name(titles[0].lower())


class _Operation(NamedTuple):
    """One operation and its path item. `base` and `item_base` are the locations of their documents."""

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
        """The document's own name for the operation. Empty if there is none, or it is far too long."""
        name = self.node.get("operationId")
        return clean_text(name) if isinstance(name, str) and len(name) <= MAX_ID_CHARS else ""

    @property
    def own_id(self) -> str:
        return re.sub(r"\s+", "-", self.own_name)


class _Document:
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

    def build_reading(self, source: str) -> Reading:
        """Build the tools of `source` from every usable operation.

        Raises:
            SourceError: if there are too many operations, or none that is usable.
        """
        where = hide_credentials(self._library.root)
        operations = list(itertools.islice(self._find_operations(), self._max_tools + 1))
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
            entries.append((operation.entry, functools.partial(self._build_tool, source, raw_id, operation)))
        reading = collect(source, "openapi", entries)
        problems = [*self._problems, *reading.problems]
        if not reading.tools:
            first = f"{problems[0].entry}: {problems[0].message}" if problems else "none"
            raise SourceError(f"{where}: expected at least one usable operation under 'paths', found {first}")
        return msgspec.structs.replace(reading, problems=problems)

    def _find_operations(self) -> Iterator[_Operation]:
        """Yield every operation of the document. Unusable paths and operations become problems."""
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
            item, item_base = self._find_object("a path item", value, base, entry=path) or ({}, base)
            for method in METHODS:
                if method in item:
                    entry = f"{method.upper()} {path}"
                    operation = self._find_object("an operation", item[method], item_base, entry=entry)
                    if operation:
                        yield _Operation(method, path, item, item_base, *operation)

    def _find_object(self, what: str, node: Any, base: str, *, entry: str) -> tuple[Mapping[Any, Any], str] | None:
        """Follow `node` to an object. Returns it and its location; without an object, notes a problem with `entry`."""
        try:
            node, base = self._library.follow(node, base)
            if isinstance(node, Mapping):
                return node, base
            raise BadEntry(f"expected {what} (an object), found {describe_value(node)}")
        except BadEntry as error:
            self._problems.append(Problem(entry, str(error)))
            return None

    def _build_tool(self, source: str, raw_id: str, operation: _Operation) -> Tool:
        """Build the tool of an operation.

        Raises:
            BadEntry: if a part of the operation cannot be read.
            SourceError: if the tools of the document together are too large.
        """
        node = operation.node
        inputs = self._collect_inputs(operation)
        fields = [field for field in inputs if field.place in ("body", "formData")]
        body, content_type = self._read_fields_body(operation, fields) if fields else self._read_request_body(operation)
        parameters, wire = self._fit_arguments([field for field in inputs if field not in fields], body)
        server = self._find_server(operation)
        meta = {
            "method": operation.method.upper(),
            "path": operation.path,
            "server": server,
            **wire,
            "content_type": content_type,
            **self._list_security(node.get("security", self._document.get("security"))),
            "deprecated": node.get("deprecated") is True,
        }
        tags = [tag.strip() for tag in limit_list(node.get("tags")) if isinstance(tag, str) and tag.strip()]
        fallback_name = re.sub(r"\W+", "_", operation.entry).strip("_").lower()
        fields_of_tool = RawTool(
            id=raw_id,
            name=(operation.own_id and clean_text(node.get("operationId"))) or fallback_name,
            description=join_description(node, operation.item),
            parameters=parameters,
            path=[self._title, *tags[:1]],
            parent=[self._title],
            returns=self._describe_result(operation),
            tags=tags,
            requires=node.get("x-depends-on"),
            hints=_HINTS.get(operation.method, Hints()),
            callable=re.match(r"https?://[^/{}]+[^{}]*$", server) is not None,
            meta={key: value for key, value in meta.items() if value or key == "in"},
        )
        tool = build_tool(source, fields_of_tool)
        self._bytes_left -= len(msgspec.json.encode(tool))
        if self._bytes_left < 0:
            raise SourceError(
                f"{hide_credentials(self._library.root)}: its tools are larger than {MAX_TOOLS_BYTES / 1e6:g} MB once "
                "their references are written out. Split the document."
            )
        return tool

    # --- arguments ---

    def _collect_inputs(self, operation: _Operation) -> list[Input]:
        """Collect the parameters of an operation and of its path item; the operation's own take precedence.

        A variable of the path that neither of them describes becomes a required text.
        """
        inputs: dict[tuple[str, str], Input] = {}
        for holder, base in ((operation.item, operation.item_base), (operation.node, operation.base)):
            for field in self._read_parameters(holder, base):
                inputs[field.name, field.place] = field
        for name in TEMPLATE_VARIABLE.findall(operation.path):
            inputs.setdefault((name, "path"), Input(name, "path", {"type": "string"}, operation.base, required=True))
        reserved = set() if self._swagger else {"accept", "content-type", "authorization"}
        return [
            field
            for field in inputs.values()
            if field.place != "header" or not (field.name.lower() in reserved or is_reserved_header(field.name))
        ]

    def _read_parameters(self, holder: Mapping[Any, Any], base: str) -> Iterator[Input]:
        """Yield the parameters that a path item or an operation lists.

        Raises:
            BadEntry: if they are not a list, are too many, or one of them cannot be read.
        """
        nodes, base = self._library.follow(holder.get("parameters"), base)
        if nodes is None:
            return
        if not isinstance(nodes, list):
            raise BadEntry(f"expected a list as parameters, found {describe_value(nodes)}")
        if len(nodes) > MAX_ENTRIES:
            raise BadEntry(f"expected at most {MAX_ENTRIES:,} parameters, found more")
        for node in nodes:
            yield read_parameter(*self._library.follow(node, base))

    def _read_fields_body(self, operation: _Operation, fields: list[Input]) -> tuple[Input, str]:
        """Read the body of Swagger 2.0 (a parameter in `body`, or several in `formData`) and its type."""
        consumes = limit_list(operation.node.get("consumes", self._document.get("consumes")))
        kinds = [kind for kind in consumes if isinstance(kind, str)]
        for field in fields:
            if field.place == "body":
                return field, choose_media(dict.fromkeys(kinds or ["application/json"]))[0]
        properties = {field.name: add_description(field.schema, field.description) for field in fields}
        required = [field.name for field in fields if field.required]
        schema = {"type": "object", "properties": properties, "required": required}
        upload = any(isinstance(field.schema, Mapping) and field.schema.get("type") == "file" for field in fields)
        form = FORMS[1] if upload or FORMS[1] in kinds else FORMS[0]
        return Input("body", "body", schema, operation.base, required=bool(required)), form

    def _read_request_body(self, operation: _Operation) -> tuple[Input | None, str]:
        """Read the request body of OpenAPI 3. Returns it as one input with its content type."""
        node, base = self._library.follow(operation.node.get("requestBody"), operation.base)
        if node is None:
            return None, ""
        content = node.get("content") if isinstance(node, Mapping) else None
        if not isinstance(content, Mapping):
            raise BadEntry(f"expected a request body with content, found {describe_value(node)}")
        if not content:
            return None, ""
        media, schema = choose_media(content)
        return Input(
            "body", "body", schema, base, node.get("required") is True, clean_text(node.get("description"))
        ), media

    def _fit_arguments(self, inputs: list[Input], body: Input | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Build the schema of all arguments with as much detail as the allowance permits.

        Returns the schema, and the keys of `meta` that say how each argument is sent.

        Raises:
            BadEntry: if it is too large even with the least detail.
        """
        for detail in DETAILS:
            size = MAX_PARAMETERS_BYTES if detail.depth <= 1 else AIM_PARAMETERS_BYTES
            try:
                parameters, wire = self._assemble_arguments(inputs, body, detail, size)
            except TooLarge:
                continue
            if len(msgspec.json.encode(parameters)) <= size:
                return parameters, wire
        raise BadEntry(
            f"expected parameters of at most {MAX_PARAMETERS_BYTES:,} bytes, found more: split the operation"
        )

    def _assemble_arguments(
        self, inputs: list[Input], body: Input | None, detail: Detail, size: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Build the schema of all arguments with one degree of detail; see `_fit_arguments`.

        Raises:
            TooLarge: if one of the schemas exceeds `size` characters.
        """
        properties: dict[str, Any] = {}
        required: list[str] = []
        wire: dict[str, Any] = {"in": {}, "names": {}, "style": {}}

        def add(field: Input, key: str, schema: Any) -> str:
            """Add a property under `key`, or `key` with underscores if that is taken. Returns the key."""
            while key in properties:
                key += "_"
            text = shorten_text(field.description) if detail.brief else field.description
            properties[key] = {
                **(schema if isinstance(schema, dict) else {}),
                **({"description": text} if text else {}),
            }
            wire["in"][key] = field.place
            if field.required:
                required.append(key)
            return key

        for field in inputs:
            schema = self._schemas.expand(field.schema, field.base, detail.inner, hidden="readOnly", size=size)
            key = add(field, f"{field.name}_{field.place}" if field.name in properties else field.name, schema)
            if key != field.name:
                wire["names"][key] = field.name
            if field.style:
                wire["style"][key] = field.style
        if body:
            schema = self._schemas.expand(body.schema, body.base, detail, hidden="readOnly", size=size)
            fields = schema.get("properties", {}) if is_plain_object(schema) else {}
            if fields and not fields.keys() & properties.keys():
                properties.update(fields)
                wire["in"].update(dict.fromkeys(fields, "body"))
                required += schema.get("required", []) if body.required else []
            else:
                wire["body"] = add(body, "body", schema)
        needs = {"required": required} if required else {}
        return {"type": "object", "properties": properties, **needs}, wire

    # --- result, server and security ---

    def _describe_result(self, operation: _Operation) -> Any:
        """Return the schema or description of the first 2xx response. An unreadable one becomes a problem and None."""
        try:
            return self._read_response(operation)
        except BadEntry as error:
            self._problems.append(Problem(operation.entry, f"{error} (the tool is kept without its result)"))
            return None

    def _read_response(self, operation: _Operation) -> Any:
        """Return the schema of the first 2xx response, else its description, else None."""
        responses, base = self._library.follow(operation.node.get("responses"), operation.base)
        codes = itertools.islice(responses, MAX_ENTRIES) if isinstance(responses, Mapping) else ()
        successes = [code for code in codes if str(code).startswith("2")]
        if not successes:
            return None
        node, base = self._library.follow(responses[successes[0]], base)
        if not isinstance(node, Mapping):
            raise BadEntry(f"expected a response (an object), found {describe_value(node)}")
        content, schema = node.get("content"), node.get("schema")
        if isinstance(content, Mapping) and content:
            schema = choose_media(content)[1]
        for detail in DETAILS if isinstance(schema, Mapping) and schema else ():
            try:
                return self._schemas.expand(schema, base, detail, hidden="writeOnly", size=MAX_RETURNS_BYTES)
            except TooLarge:
                continue
        return clean_text(node.get("description")) or None

    def _find_server(self, operation: _Operation) -> str:
        """Return the address to which the path is appended. Relative if neither document nor locator gives a host."""
        if self._swagger:
            server = self._build_swagger_server(operation.node)
        else:
            holders = (operation.node, operation.item, self._document)
            lists = (limit_list(holder.get("servers")) for holder in holders)
            first = next((node for nodes in lists for node in nodes if isinstance(node, Mapping)), None)
            server = fill_variables(first) if first is not None else ""
        try:
            server = urljoin(hide_credentials(self._library.root), server or "/") if self._library.remote else server
        except ValueError:
            return ""
        return server.rstrip("/")

    def _build_swagger_server(self, node: Mapping[Any, Any]) -> str:
        """Join scheme, host and base path of Swagger 2.0. Prefers https."""
        host, base_path = clean_text(self._document.get("host")), clean_text(self._document.get("basePath"))
        if not host:
            return base_path
        given_schemes = limit_list(node.get("schemes", self._document.get("schemes")))
        schemes = [scheme for scheme in given_schemes if scheme in ("http", "https")]
        root_schemes = [urlsplit(self._library.root).scheme] if self._library.remote else []
        scheme = "https" if "https" in schemes else [*schemes, *root_schemes, "https"][0]
        return f"{scheme}://{host}/{base_path.lstrip('/')}"

    def _list_security(self, required: Any) -> dict[str, Any]:
        """Return the names and kinds of the required security schemes, as keys of `meta`. They hold no credential."""
        choices = (choice for choice in limit_list(required) if isinstance(choice, Mapping))
        names = list(itertools.islice((str(name) for choice in choices for name in choice), MAX_ENTRIES))
        components = self._document.get("components")
        definitions = components.get("securitySchemes") if isinstance(components, Mapping) else None
        definitions = self._document.get("securityDefinitions") if self._swagger else definitions
        schemes = {}
        for name in names:
            scheme = definitions.get(name) if isinstance(definitions, Mapping) else None
            if isinstance(scheme, Mapping):
                kinds = {key: clean_text(scheme.get(key)) for key in ("type", "scheme", "in", "name")}
                schemes[name] = {key: value for key, value in kinds.items() if value}
        return {"security": list(dict.fromkeys(names)), "security_schemes": schemes}
