"""Fitting a decision on synthetic requests: what it learns, what it must not need, and what it refuses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from toolscout.errors import UserError
from toolscout.search.abstain.decision import Decision, columns
from toolscout.search.abstain.wording import mark_terms
from toolscout_lab.statistics import detection
from toolscout_lab.training.decision import QueryGroup, fit_decision
from toolscout_lab.training.logistic import logistic

NAMES = ("words.top", "static.top", "size")


def asked(seed: int, n: int = 300, groups: tuple[str, ...] = ("a", "b", "c")) -> list[QueryGroup]:
    """Requests that need a tool point one way, chat the other; scores are high where a tool fits."""
    rng, found = np.random.default_rng(seed), []
    for number, group in enumerate(groups):
        for needs, fits in ((True, True), (True, False), (False, None)):
            vectors = rng.normal(size=(n, 8)).astype(np.float32)
            vectors[:, 0] += 1.5 if needs else -1.5
            vectors[:, 1 + number] += 2.0 * needs  # what only this group has
            rows = rng.normal(size=(n, 3)) + 2.0 * bool(fits)
            rows[:, 2] = number
            found.append(QueryGroup(group, rows, {"static": vectors}, needs, fits))
    return found


@pytest.fixture(scope="module")
def decision() -> Decision:
    return fit_decision(NAMES, asked(0), asked(1), {"static": "x"}, {"sets": "synthetic"})


def estimate(
    decision: Decision, some: list[QueryGroup], needs: bool, fits: bool | None
) -> tuple[np.ndarray, np.ndarray]:
    [both] = [
        decision.estimate(columns(NAMES, each.rows, each.vectors, decision.wishes))
        for each in some
        if (each.needs, each.fits) == (needs, fits)
    ]
    return both


def test_need_and_fit_are_told_apart_in_a_domain_that_was_not_seen(decision: Decision) -> None:
    new = asked(2, 1_000, ("unseen",))
    right, none, chat = (estimate(decision, new, *which) for which in ((True, True), (True, False), (False, None)))
    labels = np.repeat([1, 0], 1_000)
    assert detection(labels, np.concatenate([right[0], chat[0]]))["detect_auroc"] > 0.95
    fit = detection(labels, np.concatenate([right[1], none[1]]))
    assert fit["detect_auroc"] > 0.95 and fit["detect_ece"] < 0.05


def test_probabilities_are_calibrated_and_the_budget_holds_on_new_requests() -> None:
    decision, new = fit_decision(NAMES, asked(0), asked(1, 2_000), {"static": "x"}, {}), asked(3, 2_000)
    tables = [columns(NAMES, each.rows, each.vectors, decision.wishes) for each in new]
    needs, fits = (np.concatenate(each) for each in zip(*map(decision.estimate, tables), strict=True))
    kinds = np.repeat([1 if each.needs else 0 for each in new], 2_000)
    right = np.repeat([bool(each.needs and each.fits) for each in new], 2_000)
    chosen = right | (kinds == 0)
    assert detection(kinds[chosen], needs[chosen])["detect_ece"] < 0.05
    for budget in (0.01, 0.02, 0.05):
        low = (needs < decision.floors.need_at(budget)) | (fits < decision.floors.fit_at(budget))
        assert np.mean(low[right]) == pytest.approx(budget, abs=0.01)


def test_without_vectors_only_the_scores_count() -> None:
    decision = fit_decision(NAMES, asked(0), asked(1), {"static": "x"}, {}, wishes=False)
    assert decision.wishes == {} and decision.need.columns == NAMES


def hide_tools(part: QueryGroup) -> QueryGroup:
    """The same requests without their tools: hardly anything changes."""
    return dataclasses.replace(part, rows=part.rows - 0.2, fits=False, hides=True)


def test_requests_whose_tools_are_hidden_do_not_blur_what_is_foreign() -> None:
    """A large catalogue's fit learns from foreign requests alone; a small one's from hidden tools too."""
    some, more = ([*made, *(hide_tools(part) for part in made if part.fits)] for made in (asked(0), asked(1)))
    plain = fit_decision(NAMES, asked(0), asked(1), {"static": "x"}, {})
    found = fit_decision(NAMES, some, more, {"static": "x"}, {})
    unmarked = [dataclasses.replace(part, hides=False) for part in some]
    blurred = fit_decision(NAMES, unmarked, more, {"static": "x"}, {})
    assert found.small_fit is None
    assert found.fit.weights[0] / found.fit.weights[1] == pytest.approx(plain.fit.weights[0] / plain.fit.weights[1])
    assert found.fit.means == plain.fit.means != blurred.fit.means


def test_few_visible_tools_have_a_fit_of_their_own() -> None:
    some, more = (
        [part for group in asked(seed) for part in (group, dataclasses.replace(group, rows=-group.rows, is_small=True))]
        for seed in (0, 1)
    )
    found = fit_decision(NAMES, some, more, {"static": "x"}, {})
    assert found.small_fit is not None and found.small_floors is not None
    high = {"words.top": np.full(2, 2.0), "static.top": np.full(2, 2.0), "size": np.log1p([5, 6])}
    small, large = found.estimate({**high, "wish.static": np.zeros(2), "wish.terms": np.zeros(2)})[1].tolist()
    assert large > 0.9 > small


def test_the_same_requests_give_the_same_numbers(decision: Decision) -> None:
    assert fit_decision(NAMES, asked(0), asked(1), {"static": "x"}, {"sets": "synthetic"}) == decision


def speak(groups: list[QueryGroup], *, small: bool = False) -> list[QueryGroup]:
    """The same requests with texts: those that need a tool order something, chat asks for a poem."""
    return [
        dataclasses.replace(
            group,
            texts=[f"{'book it' if group.needs else 'a poem'} and {number}" for number in range(len(group))],
            is_small=small,
        )
        for group in groups
    ]


def test_terms_of_the_requests_count_beside_their_vectors() -> None:
    decision = fit_decision(NAMES, speak(asked(0)), speak(asked(1)), {"static": "x"}, {})
    assert {"book", "and"} <= set(decision.terms) and not any(term.isdigit() for term in decision.terms)
    assert set(decision.wishes) == {"static", "terms"} and "wish.terms" in decision.need.columns
    same = {"static": np.zeros((2, 8), dtype=np.float32)}
    texts = ["book it", "a poem"]
    table = columns(NAMES, np.zeros((2, 3)), same | mark_terms(texts, decision.terms), decision.wishes)
    need, _ = decision.estimate(table)
    assert need[0] > 0.5 > need[1]


def test_small_catalogues_have_thresholds_of_their_own() -> None:
    large, small = speak(asked(1, 1_000)), speak(asked(5, 1_000), small=True)
    for group in small:
        group.rows[:, :2] -= 1.0  # the same requests score lower
    decision = fit_decision(NAMES, speak(asked(0)), [*large, *small], {"static": "x"}, {})
    assert decision.small_floors is not None
    assert decision.small_floors.fit_at(0.02) < decision.floors.fit_at(0.02)
    assert fit_decision(NAMES, speak(asked(0)), large, {"static": "x"}, {}).small_floors is None


@pytest.mark.parametrize("which", ["one group", "no chat", "none that no tool fits"])
def test_what_cannot_teach_is_refused(which: str) -> None:
    some = asked(0, 20)
    if which == "one group":
        some = [each for each in some if each.group == "a"]
    elif which == "no chat":
        some = [each for each in some if each.needs]
    else:
        some = [each for each in some if each.fits is not False]
    with pytest.raises(UserError, match="expected queries of two domains"):
        fit_decision(NAMES, some, asked(1, 20), {"static": "x"}, {})


def test_logistic_counts_mass_as_repetition() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(60, 3))
    labels = rows[:, 0] + rng.normal(size=60) > 0
    times = rng.integers(1, 4, size=60)
    again = np.repeat(np.arange(60), times)
    assert logistic(rows, labels, 1e-2, times) == pytest.approx(logistic(rows[again], labels[again], 1e-2), abs=1e-6)
