"""Corrected tests and the figures of detection, against what counting by hand gives."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolscout.metrics import paired_test
from toolscout_lab.statistics import best_of, detection, detection_ci, detection_curves, holm

PROBABILITIES = st.sampled_from([0.0, 0.1, 0.3, 0.3000001, 0.5, 0.8, 1.0]) | st.floats(0, 1)
JUDGED = st.lists(st.tuples(st.integers(0, 1), PROBABILITIES), min_size=2, max_size=60).filter(
    lambda pairs: {label for label, _ in pairs} == {0, 1}
)


def test_the_best_of_one_trial_is_the_exact_one_sided_test_up_to_chance() -> None:
    a = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.9, 1.0, 0.2])
    b = np.array([0.5, 0.7, 0.4, 0.6, 0.3, 0.8, 0.6, 0.3])
    signs = 1 - 2 * ((np.arange(256)[:, None] >> np.arange(8)) & 1)
    exact = float((signs @ (a - b) >= (a - b).sum() - 1e-9).mean())
    found = best_of([a], b)
    assert found.trial == 0 and found.p == pytest.approx(exact, abs=0.006)
    assert found.difference == pytest.approx((a - b).mean()) and best_of([a, a, a], b).p == found.p
    assert best_of([b - 0.1, a, b], b).trial == 1 and best_of([b], b).p == 1.0


def test_trying_many_settings_makes_nothing_surer() -> None:
    rng = np.random.default_rng(5)
    luck = [best_of(rng.random((12, 40)), rng.random(40), seed=seed, n=300).p for seed in range(200)]
    assert np.mean(np.array(luck) < 0.05) < 0.1
    single = [paired_test(max(rng.random((12, 40)), key=np.mean), rng.random(40), n=300).p for _ in range(200)]
    assert np.mean(np.array(single) < 0.05) > 0.15, "the best of twelve, tested as if it were the only one"


def test_values_of_other_queries_cannot_be_compared() -> None:
    for left, right in (([1.0], [1.0, 2.0]), ([], []), ([[1.0]], [[1.0]])):
        with pytest.raises(ValueError, match="equally long"):
            best_of([left], right)


def test_holm_multiplies_stepwise_and_never_falls() -> None:
    assert holm([0.04, 0.01, 0.03, 0.005]) == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert holm([0.9, 0.5]) == [1.0, 1.0]
    assert holm([]) == []


# --- is a tool needed at all? -----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(JUDGED, st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]))
def test_detection_is_what_counting_by_hand_gives(pairs: list[tuple[int, float]], threshold: float) -> None:
    tool = [need for label, need in pairs if label]
    chat = [need for label, need in pairs if not label]
    hits, false = sum(need >= threshold for need in tool), sum(need >= threshold for need in chat)
    beaten = sum((a > b) + (a == b) / 2 for a in tool for b in chat)
    precision, recall = hits / (hits + false) if hits + false else 0.0, hits / len(tool)
    found = detection(*zip(*pairs, strict=True), threshold)
    ece = found.pop("detect_ece")
    assert found == pytest.approx(
        {
            "detect_accuracy": (hits + len(chat) - false) / len(pairs),
            "detect_precision": precision,
            "detect_recall": recall,
            "detect_f1": 2 * precision * recall / (precision + recall) if hits else 0.0,
            "detect_auroc": beaten / (len(tool) * len(chat)),
            "detect_far": false / len(chat),
            "detect_frr": 1 - recall,
        },
        abs=1e-9,
    )
    assert 0 <= ece <= 1
    shuffled = random.Random(0).sample(pairs, len(pairs))
    assert detection(*zip(*shuffled, strict=True), threshold)["detect_ece"] == pytest.approx(ece, abs=1e-9)


def test_calibration_error_is_measured_with_both_classes_given_half_of_the_mass() -> None:
    assert detection([1, 0, 0, 0], [0.5] * 4)["detect_ece"] == pytest.approx(0)
    assert detection([1, 0, 0, 0], [0.25] * 4)["detect_ece"] == pytest.approx(0.25)
    assert detection([1, 0, 0], [1, 0, 0])["detect_ece"] == pytest.approx(0)
    assert detection([1, 0, 0], [0, 1, 1])["detect_ece"] == pytest.approx(1)


def test_calibration_error_of_distinct_needs_is_the_sum_over_fifteen_equal_bins() -> None:
    rng = np.random.default_rng(4)
    needs = np.sort(rng.random(300))
    labels = rng.permutation([0, 1] * 150)
    gaps = [abs(labels[part].mean() - needs[part].mean()) * len(part) / 300 for part in np.split(np.arange(300), 15)]
    assert detection(labels, needs)["detect_ece"] == pytest.approx(sum(gaps), abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(JUDGED)
def test_the_curves_of_detection_are_what_its_figures_sum_up(pairs: list[tuple[int, float]]) -> None:
    labels, needs = zip(*pairs, strict=True)
    curves, figures = detection_curves(labels, needs), detection(labels, needs)
    x, y = zip(*curves["roc"], strict=True)
    assert np.trapezoid(y, x) == pytest.approx(figures["detect_auroc"])
    assert curves["roc"][0] == (0, 0) and curves["roc"][-1] == pytest.approx((1, 1))
    accepted = [sum(need >= 0.5 for label, need in pairs if label == side) / labels.count(side) for side in (0, 1)]
    assert any(point == pytest.approx(accepted) for point in curves["roc"])
    said, right = zip(*curves["reliability"], strict=True)
    assert list(said) == sorted(said) and min(right) >= 0 and max(right) <= 1


def test_the_reliability_of_distinct_needs_is_that_of_fifteen_equal_bins() -> None:
    rng = np.random.default_rng(4)
    needs = np.sort(rng.random(300))
    labels = rng.permutation([0, 1] * 150)
    found = detection_curves(labels, needs)["reliability"]
    parts = np.split(np.arange(300), 15)
    np.testing.assert_allclose(found, [(needs[part].mean(), labels[part].mean()) for part in parts])


def test_every_detection_figure_but_the_calibration_error_lies_in_its_interval() -> None:
    rng = np.random.default_rng(4)
    labels = np.array([1] * 80 + [0] * 40)
    needs = np.clip(rng.normal(0.35 + 0.3 * labels, 0.2), 0, 1)
    found, intervals = detection(labels, needs), detection_ci(labels, needs, seed=1, n=300)
    assert intervals == detection_ci(labels, needs, seed=1, n=300)
    assert list(found) == list(intervals)
    del found["detect_ece"]  # resampling adds noise to each bin, which raises it
    assert all(intervals[name][0] < value < intervals[name][1] for name, value in found.items())


@pytest.mark.parametrize(
    ("labels", "needs", "said"),
    [
        ([1, 1], [0.5, 0.5], "each at least once"),
        ([1, 2], [0.5, 0.5], "each at least once"),
        ([1, 0], [0.5], "one need per label"),
        ([1, 0], [0.5, 1.5], "between 0 and 1"),
        ([1, 0], [0.5, math.nan], "between 0 and 1"),
    ],
)
def test_detection_without_both_classes_or_probabilities_is_refused(
    labels: list[int], needs: list[float], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        detection(labels, needs)
