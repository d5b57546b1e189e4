"""Reads OpenAPI 3.x and Swagger 2.0 documents: each operation becomes a tool.

The schema of a tool is complete in itself: `toolscout.sources.openapi.schemas` resolves references and bounds its size.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urljoin, urlsplit

import msgspec

from toolscout.errors import BadEntry, SourceError
from toolscout.settings import Settings
from toolscout.sources.addresses import is_header_name, is_reserved_header, split_origin
from toolscout.sources.documents import Library, hide_credentials, split_server
from toolscout.sources.openapi.arguments import (
    DETAILS,
    MAX_ENTRIES,
    MULTIPART_FORM,
    URL_FORM,
    Input,
    OperationBody,
    choose_media,
    fit_arguments,
    read_parameter,
)
from toolscout.sources.openapi.schemas import Schemas, TooLarge
from toolscout.sources.reading import (
    Problem,
    RawTool,
    Reading,
    Schema,
    as_list,
    as_object,
    as_text,
    build_tool,
    collect,
    describe_value,
    source_name,
)
from toolscout.types import Hints, Tool, clean

__all__ = ["read"]

METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")
MAX_RETURNS_BYTES: Final = 8_000
MAX_TOOLS_BYTES: Final = 200_000_000  # of all tools of a document together
MAX_ID_CHARS: Final = 500
MAX_PATH_CHARS: Final = 5_000
_HINTS: Final = {  # by the method of HTTP
    **dict.fromkeys(("get", "head", "options", "query"), Hints(read_only=True, destructive=False)),
    "put": Hints(idempotent=True),
    "delete": Hints(destructive=True, idempotent=True),
}
#: `{name}` in a path or a server address.
TEMPLATE_VARIABLE: Final = re.compile(r"\{([^{}]+)\}")
#: Words at the ends of a title that say only that a document describes an interface, and versions.
_GENERIC_TITLE_WORD: Final = re.compile(
    r"the|apis?|rest(ful)?|open-?api|fastapi|swagger|oas|spec(ification)?|definition|docs|version|v?\d+(\.\w+)*"
)


def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Read one OpenAPI 3.x or Swagger 2.0 document, JSON or YAML.

    The arguments of a tool are one flat object. Every parameter is a property of it, and so is every property of the
    request body. If a property of the body has the name of a parameter, or the body is not a plain object, the entire
    body is one property, `body`. Two parameters with the same name (`id` in path and query) become `id` and `id_query`.
    `meta` holds what a caller needs: method, path, server, names and kinds of the security schemes, and how each
    argument is sent (`toolscout.sources.openapi.arguments`). A part that cannot be read is named and left open.

    Args:
        locator: a file of at most 50 MB, or an http(s) URL; `#server=URL` at its end replaces the document's servers.
            Redirects of a URL are followed. Requests go only to public addresses, to the URL's own host if the user
            typed a local one, and to the setting `private_hosts`.
        name: the source's name. By default the document's title in lower case, without words such as API, or the name
            of the file, the folder or the host.
        settings: `http_timeout` in seconds, `max_tools` (the largest number of operations), and `private_hosts`.

    Raises:
        SourceError: if the document cannot be fetched or parsed, is not OpenAPI, or has no usable operation.
    """
    locator, server = split_server(locator)
    if server:
        _check_server(server)
    with Library(locator, settings.http_timeout, settings.private_hosts) as library:
        document, where = library.open_root(), hide_credentials(locator)
        if not isinstance(document, Mapping) or not ("openapi" in document or "swagger" in document):
            raise SourceError(f"{where}: expected an OpenAPI document ('openapi' or 'swagger' at the top), found none")
        version = document.get("openapi", document.get("swagger"))
        if not isinstance(version, (str, int, float)) or not re.match(r"3(\.|$)|2(\.0)?$", str(version)):
            raise SourceError(f"{where}: expected OpenAPI 3.x or Swagger 2.0, found version {describe_value(version)}")
        stem = Path(where).stem
        title = as_text(as_object(document.get("info")).get("title")) or stem
        host_or_folder = urlsplit(library.root).hostname if library.remote else Path(library.root).parent.name
        source = name or _name_document(title, stem, host_or_folder or "")
        return [_Document(library, document, title, server).build_reading(source, settings.max_tools)]


def _check_server(server: str) -> None:
    """Raise SourceError unless the address that replaces the document's servers is an http(s) URL."""
    try:
        split_origin(server)
    except ValueError as error:
        raise SourceError(f"expected --server http://… or https://…, found {error}: {server[:200]}") from None


def _name_document(*titles: str) -> str:
    """Name a document by its title as people would: `petstore` for `Swagger Petstore - OpenAPI 3.0`.

    Words such as API and versions are dropped from both ends. If nothing is left, the next title is used.
    """
    for title in titles:
        words = [word for word in re.split(r"[\s\-_/:|()]+", title.lower()) if word]
        while words and _GENERIC_TITLE_WORD.fullmatch(words[-1]):
            if words.pop() == "api" and words and words[-1] == "web":  # "Web API" is one such word
                words.pop()
        while words and _GENERIC_TITLE_WORD.fullmatch(words[0]):
            del words[0]
        if words:
            return source_name("-".join(words))
    return source_name(titles[0].lower())


class _Operation(NamedTuple):
    """One operation of the document.

    Attributes:
        method: of HTTP, in lower case if OpenAPI defines it.
        path: such as `/pets/{id}`.
        item: the path item, which several operations share.
        item_base: the location of its document.
        node: the operation itself.
        base: the location of its document.
    """

    method: str
    path: str
    item: Mapping[str, object]
    item_base: str
    node: Mapping[str, object]
    base: str

    @property
    def entry(self) -> str:
        """Its name in problems, such as `GET /pets`."""
        return f"{self.method.upper()} {self.path}"

    @property
    def own_id(self) -> str:
        """Its `operationId` without white space. Empty if there is none, or it has more than 500 characters."""
        name = self.node.get("operationId")
        return re.sub(r"\s+", "-", as_text(name)) if isinstance(name, str) and len(name) <= MAX_ID_CHARS else ""

    @property
    def description(self) -> str:
        """Summary and description. A summary that begins the description is not repeated."""
        summary, text = (
            as_text(self.node.get(key)) or as_text(self.item.get(key)) for key in ("summary", "description")
        )
        bare_summary = summary.rstrip(". ")
        if text.lower().startswith(bare_summary.lower()):
            summary = ""
        elif text and bare_summary[-1:] not in "!?:":
            summary = f"{bare_summary}."
        deprecated = "Deprecated." if self.node.get("deprecated") is True else ""
        return " ".join(part for part in (summary, text, deprecated) if part)


class _Document:
    """Finds the operations of one document and builds their tools.

    `server` replaces the document's own servers; empty: they count.
    """

    def __init__(self, library: Library, document: Mapping[str, object], title: str, server: str) -> None:
        self._library = library
        self._document = document
        self._title = title
        self._server = server
        self._swagger = "openapi" not in document
        self._schemas = Schemas(library)
        self._problems: list[Problem] = []  # those that leave no tool out; `collect` has the others
        self._bytes_left = MAX_TOOLS_BYTES

    def build_reading(self, source: str, max_tools: int) -> Reading:
        """Build the tools of `source` from every usable operation.

        Raises:
            SourceError: if there are too many operations, or none that is usable.
        """
        where = hide_credentials(self._library.root)
        operations = list(itertools.islice(self._find_operations(), max_tools + 1))
        if len(operations) > max_tools:
            raise SourceError(
                f"{where}: expected at most {max_tools:,} operations, found more: raise max_tools to read them all"
            )
        ids = Counter(operation.own_id for operation in operations)
        entries = []
        for operation in operations:
            has_unique_id = operation.own_id and ids[operation.own_id] == 1
            raw_id = operation.own_id if has_unique_id else re.sub(r"\s+", "-", f"{operation.method}:{operation.path}")
            entries.append((operation.entry, functools.partial(self._build_tool, source, raw_id, operation)))
        reading = collect(source, "openapi", entries)
        problems = [*self._problems, *reading.problems]
        if not reading.tools:
            first = f"{problems[0].entry}: {problems[0].message}" if problems else "none"
            raise SourceError(f"{where}: expected at least one usable operation under 'paths', found {first}")
        n_uncallable = sum(not tool.callable for tool in reading.tools)
        message = (
            f"{n_uncallable:,} of {len(reading.tools):,} tools can be found but not called, because the document names "
            "no server with an absolute address. Add it again with --server URL."
        )
        return msgspec.structs.replace(reading, problems=problems, message=message if n_uncallable else "")

    def _find_operations(self) -> Iterator[_Operation]:
        """Yield every operation of the document. Unusable paths and operations become problems."""
        paths, base = self._library.follow(self._document.get("paths"), self._library.root)
        for key, value in as_object(paths).items():
            if str(key).startswith("x-"):
                continue
            if len(str(key)) > MAX_PATH_CHARS:
                message = f"expected a path of at most {MAX_PATH_CHARS:,} characters"
                self._problems.append(Problem(str(key)[:60], message))
                continue
            path = "/" + str(clean(str(key))).strip().lstrip("/")
            item, item_base = self._find_object("a path item", value, base, path) or ({}, base)
            nodes = {method: item[method] for method in METHODS if method in item}
            nodes |= {str(method): node for method, node in as_object(item.get("additionalOperations")).items()}
            for method, node in nodes.items():
                operation = self._find_object("an operation", node, item_base, f"{method.upper()} {path}")
                if operation and is_header_name(method):  # a method consists of the same characters
                    yield _Operation(method, path, item, item_base, *operation)

    def _find_object(self, what: str, node: object, base: str, entry: str) -> tuple[Mapping[str, object], str] | None:
        """Follow the reference of a node, if it is one, to an object.

        Args:
            what: what the object is, for the problem.
            node: part of the document at `base`.
            base: the location of that document.
            entry: what has the problem.

        Returns:
            The object and the location of its document. None if there is no object: that is noted as a problem.
        """
        try:
            node, base = self._library.follow(node, base)
            if isinstance(node, Mapping):
                return node, base
            raise BadEntry(f"expected {what} (an object), found {describe_value(node)}")
        except BadEntry as error:
            self._problems.append(Problem(entry, str(error)))
            return None

    def _build_tool(self, source: str, raw_id: str, operation: _Operation) -> Tool:
        """Build the tool of an operation. Its parts that cannot be read become problems.

        Raises:
            BadEntry: if the tool would be too large.
            SourceError: if the tools of the document together are too large.
        """
        node = operation.node
        inputs = self._collect_inputs(operation)
        body_inputs = [field for field in inputs if field.place in ("body", "formData")]
        other_inputs = [field for field in inputs if field.place not in ("body", "formData")]
        body = self._read_body(operation, body_inputs)
        parameters, wire = fit_arguments(self._schemas, other_inputs, body)
        returns = self._describe_result(operation)
        self._problems += [Problem(operation.entry, message) for message in self._schemas.take_unread()]
        server = self._find_server(operation)
        is_complete_url = re.match(r"https?://[^/{}]+[^{}]*$", server) is not None  # no variable is left in it
        meta = {
            "method": operation.method.upper(),
            "path": operation.path,
            "server": server,
            **wire,
            "content_type": body.media if body else "",
            **self._list_security(node.get("security", self._document.get("security"))),
            "deprecated": node.get("deprecated") is True,
        }
        tags = [as_text(tag) for tag in as_list(node.get("tags"))[:MAX_ENTRIES] if as_text(tag)]
        fallback_name = re.sub(r"\W+", "_", operation.entry).strip("_").lower()
        fields = RawTool(
            id=raw_id,
            name=(operation.own_id and as_text(node.get("operationId"))) or fallback_name,
            description=operation.description,
            parameters=parameters,
            path=[self._title, *tags[:1]],
            parent=[self._title],
            returns=returns,
            tags=tags,
            requires=node.get("x-depends-on"),
            hints=_HINTS.get(operation.method, Hints()),
            callable=is_complete_url,
            meta={key: value for key, value in meta.items() if value or key == "in"},  # without arguments, `in` is {}
        )
        tool = build_tool(source, fields)
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

        A variable of the path that neither of them describes becomes a required text. Headers that a caller must not
        set are left out.
        """
        inputs: dict[tuple[str, str], Input] = {}
        for holder, base in ((operation.item, operation.item_base), (operation.node, operation.base)):
            for field in self._read_parameters(operation.entry, holder, base):
                inputs[field.name, field.place] = field
        for name in TEMPLATE_VARIABLE.findall(operation.path):
            inputs.setdefault((name, "path"), Input(name, "path", {"type": "string"}, operation.base, required=True))
        # OpenAPI 3 says that parameters of these names are ignored.
        reserved = set() if self._swagger else {"accept", "content-type", "authorization"}
        return [
            field
            for field in inputs.values()
            if field.place != "header" or not (field.name.lower() in reserved or is_reserved_header(field.name))
        ]

    def _read_parameters(self, entry: str, holder: Mapping[str, object], base: str) -> Iterator[Input]:
        """Yield the parameters that a path item or an operation lists. Those that cannot be read become problems.

        Raises:
            BadEntry: if they are too many.
        """
        nodes: object = None
        try:
            nodes, base = self._library.follow(holder.get("parameters"), base)
            if not isinstance(nodes, (list, type(None))):
                raise BadEntry(f"expected a list as parameters, found {describe_value(nodes)}")
        except BadEntry as error:
            self._note_missing(entry, error, "its parameters")
        if len(as_list(nodes)) > MAX_ENTRIES:
            raise BadEntry(f"expected at most {MAX_ENTRIES:,} parameters, found more")
        for node in as_list(nodes):
            try:
                yield read_parameter(self._library, node, base)
            except BadEntry as error:
                self._note_missing(entry, error, "one parameter")

    def _note_missing(self, entry: str, error: BadEntry, part: str) -> None:
        """Note a problem for which an operation's tool lacks a part, such as "its result"."""
        self._problems.append(Problem(entry, f"{error} (the tool is kept without {part})"))

    def _read_body(self, operation: _Operation, body_inputs: list[Input]) -> OperationBody | None:
        """Read the body of a request. None if it has none. If it cannot be read, it is JSON of any form.

        `body_inputs`: parameters that are in the body, which only Swagger 2.0 has.
        """
        if body_inputs:
            return self._read_swagger_body(operation, body_inputs)
        try:
            node, base = self._library.follow(operation.node.get("requestBody"), operation.base)
            if node is None or (isinstance(node, Mapping) and node.get("content") == {}):
                return None
            fields_of_body = as_object(node)
            media, value, base = choose_media(self._library, fields_of_body.get("content"), base)
        except BadEntry as error:
            self._note_missing(operation.entry, error, "the schema of its body")
            return OperationBody({}, operation.base, "application/json")
        schema = value.get("schema")
        parts = {name: _read_encoding(encoding) for name, encoding in as_object(value.get("encoding")).items()}
        description = as_text(fields_of_body.get("description"))
        required = fields_of_body.get("required") is True
        return OperationBody({} if schema is None else schema, base, media, required, description, parts)

    def _read_swagger_body(self, operation: _Operation, body_inputs: list[Input]) -> OperationBody:
        """Read the body of Swagger 2.0: a parameter in `body`, or several in `formData`."""
        consumes = as_list(operation.node.get("consumes", self._document.get("consumes")))[:MAX_ENTRIES]
        media_types = [media for media in consumes if isinstance(media, str)]
        for field in body_inputs:
            if field.place == "body":
                content = {media: {"schema": field.schema} for media in media_types or ["application/json"]}
                media, _, _ = choose_media(self._library, content, field.base)
                return OperationBody(field.schema, field.base, media, field.required, field.description)
        properties = {field.name: _add_description(field.schema, field.description) for field in body_inputs}
        required = [field.name for field in body_inputs if field.required]
        has_file = any(as_object(field.schema).get("type") == "file" for field in body_inputs)
        form = MULTIPART_FORM if has_file or MULTIPART_FORM in media_types else URL_FORM
        schema = {"type": "object", "properties": properties, "required": required}
        parts = {field.name: field.style for field in body_inputs}
        return OperationBody(schema, operation.base, form, bool(required), parts=parts)

    # --- result, server and security ---

    def _describe_result(self, operation: _Operation) -> object:
        """Return the schema of the first 2xx response, else its description. An unreadable one becomes a problem."""
        try:
            responses, base = self._library.follow(operation.node.get("responses"), operation.base)
            codes = itertools.islice(as_object(responses), MAX_ENTRIES)
            success = next((code for code in codes if str(code).startswith("2")), None)
            if success is None:
                return None
            node, base = self._library.follow(as_object(responses)[success], base)
            if not isinstance(node, Mapping):
                raise BadEntry(f"expected a response (an object), found {describe_value(node)}")
            schema: object = node.get("schema")
            if node.get("content"):
                _, media, base = choose_media(self._library, node["content"], base)
                schema = media.get("schema")
        except BadEntry as error:
            self._note_missing(operation.entry, error, "its result")
            return None
        for detail in DETAILS if isinstance(schema, Mapping) and schema else ():
            try:
                return self._schemas.expand(schema, base, detail, hidden="writeOnly", size=MAX_RETURNS_BYTES)
            except TooLarge:  # try less detail
                continue
        return as_text(node.get("description")) or None

    def _find_server(self, operation: _Operation) -> str:
        """Return the address to which the path is appended. Relative if neither document nor locator gives a host."""
        if self._swagger:
            server = self._build_swagger_server(operation.node)
        else:
            objects_with_servers = (operation.node, operation.item, self._document)  # the innermost counts
            lists = (as_list(fields.get("servers"))[:MAX_ENTRIES] for fields in objects_with_servers)
            server = _fill_variables(next((node for nodes in lists for node in nodes if isinstance(node, Mapping)), {}))
        if self._server:
            # An address of the user without a path gets the one of the document, such as /api/v3.
            is_joined = urlsplit(self._server).path in ("", "/") and server and "://" not in server
            return (urljoin(self._server, server) if is_joined else self._server).rstrip("/")
        try:
            server = urljoin(hide_credentials(self._library.root), server or "/") if self._library.remote else server
        except ValueError:  # no valid address; the tool then says that it cannot be called
            return ""
        return server.rstrip("/")

    def _build_swagger_server(self, node: Mapping[str, object]) -> str:
        """Join scheme, host and base path of Swagger 2.0. Prefers https. Without a host, return the base path alone.

        Args:
            node: the operation. Its `schemes` replace those of the document.
        """
        host, base_path = as_text(self._document.get("host")), as_text(self._document.get("basePath"))
        if not host:
            return base_path
        listed_schemes = as_list(node.get("schemes", self._document.get("schemes")))[:MAX_ENTRIES]
        # A document without schemes is called by the scheme of its own address.
        root_scheme = urlsplit(self._library.root).scheme if self._library.remote else "https"
        scheme = "https" if "https" in listed_schemes else "http" if "http" in listed_schemes else root_scheme
        return f"{scheme}://{host}/{base_path.lstrip('/')}"

    def _list_security(self, required: object) -> Schema:
        """Return the names and kinds of the required security schemes, as keys of `meta`. They contain no credential.

        `required` is a list of alternatives, each an object by names of schemes; all of them are listed.
        """
        choices = (as_object(choice) for choice in as_list(required)[:MAX_ENTRIES])
        names = list(itertools.islice((str(name) for choice in choices for name in choice), MAX_ENTRIES))
        components = as_object(self._document.get("components"))
        definitions = self._document.get("securityDefinitions") if self._swagger else components.get("securitySchemes")
        schemes: Schema = {}
        try:
            definitions, base = self._library.follow(definitions, self._library.root)
            for name in names:
                target, _ = self._library.follow(as_object(definitions).get(name), base)
                scheme = as_object(target)
                kinds = {key: as_text(scheme.get(key)) for key in ("type", "scheme", "in", "name")}
                if scheme:
                    schemes[name] = {key: value for key, value in kinds.items() if value}
        except BadEntry as error:
            problem = Problem("/components/securitySchemes", str(error))
            if problem not in self._problems:  # every operation would add it
                self._problems.append(problem)
        return {"security": list(dict.fromkeys(names)), "security_schemes": schemes}


def _add_description(schema: object, description: str) -> object:
    """Return a schema with a description. It wraps the schema, since other nodes may refer to the same one."""
    return {"description": description, "allOf": [schema]} if description else schema


def _read_encoding(encoding: object) -> Schema:
    """Return how one part of a form is sent: `style`, `explode`, and the first of its content types."""
    fields = as_object(encoding)
    part: Schema = {key: fields[key] for key in ("style", "explode") if isinstance(fields.get(key), (str, bool))}
    media = as_text(fields.get("contentType")).partition(",")[0].strip()
    return {**part, "content_type": media} if media and "*" not in media else part


def _fill_variables(server: Mapping[str, object]) -> str:
    """Return the URL of a server with the defaults of its variables. A variable without a default stays."""
    variables = as_object(server.get("variables"))

    def find_default(match: re.Match[str]) -> str:
        value = as_object(variables.get(match[1])).get("default")
        return str(clean(value)) if isinstance(value, (str, int)) else match[0]

    return TEMPLATE_VARIABLE.sub(find_default, as_text(server.get("url")))
