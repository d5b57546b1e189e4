"""The script of the matrix sees by itself that a server defines its tools in another way at each start."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("toolscout_lab", reason="benchmarks/matrix.py imports toolscout_lab.machine")
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def matrix() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("matrix", BENCHMARKS / "matrix.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # `servers` is a module beside the script, and a folder of the other tests.
    own = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "servers"}
    path, sys.path = sys.path, [str(BENCHMARKS), *sys.path]
    sys.modules["matrix"] = module  # its dataclasses look for it there
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path = path
        sys.modules.pop("servers", None)
        sys.modules.update(own)
    yield module
    del sys.modules["matrix"]


def seen(definitions: dict[str, str], **more: Any) -> dict[str, Any]:
    """What came back from a server with these tools, of which the first is called."""
    lists: dict[str, Any] = {"resources": [], "templates": [], "prompts": [], "progress": 0, "logs": 0}
    calls = [{"error": False, "text": "fine"}]
    return {"tools": dict(definitions), "definitions": definitions, "calls": calls, **lists, **more}


def test_a_cell_is_explained_if_two_direct_sessions_define_the_tool_differently(matrix: ModuleType) -> None:
    plan = matrix.Plan(calls=[("run", {})])
    direct, again = seen({"run": "ls, cat", "read": "a file"}), seen({"run": "cat, ls", "read": "a file"})
    refused = {"error": True, "text": "it waits for approval"}
    through = seen({"read": "a file"}, found={"run": False, "read": True}, revived=refused)
    assert matrix.list_varied(direct, again) == {"run"}
    assert matrix.list_explained(direct, through, again, plan) == ["tools", "search", "revived"]


def test_a_cell_is_not_explained_by_another_tool_or_by_sessions_that_are_the_same(matrix: ModuleType) -> None:
    plan = matrix.Plan(calls=[("run", {})])
    direct, again = seen({"run": "ls", "read": "a file"}), seen({"run": "ls", "read": "another file"})
    through = seen({"read": "a file"}, found={"run": False, "read": True})
    assert matrix.list_explained(direct, through, again, plan) == []
    assert matrix.list_explained(direct, through, direct, plan) == []
    assert matrix.list_explained(direct, through, None, plan) == []
