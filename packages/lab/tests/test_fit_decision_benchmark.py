"""benchmarks/fit_decision.py: the floors of the decision that ships keep their budget in a domain that was not seen."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolscout_lab.training.decision import QueryGroup, fit_decision

ROOT = Path(__file__).parents[3]
SEEN, UNSEEN, COUNT, BUDGET = "abcdef", "uvwxyz", 800, 0.05
FITS = {"right": True, "near": False, "chat": None}


@pytest.fixture(scope="module")
def module() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import fit_decision
    finally:
        sys.path.pop(0)
    return fit_decision


def draw(names: int, seed: int, groups: str) -> dict[tuple[str, str, str], QueryGroup]:
    """Requests that need a tool say so by what only their group has, and a little by what all have."""
    rng, found = np.random.default_rng(seed), {}
    for group in groups:
        own = (SEEN + UNSEEN).index(group)
        for what, fits in FITS.items():
            vectors = rng.normal(size=(COUNT, 16)).astype(np.float32)
            vectors[:, 0] += 1.0 if what != "chat" else -1.0
            vectors[:, 2 + own] += 3.0 * (what != "chat")
            rows = rng.normal(size=(COUNT, names)) + 2.0 * bool(fits)
            texts = [f"{group} {what} {seed} {number}" for number in range(COUNT)]
            found[group, "whole", what] = QueryGroup(group, rows, {"static": vectors}, what != "chat", fits, texts)
    return found


def test_floors_keep_the_budget_in_groups_that_nothing_was_fitted_on(module: Any) -> None:
    count = len(module.NAMES)
    asked = {"train": draw(count, 0, SEEN), "dev": draw(count, 1, SEEN)}
    crossed = module.Fits(asked).fit({})
    plain = fit_decision(module.NAMES, *(list(part.values()) for part in asked.values()), crossed.encoders, {})

    def lose(decision: Any) -> float:
        lost = []
        for key, group in draw(count, 2, UNSEEN).items():
            if key[2] == "right":
                need, fit = module.estimate(decision, group)
                lost.append(((need < decision.floors.need_at(BUDGET)) | (fit < decision.floors.fit_at(BUDGET))).mean())
        return float(np.mean(lost))

    assert 0.8 * BUDGET < lose(crossed) < 1.5 * BUDGET
    assert lose(plain) > 1.8 * BUDGET, "floors from groups that were fitted on do not hold"


def test_a_dataset_left_out_takes_its_requests_out_of_the_others(module: Any) -> None:
    asked = draw(3, 0, SEEN)
    stray = next(iter(asked["a", "whole", "right"].texts))
    asked["b", "whole", "foreign"] = QueryGroup(
        "b", np.zeros((2, 3)), {"static": np.zeros((2, 10))}, True, False, [stray, "of another"]
    )
    kept = module.leave_out(asked, "a", {stray})
    assert {key[0] for key in kept} == set("bcdef") and kept["b", "whole", "foreign"].texts == ["of another"]
