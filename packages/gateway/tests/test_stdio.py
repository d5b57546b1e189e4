"""The gateway's own standard streams: lines in any pieces, readers that are slow, and descriptors that come back."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from toolscout_gateway.stdio import CHUNK_BYTES, LineReader, LineWriter, _can_wait_for

SERVE = """
import anyio, os
from toolscout_gateway.stdio import open_standard_streams

async def main():
    async with open_standard_streams() as (reading, writing):
        print("stray", flush=True)  # goes to stderr
        assert os.read(0, 1) == b""  # nothing else takes the client's messages
        async for item in reading:
            if not isinstance(item, Exception):
                await writing.send(item)
        await writing.aclose()

anyio.run(main)
os.write(1, b"back")
"""


async def read_all(descriptor: int) -> list[str]:
    return [line async for line in LineReader(descriptor)]


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"o", b"ne\nt", b"wo"], ["one", "two"]),
        (["ø".encode()[:1], "ø".encode()[1:] + b"\n"], ["ø"]),
        ([b"\xff\n\n"], ["\ufffd", ""]),
        ([b"a" * (CHUNK_BYTES + 5) + b"\nend\n"], ["a" * (CHUNK_BYTES + 5), "end"]),
        ([], []),
    ],
)
def test_lines_are_read_whole_whatever_the_pieces(pieces: list[bytes], lines: list[str]) -> None:
    async def body() -> list[str]:
        ours, theirs = socket.socketpair()

        async def send() -> None:
            for piece in pieces:
                await anyio.to_thread.run_sync(theirs.sendall, piece)
                await anyio.sleep(0.01)
            theirs.close()

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            result = await read_all(ours.fileno())
        ours.close()
        return result

    assert anyio.run(body) == lines


def test_a_slow_reader_holds_up_the_writer_and_not_the_loop() -> None:
    text = "x" * 1_000_000 + "\n"

    async def body() -> str:
        source, target = os.pipe()
        ticks = 0

        async def write() -> None:
            await LineWriter(target).write(text)
            os.close(target)

        async with anyio.create_task_group() as group:
            group.start_soon(write)
            for _ in range(20):
                await anyio.sleep(0.001)
                ticks += 1  # the loop goes on while the pipe is full
            assert ticks == 20
            [line] = await read_all(source)
        os.close(source)
        return line

    assert anyio.run(body) == text[:-1]


def test_a_client_that_breaks_the_connection_ends_the_lines() -> None:
    async def body() -> list[str]:
        ours, theirs = socket.socketpair()
        ours.sendall(b"never read")
        theirs.sendall(b"one\n")
        reader = LineReader(ours.fileno())
        first = await reader.__anext__()
        theirs.close()  # with data unread: a reset
        rest = [line async for line in reader]
        ours.close()
        return [first, *rest]

    assert anyio.run(body) == ["one"]


def test_files_are_left_to_the_threads_of_the_sdk(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        assert not _can_wait_for(file.fileno())
    source, target = os.pipe()
    assert _can_wait_for(source) and _can_wait_for(target)
    os.close(source)
    os.close(target)
    assert not _can_wait_for(source)


@pytest.mark.parametrize("as_file", [False, True])
def test_stray_output_misses_the_messages_and_the_streams_come_back(tmp_path: Path, as_file: bool) -> None:
    message = b'{"jsonrpc":"2.0","method":"ping","id":1}\n'
    (tmp_path / "in").write_bytes(message)
    with open(tmp_path / "in", "rb") as file:
        given: dict[str, object] = {"stdin": file} if as_file else {"input": message}
        done = subprocess.run([sys.executable, "-c", SERVE], capture_output=True, timeout=60, **given)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr.decode()
    line, rest = done.stdout.split(b"\n")
    assert b'"ping"' in line and rest == b"back" and b"stray" in done.stderr
