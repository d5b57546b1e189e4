"""The ASGI application: finds the route, lets the caller in, checks what is asked, and turns errors into sentences."""

from __future__ import annotations

import hashlib
import logging
import math
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as Address
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolscout.access.policy import Caller, Rules
from toolscout.errors import (
    ConfigError,
    Denied,
    MissingExtra,
    NotFound,
    StoreError,
    ToolscoutError,
    Unavailable,
    UserError,
)
from toolscout.server import openapi
from toolscout.server.door import Door
from toolscout.server.page import FILES, page_file
from toolscout.server.routes import JSON, ROUTES, Route
from toolscout.server.service import Ask, Refused, Service
from toolscout.server.shapes import Failure

__all__ = ["app"]

HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
STATUS: Final = ((NotFound, 404), (Denied, 403), ((Unavailable, StoreError, MissingExtra), 503), (UserError, 400))
NOBODY: Final = Caller("nobody", Rules())
_log: Final = logging.getLogger("toolscout.server")
_encode: Final = msgspec.json.Encoder().encode


def app(service: Service, names: Iterable[str]) -> ASGIApp:
    """The application.

    Args:
        service: what stands behind it.
        names: under which it may be asked for.
    """
    door = Door(service.policies, names)
    methods: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        methods.setdefault(route.path, {})[route.method] = route
    addresses = [Address(path, _Endpoint(service, door, held)) for path, held in methods.items()]
    addresses.append(Address("/openapi.json", _File(door, openapi.document(), "application/json")))
    for path in FILES:
        addresses.append(Address(path, _File(door, *page_file(path))))
    inner = Starlette(routes=addresses, lifespan=service.running)
    inner.router.default = _nowhere
    inner.router.redirect_slashes = False
    return _Counted(inner.router, service)


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await _failure(Refused(404, "expected an address of the service, found another: see /openapi.json"))(
            scope, receive, send
        )


class _Counted:
    """Counts every answer, and its time until the last byte."""

    def __init__(self, inner: ASGIApp, service: Service) -> None:
        self.inner, self.service = inner, service
        self.known = {route.path for route in ROUTES} | set(FILES) | {"/openapi.json"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.inner(scope, receive, watched)
        finally:
            path = scope["path"] if scope["path"] in self.known else "other"
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            self.service.metrics.request(method, path, status, time.perf_counter() - started)


class _Endpoint:
    """One path of the table, with its methods."""

    def __init__(self, service: Service, door: Door, methods: dict[str, Route]) -> None:
        self.service, self.door, self.methods = service, door, methods
        self.allow = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
        self.decoders: dict[Route, msgspec.json.Decoder[Any]] = {
            route: msgspec.json.Decoder(route.asks) for route in methods.values()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except Exception as error:
            response = _failure(error)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        route = self.methods.get(method)
        if route is None:
            raise Refused(405, f"expected {self.allow}, found {request.method:.20}", {"Allow": self.allow})
        limits = self.service.limits
        most = (limits.body, limits.patience) if route.takes == JSON else (limits.upload, limits.patience * 10)
        pieces = _pieces(request, *most)
        if route.open:
            self.door.check_sender(request.headers)
            asked = self._parameters(route, request)
            return self._response(route, await route.handler(Ask(self.service, NOBODY, asked, pieces)))
        self.door.check_place(request.headers)
        caller = await self.door.caller(request.headers)
        if route.operators and not caller.operator:
            raise Refused(403, "expected an operator, found a caller who is none: see `operator` in docs/security.md")
        asked = await self._body(route, request, pieces) if method == "POST" else self._parameters(route, request)
        try:
            return await self._answered(route, Ask(self.service, caller, asked, pieces))
        except (StoreError, ConfigError) as error:
            if caller.operator:
                raise
            _log.warning("%s was told that the service cannot read its files: %s", caller.name, error)
            raise Refused(503, "expected an answer, found none: the service cannot read its files") from None

    async def _answered(self, route: Route, ask: Ask[Any]) -> Response:
        limits = self.service.limits
        wait = self.service.buckets.take(ask.caller.name, route.cost(ask.asked))
        if wait:
            raise Refused(
                429,
                f"expected at most {limits.rate:g} queries a second in the mean, found more: "
                f"ask again in {math.ceil(wait)} s",
                {"Retry-After": str(math.ceil(wait))},
            )
        return self._response(route, await route.handler(ask))

    def _response(self, route: Route, answer: Any) -> Response:
        return answer if isinstance(answer, Response) else Response(_encode(answer), media_type=route.gives)

    def _parameters(self, route: Route, request: Request) -> Any:
        given = request.query_params.multi_items()
        for name, count in Counter(name for name, _ in given).items():
            if count > 1:
                raise Refused(422, f"expected each parameter once, found {name!r:.80} {count} times")
        asked: Any = msgspec.convert(dict(given), route.asks, strict=False)
        for name, value in given:
            if getattr(asked, name) is None:  # msgspec takes the word "null" for nothing
                raise Refused(422, f"expected a value for {name!r}, found {value!r:.20}: leave the parameter out")
        return asked

    async def _body(self, route: Route, request: Request, pieces: AsyncIterator[bytes]) -> Any:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().casefold()
        if kind != route.takes:
            raise Refused(415, f"expected a body of type {route.takes}, found {kind[:80] or 'none'}")
        if request.query_params:
            raise Refused(422, "expected everything in the body, found parameters in the address too")
        if route.takes != JSON:
            return route.asks()
        return self.decoders[route].decode(b"".join([piece async for piece in pieces]))


async def _pieces(request: Request, most: int, seconds: float) -> AsyncIterator[bytes]:
    """The body of a request, as long as it is neither too large nor too slow.

    Raises:
        Refused: 413 or 408.
        ClientDisconnect: if the caller has gone.
    """
    declared, size, deadline = request.headers.get("content-length", "0"), 0, time.monotonic() + seconds
    if declared.isdigit() and int(declared) > most:
        raise Refused(413, f"expected a body of at most {most:,} bytes, found {int(declared):,}")
    more = True
    while more:
        try:
            with anyio.fail_after(max(0.0, deadline - time.monotonic())):
                message = await request.receive()
        except TimeoutError:
            raise Refused(408, f"expected the whole request within {seconds:g} s, found less") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece, more = message.get("body", b""), message.get("more_body", False)
        size += len(piece)
        if size > most:
            raise Refused(413, f"expected a body of at most {most:,} bytes, found more")
        yield piece


class _File:
    """A file of the page, or the document: the same for everybody, and nothing in it is of the catalogue."""

    def __init__(self, door: Door, content: bytes, media_type: str, headers: Mapping[str, str] | None = None) -> None:
        tag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
        self.door, self.content, self.tag = door, content, tag
        self.headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": tag, **(headers or {})}
        self.media_type = media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            self.door.check_place(request.headers)
            if request.method not in ("GET", "HEAD"):
                raise Refused(405, f"expected GET, HEAD, found {request.method:.20}", {"Allow": "GET, HEAD"})
            response = Response(self.content, headers=self.headers, media_type=self.media_type)
            if request.headers.get("if-none-match") == self.tag:
                response = Response(status_code=304, headers=self.headers)
        except Refused as error:
            response = _failure(error)
        await response(scope, receive, send)


def _failure(error: Exception) -> Response:
    """The sentence for an error. What nobody foresaw is logged by type and place, without a word of the request."""
    headers: dict[str, str] = {}
    if isinstance(error, Refused):
        status, text, headers = error.status, str(error), error.headers
    elif isinstance(error, msgspec.ValidationError):
        status, text = 422, f"expected a request as /openapi.json describes it, found: {error}"
    elif isinstance(error, (msgspec.DecodeError, UnicodeDecodeError, RecursionError)):
        status, text = 400, "expected JSON, found something else"
    elif isinstance(error, ToolscoutError):
        status, text = next((code for kind, code in STATUS if isinstance(error, kind)), 500), str(error)
    else:
        status, text = 500, "expected an answer, found a fault of the service: its log says where"
    if status == 500:
        places = "".join(traceback.format_tb(error.__traceback__))
        _log.error("a request failed with %s at\n%s", type(error).__name__, places)
    return Response(_encode(Failure(text)), status, {**HEADERS, **headers}, JSON)
