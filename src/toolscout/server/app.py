"""The ASGI application: routes requests, authenticates callers, validates input and formats errors."""

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
from starlette.routing import Route as PathRoute
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
    name_nearest,
)
from toolscout.server import openapi
from toolscout.server.door import Door
from toolscout.server.mismatch import describe_mismatch
from toolscout.server.page import FILES, read_page_file
from toolscout.server.routes import JSON, ROUTES, Route
from toolscout.server.service import ApiRequest, RequestRefused, Service
from toolscout.server.shapes import Failure
from toolscout.sources.parsing import describe_json_error

__all__ = ["app"]

SECURITY_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
STATUS_OF_ERROR: Final = (
    (NotFound, 404),
    (Denied, 403),
    ((Unavailable, StoreError, MissingExtra), 503),
    (UserError, 400),
)
MAX_UNKNOWN_PATH_CHARS: Final = 100  # of an unknown path that is compared with the known ones
ANONYMOUS: Final = Caller("nobody", Rules())
_log: Final = logging.getLogger("toolscout.server")
_encode: Final = msgspec.json.Encoder().encode


def app(service: Service, names: Iterable[str]) -> ASGIApp:
    """Build the ASGI application.

    Args:
        service: the service that answers.
        names: host names under which it is reached.
    """
    door = Door(service.policies, names)
    methods: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        methods.setdefault(route.path, {})[route.method] = route
    routes = [PathRoute(path, _Endpoint(service, door, by_method)) for path, by_method in methods.items()]
    routes.append(PathRoute("/openapi.json", _File(door, openapi.build_document(), "application/json")))
    for path in FILES:
        routes.append(PathRoute(path, _File(door, *read_page_file(path))))
    inner = Starlette(routes=routes, lifespan=service.running)
    inner.router.default = _answer_unknown_path
    inner.router.redirect_slashes = False
    return _RequestCounter(inner.router, service)


async def _answer_unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        advice = name_nearest(scope["path"][:MAX_UNKNOWN_PATH_CHARS], {route.path for route in ROUTES})
        if scope["path"].startswith("/mcp"):
            advice = "`toolscout gateway --http` serves MCP."
        text = f"The service has no such path. {advice} /openapi.json lists all of them.".replace("  ", " ")
        await _build_failure(RequestRefused(404, text))(scope, receive, send)


class _RequestCounter:
    """ASGI middleware that counts every answer and its time until the last byte."""

    def __init__(self, inner: ASGIApp, service: Service) -> None:
        self.inner, self.service = inner, service
        self.known_paths = {route.path for route in ROUTES} | set(FILES) | {"/openapi.json"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.inner(scope, receive, send_counted)
        finally:
            path = scope["path"] if scope["path"] in self.known_paths else "other"
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            self.service.metrics.count_request(method, path, status, time.perf_counter() - started)


class _Endpoint:
    """Answers one path of the route table, for all its methods."""

    def __init__(self, service: Service, door: Door, methods: dict[str, Route]) -> None:
        self.service, self.door, self.methods = service, door, methods
        self.allow = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
        self.decoders: dict[Route, msgspec.json.Decoder[Any]] = {
            route: msgspec.json.Decoder(route.request_type) for route in methods.values()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except Exception as error:
            response = _build_failure(error)
        for name, value in SECURITY_HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Answer one request: find the caller, check limits and permission, read the input, call the handler."""
        method = "GET" if request.method == "HEAD" else request.method
        route = self.methods.get(method)
        if route is None:
            raise RequestRefused(405, f"expected {self.allow}, found {request.method:.20}", {"Allow": self.allow})
        limits = self.service.limits
        if route.body_media == JSON:
            body = _receive_body(request, limits.body, limits.patience)
        else:
            body = _receive_body(request, limits.upload, limits.patience * 10)
        if route.open:
            self.door.check_sender(request.headers)
            parameters = self._read_parameters(route, request)
            return self._make_response(
                route, await route.handler(ApiRequest(self.service, ANONYMOUS, parameters, body))
            )
        self.door.check_place(request.headers)
        caller = await self.door.caller(request.headers)
        if route.operators_only and not caller.operator:
            raise RequestRefused(403, "Only an operator may do this. Ask for a key with the role `operator`.")
        parameters = (
            await self._read_body(route, request, body) if method == "POST" else self._read_parameters(route, request)
        )
        try:
            return await self._run_handler(route, ApiRequest(self.service, caller, parameters, body))
        except (StoreError, ConfigError) as error:
            if caller.operator:
                raise
            _log.warning("the service cannot read its files, and answered %s with 503: %s", caller.name, error)
            raise RequestRefused(503, "The service cannot read its files. Tell its operator.") from None

    async def _run_handler(self, route: Route, request: ApiRequest[Any]) -> Response:
        buckets = self.service.buckets
        wait = buckets.take(request.caller.name, route.cost(request.parameters))
        if wait:
            raise RequestRefused(
                429,
                f"You sent more than {buckets.rate:g} queries a second on average. Try again in {math.ceil(wait)} s.",
                {"Retry-After": str(math.ceil(wait))},
            )
        return self._make_response(route, await route.handler(request))

    def _make_response(self, route: Route, answer: Any) -> Response:
        return answer if isinstance(answer, Response) else Response(_encode(answer), media_type=route.answer_media)

    def _read_parameters(self, route: Route, request: Request) -> Any:
        pairs = request.query_params.multi_items()
        for name, count in Counter(name for name, _ in pairs).items():
            if count > 1:
                raise RequestRefused(422, f"expected each parameter once, found {name!r:.80} {count} times")
        try:
            parameters: Any = msgspec.convert(dict(pairs), route.request_type, strict=False)
        except msgspec.ValidationError as error:
            raise RequestRefused(422, describe_mismatch(error, route.request_type)) from None
        for name, value in pairs:
            if getattr(parameters, name) is None:  # msgspec reads the word "null" as None
                raise RequestRefused(
                    422, f"expected a value for {name!r}, found {value!r:.20}. Leave the parameter out."
                )
        return parameters

    async def _read_body(self, route: Route, request: Request, body: AsyncIterator[bytes]) -> Any:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().casefold()
        if kind != route.body_media:
            raise RequestRefused(
                415,
                f"expected a body of type {route.body_media}, found {kind[:80] or 'none'}. "
                "Set the header Content-Type.",
            )
        if request.query_params:
            raise RequestRefused(422, "expected all parameters in the body, found some in the address")
        if route.body_media != JSON:
            return route.request_type()
        content = b"".join([chunk async for chunk in body])
        try:
            return self.decoders[route].decode(content)
        except msgspec.ValidationError as error:
            raise RequestRefused(422, describe_mismatch(error, route.request_type)) from None
        except msgspec.DecodeError as error:
            raise RequestRefused(400, f"expected JSON, found an error {describe_json_error(content, error)}") from None


async def _receive_body(request: Request, max_bytes: int, seconds: float) -> AsyncIterator[bytes]:
    """Receive the body of a request in chunks, within a size and a time.

    Raises:
        RequestRefused: 413 or 408.
        ClientDisconnect: if the caller closed the connection.
    """
    declared, size, deadline = request.headers.get("content-length", "0"), 0, time.monotonic() + seconds
    if declared.isdigit() and int(declared) > max_bytes:
        raise RequestRefused(413, f"expected a body of at most {max_bytes:,} bytes, found {int(declared):,}")
    has_more = True
    while has_more:
        try:
            with anyio.fail_after(max(0.0, deadline - time.monotonic())):
                message = await request.receive()
        except TimeoutError:
            raise RequestRefused(408, f"The request did not arrive within {seconds:g} s. Send it again.") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk, has_more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size > max_bytes:
            raise RequestRefused(413, f"expected a body of at most {max_bytes:,} bytes, found more")
        yield chunk


class _File:
    """Serves a file of the page, or the OpenAPI document. It is the same for every caller."""

    def __init__(self, door: Door, content: bytes, media_type: str, headers: Mapping[str, str] | None = None) -> None:
        tag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
        self.door, self.content, self.tag = door, content, tag
        self.headers = {**SECURITY_HEADERS, "Cache-Control": "no-cache", "ETag": tag, **(headers or {})}
        self.media_type = media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            self.door.check_place(request.headers)
            if request.method not in ("GET", "HEAD"):
                raise RequestRefused(405, f"expected GET, HEAD, found {request.method:.20}", {"Allow": "GET, HEAD"})
            response = Response(self.content, headers=self.headers, media_type=self.media_type)
            if request.headers.get("if-none-match") == self.tag:
                response = Response(status_code=304, headers=self.headers)
        except RequestRefused as error:
            response = _build_failure(error)
        await response(scope, receive, send)


def _build_failure(error: Exception) -> Response:
    """Build the answer for an error. Unexpected errors are logged by type and place, without the request."""
    headers: dict[str, str] = {}
    if isinstance(error, RequestRefused):
        status, text, headers = error.status, str(error), error.headers
    elif isinstance(error, msgspec.ValidationError):
        status, text = 422, f"expected a request as described in /openapi.json, found: {error}"
    elif isinstance(error, (msgspec.DecodeError, UnicodeDecodeError, RecursionError)):
        status, text = 400, "expected JSON, found something else"
    elif isinstance(error, ToolscoutError):
        status, text = next((code for kind, code in STATUS_OF_ERROR if isinstance(error, kind)), 500), str(error)
    else:
        status, text = 500, "The service failed. Its log says where."
    if status == 500:
        places = "".join(traceback.format_tb(error.__traceback__))
        _log.error("a request failed with %s at\n%s", type(error).__name__, places)
    return Response(_encode(Failure(text)), status, {**SECURITY_HEADERS, **headers}, JSON)
