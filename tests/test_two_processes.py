"""Two processes with different visibility share one index: neither builds it again, neither sees the other's tools."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import fill

from toolscout.home.catalogue.snapshot_files import SNAPSHOTS_FOLDER
from toolscout.scout import Scout

ASK = """
import json, sys
from toolscout import Scout
from toolscout.encoders.static import StaticEncoder
from toolscout.indexes.exact import Exact
from toolscout.indexes.bm25 import BM25

def never(*_, **__):
    raise AssertionError("the index was built again")

encode = StaticEncoder.encode
BM25.build = never
StaticEncoder.encode = lambda self, texts, kind="query": never() if kind == "tool" else encode(self, texts, kind)

def visible(tool):
    return tool.source in sys.argv[2].split(",")

with Scout(sys.argv[1]) as scout:
    queries = ("weather in a city", "message", "get_forecast", "book_flight")
    found = [scout.search(query, 10, visible=visible).ids for query in queries]
print(json.dumps(found))
"""


def ask(home: Path, sources: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ASK, str(home), sources], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
@pytest.mark.folder_only("caches of a folder")
def test_two_processes_share_one_index_and_see_only_their_own_tools(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Scout(home) as scout:
        fill(scout)
        scout.embed()
        held = scout.store.connection.execute(
            "SELECT key, generation, length(value) FROM caches ORDER BY key"
        ).fetchall()
        files = {path.name: path.stat().st_ino for path in (home / SNAPSHOTS_FOLDER).iterdir()}
        assert {"snapshot", "sealed suspects"} <= {key.partition("/")[0] for key, *_ in held} and len(files) == 5
        processes = {sources: ask(home, sources) for sources in ("weather,files", "mail,travel")}
        for sources, process in processes.items():
            out, err = process.communicate(timeout=50)
            assert process.returncode == 0, err
            ids = {tool_id for answer in json.loads(out) for tool_id in answer}
            assert ids, sources
            assert {tool_id.partition("/")[0] for tool_id in ids} <= set(sources.split(","))
        assert "weather/get_forecast" not in ids
        again = scout.store.connection.execute(
            "SELECT key, generation, length(value) FROM caches ORDER BY key"
        ).fetchall()
        assert again == held
        assert {path.name: path.stat().st_ino for path in (home / SNAPSHOTS_FOLDER).iterdir()} == files
