"""The filter of system calls on each architecture, run step by step, and its numbers compared with the kernel's."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

from toolscout_gateway.sandbox import child
from toolscout_gateway.sandbox.child import ARCHITECTURES, SYSTEM_CALLS, build_filter

#: The kernel's own tables, where its headers are installed. aarch64 uses the generic one.
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
#: Calls that a program must not make: openat, execve, socket, connect, clone, kill, ptrace, prctl, io_uring_setup.
FORBIDDEN = {
    "x86_64": (257, 59, 41, 42, 56, 62, 101, 157, 425),
    "aarch64": (56, 221, 198, 203, 220, 129, 117, 167, 425),
}
#: The numbers as the kernel's documentation has them, so that no machine is needed to notice a slip.
AARCH64 = """brk 214 clock_getres 114 clock_gettime 113 clock_nanosleep 115 close 57 exit 93 exit_group 94 futex 98
getpid 172 getrandom 278 getrusage 165 gettid 178 gettimeofday 169 lseek 62 madvise 233 mmap 222 mprotect 226
mremap 216 munmap 215 nanosleep 101 pselect6 72 read 63 restart_syscall 128 rt_sigreturn 139 sched_yield 124 write 64"""


def run_filter(machine: str, number: int, architecture: int) -> int:
    """Run the filter of a machine as the kernel does, and return what happens to a call."""
    steps, place, value = build_filter(machine), 0, -1
    while True:
        operation, if_equal, otherwise, operand = steps[place]
        place += 1
        if operation == child.LOAD:
            value = {0: number, 4: architecture}[operand]
        elif operation == child.JUMP_IF_EQUAL:
            place += if_equal if value == operand else otherwise
        else:
            assert operation == child.RETURN
            return operand


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_allows_the_table_and_nothing_else(machine: str) -> None:
    column, own = list(ARCHITECTURES).index(machine), ARCHITECTURES[machine]
    allowed = {row[column] for row in SYSTEM_CALLS.values()} - {None}
    for number in range(600):
        expected = child.SECCOMP_ALLOW if number in allowed else child.SECCOMP_REFUSE
        assert run_filter(machine, number, own) == expected, number
        assert run_filter(machine, number | 0x4000_0000, own) == child.SECCOMP_REFUSE, "x32"
    for number in FORBIDDEN[machine]:
        assert number not in allowed
    for other in {*ARCHITECTURES.values(), 0x40000003, 0x40000028} - {own}:  # 32-bit x86 and ARM too
        assert all(run_filter(machine, number, other) == child.SECCOMP_KILL for number in allowed if number is not None)
    assert max(part for step in build_filter(machine) for part in step[1:3]) < 256, "a jump has one byte"


def test_the_numbers_of_aarch64_are_those_of_the_kernel() -> None:
    words = AARCH64.split()
    expected = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    assert {name: row[1] for name, row in SYSTEM_CALLS.items() if row[1] is not None} == expected
    assert [name for name, row in SYSTEM_CALLS.items() if row[1] is None] == ["select"], "aarch64 has pselect6 alone"


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_numbers_are_those_of_the_installed_headers(machine: str) -> None:
    if not HEADERS[machine].exists():
        return  # the test above needs none
    text, column = HEADERS[machine].read_text(), list(ARCHITECTURES).index(machine)
    for name, row in SYSTEM_CALLS.items():
        match = re.search(rf"#define __NR(?:3264)?_{name}\s+(\d+)", text)
        assert row[column] is None or (match is not None and int(match[1]) == row[column]), name


def test_the_filter_is_that_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(child, "build_filter", lambda machine: built.append(machine) or build_filter(machine))
    monkeypatch.setattr(child, "_call_libc", lambda *_: 0)
    child._filter_system_calls()
    assert built == ["aarch64"]
