"""Fitting a decision (`toolscout.abstain.decision`): queries put to catalogues → plain numbers.

A query belongs to a group, the domain that it comes from. What the words of a request mean is learned by a regression
on its vector, and that is always surer of the domains that it has seen: so the number that the regression of the need
reads is, for each group, made by weights that know the other groups only, and for queries that need no tool by weights
that know the other half of them (stacking; Wolpert 1992).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from toolscout.abstain.calibration import floors, platt
from toolscout.abstain.decision import DECISION_FORMAT, MAX_DEVIATIONS, Decision, Linear, columns
from toolscout.abstain.logistic import logistic, sigmoid
from toolscout.arrays import Floats, Vectors
from toolscout.errors import UserError
from toolscout.search.pipeline import Floors

__all__ = ["QueryGroup", "fit_decision"]

SCORE_RIDGE: Final = 1e-2
VECTOR_RIDGE: Final = 1e-3  # ridge of the regression on vectors
MIN_REQUESTS_FOR_FLOORS: Final = 100  # requests: of fewer, a budget of 2 % says nothing
UNFIT_SHARE: Final = 0.5  # of the requests that need a tool, how much those count for which the catalogue has none


@dataclasses.dataclass(frozen=True)
class QueryGroup:
    """Queries of one group, put to one catalogue.

    Attributes:
        group: the domain whose catalogue it is.
        rows: (n, columns) of `ScoreFeatures`.
        vectors: view → (n, d) of the queries.
        needs: whether they need a tool.
        fits: whether a tool of that catalogue fits; None: nobody knows.
    """

    group: str
    rows: Floats
    vectors: Mapping[str, Vectors]
    needs: bool
    fits: bool | None

    def __len__(self) -> int:
        return len(self.rows)


def fit_decision(
    names: Sequence[str],
    train: Sequence[QueryGroup],
    held: Sequence[QueryGroup],
    encoders: Mapping[str, str],
    about: Mapping[str, Any],
    *,
    wishes: bool = True,
) -> Decision:
    """Fit on `train`; calibrate, and set the floors, on `held`. Each group counts alike, and so do both answers.

    The floors keep their budgets in each part of `held` that tools fit.

    Args:
        names: of the columns.
        train: at least two groups, with queries of both kinds.
        held: others, of both kinds.
        encoders: view → fingerprint.
        about: what to say of it.
        wishes: whether vectors of queries count.

    Raises:
        UserError: for fewer than two groups, or where one kind of queries is missing.
    """
    views = tuple(encoders) if wishes else ()
    groups = sorted({each.group for each in train})
    for some in (train, held):
        if len(groups) < 2 or {each.needs for each in some} != {True, False} or {True, False} - {e.fits for e in some}:
            raise UserError("expected queries of two domains that need tools, that need none, and that no tool fits")
    chat = [each for each in train if not each.needs]
    inner: dict[str, list[dict[str, Floats]]] = {}
    for group in groups:  # by weights that know neither the group nor one half of the others
        halves = [[*_others(train, group), *(_half(each, odd) for each in chat)] for odd in (False, True)]
        inner[group] = [_wishes(views, some) for some in halves]
    of_need: list[_Labelled] = []
    for each in train:
        if each.needs:
            share = 1 - UNFIT_SHARE if each.fits else UNFIT_SHARE
            of_need.append(_Labelled(_table(names, each, inner[each.group][0]), True, each.group, share))
        else:
            for odd in (False, True):
                told = _table(names, _half(each, odd), inner[each.group][not odd])
                of_need.append(_Labelled(told, False, each.group))
    of_fit = [_Labelled(_table(names, each, {}), bool(each.fits), each.group) for each in train if each.needs]
    known = _wishes(views, [*_others(train, ""), *chat])
    need, fit = _linear(of_need), _linear(of_fit)
    tables = [_table(names, each, known) for each in held]
    need = _calibrate(need, tables, [each.needs for each in held])
    fit = _calibrate(fit, tables, [each.fits if each.needs else None for each in held])
    return Decision(
        format=DECISION_FORMAT,
        about=dict(about),
        encoders=dict(encoders),
        wishes={view: tuple(weights.tolist()) for view, weights in known.items()},
        need=need,
        fit=fit,
        floors=_floors(
            need, fit, [table for table, each in zip(tables, held, strict=True) if each.needs and each.fits]
        ),
    )


def _floors(need: Linear, fit: Linear, tables: Sequence[dict[str, Floats]]) -> Floors:
    """The floors that keep each budget in every part of the requests that is large enough to tell, not in their mean:
    whoever uses them may be like any one of the parts.
    """
    sure = [(sigmoid(need.logits(table)), sigmoid(fit.logits(table))) for table in tables]
    large = [floors(*each) for each in sure if len(each[0]) >= MIN_REQUESTS_FOR_FLOORS] or [
        floors(*each) for each in sure
    ]
    of_need, of_fit = np.array([each.need for each in large]), np.array([each.fit for each in large])
    return Floors(large[0].budgets, tuple(of_need.min(axis=0).tolist()), tuple(of_fit.min(axis=0).tolist()))


def _others(train: Sequence[QueryGroup], group: str) -> list[QueryGroup]:
    return [each for each in train if each.needs and each.fits and each.group != group]


def _half(each: QueryGroup, odd: bool) -> QueryGroup:
    chosen = slice(int(odd), None, 2)
    return dataclasses.replace(
        each, rows=each.rows[chosen], vectors={view: rows[chosen] for view, rows in each.vectors.items()}
    )


def _table(names: Sequence[str], each: QueryGroup, wishes: Mapping[str, Floats]) -> dict[str, Floats]:
    return columns(names, each.rows, each.vectors, wishes)


class _Labelled(NamedTuple):
    """Numbers of queries of one label and group; those of one share count so much, however many they are."""

    table: dict[str, Floats]
    label: bool
    group: str
    share: float = 1.0

    @property
    def size(self) -> int:
        return len(next(iter(self.table.values())))


def _mass(keys: Sequence[tuple[bool, str, float]], sizes: Sequence[int]) -> Floats:
    """Each label half, within it each group alike, within that by share, within that each query alike."""
    total: dict[tuple[bool, str, float], int] = {}
    for key, size in zip(keys, sizes, strict=True):
        total[key] = total.get(key, 0) + size
    sums = {label: sum(share for held, _, share in total if held == label) for label in (False, True)}
    each = [0.5 * key[2] / sums[key[0]] / total[key] for key in keys]
    return np.repeat(each, sizes)


def _wishes(views: Sequence[str], asked: Sequence[QueryGroup]) -> dict[str, Floats]:
    sizes = [len(each) for each in asked]
    mass = _mass([(each.needs, each.group if each.needs else "", 1.0) for each in asked], sizes)
    needs = np.repeat([each.needs for each in asked], sizes)
    return {
        view: np.round(logistic(np.concatenate([each.vectors[view] for each in asked]), needs, VECTOR_RIDGE, mass), 6)
        for view in views
    }


def _linear(parts: Sequence[_Labelled]) -> Linear:
    names, sizes = tuple(parts[0].table), [each.size for each in parts]
    rows = np.concatenate([np.stack([each.table[name] for name in names], axis=1) for each in parts])
    labels = np.repeat([each.label for each in parts], sizes)
    mass = _mass([(each.label, each.group, each.share) for each in parts], sizes)
    means = np.average(rows, axis=0, weights=mass)
    deviations = np.sqrt(np.average((rows - means) ** 2, axis=0, weights=mass)) + 1e-6
    found = logistic(np.clip((rows - means) / deviations, -MAX_DEVIATIONS, MAX_DEVIATIONS), labels, SCORE_RIDGE, mass)
    return Linear(names, _round(means), _round(deviations), _round(found[:-1]), round(float(found[-1]), 6))


def _round(values: Floats) -> tuple[float, ...]:
    return tuple(np.round(values, 6).tolist())


def _calibrate(linear: Linear, tables: Sequence[dict[str, Floats]], labels: Sequence[bool | None]) -> Linear:
    """The same, its sums made logits of probabilities on held-out queries; those without a label do not count."""
    sides = [
        np.concatenate([linear.logits(table) for table, each in zip(tables, labels, strict=True) if each is side])
        for side in (True, False)
    ]
    by = platt(*sides)
    return Linear(
        linear.columns,
        linear.means,
        linear.deviations,
        _round(by["slope"] * np.array(linear.weights)),
        round(by["slope"] * linear.shift + by["shift"], 6),
    )
