"""Asks a server on standard streams for its list of tools past the SDK, and compares the answer byte by byte.

The gateway reads this list before each call, and nearly always it is the list of before. The SDK parses and validates
it twice, in several tasks. Here one write asks for it, and an answer that has not changed is never parsed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from toolscout.sources.mcp_limits import LongLine

__all__ = ["DirectLists", "parse_page"]

FIRST_ID: Final = 1_000_000_000  # above every id that the SDK gives in one session, and below 2**31
TRACE_KEYS: Final = frozenset({"traceparent", "tracestate", "baggage"})  # of `_meta`: they belong to one request


class _Answer(msgspec.Struct):
    """The outer part of an answer. `result` is as the server wrote it."""

    id: Any = None
    method: Any = None
    result: msgspec.Raw = msgspec.Raw(b"")


class DirectLists:
    """Requests for the list of tools in one session, and the answers that are awaited.

    Attributes:
        write: writes a line to the server. None while there is no transport that can.
    """

    def __init__(self) -> None:
        self.write: Callable[[bytes], Awaitable[None]] | None = None
        self._request: dict[str, Any] | None = None
        self._numbers = itertools.count(FIRST_ID)
        self._awaited: dict[str, asyncio.Future[bytes | None]] = {}  # by id

    def note_request(self, message: Any) -> None:
        """Note a request of the SDK for the first page, which is sent again as it is but for its id."""
        request = message.model_dump(by_alias=True, mode="json", exclude_unset=True)
        params = request.get("params") or {}
        if params.get("cursor") is not None:
            return
        if isinstance(meta := params.get("_meta"), dict):
            params["_meta"] = {key: value for key, value in meta.items() if key not in TRACE_KEYS}
        self._request = request

    @property
    def is_ready(self) -> bool:
        """Whether a list can be asked for: the session is open, and the SDK has asked before."""
        return self.write is not None and self._request is not None

    async def ask(self, trace: Mapping[str, str] | None = None) -> asyncio.Future[bytes | None]:
        """Ask for the first page. The outcome is the result as it was sent; None: ask by the SDK.

        Args:
            trace: the trace context that the request carries in its `_meta`.

        Raises:
            OSError, anyio.ClosedResourceError, anyio.BrokenResourceError: if the session has ended.
        """
        assert self.write is not None and self._request is not None
        number = next(self._numbers)
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._awaited[str(number)] = answer
        answer.add_done_callback(lambda _: self._awaited.pop(str(number), None))
        try:
            await self.write(msgspec.json.encode(self._build_request(number, trace)) + b"\n")
        except BaseException:
            answer.cancel()
            raise
        return answer

    def _build_request(self, number: int, trace: Mapping[str, str] | None) -> dict[str, Any]:
        assert self._request is not None
        request = {**self._request, "id": number}
        if trace:
            params = request.get("params") or {}
            request["params"] = {**params, "_meta": {**(params.get("_meta") or {}), **trace}}
        return request

    def take(self, line: bytes | LongLine) -> bool:
        """Take a line if it is an awaited answer. Returns whether it was one."""
        if not self._awaited:
            return False
        if isinstance(line, LongLine):
            self.give_up()
            return False
        try:
            answer = msgspec.json.decode(line, type=_Answer)
        except (msgspec.MsgspecError, RecursionError):  # whatever it is, the SDK's transport reads it
            self.give_up()
            return False
        awaited = self._awaited.pop(str(answer.id), None) if answer.method is None else None
        if awaited is None:
            return False
        if not awaited.done():
            awaited.set_result(bytes(answer.result) or None)
        return True

    def close(self) -> None:
        """Ask no more: the server answers nothing after this."""
        self.write = None
        self.give_up()

    def give_up(self) -> None:
        """Let everybody who waits ask by the SDK, because their answer may have been lost."""
        for answer in list(self._awaited.values()):
            if not answer.done():
                answer.set_result(None)


def parse_page(result: bytes) -> dict[str, Any] | None:
    """Parse the result of a request for the list of tools. None if it is no object."""
    try:
        page = json.loads(result)  # it may hold lone surrogates, which msgspec refuses
    except (ValueError, RecursionError):
        return None
    return page if isinstance(page, dict) else None
