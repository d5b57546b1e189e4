"""An OAuth issuer and MCP servers that ask it who calls, on loopback ports of this process.

The issuer is built from the SDK's routes; signing in takes a browser whose cookie says who sits before it. The MCP
server is fastmcp's, with its check of tokens.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import jwt
import uvicorn
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from mcp.server.auth.provider import AuthorizationCode, AuthorizationParams, RefreshToken, TokenError
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

SCOPES = ["use", "delete"]
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


class QuietServer(uvicorn.Server):
    """A server that leaves no connection open when it stops."""

    async def shutdown(self, sockets: Any = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0.05)  # transports close in the next turn of the loop


class Port:
    """A loopback port with a server on it."""

    def __init__(self) -> None:
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(128)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    @contextlib.contextmanager
    def serve(self, app: Any) -> Iterator[None]:
        config = uvicorn.Config(app, log_level="critical", lifespan="auto", ws="none", timeout_graceful_shutdown=1)
        service = QuietServer(config)
        thread = threading.Thread(target=service.run, kwargs={"sockets": [self.socket]}, daemon=True)
        thread.start()
        while not service.started:
            time.sleep(0.01)
        try:
            yield
        finally:
            service.should_exit = True
            thread.join(10)
            self.socket.close()


class Issuer:
    """Issues tokens, remembers every one, and counts what clients did."""

    def __init__(self, *, exchanges: bool = False, lifetime: int = 3600) -> None:
        self.port, self.exchanges, self.lifetime = Port(), exchanges, lifetime
        self.url = self.port.url + "/"
        key = ec.generate_private_key(ec.SECP256R1())
        self.key, self.public = key, key.public_key()
        self.pem = self.public.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ).decode()
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, tuple[AuthorizationCode, str]] = {}
        self.refreshes: dict[str, tuple[RefreshToken, str, str]] = {}
        self.issued: dict[str, str] = {}  # every token, and whose it is
        self.tickets: dict[str, tuple[OAuthClientInformationFull, AuthorizationParams]] = {}
        self.registrations = self.exchanged = self.refreshed = 0
        self.offered: list[str] = []  # tokens that clients wanted to exchange
        self.documents: dict[str, dict[str, Any]] = {}  # client metadata documents that it can read
        self.company: Any = None  # the public key of the company whose assertions it trusts
        self.token_requests = 0
        self.granted: list[str] = []  # how machines got each token

    # --- tokens

    def make_token(self, user: str, audience: str, scopes: list[str]) -> str:
        now = int(time.time())
        claims = {"iss": self.url, "sub": user, "aud": audience, "scope": " ".join(scopes), "iat": now}
        claims |= {"exp": now + self.lifetime, "jti": secrets.token_hex(8)}
        token = jwt.encode(claims, self.key, "ES256", headers={"kid": "k1"})
        self.issued[token] = user
        return token

    def make_jwks(self) -> str:
        key = jwt.algorithms.ECAlgorithm.to_jwk(self.public, as_dict=True)
        return jwt.utils.force_bytes(
            __import__("json").dumps({"keys": [{**key, "kid": "k1", "alg": "ES256"}]})
        ).decode()

    def _make_pair(self, client_id: str, user: str, audience: str, scopes: list[str]) -> OAuthToken:
        access, refresh = self.make_token(user, audience, scopes), "rt_" + secrets.token_urlsafe(24)
        self.refreshes[refresh] = (RefreshToken(token=refresh, client_id=client_id, scopes=scopes), user, audience)
        self.issued[refresh] = user
        return OAuthToken(access_token=access, expires_in=self.lifetime, scope=" ".join(scopes), refresh_token=refresh)

    # --- the SDK's provider

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        if client_id in self.documents:
            return OAuthClientInformationFull.model_validate(self.documents[client_id])
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.registrations += 1
        client_info.scope = " ".join(SCOPES)
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        ticket = secrets.token_urlsafe(8)
        self.tickets[ticket] = client, params
        return f"{self.port.url}/login?ticket={ticket}"

    async def load_authorization_code(self, client: Any, authorization_code: str) -> AuthorizationCode | None:
        return self.codes[authorization_code][0] if authorization_code in self.codes else None

    async def exchange_authorization_code(self, client: Any, authorization_code: AuthorizationCode) -> OAuthToken:
        code, user = self.codes.pop(authorization_code.code)
        return self._make_pair(client.client_id, user, str(code.resource), code.scopes)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> RefreshToken | None:
        return self.refreshes[refresh_token][0] if refresh_token in self.refreshes else None

    async def exchange_refresh_token(self, client: Any, refresh_token: RefreshToken, scopes: list[str]) -> OAuthToken:
        if refresh_token.token not in self.refreshes:
            raise TokenError("invalid_grant")
        _, user, audience = self.refreshes.pop(refresh_token.token)
        self.refreshed += 1
        return self._make_pair(client.client_id, user, audience, refresh_token.scopes)

    async def load_access_token(self, token: str) -> None:
        return None

    async def revoke_token(self, token: Any) -> None:
        return None

    async def exchange_identity_assertion(self, client: Any, params: Any) -> OAuthToken:
        """SEP-990: what the company says about a person becomes a token for this person."""
        try:
            claims = jwt.decode(params.assertion, self.company, ["ES256"], audience=self.url)
        except jwt.PyJWTError as error:
            raise TokenError("invalid_grant", str(error)) from None
        if (claims["client_id"], claims["resource"]) != (client.client_id, params.resource):
            raise TokenError("invalid_grant")
        self.granted.append("id_jag")
        token = self.make_token(claims["sub"], params.resource, params.scopes or ["use"])
        return OAuthToken(access_token=token, expires_in=self.lifetime)

    # --- machines

    def add_machine(self, client_id: str, secret: str, company: Any) -> None:
        """Register a client that signs in without a person, itself or with an assertion of a company."""
        self.company = company
        self.clients[client_id] = OAuthClientInformationFull(
            client_id=client_id,
            client_secret=secret,
            redirect_uris=None,
            grant_types=["client_credentials", JWT_BEARER],
            token_endpoint_auth_method="client_secret_post",
            scope=" ".join(SCOPES),
        )

    def grant_to_client(self, form: dict[str, list[str]], header: str) -> Response:
        """Answer a request for client credentials, which the SDK's routes do not know."""
        client_id, _, secret = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
        client = self.clients.get(client_id)
        if client is None or client.client_secret != secret:
            return JSONResponse({"error": "invalid_client"}, 401)
        self.granted.append("client_credentials")
        token = self.make_token(client_id, form["resource"][0], form["scope"][0].split())
        return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime})

    # --- pages

    async def log_in(self, request: Request) -> Response:
        """The issuer's page: a cookie says who the person is, and they agree."""
        client, params = self.tickets.pop(request.query_params["ticket"])
        user, code = request.cookies["user"], secrets.token_urlsafe(24)
        if user == "refuses":
            return RedirectResponse(
                f"{params.redirect_uri}?{urlencode({'error': 'access_denied', 'state': params.state})}"
            )
        self.codes[code] = (
            AuthorizationCode(
                code=code,
                scopes=params.scopes or [],
                expires_at=time.time() + 60,
                client_id=client.client_id,
                code_challenge=params.code_challenge,
                redirect_uri=params.redirect_uri,
                redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
                resource=params.resource,
            ),
            user,
        )
        query = urlencode({"code": code, "state": params.state, "iss": self.url})
        return RedirectResponse(f"{params.redirect_uri}?{query}")

    async def describe(self, request: Request) -> Response:
        grants = ["authorization_code", "refresh_token", *([TOKEN_EXCHANGE] if self.exchanges else [])]
        base = self.port.url
        return JSONResponse(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{base}/authorize",
                "token_endpoint": f"{base}/token",
                "registration_endpoint": f"{base}/register",
                "response_types_supported": ["code"],
                "grant_types_supported": grants,
                "code_challenge_methods_supported": ["S256"],
                "client_id_metadata_document_supported": bool(self.documents),
                "authorization_response_iss_parameter_supported": True,
            }
        )

    def exchange_token(self, form: dict[str, list[str]]) -> Response:
        """RFC 8693: a token that this issuer made for the gateway becomes one for another resource."""
        self.offered += form.get("subject_token", [])
        try:
            claims = jwt.decode(form["subject_token"][0], self.public, ["ES256"], options={"verify_aud": False})
        except (jwt.PyJWTError, KeyError):
            return JSONResponse({"error": "invalid_request"}, 400)
        self.exchanged += 1
        token = self.make_token(claims["sub"], form["resource"][0], ["use"])
        return JSONResponse(
            {
                "access_token": token,
                "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
                "token_type": "Bearer",
                "expires_in": self.lifetime,
            }
        )

    def app(self) -> Any:
        routes = create_auth_routes(
            self,  # type: ignore[arg-type]
            AnyHttpUrl(self.url),
            client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=SCOPES),
            identity_assertion_enabled=True,
        )
        inner = Starlette(
            routes=[
                Route("/.well-known/oauth-authorization-server", self.describe),
                Route("/login", self.log_in),
                *routes[1:],
            ]
        )

        async def outer(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["path"] == "/token":
                self.token_requests += 1
                request = Request(scope, receive)
                body = await request.body()
                form = parse_qs(body.decode())
                if form.get("grant_type") == [TOKEN_EXCHANGE] and self.exchanges:
                    await self.exchange_token(form)(scope, receive, send)
                    return
                if form.get("grant_type") == ["client_credentials"]:
                    await self.grant_to_client(form, request.headers["authorization"])(scope, receive, send)
                    return
                sent = [{"type": "http.request", "body": body, "more_body": False}]

                async def replay() -> Any:
                    return sent.pop() if sent else await receive()

                await inner(scope, replay, send)
                return
            await inner(scope, receive, send)

        return outer

    @contextlib.contextmanager
    def running(self) -> Iterator[Issuer]:
        with self.port.serve(self.app()):
            yield self


class Bank:
    """An MCP server of fastmcp that knows its callers by their tokens."""

    def __init__(self, issuer: Issuer, *, is_lazy: bool = False) -> None:
        self.issuer, self.port, self.is_lazy = issuer, Port(), is_lazy
        self.url = f"{self.port.url}/mcp"
        self.seen: list[tuple[str, str]] = []  # who called, by the token, and with which argument

    def app(self) -> Any:
        from fastmcp import FastMCP
        from fastmcp.server.auth import JWTVerifier, RemoteAuthProvider
        from fastmcp.server.dependencies import get_access_token

        verifier = JWTVerifier(
            public_key=self.issuer.pem,
            issuer=self.issuer.url,
            audience=self.url,
            algorithm="ES256",
            required_scopes=["use"],
        )
        auth = RemoteAuthProvider(
            verifier, [AnyHttpUrl(self.issuer.url)], base_url=self.port.url, scopes_supported=["use"]
        )
        server: Any = FastMCP("bank", auth=auth)

        @server.tool(annotations={"readOnlyHint": True})
        def whoami(note: str = "") -> str:
            """Says who calls, by their token."""
            token = get_access_token()
            assert token is not None
            self.seen.append((str(token.claims["sub"]), note))
            return f"{token.claims['sub']} {note}"

        @server.tool
        def leak() -> str:
            """Gives back the token that it was sent."""
            token = get_access_token()
            assert token is not None
            return f"your token is {token.token}"

        @server.tool
        def close_account() -> str:
            """Closes the account of the caller."""
            token = get_access_token()
            assert token is not None
            return f"closed {token.claims['sub']}"

        inner = server.http_app()

        async def check_scope(scope: Any, receive: Any, send: Any) -> None:
            """Ask for a further scope where `close_account` is called, as the specification of MCP has it."""
            if scope["type"] != "http" or scope["method"] != "POST":
                await inner(scope, receive, send)
                return
            body = await Request(scope, receive).body()
            token = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
            scopes = jwt.decode(token, options={"verify_signature": False})["scope"].split() if token else []
            if b'"close_account"' in body and b"tools/call" in body and token and "delete" not in scopes:
                challenge = 'Bearer error="insufficient_scope", scope="delete"'
                await JSONResponse({}, 403, {"WWW-Authenticate": challenge})(scope, receive, send)
                return
            sent = [{"type": "http.request", "body": body, "more_body": False}]

            async def replay() -> Any:
                return sent.pop() if sent else await receive()

            await inner(scope, replay, send)

        return check_scope

    @contextlib.contextmanager
    def running(self) -> Iterator[Bank]:
        with self.port.serve(self.app()):
            yield self


class Browser:
    """The browser of a person. It follows a link to the end."""

    def __init__(self, user: str) -> None:
        self.user = user

    def _start(self) -> httpx.Client:
        return httpx.Client(follow_redirects=True, timeout=20, cookies={"user": self.user})

    def get(self, url: str) -> httpx.Response:
        """Open a page, and follow where it leads."""
        with self._start() as client:
            return client.get(url)

    def open(self, link: str) -> httpx.Response:
        """Open the gateway's page, press its button, sign in, and come back."""
        with self._start() as client:
            page = client.get(link)
            if page.status_code != 200 or "<form" not in page.text:
                return page
            parts = urlsplit(link)
            own = f"{parts.scheme}://{parts.netloc}"
            action, token = (page.text.partition(f'{name}="')[2].partition('"')[0] for name in ("action", "value"))
            return client.post(own + action, data={"token": token}, headers={"origin": own})
