"""The list of what the papers contain (papers.toml), their runs, and the command that makes them."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import lessons
import toolscout
import toolscout_lab
from tests_cli import run as cli
from tiny import tiny_bert
from toolscout.dataset import in_dev
from toolscout.errors import ConfigError
from toolscout.learn.fit import resolve_with_base
from toolscout.recipes import registry
from toolscout.settings import Settings
from toolscout_lab import bench, reproduce
from toolscout_lab.commands.reproduce import PAPERS as CHOICES
from toolscout_lab.commands.reproduce import parse_time
from toolscout_lab.reproduce import PAPERS, Figures, Reproduction, load_papers, write_page

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (Path(toolscout.__file__).parent, Path(toolscout_lab.__file__).parent, ROOT)
ROWS = [(name, number, row) for name, paper in load_papers().items() for number, row in enumerate(paper.rows, 1)]
RUNS = [(name, run) for name, paper in load_papers().items() for run in paper.runs]


def test_no_cell_is_empty_and_each_paper_is_a_choice_of_the_command() -> None:
    assert len(ROWS) >= 90 and tuple(load_papers()) == PAPERS == CHOICES
    for name, number, row in ROWS:
        assert all(cell.strip() for cell in row), (name, number)


def test_each_place_exists() -> None:
    for name, number, row in ROWS:
        paths = re.findall(r"`((?:[\w.-]+/)*[\w-]+(?:\.\w+)?)`", row[2])
        assert paths, (name, number)
        found = [path for path in paths if any((source / path).exists() for source in SOURCES)]
        assert found, (name, number, row[2])


def test_recipes_in_brackets_and_rows_that_are_named_exist() -> None:
    for name, number, row in ROWS:
        if row[2].startswith("`recipes.py` (`") and re.search(r"\(`([a-z0-9]+-?[\w-]*)`\)$", row[2]):
            recipe = re.findall(r"\(`([\w-]+)`\)$", row[2])[0]
            assert registry.is_known(recipe), (name, number, recipe)
        for other in re.findall(r"rows? (\d+)(?: (?:and|to) (\d+))?", row[4]):
            assert all(int(place) <= len(load_papers()[name].rows) for place in other if place), (name, number)


def test_no_row_rests_on_a_promise_and_what_is_absent_claims_no_figure() -> None:
    for name, number, row in ROWS:
        assert not re.search("queued|later|to come|not yet|no measured run", " ".join(row)), (name, number)
        assert row[1] != "absent" or "{" not in row[4], (name, number)


def test_each_figure_of_a_row_comes_from_a_run_of_its_paper_or_of_another() -> None:
    labels = {(run.dataset or load_papers()[name].dataset, run.label or run.recipe) for name, run in RUNS}
    for name, number, row in ROWS:
        for dataset, label, _ in re.findall(r"\{(\S+) (\S+) (\S+)\}", row[4]):
            assert (dataset, label) in labels, (name, number, label)


def test_each_run_has_a_recipe_that_takes_its_settings() -> None:
    for name, run in RUNS:
        if registry.recipe(run.recipe).is_fitted:
            resolve_with_base(run.recipe, run.settings)
        for setting, values in run.over.items():
            for value in values if setting != "encoder" else ():
                resolve_with_base(run.recipe, {**run.settings, setting: value})
        assert run.model == (run.recipe in ("mmrr", "qta", "feedback") or "refiner" in run.settings), (name, run)


def test_a_committed_result_is_one_that_its_run_would_keep() -> None:
    """The settings of a run are those of the file that the pages quote, so running it again makes that file."""
    n_compared = 0
    for name, run in RUNS:
        dataset = run.dataset or load_papers()[name].dataset
        folder = ROOT / "benchmarks" / "results" / ("sweeps" if run.trial else "")
        path = folder / dataset / f"{run.label or run.recipe}.json"
        if run.over or run.transfer or not path.exists():
            continue
        earlier, recipe = json.loads(path.read_text()), registry.recipe(run.recipe)
        settings = {**recipe.settings, **run.settings}
        settings |= {"folds": run.folds} if run.folds else {}
        settings |= {"no_tool": True} if run.no_tool else {}
        assert (earlier["recipe"], earlier["settings"]) == (run.recipe, settings), (name, run.label or run.recipe)
        assert earlier["encoder"] == ((run.encoder or recipe.encoder or "static") if recipe.encodes else None)
        n_compared += 1
    assert n_compared > 40


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("papers")
    lessons.write(folder / "data")
    tiny_bert(folder / "tiny")
    return folder


def run_command(root: Path, *words: str) -> Any:
    options = ["--data", str(root / "data"), "--out", str(root / "out"), "--encoder", str(root / "tiny")]
    return cli("lab", "reproduce", *words, *options)


@pytest.mark.parametrize(
    ("paper", "labels"),
    [
        ("colt", ("bm25", "colt-no-semantic")),
        ("feedback", ("feedback-prf",)),
        ("masstool", ("masstool-no-need",)),
        ("tool2vec", ("tool2vec-published", "tool2vec")),
        ("toolrerank", ("bm25",)),
    ],
)
def test_a_short_budget_measures_a_sample_and_the_page_says_so(
    root: Path, unpainted: None, paper: str, labels: tuple[str, ...]
) -> None:
    only = [word for label in labels for word in ("--only", label)]
    done = run_command(root, paper, "slang", "--budget", "30s", *only)
    assert done.exit_code == 0 and "Writing model shards" not in done.stderr, done.output
    page = (root / "out" / "report" / f"{paper}.md").read_text()
    assert "Measured on slang-sample-" in page
    assert "samples are not comparable with the paper's, so no difference is shown" in page
    assert f"run {len(labels)} of {len(labels)}: {labels[-1]}" in done.stderr
    for label in labels:
        [file] = (root / "out").glob(f"slang-sample-*/{label}.json")
        result = json.loads(file.read_text())
        assert result["n_queries"] == 16 and result["n_tools"] == 6


def test_a_sample_of_a_set_without_dev_has_queries_to_train_on() -> None:
    drawn = reproduce.draw_ids([f"query-{number}" for number in range(1_000)], 48)
    assert len(drawn) == 48 and 0 < sum(map(in_dev, drawn)) < 24


def test_a_second_call_keeps_what_is_finished(root: Path, unpainted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run_command(root, "colt", "slang", "--only", "bm25")
    kept: list[bool] = []
    plain = bench.run
    monkeypatch.setattr(bench, "run", lambda *given, **options: kept.append((o := plain(*given, **options)).kept) or o)
    done = run_command(root, "colt", "slang", "--only", "bm25")
    assert done.exit_code == 0 and kept == [True]
    assert (
        "Measured on slang (46 training and 23 test queries, 6 tools)"
        in (root / "out" / "report" / "colt.md").read_text()
    )


def test_runs_after_the_budget_are_left_out_and_a_failure_does_not_stop_the_others(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Reproduction("colt", root / "late", root / "data", dataset="slang", settings=Settings(home=root / "home"))
    clock = iter([0.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(reproduce.time, "monotonic", lambda: next(clock, 99.0))

    def fail_one(job: Any, run: Any, label: str, *rest: Any) -> None:
        if label == "bm25":
            raise ConfigError("it broke")

    monkeypatch.setattr(reproduce, "_make_run", fail_one)
    outcome = reproduce.reproduce(dataclasses.replace(job, budget_s=10.0))
    assert outcome.failures == ["bm25: it broke"] and outcome.finished == ["dpr-inbatch", "colt"]
    assert "colt-no-semantic" in outcome.left


def test_a_small_dataset_of_ones_own_is_planned_and_measured_in_full(root: Path, unpainted: None) -> None:
    """Its runs don't take the hours of the paper's dataset, so a short budget needs no sample."""
    planned = run_command(root, "tool2vec", "slang", "--plan")
    assert planned.exit_code == 0 and "toollens" not in planned.output
    job = Reproduction("tool2vec", root / "x", root / "data", dataset="slang", budget_s=1_200.0)
    own = job.load_own()
    assert own is not None and job.find_share(own) == 1.0
    assert job.find_share(None) < 1.0


@pytest.mark.parametrize(("split", "part"), [("train", "four in five"), ("test", "one in five")])
def test_a_dataset_without_queries_to_learn_from_or_to_score_is_refused_once(
    root: Path, tmp_path: Path, unpainted: None, split: str, part: str
) -> None:
    shutil.copytree(root / "data" / "slang", tmp_path / "mine")
    (tmp_path / "mine" / "qrels" / f"{split}.tsv").unlink()
    done = run_command(root, "colt", str(tmp_path / "mine"), "--budget", "2m")
    assert done.exit_code == 1 and done.output.count("error:") == 1
    assert f"found no qrels/{split}.tsv. hint: Move {part} of the lines" in " ".join(done.output.split())
    assert run_command(root, "colt", str(tmp_path / "none")).output.count("error:") == 1


def test_own_data_and_an_own_encoder_leave_out_runs_that_need_others(root: Path) -> None:
    job = Reproduction("tool2vec", root / "x", dataset="slang", encoder="static")
    assert all(run.dataset is None and run.encoder is None and "encoder" not in run.over for run in job.list_runs())
    assert not any(run.model for run in Reproduction("masstool", root / "x").list_runs())
    with pytest.raises(ConfigError, match="--only: expected some of"):
        Reproduction("colt", root / "x", only=("nonsense",)).list_runs()


def test_the_page_shows_both_figures_their_difference_and_the_spread_over_seeds(tmp_path: Path) -> None:
    write_result(tmp_path, "toollens", "bm25", 0.3)
    page = write_page("colt", Figures(tmp_path))
    assert "| R@5 26.9, C@5 6.1 | 30.0 ±1.0, 30.0 ±1.0 | +3.1, +23.9 |" in page
    write_result(tmp_path, "toollens", "bm25-s1", 0.4)
    page = write_page("colt", Figures(tmp_path, {"toollens": "toollens"}), measured="Measured on toollens.")
    assert "35.0 (30.0 to 40.0), 35.0 (30.0 to 40.0) | +8.1, +28.9 |" in page
    assert "| 2 | Query-scene graph" not in page and "not run" in page


def test_no_difference_is_shown_between_the_paper_and_other_data(tmp_path: Path) -> None:
    write_result(tmp_path, "mine", "bm25", 0.3)
    page = write_page("colt", Figures(tmp_path, {"toollens": "mine"}), measured="Measured on mine.")
    assert "| R@5 26.9, C@5 6.1 | 30.0 ±1.0, 30.0 ±1.0 | |" in page


def write_result(folder: Path, dataset: str, label: str, recall: float) -> None:
    metrics = dict.fromkeys(("recall@5", "ndcg@5", "comp@5"), recall)
    intervals = {name: [recall - 0.01, recall + 0.01] for name in metrics}
    content = {"dataset": dataset, "recipe": "bm25", "label": label, "split": "test", "n_queries": 1, "n_tools": 1}
    (folder / dataset).mkdir(exist_ok=True)
    (folder / dataset / f"{label}.json").write_bytes(
        msgspec.json.encode({**content, "metrics": metrics, "ci95": intervals})
    )


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("2m", 120), ("1.5h", 5400)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["2", "m", "0m", "2 min", "-1h"])
def test_another_budget_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 90s, 2m or 3h"):
        parse_time(text)
