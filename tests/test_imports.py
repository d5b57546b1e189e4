"""Heavy packages stay at the door: what a fresh interpreter loads (how long it takes: tests/test_speed.py)."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "torch",
    "transformers",
    "mcp",
    "starlette",
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "psycopg",
    "psycopg_pool",
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
