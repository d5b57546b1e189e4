"""Tells the system how a mapped array will be read, so that a cold start reads neither everything nor page by page.

Some disks read megabytes ahead of every page. A search needs a few hundred rows of the vectors, so that is in vain. A
graph is read here and there too, but so often that one pass over it takes less time.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["advise_all", "advise_few"]


def advise_few(array: npt.NDArray[Any]) -> bool:
    """Say that few rows of an array will be read. Returns whether it is mapped and the system takes advice."""
    return _advise(array, "MADV_RANDOM")


def advise_all(array: npt.NDArray[Any]) -> bool:
    """Say that an array will soon be read as a whole. Returns as `advise_few`."""
    return _advise(array, "MADV_WILLNEED")


def _advise(array: npt.NDArray[Any], name: str) -> bool:
    owner: Any = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    if not isinstance(owner, mmap.mmap) or not hasattr(mmap, name):
        return False
    first = _locate(array) - _locate(np.frombuffer(owner, dtype=np.uint8))
    start = first - first % mmap.PAGESIZE
    owner.madvise(getattr(mmap, name), start, first + array.nbytes - start)
    return True


def _locate(array: npt.NDArray[Any]) -> int:
    """Return the address of an array's first byte."""
    address: int = array.__array_interface__["data"][0]
    return address
