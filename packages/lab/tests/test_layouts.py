"""Datasets in the layouts of other projects are converted, and results are exchanged with other scorers."""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ir_measures
import pytest

from tests_cli import run as cli
from toolscout.dataset import Dataset
from toolscout.errors import ConfigError, SourceError
from toolscout.sources.folder import read_tools
from toolscout_lab import layouts
from toolscout_lab.layouts import PublishedDataset, convert, load_published

RAIN = {
    "name": "rain",
    "description": "Says when it rains",
    "parameters": {"city": {"type": "str", "description": "c"}},
}
MAIL = {"name": "mail", "description": "Sends a letter", "parameters": {"properties": {"to": {"type": "string"}}}}


def write_lines(file: Path, rows: Sequence[Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tabs(file: Path, rows: Sequence[Sequence[Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as stream:
        csv.writer(stream, delimiter="\t").writerows(rows)


def make_mteb(folder: Path) -> None:
    write_lines(
        folder / "corpus.jsonl", [{"id": 1, "title": "rain", "text": "t"}, {"_id": "2", "title": "", "text": "u"}]
    )
    write_lines(folder / "queries.jsonl", [{"_id": "q", "text": "umbrella"}])
    judged = [{"query-id": "q", "corpus-id": "1", "score": 2}, {"query-id": "q", "corpus-id": "2", "score": 0}]
    write_lines(folder / "qrels" / "default.jsonl", judged)


def make_toolret(folder: Path) -> None:
    tools = [{"id": "1", "documentation": json.dumps(RAIN)}, {"id": "2", "doc": MAIL}, {"id": "3", "doc": "plain text"}]
    write_lines(folder / "tools.jsonl", tools)
    labels = [{"id": "1", "doc": RAIN, "relevance": 1}]
    write_lines(
        folder / "queries.jsonl",
        [{"id": "q", "query": "will it rain?", "labels": json.dumps(labels), "category": "web"}],
    )


def make_toolbench(folder: Path) -> None:
    api = {
        "category_name": "Weather",
        "tool_name": "Meteo",
        "api_name": "Rain",
        "api_description": 'Says "when"\tit rains',
        "required_parameters": [{"name": "city", "type": "STRING", "description": "where"}],
        "optional_parameters": [{"name": "day", "type": "DATE"}],
    }
    write_tabs(folder / "corpus.tsv", [["docid", "document_content"], [7, json.dumps(api)], [7, json.dumps(api)]])
    for split, query in (("train", 1), ("test", 2)):
        write_tabs(folder / f"{split}.query.txt", [[query, f"rain in {split}?"], [query, f"rain in {split}?"]])
        write_tabs(folder / f"qrels.{split}.tsv", [[query, 0, 7, 1]])


def make_skillret(folder: Path) -> None:
    for split in ("train", "test"):
        skill = {"id": f"s-{split}", "name": "notes", "description": "Takes notes", "major": "Office", "sub": "Text"}
        write_lines(folder / "data/skills" / f"{split}.jsonl", [skill])
        write_lines(folder / "data/queries" / f"{split}.jsonl", [{"id": f"q-{split}", "query": "note this"}])
        judged = {"query_id": f"q-{split}", "skill_id": f"s-{split}", "relevance": 1}
        write_lines(folder / "data/qrels" / f"{split}.jsonl", [judged])


def test_mteb_s_judgements_as_json_lines_become_splits_and_grades_stay(tmp_path: Path) -> None:
    make_mteb(tmp_path / "in")
    [dataset] = convert(tmp_path / "in", tmp_path / "out")
    assert dataset.qrels == {"test": {"q": {"1": 2.0}}} and dataset.corpus_ids() == ("1", "2")


def test_toolret_s_documents_become_tools_with_a_schema(tmp_path: Path) -> None:
    make_toolret(tmp_path / "in")
    [dataset] = convert(tmp_path / "in", tmp_path / "out")
    rain, mail, plain = read_tools(dataset.folder, "d").tools
    assert (rain.name, rain.description) == ("rain", "Says when it rains")
    assert rain.parameters == {"type": "object", "properties": {"city": {"type": "string", "description": "c"}}}
    assert (mail.parameters or {})["properties"] == {"to": {"type": "string"}} and plain.description == "plain text"
    assert dataset.qrels == {"test": {"q": {"1": 1.0}}} and dataset.query_meta["q"] == {"kind": "web"}


def test_toolbench_s_tables_become_tools_with_their_parent_and_both_splits(tmp_path: Path) -> None:
    make_toolbench(tmp_path / "in")
    [dataset] = convert(tmp_path / "in", tmp_path / "out")
    [rain] = read_tools(dataset.folder, "d").tools
    assert (rain.id, rain.name, rain.path) == ("d/7", "Rain", ("Weather", "Meteo"))
    assert rain.description == 'Says "when"\tit rains'
    assert (rain.parameters or {})["required"] == ["city"]
    assert (rain.parameters or {})["properties"]["day"] == {}  # DATE is no type of JSON Schema
    assert dataset.split("train+dev") == {"1": {"7": 1.0}} and dataset.qrels["test"] == {"2": {"7": 1.0}}


def test_a_table_of_toolbench_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    make_toolbench(tmp_path / "in")
    (tmp_path / "in" / "train.query.txt").unlink()
    with pytest.raises(SourceError, match=r"query\.txt: expected a readable file, found: No such file or directory$"):
        convert(tmp_path / "in", tmp_path / "out")


def test_skillret_s_disjoint_skills_become_two_datasets(tmp_path: Path) -> None:
    make_skillret(tmp_path / "in")
    done = cli("lab", "convert", str(tmp_path / "in"), "--out", str(tmp_path / "out"))
    assert done.exit_code == 0 and "out/test: 1 tools; queries: 1 test" in done.output
    test, train = Dataset.load(tmp_path / "out" / "test"), Dataset.load(tmp_path / "out" / "train")
    assert test.corpus_ids() == ("s-test",) and train.split("train+dev") == {"q-train": {"s-train": 1.0}}
    [skill] = read_tools(test.folder, "d").tools
    assert skill.path == ("Office", "Text")


def test_a_folder_without_a_known_layout_and_one_that_is_not_new_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(ConfigError, match="expected a layout of MTEB, ToolBench, SkillRet, ToolRet, found none"):
        convert(tmp_path / "in", tmp_path / "out")
    make_toolret(tmp_path / "in")
    with pytest.raises(ConfigError, match="found files in"):
        convert(tmp_path / "in", tmp_path / "in")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("queries.jsonl", "[1]\n", r"queries.jsonl, line 1: expected a JSON object, found '\[1\]'"),
        ("tools.jsonl", '{"id": "1"}\n', "expected a field documentation or doc or document_content, found id"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_written(tmp_path: Path, file: str, text: str, message: str) -> None:
    make_toolret(tmp_path / "in")
    (tmp_path / "in" / file).write_text(text)
    with pytest.raises(SourceError, match=message):
        convert(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_converted_dataset_is_measured_and_another_scorer_agrees_with_its_run_file(tmp_path: Path) -> None:
    make_toolret(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "data" / "mine")
    words = ["lab", "bench", "mine", "-r", "bm25", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "results")]
    assert cli(*words).exit_code == 0
    lines = gzip.decompress((tmp_path / "results/mine/bm25.run.gz").read_bytes()).decode()
    ndcg = ir_measures.nDCG @ 5
    theirs = ir_measures.calc_aggregate([ndcg], {"q": {"1": 1}}, list(ir_measures.read_trec_run(lines)))
    ours = json.loads((tmp_path / "results/mine/bm25.json").read_text())["metrics"]["ndcg@5"]
    assert theirs[ndcg] == pytest.approx(ours)


def test_the_leaderboard_compares_labels_on_the_sets_that_all_of_them_have(tmp_path: Path) -> None:
    for dataset, label, value in (("a", "x", 0.5), ("b", "x", 0.7), ("a", "y", 0.9), ("b", "y", 0.5), ("a", "z", 1.0)):
        metrics = {"ndcg@5": value, "comp@5": value}
        content = {"dataset": dataset, "recipe": label, "label": label, "split": "test", "n_queries": 1, "n_tools": 1}
        (tmp_path / dataset).mkdir(exist_ok=True)
        (tmp_path / dataset / f"{label}.json").write_text(json.dumps({**content, "metrics": metrics}))
    done = cli("lab", "leaderboard", str(tmp_path))
    assert done.output.splitlines() == [
        "| ndcg@5 | mean | a | b |",
        "|---|---:|---:|---:|",
        "| `y` | 70.0 | 90.0 | 50.0 |",
        "| `x` | 60.0 | 50.0 | 70.0 |",
    ]
    assert "| `z` | 100.0 | 100.0 |" in cli("lab", "leaderboard", str(tmp_path), "--dataset", "a").output
    assert "expected one of comp@5, ndcg@5" in cli("lab", "leaderboard", str(tmp_path), "--measure", "x").output


# --- published datasets -----------------------------------------------------------------------------------------------


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address of a server of its files."""
    folder = tmp_path / "shelf"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def publish(folder: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, known: bool = True) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    digests = {name: hashlib.sha256(text.encode()).hexdigest() if known else "" for name, text in files.items()}
    tiny = PublishedDataset("https://page.example", "Apache-2.0", "https://data.example", digests)
    monkeypatch.setattr(layouts, "load_published", lambda: {**load_published(), "tiny": tiny})


FILES = {
    "corpus.jsonl": '{"_id": "1", "title": "rain", "text": "t"}\n',
    "queries.jsonl": '{"_id": "q", "text": "umbrella"}\n',
    "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq\t1\t1\n",
}


@pytest.mark.net
def test_a_published_dataset_is_downloaded_and_says_its_licence_first(
    shelf: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = shelf
    publish(folder, FILES, monkeypatch)
    done = cli("lab", "convert", "tiny", "--out", str(tmp_path / "out"), "--mirror", address)
    assert done.exit_code == 0, done.output
    assert "1 tools; queries: 1 test" in done.stdout
    assert done.stderr.index("Licence: Apache-2.0") < done.stderr.index("downloading tiny")
    origin = json.loads((tmp_path / "out" / "origin.json").read_text())
    assert origin["licence"] == "Apache-2.0" and len(origin["sha256"]["corpus.jsonl"]) == 64
    assert Dataset.load(tmp_path / "out").qrels["test"] == {"q": {"1": 1.0}}
    again = cli("lab", "convert", "tiny", "--out", str(tmp_path / "out"), "--mirror", address)
    assert again.exit_code == 1 and "expected a new folder" in again.stderr


@pytest.mark.net
def test_a_file_that_was_not_published_is_refused_and_nothing_is_written(
    shelf: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = shelf
    publish(folder, FILES, monkeypatch)
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "another text"}\n')
    done = cli("lab", "convert", "tiny", "--out", str(tmp_path / "out"), "--mirror", address)
    assert done.exit_code == 1 and "queries.jsonl: expected the published file" in done.stderr
    (folder / "queries.jsonl").unlink()
    gone = cli("lab", "convert", "tiny", "--out", str(tmp_path / "out"), "--mirror", address)
    assert gone.exit_code == 1 and "found HTTP status 404" in gone.stderr
    dead = cli("lab", "convert", "tiny", "--out", str(tmp_path / "out"), "--mirror", "http://127.0.0.1:9")
    assert dead.exit_code == 1 and "expected a file, found" in dead.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.net
def test_a_download_in_another_layout_is_converted_and_keeps_digests_that_nobody_knew(
    shelf: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = shelf
    make_mteb(tmp_path / "mteb")
    files = {
        str(path.relative_to(tmp_path / "mteb")): path.read_text() for path in (tmp_path / "mteb").rglob("*.jsonl")
    }
    publish(folder, files, monkeypatch, known=False)
    done = cli("lab", "convert", "tiny", "--out", str(tmp_path / "out"), "--mirror", address)
    assert done.exit_code == 0 and "2 tools; queries: 1 test" in done.stdout
    origin = json.loads((tmp_path / "out" / "origin.json").read_text())
    assert origin["sha256"]["corpus.jsonl"] == hashlib.sha256(files["corpus.jsonl"].encode()).hexdigest()


def test_what_can_only_be_had_by_hand_says_where(tmp_path: Path) -> None:
    done = cli("lab", "convert", "toolbank", "--out", str(tmp_path / "out"))
    assert done.exit_code == 1 and "Parquet" in done.stderr and "huggingface.co/datasets/squeeze-ai-lab" in done.stderr
    for name, published in load_published().items():
        assert published.licence and (published.note or all(map(len, published.files.values()))), name
        assert bool(published.base) == bool(published.files), name
