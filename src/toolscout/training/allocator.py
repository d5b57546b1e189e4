"""Keeps memory that one training step frees inside the process, because the next step needs it again."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["keep_freed_memory"]

TRIM_THRESHOLD: Final = -1  # of mallopt(3)
MMAP_MAX: Final = -4
MAX_TRIM_BYTES: Final = 2**31 - 1
GLIBC_DEFAULTS: Final = {MMAP_MAX: 65_536, TRIM_THRESHOLD: 128 * 1024}


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Make glibc keep freed memory inside the block and return it to the system afterwards.

    By default glibc maps each large array separately, and the system zeroes its pages each time. This takes a fifth of
    a training step on a CPU. With another C library nothing changes.
    """
    libc = _load_glibc()
    if libc is None:
        yield
        return
    libc.mallopt(MMAP_MAX, 0)
    libc.mallopt(TRIM_THRESHOLD, MAX_TRIM_BYTES)
    try:
        yield
    finally:
        for option, value in GLIBC_DEFAULTS.items():
            libc.mallopt(option, value)
        libc.malloc_trim(0)


def _load_glibc() -> Any:
    """Load the C library if it is glibc; None otherwise."""
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):  # TypeError: Windows
        return None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
