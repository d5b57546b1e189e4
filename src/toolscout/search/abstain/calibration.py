"""Calibrates logits to probabilities, and sets the thresholds (floors) below which a request is turned away."""

from __future__ import annotations

from typing import Final

import numpy as np

from toolscout.arrays import Array, Floats
from toolscout.search.pipeline import Floors

__all__ = ["BUDGETS", "floors", "platt", "sigmoid"]

BUDGETS: Final = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)  # false-abstention budgets that have thresholds
FLOOR_TOLERANCE: Final = 1e-9  # smaller differences count as none
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
    scale = float(logits.std()) or 1.0  # the fit reads logits of deviation 1
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
        while compute_loss(weights - step) > loss + FLOOR_TOLERANCE and np.abs(step).max() > FLOOR_TOLERANCE:
            step = step / 2  # confident logits have so little curvature that a full step would overshoot
        weights = weights - step
        if np.abs(step).max() < FLOOR_TOLERANCE:
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
    shares = np.full(len(need), 1 / len(need)) if mass is None else mass / mass.sum()
    effective_count = 1 / float((shares**2).sum())  # requests of equal weight with the same variance (Kish, 1965)
    values = (need,) if fit is None else (need, fit)
    # Each value becomes its quantile (the share of requests with a lower value), divided by its part of the budget.
    # While both floors rise together, a request is turned away as soon as they reach the lower of its two.
    parts = (need_share, 1 - need_share)
    quantiles = [_sum_below(column, shares) / part for column, part in zip(values, parts, strict=False)]
    lowest = np.min(quantiles, axis=0)
    order = np.argsort(lowest, kind="stable")
    # The share that is turned away if each request up to this one is at or below a floor. With two floors, another
    # request can be exactly at the second, so one more counts.
    lost = (np.cumsum(shares[order]) + (len(values) - 1) * shares[order]) * effective_count / (effective_count + 1)
    floors_by_column: list[list[float]] = [[] for _ in values]
    for budget in BUDGETS:
        affordable = order[lost <= budget + FLOOR_TOLERANCE]  # requests that may be turned away
        for column_floors, column, quantile in zip(floors_by_column, values, quantiles, strict=True):
            floor = column[quantile >= lowest[affordable].max() - FLOOR_TOLERANCE].min() if len(affordable) else 0.0
            # Six digits are enough, rounded down: a floor that is too high would turn away more than the budget.
            column_floors.append(float(np.floor(floor * 1e6) / 1e6))
    return Floors(BUDGETS, *map(tuple, floors_by_column))


def _sum_below(values: Floats, mass: Floats) -> Floats:
    """Return for each value the sum of the masses of all smaller values, (n,)."""
    _, ranks = np.unique(values, return_inverse=True)  # equal values have one rank
    mass_at_rank = np.bincount(ranks, weights=mass)
    return np.asarray((np.cumsum(mass_at_rank) - mass_at_rank)[ranks])
