"""Calls to HTTP APIs: the arguments of an operation become one request, its response becomes a result.

Requests go to the document's own server and nowhere else: a value cannot leave its place in the path, redirects are
followed on the same origin only, and no header frames or routes the message. Credentials come from the environment
and appear in no message.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from toolscout.access.http import MARK
from toolscout.errors import Unavailable, UserError
from toolscout.sources.wire_limits import LimitedBody, UnsupportedEncoding, is_header_name, is_reserved_header
from toolscout.types import Tool

if TYPE_CHECKING:
    import httpx
    from mcp_types import CallToolResult

__all__ = ["CREDENTIAL", "MARK", "call", "credential", "request"]

CREDENTIAL: Final = "TOOLSCOUT_CREDENTIAL_"
MAX_RESPONSE: Final = 4_000_000
MAX_REDIRECTS: Final = 5
JSON: Final = "application/json"
_SEPARATORS: Final = {"spaceDelimited": " ", "pipeDelimited": "|"}


def credential(source: str, scheme: str) -> str | None:
    """The credential for a security scheme of a source: `TOOLSCOUT_CREDENTIAL_<SOURCE>_<SCHEME>`.

    The name of the source is the user's choice, that of the scheme the document's: no document gets another's.
    """
    return os.environ.get(CREDENTIAL + re.sub(r"\W", "_", f"{source}_{scheme}").upper()) or None


def request(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What to send: method, url, params, headers, cookies, and json, data, files or content, as `httpx` takes them.

    Raises:
        UserError: for an argument that has no place in the request, or a body that cannot be written.
    """
    from toolscout.sources.addresses import split_origin

    meta, places = tool.meta, tool.meta.get("in", {})
    path, query = meta["path"], list[tuple[str, str]]()
    headers, cookies = dict[str, str](), dict[str, str]()
    body: dict[str, Any] = {}
    whole = meta.get("body", "")
    for key, value in arguments.items():
        place = places.get(key)
        name, style = meta.get("names", {}).get(key, key), meta.get("style", {}).get(key, {})
        if place is None and (whole or "body" not in places.values()):
            raise UserError(f"expected one of the parameters {', '.join(places) or '(none)'}, found {key!r}")
        if place == "path":
            path = path.replace(f"{{{name}}}", _in_path(name, value, style))
        elif place == "query":
            query += _pairs(name, value, style)
        elif place == "header":
            _set_header(headers, name, _joined(value, style))
        elif place == "cookie":
            if not is_header_name(name):
                raise UserError(f"the document asks for the cookie {name[:60]!r}, which is no name of a cookie")
            cookies[name] = quote(_joined(value, style), safe="")
        else:
            body[key] = value
    if holes := re.findall(r"\{([^{}]+)\}", path):
        raise UserError(f"expected a value for {', '.join(holes)}, which the path needs, found none")
    sent: dict[str, Any] = {"method": meta["method"], "url": meta["server"].rstrip("/") + path}
    try:
        if split_origin(sent["url"]) != split_origin(meta["server"]):
            raise ValueError("a path that leads to another host")
    except ValueError as error:
        raise UserError(f"the document of {tool.source!r} gives {error}: nothing is sent") from None
    _sign(tool, headers, query, cookies)
    carried = _body(tool, body.get(whole, body))
    for name, value in carried.get("headers", {}).items():
        _set_header(headers, name, value)
    sent |= {"params": query, "cookies": cookies, **carried, "headers": headers}
    return {key: value for key, value in sent.items() if value}


def _set_header(headers: dict[str, str], name: str, value: str) -> None:
    """Set a header in place of one of the same name in whatever case.

    Raises:
        UserError: for a header that frames or routes the request, and for what is no name of a header.
    """
    if is_reserved_header(name) or name.lower() == MARK or not is_header_name(name):
        raise UserError(f"the document asks for the header {name[:60]!r}, which no document may set: leave it out")
    for other in [other for other in headers if other.lower() == name.lower()]:
        del headers[other]
    headers[name] = re.sub(r"[\x00-\x08\x0a-\x1f\x7f]", " ", value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()  # true, null, 1.5, and what is nested


def _joined(value: Any, style: Mapping[str, Any], separator: str = ",") -> str:
    """Style `simple`, and every list that is written as one text."""
    if style.get("content_type"):
        return msgspec.json.encode(value).decode()
    if isinstance(value, list):
        return separator.join(map(_text, value))
    if isinstance(value, Mapping):
        if style.get("explode"):
            return separator.join(f"{key}={_text(item)}" for key, item in value.items())
        return separator.join(part for key, item in value.items() for part in (str(key), _text(item)))
    return _text(value)


def _in_path(name: str, value: Any, style: Mapping[str, Any]) -> str:
    text = _joined(value, style)
    if text in ("", ".", ".."):
        raise UserError(f"expected a value for {name!r} that can stand in a path, found {text!r}")
    prefix = {"label": ".", "matrix": f";{name}="}.get(style.get("style", ""), "")
    return prefix + quote(text, safe=",=" if isinstance(value, (list, Mapping)) else "")


def _pairs(name: str, value: Any, style: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The parts of a query: `form` and exploded unless the document says otherwise."""
    kind, explode = style.get("style", "form"), style.get("explode", style.get("style", "form") == "form")
    if style.get("content_type"):
        return [(name, msgspec.json.encode(value).decode())]
    if isinstance(value, Mapping):
        if kind == "deepObject":
            return [(f"{name}[{key}]", _text(item)) for key, item in value.items()]
        if explode:
            return [(str(key), _text(item)) for key, item in value.items()]
    if isinstance(value, list) and explode and kind == "form":
        return [(name, _text(item)) for item in value]
    return [(name, _joined(value, {}, _SEPARATORS.get(kind, ",")))]


def _body(tool: Tool, value: Any) -> dict[str, Any]:
    if value == {} and tool.meta["method"] in ("GET", "HEAD", "DELETE", "OPTIONS", "TRACE"):
        return {}
    kind = tool.meta.get("content_type", "")
    media = kind.partition(";")[0].strip().lower()
    if not media or (value == {} and not tool.meta.get("body")):
        return {}
    if media == JSON or media.endswith("json") or media == "*/*":
        return {"content": msgspec.json.encode(value), "headers": {"content-type": kind if media != "*/*" else JSON}}
    if media in ("application/x-www-form-urlencoded", "multipart/form-data") and isinstance(value, Mapping):
        fields = [(key, each) for key, item in value.items() for each in (item if isinstance(item, list) else [item])]
        if media == "multipart/form-data":
            return {"files": [(key, (None, _text(item))) for key, item in fields]}
        data: dict[str, list[str]] = {}
        for key, item in fields:
            data.setdefault(key, []).append(_text(item))
        return {"data": data}
    if isinstance(value, str):
        return {"content": value.encode(), "headers": {"content-type": kind}}
    raise UserError(f"expected a body that is JSON, a form or text, found that the operation takes {kind}")


def _sign(tool: Tool, headers: dict[str, str], query: list[tuple[str, str]], cookies: dict[str, str]) -> None:
    """Put in every credential that the operation asks for and the environment has."""
    for name, scheme in tool.meta.get("security_schemes", {}).items():
        value = credential(tool.source, name)
        if value is None:
            continue
        if scheme.get("type") == "apiKey":
            place, key = scheme.get("in"), scheme.get("name", "")
            if place == "query":
                query[:] = [(other, text) for other, text in query if other != key]  # no argument stands beside it
                query.append((key, value))
            elif place == "cookie":
                if not is_header_name(key):
                    raise UserError(f"the document asks for the cookie {key[:60]!r}, which is no name of a cookie")
                cookies[key] = value
            else:
                _set_header(headers, key, value)
        elif "basic" in (scheme.get("type"), scheme.get("scheme", "").lower()):
            _set_header(headers, "authorization", "Basic " + base64.b64encode(value.encode()).decode())
        else:
            _set_header(headers, "authorization", f"Bearer {value}")


# --- sending ----------------------------------------------------------------------------------------------------------


async def call(client: httpx.AsyncClient, tool: Tool, arguments: Mapping[str, Any]) -> CallToolResult:
    """Send the request of an operation; a status of 400 or more makes the result an error.

    Args:
        client: one that follows no redirects by itself and connects only where the tool's document may lead
            (`toolscout.sources.addresses`).
        tool: an operation as `toolscout.sources.openapi` reads it.
        arguments: checked arguments.

    Raises:
        UserError: if there is no request for these arguments.
        Unavailable: if the API does not answer.
    """
    import httpx

    sent = request(tool, arguments)
    headers = {**sent.pop("headers", {})}
    cookies = sent.pop("cookies", {})
    headers[MARK] = "1"
    if cookies:
        headers["cookie"] = "; ".join(f"{key}={value}" for key, value in cookies.items())
    method, url = sent.pop("method"), sent.pop("url")
    try:
        for _ in range(MAX_REDIRECTS + 1):
            async with client.stream(method, url, headers=headers, **sent) as response:
                target = response.headers.get("location")
                if not (response.is_redirect and target):
                    return await _result(response)
                elsewhere = urljoin(str(response.url), target)
                if _origin(elsewhere) != _origin(url):
                    raise Unavailable(
                        f"expected an answer from {_origin(url)}, found a redirect away from it: not followed"
                    )
                url, sent = elsewhere, {key: item for key, item in sent.items() if key != "params"}
                if response.status_code == 303 or (response.status_code in (301, 302) and method == "POST"):
                    method, sent = "GET", {}
        raise Unavailable(f"expected an answer from {_origin(url)}, found more than {MAX_REDIRECTS} redirects")
    except httpx.TimeoutException:
        raise Unavailable(f"expected an answer from {_origin(url)} in time, found none") from None
    except UnsupportedEncoding as error:
        raise Unavailable(f"{_origin(url)} sent {error}: nothing of it is shown") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Unavailable(f"expected an answer from {_origin(url)}, found {type(error).__name__}") from None


def _origin(url: str) -> str:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{parts.hostname}:{port}"


async def _result(response: httpx.Response) -> CallToolResult:
    from mcp_types import AudioContent, CallToolResult, ImageContent, TextContent

    received = LimitedBody(response.headers.get("content-encoding"), MAX_RESPONSE)
    async for chunk in response.aiter_raw():
        if not received.feed(chunk):
            break
    body, cut = received.content, received.is_cut
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    answer: dict[str, Any] = {"status": response.status_code}
    failed = response.status_code >= 400
    if kind.startswith(("image/", "audio/")) and not (failed or cut):
        data = base64.b64encode(body).decode()
        block = ImageContent if kind.startswith("image/") else AudioContent
        return CallToolResult(content=[block(data=data, mime_type=kind)], structured_content=answer)
    try:
        text = body.decode(response.encoding or "utf-8", "strict" if not cut else "replace")
    except (UnicodeDecodeError, LookupError):
        text = f"{len(body):,} bytes of {kind or 'an unknown type'}, which cannot be shown as text"
    else:
        if kind.endswith("json") and not cut:
            try:
                answer["body"] = msgspec.json.decode(body) if body else None
            except (msgspec.DecodeError, RecursionError):
                answer["body"] = text
    if cut:
        answer["cut"] = f"the response is cut at {MAX_RESPONSE:,} bytes: ask for less"
        text += f"\n({answer['cut']})"
    head = f"HTTP {response.status_code} {response.reason_phrase}".strip()
    text = f"{head}\n{text}".strip() if failed or not text else text
    return CallToolResult(content=[TextContent(text=text)], structured_content=answer, is_error=failed)
