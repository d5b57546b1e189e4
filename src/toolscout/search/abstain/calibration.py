"""Calibrates logits to probabilities, and sets the thresholds (floors) below which a request is turned away."""

from __future__ import annotations

from typing import Final

import numpy as np

from toolscout.arrays import Array, Floats
from toolscout.search.pipeline import Floors

__all__ = ["BUDGETS", "floors", "platt", "sigmoid"]

BUDGETS: Final = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)  # false-abstention budgets that have thresholds
MIN_DIFFERENCE: Final = 1e-9  # smaller differences count as none
MAX_PLATT_STEPS: Final = 100


def sigmoid(values: Array) -> Floats:
    """Return `1 / (1 + e^-x)` for an array of any shape."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * np.asarray(values, dtype=np.float64))))


def platt(yes: Floats, no: Floats) -> dict[str, float]:
    """Fit the `slope` and `shift` with which `sigmoid(slope · logit + shift)` is a probability.

    Platt's sigmoid (Platt 1999) with his smoothed targets, by Newton's method, on held-out examples. Both classes have
    equal mass, however many examples they have.

    Args:
        yes: logits of positive examples.
        no: logits of negative examples.
    """
    logits = np.concatenate([yes, no])
    scale = float(logits.std()) or 1.0  # the fit divides the logits by it, which makes their deviation 1
    targets = np.repeat([(len(yes) + 1) / (len(yes) + 2), 1 / (len(no) + 2)], [len(yes), len(no)])
    mass = np.repeat([0.5 / len(yes), 0.5 / len(no)], [len(yes), len(no)])
    columns = np.stack([logits / scale, np.ones_like(logits)], axis=1)

    def compute_loss(weights: Floats) -> float:
        """Return the cross-entropy."""
        sums = columns @ weights
        return float(mass @ (np.logaddexp(0, sums) - targets * sums))

    weights: Floats = np.zeros(2)  # slope (of the scaled logits) and shift
    for _ in range(MAX_PLATT_STEPS):
        probabilities = 1 / (1 + np.exp(-np.clip(columns @ weights, -40, 40)))
        gradient = columns.T @ (mass * (probabilities - targets))
        curvature = columns.T @ (columns * (mass * probabilities * (1 - probabilities))[:, None])
        step = np.linalg.solve(curvature + 1e-12 * np.eye(2), gradient)  # the addend keeps the matrix invertible
        loss = compute_loss(weights)
        while compute_loss(weights - step) > loss + MIN_DIFFERENCE and np.abs(step).max() > MIN_DIFFERENCE:
            step = step / 2  # confident logits have so little curvature that a full step would overshoot
        weights = weights - step
        if np.abs(step).max() < MIN_DIFFERENCE:
            break
    slope, shift = weights.tolist()
    return {"slope": slope / scale, "shift": shift}


def floors(need: Floats, fit: Floats | None = None, mass: Floats | None = None, need_share: float = 0.5) -> Floors:
    """Set the thresholds (floors) that turn away at most the share of requests that each budget allows.

    A request is turned away if its need or its fit is below a floor. The floors are the largest quantiles of these
    probabilities that keep the budget. The quantile of the need is to the quantile of the fit as `need_share` is to
    1 - `need_share`. If the same requests are low in both, each floor may be higher. The promise holds for *later*
    requests of the same kind: as in split conformal prediction (Vovk et al. 2005), the requests exactly at a floor
    count as turned away, out of n + 1. With too few requests, nobody is turned away.

    Args:
        need: (n,) probabilities that a tool is needed, of requests that need a tool and have one.
        fit: (n,) probabilities that a tool fits, of the same requests; None: only the need counts.
        mass: (n,) weight of each request; None: equal weights.
        need_share: between 0 and 1, both excluded; 0.5: both floors are at the same quantile.
    """
    weights = np.full(len(need), 1 / len(need)) if mass is None else mass / mass.sum()
    effective_count = 1 / float((weights**2).sum())  # requests of equal weight with the same variance (Kish, 1965)
    columns = (need,) if fit is None else (need, fit)
    # Both floors rise from 0, each at the speed of its share of the budget. A floor reaches a request at the time
    # quantile / share, where the quantile is the share of requests with a lower probability. The first floor that
    # reaches a request turns it away.
    budget_shares = (need_share, 1 - need_share)
    times = [_sum_below(column, weights) / share for column, share in zip(columns, budget_shares, strict=False)]
    first_times = np.min(times, axis=0)
    order = np.argsort(first_times, kind="stable")
    # The share of requests that are lost if the floors stop at the time of this one. With two floors, another request
    # can be exactly at the second, so one more counts.
    lost = (np.cumsum(weights[order]) + (len(columns) - 1) * weights[order]) * effective_count / (effective_count + 1)
    floors_by_column: list[list[float]] = [[] for _ in columns]
    for budget in BUDGETS:
        affordable = first_times[order[lost <= budget + MIN_DIFFERENCE]]  # times at which the budget still suffices
        for column_floors, column, column_times in zip(floors_by_column, columns, times, strict=True):
            floor = column[column_times >= affordable.max() - MIN_DIFFERENCE].min() if len(affordable) else 0.0
            # Six digits are enough, rounded down: a floor that is too high would turn away more than the budget.
            column_floors.append(float(np.floor(floor * 1e6) / 1e6))
    return Floors(BUDGETS, *map(tuple, floors_by_column))


def _sum_below(values: Floats, mass: Floats) -> Floats:
    """Return for each value the sum of the masses of all smaller values, (n,)."""
    _, ranks = np.unique(values, return_inverse=True)  # equal values have one rank
    mass_at_rank = np.bincount(ranks, weights=mass)
    return np.asarray((np.cumsum(mass_at_rank) - mass_at_rank)[ranks])
