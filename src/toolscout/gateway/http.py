"""The door of the gateway over HTTP: who comes in, from which pages, and under which names it may be addressed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from toolscout.access import http
from toolscout.access.http import CHALLENGE, MARK, credential_of, names_of, origins_of
from toolscout.access.policy import Policies
from toolscout.errors import Denied

if TYPE_CHECKING:
    from mcp.server import Server
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["CALLER", "PATH", "app", "serve"]

CALLER: Final = "toolscout.caller"  # where the door leaves who it let in, in the scope of a request
PATH: Final = "/mcp"
PATIENCE: Final = 3  # seconds that open streams get when the service stops


class _Door:
    """Lets in whom the policies know; everybody else gets status 401."""

    def __init__(self, inner: ASGIApp, policies: Policies) -> None:
        self.inner, self.policies = inner, policies

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
            message = "this request comes through a toolscout gateway, which never calls another"
            refusal = JSONResponse({"error": message}, 403)
            await refusal(scope, receive, send)
            return
        credential = credential_of(headers)
        try:
            caller = await run_in_threadpool(self.policies.caller, credential)
        except Denied as error:
            challenge = CHALLENGE + (', error="invalid_token"' if credential else "")
            refusal = JSONResponse({"error": str(error)}, 401, {"WWW-Authenticate": challenge})
            await refusal(scope, receive, send)
            return
        scope[CALLER] = caller  # the SDK keeps a session to the user that began it
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=caller.name, scopes=[]))
        await self.inner(scope, receive, send)


def app(server: Server[Any], policies: Policies, hosts: Iterable[str]) -> ASGIApp:
    """The ASGI application: MCP under `/mcp`, for the callers that `policies` knows.

    Args:
        server: the gateway's server.
        policies: who may come in.
        hosts: names and addresses under which the service may be asked for; requests for others, and from pages of
            others, are refused, whatever names they have been resolved by.
    """
    from mcp.server.transport_security import TransportSecuritySettings

    names, origins = origins_of(hosts)
    security = TransportSecuritySettings(
        allowed_hosts=[*names, *(f"{name}:*" for name in names)],
        allowed_origins=[*origins, *(f"{origin}:*" for origin in origins)],
    )
    return _Door(server.streamable_http_app(streamable_http_path=PATH, transport_security=security), policies)


async def serve(server: Server[Any], policies: Policies, host: str, port: int, more: Iterable[str] = ()) -> None:
    """Serve until stopped by a signal.

    Raises:
        ConfigError: if anybody could come in from elsewhere, or the port is taken.
    """
    door = app(server, policies, names_of(host, more))
    await http.serve(door, policies, host, port, extra="mcp", patience=PATIENCE)
