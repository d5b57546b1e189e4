"""The load that benchmarks/load.py puts on the service, for a moment: every answer is right, and journaled."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from server.tests.program import Program
from toolscout.scout import Scout

pytestmark = pytest.mark.net
BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "load.py"


def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("load_benchmark", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_under_load_every_answer_is_one_and_in_the_journal(home: Path) -> None:
    program, load = Program(home), benchmark().load
    try:
        texts = [f"task number {number}" for number in range(50)]
        single = load(program.port, texts, seconds=1, connections=8)
        batches = load(program.port, texts, seconds=1, connections=2, batch=16)
        memory = benchmark().resident_mb(program.process.pid)
    finally:
        program.process.terminate()
        program.process.communicate()
    assert single["errors"] == batches["errors"] == 0, (single["first_errors"], batches["first_errors"])
    assert single["requests"] > 0 and batches["requests"] > 0 and memory > 10
    with Scout(home) as scout:
        assert scout.journal.stats()["events"]["search"] == single["requests"] + 16 * batches["requests"]
