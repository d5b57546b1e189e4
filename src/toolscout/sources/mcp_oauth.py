"""Signs in to MCP servers with OAuth: stores tokens, opens the browser, receives its answer."""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from http import HTTPStatus
from http.client import HTTPException, parse_headers
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qs, urlsplit

from toolscout.errors import SourceError, StoreError
from toolscout.sources.mcp_config import Server
from toolscout.sources.mcp_transport import is_private, origin_of
from toolscout.trust.private_files import refuse_links
from toolscout.trust.sealing import SEALING_VARIABLE, find_sealer, is_sealed

if TYPE_CHECKING:
    from anyio.abc import Listener, SocketStream
    from httpx2 import Auth
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthToken

__all__ = [
    "BrowserVisit",
    "EntryTokens",
    "Nobody",
    "PersonRequired",
    "SessionIdentity",
    "SignInRequired",
    "TokenFile",
    "approve_origin",
    "authenticate_entry",
    "has_terminal",
    "open_browser",
    "sign_in_hint",
    "signing_in",
]

SIGN_IN_TIMEOUT_S: Final = 300.0
_START_PATH: Final = "/sign-in"
_CALLBACK_PATH: Final = "/callback"
_COOKIE: Final = "toolscout_sign_in"
_MAX_HEAD_BYTES: Final = 65_536  # of a request of the browser
_HEADERS: Final = (
    "connection: close",
    "cache-control: no-store",
    "referrer-policy: no-referrer",
    "x-frame-options: DENY",
    "content-security-policy: default-src 'none'; frame-ancestors 'none'",
)


class SignInRequired(SourceError):
    """The server wants the identity of the session to sign in."""


class PersonRequired(SourceError):
    """The server wants a person to sign in, and the session belongs to nobody in particular."""


class SessionIdentity(Protocol):
    """Says who a session belongs to."""

    @property
    def auth(self) -> Auth | None:
        """The authentication of the session's HTTP client."""

    def secrets(self) -> frozenset[str]:
        """Return the credentials that must not appear in anything that the server sends."""

    async def approve(self, origin: str) -> bool:
        """Return whether requests may go to another origin than the server's."""


class Nobody:
    """The identity of a session that belongs to nobody: without credentials, for the server's own origin alone."""

    auth = None

    def secrets(self) -> frozenset[str]:
        """Return nothing."""
        return frozenset()

    async def approve(self, origin: str) -> bool:
        """Approve no other origin."""
        return False


def has_terminal() -> bool:
    """Return whether standard input is a terminal, so that a person can sign in."""
    return sys.stdin is not None and sys.stdin.isatty()


def open_browser(url: str) -> None:
    """Show `url` in the browser of this machine, if it has one."""
    webbrowser.open(url)


def sign_in_hint(server: Server) -> str:
    """Say what to do if a server requires a person to sign in."""
    return f"run  toolscout add {server.origin}  on a terminal"


class TokenFile:
    """The OAuth tokens and the registration for one server, in a file that only its owner can read.

    If there is a key for that (`toolscout.trust.sealing`), the file is encrypted. A damaged file counts as an empty
    one. It implements the token storage of the SDK's OAuth client.
    """

    def __init__(self, home: Path, url: str) -> None:
        self.path = home / "oauth" / f"{hashlib.blake2b(url.encode(), digest_size=16).hexdigest()}.json"
        self.provider: OAuthClientProvider | None = None  # knows metadata of the issuer that is saved with the tokens
        try:
            saved = json.loads(self._decrypt(self.path.read_bytes()))
        except (OSError, ValueError, StoreError):
            saved = {}
        self.values: dict[str, Any] = saved if isinstance(saved, dict) else {}

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored tokens, or None."""
        from mcp.shared.auth import OAuthToken

        tokens: OAuthToken | None = self._parse(OAuthToken, "tokens")
        return tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store tokens with the time at which they expire and the metadata with which they can be renewed."""
        metadata = self.provider.context.oauth_metadata if self.provider else None
        self._save(
            tokens=tokens.model_dump(mode="json"),
            expires=None if tokens.expires_in is None else time.time() + tokens.expires_in,
            metadata=metadata.model_dump(mode="json") if metadata else self.values.get("metadata"),
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return our registration at the authorization server, or None."""
        from mcp.shared.auth import OAuthClientInformationFull

        client: OAuthClientInformationFull | None = self._parse(OAuthClientInformationFull, "client")
        return client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store our registration at the authorization server."""
        self._save(client=client_info.model_dump(mode="json"))

    def attach(self, provider: OAuthClientProvider) -> None:
        """Give the provider what the SDK does not store: when the tokens expire and where to renew them."""
        from mcp.shared.auth import OAuthMetadata

        self.provider = provider
        expires = self.values.get("expires")
        provider.context.token_expiry_time = expires if isinstance(expires, (int, float)) else None
        provider.context.oauth_metadata = self._parse(OAuthMetadata, "metadata")

    def secrets(self) -> frozenset[str]:
        """Return the tokens and the client secret, which must not appear in messages."""
        parts = [self.values.get("tokens"), self.values.get("client")]
        keys = ("access_token", "refresh_token", "client_secret", "registration_access_token")
        values = [part.get(key) for part in parts if isinstance(part, dict) for key in keys]
        return frozenset(value for value in values if isinstance(value, str))

    def origins(self) -> set[str]:
        """Return the origins besides the server's that requests may go to: approved ones, and the token endpoint's."""
        approved, metadata = self.values.get("origins"), self.values.get("metadata")
        allowed = {origin for origin in approved if isinstance(origin, str)} if isinstance(approved, list) else set()
        endpoint = metadata.get("token_endpoint") if isinstance(metadata, dict) else None
        return allowed | ({origin_of(endpoint)} if isinstance(endpoint, str) else set())

    def add_origin(self, origin: str) -> None:
        """Write into the file that the user approved an origin."""
        self._save(origins=sorted(self.origins() | {origin}))

    def port(self) -> int:
        """Return the port of this machine to which our registration sends the browser. 0 if there is none."""
        try:
            return urlsplit(self.values["client"]["redirect_uris"][0]).port or 0
        except (KeyError, IndexError, TypeError, ValueError):
            return 0

    def forget_client(self) -> None:
        """Forget the registration in memory, so that the next sign-in makes a new one."""
        self.values.pop("client", None)

    def _parse(self, model: type[Any], key: str) -> Any:
        """Read a stored value as a model of the SDK.

        None if it is missing or does not fit: the sign-in then begins anew.
        """
        try:
            return model.model_validate(self.values[key])
        except (KeyError, ValueError):
            return None

    def _decrypt(self, content: bytes) -> bytes:
        """Decrypt the content of the file, if it is encrypted.

        Raises:
            StoreError: if there is no key for it.
        """
        if not is_sealed(content):
            return content
        sealer = find_sealer()
        if sealer is None:
            raise StoreError(f"{self.path} is encrypted. Set {SEALING_VARIABLE} to its key.")
        return sealer.open(self.path.name, content)

    def _save(self, **changes: object) -> None:
        """Change values, and replace the file in one step. It is at no time readable for others, or half written."""
        self.values |= changes
        refuse_links(self.path.parent)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.parent.chmod(0o700)
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")  # mode 0600
        sealer, content = find_sealer(), json.dumps(self.values).encode()
        with os.fdopen(handle, "wb") as stream:
            stream.write(content if sealer is None else sealer.seal(self.path.name, content))
        os.replace(temporary, self.path)


class EntryTokens:
    """The token of a session whose entry says how it signs in (`signIn`). It is kept in memory and fetched anew.

    It implements the token storage of the SDK's OAuth clients.

    Attributes:
        read_assertion: reads what a company's identity provider says about us (ID-JAG), as the entry names it.
    """

    def __init__(self, read_assertion: Callable[[], str]) -> None:
        self.read_assertion = read_assertion
        self._tokens: OAuthToken | None = None
        self._assertion = ""

    async def get_tokens(self) -> OAuthToken | None:
        """Return the last tokens, or None."""
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep tokens."""
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return no registration: the entry names the client."""
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep no registration."""

    async def assert_identity(self, audience: str, resource: str) -> str:
        """Return a fresh assertion. Whoever made it has named the audience and the resource in it."""
        self._assertion = self.read_assertion()
        return self._assertion

    def secrets(self) -> frozenset[str]:
        """Return the tokens and the assertion, which must not appear in messages."""
        tokens = self._tokens
        values = [tokens.access_token, tokens.refresh_token] if tokens is not None else []
        return frozenset(value for value in (*values, self._assertion) if value)


def authenticate_entry(server: Server, tokens: EntryTokens) -> Auth:
    """Return the authentication of an HTTP client for a resolved server with `signIn`."""
    from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
    from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider

    fields = server.sign_in
    scope = fields.get("scope")
    client = (fields["clientId"], fields["clientSecret"])
    if fields["grant"] == "client_credentials":
        return ClientCredentialsOAuthProvider(server.url, tokens, *client, scope=scope, issuer=fields["issuer"])
    return IdentityAssertionOAuthProvider(
        server.url, tokens, *client, fields["issuer"], tokens.assert_identity, scope=scope
    )


def ask_person(question: str) -> bool:
    """Ask the person at the terminal a yes-or-no question. No answer means no."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


async def approve_origin(
    server: Server,
    tokens: TokenFile,
    person: bool,
    pause_clock: Callable[[], AbstractContextManager[None]],
    origin: str,
) -> bool:
    """Return whether a request for `server` may go to another origin, such as the one where a person signs in.

    The server names that origin, so it could name any: a person must approve it. A public server may not name one on
    this machine or in its networks.

    Args:
        server: the server, at a URL.
        tokens: the origins that were approved before. A new one is added.
        person: whether somebody can be asked.
        pause_clock: suspends the time limit while the person is asked.
        origin: `scheme://host:port`.
    """
    import anyio.to_thread

    if origin in tokens.origins():
        return True
    if not person:
        return False
    if await anyio.to_thread.run_sync(is_private, origin):
        server_is_private = await anyio.to_thread.run_sync(is_private, origin_of(server.url))
        if not server_is_private:
            return False
    question = f"{server.name}: this server sends you to {origin} to sign in. Is that right?"
    with pause_clock():
        approved = await anyio.to_thread.run_sync(ask_person, question, abandon_on_cancel=True)
    if approved:
        tokens.add_origin(origin)
    return approved


@asynccontextmanager
async def signing_in(
    server: Server, storage: TokenFile, *, person: bool, pause_clock: Callable[[], AbstractContextManager[None]]
) -> AsyncIterator[Auth | None]:
    """Yield the authentication of an HTTP client for `server`. None if nobody can sign in and no token is stored.

    Args:
        server: a resolved server with a URL.
        storage: the server's tokens.
        person: whether somebody can be asked to sign in. Otherwise stored tokens are used and renewed.
        pause_clock: suspends the time limit while the person signs in.
    """
    import anyio
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata
    from pydantic import AnyUrl

    if not person and "tokens" not in storage.values:
        yield None
        return
    listener = await _listen(storage) if person else None
    port = listener.extra(anyio.abc.SocketAttribute.local_port) if listener else storage.port()
    visits: list[BrowserVisit] = []  # the last is the present one; a session may sign in again

    async def show_address(address: str) -> None:
        """Ask the person to open an address of the authorization server. The SDK calls it before `receive_code`."""
        if not person:
            raise SourceError(f"expected a valid sign-in, found an expired one: {sign_in_hint(server)}")
        visits.append(BrowserVisit(address, port))
        sys.stderr.write(f"{server.name}: sign in at {visits[-1].link} (it leads to {origin_of(address)})\n")
        threading.Thread(target=open_browser, args=(visits[-1].link,), daemon=True).start()

    async def receive_code() -> AuthorizationCodeResult:
        """Wait until the person has signed in, and return what the browser brings back."""
        assert listener is not None
        with pause_clock(), anyio.move_on_after(SIGN_IN_TIMEOUT_S):
            return await _receive_answer(listener, visits[-1])
        raise SourceError(f"expected you to sign in within {SIGN_IN_TIMEOUT_S:g} s, found no answer: try again")

    provider = OAuthClientProvider(
        server.url,
        OAuthClientMetadata(
            client_name="toolscout", redirect_uris=[AnyUrl(f"http://127.0.0.1:{port}{_CALLBACK_PATH}")]
        ),
        storage,
        show_address,
        receive_code,
    )
    storage.attach(provider)
    try:
        yield provider
    finally:
        if listener:
            await listener.aclose()


async def _listen(storage: TokenFile) -> Listener[SocketStream]:
    """Listen for the browser's answer on the registered loopback port, or on any if that is taken."""
    import anyio

    try:
        multi = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=storage.port())
    except OSError:
        storage.forget_client()  # the issuer sends the browser to the registered port only
        multi = await anyio.create_tcp_listener(local_host="127.0.0.1")
    [listener] = multi.listeners  # one for each address of the host
    return listener


class BrowserVisit:
    """Answers the browser of the person who signs in, on a port of this machine.

    The person opens `link`, which gives their browser a cookie and leads it to the issuer (the authorization server).
    Only the browser with the cookie may bring the issuer's answer. Requests for another host, and those that a page of
    another site sends, are refused.

    Attributes:
        link: what the person opens.
        reply: the issuer's answer, once there is one.
    """

    def __init__(self, issuer_url: str, port: int) -> None:
        self._issuer_url, self._host = issuer_url, f"127.0.0.1:{port}"
        self._token, self._cookie_value = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self._state = parse_qs(urlsplit(issuer_url).query).get("state", [""])[0]  # the issuer's answer repeats it
        self.link = f"http://{self._host}{_START_PATH}?token={self._token}"
        self.reply: dict[str, str] = {}

    def answer(self, head: bytes) -> bytes:
        """Return the HTTP response to a request.

        Args:
            head: the request up to its first empty line.

        Raises:
            ValueError: if this is no HTTP request.
        """
        if not head.isascii():
            return _make_page(400, "Your browser sent a cookie that is none of ours.")
        request_line, _, header_lines = head.partition(b"\r\n")
        method, target, _ = request_line.decode("ascii").split(" ")
        headers = parse_headers(io.BytesIO(header_lines + b"\r\n"))
        address = urlsplit(target)
        if headers.get_all("host") != [self._host] or address.netloc:
            return _make_page(421, "This address is for another host.")
        if "origin" in headers or method != "GET":
            return _make_page(403, "Pages of other sites may not send requests here.")
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        if address.path == _START_PATH and _is_same(query.get("token", ""), self._token):
            cookie = f"{_COOKIE}={self._cookie_value}; Path={_CALLBACK_PATH}; HttpOnly; SameSite=Lax; Max-Age=600"
            return _make_page(303, "", f"location: {self._issuer_url}", f"set-cookie: {cookie}")
        if address.path == _CALLBACK_PATH and _is_same(query.get("state", ""), self._state):
            return self._take_reply(query, ";".join(headers.get_all("cookie", [])))
        return _make_page(404, "There is nothing to do here.")

    def _take_reply(self, query: dict[str, str], cookies: str) -> bytes:
        """Keep the issuer's answer, if our browser brings it. Returns the page for the browser."""
        if not self._knows_browser(cookies):
            return _make_page(403, "Another browser began this sign-in. Open the address that your terminal shows.")
        if not self.reply and query.keys() & {"code", "error"}:
            self.reply = query
        return _make_page(200, "toolscout has what it needs: you can close this window.")

    def _knows_browser(self, cookies: str) -> bool:
        """Return whether one of the cookies of a request is ours."""
        pairs = (pair.strip().partition("=") for pair in cookies.split(";"))
        return any(name == _COOKIE and _is_same(value, self._cookie_value) for name, _, value in pairs)


def _is_same(text: str, secret: str) -> bool:
    """Compare a text with a secret, in a time that does not depend on the text. An empty secret is never the same."""
    return secrets.compare_digest(text.encode(), secret.encode()) and secret != ""


def _make_page(status: int, text: str, *headers: str) -> bytes:
    """Return an HTTP response with a page of one sentence, and further headers."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "content-type: text/html; charset=utf-8", *_HEADERS]
    return "\r\n".join([*lines, *headers, "", f"<p>{text}"]).encode()


async def _receive_answer(listener: Listener[SocketStream], visit: BrowserVisit) -> AuthorizationCodeResult:
    """Answer requests until the browser has brought the issuer's answer, and return it.

    Raises:
        SourceError: if the issuer refused.
    """
    import anyio
    from anyio.streams.buffered import BufferedByteReceiveStream
    from mcp.shared.auth import AuthorizationCodeResult

    async def serve(stream: SocketStream) -> None:
        """Answer one visit of the browser. Anything that is no request in five seconds is dropped without an answer."""
        errors = anyio.EndOfStream, anyio.IncompleteRead, anyio.DelimiterNotFound, anyio.BrokenResourceError
        async with stream:
            with suppress(*errors, ValueError, HTTPException), anyio.move_on_after(5):
                head = await BufferedByteReceiveStream(stream).receive_until(b"\r\n\r\n", _MAX_HEAD_BYTES)
                await stream.send(visit.answer(head))
        if visit.reply:
            scope.cancel()

    with anyio.CancelScope() as scope:
        await listener.serve(serve)
    reply = visit.reply
    if "code" not in reply:
        reason = reply.get("error_description") or reply["error"]
        raise SourceError(f"expected you to be signed in, found that the server refused: {reason[:200]}")
    return AuthorizationCodeResult(code=reply["code"], state=reply["state"], iss=reply.get("iss"))
