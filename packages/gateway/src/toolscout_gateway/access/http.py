"""Serves the gateway over HTTP: checks the caller, the host name and the page that sends the request."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from toolscout.errors import Denied
from toolscout.home.access import http
from toolscout.home.access.http import (
    MARK,
    build_challenge,
    check_origin,
    credential_of,
    find_metadata_url,
    hosts_of,
    is_loopback,
    names_of,
)
from toolscout.home.access.live_policy import LivePolicies
from toolscout.home.access.profiles import Profiles
from toolscout.home.access.tenants import TenantApp, TenantKeys
from toolscout.location import DEFAULT_TENANT
from toolscout.scout import Scout
from toolscout.trust.policy import Caller, Policies, ScopeMissing
from toolscout_gateway.access.permissions import CALLER, CREDENTIAL, PATH, PROFILE_PATH
from toolscout_gateway.access.sign_in import CALLBACK_PATH, SIGN_IN_PATH
from toolscout_gateway.health import Health, HealthRoutes
from toolscout_gateway.options import Options
from toolscout_gateway.server import Gateway

if TYPE_CHECKING:
    from mcp.server import Server
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from toolscout_gateway.access.identities import Identities

__all__ = ["StepUp", "app", "build_base", "serve", "serve_tenants"]

MAX_REQUEST_BYTES: Final = 4_194_304  # as the SDK takes them
REFUSED_PLACES: Final = {
    421: "The request names a host that this gateway does not answer for. Add it with --allow-host.",
    403: "The request comes from a page of another site. Only this gateway's own pages may send requests.",
}
GATEWAY_CLOSE_S: Final = 3  # seconds that open streams get when the service stops


class _CallerCheck:
    """ASGI middleware that lets in callers known to the policies, and answers others with status 401.

    Requests for other hosts and from other pages are refused first.

    Under the address of a profile, a caller has the rights that the profile leaves them.
    """

    def __init__(
        self,
        inner: ASGIApp,
        policies: Policies | LivePolicies,
        profiles: Profiles | None,
        hosts: Iterable[str],
        base: str = "",
    ) -> None:
        self.inner, self.policies, self.profiles, self.base = inner, policies, profiles, base
        self._hosts = hosts_of(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the caller of a request by its credential, and refuse a request without a caller.

        A request to a profile's path gets a caller with the tools of the profile only.
        """
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken
        from starlette.concurrency import run_in_threadpool
        from starlette.datastructures import Headers
        from starlette.responses import JSONResponse

        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if MARK in headers:
            message = "This request comes from a toolscout gateway. A gateway does not call another one."
            refusal = JSONResponse({"error": message}, 403)
            await refusal(scope, receive, send)
            return
        if status := check_origin(headers, self._hosts, self.base):
            await JSONResponse({"error": REFUSED_PLACES[status]}, status)(scope, receive, send)
            return
        credential = credential_of(headers)
        try:
            caller = await run_in_threadpool(self.policies.caller, credential)
        except Denied as error:
            metadata_url = find_metadata_url(self.policies, self.base)
            if isinstance(error, ScopeMissing):
                status, challenge = 403, build_challenge("insufficient_scope", error.scope, metadata_url)
            else:
                status = 401
                challenge = build_challenge("invalid_token" if credential else "", "", metadata_url)
            refusal = JSONResponse({"error": str(error)}, status, {"WWW-Authenticate": challenge})
            await refusal(scope, receive, send)
            return
        if scope["path"].startswith(PROFILE_PATH):
            name = scope["path"].removeprefix(PROFILE_PATH)
            profile = self.profiles.find(name) if self.profiles else None
            if profile is None:
                await JSONResponse({"error": "There is no such profile."}, 404)(scope, receive, send)
                return
            caller = profile.narrow(caller)
            scope = {**scope, "path": PATH, "raw_path": PATH.encode()}
        scope[CALLER], scope[CREDENTIAL] = caller, credential
        # The SDK binds a session to the user that opened it.
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=caller.person, scopes=[]))
        await self.inner(scope, receive, send)


# --- scopes of tokens -------------------------------------------------------------------------------------------------


class StepUp:
    """ASGI middleware that answers calls for which the caller's token lacks a scope with status 403.

    From that a client learns which scope to ask for (step-up authorization of MCP). The rule itself is checked with
    each call (`Caller.may_call`).
    """

    def __init__(
        self,
        inner: ASGIApp,
        caller_key: str,
        find_scope: Callable[[Caller, str], Awaitable[str]],
        build_challenge: Callable[[str], str],
    ) -> None:
        """Check before `inner`.

        Args:
            inner: the application.
            caller_key: where the scope of a request holds its caller.
            find_scope: returns the scope that a caller's token lacks for the tool of an id. Empty if none.
            build_challenge: returns the header that names a scope.
        """
        self._inner, self._caller_key = inner, caller_key
        self._find_scope, self._build_challenge = find_scope, build_challenge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        from starlette.responses import JSONResponse

        caller = scope.get(self._caller_key)
        if scope["type"] != "http" or scope["method"] != "POST" or not getattr(caller, "withheld", ()):
            await self._inner(scope, receive, send)
            return
        messages = await _read_body(receive)
        body = b"".join(message.get("body", b"") for message in messages)
        tool_id = _read_tool_id(body)
        missing = await self._find_scope(caller, tool_id) if tool_id and isinstance(caller, Caller) else ""
        if missing:
            error = f"Your token lacks the scope {missing!r} for {tool_id}."
            response = JSONResponse({"error": error}, 403, {"WWW-Authenticate": self._build_challenge(missing)})
            await response(scope, receive, send)
            return

        async def replay() -> Message:
            """Return the messages that were read here once more, then those that follow."""
            return messages.pop(0) if messages else await receive()

        await self._inner(scope, replay, send)


async def _read_body(receive: Receive) -> list[Message]:
    """Read the body of a request, as far as a request may be long. The SDK refuses a longer one."""
    messages: list[Message] = []
    size = 0
    while size <= MAX_REQUEST_BYTES:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            break
    return messages


def _read_tool_id(body: bytes) -> str:
    """Return the id of the tool that a message calls. Empty if it is no call of a tool."""
    try:
        message: Any = msgspec.json.decode(body)
        if message["method"] != "tools/call":
            return ""
        params = message["params"]
        id = params["arguments"]["id"] if params["name"] == "call_tool" else params["name"]
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError):
        return ""
    return id if isinstance(id, str) else ""


# --- the application --------------------------------------------------------------------------------------------------


def app(
    server: Server[Any],
    policies: Policies | LivePolicies,
    hosts: Iterable[str],
    health: Health | None = None,
    profiles: Profiles | None = None,
    identities: Identities | None = None,
) -> ASGIApp:
    """Build the ASGI application: MCP under `/mcp`, for the callers that `policies` knows.

    Operators also get `/status` and `/metrics` of the servers behind the gateway.

    Args:
        server: the gateway's server.
        policies: who may use the gateway.
        hosts: names and addresses of the service. Requests for another host name, and from pages of another host,
            are refused (DNS rebinding).
        health: how the servers behind the gateway are.
        profiles: served under `/mcp/p/<name>`.
        identities: who is signed in at the servers behind the gateway.
    """
    from mcp.server.transport_security import TransportSecuritySettings

    hosts = list(hosts)
    checked_before = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    inner: ASGIApp = server.streamable_http_app(streamable_http_path=PATH, transport_security=checked_before)
    if health is not None:
        inner = HealthRoutes(inner, health, CALLER)
    if identities is None:
        return _CallerCheck(inner, policies, profiles, hosts)
    from toolscout_gateway.access.oauth_routes import OAuthRoutes

    def challenge(scope: str) -> str:
        metadata_url = find_metadata_url(policies, identities.sign_ins.base)
        return build_challenge("insufficient_scope", policies.join_scopes(scope), metadata_url)

    inner = StepUp(inner, CALLER, identities.find_missing_scope, challenge)
    checked = _CallerCheck(inner, policies, profiles, hosts, identities.sign_ins.base)
    return OAuthRoutes(checked, identities.sign_ins, policies.describe_resource, hosts)


def build_base(host: str, port: int) -> str:
    """Return the address that browsers reach, for a gateway without the setting `public_url`."""
    shown_host = "127.0.0.1" if is_loopback(host) or host in ("0.0.0.0", "::", "") else host
    return f"http://{f'[{shown_host}]' if ':' in shown_host else shown_host}:{port}"


async def serve(
    gateway: Gateway, host: str, port: int, extra_names: Iterable[str] = (), ready: Callable[[int], None] | None = None
) -> None:
    """Serve a gateway over HTTP until a signal stops it.

    Args:
        gateway: answers the requests, by its policies and profiles.
        host: address to listen at; without a policy only one of this machine.
        port: port to listen at.
        extra_names: host names that requests may use beside those of `host`.
        ready: called with the port as soon as connections are accepted.

    Raises:
        ConfigError: if callers from other machines could use it without a key, or the port is taken.
    """
    sign_ins = gateway.identities.sign_ins
    sign_ins.base = sign_ins.base or build_base(host, port)
    policies, profiles = gateway.permissions.policies, gateway.permissions.profiles
    names = names_of(host, extra_names)
    application = app(gateway.server, policies, names, gateway.health, profiles, gateway.identities)
    ending = http.Ending(GATEWAY_CLOSE_S)
    await http.serve(application, policies, host, port, extra="mcp", ending=ending, ready=ready)


# --- tenants ----------------------------------------------------------------------------------------------------------


def serve_tenants(scout: Scout, keys: TenantKeys, options: Options, names: Sequence[str], base: str) -> TenantApp:
    """Build the application for all tenants.

    Args:
        scout: of the tenant `default`.
        keys: say to whom a key belongs.
        options: of all gateways. Configuration files and pins are those of the tenant `default`.
        names: host names under which the gateway is reached.
        base: the address that browsers reach, unless the setting `public_url` names it.
    """
    gateways: dict[str, Gateway] = {}

    @contextlib.asynccontextmanager
    async def open_tenant(name: str, policies: LivePolicies) -> AsyncIterator[ASGIApp]:
        """Open the gateway of one tenant while its app is served; that of `default` uses the scout that is open."""
        with contextlib.ExitStack() as stack:
            own = scout
            if name != DEFAULT_TENANT:
                own = await anyio.to_thread.run_sync(scout.open_tenant, name)
                stack.callback(own.close)
            gateway = gateways[name] = _make_gateway(own, options, policies, keys)
            stack.callback(gateways.pop, name)
            gateway.identities.sign_ins.base = gateway.identities.sign_ins.base or base
            async with gateway.running():
                yield app(
                    gateway.server, policies, names, gateway.health, gateway.permissions.profiles, gateway.identities
                )

    def find_open(scope: Scope) -> str:
        """Return the tenant for whom a browser comes back from a sign-in."""
        from starlette.datastructures import QueryParams

        if scope["path"] not in (SIGN_IN_PATH, CALLBACK_PATH):
            return ""
        query = QueryParams(scope.get("query_string", b""))
        for name, gateway in gateways.items():
            sign_ins = gateway.identities.sign_ins
            if sign_ins.find(query.get("id", "")) or sign_ins.find_by_state(query.get("state", "")):
                return name
        return ""

    return TenantApp(keys, open_tenant, find_open)


def _make_gateway(scout: Scout, options: Options, policies: LivePolicies, keys: TenantKeys) -> Gateway:
    """Make the gateway of a tenant. Files and pins of the options are those of the tenant `default` alone."""
    tenant = scout.settings.tenant
    if tenant != DEFAULT_TENANT:
        options = dataclasses.replace(options, configs=(), pins=())
    return Gateway(scout, options, policies=policies, say=lambda text: keys.say(f"tenant {tenant}: {text}"))
