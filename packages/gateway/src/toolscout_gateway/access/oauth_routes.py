"""Answers the requests of browsers and issuers: sign-in pages, the client's metadata, the gateway's as a resource.

These addresses need no key. Requests must name a host of the gateway. A sign-in begins only with the button of the
gateway's own page, which names the caller, and ends only in the browser in which somebody pressed it.
"""

from __future__ import annotations

import hashlib
import html
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from toolscout.home.access.http import RESOURCE_PATH, check_origin, hosts_of, make_server
from toolscout_gateway.access.permissions import PATH
from toolscout_gateway.access.sign_in import CALLBACK_PATH, CLIENT_PATH, SIGN_IN_PATH, SignIn, SignIns, describe_client

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["OAuthRoutes", "serve_loopback"]

DescribeResource = Callable[[], dict[str, Any] | None]
COOKIE: Final = "toolscout_sign_in"
COOKIE_AGE_S: Final = 600
MAX_FORM_BYTES: Final = 4_096
FIRST_DYNAMIC_PORT: Final = 49_152
DYNAMIC_PORTS: Final = 16_000
PAGE_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "same-origin",  # with no-referrer browsers would hide the origin of our own form
    "x-frame-options": "DENY",
}


class OAuthRoutes:
    """ASGI middleware for the addresses that need no key. Everything else is passed on."""

    def __init__(
        self, inner: ASGIApp, sign_ins: SignIns, describe_resource: DescribeResource, hosts: Iterable[str]
    ) -> None:
        """Answer before `inner`.

        Args:
            inner: the application for everything else.
            sign_ins: those that wait for their persons.
            describe_resource: says who issues the tokens that the gateway takes.
            hosts: names and addresses of the gateway.
        """
        self._inner, self._sign_ins, self._describe = inner, sign_ins, describe_resource
        self._hosts = hosts_of(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        from starlette.requests import Request

        response = await self._answer(Request(scope, receive)) if scope["type"] == "http" else None
        if response is None:
            await self._inner(scope, receive, send)
        else:
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response | None:
        """Answer requests that belong to a sign-in or describe this gateway. None: another one, for the application."""
        path, method = request.scope["path"], request.method  # the path in `request.url` depends on the header Host
        if path in (SIGN_IN_PATH, CALLBACK_PATH):
            if refusal := self._refuse_foreign(request):
                return refusal
            if path == CALLBACK_PATH:
                return await self._receive_browser(request) if method == "GET" else None
            return await self._answer_sign_in(request) if method in ("GET", "POST") else None
        is_described = path == RESOURCE_PATH or path.startswith(f"{RESOURCE_PATH}/")
        if method != "GET" or not (path == CLIENT_PATH or is_described):
            return None
        if check_origin(request.headers, self._hosts, self._sign_ins.base) == 421:
            return _answer_page("Not here", "This gateway has another address.", status=421)
        if is_described:
            return self._describe_resource()
        base = self._sign_ins.base
        return _answer_public_metadata({"client_id": base + CLIENT_PATH, **describe_client(base)})

    def _refuse_foreign(self, request: Request) -> Response | None:
        """Refuse requests for other hosts (DNS rebinding), from other pages, and with cookies that are none of ours."""
        headers = request.headers
        status = check_origin(headers, self._hosts, self._sign_ins.base)
        if status == 421:
            return _answer_page("Not here", "This gateway has another address.", status=421)
        if status or (request.method == "POST" and headers.get("sec-fetch-site", "same-origin") != "same-origin"):
            return _answer_page("Not signed in", "Only this gateway's own page may begin a sign-in.", status=403)
        if not all(cookies.isascii() for cookies in headers.getlist("cookie")):
            return _answer_page("Not signed in", "Your browser sent a cookie that is none of ours.", status=400)
        return None

    def _describe_resource(self) -> Response | None:
        """Describe the gateway as a protected resource: who issues the tokens that it takes."""
        resource = self._describe()
        if resource is None:
            return None
        if urlsplit(str(resource["resource"])).scheme not in ("http", "https"):
            resource["resource"] = self._sign_ins.base + PATH
        return _answer_public_metadata(resource)

    # --- sign-in

    async def _answer_sign_in(self, request: Request) -> Response:
        """Show the page of a sign-in, or lead a browser whose button was pressed to the issuer."""
        sign_in = self._sign_ins.find(request.query_params.get("id", ""))
        if sign_in is None:
            return _answer_page("Nothing to do", "This link is no longer open. Call the tool again.", status=404)
        cookie = self._name_cookie(sign_in)
        browser = request.cookies.get(cookie, "")
        if request.method == "GET":
            return self._show_page(sign_in, cookie, browser)
        if not sign_in.press_button(browser, await _read_token(request)):
            text = "This page is no longer valid, or another browser opened it. Open the link of your tool call again."
            return _answer_page("Not signed in", text, status=403)
        from starlette.responses import RedirectResponse

        return RedirectResponse(sign_in.url, 303, PAGE_HEADERS)

    def _show_page(self, sign_in: SignIn, cookie: str, browser: str) -> Response:
        """Say who would sign in where, so that nobody who was sent a link signs in for somebody else."""
        caller, _, subject = sign_in.person.partition("\n")  # of a caller with a token, also whom it names
        text = (
            f"The caller {caller!r}{f' ({subject})' if subject else ''} of this toolscout gateway wants to use the "
            f"server {sign_in.server!r} in your name. You will sign in at {sign_in.issuer}. "
            "Go on only if you are this caller and have just asked for it."
        )
        browser, token = sign_in.open_page(browser)
        form = (
            f'<form method="post" action="{SIGN_IN_PATH}?id={html.escape(sign_in.id)}">'
            f'<input type="hidden" name="token" value="{html.escape(token)}"><button>Go on</button></form>'
        )
        response = _answer_page(f"Sign in to {sign_in.server}", text, form)
        is_secure = self._sign_ins.base.startswith("https://")
        response.set_cookie(cookie, browser, COOKIE_AGE_S, secure=is_secure, httponly=True, samesite="lax")
        return response

    def _name_cookie(self, sign_in: SignIn) -> str:
        """Name the cookie of a sign-in. Over https no other host can set a cookie of this name."""
        prefix = "__Host-" if self._sign_ins.base.startswith("https://") else ""
        return f"{prefix}{COOKIE}_{hashlib.blake2b(sign_in.id.encode(), digest_size=8).hexdigest()}"

    async def _receive_browser(self, request: Request) -> Response:
        """Take the code that the browser brings back from the issuer."""
        values = request.query_params
        sign_in = self._sign_ins.find_by_state(values.get("state", ""))
        if sign_in is None:
            return _answer_page("Nothing to do", "This sign-in is no longer open. Call the tool again.", status=404)
        if request.cookies.get(self._name_cookie(sign_in)) not in sign_in.browsers:
            text = "Another browser began this sign-in. Open the link of your own tool call."
            return _answer_page("Not signed in", text, status=403)
        sign_in.answer(values.get("code", ""), values.get("state", ""), values.get("iss"))
        await sign_in.done.wait()
        if sign_in.error:
            return _answer_page("Not signed in", f"{sign_in.error.capitalize()}. Call the tool again.", status=400)
        return _answer_page("Signed in", "You can close this window and go back to your agent.")


async def _read_token(request: Request) -> str:
    """Return the token in the form of a sign-in page. Empty if there is none."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FORM_BYTES:
            return ""
    try:
        return parse_qs(body.decode("ascii"), max_num_fields=1)["token"][0]
    except (ValueError, LookupError):
        return ""


def _answer_public_metadata(value: dict[str, object]) -> Response:
    """Answer with metadata that a page of any origin may read: it has addresses of issuers, and nothing of a caller."""
    from starlette.responses import Response

    headers = {"access-control-allow-origin": "*", "cache-control": "max-age=300"}
    return Response(msgspec.json.encode(value), media_type="application/json", headers=headers)


def _answer_page(title: str, text: str, form: str = "", *, status: int = 200) -> Response:
    """Answer with a page for the person. `form`: HTML below the text."""
    from starlette.responses import HTMLResponse

    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<h1>{html.escape(title)}</h1><p>{html.escape(text)}</p>{form}"
    )
    return HTMLResponse(page, status, PAGE_HEADERS)


async def serve_loopback(
    sign_ins: SignIns, describe_resource: DescribeResource, home: Path, *, task_status: TaskStatus[str]
) -> None:
    """Serve the pages on a port of this machine, for a gateway over standard input and output.

    Args:
        sign_ins: that wait for their persons.
        describe_resource: returns the metadata of the gateway.
        home: chooses the port.
        task_status: receives the address once it is served.
    """
    import uvicorn
    from starlette.applications import Starlette

    digest = hashlib.blake2b(str(home).encode(), digest_size=4).digest()
    with socket.socket() as listener:
        try:  # the same port each time, because issuers know it
            listener.bind(("127.0.0.1", FIRST_DYNAMIC_PORT + int.from_bytes(digest, "big") % DYNAMIC_PORTS))
        except OSError:
            listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        app = OAuthRoutes(Starlette(), sign_ins, describe_resource, ["127.0.0.1"])
        config = uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off", server_header=False)
        task_status.started(f"http://127.0.0.1:{listener.getsockname()[1]}")
        await make_server(config).serve(sockets=[listener])
