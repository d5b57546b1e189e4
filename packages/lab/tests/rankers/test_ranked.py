from __future__ import annotations

import numpy as np
import pytest

from toolscout.metrics import PerQuery
from toolscout_lab.rankers.shared.reranking import choose_blend, exceeds_noise, keep_places


def found(*values: float) -> PerQuery:
    row = np.array(values)
    return PerQuery(ids=tuple(map(str, range(len(row)))), values={"ndcg@5": row, "comp@5": row})


def test_the_first_stage_is_trusted_as_far_as_dev_does_not_clearly_say_otherwise() -> None:
    best, near, far = found(1, 1, 1, 1, 0, 1), found(1, 1, 1, 0, 1, 0), found(0, 0, 0, 0, 0, 1)
    assert choose_blend({0.0: best, 1.0: near, 2.0: far}) == 1.0
    assert choose_blend({0.0: far, 1.0: best, 2.0: near}) == 2.0
    assert choose_blend({0.0: best, 4.0: far}) == 0.0


def test_a_loss_that_is_the_same_for_every_query_is_clear() -> None:
    assert choose_blend({0.0: found(0.6, 0.7, 0.8), 8.0: found(0.5, 0.6, 0.7)}) == 0.0


def test_equal_figures_and_a_single_query() -> None:
    assert choose_blend({0.0: found(0.5, 0.5), 8.0: found(0.5, 0.5)}) == 8.0
    assert choose_blend({0.0: found(1.0), 8.0: found(0.0)}) == 8.0, "one query shows nothing"
    assert choose_blend({0.0: found(1.0, 1.0), 8.0: found(0.0, 0.0)}) == 0.0


def test_a_gain_is_clear_above_one_standard_error() -> None:
    assert exceeds_noise(np.array([0.1, 0.1, 0.1])) and exceeds_noise(np.array([1.0, 0.0, 1.0, 0.0, 1.0]))
    assert not exceeds_noise(np.array([1.0, -1.0, 1.0])) and not exceeds_noise(np.array([0.0, 0.0]))
    assert not exceeds_noise(np.array([1.0])) and not exceeds_noise(np.array([]))


def test_what_nothing_was_learned_of_keeps_its_place_or_gives_way_by_one_if_it_is_not_the_first() -> None:
    learned = np.array([False, True, True, False, True, False])
    totals = np.array([-9.0, 1.0, 3.0, 99.0, 2.0, -np.inf])
    assert keep_places(totals, learned).tolist() == [4.0, 1.0, 3.0, 1.5, 2.0, 0.0]  # behind none, two, all three
    assert keep_places(totals, learned, True).tolist() == [4.0, 1.0, 3.0, 0.0, 2.0, -1.0]  # two and one more
    learned = np.array([True, False, True, False, True, True])
    totals = np.array([4.0, 0.0, 3.0, 0.0, 2.0, 1.0])
    assert keep_places(totals, learned).tolist() == [4.0, 3.5, 3.0, 2.5, 2.0, 1.0]
    assert keep_places(totals, learned, True).tolist() == [4.0, 3.5, 3.0, 1.5, 2.0, 1.0]


@pytest.mark.parametrize("give_way", [False, True])
@pytest.mark.parametrize("seed", range(50))
def test_places_are_kept_and_the_learned_stand_by_their_scores(seed: int, give_way: bool) -> None:
    random = np.random.default_rng(seed)
    totals, learned = random.normal(size=12), random.random(12) < random.random()
    order = np.argsort(-keep_places(totals, learned, give_way), kind="stable").tolist()
    ordered = [tool for tool in order if learned[tool]]
    assert ordered == sorted(ordered, key=lambda tool: -totals[tool])
    if not give_way:
        assert [tool in ordered for tool in order] == learned.tolist()
    new = [tool for tool in order if not learned[tool]]
    assert new == sorted(new)
    for number, tool in enumerate(new):
        before = sum(bool(learned[other]) for other in order[: order.index(tool)])
        assert before == min(learned[:tool].sum() + (give_way and number > 0), learned.sum())


def test_all_or_nothing_learned() -> None:
    totals = np.array([0.0, 2.0, 1.0])
    assert keep_places(totals, np.ones(3, dtype=np.bool_)).tolist() == totals.tolist()
    assert np.argsort(-keep_places(totals, np.zeros(3, dtype=np.bool_))).tolist() == [0, 1, 2]
