"""`toolscout lab synth` from end to end: killed and begun again, estimated, used by train and bench, reviewed."""

from __future__ import annotations

import contextlib
import filecmp
import gzip
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests_cli import run as cli
from tiny import tiny_bert
from toolscout.dataset import NoTool
from toolscout.errors import ConfigError, NotFound, SourceError
from toolscout.testing import HashEncoder
from toolscout_lab.llm import LLM, ChatRequest
from toolscout_lab.synth.tooldet import Review, ReviewCandidate, build, prompts_of, sift
from toolscout_lab.testing import Faults, ScriptedLLM, ScriptedServer
from wire_tokens import counted

SOURCES = ("py:statistics", "py:shutil", "py:zipfile", "py:json", "py:datetime")
FILES = ["corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/test.tsv", "report.json", "README.md"]
DET_FILES = ["review.jsonl", "queries.jsonl", "report.json"]
CONCURRENCY = 4
FULL = pytest.mark.full
SIZES = [24, pytest.param(300, marks=FULL)]


def same(one: Path, other: Path, files: list[str] = FILES) -> bool:
    return not any(filecmp.cmpfiles(one, other, files, shallow=False)[1:])


def keys_of(bodies: list[dict[str, Any]], place: str) -> set[str]:
    """Under which names the answers to these requests are kept."""
    return {
        ChatRequest(
            model=body["model"],
            messages=tuple(body["messages"]),
            max_tokens=body["max_tokens"],
            temperature=body["temperature"],
            schema=body["response_format"]["json_schema"]["schema"],
            sample=body.get("seed", 0),
        ).key(place.partition("#")[0])
        for body in bodies
    }


def kept(home: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(home / "llm.db")) as connection:
        return {key for (key,) in connection.execute("SELECT key FROM replies")}


def detection(folder: Path, count: int) -> tuple[str, ...]:
    """What `synth tooldet` needs: chat prompts, and a small dataset whose queries need tools."""
    source = random.Random(count)
    words = ["".join(source.choices("bdfgklmnprstvaeiou", k=6)) for _ in range(400)]
    (folder / "chat.txt").write_text("\n".join(f"explain {' '.join(source.sample(words, 6))}" for _ in range(count)))
    (folder / "asked" / "qrels").mkdir(parents=True)
    (folder / "asked" / "corpus.jsonl").write_text('{"_id": "rain", "title": "rain", "text": "Will it rain"}')
    (folder / "asked" / "queries.jsonl").write_text('{"_id": "q", "text": "will it rain in the city"}')
    (folder / "asked" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\train\t1")
    given = ("--prompts", str(folder / "chat.txt"), "--queries", str(folder / "asked"))
    return (*given, "--window", "-1", "1")


def run_here(line: list[str]) -> None:
    """What a program of this command line would do, in this process."""
    done = cli(*line[3:])
    assert done.exit_code == 0, done.output


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wanted", SIZES)
@pytest.mark.parametrize("kind", ["toolbank", pytest.param("toollens", marks=FULL), "tooldet"])
def test_a_build_that_is_killed_ends_the_same_and_pays_for_nothing_twice(
    tmp_path: Path, kind: str, wanted: int
) -> None:
    chance = random.Random(wanted)
    faults = Faults(bad_json=0.04, duplicate=0.04, unknown=0.04, once=0.04, slow=1.0, pause=0.02)
    given = detection(tmp_path, 2 * wanted) if kind == "tooldet" else SOURCES
    most = wanted // 3 if kind == "tooldet" else wanted  # it asks once for each, the others more often

    def command(home: str, out: str, place: str) -> list[str]:
        program = [sys.executable, "-m", "toolscout", "--home", str(tmp_path / home), "synth", kind, *given]
        return [*program, "--out", str(tmp_path / out), "-n", str(wanted), "--llm", place]

    with ScriptedServer(ScriptedLLM(faults=faults)) as server:
        kills, begun, held = 0, 0, set[str]()
        for _ in range(2):
            goal = len(server.bodies) + chance.randrange(5, most)
            process = subprocess.Popen(command("a", "killed", server.place), stderr=subprocess.DEVNULL)
            while process.poll() is None and len(server.bodies) < goal:
                time.sleep(0.005)
            if process.poll() is None:
                process.kill()
                process.wait()
                kills += 1
            assert not held & keys_of(server.bodies[begun:], server.place), "what was kept is not asked for again"
            held, begun = kept(tmp_path / "a"), len(server.bodies)
            lost = keys_of(server.bodies, server.place) - held
            assert len(held) > 0 and len(lost) <= CONCURRENCY, "only what was under way is lost"
        assert kills == 2
        run_here(command("a", "killed", server.place))
        assert not held & keys_of(server.bodies[begun:], server.place) and kept(tmp_path / "a") > held
        server.served.clear()
        run_here(command("a", "killed", server.place))
        assert not server.served, "a finished build asks for nothing"
        run_here(command("b", "whole", server.place))
    assert same(tmp_path / "killed", tmp_path / "whole", DET_FILES if kind == "tooldet" else FILES)


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wanted", SIZES)
@pytest.mark.parametrize("kind", ["toolbank", pytest.param("toollens", marks=FULL)])
def test_what_was_written_is_trained_on_and_measured_unchanged_and_costs_what_was_estimated(
    tmp_path: Path, kind: str, wanted: int
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("bpe_openai")
    out = str(tmp_path / "made")
    with ScriptedServer() as server:
        asked = ("synth", kind, *SOURCES, "--out", out, "-n", str(wanted), "--llm", server.place, "--json")
        planned = cli(*asked, "--dry-run")
        assert planned.exit_code == 0, planned.output
        assert not server.bodies and not Path(out).exists()
        estimate = json.loads(planned.stdout)
        done = cli(*asked)
        assert done.exit_code == 0, done.output
    sent, calls = counted(server.bodies), len(server.bodies)
    assert abs(estimate["tokens_in"] / sent - 1) <= 0.2, (estimate, sent, calls)
    assert abs(estimate["calls"] / calls - 1) <= 0.2
    model = str(tmp_path / "model")
    quick = ("--set", "epochs=1", "--set", "batch=32", "--set", "precision=float32", "--set", "threads=1")
    bert = str(tiny_bert(tmp_path / "bert"))
    fitted = cli("train", "mlc", "--data", out, "--encoder", bert, *quick, "--out", model)
    assert fitted.exit_code == 0, fitted.output
    results = str(tmp_path / "results")
    measured = cli("bench", out, "-r", "bm25", "-r", "mlc-light", "-r", "feedback-prf", "--out", results, "--json")
    assert measured.exit_code == 0, measured.output
    found = {each["recipe"]: each["metrics"]["recall@5"] for each in json.loads(measured.stdout)}
    assert found["bm25"] > 0.3, "queries are made of their tools' words"
    learned = cli("bench", out, "-r", "mlc", "--encoder", bert, *quick, "--out", results, "--json")
    assert learned.exit_code == 0, learned.output
    [scored] = json.loads(learned.stdout)
    trained = scored["fitted"][0]["data"]
    assert trained["n_train"] + trained["n_dev"] + scored["n_queries"] == wanted - scored["dropped_leaks"]
    assert (tmp_path / "results" / "made" / "mlc.run.gz").exists() and 0 <= scored["metrics"]["recall@5"] <= 1


BANKS = {"numpy": ("py:numpy", 400), "pandas": ("py:pandas", 1_200), "boto3": ("boto3", 1_300)}


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bank", BANKS)
def test_each_bank_of_the_paper_is_built_and_measured_by_one_command_each(tmp_path: Path, bank: str) -> None:
    """BankNumpy, BankPandas and BankAWS of the Tool2Vec paper, over all tools of the library."""
    pytest.importorskip("botocore" if bank == "boto3" else bank)
    source, least = BANKS[bank]
    out = str(tmp_path / bank)
    with ScriptedServer() as server:
        options = ("--instructions", bank, "-n", "24", "--llm", server.place, "--json")
        built = cli("lab", "synth", "toolbank", source, "--out", out, *options)
        assert built.exit_code == 0, built.output
        instructions = json.loads(built.stdout)["settings"]["instructions"]
        assert any(instructions in str(body["messages"][0]["content"]) for body in server.bodies)
    tools = [json.loads(line) for line in (tmp_path / bank / "corpus.jsonl").read_text().splitlines()]
    assert len(tools) >= least and all(tool["text"] for tool in tools[:50])
    results = ("--out", str(tmp_path / "results"), "--encoder", "static", "--json")
    measured = cli("lab", "bench", out, "-r", "bm25", "-r", "tool2vec", "-r", "mlc-light", *results)
    assert measured.exit_code == 0, measured.output
    rows = {each["recipe"]: each for each in json.loads(measured.stdout)}
    assert set(rows) == {"bm25", "tool2vec", "mlc-light"} and rows["bm25"]["n_tools"] == len(tools)
    assert all(row["n_queries"] >= 1 and 0 <= row["metrics"]["recall@5"] <= 1 for row in rows.values())


@pytest.mark.net
def test_the_settings_of_the_papers_are_options_and_stand_in_the_report(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        base = ("-n", "3", "--llm", server.place, "--json")
        bank = cli("synth", "toolbank", *SOURCES, "--out", str(tmp_path / "bank"), "--shown", "7", "--chosen", "2", "4",
                   "--instructions", "pandas", *base)  # fmt: skip
        assert bank.exit_code == 0, bank.output
        report = json.loads(bank.stdout)
        assert (report["settings"]["shown"], report["settings"]["chosen"]) == (7, [2, 4])
        assert any(report["settings"]["instructions"] in str(body["messages"][0]["content"]) for body in server.bodies)
        lens = cli("synth", "toollens", *SOURCES, "--out", str(tmp_path / "lens"), "--min-tools", "2", *base)
        assert lens.exit_code == 0, lens.output
        assert json.loads(lens.stdout)["settings"] == {"aspects": 3, "min_tools": 2}
        paper = cli("synth", "toolbank", *SOURCES, "--out", str(tmp_path / "paper"), "--prompts", "paper", *base)
        assert sorted(json.loads(paper.stdout)["prompts"]) == ["paper/toolbank_polish", "paper/toolbank_query"]
        refused = cli("synth", "toollens", *SOURCES, "--out", str(tmp_path / "x"), "--aspects", "9", *base)
        assert refused.exit_code == 1 and "2 to 6 aspects" in refused.output
    rows = [json.loads(line) for line in (tmp_path / "bank" / "queries.jsonl").read_text().splitlines()]
    assert all(row["metadata"]["origin"]["settings"] == report["settings"] for row in rows)


@pytest.mark.net
def test_a_dataset_is_written_for_the_tools_of_the_catalogue_and_replayed_from_its_record(tmp_path: Path) -> None:
    out, record = tmp_path / "made", tmp_path / "record.jsonl"
    empty = cli("synth", "toolbank", "--out", str(out), "--dry-run")
    assert empty.exit_code == 1 and "toolscout add" in empty.output
    assert cli("add", "py:statistics").exit_code == 0
    with ScriptedServer() as server:
        place = ("--llm", server.place)
        done = cli("synth", "toolbank", "--out", str(out), "-n", "6", *place, "--record", str(record))
        assert done.exit_code == 0 and "6 of 6 queries" in done.output and "sent" in done.output
        sent = len(server.bodies)
        elsewhere = ("--home", str(tmp_path / "other"), "synth", "toolbank", "py:statistics")
        again = cli(*elsewhere, "--out", str(tmp_path / "x"), "-n", "6", *place, "--replay", str(record))
        assert again.exit_code == 0 and len(server.bodies) == sent, again.output
        assert record.stat().st_mode & 0o777 == 0o600 and not (tmp_path / "other" / "llm.db").exists()
        asked = ("--out", str(tmp_path / "w"), "-n", "6", "--seed", "3", *place)
        assert cli("synth", "toolbank", *asked).exit_code == 0
        sent = len(server.bodies)
        shutil.rmtree(tmp_path / "w")
        lacking = cli("synth", "toolbank", *asked, "--replay", str(record))
        assert lacking.exit_code == 1 and "missing from the record, and nothing was sent" in lacking.output
        assert len(server.bodies) == sent and lacking.output.count("error: ") == 1
        limited = ("-n", "50", "--seed", "9", "--llm-budget", "tokens=9000")
        broke = cli("synth", "toolbank", "--out", str(tmp_path / "y"), *limited, *place)
        assert broke.exit_code == 1 and "Answers so far are kept" in broke.output
    assert same(out, tmp_path / "x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    refused = cli("synth", "toolbank", "--out", str(tmp_path / "full"), "--dry-run")
    assert refused.exit_code == 1 and "holds other files" in refused.output
    missing = cli("synth", "toolbank", "--out", str(tmp_path / "z"))
    assert missing.exit_code == 1 and "No language model is set" in missing.output


# --- ToolDet ----------------------------------------------------------------------------------------------------------

CHAT = [
    "write a poem about rain",
    "rain rain rain in the city",
    "explain gravity to a child",
    "what is the weather today",
]


def test_only_prompts_in_the_window_go_on_and_the_others_are_counted() -> None:
    queries, encoder = ["rain in the city today"], HashEncoder()
    prompts = [*CHAT, "Write a poem, about RAIN"]
    cosines = (encoder.encode(CHAT) @ encoder.encode(queries).T)[:, 0]
    low, high = sorted(cosines.tolist())[1] - 1e-6, sorted(cosines.tolist())[2] + 1e-6
    found, drops = sift(prompts, queries, encoder, window=(low, high))
    assert drops == {"duplicate": 1, "too_near": 1, "too_far": 1}
    assert [each.text for each in found] == [text for text, c in zip(CHAT, cosines, strict=True) if low <= c <= high]
    kept = build(found, LLM(ScriptedLLM()), 10, drops)
    assert all("weather" not in each.text for each in kept)


def test_the_model_takes_out_what_needs_a_tool_and_bad_replies_are_counted() -> None:
    candidates = [ReviewCandidate(f"c{n}", text, 0.5) for n, text in enumerate(CHAT)]
    drops: Any = sift([], ["x y z"], HashEncoder())[1]
    assert len(build(candidates, LLM(ScriptedLLM()), 10, drops)) == 3 and drops == {"needs_tool": 1}
    drops.clear()
    assert not build(candidates, LLM(ScriptedLLM(faults=Faults(bad_json=1.0))), 10, drops) and drops == {"malformed": 4}


def test_people_accept_and_reject_in_the_terminal_and_every_decision_is_kept(tmp_path: Path) -> None:
    kept = [ReviewCandidate(f"c{n}", f"prompt number {n}", 0.4 + n / 100, "no need") for n in range(5)]
    folder = tmp_path / "det"
    Review.write(folder, kept, {}, model="m", window=(0.4, 0.6), wanted=5)
    assert len(NoTool.load(folder).test + NoTool.load(folder).train + NoTool.load(folder).calibrate) == 5
    first = cli("synth", "review", str(folder), "--by", "me", input="a\nr\nq\n")
    assert first.exit_code == 0 and "prompt number 4" in first.output and "3 wait for review" in first.output
    second = cli("synth", "review", str(folder), "--reviewed-only", input="s\na\n")
    assert "1 prompts" in second.output or "2 prompts" in second.output
    review = Review(folder)
    assert {id: each.verdict for id, each in review.decisions.items()} == {
        "c4": "accept",
        "c3": "reject",
        "c1": "accept",
    }
    assert review.decisions["c4"].by == "me"
    assert review.export() == 4 and review.export(reviewed_only=True) == 2
    Review.write(folder, kept, {}, model="m", window=(0.4, 0.6), wanted=5)
    assert len(Review(folder).decisions) == 3, "built again, what people said stays"
    with pytest.raises(NotFound):
        review.decide("nobody", "accept")
    with pytest.raises(NotFound, match="no review.jsonl"):
        Review(tmp_path)
    with pytest.raises(ConfigError, match="no prompt that needs no tool is left"):
        Review.write(tmp_path / "none", [], {"too_far": 3}, model="m", window=(0.4, 0.6), wanted=5)


def test_prompts_are_read_from_lines_or_from_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n two \n")
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{"prompt": "two"}\n"three"\n')
    assert prompts_of(tmp_path / "a.txt") == ["one", "two"] and prompts_of(tmp_path / "b.jsonl")[2] == "three"
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{"other": 1}\n')
    with pytest.raises(SourceError, match=r"b.jsonl, line 2"):
        prompts_of(tmp_path / "b.jsonl")


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_written_set_for_detection_says_where_it_comes_from_and_is_measured_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out, det = str(tmp_path / "made"), str(tmp_path / "det")
    with ScriptedServer() as server:
        place = ("--llm", server.place)
        made = cli("synth", "toolbank", *SOURCES, "--out", out, "-n", "40", *place)
        assert made.exit_code == 0, made.output
        done = cli("synth", "tooldet", *detection(tmp_path, 120), "--out", det, "-n", "80", *place)
        assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "det" / "report.json").read_text())
    rows = (tmp_path / "det" / "queries.jsonl").read_text().splitlines()
    origins = [json.loads(row)["metadata"]["origin"] for row in rows]
    assert len(origins) == 80 and all(each == origins[0] for each in origins)
    assert origins[0] == {key: report[key] for key in ("builder", "toolscout", "model", "prompts", "window")}
    assert origins[0]["model"] == "scripted" and origins[0]["prompts"]["tooldet_verify"]
    bert = str(tiny_bert(tmp_path / "bert"))
    quick = [f"{name}={value}" for name, value in QUICK.items()]
    measured = cli("bench", out, "-r", "masstool", "--no-tool", det, "--encoder", bert, "--out", str(tmp_path / "r"),
                   *(part for each in quick for part in ("--set", each)), "--json")  # fmt: skip
    assert measured.exit_code == 0, measured.output
    [scored] = json.loads(measured.stdout)
    assert 0 <= scored["metrics"]["detect_auroc"] <= 1
    tests = {prompt.id for prompt in NoTool.load(det).test}
    assert scored["slices"]["no_tool_kind"]["tooldet"]["n"] == len(tests) > 0
    judged = gzip.decompress((tmp_path / "r" / "made" / "masstool.detect.gz").read_bytes()).decode().splitlines()
    assert {line.split()[0] for line in judged if line.split()[1] == "0"} == tests


BASE = {"base.epochs": 1, "base.batch": 16, "base.precision": "float32", "base.threads": 1}
QUICK = BASE | {"epochs": 2, "batch": 16, "threads": 1}


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wanted", [90, pytest.param(300, marks=FULL)])
def test_real_prompts_become_a_set_for_detection(data: Path, tmp_path: Path, wanted: int) -> None:
    out = tmp_path / "det"
    faults = Faults(bad_json=0.03, busy=0.02, broken=0.02)
    with ScriptedServer(ScriptedLLM(faults=faults)) as server:
        done = cli("synth", "tooldet", "--prompts", str(data / "no_tool" / "queries.jsonl"), "--queries", "metatool",
                   "--data", str(data), "--out", str(out), "-n", str(wanted), "--llm", server.place)  # fmt: skip
        assert done.exit_code == 0, done.output
        report = json.loads((out / "report.json").read_text())
        assert report["drops"].get("malformed", 0) == server.llm.count("bad_json") > 0
        assert max(server.served.values()) == 1
    prompts = NoTool.load(out)
    assert len(prompts.train) + len(prompts.calibrate) + len(prompts.test) == report["queries"] == wanted
