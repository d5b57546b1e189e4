"""Finds bubblewrap, and tries whether it can make namespaces here."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from typing import Final

from toolscout.errors import Unavailable

__all__ = ["INSTALL_HINT", "find_bubblewrap"]

INSTALL_HINT: Final = "install it ( apt install bubblewrap )"
TRIAL_TIMEOUT_S: Final = 10.0


@functools.cache
def find_bubblewrap() -> str:
    """Return the path of a bubblewrap that works.

    Raises:
        Unavailable: with the reason why there is none, and what to do.
    """
    if sys.platform != "linux":
        raise Unavailable("bubblewrap runs on Linux only")
    path = shutil.which("bwrap")
    if path is None:
        raise Unavailable(f"bubblewrap is not installed: {INSTALL_HINT}")
    words = [path, "--unshare-all", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    try:
        trial = subprocess.run(
            [*words, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"bubblewrap does not start: {error}") from None
    if trial.returncode != 0:
        why = " ".join(trial.stderr.decode("utf-8", "replace").split())[:200]
        raise Unavailable(f"bubblewrap cannot make namespaces here ({why}): allow user namespaces")
    return path
