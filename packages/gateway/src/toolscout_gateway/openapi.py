"""Calls operations of HTTP APIs: turns arguments into one request, and the response into a result.

Requests go only to the server of the document. A value cannot leave its place in the path, redirects are followed on
the same origin only, and no header may frame or route the message. Credentials come from the environment and appear in
no message.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urljoin, urlsplit

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
_SEPARATORS: Final = {"spaceDelimited": " ", "pipeDelimited": "|"}


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
    content = _encode_body(tool, parts.body.get(tool.meta.get("body", ""), parts.body))
    for name, value in content.get("headers", {}).items():
        _set_header(parts.headers, name, value)
    outgoing |= {"params": parts.query, "cookies": parts.cookies, **content, "headers": parts.headers}
    return {key: value for key, value in outgoing.items() if value}


def _place_arguments(tool: Tool, arguments: Mapping[str, Any]) -> _Parts:
    """Put each argument into the part of the request that the document names.

    Raises:
        UserError: for an argument without a place, or a value that its place does not allow.
    """
    meta, places = tool.meta, tool.meta.get("in", {})
    parts = _Parts(meta["path"])
    for key, value in arguments.items():
        place = places.get(key)
        name, style = meta.get("names", {}).get(key, key), meta.get("style", {}).get(key, {})
        if place is None and (meta.get("body") or "body" not in places.values()):
            raise UserError(f"expected one of the parameters {', '.join(places) or '(none)'}, found {key!r}")
        if place == "path":
            parts.path = parts.path.replace(f"{{{name}}}", _encode_path_value(name, value, style))
        elif place == "query":
            parts.query += _encode_query_value(name, value, style)
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


def _encode_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()  # true, null, 1.5 and nested values


def _join_value(value: Any, style: Mapping[str, Any], separator: str = ",") -> str:
    """Join a value into one text: style `simple`, and every other style without repeated names."""
    if style.get("content_type"):
        return msgspec.json.encode(value).decode()
    if isinstance(value, list):
        return separator.join(map(_encode_text, value))
    if isinstance(value, Mapping):
        if style.get("explode"):
            return separator.join(f"{key}={_encode_text(item)}" for key, item in value.items())
        return separator.join(part for key, item in value.items() for part in (str(key), _encode_text(item)))
    return _encode_text(value)


def _encode_path_value(name: str, value: Any, style: Mapping[str, Any]) -> str:
    text = _join_value(value, style)
    if text in ("", ".", ".."):
        raise UserError(f"expected a value for {name!r} that is valid in a path, found {text!r}")
    prefix = {"label": ".", "matrix": f";{name}="}.get(style.get("style", ""), "")
    return prefix + quote(text, safe=",=" if isinstance(value, (list, Mapping)) else "")


def _encode_query_value(name: str, value: Any, style: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Encode a query parameter as pairs. The default style is `form`, exploded."""
    kind, explode = style.get("style", "form"), style.get("explode", style.get("style", "form") == "form")
    if style.get("content_type"):
        return [(name, msgspec.json.encode(value).decode())]
    if isinstance(value, Mapping):
        if kind == "deepObject":
            return [(f"{name}[{key}]", _encode_text(item)) for key, item in value.items()]
        if explode:
            return [(str(key), _encode_text(item)) for key, item in value.items()]
    if isinstance(value, list) and explode and kind == "form":
        return [(name, _encode_text(item)) for item in value]
    return [(name, _join_value(value, {}, _SEPARATORS.get(kind, ",")))]


def _encode_body(tool: Tool, value: Any) -> dict[str, Any]:
    """Encode the body in the operation's content type, as keyword arguments of `httpx`. Empty for no body.

    Raises:
        UserError: for a content type that cannot be sent.
    """
    kind = tool.meta.get("content_type", "")
    media = kind.partition(";")[0].strip().lower()
    may_lack_body = tool.meta["method"] in BODYLESS_METHODS or not tool.meta.get("body")
    if not media or (value == {} and may_lack_body):
        return {}
    if media.endswith("json") or media == "*/*":
        return {"content": msgspec.json.encode(value), "headers": {"content-type": kind if media != "*/*" else JSON}}
    if media in ("application/x-www-form-urlencoded", "multipart/form-data") and isinstance(value, Mapping):
        return _encode_form(value, multipart=media == "multipart/form-data")
    if isinstance(value, str):
        return {"content": value.encode(), "headers": {"content-type": kind}}
    raise UserError(f"The operation takes a body of type {kind}. Only JSON, forms and text can be sent.")


def _encode_form(value: Mapping[str, Any], *, multipart: bool) -> dict[str, Any]:
    fields = [(key, part) for key, item in value.items() for part in (item if isinstance(item, list) else [item])]
    if multipart:
        return {"files": [(key, (None, _encode_text(part))) for key, part in fields]}
    data: dict[str, list[str]] = {}
    for key, part in fields:
        data.setdefault(key, []).append(_encode_text(part))
    return {"data": data}


def _add_credentials(tool: Tool, parts: _Parts) -> None:
    """Add each credential that the operation asks for and the environment holds."""
    for name, scheme in tool.meta.get("security_schemes", {}).items():
        value = find_credential(tool.source, name)
        if value is None:
            continue
        if scheme.get("type") == "apiKey":
            place, key = scheme.get("in"), scheme.get("name", "")
            if place == "query":  # replaces an argument of the same name, which must not add a second value
                parts.query = [pair for pair in parts.query if pair[0] != key] + [(key, value)]
            elif place == "cookie":
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
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{parts.hostname}:{port}"


async def _read_result(response: httpx.Response) -> CallToolResult:
    """Read a response as a result: an image or a sound as such, everything else as text."""
    received = await _receive_body(response)
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    failed = response.status_code >= 400
    if kind.startswith(("image/", "audio/")) and not (failed or received.is_cut):
        return _build_media_result(response.status_code, kind, received.content)
    return _build_text_result(response, kind, received)


async def _receive_body(response: httpx.Response) -> LimitedBody:
    received = LimitedBody(response.headers.get("content-encoding"), MAX_RESPONSE_BYTES)
    async for chunk in response.aiter_raw():
        if not received.feed(chunk):
            break
    return received


def _build_media_result(status: int, kind: str, body: bytes | bytearray) -> CallToolResult:
    from mcp_types import AudioContent, CallToolResult, ImageContent

    block = ImageContent if kind.startswith("image/") else AudioContent
    content = block(data=base64.b64encode(body).decode(), mime_type=kind)
    return CallToolResult(content=[content], structured_content={"status": status})


def _build_text_result(response: httpx.Response, kind: str, received: LimitedBody) -> CallToolResult:
    """Build a result with the response as text, and as a JSON value if it is one."""
    from mcp_types import CallToolResult, TextContent

    body, cut = received.content, received.is_cut
    answer: dict[str, Any] = {"status": response.status_code}
    failed = response.status_code >= 400
    text = _decode_text(body, response.encoding or "utf-8", cut)
    if text is None:
        text = f"{len(body):,} bytes of {kind or 'an unknown type'}, which cannot be shown as text"
    elif kind.endswith("json") and not cut:
        answer["body"] = _decode_json(body, text)
    if cut:
        answer["cut"] = f"the response is cut at {MAX_RESPONSE_BYTES:,} bytes: ask for less"
        text += f"\n({answer['cut']})"
    head = f"HTTP {response.status_code} {response.reason_phrase}".strip()
    text = f"{head}\n{text}".strip() if failed or not text else text
    return CallToolResult(content=[TextContent(text=text)], structured_content=answer, is_error=failed)


def _decode_text(body: bytes | bytearray, encoding: str, cut: bool) -> str | None:
    """Decode a response. Returns None if it is not text."""
    try:
        return body.decode(encoding, "replace" if cut else "strict")
    except (UnicodeDecodeError, LookupError):
        return None


def _decode_json(body: bytes | bytearray, text: str) -> Any:
    """Decode a JSON response. Returns `text` if it is not valid JSON."""
    try:
        return msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, RecursionError):
        return text
