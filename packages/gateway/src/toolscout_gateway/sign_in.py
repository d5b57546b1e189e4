"""Signs a caller in to a server behind the gateway, with the OAuth client of the MCP SDK.

A request of a caller never waits for the person inside an HTTP request. The SDK's flow runs until it needs the person;
the request is then refused by the server as it was, and the rest of the flow goes on in a task of its own, which ends
when the browser comes back. Then the call is made again with the tokens.
"""

from __future__ import annotations

import contextlib
import html
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from anyio.abc import TaskGroup
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthTokenError
from mcp.client.auth.utils import is_valid_client_metadata_url
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from pydantic import AnyUrl

from toolscout.errors import SourceError
from toolscout.home.access.vault import Vault
from toolscout.sources.mcp_config import Server
from toolscout.sources.mcp_transport import HttpGuard as Guard
from toolscout.sources.mcp_transport import is_private, origin_of

__all__ = ["CALLBACK_PATH", "CLIENT_PATH", "Identity", "SignIn", "SignIns", "describe_client"]

MAX_PENDING_SIGN_INS: Final = 1_000
SIGN_IN_WAIT_S: Final = 600.0  # from the link to the return of the browser
TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # RFC 8693
ACCESS_TOKEN_TYPE: Final = "urn:ietf:params:oauth:token-type:access_token"
SIGN_IN_PATH: Final = "/oauth/sign-in"
CALLBACK_PATH: Final = "/oauth/callback"
CLIENT_PATH: Final = "/oauth/client.json"
CLIENT_NAME: Final = "toolscout"
GATEWAY_ITSELF: Final = ""  # the person of the vault under whom registrations are kept
SECRET_FIELDS: Final = ("access_token", "refresh_token", "client_secret", "registration_access_token")


class _PersonNeeded(Exception):
    """The flow cannot go on without the person."""


class _KeepSecrets(logging.Filter):
    """Drops tracebacks from the log of the SDK's OAuth client: their texts may repeat what an issuer answered."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Remove the traceback of a record, and drop the record of a flow that only waits for the person."""
        is_waiting = bool(record.exc_info) and isinstance(record.exc_info[1], _PersonNeeded)  # type: ignore[index]
        record.exc_info = record.exc_text = None
        return not is_waiting


logging.getLogger("mcp.client.auth.oauth2").addFilter(_KeepSecrets())


def describe_client(base: str) -> dict[str, Any]:
    """Return the client metadata of the gateway, as registrations and its metadata document (CIMD) state it."""
    return {
        "client_name": CLIENT_NAME,
        "redirect_uris": [base + CALLBACK_PATH],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }


class SignIn:
    """One sign-in that waits for its person.

    Attributes:
        id: names it in the link.
        url: the page of the issuer.
        issuer: the origin of that page.
        scope: what is asked for.
        done: set at its end.
        error: why it failed; empty if it did not.
        browsers: secrets of the browsers that opened the link. Only these may come back.
        is_asked: whether the person was asked by their client.
    """

    def __init__(self, identity: Identity, scope: str | None) -> None:
        self.identity, self.scope = identity, scope
        self.id = secrets.token_urlsafe(24)
        self.url = self.issuer = self.error = ""
        self.begun, self.done = anyio.Event(), anyio.Event()
        self.browsers: set[str] = set()
        self.is_asked = False
        self.cancel_scope = anyio.CancelScope()
        self._answered = anyio.Event()
        self._answer: AuthorizationCodeResult | None = None

    async def show_address(self, url: str) -> None:
        """Take the address of the issuer's page from the SDK."""
        self.url, self.issuer = url, origin_of(url)
        self.begun.set()

    async def receive_code(self) -> AuthorizationCodeResult:
        """Wait for the browser's return, for the SDK."""
        await self._answered.wait()
        if self._answer is None:
            raise OAuthFlowError("the issuer refused")
        return self._answer

    def answer(self, code: str, state: str, issuer: str | None) -> None:
        """Hand over what the browser brought back. Without a code the issuer has refused."""
        if code:
            self._answer = AuthorizationCodeResult(code=code, state=state, iss=issuer)
        self._answered.set()

    def give_up(self, why: str) -> None:
        """End the sign-in without tokens."""
        self.error = self.error or why
        self.cancel_scope.cancel()
        self.done.set()


class SignIns:
    """The sign-ins that wait for their persons.

    Attributes:
        base: address of the gateway for browsers. Empty until it is known.
        pending: the sign-ins, by id.
    """

    def __init__(self, base: str) -> None:
        """Begin without any."""
        self.base = base
        self.pending: dict[str, SignIn] = {}

    def add(self, sign_in: SignIn) -> None:
        """Remember a sign-in, so that its link works."""
        self.pending = {id: other for id, other in self.pending.items() if not other.done.is_set()}
        while len(self.pending) >= MAX_PENDING_SIGN_INS:
            self.pending.pop(next(iter(self.pending))).give_up("too many sign-ins were open")
        self.pending[sign_in.id] = sign_in

    def find(self, id: str) -> SignIn | None:
        """Return a sign-in that is still open."""
        sign_in = self.pending.get(id)
        return None if sign_in is None or sign_in.done.is_set() else sign_in

    def find_by_state(self, state: str) -> SignIn | None:
        """Return the open sign-in whose page at the issuer has this state."""
        has_state = (sign_in.id for sign_in in self.pending.values() if state and _read_state(sign_in.url) == state)
        return self.find(next(has_state, ""))


def _read_state(url: str) -> str:
    return parse_qs(urlsplit(url).query).get("state", [""])[0]


class _Storage:
    """The SDK's token storage for one person at one server, in the vault. Registrations belong to the gateway."""

    def __init__(self, vault: Vault, person: str, url: str) -> None:
        self.vault, self.person, self.url = vault, person, url
        self.provider: OAuthClientProvider | None = None
        self.values: dict[str, Any] = {}
        self.client: dict[str, Any] = {}
        self.is_stored = self.is_forgotten = False  # whether the vault has tokens; whether they were removed from it

    async def load(self) -> None:
        """Read the entry of the person and the registration again."""
        self.values = await anyio.to_thread.run_sync(self.vault.read, self.person, self.url)
        self.client = await anyio.to_thread.run_sync(self.vault.read, GATEWAY_ITSELF, self.url)
        self.is_stored = bool(self.values.get("tokens"))

    async def get_tokens(self) -> OAuthToken | None:
        await self.load()
        tokens: OAuthToken | None = _parse(OAuthToken, self.values.get("tokens"))
        if self.provider is not None:
            expires = self.values.get("expires")
            self.provider.context.token_expiry_time = expires if isinstance(expires, (int, float)) else None
            self.provider.context.oauth_metadata = _parse(OAuthMetadata, self.values.get("metadata"))
        return tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        metadata = self.provider.context.oauth_metadata if self.provider else None
        self.values = {
            "issuer": str(metadata.issuer) if metadata else "",
            "tokens": tokens.model_dump(mode="json"),
            "expires": None if tokens.expires_in is None else time.time() + tokens.expires_in,
            "metadata": metadata.model_dump(mode="json") if metadata else None,
        }
        if self.is_forgotten:
            return
        await anyio.to_thread.run_sync(self.vault.write, self.person, self.url, self.values)
        self.is_stored = True

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the gateway's registration. One for another address of the gateway does not count."""
        client: OAuthClientInformationFull | None = _parse(OAuthClientInformationFull, self.client.get("client"))
        own = self.provider.context.client_metadata.redirect_uris if self.provider else None
        if client is not None and own and own[0] not in (client.redirect_uris or ()):
            return None
        return client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = {"client": client_info.model_dump(mode="json")}
        await anyio.to_thread.run_sync(self.vault.write, GATEWAY_ITSELF, self.url, self.client)

    def secrets(self) -> frozenset[str]:
        parts = [self.values.get("tokens"), self.client.get("client")]
        values = [part.get(key) for part in parts if isinstance(part, dict) for key in SECRET_FIELDS]
        return frozenset(value for value in values if isinstance(value, str))


def _parse(model: type[Any], value: object) -> Any:
    try:
        return model.model_validate(value)
    except ValueError:
        return None


class Identity(OAuthClientProvider):
    """One caller at one server: authenticates the requests of their sessions.

    Attributes:
        person: who it is, in the vault.
        subject_token: the token with which the caller came to the gateway, for token exchange. Empty if there is none.
        pending: the sign-in that waits for the person. None: there is none.
    """

    def __init__(self, vault: Vault, person: str, server: Server, base: str, *, token_issuer: str = "") -> None:
        """Authenticate a person.

        Args:
            vault: keeps the tokens.
            person: as the vault names them.
            server: resolved, with a URL.
            base: address of the gateway, to which the browser comes back.
            token_issuer: who issues the tokens of callers. Only there they may be exchanged.
        """
        self.person, self.server, self.subject_token, self.token_issuer = person, server, "", token_issuer
        self.pending: SignIn | None = None
        self.group: TaskGroup | None = None
        self.registration_lock = anyio.Lock()  # shared by all callers, so that the gateway registers once
        self.register: Callable[[SignIn], None] = lambda sign_in: None
        self._storage = _Storage(vault, person, server.url)
        self._guard = Guard(server.url, self.approve, lambda response: None)
        self._is_exchanging = self._was_refused = False
        document = base + CLIENT_PATH
        super().__init__(
            server.url,
            OAuthClientMetadata(**{**describe_client(base), "redirect_uris": [AnyUrl(base + CALLBACK_PATH)]}),
            self._storage,
            client_metadata_url=document if is_valid_client_metadata_url(document) else None,
        )
        self._storage.provider = self

    @property
    def is_stored(self) -> bool:
        """Whether the vault has the person's tokens, as far as this session knows."""
        return self._storage.is_stored

    def forget(self) -> None:
        """Write no tokens to the vault any more, because they were removed from it."""
        self._storage.is_forgotten = True

    def secrets(self) -> frozenset[str]:
        """Return the tokens and the client secret, which must not appear in anything that the server sends."""
        return self._storage.secrets() | ({self.subject_token} if self.subject_token else frozenset())

    @property
    def auth(self) -> httpx2.Auth:
        """The authentication of the session's HTTP client."""
        return self

    async def approve(self, origin: str) -> bool:
        """Return whether requests may go to another origin: an issuer, which the server names.

        It must be public and use https, unless the server itself is in a private network.
        """
        if await anyio.to_thread.run_sync(is_private, origin):
            return await anyio.to_thread.run_sync(is_private, origin_of(self.server.url))
        return origin.startswith("https://")

    # --- the flow of the SDK

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Authenticate a request. If that needs the person, the server's refusal is the answer."""
        flow = super().async_auth_flow(request)
        turn = contextlib.AsyncExitStack()
        try:
            if self.context.client_info is None:
                await turn.enter_async_context(self.registration_lock)
            is_waiting = self.pending is not None and not self.pending.done.is_set()
            if not (self.context.is_token_valid() or is_waiting):
                async with self.context.lock:
                    await self._initialize()  # another process may have renewed the tokens
            if self.context.client_info is not None:
                await turn.aclose()
            outgoing = await flow.__anext__()
            while True:
                response = yield outgoing
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        except _PersonNeeded:
            request.headers.pop("Authorization", None)
            yield request  # the server refuses it again, and this refusal is the answer
        finally:
            await flow.aclose()
            await turn.aclose()

    async def _perform_authorization(self) -> httpx2.Request:
        """Exchange the caller's token, if the issuer does that; otherwise begin a sign-in."""
        if self._may_exchange():
            self._is_exchanging = True
            return self._build_exchange()
        await self._begin()
        raise _PersonNeeded

    def _may_exchange(self) -> bool:
        """Return whether the issuer offers token exchange and made the caller's token itself."""
        metadata = self.context.oauth_metadata
        if not self.subject_token or self._was_refused or metadata is None or not self.token_issuer:
            return False
        is_same = str(metadata.issuer).rstrip("/") == self.token_issuer.rstrip("/")
        return is_same and TOKEN_EXCHANGE in (metadata.grant_types_supported or ())

    def _build_exchange(self) -> httpx2.Request:
        """Build the request that exchanges the caller's token for one that is meant for the server (RFC 8693)."""
        assert self.context.client_info is not None
        data = {
            "grant_type": TOKEN_EXCHANGE,
            "subject_token": self.subject_token,
            "subject_token_type": ACCESS_TOKEN_TYPE,
            "requested_token_type": ACCESS_TOKEN_TYPE,
            "resource": self.context.get_resource_url(),
            "client_id": self.context.client_info.client_id,
        }
        if self.context.client_metadata.scope:
            data["scope"] = self.context.client_metadata.scope
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        data, headers = self.context.prepare_token_auth(data, headers)
        return httpx2.Request("POST", self._get_token_endpoint(), data=data, headers=headers)

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        """Take tokens. If the issuer refuses the exchange, a sign-in begins."""
        was_exchanging, self._is_exchanging = self._is_exchanging, False
        try:
            await super()._handle_token_response(response)
        except OAuthTokenError:
            if not was_exchanging:
                raise
            self._was_refused = True
            await self._begin()
            raise _PersonNeeded from None

    async def _begin(self) -> None:
        """Begin a sign-in, unless one for the same rights is pending."""
        scope = self.context.client_metadata.scope
        if self.pending is not None and not self.pending.done.is_set():
            if self.pending.scope == scope:
                return
            self.pending.give_up("a later request asked for further rights")
        if self.group is None:
            raise OAuthFlowError("nobody can sign in now")
        sign_in = self.pending = SignIn(self, scope)
        self.context.redirect_handler, self.context.callback_handler = sign_in.show_address, sign_in.receive_code
        self.group.start_soon(self._run, sign_in, super()._perform_authorization)
        await sign_in.begun.wait()
        if not sign_in.done.is_set():
            self.register(sign_in)

    async def _run(self, sign_in: SignIn, authorise: Callable[[], Awaitable[httpx2.Request]]) -> None:
        """Wait for the person, and fetch the tokens."""
        try:
            with sign_in.cancel_scope, anyio.fail_after(SIGN_IN_WAIT_S):
                request = await authorise()
                async with httpx2.AsyncClient(timeout=30, event_hooks=self._guard.hooks) as client:
                    response = await client.send(request)
                    async with self.context.lock:
                        await self._handle_token_response(response)
                        self._initialized = True
        except TimeoutError:
            sign_in.error = "nobody signed in within ten minutes"
        except (OAuthFlowError, httpx2.HTTPError, SourceError, OSError, ValueError) as error:
            # The text of the error may repeat what the issuer answered.
            sign_in.error = f"the issuer did not accept the sign-in ({type(error).__name__})"
        finally:
            sign_in.begun.set()
            sign_in.done.set()
            if sign_in.error == "" and self.pending is sign_in:
                self.pending = None


def render_page(title: str, text: str, action: str = "") -> str:
    """Render a page for the person. `action`: the address to which its button posts; without it there is none."""
    button = f'<form method="post" action="{html.escape(action)}"><button>Go on</button></form>' if action else ""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<h1>{html.escape(title)}</h1><p>{html.escape(text)}</p>{button}"
    )
