"""Answers the requests of browsers and issuers: sign-in pages, the client's metadata, the gateway's as a resource.

These addresses need no key. They show nothing but what an OAuth client and resource publish.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from toolscout.home.access.http import RESOURCE_PATH
from toolscout_gateway.http_scope import PATH
from toolscout_gateway.sign_in import (
    CALLBACK_PATH,
    CLIENT_PATH,
    SIGN_IN_PATH,
    SignIns,
    describe_client,
    render_page,
)

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["OAuthRoutes", "serve_loopback"]

DescribeResource = Callable[[], dict[str, Any] | None]
COOKIE: Final = "toolscout_sign_in"
FIRST_DYNAMIC_PORT: Final = 49_152
DYNAMIC_PORTS: Final = 16_000
PAGE_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}


class OAuthRoutes:
    """ASGI middleware for the addresses that need no key. Everything else is passed on."""

    def __init__(self, inner: ASGIApp, sign_ins: SignIns, describe_resource: DescribeResource) -> None:
        """Answer before `inner`. `describe_resource`: says who issues the tokens that the gateway takes."""
        self._inner, self._sign_ins, self._describe = inner, sign_ins, describe_resource

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        from starlette.requests import Request

        response = await self._answer(Request(scope, receive)) if scope["type"] == "http" else None
        if response is None:
            await self._inner(scope, receive, send)
        else:
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response | None:
        path, method = request.url.path, request.method
        if path == SIGN_IN_PATH and method in ("GET", "POST"):
            return self._show_sign_in(request) if method == "GET" else self._begin(request)
        if method != "GET":
            return None
        if path == CALLBACK_PATH:
            return await self._receive_browser(request)
        if path == CLIENT_PATH:
            base = self._sign_ins.base
            return _answer_json({"client_id": base + CLIENT_PATH, **describe_client(base)})
        if path == RESOURCE_PATH or path.startswith(f"{RESOURCE_PATH}/"):
            return self._describe_resource()
        return None

    def _describe_resource(self) -> Response | None:
        """Describe the gateway as a protected resource: who issues the tokens that it takes."""
        resource = self._describe()
        if resource is None:
            return None
        if urlsplit(str(resource["resource"])).scheme not in ("http", "https"):
            resource["resource"] = self._sign_ins.base + PATH
        return _answer_json(resource)

    # --- sign-in

    def _show_sign_in(self, request: Request) -> Response:
        """Say who would sign in where, so that nobody who was sent a link signs in for somebody else."""
        sign_in = self._sign_ins.find(request.query_params.get("id", ""))
        if sign_in is None:
            return _answer_page("Nothing to do", "This link is no longer open. Call the tool again.", status=404)
        caller, _, subject = sign_in.identity.person.partition("\n")
        text = (
            f"The caller {caller!r}{f' ({subject})' if subject else ''} of this toolscout gateway wants to use the "
            f"server {sign_in.identity.server.name!r} in your name. You will sign in at {sign_in.issuer}. "
            "Go on only if you are this caller and have just asked for it."
        )
        return _answer_page(f"Sign in to {sign_in.identity.server.name}", text, f"{SIGN_IN_PATH}?id={sign_in.id}")

    def _begin(self, request: Request) -> Response:
        """Send the browser to the issuer. Only a browser that came this way may come back."""
        from starlette.responses import RedirectResponse

        sign_in = self._sign_ins.find(request.query_params.get("id", ""))
        if sign_in is None:
            return _answer_page("Nothing to do", "This link is no longer open. Call the tool again.", status=404)
        mark = secrets.token_urlsafe(24)
        sign_in.browsers.add(mark)
        response = RedirectResponse(sign_in.url, 303, {"cache-control": "no-store"})
        is_secure = self._sign_ins.base.startswith("https://")
        response.set_cookie(COOKIE, mark, 600, path="/oauth", secure=is_secure, httponly=True, samesite="lax")
        return response

    async def _receive_browser(self, request: Request) -> Response:
        """Take the code that the browser brings back from the issuer."""
        values, mark = request.query_params, request.cookies.get(COOKIE, "")
        state = values.get("state", "")
        sign_in = self._sign_ins.find_by_state(state)
        if sign_in is None:
            return _answer_page("Nothing to do", "This sign-in is no longer open. Call the tool again.", status=404)
        if not any(secrets.compare_digest(mark, browser) for browser in sign_in.browsers):
            text = "Another browser began this sign-in. Open the link of your own tool call."
            return _answer_page("Not signed in", text, status=403)
        sign_in.answer(values.get("code", ""), state, values.get("iss"))
        await sign_in.done.wait()
        if sign_in.error:
            return _answer_page("Not signed in", f"{sign_in.error.capitalize()}. Call the tool again.", status=400)
        return _answer_page("Signed in", "You can close this window and go back to your agent.")


def _answer_json(value: dict[str, Any]) -> Response:
    from starlette.responses import Response

    headers = {"access-control-allow-origin": "*", "cache-control": "max-age=300"}
    return Response(msgspec.json.encode(value), media_type="application/json", headers=headers)


def _answer_page(title: str, text: str, action: str = "", *, status: int = 200) -> Response:
    from starlette.responses import HTMLResponse

    return HTMLResponse(render_page(title, text, action), status, PAGE_HEADERS)


async def serve_loopback(
    sign_ins: SignIns, describe_resource: DescribeResource, home: Path, *, task_status: TaskStatus[str]
) -> None:
    """Serve the pages on a port of this machine, for a gateway over standard input and output."""
    import uvicorn
    from starlette.applications import Starlette

    mark = hashlib.blake2b(str(home).encode(), digest_size=4).digest()
    with socket.socket() as listener:
        try:  # the same port each time, because issuers know it
            listener.bind(("127.0.0.1", FIRST_DYNAMIC_PORT + int.from_bytes(mark, "big") % DYNAMIC_PORTS))
        except OSError:
            listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        app = OAuthRoutes(Starlette(), sign_ins, describe_resource)
        config = uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off", server_header=False)
        service = uvicorn.Server(config)
        task_status.started(f"http://127.0.0.1:{listener.getsockname()[1]}")
        await service._serve(sockets=[listener])  # `serve` would take over the signals of the program
