"""Describes the code and the machine that made a result: versions, commit, memory."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import toolscout
from toolscout.errors import UserError

__all__ = [
    "Record",
    "checkout",
    "commit",
    "dirty",
    "machine",
    "peak_mb",
    "provenance",
    "refuse_dirty",
    "reset_peak",
    "resident_mb",
    "versions",
]

Record = dict[str, Any]
"""A JSON object by name, such as the content of a result file or the settings of a recipe."""
VERSIONED_PACKAGES: Final = ("numpy", "PyStemmer", "torch", "sentence-transformers", "onnxruntime")
MAKES_FIGURES: Final = ("src", "scripts", "benchmarks/*.py", "pyproject.toml", "constraints.txt")
PROCESS_STATUS_FILE: Final = Path("/proc/self/status")


def versions(*more: str) -> dict[str, str]:
    """Return the versions of toolscout, Python and the packages behind figures, where they are installed.

    `more`: names of further packages.
    """
    present = {"toolscout": toolscout.__version__, "python": platform.python_version()}
    for name in (*VERSIONED_PACKAGES, *more):
        try:
            present[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return present


def commit() -> str | None:
    """Return the full hash of the commit of this package; None outside of a git checkout."""
    return _run_git("rev-parse", "--verify", "HEAD") if checkout() else None


def checkout() -> Path | None:
    """Return the folder of the git checkout that tracks this package; None: the package is installed elsewhere."""
    if _run_git("ls-files", "--error-unmatch", str(Path(toolscout.__file__))) is None:
        return None
    folder = _run_git("rev-parse", "--show-toplevel")
    return Path(folder) if folder else None


def dirty() -> bool | None:
    """Return whether a file that makes figures differs from the commit; None outside of a checkout.

    `MAKES_FIGURES` lists these files. Results and pages are not among them: a run that makes many results has
    changed some of them before it makes the next one.
    """
    top = checkout()
    return bool(_run_git("-C", str(top), "status", "--porcelain", "--", *MAKES_FIGURES)) if top else None


def provenance(*more: str) -> Record:
    """Return the origin that every file of figures records: `versions`, `commit`, `dirty`, `machine`.

    Args:
        more: further packages for `versions`.
    """
    return {"versions": versions(*more), "commit": commit(), "dirty": dirty(), "machine": machine()}


def refuse_dirty(out: Path, *, allow: bool = False) -> None:
    """Refuse to write figures into the repository if no commit holds the code that made them.

    Args:
        out: the folder of the figures.
        allow: write all the same.

    Raises:
        UserError: if `out` lies in the checkout, and the code differs from its commit.
    """
    top = checkout()
    if allow or top is None or not out.resolve().is_relative_to(top) or not dirty():
        return
    raise UserError(
        f"The code in {top} has changes that are not committed, so a result in {out} would name no commit that makes "
        "it. Commit them first, write the result elsewhere, or mark it with --allow-dirty."
    )


def _run_git(*words: str) -> str | None:
    """Run git in the folder of this package and return its output; None if it fails or is not installed."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def machine() -> str:
    """Return system, processor family and number of cores in one line."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def reset_peak() -> None:
    """Reset the highest memory so far. Only Linux can; elsewhere nothing happens."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_mb() -> float:
    """Return the highest resident memory of this process since `reset_peak`, or since its start, in MiB."""
    peak = _read_memory_mb("VmHWM")
    if peak is not None:
        return peak
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)


def resident_mb() -> float:
    """Return the resident memory of this process now, in MiB. Without Linux, it is the highest so far."""
    resident = _read_memory_mb("VmRSS")
    return peak_mb() if resident is None else resident


def _read_memory_mb(field: str) -> float | None:
    """Read a field of Linux's status file of this process, in MiB; None on other systems."""
    try:
        match = re.search(rf"{field}:\s+(\d+) kB", PROCESS_STATUS_FILE.read_text())
    except OSError:
        return None
    return int(match[1]) / 1024 if match else None
