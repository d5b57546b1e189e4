"""Where figures come from: a commit, whether the code was that of the commit, a machine, the fits below a fit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lessons
from toolscout.dataset import Dataset
from toolscout.errors import UserError
from toolscout.home.models import model_store
from toolscout.learn.fit import fit, resolve_with_base
from toolscout.search.resources import BASE_FOLDER
from toolscout_lab import machine
from toolscout_lab.bench import run
from toolscout_lab.bench_jobs import Job
from toolscout_lab.bench_pipelines import describe_fits, find_other_defaults

ROOT = Path(__file__).parents[3]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that holds a package `toolscout`, which this program takes for its own."""
    for name in (
        "packages/lab/src/toolscout_lab/machine.py",
        "src/toolscout/__init__.py",
        "benchmarks/results/old.json",
    ):
        (tmp_path / "repo" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "repo" / name).write_text("\n")
    top = tmp_path / "repo"
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "all")):
        who = ("-c", "user.name=t", "-c", "user.email=t@t")
        subprocess.run(["git", "-C", str(top), *who, *words], check=True)
    monkeypatch.setattr(machine, "__file__", str(top / "packages/lab/src/toolscout_lab/machine.py"))
    monkeypatch.setattr(machine.toolscout, "__file__", str(top / "src/toolscout/__init__.py"))
    return top


def test_a_result_into_the_repository_needs_code_that_is_committed(checkout: Path, tmp_path: Path) -> None:
    out = checkout / "benchmarks" / "results"
    assert re.fullmatch(r"[0-9a-f]{40}", machine.commit() or "") and machine.checkout() == checkout.resolve()
    (out / "old.json").write_text("{}")  # results may be written one by one
    (out / "new.json").write_text("{}")
    machine.refuse_dirty(out)
    assert machine.dirty() is False
    (checkout / "src/toolscout/new.py").write_text("\n")  # an untracked module makes figures too
    assert machine.provenance()["dirty"] is True
    with pytest.raises(UserError, match="changes that are not committed.*or mark it with --allow-dirty"):
        machine.refuse_dirty(out)
    machine.refuse_dirty(out, allow=True)
    machine.refuse_dirty(tmp_path / "elsewhere")


def test_outside_of_a_checkout_nothing_is_made_up(checkout: Path) -> None:
    shutil.rmtree(checkout / ".git")
    told = machine.provenance()
    assert (told["commit"], told["dirty"]) == (None, None)
    machine.refuse_dirty(checkout / "benchmarks")


def test_bench_refuses_a_dirty_tree_and_marks_what_is_allowed(checkout: Path, tmp_path: Path) -> None:
    dataset = Dataset.load(lessons.write(tmp_path))
    job = Job(dataset, "bm25", "bm25", checkout / "benchmarks/results")
    first = run(job).result
    assert (first["commit"], first["dirty"]) == (machine.commit(), False) and first["machine"]
    (checkout / "src/toolscout/__init__.py").write_text("changed\n")
    with pytest.raises(UserError, match="not committed"):
        run(job)
    assert run(job, allow_dirty=True).result["dirty"] is True


def test_a_result_names_the_fit_that_it_stands_on_and_a_change_of_it_is_seen(tmp_path: Path) -> None:
    lesson = lessons.load(lessons.write(tmp_path))
    upper, lower = (
        fit(lessons.plan("neighbours", lesson, tmp_path / str(k), changes={"k": k}, seed=k)) for k in (10, 20)
    )
    model_store.nest(lower.folder, upper.folder / BASE_FOLDER)
    [fitted] = describe_fits([upper])["fitted"]
    assert fitted["base"]["recipe"] == "neighbours" and fitted["base"]["seed"] == 20
    assert fitted["base"]["settings"]["k"] == {"value": 20, "origin": "argument"}
    assert "base" not in fitted["base"] and "base" not in describe_fits([lower])["fitted"][0]

    now = {name: {"value": value} for name, value in resolve_with_base("hybrid-dpr", {}).items()}
    own = {name: each for name, each in now.items() if not name.startswith("base.")}
    below = {name.removeprefix("base."): each for name, each in now.items() if name.startswith("base.")}
    held = {"fitted": [{"settings": own, "base": {"settings": below}}]}
    assert find_other_defaults("hybrid-dpr", {}, held) == {}
    below["epochs"] = {"value": 99}
    assert find_other_defaults("hybrid-dpr", {}, held) == {"base.epochs": (99, resolve_with_base("dpr", {})["epochs"])}


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_every_script_that_writes_figures_says_where_they_come_from(script: Path) -> None:
    text = script.read_text()
    if script.stem in ("hijack", "fit_claims", "fit_decision", "gateway_call", "poisoning", "servers") or not re.search(
        r"write_(text|bytes|json)\(", text
    ):
        return
    assert "provenance()" in text or 'provenance("' in text, script.name


def test_the_repository_lists_the_results_whose_commit_nobody_can_reach() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout: commits of results are looked for in its history")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "tables.py"), "--provenance", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ of \d+ results", done.stdout)
