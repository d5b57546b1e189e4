from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests_cli import run as cli
from toolscout.errors import ConfigError
from toolscout_lab.judge import ASPECTS, JudgeOutcome, Pair, agreement, elo, judge, matches, table
from toolscout_lab.llm import LLM
from toolscout_lab.testing import Faults, ScriptedLLM, ScriptedServer

PAIRS = [
    Pair("1", "new", "old", "a long and telling request", "short", ""),
    Pair("2", "new", "old", "short", "a long and telling request", ""),
    Pair("3", "new", "old", "equal", "equal", ""),
    Pair("4", "new", "old", "a longer answer", "short", "What is it?"),
]


def said(winner: Any) -> LLM:
    return LLM(ScriptedLLM(answers={"Winner": lambda data, chance: {"winner": winner, "reason": "so"}}))


def test_a_judge_that_sees_a_difference_gives_wins_losses_and_ties() -> None:
    outcomes = judge(LLM(ScriptedLLM()), PAIRS, ["naturalness"])
    assert [each.result for each in outcomes] == ["win", "loss", "tie", "win"]
    [row] = table(outcomes)
    assert (row["win"], row["tie"], row["loss"], row["unjudged"]) == (2, 1, 1, 0)
    assert (row["win_rate"], row["tie_rate"], row["loss_rate"]) == (0.5, 0.25, 0.25)


@pytest.mark.parametrize("winner", ["first", "second", "tie"])
def test_a_judge_that_always_says_the_same_has_no_say(winner: str) -> None:
    outcomes = judge(said(winner), PAIRS, ["naturalness", "overall"])
    assert {each.result for each in outcomes} == {"tie"} and len(outcomes) == 8
    assert all(rating.mean == pytest.approx(1000.0) for rating in elo(matches(outcomes), shuffles=100).values())


def test_both_orders_are_asked_and_one_verdict_beside_a_tie_decides() -> None:
    backend = ScriptedLLM(
        answers={
            "Winner": lambda data, chance: {"winner": "first" if data["first"] == "b" else "tie", "reason": ""},
        }
    )
    [outcome] = judge(LLM(backend), [Pair("1", "x", "y", "a", "b")], ["fluency"])
    assert outcome.verdicts == ("tie", "first") and outcome.result == "loss" and len(backend.asked) == 2
    assert ASPECTS["fluency"] in str(backend.asked[0].messages[0]["content"])


def test_a_judge_without_a_verdict_is_counted_and_counts_for_nobody() -> None:
    outcomes = judge(LLM(ScriptedLLM(faults=Faults(bad_json=1.0))), PAIRS, ["naturalness"])
    [row] = table(outcomes)
    assert row["unjudged"] == 4 and row["win_rate"] is None and matches(outcomes) == []
    with pytest.raises(ConfigError, match="found 'beauty'"):
        judge(said("tie"), PAIRS, ["beauty"])


def test_elo_of_hand_worked_matches() -> None:
    one = elo([("a", "b", 1.0)], shuffles=10)
    assert one["a"] == pytest.approx((1016.0, 1016.0, 1016.0)) and one["b"].mean == pytest.approx(984.0)
    # second win from 1016 against 984: expected 1 / (1 + 10 ** (-32 / 400)) = 0.545922, so + 32 * 0.454078 = 14.5305
    two = elo([("a", "b", 1.0), ("a", "b", 1.0)], shuffles=10)
    assert two["a"].mean == pytest.approx(1030.5305, abs=1e-4)
    # a win and a loss: 1016 - 32 * 0.545922 = 998.5305 in one order, 1001.4695 in the other
    even = elo([("a", "b", 1.0), ("a", "b", 0.0)], shuffles=10_000)
    assert even["a"].low == pytest.approx(998.5305, abs=1e-4) and even["a"].high == pytest.approx(1001.4695, abs=1e-4)
    assert even["a"].mean == pytest.approx(1000.0, abs=0.1)
    assert sum(rating.mean for rating in even.values()) == pytest.approx(2000.0)


def test_elo_is_the_same_for_the_same_seed_and_orders_the_better_first() -> None:
    played = [("a", "b", 1.0)] * 6 + [("b", "c", 1.0)] * 6 + [("a", "c", 0.5)] * 3
    found = elo(played, shuffles=500)
    assert found == elo(played, shuffles=500) and found["a"].mean > found["b"].mean > found["c"].mean
    assert found["a"].low < found["a"].mean < found["a"].high


def test_agreement_with_people_of_a_hand_worked_table() -> None:
    results = ["win", "win", "loss", "tie", "win"]
    outcomes = [JudgeOutcome(str(n), "a", "b", "overall", result) for n, result in enumerate(results)]  # type: ignore[arg-type]
    people = {(str(n), "overall", "a", "b"): result for n, result in enumerate(["win", "loss", "loss", "tie"])}
    # 3 of 4 equal; by chance (2*1 + 1*2 + 1*1) / 16 = 0.3125; kappa = (0.75 - 0.3125) / 0.6875 = 0.6364
    assert agreement(outcomes, people) == {"n": 4, "agreement": 0.75, "kappa": 0.6364}  # type: ignore[arg-type]
    assert agreement(outcomes, {})["n"] == 0


def answers(folder: Path, **systems: str) -> list[str]:
    """Inputs of `judge answers`: three answers of each system."""
    for name, text in systems.items():
        lines = [json.dumps({"id": str(n), "request": "what?", "answer": text}) for n in range(3)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return [f"{name}={folder / name}.jsonl" for name in systems]


@pytest.mark.net
def test_people_agree_pair_by_pair_however_many_systems_there_are(tmp_path: Path) -> None:
    systems = answers(tmp_path, long="a long and useful answer", mid="a useful answer", short="no")
    people = tmp_path / "people.jsonl"
    overall = {"id": "0", "aspect": "overall"}

    def said(*rows: dict[str, str], inputs: list[str] = systems) -> Result:
        people.write_text("\n".join(map(json.dumps, rows)))
        return cli("judge", "answers", *inputs, "--aspect", "overall", "--people", str(people), "--json", *place)

    with ScriptedServer() as server:
        place = ("--llm", server.place)
        rows = [
            {**overall, "a": "long", "b": "mid", "result": "win"},
            {**overall, "a": "mid", "b": "short", "result": "lose"},  # the judge says win
            {**overall, "a": "short", "b": "long", "result": "loss"},  # the other way round
        ]
        done = said(*rows)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["people"]["n"] == 3
        assert json.loads(done.stdout)["people"]["agreement"] == pytest.approx(2 / 3, abs=1e-4)
        two = said({**overall, "result": "lose"}, inputs=systems[:2])
        assert two.exit_code == 0 and json.loads(two.stdout)["people"] == {"n": 1, "agreement": 0.0, "kappa": 0.0}
        sent = len(server.bodies)
        for bad, found in (
            ({**overall, "result": "win"}, "a and b"),
            ({**overall, "a": "long", "b": "other", "result": "win"}, "a and b"),
            ({**overall, "a": "long", "b": "mid", "result": "better"}, "'better'"),
        ):
            refused = said(rows[0], bad)
            assert refused.exit_code == 1 and "people.jsonl, line 2" in refused.output and found in refused.output
        assert len(server.bodies) == sent, "a file that cannot be used is refused before anything is spent"


@pytest.mark.net
def test_what_was_polished_is_judged_against_what_it_was(tmp_path: Path) -> None:
    polish = {"Polish": lambda data, chance: {"verdict": "good", "query": "", "reason": ""}}
    out, told = str(tmp_path / "set"), tmp_path / "told.jsonl"
    with ScriptedServer() as server:
        place = ("--llm", server.place)
        made = cli("synth", "toolbank", "py:statistics", "--out", out, "-n", "12", *place)
        assert made.exit_code == 0, made.output
        done = cli("judge", "polish", out, "--json", "--out", str(told), *place)
        assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (Path(out) / "queries.jsonl").read_text().splitlines()]
    changed = {row["_id"]: row for row in rows if row["metadata"]["steps"]["raw"] != row["text"]}
    outcomes = [json.loads(line) for line in told.read_text().splitlines()]
    assert 0 < len(changed) < 12 and {each["id"] for each in outcomes} == set(changed)
    for row in json.loads(done.stdout)["pairs"]:  # the scripted judge takes the longer, and polish makes longer
        assert (row["a"], row["b"], row["win"]) == ("polished", "raw", len(changed))
    texts = {text for body in server.bodies for text in [str(body["messages"][1]["content"])]}
    some = next(iter(changed.values()))
    assert any(some["text"] in text and some["metadata"]["steps"]["raw"] in text for text in texts)
    with ScriptedServer(ScriptedLLM(answers=polish)) as server:
        place = ("--llm", server.place)
        made = cli("synth", "toolbank", "py:statistics", "--out", f"{out}2", "-n", "4", *place)
        assert made.exit_code == 0, made.output
        none = cli("judge", "polish", f"{out}2", *place)
        assert none.exit_code == 1 and "no query was polished" in none.output
