"""Probabilities that mean what they say, and floors that keep a budget."""

from __future__ import annotations

import numpy as np
import pytest

from toolscout.search.abstain.calibration import BUDGETS, floors, platt, sigmoid


def drawn(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Need and fit of requests that need a tool and have one; the two go together in part."""
    rng = np.random.default_rng(seed)
    both = rng.normal(size=n)
    return sigmoid(1 + both + rng.normal(size=n)), sigmoid(1 + both + rng.normal(size=n))


def test_platt_finds_the_slope_and_the_shift_that_were_put_in() -> None:
    rng = np.random.default_rng(0)
    true = rng.normal(scale=2, size=40_000)
    labels = rng.random(40_000) < sigmoid(true)
    given = (true - 0.7) / 3  # what a badly scaled model would say
    weights = np.where(labels, labels.mean(), 1 - labels.mean())
    by = platt(given[labels], given[~labels])
    told = sigmoid(by["slope"] * given + by["shift"])
    for low, high in ((0.0, 0.2), (0.4, 0.6), (0.8, 1.0)):
        inside = (told >= low) & (told < high)
        share = (labels[inside] / weights[inside]).sum() / (1 / weights[inside]).sum()
        assert share == pytest.approx(told[inside].mean(), abs=0.02)


@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 3.0, 5.0, 20.0])
def test_logits_of_any_scale_are_calibrated_alike(scale: float) -> None:
    rng = np.random.default_rng(1)
    yes, no = scale * rng.normal(2.0, 1.0, size=1_500), scale * rng.normal(-1.6, 1.1, size=400)
    by, plain = platt(yes, no), platt(yes / scale, no / scale)
    assert by["slope"] * scale == pytest.approx(plain["slope"], rel=1e-4)
    assert by["shift"] == pytest.approx(plain["shift"], rel=1e-3)
    later = np.concatenate([scale * rng.normal(2.0, 1.0, size=20_000), scale * rng.normal(-1.6, 1.1, size=20_000)])
    told = sigmoid(by["slope"] * later + by["shift"])
    truth = np.repeat([1.0, 0.0], 20_000)
    assert np.mean((told > 0.5) == truth) > 0.94
    bins = np.minimum((10 * told).astype(int), 9)
    assert sum(abs((told - truth)[bins == each].sum()) for each in range(10)) / len(told) < 0.02


def test_two_kinds_that_never_meet_have_a_finite_slope() -> None:
    by = platt(np.linspace(5.0, 30.0, 300), np.linspace(-30.0, -5.0, 40))
    assert 0 < by["slope"] < 10
    alike = platt(np.ones(50), np.ones(70))
    assert sigmoid(np.array([alike["slope"] + alike["shift"]])) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("n", [300, 2_000])
def test_the_budget_is_kept_on_requests_that_were_not_seen(n: int) -> None:
    later = drawn(999, 20_000)
    for budget in BUDGETS[1:]:
        lost = []
        for seed in range(20):
            found = floors(*drawn(seed, n))
            lost.append(np.mean((later[0] < found.need_at(budget)) | (later[1] < found.fit_at(budget))))
        assert np.mean(lost) <= budget + 0.002, (n, budget)
        assert np.mean(lost) >= 0.5 * budget - 1.5 / n, (n, budget)  # and it is spent


def test_one_that_is_judged_alone_may_spend_the_whole_budget() -> None:
    need, fit = drawn(0, 5_000)
    alone, both = floors(need), floors(need, fit)
    assert alone.fit == () and alone.fit_at(0.05) == 0.0
    for budget in (0.01, 0.05, 0.2):
        assert np.mean(need < alone.need_at(budget)) == pytest.approx(budget, abs=1e-3)
        assert both.need_at(budget) < alone.need_at(budget)


def test_a_larger_share_for_the_need_leaves_less_to_the_fit_within_one_budget() -> None:
    need, fit = drawn(0, 5_000)
    found = {share: floors(need, fit, need_share=share) for share in (0.2, 0.5, 0.9)}
    assert found[0.5] == floors(need, fit)
    for share, held in found.items():
        low = [(need < held.need_at(0.05)).mean(), (fit < held.fit_at(0.05)).mean()]
        assert low[0] / sum(low) == pytest.approx(share, abs=0.02)
        lost = (need < held.need_at(0.05)) | (fit < held.fit_at(0.05))
        assert lost.mean() == pytest.approx(0.05, abs=2e-3)


def test_floors_rise_with_the_budget_and_too_few_requests_turn_nobody_away() -> None:
    found = floors(*drawn(3, 1_000))
    assert found.need == tuple(sorted(found.need)) and found.fit == tuple(sorted(found.fit))
    assert found.need_at(0) == found.fit_at(0) == 0.0
    assert found.need_at(0.02) < found.need_at(0.04) < found.need_at(0.05)
    few = floors(*drawn(3, 10))
    assert few.need_at(0.05) == few.fit_at(0.05) == 0.0 < few.need_at(0.2)
    same = floors(np.full(1_000, 0.5), np.full(1_000, 0.5))
    assert same.need_at(0.2) <= 0.5 and same.fit_at(0.2) <= 0.5, "equal ones are not turned away"


def test_of_ninety_nine_requests_five_are_a_twentieth_since_the_next_one_counts_too() -> None:
    """The promise is about later requests: five of 99 and one more are 5 %; five of 98 and one more are too many."""
    for count, floor in ((99, 0.05), (98, 0.04)):
        assert floors(np.arange(1, count + 1) / 100).need_at(0.05) == pytest.approx(floor)


def test_mass_counts_as_repetition_does() -> None:
    need, fit = drawn(5, 400)
    heavy = np.where(np.arange(400) < 200, 3.0, 1.0)
    repeated = np.repeat(np.arange(400), heavy.astype(int))
    weighed, plain = floors(need, fit, heavy), floors(need[repeated], fit[repeated])
    for budget in (0.05, 0.1, 0.2):
        assert weighed.need_at(budget) == pytest.approx(plain.need_at(budget), abs=0.03)
