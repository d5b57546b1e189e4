"""MCP over the standard input and output of a process, with bounded lines and an end for every process it started.

The SDK's `stdio_client` reads a line of any length into memory, and leaves the children of a server running that ends
by itself. This transport bounds both; the handshake, the parser and the end of a process group are the SDK's.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final

from toolscout.sources import mcp_watchdog
from toolscout.sources.mcp_limits import MAX_DISCARDED_BYTES, TOO_LARGE, LineSplitter, LongLine, find_request_id

if TYPE_CHECKING:
    from anyio.abc import Process

__all__ = ["drain_stderr", "open_stdio"]

LONG_LINE_S: Final = 60.0  # for a line that is thrown away to end; then the session counts as ended
EXIT_GRACE_S: Final = 2.0  # for a server to end by itself once its standard input is closed
KILL_GRACE_S: Final = 2.0  # between SIGTERM and SIGKILL
FLUSH_S: Final = 0.5
LAST_WORDS_S: Final = 0.5  # for what a dead server has left in its pipe
POLL_S: Final = 0.02
SLOW_POLL_S: Final = 0.5  # where the system has no way to wait for a process
CHUNK_BYTES: Final = 65536
STDERR_KEPT_BYTES: Final = 4096
STDERR_PAUSE_S: Final = 0.001  # after a full chunk: a server that floods stderr gets 64 MB a second at most


@asynccontextmanager
async def open_stdio(
    command: Sequence[str], *, env: Mapping[str, str], cwd: str | None, errors: IO[str]
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server; gives the streams of messages that come from it and that go to it.

    The server leads a process group of its own. When the block is left, when the server ends and when this program
    ends, in whatever way, the whole group is ended: SIGTERM, then SIGKILL. A process that has left the group (a daemon
    that called `setsid`) escapes.

    Raises:
        OSError: if the command cannot be started.
        ValueError: if an argument cannot be passed on.
    """
    import anyio

    process = await anyio.open_process(
        list(command), env=dict(env), cwd=cwd, stderr=errors, start_new_session=True
    )  # no await until the task group is entered: a cancellation in between would lose the process
    mcp_watchdog.guard_group(process.pid)
    coming_in, received = anyio.create_memory_object_stream[Any](0)
    to_send, going_out = anyio.create_memory_object_stream[Any](0)
    read_all, written_all = anyio.Event(), anyio.Event()

    async def read() -> None:
        assert process.stdout is not None
        splitter = LineSplitter()
        try:
            async with coming_in:
                with suppress(anyio.EndOfStream), anyio.CancelScope() as scope:
                    while splitter.discarded <= MAX_DISCARDED_BYTES:  # else the line has no end
                        chunk = await process.stdout.receive(CHUNK_BYTES)
                        for line in splitter.feed(chunk):
                            await coming_in.send(_parse(line))
                        latest = anyio.current_time() + LONG_LINE_S
                        scope.deadline = min(scope.deadline, latest) if splitter.discarded else math.inf
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            pass  # our own end, or the server's
        finally:
            read_all.set()

    async def drain() -> None:
        """Read on when nobody listens any more: a server that is stuck in writing cannot end."""
        assert process.stdout is not None
        await read_all.wait()
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            while True:
                await process.stdout.receive(CHUNK_BYTES)

    async def write() -> None:
        assert process.stdin is not None
        try:
            async with going_out:
                async for item in going_out:
                    text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await process.stdin.send(text.encode("utf-8", "replace") + b"\n")
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            await coming_in.aclose()  # the session learns that it is over
        finally:
            written_all.set()

    async def bury() -> None:
        """Once the server has ended, its children end too, and the session learns of it."""
        await _wait_for_exit(process)
        await _end_group(process)
        with anyio.move_on_after(LAST_WORDS_S):
            await read_all.wait()
        await coming_in.aclose()

    async with anyio.create_task_group() as group:
        for task in (read, drain, write, bury):
            group.start_soon(task)
        try:
            yield received, to_send
        finally:
            with anyio.CancelScope(shield=True):
                received.close()
                to_send.close()
                with anyio.move_on_after(FLUSH_S):
                    await written_all.wait()
                await _stop(process)
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()


def _parse(line: bytes | LongLine) -> Any:
    """Return a message for the session, or the exception that says why a line is none."""
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
    """Wait for the leader of the group, whoever still holds its pipes."""
    import anyio

    if process.returncode is None and hasattr(os, "pidfd_open"):
        with suppress(OSError):  # gone already, or a kernel without it
            descriptor = os.pidfd_open(process.pid)
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
    pause = POLL_S if hasattr(os, "pidfd_open") else SLOW_POLL_S
    while process.returncode is None:
        await anyio.sleep(pause)


async def _stop(process: Process) -> None:
    """End a server as the MCP specification asks: close its input, wait, then end its whole group."""
    import anyio

    assert process.stdin is not None and process.stdout is not None
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.aclose()
    with anyio.move_on_after(EXIT_GRACE_S):
        while process.returncode is None:
            await anyio.sleep(POLL_S)
    await _end_group(process)
    with anyio.move_on_after(KILL_GRACE_S):
        while process.returncode is None:
            await anyio.sleep(POLL_S)
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdout.aclose()
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    with suppress(PermissionError):
        if transport is not None:
            transport.close()  # a survivor may hold a pipe open, and the transport with it


async def _end_group(process: Process) -> None:
    from mcp.os.posix.utilities import terminate_posix_process_tree

    if not mcp_watchdog.is_guarded(process.pid):
        return  # ended before: the number of the group may be somebody else's by now
    await terminate_posix_process_tree(process, KILL_GRACE_S)
    mcp_watchdog.release_group(process.pid)


def drain_stderr(descriptor: int, keep: Callable[[bytes], None]) -> threading.Thread:
    """Read what a server writes to stderr in a thread, as long as anybody holds the other end."""

    def run() -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                keep(chunk[-STDERR_KEPT_BYTES:])
                if len(chunk) == CHUNK_BYTES:
                    time.sleep(STDERR_PAUSE_S)

    thread = threading.Thread(target=run, daemon=True, name="toolscout stderr")
    thread.start()
    return thread
