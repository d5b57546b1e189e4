"""Evaluation: ranking measures per query, means, slices, confidence intervals, paired tests, detection."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Floats

__all__ = [
    "DEFAULT_MEASURES",
    "Best",
    "Measure",
    "Paired",
    "PerQuery",
    "best_of",
    "bootstrap_ci",
    "detection",
    "detection_ci",
    "holm",
    "paired_test",
    "percentiles",
    "score",
    "slices",
]

MEASURE_KINDS: Final = ("recall", "ndcg", "comp", "precision")
ECE_BINS: Final = 15
EQUAL_TOLERANCE: Final = 1e-12
MAX_CHUNK_VALUES: Final = 4_000_000


class Measure(str):
    """A ranking measure, represented by its name: `recall@5`, `ndcg@10`, `comp@|N|`, `precision@1`, `mrr`.

    `|N|` cuts each query's ranking at the number of its gold tools.

    Attributes:
        kind: recall, ndcg, comp, precision or mrr.
        k: the cut-off; None for `|N|`, and for mrr, which reads the whole ranking.
    """

    kind: str
    k: int | None

    def __new__(cls, name: str) -> Measure:
        """Parse `name`.

        Raises:
            ValueError: when there is no such measure.
        """
        match = re.fullmatch(rf"(mrr)|({'|'.join(MEASURE_KINDS)})@(\|N\||[1-9][0-9]{{0,8}})", name)
        if not match:
            kinds = ", ".join(MEASURE_KINDS)
            raise ValueError(f"expected mrr, or {kinds} with @K or @|N| (recall@5), found {name!r}")
        measure = super().__new__(cls, name)
        measure.kind = match[1] or match[2]
        measure.k = int(match[3]) if match[3] and match[3] != "|N|" else None
        return measure


DEFAULT_MEASURES: Final = tuple(
    Measure(name)
    for name in (
        *(f"recall@{k}" for k in (1, 3, 5, 7, 10, "|N|")),
        *(f"ndcg@{k}" for k in (1, 3, 5, 10)),
        *(f"comp@{k}" for k in (3, 5, 10, "|N|")),
        "mrr",
    )
)


@dataclasses.dataclass(frozen=True)
class PerQuery:
    """The result of `score`: for each measure one value per query.

    Attributes:
        ids: the scored queries, sorted.
        values: measure → (n,) float64, aligned to `ids`.
    """

    ids: tuple[str, ...]
    values: dict[str, Floats]

    def means(self) -> dict[str, float]:
        """Average every measure over all queries."""
        return {name: float(values.mean()) for name, values in self.values.items()}

    def ci95(self, seed: int = 0) -> dict[str, list[float]]:
        """Compute `[low, high]` of every mean by `bootstrap_ci`, with the same resamples for all measures."""
        intervals = bootstrap_ci(np.stack(list(self.values.values())), seed)
        return {name: [float(low), float(high)] for name, (low, high) in zip(self.values, intervals, strict=True)}


def score(
    run: Mapping[str, Sequence[str]],
    qrels: Mapping[str, Mapping[str, float]],
    measures: Iterable[str] = DEFAULT_MEASURES,
) -> PerQuery:
    """Score rankings against gold tools.

    A tool is gold if its score is above 0. NDCG uses linear gain (the score itself) and an ideal over the best
    min(K, |T_q|) scores, like trec_eval's `ndcg_cut`. Precision divides by K even when the ranking is shorter. We
    differ from trec_eval in two points. It sorts a run again by score and breaks ties by descending id; here the given
    order is the ranking. It counts a query without a gold tool as 0; here that is an error.

    Args:
        run: query id → tool ids, best first. A query that is absent, or whose ranking is empty, counts 0.
        qrels: query id → tool id → score; all these queries are scored.
        measures: names of measures.

    Raises:
        ValueError: for an unknown measure, a query of the run that the qrels lack, a tool that a ranking names
            twice, a query without a gold tool, or no query at all.
    """
    parsed = [Measure(name) for name in measures]
    ids = tuple(sorted(qrels))
    _check_run(run, qrels)
    gold = [{tool: grade for tool, grade in qrels[query].items() if grade > 0} for query in ids]
    rankings = [run.get(query, ()) for query in ids]
    _check_rankings(ids, gold, rankings)
    sizes = np.array([len(tools) for tools in gold])
    depth = max([int(sizes.max()), *(measure.k for measure in parsed if measure.k)])
    gains = _pad_rows(
        [[tools.get(tool, 0.0) for tool in ranking[:depth]] for tools, ranking in zip(gold, rankings, strict=True)]
    )
    ideal = _pad_rows([sorted(tools.values(), reverse=True) for tools in gold])
    values: dict[str, Floats] = {}
    for measure in parsed:
        if measure.kind == "mrr":
            values[str(measure)] = _compute_reciprocal_ranks(gold, rankings)
        else:
            values[str(measure)] = _measure_at(measure, gains, ideal, sizes)
    return PerQuery(ids, values)


def _check_run(run: Mapping[str, Sequence[str]], qrels: Mapping[str, Mapping[str, float]]) -> None:
    ids = tuple(sorted(qrels))
    if not ids:
        raise ValueError("expected at least one query to score, found empty qrels")
    unknown = sorted(run.keys() - qrels.keys())
    if unknown:
        raise ValueError(
            f"expected a run over the {len(ids)} queries of the qrels, found {len(unknown)} others, such as "
            f"{unknown[0]!r}: score it against the split it was made for"
        )


def _check_rankings(ids: Sequence[str], gold: Sequence[Mapping[str, float]], rankings: Sequence[Sequence[str]]) -> None:
    for query, tools, ranking in zip(ids, gold, rankings, strict=True):
        if not tools:
            raise ValueError(f"expected a tool with a score above 0 for query {query!r}, found none")
        if len(set(ranking)) < len(ranking):
            twice = next(tool for rank, tool in enumerate(ranking) if tool in ranking[:rank])
            raise ValueError(f"expected each tool once in the ranking of {query!r}, found {twice!r} again")


def _measure_at(measure: Measure, gains: Floats, ideal: Floats, sizes: npt.NDArray[np.int64]) -> Floats:
    """Compute a measure with a cut-off for each query.

    Args:
        measure: recall, precision, comp or ndcg.
        gains: (queries, depth) score of the tool at each rank; 0 for tools that are not gold.
        ideal: (queries, largest) scores of the gold tools, descending.
        sizes: (queries,) number of gold tools.
    """
    cutoffs = sizes if measure.k is None else np.full(len(sizes), measure.k)
    hits = (_mask_below(gains, cutoffs) > 0).sum(axis=1)
    if measure.kind == "recall":
        return np.asarray(hits / sizes)
    if measure.kind == "precision":
        return np.asarray(hits / cutoffs)
    if measure.kind == "comp":
        return np.asarray((hits == sizes).astype(float))
    return _dcg(gains, cutoffs) / _dcg(ideal, cutoffs)


def _pad_rows(rows: Sequence[Sequence[float]]) -> Floats:
    table = np.zeros((len(rows), max(map(len, rows))))
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return table


def _mask_below(gains: Floats, cutoffs: npt.NDArray[np.int64]) -> Floats:
    """Set the gains of all ranks below each query's cut-off to 0."""
    return np.where(np.arange(gains.shape[1]) < cutoffs[:, None], gains, 0.0)


def _dcg(gains: Floats, cutoffs: npt.NDArray[np.int64]) -> Floats:
    discounts = 1.0 / np.log2(np.arange(gains.shape[1]) + 2.0)
    return np.asarray(_mask_below(gains, cutoffs) @ discounts)


def _compute_reciprocal_ranks(gold: Sequence[Mapping[str, float]], rankings: Sequence[Sequence[str]]) -> Floats:
    """Compute 1 / rank of the first gold tool of each query, (queries,); 0 if the ranking has none."""
    return np.array(
        [
            next((1.0 / rank for rank, tool in enumerate(ranking, 1) if tool in tools), 0.0)
            for tools, ranking in zip(gold, rankings, strict=True)
        ]
    )


def slices(per_query: PerQuery, groups: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, dict[str, float]]]:
    """Average the measures over groups of queries.

    Args:
        per_query: the result of `score`.
        groups: name of the slice → query id → label; a query without a label is in no group of that slice.

    Returns:
        Name of the slice → label, in natural order (2 before 10) → `n` (queries) and every mean.
    """
    table: dict[str, dict[str, dict[str, float]]] = {}
    for name, labels in groups.items():
        rows: dict[str, list[int]] = defaultdict(list)
        for row, query in enumerate(per_query.ids):
            if query in labels:
                rows[labels[query]].append(row)
        table[name] = {
            label: {
                "n": len(rows[label]),
                **{measure: float(values[rows[label]].mean()) for measure, values in per_query.values.items()},
            }
            for label in sorted(rows, key=_natural_key)
        }
    return table


def _natural_key(label: str) -> str:
    return re.sub(r"\d+", lambda number: number[0].zfill(12), label)


# --- uncertainty --------------------------------------------------------------------------------------------


def bootstrap_ci(values: npt.ArrayLike, seed: int = 0, n: int = 10_000, level: float = 0.95) -> Floats:
    """Compute the percentile bootstrap interval of the mean.

    Args:
        values: (q,) one value per query, or (m, q) for m measures, which then share their resamples.
        seed: equal seeds give equal intervals.
        n: number of resamples.
        level: share of resampled means inside the interval.

    Returns:
        (2,) low and high, or (m, 2).

    Raises:
        ValueError: when there are no values.
    """
    table = np.asarray(values, dtype=float)
    size = table.shape[-1]
    if size == 0:
        raise ValueError("expected at least one value to resample, found none")
    rng = np.random.default_rng(seed)
    means = []
    for count in _chunks(n, size):
        sampled = rng.integers(0, size, (count, size)) + size * np.arange(count)[:, None]
        times = np.bincount(sampled.ravel(), minlength=count * size).reshape(count, size)
        means.append(times.astype(float) @ table.T / size)
    tail = (1.0 - level) / 2.0
    return np.moveaxis(np.quantile(np.concatenate(means), [tail, 1.0 - tail], axis=0), 0, -1)


def _chunks(n: int, size: int) -> list[int]:
    """Split `n` rows of `size` numbers into chunks that fit in memory."""
    rows = max(1, MAX_CHUNK_VALUES // size)
    return [rows] * (n // rows) + [n % rows] * (n % rows > 0)


@dataclasses.dataclass(frozen=True)
class Paired:
    """The comparison of two systems on the same queries.

    Attributes:
        difference: mean of a - b.
        low: lower end of its 95 % bootstrap interval.
        high: upper end.
        p: two-sided p-value of the sign-flip test.
        wins: queries where a is better.
        ties: queries where they are equal to within 1e-12.
        losses: queries where b is better.
    """

    difference: float
    low: float
    high: float
    p: float
    wins: int
    ties: int
    losses: int


def paired_test(a: npt.ArrayLike, b: npt.ArrayLike, seed: int = 0, n: int = 10_000) -> Paired:
    """Run a paired randomization test: flip the sign of each query's difference at random.

    The p-value is (1 + flips at least as extreme) / (1 + n) and therefore never 0.

    Args:
        a: (q,) values of one system.
        b: (q,) values of the other on the same queries in the same order.
        seed: equal seeds give equal p-values and intervals.
        n: number of random flips.

    Raises:
        ValueError: if the two do not have one value each for the same queries.
    """
    left, right = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if left.shape != right.shape or left.ndim != 1 or not left.size:
        raise ValueError(f"expected two equally long rows of values, found {left.shape} and {right.shape}")
    difference = left - right
    nonzero = difference[np.abs(difference) > EQUAL_TOLERANCE]
    rng = np.random.default_rng(seed)
    extreme = 0
    for count in _chunks(n, max(1, nonzero.size)):
        flips = np.unpackbits(rng.integers(0, 256, (count, -(-nonzero.size // 8)), dtype=np.uint8), axis=1)
        sums = nonzero.sum() - 2.0 * (flips[:, : nonzero.size].astype(float) @ nonzero)
        extreme += int((np.abs(sums) >= abs(nonzero.sum()) - EQUAL_TOLERANCE * max(1, nonzero.size)).sum())
    low, high = bootstrap_ci(difference, seed, n)
    wins = int((nonzero > 0).sum())
    return Paired(
        difference=float(difference.mean()),
        low=float(low),
        high=float(high),
        p=(1 + extreme) / (1 + n),
        wins=wins,
        ties=difference.size - nonzero.size,
        losses=nonzero.size - wins,
    )


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
    for count in _chunks(n, base.size):
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
    levels, places = np.unique(need, return_inverse=True)
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


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """Return `p50` and `p95` of at least one time, in its own unit, to three decimals."""
    p95 = statistics.quantiles(times, n=20)[-1] if len(times) > 1 else times[0]
    return {"p50": round(statistics.median(times), 3), "p95": round(p95, 3)}
