"""`bench --train-on A --test-on B…`: fitted once, scored in-domain and on others, over their own tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lessons
from tests_cli import run as cli
from tiny import tiny_bert
from toolscout.rankers import Artifacts
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.compare import compare
from toolscout_lab.rankers.feedback.prf import FeedbackPrf

OTHERS = {
    "sky/outlook": "Says whether it will rain on a place",
    "post/deliver": "Hand a letter over to a recipient",
    "inn/reserve": "Book a room",
}
ASKED = {"p1": ("rain on the place", "sky/outlook"), "p2": ("a room", "inn/reserve"), "p3": ("letter", "post/deliver")}


def put(root: Path, name: str, asked: dict[str, tuple[str, str]]) -> None:
    """A dataset of tools that `slang` does not have, with test queries alone."""
    folder = root / name
    (folder / "qrels").mkdir(parents=True)
    entries = [json.dumps({"_id": tool, "title": tool, "text": text}) for tool, text in OTHERS.items()]
    (folder / "corpus.jsonl").write_text("\n".join(entries) + "\n")
    queries = [json.dumps({"_id": query, "text": text}) for query, (text, _) in asked.items()]
    (folder / "queries.jsonl").write_text("\n".join(queries) + "\n")
    rows = [f"{query}\t{tool}\t1" for query, (_, tool) in asked.items()]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lessons.write(tmp_path / "data")
    put(tmp_path / "data", "far", ASKED)
    put(tmp_path / "data", "group/near", {"p1": ("please umbrella", "sky/outlook"), "p2": ("room", "inn/reserve")})
    return tmp_path / "data"


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the recipes that were fitted, one a fit."""
    done: list[str] = []
    plain = FeedbackPrf.fit

    def counted(self: FeedbackPrf, *arguments: Any) -> Artifacts:
        done.append("feedback-prf")
        return plain(self, *arguments)

    monkeypatch.setattr(FeedbackPrf, "fit", counted)
    return done


def bench(root: Path, *more: str) -> Any:
    to = ("--train-on", "slang", "--test-on", "far", "--test-on", "group/near")
    return cli("bench", *to, *more, "--out", str(root.parent / "out"), "--data", str(root))


def in_domain(root: Path, recipe: str) -> Any:
    done = cli("bench", "slang", "-r", recipe, "--out", str(root.parent / "alone"), "--data", str(root), "--json")
    return json.loads(done.stdout)


def result(root: Path, place: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root.parent / "out" / f"{place}.json").read_text())
    return found


def test_one_fit_is_scored_in_its_domain_and_over_the_tools_of_the_others(root: Path, fits: list[str]) -> None:
    done = bench(root, "-r", "feedback-prf", "-r", "bm25", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [(each["dataset"], each["label"]) for each in found] == [
        *((name, "feedback-prf-from-slang") for name in ("slang", "far", "group/near")),
        *((name, "bm25-from-slang") for name in ("slang", "far", "group/near")),
    ]
    assert fits == ["feedback-prf"]
    assert {"ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10"} <= set(found[1]["metrics"])
    assert [each["n_tools"] for each in found[:3]] == [6, 3, 3]
    assert all(each["settings"]["train_on"] == "slang" for each in found)
    assert result(root, "far/feedback-prf-from-slang")["fitted"][0]["data"]["name"] == "slang"
    decided = result(root, "far/feedback-prf-from-slang")["fitted"][0]
    assert decided["settings"]["on"] == {"value": False, "origin": "dev"} and 0 <= decided["values"]["p"] <= 1
    assert (root.parent / "out" / "group" / "near" / "bm25-from-slang.run.gz").exists()
    assert found[1]["metrics"]["ndcg@1"] == 1.0 and "fitted" not in found[4]
    [alone] = in_domain(root, "bm25")
    assert found[3]["metrics"] == alone["metrics"], "bm25 learns nothing"


def test_the_table_shows_gains_at_four_depths_and_means_of_the_others_alone(root: Path) -> None:
    shown = bench(root, "-r", "bm25", "-r", "bm25-plain").output
    assert all(f"ndcg@{depth}" in shown for depth in (1, 3, 5, 10)) and "comp@5" not in shown
    assert "bm25-from-slang: mean of 2 other datasets: ndcg@1" in shown


def test_several_targets_may_follow_one_option(root: Path) -> None:
    to = ("--train-on", "slang", "--test-on", "far", "group/near", "far")
    done = cli("bench", *to, "-r", "bm25", "--out", str(root.parent / "out"), "--data", str(root), "--json")
    assert [each["dataset"] for each in json.loads(done.stdout)] == ["slang", "far", "group/near"]
    assert cli("bench", "--train-on", "slang", "far", "-r", "bm25", "--data", str(root)).exit_code == 2


def test_no_query_of_any_test_split_is_learned_from(root: Path) -> None:
    found = json.loads(bench(root, "-r", "feedback-prf", "--json").stdout)
    assert [each["dropped_leaks"] for each in found] == [1, 1, 1], "'please umbrella' is a training query of slang"
    assert len({each["fitted"][0]["data"]["fingerprint"] for each in found}) == 1
    [alone] = in_domain(root, "feedback-prf")
    assert alone["dropped_leaks"] == 0


def test_a_method_that_knows_single_tools_is_refused_in_one_sentence(root: Path) -> None:
    refused = bench(root, "-r", "mlc")
    said = [line for line in refused.stderr.splitlines() if line.startswith("error:")]
    assert refused.exit_code == 1 and len(said) == 1
    assert "mlc learns the tools of slang one by one, and far, group/near have none of them" in said[0]
    assert not (root.parent / "out").exists() and not (root.parent / "home" / "bench-models").exists()
    partly = bench(root, "-r", "mlc", "-r", "bm25")
    assert partly.exit_code == 3 and len(list((root.parent / "out").rglob("*-from-slang.json"))) == 3


def test_what_is_there_is_kept_and_what_is_missing_is_scored_with_the_same_model(root: Path, fits: list[str]) -> None:
    assert bench(root, "-r", "feedback-prf").exit_code == 0
    gone = root.parent / "out" / "far" / "feedback-prf-from-slang.json"
    before = json.loads(gone.read_text())
    gone.unlink()
    stamp = (root.parent / "out" / "slang" / "feedback-prf-from-slang.json").stat().st_mtime_ns
    assert bench(root, "-r", "feedback-prf", "--resume").exit_code == 0
    assert fits == ["feedback-prf"]
    assert json.loads(gone.read_text())["run_sha256"] == before["run_sha256"]
    assert (root.parent / "out" / "slang" / "feedback-prf-from-slang.json").stat().st_mtime_ns == stamp
    assert bench(root, "-r", "feedback-prf").exit_code == 0 and fits == ["feedback-prf"] * 2


def test_a_target_that_fails_is_named_and_the_others_are_scored(root: Path) -> None:
    found = bench(root, "-r", "bm25", "--test-on", "absent", "--json")
    assert found.exit_code == 3 and "absent" in found.stderr and len(json.loads(found.stdout)) == 3
    (root / "slang" / "qrels" / "test.tsv").unlink()
    rest = bench(root, "-r", "feedback-prf", "--json")
    assert rest.exit_code == 0 and [each["dataset"] for each in json.loads(rest.stdout)] == ["far", "group/near"]
    assert bench(root, "-r", "feedback-prf", "--folds", "query:2").exit_code == 1


def test_what_training_saw_is_judged_by_the_tools_of_the_other_dataset(root: Path) -> None:
    lessons.write(root, "again")
    to = ("--train-on", "slang", "--test-on", "again", "--test-on", "far", "--test-on", "slang")
    done = cli("bench", *to, "-r", "bm25", "--out", str(root.parent / "out"), "--data", str(root), "--json")
    found = json.loads(done.stdout)
    assert [each["dataset"] for each in found] == ["slang", "again", "far"]
    assert {name: row["n"] for name, row in found[1]["slices"]["tools"].items()} == {"seen": 23}
    assert {name: row["n"] for name, row in found[2]["slices"]["tools"].items()} == {"unseen": 3}
    compared = compare(root.parent / "out", load_dataset("again", root), "bm25-from-slang", "bm25-from-slang")
    assert compared["parents"] == {} and compared["slices"]["tools"]["seen"]["n"] == 23


def test_an_encoder_that_was_tuned_on_one_dataset_serves_another(root: Path) -> None:
    pytest.importorskip("torch")
    bert = str(tiny_bert(root.parent / "bert"))
    quick = [f"--set={each}" for each in ("epochs=1", "batch=16", "precision=float32", "threads=1")]
    done = bench(root, "-r", "dpr", "--encoder", bert, *quick, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert len(found) == 3 and len({each["fit_seconds"] for each in found}) == 1
