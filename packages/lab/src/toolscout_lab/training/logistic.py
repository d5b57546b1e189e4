"""Logistic regression with a ridge by Newton's method.

It uses no library, so that results are the same everywhere.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from toolscout.arrays import Array, Floats, Mask
from toolscout.search.abstain.calibration import sigmoid

__all__ = ["logistic"]

MAX_NEWTON_STEPS: Final = 30
NEWTON_TOLERANCE: Final = 1e-8


def logistic(rows: Array, labels: Mask, ridge: float, mass: Array | None = None) -> Floats:
    """Fit the weights, `(d + 1,)`, constant last, that minimise the mean log-loss plus `ridge / 2 · |w|²`.

    Args:
        rows: (n, d), n at least 1.
        labels: (n,): the class of each row.
        ridge: above 0. The constant gets a thousandth of it, so that a single class gives an answer too.
        mass: (n,): weight of each row; None: equal weights.
    """
    row_mass = np.full(len(rows), 1 / len(rows)) if mass is None else np.asarray(mass, dtype=np.float64) / np.sum(mass)
    columns = np.column_stack([np.asarray(rows, dtype=np.float64), np.ones(len(rows))])
    penalty = np.full(columns.shape[1], ridge)
    penalty[-1] *= 1e-3
    weights = np.zeros(columns.shape[1])
    for _ in range(MAX_NEWTON_STEPS):
        probabilities = sigmoid(columns @ weights)
        gradient = columns.T @ (row_mass * (probabilities - labels)) + penalty * weights
        hessian = (columns * (row_mass * probabilities * (1 - probabilities))[:, None]).T @ columns + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        weights -= step
        if np.abs(step).max() < NEWTON_TOLERANCE:
            break
    return weights
