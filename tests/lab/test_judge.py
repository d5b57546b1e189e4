from __future__ import annotations

from typing import Any

import pytest

from toolscout.errors import ConfigError
from toolscout.lab.judge import ASPECTS, Outcome, Pair, agreement, elo, judge, matches, table
from toolscout.llm import LLM
from toolscout.testing import Faults, ScriptedLLM

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
    outcomes = [Outcome(str(n), "a", "b", "overall", result) for n, result in enumerate(results)]  # type: ignore[arg-type]
    people = {(str(n), "overall"): result for n, result in enumerate(["win", "loss", "loss", "tie"])}
    # 3 of 4 equal; by chance (2*1 + 1*2 + 1*1) / 16 = 0.3125; kappa = (0.75 - 0.3125) / 0.6875 = 0.6364
    assert agreement(outcomes, people) == {"n": 4, "agreement": 0.75, "kappa": 0.6364}  # type: ignore[arg-type]
    assert agreement(outcomes, {})["n"] == 0
