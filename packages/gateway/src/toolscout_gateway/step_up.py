"""Answers a call that needs a further scope with status 403, from which a client learns which scope to ask for.

The rule itself is checked with each call (`Caller.may_call`). This part only tells clients in the way that the MCP
specification describes (step-up authorization).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolscout.trust.policy import Caller

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["StepUp"]

MAX_REQUEST_BYTES: Final = 4_194_304  # as the SDK takes them


class StepUp:
    """ASGI middleware that refuses calls for which the caller's token lacks a scope."""

    def __init__(
        self,
        inner: ASGIApp,
        caller_key: str,
        find_scope: Callable[[Caller, str], Awaitable[str]],
        build_challenge: Callable[[str], str],
    ) -> None:
        """Check before `inner`.

        Args:
            inner: the application.
            caller_key: where the scope of a request holds its caller.
            find_scope: returns the scope that a caller's token lacks for the tool of an id. Empty if none.
            build_challenge: returns the header that names a scope.
        """
        self._inner, self._caller_key = inner, caller_key
        self._find_scope, self._build_challenge = find_scope, build_challenge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        from starlette.responses import JSONResponse

        caller = scope.get(self._caller_key)
        if scope["type"] != "http" or scope["method"] != "POST" or not getattr(caller, "withheld", ()):
            await self._inner(scope, receive, send)
            return
        messages = await _read_body(receive)
        body = b"".join(message.get("body", b"") for message in messages)
        tool_id = _read_tool_id(body)
        missing = await self._find_scope(caller, tool_id) if tool_id and isinstance(caller, Caller) else ""
        if missing:
            error = f"Your token lacks the scope {missing!r} for {tool_id}."
            response = JSONResponse({"error": error}, 403, {"WWW-Authenticate": self._build_challenge(missing)})
            await response(scope, receive, send)
            return

        async def replay() -> Message:
            return messages.pop(0) if messages else await receive()

        await self._inner(scope, replay, send)


async def _read_body(receive: Receive) -> list[Message]:
    """Read the body of a request, as far as a request may be long. The SDK refuses a longer one."""
    messages: list[Message] = []
    size = 0
    while size <= MAX_REQUEST_BYTES:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            break
    return messages


def _read_tool_id(body: bytes) -> str:
    """Return the id of the tool that a message calls. Empty if it is no call of a tool."""
    try:
        message: Any = msgspec.json.decode(body)
        if message["method"] != "tools/call":
            return ""
        params = message["params"]
        id = params["arguments"]["id"] if params["name"] == "call_tool" else params["name"]
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError):
        return ""
    return id if isinstance(id, str) else ""
