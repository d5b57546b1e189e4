"""Speaks MCP over the standard streams of a process. Bounds the lines, and ends every process that was started.

The SDK's `stdio_client` reads lines of any length into memory. If a server ends by itself, it leaves the server's
children running. This transport does neither. It uses the SDK's message types and its way to end a process group.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final

from toolscout.sandbox.processes import start_process
from toolscout.sources import mcp_watchdog
from toolscout.sources.mcp_limits import MAX_DISCARDED_BYTES, TOO_LARGE, LineSplitter, LongLine, find_request_id

if TYPE_CHECKING:
    from anyio.abc import Process

    from toolscout.sources.mcp_direct import DirectLists
    from toolscout.sources.mcp_spill import Spills

__all__ = ["drain_stderr", "open_stdio"]

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


@asynccontextmanager
async def open_stdio(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    errors: IO[str],
    direct: DirectLists,
    spills: Spills | None = None,
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server and yield its streams of messages: from the server, and to it.

    The server leads a process group of its own. The entire group ends (SIGTERM, then SIGKILL) if the block is left, if
    the server ends, or if this program ends in any way. A process that left the group (a daemon that called `setsid`)
    goes on. The values of large results go to `spills`. `direct` asks for lists past the streams.

    Raises:
        OSError: if the command cannot be started.
        ValueError: if an argument cannot be passed on.
    """
    import anyio

    process = await start_process(command, env=env, cwd=cwd, errors=errors)
    # do not await before the task group is entered: a cancellation would lose the process
    mcp_watchdog.guard_group(process.pid)
    coming_in, received = anyio.create_memory_object_stream[Any](0)
    to_send, going_out = anyio.create_memory_object_stream[Any](0)
    read_all, written_all = anyio.Event(), anyio.Event()

    async def receive_messages() -> None:
        assert process.stdout is not None
        splitter = LineSplitter(spills=spills)
        try:
            async with coming_in:
                with suppress(anyio.EndOfStream), anyio.CancelScope() as scope:
                    while splitter.discarded <= MAX_DISCARDED_BYTES:
                        chunk = await process.stdout.receive(CHUNK_BYTES)
                        for message in _parse_messages(splitter.feed(chunk), direct):
                            await coming_in.send(message)
                        latest = anyio.current_time() + LONG_LINE_S
                        scope.deadline = min(scope.deadline, latest) if splitter.discarded else math.inf
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            pass  # we closed the stream, or the server did
        finally:
            splitter.close()
            read_all.set()
            direct.close()

    async def discard_output() -> None:
        """Read on after the session ended, because a server that is blocked in a write cannot end."""
        assert process.stdout is not None
        await read_all.wait()
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            while True:
                await process.stdout.receive(CHUNK_BYTES)

    async def send_messages() -> None:
        assert process.stdin is not None
        try:
            async with going_out:
                async for item in going_out:
                    text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await process.stdin.send(text.encode("utf-8", "replace") + b"\n")
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            await coming_in.aclose()  # this ends the session
        finally:
            written_all.set()

    async def clean_up_after_exit() -> None:
        """Wait until the server ends, then end its children and the session."""
        await _wait_for_exit(process)
        await _end_group(process)
        with anyio.move_on_after(LAST_WORDS_S):
            await read_all.wait()
        await coming_in.aclose()

    assert process.stdin is not None
    direct.write = process.stdin.send
    async with anyio.create_task_group() as group:
        for task in (receive_messages, discard_output, send_messages, clean_up_after_exit):
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


def _parse_messages(lines: Iterable[bytes | LongLine], direct: DirectLists) -> Iterator[Any]:
    """Yield the messages for the SDK, without the answers that were asked for past it."""
    for line in lines:
        if not direct.take(line):
            yield _parse_message(line)


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
    """Wait until the leader of the group ends, even if other processes hold its pipes."""
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
            transport.close()  # a process that survived may hold a pipe open, which keeps the transport open


async def _end_group(process: Process) -> None:
    from mcp.os.posix.utilities import terminate_posix_process_tree

    if not mcp_watchdog.is_guarded(process.pid):
        return  # it has ended, and its number may belong to another group now
    await terminate_posix_process_tree(process, KILL_GRACE_S)
    mcp_watchdog.release_group(process.pid)


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
