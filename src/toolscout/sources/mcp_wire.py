"""Between a transport of the SDK and its session: raw lists of tools are put aside, unreadable replies repaired.

The SDK validates a list of tools as a whole, so that one odd tool would cost all of them. What stands here hands the
SDK those tools that it can carry, and us the list as it was sent.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final

from toolscout.errors import BadEntry
from toolscout.types import clean

__all__ = ["MAX_OPEN_QUESTIONS", "PAGE", "Wire", "tap_transport"]

MAX_JUNK: Final = 1000
MAX_UNASKED_PER_S: Final = 100.0  # messages that nobody asked for; the server waits, it loses none
MAX_UNASKED_AT_ONCE: Final = 1000.0
MAX_OPEN_QUESTIONS: Final = 64  # of the server, whose answers it has not read
MAX_LISTS: Final = 32  # requests for a list of tools that are remembered
MAX_PENDING_PAGES: Final = 8
PAGE: Final = "toolscout/page"


class Wire:
    """What has come over the wire.

    Attributes:
        version: the protocol version agreed upon, once it is.
        pages: number of a page → its `tools` and its `nextCursor`, as they were sent. The SDK's page carries its number
            under `PAGE` in its `_meta`; whoever reads it takes it out.
        junk: how many messages could not be read; after 1,000 the stream counts as ended.
        questions: how many requests of the server wait for our answer to be taken; after 64 the stream has ended.
    """

    def __init__(self) -> None:
        self.version = ""
        self.pages: dict[Any, tuple[Any, Any]] = {}
        self.junk = 0
        self.questions = 0
        self._lists: dict[str, None] = {}  # ids of requests for a list, oldest first
        self._numbers = itertools.count()
        self._allowance, self._since = MAX_UNASKED_AT_ONCE, time.monotonic()

    def put_aside(self, tools: object, cursor: object) -> int:
        """Keep a page, and forget old ones that nobody fetched: the SDK lists tools on its own account too."""
        number = next(self._numbers)
        self.pages[number] = tools, cursor
        self.pages.pop(number - MAX_PENDING_PAGES, None)
        return number

    def expect_list(self, number: object) -> None:
        """Return a list of tools has been asked for under this id."""
        self._lists[str(number)] = None
        while len(self._lists) > MAX_LISTS:
            del self._lists[next(iter(self._lists))]

    def take_list(self, number: object) -> bool:
        """Return whether the answer of this id is a list that was asked for and has not come yet."""
        return self._lists.pop(str(number), self) is None

    def delay_unasked(self) -> float:
        """Seconds to wait before the next message that nobody asked for is taken in."""
        now = time.monotonic()
        filled = self._allowance + (now - self._since) * MAX_UNASKED_PER_S
        self._allowance, self._since = min(MAX_UNASKED_AT_ONCE, filled) - 1.0, now
        return max(0.0, -self._allowance / MAX_UNASKED_PER_S)

    @property
    def gave_up(self) -> bool:
        """Whether there was too much junk to go on."""
        return self.junk > MAX_JUNK or self.questions > MAX_OPEN_QUESTIONS


@asynccontextmanager
async def tap_transport(transport: AbstractAsyncContextManager[Any], wire: Wire) -> AsyncIterator[Any]:
    """The streams of `transport`, with `wire` between them and whoever reads them."""
    async with transport as (reading, writing):
        yield _Listener(reading, wire), _Writer(writing, wire)


class _Writer:
    """A transport's stream of messages to the server: notes which lists are asked for, which answers it has taken."""

    def __init__(self, stream: Any, wire: Wire) -> None:
        self._stream = stream
        self._wire = wire

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _Writer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.aclose()

    async def send(self, item: Any) -> None:
        """Pass a message on."""
        message = item.message
        if getattr(message, "method", None) == "tools/list":
            self._wire.expect_list(getattr(message, "id", None))
        await self._stream.send(item)
        if not hasattr(message, "method"):
            self._wire.questions -= 1


class _Listener:
    """A transport's stream of messages: raw lists of tools are put aside, unreadable replies become errors."""

    def __init__(self, stream: Any, wire: Wire) -> None:
        self._stream = stream
        self._wire = wire

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _Listener:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> _Listener:
        return self

    async def __anext__(self) -> Any:
        import anyio

        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> Any:
        """Return the next message."""
        item = await self._stream.receive()
        if isinstance(item, Exception):
            return self._unreadable(item)
        message = item.message
        if hasattr(message, "method"):
            await self._slow_down(asks=hasattr(message, "id"))
        elif hasattr(message, "result") and self._wire.take_list(message.id):
            message.result = self._show_result(message.result)
        return item

    async def _slow_down(self, *, asks: bool) -> None:
        """Let a server wait that says more than it was asked, and end one that asks without reading our answers."""
        import anyio

        if asks:
            self._wire.questions += 1
            if self._wire.gave_up:
                raise anyio.EndOfStream
        if seconds := self._wire.delay_unasked():
            await anyio.sleep(seconds)

    def _show_result(self, result: Any) -> Any:
        """Return what the SDK sees in place of `result`."""
        if not (self._wire.version and isinstance(result, dict) and "tools" in result and "content" not in result):
            return result
        tools = result["tools"]
        number = self._wire.put_aside(tools, result.get("nextCursor"))
        page = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": {PAGE: number}}
        tools = tools if isinstance(tools, list) else []
        return {**page, "tools": [tool for tool in tools if self._fits({**page, "tools": [tool]})]}

    def _fits(self, page: dict[str, Any]) -> bool:
        from mcp_types.methods import validate_server_result

        with suppress(ValueError, RecursionError):
            validate_server_result("tools/list", self._wire.version, page)
            return True
        return False

    def _unreadable(self, error: Exception) -> Any:
        """What the SDK sees in place of a message that it cannot read: the reply that it was meant to be, if any."""
        from anyio import EndOfStream
        from mcp.shared.message import SessionMessage
        from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCResponse

        self._wire.junk += 1
        if self._wire.gave_up:
            raise EndOfStream
        meant = _meant(error)
        if meant is None:
            return error
        number, result = meant
        with suppress(ValueError, RecursionError, BadEntry):
            result = self._show_result(result) if self._wire.take_list(number) else clean(result)
            return SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=number, result=result))
        reply = ErrorData(code=PARSE_ERROR, message="a reply that is no JSON-RPC")
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=reply))


def _meant(error: Exception) -> tuple[int | str, Any] | None:
    """Return Id and result of the reply that an unreadable message was meant to be; None if it was none.

    The SDK's parser is strict: it refuses lone surrogates, which servers do send, and deep nesting.
    """
    from pydantic import ValidationError

    for detail in error.errors(include_url=False) if isinstance(error, ValidationError) else ():
        message = detail["input"]
        if isinstance(message, str):
            try:
                message = json.loads(message)
            except (ValueError, RecursionError):
                number = re.search(r'"jsonrpc".{0,40}?"id"\s*:\s*(\d+)', message[:1000])
                message = {"id": int(number[1]), "error": None} if number else None
        if isinstance(message, dict) and ("result" in message or "error" in message):
            identity = message.get("id")
            if isinstance(identity, (int, str)) and not isinstance(identity, bool):
                return identity, message.get("result")
    return None
