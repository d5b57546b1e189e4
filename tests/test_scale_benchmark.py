"""The benchmark of large catalogues at a small size: every figure that the page quotes is there and possible."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from toolscout.sources.folder import read_tools

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
WORDS = ("weather", "forecast", "city", "send", "message", "user", "list", "files", "create", "project", "invoice")


@pytest.fixture(scope="module")
def scale() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale_benchmark", BENCHMARKS / "scale.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def data(tmp_path: Path, scale: ModuleType) -> Path:
    """A folder as TOOLSCOUT_DATA: forty tools, and some requests under the name of each dataset."""
    corpus = tmp_path / "data" / "tool_corpora" / "toucan"
    corpus.mkdir(parents=True)
    entries = [
        {
            "_id": f"server{number % 4}/tool_{number}",
            "title": f"{WORDS[number % len(WORDS)]}_{number}",
            "text": " ".join(WORDS[(number * step) % len(WORDS)] for step in range(1, 7)),
            "metadata": {"path": ["Things", f"server{number % 4}"], "parameters": {"type": "object"}},
        }
        for number in range(40)
    ]
    (corpus / "corpus.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    for name in scale.REQUESTS:
        (tmp_path / "data" / name).mkdir()
        (tmp_path / "data" / name / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "weather in the city"}))
    return tmp_path / "data"


def test_tools_are_varied_and_always_the_same(scale: ModuleType, data: Path, tmp_path: Path) -> None:
    corpus = data / "tool_corpora" / "toucan" / "corpus.jsonl"
    folders = scale.make_tools(corpus, tmp_path / "one", 100)
    again = scale.make_tools(corpus, tmp_path / "two", 100)
    tools = [tool for folder in folders for tool in read_tools(folder, folder.name).tools]
    assert len(tools) == len({tool.id for tool in tools}) == 100
    texts = [(folder / "corpus.jsonl").read_text() for folder in folders]
    assert texts == [(folder / "corpus.jsonl").read_text() for folder in again]
    assert len({tool.description for tool in tools}) > len({tool.description for tool in tools[:40]})


def test_a_small_catalogue_is_measured_in_both_parts(scale: ModuleType, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "scale"
    scale.make_tools(data / "tool_corpora" / "toucan" / "corpus.jsonl", folder / "tools", 60)
    added, searched, cold = (scale.run_part(part, folder, data) for part in ("add", "search", "cold"))
    assert min(searched["first_search"]["wall_s"], cold["first_search"]["wall_s"]) > 0
    assert min(added["read"]["processor_s"], added["build"]["processor_s"], added["peak_mb"]) > 0
    assert (searched["tools"], searched["index"]) == (60, "exact")
    assert set(searched["recall_at_10"].values()) == {1.0}
    assert searched["bytes_per_search"]["vectors"] == 60 * 256 * 4
    for recipe in ("bm25", "dense", "hybrid"):
        assert 0 < searched["recipes"][recipe]["wall"]["p50_ms"] <= searched["recipes"][recipe]["wall"]["p95_ms"]


def test_an_interrupted_size_goes_on_with_the_part_that_was_not_done(
    scale: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[str] = []

    def run_some(command: list[str], **_: Any) -> Any:
        parts.append(command[command.index("--part") + 1])
        if parts == ["add", "search"]:
            raise KeyboardInterrupt
        return subprocess.CompletedProcess(command, 0, stdout=json.dumps({"process": len(parts)}))

    monkeypatch.setattr(scale.subprocess, "run", run_some)
    with pytest.raises(KeyboardInterrupt):
        scale.measure(45, data, tmp_path / "work", "one")
    report = scale.measure(45, data, tmp_path / "work", "one")
    assert parts == ["add", "search", "search", "cold", "more"]
    numbers = {"add": 1, "search": 3, "cold": 4, "more": 5}
    assert report == {part: {"process": number} for part, number in numbers.items()}
    assert not (tmp_path / "work" / "scale-45").exists()
