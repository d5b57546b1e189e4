"""The load that benchmarks/load.py puts on the service, for a moment: every answer is right, and journaled."""

from __future__ import annotations

import pytest

from scripts_loader import load_script
from server.tests.program import Program
from toolscout.scout import Scout

pytestmark = pytest.mark.net


@pytest.mark.slow
def test_under_load_every_answer_is_one_and_in_the_journal(toy: Scout, empty_home: str) -> None:
    benchmark = load_script("benchmarks/load.py")
    program, load = Program(empty_home), benchmark.load
    try:
        texts = [f"task number {number}" for number in range(50)]
        single = load(program.port, texts, seconds=1, connections=8)
        batches = load(program.port, texts, seconds=1, connections=2, batch=16)
        memory = benchmark.resident_mb(program.process.pid)
    finally:
        program.process.terminate()
        program.process.communicate()
    assert single["errors"] == batches["errors"] == 0, (single["first_errors"], batches["first_errors"])
    assert single["requests"] > 0 and batches["requests"] > 0 and memory > 10
    with Scout(empty_home) as scout:
        assert scout.journal.stats()["events"]["search"] == single["requests"] + 16 * batches["requests"]
