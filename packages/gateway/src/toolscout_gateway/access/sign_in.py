"""Signs a caller in to a server behind the gateway, with the OAuth client of the MCP SDK.

A request of a caller never waits for the person inside an HTTP request. The SDK's flow runs in a task of its own. When
it needs the person, the request keeps the server's refusal as its answer, and the flow goes on until the browser comes
back. Then the call is made again with the tokens.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import msgspec
from anyio.abc import TaskGroup
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_field_from_www_auth, is_valid_client_metadata_url
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
MAX_PRESSES: Final = 100  # of the buttons of one sign-in
SIGN_IN_WAIT_S: Final = 600.0  # from the link to the return of the browser
TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # RFC 8693
ACCESS_TOKEN_TYPE: Final = "urn:ietf:params:oauth:token-type:access_token"
SIGN_IN_PATH: Final = "/oauth/sign-in"
CALLBACK_PATH: Final = "/oauth/callback"
CLIENT_PATH: Final = "/oauth/client.json"
CLIENT_NAME: Final = "toolscout"
GATEWAY_ITSELF: Final = ""  # the person of the vault under whom registrations are kept
SECRET_FIELDS: Final = ("access_token", "refresh_token", "client_secret", "registration_access_token")


class _Exchanged(Exception):
    """The flow needs no person, because the caller's token was exchanged."""


class _KeepSecrets(logging.Filter):
    """Drops tracebacks from the log of the SDK's OAuth client: their texts may repeat what an issuer answered."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Remove the traceback of a record, and drop the record of a flow that ended because it was not needed."""
        is_no_fault = bool(record.exc_info) and isinstance(record.exc_info[1], _Exchanged)  # type: ignore[index]
        record.exc_info = record.exc_text = None
        return not is_no_fault


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
        person: who signs in, in the vault.
        server: name of the server.
        url: the page of the issuer. Empty until the person is needed.
        issuer: the origin of that page.
        state: what the issuer's answer brings back.
        begun: set when the person is needed, and at its end.
        done: set at its end.
        error: why it failed; empty if it did not.
        failure: the error of the flow, if it failed.
        pressed: tokens of the pages whose button somebody pressed.
        browsers: secrets of the browsers in which somebody went on. Only these may come back.
        is_asked: whether the person was asked by their client.
    """

    def __init__(self, person: str, server: str) -> None:
        self.person, self.server = person, server
        self.failure: Exception | None = None
        self.id = secrets.token_urlsafe(24)
        self.url = self.issuer = self.state = self.error = ""
        self.begun, self.done = anyio.Event(), anyio.Event()
        self.pressed: set[str] = set()
        self.browsers: set[str] = set()
        self.is_asked = False
        self.cancel_scope = anyio.CancelScope()
        self._key = secrets.token_bytes(32)
        self._answered = anyio.Event()
        self._answer: AuthorizationCodeResult | None = None  # of the issuer

    async def show_address(self, url: str) -> None:
        """Take the address of the issuer's page from the SDK."""
        self.url, self.issuer = url, origin_of(url)
        self.state = parse_qs(urlsplit(url).query).get("state", [""])[0]
        self.begun.set()

    async def receive_code(self) -> AuthorizationCodeResult:
        """Wait for the browser's return, for the SDK."""
        await self._answered.wait()
        if self._answer is None:
            raise OAuthFlowError("the issuer refused")
        return self._answer

    def open_page(self, browser: str) -> tuple[str, str]:
        """Make the token for the button of a page. Nothing is kept of it, so that no page ends the life of another.

        Args:
            browser: the secret that the browser shows. One that was not made for this sign-in is replaced.

        Returns:
            The secret of the browser, and the token, which works once and in this browser only.
        """
        if not self._made(browser):
            browser = self._seal(secrets.token_urlsafe(12))
        return browser, self._seal(secrets.token_urlsafe(12), browser)

    def _seal(self, text: str, browser: str = "") -> str:
        """Return a text with its seal, which only this sign-in can make, for one browser or for none."""
        return f"{text}.{hmac.digest(self._key, f'{browser}/{text}'.encode(), 'sha256').hex()}"

    def _made(self, sealed: str, browser: str = "") -> bool:
        """Return whether this sign-in made a text with its seal, for this browser or for none."""
        expected = self._seal(sealed.partition(".")[0], browser)
        return hmac.compare_digest(expected.encode(), sealed.encode())

    def press_button(self, browser: str, token: str) -> bool:
        """Use up the token of a page. Returns whether it was shown to this browser, which may then come back."""
        if not (self._made(browser) and self._made(token, browser)) or token in self.pressed:
            return False
        if len(self.pressed) >= MAX_PRESSES:
            return False
        self.pressed.add(token)
        self.browsers.add(browser)
        return True

    def answer(self, code: str, state: str, issuer: str | None) -> None:
        """Hand over what the browser brought back. Without a code the issuer has refused. Only the first one counts."""
        if self._answered.is_set():
            return
        if code:
            self._answer = AuthorizationCodeResult(code=code, state=state, iss=issuer)
        self._answered.set()

    def give_up(self, why: str) -> None:
        """End the sign-in without tokens."""
        self.error = self.error or why
        self.cancel_scope.cancel()
        self.begun.set()
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
        has_state = (sign_in.id for sign_in in self.pending.values() if state and sign_in.state == state)
        return self.find(next(has_state, ""))


class _Storage:
    """The SDK's token storage for one person at one server, in the vault. Registrations belong to the gateway."""

    def __init__(self, vault: Vault, person: str, url: str) -> None:
        self.vault, self.person, self.url = vault, person, url
        self.context: OAuthContext | None = None  # of the SDK's client, which also needs what it does not store
        self.values: dict[str, Any] = {}
        self.client: dict[str, Any] = {}  # the gateway's registration at the issuer, as the vault has it
        self.is_stored = self.is_forgotten = False  # whether the vault has tokens; whether they were removed from it

    async def load(self) -> None:
        """Read the entry of the person and the registration again."""
        self.values = await anyio.to_thread.run_sync(self.vault.read, self.person, self.url)
        self.client = await anyio.to_thread.run_sync(self.vault.read, GATEWAY_ITSELF, self.url)
        self.is_stored = bool(self.values.get("tokens"))

    async def get_tokens(self) -> OAuthToken | None:
        """Return this person's tokens, and give the SDK what it does not keep: when they expire, where to renew."""
        await self.load()
        tokens: OAuthToken | None = _parse(OAuthToken, self.values.get("tokens"))
        if self.context is not None:
            expires = self.values.get("expires")
            self.context.token_expiry_time = expires if isinstance(expires, (int, float)) else None
            self.context.oauth_metadata = _parse(OAuthMetadata, self.values.get("metadata"))
        return tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store new tokens sealed, with what renews them; nothing if the person has signed out meanwhile."""
        metadata = self.context.oauth_metadata if self.context else None
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
        own = self.context.client_metadata.redirect_uris if self.context else None
        if client is not None and own and own[0] not in (client.redirect_uris or ()):
            return None
        return client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = {"client": client_info.model_dump(mode="json")}
        await anyio.to_thread.run_sync(self.vault.write, GATEWAY_ITSELF, self.url, self.client)

    def secrets(self) -> frozenset[str]:
        """Return the person's tokens and the secrets of the gateway's registration."""
        parts = [self.values.get("tokens"), self.client.get("client")]
        values = [part.get(key) for part in parts if isinstance(part, dict) for key in SECRET_FIELDS]
        return frozenset(value for value in values if isinstance(value, str))


def _parse(model: type[Any], value: object) -> Any:
    """Read stored JSON as a model of the SDK.

    None if there is nothing, or it does not fit: the sign-in then begins anew.
    """
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
        self.group: TaskGroup | None = None  # in which sign-ins run; set by the owner
        self.registration_lock = anyio.Lock()  # shared by all callers, so that the gateway registers once
        self.register: Callable[[SignIn], None] = lambda sign_in: None
        self._storage = _Storage(vault, person, server.url)
        self._guard = Guard(server.url, self.approve, lambda response: None)
        self._was_refused = False  # whether the issuer refused to exchange the caller's token
        self._turn = anyio.Lock()  # of the requests that need tokens
        document = base + CLIENT_PATH
        super().__init__(
            server.url,
            OAuthClientMetadata(**{**describe_client(base), "redirect_uris": [AnyUrl(base + CALLBACK_PATH)]}),
            self._storage,
            client_metadata_url=document if is_valid_client_metadata_url(document) else None,
        )
        self._storage.context = self.context

    @property
    def is_stored(self) -> bool:
        """Whether the vault has the person's tokens, as far as this session knows."""
        return self._storage.is_stored

    def forget(self) -> None:
        """Stop writing tokens to the vault: `toolscout identity forget` has removed this caller's tokens from it."""
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
        if not self.context.is_token_valid():
            await self._renew(request)
        token = self._authorise(request)
        response = yield request
        if _is_refused(response) and await self._answer_refusal(request, response, token):
            self._authorise(request)
            yield request

    def _authorise(self, request: httpx2.Request) -> str:
        """Put the token into a request, and return it. Empty if there is none."""
        token = self.context.current_tokens.access_token if self.context.current_tokens else ""
        request.headers.pop("Authorization", None)
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        return token

    @property
    def _is_waiting(self) -> bool:
        return self.pending is not None and not self.pending.done.is_set()

    async def _reload(self) -> None:
        """Read the tokens and the registration again, which another process may have renewed."""
        self.context.current_tokens = await self._storage.get_tokens()
        self.context.client_info = await self._storage.get_client_info()

    async def _renew(self, request: httpx2.Request) -> None:
        """Renew tokens that have expired, as far as that needs no person."""
        async with self._turn:
            if not (self._is_waiting or self.context.is_token_valid()):
                await self._reload()
                if not self.context.is_token_valid() and self.context.can_refresh_token():
                    await self._follow_flow(request, None)

    async def _answer_refusal(self, request: httpx2.Request, refusal: httpx2.Response, token: str) -> bool:
        """Get tokens for a request that was sent with `token` and refused. Returns whether there are new ones."""
        async with self._turn:
            if self._is_waiting:
                return False
            if self.context.is_token_valid() and self._authorise(request) != token:
                return True  # another request has got them
            return await self._follow_flow(request, refusal)

    async def _follow_flow(self, request: httpx2.Request, refusal: httpx2.Response | None) -> bool:
        """Follow the SDK's flow until it has tokens (true) or needs the person (false).

        Raises:
            OAuthFlowError: or another error of the flow, if it fails.
        """
        if self.group is None:
            raise OAuthFlowError("nobody can sign in now")
        sign_in = SignIn(self.person, self.server.name)
        self.group.start_soon(self._run_flow, sign_in, request, refusal)
        try:
            await sign_in.begun.wait()
        except BaseException:
            sign_in.give_up("the call was given up")
            raise
        if not sign_in.done.is_set():
            self.pending = sign_in
            self.register(sign_in)
            return False
        if sign_in.failure is not None:
            raise sign_in.failure
        return not sign_in.error

    async def _run_flow(self, sign_in: SignIn, request: httpx2.Request, refusal: httpx2.Response | None) -> None:
        """Run the SDK's flow to its end: up to the point where it would send the request with new tokens.

        The flow yields `request` first without a token, and is answered with the refusal that began this sign-in. It
        yields `request` a second time when it has tokens: then it is left.
        """
        try:
            with sign_in.cancel_scope, anyio.fail_after(SIGN_IN_WAIT_S):
                async with contextlib.AsyncExitStack() as stack:
                    client = httpx2.AsyncClient(timeout=30, event_hooks=self._guard.hooks)
                    await stack.enter_async_context(client)
                    # Only one flow at a time may register the gateway. `_need_person` lets the next one go on.
                    turn = await stack.enter_async_context(contextlib.AsyncExitStack())
                    if self.context.client_info is None:
                        await turn.enter_async_context(self.registration_lock)
                        await self._reload()
                    self.context.redirect_handler = functools.partial(self._need_person, sign_in, client, turn)
                    self.context.callback_handler = sign_in.receive_code
                    flow = await stack.enter_async_context(contextlib.aclosing(super().async_auth_flow(request)))
                    outgoing = await anext(flow)
                    while outgoing is not request or refusal is not None:
                        if outgoing is request and refusal is not None:
                            response, refusal = refusal, None
                        else:
                            response = await client.send(outgoing)
                        outgoing = await flow.asend(response)
        except (_Exchanged, StopAsyncIteration):
            pass  # the caller's token was exchanged, or the flow ended without a person: there are tokens
        except TimeoutError:
            sign_in.error = "nobody signed in within ten minutes"
        except (OAuthFlowError, httpx2.HTTPError, SourceError, OSError, ValueError) as error:
            # The text of the error may repeat what the issuer answered.
            sign_in.error, sign_in.failure = f"the issuer did not accept the sign-in ({type(error).__name__})", error
        finally:
            sign_in.begun.set()
            sign_in.done.set()
            if sign_in.error == "" and self.pending is sign_in:
                self.pending = None

    async def _need_person(
        self, sign_in: SignIn, client: httpx2.AsyncClient, turn: contextlib.AsyncExitStack, url: str
    ) -> None:
        """Take the address of the issuer's page from the SDK, unless the caller's token can be exchanged.

        Raises:
            _Exchanged: if it was.
        """
        await turn.aclose()  # the gateway is registered
        if self._may_exchange() and await self._exchange(client):
            raise _Exchanged
        await sign_in.show_address(url)

    def _may_exchange(self) -> bool:
        """Return whether the issuer offers token exchange and made the caller's token itself."""
        metadata = self.context.oauth_metadata
        if not self.subject_token or self._was_refused or metadata is None or not self.token_issuer:
            return False
        is_same = str(metadata.issuer).rstrip("/") == self.token_issuer.rstrip("/")
        return is_same and TOKEN_EXCHANGE in (metadata.grant_types_supported or ())

    async def _exchange(self, client: httpx2.AsyncClient) -> bool:
        """Exchange the caller's token for one that is meant for the server (RFC 8693). Returns whether that worked."""
        context = self.context
        assert context.client_info is not None and context.oauth_metadata is not None
        data = {
            "grant_type": TOKEN_EXCHANGE,
            "subject_token": self.subject_token,
            "subject_token_type": ACCESS_TOKEN_TYPE,
            "requested_token_type": ACCESS_TOKEN_TYPE,
            "resource": context.get_resource_url(),
            "client_id": context.client_info.client_id,
        }
        if context.client_metadata.scope:
            data["scope"] = context.client_metadata.scope
        data, headers = context.prepare_token_auth(data, {})
        response = await client.post(str(context.oauth_metadata.token_endpoint), data=data, headers=headers)
        tokens = _parse(OAuthToken, _decode(response.content)) if response.status_code in (200, 201) else None
        if tokens is None:
            self._was_refused = True
            return False
        tokens.scope = tokens.scope or context.client_metadata.scope
        context.current_tokens = tokens
        context.update_token_expiry(tokens)
        await self._storage.set_tokens(tokens)
        return True


def _is_refused(response: httpx2.Response) -> bool:
    """Return whether a server wants a token, or one for further rights."""
    return response.status_code == 401 or (
        response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope"
    )


def _decode(body: bytes) -> object:
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(body)
    return None
