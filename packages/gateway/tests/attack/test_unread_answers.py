"""A program that makes calls and does not read their answers fills no memory, and takes none from other programs."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolscout_gateway.sandbox import child, runner
from toolscout_gateway.sandbox.runner import AnswerRoom, Outcome, ProgramLimits, Worker

MIB = 2**20
LIMITS = ProgramLimits(seconds=4, cpu_s=20)
LONG = ProgramLimits(seconds=40, cpu_s=20)  # for programs that are stopped before, however slow the machine is
#: Writes calls to the pipe by hand. `read` reads one answer, and at most 64 KiB more: if it went on until a piece ends
#: with an answer, it could read all of them.
PRELUDE = """
import json, os, time
number = 0
def send(count=1):
    global number
    for _ in range(count):
        message = dict(type='call', number=number, id='a/b', arguments={}, line=1)
        os.write(1, json.dumps(message).encode() + b'\\n')
        number += 1
def read():
    while b'\\n' not in os.read(0, 65536):
        pass
"""
#: How a program does not read.
HOSTILE = {
    "never": "send(32); time.sleep(600)",
    "never, one at a time": "while number < 32: send(); time.sleep(0.01)\ntime.sleep(600)",
    "the first byte only": "send(32); os.read(0, 1); time.sleep(600)",
    "half of the first answer": "send(32); os.read(0, 5_000); time.sleep(600)",
    "one answer": "send(30); read(); send(); time.sleep(600)",
    "more calls than may be open": "send(1_000); time.sleep(600)",
    "after it closed the pipe": "os.close(0); send(32); time.sleep(600)",
    "while it computes": "send(32)\nwhile True: pass",
    "while it prints": "send(32)\nwhile True: print('x' * 1000)",
    "before it ends": "send(32)",
}
WAITING = ("never", "never, one at a time", "the first byte only", "half of the first answer", "one answer")
SIZES = {"small": 1, "a page": 100_000, "large": 16 * MIB}


def make_value(size: int) -> Any:
    """A value of about this many bytes of JSON, made anew."""
    return {"text": os.urandom(size // 2).hex()}


def measure_memory() -> int:
    """The bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_memory_in_use() -> int:
    """The same, after what is free was returned to the system; the C library keeps some of it otherwise."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc
        libc.malloc_trim(0)
    return measure_memory()


@pytest.fixture(autouse=True)
def is_impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(runner, "UNREAD_WAIT_S", 1.0)
    yield


async def run(
    code: str, room: AnswerRoom, make: Callable[[], Any], counts: list[int], limits: ProgramLimits = LIMITS
) -> Outcome:
    """Run a program in the real sandbox. Its calls are answered at once."""
    if not child.read_landlock_version():
        pytest.xfail("this kernel has no Landlock")

    async def answer(id: str, arguments: dict[str, Any]) -> tuple[Any, str]:
        await anyio.sleep(0)
        counts.append(room.used)
        return make(), ""

    worker = await Worker.start("landlock", limits)
    return await worker.run(PRELUDE + code, answer, room=room)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", HOSTILE)
def test_unread_answers_are_bounded_and_given_back(name: str, size: str) -> None:
    counts: list[int] = []
    room = AnswerRoom(128 * MIB)
    must_read = size != "small" and name in WAITING
    peak = before = measure_memory()

    async def body() -> None:
        nonlocal peak
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                nonlocal peak
                while True:
                    peak = max(peak, measure_memory())
                    await anyio.sleep(0.005)

            group.start_soon(watch)
            with anyio.fail_after(50):
                limits = LONG if must_read else LIMITS
                outcome = await run(HOSTILE[name], room, lambda: make_value(SIZES[size]), counts, limits)
            group.cancel_scope.cancel()
        if must_read:
            assert "did not read the answers" in outcome.error
        assert room.used == 0

    anyio.run(body)
    assert max(counts, default=0) <= 128 * MIB
    if size == "large" and name in WAITING:
        assert len(counts) <= 10, "further calls wait"
    assert peak - before < 400 * MIB
    assert measure_memory_in_use() - before < 100 * MIB, "it is given back"


def test_all_programs_share_a_bound_and_one_that_reads_is_served() -> None:
    counts: list[int] = []
    room = AnswerRoom(128 * MIB)

    async def body() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(run, HOSTILE["never"], room, lambda: make_value(16 * MIB), counts)
            await anyio.sleep(0.3)
            code = "print(sum(len(each['text']) for each in call_all([('a/b', {})] * 40)))"
            outcome = await run(code, room, lambda: make_value(100_000), counts, ProgramLimits())
            assert (outcome.output, outcome.error) == ("4000000\n", "")
        assert room.used == 0

    anyio.run(body)
    assert max(counts) <= 256 * MIB, "what was let in may be twice as large as was reserved for it"


def test_a_program_that_reads_gets_large_answers_side_by_side() -> None:
    counts: list[int] = []
    room = AnswerRoom(128 * MIB)

    async def body() -> None:
        code = "print([len(part['text']) for part in call_all([('a/b', {})] * 12)])"
        outcome = await run(code, room, lambda: make_value(8 * MIB), counts)
        assert (outcome.output, outcome.error) == (f"{[8 * MIB] * 12}\n", "")

    anyio.run(body)
    assert len(counts) == 12 and room.used == 0


def test_an_answer_that_is_larger_than_the_room_passes_alone() -> None:
    async def body() -> None:
        room = AnswerRoom(10)
        await room.enter(50)
        with anyio.move_on_after(0.05) as waiting:
            await room.enter(1)
        assert waiting.cancelled_caught and room.used == 50
        room.resize(-50)
        with anyio.fail_after(5):
            await room.enter(1)

    anyio.run(body)
