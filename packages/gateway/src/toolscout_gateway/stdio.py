"""Serves MCP over the standard streams of this process, in the event loop.

The SDK's `stdio_server` reads and writes in threads, and hands each message on between tasks. Here the task that
receives a message reads it, and the task that sends one writes it. The SDK's server is used if standard input or output
is neither a pipe nor a socket, because an event loop can only wait for those.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

__all__ = ["LineReader", "LineWriter", "open_standard_streams"]

CHUNK_BYTES: Final = 65536
FLUSH_S: Final = 0.5  # to write the last line at the end
MAX_WRITE_BYTES: Final = 4096  # PIPE_BUF of Linux: a pipe that is ready takes so many without blocking
STANDARD_INPUT: Final = 0
STANDARD_OUTPUT: Final = 1
STANDARD_ERROR: Final = 2


@asynccontextmanager
async def open_standard_streams() -> AsyncIterator[tuple[Any, Any]]:
    """Open standard input and output, and yield the streams of messages: from the client, and to it.

    Inside the block descriptor 0 is at its end and descriptor 1 is stderr, so that nothing else takes or writes parts
    of messages.
    """
    if not (_can_wait_for(STANDARD_INPUT) and _can_wait_for(STANDARD_OUTPUT)):
        from mcp.server.stdio import stdio_server

        async with stdio_server() as streams:
            yield streams
        return
    with _divert(STANDARD_INPUT) as source, _divert(STANDARD_OUTPUT) as target:
        yield _MessageReader(source), _MessageWriter(target)


def _can_wait_for(descriptor: int) -> bool:
    """Return whether the event loop can wait for a descriptor: a pipe or a socket, not on Windows."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return sys.platform != "win32" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))


@contextmanager
def _divert(descriptor: int) -> Iterator[int]:
    """Yield a copy of a standard descriptor, which leads elsewhere inside the block."""
    copy = os.dup(descriptor)
    other = os.open(os.devnull, os.O_RDONLY) if descriptor == STANDARD_INPUT else os.dup(STANDARD_ERROR)
    try:
        os.dup2(other, descriptor)
        yield copy
    finally:
        os.dup2(copy, descriptor)
        os.close(other)
        os.close(copy)


class LineReader:
    """The lines of a pipe or socket, without their ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._begun: list[bytes] = []  # pieces of a line without its end
        self._has_ended = False

    def __aiter__(self) -> LineReader:
        return self

    async def __anext__(self) -> str:
        """Return the next line, once it is there."""
        import anyio

        while not self._lines:
            if self._has_ended:
                raise StopAsyncIteration
            await anyio.wait_readable(self._descriptor)
            self._split(self._read())
        return self._lines.popleft().decode("utf-8", "replace")

    def _read(self) -> bytes:
        """Read what is there. Empty at the end, also if the other side broke the connection."""
        try:
            return os.read(self._descriptor, CHUNK_BYTES)
        except ConnectionError:
            return b""

    def _split(self, chunk: bytes) -> None:
        """Keep the lines that end in a chunk, and the beginning of the next line. The last line may lack a line end."""
        if not chunk:
            self._has_ended = True
            if last := b"".join(self._begun):
                self._lines.append(last)
            return
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            self._lines.append(b"".join([*self._begun, line]))
            self._begun.clear()
        if rest:
            self._begun.append(rest)


class LineWriter:
    """A pipe or socket to which lines are written. A reader that is slow delays the writers only.

    If a writer is cancelled in the middle of its line, the next writer first writes the rest of this line.
    """

    def __init__(self, descriptor: int) -> None:
        import anyio

        self._descriptor = descriptor
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)
        self._turn = anyio.Lock(fast_acquire=True)
        self._rest = memoryview(b"")  # of the line that is being written

    async def write(self, text: str) -> None:
        """Write a text that ends a line.

        Raises:
            OSError: if nobody reads any more.
        """
        import anyio

        encoded = memoryview(text.encode("utf-8", "replace"))
        async with self._turn:
            while encoded or self._rest:
                if not self._rest:  # the line of the writer before is complete: begin with this one
                    self._rest, encoded = encoded, memoryview(b"")
                if not self._ready.poll(0):
                    await anyio.wait_writable(self._descriptor)
                self._rest = self._rest[os.write(self._descriptor, self._rest[:MAX_WRITE_BYTES]) :]


class _MessageReader:
    """The stream of messages from the client, as the SDK's server reads it. Its descriptor belongs to the block."""

    def __init__(self, descriptor: int) -> None:
        self._lines = LineReader(descriptor)

    async def __aenter__(self) -> _MessageReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def aclose(self) -> None:
        """Do nothing: the block gives the descriptor back."""

    def __aiter__(self) -> _MessageReader:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        """Receive the next message, or the exception that says why there is none in a line."""
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        line = await self._lines.__anext__()
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError as error:
            return error


class _MessageWriter(LineWriter):
    """The stream of messages to the client, as the SDK's server writes it. Its descriptor belongs to the block."""

    async def __aenter__(self) -> _MessageWriter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Write what a cancelled request has left of its line."""
        import anyio

        with suppress(OSError), anyio.move_on_after(FLUSH_S):
            await self.write("")  # before its text, `write` writes the rest of an earlier line

    async def send(self, item: SessionMessage) -> None:
        """Send a message.

        Raises:
            BrokenResourceError: if the client reads no more.
        """
        import anyio

        try:
            await self.write(item.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n")
        except OSError as error:
            raise anyio.BrokenResourceError from error
