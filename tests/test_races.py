"""Commands of several processes at once on one home: each ends as if it had been alone, and nothing is torn."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

import traffic
from toolscout.home.catalogue.store import Origin, Store
from toolscout.home.journal.journal import Journal
from toolscout.home.models import champion
from toolscout.recipes.registry import check_model
from toolscout.scout import Scout
from toolscout.types import Tool

pytestmark = pytest.mark.folder_only("processes that share a folder")
REMOTE = Origin("http://127.0.0.1:1/mcp", "mcp", "remote")
CALLERS = [f"c{number}" for number in range(10)]
N_TOOLS = 40
#: What runs at once. `{file}` is a file that the round has written anew.
COMMANDS = (
    ("add", "{file}"),
    ("sync",),
    ("approve", "remote/t0"),
    ("search", "version of tool", "--json"),
    ("learn", "--recipe=neighbours"),
    ("hide", "one/t0"),
    ("hide", "--undo", "one/t0"),
    ("doctor",),
)
REFUSALS = ("Another `toolscout learn` is running", "waits", "expected the id", "nothing to approve", "is locked")


def write_version(file: Path, version: int) -> None:
    tools = [{"name": f"t{n}", "description": f"version {version} of tool {n}"} for n in range(N_TOOLS)]
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(tools))
    partial.replace(file)


def make_remote_tools(version: int) -> list[Tool]:
    return [Tool(id=f"remote/t{n}", name=f"t{n}", description=f"Remote tool {n}, {version}") for n in range(4)]


def check_home(home: Path, known: set[str], approved: set[str]) -> None:
    """Check that no file is damaged, no source is a mixture, and nothing waits or is served against its approval."""
    store, journal = Store(home), Journal(home)
    assert store.check() == [] and journal.check() == []
    tools = store.tools([id for id, _ in store.page(limit=None)])
    by_source: dict[str, set[str]] = {}
    for tool in tools:
        by_source.setdefault(tool.source, set()).add(tool.description.split()[1])
    assert len(by_source["one"]) == 1, "the source is a mixture of two versions"
    hidden = {"one/t0"} & set(store.hidden())
    assert sum(tool.source == "one" for tool in tools) == N_TOOLS - len(hidden)
    served = {tool.description for tool in tools if tool.source == "remote"}
    assert served <= approved, "a definition that nobody approved is served"
    store.close(), journal.close()
    for promotion in champion.history(home):
        check_model(champion.find_model(home, promotion.model))
    assert not list(home.rglob("*.partial")) and not list(home.glob("*.damaged-*"))
    assert known <= {file.name for file in home.iterdir()}


@pytest.mark.slow
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.full)])
def test_commands_at_once_end_as_if_each_had_been_alone(rounds: int, tmp_path: Path) -> None:
    home, file, chance = tmp_path / "home", tmp_path / "one.json", random.Random(rounds)
    with Scout(home) as scout:
        traffic.catalogue(scout)
        traffic.replay(scout, traffic.requests(400, 1), CALLERS)
        write_version(file, 0)
        scout.add(str(file), name="one")
        scout.store.put_source(REMOTE, "remote", kind="mcp", tools=make_remote_tools(0))
    known = {path.name for path in home.iterdir() if not path.name.endswith(("-wal", "-shm"))}
    approved = {tool.description for tool in make_remote_tools(0)}
    for version in range(1, rounds + 1):
        write_version(file, version)
        with Scout(home) as scout:  # all four change and wait; only `t0` is ever approved
            scout.store.put_source(REMOTE, "remote", kind="mcp", tools=make_remote_tools(version))
        approved.add(make_remote_tools(version)[0].description)
        started = [
            (words, start(home, *(word.format(file=file) for word in words)))
            for words in chance.sample(COMMANDS, len(COMMANDS))
        ]
        for words, process in started:
            said, _ = process.communicate(timeout=300)
            assert "Traceback" not in said and process.returncode >= 0, (words, said)
            assert process.returncode in (0, 3) or any(one in said for one in REFUSALS), (words, said)
        check_home(home, known, approved)
    with Scout(home) as scout:
        scout.sync()
        assert scout.search(f"version {rounds} of tool 3").hits


def start(home: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "toolscout", "--home", str(home), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
