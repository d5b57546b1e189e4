"""Memory that a training frees at one step and needs again at the next one stays with the process meanwhile."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["held"]

TRIM_THRESHOLD: Final = -1  # of mallopt(3)
MMAP_MAX: Final = -4
ALL: Final = 2**31 - 1
USUAL: Final = {MMAP_MAX: 65_536, TRIM_THRESHOLD: 128 * 1024}


@contextmanager
def held() -> Iterator[None]:
    """Inside the block glibc gives no freed memory back; afterwards it gives back all that it can.

    By default every large array is a mapping of its own, whose pages are zeroed by the system each time: a fifth of a
    step on a processor. With another C library nothing changes.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    libc.mallopt(MMAP_MAX, 0)
    libc.mallopt(TRIM_THRESHOLD, ALL)
    try:
        yield
    finally:
        for option, value in USUAL.items():
            libc.mallopt(option, value)
        libc.malloc_trim(0)


def _glibc() -> Any:
    """The C library, if it has what is needed here; None if not."""
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):  # TypeError: Windows
        return None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
