"""Statistics of the laboratory: the best of several trials, corrected p-values, and how well a need is estimated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Floats
from toolscout.metrics import EQUAL_TOLERANCE, split_chunks

__all__ = ["Best", "best_of", "detection", "detection_ci", "detection_curves", "holm"]

ECE_BINS: Final = 15


class Best(NamedTuple):
    """The best of several trials: its index, its mean difference from the baseline, and the p-value."""

    trial: int
    difference: float
    p: float


def best_of(trials: Sequence[npt.ArrayLike], plain: npt.ArrayLike, *, seed: int = 0, n: int = 10_000) -> Best:
    """Find the trial with the highest mean and test it against `plain`, corrected for the number of trials.

    The signs of the queries' differences are flipped for all trials together, and the highest mean counts each time
    (the maximum statistic of Westfall and Young, 1993). Trying more settings therefore makes no result more
    significant. The test is one-sided.

    Args:
        trials: (q,) values of each trial.
        plain: (q,) values of the baseline, on the same queries in the same order.
        seed: equal seeds give equal p-values.
        n: number of random flips.

    Raises:
        ValueError: if there is no trial, or they do not have one value each for the same queries.
    """
    rows, base = np.array([np.asarray(trial, dtype=float) for trial in trials]), np.asarray(plain, dtype=float)
    if rows.ndim != 2 or base.ndim != 1 or not base.size or rows.shape[1] != base.size:
        raise ValueError(f"expected equally long rows of values, found {rows.shape} and {base.shape}")
    differences = rows - base
    means = differences.mean(axis=1)
    trial, rng, extreme = int(means.argmax()), np.random.default_rng(seed), 0
    for count in split_chunks(n, base.size):
        flips = np.unpackbits(rng.integers(0, 256, (count, -(-base.size // 8)), dtype=np.uint8), axis=1)
        flipped = (1.0 - 2.0 * flips[:, : base.size]) @ differences.T / base.size
        extreme += int((flipped.max(axis=1) >= means[trial] - EQUAL_TOLERANCE).sum())
    return Best(trial, float(means[trial]), (1 + extreme) / (1 + n))


def holm(pvalues: Sequence[float]) -> list[float]:
    """Correct the p-values of one family by Holm's step-down rule, in the given order."""
    adjusted = [0.0] * len(pvalues)
    highest = 0.0
    for step, place in enumerate(sorted(range(len(pvalues)), key=lambda place: pvalues[place])):
        highest = max(highest, min(1.0, (len(pvalues) - step) * pvalues[place]))
        adjusted[place] = highest
    return adjusted


# --- detection: does a query need a tool? -------------------------------------------------------------------


def detection(labels: npt.ArrayLike, needs: npt.ArrayLike, threshold: float = 0.5) -> dict[str, float]:
    """Measure how well `need` separates queries that need a tool from those that do not.

    A query is accepted if its need is at least `threshold`. Keys: `detect_accuracy`, `detect_precision`,
    `detect_recall`, `detect_f1` (of accepting), `detect_auroc` (equal needs count one half), `detect_far` (share of
    the no-tool queries accepted), `detect_frr` (share of the tool queries rejected) and `detect_ece` (calibration
    error over 15 bins of equal mass, each class with half of the mass; equal needs share a bin).

    Args:
        labels: (n,) 1 if a tool is needed, else 0.
        needs: (n,) estimated probability that a tool is needed.
        threshold: see above.

    Raises:
        ValueError: for other labels, needs outside [0, 1], unequal lengths, or if one class is absent.
    """
    return _compute_detection(*_count_levels(labels, needs), threshold)


def detection_ci(
    labels: npt.ArrayLike, needs: npt.ArrayLike, threshold: float = 0.5, *, seed: int = 0, n: int = 1_000
) -> dict[str, list[float]]:
    """Compute the 95 % percentile bootstrap `[low, high]` of every figure of `detection`, within each class.

    Raises:
        ValueError: as `detection`.
    """
    levels, tool, chat = _count_levels(labels, needs)
    rng = np.random.default_rng(seed)
    draws = [_compute_detection(levels, _resample(rng, tool), _resample(rng, chat), threshold) for _ in range(n)]
    return {name: np.quantile([draw[name] for draw in draws], [0.025, 0.975]).tolist() for name in draws[0]}


def detection_curves(labels: npt.ArrayLike, needs: npt.ArrayLike) -> dict[str, list[tuple[float, float]]]:
    """Compute the points of the ROC and reliability curves of `detection`.

    `roc`: (share of the no-tool queries accepted, share of the tool queries accepted) at every threshold, the strictest
    first; its area is `detect_auroc`. `reliability`: (mean need, share that needs a tool) of the bins of `detect_ece`,
    with half of the mass for each class.

    Raises:
        ValueError: as `detection`.
    """
    levels, tool, chat = _count_levels(labels, needs)
    roc = [(0.0, 0.0)]
    # From the highest need down, each level lets in its chats and its tool queries besides those of the levels above.
    for false, hits in zip(np.cumsum(chat[::-1]), np.cumsum(tool[::-1]), strict=True):
        roc.append((float(false / chat.sum()), float(hits / tool.sum())))
    mass, bins = _assign_bins(tool, chat)
    total, positive, need = (
        np.bincount(bins, weights=weights) for weights in (mass, tool / tool.sum() / 2, mass * levels)
    )
    reliability = [(float(need[b] / total[b]), float(positive[b] / total[b])) for b in np.flatnonzero(total)]
    return {"roc": roc, "reliability": reliability}


def _resample(rng: np.random.Generator, counts: Floats) -> Floats:
    total = counts.sum()
    return rng.multinomial(int(total), counts / total).astype(float)


def _count_levels(labels: npt.ArrayLike, needs: npt.ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Count the tool and no-tool queries at each distinct need, ascending."""
    truth, need = np.asarray(labels, dtype=float), np.asarray(needs, dtype=float)
    if truth.shape != need.shape or truth.ndim != 1:
        raise ValueError(f"expected one need per label, found shapes {need.shape} and {truth.shape}")
    if not (np.isin(truth, (0, 1)).all() and 0 < truth.sum() < truth.size):
        raise ValueError(
            "expected labels 1 (needs a tool) and 0, each at least once, found others: give queries of both kinds"
        )
    if not ((need >= 0) & (need <= 1)).all():
        raise ValueError("expected needs between 0 and 1, found others: give probabilities")
    levels, places = np.unique(need, return_inverse=True)  # places: the level of each query
    tool = np.bincount(places, weights=truth).astype(float)
    return levels, tool, np.bincount(places, weights=1.0 - truth).astype(float)


def _compute_detection(levels: Floats, tool: Floats, chat: Floats, threshold: float) -> dict[str, float]:
    """Compute the figures of `detection` from the counts of `_count_levels`: tool and no-tool queries at each need."""
    n_tool, n_chat = tool.sum(), chat.sum()
    is_accepted = levels >= threshold
    true_accepts, false_accepts = tool[is_accepted].sum(), chat[is_accepted].sum()
    chat_below = np.cumsum(chat) - chat
    mass, bins = _assign_bins(tool, chat)
    gaps = np.bincount(bins, weights=tool / n_tool / 2 - mass * levels)
    figures = {
        "accuracy": (true_accepts + n_chat - false_accepts) / (n_tool + n_chat),
        "precision": true_accepts / (true_accepts + false_accepts) if true_accepts else 0.0,
        "recall": true_accepts / n_tool,
        "f1": 2 * true_accepts / (n_tool + true_accepts + false_accepts),
        "auroc": float(tool @ (chat_below + chat / 2)) / (n_tool * n_chat),
        "far": false_accepts / n_chat,
        "frr": 1.0 - true_accepts / n_tool,
        "ece": np.abs(gaps).sum(),
    }
    return {f"detect_{name}": float(value) for name, value in figures.items()}


def _assign_bins(tool: Floats, chat: Floats) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Compute the mass of each level, with half of the total for each class, and assign it to bins of equal mass."""
    mass = tool / tool.sum() / 2 + chat / chat.sum() / 2
    return mass, np.minimum(((np.cumsum(mass) - mass / 2) * ECE_BINS).astype(int), ECE_BINS - 1)
