"""The promotion gate, rule by rule: in each case one rule alone speaks; without it the gate would say otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from toolscout import metrics
from toolscout.home.journal.evidence import limit_per_caller
from toolscout.learn.gate import PromotionVerdict, Sample, compare_outside, explain_outside_loss, judge

PAIRED_TEST = metrics.paired_test
ALL = frozenset({"ann", "bob", "eve"})  # trusted: nothing depends on who asked


@pytest.fixture(autouse=True)
def _fewer_flips(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the random flips: the p-values here lie far enough from the level."""
    monkeypatch.setattr(metrics, "paired_test", lambda a, b, seed=0, n=0: PAIRED_TEST(a, b, seed, 2_000))


class Request(NamedTuple):
    """A request, and the ranks at which the champion and the candidate show its tools; 0: nowhere."""

    champion: tuple[int, ...]
    candidate: tuple[int, ...]
    caller: str = "ann"
    label: str = "short"


def ranking(ranks: Sequence[int]) -> list[str]:
    """Eight tools, in which the gold tools `t0`, `t1`, … stand at these ranks."""
    places = [f"other{number}" for number in range(8)]
    for number, rank in enumerate(ranks):
        if rank:
            places[rank - 1] = f"t{number}"
    return places


def compare(*requests: Request, trusted: frozenset[str] = ALL, **changes: Any) -> PromotionVerdict:
    named = {f"q{number:04}": request for number, request in enumerate(requests)}
    labels = {query: request.label for query, request in named.items()}
    return judge(
        {query: ranking(request.candidate) for query, request in named.items()},
        {query: ranking(request.champion) for query, request in named.items()},
        Sample(
            qrels={query: {f"t{n}": 1.0 for n in range(len(each.champion))} for query, each in named.items()},
            callers={query: request.caller for query, request in named.items()},
            groups={"length": labels} if len(set(labels.values())) > 1 else {},
            trusted=trusted,
        ),
        **{"latency_ms": {"p50": 1.0, "p95": 2.0}, "budget_ms": 10.0, **changes},
    )


def times(count: int, champion: int, candidate: int, **more: str) -> list[Request]:
    """So many requests with one gold tool each, at these ranks."""
    return [Request((champion,), (candidate,), **more)] * count


def same(count: int, **more: str) -> list[Request]:
    return times(count, 1, 1, **more)


GAIN = times(40, 5, 1)  # enough for every rule that asks for a gain


def test_what_is_better_and_worse_in_nothing_is_promoted() -> None:
    verdict = compare(*GAIN, *same(80))
    assert verdict.reasons == () and verdict.n == 120
    assert verdict.tests["ndcg@5"]["difference"] > 0.1


# --- is it better? ----------------------------------------------------------------------------------------------------


def test_a_significant_loss_is_no_gain() -> None:
    [reason] = compare(*times(40, 2, 3), *same(80)).reasons
    assert reason.startswith("it is not better: ndcg@5 83.3 against 87.7")


@pytest.mark.parametrize(("wins", "promoted"), [(0, False), (5, False), (6, False), (7, True), (8, True)])
def test_a_gain_has_to_be_significant_at_the_level_of_the_first_look(wins: int, promoted: bool) -> None:
    """So many wins and no loss have p = 2 / 2^wins: 3.1 % of six, 1.6 % of seven; the first look may use 3.04 %."""
    verdict = compare(*times(wins, 2, 1), *same(60))
    assert (verdict.reasons == ()) is promoted
    assert promoted or verdict.reasons[0].startswith("it is not better")


# --- nobody decides alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [0, 2])
def test_a_gain_that_one_caller_brings_promotes_nothing(others: int) -> None:
    """Without the one the gain is gone, or no longer significant."""
    requests = [*times(20, 5, 1), *same(20), *same(40 - others, caller="bob"), *times(others, 5, 1, caller="bob")]
    requests += same(40, caller="eve")
    verdict = compare(*requests, trusted=frozenset())
    assert verdict.reasons == ("without the requests of ann it is not better",)
    assert verdict.without is not None and verdict.without["caller"] == "ann"
    assert compare(*requests, trusted=frozenset({"ann", "bob", "eve"})).reasons == ()


def test_a_trusted_caller_is_no_favourite_but_others_are() -> None:
    requests = [*times(20, 5, 1), *same(20), *times(9, 5, 1, caller="bob"), *same(31, caller="bob")]
    requests += same(40, caller="eve")
    verdict = compare(*requests, trusted=frozenset({"ann"}))
    assert verdict.without is not None and verdict.without["caller"] == "bob" and verdict.reasons == ()


def test_requests_of_a_single_caller_decide_only_if_trusted() -> None:
    requests = [*GAIN, *same(80)]
    assert compare(*requests, trusted=frozenset()).reasons == ("all requests come from one caller (ann)",)
    assert compare(*requests, trusted=frozenset({"ann"})).reasons == ()


def test_a_flood_weighs_no_more_than_one_caller_may() -> None:
    """Four callers of forty requests each stand against one of four hundred, who gains as much on each as they lose."""
    callers = [f"c{number}" for number in range(4)]
    requests = [*times(400, 2, 1, caller="flood"), *(each for who in callers for each in times(40, 1, 2, caller=who))]
    assert compare(*requests, trusted=frozenset()).tests["ndcg@5"]["difference"] < 0
    assert compare(*requests, trusted=frozenset({"flood"})).tests["ndcg@5"]["difference"] > 0
    sample = Sample(
        qrels={f"q{number:04}": {"t": 1.0} for number in range(len(requests))},
        callers={f"q{number:04}": request.caller for number, request in enumerate(requests)},
        groups={},
    )
    weights = sample.weights()
    cap = limit_per_caller({"flood": 400, **dict.fromkeys(callers, 40)})
    assert weights.mean() == pytest.approx(1.0)
    assert weights[:400].sum() / weights[400:].sum() == pytest.approx(cap / 160) and cap < 160


def test_calls_of_tools_far_down_weigh_no_more_than_one_caller_may() -> None:
    """Of twenty callers, one calls what stood at rank 100. It may bring a tenth of the weight, and blocks nothing."""
    callers = {f"q{number:04}": f"c{number % 20}" for number in range(1_000)}
    qrels = {query: {"t": 10.0 if who == "c0" else 1.0} for query, who in callers.items()}
    of_one = np.array([who == "c0" for who in callers.values()])
    weights = Sample(qrels=qrels, callers=callers, groups={}).weights()
    assert weights.mean() == pytest.approx(1.0)
    assert weights[of_one].sum() / weights.sum() == pytest.approx(0.1, abs=0.002)
    weights = Sample(qrels=qrels, callers=callers, groups={}, trusted=frozenset({"c0"})).weights()
    assert weights[of_one].sum() / weights.sum() == pytest.approx(500 / 1_450)
    verdict = judge(
        {query: ["other", "t"] if who == "c0" else ["t"] for query, who in callers.items()},
        {query: ["t"] if who == "c0" or int(who[1:]) > 4 else ["other", "t"] for query, who in callers.items()},
        Sample(qrels=qrels, callers=callers, groups={}),
        latency_ms={"p50": 1.0, "p95": 2.0},
        budget_ms=10.0,
    )
    assert verdict.reasons == () and verdict.tests["ndcg@1"]["difference"] > 0


def test_a_query_weighs_what_its_calls_weigh() -> None:
    sample = Sample(qrels={"a": {"t": 1.0}, "b": {"t": 2.0, "u": 4.0}}, callers={"a": "x", "b": "y"}, groups={})
    assert np.allclose(sample.weights(), [0.5, 1.5])


# --- is it worse in anything? -----------------------------------------------------------------------------------------


def test_what_is_put_first_must_not_suffer() -> None:
    """More requests are answered, further down; ten that were answered in the first place are so in the second."""
    [reason] = compare(*times(40, 0, 2), *times(10, 1, 2), *same(70)).reasons
    assert reason == "its first tool is right less often: ndcg@1 58.3 against 66.7"


ONE_OF_TWO = [Request((5, 0), (0, 0))] * 10  # loses recall, and never had both
SPLIT = [*([Request((1, 2), (1, 0))] * 10), *([Request((0, 0), (1, 0))] * 10)]  # loses comp and keeps recall


@pytest.mark.parametrize(("harm", "measure"), [(ONE_OF_TWO, "recall@5"), (SPLIT, "comp@5")])
def test_each_guarded_measure_refuses_by_itself(harm: list[Request], measure: str) -> None:
    [reason] = compare(*GAIN, *harm, *same(60)).reasons
    assert reason.startswith("it loses ") and f"points of {measure} of all requests" in reason


@pytest.mark.parametrize(("losses", "refused"), [(7, False), (9, True)])
def test_a_significant_loss_of_up_to_two_points_is_allowed(losses: int, refused: bool) -> None:
    """Of 400 requests seven are 1.75 points, nine 2.25; both are significant."""
    verdict = compare(*GAIN, *times(losses, 5, 0), *same(360 - losses))
    assert verdict.tests["recall@5"]["p"] < 0.05
    measures = [reason.partition("points of ")[2].partition(" ")[0] for reason in verdict.reasons]
    assert measures == (["recall@5", "comp@5"] if refused else [])


def test_a_loss_that_may_be_chance_is_allowed() -> None:
    verdict = compare(*GAIN, *times(4, 5, 0), *same(76))
    assert verdict.tests["recall@5"]["difference"] < -0.03 and verdict.tests["recall@5"]["p"] > 0.05
    assert verdict.reasons == ()


@pytest.mark.parametrize(("size", "refused"), [(30, True), (29, False)])
def test_a_slice_of_thirty_requests_is_guarded_and_a_smaller_one_is_not(size: int, refused: bool) -> None:
    harmed = [*times(15, 2, 3, label="long"), *same(size - 15, label="long")]
    verdict = compare(*GAIN, *harmed, *same(60))
    assert verdict.slices["length"]["long"]["n"] == size
    assert bool(verdict.reasons) is refused
    assert all("ndcg@5 where length is long" in reason for reason in verdict.reasons) and len(verdict.reasons) <= 1


@pytest.mark.parametrize(("p95", "refused"), [(10.0, False), (10.1, True)])
def test_it_must_be_quick_enough(p95: float, refused: bool) -> None:
    verdict = compare(*GAIN, *same(80), latency_ms={"p50": 1.0, "p95": p95})
    assert bool(verdict.reasons) is refused
    assert not refused or "10 ms are allowed" in verdict.reasons[0]


# --- requests outside the traffic -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("losses", "refused"), [(0, False), (1, False), (10, True)])
def test_requests_for_tools_that_nobody_used_may_lose_little(losses: int, refused: bool) -> None:
    champion, candidate = np.ones(300), np.ones(300)
    candidate[:losses] = 0.0
    outside = compare_outside(candidate, champion)
    verdict = compare(*GAIN, *same(80), outside=outside)
    assert any("nobody has used" in reason for reason in verdict.reasons) is refused
    assert verdict.outside == outside


def test_a_loss_that_so_few_requests_cannot_rule_out_refuses_too_and_a_handful_say_nothing() -> None:
    candidate = np.ones(30)
    candidate[0] = 0.0
    assert explain_outside_loss(compare_outside(candidate, np.ones(30)))
    assert compare_outside(candidate[:10], np.ones(10)) is None
