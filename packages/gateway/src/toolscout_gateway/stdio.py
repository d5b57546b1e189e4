"""Serves MCP over the standard streams of this process, in the event loop.

The SDK's `stdio_server` reads and writes in threads, which costs each message three changes of thread. It still does
so here if standard input or output is neither a pipe nor a socket, because a loop can only wait for those.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

__all__ = ["LineReader", "LineWriter", "open_standard_streams"]

CHUNK_BYTES: Final = 65536
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
    from mcp.server.stdio import stdio_server

    if not (_can_wait_for(STANDARD_INPUT) and _can_wait_for(STANDARD_OUTPUT)):
        async with stdio_server() as streams:
            yield streams
        return
    with _divert(STANDARD_INPUT) as source, _divert(STANDARD_OUTPUT) as target:
        lines: Any = LineReader(source)
        out: Any = LineWriter(target)
        async with stdio_server(lines, out) as streams:
            yield streams


def _can_wait_for(descriptor: int) -> bool:
    """Return whether a loop can wait for a descriptor, which others do not use as a terminal."""
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
    """The lines of a pipe or socket, without their ends. It is iterated over as the SDK iterates over a file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._begun: list[bytes] = []  # pieces of a line without its end
        self._has_ended = False

    def __aiter__(self) -> LineReader:
        return self

    async def __anext__(self) -> str:
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
        """Keep the lines that end in a chunk, and the begin of the next. The last line may lack its end."""
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
    """A pipe or socket that is written to as the SDK writes to a file. A reader that is slow delays the writer only."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)

    async def write(self, text: str) -> None:
        """Write a text.

        Raises:
            OSError: if nobody reads any more.
        """
        import anyio

        rest = memoryview(text.encode("utf-8", "replace"))
        while rest:
            if not self._ready.poll(0):
                await anyio.wait_writable(self._descriptor)
            rest = rest[os.write(self._descriptor, rest[:MAX_WRITE_BYTES]) :]

    async def flush(self) -> None:
        """Do nothing: what was written is with the system already."""
