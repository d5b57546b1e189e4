"""Logistic regression with a ridge, by Newton's steps: small enough to need no library, and the same everywhere."""

from __future__ import annotations

from typing import Final

import numpy as np

from toolscout.arrays import Array, Floats, Mask

__all__ = ["logistic", "sigmoid"]

MAX_NEWTON_STEPS: Final = 30
NEWTON_TOLERANCE: Final = 1e-8


def sigmoid(values: Array) -> Floats:
    """`1 / (1 + e^-x)`, of any shape."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * np.asarray(values, dtype=np.float64))))


def logistic(rows: Array, labels: Mask, ridge: float, mass: Array | None = None) -> Floats:
    """The weights, `(d + 1,)`, the last of them the constant: of the mean log-loss and `ridge / 2 · |w|²`.

    Args:
        rows: (n, d), n at least 1.
        labels: (n,): which of them are.
        ridge: above 0; it does not hold the constant, but for a thousandth, so that one class alone gives an answer.
        mass: (n,): how much each row counts; None: all alike.
    """
    share = np.full(len(rows), 1 / len(rows)) if mass is None else np.asarray(mass, dtype=np.float64) / np.sum(mass)
    given = np.column_stack([np.asarray(rows, dtype=np.float64), np.ones(len(rows))])
    held = np.full(given.shape[1], ridge)
    held[-1] *= 1e-3
    weights = np.zeros(given.shape[1])
    for _ in range(MAX_NEWTON_STEPS):
        shares = sigmoid(given @ weights)
        slope = given.T @ (share * (shares - labels)) + held * weights
        curve = (given * (share * shares * (1 - shares))[:, None]).T @ given + np.diag(held)
        step = np.linalg.solve(curve, slope)
        weights -= step
        if np.abs(step).max() < NEWTON_TOLERANCE:
            break
    return weights
