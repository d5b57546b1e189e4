"""The gate before promotion: a candidate against the champion on the same later requests, safely.

Promoted is who ranks better (ndcg@5) by a paired test, puts first what fits at least as often (ndcg@1), loses no more
than its allowance in any other measure or slice, and is quick enough. Nobody decides alone: a caller's requests weigh
as much as `limit_per_caller` lets them, and the gain must remain significant without the caller who favours the
candidate most. What is put first must not suffer because wrong labels, which are spread over all tools, are best met
further down: there a ranking can gain by hedging alone. Every look at the place of one champion uses up some of the
level of significance (`toolscout.learn.looks`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout import metrics
from toolscout.journal.evidence import limit_per_caller
from toolscout.learn.looks import bound_p, level_of_look
from toolscout.metrics import Paired, PerQuery

__all__ = ["ALLOWANCE", "LEVEL", "Sample", "Verdict", "judge"]

DECIDES: Final = "ndcg@5"
FIRST: Final = "ndcg@1"
GUARDED: Final = ("recall@5", "comp@5")
LEVEL: Final = 0.05  # of significance, for all looks at the place of one champion together
FLIPS: Final = 10_000  # of a paired test
MIN_FLIPS_BELOW: Final = 2  # a level that so few flips decide is left to a bound
ALLOWANCE: Final = 0.02  # what a measure or a slice may lose, if the loss is significant at all
LEAST: Final = 30  # queries of a slice that is guarded


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a test.

    Attributes:
        qrels: query id → tool id → weight.
        callers: query id → who asked.
        groups: name of the slice → query id → label.
        trusted: callers who may decide alone.
    """

    qrels: dict[str, dict[str, float]]
    callers: dict[str, str]
    groups: dict[str, dict[str, str]]
    trusted: frozenset[str] = frozenset()

    def weights(self) -> npt.NDArray[np.float64]:
        """Of each query in ascending order of id, `(n,)`, mean 1.

        A query weighs what its calls weigh on average, times what its caller's requests may weigh together, shared.
        """
        ids, counts = sorted(self.qrels), Counter(self.callers.values())
        cap = limit_per_caller(counts)
        asked = [self.callers[query] for query in ids]
        shares = [1.0 if who in self.trusted else min(counts[who], cap) / counts[who] for who in asked]
        calls = [float(np.mean(list(self.qrels[query].values()))) for query in ids]
        found = np.array(shares) * np.array(calls)
        return np.asarray(found / found.mean())


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate says.

    Attributes:
        n: requests.
        callers: who asked them, how many.
        tests: measure → candidate, champion, difference with its 95 % interval, p, wins, ties, losses; weighted.
        without: the same of the deciding measure without the caller who favours the candidate most, and that caller.
        slices: slice → label → n, difference and p of the deciding measure.
        latency_ms: the candidate's p50 and p95, processor time.
        reasons: why it is refused; none: it is better.
        look: which look at the champion's place this was, from 1.
        level: what p of the deciding measure had to be below.
    """

    n: int
    callers: int
    tests: dict[str, dict[str, Any]]
    without: dict[str, Any] | None
    slices: dict[str, dict[str, dict[str, Any]]]
    latency_ms: dict[str, float]
    reasons: tuple[str, ...]
    look: int = 1
    level: float = LEVEL


def judge(
    candidate: Mapping[str, Sequence[str]],
    champion: Mapping[str, Sequence[str]],
    sample: Sample,
    *,
    latency_ms: Mapping[str, float],
    budget_ms: float,
    seed: int = 0,
    look: int = 1,
) -> Verdict:
    """Compare two rankings of the same requests.

    Args:
        candidate: query id → tool ids, best first.
        champion: the same.
        sample: the requests.
        latency_ms: p50 and p95 of the candidate.
        budget_ms: what its p95 may be.
        seed: of the tests.
        look: which look at the champion's place this is, from 1; see `toolscout.learn.looks`.
    """
    level = level_of_look(LEVEL, look)
    a, b = (metrics.score(run, sample.qrels, [DECIDES, FIRST, *GUARDED]) for run in (candidate, champion))
    weights = sample.weights()
    tests = {DECIDES: _test(a, b, DECIDES, weights, seed, level)}
    tests |= {name: _test(a, b, name, weights, seed) for name in (FIRST, *GUARDED)}
    without = _without_favourite(a, b, sample, weights, seed, level)
    slices = _slices(a, b, sample.groups, weights, seed)
    reasons = [*_decided(tests[DECIDES], without, sample, look, level), *_first(tests[FIRST]), *_lost(tests, slices)]
    if latency_ms["p95"] > budget_ms:
        took = f"{latency_ms['p95']:.1f} ms of processor time"
        reasons.append(f"95 % of its searches take up to {took}, and {budget_ms:g} ms are allowed")
    return Verdict(
        n=len(sample.qrels),
        callers=len(set(sample.callers.values())),
        tests=tests,
        without=without,
        slices=slices,
        latency_ms=dict(latency_ms),
        reasons=tuple(reasons),
        look=look,
        level=level,
    )


def _decided(
    test: Mapping[str, Any], without: Mapping[str, Any] | None, sample: Sample, look: int, level: float
) -> list[str]:
    if test["difference"] <= 0 or test["p"] >= level:
        low, high = (100 * each for each in test["ci95"])
        return [
            f"it is not better: {DECIDES} {100 * test['candidate']:.1f} against {100 * test['champion']:.1f}, "
            f"difference {100 * test['difference']:+.1f} (95 % interval {low:+.1f} to {high:+.1f}, p {test['p']:.3f}; "
            f"look {look} at this champion's place takes p < {level:.2g})"
        ]
    if without is not None and (without.get("difference", 0.0) <= 0 or without["p"] >= level):
        who = without["caller"]
        alone = len(set(sample.callers.values())) == 1
        return [
            f"all requests come from one caller ({who})" if alone else f"without the requests of {who} it is not better"
        ]
    return []


def _first(test: Mapping[str, Any]) -> list[str]:
    if test["difference"] >= 0:
        return []
    return [
        f"what it puts first fits less often: {FIRST} {100 * test['candidate']:.1f}, not {100 * test['champion']:.1f}"
    ]


def _lost(tests: Mapping[str, Mapping[str, Any]], slices: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    found = [(f"{name} of all requests", tests[name]) for name in GUARDED]
    found += [
        (f"{DECIDES} where {name} is {label}", row)
        for name, rows in slices.items()
        for label, row in rows.items()
        if row["n"] >= LEAST
    ]
    return [
        f"it loses {-100 * row['difference']:.1f} points of {what} (p {row['p']:.3f})"
        for what, row in found
        if row["difference"] < -ALLOWANCE and row["p"] < LEVEL
    ]


def _test(
    a: PerQuery, b: PerQuery, name: str, weights: npt.NDArray[np.float64], seed: int, level: float = LEVEL
) -> dict[str, Any]:
    left, right = a.values[name] * weights, b.values[name] * weights
    return {"candidate": float(left.mean()), "champion": float(right.mean())} | _compare(left, right, seed, level)


def _compare(
    left: npt.NDArray[np.float64], right: npt.NDArray[np.float64], seed: int, level: float = LEVEL
) -> dict[str, Any]:
    """Test two rows of weighted values; where `level` is too low for random flips, p is a bound that holds for sure.

    Which of the two it is depends on the level alone, so either way p is below the level by luck no oftener than that.
    """
    shown = _shown(metrics.paired_test(left, right, seed, FLIPS))
    return shown | {"p": bound_p(left - right)} if level * (FLIPS + 1) < MIN_FLIPS_BELOW else shown


def _shown(test: Paired) -> dict[str, Any]:
    return {
        "difference": test.difference,
        "ci95": [test.low, test.high],
        "p": test.p,
        "wins": test.wins,
        "ties": test.ties,
        "losses": test.losses,
    }


def _without_favourite(
    a: PerQuery, b: PerQuery, sample: Sample, weights: npt.NDArray[np.float64], seed: int, level: float
) -> dict[str, Any] | None:
    """The deciding test without the caller, of those not trusted, whose requests speak most for the candidate."""
    gains: defaultdict[str, float] = defaultdict(float)
    asked = [sample.callers[query] for query in a.ids]
    for who, gain in zip(asked, (a.values[DECIDES] - b.values[DECIDES]) * weights, strict=True):
        gains[who] += float(gain)
    suspects: Collection[str] = [who for who in sorted(gains) if who not in sample.trusted]
    if not suspects:
        return None
    favourite = max(suspects, key=gains.__getitem__)
    left = np.array([who != favourite for who in asked])
    if not left.any():
        return {"caller": favourite, "difference": 0.0, "p": 1.0}
    ours, theirs = (each.values[DECIDES][left] * weights[left] / weights[left].mean() for each in (a, b))
    return {"caller": favourite} | _compare(ours, theirs, seed, level)


def _slices(
    a: PerQuery,
    b: PerQuery,
    groups: Mapping[str, Mapping[str, str]],
    weights: npt.NDArray[np.float64],
    seed: int,
) -> dict[str, dict[str, dict[str, Any]]]:
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for name, labels in groups.items():
        for label in sorted(set(labels.values())):
            rows = np.array([labels.get(query) == label for query in a.ids])
            ours, theirs = (each.values[DECIDES][rows] * weights[rows] / weights[rows].mean() for each in (a, b))
            test = metrics.paired_test(ours, theirs, seed, n=2_000)
            shown = {"n": int(rows.sum()), "difference": test.difference, "p": test.p}
            table.setdefault(name, {})[label] = shown
    return table
