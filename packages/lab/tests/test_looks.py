"""Repeated looks at one champion's place: the level is spent over them, and a true gain still gets through."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from toolscout import metrics
from toolscout.errors import StoreError
from toolscout.learn import gate
from toolscout.learn.gate import LEVEL, Sample, bound_p, judge, level_of_look, number_look

NIGHTS = 30


def find_promoting_night(differences: npt.NDArray[np.float64], per_night: int, *, spend: bool) -> int | None:
    """The first of 30 nightly looks that promotes; each looks at the newest 600 requests so far."""
    for night in range(1, NIGHTS + 1):
        window = differences[: night * per_night][-600:]
        if window.sum() <= 1.5 * np.sqrt((window**2).sum()):
            continue  # no level of any look is reached there; a test would only take time
        level = level_of_look(LEVEL, night) if spend else LEVEL
        if gate._compare(window, np.zeros_like(window), night, level)["p"] < level:
            return night
    return None


@pytest.mark.parametrize("homes", [80, pytest.param(2_000, marks=pytest.mark.full)])
def test_thirty_nightly_looks_without_a_true_change_promote_no_oftener_than_the_level(
    homes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Family-wise, within three binomial standard errors; looks at the whole level each promote oftener."""
    monkeypatch.setattr(gate, "SIGN_FLIPS", 300)
    rng = np.random.default_rng(0)
    promoted = {True: 0, False: 0}
    for _ in range(homes):  # candidate and champion are alike: half of the requests are ties, the others go either way
        size = NIGHTS * 100
        changes = rng.choice([0.0, 0.0, 0.37, -0.37, 0.63, -0.63, 1.0, -1.0], size)
        for spend in promoted:
            promoted[spend] += find_promoting_night(changes, 100, spend=spend) is not None
    most = LEVEL * homes + 3 * np.sqrt(homes * LEVEL * (1 - LEVEL))
    assert promoted[True] <= most < promoted[False], promoted


def test_a_true_gain_is_promoted_within_days_and_after_a_month_without_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "SIGN_FLIPS", 300)
    rng = np.random.default_rng(1)
    nights = [
        find_promoting_night(rng.choice([0.0, 0.0, 0.37, -0.37, 0.63, 1.0], NIGHTS * 100), 100, spend=True)
        for _ in range(50)
    ]
    assert all(night is not None and night <= 7 for night in nights)
    assert judge_rankings(look=30, better=40).reasons == ()
    assert judge_rankings(look=365, better=60).reasons == ()


def judge_rankings(look: int, better: int) -> gate.PromotionVerdict:
    """A candidate that finds the tool of `better` requests of 200 which the champion misses; callers take turns."""
    queries = [f"q{number:03}" for number in range(200)]
    sample = Sample(
        qrels={query: {"right": 1.0} for query in queries},
        callers={query: f"c{number % 20}" for number, query in enumerate(queries)},
        groups={},
    )
    champion = {query: ["wrong"] if number < better else ["right"] for number, query in enumerate(queries)}
    candidate = {query: ["right"] for query in queries}
    return judge(candidate, champion, sample, latency_ms={"p50": 1.0, "p95": 1.0}, budget_ms=50.0, look=look)


def test_the_same_gain_that_one_look_may_believe_is_too_little_for_the_hundredth() -> None:
    first, late = (judge_rankings(look=look, better=12) for look in (1, 100))
    assert first.reasons == () and (first.look, first.level) == (1, level_of_look(LEVEL, 1))
    assert late.look == 100 and late.level < 1e-5 and len(late.reasons) == 1
    assert "comparison 100 with this champion needs p < 3e-06" in late.reasons[0]


def test_what_all_looks_may_use_is_the_level_and_no_more() -> None:
    total = sum(level_of_look(LEVEL, look) for look in range(1, 200_000))
    assert LEVEL * 0.9999 < total < LEVEL


@pytest.mark.parametrize("size", [4, 9, 12])
def test_the_bound_lies_above_the_exact_chance_and_knows_no_least_value(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(20):
        values = rng.choice([0.0, 0.37, -0.37, 1.0], size)
        sums = np.abs(np.array(list(itertools.product([1, -1], repeat=size))) @ values)
        assert bound_p(values) >= float((sums >= abs(values.sum()) - 1e-9).mean())
    assert bound_p(np.full(400, 0.5)) < 1e-80 < metrics.paired_test(np.full(400, 0.5), np.zeros(400)).p
    assert bound_p(np.zeros(3)) == 1.0


def test_looks_are_counted_on_disk_for_each_champion_and_the_same_look_once(tmp_path: Path) -> None:
    assert [number_look(tmp_path, "a", tested) for tested in (["x"], ["y"], ["x"], ["z"])] == [1, 2, 1, 3]
    assert number_look(tmp_path, "b", ["x"]) == 1
    assert number_look(tmp_path, "a", ["w"]) == 4
    file = tmp_path / "learn" / "looks.json"
    file.write_text("{")
    with pytest.raises(StoreError, match="looks.json is damaged.*Remove the file to count from one again"):
        number_look(tmp_path, "a", ["v"])
    assert file.read_text() == "{"
