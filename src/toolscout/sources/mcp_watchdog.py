"""Runs a small process that ends the started servers if this program ends without doing so.

The watchdog reads process groups from a pipe. The pipe closes when this program ends, even by SIGKILL. Then the
watchdog ends the groups that are left: SIGTERM, then SIGKILL. It needs only the interpreter, and works on Linux and
macOS. (PR_SET_PDEATHSIG exists on Linux only, and does not reach the children of a server.)
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
    """End a process group when this program ends, unless it is released before."""
    with _lock:
        _groups.add(group)
        _send_line(f"+{group}\n")


def release_group(group: int) -> None:
    """Forget a process group that has ended. Its number may soon belong to another group."""
    with _lock:
        _groups.discard(group)
        _send_line(f"-{group}\n")


def is_guarded(group: int) -> bool:
    """Return whether a process group is guarded and not yet released."""
    return group in _groups


def _send_line(line: str) -> None:
    """Write a line to the watchdog. If it has ended, it is started again with all groups."""
    global _watchdog
    with suppress(OSError):  # without a watchdog, servers survive only a SIGKILL of this program
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
def _close_watchdog() -> None:
    """Close the pipe and wait. The watchdog ends the groups that are left, then itself."""
    with _lock, suppress(OSError, subprocess.TimeoutExpired):
        if _watchdog is not None and _watchdog.stdin is not None:
            _watchdog.stdin.close()
            _watchdog.wait(_EXIT_S)
