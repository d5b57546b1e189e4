"""Fifty-nine attempts to get out of a program's process fail, and the attempts are real.

Most run one after the other in one process, each as the body of a function that returns evidence of its success. The
same bodies run in a process whose rules are taken out, and succeed there. Others end the process; each of these makes a
call first, which shows that it began.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolscout.errors import Unavailable
from toolscout.sources.sandbox.bubblewrap import find_bubblewrap
from toolscout_gateway.sandbox import child, runner
from toolscout_gateway.sandbox.runner import Outcome, ProgramLimits, Worker

ISOLATIONS = ("bubblewrap", "landlock")
PRELUDE = """
import sys, os, json, time, errno
ctypes = sys.modules["ctypes"]
import platform
libc = ctypes.CDLL(None, use_errno=True)
def reach(number, *arguments):
    "Make a system call. Whether the kernel looked at it, instead of refusing it unseen."
    ctypes.set_errno(0)
    value = libc.syscall(number, *[ctypes.c_long(part) for part in arguments])
    return value >= 0 or ctypes.get_errno() != errno.EPERM
X86 = platform.machine() == "x86_64"
"""

#: Attempt → body of a function that returns evidence of its success. A refusal raises or returns nothing.
ATTEMPTS = {
    # files
    "read a file": 'return open("/etc/passwd").read()',
    "read the program's own file": "return open(sys.argv[0]).read()",
    "write a file": 'open("/tmp/toolscout-escape", "w").close(); return True',
    "write to shared memory": 'open("/dev/shm/toolscout-escape", "w").close(); return True',
    "list a folder": 'return os.listdir("/")',
    "walk through a folder": 'return list(os.scandir("."))',
    "look at a file": 'return os.stat("/etc/passwd").st_size',
    "ask whether a file is there": 'return os.access("/usr", os.F_OK)',
    "open a folder without reading it": 'return os.open("/", os.O_PATH) > 0',
    "open with openat2": "return reach(437, -100, id(b'/') + 32, id(bytes(24)) + 32, 24)",
    "make a folder": 'os.mkdir("/tmp/toolscout-folder"); os.rmdir("/tmp/toolscout-folder"); return True',
    "make a symbolic link": 'os.symlink("/etc", "/tmp/toolscout-link"); os.unlink("/tmp/toolscout-link"); return True',
    "follow a symbolic link": 'return os.readlink("/proc/self/exe")',
    "change the folder": 'os.chdir("/usr"); return True',
    "change the mask of new files": "os.umask(0o22); return True",
    "make a file in memory": 'return os.memfd_create("x") > 0',
    # /proc and other processes
    "read the environment in /proc": 'return open("/proc/self/environ", "rb").read() is not None',
    "write to memory through /proc": 'return open("/proc/self/mem", "r+b", buffering=0)',
    "list descriptors in /proc": 'return os.listdir("/proc/self/fd")',
    "read the memory of a process": """
        text, copy = ctypes.create_string_buffer(b"secret"), ctypes.create_string_buffer(6)
        class Part(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
        parts = [Part(ctypes.addressof(buffer), 6) for buffer in (text, copy)]
        places = [ctypes.addressof(part) for part in parts]
        return reach(310 if X86 else 270, libc.getpid(), places[1], 1, places[0], 1, 0) and copy.raw == b"secret"
    """,
    "trace a process": "return reach(101 if X86 else 117, 16, 2**22 + 1, 0, 0)",
    "send a signal": "os.kill(1, 0); return True",
    "send a signal to the own group": "os.killpg(0, 0); return True",
    "ignore the end of processor time": "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN); return True",
    "raise a limit": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); return True",
    "fork": """
        if not (number := os.fork()):
            os._exit(0)
        os.waitpid(number, 0)
        return True
    """,
    "start a program": 'number = os.posix_spawn("/bin/true", ["true"], {}); os.waitpid(number, 0); return True',
    "start a shell": 'return os.system("exit 7") == 7 << 8',
    "start a thread": """
        import _thread
        seen = []
        _thread.start_new_thread(seen.append, (1,))
        for _ in range(500):
            if seen:
                return True
            time.sleep(0.01)
    """,
    "take part of the name space": "return reach(157 if X86 else 167, 3, 0, 0, 0)",  # prctl: PR_GET_DUMPABLE
    "use the keys of the kernel": "return reach(250 if X86 else 219, 0, -3, 0)",
    # network
    "import socket": "import socket; return socket.socket().fileno() > 0",
    "make a TCP socket": "return reach(41 if X86 else 198, 2, 1, 0)",
    "make a socket of this machine": "return reach(41 if X86 else 198, 1, 1, 0)",
    "make a pair of sockets": "return reach(53 if X86 else 199, 1, 1, 0, id(bytes(8)) + 32)",
    "queue system calls": "return reach(425, 1, 0)",  # io_uring_setup, answers EFAULT where it is looked at
    # imports
    "import subprocess": "import subprocess; return subprocess",
    "import multiprocessing": "import multiprocessing; return multiprocessing",
    "load a library": 'return ctypes.CDLL("libresolv.so.2")',
    # descriptors
    "copy a descriptor": "return os.dup(0) > 0",
    "make a pipe": "return os.pipe()",
    "find a third descriptor": """
        present = []
        for number in range(2, 256):
            try:
                os.lseek(number, 0, 1)
                present.append(number)
            except OSError as error:
                if error.errno != errno.EBADF:
                    present.append(number)
        return present
    """,
    "read the environment": "return dict(os.environ)",
}


REFUSALS = {"PermissionError", "ModuleNotFoundError", "OSError", "RuntimeError", "ValueError", "nothing"}
NO_LIMITS = ProgramLimits()


def write_program(bodies: dict[str, str]) -> str:
    """Write a program that makes every attempt and prints what came of each."""
    lines = [PRELUDE, "outcomes = {}"]
    for name, body in bodies.items():
        inner = [line for line in body.splitlines() if line.strip()]
        indent = min(len(line) - len(line.lstrip()) for line in inner)
        lines += ["def attempt():", *(f"    {line[indent:]}" for line in inner)]
        lines += ["try:", "    evidence = attempt()", f"    outcomes[{name!r}] = 'escaped' if evidence else 'nothing'"]
        lines += ["except Exception as error:", f"    outcomes[{name!r}] = type(error).__name__"]
    return "\n".join([*lines, "print(json.dumps(outcomes))"])


def require_isolation(isolation: str) -> None:
    """Expect a test to fail on a system that lacks what it is about, wherever skipping is forbidden too."""
    try:
        _ = find_bubblewrap() if isolation == "bubblewrap" else None
    except Unavailable as error:
        pytest.xfail(str(error))
    if isolation == "landlock" and not child.read_landlock_version():
        pytest.xfail("this kernel has no Landlock")


async def run_worker(
    code: str, isolation: str, limits: ProgramLimits = NO_LIMITS, program: Path | None = None
) -> tuple[Outcome, list[str]]:
    """Run a program in a process of its own. Returns also the ids that it called."""
    require_isolation(isolation)
    calls: list[str] = []

    async def answer(id: str, arguments: dict[str, Any]) -> tuple[Any, str]:
        calls.append(id)
        return arguments, ""

    worker = await Worker.start(isolation, limits, program=program)
    return await worker.run(code, answer), calls


def run_program(*arguments: Any, **options: Any) -> tuple[Outcome, list[str]]:
    return anyio.run(functools.partial(run_worker, *arguments, **options))


@pytest.fixture(scope="module", params=ISOLATIONS)
def outcomes(request: pytest.FixtureRequest) -> dict[str, str]:
    """What came of each attempt, once in bubblewrap and once with Landlock."""
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    try:
        outcome, _ = run_program(write_program(ATTEMPTS), request.param)
    finally:
        os.close(reading)
        os.close(writing)
    assert not outcome.error
    found: dict[str, str] = json.loads(outcome.output)
    return found


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_fails(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name] in REFUSALS


# --- attempts that end the process, or are held by the parent ---------------------------------------------------------

FRAME = "import os, json\ndef write(data): os.write(1, data)\n"
#: Attempt → program, and a part of the sentence that the agent reads.
FATAL = {
    "fork without end": (
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: raise\n",
        "line 4: PermissionError",
    ),
    "use all memory": ("pieces = []\nwhile True: pieces.append(bytearray(10**7))", "line 3: MemoryError"),
    "use all memory at once": ("x = [0] * 10**9", "line 2: MemoryError"),
    "loop without end": ("while True: pass", "line 2: the program used up its processor time"),
    "loop on in spite of a warning": (
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        "used up its processor time",
    ),
    "print without end": ("while True: print('x' * 1000)", "printed more than 100,000 bytes"),
    "print one long line": ("print('x' * 5_000_000)", "sent more than 2,097,152 bytes at once"),
    "send empty output without end": (
        f'{FRAME}while True: write(b\'{{"type":"output","text":""}}\\n\')',
        "printed more than 100,000 bytes",
    ),
    "call without end": ("while True: call('a/b')", "made more than 100 calls"),
    "write to memory that is not there": ("import sys\nsys.modules['ctypes'].string_at(0)", "ended the interpreter"),
    "close the pipe": ("import os\nos.close(1)\nos._exit(0)", "ended the interpreter after its call in line 1"),
    "send a pickle": (f"{FRAME}write(b'cos\\nsystem\\n(S\\'id\\'\\ntR.\\n')", "wrote to the pipe"),
    "forge a reply": (f'{FRAME}write(b\'{{"number":1,"value":1,"error":""}}\\n\')', "wrote to the pipe"),
    "forge the caller": (
        f"{FRAME}write(json.dumps(dict(type='call',number=1,id='a',arguments={{}},line=1,caller='root')).encode()+b'\\n')",
        "wrote to the pipe",
    ),
    "forge the number of a call": (
        f"{FRAME}write(json.dumps(dict(type='call',number=0,id='a',arguments={{}},line=1)).encode()+b'\\n')",
        "wrote to the pipe",
    ),
    "nest without end": (f"{FRAME}write(b'[' * 100_000 + b'\\n')", "wrote to the pipe"),
}


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("name", FATAL)
def test_an_attempt_ends_the_program_and_the_agent_reads_why(
    monkeypatch: pytest.MonkeyPatch, name: str, isolation: str
) -> None:
    monkeypatch.setattr(runner, "MAX_CALLS", 100)
    code, sentence = FATAL[name]
    limits = ProgramLimits(seconds=45, cpu_s=1, memory_bytes=256 * 2**20, output_bytes=100_000)
    outcome, calls = run_program(f"call('mark')\n{code}", isolation, limits)
    assert calls[0] == "mark" and sentence in outcome.error, outcome.error
    assert len(outcome.output) <= 100_000 and len(outcome.error) < 1_200


def test_a_program_that_waits_too_long_is_stopped() -> None:
    outcome, calls = run_program("call('mark')\nimport time\ntime.sleep(600)", "landlock", ProgramLimits(seconds=0.5))
    assert outcome.error == "the program was stopped after 0.5 s; its last call was in line 1: do less at once"
    assert calls == ["mark"]


PARENT = """
import os, sys
import anyio
from toolscout_gateway.sandbox.runner import Worker

async def main():
    worker = await Worker.start(sys.argv[1])

    async def answer(id, arguments):
        print(worker._process.pid, flush=True)
        await anyio.sleep_forever()

    await worker.run("call('mark')", answer)

anyio.run(main)
"""


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_program_ends_with_a_gateway_that_is_killed(isolation: str) -> None:
    require_isolation(isolation)
    words = [sys.executable, "-c", PARENT, isolation]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        number = int(parent.stdout.readline())
        os.kill(number, 0)
        parent.send_signal(signal.SIGKILL)
    state = Path(f"/proc/{number}/stat")
    anyio.run(wait_until_dead, state)


async def wait_until_dead(state: Path) -> None:
    """Wait until a process has ended. One whose parent has not asked for its status yet has ended too."""
    with anyio.fail_after(30):
        while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
            await anyio.sleep(0.05)


# --- the attempts are real --------------------------------------------------------------------------------------------


def loosen(folder: Path, *rules: str) -> Path:
    """Write the file of the process without these rules."""
    text = Path(child.__file__).read_text()
    for rule in rules:
        text, count = re.subn(rf"^( +){re.escape(rule)}$", r"\1pass", text, flags=re.MULTILINE)
        assert count == 1, rule
    program = folder / "loose.py"
    program.write_text(text)
    return program


GIVE_UP = 'give_up_rights(limits["memory_bytes"], limits["cpu_s"])'


LIMITS = (
    "resource.setrlimit(getattr(resource, name), (soft, hard))",
    "_limit_descriptors(2)",
)


def test_every_attempt_succeeds_where_the_rules_are_taken_out(tmp_path: Path) -> None:
    program = loosen(tmp_path, GIVE_UP, "os.environ.clear()", "sys.path.clear()")
    outcome, _ = run_program(write_program(ATTEMPTS), "landlock", program=program)
    assert {name: came for name, came in json.loads(outcome.output).items() if came != "escaped"} == {}


@pytest.mark.parametrize(
    ("rule", "isolation", "attempts"),
    [
        ("_filter_system_calls()", "landlock", ("fork", "make a socket of this machine", "look at a file")),
        ("_filter_system_calls()", "bubblewrap", ("fork", "make a pipe")),
        ("os.close(2)", "landlock", ("find a third descriptor",)),
        ("os.environ.clear()", "bubblewrap", ("read the environment",)),
    ],
)
def test_an_attempt_succeeds_where_its_rule_is_taken_out(
    tmp_path: Path, rule: str, isolation: str, attempts: tuple[str, ...]
) -> None:
    program = loosen(tmp_path, rule, "os._exit(1)", *LIMITS)
    outcome, _ = run_program(write_program({name: ATTEMPTS[name] for name in attempts}), isolation, program=program)
    assert json.loads(outcome.output) == dict.fromkeys(attempts, "escaped")


def test_each_layer_holds_the_files_alone(tmp_path: Path) -> None:
    """Without the filter, Landlock refuses files, and bubblewrap shows none but those of the interpreter."""
    without_filter = ("_filter_system_calls()", "os._exit(1)", *LIMITS)
    names = {name: ATTEMPTS[name] for name in ("read a file", "list a folder", "write a file")}
    outcome, _ = run_program(write_program(names), "landlock", program=loosen(tmp_path, *without_filter))
    assert set(json.loads(outcome.output).values()) == {"PermissionError"}
    bare = loosen(tmp_path, *without_filter, "_leave_file_system()")
    names = {"secret": 'return open("/etc/passwd")', "home": f'return os.listdir("{Path.home()}/.ssh")'}
    outcome, _ = run_program(write_program(names), "bubblewrap", program=bare)
    assert set(json.loads(outcome.output).values()) == {"FileNotFoundError"}


@pytest.mark.parametrize(
    ("code", "limits"),
    [
        ("call('mark')\nx = bytearray(3 * 10**8)", ProgramLimits(memory_bytes=2**30)),
        ("call('mark')\nfor _ in range(200): print('x' * 1000)", ProgramLimits(output_bytes=10**6)),
    ],
)
def test_a_program_passes_where_its_limit_is_higher(code: str, limits: ProgramLimits) -> None:
    outcome, _ = run_program(code, "landlock", limits)
    assert outcome.error == ""


# --- where nothing can hold a program ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "machine", "sentence"),
    [
        ("darwin", "arm64", "run_code needs Linux"),
        ("linux", "riscv64", "run_code knows the system calls of x86_64 and aarch64 only, not of riscv64"),
    ],
)
def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch, platform: str, machine: str, sentence: str) -> None:
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("platform.machine", lambda: machine)
    with pytest.raises(Unavailable, match=sentence):
        runner.find_isolation()


@pytest.fixture
def without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def refuse() -> str:
        raise Unavailable("bubblewrap is not installed: install it")

    monkeypatch.setattr(runner, "find_bubblewrap", refuse)
    return lambda: monkeypatch.setattr(child, "read_landlock_version", lambda: 0)


def test_landlock_takes_the_place_of_bubblewrap_and_without_both_nothing_runs(
    without_bubblewrap: Callable[[], None],
) -> None:
    assert runner.find_isolation() == "landlock"
    without_bubblewrap()
    with pytest.raises(Unavailable, match=r"the kernel has no Landlock, and bubblewrap is not installed: install it"):
        runner.find_isolation()


def test_bubblewrap_that_cannot_make_namespaces_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(fake))
    find_bubblewrap.cache_clear()
    try:
        with pytest.raises(Unavailable, match=r"cannot make namespaces here \(bwrap: No permissions"):
            find_bubblewrap()
    finally:
        find_bubblewrap.cache_clear()


def test_a_process_that_does_not_start_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no interpreter here')")

    async def main() -> None:
        with pytest.raises(Unavailable, match="run_code cannot start a process: no interpreter here"):
            await Worker.start("landlock", program=broken)

    anyio.run(main)
