"""Filters the messages between a transport of the SDK and its session.

The SDK validates a list of tools as a whole, so one invalid tool would make all of them unusable. The filter gives the
SDK only the valid tools, and keeps the list as it was sent for `Connection.list_tools`.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.errors import BadEntry
from toolscout.sources.mcp_direct import DirectLists
from toolscout.types import clean

__all__ = ["MAX_OPEN_QUESTIONS", "PAGE", "Page", "Wire", "tap_transport"]

MAX_JUNK: Final = 1000  # messages that cannot be read
MAX_UNASKED_PER_S: Final = 100.0  # messages that nobody asked for; above that the server has to wait
MAX_UNASKED_AT_ONCE: Final = 1000.0
MAX_OPEN_QUESTIONS: Final = 64  # requests of the server that we answered without the server reading the answer
MAX_LISTS: Final = 32  # requests for a list of tools that are remembered
MAX_PENDING_PAGES: Final = 8
PAGE: Final = "toolscout/page"


class Page(NamedTuple):
    """A page of a list of tools, as the server sent it.

    Attributes:
        tools: what it sent as `tools`.
        cursor: what it sent as `nextCursor`.
        encoded: the tools as JSON.
        is_repeated: whether the SDK has validated the same tools last. Then it gets none of them.
    """

    tools: object
    cursor: object
    encoded: str
    is_repeated: bool


class Wire:
    """The state of the message streams of one session.

    Attributes:
        version: the agreed protocol version. Empty until the handshake is done.
        pages: number of a page → the page. The page that the SDK sees carries its number under `PAGE` in `_meta`. The
            reader of a page removes it from here.
        validated: the tools, as JSON, that the SDK validated last.
        spares_repeats: whether the SDK gets no tools of a page that it validated last. Only a reader of raw pages may
            ask for that; the SDK's own lists must be whole.
        junk: how many messages could not be read. After 1,000 the stream is treated as ended.
        direct: asks for lists past the SDK.
        unread_answers: how many of our answers to requests of the server it has not read. After 64 the stream is
            treated as ended.
    """

    def __init__(self) -> None:
        self.version = ""
        self.pages: dict[Any, Page] = {}
        self.validated, self.spares_repeats = "", False
        self.junk = 0
        self.unread_answers = 0
        self.direct = DirectLists()
        self._lists: dict[str, None] = {}  # ids of requests for a list, oldest first
        self._numbers = itertools.count()
        self._allowance, self._since = MAX_UNASKED_AT_ONCE, time.monotonic()

    def keep_page(self, tools: object, cursor: object) -> tuple[int, Page]:
        """Keep a raw page and return it with its number. Old pages that nobody read are dropped."""
        number, encoded = next(self._numbers), _encode_tools(tools)
        page = self.pages[number] = Page(tools, cursor, encoded, self.spares_repeats and encoded == self.validated)
        self.pages.pop(number - MAX_PENDING_PAGES, None)
        return number, page

    def filter_result(self, result: Any) -> Any:
        """Return the result that the SDK gets: of a list of tools, one page with the valid ones."""
        if not (self.version and isinstance(result, dict) and "tools" in result and "content" not in result):
            return result
        number, page = self.keep_page(result["tools"], result.get("nextCursor"))
        seen = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": {PAGE: number}}
        tools = page.tools if isinstance(page.tools, list) and not page.is_repeated else []
        return {**seen, "tools": [tool for tool in tools if self._is_valid({**seen, "tools": [tool]})]}

    def _is_valid(self, page: dict[str, Any]) -> bool:
        from mcp_types.methods import validate_server_result

        with suppress(ValueError, RecursionError):
            validate_server_result("tools/list", self.version, page)
            return True
        return False

    def expect_list(self, number: object) -> None:
        """Remember that the request with this id asks for a list of tools."""
        self._lists[str(number)] = None
        while len(self._lists) > MAX_LISTS:
            del self._lists[next(iter(self._lists))]

    def take_list(self, number: object) -> bool:
        """Return whether the answer with this id is an awaited list of tools. It is awaited no longer."""
        return self._lists.pop(str(number), self) is None

    def delay_unasked(self) -> float:
        """Return the seconds to wait before the next message that nobody asked for is accepted."""
        now = time.monotonic()
        filled = self._allowance + (now - self._since) * MAX_UNASKED_PER_S
        self._allowance, self._since = min(MAX_UNASKED_AT_ONCE, filled) - 1.0, now
        return max(0.0, -self._allowance / MAX_UNASKED_PER_S)

    @property
    def gave_up(self) -> bool:
        """Whether there were too many unreadable messages or unread answers."""
        return self.junk > MAX_JUNK or self.unread_answers > MAX_OPEN_QUESTIONS


@asynccontextmanager
async def tap_transport(transport: AbstractAsyncContextManager[Any], wire: Wire) -> AsyncIterator[Any]:
    """Open a transport and yield its streams, filtered through `wire`."""
    async with transport as (reading, writing):
        yield _Listener(reading, wire), _Writer(writing, wire)


class _Writer:
    """The stream of messages to the server. Notes requests for lists, and answers that the server has read."""

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
            self._wire.direct.note_request(message)
        await self._stream.send(item)
        if not hasattr(message, "method"):
            self._wire.unread_answers -= 1


class _Listener:
    """The stream of messages from the server. Keeps raw lists of tools, and turns unreadable replies into errors."""

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
            return self._repair_reply(item)
        message = item.message
        if hasattr(message, "method"):
            await self._slow_down(is_request=hasattr(message, "id"))
        elif hasattr(message, "result") and self._wire.take_list(message.id):
            message.result = self._wire.filter_result(message.result)
        return item

    async def _slow_down(self, *, is_request: bool) -> None:
        """Slow down messages that nobody asked for. End the stream of a server that does not read our answers.

        `is_request`: whether the message is a request, which gets an answer, and not a notification.
        """
        import anyio

        if is_request:
            self._wire.unread_answers += 1
            if self._wire.gave_up:
                raise anyio.EndOfStream
        if seconds := self._wire.delay_unasked():
            await anyio.sleep(seconds)

    def _repair_reply(self, error: Exception) -> Any:
        """Return what the SDK gets for a message that it cannot read: the intended reply, or an error."""
        from anyio import EndOfStream
        from mcp.shared.message import SessionMessage
        from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCResponse

        self._wire.junk += 1
        if self._wire.gave_up:
            raise EndOfStream
        recovered = _recover_reply(error)
        if recovered is None:
            return error
        number, result = recovered
        with suppress(ValueError, RecursionError, BadEntry):
            result = self._wire.filter_result(result) if self._wire.take_list(number) else clean(result)
            return SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=number, result=result))
        reply = ErrorData(code=PARSE_ERROR, message="a reply that is no JSON-RPC")
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=reply))


def _encode_tools(tools: object) -> str:
    try:
        return msgspec.json.encode(tools).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(tools)  # it holds lone surrogates or numbers beyond 64 bits


def _recover_reply(error: Exception) -> tuple[int | str, Any] | None:
    """Recover id and result of a reply from the error of the SDK's parser. None if the message is not a reply.

    The parser refuses lone surrogates, which real servers send, and deep nesting.
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
