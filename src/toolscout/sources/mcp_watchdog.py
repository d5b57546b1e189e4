"""A small process that ends the servers which this program has started, should this program end without doing so.

It reads process groups from a pipe. The pipe closes when the last process that holds it ends, by SIGKILL too; the
watchdog then ends the groups that are left: SIGTERM, then SIGKILL. It works alike on Linux and macOS, and needs nothing
but the interpreter. (PR_SET_PDEATHSIG exists on Linux only, and reaches the server but none of its children.)
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Final

__all__ = ["guard_group", "is_guarded", "release_group"]

PROGRAM: Final = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
def end(number):
    for group in sorted(groups):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            groups.discard(group)
        except PermissionError:
            pass
end(signal.SIGTERM)
for _ in range(20):
    if groups:
        time.sleep(0.1)
        end(0)
end(signal.SIGKILL)
"""
_EXIT_S: Final = 0.5
_lock: Final = threading.Lock()
_groups: Final[set[int]] = set()
_watchdog: subprocess.Popen[bytes] | None = None


def guard_group(group: int) -> None:
    """From now on, `group` does not outlive this program."""
    with _lock:
        _groups.add(group)
        _tell(f"+{group}\n")


def release_group(group: int) -> None:
    """`group` has ended: its number may soon be somebody else's."""
    with _lock:
        _groups.discard(group)
        _tell(f"-{group}\n")


def is_guarded(group: int) -> bool:
    """Return whether `group` is one that must still be ended."""
    return group in _groups


def _tell(line: str) -> None:
    """Write a line to the watchdog; one that has ended is started again and told everything."""
    global _watchdog
    with suppress(OSError):  # without a watchdog everything works but the end by SIGKILL
        if _watchdog is None or _watchdog.poll() is not None:
            if not _groups:
                return
            _watchdog = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
            line = "".join(f"+{group}\n" for group in _groups)
        assert _watchdog.stdin is not None
        _watchdog.stdin.write(line.encode())
        _watchdog.stdin.flush()


@atexit.register
def _hang_up() -> None:
    """Let the watchdog go; it ends what is left and then itself."""
    with _lock, suppress(OSError, subprocess.TimeoutExpired):
        if _watchdog is not None and _watchdog.stdin is not None:
            _watchdog.stdin.close()
            _watchdog.wait(_EXIT_S)
