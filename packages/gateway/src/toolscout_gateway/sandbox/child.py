"""Runs one program without files, network and other processes, in a process of its own.

The interpreter starts this file alone, without the rest of the package. The process gives up its rights first, and only
then receives a program. The kernel holds the limits, whatever the program does to the interpreter: a filter allows the
system calls to compute, to wait and to use the two pipes, and refuses all others; Landlock refuses the file system.

Messages are JSON, one on each line. The parent trusts none of them.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import importlib
import io
import json
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

__all__ = ["ARCHITECTURES", "MAX_ERROR_TEXT_CHARS", "MODULES", "OPEN_CALLS", "read_landlock_version"]

#: What a program can import. Later there is no file system to import from.
MODULES: Final = (
    *("base64", "bisect", "calendar", "collections", "copy", "csv", "datetime", "decimal", "difflib", "enum"),
    *("fractions", "functools", "hashlib", "heapq", "html", "io", "itertools", "json", "math", "operator", "random"),
    *("re", "statistics", "string", "textwrap", "time", "typing", "unicodedata", "urllib.parse", "uuid", "zlib"),
)
HIDDEN_MODULES: Final = ("_strptime", "dataclasses", "encodings.latin_1")  # used by those
PARALLEL_MODULES: Final = ("asyncio", "concurrent", "multiprocessing", "threading")
FILE_NAME: Final = "<program>"
OPEN_CALLS: Final = 32  # calls whose answers may be awaited at the same time
SEND_OUTPUT_CHARS: Final = 8_192
MAX_ERROR_TEXT_CHARS: Final = 500
KILL_AFTER_S: Final = 1  # between the warning that processor time is used up, and the end
NO_RIGHTS: Final = "a program has no files, network or processes: use call() for what it needs"

ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # as `seccomp_data` numbers them
#: The system calls that a program may make, with their numbers on these architectures. None of them opens anything,
#: changes a signal, or names another process. Python 3.10 sleeps with select.
SYSTEM_CALLS: Final[dict[str, tuple[int, int | None]]] = {
    "brk": (12, 214),
    "clock_getres": (229, 114),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "close": (3, 57),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "futex": (202, 98),
    "getpid": (39, 172),
    "getrandom": (318, 278),
    "getrusage": (98, 165),
    "gettid": (186, 178),
    "gettimeofday": (96, 169),
    "lseek": (8, 62),
    "madvise": (28, 233),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "munmap": (11, 215),
    "nanosleep": (35, 101),
    "pselect6": (270, 72),
    "read": (0, 63),
    "restart_syscall": (219, 128),
    "rt_sigreturn": (15, 139),
    "sched_yield": (24, 124),
    "select": (23, None),
    "write": (1, 64),
}


# --- rights -----------------------------------------------------------------------------------------------------------

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 1, 38, 22
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446  # the same on every architecture
LANDLOCK_ASK_VERSION: Final = 1  # the flag with which `LANDLOCK_CREATE_RULESET` returns the version instead
LANDLOCK_FILE_RIGHTS: Final = (0, 13, 14, 15, 15, 16)  # version → number of rights; later versions have no more
LANDLOCK_TCP: Final = 0b11  # bind and connect, from version 4 on
LANDLOCK_SCOPES: Final = 0b11  # abstract sockets and signals, from version 6 on
SECCOMP_FILTER, SECCOMP_KILL, SECCOMP_ALLOW, SECCOMP_REFUSE = 2, 0x80000000, 0x7FFF0000, 0x00050001  # EPERM
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06


def _call_libc(name: str, *arguments: object) -> int:
    """Call a function of the C library. Raises OSError if it fails."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_long
    value = int(function(*(ctypes.c_long(part) if isinstance(part, int) else part for part in arguments)))
    if value < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return value


def read_landlock_version() -> int:
    """Return the version of Landlock in this kernel. 0 if it has none."""
    try:
        return _call_libc("syscall", LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_ASK_VERSION)
    except (OSError, AttributeError):
        return 0


def _limit_resources(memory_bytes: int, cpu_s: int) -> None:
    """Limit memory and CPU time of this process, and forbid it new processes, files and core dumps."""
    import resource  # here, because the parent may run on a system that has none

    for name, soft, hard in (
        ("RLIMIT_CPU", cpu_s, cpu_s + KILL_AFTER_S),
        ("RLIMIT_AS", memory_bytes, memory_bytes),
        ("RLIMIT_CORE", 0, 0),
        ("RLIMIT_FSIZE", 0, 0),
        ("RLIMIT_MEMLOCK", 0, 0),
        ("RLIMIT_NPROC", 0, 0),
    ):
        resource.setrlimit(getattr(resource, name), (soft, hard))


def _limit_descriptors(count: int) -> None:
    """Forbid this process descriptors other than the first `count`."""
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def _leave_file_system() -> None:
    """Refuse the file system, TCP, abstract sockets and signals, as far as the Landlock of this kernel can."""
    version = read_landlock_version()
    if not version:
        return  # without Landlock the parent starts this process in namespaces of bubblewrap only
    n_rights = LANDLOCK_FILE_RIGHTS[min(version, len(LANDLOCK_FILE_RIGHTS) - 1)]
    fields = [(1 << n_rights) - 1]  # one bit for each right that is refused
    if version >= 4:
        fields.append(LANDLOCK_TCP)
    if version >= 6:
        fields.append(LANDLOCK_SCOPES)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = _call_libc("syscall", LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    _call_libc("syscall", LANDLOCK_RESTRICT_SELF, rules, 0)
    os.close(rules)


def build_filter(machine: str) -> list[tuple[int, int, int, int]]:
    """Build the filter of a machine: (operation, steps to skip if equal, steps to skip if not, value) for each step.

    It allows the system calls of the table. All others fail with EPERM; those of another architecture kill.
    """
    architecture = ARCHITECTURES[machine]
    column = list(ARCHITECTURES).index(machine)
    numbers = [number for number in (row[column] for row in SYSTEM_CALLS.values()) if number is not None]
    # LOAD reads `seccomp_data`: the architecture is at byte 4, the number of the system call at byte 0.
    steps = [(LOAD, 0, 0, 4), (JUMP_IF_EQUAL, 1, 0, architecture), (RETURN, 0, 0, SECCOMP_KILL), (LOAD, 0, 0, 0)]
    # Each jump leads to the last step, which allows the call.
    steps += [(JUMP_IF_EQUAL, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
    return [*steps, (RETURN, 0, 0, SECCOMP_REFUSE), (RETURN, 0, 0, SECCOMP_ALLOW)]


def _filter_system_calls() -> None:
    """Allow the system calls of the table, as `build_filter` says."""
    steps = build_filter(platform.machine())
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    _call_libc("prctl", PR_SET_SECCOMP, SECCOMP_FILTER, ctypes.addressof(program), 0, 0)


def give_up_rights(memory_bytes: int, cpu_s: int) -> None:
    """Give up every right that a program does not need. Ends the process if a file can still be opened after that."""
    _call_libc("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    _call_libc("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    signal.signal(signal.SIGXCPU, _stop_computing)
    _limit_resources(memory_bytes, cpu_s)
    _leave_file_system()
    # Only the two pipes, 0 and 1, stay open.
    os.close(2)
    _limit_descriptors(2)
    _filter_system_calls()
    try:
        os.open("/", os.O_RDONLY)
    except PermissionError:
        return  # as it should be
    os._exit(1)


class _OutOfTime(BaseException):
    """The program used its processor time."""


def _stop_computing(*_: object) -> None:
    raise _OutOfTime("the program used up its processor time: leave the work to tools")


# --- what a program can use -------------------------------------------------------------------------------------------


class ToolError(Exception):
    """A call that gave no result. The message says why."""


class _Output(io.TextIOBase):
    """Sends what a program prints, in pieces."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.chars = 0  # in the pieces, which are sent once they have enough

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.pieces.append(text)
        self.chars += len(text)
        if self.chars >= SEND_OUTPUT_CHARS:
            self.send()
        return len(text)

    def send(self) -> None:
        """Send what was printed since the last time."""
        if self.pieces:
            text, self.pieces, self.chars = "".join(self.pieces), [], 0
            _write(_encode({"type": "output", "text": text}))


class _Caller:
    """The functions `call` and `call_all` of a program."""

    def __init__(self, replies: Iterator[bytes], output: _Output) -> None:
        self._replies, self._output = replies, output
        self._number = 0  # of the next call

    def call(self, id: str, arguments: dict[str, object] | None = None, /, **named: object) -> object:
        """Call a tool. Returns its structured content, its JSON, or its text. Raises ToolError."""
        return self.call_all([(id, {**(arguments or {}), **named})])[0]

    def call_all(
        self, requests: Sequence[tuple[str, dict[str, object]]], *, return_errors: bool = False
    ) -> list[object]:
        """Call several tools at the same time. Returns their results in order.

        Args:
            requests: an id and its arguments for each call.
            return_errors: whether a ToolError is returned in its place. Otherwise the first one is raised.
        """
        self._output.send()
        line = _find_line(sys._getframe(1))
        first_number = self._number
        messages = [
            _encode({"type": "call", "number": number, "id": str(id), "arguments": dict(arguments), "line": line})
            for number, (id, arguments) in enumerate(requests, first_number)
        ]
        self._number += len(messages)
        results: dict[int, object] = {}
        for n_sent, message in enumerate(messages, 1):
            _write(message)
            n_open = n_sent - len(results)
            if n_open >= OPEN_CALLS:
                self._receive(results)
        while len(results) < len(messages):
            self._receive(results)
        values = [results[number] for number in range(first_number, self._number)]
        errors = [value for value in values if isinstance(value, ToolError)]
        if errors and not return_errors:
            raise errors[0]
        return values

    def _receive(self, results: dict[int, object]) -> None:
        """Wait for the next reply, of whichever call, and put it into `results` under the number of its call."""
        reply = json.loads(next(self._replies))
        results[reply["number"]] = ToolError(reply["error"]) if reply["error"] else _decode(reply["value"])


def _decode(value: object) -> object:
    """Decode a text that is an object or a list in JSON. Other values stay as they are."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _encode(message: dict[str, object]) -> bytes:
    return json.dumps(message, allow_nan=False).encode() + b"\n"


def _write(line: bytes) -> None:
    while line:
        line = line[os.write(1, line) :]


# --- running ----------------------------------------------------------------------------------------------------------


def _find_line(frame: Any) -> int:
    """Return the innermost line of the program that leads to a frame. 0 if there is none."""
    while frame is not None and frame.f_code.co_filename != FILE_NAME:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 0


def _explain(error: BaseException) -> str:
    """Explain an error of the program in one sentence, with the line."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE_NAME:
            line = trace.tb_lineno  # of the innermost frame that is in the program
        trace = trace.tb_next
    try:
        words = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # the program may have written the class
        words = ""
    words = " ".join(words.split())[:MAX_ERROR_TEXT_CHARS]
    place = f"line {line}" if line else ""
    name = "" if isinstance(error, (ToolError, _OutOfTime)) else type(error).__name__
    return ": ".join(filter(None, (place, name, words, _advise(error))))


def _advise(error: BaseException) -> str:
    """Say what to do about an error. Empty if there is nothing to add."""
    if isinstance(error, PermissionError):
        return NO_RIGHTS
    if isinstance(error, MemoryError):
        return "the program used up its memory: keep less of what calls return"
    if isinstance(error, ModuleNotFoundError):
        parallel = (error.name or "").partition(".")[0] in PARALLEL_MODULES
        return "call_all() calls at the same time" if parallel else f"there are {', '.join(MODULES)}"
    return ""


def _compile(code: str) -> Any:
    """Compile a program. The value of a last line that is an expression is printed, as in a notebook."""
    tree = ast.parse(code, FILE_NAME)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        call_of_show = ast.Call(func=ast.Name(id="_show", ctx=ast.Load()), args=[last.value], keywords=[])
        tree.body[-1] = ast.copy_location(ast.Expr(value=call_of_show), last)
        ast.fix_missing_locations(tree)
    return compile(tree, FILE_NAME, "exec")


def _make_show(output: _Output) -> Callable[[Any], None]:
    """Return the function `show` of a program, which prints a value as JSON if it can."""

    def show(value: object) -> None:
        """Write a value to the output of the program: texts as they are, others as JSON or as Python shows them."""
        if value is None:
            return
        try:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):
            text = repr(value)
        output.write(f"{text}\n")

    return show


def run_program(code: str, replies: Iterator[bytes]) -> str:
    """Run a program. Returns the sentence on its error, empty if it has none."""
    output = _Output()
    caller = _Caller(replies, output)
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), output, output
    sys.path.clear()
    scope = {"__name__": "__main__", "call": caller.call, "call_all": caller.call_all, "ToolError": ToolError}
    scope |= {"_show": _make_show(output), "__builtins__": builtins}
    message = ""
    try:
        exec(_compile(code), scope)
    except SystemExit:
        pass
    except BaseException as error:
        message = _explain(error)
    output.send()
    return message


def main() -> None:
    """Give up all rights, wait for a program, and run it."""
    for name in (*MODULES, *HIDDEN_MODULES):
        with suppress(ImportError):
            importlib.import_module(name)
    limits = json.loads(sys.argv[1])
    os.environ.clear()
    replies = io.BufferedReader(io.FileIO(0))
    give_up_rights(limits["memory_bytes"], limits["cpu_s"])
    _write(_encode({"type": "ready"}))
    line = replies.readline()
    if line:
        message = run_program(json.loads(line)["code"], iter(replies.readline, b""))
        _write(_encode({"type": "done", "error": message}))
    os._exit(0)


if __name__ == "__main__":
    main()
