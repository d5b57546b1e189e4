"""The chain from retrieval to Elo: what `downstream` writes is what `judge answers` reads, and `elo` runs all of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests_cli import run as cli
from toolscout.errors import SourceError
from toolscout.types import Tool
from toolscout_lab.answers import (
    JudgedAnswer,
    PeopleFile,
    collect_answers,
    pair_answers,
    read_answers,
    read_people,
)
from toolscout_lab.downstream import AgentProtocol, AgentTask, condition, measure
from toolscout_lab.judge import Pair
from toolscout_lab.llm import LLM
from toolscout_lab.testing import ScriptedLLM, ScriptedServer

NAMES = ("alpha", "beta", "gamma", "delta")
TOOLS = [Tool(id=f"t/{name}", name=name, description=f"{name} of things") for name in NAMES]
QUERIES = {f"q{n}": f"alpha and beta of things for {n}" for n in range(4)}


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """A dataset folder; each of its four queries needs alpha and beta."""
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    entries = [json.dumps({"_id": tool.name, "title": tool.name, "text": tool.description}) for tool in TOOLS]
    (folder / "corpus.jsonl").write_text("\n".join(entries))
    (folder / "queries.jsonl").write_text(
        "\n".join(json.dumps({"_id": id, "text": text}) for id, text in QUERIES.items())
    )
    rows = [f"{id}\t{name}\t1" for id in QUERIES for name in ("alpha", "beta")]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return str(folder)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as opened:
        yield opened


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def write(file: Path, *rows: dict[str, Any]) -> Path:
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


# --- files of answers -------------------------------------------------------------------------------------------------


@pytest.mark.net
def test_what_downstream_writes_is_what_judge_answers_reads(
    dataset: str, server: ScriptedServer, tmp_path: Path
) -> None:
    out, place = tmp_path / "episodes.jsonl", ("--llm", server.place)
    conditions = ("--condition", "gold", "--condition", "none", "--condition", "missing:1")
    done = cli("downstream", dataset, *conditions, "--out", str(out), *place)
    assert done.exit_code == 0, done.output
    rows = lines(out)
    assert len(rows) == 12 and {row["id"]: row["request"] for row in rows} == QUERIES
    compared = [("gold", "none"), ("gold", "missing:1"), ("none", "missing:1")]
    said = cli("judge", "answers", str(out), "--aspect", "overall", "--json", *place)
    assert said.exit_code == 0, said.output
    result = json.loads(said.stdout)
    assert [(row["a"], row["b"]) for row in result["pairs"]] == compared
    size = {(row["condition"], row["id"]): len(row["answer"]) for row in rows}
    for row, (a, b) in zip(result["pairs"], compared, strict=True):  # the scripted judge prefers the longer answer
        assert row["win"] == sum(size[a, id] > size[b, id] for id in QUERIES)
        assert row["loss"] == sum(size[a, id] < size[b, id] for id in QUERIES)
    assert (result["pairs"][1]["win"], result["pairs"][1]["loss"]) == (4, 0)
    assert list(result["elo"]["overall"]) == ["gold", "missing:1", "none"]
    first = next(body for body in server.bodies if "two answers" in str(body["messages"][0]["content"]))
    assert QUERIES["q0"][:26] in str(first["messages"][1]["content"]), "the judge sees the request"
    named = cli("judge", "answers", f"mine={out}", "--aspect", "overall", "--json", *place)
    assert {row["a"] for row in json.loads(named.stdout)["pairs"]} == {"mine:gold", "mine:none"}


@pytest.mark.net
def test_files_of_earlier_versions_are_read_with_the_requests_of_their_dataset(
    dataset: str, server: ScriptedServer, tmp_path: Path
) -> None:
    for name, text in (("long", "a long and useful answer"), ("short", "no")):
        rows = [{"task": id, "condition": "retrieved", "answer": text, "stopped": "answer"} for id in QUERIES]
        write(tmp_path / f"{name}.jsonl", *rows)
    inputs = [f"{name}={tmp_path / name}.jsonl" for name in ("long", "short")]
    base = ("judge", "answers", *inputs, "--aspect", "overall", "--json", "--llm", server.place)
    refused = cli(*base)
    assert refused.exit_code == 1 and "long.jsonl, line 1: the request is missing" in refused.output
    done = cli(*base, "--queries", dataset)
    assert done.exit_code == 0 and json.loads(done.stdout)["pairs"][0]["win"] == 4, done.output


def test_lines_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    good = {"id": "1", "request": "what?", "answer": "so"}
    assert read_answers(write(tmp_path / "a", good), "x") == {"x": {"1": JudgedAnswer("1", "what?", "so")}}
    refused = {**good, "id": "2", "condition": "all", "stopped": "refused"}
    assert read_answers(write(tmp_path / "b", {**good, "condition": "all"}, refused)) == {
        "all": {"1": JudgedAnswer("1", "what?", "so")}
    }
    for rows, found in (
        (({"id": "1", "request": "what?"},), "line 1: expected an object with id, request, answer"),
        ((good,), "line 1: the line has no condition"),
        (({**good, "condition": "all"}, {**good, "condition": "all"}), "line 2: all has another answer to '1'"),
    ):
        with pytest.raises(SourceError, match=found):
            read_answers(write(tmp_path / "c", *rows))
    assert cli("judge", "answers", str(tmp_path / "none")).exit_code == 2
    assert "two inputs are called x" in cli("judge", "answers", *[f"x={tmp_path / 'a'}"] * 2).output


def test_the_protocol_decides_whether_answers_are_examined() -> None:
    task = AgentTask("q0", QUERIES["q0"], ("t/alpha", "t/beta"))
    for examine, calls in ((True, 1), (False, 0)):
        backend = ScriptedLLM()
        [episode] = measure(LLM(backend), [task], TOOLS, [condition("gold")], AgentProtocol(examine=examine))
        assert (episode.solved is not None) == examine
        assert sum("solved" in str(request.messages[0]["content"]) for request in backend.asked) == calls
        assert collect_answers([episode]) == {"q0": JudgedAnswer("q0", task.query, episode.answer)}


def test_a_result_of_a_person_counts_only_for_the_texts_that_were_shown(tmp_path: Path) -> None:
    systems = {name: {"1": JudgedAnswer("1", "what?", f"{name} says so")} for name in ("a", "b")}
    [pair] = pair_answers(systems)
    assert pair == Pair("1", "a", "b", "a says so", "b says so", "what?")
    people = PeopleFile(tmp_path / "people.jsonl", [pair], ["overall", "relevance"])
    people.decide(pair, "overall", "loss")
    again = PeopleFile(tmp_path / "people.jsonl", [pair], ["overall", "relevance"])
    assert [(each.aspect, each.result) for each in again.list_outcomes()] == [("overall", "loss")]
    assert again.list_waiting() == [(pair, "relevance")]
    [other] = pair_answers({**systems, "b": {"1": JudgedAnswer("1", "what?", "b says otherwise")}})
    assert read_people(tmp_path / "people.jsonl", [other]) == {}
    turned = Pair("1", "b", "a", "b says so", "a says so", "what?")
    write(tmp_path / "by_hand.jsonl", {"id": "1", "aspect": "overall", "a": "a", "b": "b", "result": "lose"})
    assert read_people(tmp_path / "by_hand.jsonl", [turned]) == {("1", "overall", "b", "a"): "win"}


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.net
def test_one_command_goes_from_retrieval_to_elo_and_continues_for_nothing(
    dataset: str, server: ScriptedServer, tmp_path: Path
) -> None:
    out = tmp_path / "elo"
    base = ("lab", "elo", dataset, "-r", "bm25", "-r", "bm25-plain", "--condition", "gold", "--condition", "missing:1",
            "-k", "1", "--out", str(out), "--llm", server.place, "--json")  # fmt: skip
    planned = cli(*base, "--dry-run")
    assert planned.exit_code == 0 and "would send about" in planned.output and not server.bodies and not out.exists()
    done = cli(*base)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report == json.loads((out / "report.json").read_text())
    systems = {row["system"]: row for row in report["systems"]}
    assert list(systems) == ["bm25", "bm25-plain", "gold", "missing:1"]
    assert (systems["gold"]["recall"], systems["gold"]["comp"], systems["gold"]["answers"]) == (1.0, 1.0, 4)
    assert (systems["bm25"]["recall"], systems["bm25"]["comp"]) == (0.5, 0.0), "one tool of two was retrieved"
    assert report["n"] == 4 and len(report["pairs"]) == 4 * 6, "four aspects, six pairs of systems"
    for ratings in report["elo"].values():  # longest answer first: "Done: alpha, beta"
        assert (
            ratings["gold"]["mean"] > 1050 > max(ratings[name]["mean"] for name in ("bm25", "bm25-plain", "missing:1"))
        )
        assert sum(rating["mean"] for rating in ratings.values()) == pytest.approx(4000)
    assert len(lines(out / "outcomes.jsonl")) == 4 * 6 * 4
    shapes = [body.get("response_format", {}).get("json_schema", {}).get("name") for body in server.bodies]
    assert "Grade" not in shapes and shapes.count("Winner") > 0
    sent = len(server.bodies)
    (out / "report.json").write_text("{}")
    assert json.loads(cli(*base).stdout) == report and len(server.bodies) == sent, "every reply is in the cache"
    files = [f"{name}={out / 'answers' / file}.jsonl" for name, file in (("gold", "gold"), ("half", "missing-1"))]
    judged = cli("judge", "answers", *files, "--json", "--llm", server.place)
    assert judged.exit_code == 0 and all(row["win"] == 4 for row in json.loads(judged.stdout)["pairs"])
    plain = cli(*base[:-1])
    assert plain.exit_code == 0 and "Elo, overall: gold" in plain.output and "comp" in plain.output


@pytest.mark.net
def test_a_person_judges_without_names_and_elo_follows_and_is_compared_with_the_model(
    dataset: str, server: ScriptedServer, tmp_path: Path
) -> None:
    out = tmp_path / "elo"
    base = ("lab", "elo", dataset, "-r", "bm25", "--condition", "none", "-k", "2", "--aspect", "overall",
            "--out", str(out), "--llm", server.place, "--json")  # fmt: skip
    first = cli(*base, "--judge", "people", input="1\nt\nq\n")
    assert first.exit_code == 0, first.output
    shapes = [body.get("response_format", {}).get("json_schema", {}).get("name") for body in server.bodies]
    assert "Winner" not in shapes
    shown = first.stderr.split("[1 of 4]")[0]
    assert "alpha and beta of things for" in shown and "Done: alpha, beta" in shown and "bm25" not in shown
    assert sum(row["win"] + row["tie"] + row["loss"] for row in json.loads(first.stdout)["pairs"]) == 2
    again = cli(*base, "--judge", "people", input="s\n1\n")
    assert "[1 of 2]" in again.stderr and len(lines(out / "people.jsonl")) == 3
    # A person who always finds the answer with tools better, whichever comes first
    shutil.rmtree(out)
    replies = []
    for _ in range(4):
        trial = cli(*base, "--judge", "people", input="".join(f"{reply}\n" for reply in replies) + "q\n")
        assert trial.exit_code == 0, trial.output
        answers = trial.stderr.rpartition("First answer:")[2].partition("Second answer:")
        replies.append("1" if "Done" in answers[0] else "2")
        shutil.rmtree(out)
    assert set(replies) == {"1", "2"}, "the order of the texts is drawn"
    told = cli(*base, "--judge", "people", input="".join(f"{reply}\n" for reply in replies))
    ratings = json.loads(told.stdout)["elo"]["overall"]
    assert ratings["bm25"]["mean"] > 1050 and ratings["none"]["mean"] < 950
    model = cli(*base)
    assert model.exit_code == 0, model.output
    texts = {
        name: [len(row["answer"]) for row in lines(out / "answers" / f"{name}.jsonl")] for name in ("bm25", "none")
    }
    longer = sum(a > b for a, b in zip(texts["bm25"], texts["none"], strict=True))  # the scripted model takes these
    assert json.loads(model.stdout)["people"] == {"n": 4, "agreement": longer / 4, "kappa": 0.0} and longer < 4


@pytest.mark.net
def test_what_cannot_be_rated_is_refused_before_anything_is_spent(
    dataset: str, server: ScriptedServer, tmp_path: Path
) -> None:
    base = ("lab", "elo", dataset, "--out", str(tmp_path / "elo"), "--llm", server.place)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    for extra, found, code in (
        (("-r", "bm25"), "there are 1. Repeat --recipe", 1),
        (("-r", "bm25", "--condition", "retrieved"), "retrieved needs a recipe", 1),
        (("-r", "bm25", "--condition", "gold", "--aspect", "beauty"), "found 'beauty'", 1),
        (("-r", "bm25", "--condition", "gold", "--model", "mlc=x"), "expected RECIPE=DIR", 2),
        (("-r", "bm25", "--condition", "gold", "--out", str(tmp_path / "mine")), "holds other files", 1),
    ):
        refused = cli(*base, *extra)
        told = refused.output.replace("\nhint: ", " ")
        assert refused.exit_code == code and found in told, told
    assert not server.bodies
