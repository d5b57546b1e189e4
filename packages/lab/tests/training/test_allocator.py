"""Freed memory is kept for the next step while a training runs, and returned to the system afterwards."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = """
import numpy as np, re
from toolscout_lab.training import keep_freed_memory

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024

def used():
    rows = np.ones(25_000_000)
    del rows
    return resident()

print(resident(), used(), end=" ")
with keep_freed_memory():
    print(used(), end=" ")
print(resident())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_freed_memory_is_kept_inside_and_returned_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    before, without, inside, after = map(int, re.findall(r"\d+", done.stdout))
    assert without - before < 50 < 150 < inside - before
    assert after - before < 50
