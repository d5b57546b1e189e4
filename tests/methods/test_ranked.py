from __future__ import annotations

import numpy as np

from toolscout.methods.ranked import clear, trust
from toolscout.metrics import PerQuery


def found(*values: float) -> PerQuery:
    row = np.array(values)
    return PerQuery(ids=tuple(map(str, range(len(row)))), values={"ndcg@5": row, "comp@5": row})


def test_the_first_stage_is_trusted_as_far_as_dev_does_not_clearly_say_otherwise() -> None:
    best, near, far = found(1, 1, 1, 1, 0, 1), found(1, 1, 1, 0, 1, 0), found(0, 0, 0, 0, 0, 1)
    assert trust({0.0: best, 1.0: near, 2.0: far}) == 1.0
    assert trust({0.0: far, 1.0: best, 2.0: near}) == 2.0
    assert trust({0.0: best, 4.0: far}) == 0.0


def test_a_loss_that_is_the_same_for_every_query_is_clear() -> None:
    assert trust({0.0: found(0.6, 0.7, 0.8), 8.0: found(0.5, 0.6, 0.7)}) == 0.0


def test_equal_figures_and_a_single_query() -> None:
    assert trust({0.0: found(0.5, 0.5), 8.0: found(0.5, 0.5)}) == 8.0
    assert trust({0.0: found(1.0), 8.0: found(0.0)}) == 8.0, "one query shows nothing"
    assert trust({0.0: found(1.0, 1.0), 8.0: found(0.0, 0.0)}) == 0.0


def test_a_gain_is_clear_above_one_standard_error() -> None:
    assert clear(np.array([0.1, 0.1, 0.1])) and clear(np.array([1.0, 0.0, 1.0, 0.0, 1.0]))
    assert not clear(np.array([1.0, -1.0, 1.0])) and not clear(np.array([0.0, 0.0]))
    assert not clear(np.array([1.0])) and not clear(np.array([]))
