"""benchmarks/detection_controls.py: what stands for h, and its figures against those of a search."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import lessons  # noqa: E402
from toolscout import metrics  # noqa: E402
from toolscout.dataset import NoTool, Prompt  # noqa: E402
from toolscout.home.catalogue.store import Catalogue  # noqa: E402
from toolscout.home.models.model_store import Model  # noqa: E402
from toolscout.learn.fit import Lesson, fit  # noqa: E402
from toolscout.recipes import registry  # noqa: E402
from toolscout.settings import Settings  # noqa: E402
from toolscout.types import Search  # noqa: E402
from toolscout_lab.encoders.transformer import TransformerEncoder  # noqa: E402

ROOT = Path(__file__).parents[4]
QUICK = {"transfer": "gate", "epochs": 3, "batch": 16, "rate": 0.01, "k": 4, "floor": 0.0, "threads": 1}


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import detection_controls as module
    finally:
        sys.path.pop(0)
    return module


def fitted(slang: Lesson, bert: str, home: Path, name: str) -> Model:
    changes = {**lessons.QUICK_BASE, **({} if name == "masstool" else {"epochs": 1}), **QUICK}
    changes = {key: value for key, value in changes.items() if key not in registry.recipe(name).settings}
    encoder, settings = TransformerEncoder(bert), Settings(home=home)
    return fit(lessons.plan(name, slang, home / name, encoder=encoder, changes=changes, settings=settings))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def model(slang: Lesson, bert: str, home: Path) -> Model:
    return fitted(slang, bert, home, "masstool")


def test_no_query_keeps_its_own_and_the_mean_is_the_same_for_all(script: Any) -> None:
    hidden = np.arange(14, dtype=np.float32).reshape(7, 2)
    for seed in range(20):
        made = script.replace_hidden(hidden, 3, seed)
        assert len(made["shuffled"]) == 3 and made["own"][0] is hidden
        for shuffled in made["shuffled"]:
            assert sorted(shuffled[:, 0].tolist()) == hidden[:, 0].tolist()
            assert (shuffled != hidden).all()
    assert made["mean"][0].tolist() == [[6.0, 7.0]] * 7 and not made["zero"][0].any()


def test_own_has_the_figures_of_a_search(script: Any, slang: Any, model: Model) -> None:
    found, own = script.measure_model(model, slang.dataset, "test", 2)
    stage = registry.build("masstool", Catalogue.of(slang.tools), model=model.folder)
    texts = slang.dataset.texts("test")
    run = {query: stage([Search(query=text)])[0].ids for query, text in texts.items()}
    gold = {
        query: {f"d/{tool}": grade for tool, grade in tools.items()}
        for query, tools in slang.dataset.split("test").items()
    }
    assert found["controls"]["own"]["metrics"] == pytest.approx(metrics.score(run, gold, script.MEASURES).means())
    assert found["n_queries"] == len(texts) and not found["detects"] and found["towers"] == 2
    assert own.means() == found["controls"]["own"]["metrics"] and set(own.ids) == set(texts)
    assert set(found["controls"]) == {"own", "shuffled", "mean", "zero", "no_joint", "encoder"}
    assert found["controls"]["own"]["joint_cosine"] == pytest.approx(1, abs=1e-5)
    for name in ("shuffled", "mean", "zero"):
        assert found["controls"][name]["joint_cosine"] < 0.9999
    for name in ("shuffled", "mean", "zero", "no_joint", "encoder"):
        control = found["controls"][name]
        for measure, test in control["from_own"].items():
            difference = control["metrics"][measure] - found["controls"]["own"]["metrics"][measure]
            assert test["difference"] == pytest.approx(difference) and test["p_holm"] >= test["p"]


def test_a_gate_that_does_not_read_h_loses_nothing_and_one_that_does_loses(
    script: Any, slang: Any, model: Model
) -> None:
    """The gate of one model is constant; that of the other lets pass only what the query's own h opens."""
    deaf = {**model.arrays, "towers.join.0.weight": np.zeros_like(model.arrays["towers.join.0.weight"])}
    found = script.measure_model(dataclasses.replace(model, arrays=deaf), slang.dataset, "test", 2)[0]["controls"]
    for name in ("shuffled", "mean", "zero"):
        assert found[name]["metrics"] == found["own"]["metrics"] and found[name]["joint_cosine"] > 0.99999
        assert all(test["difference"] == 0 and test["p"] == 1 for test in found[name]["from_own"].values())

    d = model.arrays["keys"].shape[1]
    eager = {
        **model.arrays,
        "towers.project.weight": np.eye(d, dtype=np.float32),
        "towers.project.bias": np.zeros(d, dtype=np.float32),
        "towers.join.0.weight": 8 * np.eye(d, dtype=np.float32),
        "towers.join.0.bias": np.full(d, -8, dtype=np.float32),
    }
    found = script.measure_model(dataclasses.replace(model, arrays=eager), slang.dataset, "test", 2)[0]["controls"]
    assert all(found[name]["joint_cosine"] < 0.99 for name in ("shuffled", "mean", "zero"))


def test_the_file_holds_every_model_and_a_model_without_the_joint_part_is_refused(
    script: Any, slang: Any, bert: str, home: Path, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "controls.json"
    again = ["--data", str(slang.dataset.folder.parent), "--split", "dev", "--draws", "1", "--out", str(out)]
    script.main(["--model", str(model.folder), "--model", str(model.folder), *again])
    written = json.loads(out.read_text())
    assert [each["split"] for each in written["models"]] == ["dev", "dev"] and "commit" in written["provenance"]
    assert written["models"][0] == written["models"][1] and written["arms"] == []
    assert "shuffled" in capsys.readouterr().out
    without = fitted(slang, bert, home, "masstool-no-adakt")
    with pytest.raises(SystemExit, match="has no joint part. Give a model of masstool"):
        script.main(["--model", str(without.folder), *again])


def scored(script: Any, **values: list[float]) -> metrics.PerQuery:
    table = {name: np.array(values.get(name.replace("@", "_"), [0.0, 0.0])) for name in script.MEASURES}
    return metrics.PerQuery(("q1", "q2"), table)


def report(seed: int, detects: bool, dataset: str = "d") -> dict[str, Any]:
    return {
        "dataset": dataset,
        "seed": seed,
        "detects": detects,
        "epoch_by": "retrieval",
        "best_epoch": 10 * seed + detects,
    }


def test_both_kinds_are_compared_query_by_query_over_the_means_of_their_seeds(script: Any) -> None:
    measured = [
        (report(2, True), scored(script, ndcg_5=[0.9, 0.7])),
        (report(1, False), scored(script, ndcg_5=[0.2, 0.6])),
        (report(1, True), scored(script, ndcg_5=[0.5, 0.5])),
        (report(2, False), scored(script, ndcg_5=[0.4, 0.4])),
        (report(1, True, "alone"), scored(script, ndcg_5=[1.0, 1.0])),
    ]
    [arm] = script.compare_arms(measured)
    assert (arm["dataset"], arm["seeds"]) == ("d", [1, 2])
    assert arm["epoch_by"] == {"detecting": ["retrieval"], "other": ["retrieval"]}
    assert arm["best_epochs"] == {"detecting": [11, 21], "other": [10, 20]}
    # by query: (0.5 + 0.9) / 2 and (0.5 + 0.7) / 2 less (0.2 + 0.4) / 2 and (0.6 + 0.4) / 2
    assert arm["detecting"]["metrics"]["ndcg@5"] == pytest.approx((0.7 + 0.6) / 2)
    assert arm["other"]["metrics"]["ndcg@5"] == pytest.approx((0.3 + 0.5) / 2)
    assert arm["difference"]["ndcg@5"]["difference"] == pytest.approx((0.4 + 0.1) / 2)
    assert arm["by_seed"][1]["ndcg@5"]["difference"] == pytest.approx((0.3 - 0.1) / 2)
    assert arm["by_seed"][2]["ndcg@5"]["difference"] == pytest.approx((0.5 + 0.3) / 2)
    assert arm["difference"]["comp@5"]["difference"] == 0
    for wrong in (measured[:3], [*measured, measured[0], measured[3]]):
        with pytest.raises(SystemExit, match="Give one of each"):
            script.compare_arms(wrong)


def test_a_model_that_detects_and_one_that_does_not_are_compared(
    script: Any, slang: Any, bert: str, home: Path, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [Prompt(f"chat-{number}", f"why {word}?", "chat") for number, word in enumerate(["who", "when", "how"])]
    changes = {**lessons.QUICK_BASE, **QUICK, "epoch_by": "retrieval"}
    detecting = fit(
        lessons.plan(
            "masstool",
            slang,
            home / "detecting",
            encoder=TransformerEncoder(bert),
            changes=changes,
            settings=Settings(home=home),
            no_tool=NoTool(prompts, prompts, prompts),
        )
    )
    out = tmp_path / "controls.json"
    folders = ["--model", str(model.folder), "--model", str(detecting.folder)]
    script.main([*folders, "--data", str(slang.dataset.folder.parent), "--draws", "1", "--out", str(out)])
    written = json.loads(out.read_text())
    [arm] = written["arms"]
    without, with_detection = written["models"]
    assert [each["detects"] for each in written["models"]] == [False, True]
    assert arm["epoch_by"] == {"detecting": ["retrieval"], "other": ["both"]}
    assert arm["detecting"]["metrics"] == with_detection["controls"]["own"]["metrics"]
    assert arm["other"]["metrics"] == without["controls"]["own"]["metrics"]
    assert len(with_detection["history"]) == 3 and "detect_auroc" in with_detection["history"][0]
    assert "slang  ndcg@5" in capsys.readouterr().out
