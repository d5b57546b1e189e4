"""Guards the HTTP client of an MCP server: checks where its requests go and bounds what it receives.

The checks are event hooks. httpx2 calls them for every request and response, including those of an OAuth flow. Proxies
and everything else of the client are not changed.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from toolscout.errors import SourceError
from toolscout.sources.mcp_limits import ENCODED, MAX_MESSAGE_BYTES, TOO_LARGE

if TYPE_CHECKING:
    import httpx2

__all__ = ["Guard", "is_private", "origin_of"]

MAX_RESUMPTIONS: Final = 20  # of broken streams, in a minute; the SDK itself has no limit
RESUMPTION_WINDOW_S: Final = 60.0
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
Approve = Callable[[str], Awaitable[bool]]  # origin → whether requests may go there


class Guard:
    """Event hooks for the client of one MCP server.

    Attributes:
        hooks: for `httpx2.AsyncClient(event_hooks=…)`.
    """

    def __init__(self, url: str, approve: Approve, note: Callable[[Any], None]) -> None:
        """Guard the client for an address, with a function that decides on origins and one that sees responses."""
        self.home = origin_of(url)
        self._approve, self._note = approve, note
        self._resumed: deque[float] = deque()
        self.hooks: dict[str, list[Any]] = {"request": [self._check_request], "response": [self._bound_response]}

    async def _check_request(self, request: httpx2.Request) -> None:
        """Refuse a request to an origin that nobody has approved.

        Raises:
            SourceError: naming the origin.
        """
        request.headers["accept-encoding"] = "identity"
        target = origin_of(str(request.url))
        if target not in (self.home, upgrade_origin(self.home)) and not await self._approve(target):
            raise SourceError(
                f"it asks for a request to {target}, which is not its own address and which nobody has approved: "
                "the request was not sent"
            )
        if "last-event-id" in request.headers:
            self._count_resumption()

    def _count_resumption(self) -> None:
        now = time.monotonic()
        while self._resumed and self._resumed[0] < now - RESUMPTION_WINDOW_S:
            self._resumed.popleft()
        if len(self._resumed) >= MAX_RESUMPTIONS:
            raise SourceError(f"its streams broke off more than {MAX_RESUMPTIONS} times in a minute")
        self._resumed.append(now)

    async def _bound_response(self, response: httpx2.Response) -> None:
        """Let at most `MAX_MESSAGE_BYTES` of a body through. The SDK itself bounds each event of an event stream."""
        self._note(response)
        events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        encodings = response.headers.get("content-encoding", "").lower().replace(" ", "").split(",")
        refused = "" if set(encodings) <= {"", "identity"} else ENCODED
        if refused:
            del response.headers["content-encoding"]  # the refused body is never read, so it must not be decoded
        length = response.headers.get("content-length", "")
        if not events and length.isdigit() and int(length) > MAX_MESSAGE_BYTES:
            refused = refused or TOO_LARGE
        response.stream = _make_bounded_stream(response.stream, None if events else MAX_MESSAGE_BYTES, refused, events)


def _make_bounded_stream(stream: Any, limit: int | None, refused: str, events: bool) -> Any:
    import httpx2

    class BoundedStream(httpx2.AsyncByteStream):
        """A body that raises once it is larger than `limit`, or at once if it is refused."""

        async def __aiter__(self) -> AsyncIterator[bytes]:
            count = 0
            failure = httpx2.SSEError if events else httpx2.StreamError  # what the SDK answers a request with
            if refused:
                raise failure(refused)
            async for chunk in stream:
                count += len(chunk)
                if limit is not None and count > limit:
                    raise failure(TOO_LARGE)
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    return BoundedStream()


def origin_of(url: str) -> str:
    """Return `scheme://host:port` of an address in lower case, always with the port."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme.lower()}://{host}:{parts.port or DEFAULT_PORTS.get(parts.scheme.lower(), 0)}"


def upgrade_origin(origin: str) -> str:
    """Return the https form of an http origin on the default port, a usual redirect. Others are unchanged."""
    head, _, port = origin.rpartition(":")
    return f"https{head.removeprefix('http')}:443" if origin.startswith("http://") and port == "80" else origin


def is_private(origin: str) -> bool:
    """Return whether an origin is on this machine, in its networks, or unknown."""
    parts = urlsplit(origin)
    try:
        entries = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False  # nobody can be reached there
    addresses = {str(entry[4][0]).partition("%")[0] for entry in entries}
    return any(not ipaddress.ip_address(address).is_global for address in addresses)
