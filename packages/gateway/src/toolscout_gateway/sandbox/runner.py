"""Runs a program of an agent in a process without files, network and other processes.

The process is started ahead, gives up its rights, and waits. It runs one program and ends. Bubblewrap puts it into
namespaces of its own, where that is at hand; otherwise Landlock refuses the file system. In both cases `child` filters
the system calls and limits time, memory and processes. What the process sends is untrusted.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolscout.errors import Unavailable
from toolscout.sources.sandbox.bubblewrap import find_bubblewrap
from toolscout.sources.sandbox.processes import start_process
from toolscout_gateway.sandbox import child

if TYPE_CHECKING:
    import anyio
    from anyio.abc import Process

__all__ = ["AnswerRoom", "Outcome", "ProgramLimits", "Worker", "find_isolation"]

START_TIMEOUT_S: Final = 30.0
MAX_LINE_BYTES: Final = 2 * 2**20  # of a message of the process
MAX_CALLS: Final = 1_000  # of one program
MAX_UNREAD_BYTES: Final = 64 * 2**20  # of answers to one program; further calls wait until it has read some
CALL_RESERVE_BYTES: Final = 8 * 2**20  # counted for a call until the size of its answer is known
UNREAD_WAIT_S: Final = 10.0  # in which a program must read an answer; call() and call_all() read at once
PIPE_READ_BYTES: Final = 2**16
MESSAGE_COST_BYTES: Final = 64  # of printed text, so that a flood of empty messages ends too
MAX_START_ERROR_CHARS: Final = 300
SYSTEM_FOLDERS: Final = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")  # what an interpreter needs besides its own
SIGNAL_MEANINGS: Final = {
    9: "used up its processor time or was killed by the system",
    24: "used up its processor time",
    31: "made a system call of another architecture",
}
BUBBLEWRAP_FLAGS: Final = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv")
AnswerCall = Callable[[str, dict[str, Any]], Awaitable[tuple[Any, str]]]


@dataclasses.dataclass(frozen=True)
class ProgramLimits:
    """Limits of one program."""

    seconds: float = 60.0  # on the clock, with the time of its calls
    cpu_s: int = 10
    memory_bytes: int = 512 * 2**20  # of address space
    output_bytes: int = 1_000_000  # that it may print


@dataclasses.dataclass
class Outcome:
    """What a program did."""

    output: str = ""  # what it printed
    error: str = ""  # a sentence on why it did not end by itself; empty if it did
    calls: int = 0  # how many it made
    line: int = 0  # of its last call; 0 if there was none


def find_isolation() -> str:
    """Return what separates a program from this system: `bubblewrap` or `landlock`.

    Raises:
        Unavailable: if there is neither, with what to do.
    """
    if sys.platform != "linux":
        raise Unavailable(
            "run_code needs Linux, where a program can be kept from files and network: switch it off here"
        )
    if platform.machine() not in child.ARCHITECTURES:
        machines = " and ".join(child.ARCHITECTURES)
        raise Unavailable(f"run_code knows the system calls of {machines} only, not of {platform.machine()}")
    try:
        find_bubblewrap()
    except Unavailable as error:
        if child.read_landlock_version():
            return "landlock"
        raise Unavailable(
            f"run_code cannot keep programs from files and network here: the kernel has no Landlock, and {error}"
        ) from None
    return "bubblewrap"


def build_command(isolation: str, limits: ProgramLimits, program: Path) -> list[str]:
    """Build the command of the process. It runs the file `program`, which is `child` outside of tests."""
    base_interpreter = getattr(sys, "_base_executable", None)  # the one behind a virtual environment
    interpreter = os.path.realpath(base_interpreter or sys.executable)
    settings = json.dumps({"memory_bytes": limits.memory_bytes, "cpu_s": limits.cpu_s})
    flags = ["-I", "-S", "-B"]
    if isolation == "landlock":
        return [interpreter, *flags, str(program), settings]
    folders = dict.fromkeys((*SYSTEM_FOLDERS, sys.base_prefix, sys.base_exec_prefix, sysconfig.get_path("stdlib")))
    words = [find_bubblewrap(), *BUBBLEWRAP_FLAGS]
    for folder in (*folders, interpreter):
        words += ["--ro-bind-try", folder, folder]
    return [*words, "--ro-bind", str(program), "/program.py", interpreter, *flags, "/program.py", settings]


class AnswerRoom:
    """Bounds the bytes of answers that are under way to programs, or that they have not read.

    Attributes:
        used: bytes that are under way.
    """

    def __init__(self, most: int, outer: AnswerRoom | None = None) -> None:
        """Begin with nothing under way.

        Args:
            most: bytes that may be under way. A single answer may be larger.
            outer: the room of all programs together, which each answer needs too. None: this is that room.
        """
        import anyio

        self.used, self._most, self._outer = 0, most, outer
        self._changed = anyio.Event()

    async def enter(self, size: int) -> None:
        """Wait until there is room for an answer of `size` bytes, here and in the room of all programs; count it."""
        while self.used and self.used + size > self._most:
            await self._changed.wait()
        self.used += size
        if self._outer is not None:
            try:
                await self._outer.enter(size)
            except BaseException:
                self._change(-size)
                raise

    def resize(self, change: int) -> None:
        """Count more bytes for an answer, or fewer."""
        self._change(change)
        if self._outer is not None:
            self._outer.resize(change)

    def _change(self, change: int) -> None:
        import anyio

        self.used += change
        self._changed.set()
        self._changed = anyio.Event()


class _Ready(msgspec.Struct, tag="ready", forbid_unknown_fields=True):
    pass


class _Call(msgspec.Struct, tag="call", forbid_unknown_fields=True):
    number: int
    id: str
    arguments: dict[str, Any]
    line: int


class _Printed(msgspec.Struct, tag="output", forbid_unknown_fields=True):
    text: str


class _Done(msgspec.Struct, tag="done", forbid_unknown_fields=True):
    error: str


_decoder: Final = msgspec.json.Decoder(_Ready | _Call | _Printed | _Done)


class _Misbehaved(Exception):
    """The process sent what no program sends through `call` and `print`, or too much of it."""


class Worker:
    """A process that has given up its rights and waits for one program."""

    def __init__(self, process: Process, limits: ProgramLimits) -> None:
        self._process, self.limits = process, limits
        self._buffer = bytearray()

    @classmethod
    async def start(
        cls, isolation: str, limits: ProgramLimits = ProgramLimits(), *, program: Path | None = None
    ) -> Worker:
        """Start a process and wait until it has given up its rights.

        Args:
            isolation: `bubblewrap` or `landlock`, as `find_isolation` returns it.
            limits: of the program.
            program: the file that runs in the process. For tests.

        Raises:
            Unavailable: if the process does not start.
        """
        import anyio

        command = build_command(isolation, limits, program or Path(child.__file__))
        try:
            process = await start_process(command, env={}, cwd="/", errors=subprocess.PIPE)
        except OSError as error:
            raise Unavailable(f"run_code cannot start a process: {error.strerror}") from None
        worker = cls(process, limits)
        is_ready = False
        try:
            with anyio.move_on_after(START_TIMEOUT_S):
                is_ready = isinstance(await worker._receive(), _Ready)
            if not is_ready:
                raise Unavailable(f"run_code cannot start a process: {await worker._read_errors()}")
        except _Misbehaved as error:
            raise Unavailable(f"run_code cannot start a process: it {error}") from None
        finally:
            if not is_ready:
                await worker.stop()
        return worker

    @property
    def is_alive(self) -> bool:
        """Whether the process still waits."""
        return self._process.returncode is None

    async def stop(self) -> None:
        """End the process, whatever it does."""
        import anyio

        with anyio.CancelScope(shield=True):
            if self.is_alive:
                with suppress(ProcessLookupError):
                    os.kill(self._process.pid, signal.SIGKILL)  # `kill` of the process would also wait for it
            await self._process.aclose()

    async def run(
        self, code: str, answer: AnswerCall, scope: anyio.CancelScope | None = None, *, room: AnswerRoom | None = None
    ) -> Outcome:
        """Run a program, and end the process.

        Args:
            code: the program.
            answer: answers a call, given the id and the arguments, with a value and an error, which is empty if all is
                well. Calls are answered side by side.
            scope: gets the time limit as its deadline, which the caller may move. None: nobody moves it.
            room: of the answers to all programs. None: there is no other program.
        """
        import anyio

        outcome = Outcome()
        scope = anyio.CancelScope() if scope is None else scope
        scope.deadline = anyio.current_time() + self.limits.seconds
        try:
            with scope:
                await self._follow(code, answer, outcome, AnswerRoom(MAX_UNREAD_BYTES, room))
            if scope.cancelled_caught:
                where = f"; its last call was in line {outcome.line}" if outcome.line else ""
                outcome.error = f"the program was stopped after {self.limits.seconds:g} s{where}: do less at once"
        except _Misbehaved as error:
            outcome.error = f"the program was stopped, because it {error}"
        finally:
            await self.stop()
        return outcome

    async def _follow(self, code: str, answer: AnswerCall, outcome: Outcome, room: AnswerRoom) -> None:
        """Send the program, answer its calls, and gather its output until it ends.

        Raises:
            _Misbehaved: if the process sends what it must not.
        """
        import anyio

        open_calls: set[int] = set()
        send_lock = anyio.Lock()
        misbehaviour: _Misbehaved | None = None

        async def answer_one(call: _Call) -> None:
            nonlocal misbehaviour
            if not await self._answer_call(call, answer, room, open_calls, send_lock):
                misbehaviour = _Misbehaved("did not read the answers of its calls: use call() and print()")
                group.cancel_scope.cancel()

        def start_call(call: _Call) -> None:
            _note_call(call, open_calls, outcome)
            group.start_soon(answer_one, call)

        async with anyio.create_task_group() as group:
            await self._send(_encode_message({"code": code}))
            try:
                await self._receive_until_end(outcome, start_call)
            except _Misbehaved as error:  # kept, because a task group would wrap it
                misbehaviour = error
            group.cancel_scope.cancel()
        if misbehaviour is not None:
            raise misbehaviour

    async def _answer_call(
        self, call: _Call, answer: AnswerCall, room: AnswerRoom, open_calls: set[int], send_lock: anyio.Lock
    ) -> bool:
        """Answer one call. Returns False if the program does not read the answer in time.

        The answer counts in the rooms until the pipe has taken all its bytes.
        """
        import anyio

        size = CALL_RESERVE_BYTES
        await room.enter(size)
        try:
            value, error = await answer(call.id, call.arguments)
            line = _encode_message({"number": call.number, "value": value, "error": error})
            value = None
            room.resize(len(line) - size)
            size = len(line)
            async with send_lock:
                open_calls.discard(call.number)  # the program may read the answer at once, and make the next call
                with anyio.move_on_after(UNREAD_WAIT_S) as reading:
                    await self._send(line)
            return not reading.cancelled_caught
        finally:
            value, line = None, b""  # the traceback of a cancellation would keep them
            room.resize(-size)

    async def _receive_until_end(self, outcome: Outcome, start_call: Callable[[_Call], None]) -> None:
        """Receive messages until the program ends. Starts its calls, and notes its output and its error."""
        printed_bytes, pieces = 0, []
        try:
            while True:
                message = await self._receive()
                if isinstance(message, _Call):
                    start_call(message)
                elif isinstance(message, _Printed):
                    printed_bytes += len(message.text.encode("utf-8", "replace")) + MESSAGE_COST_BYTES
                    if printed_bytes > self.limits.output_bytes:
                        raise _Misbehaved(f"printed more than {self.limits.output_bytes:,} bytes: print less")
                    pieces.append(message.text)
                elif isinstance(message, _Done):
                    outcome.error = message.error[: 4 * child.MAX_ERROR_TEXT_CHARS]
                    return
                else:
                    outcome.error = await self._explain_end(outcome)
                    return
        finally:
            outcome.output = "".join(pieces)

    async def _receive(self) -> _Ready | _Call | _Printed | _Done | None:
        """Receive the next message of the process. None: the process ended.

        Raises:
            _Misbehaved: if it sent something that is no message.
        """
        import anyio

        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise _Misbehaved(f"sent more than {MAX_LINE_BYTES:,} bytes at once: send less to a tool")
            try:
                self._buffer += await self._process.stdout.receive(PIPE_READ_BYTES)
            except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
                return None
        end = self._buffer.index(b"\n")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message: _Ready | _Call | _Printed | _Done = _decoder.decode(line)
        except (msgspec.DecodeError, RecursionError):
            raise _Misbehaved("wrote to the pipe of call(): use call() and print()") from None
        return message

    async def _send(self, line: bytes) -> None:
        import anyio

        assert self._process.stdin is not None
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):  # `_receive` notes the end
            await self._process.stdin.send(line)

    async def _explain_end(self, outcome: Outcome) -> str:
        """Explain why the process ended without saying so."""
        import anyio

        with anyio.move_on_after(1):
            await self._process.wait()
        code = self._process.returncode or 0
        signal_number = -code if code < 0 else code - 128  # bubblewrap adds 128 to a signal, as a shell does
        meaning = SIGNAL_MEANINGS.get(signal_number, "ended the interpreter")
        last_call = f" after its call in line {outcome.line}" if outcome.line else ""
        return f"the program {meaning}{last_call}"

    async def _read_errors(self) -> str:
        """Return what a process that did not start wrote to stderr."""
        import anyio

        text = b""
        assert self._process.stderr is not None
        with anyio.move_on_after(1), suppress(anyio.EndOfStream, anyio.ClosedResourceError):
            while len(text) < PIPE_READ_BYTES:
                text += await self._process.stderr.receive(PIPE_READ_BYTES)
        return " ".join(text.decode("utf-8", "replace").split())[-MAX_START_ERROR_CHARS:] or "it ended at once"


def _encode_message(message: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(message) + b"\n"
    except (TypeError, ValueError, OverflowError, RecursionError):  # numbers beyond 64 bits, lone surrogates
        return json.dumps(message, default=str).encode("utf-8", "replace") + b"\n"


def _note_call(call: _Call, open_calls: set[int], outcome: Outcome) -> None:
    """Note that a call is under way.

    Raises:
        _Misbehaved: if its number is not the next one, or there are too many calls.
    """
    is_next = call.number == outcome.calls
    if not is_next or len(open_calls) >= child.OPEN_CALLS:  # `call` and `call_all` never send such calls
        raise _Misbehaved("wrote to the pipe of call(): use call() and print()")
    if outcome.calls >= MAX_CALLS:
        raise _Misbehaved(f"made more than {MAX_CALLS:,} calls: make fewer")
    outcome.calls += 1
    outcome.line = call.line
    open_calls.add(call.number)
