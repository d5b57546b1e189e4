"""Signs in to MCP servers with OAuth: stores tokens, opens the browser, receives its answer."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qs, urlsplit

from toolscout.errors import SourceError, StoreError
from toolscout.sources.mcp_config import Server
from toolscout.sources.mcp_transport import is_private, origin_of
from toolscout.trust.sealing import SEALING_VARIABLE, find_sealer, is_sealed

if TYPE_CHECKING:
    from anyio.abc import Listener, SocketStream
    from httpx2 import Auth
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthToken

__all__ = [
    "Nobody",
    "PersonRequired",
    "SessionIdentity",
    "SignInRequired",
    "TokenFile",
    "approve_origin",
    "has_terminal",
    "open_browser",
    "sign_in_hint",
    "signing_in",
]

SIGN_IN_TIMEOUT_S: Final = 300.0
_PAGE: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n"
    b"<p>toolscout has what it needs: you can close this window."
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
    """The identity of a session without any."""

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
        self.provider: OAuthClientProvider | None = None
        try:
            saved = json.loads(self._open(self.path.read_bytes()))
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
        """Return the further origins that requests may go to: approved ones and the token endpoint's."""
        approved, metadata = self.values.get("origins"), self.values.get("metadata")
        allowed = {origin for origin in approved if isinstance(origin, str)} if isinstance(approved, list) else set()
        endpoint = metadata.get("token_endpoint") if isinstance(metadata, dict) else None
        return allowed | ({origin_of(endpoint)} if isinstance(endpoint, str) else set())

    def add_origin(self, origin: str) -> None:
        """Approve an origin, and store that."""
        self._save(origins=sorted(self.origins() | {origin}))

    def port(self) -> int:
        """Return the loopback port of our registration. 0 if there is none."""
        try:
            return urlsplit(self.values["client"]["redirect_uris"][0]).port or 0
        except (KeyError, IndexError, TypeError, ValueError):
            return 0

    def forget_client(self) -> None:
        """Forget the registration, so that the next sign-in makes a new one."""
        self.values.pop("client", None)

    def _parse(self, model: type[Any], key: str) -> Any:
        try:
            return model.model_validate(self.values[key])
        except (KeyError, ValueError):
            return None

    def _open(self, content: bytes) -> bytes:
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
        self.values |= changes
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.parent.chmod(0o700)
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")  # mode 0600
        sealer, content = find_sealer(), json.dumps(self.values).encode()
        with os.fdopen(handle, "wb") as stream:
            stream.write(content if sealer is None else sealer.seal(self.path.name, content))
        os.replace(temporary, self.path)


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
    """Return whether a request for `server` may go to another origin.

    The server names the place to sign in, so it could name any. A person must approve the place. A public server may
    not name a place on this machine or in its networks.
    """
    import anyio.to_thread

    if origin in tokens.origins():
        return True
    if not person:
        return False
    if await anyio.to_thread.run_sync(is_private, origin):
        home_is_private = await anyio.to_thread.run_sync(is_private, origin_of(server.url))
        if not home_is_private:
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
    state: list[str] = []

    async def show_address(address: str) -> None:
        if not person:
            raise SourceError(f"expected a valid sign-in, found an expired one: {sign_in_hint(server)}")
        state.extend(parse_qs(urlsplit(address).query).get("state", []))
        sys.stderr.write(f"{server.name}: sign in at {address}\n")
        threading.Thread(target=open_browser, args=(address,), daemon=True).start()

    async def receive_code() -> AuthorizationCodeResult:
        assert listener is not None
        with pause_clock(), anyio.move_on_after(SIGN_IN_TIMEOUT_S):
            return await _receive_answer(listener, state[-1:])
        raise SourceError(f"expected you to sign in within {SIGN_IN_TIMEOUT_S:g} s, found no answer: try again")

    provider = OAuthClientProvider(
        server.url,
        OAuthClientMetadata(client_name="toolscout", redirect_uris=[AnyUrl(f"http://127.0.0.1:{port}/callback")]),
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
        storage.forget_client()
        multi = await anyio.create_tcp_listener(local_host="127.0.0.1")
    return multi.listeners[0]


async def _receive_answer(listener: Listener[SocketStream], state: list[str]) -> AuthorizationCodeResult:
    """Return the answer of the first request that carries our `state`. Other requests are ignored."""
    import anyio
    from mcp.shared.auth import AuthorizationCodeResult

    reply: dict[str, str] = {}

    async def serve(stream: SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, ValueError), anyio.move_on_after(5):
                line = (await stream.receive()).split(b"\r\n", 1)[0].decode("latin-1").split(" ")
                query = parse_qs(urlsplit(line[1]).query) if len(line) > 1 else {}
                await stream.send(_PAGE)
                if query.get("state") == state and ("code" in query or "error" in query):
                    reply.update({key: values[0] for key, values in query.items()})
                    scope.cancel()

    with anyio.CancelScope() as scope:
        await listener.serve(serve)
    if "code" not in reply:
        reason = reply.get("error_description") or reply["error"]
        raise SourceError(f"expected you to be signed in, found that the server refused: {reason[:200]}")
    return AuthorizationCodeResult(code=reply["code"], state=reply["state"], iss=reply.get("iss"))
