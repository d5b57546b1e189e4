"""Between a transport of the SDK and its session: raw lists of tools are put aside, unreadable replies repaired.

The SDK validates a list of tools as a whole, so that one odd tool would cost all of them. What stands here hands the
SDK those tools that it can carry, and us the list as it was sent.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final

__all__ = ["PAGE", "Wire", "tapped"]

MAX_JUNK: Final = 1000
MAX_PAGES: Final = 8
PAGE: Final = "toolscout/page"


class Wire:
    """What has come over the wire.

    Attributes:
        version: the protocol version agreed upon, once it is.
        pages: number of a page → its `tools` and its `nextCursor`, as they were sent. The SDK's page carries its number
            under `PAGE` in its `_meta`; whoever reads it takes it out.
        junk: how many messages could not be read; after 1,000 the stream counts as ended.
    """

    def __init__(self) -> None:
        self.version = ""
        self.pages: dict[Any, tuple[Any, Any]] = {}
        self.junk = 0
        self._numbers = itertools.count()

    def put_aside(self, tools: object, cursor: object) -> int:
        """Keep a page, and forget old ones that nobody fetched: the SDK lists tools on its own account too."""
        number = next(self._numbers)
        self.pages[number] = tools, cursor
        self.pages.pop(number - MAX_PAGES, None)
        return number

    @property
    def gave_up(self) -> bool:
        """Whether there was too much junk to go on."""
        return self.junk > MAX_JUNK


@asynccontextmanager
async def tapped(transport: AbstractAsyncContextManager[Any], wire: Wire) -> AsyncIterator[Any]:
    """The streams of `transport`, with `wire` between them and whoever reads them."""
    async with transport as (reading, writing):
        yield _Listener(reading, wire), writing


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
        """The next message."""
        item = await self._stream.receive()
        if isinstance(item, Exception):
            return self._unreadable(item)
        if hasattr(item.message, "result"):
            item.message.result = self._seen(item.message.result)
        return item

    def _seen(self, result: Any) -> Any:
        """What the SDK sees in place of `result`."""
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
        with suppress(ValueError, RecursionError):
            return SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=number, result=self._seen(result)))
        reply = ErrorData(code=PARSE_ERROR, message="a reply that is no JSON-RPC")
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=reply))


def _meant(error: Exception) -> tuple[int | str, Any] | None:
    """Id and result of the reply that an unreadable message was meant to be; None if it was none.

    The SDK's parser is strict: it refuses lone surrogates, which servers do send, and deep nesting.
    """
    from pydantic import ValidationError

    for detail in error.errors(include_url=False) if isinstance(error, ValidationError) else ():
        found = detail["input"]
        if isinstance(found, str):
            try:
                found = json.loads(found)
            except (ValueError, RecursionError):
                number = re.search(r'"jsonrpc".{0,40}?"id"\s*:\s*(\d+)', found[:1000])
                found = {"id": int(number[1]), "error": None} if number else None
        if isinstance(found, dict) and ("result" in found or "error" in found):
            identity = found.get("id")
            if isinstance(identity, (int, str)) and not isinstance(identity, bool):
                return identity, found.get("result")
    return None
