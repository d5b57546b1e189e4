"""Evaluation: ranking measures per query, means, slices, confidence intervals, paired tests.

What only the laboratory measures is in `toolscout_lab.statistics`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Floats
from toolscout.errors import require

__all__ = [
    "DEFAULT_MEASURES",
    "Measure",
    "PairedComparison",
    "PerQuery",
    "bootstrap_ci",
    "paired_test",
    "percentiles",
    "score",
    "slices",
    "split_chunks",
]

MEASURE_KINDS: Final = ("recall", "ndcg", "comp", "precision")
STATISTICS_OF_THE_LAB: Final = ("Best", "best_of", "detection", "detection_ci", "detection_curves", "holm")
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
        mrr, kind, cutoff = match.groups()
        measure = super().__new__(cls, name)
        measure.kind = mrr or kind
        measure.k = int(cutoff) if cutoff and cutoff != "|N|" else None
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
        run: query id → tool ids, best first. A query counts 0 if it is absent or its ranking is empty.
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
    depth = max([int(sizes.max()), *(measure.k for measure in parsed if measure.k)])  # the deepest cut-off
    gains = _pad_rows(
        [[tools.get(tool, 0.0) for tool in ranking[:depth]] for tools, ranking in zip(gold, rankings, strict=True)]
    )
    ideal = _pad_rows([sorted(tools.values(), reverse=True) for tools in gold])
    values: dict[str, Floats] = {}
    for measure in parsed:
        if measure.kind == "mrr":
            values[str(measure)] = np.array(list(map(_compute_reciprocal_rank, gold, rankings)))
        else:
            values[str(measure)] = _measure_at(measure, gains, ideal, sizes)
    return PerQuery(ids, values)


def _check_run(run: Mapping[str, Sequence[str]], qrels: Mapping[str, Mapping[str, float]]) -> None:
    """Refuse qrels without a query, and a run with queries that the qrels lack. Queries that the run lacks count 0."""
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
    """Check that every query has a gold tool, and that no ranking names a tool twice, since it would count twice."""
    for query, tools, ranking in zip(ids, gold, rankings, strict=True):
        if not tools:
            raise ValueError(f"expected a tool with a score above 0 for query {query!r}, found none")
        if len(set(ranking)) < len(ranking):
            twice = next(tool for rank, tool in enumerate(ranking) if tool in ranking[:rank])
            raise ValueError(f"expected each tool once in the ranking of {query!r}, found {twice!r} again")


def _measure_at(measure: Measure, gains: Floats, ideal: Floats, sizes: npt.NDArray[np.int64]) -> Floats:
    """Compute a measure with a cut-off, for each query, (queries,).

    Args:
        measure: recall, precision, comp or ndcg.
        gains: (queries, depth) score of the tool at each rank; 0 for tools that are not gold.
        ideal: (queries, most gold tools of a query) scores of the gold tools, descending.
        sizes: (queries,) number of gold tools.
    """
    cutoffs = sizes if measure.k is None else np.full(len(sizes), measure.k)
    hits = (_cut_gains(gains, cutoffs) > 0).sum(axis=1)
    if measure.kind == "recall":
        return np.asarray(hits / sizes)
    if measure.kind == "precision":
        return np.asarray(hits / cutoffs)
    if measure.kind == "comp":
        return np.asarray((hits == sizes).astype(float))
    return _dcg(gains, cutoffs) / _dcg(ideal, cutoffs)


def _pad_rows(rows: Sequence[Sequence[float]]) -> Floats:
    """Return rows of different lengths as a table, (rows, longest), with zeros at their ends."""
    table = np.zeros((len(rows), max(map(len, rows))))
    for padded, row in zip(table, rows, strict=True):
        padded[: len(row)] = row
    return table


def _cut_gains(gains: Floats, cutoffs: npt.NDArray[np.int64]) -> Floats:
    """Return the gains with 0 at all ranks beyond each query's cut-off."""
    return np.where(np.arange(gains.shape[1]) < cutoffs[:, None], gains, 0.0)


def _dcg(gains: Floats, cutoffs: npt.NDArray[np.int64]) -> Floats:
    """Return the discounted cumulative gain up to each query's cut-off, (queries,)."""
    discounts = 1.0 / np.log2(np.arange(gains.shape[1]) + 2.0)  # the first rank has log2(2) = 1
    return np.asarray(_cut_gains(gains, cutoffs) @ discounts)


def _compute_reciprocal_rank(gold: Mapping[str, float], ranking: Sequence[str]) -> float:
    """Compute 1 / rank of the first gold tool of one query; 0 if the ranking has none."""
    for rank, tool in enumerate(ranking, 1):
        if tool in gold:
            return 1.0 / rank
    return 0.0


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
    """Return a key that sorts labels with their numbers by value: all numbers get twelve digits."""
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
    for count in split_chunks(n, size):
        # Each resample gets numbers of its own, so that one bincount counts the queries of all of them.
        sampled = rng.integers(0, size, (count, size)) + size * np.arange(count)[:, None]
        times_drawn = np.bincount(sampled.ravel(), minlength=count * size).reshape(count, size)
        means.append(times_drawn.astype(float) @ table.T / size)
    tail = (1.0 - level) / 2.0
    bounds = np.quantile(np.concatenate(means), [tail, 1.0 - tail], axis=0)  # (2,) or (2, m)
    return np.moveaxis(bounds, 0, -1)


def split_chunks(n: int, size: int) -> list[int]:
    """Split `n` rows of `size` numbers into chunks that fit in memory: return the number of rows of each chunk."""
    rows = max(1, MAX_CHUNK_VALUES // size)
    n_full, rest = divmod(n, rows)
    return [rows] * n_full + ([rest] if rest else [])


@dataclasses.dataclass(frozen=True)
class PairedComparison:
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


def paired_test(a: npt.ArrayLike, b: npt.ArrayLike, seed: int = 0, n: int = 10_000) -> PairedComparison:
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
    extreme = 0  # number of flips whose sum is as far from 0 as the real one
    total, tolerance = nonzero.sum(), EQUAL_TOLERANCE * max(1, nonzero.size)
    n_bytes = math.ceil(nonzero.size / 8)  # one bit decides whether a difference is flipped
    for count in split_chunks(n, max(1, nonzero.size)):
        flips = np.unpackbits(rng.integers(0, 256, (count, n_bytes), dtype=np.uint8), axis=1)
        # A flipped difference is subtracted where it was added, so it changes the sum by twice itself.
        sums = total - 2.0 * (flips[:, : nonzero.size].astype(float) @ nonzero)
        extreme += int((np.abs(sums) >= abs(total) - tolerance).sum())
    low, high = bootstrap_ci(difference, seed, n)
    wins = int((nonzero > 0).sum())
    return PairedComparison(
        difference=float(difference.mean()),
        low=float(low),
        high=float(high),
        p=(1 + extreme) / (1 + n),
        wins=wins,
        ties=difference.size - nonzero.size,
        losses=nonzero.size - wins,
    )


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """Return `p50` and `p95` of one time or more, in the unit of the times, to three decimals."""
    p95 = statistics.quantiles(times, n=20)[-1] if len(times) > 1 else times[0]  # the last of 19 cuts is at 95 %
    return {"p50": round(statistics.median(times), 3), "p95": round(p95, 3)}


def __getattr__(name: str) -> object:
    """Return a name that was here in version 0.2 and is in toolscout-lab now, with a warning."""
    if name not in STATISTICS_OF_THE_LAB:
        raise AttributeError(f"module 'toolscout.metrics' has no attribute {name!r}")
    warnings.warn(f"import {name} from toolscout_lab.statistics", DeprecationWarning, stacklevel=2)
    return getattr(require("toolscout_lab.statistics", "lab"), name)
