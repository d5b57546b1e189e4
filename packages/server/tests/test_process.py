"""The service as a program: starts, serves the command line's catalogue, stops in order, survives being killed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import traffic
from homes_in_postgres import name_home
from scripts_loader import load_script
from server.tests.conftest import KEYS, POLICY
from server.tests.program import Program
from tests_cli import run
from toolscout.home.models import champion
from toolscout.learn import learn
from toolscout.scout import Scout

pytestmark = pytest.mark.net
FULL = os.environ.get("TOOLSCOUT_FULL") == "1"


def test_it_serves_what_the_command_line_added_and_sees_what_it_adds(shared_program: Program) -> None:
    program = shared_program
    status, found = program.ask("POST", "/v1/search", {"query": "task number 17", "k": 1})
    assert status == 200 and found["hits"][0]["id"] == "list/tool_17"
    with Scout(program.home) as scout:
        scout.add([{"name": "umbrella", "description": "Keeps the rain off."}], name="shed")
    assert program.ask("POST", "/v1/search", {"query": "rain", "k": 1})[1]["hits"][0]["id"] == "shed/umbrella"
    assert "no policy file" in program.said


@pytest.mark.folder_only("a file in the folder")
def test_a_policy_in_the_home_is_in_force(home: str) -> None:
    policy = Path(home, "policy.toml")
    policy.write_text(POLICY.replace("mail/", "list/") + '\n[[caller]]\nname = "idle"\nallow = ["list/**"]\n')
    program = Program(home)
    try:
        assert program.ask("GET", "/v1/me")[0] == 401
        assert program.ask("GET", "/v1/me", authorization=f"Bearer {KEYS['bob']}")[1]["caller"] == "bob"
        policy.write_text(POLICY.replace('name = "bob"', 'name = "rob"'))
        until = time.monotonic() + 20
        while program.ask("GET", "/v1/me", authorization=f"Bearer {KEYS['bob']}")[1]["caller"] != "rob":
            assert time.monotonic() < until, "the service follows its policy file"
            time.sleep(0.05)
        assert f"the policy file {policy}" in program.said
        assert "The policy of 'bob' allows 'weather/**', but no tool matches this pattern." in program.said
        assert "Nobody can be the caller 'idle'" in program.said
    finally:
        assert program.end(signal.SIGTERM) == 0
    assert program.said.endswith("toolscout: stopped serving.\n")


def test_while_it_drains_it_answers_but_says_that_it_is_not_ready(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_DRAIN_SECONDS", "3600")
    program = Program(home)
    program.process.send_signal(signal.SIGTERM)
    while program.ask("GET", "/ready") == (200, {"ready": True, "reason": None}):
        time.sleep(0.01)
    assert program.ask("GET", "/ready") == (503, {"ready": False, "reason": "the service is stopping"})
    assert program.ask("POST", "/v1/search", {"query": "task number 17", "k": 1})[0] == 200
    assert program.end(signal.SIGTERM) == 0  # a second signal ends the drain


def test_without_a_policy_it_listens_to_this_machine_alone(home: str) -> None:
    done = run("--home", str(home), "serve", "--host", "0.0.0.0", "--port", "0")
    assert done.exit_code == 1 and "expected a policy file for 0.0.0.0" in done.stderr


def test_a_port_that_is_taken_is_one_sentence(shared_program: Program, home: str) -> None:
    line = [sys.executable, "-m", "toolscout", "--home", str(home), "serve", "--port", str(shared_program.port)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=50)
    assert done.returncode == 1 and "expected a free port" in done.stderr and "Traceback" not in done.stderr


def test_a_length_that_is_no_number_is_refused_and_the_service_lives_on(shared_program: Program) -> None:
    with contextlib.closing(shared_program.connect()) as connection:
        connection.putrequest("POST", "/v1/search")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", "nonsense")
        connection.endheaders()
        assert connection.getresponse().status == 400
    assert shared_program.ask("GET", "/health")[0] == 200


def test_at_a_signal_what_was_asked_is_answered_first(program: Program) -> None:
    queries = [f"task number {number} of the list" for number in range(64)]
    begun = threading.Barrier(5)

    def ask() -> tuple[int, Any]:
        body = json.dumps({"queries": queries})
        with contextlib.closing(program.connect()) as connection:
            connection.putrequest("POST", "/v1/search/batch")
            connection.putheader("content-type", "application/json")
            connection.putheader("content-length", str(len(body)))
            connection.endheaders()
            begun.wait(20)
            time.sleep(0.05)
            connection.send(body.encode())  # the service is being stopped while this comes in
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask) for _ in range(4)]
        begun.wait(20)
        time.sleep(0.02)
        assert program.end(signal.SIGTERM) == 0
        for each in asked:
            status, answer = each.result()
            assert status == 200 and len(answer["results"]) == 64


def load(program: Program, seed: int, acknowledged: set[tuple[str, str]], stop: threading.Event) -> None:
    """Search, call and give feedback until the service dies; note every event that was acknowledged."""
    chance = random.Random(seed)

    def ask(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> Any:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        content = json.loads(answer.read())
        assert answer.status == 200, content
        return content

    try:
        with contextlib.closing(program.connect()) as connection:
            while not stop.is_set():
                queries = [f"task number {chance.randrange(300)}" for _ in range(chance.randint(1, 4))]
                for found in ask(connection, "/v1/search/batch", {"queries": queries})["results"]:
                    acknowledged.add(("search", found["search_id"]))
                tool, search_id = found["hits"][0]["id"], found["search_id"]
                ask(connection, "/v1/calls", {"tool": tool, "ok": True, "search_id": search_id})
                acknowledged.add(("call", search_id))
                ask(connection, "/v1/feedback", {"good": [tool], "search_id": search_id})
                acknowledged.add(("feedback", search_id))
    except (OSError, http.client.HTTPException, ValueError):
        pass  # it was killed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_under_load_it_loses_no_acknowledged_event_and_is_soon_back(home: str) -> None:
    chance = random.Random(20261121)
    acknowledged: set[tuple[str, str]] = set()
    kills = 20 if FULL else 2
    for kill in range(kills):
        program = Program(home)
        stop = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            loads = [pool.submit(load, program, 10 * kill + seed, acknowledged, stop) for seed in range(4)]
            before = len(acknowledged)
            while len(acknowledged) < before + 20:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 1))
            assert program.end(signal.SIGKILL) == -signal.SIGKILL
            stop.set()
        for each in loads:
            each.result()
        with Scout(home) as scout:
            assert scout.journal.check() == [] and scout.store.check() == []
            held = {(event["event"], event["search_id"]) for event in scout.journal.read()}
        assert acknowledged <= held, f"lost after kill {kill}: {len(acknowledged - held)} events"
    assert len(acknowledged) > 20 * kills


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("tools", "events"), [(500, 2_000), pytest.param(14_000, 200_000, marks=pytest.mark.full)])
def test_killed_over_a_long_journal_a_service_that_has_learned_is_soon_back(
    tmp_path: Path, tools: int, events: int
) -> None:
    """The first search waits for nothing more; at full size it takes a fifth of the work of the start at most."""
    callers = [f"c{number}" for number in range(5)]
    with Scout(tmp_path / "large", journal=False) as scout:
        traffic.catalogue(scout)
        traffic.replay(scout, traffic.requests(200, 1), callers)
        report = learn(scout, recipes=["neighbours"])
        assert report.candidate is not None
        if report.outcome != "promoted":
            champion.promote(scout.settings.place, report.candidate, "to have one that looks at what was used since")
        scout.add(
            [{"name": f"tool_{n}", "description": f"Does task {n} of {n % 97}."} for n in range(tools)], name="many"
        )
        scout.embed()
        traffic.replay(scout, traffic.requests(events // 2, 2), callers)
    busy = load_script("benchmarks/load.py").busy_seconds if FULL else lambda pid: 0.0
    Program(name_home(tmp_path / "large")).end(signal.SIGKILL)
    program = Program(name_home(tmp_path / "large"))
    try:
        ready = busy(program.process.pid)
        status, found = program.ask("POST", "/v1/search", {"query": "umbrella or raincoat today", "k": 1})
        first = busy(program.process.pid) - ready
    finally:
        program.end(signal.SIGKILL)
    assert status == 200 and found["hits"][0]["id"] == "office/weather/forecast" and found["reason"] is None
    if FULL:
        assert first <= ready / 5, f"processor seconds until it was ready, and of the first search: {ready}, {first}"
