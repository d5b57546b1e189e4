"""The gate before promotion: compares a candidate with the champion on the same later requests.

A candidate passes if it ranks better (ndcg@5) by a paired test, is right at the first place at least as often (ndcg@1),
loses little in every other measure and slice, and is fast enough. Requests outside the traffic may lose little too
(`find_outside_loss`). They are made by rule for the tools that no logged request used.

No caller decides alone. `limit_per_caller` bounds the summed weight of one caller's requests, and the gain must remain
significant without the caller who favours the candidate most. The first place is guarded because wrong labels are
spread over all tools: a ranking that merely hedges gains on them at the lower places. Each comparison with the same
champion uses up part of the significance level.

A comparison is called a look. Each night `learn` compares a new candidate with the same champion, mostly on requests of
the night before. Every look is another chance of a false promotion. So the significance level is spent over the looks
since the champion was promoted: look k may use 6 / (π² k²) of it, as in Foster & Stine 2008 ("α-investing", J. R.
Statist. Soc. B 70) and Javanmard & Montanari 2018 (arXiv:1603.09000). These shares add up to 1. By the union bound, a
champion that no candidate beats is replaced with a probability of at most the level, for any number of looks and any
overlap.

::

    <home>/learn/looks.json     champion → fingerprint of each look → its number
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout import metrics
from toolscout.errors import StoreError
from toolscout.home.database import open_home
from toolscout.home.journal.evidence import limit_per_caller
from toolscout.learn.synthetic_queries import SyntheticQuery, generate_queries
from toolscout.location import Home, describe_home
from toolscout.metrics import PairedComparison, PerQuery
from toolscout.types import Tool, digest

__all__ = [
    "LEVEL",
    "MAX_LOSS",
    "OUTSIDE_MEASURE",
    "PromotionVerdict",
    "Sample",
    "bound_p",
    "compare_outside",
    "explain_outside_loss",
    "find_outside_loss",
    "judge",
    "level_of_look",
    "make_outside_queries",
    "number_look",
]

DECIDING_MEASURE: Final = "ndcg@5"
FIRST_PLACE_MEASURE: Final = "ndcg@1"
GUARDED_MEASURES: Final = ("recall@5", "comp@5")
LEVEL: Final = 0.05  # significance level of all comparisons with one champion together
SIGN_FLIPS: Final = 10_000  # random sign flips of a paired test
GUARD_SIGN_FLIPS: Final = 2_000  # fewer for tests that can only refuse
MIN_FLIPS_BELOW: Final = 2  # if a level leaves room for fewer flips, a bound replaces the p of the test
MAX_LOSS: Final = 0.02  # a significant loss of a measure or slice may be at most this
MIN_SLICE_QUERIES: Final = 30  # smaller slices are not guarded
MAX_OUTSIDE_LOSS: Final = 0.01
"""Share of requests outside the traffic that may lose their tool from the first five: the end of a 95 % interval."""
OUTSIDE_MEASURE: Final = "recall@5"
MAX_OUTSIDE_QUERIES: Final = 1_000
MIN_OUTSIDE_QUERIES: Final = 20  # with fewer, nothing is said
LOOKS_FORMAT: Final = "toolscout-looks/1"
LOOKS_FILE: Final = "learn/looks.json"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The requests on which two rankings are compared.

    Attributes:
        qrels: query id → tool id → weight of the calls of that tool.
        callers: query id → caller.
        groups: slice → query id → label, such as `source` → `q7` → `mail`.
        trusted: callers who may decide alone.
    """

    qrels: dict[str, dict[str, float]]
    callers: dict[str, str]
    groups: dict[str, dict[str, str]]
    trusted: frozenset[str] = frozenset()

    def weights(self) -> npt.NDArray[np.float64]:
        """Return the weight of each query in ascending order of id, `(n,)`, mean 1.

        A query weighs the mean weight of its calls. If the queries of a caller together weigh more than
        `limit_per_caller` allows, they are scaled down to that limit.
        """
        ids = sorted(self.qrels)
        callers = [self.callers[query] for query in ids]
        call_weights = [float(np.mean(list(self.qrels[query].values()))) for query in ids]
        sums: defaultdict[str, float] = defaultdict(float)
        for who, weight in zip(callers, call_weights, strict=True):
            sums[who] += weight
        cap = limit_per_caller({who: math.ceil(total) for who, total in sums.items()})  # its limit is on whole numbers
        scales = [1.0 if who in self.trusted else min(1.0, cap / sums[who]) for who in callers]
        weights = np.array(scales) * np.array(call_weights)
        return np.asarray(weights / weights.mean())


class PromotionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of the gate.

    Attributes:
        n: number of requests.
        callers: number of callers of these requests.
        tests: measure → candidate, champion, difference with its 95 % interval, p, wins, ties, losses; weighted.
        without: the deciding test without the caller who favours the candidate most, and that caller. None: all callers
            are trusted.
        slices: slice → label → n, difference and p of the deciding measure.
        latency_ms: the candidate's p50 and p95 in processor time.
        reasons: why the candidate is refused; empty if it is better.
        look: the number of this comparison with the champion, from 1.
        level: p of the deciding measure had to be below this.
        outside: the requests outside the traffic; see `find_outside_loss`. None: there are too few.
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
    outside: dict[str, Any] | None = None


def make_outside_queries(tools: Sequence[Tool], used: Collection[str], seed: int = 0) -> list[SyntheticQuery]:
    """Make a request for each tool of a catalogue that no logged request used; `used` has the ids of the others."""
    return generate_queries([tool for tool in tools if tool.id not in used], max_queries=MAX_OUTSIDE_QUERIES, seed=seed)


def find_outside_loss(
    candidate: Mapping[str, Sequence[str]],
    champion: Mapping[str, Sequence[str]],
    queries: Sequence[SyntheticQuery],
    seed: int = 0,
) -> dict[str, object] | None:
    """Compare two rankings of requests outside the traffic, and return what `compare_outside` returns.

    A ranking has the ids of tools, best first, by the id of a request.
    """
    if not queries:
        return None
    gold = {query.id: dict.fromkeys(query.tools, 1.0) for query in queries}
    candidate_scores = metrics.score(candidate, gold, [OUTSIDE_MEASURE])
    champion_scores = metrics.score(champion, gold, [OUTSIDE_MEASURE])
    return compare_outside(candidate_scores.values[OUTSIDE_MEASURE], champion_scores.values[OUTSIDE_MEASURE], seed)


def compare_outside(
    candidate: npt.NDArray[np.float64], champion: npt.NDArray[np.float64], seed: int = 0
) -> dict[str, object] | None:
    """Compare candidate and champion on requests for tools that nobody used, by `OUTSIDE_MEASURE`.

    Args:
        candidate: the measure of each request, `(n,)`.
        champion: the measure of the same requests, `(n,)`.
        seed: of the paired test.

    Returns:
        For the report: n, both means, difference, its 95 % interval, p, wins, ties, losses. None: there are fewer than
        `MIN_OUTSIDE_QUERIES` requests.
    """
    if len(candidate) < MIN_OUTSIDE_QUERIES:
        return None
    test = metrics.paired_test(candidate, champion, seed, n=GUARD_SIGN_FLIPS)
    means = {"candidate": float(candidate.mean()), "champion": float(champion.mean())}
    return {"n": len(candidate), **means, **_describe_test(test)}


def explain_outside_loss(test: Mapping[str, Any] | None) -> list[str]:
    """Explain from `compare_outside` that requests outside the traffic may lose too much. Empty: they lose little."""
    if test is None:
        return []
    low, high = test["ci95"]
    if low >= -MAX_OUTSIDE_LOSS:
        return []
    return [
        f"requests for tools that nobody has used yet would lose: {OUTSIDE_MEASURE} {100 * test['champion']:.1f} to "
        f"{100 * test['candidate']:.1f} on {test['n']:,} of them made by rule (95 % interval "
        f"{100 * low:+.1f} to {100 * high:+.1f}; at most {100 * MAX_OUTSIDE_LOSS:g} may be lost)"
    ]


def judge(
    candidate: Mapping[str, Sequence[str]],
    champion: Mapping[str, Sequence[str]],
    sample: Sample,
    *,
    latency_ms: Mapping[str, float],
    budget_ms: float,
    seed: int = 0,
    look: int = 1,
    outside: Mapping[str, object] | None = None,
) -> PromotionVerdict:
    """Compare two rankings of the same requests, and decide whether the candidate is better.

    Args:
        candidate: query id → tool ids, best first.
        champion: the same for the champion.
        sample: the requests.
        latency_ms: p50 and p95 of the candidate.
        budget_ms: the highest p95 that passes.
        seed: seed of the tests.
        look: the number of this comparison with the champion, from 1; see `number_look`.
        outside: as `find_outside_loss` returns it.

    Returns:
        The verdict. The candidate passes if its `reasons` are empty.
    """
    # Only a gain in the deciding measure promotes, so only its test spends the level of this look. The other measures
    # can only refuse, so each is tested at the full level.
    level = level_of_look(LEVEL, look)
    measures = [DECIDING_MEASURE, FIRST_PLACE_MEASURE, *GUARDED_MEASURES]
    ours, theirs = (metrics.score(run, sample.qrels, measures) for run in (candidate, champion))
    weights = sample.weights()
    tests = {
        name: _compare_measure(ours, theirs, name, weights, seed, level if name == DECIDING_MEASURE else LEVEL)
        for name in measures
    }
    without = _test_without_favourite(ours, theirs, sample, weights, seed, level)
    slices = _compare_slices(ours, theirs, sample.groups, weights, seed)
    reasons = [
        *_explain_no_gain(tests[DECIDING_MEASURE], without, sample, look, level),
        *_explain_worse_first_place(tests[FIRST_PLACE_MEASURE]),
        *_explain_losses(tests, slices),
        *explain_outside_loss(outside),
    ]
    if latency_ms["p95"] > budget_ms:
        reasons.append(
            f"it is too slow: 95 % of its searches take up to {latency_ms['p95']:.1f} ms of processor time, and "
            f"{budget_ms:g} ms are allowed"
        )
    return PromotionVerdict(
        n=len(sample.qrels),
        callers=len(set(sample.callers.values())),
        tests=tests,
        without=without,
        slices=slices,
        latency_ms=dict(latency_ms),
        reasons=tuple(reasons),
        look=look,
        level=level,
        outside=None if outside is None else dict(outside),
    )


def _explain_no_gain(
    test: Mapping[str, Any], without: Mapping[str, Any] | None, sample: Sample, look: int, level: float
) -> list[str]:
    """Explain why the candidate is not better, or only better thanks to one caller. Empty: it is better.

    `test` is of the deciding measure, and `without` the same without one caller; see `PromotionVerdict`.
    """
    if not _is_gain(test, level):
        low, high = (100 * bound for bound in test["ci95"])
        return [
            f"it is not better: {DECIDING_MEASURE} {100 * test['candidate']:.1f} against {100 * test['champion']:.1f}, "
            f"difference {100 * test['difference']:+.1f} (95 % interval {low:+.1f} to {high:+.1f}, p {test['p']:.3f}; "
            f"comparison {look} with this champion needs p < {level:.2g})"
        ]
    if without is not None and not _is_gain(without, level):
        favourite = without["caller"]
        if len(set(sample.callers.values())) == 1:
            return [f"all requests come from one caller ({favourite})"]
        return [f"without the requests of {favourite} it is not better"]
    return []


def _is_gain(test: Mapping[str, Any], level: float) -> bool:
    return bool(test["difference"] > 0 and test["p"] < level)


def _explain_worse_first_place(test: Mapping[str, Any]) -> list[str]:
    """Explain that the candidate's first tool is right less often, by any difference. Empty: it is not."""
    if test["difference"] >= 0:
        return []
    return [
        f"its first tool is right less often: {FIRST_PLACE_MEASURE} {100 * test['candidate']:.1f} "
        f"against {100 * test['champion']:.1f}"
    ]


def _explain_losses(
    tests: Mapping[str, Mapping[str, Any]], slices: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> list[str]:
    """Explain each guarded measure or slice in which the candidate loses significantly and too much."""
    rows = [(f"{name} of all requests", tests[name]) for name in GUARDED_MEASURES]
    rows += [
        (f"{DECIDING_MEASURE} where {name} is {label}", row)
        for name, labels in slices.items()
        for label, row in labels.items()
        if row["n"] >= MIN_SLICE_QUERIES
    ]
    return [
        f"it loses {-100 * row['difference']:.1f} points of {what} (p {row['p']:.3f})"
        for what, row in rows
        if row["difference"] < -MAX_LOSS and row["p"] < LEVEL
    ]


def _compare_measure(
    ours: PerQuery, theirs: PerQuery, name: str, weights: npt.NDArray[np.float64], seed: int, level: float
) -> dict[str, object]:
    """Compare the weighted values of a measure; `ours` are those of the candidate, `theirs` of the champion."""
    candidate, champion = ours.values[name] * weights, theirs.values[name] * weights
    means = {"candidate": float(candidate.mean()), "champion": float(champion.mean())}
    return means | _compare(candidate, champion, seed, level)


def _compare(
    ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64], seed: int, level: float
) -> dict[str, object]:
    """Test the weighted values of the candidate against those of the champion, `(n,)` each.

    A test with `SIGN_FLIPS` flips cannot return a p below a very low `level`. Then `bound_p` replaces its p. The choice
    depends on the level only: taking the smaller p of both would promote by chance more often than the level allows.
    """
    test = _describe_test(metrics.paired_test(ours, theirs, seed, SIGN_FLIPS))
    flips_below_level = level * (SIGN_FLIPS + 1)
    if flips_below_level < MIN_FLIPS_BELOW:
        test["p"] = bound_p(ours - theirs)
    return test


def _describe_test(test: PairedComparison) -> dict[str, object]:
    """Return the figures of a paired test, for the report of the run."""
    return {
        "difference": test.difference,
        "ci95": [test.low, test.high],
        "p": test.p,
        "wins": test.wins,
        "ties": test.ties,
        "losses": test.losses,
    }


def _test_without_favourite(
    ours: PerQuery, theirs: PerQuery, sample: Sample, weights: npt.NDArray[np.float64], seed: int, level: float
) -> dict[str, object] | None:
    """Repeat the deciding test without the untrusted caller whose requests gain the candidate most.

    Returns:
        The test and that caller; p is 1 if nobody else made a request. None: all callers are trusted.
    """
    callers = [sample.callers[query] for query in ours.ids]
    differences = ours.values[DECIDING_MEASURE] - theirs.values[DECIDING_MEASURE]
    gains: defaultdict[str, float] = defaultdict(float)  # by caller
    for who, gain in zip(callers, differences * weights, strict=True):
        gains[who] += float(gain)
    untrusted = [who for who in sorted(gains) if who not in sample.trusted]
    if not untrusted:
        return None
    favourite = max(untrusted, key=gains.__getitem__)
    by_others = np.array([who != favourite for who in callers])
    if not by_others.any():
        return {"caller": favourite, "difference": 0.0, "p": 1.0}
    candidate = _weigh_rows(ours, weights, by_others)
    champion = _weigh_rows(theirs, weights, by_others)
    return {"caller": favourite} | _compare(candidate, champion, seed, level)


def _weigh_rows(
    scores: PerQuery, weights: npt.NDArray[np.float64], mask: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Return the weighted deciding measure of some queries. Their weights are scaled so that their mean is 1 again."""
    selected = weights[mask]
    return np.asarray(scores.values[DECIDING_MEASURE][mask] * selected / selected.mean())


def _compare_slices(
    ours: PerQuery,
    theirs: PerQuery,
    groups: Mapping[str, Mapping[str, str]],
    weights: npt.NDArray[np.float64],
    seed: int,
) -> dict[str, dict[str, dict[str, object]]]:
    """Test the deciding measure in every slice: slice → label → number of its requests (n), difference and p."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for name, labels in groups.items():
        for label in sorted(set(labels.values())):
            in_slice = np.array([labels.get(query) == label for query in ours.ids])
            candidate, champion = _weigh_rows(ours, weights, in_slice), _weigh_rows(theirs, weights, in_slice)
            test = metrics.paired_test(candidate, champion, seed, n=GUARD_SIGN_FLIPS)
            row = {"n": int(in_slice.sum()), "difference": test.difference, "p": test.p}
            table.setdefault(name, {})[label] = row
    return table


class _Looks(msgspec.Struct, forbid_unknown_fields=True):
    """The file. `champions`: name of a champion → fingerprint of each comparison with it → number of the comparison."""

    champions: dict[str, dict[str, int]] = {}
    format: str = LOOKS_FORMAT


def level_of_look(level: float, look: int) -> float:
    """Return the share of `level` for look number `look`, from 1. All shares add up to `level`."""
    return level * 6 / (math.pi * look) ** 2


def bound_p(differences: npt.ArrayLike) -> float:
    """Bound the two-sided p-value of the paired randomization test from above (Hoeffding 1963, theorem 2).

    With random signs, P(|Σ ±d| ≥ |Σ d|) ≤ 2 exp(-(Σ d)² / (2 Σ d²)), for any number of queries. The bound can be
    arbitrarily small. A test with n random flips never returns less than 1 / (n + 1), and later looks need less.

    Args:
        differences: (q,) the difference of each query.
    """
    values = np.asarray(differences, dtype=float)
    total, squares = float(values.sum()), float((values**2).sum())
    return min(1.0, 2 * math.exp(-(total**2) / (2 * squares))) if squares > 0 else 1.0


def number_look(home: Home, champion: str, tested: object) -> int:
    """Count a comparison with a champion, and return its number, from 1.

    A repeated comparison (after a kill, or after a dry run) keeps its number. The number is on disk before this
    returns. A champion that comes back by a rollback continues its own count.

    Args:
        home: the home.
        champion: name of the champion.
        tested: JSON values that identify the comparison: candidate, requests, seed.

    Raises:
        StoreError: if the file is damaged.
    """
    try:
        counts = msgspec.json.decode(open_home(home).read_document(LOOKS_FILE), type=_Looks)
    except FileNotFoundError:
        counts = _Looks()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{describe_home(home)}/{LOOKS_FILE} is damaged ({error}), so the number of earlier looks is lost. "
            "Remove the file to count from one again."
        ) from None
    looks = counts.champions.setdefault(champion, {})
    fingerprint = digest("look/1", tested)
    if fingerprint not in looks:
        looks[fingerprint] = max(looks.values(), default=0) + 1
        open_home(home).write_document(LOOKS_FILE, msgspec.json.format(msgspec.json.encode(counts), indent=1) + b"\n")
    return looks[fingerprint]
