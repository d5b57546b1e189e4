"""The door of the gateway over HTTP: who comes in, from which pages, and under which names it may be addressed."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from toolscout.errors import ConfigError, Denied
from toolscout.gateway.openapi import MARK
from toolscout.policy import LOCAL, Policies

if TYPE_CHECKING:
    import uvicorn
    from mcp.server import Server
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["CALLER", "PATH", "app", "is_loopback", "names_of", "serve"]

CALLER: Final = "toolscout.caller"  # where the door leaves who it let in, in the scope of a request
PATH: Final = "/mcp"
PATIENCE: Final = 3  # seconds that open streams get when the service stops


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a service on that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
            refusal = JSONResponse({"error": "expected an agent, found a gateway: it never calls itself"}, 403)
            await refusal(scope, receive, send)
            return
        kind, _, token = headers.get("authorization", "").partition(" ")
        credential = token.strip() if kind.lower() == "bearer" else headers.get("x-api-key")
        try:
            caller = await run_in_threadpool(self.policies.caller, credential or None)
        except Denied as error:
            challenge = 'Bearer realm="toolscout"' + (', error="invalid_token"' if credential else "")
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

    names = [f"[{host}]" if ":" in host and not host.startswith("[") else host for host in hosts]
    origins = [f"{scheme}://{name}" for name in names for scheme in ("http", "https")]
    security = TransportSecuritySettings(
        allowed_hosts=[*names, *(f"{name}:*" for name in names)],
        allowed_origins=[*origins, *(f"{origin}:*" for origin in origins)],
    )
    return _Door(server.streamable_http_app(streamable_http_path=PATH, transport_security=security), policies)


def names_of(host: str, more: Iterable[str] = ()) -> list[str]:
    """The names under which a service on `host` may be asked for."""
    own = [] if host in ("0.0.0.0", "::", "") else [host]
    machine = [] if is_loopback(host) else [socket.gethostname(), socket.getfqdn()]
    return list(dict.fromkeys(["localhost", "127.0.0.1", "::1", *own, *machine, *more]))


async def serve(server: Server[Any], policies: Policies, host: str, port: int, more: Iterable[str] = ()) -> None:
    """Serve until stopped by a signal.

    Raises:
        ConfigError: if anybody could come in from elsewhere, or the port is taken.
    """
    import anyio
    import uvicorn

    class _Service(uvicorn.Server):
        """Leaves signals to `_stop_at_signal`, so that what runs around it can end in order."""

        @contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield

    if policies.default is LOCAL and not is_loopback(host):
        raise ConfigError(
            f"expected a policy file for {host}, found none: without one only this machine may come in; "
            "give --policy FILE, or --host 127.0.0.1"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"expected a free port at {host}:{port}, found: {error.strerror}: give another --port"
            ) from None
        config = uvicorn.Config(
            app(server, policies, names_of(host, more)),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=PATIENCE,
        )
        service = _Service(config)
        async with anyio.create_task_group() as group:
            group.start_soon(_stop_at_signal, service)
            await service.serve(sockets=[listener])
            group.cancel_scope.cancel()


async def _stop_at_signal(service: uvicorn.Server) -> None:
    import anyio

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            service.should_exit = True
