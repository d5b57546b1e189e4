"""A start that is cancelled, at whatever moment, leaves no process and no open pipe behind."""

from __future__ import annotations

import gc
import os
import time
import warnings
from pathlib import Path

import anyio
import pytest

from gateway.tests.test_escapes import wait_until_dead
from toolscout.sources import mcp_transport
from toolscout.sources.sandbox.processes import start_process

SERVER = "trap 'wait; exit' TERM; sleep 600 & echo $$ $! > {file}.part; mv {file}.part {file}; wait"
TURNS = 12  # of the event loop; a start takes fewer
START_S = 0.3  # until the server has a child; the loop stands still meanwhile, as on a busy machine


async def cancel_start(turns: int, file: Path) -> None:
    """Start a server that has a child, and cancel that after some turns of the event loop."""

    async def start() -> None:
        command = ["sh", "-c", SERVER.format(file=file)]
        with open(os.devnull, "w") as errors:
            async with mcp_transport.open_stdio(command, env={}, cwd=None, errors=errors):
                await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        latest = time.monotonic() + START_S
        while not file.exists() and time.monotonic() < latest:
            time.sleep(0.005)
        group.cancel_scope.cancel()


def test_a_start_that_is_cancelled_leaves_no_process_and_no_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_transport, "EXIT_GRACE_S", 0.0)
    files = [tmp_path / str(turns) for turns in range(TURNS)]
    gc.collect()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for turns, file in enumerate(files):
            anyio.run(cancel_start, turns, file)
        gc.collect()
    assert not [str(each.message) for each in warned if each.category is ResourceWarning]
    numbers = [number for file in files if file.exists() for number in file.read_text().split()]
    assert numbers, "no start was cancelled after its process had begun"
    for number in numbers:
        anyio.run(wait_until_dead, Path(f"/proc/{number}/stat"))


def test_a_process_that_was_cancelled_before_its_start_is_not_started(tmp_path: Path) -> None:
    file = tmp_path / "started"

    async def main() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            process = await start_process(["touch", str(file)], env=os.environ, cwd=None, errors=2)
            await process.wait()

    anyio.run(main)
    assert not file.exists()
