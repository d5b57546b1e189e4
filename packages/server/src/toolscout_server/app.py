"""The ASGI application: routes requests to their handlers, serves the page, and formats errors."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import logging
import math
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from importlib import resources
from typing import Final

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as PathRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
from toolscout.home.access.live_policy import LivePolicies
from toolscout.home.access.tenants import TenantApp, TenantKeys
from toolscout.location import DEFAULT_TENANT
from toolscout.scout import Scout
from toolscout.trust.policy import Caller, Rules
from toolscout_server.requests import Door, read_body, read_parameters, receive_body
from toolscout_server.routes import JSON, ROUTES, Route, build_document
from toolscout_server.service import ApiRequest, RequestRefused, Service, may_manage
from toolscout_server.shapes import Failure

__all__ = ["app", "serve_tenants"]

SECURITY_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
PAGE_CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
MEDIA_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PAGE_FOLDER: Final = resources.files("toolscout_server") / "web"
PAGE_FILES: Final = ("/", *sorted(f"/web/{file.name}" for file in _PAGE_FOLDER.iterdir() if file.name != "index.html"))
STATUS_OF_ERROR: Final = (
    (NotFound, 404),
    (Denied, 403),
    ((Unavailable, StoreError, MissingExtra), 503),
    (UserError, 400),
)
MAX_UNKNOWN_PATH_CHARS: Final = 100  # of an unknown path that is compared with the known ones
UPLOAD_PATIENCE: Final = 10  # times as long as for JSON, because files are larger
ANONYMOUS: Final = Caller("nobody", Rules())
_log: Final = logging.getLogger("toolscout.server")
_encode: Final = msgspec.json.Encoder().encode


def app(service: Service, names: Iterable[str]) -> ASGIApp:
    """Build the ASGI application.

    Args:
        service: the service that answers.
        names: host names under which it is reached.
    """
    door = Door(service.policies, names)  # refuses other hosts and pages, and finds the caller of a request
    methods: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        methods.setdefault(route.path, {})[route.method] = route
    routes = [PathRoute(path, _ApiPath(service, door, by_method)) for path, by_method in methods.items()]
    routes.append(PathRoute("/openapi.json", _StaticFile(door, build_document(), JSON)))
    for path in PAGE_FILES:
        name = path.removeprefix("/web/") if path != "/" else "index.html"
        media_type = f"{MEDIA_TYPES[name.rpartition('.')[2]]}; charset=utf-8"
        policy = {"Content-Security-Policy": PAGE_CONTENT_POLICY}
        routes.append(PathRoute(path, _StaticFile(door, (_PAGE_FOLDER / name).read_bytes(), media_type, policy)))
    # The router alone, with its lifespan: Starlette's own middleware would answer errors in its own format.
    router = Starlette(routes=routes, lifespan=service.running).router
    router.default = _answer_unknown_path
    router.redirect_slashes = False
    return _count_requests(router, service)


def serve_tenants(
    scout: Scout, keys: TenantKeys, make_service: Callable[[Scout, LivePolicies], Service], names: Sequence[str]
) -> TenantApp:
    """Build the HTTP application of all tenants, each with its own catalogue, journal, models and policy.

    Args:
        scout: of the tenant `default`.
        keys: key → tenant.
        make_service: makes the service of a tenant.
        names: host names under which the service is reached.
    """

    @contextlib.asynccontextmanager
    async def open_tenant(name: str, policies: LivePolicies) -> AsyncIterator[ASGIApp]:
        """Open the service of one tenant while its app is served. The tenant `default` has the scout that is open."""
        if name == DEFAULT_TENANT:
            yield app(make_service(scout, policies), names)
            return
        with contextlib.ExitStack() as stack:
            own = await anyio.to_thread.run_sync(scout.open_tenant, name)
            stack.callback(own.close)
            yield app(make_service(own, policies), names)

    return TenantApp(keys, open_tenant)


async def _answer_unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 404 with the nearest path. A WebSocket gets no answer, so the server closes it."""
    if scope["type"] == "http":
        advice = name_nearest(scope["path"][:MAX_UNKNOWN_PATH_CHARS], {route.path for route in ROUTES})
        if scope["path"].startswith("/mcp"):
            advice = "`toolscout gateway --http` serves MCP."
        text = f"The service has no such path. {advice} /openapi.json lists all of them.".replace("  ", " ")
        await _build_failure(RequestRefused(404, text))(scope, receive, send)


def _count_requests(inner: ASGIApp, service: Service) -> ASGIApp:
    """Wrap the application so that every answer is counted, with its time until the last byte."""
    paths = {*(route.path for route in ROUTES), *PAGE_FILES, "/openapi.json"}

    async def answer_counted(scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and count it with its status and time. All unknown paths have one counter."""
        if scope["type"] != "http":
            await inner(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await inner(scope, receive, send_noted)
        finally:
            path = scope["path"] if scope["path"] in paths else "other"
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            service.metrics.count_request(method, path, status, time.perf_counter() - started)

    return answer_counted


class _ApiPath:
    """Answers one path of the route table, for all its methods."""

    def __init__(self, service: Service, door: Door, methods: dict[str, Route]) -> None:
        self.service, self.door, self.methods = service, door, methods
        self.allow = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Whatever fails becomes a response in JSON."""
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
            body = receive_body(request, limits.body, limits.patience)
        else:
            body = receive_body(request, limits.upload, limits.patience * UPLOAD_PATIENCE)
        if route.open:
            self.door.check_sender(request.headers)
            return await self._run_handler(route, ANONYMOUS, read_parameters(route, request), body)
        self.door.check_origin(request.headers)
        caller = await self.door.find_caller(request.headers)
        if route.operators_only and not caller.operator:
            raise RequestRefused(403, "Only an operator may do this. Ask for a key with the role `operator`.")
        parameters = await read_body(route, request, body) if method == "POST" else read_parameters(route, request)
        self._check_rate(caller, route.cost(parameters))
        if route.managers_may and not may_manage(caller):
            raise Denied(
                f"The policy hides tools from you, so you may not {route.managers_may}. Ask an operator who sees all."
            )
        try:
            return await self._run_handler(route, caller, parameters, body)
        except (StoreError, ConfigError) as error:
            if caller.operator:
                raise
            _log.warning("the service cannot read its files, and answered %s with 503: %s", caller.name, error)
            raise RequestRefused(503, "The service cannot read its files. Tell its operator.") from None

    def _check_rate(self, caller: Caller, cost: float) -> None:
        """Refuse a caller who sends too many queries. `cost`: how many queries this request counts as."""
        buckets = self.service.buckets
        wait = math.ceil(buckets.take(caller.name, cost))
        if wait:
            raise RequestRefused(
                429,
                f"You sent more than {buckets.rate:g} queries a second on average. Try again in {wait} s.",
                {"Retry-After": str(wait)},
            )

    async def _run_handler(
        self, route: Route, caller: Caller, parameters: object, body: AsyncIterator[bytes]
    ) -> Response:
        """Run the handler of a route, in a thread if it blocks. Routes with the same lock run one at a time."""
        request = ApiRequest(self.service, caller, parameters, body)
        async with self.service.locks[route.lock] if route.lock else contextlib.nullcontext():
            if inspect.iscoroutinefunction(route.handler):
                answer = await route.handler(request)
            else:
                answer = await self.service.run_in_thread(route.handler, request)
        return answer if isinstance(answer, Response) else Response(_encode(answer), media_type=route.answer_media)


class _StaticFile:
    """Serves a file of the page, or the OpenAPI document. It is the same for every caller."""

    def __init__(self, door: Door, content: bytes, media_type: str, headers: Mapping[str, str] | None = None) -> None:
        tag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
        self.door, self.content, self.tag = door, content, tag
        self.headers = {**SECURITY_HEADERS, "Cache-Control": "no-cache", "ETag": tag, **(headers or {})}
        self.media_type = media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the file, or with 304 if the browser has it."""
        request = Request(scope, receive)
        try:
            self.door.check_origin(request.headers)
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
