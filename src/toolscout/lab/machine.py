"""What a result says of the code and the machine that made it: versions, commit, memory."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Final

import toolscout

__all__ = ["commit", "machine", "peak_mb", "reset_peak", "resident_mb", "versions"]

PACKAGES: Final = ("numpy", "PyStemmer", "torch", "sentence-transformers", "onnxruntime")
STATUS: Final = Path("/proc/self/status")


def versions(*more: str) -> dict[str, str]:
    """Of toolscout, Python and the packages that figures depend on; `more`: further packages."""
    found = {"toolscout": toolscout.__version__, "python": platform.python_version()}
    for name in (*PACKAGES, *more):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the checkout that this package runs from, marked when it has changes; None outside of one."""
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def machine() -> str:
    """System, processor family and cores, in one line."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def reset_peak() -> None:
    """Forget the highest memory so far, where the system can (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_mb() -> float:
    """The highest resident memory of this process since `reset_peak`, or since its start, MiB."""
    found = _status("VmHWM")
    if found is not None:
        return found
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)


def resident_mb() -> float:
    """The resident memory of this process now, MiB; where the system does not say it, the highest so far."""
    found = _status("VmRSS")
    return peak_mb() if found is None else found


def _status(field: str) -> float | None:
    try:
        found = re.search(rf"{field}:\s+(\d+) kB", STATUS.read_text())
    except OSError:
        return None
    return int(found[1]) / 1024 if found else None
