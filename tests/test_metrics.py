"""The referee agrees with independent referees, and its intervals and tests do what their names say."""

from __future__ import annotations

import math
import random

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_measures import RR, P, R, Rprec, nDCG

from toolscout import metrics
from toolscout.metrics import (
    DEFAULT_MEASURES,
    Measure,
    bootstrap_ci,
    paired_test,
    score,
    slices,
)

TOOLS = [f"t{number}" for number in range(12)]
REFEREES = {
    "recall@1": R @ 1,
    "recall@5": R @ 5,
    "recall@20": R @ 20,
    "recall@|N|": Rprec,
    "precision@3": P @ 3,
    "precision@20": P @ 20,
    "ndcg@1": nDCG @ 1,
    "ndcg@3": nDCG @ 3,
    "ndcg@5": nDCG @ 5,
    "ndcg@20": nDCG @ 20,
    "mrr": RR,
}
GRADES = st.dictionaries(st.sampled_from(TOOLS), st.integers(0, 3), min_size=1, max_size=6).filter(
    lambda grades: any(grades.values())
)
RANKINGS = st.permutations(TOOLS).flatmap(lambda tools: st.integers(0, 12).map(lambda size: tools[:size]))


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(GRADES, RANKINGS), min_size=1, max_size=5), st.booleans())
def test_recall_precision_ndcg_and_mrr_are_those_of_trec_eval(
    pairs: list[tuple[dict[str, int], list[str]]], leave_one_out: bool
) -> None:
    qrels = {f"q{number}": grades for number, (grades, _) in enumerate(pairs)}
    run = {f"q{number}": ranking for number, (_, ranking) in enumerate(pairs)}
    if leave_one_out:
        del run["q0"]
    found = score(run, qrels, REFEREES)
    falling = {query: {tool: -float(rank) for rank, tool in enumerate(tools)} for query, tools in run.items()}
    expected = dict.fromkeys(((query, name) for query in qrels for name in REFEREES), 0.0)
    names = {measure: name for name, measure in REFEREES.items()}
    for line in ir_measures.iter_calc(list(REFEREES.values()), qrels, falling):
        expected[line.query_id, names[line.measure]] = line.value
    for name, values in found.values.items():
        for query, value in zip(found.ids, values, strict=True):
            assert value == pytest.approx(expected[query, name], abs=1e-9), (query, name)


@settings(deadline=None, max_examples=80)
@given(GRADES, RANKINGS, st.integers(1, 15))
def test_comp_says_whether_the_whole_gold_set_is_above_the_cut(
    grades: dict[str, int], ranking: list[str], k: int
) -> None:
    gold = {tool for tool, grade in grades.items() if grade > 0}
    found = score({"q": ranking}, {"q": grades}, [f"comp@{k}", "comp@|N|"]).means()
    assert found == {f"comp@{k}": gold <= set(ranking[:k]), "comp@|N|": gold <= set(ranking[: len(gold)])}


def test_a_query_with_more_gold_tools_than_the_cut_is_never_complete_and_its_ideal_is_cut() -> None:
    """All three places above the cut are gold, and two gold tools stand below: recall 3/5, NDCG 1, COMP 0."""
    gold = dict.fromkeys("abcde", 1.0)
    found = score({"q": list("abcde")}, {"q": gold}, ["comp@3", "comp@5", "comp@|N|", "recall@3", "ndcg@3"]).means()
    assert found == {"comp@3": 0.0, "comp@5": 1.0, "comp@|N|": 1.0, "recall@3": 0.6, "ndcg@3": pytest.approx(1.0)}


def test_worked_example_with_graded_gold() -> None:
    found = score({"q": ["x", "b", "a"]}, {"q": {"a": 2.0, "b": 1.0, "c": 0.0}}, ["ndcg@3", "ndcg@|N|", "mrr"])
    ideal = 2 + 1 / math.log2(3)
    assert found.means() == pytest.approx(
        {"ndcg@3": (1 / math.log2(3) + 1) / ideal, "ndcg@|N|": 1 / math.log2(3) / ideal, "mrr": 0.5}
    )


def test_a_missing_query_counts_zero_and_values_follow_sorted_ids() -> None:
    found = score({"b": ["t"]}, {"c": {"t": 1}, "a": {"t": 1}, "b": {"t": 1}}, ["recall@1", "mrr"])
    assert found.ids == ("a", "b", "c")
    assert found.values["recall@1"].tolist() == found.values["mrr"].tolist() == [0, 1, 0]
    assert found.means() == {"recall@1": pytest.approx(1 / 3), "mrr": pytest.approx(1 / 3)}


def test_scoring_twice_gives_the_same_numbers_and_leaves_the_input_alone() -> None:
    run, qrels = {"q": ["a", "b"]}, {"q": {"b": 1.0, "z": 0.0}}
    assert score(run, qrels).means() == score(run, qrels).means()
    assert (run, qrels) == ({"q": ["a", "b"]}, {"q": {"b": 1.0, "z": 0.0}})
    assert tuple(score(run, qrels).values) == DEFAULT_MEASURES


@pytest.mark.parametrize("name", [*DEFAULT_MEASURES, "precision@5", "precision@|N|", "ndcg@|N|"])
def test_a_measure_parses_to_a_value_that_is_its_own_name(name: str) -> None:
    measure = Measure(name)
    assert measure == name == str(measure) and {name: 1}[measure] == 1
    assert (measure.k is None) == (name == "mrr" or name.endswith("|N|"))
    assert measure.kind == name.split("@")[0]


@pytest.mark.parametrize("name", ["recall", "recall@0", "recall@05", "mrr@5", "Recall@5", "recall@-1", "", "recall@5 "])
def test_what_is_no_measure_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected mrr, or recall, ndcg"):
        Measure(name)


@pytest.mark.parametrize(
    ("run", "qrels", "said"),
    [
        ({"q": ["a", "b", "a"]}, {"q": {"a": 1}}, "found 'a' again"),
        ({"q": [], "r": []}, {"q": {"a": 1}}, "found 1 others, such as 'r'"),
        ({}, {"q": {"a": 0}}, "above 0 for query 'q', found none"),
        ({}, {}, "empty qrels"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    run: dict[str, list[str]], qrels: dict[str, dict[str, float]], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        score(run, qrels)


def test_slices_count_and_average_each_part_in_natural_order() -> None:
    qrels = {query: {"t": 1.0} for query in "abcd"}
    found = score({"a": ["t"], "b": ["t"]}, qrels, ["recall@1"])
    table = slices(found, {"gold": {"a": "10", "b": "2", "c": "2", "elsewhere": "3"}})
    assert table == {"gold": {"2": {"n": 2, "recall@1": 0.5}, "10": {"n": 1, "recall@1": 1.0}}}
    assert list(table["gold"]) == ["2", "10"]


# --- how sure ---------------------------------------------------------------------------------------------------------


def test_the_interval_is_that_of_normal_theory_for_many_values() -> None:
    values = np.random.default_rng(5).normal(0.4, 0.2, 900)
    low, high = bootstrap_ci(values, seed=1)
    half = 1.96 * values.std() / 30
    assert (low, high) == (
        pytest.approx(values.mean() - half, abs=6e-4),
        pytest.approx(values.mean() + half, abs=6e-4),
    )


def test_intervals_repeat_with_their_seed_and_narrow_with_their_level() -> None:
    values = np.random.default_rng(2).random(50)
    assert bootstrap_ci(values, 3).tolist() == bootstrap_ci(values, 3).tolist() != bootstrap_ci(values, 4).tolist()
    (low, high), (inner_low, inner_high) = bootstrap_ci(values, 3), bootstrap_ci(values, 3, level=0.5)
    assert low < inner_low < values.mean() < inner_high < high


def test_measures_share_their_resamples_and_equal_values_have_no_width() -> None:
    values = np.random.default_rng(2).random(40)
    both = bootstrap_ci(np.stack([values, values + 1, np.ones(40)]), seed=7)
    assert both[0] == pytest.approx(bootstrap_ci(values, seed=7))
    assert both[1] == pytest.approx(both[0] + 1)
    assert both[2] == pytest.approx([1, 1])


def test_resamples_of_many_queries_do_not_depend_on_how_they_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(2).random(40)
    whole = bootstrap_ci(values, seed=7, n=500)
    monkeypatch.setattr("toolscout.metrics.MAX_CHUNK_VALUES", 40 * 7)
    assert bootstrap_ci(values, seed=7, n=500) == pytest.approx(whole)


def test_every_mean_lies_in_its_interval() -> None:
    rng = random.Random(1)
    qrels = {f"q{number}": dict.fromkeys(rng.sample(TOOLS, 2), 1.0) for number in range(60)}
    found = score({query: rng.sample(TOOLS, 8) for query in qrels}, qrels)
    intervals = found.ci95()
    assert all(intervals[name][0] <= mean <= intervals[name][1] for name, mean in found.means().items())
    assert list(intervals) == list(DEFAULT_MEASURES)


def test_the_paired_test_is_the_exact_sign_flip_test_up_to_chance() -> None:
    a = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.9, 1.0, 0.2])
    b = np.array([0.5, 0.7, 0.4, 0.6, 0.3, 0.8, 0.6, 0.3])
    signs = 1 - 2 * ((np.arange(256)[:, None] >> np.arange(8)) & 1)
    exact = float((np.abs(signs @ (a - b)) >= abs((a - b).sum()) - 1e-9).mean())
    found = paired_test(a, b, seed=0)
    assert found.p == pytest.approx(exact, abs=0.006)
    assert (found.wins, found.ties, found.losses) == (6, 1, 1)
    assert found.difference == pytest.approx((a - b).mean())
    assert found.low < found.difference < found.high
    assert paired_test(a, b, seed=0) == found
    assert paired_test(b, a, seed=0).p == pytest.approx(exact, abs=0.006)


def test_the_first_system_wins_where_it_is_better() -> None:
    found = paired_test([1.0, 1.0, 0.5, 0.0], [0.0, 0.5, 0.5, 0.25])
    assert found.difference == pytest.approx(0.3125) and (found.wins, found.ties, found.losses) == (2, 1, 1)
    assert found.low < found.difference < found.high


def test_equal_systems_have_p_one_and_clearly_different_ones_almost_none() -> None:
    values = np.random.default_rng(0).random(200)
    same = paired_test(values, values + 1e-15)
    assert (same.p, same.wins, same.ties, same.losses) == (1.0, 0, 200, 0)
    assert paired_test(values, values - 0.1, n=999).p == pytest.approx(0.001)


def test_p_values_under_the_null_hypothesis_are_spread_evenly() -> None:
    rng = np.random.default_rng(11)
    found = [paired_test(rng.random(30), rng.random(30), seed=seed, n=300).p for seed in range(300)]
    assert np.mean(np.array(found) < 0.05) < 0.1
    assert 0.4 < np.mean(found) < 0.6


def test_values_of_other_queries_cannot_be_compared() -> None:
    for left, right in (([1.0], [1.0, 2.0]), ([], []), ([[1.0]], [[1.0]])):
        with pytest.raises(ValueError, match="equally long"):
            paired_test(left, right)
    with pytest.raises(ValueError, match="at least one value"):
        bootstrap_ci([])


def test_what_only_the_laboratory_measures_is_found_there_under_its_old_name() -> None:
    pytest.importorskip("toolscout_lab")
    with pytest.warns(DeprecationWarning, match="import holm from toolscout_lab.statistics"):
        assert metrics.holm([0.5]) == [0.5]  # type: ignore[operator]
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        metrics.nonsense  # noqa: B018
