"""Guards the HTTP client of an MCP server: checks where its requests go and bounds what it receives.

The checks are event hooks. httpx2 calls them for every request and response, including those of an OAuth flow. Proxies
and everything else of the client are not changed.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from toolscout.errors import SourceError
from toolscout.sources.mcp_limits import (
    ENCODED,
    MAX_DISCARDED_BYTES,
    SPLIT_BYTES,
    TOO_LARGE,
    LineSplitter,
    LongLine,
)
from toolscout.sources.wire_limits import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    import httpx2

    from toolscout.sources.mcp_spill import Spills

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

    def __init__(self, url: str, approve: Approve, note: Callable[[Any], None], spills: Spills | None = None) -> None:
        """Guard the client for an address.

        Args:
            url: the address of the server.
            approve: decides on other origins.
            note: sees every response.
            spills: where the values of large results go. None: they count as the rest.
        """
        self.home = origin_of(url)
        self._approve, self._note, self._spills = approve, note, spills
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
        """Let at most `MAX_MESSAGE_BYTES` of a body through, without the values of large results.

        The SDK itself bounds each event of an event stream.
        """
        self._note(response)
        kind = response.headers.get("content-type", "").lower()
        events = kind.startswith("text/event-stream")
        encodings = response.headers.get("content-encoding", "").lower().replace(" ", "").split(",")
        refused = "" if set(encodings) <= {"", "identity"} else ENCODED
        if refused:
            del response.headers["content-encoding"]  # the refused body is never read, so it must not be decoded
        length = response.headers.get("content-length", "")
        is_message = kind.startswith("application/json") and response.status_code < 400
        spills = self._spills if is_message or events else None
        limit = MAX_DISCARDED_BYTES if spills is not None else MAX_MESSAGE_BYTES
        if not events and length.isdigit() and int(length) > limit:
            refused = refused or TOO_LARGE
        failure = _failure_of(events)  # what the SDK answers a request with
        response.stream = _make_bounded_stream(response.stream, failure, refused, _choose_reader(events, spills))


Reader = Callable[[AsyncIterable[bytes], type[Exception]], AsyncIterator[bytes]]


def _choose_reader(events: bool, spills: Spills | None) -> Reader:
    if events:
        return partial(_split_events, spills)
    return _pass_bounded if spills is None else partial(_split_body, spills)


def _failure_of(events: bool) -> type[Exception]:
    """Return the error that the SDK turns into an answer, for an event stream or for a body."""
    import httpx2

    return httpx2.SSEError if events else httpx2.StreamError


async def _pass_bounded(stream: AsyncIterable[bytes], failure: type[Exception]) -> AsyncIterator[bytes]:
    count = 0
    async for chunk in stream:
        count += len(chunk)
        if count > MAX_MESSAGE_BYTES:
            raise failure(TOO_LARGE)
        yield chunk


async def _split_body(spills: Spills, stream: AsyncIterable[bytes], failure: type[Exception]) -> AsyncIterator[bytes]:
    """Read a body that is one message. Large values of a result go to a file."""
    body, writer = bytearray(), None
    try:
        async for chunk in stream:
            if writer is not None:
                writer.feed(chunk)
            else:
                body += chunk
                if len(body) > SPLIT_BYTES:
                    writer = spills.open()
                    writer.feed(bytes(body))
                    body.clear()
            if writer is not None and writer.size > MAX_DISCARDED_BYTES:
                raise failure(TOO_LARGE)
        message = bytes(body) if writer is None else writer.finish()
        writer = None
    except ValueError:
        raise failure(TOO_LARGE) from None
    finally:
        if writer is not None:
            writer.abandon()
    yield message


async def _split_events(
    spills: Spills | None, stream: AsyncIterable[bytes], failure: type[Exception]
) -> AsyncIterator[bytes]:
    """Read an event stream line by line. Large values of a result go to a file."""
    splitter = LineSplitter(spills=spills, prefix=b"data:")
    try:
        async for chunk in stream:
            for line in splitter.feed(chunk):
                if isinstance(line, LongLine):
                    raise failure(TOO_LARGE)
                yield line + b"\n"
            if splitter.discarded:
                raise failure(TOO_LARGE)
    finally:
        splitter.close()


def _make_bounded_stream(stream: Any, failure: type[Exception], refused: str, reader: Reader) -> Any:
    import httpx2

    class BoundedStream(httpx2.AsyncByteStream):
        """A body that raises once it is too large, or at once if it is refused."""

        async def __aiter__(self) -> AsyncIterator[bytes]:
            if refused:
                raise failure(refused)
            async for chunk in reader(stream, failure):
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
