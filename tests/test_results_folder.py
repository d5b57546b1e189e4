"""benchmarks/results holds one summary for each dataset and label, rankings of named labels alone, and stays small."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolscout.checks.results import SWEEPS_FOLDER, read_results, read_sweeps

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MAX_MEGABYTES = 40
WITHOUT_TRAINING = (
    "bm25",
    "bm25-plain",
    "dense",
    "dense-minilm",
    "hybrid",
    "hybrid-minilm",
    "rrf-minilm",
)
COMPARED = re.compile(r"<!-- table versus\s+(\S+)\s+(.+?)\s-->", re.DOTALL)


def list_files(*options: str) -> list[Path]:
    """Files of the folder that git tracks, by options of `git ls-files`."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout: untracked results are nobody's concern")
    command = ["git", "ls-files", "-z", *options, "benchmarks/results"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def find_compared() -> Iterator[Path]:
    """The rankings that a paired test of the pages reads."""
    for page in (ROOT / "docs").rglob("*.md"):
        for dataset, labels in COMPARED.findall(page.read_text()):
            yield from (RESULTS / dataset / f"{label}.run.gz" for label in labels.split())


def test_the_folder_stays_small() -> None:
    megabytes = sum(path.stat().st_size for path in list_files() if path.exists()) / 1e6
    assert megabytes <= MAX_MEGABYTES


def test_no_ranking_is_tracked_that_the_rule_leaves_out() -> None:
    assert list_files("--cached", "--ignored", "--exclude-standard") == []


def test_rankings_that_are_promised_are_there() -> None:
    tracked = set(list_files())
    for summary in tracked:
        if summary.suffix == ".json" and summary.stem in WITHOUT_TRAINING:
            assert summary.with_suffix(".run.gz") in tracked, summary
    assert {
        path for path in find_compared() if path.with_name(path.name.replace(".run.gz", ".json")).exists()
    } <= tracked


def test_every_ranking_and_estimate_belongs_to_a_summary() -> None:
    for path in list_files():
        if path.suffix == ".gz":
            assert (path.parent / f"{path.name.split('.')[0]}.json").exists(), path


def test_every_summary_and_sweep_is_sound_and_in_its_place() -> None:
    results, problems = read_results(RESULTS)
    trials, trial_problems = read_results(RESULTS / SWEEPS_FOLDER)
    sweeps, sweep_problems = read_sweeps(RESULTS)
    assert problems == trial_problems == sweep_problems == []
    assert len(results) > 150 and trials and sweeps
    assert not [path for path in RESULTS.rglob("*.sweep.json") if SWEEPS_FOLDER not in path.parts]
    pairs = [(result.dataset, result.label) for result in (*results, *trials)]
    assert len(set(pairs)) == len(pairs)  # one summary for each dataset and label
    for sweep in sweeps:
        raw = json.loads((RESULTS / SWEEPS_FOLDER / sweep.dataset / f"{sweep.label}.sweep.json").read_text())
        assert raw["selected_on"] == "dev"
