"""The transports of MCP sessions: messages to and from a process or an HTTP server, bounded and repaired.

Every session goes through `filter_transport`, which repairs what the SDK would refuse: lists of tools with an invalid
one, results of calls without content, replies with lone surrogates. `open_stdio` starts a server; the SDK's own
`stdio_client` reads lines of any length into memory, and leaves the children of a server running that ends by itself.
`HttpGuard` checks the requests and bounds the answers of the HTTP client of a server at a URL.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from toolscout.errors import BadEntry, SourceError
from toolscout.sources.mcp_limits import (
    ENCODED,
    MAX_DISCARDED_BYTES,
    MAX_MESSAGE_BYTES,
    SPLIT_BYTES,
    TOO_LARGE,
    LineSplitter,
    LongLine,
    Spills,
    find_request_id,
)
from toolscout.sources.sandbox.processes import start_process
from toolscout.types import clean

if TYPE_CHECKING:
    import httpx2
    from anyio.abc import Process
    from mcp.shared.message import SessionMessage

__all__ = [
    "MAX_OPEN_QUESTIONS",
    "RAW_PAGE",
    "SESSION_LOST",
    "HttpGuard",
    "MessageFilter",
    "RawPage",
    "drain_stderr",
    "filter_transport",
    "is_private",
    "open_stdio",
    "origin_of",
]

MAX_JUNK: Final = 1000  # messages that cannot be read
MAX_UNASKED_PER_S: Final = 100.0  # messages that nobody asked for; above that the server has to wait
MAX_UNASKED_AT_ONCE: Final = 1000.0
MAX_OPEN_QUESTIONS: Final = 64  # requests of the server with an answer of ours that the server has not read
MAX_AWAITED_REQUESTS: Final = 4096  # the oldest are forgotten
SESSION_LOST: Final = "Session terminated"  # the SDK's words for it
LIST_FIELDS: Final = {  # method of a list besides that of tools → the field of its result
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
OTHER_RESULT_KEYS: Final = {"resultType", "toolResult"}  # of results of a call that may lack content
NULLABLE_KEYS: Final = ("structuredContent", "_meta")  # values in which a null means something
#: Key in `_meta` of a request that the gateway sends for a caller: which of `PASSED_CAPABILITIES` the caller's client
#: has. `_declare_caller` puts them in place of ours.
CALLER_META: Final = "toolscout/caller"
PASSED_CAPABILITIES: Final = ("elicitation", "extensions")
RAW_PAGE: Final = "toolscout/page"  # key in `_meta` of a page of a list of tools

LONG_LINE_S: Final = 60.0  # until a line that is too long must end; after that the session ends
EXIT_GRACE_S: Final = 2.0  # between the end of a server's standard input and SIGTERM
KILL_GRACE_S: Final = 2.0  # between SIGTERM and SIGKILL
FLUSH_S: Final = 0.5  # to write the last messages
LAST_WORDS_S: Final = 0.5  # to read what a dead server has left in its pipe
POLL_S: Final = 0.02
SLOW_POLL_S: Final = 0.5  # on systems that cannot wait for a process
CHUNK_BYTES: Final = 65536
STDERR_KEPT_BYTES: Final = 4096
STDERR_PAUSE_S: Final = 0.001  # after a full chunk, so that at most 64 MB a second are read
WATCHDOG_EXIT_S: Final = 0.5  # to wait for it when this program ends

MAX_RESUMPTIONS: Final = 20  # of broken streams, in a minute; the SDK itself has no limit
RESUMPTION_WINDOW_S: Final = 60.0
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
Approve = Callable[[str], Awaitable[bool]]  # origin → whether requests may go there


# --- messages ---------------------------------------------------------------------------------------------------------


class RawPage(NamedTuple):
    """A page of a list of tools: what the server sent as `tools` and as `nextCursor`, unchecked.

    `encoded` is `tools` as JSON, in which credentials are looked for.
    """

    tools: object
    cursor: object
    encoded: str


def _encode_tools(tools: object) -> str:
    """Return tools as JSON, in which credentials are looked for."""
    try:
        return msgspec.json.encode(tools).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(tools)  # they contain lone surrogates or numbers beyond 64 bits


class MessageFilter:
    """Filters, repairs and counts the messages of one session.

    The SDK validates a list of tools as a whole, so one invalid tool would make all of them unusable. It gets only the
    valid ones; the page as it was sent is a `RawPage` under `RAW_PAGE` in the `_meta` of the page that it sees.

    The SDK asks a server with `server/discover` for its version first. If no answer comes, it begins a handshake.

    Attributes:
        is_initializing: whether a handshake was begun.
        ignored_discovery: whether it was begun because `server/discover` got no answer, and none came since.
        was_late: whether `server/discover` was answered after the handshake had begun: the server takes long to start.
        version: the agreed protocol version. Empty until the handshake is done.
        is_modern: whether that is a version without a handshake.
        is_closed: whether the other end has closed the connection.
        junk: how many messages could not be read. After 1,000 the stream is treated as ended.
        unread_answers: how many of our answers to requests of the server it has not read. After 64 the stream is
            treated as ended.
    """

    def __init__(self, revision: str = "") -> None:
        """Filter a session. `revision`: the protocol version that a handshake asks for. Empty: the SDK's newest."""
        self._revision = revision
        self.is_initializing = self.ignored_discovery = self.was_late = False
        self.version = ""
        self.is_modern = False
        self.is_closed = False
        self.junk = 0
        self.unread_answers = 0
        self._awaited: dict[str, str] = {}  # the method of each open request by its id, oldest first
        self._refused: set[str] = set()  # ids of requests whose session the server does not know
        self._allowance = MAX_UNASKED_AT_ONCE  # messages that need not wait, at the time `_counted_at`
        self._counted_at = time.monotonic()

    @property
    def gave_up(self) -> bool:
        """Whether there were too many unreadable messages or unread answers."""
        return self.junk > MAX_JUNK or self.unread_answers > MAX_OPEN_QUESTIONS

    def note_request(self, request_id: object, method: str, params: dict[str, Any] | None) -> None:
        """Note a request that is about to be sent. For `initialize`, its `params` get the revision of the entry."""
        self._awaited[str(request_id)] = method
        while len(self._awaited) > MAX_AWAITED_REQUESTS:
            del self._awaited[next(iter(self._awaited))]
        if method == "initialize":
            self.is_initializing, self.ignored_discovery = True, "server/discover" in self._awaited.values()
            if self._revision and params is not None:
                params["protocolVersion"] = self._revision

    def note_refusal(self, content: bytes) -> None:
        """Note that the HTTP server does not know the session of a request. Its error then says so."""
        with suppress(msgspec.MsgspecError, KeyError, TypeError):
            self._refused.add(str(msgspec.json.decode(content)["id"]))

    def _repair_error(self, message: Any) -> None:
        """Change an error to what the SDK can use: with an id, and the same words for every session that is lost."""
        from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, ErrorData

        if message.id is None and len(self._awaited) == 1:  # some servers do not repeat the id in an error
            [request_id] = self._awaited
            message.id = int(request_id) if request_id.isdigit() else request_id
        if self._awaited.pop(str(message.id), None) == "server/discover":
            self.ignored_discovery = False  # the server did answer, with an error, and only late
        if str(message.id) in self._refused:
            self._refused.discard(str(message.id))
            # These two codes are about the request, so the server knows the session.
            if message.error.code not in (METHOD_NOT_FOUND, INVALID_PARAMS):
                message.error = ErrorData(code=message.error.code, message=SESSION_LOST)

    def filter_page(self, result: Any) -> Any:
        """Return a page of a list of tools with only the fields and tools that the SDK accepts.

        The page as the server sent it is a `RawPage` in `_meta`. The server's own `_meta` is left out: it could imitate
        a `RawPage`. Before the handshake there is no version to check against, and the page stays as it is.
        """
        if not (self.version and isinstance(result, dict)):
            return result
        raw = RawPage(result.get("tools"), result.get("nextCursor"), _encode_tools(result.get("tools")))
        page = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": {RAW_PAGE: raw}}
        if isinstance(raw.cursor, str) and raw.cursor:
            page["nextCursor"] = raw.cursor
        page["tools"] = raw.tools if isinstance(raw.tools, list) else []
        return {**page, "tools": self._choose_valid("tools/list", page, "tools")}

    def _choose_valid(self, method: str, page: dict[str, Any], field: str) -> list[Any]:
        """Return the items of a page that the SDK accepts.

        The SDK accepts or refuses a page as a whole. So each item is tried alone if it refuses the page.
        """
        items: list[Any] = page[field]
        if self._is_valid(method, page):
            return items
        return [item for item in items if self._is_valid(method, {**page, field: [item]})]

    def _is_valid(self, method: str, page: dict[str, Any]) -> bool:
        """Return whether the SDK accepts the page that the server sent for `method`."""
        from mcp_types.methods import validate_server_result

        with suppress(ValueError, RecursionError):
            validate_server_result(method, self.version, page)
            return True
        return False

    def delay_unasked(self) -> float:
        """Count a message that nobody asked for. Returns the seconds to wait before it is accepted.

        A token bucket: 1,000 messages need not wait, and 100 more with each second.
        """
        now = time.monotonic()
        refilled = self._allowance + (now - self._counted_at) * MAX_UNASKED_PER_S
        self._allowance, self._counted_at = min(MAX_UNASKED_AT_ONCE, refilled) - 1.0, now
        return max(0.0, -self._allowance / MAX_UNASKED_PER_S)

    async def repair(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        """Return what the SDK gets for a message of the server, or for the error of one that cannot be parsed.

        Messages that nobody asked for have to wait.

        Raises:
            EndOfStream: if the server sends too much that cannot be read, or reads none of our answers.
        """
        import anyio

        if isinstance(item, Exception):
            self.junk += 1
            if self.gave_up:
                raise anyio.EndOfStream
            return self._repair_reply(item)
        message: Any = item.message
        if hasattr(message, "method"):
            if hasattr(message, "id"):  # a request, which we answer
                self.unread_answers += 1
                if self.gave_up:
                    raise anyio.EndOfStream
            if seconds := self.delay_unasked():
                await anyio.sleep(seconds)
        elif hasattr(message, "result"):
            message.result = self._filter_result(message.id, message.result)
        else:
            self._repair_error(message)
        return item

    def _filter_result(self, request_id: object, result: Any) -> Any:
        """Return the result that the SDK gets for a request: without invalid items of lists, and null fields.

        A result of a call gets an empty `content` if it has none.
        """
        method = self._awaited.pop(str(request_id), "")
        if method == "server/discover" and self.ignored_discovery:
            self.ignored_discovery, self.was_late = False, True
        if method == "tools/list":
            return self.filter_page(result)
        if not isinstance(result, dict):
            return result
        result = _leave_nulls_out(result)
        field = LIST_FIELDS.get(method, "")
        if self.version and isinstance(result.get(field), list):
            result[field] = self._choose_valid(method, result, field)
        if method == "tools/call" and not result.keys() & OTHER_RESULT_KEYS:
            result.setdefault("content", [])
        return result

    def _repair_reply(self, error: Exception) -> SessionMessage | Exception:
        """Return what the SDK gets for a message that it cannot parse: the intended reply, or an error."""
        from mcp.shared.message import SessionMessage
        from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCResponse

        recovered = _recover_reply(error)
        if recovered is None:
            return error
        request_id, result = recovered
        with suppress(ValueError, RecursionError, BadEntry):
            # The tools of a list are cleaned one by one later, so that a tool that cannot be cleaned is named.
            is_list = self._awaited.get(str(request_id)) == "tools/list"
            result = self._filter_result(request_id, result if is_list else clean(result))
            return SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result))
        reply = ErrorData(code=PARSE_ERROR, message="a reply that is no JSON-RPC")
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=reply))


def _leave_nulls_out(value: Any) -> Any:
    """Return a result without the null fields of all objects in it. Other clients read null as absent.

    Nulls in lists stay, and `structuredContent` and `_meta` as they are.
    """
    if isinstance(value, dict):
        return {
            key: inner if key in NULLABLE_KEYS else _leave_nulls_out(inner)
            for key, inner in value.items()
            if inner is not None
        }
    return [_leave_nulls_out(item) for item in value] if isinstance(value, list) else value


def _recover_reply(error: Exception) -> tuple[int | str, Any] | None:
    """Recover id and result of a reply from the error of the SDK's parser. None if the message is not a reply.

    The parser refuses lone surrogates, which real servers send, and deep nesting.
    """
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return None
    for detail in error.errors(include_url=False):
        message = detail["input"]  # what the parser was given: a text, or JSON that is no message
        if isinstance(message, str):
            try:
                message = json.loads(message)
            except (ValueError, RecursionError):  # its id may still be found, so that its caller gets an error
                number = re.search(r'"jsonrpc".{0,40}?"id"\s*:\s*(\d+)', message[:1000])
                message = {"id": int(number[1]), "error": None} if number else None
        if isinstance(message, dict) and ("result" in message or "error" in message):
            request_id = message.get("id")
            if isinstance(request_id, (int, str)) and not isinstance(request_id, bool):
                return request_id, message.get("result")
    return None


@asynccontextmanager
async def filter_transport(
    transport: AbstractAsyncContextManager[Any], messages: MessageFilter
) -> AsyncIterator[tuple[_FilteredReader, _NotingWriter]]:
    """Open a transport and yield its streams, filtered through `messages`."""
    async with transport as (reader, writer):
        yield _FilteredReader(reader, messages), _NotingWriter(writer, messages)


class _Stream:
    """A stream of the SDK, of which a subclass replaces one method. All else is passed on."""

    def __init__(self, stream: Any, messages: MessageFilter) -> None:
        self._stream, self._messages = stream, messages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.aclose()


class _NotingWriter(_Stream):
    """The stream of messages to the server. Tells `MessageFilter` of requests, and of answers that were read."""

    async def send(self, item: Any) -> None:
        """Send a message of the SDK to the server.

        `MessageFilter` learns the method of a request, by which it reads the answer. Without a handshake (`is_modern`),
        each request says what the client can do: `_declare_caller` puts in what the caller's client can.
        """
        message = item.message
        if hasattr(message, "method") and hasattr(message, "id"):
            self._messages.note_request(message.id, message.method, message.params)
        if self._messages.is_modern:
            _declare_caller(getattr(message, "params", None))
        await self._stream.send(item)
        if not hasattr(message, "method"):  # an answer of ours, which the server has now read
            self._messages.unread_answers -= 1


def _declare_caller(params: Any) -> None:
    """Replace what a request declares about our client by what the client of its caller can do.

    So a server asks the user a question (elicitation) only if the caller's client can show it. Changes `params`: the
    caller's capabilities are under `CALLER_META` in its `_meta`. Without that key nothing changes.
    """
    from mcp_types import CLIENT_CAPABILITIES_META_KEY

    meta = (params or {}).get("_meta") or {}
    if CALLER_META in meta:
        caller_capabilities, our_capabilities = meta.pop(CALLER_META), meta[CLIENT_CAPABILITIES_META_KEY]
        other_capabilities = {key: value for key, value in our_capabilities.items() if key not in PASSED_CAPABILITIES}
        meta[CLIENT_CAPABILITIES_META_KEY] = {**other_capabilities, **caller_capabilities}


class _FilteredReader(_Stream):
    """The stream of messages from the server."""

    async def __aexit__(self, *_: object) -> None:
        self._messages.is_closed = True
        await self._stream.aclose()

    def __aiter__(self) -> _FilteredReader:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        import anyio

        try:
            item = await self._stream.receive()
            self.last_context = getattr(self._stream, "last_context", None)  # of the sender, which the SDK asks for
            return await self._messages.repair(item)
        except anyio.EndOfStream:
            self._messages.is_closed = True
            raise StopAsyncIteration from None
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._messages.is_closed = True
            raise


# --- processes --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_stdio(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    errors: IO[str],
    spills: Spills | None = None,
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server and yield its streams of messages: from the server, and to it.

    The server leads a process group of its own. The entire group ends (SIGTERM, then SIGKILL) if the block is left, if
    the server ends, or if this program ends in any way. A process that left the group (a daemon that called `setsid`)
    goes on. The large values of results go to `spills`.

    Raises:
        OSError: if the command cannot be started.
        ValueError: if an argument cannot be passed on.
    """
    import anyio

    process, output = await _start_group(command, env=env, cwd=cwd, errors=errors)
    # do not await before the task group is entered: a cancellation would lose the process
    reading = _ProcessReader(output, spills)
    writing = _ProcessWriter(process, reading)

    async def discard_output() -> None:
        """Read on after the session ended, because a server that is blocked in a write cannot end."""
        await reading.ended.wait()
        with suppress(OSError):
            while await _read_chunk(output):
                pass

    async def clean_up_after_exit() -> None:
        """Wait until the server ends, then end its children and the session."""
        await _wait_for_exit(process)
        await _end_group(process)
        with anyio.move_on_after(LAST_WORDS_S):
            await reading.ended.wait()
        await reading.aclose()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(discard_output)
            group.start_soon(clean_up_after_exit)
            try:
                yield reading, writing
            finally:
                with anyio.CancelScope(shield=True):
                    await reading.aclose()
                    with anyio.move_on_after(FLUSH_S):
                        await writing.send(None)
                    await _stop(process)
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
    finally:
        os.close(output)


class _ProcessReader:
    """The stream of messages from a process. `receive` reads the pipe itself: no other task hands messages on.

    Attributes:
        ended: is set when nobody receives any more.
        last_context: the SDK looks for the context of the sender here.
    """

    last_context = None

    def __init__(self, descriptor: int, spills: Spills | None) -> None:
        import anyio

        self.ended = anyio.Event()
        self._descriptor = descriptor
        self._splitter = LineSplitter(spills=spills)
        self._lines: Iterator[bytes | LongLine] = iter(())
        self._waiting: anyio.CancelScope | None = None  # in which `receive` waits for bytes now
        self._deadline = math.inf  # of a line that is too long
        self._is_closed = False

    async def receive(self) -> Any:
        """Receive the next message, or the exception that says why there is none in a line.

        Raises:
            EndOfStream: the server ended or sent too much, or this stream was closed.
        """
        import anyio

        while not self._is_closed:
            if (line := next(self._lines, None)) is not None:
                return _parse_message(line)
            if not self._splitter.discarded:
                self._deadline = math.inf
            elif self._deadline == math.inf:
                self._deadline = anyio.current_time() + LONG_LINE_S
            chunk = b""
            with suppress(OSError), anyio.CancelScope(deadline=self._deadline) as self._waiting:
                chunk = await _read_chunk(self._descriptor)
            self._waiting = None
            if not chunk or self._splitter.discarded > MAX_DISCARDED_BYTES:
                break
            self._lines = self._splitter.feed(chunk)
        self._is_closed = True
        self._splitter.close()
        self.ended.set()
        raise anyio.EndOfStream

    async def aclose(self) -> None:
        """Receive nothing more. A task that waits in `receive` gets `EndOfStream`."""
        self._is_closed = True
        if self._waiting is not None:
            self._waiting.cancel()  # `receive` then does the rest
        else:
            self._splitter.close()
            self.ended.set()


class _ProcessWriter:
    """The stream of messages to a process. A process that cannot be written to ends the session."""

    def __init__(self, process: Process, reading: _ProcessReader) -> None:
        import anyio

        assert process.stdin is not None
        self._stdin, self._reading = process.stdin, reading
        self._send_lock = anyio.Lock(fast_acquire=True)

    async def send(self, item: Any) -> None:
        """Wait until the process has read what was sent before, and send a message. None: only wait.

        While the process reads nothing, one message waits in memory, and other senders wait here.
        """
        import anyio

        data = b""
        if item is not None:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            data = text.encode("utf-8", "replace") + b"\n"
        try:
            async with self._send_lock:
                await self._stdin.send(b"")  # returns when the pipe has taken what was sent before
                if data:
                    await self._stdin.send(data)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            await self._reading.aclose()

    async def aclose(self) -> None:
        """Do nothing: the input of the process is closed with the process."""


async def _start_group(
    command: Sequence[str], *, env: Mapping[str, str], cwd: str | None, errors: IO[str]
) -> tuple[Process, int]:
    """Start a process in a group of its own, which ends at the latest with this program.

    Returns the process, and the descriptor from which its output is read. The pipe is our own: if a daemon keeps the
    other end open, asyncio offers no way to close a pipe of its own.
    """
    output, child_output = os.pipe()
    try:
        process = await start_process(command, env=env, cwd=cwd, errors=errors, output=child_output)
    except BaseException:
        os.close(output)
        raise
    finally:
        os.close(child_output)  # the process has its own copy
    _guard_group(process.pid)
    os.set_blocking(output, False)
    return process, output


async def _read_chunk(descriptor: int) -> bytes:
    """Read the next bytes of a pipe. Empty: all its writers have ended."""
    import anyio

    while True:
        await anyio.wait_readable(descriptor)
        with suppress(BlockingIOError):
            return os.read(descriptor, CHUNK_BYTES)


def _parse_message(line: bytes | LongLine) -> Any:
    """Return the message in a line, or the exception that says why there is none."""
    from mcp.shared.message import SessionMessage
    from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

    if isinstance(line, LongLine):
        number = find_request_id(line)
        if number is None:
            return ValueError(TOO_LARGE)
        return SessionMessage(
            JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=INTERNAL_ERROR, message=TOO_LARGE))
        )
    try:
        text = line.decode("utf-8", "replace")
        return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValueError as error:
        return error


async def _wait_for_exit(process: Process) -> None:
    """Wait until the leader of the group ends, even if other processes keep its pipes open."""
    import anyio

    if process.returncode is None and hasattr(os, "pidfd_open"):
        with suppress(OSError):  # it has ended, or the kernel lacks pidfd
            descriptor = os.pidfd_open(process.pid)
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
    pause = POLL_S if hasattr(os, "pidfd_open") else SLOW_POLL_S
    while process.returncode is None:
        await anyio.sleep(pause)


async def _stop(process: Process) -> None:
    """End a server as the MCP specification says: close its input, wait, then end its group."""
    import anyio

    assert process.stdin is not None
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.aclose()
    with anyio.move_on_after(EXIT_GRACE_S):
        while process.returncode is None:
            await anyio.sleep(POLL_S)
    await _end_group(process)
    with anyio.move_on_after(KILL_GRACE_S):
        while process.returncode is None:
            await anyio.sleep(POLL_S)


async def _end_group(process: Process) -> None:
    """End a server and all processes that it started."""
    from mcp.os.posix.utilities import terminate_posix_process_tree

    if process.pid not in _groups:
        return  # it has ended, and its number may belong to another group now
    await terminate_posix_process_tree(process, KILL_GRACE_S)
    _release_group(process.pid)


def drain_stderr(descriptor: int, keep: Callable[[bytes], None]) -> threading.Thread:
    """Read the stderr of a server in a thread until all its writers end. `keep` gets the end of each chunk."""

    def run() -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                keep(chunk[-STDERR_KEPT_BYTES:])
                if len(chunk) == CHUNK_BYTES:
                    time.sleep(STDERR_PAUSE_S)

    thread = threading.Thread(target=run, daemon=True, name="toolscout stderr")
    thread.start()
    return thread


# --- the watchdog: it ends processes if this program does not ---------------------------------------------------------
#
# The watchdog reads process groups from a pipe, which closes when this program ends, even by SIGKILL. Then it ends the
# groups that are left. It needs only the interpreter. (PR_SET_PDEATHSIG exists on Linux only, and does not reach the
# children of a server.)

WATCHDOG_PROGRAM: Final = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
def end(number):
    for group in sorted(groups):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            groups.discard(group)
        except PermissionError:
            pass
end(signal.SIGTERM)
for _ in range(20):
    if groups:
        time.sleep(0.1)
        end(0)
end(signal.SIGKILL)
"""
_lock: Final = threading.Lock()
_groups: Final[set[int]] = set()
_watchdog: subprocess.Popen[bytes] | None = None


def _guard_group(group: int) -> None:
    """End a process group when this program ends, unless it is released before."""
    with _lock:
        _groups.add(group)
        _send_line(f"+{group}\n")


def _release_group(group: int) -> None:
    """Forget a process group that has ended. Its number may soon belong to another group."""
    with _lock:
        _groups.discard(group)
        _send_line(f"-{group}\n")


def _send_line(line: str) -> None:
    """Write a line to the watchdog: `+` or `-` and a group. `_lock` must be held.

    A watchdog that has ended, or was never started, is started with all present groups instead of this line.
    """
    global _watchdog
    with suppress(OSError):  # without a watchdog, servers survive only a SIGKILL of this program
        if _watchdog is None or _watchdog.poll() is not None:
            if not _groups:
                return
            _watchdog = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", WATCHDOG_PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
            line = "".join(f"+{group}\n" for group in _groups)
        assert _watchdog.stdin is not None
        _watchdog.stdin.write(line.encode())
        _watchdog.stdin.flush()


@atexit.register
def _close_watchdog() -> None:
    """Close the pipe and wait. The watchdog ends the groups that are left, then itself."""
    with _lock, suppress(OSError, subprocess.TimeoutExpired):
        if _watchdog is not None and _watchdog.stdin is not None:
            _watchdog.stdin.close()
            _watchdog.wait(WATCHDOG_EXIT_S)


# --- HTTP -------------------------------------------------------------------------------------------------------------


class HttpGuard:
    """Event hooks for the client of one MCP server.

    Attributes:
        hooks: for `httpx2.AsyncClient(event_hooks=…)`.
    """

    def __init__(self, url: str, approve: Approve, note: Callable[[Any], None], spills: Spills | None = None) -> None:
        """Guard the client for an address.

        Args:
            url: the address of the server.
            approve: decides whether requests may go to another origin.
            note: is called with every response.
            spills: where the large values of results go. None: nowhere.
        """
        self._own_origin = origin_of(url)
        self._approve, self._note, self._spills = approve, note, spills
        self._resumed_at: deque[float] = deque()  # when streams were resumed in the last minute
        self.hooks: dict[str, list[Any]] = {"request": [self._check_request], "response": [self._bound_response]}

    async def _check_request(self, request: httpx2.Request) -> None:
        """Refuse a request to an origin that nobody has approved. Others ask for an answer without compression.

        Raises:
            SourceError: naming the origin, or if streams break off too often.
        """
        request.headers["accept-encoding"] = "identity"
        target = origin_of(str(request.url))
        if target not in (self._own_origin, upgrade_origin(self._own_origin)) and not await self._approve(target):
            raise SourceError(
                f"it asks for a request to {target}, which is not its own address and which nobody has approved: "
                "the request was not sent"
            )
        if "last-event-id" in request.headers:  # it resumes a stream that broke off
            self._count_resumption()

    def _count_resumption(self) -> None:
        """Count a stream that broke off and was resumed. Raises SourceError for more than 20 in a minute."""
        now = time.monotonic()
        while self._resumed_at and self._resumed_at[0] < now - RESUMPTION_WINDOW_S:
            self._resumed_at.popleft()
        if len(self._resumed_at) >= MAX_RESUMPTIONS:
            raise SourceError(f"its streams broke off more than {MAX_RESUMPTIONS} times in a minute")
        self._resumed_at.append(now)

    async def _bound_response(self, response: httpx2.Response) -> None:
        """Replace the body of a response by one of at most `MAX_MESSAGE_BYTES`, without the large values of results.

        The SDK itself bounds each event of an event stream.
        """
        import httpx2

        self._note(response)
        kind = response.headers.get("content-type", "").lower()
        is_event_stream = kind.startswith("text/event-stream")
        is_message = kind.startswith("application/json") and response.status_code < 400
        spills = self._spills if is_message or is_event_stream else None
        limit = MAX_DISCARDED_BYTES if spills is not None else MAX_MESSAGE_BYTES
        refusal = _find_refusal(response.headers, None if is_event_stream else limit)
        if refusal == ENCODED:
            del response.headers["content-encoding"]  # the refused body is never read, so it must not be decoded
        assert isinstance(response.stream, AsyncIterable)  # of an asynchronous client
        error_class = httpx2.SSEError if is_event_stream else httpx2.StreamError  # the SDK answers the request with it
        if refusal:
            chunks = _refuse_body(error_class(refusal))
        elif is_event_stream:
            chunks = _split_events(spills, response.stream, error_class)
        elif spills is not None:
            chunks = _split_body(spills, response.stream, error_class)
        else:
            chunks = _pass_bounded(response.stream, error_class)
        response.stream = _replace_body(response.stream, chunks)


def _find_refusal(headers: Mapping[str, str], limit: int | None) -> str:
    """Return why headers alone forbid a body: it is encoded, or longer than the limit in bytes. Empty: they do not."""
    encodings = headers.get("content-encoding", "").lower().replace(" ", "").split(",")
    if not set(encodings) <= {"", "identity"}:
        return ENCODED
    length = headers.get("content-length", "")
    return TOO_LARGE if limit is not None and length.isdigit() and int(length) > limit else ""


async def _pass_bounded(stream: AsyncIterable[bytes], error_class: type[Exception]) -> AsyncIterator[bytes]:
    """Pass a body on, and raise an error once it is longer than `MAX_MESSAGE_BYTES`."""
    count = 0
    async for chunk in stream:
        count += len(chunk)
        if count > MAX_MESSAGE_BYTES:
            raise error_class(TOO_LARGE)
        yield chunk


async def _split_body(
    spills: Spills, stream: AsyncIterable[bytes], error_class: type[Exception]
) -> AsyncIterator[bytes]:
    """Read a body that is one message, and yield it. If it is above 2 MiB, large values of a result go to a file."""
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
                raise error_class(TOO_LARGE)
        message = bytes(body) if writer is None else writer.finish()
        writer = None
    except ValueError:  # of the writer: what stays in memory is too large, or it is no JSON
        raise error_class(TOO_LARGE) from None
    finally:
        if writer is not None:
            writer.abandon()
    yield message


async def _split_events(
    spills: Spills | None, stream: AsyncIterable[bytes], error_class: type[Exception]
) -> AsyncIterator[bytes]:
    """Pass an event stream on line by line. Large values of a result go to a file."""
    splitter = LineSplitter(spills=spills, prefix=b"data:")
    try:
        async for chunk in stream:
            for line in splitter.feed(chunk):
                if isinstance(line, LongLine):
                    raise error_class(TOO_LARGE)
                yield line + b"\n"
            if splitter.discarded:  # the line has not ended yet, but is too long already
                raise error_class(TOO_LARGE)
    finally:
        splitter.close()


async def _refuse_body(error: Exception) -> AsyncIterator[bytes]:
    """Raise an error in place of a body."""
    raise error
    yield b""  # is never reached: it makes this function a generator


def _replace_body(stream: Any, chunks: AsyncIterator[bytes]) -> httpx2.AsyncByteStream:
    """Return a body that yields `chunks` in place of those of `stream`, and closes the stream."""
    import httpx2

    class BoundedStream(httpx2.AsyncByteStream):
        def __aiter__(self) -> AsyncIterator[bytes]:
            return chunks

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
    """Return whether an origin is on this machine or in its networks. False if its name cannot be resolved."""
    from toolscout.sources.addresses import is_public_address

    parts = urlsplit(origin)
    try:
        entries = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False  # nobody can be reached there
    # An address of IPv6 may end with the name of an interface, such as %eth0.
    return any(not is_public_address(str(address[0]).partition("%")[0]) for *_, address in entries)
