"""A process killed at a random instant of `add` or `sync` leaves the old or the new state of every source."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolscout.home.catalogue.store import Store
from toolscout.scout import Scout

FULL = os.environ.get("TOOLSCOUT_FULL") == "1"
SOURCES, TOOLS = ("one", "two", "three"), 1200 if FULL else 300


def write(folder: Path, version: int) -> None:
    """Three sources whose every tool says which version it is of; some come and go."""
    for source in SOURCES:
        lines = (
            {"name": f"t{number}", "description": f"version {version} of tool {number} of {source}"}
            for number in range(version % 7, TOOLS + version % 5)
        )
        partial = folder / f"{source}.partial"
        partial.write_text("".join(json.dumps(line) + "\n" for line in lines))
        partial.replace(folder / f"{source}.jsonl")


def versions(home: Path) -> dict[str, set[str]]:
    """source → the versions that its tools say they are of; and each tool's own size is right."""
    store = Store(home)
    assert store.check() == []
    held = store.tools([id for id, _ in store.page(limit=None)])
    found: dict[str, set[str]] = {}
    counts: dict[tuple[str, str], int] = {}
    for tool in held:
        version = tool.description.split()[1]
        found.setdefault(tool.source, set()).add(version)
        counts[tool.source, version] = counts.get((tool.source, version), 0) + 1
    for (_, version), count in counts.items():
        assert count == TOOLS + int(version) % 5 - int(version) % 7
    store.close()
    return found


def start(home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "toolscout", "--home", str(home), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_kill_at_any_instant_leaves_the_old_or_the_new_state_of_each_source(tmp_path: Path) -> None:
    kills = 50 if FULL else 4
    chance = random.Random(20261120)
    home, folder = tmp_path / "home", tmp_path / "files"
    folder.mkdir()
    files = [str(folder / f"{source}.jsonl") for source in SOURCES]
    write(folder, 0)
    started = time.perf_counter()
    assert start(home, "add", *files).wait() == 0
    whole = time.perf_counter() - started
    killed = 0
    for version in range(1, kills + 1):
        before = versions(home)
        if version % 5 == 0:  # from nothing, too
            shutil.rmtree(home)
            before = {}
        write(folder, version)
        process = start(home, *(["add", *files] if version % 2 or not before else ["sync"]))
        time.sleep(chance.uniform(0.1, 1.0) * whole)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        for source, found in versions(home).items():
            assert len(found) == 1, f"{source} holds a mixture: {found}"
            assert found <= {str(version)} | before.get(source, set())
        with Scout(home) as scout:
            answer = scout.search("version of tool")
            assert bool(answer.hits) == bool(versions(home))
    assert killed >= kills // 3, f"only {killed} of {kills} kills struck a living process"
    assert start(home, "add", *files).wait() == 0
    assert versions(home) == {source: {str(kills)} for source in SOURCES}
