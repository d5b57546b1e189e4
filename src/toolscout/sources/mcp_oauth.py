"""Signs in to MCP servers with OAuth: the tokens on disk, the browser, the answer on a loopback port."""

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
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from toolscout.errors import SourceError
from toolscout.sources.mcp_config import Server
from toolscout.sources.mcp_guard import is_private, origin_of

if TYPE_CHECKING:
    from anyio.abc import Listener, SocketStream
    from httpx2 import Auth
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthToken

__all__ = ["TokenFile", "approve_origin", "interactive", "open_browser", "sign_in_hint", "signing_in"]

SIGN_IN_TIMEOUT_S: Final = 300.0
_PAGE: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n"
    b"<p>toolscout has what it needs: you can close this window."
)


def interactive() -> bool:
    """Return whether somebody sits at a terminal who could sign in."""
    return sys.stdin is not None and sys.stdin.isatty()


def open_browser(url: str) -> None:
    """Show `url` in the browser of this machine, if it has one."""
    webbrowser.open(url)


def sign_in_hint(server: Server) -> str:
    """Return what to do about a server that wants a person to sign in."""
    return f"run  toolscout add {server.origin}  on a terminal"


class TokenFile:
    """What one server gave us to sign in with: a JSON file that only its owner can read.

    It is the token storage that the SDK's OAuth client asks for. A damaged file counts as an empty one.
    """

    def __init__(self, home: Path, url: str) -> None:
        self.path = home / "oauth" / f"{hashlib.blake2b(url.encode(), digest_size=16).hexdigest()}.json"
        self.provider: OAuthClientProvider | None = None
        try:
            saved = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            saved = {}
        self.values: dict[str, Any] = saved if isinstance(saved, dict) else {}

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored tokens, or None."""
        from mcp.shared.auth import OAuthToken

        tokens: OAuthToken | None = self._parse(OAuthToken, "tokens")
        return tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep `tokens`, the second they expire, and where they can be renewed."""
        metadata = self.provider.context.oauth_metadata if self.provider else None
        self._save(
            tokens=tokens.model_dump(mode="json"),
            expires=None if tokens.expires_in is None else time.time() + tokens.expires_in,
            metadata=metadata.model_dump(mode="json") if metadata else self.values.get("metadata"),
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return how the authorization server knows us, or None."""
        from mcp.shared.auth import OAuthClientInformationFull

        client: OAuthClientInformationFull | None = self._parse(OAuthClientInformationFull, "client")
        return client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep how the authorization server knows us."""
        self._save(client=client_info.model_dump(mode="json"))

    def attach(self, provider: OAuthClientProvider) -> None:
        """Tell `provider` what the SDK asks no storage for: when the tokens expire and where to renew them."""
        from mcp.shared.auth import OAuthMetadata

        self.provider = provider
        expires = self.values.get("expires")
        provider.context.token_expiry_time = expires if isinstance(expires, (int, float)) else None
        provider.context.oauth_metadata = self._parse(OAuthMetadata, "metadata")

    def secrets(self) -> frozenset[str]:
        """Return the tokens and the client's secret: what nobody else may read."""
        parts = [self.values.get("tokens"), self.values.get("client")]
        keys = ("access_token", "refresh_token", "client_secret", "registration_access_token")
        values = [part.get(key) for part in parts if isinstance(part, dict) for key in keys]
        return frozenset(value for value in values if isinstance(value, str))

    def origins(self) -> set[str]:
        """Return the origins that requests may go to beside the server: those approved, and where tokens come from."""
        approved, metadata = self.values.get("origins"), self.values.get("metadata")
        allowed = {each for each in approved if isinstance(each, str)} if isinstance(approved, list) else set()
        endpoint = metadata.get("token_endpoint") if isinstance(metadata, dict) else None
        return allowed | ({origin_of(endpoint)} if isinstance(endpoint, str) else set())

    def add_origin(self, origin: str) -> None:
        """Remember that requests may go to `origin`."""
        self._save(origins=sorted(self.origins() | {origin}))

    def port(self) -> int:
        """Return the loopback port that the authorization server knows us by; 0 if none."""
        try:
            return urlsplit(self.values["client"]["redirect_uris"][0]).port or 0
        except (KeyError, IndexError, TypeError, ValueError):
            return 0

    def forget_client(self) -> None:
        """Register anew at the next sign-in."""
        self.values.pop("client", None)

    def _parse(self, model: type[Any], key: str) -> Any:
        try:
            return model.model_validate(self.values[key])
        except (KeyError, ValueError):
            return None

    def _save(self, **changes: object) -> None:
        self.values |= changes
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.parent.chmod(0o700)
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")  # mode 0600
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(self.values, stream)
        os.replace(temporary, self.path)


def ask_person(question: str) -> bool:
    """Ask whoever sits at the terminal; no answer is a no."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


async def approve_origin(
    server: Server,
    tokens: TokenFile,
    person: bool,
    unhurried: Callable[[], AbstractContextManager[None]],
    origin: str,
) -> bool:
    """Return whether a request on behalf of `server` may go to another origin than the server's.

    A server names the place where one signs in, so it could name any: it is asked only if a person has approved it. A
    server out in the world may not name a place on this machine or in its networks at all.
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
    with unhurried():
        approved = await anyio.to_thread.run_sync(ask_person, question, abandon_on_cancel=True)
    if approved:
        tokens.add_origin(origin)
    return approved


@asynccontextmanager
async def signing_in(
    server: Server, storage: TokenFile, *, person: bool, unhurried: Callable[[], AbstractContextManager[None]]
) -> AsyncIterator[Auth | None]:
    """What an HTTP client needs to sign in to `server`, or None if it cannot.

    Args:
        server: a resolved one with a URL.
        storage: the server's tokens.
        person: whether somebody can be asked; otherwise only stored tokens are used and renewed.
        unhurried: stops the clock while the person is busy.
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

    async def redirect(address: str) -> None:
        if not person:
            raise SourceError(f"expected to be signed in, found that it is over: {sign_in_hint(server)}")
        state.extend(parse_qs(urlsplit(address).query).get("state", []))
        sys.stderr.write(f"{server.name}: sign in at {address}\n")
        threading.Thread(target=open_browser, args=(address,), daemon=True).start()

    async def callback() -> AuthorizationCodeResult:
        assert listener is not None
        with unhurried(), anyio.move_on_after(SIGN_IN_TIMEOUT_S):
            return await _answer(listener, state[-1:])
        raise SourceError(f"expected you to sign in within {SIGN_IN_TIMEOUT_S:g} s, found no answer: try again")

    provider = OAuthClientProvider(
        server.url,
        OAuthClientMetadata(client_name="toolscout", redirect_uris=[AnyUrl(f"http://127.0.0.1:{port}/callback")]),
        storage,
        redirect,
        callback,
    )
    storage.attach(provider)
    try:
        yield provider
    finally:
        if listener:
            await listener.aclose()


async def _listen(storage: TokenFile) -> Listener[SocketStream]:
    """Return a loopback port for the browser's answer: the one that the authorization server knows, or any."""
    import anyio

    try:
        multi = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=storage.port())
    except OSError:
        storage.forget_client()
        multi = await anyio.create_tcp_listener(local_host="127.0.0.1")
    return multi.listeners[0]


async def _answer(listener: Listener[SocketStream], state: list[str]) -> AuthorizationCodeResult:
    """Return the first request to the loopback port that carries our `state`; others are ignored."""
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
