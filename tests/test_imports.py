"""Heavy packages stay at the door: what a fresh interpreter loads (how long it takes: tests/test_speed.py)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "toolscout"
NEWER_THAN_3_10 = frozenset(
    {
        *("LiteralString", "Never", "NotRequired", "Required", "Self", "TypeAliasType", "TypeIs", "TypeVarTuple"),
        *("Unpack", "assert_never", "assert_type", "dataclass_transform", "override", "reveal_type"),
    }
)  # names of typing that Python 3.10 lacks
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
    assert not found & {*(set(HEAVY) - {"numpy"}), "asyncio"}


def list_runtime_imports(node: ast.AST) -> Iterator[ast.ImportFrom]:
    """The imports from modules below a node, without those for the type checker alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom):
            yield child
        yield from list_runtime_imports(child)


def test_no_module_imports_from_typing_what_python_3_10_lacks() -> None:
    newer = {
        f"{file.relative_to(SOURCES)}: {alias.name}"
        for file in SOURCES.rglob("*.py")
        for line in list_runtime_imports(ast.parse(file.read_text(encoding="utf-8")))
        if line.module == "typing"
        for alias in line.names
        if alias.name in NEWER_THAN_3_10
    }
    assert newer == set()
