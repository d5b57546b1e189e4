"""Calls operations of HTTP APIs: turns arguments into one request, and the response into a result.

Requests go only to the server of the document. A value cannot leave its place in the path, redirects are followed on
the same origin only, and no header may frame or route the message. Credentials come from the environment and appear in
no message.
"""

from __future__ import annotations

import base64
import dataclasses
import mimetypes
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, unquote_to_bytes, urljoin, urlsplit

import msgspec

from toolscout.errors import Unavailable, UserError
from toolscout.home.access.http import MARK
from toolscout.home.access.telemetry import make_headers
from toolscout.sources.addresses import (
    LimitedBody,
    UnsupportedEncoding,
    is_header_name,
    is_reserved_header,
)
from toolscout.sources.openapi.arguments import MULTIPART_FORM, URL_FORM
from toolscout.trust.redaction import CREDENTIAL_PREFIX
from toolscout.types import Tool

if TYPE_CHECKING:
    import httpx
    from mcp_types import CallToolResult

__all__ = ["CREDENTIAL_PREFIX", "MARK", "build_request", "call", "find_credential"]

MAX_RESPONSE_BYTES: Final = 4_000_000
MAX_REDIRECTS: Final = 5
JSON: Final = "application/json"
BODYLESS_METHODS: Final = ("GET", "HEAD", "DELETE", "OPTIONS", "TRACE")
CHOSEN_TYPES: Final = {"*/*": JSON, "application/*": JSON, "text/*": "text/plain"}  # for an API that takes several
Style = Mapping[str, object]
_SEPARATORS: Final = {"spaceDelimited": " ", "pipeDelimited": "|", "tabDelimited": "\t"}
_DATA_URL: Final = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),(.*)", re.DOTALL)


def find_credential(source: str, scheme: str) -> str | None:
    """Read the credential for a security scheme from `TOOLSCOUT_CREDENTIAL_<SOURCE>_<SCHEME>`.

    The user names the source and the document names the scheme, so no document gets the credential of another.
    """
    return os.environ.get(CREDENTIAL_PREFIX + re.sub(r"\W", "_", f"{source}_{scheme}").upper()) or None


@dataclasses.dataclass
class _Parts:
    """The parts of a request that arguments and credentials fill."""

    path: str
    query: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    cookies: dict[str, str] = dataclasses.field(default_factory=dict)
    body: dict[str, Any] = dataclasses.field(default_factory=dict)


def build_request(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Build the request of an operation, as keyword arguments of `httpx`.

    Keys: method, url, params, headers, cookies, and json, data, files or content.

    Raises:
        UserError: for an argument that has no place in the request, or a body that cannot be encoded.
    """
    parts = _place_arguments(tool, arguments)
    if missing := re.findall(r"\{([^{}]+)\}", parts.path):
        raise UserError(f"expected a value for {', '.join(missing)}, which the path needs, found none")
    outgoing: dict[str, Any] = {"method": tool.meta["method"], "url": _resolve_url(tool, parts.path)}
    _add_credentials(tool, parts)
    # One argument is the entire body if the document says so; else the arguments in the body are its properties.
    content = _encode_body(tool, parts.body.get(tool.meta.get("body", ""), parts.body))
    for name, value in content.get("headers", {}).items():
        _set_header(parts.headers, name, value)
    outgoing |= {"params": parts.query, "cookies": parts.cookies, **content, "headers": parts.headers}
    return {key: value for key, value in outgoing.items() if value}


def _place_arguments(tool: Tool, arguments: Mapping[str, Any]) -> _Parts:
    """Put each argument into the part of the request that the document names.

    An argument without a place becomes a further property of the body, if the body's properties are arguments.

    Raises:
        UserError: for an argument without a place if there is no such body, or a value that its place does not allow.
    """
    meta, places = tool.meta, tool.meta.get("in", {})  # argument → path, query, querystring, header, cookie or body
    parts = _Parts(meta["path"])
    for key, value in arguments.items():
        place = places.get(key)
        name, style = meta.get("names", {}).get(key, key), meta.get("style", {}).get(key, {})
        # `meta["body"]` names the one argument that is the whole body, if there is one.
        if place is None and (meta.get("body") or "body" not in places.values()):
            raise UserError(f"expected one of the parameters {', '.join(places) or '(none)'}, found {key!r}")
        if value is None and place in ("query", "querystring", "header", "cookie"):
            continue  # none of them has a null: it means the same as nothing
        if place == "path":
            parts.path = parts.path.replace(f"{{{name}}}", _encode_path_value(name, value, style))
        elif place == "query":
            parts.query += _encode_pairs(name, value, style)
        elif place == "querystring":
            if isinstance(value, Mapping):
                parts.query += [pair for key, item in value.items() for pair in _encode_pairs(str(key), item, {})]
            else:
                parts.query += parse_qsl(_encode_text(value), keep_blank_values=True)
        elif place == "header":
            _set_header(parts.headers, name, _join_value(value, style))
        elif place == "cookie":
            _set_cookie(parts.cookies, name, quote(_join_value(value, style), safe=""))
        else:
            parts.body[key] = value
    return parts


def _resolve_url(tool: Tool, path: str) -> str:
    """Append the path to the document's server.

    Raises:
        UserError: if the path leads to another host.
    """
    from toolscout.sources.addresses import split_origin

    server = tool.meta["server"]
    url: str = server.rstrip("/") + path
    try:
        if split_origin(url) != split_origin(server):
            raise ValueError("a path that leads to another host")
    except ValueError as error:
        raise UserError(f"the document of {tool.source!r} gives {error}: nothing is sent") from None
    return url


def _set_cookie(cookies: dict[str, str], name: str, value: str) -> None:
    """Set a cookie. Raises UserError for a name that is not valid."""
    if not is_header_name(name):
        raise UserError(f"the document asks for the cookie {name[:60]!r}, which is not a valid cookie name")
    cookies[name] = value


def _set_header(headers: dict[str, str], name: str, value: str) -> None:
    """Set a header, and replace one with the same name in any case.

    Raises:
        UserError: for a header that frames or routes the request, and for an invalid name.
    """
    if is_reserved_header(name) or name.lower() == MARK or not is_header_name(name):
        raise UserError(f"the document asks for the header {name[:60]!r}, which no document may set: leave it out")
    for duplicate in [key for key in headers if key.lower() == name.lower()]:
        del headers[duplicate]
    headers[name] = re.sub(r"[\x00-\x08\x0a-\x1f\x7f]", " ", value)


# --- arguments to texts -----------------------------------------------------------------------------------------------


def _encode_text(value: object) -> str:
    """Encode a value as a text: a text as it is, everything else as JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()  # true, null, 1.5 and nested values


def _join_value(value: object, style: Style, separator: str = ",") -> str:
    """Join a value into one text: the items of a list, and an object as `key,text`, or `key=text` if it is exploded."""
    if style.get("content_type"):
        return _encode_content(value, style)
    if isinstance(value, list):
        return separator.join(map(_encode_text, value))
    if isinstance(value, Mapping):
        if style.get("explode"):
            return separator.join(f"{key}={_encode_text(item)}" for key, item in value.items())
        return separator.join(part for key, item in value.items() for part in (str(key), _encode_text(item)))
    return _encode_text(value)


def _encode_content(value: object, style: Style) -> str:
    """Encode a value for which the document names a media type: JSON, and every other type as it is given."""
    is_json = "json" in str(style.get("content_type"))
    return msgspec.json.encode(value).decode() if is_json else _encode_text(value)


def _encode_path_value(name: str, value: object, style: Style) -> str:
    """Write a value as a part of a path, in a style of OpenAPI (`simple`, `label` or `matrix`).

    Raises:
        UserError: for a text that would change which path it is, such as "..".
    """
    kind, explode = str(style.get("style", "simple")), bool(style.get("explode"))
    prefix = {"label": ".", "matrix": ";"}.get(kind, "")
    separator = prefix if prefix and explode else ","
    if kind == "matrix" and explode and isinstance(value, list):
        text = separator.join(f"{name}={_encode_text(item)}" for item in value)
    else:
        text = _join_value(value, style, separator)
        if kind == "matrix" and not (explode and isinstance(value, Mapping)):
            prefix = f";{name}="
    if text in ("", ".", ".."):
        raise UserError(f"expected a value for {name!r} that is valid in a path, found {text!r}")
    return prefix + quote(text, safe=",=.;" if isinstance(value, (list, Mapping)) else "")


def _encode_pairs(name: str, value: object, style: Style) -> list[tuple[str, str]]:
    """Encode a value of a query or a form as (name, text) pairs. The default style of OpenAPI is `form`, exploded."""
    kind = str(style.get("style", "form"))
    explode = style.get("explode", kind == "form")
    if style.get("content_type"):
        return [(name, _encode_content(value, style))]
    if kind == "deepObject":
        return [(key, _encode_text(item)) for key, item in _spread_value(name, value)]
    if isinstance(value, Mapping) and explode:
        return [(str(key), _encode_text(item)) for key, item in value.items()]
    if isinstance(value, list) and explode and kind == "form":
        return [(name, _encode_text(item)) for item in value]
    return [(name, _join_value(value, {}, _SEPARATORS.get(kind, ",")))]


def _spread_value(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the texts and numbers inside a value, under names that servers read as nested values.

    `{"b": 1}` is `a[b]`, a list is `a[]`, and a list of objects is `a[0][b]`, which keeps each object together.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _spread_value(f"{name}[{key}]", item)
    elif isinstance(value, list):
        has_parts = any(isinstance(item, (list, Mapping)) for item in value)
        for number, item in enumerate(value):
            yield from _spread_value(f"{name}[{number if has_parts else ''}]", item)
    else:
        yield name, value


# --- bodies -----------------------------------------------------------------------------------------------------------


def _encode_body(tool: Tool, value: object) -> dict[str, Any]:
    """Encode the body in the operation's content type, as keyword arguments of `httpx`. Empty for no body.

    Raises:
        UserError: for a content type that cannot be sent.
    """
    content_type, parts = tool.meta.get("content_type", ""), tool.meta.get("parts", {})
    media_type = content_type.partition(";")[0].strip().lower()
    may_lack_body = tool.meta["method"] in BODYLESS_METHODS or not tool.meta.get("body")
    if not media_type or (value == {} and may_lack_body):
        return {}
    if parts.get("", {}).get("file"):  # "" is the entire body (`toolscout.sources.openapi.arguments`)
        file = _read_file("body", value, "" if "*" in content_type else content_type)
        return {"content": file.content, "headers": {"content-type": file.media_type}}
    if media_type in (URL_FORM, MULTIPART_FORM) and isinstance(value, Mapping):
        return _encode_form(value, parts, is_multipart=media_type == MULTIPART_FORM)
    if media_type in CHOSEN_TYPES:
        content_type = media_type = CHOSEN_TYPES[media_type]
    is_lines = "ndjson" in media_type or "jsonl" in media_type
    if is_lines and not isinstance(value, str):
        content = msgspec.json.Encoder().encode_lines(value if isinstance(value, list) else [value])
    elif media_type.endswith("json") and not is_lines:
        content = msgspec.json.encode(value)
    elif isinstance(value, str):
        content = value.encode()
    else:
        raise UserError(
            f"The operation takes a body of type {content_type}. Only JSON, forms, files and text can be sent."
        )
    return {"content": content, "headers": {"content-type": content_type}}


def _encode_form(value: Mapping[str, object], parts: Mapping[str, Style], *, is_multipart: bool) -> dict[str, Any]:
    """Encode a form, as `files` or `data` of `httpx`, which sends `files` as multipart.

    An object in it is JSON unless the document names a style; a list repeats its name.
    """
    files: list[tuple[str, tuple[object, ...]]] = []
    data: dict[str, list[str]] = {}
    for name, item in value.items():
        style = parts.get(name, {})
        if item is None:  # no form has a null
            continue
        if style.get("file"):
            for each in item if isinstance(item, list) else [item]:
                file = _read_file(name, each, str(style.get("content_type", "")))
                files.append((name, (file.name, file.content, file.media_type)))
            continue
        media_type = str(style.get("content_type", "")) or None
        items = item if isinstance(item, list) and not style else [item]
        for each in items:
            if isinstance(each, Mapping) and not style:
                pairs, media_type = [(name, _encode_text(each))], JSON
            else:
                pairs = _encode_pairs(name, each, style)
            for key, text in pairs:
                data.setdefault(key, []).append(text)
                files.append((key, (None, text, media_type) if media_type else (None, text)))  # None: it is no file
    return {"files": files} if is_multipart else {"data": data}


class _File(NamedTuple):
    """A file to send: its name, its bytes and its media type."""

    name: str
    content: bytes
    media_type: str


def _read_file(name: str, value: object, media_type: str) -> _File:
    """Read a file argument: base64, a data: URL, or a text that is not base64 and is sent as it is.

    Args:
        name: of the argument, for the name of a file that has none.
        value: the argument.
        media_type: what the document names. Empty: the type in the data: URL, or a plain one.

    Raises:
        UserError: if it is no text, or a data: URL with damaged base64.
    """
    if not isinstance(value, str):
        raise UserError(f"expected {name!r} as a file: a text in base64, found {_encode_text(value)[:60]}")
    data_url = _DATA_URL.fullmatch(value)
    url_type, url_parameters, encoded = data_url.groups() if data_url else ("", "", value)
    parameters = dict(part.partition("=")[::2] for part in url_parameters.split(";") if part)
    content = _decode_base64(encoded)
    media_type = media_type or url_type or ("text/plain" if content is None else "application/octet-stream")
    if data_url and "base64" not in parameters:
        content = unquote_to_bytes(encoded)
    elif data_url and content is None:
        raise UserError(f"{name!r} is not the base64 of a file: encode its bytes again")
    extension = mimetypes.guess_extension(media_type.partition(";")[0].strip()) or ""
    given_name = re.split(r"[/\\]", unquote(parameters.get("name") or parameters.get("filename") or ""))[-1]
    file_name = re.sub(r"[\x00-\x1f\x7f\"]+", "_", given_name) or f"{name}{extension}"
    return _File(file_name, value.encode() if content is None else content, media_type)


def _decode_base64(text: str) -> bytes | None:
    """Decode base64 in its plain or its URL alphabet, with or without padding. None if it is no base64."""
    bare = re.sub(r"\s+", "", text).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except ValueError:
        return None


def _add_credentials(tool: Tool, parts: _Parts) -> None:
    """Add each credential that the operation asks for and that is in the environment."""
    for name, scheme in tool.meta.get("security_schemes", {}).items():
        value = find_credential(tool.source, name)
        if value is None:
            continue
        if scheme.get("type") == "apiKey":
            part, key = scheme.get("in"), scheme.get("name", "")
            if part == "query":  # replaces an argument of the same name, which must not add a second value
                parts.query = [pair for pair in parts.query if pair[0] != key] + [(key, value)]
            elif part == "cookie":
                _set_cookie(parts.cookies, key, value)
            else:
                _set_header(parts.headers, key, value)
        elif "basic" in (scheme.get("type"), scheme.get("scheme", "").lower()):
            _set_header(parts.headers, "authorization", "Basic " + base64.b64encode(value.encode()).decode())
        else:
            _set_header(parts.headers, "authorization", f"Bearer {value}")


# --- sending ----------------------------------------------------------------------------------------------------------


async def call(client: httpx.AsyncClient, tool: Tool, arguments: Mapping[str, Any]) -> CallToolResult:
    """Send the request of an operation. A status of 400 or more makes the result an error.

    Args:
        client: a client that follows no redirects itself and connects only to addresses that the tool's document may
            reach (`toolscout.sources.addresses`).
        tool: an operation as `toolscout.sources.openapi` reads it.
        arguments: checked arguments.

    Raises:
        UserError: if no request can be built from the arguments.
        Unavailable: if the API does not answer.
    """
    import httpx

    outgoing = build_request(tool, arguments)
    headers = {**outgoing.pop("headers", {})}
    cookies = outgoing.pop("cookies", {})
    headers |= make_headers() | {MARK: "1"}
    if cookies:
        headers["cookie"] = "; ".join(f"{key}={value}" for key, value in cookies.items())
    url = outgoing["url"]
    try:
        return await _send(client, outgoing, headers)
    except httpx.TimeoutException:
        raise Unavailable(f"{_format_origin(url)} did not answer in time") from None
    except UnsupportedEncoding as error:
        raise Unavailable(f"{_format_origin(url)} sent {error}: nothing of it is shown") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Unavailable(f"{_format_origin(url)} did not answer: {type(error).__name__}") from None


async def _send(client: httpx.AsyncClient, outgoing: dict[str, Any], headers: dict[str, str]) -> CallToolResult:
    """Send a request and follow redirects within its origin.

    Raises:
        Unavailable: for a redirect to another origin, and for too many redirects.
    """
    method, url = outgoing.pop("method"), outgoing.pop("url")
    for _ in range(MAX_REDIRECTS + 1):
        async with client.stream(method, url, headers=headers, **outgoing) as response:
            location = response.headers.get("location")
            if not (response.is_redirect and location):
                return await _read_result(response)
            target = urljoin(str(response.url), location)
            if _format_origin(target) != _format_origin(url):
                raise Unavailable(f"{_format_origin(url)} redirected the call to another server; it was not followed")
            url, outgoing = target, {key: item for key, item in outgoing.items() if key != "params"}
            if response.status_code == 303 or (response.status_code in (301, 302) and method == "POST"):
                method, outgoing = "GET", {}
    raise Unavailable(f"{_format_origin(url)} redirected the call more than {MAX_REDIRECTS} times")


def _format_origin(url: str) -> str:
    """Format scheme, host and port of an address, the port also if it is the usual one."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{parts.hostname}:{port}"


async def _read_result(response: httpx.Response) -> CallToolResult:
    """Read a response as a result: an image or a sound as a block of this kind, everything else as text.

    The structured content contains the status, and the body of a JSON response.
    """
    from mcp_types import AudioContent, CallToolResult, ImageContent, TextContent

    body = LimitedBody(response.headers.get("content-encoding"), MAX_RESPONSE_BYTES)
    async for chunk in response.aiter_raw():
        if not body.feed(chunk):
            break
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    failed = response.status_code >= 400
    answer: dict[str, object] = {"status": response.status_code}
    if media_type.startswith(("image/", "audio/")) and not (failed or body.is_cut):
        block = ImageContent if media_type.startswith("image/") else AudioContent
        content = block(data=base64.b64encode(body.content).decode(), mime_type=media_type)
        return CallToolResult(content=[content], structured_content=answer)
    text = _decode_text(body, response.encoding or "utf-8")
    if text is None:
        text = f"{len(body.content):,} bytes of {media_type or 'an unknown type'}, which cannot be shown as text"
    elif media_type.endswith("json") and not body.is_cut:
        answer["body"] = _decode_json(body.content, text)
    if body.is_cut:
        answer["cut"] = f"the response is cut at {MAX_RESPONSE_BYTES:,} bytes: ask for less"
        text += f"\n({answer['cut']})"
    if failed or not text:
        text = f"{f'HTTP {response.status_code} {response.reason_phrase}'.strip()}\n{text}".strip()
    return CallToolResult(content=[TextContent(text=text)], structured_content=answer, is_error=failed)


def _decode_text(body: LimitedBody, encoding: str) -> str | None:
    """Decode a response. Returns None if it is not text."""
    try:
        return body.content.decode(encoding, "replace" if body.is_cut else "strict")
    except (UnicodeDecodeError, LookupError):
        return None


def _decode_json(body: bytes | bytearray, text: str) -> object:
    """Decode a JSON response. Returns `text` if it is not valid JSON."""
    try:
        return msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, RecursionError):
        return text
