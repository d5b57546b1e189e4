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
from typing import Any, Final

import toolscout
from toolscout.errors import UserError

__all__ = [
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

VERSIONED_PACKAGES: Final = ("numpy", "PyStemmer", "torch", "sentence-transformers", "onnxruntime")
MAKES_FIGURES: Final = ("src", "scripts", "benchmarks/*.py", "pyproject.toml", "constraints.txt")
PROCESS_STATUS_FILE: Final = Path("/proc/self/status")


def versions(*more: str) -> dict[str, str]:
    """Of toolscout, Python and the packages that figures depend on; `more`: further packages."""
    present = {"toolscout": toolscout.__version__, "python": platform.python_version()}
    for name in (*VERSIONED_PACKAGES, *more):
        try:
            present[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return present


def commit() -> str | None:
    """The full hash of the commit that this package runs from; None outside of a checkout that holds it."""
    return _git("rev-parse", "--verify", "HEAD") if checkout() else None


def checkout() -> Path | None:
    """The folder of the git checkout that holds this package among its files; None: it is installed elsewhere."""
    if _git("ls-files", "--error-unmatch", str(Path(toolscout.__file__))) is None:
        return None
    found = _git("rev-parse", "--show-toplevel")
    return Path(found) if found else None


def dirty() -> bool | None:
    """Whether what makes figures (`MAKES_FIGURES`) differs from the commit; None outside of a checkout.

    Results and pages may differ: a run of many results writes them one by one.
    """
    top = checkout()
    return bool(_git("-C", str(top), "status", "--porcelain", "--", *MAKES_FIGURES)) if top else None


def provenance(*more: str) -> dict[str, Any]:
    """What every file of figures says of where it comes from: `versions`, `commit`, `dirty`, `machine`.

    Args:
        more: further packages for `versions`.
    """
    return {"versions": versions(*more), "commit": commit(), "dirty": dirty(), "machine": machine()}


def refuse_dirty(out: Path, *, allow: bool = False) -> None:
    """Refuse to write figures into the repository that no commit stands for.

    Raises:
        UserError: if `out` lies in the checkout, and code differs from its commit; unless `allow`.
    """
    top = checkout()
    if allow or top is None or not out.resolve().is_relative_to(top) or not dirty():
        return
    raise UserError(
        f"The code in {top} has changes that are not committed, so a result in {out} would name no commit that makes "
        "it. Commit them first, write the result elsewhere, or mark it with --allow-dirty."
    )


def _git(*words: str) -> str | None:
    """What git says, run in the folder of this package; None where it fails or is not there."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


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
        found = re.search(rf"{field}:\s+(\d+) kB", PROCESS_STATUS_FILE.read_text())
    except OSError:
        return None
    return int(found[1]) / 1024 if found else None
