from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lessons
from tests_cli import run as cli
from tiny import tiny_bert
from toolscout.dataset import Dataset, NoTool
from toolscout.errors import ConfigError, UserError
from toolscout.learn.fit import fit, make_lesson
from toolscout.settings import Settings
from toolscout.sources.folder import read_tools
from toolscout_lab import sweep as module
from toolscout_lab.commands.sweep import parse_values
from toolscout_lab.report import report
from toolscout_lab.sweep import Sweep, sweep

pytest.importorskip("optuna")
OVER = {"kappa": [0.0, 30.0, 100.0], "beta": [5.0, None]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lessons.write(tmp_path / "data")
    return tmp_path / "data"


def job(root: Path, **fields: Any) -> Sweep:
    dataset = Dataset.load(root / "slang", root=root)
    given = {"recipe": "tool2vec", "over": OVER, "settings": Settings(home=root.parent / "home"), **fields}
    return Sweep(dataset, out=root.parent / "out", **given)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings of every fit that is paid."""
    done: list[Any] = []

    def counted(task: Any) -> Any:
        done.append((task.options.kappa, task.options.beta))
        return fit(task)

    monkeypatch.setattr(module, "fit", counted)
    return done


def test_every_combination_is_fitted_once_and_judged_by_its_figures_on_dev(root: Path, fits: list[Any]) -> None:
    found = sweep(job(root))
    assert sorted(fits, key=str) == sorted(((k, b) for k in OVER["kappa"] for b in OVER["beta"]), key=str)
    assert [trial["settings"] for trial in found["trials"]] == job(root).grid
    dataset = job(root).dataset
    learned = make_lesson(dataset, read_tools(dataset.folder, "d").tools, dataset.texts("test"))
    for trial in found["trials"]:
        alone = fit(lessons.plan("tool2vec", learned, root.parent / str(trial["settings"]), changes=trial["settings"]))
        assert trial["dev"] == alone.manifest.metrics
        assert trial["seconds"] >= trial["fit_seconds"] > 0
    quality = [trial["dev"]["ndcg@5"] + trial["dev"]["comp@5"] for trial in found["trials"]]
    assert len(set(quality)) > 1 and found["best"] == found["trials"][quality.index(max(quality))]
    assert (found["n_train"], found["n_dev"], found["n_tools"], found["encoder"]) == (46, 23, 6, "static")
    assert (found["sampler"], found["selected_on"], found["failed"]) == ("grid", "dev", [])
    assert {"optuna", "numpy"} <= set(found["versions"])
    assert json.loads(job(root).path.read_text()) == json.loads(json.dumps(found))


def test_a_sweep_on_ray_gives_the_same_and_repeats_no_finished_trial(
    root: Path, fits: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = sweep(job(root))
    fits.clear()
    lost = [True]

    def map_here(work: Any, shards: Any, ray: str) -> Any:
        """Ray's part of the work is done here, the last piece first; the first run is killed after two of them."""
        for number in reversed(range(len(shards))):
            if ray and lost[0] and len(fits) == 3:
                raise KeyboardInterrupt
            yield number, work(shards[number])

    monkeypatch.setattr(module, "map_shards", map_here)
    settings = Settings(home=root.parent / "other", ray="local")
    with pytest.raises(KeyboardInterrupt):
        sweep(job(root, settings=settings, label="ray"))
    lost[0] = False
    spread = sweep(job(root, settings=settings, label="ray"), resume=True)
    assert len(fits) == 6 and len(set(map(str, fits))) == 6
    assert [trial["dev"] for trial in spread["trials"]] == [trial["dev"] for trial in alone["trials"]]
    assert spread["best"]["settings"] == alone["best"]["settings"]
    with pytest.raises(ConfigError, match="workers share no budget"):
        sweep(job(root, settings=Settings(home=root.parent / "llm", ray="local", llm="http://localhost#m"), label="x"))


def test_what_the_test_queries_need_makes_no_difference(root: Path) -> None:
    first = sweep(job(root))
    file = root / "slang" / "qrels" / "test.tsv"
    head, *rows = file.read_text().splitlines()
    queries = dict.fromkeys(row.split("\t")[0] for row in rows)
    file.write_text("\n".join([head, *(f"{query}\tmusic/play\t1" for query in queries)]) + "\n")
    second = sweep(job(root, settings=Settings(home=root.parent / "other")), force=True)
    assert [trial["dev"] for trial in first["trials"]] == [trial["dev"] for trial in second["trials"]]
    assert first["best"]["settings"] == second["best"]["settings"]


def test_of_the_models_only_the_best_ones_stays_on_the_shelf(root: Path) -> None:
    best = sweep(job(root))["best"]["settings"]
    [folder] = (root.parent / "home" / "bench-models").iterdir()
    held = json.loads((folder / "manifest.json").read_text())["settings"]
    assert {name: held[name]["value"] for name in best if best[name] is not None} == {
        name: value for name, value in best.items() if value is not None
    }


KILLED = """
import os, signal, sys
from pathlib import Path
from toolscout.settings import Settings
from toolscout.dataset import Dataset, NoTool
from toolscout_lab import sweep as module
root, fits, paid = Path(sys.argv[1]), module.fit, []
def fit(task):
    if len(paid) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    paid.append(task)
    return fits(task)
module.fit = fit
over = {"kappa": [0.0, 30.0, 100.0], "beta": [5.0, None]}
given = {"out": root.parent / "out", "settings": Settings(home=root.parent / "home")}
module.sweep(module.Sweep(Dataset.load(root / "slang", root=root), "tool2vec", over, **given))
"""


def test_a_killed_sweep_goes_on_and_pays_for_no_finished_trial_twice(root: Path, fits: list[Any]) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(root)], capture_output=True, timeout=50)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not job(root).path.exists()
    found = sweep(job(root), resume=True)
    assert len(fits) == len(set(fits)) == 4
    assert [trial["settings"] for trial in found["trials"]] == job(root).grid
    assert sweep(job(root), resume=True)["trials"] == found["trials"] and len(fits) == 4


@pytest.mark.parametrize("trials", [None, 4])
def test_an_interrupted_trial_is_done_when_the_sweep_goes_on(
    root: Path, fits: list[Any], monkeypatch: pytest.MonkeyPatch, trials: int | None
) -> None:
    counted = module.fit

    def interrupted(task: Any) -> Any:
        if len(fits) == 2:
            raise KeyboardInterrupt
        return counted(task)

    monkeypatch.setattr(module, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(job(root, trials=trials))
    monkeypatch.setattr(module, "fit", counted)
    found = sweep(job(root, trials=trials), resume=True)
    assert len(found["trials"]) == len(fits) == len(set(fits)) == (trials or 6)


def test_a_label_belongs_to_one_sweep(root: Path, fits: list[Any]) -> None:
    sweep(job(root))
    with pytest.raises(UserError, match="a sweep of this label exists. Use --resume"):
        sweep(job(root))
    with pytest.raises(UserError, match=r"holds the trials of another sweep: seed 0 \(now 1\)"):
        sweep(job(root, seed=1), resume=True)
    other = Settings(home=root.parent / "home", encoder="minilm")
    with pytest.raises(UserError, match=r"holds the trials of another sweep: encoder 'static' \(now 'minilm'\)"):
        sweep(job(root, settings=other), resume=True)
    file = root / "slang" / "queries.jsonl"
    file.write_text(file.read_text().replace("umbrella", "parasol"))
    with pytest.raises(UserError, match="holds the trials of another sweep: data "):
        sweep(job(root), resume=True)
    assert len(fits) == 6
    assert len(sweep(job(root), force=True)["trials"]) == 6 and len(fits) == 12


def test_a_sweep_from_under_other_defaults_is_another(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(job(root, trials=1))
    now = module.resolve_with_base("tool2vec", {})
    monkeypatch.setattr(module, "resolve_with_base", lambda name, changes: {**now, "novelty": 0.1})
    with pytest.raises(UserError, match=r"holds the trials of another sweep: asked .*'novelty': 0\.6.*'novelty': 0\.1"):
        sweep(job(root), resume=True)


def test_with_fewer_trials_than_combinations_as_many_different_ones_are_tried(root: Path, fits: list[Any]) -> None:
    found = sweep(job(root, trials=5))
    assert len(found["trials"]) == len(set(fits)) == len(fits) == 5 and found["sampler"] == "tpe"
    assert found["combinations"] == 6
    again = sweep(job(root, trials=5, label="again"))
    assert [trial["settings"] for trial in again["trials"]] == [trial["settings"] for trial in found["trials"]]
    more = sweep(job(root, trials=6), resume=True)
    assert len(more["trials"]) == 6 and len(fits) == 11


def test_a_recipe_that_is_not_fitted_and_encoders_can_be_swept(root: Path) -> None:
    words = sweep(job(root, recipe="bm25", over={"k1": [0.5, 2.0]}))
    assert words["encoder"] is None and [trial["settings"]["k1"] for trial in words["trials"]] == [0.5, 2.0]
    assert 0 < words["best"]["dev"]["recall@5"] < 1
    found = sweep(job(root, recipe="hybrid", over={"encoder": ["static", "onnx:absent"]}))
    assert found["encoder"] is None and [trial["settings"] for trial in found["trials"]] == [{"encoder": "static"}]
    [failed] = found["failed"]
    assert failed["settings"] == {"encoder": "onnx:absent"} and "'onnx:absent'" in failed["error"]
    with pytest.raises(UserError, match="no combination could be fitted. The first error: The encoder 'onnx:absent'"):
        sweep(job(root, recipe="dense", over={"encoder": ["onnx:absent"]}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"over": {}}, "There is nothing to sweep"),
        ({"over": {"colour": [1]}}, "recipe tool2vec: a setting is not valid"),
        ({"over": {"kappa": [1.0, "much"]}}, "recipe tool2vec: a setting is not valid"),
        ({"over": {"kappa": []}}, "--over kappa has no values"),
        ({"over": {"kappa": [1, 1]}}, "has a value twice"),
        ({"over": {"encoder": [1]}}, "expected names of encoders"),
        ({"over": {"encoder": ["static"]}, "recipe": "bm25"}, "bm25 uses no encoder"),
        ({"changes": {"kappa": 3.0}}, "--over kappa: this setting is also fixed"),
        ({"trials": 0}, "--trials: expected 1 or more"),
        ({"no_tool": NoTool([], [], [])}, "--no-tool: tool2vec does not estimate"),
    ],
)
def test_what_cannot_be_tried_is_refused_before_anything_is_paid(
    root: Path, fits: list[Any], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        sweep(job(root, **fields))
    assert not fits and not (root.parent / "out").exists()


@pytest.mark.slow
def test_a_recipe_that_goes_on_from_another_fits_that_one_once(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    said: list[str] = []
    found = sweep(
        job(
            root,
            recipe="colt",
            over={"rate": [1e-3, 1e-2]},
            encoder=str(tiny_bert(tmp_path / "bert")),
            changes={"base": "dpr", "base.epochs": 1, "epochs": 2},
        ),
        say=said.append,
    )
    assert len(found["trials"]) == 2 and not found["failed"]
    assert len(list((root.parent / "home" / "bench-models").glob("dpr-*"))) == 1
    assert sum("dpr-" in line and "already finished" in line for line in said) == 1


def test_values_are_json_or_text() -> None:
    found = parse_values(["k=1,2.5,null,true,word", "base.x=[[1, 2], [3]]", "encoder=static,minilm:2"])
    assert found == {
        "k": [1, 2.5, None, True, "word"],
        "base.x": [[1, 2], [3]],
        "encoder": ["static", "minilm:2"],
    }
    for wrong in (["k"], ["=1"], ["k="], ["k=1", "k=2"]):
        with pytest.raises(ConfigError, match="--over: expected"):
            parse_values(wrong)


def test_the_command_sweeps_and_the_report_draws_it(root: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    words = ["sweep", "slang", "--data", str(root), "-r", "tool2vec", "--set", "sharpness=0.3", "--out", out]
    done = cli(*words, "--over", "kappa=0,100", "--over", "encoder=static,onnx:absent", "--json")
    assert done.exit_code == 3, done.output
    found = json.loads(done.stdout)
    assert len(found["trials"]) == len(found["failed"]) == 2 and found["settings"] == {"sharpness": 0.3}
    assert "kappa = 0, encoder = onnx:absent: The encoder 'onnx:absent'" in done.stderr
    shown = cli(*words, "--over", "kappa=0,100", "--over", "encoder=static", "--label", "one")
    assert shown.exit_code == 0 and "best on dev: kappa = 0, encoder = static" in shown.output
    assert cli(*words, "--over", "kappa").exit_code == 1
    assert cli(*words, "--over", "k=1", "--trials", "0").exit_code == 2
    written = report(Path(out))
    assert [path.name for path in written] == ["report.html", "sweep-slang-1.png", "sweep-slang-2.png"]
    text = written[0].read_text()
    assert "0 results and 2 sweeps on 1 dataset." in text and "kappa = 100, encoder = static" in text


@pytest.mark.usefixtures("unpainted")
def test_a_file_that_is_no_sweep_is_named_and_the_others_go_on(root: Path) -> None:
    sweep(job(root))
    held = json.loads(job(root).path.read_text())
    folder = job(root).path.parent
    for name, change in {
        "moved": {},
        "empty": {"trials": []},
        "other": {"over": {"beta": [1]}},
        "percent": {"trials": [{**held["trials"][0], "dev": {"ndcg@5": 50.0, "comp@5": 1.0}}]},
    }.items():
        label = "tool2vec" if name == "moved" else name
        (folder / f"{name}.sweep.json").write_text(json.dumps({**held, "label": label, **change}))
    written = report(root.parent / "out")
    assert [problem.entry for problem in written.problems] == [
        f"slang/{name}.sweep.json" for name in ("empty", "moved", "other", "percent")
    ]
    assert len(written) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("unpainted")
def test_queries_that_need_no_tool_are_learned_from_and_judged(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (root / "chat").mkdir()
    words = ("good", "fine", "nice", "calm", "warm", "dull")
    held = [*(("dev", f"{word} evening, how did you sleep") for word in words), ("test", "tell me a story")]
    rows = [
        {"_id": f"c{number}", "text": text, "metadata": {"split": part}} for number, (part, text) in enumerate(held)
    ]
    rows.append({"_id": "t0", "text": "tell me a story", "metadata": {"split": "test"}})
    (root / "chat" / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["sweep", "slang", "--data", str(root), "-r", "masstool", "--encoder", str(tiny_bert(tmp_path / "bert"))]
    command += [word for pair in ("base.epochs=1", "epochs=2", "k=3", "floor=0.0") for word in ("--set", pair)]
    command += ["--over", "transfer=gate,addition", "--out", str(tmp_path / "out"), "--json"]
    done = cli(*command, "--no-tool", "chat")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (
        found["no_tool"]
        and [set(trial["dev"]) for trial in found["trials"]] == [{"recall@5", "ndcg@5", "comp@5", "detect_auroc"}] * 2
    )
    other = cli(*command, "--resume")
    assert other.exit_code == 1 and "no_tool" in other.output
    [page, chart] = report(tmp_path / "out")
    assert chart.name == "sweep-slang-1.png" and "AUROC of the need" in page.read_text()
