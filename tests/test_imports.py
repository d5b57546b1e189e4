"""Heavy packages stay at the door: what a fresh interpreter loads, and how long it takes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import pytest

HEAVY = (
    "torch",
    "transformers",
    "mcp",
    "starlette",
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "pandas",
    "scipy",
    "sklearn",
    "numpy",
    "bm25s",
    "matplotlib",
    "onnxruntime",
)


def loaded(code: str) -> set[str]:
    """The top-level packages in memory after `code` ran in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_toolscout_loads_nothing_heavy() -> None:
    assert not loaded("import toolscout") & set(HEAVY)


def test_help_loads_nothing_heavy() -> None:
    code = "import sys\nfrom toolscout.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    assert not loaded(code) & set(HEAVY)


def test_a_sparse_search_needs_no_framework(tmp_path: object) -> None:
    found = loaded(f"from toolscout import Scout\nScout({str(tmp_path)!r}).search('rain')")
    assert not found & (set(HEAVY) - {"numpy"})


def seconds(*command: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *command], capture_output=True, check=True)
    return time.perf_counter() - started


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("command", "most"), [(("-c", "import toolscout"), 0.150), (("-m", "toolscout", "--help"), 0.300)]
)
def test_starting_takes_little_longer_than_python_itself(command: tuple[str, ...], most: float) -> None:
    pairs = [(seconds("-c", "pass"), seconds(*command)) for _ in range(7)]
    assert statistics.median(ours - bare for bare, ours in pairs) <= most
