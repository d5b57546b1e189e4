"""Serves the gateway over HTTP: checks the caller, the host name and the page that sends the request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from toolscout.errors import Denied
from toolscout.home.access import http
from toolscout.home.access.http import (
    MARK,
    build_challenge,
    credential_of,
    find_metadata_url,
    is_loopback,
    names_of,
    origins_of,
)
from toolscout.home.access.live_policy import LivePolicies
from toolscout.home.access.profiles import Profiles
from toolscout.trust.policy import Policies, ScopeMissing
from toolscout_gateway.health import Health, HealthRoutes
from toolscout_gateway.http_scope import CALLER, CREDENTIAL, PATH, PROFILE_PATH
from toolscout_gateway.step_up import StepUp

if TYPE_CHECKING:
    from mcp.server import Server
    from starlette.types import ASGIApp, Receive, Scope, Send

    from toolscout_gateway.identities import Identities

__all__ = ["app", "build_base", "serve"]

GATEWAY_CLOSE_S: Final = 3  # seconds that open streams get when the service stops


class _CallerCheck:
    """ASGI middleware that lets in callers known to the policies and answers others with status 401.

    Under the address of a profile, a caller has the rights that the profile leaves them.
    """

    def __init__(
        self, inner: ASGIApp, policies: Policies | LivePolicies, profiles: Profiles | None, base: str = ""
    ) -> None:
        self.inner, self.policies, self.profiles, self.base = inner, policies, profiles, base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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

    names, origins = origins_of(hosts)
    security = TransportSecuritySettings(
        allowed_hosts=[*names, *(f"{name}:*" for name in names)],
        allowed_origins=[*origins, *(f"{origin}:*" for origin in origins)],
    )
    inner: ASGIApp = server.streamable_http_app(streamable_http_path=PATH, transport_security=security)
    if health is not None:
        inner = HealthRoutes(inner, health, CALLER, security)
    if identities is None:
        return _CallerCheck(inner, policies, profiles)
    from toolscout_gateway.oauth_routes import OAuthRoutes

    def challenge(scope: str) -> str:
        metadata_url = find_metadata_url(policies, identities.sign_ins.base)
        return build_challenge("insufficient_scope", policies.join_scopes(scope), metadata_url)

    inner = StepUp(inner, CALLER, identities.find_missing_scope, challenge)
    checked = _CallerCheck(inner, policies, profiles, identities.sign_ins.base)
    return OAuthRoutes(checked, identities.sign_ins, policies.describe_resource)


def build_base(host: str, port: int) -> str:
    """Return the address that browsers reach, for a gateway without the setting `public_url`."""
    shown_host = "127.0.0.1" if is_loopback(host) or host in ("0.0.0.0", "::", "") else host
    return f"http://{f'[{shown_host}]' if ':' in shown_host else shown_host}:{port}"


async def serve(
    server: Server[Any],
    policies: Policies | LivePolicies,
    host: str,
    port: int,
    extra_names: Iterable[str] = (),
    health: Health | None = None,
    profiles: Profiles | None = None,
    identities: Identities | None = None,
) -> None:
    """Serve until stopped by a signal.

    Raises:
        ConfigError: if callers from other machines could use it without a key, or the port is taken.
    """
    if identities is not None and not identities.sign_ins.base:
        identities.sign_ins.base = build_base(host, port)
    application = app(server, policies, names_of(host, extra_names), health, profiles, identities)
    await http.serve(application, policies, host, port, extra="mcp", ending=http.Ending(GATEWAY_CLOSE_S))
