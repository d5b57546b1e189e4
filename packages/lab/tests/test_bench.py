from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests_cli import run as cli
from toolscout.dataset import Dataset, in_dev
from toolscout.errors import ConfigError, NotFound, UserError
from toolscout.home.catalogue.store import Catalogue
from toolscout.learn.fit import make_lesson
from toolscout.rankers import zero_shot
from toolscout.recipes import registry
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import Stage
from toolscout.settings import Settings
from toolscout.sources.folder import read_tools
from toolscout_lab.bench import run
from toolscout_lab.bench_jobs import Job, groups, label_of, load_dataset
from toolscout_lab.compare import compare, load_checked
from toolscout_lab.encoders.pair_cache import cache_pairs
from toolscout_lab.rankers.crossencoder import CrossEncoderStage, LogitBlend, NeedScorer
from toolscout_lab.run_files import read_run
from toolscout_lab.testing import Faults, ScriptedLLM, ScriptedServer

TOOLS = {
    "weather/forecast": "Will it rain: the weather forecast of a city",
    "weather/air": "Air quality of a city",
    "mail/send": "Send a message by mail",
    "mail/find": "Find a message in the mailbox",
    "travel/hotel": "Book a hotel room",
}
QUERIES = {
    "q1": ("rain in the city", ["weather/forecast"]),
    "q2": ("send mail", ["mail/send"]),
    "q3": ("air quality and a hotel room", ["weather/air", "travel/hotel"]),
    "q4": ("umbrella", ["weather/forecast"]),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("small", "group/other"):
        folder = tmp_path / "data" / name
        (folder / "qrels").mkdir(parents=True)
        with (folder / "corpus.jsonl").open("w") as stream:
            for tool, text in TOOLS.items():
                entry = {
                    "_id": tool,
                    "title": tool.partition("/")[2],
                    "text": text,
                    "metadata": {"path": [tool.partition("/")[0]]},
                }
                stream.write(json.dumps(entry) + "\n")
        with (folder / "queries.jsonl").open("w") as stream:
            for query, (text, _) in QUERIES.items():
                stream.write(json.dumps({"_id": query, "text": text, "metadata": {"kind": "k"}}) + "\n")
        lines = ["query-id\tcorpus-id\tscore"]
        lines += [f"{query}\t{tool}\t1" for query, (_, gold) in QUERIES.items() for tool in gold]
        (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path / "data"


def job(root: Path, **fields: object) -> Job:
    defaults = {"recipe": "bm25", "label": "bm25", "out": root.parent / "out"}
    return Job(load_dataset("small", root), **{**defaults, **fields})  # type: ignore[arg-type]


def test_an_installed_search_is_measured_with_all_that_follows_the_ranking(root: Path) -> None:
    """`select:` gets the tool of that name, and small talk gets nothing; the ranking alone knows neither."""
    with (root / "small" / "queries.jsonl").open("a") as stream:
        for query, text in (("q5", "select:hotel"), ("q6", "thank you so much!")):
            stream.write(json.dumps({"_id": query, "text": text, "metadata": {"kind": "k"}}) + "\n")
    with (root / "small" / "qrels" / "test.tsv").open("a") as stream:
        stream.write("q5\ttravel/hotel\t1\nq6\tmail/send\t1\n")
    arguments = ("lab", "bench", "small", "-r", "hybrid", "--data", str(root), "--out", str(root.parent / "out"))
    for options in ((), ("--installed",)):
        assert cli(*arguments, *options).exit_code == 0
    out = root.parent / "out" / "small"
    ranked, installed = (read_run(out / f"hybrid{end}.run.gz") for end in ("", "-installed"))
    assert [tool for tool, _ in installed["q5"]] == ["travel/hotel"] and len(ranked["q5"]) > 1
    assert not installed.get("q6") and ranked["q6"]
    assert json.loads((out / "hybrid-installed.json").read_text())["settings"] == {"installed": True}


def test_a_result_has_every_key_of_the_formats_page_and_the_right_figures(root: Path) -> None:
    result = run(job(root)).result
    assert set(result) >= {
        "dataset", "recipe", "label", "encoder", "split", "seed", "n_queries", "n_tools", "metrics", "ci95",
        "slices", "fit_seconds", "latency_ms", "batch_qps", "peak_rss_mb", "selected_on",
        "settings", "versions", "commit", "machine",
    }  # fmt: skip
    assert set(result["metrics"]) == {
        "recall@1", "recall@3", "recall@5", "recall@7", "recall@10", "recall@|N|", "ndcg@1", "ndcg@3", "ndcg@5",
        "ndcg@10", "comp@3", "comp@5", "comp@10", "comp@|N|", "mrr",
    } == set(result["ci95"])  # fmt: skip
    assert (result["n_queries"], result["n_tools"], result["dataset"]) == (4, 5, "small")
    assert result["metrics"]["comp@5"] == result["metrics"]["recall@5"] == 0.75
    assert result["slices"]["gold"]["2"]["n"] == 1 and result["slices"]["gold"]["2"]["comp@3"] == 1.0
    assert result["latency_ms"]["p50"] > 0 and result["batch_qps"] > 0 and result["peak_rss_mb"] > 10
    written = json.loads((root.parent / "out" / "small" / "bm25.json").read_text())
    assert written == json.loads(json.dumps(result))


def test_the_run_file_is_what_was_scored_with_bare_ids(root: Path) -> None:
    run(job(root))
    path = root.parent / "out" / "small" / "bm25.run.gz"
    held = read_run(path)
    assert held["q1"][0][0] == "weather/forecast"
    assert "q4" not in held
    with gzip.open(path, "rt") as stream:
        query, q0, tool, rank, score, label = stream.readline().split()
    assert (q0, rank, label) == ("Q0", "1", "bm25") and float(score) > 0 and tool in TOOLS and query in QUERIES


def test_scoring_twice_gives_the_same_figures(root: Path) -> None:
    first, second = run(job(root)).result, run(job(root)).result
    for key in ("metrics", "ci95", "slices", "run_sha256"):
        assert first[key] == second[key]


def test_a_label_is_not_given_to_another_job_without_force(root: Path) -> None:
    run(job(root))
    changed = job(root, changes={"k1": 0.5})
    with pytest.raises(UserError, match="holds a result with other settings: settings"):
        run(changed)
    assert run(changed, force=True).result["settings"] == {"k1": 0.5}


def test_resume_keeps_what_is_there_and_does_what_is_not(root: Path) -> None:
    assert not run(job(root), resume=True).kept
    assert run(job(root), resume=True).kept
    (root.parent / "out" / "small" / "bm25.run.gz").unlink()
    assert not run(job(root), resume=True).kept


def test_without_rankings_a_comparison_says_how_to_make_them(root: Path) -> None:
    result = run(job(root))
    (root.parent / "out" / "small" / "bm25.run.gz").unlink()
    with pytest.raises(NotFound, match=r"no rankings here\. Make them with  toolscout lab bench small --recipe bm25"):
        load_checked(root.parent / "out", job(root).dataset, "bm25")
    assert result.result["label"] == "bm25"


def test_labels_say_seed_and_folds() -> None:
    assert label_of("bm25", None) == "bm25"
    assert label_of("bm25", "mine", seed=2) == "mine-s2"
    assert label_of("bm25", None, folds="query:5") == "bm25"
    assert label_of("bm25", None, seed=1, folds="parent:5") == "bm25-parent-s1"
    with pytest.raises(ConfigError, match="label"):
        label_of("bm25", "../escape")


def test_a_dataset_that_is_not_there_is_said_with_the_places(root: Path) -> None:
    with pytest.raises(NotFound, match="found none at .*absent"):
        load_dataset("absent", root)
    with pytest.raises(NotFound, match="Set --data or TOOLSCOUT_DATA"):
        load_dataset("absent", None)
    assert load_dataset("group/other", root).name == "group/other"


def test_a_gold_tool_that_cannot_be_read_is_an_error(root: Path) -> None:
    corpus = root / "small" / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace('{"path": ["mail"]}', '{"path": ["mail"], "parameters": "odd"}'))
    with pytest.raises(UserError, match="expected every gold tool among the tools, found 1 missing, 'mail/send'"):
        run(job(root))


def test_comparing_tests_query_by_query_and_corrects(root: Path) -> None:
    out = root.parent / "out"
    run(job(root))
    run(job(root, recipe="bm25-plain", label="bm25-plain"))
    dataset = Dataset.load(root / "small", root=root)
    found = compare(out, dataset, "bm25", "bm25-plain")
    row = found["tests"]["recall@5"]
    assert row["wins"] + row["ties"] + row["losses"] == found["n_queries"] == 4
    assert row["difference"] == pytest.approx(row["a"] - row["b"])
    assert all(test["p_holm"] >= test["p"] for test in found["tests"].values())
    assert found["slices"]["gold"]["1"]["n"] == 3
    stale = json.loads((out / "small" / "bm25-plain.json").read_text())
    stale["slices"]["gold"]["1"] = dict.fromkeys(stale["slices"]["gold"]["1"], 0.0) | {"n": 2}
    (out / "small" / "bm25-plain.json").write_text(json.dumps(stale))
    assert compare(out, dataset, "bm25", "bm25-plain")["slices"] == found["slices"], "slices are those of the rankings"
    same = compare(out, dataset, "bm25", "bm25")
    assert all(test["p"] == 1.0 and test["difference"] == 0 for test in same["tests"].values())


def test_a_run_file_altered_by_hand_is_noticed(root: Path) -> None:
    out = root.parent / "out"
    run(job(root))
    dataset = Dataset.load(root / "small", root=root)
    path = out / "small" / "bm25.run.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    path.write_bytes(gzip.compress("\n".join(reversed(lines)).encode()))
    with pytest.raises(UserError, match="expected the rankings that bm25.json was computed from"):
        compare(out, dataset, "bm25", "bm25")
    run(job(root))
    result = json.loads((out / "small" / "bm25.json").read_text())
    result["metrics"]["ndcg@5"] += 0.01
    (out / "small" / "bm25.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match="expected ndcg@5"):
        compare(out, dataset, "bm25", "bm25")
    run(job(root))
    with pytest.raises(NotFound, match="labels here are: bm25"):
        compare(out, dataset, "bm25", "absent")


def test_the_command_line_measures_compares_and_says_what_failed(root: Path) -> None:
    out = ["--out", str(root.parent / "cli"), "--data", str(root)]
    shown = cli("bench", "small", "group/other", "-r", "bm25", "-r", "bm25-plain", *out)
    assert shown.exit_code == 0, shown.output
    assert "group/other" in shown.output and "bm25: mean of 2 datasets" in shown.output
    assert "small: bm25: measurement 1 of 4" in shown.stderr and "searching, 0 of 4 queries" in shown.stderr
    [first, _] = json.loads(cli("bench", "small", "group/other", "-r", "bm25", "--resume", "--json", *out).stdout)
    assert first["label"] == "bm25"
    transferred = cli("bench", "--train-on", "small", "--test-on", "group/other", "-r", "bm25", *out)
    assert transferred.exit_code == 0
    assert (root.parent / "cli" / "group" / "other" / "bm25-from-small.json").exists()
    compared = cli("compare", "bm25", "bm25-plain", "--dataset", "small", *out)
    assert "wins/ties/losses" in compared.output and "gold" in compared.output
    assert json.loads(cli("compare", "bm25", "bm25", "--dataset", "small", "--json", *out).stdout)["n_queries"] == 4
    partly = cli("bench", "small", "absent", "-r", "bm25", *out)
    assert partly.exit_code == 3 and "absent" in partly.stderr
    assert cli("bench", "small", "-r", "bm25", "--set", "oops", *out).exit_code == 1
    assert cli("bench", "small", "-r", "bm25", "--set", "colour=red", *out).exit_code == 1
    assert cli("bench", "small", "-r", "bm25", "-r", "bm25-plain", "--label", "x", *out).exit_code == 2
    assert cli("bench", "-r", "bm25", *out).exit_code == 2
    assert cli("bench", "small", "-r", "bm25", "--data", str(root / "nowhere")).exit_code == 1


def test_detection_needs_a_recipe_that_judges_need(root: Path) -> None:
    folder = root / "chat"
    folder.mkdir()
    folder.joinpath("queries.jsonl").write_text('{"_id": "c1", "text": "hello", "metadata": {"split": "test"}}\n')
    out = ["--out", str(root.parent / "cli"), "--data", str(root)]
    refused = cli("bench", "small", "-r", "bm25", "--no-tool", "chat", *out)
    assert refused.exit_code == 1 and "does not estimate whether a query needs a tool" in refused.stderr
    refused = cli("bench", "small", "-r", "masstool", "--set", "need=0", "--no-tool", "chat", *out)
    assert refused.exit_code == 1 and "--no-tool and need=0 cannot be used together" in refused.stderr


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (None, {}),
        ("query:2", {"tools", "parents"}),
        ("parent:3", {"tools", "parents"}),
    ],
)
def test_what_training_saw_is_judged_by_the_fold_that_scores_the_query(
    root: Path, spec: str | None, wanted: set[str]
) -> None:
    found = run(job(root, folds=spec, label="x")).result
    assert {"tools", "parents"} & set(found["slices"]) == set(wanted)
    if spec is None:
        return
    dataset = Dataset.load(root / "small", root=root)
    gold = dataset.split("test")
    parents = {tool: tool.partition("/")[0] for tool in TOOLS}
    for fold in dataset.folds(spec, parent_of={tool: [parent] for tool, parent in parents.items()}):
        seen = {parents[tool] for query in fold.train if not in_dev(query) for tool in gold[query]}
        for query in fold.test:
            known = [parents[tool] in seen for tool in gold[query]]
            value = "seen" if all(known) else "mixed" if any(known) else "unseen"
            assert groups(dataset, "test", read_tools(dataset.folder, "d").tools, spec)["parents"][query] == value
    assert sum(row["n"] for row in found["slices"]["parents"].values()) == 4
    if spec.startswith("parent"):
        assert "seen" not in found["slices"]["parents"]
    compared = compare(root.parent / "out", dataset, "x", "x")
    assert {value: row["n"] for value, row in compared["parents"].items()} == {
        value: row["n"] for value, row in found["slices"]["parents"].items()
    }
    assert all(row["recall@5"]["p"] == 1.0 for row in compared["parents"].values())
    shown = cli("compare", "x", "x", "--dataset", "small", "--out", str(root.parent / "out"), "--data", str(root))
    assert shown.exit_code == 0 and "parents in training" in shown.output


def test_a_tool_without_a_parent_belongs_to_nothing(root: Path) -> None:
    folder = root / "small"
    tools = [{"_id": f"t{n}", "metadata": {"path": ["a"] if n < 2 else []}} for n in range(4)]
    folder.joinpath("corpus.jsonl").write_text(
        "".join(json.dumps({**tool, "title": tool["_id"], "text": "x"}) + "\n" for tool in tools)
    )
    queries = {"q0": "one", "q1": "two", "r0": "three", "r1": "four", "r2": "five"}
    folder.joinpath("queries.jsonl").write_text(
        "".join(json.dumps({"_id": query, "text": text}) + "\n" for query, text in queries.items())
    )
    head = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "train.tsv").write_text(head + "q0\tt0\t1\nq1\tt2\t1\n")
    (folder / "qrels" / "test.tsv").write_text(head + "r0\tt1\t1\nr1\tt2\t1\nr2\tt3\t1\n")
    dataset = Dataset.load(folder, root=root)
    table = groups(dataset, "test", read_tools(dataset.folder, "d").tools)
    assert table["parents"] == {"r0": "seen", "r1": "seen", "r2": "unseen"}


def test_what_only_dev_needs_is_not_seen_by_training(root: Path) -> None:
    many(root, 60)
    file = root / "small" / "qrels" / "test.tsv"
    dev = {f"n{number}" for number in range(60) if in_dev(f"n{number}")}
    file.write_text(
        "".join(
            line.replace("weather/forecast", "mail/send") if line.partition("\t")[0] in dev else line
            for line in file.read_text().splitlines(keepends=True)
        )
    )
    dataset = Dataset.load(root / "small", root=root)
    tools = read_tools(dataset.folder, "d").tools
    table = groups(dataset, "test", tools, "query:3")
    for fold in dataset.folds("query:3"):
        learned = make_lesson(dataset, tools, {}, fold.train)
        assert dev & set(fold.train) == set(learned.dev)
        known = {tool for gold in learned.train.values() for tool in gold}
        for query in fold.test:
            [gold] = dataset.split("test")[query]
            assert table["tools"][query] == table["parents"][query] == ("seen" if f"d/{gold}" in known else "unseen")
    assert {query for query, value in table["parents"].items() if value == "unseen"} == dev != set()


def test_pairs_are_read_once_for_all_runs_but_anew_for_latency(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Reader:
        length, fingerprint = 16, "reader"

        def logits(self, query: str, texts: Any, deadline: float | None = None) -> Any:
            asked.extend([query] * len(texts))
            return np.array([float(len(text)) for text in texts])

    class Reads(zero_shot.Bm25):
        def build(self, workspace: HomeResources, catalogue: Catalogue, options: zero_shot.Bm25Options) -> Stage:
            judge = NeedScorer(cache_pairs(Reader(), workspace.pairs), catalogue.tools(), LogitBlend())
            return super().build(workspace, catalogue, options) >> CrossEncoderStage(judge, 5)

    monkeypatch.setitem(registry.RECIPES, "reads", registry.Recipe("reads", "Reads pairs.", Reads(), encodes=False))
    settings = Settings(home=root.parent / "home")
    first = run(job(root, recipe="reads", label="one", settings=settings)).result
    pairs = len(asked) // 3  # of the four queries: scored once, warmed up with, and timed
    again = run(job(root, recipe="reads", label="two", settings=settings)).result
    assert first["metrics"] == again["metrics"] and first["latency_ms"]["p50"] > 0 and again["latency_ms"]["p50"] > 0
    assert len(asked) == 3 * pairs + 2 * pairs > 0
    assert first["batch_qps"] > 0 and again["batch_qps"] is None, "a rate that earlier readings made is none"


# --- recipes that ask a language model --------------------------------------------------------------------------------


def many(root: Path, count: int) -> None:
    """As many queries in `small`, all of one tool."""
    folder = root / "small"
    rows = [{"_id": f"n{number}", "text": f"rain in the city number {number}"} for number in range(count)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["query-id\tcorpus-id\tscore", *(f"{row['_id']}\tweather/forecast\t1" for row in rows)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")


def asked(root: Path, place: str, *options: str) -> Any:
    command = ("bench", "small", "-r", "mmrr", "--set", "base=bm25", "--data", str(root), "--out", str(root / "out"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLSCOUT_LLM", place)
        return cli(*command, *options)


@pytest.mark.net
def test_a_slow_model_has_its_time_for_each_query_and_latency_is_not_that_of_the_cache(root: Path) -> None:
    many(root, 32)
    with ScriptedServer(ScriptedLLM(faults=Faults(slow=1.0, pause=0.2))) as server:
        done = asked(root, server.place, "--set", "seconds=1.5", "--json")
        assert done.exit_code == 0, done.output
        [result] = json.loads(done.stdout)
        assert (result["degraded"], result["latency_ms"], result["batch_qps"]) == (0, {}, None)
        assert len(server.bodies) == 32
        assert "—" in asked(root, server.place, "--set", "seconds=1.5", "--resume").output


@pytest.mark.net
def test_queries_that_do_without_the_model_are_counted_and_said(root: Path) -> None:
    many(root, 24)
    with ScriptedServer(ScriptedLLM(faults=Faults(bad_json=0.3))) as server:
        done = asked(root, server.place, "--json")
        bad = server.llm.count("bad_json")
    assert done.exit_code == 0 and 0 < bad < 24
    assert json.loads(done.stdout)[0]["degraded"] == bad
    assert f"small: mmrr: {bad} of 24 queries were answered without the language model" in done.stderr
    assert "degraded" not in run(job(root)).result


@pytest.mark.net
def test_no_result_is_written_where_the_model_helped_no_query(root: Path) -> None:
    with ScriptedServer() as server:
        place = server.place
    done = asked(root, place)
    assert done.exit_code == 1 and not (root / "out").exists()
    assert "small: mmrr: None of the first" in done.output
    assert "cannot be reached. Check the address in the setting llm" in done.output
