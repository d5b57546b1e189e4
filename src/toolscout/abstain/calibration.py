"""Logits that mean what they say, and how low a probability must be before a request is turned away."""

from __future__ import annotations

from typing import Final

import numpy as np

from toolscout.arrays import Floats
from toolscout.search.pipeline import Floors

__all__ = ["BUDGETS", "floors", "platt"]

BUDGETS: Final = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
FLOOR_TOLERANCE: Final = 1e-9
MAX_PLATT_STEPS: Final = 100


def platt(yes: Floats, no: Floats) -> dict[str, float]:
    """Slope and shift that make logits probabilities on held-out examples of both kinds, each with half of the mass.

    Platt's sigmoid by Newton's method (Platt 1999), with his smoothed targets.

    Args:
        yes: logits of what is.
        no: of what is not.
    """
    logits = np.concatenate([yes, no])
    scale = float(logits.std()) or 1.0
    targets = np.repeat([(len(yes) + 1) / (len(yes) + 2), 1 / (len(no) + 2)], [len(yes), len(no)])
    mass = np.repeat([0.5 / len(yes), 0.5 / len(no)], [len(yes), len(no)])
    columns = np.stack([logits / scale, np.ones_like(logits)], axis=1)

    def cost(found: Floats) -> float:
        sums = columns @ found
        return float(mass @ (np.logaddexp(0, sums) - targets * sums))

    found: Floats = np.zeros(2)
    for _ in range(MAX_PLATT_STEPS):
        shares = 1 / (1 + np.exp(-np.clip(columns @ found, -40, 40)))
        slope = columns.T @ (mass * (shares - targets))
        bend = columns.T @ (columns * (mass * shares * (1 - shares))[:, None]) + 1e-12 * np.eye(2)
        step = np.linalg.solve(bend, slope)
        while cost(found - step) > cost(found) + FLOOR_TOLERANCE and np.abs(step).max() > FLOOR_TOLERANCE:
            step = step / 2  # confident logits bend so little that a whole step would overshoot
        found = found - step
        if np.abs(step).max() < FLOOR_TOLERANCE:
            break
    return {"slope": float(found[0]) / scale, "shift": float(found[1])}


def floors(need: Floats, fit: Floats | None = None, mass: Floats | None = None) -> Floors:
    """The floors that turn away at most so large a share of requests as each budget says.

    A request is turned away if its need or its fit is low. Both floors stand at the same share of all requests, and
    that share is the largest that keeps the budget: where the same requests are low in both, each may be higher. What
    is promised is the share of *later* requests of the same kind: as in split conformal prediction (Vovk et al. 2005)
    the requests that a floor stands at count as lost, of n + 1. With too few requests nobody is turned away.

    Args:
        need: (n,) probabilities, of requests that need a tool, and have one.
        fit: (n,) of the same; None: only the need is judged.
        mass: (n,) how much each counts; None: all alike.
    """
    held = np.full(len(need), 1 / len(need)) if mass is None else mass / mass.sum()
    count = 1 / float((held**2).sum())
    values = (need,) if fit is None else (need, fit)
    below = [_below(each, held) for each in values]
    least = np.min(below, axis=0)
    order = np.argsort(least, kind="stable")
    lost = (np.cumsum(held[order]) + (len(values) - 1) * held[order]) * count / (count + 1)
    found: list[list[float]] = [[] for _ in values]
    for budget in BUDGETS:
        inside = order[lost <= budget + FLOOR_TOLERANCE]
        for column, each, share in zip(found, values, below, strict=True):
            floor = each[share >= least[inside].max() - FLOOR_TOLERANCE].min() if len(inside) else 0.0
            column.append(float(np.floor(floor * 1e6) / 1e6))
    return Floors(BUDGETS, *map(tuple, found))


def _below(values: Floats, mass: Floats) -> Floats:
    """The share of the mass that lies strictly below each value."""
    _, places = np.unique(values, return_inverse=True)
    total = np.bincount(places, weights=mass)
    return np.asarray((np.cumsum(total) - total)[places])
