from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lessons
from tests_cli import run as cli
from toolscout.dataset import Dataset
from toolscout.encoders import Kind, Vectors, unit_rows
from toolscout.errors import NotFound, UserError
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.search.pipeline import Stage
from toolscout.sources.folder import read_tools
from toolscout.testing import HashEncoder
from toolscout.types import Search, Tool
from toolscout_lab.anatomy import (
    box,
    cost,
    failures,
    find_recipe_and_encoder,
    geometry,
    stage_costs,
)
from toolscout_lab.bench import run
from toolscout_lab.bench_jobs import Job
from toolscout_lab.commands.anatomy import make_slug
from toolscout_lab.report import charts, report
from toolscout_lab.run_files import read_run

pytest.importorskip("sklearn")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lessons.write(tmp_path / "data")
    return tmp_path / "data"


def slang(root: Path) -> tuple[Dataset, Sequence[Tool]]:
    dataset = Dataset.load(root / "slang", root=root)
    return dataset, read_tools(dataset.folder, "d").tools


# --- failures ---------------------------------------------------------------------------------------------------------


def test_failures_are_counted_for_each_tool_and_queries_by_whether_any_tool_is_missed() -> None:
    qrels = {"q1": {"a": 1.0}, "q2": {"a": 1.0, "b": 1.0}, "q3": {"b": 1.0}, "q4": {"c": 2.0}}
    texts = {"q1": "one", "q2": "two two", "q3": "three three three", "q4": "4 4 4 4 4 4"}
    run = {"q1": ["a"], "q2": ["x", "y", "a", "z", "v", "b"], "q3": ["b"]}  # b sixth in q2; no answer to q4
    found = failures(run, qrels, texts)
    assert (found["k"], found["tools"], found["spared"]) == (5, 3, 1)
    assert found["rate"] == {"mean": pytest.approx(0.5), "deviation": pytest.approx(np.sqrt(1 / 6))}  # 0, 1/2, 1
    assert found["missed_per_tool"] == pytest.approx(2 / 3)
    assert found["worst"] == [
        {"tool": "c", "rate": 1.0, "missed": 1, "gold": 1},
        {"tool": "b", "rate": 0.5, "missed": 1, "gold": 2},
    ]
    assert found["words"]["failed"] == {"n": 2, "mean": 4.0, "deviation": 2.0}
    assert found["words"]["found"] == {"n": 2, "mean": 2.0, "deviation": 1.0}


def test_without_a_failure_the_failed_queries_have_no_length() -> None:
    found = failures({"q": ["a"]}, {"q": {"a": 1.0}}, {"q": "word"}, k=1)
    assert found["words"]["failed"] == {"n": 0, "mean": None, "deviation": None} and found["worst"] == []
    assert failures({"q": ["x", "a"]}, {"q": {"a": 1.0}}, {"q": "word"}, k=1)["rate"]["mean"] == 1.0


# --- geometry ---------------------------------------------------------------------------------------------------------


def test_a_box_has_quartiles_and_whiskers_at_the_last_values_within_reach() -> None:
    found = box(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 30.0]))
    # quartiles 3, 5, 7; reach 1.5 · 4 = 6, so that whiskers lie within -3 and 13
    assert found == {"n": 9, "mean": 7.333333, "low": 1.0, "q1": 3.0, "median": 5.0, "q3": 7.0, "high": 8.0}
    assert box(np.array([2.0])) == {"n": 1, **dict.fromkeys(("mean", "low", "q1", "median", "q3", "high"), 2.0)}


class Plane:
    """An encoder of points: a text is an angle in degrees, which a tool's text ends with."""

    name, dim, fingerprint, cheap = "plane", 2, "plane", True

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        angles = np.radians([float(text.split()[-1]) for text in texts])
        return unit_rows(np.stack([np.cos(angles), np.sin(angles)], axis=1))


def angles(root: Path, train: dict[str, tuple[str, list[str]]], test: dict[str, tuple[str, list[str]]]) -> Path:
    """Tools a, b, c at 0, 90 and 180 degrees by their descriptions, and queries at given angles."""
    folder = root / "angles"
    (folder / "qrels").mkdir(parents=True)
    tools = {"a": 0, "b": 90, "c": 180}
    rows = [{"_id": name, "title": f"{at}", "text": f"{at}", "metadata": {"path": ["p"]}} for name, at in tools.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries = [{"_id": query, "text": text} for query, (text, _) in {**train, **test}.items()]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    for split, held in {"train": train, "dev": {}, "test": test}.items():
        lines = [f"{query}\t{tool}\t1" for query, (_, gold) in held.items() for tool in gold]
        if train:
            (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
        elif split == "test":
            (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


def looked(folder: Path) -> dict[str, Any]:
    dataset = Dataset.load(folder)
    return geometry(dataset, read_tools(folder, "d").tools, Plane())


def test_cosines_with_means_of_usage_and_with_descriptions_are_those_of_the_plane(tmp_path: Path) -> None:
    train = {"t1": ("40", ["a"]), "t2": ("80", ["a"]), "t3": ("150", ["b"])}
    found = looked(angles(tmp_path, train, {"s1": ("60.0", ["a"]), "s2": ("115.0", ["b"])}))
    # usage: a at 60 degrees, b at 150; nobody used c, which is not compared
    assert (found["n_queries"], found["n_tools"], found["n_used"]) == (2, 2, 2)
    usage, description = found["cosines"]["usage"], found["cosines"]["description"]
    cos = {angle: np.cos(np.radians(angle)) for angle in (0, 25, 30, 35, 55, 60, 90, 115)}
    assert (usage["positive"]["high"], usage["positive"]["low"]) == pytest.approx((cos[0], cos[35]), abs=1e-5)
    assert (usage["negative"]["high"], usage["negative"]["low"]) == pytest.approx((cos[55], cos[90]), abs=1e-5)
    assert usage["auc"] == 1.0
    # description: a at 0, b at 90: gold 0.50 and 0.91, others 0.87 and -0.42: of four pairs three are won
    assert description["positive"]["mean"] == pytest.approx((cos[60] + cos[25]) / 2, abs=1e-5)
    assert description["negative"]["mean"] == pytest.approx((cos[30] + cos[115]) / 2, abs=1e-5)
    assert description["auc"] == 0.75
    assert {name: len(points) for name, points in found["tsne"].items()} == {"queries": 2, "usage": 2, "description": 2}


def test_training_queries_that_a_test_query_repeats_are_no_usage(tmp_path: Path) -> None:
    train = {"t1": ("40", ["a"]), "t2": ("80", ["a"]), "t3": ("150", ["b"]), "t4": ("170", ["c"])}
    found = looked(angles(tmp_path, train, {"s1": ("60", ["a"]), "s2": ("150", ["b"])}))
    assert found["n_used"] == 2 and found["cosines"]["usage"]["positive"]["n"] == 1  # b is used by a leak alone


def test_without_training_queries_there_are_descriptions_of_all_tools(tmp_path: Path) -> None:
    found = looked(angles(tmp_path, {}, {"s1": ("10", ["a"]), "s2": ("170", ["c"])}))
    assert (found["n_tools"], found["n_used"]) == (3, 0) and list(found["cosines"]) == ["description"]
    assert found["cosines"]["description"]["auc"] == 1.0
    assert found["cosines"]["description"]["negative"]["n"] == 4
    with pytest.raises(UserError, match="no cosines can be compared"):
        looked(angles(tmp_path / "x", {"t": ("40", ["b"])}, {"s1": ("10", ["a"])}))


def test_usage_lies_nearer_to_slang_than_descriptions_and_equal_seeds_give_equal_points(root: Path) -> None:
    dataset, tools = slang(root)
    found = geometry(dataset, tools, HashEncoder())
    assert found["cosines"]["usage"]["auc"] > 0.95 > 0.8 > found["cosines"]["description"]["auc"]
    assert geometry(dataset, tools, HashEncoder()) == found
    assert {name: len(points) for name, points in found["tsne"].items()} == {
        "queries": 23,
        "usage": 5,
        "description": 5,
    }
    few = geometry(dataset, tools, HashEncoder(), sample=10, seed=1)
    assert few["n_queries"] == 10 and few["n_tools"] == 5


def test_vectors_of_an_expensive_encoder_are_made_once(root: Path, tmp_path: Path) -> None:
    dataset, tools = slang(root)
    encoder, kept = HashEncoder(cheap=False), VectorStore(tmp_path / "kept")
    first = geometry(dataset, tools, encoder, vectors=kept)
    encoded = encoder.encoded
    assert geometry(dataset, tools, encoder, vectors=kept) == first and encoder.encoded == encoded


# --- cost -------------------------------------------------------------------------------------------------------------


class Sleep(Stage):
    writes = frozenset({"hits"})

    def __init__(self, label: str, seconds: float) -> None:
        self.label, self.seconds = label, seconds

    @property
    def name(self) -> str:
        return self.label

    def run(self, searches: Sequence[Search]) -> list[Search]:
        time.sleep(self.seconds)
        return list(searches)


def test_each_stage_has_its_own_time_also_when_two_have_one_name() -> None:
    found = stage_costs(Sleep("nap", 0.004) >> Sleep("sleep", 0.02) >> Sleep("nap", 0.001), ["q"] * 12)
    assert found["n"] == 12 and [each["stage"] for each in found["stages"]] == ["nap", "sleep", "nap"]
    first, second, third = found["stages"]
    assert 1 <= third["p50"] < 4 <= first["p50"] < 20 <= second["p50"] <= second["p95"]
    assert sum(each["share"] for each in found["stages"]) == pytest.approx(1, abs=1e-3)
    assert found["total"]["p50"] >= first["p50"] + second["p50"]


def test_a_pipeline_has_times_of_its_stages_and_the_memory_of_the_process(root: Path) -> None:
    dataset, tools = slang(root)
    found = cost("hybrid", tools, list(dataset.texts("test").values()), encoder=HashEncoder())
    assert [each["stage"] for each in found["stages"]] == ["bm25", "dense", "fuse(bm25, dense)", "sources", "actions"]
    assert all(0 < each["p50"] <= each["p95"] for each in found["stages"][:3]) and found["n"] == 23
    memory = found["memory_mb"]
    assert 10 < memory["before"] <= memory["peak"] + 1 and memory["built"] <= memory["peak"] + 1


def test_a_model_says_its_recipe_and_encoder(root: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    assert cli("train", "neighbours", "--data", str(root / "slang"), "--out", str(model)).exit_code == 0
    assert (
        find_recipe_and_encoder(model, None) == find_recipe_and_encoder(model, "neighbours") == ("neighbours", "static")
    )
    assert find_recipe_and_encoder(None, "hybrid-minilm") == ("hybrid-minilm", "minilm")
    with pytest.raises(UserError, match="expected a model of mlc, found one of neighbours"):
        find_recipe_and_encoder(model, "mlc")
    with pytest.raises(NotFound):
        find_recipe_and_encoder(tmp_path, None)


def test_the_command_writes_figures_and_pictures(root: Path, tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    cli("train", "neighbours", "--data", str(root / "slang"), "--out", str(model))
    done = cli("anatomy", "slang", "--data", str(root), "--model", str(model), "--out", str(out), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found == json.loads((out / "slang" / "neighbours-static.anatomy.json").read_text())
    assert (found["recipe"], found["encoder"], found["cost"]["recipe"]) == ("neighbours", "static", "neighbours")
    assert {path.name for path in (out / "slang").glob("*.png")} == {
        f"neighbours-static.anatomy.{name}.png" for name in ("cosines", "tsne", "stages")
    }
    absent = cli("anatomy", "slang", "--data", str(root), "--out", str(out), "--recipe", "neighbours")
    assert absent.exit_code == 1 and "needs a fitted model" in absent.stderr


def test_the_command_needs_no_recipe_and_names_files_by_the_encoder(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plain = cli("anatomy", "slang", "--data", str(root), "--out", str(out), "--encoder", "static")
    assert plain.exit_code == 0 and "static.anatomy.cosines.png" in plain.output and "usage" in plain.output
    assert "cost" not in json.loads((out / "slang" / "static.anatomy.json").read_text())
    tuned = tmp_path / "dpr-1" / "encoder"
    tuned.mkdir(parents=True)
    assert make_slug(None, str(tuned)) == "dpr-1-encoder" and make_slug("dpr", "minilm:2") == "dpr-minilm-2"
    assert make_slug(None, "sentence-transformers/all-MiniLM-L6-v2") == "all-MiniLM-L6-v2"


# --- the report -------------------------------------------------------------------------------------------------------


@pytest.fixture
def results(root: Path, tmp_path: Path) -> Path:
    for recipe in ("bm25", "dense"):
        run(Job(Dataset.load(root / "slang", root=root), recipe, recipe, tmp_path / "out"))
    return tmp_path / "out"


def test_the_report_shows_failures_where_the_dataset_is_found(results: Path, root: Path) -> None:
    written = report(results, data=root)
    assert {"failures-slang.png", "size-slang.png"} <= {path.name for path in written}
    assert not written.notes and not written.problems
    text = written[0].read_text()
    dataset, _ = slang(root)
    table = text.partition("slang: gold tools that are not among the first 5")[2].partition("</table>")[0]
    for label in ("bm25", "dense"):
        ranked = read_run(results / "slang" / f"{label}.run.gz")
        ids = {query: [tool for tool, _ in hits] for query, hits in ranked.items()}
        rate = failures(ids, dataset.split("test"), dataset.queries)["rate"]
        assert (rate["mean"] > 0) is (label == "bm25") and rate["mean"] < 1
        assert f'{label}</th><td data-value="5">5</td><td data-value="{rate["mean"]!r}">' in table


@pytest.mark.usefixtures("unpainted")
def test_the_report_says_that_a_dataset_is_not_there_and_goes_on(results: Path, root: Path, tmp_path: Path) -> None:
    for data in (None, tmp_path):
        written = report(results, data=data)
        assert "failures-slang.png" not in {path.name for path in written} and not written.problems
        [note] = written.notes
        assert note.startswith("slang: failures per tool are not shown, because ")
        assert note in written[0].read_text()
    done = cli("report", str(results), "--data", str(root))
    assert done.exit_code == 0 and "failures-slang.png" in done.output and not done.stderr
    gone = cli("report", str(results), "--data", str(tmp_path))
    assert gone.exit_code == 0 and "failures per tool are not shown" in gone.stderr


@pytest.mark.usefixtures("unpainted")
def test_rankings_that_are_not_those_of_the_result_are_named(results: Path, root: Path) -> None:
    folder = results / "slang"
    (folder / "bm25.run.gz").write_bytes((folder / "dense.run.gz").read_bytes())
    written = report(results, data=root)
    [problem] = written.problems
    assert problem.entry == "slang/bm25.run.gz" and "rankings that bm25.json was computed from" in problem.message
    assert "failures-slang.png" in {path.name for path in written}


@pytest.mark.usefixtures("unpainted")
def test_queries_of_another_set_of_the_same_name_are_a_note(results: Path, root: Path) -> None:
    file = root / "slang" / "qrels" / "test.tsv"
    file.rename(file.with_name("other.tsv"))
    [note] = report(results, data=root).notes
    assert "expected a split of" in note


def test_charts_are_the_same_for_the_same_numbers_and_hold_what_is_missing() -> None:
    panels = [charts.Panel("k", ["1", "a long tick 工"], {"x": [1.0, None], "y": [2.0, 3.0]}, [(0, 1.5)])] * 4
    fields = [
        (
            "rate",
            [charts.MeanAndDeviation("a", {"rate": (90.0, 30.0)}), charts.MeanAndDeviation("b", {"rate": None})],
            100.0,
        )
    ]
    number = {"low": 0.0, "q1": 0.1, "median": 0.2, "q3": 0.3, "high": 0.4}
    for draw in (
        lambda: charts.lines("t", panels, "percent"),
        lambda: charts.spreads("t", fields),
        lambda: charts.cloud("t", {"queries": [[0.0, 1.0]], "usage": [], "description": [[1.0, 2.0]]}),
        lambda: charts.boxes("t", {"usage": {"needed": number, "not": number}}, "cosine"),
        lambda: charts.stages("t", [("a", 0.0, 0.0), ("b", 1.0, 20.0)]),
    ):
        assert draw() == draw() and draw()[:4] == b"\x89PNG"
