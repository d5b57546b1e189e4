"""Fits a decision (`toolscout.search.abstain.decision`) from queries that were scored against catalogues.

A query belongs to a group, the domain that it comes from. A regression on the vector of a request learns its meaning.
It is always surer of the domains that it has seen. So its output, as input of the regression of the need, comes from
weights fitted on the other groups; for queries that need no tool, from weights fitted on the other half of them
(stacking; Wolpert 1992).
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from toolscout.arrays import Floats, Vectors
from toolscout.errors import UserError
from toolscout.search.abstain.calibration import floors, platt
from toolscout.search.abstain.decision import (
    DECISION_FORMAT,
    MAX_DEVIATIONS,
    Decision,
    Linear,
    columns,
)
from toolscout.search.abstain.wording import TERMS_VIEW, find_terms, mark_terms
from toolscout.search.pipeline import Floors
from toolscout_lab.training.logistic import logistic

__all__ = ["QueryGroup", "fit_decision", "set_floors"]

MAX_TERMS_CHOSEN: Final = 600
MIN_TERM_GROUPS: Final = 3  # groups of requests in which a term must occur, so that it is of no single domain
NO_FLOORS: Final = Floors((0.0,), (0.0,), (0.0,))
SCORE_RIDGE: Final = 1e-2
VECTOR_RIDGE: Final = 3e-4  # of the regression on vectors
MIN_REQUESTS_FOR_FLOORS: Final = 100  # with fewer requests, a budget of 2 % means nothing
NEED_SHARE: Final = 0.5  # part of the budget for requests with a low need; the rest is for those with a low fit
SMALL_NEED_SHARE: Final = 2 / 3  # the same where the caller sees few tools; there the fit tells more
UNFIT_SHARE: Final = 0.5  # share of the mass of needing requests for those without a fitting tool


@dataclasses.dataclass(frozen=True)
class QueryGroup:
    """Queries of one group, scored against one catalogue.

    Attributes:
        group: the domain of the catalogue.
        rows: (n, columns) of `ScoreFeatures`.
        vectors: view → (n, d) of the queries.
        needs: whether they need a tool.
        fits: whether a tool of that catalogue fits; None: unknown.
        texts: (n,) the queries themselves; empty: their terms are not used.
        is_small: whether the catalogue has at most `decision.MAX_SMALL_CATALOGUE` tools.
        hides: whether the tools that fit are hidden. A request for them looks like one that its catalogue serves.
    """

    group: str
    rows: Floats
    vectors: Mapping[str, Vectors]
    needs: bool
    fits: bool | None
    texts: Sequence[str] = ()
    is_small: bool = False
    hides: bool = False

    def __len__(self) -> int:
        return len(self.rows)


def fit_decision(
    names: Sequence[str],
    train: Sequence[QueryGroup],
    calibration: Sequence[QueryGroup],
    encoders: Mapping[str, str],
    about: Mapping[str, object],
    *,
    wishes: bool = True,
) -> Decision:
    """Fit on `train`; calibrate and set the floors on `calibration`. Groups have equal mass, and so do both answers.

    The floors keep their budgets on average over the parts of `calibration` with fitting tools, whose groups were
    fitted on. For a group that was not, see `set_floors`.

    Args:
        names: names of the columns.
        train: at least two groups, with queries of both kinds.
        calibration: other queries, of both kinds.
        encoders: view → fingerprint.
        about: the record of the fit for the file.
        wishes: whether to use vectors of queries.

    Raises:
        UserError: for fewer than two groups, or where one kind of queries is missing.
    """
    _check_groups(train, calibration)
    terms = _choose_terms([*train, *calibration], train) if wishes else ()
    views = (*encoders, *([TERMS_VIEW] if terms else ())) if wishes else ()
    train, calibration = _add_terms(train, terms), _add_terms(calibration, terms)
    wish_weights = _fit_wishes(views, [*_select_fitting(train, ""), *(part for part in train if not part.needs)])
    need = _fit_linear(_stack_needs(names, train, views))
    tables = [_table(names, part, wish_weights) for part in calibration]
    need = _calibrate(need, tables, [part.needs for part in calibration])
    judged = [(part, table) for part, table in zip(calibration, tables, strict=True) if part.needs]
    fit = _fit_fit(names, _keep_telling(train), [each for each in judged if not each[0].is_small] or judged)
    small = [each for each in judged if each[0].is_small]
    small_fit = _fit_fit(names, train, small) if small else None
    decision = Decision(
        format=DECISION_FORMAT,
        about=dict(about),
        encoders=dict(encoders),
        wishes={view: tuple(weights.tolist()) for view, weights in wish_weights.items()},
        need=need,
        fit=fit,
        floors=NO_FLOORS,
        terms=terms,
        small_fit=small_fit,
    )
    large_floors, small_floors = set_floors(calibration, [decision.estimate(table) for table in tables])
    return msgspec.structs.replace(decision, floors=large_floors, small_floors=small_floors)


def _keep_telling(parts: Sequence[QueryGroup]) -> Sequence[QueryGroup]:
    """Keep the parts that tell in a large catalogue whether it serves a request; all, if one kind would be missing.

    A regression that also learns from hidden tools finds half as many foreign requests, and hardly more of the others.
    """
    kept = [part for part in parts if not (part.is_small or part.hides)]
    return kept if {True, False} <= {part.fits for part in kept if part.needs} else parts


def _fit_fit(
    names: Sequence[str], train: Sequence[QueryGroup], calibration: Sequence[tuple[QueryGroup, dict[str, Floats]]]
) -> Linear:
    """Fit the regression for whether a tool fits on the parts that need one, and calibrate it on others."""
    parts = [_Labelled(_table(names, part, {}), bool(part.fits), part.group) for part in train if part.needs]
    return _calibrate(_fit_linear(parts), [table for _, table in calibration], [part.fits for part, _ in calibration])


def _choose_terms(parts: Sequence[QueryGroup], train: Sequence[QueryGroup]) -> tuple[str, ...]:
    """Choose terms of the training queries, if the texts of all parts are known."""
    if not all(len(part.texts) == len(part) for part in parts):
        return ()
    texts: dict[str, list[str]] = {}
    for part in train:
        texts.setdefault(part.group if part.needs else "", []).extend(part.texts)
    return _choose_common_terms(texts)


def _add_terms(parts: Sequence[QueryGroup], terms: tuple[str, ...]) -> Sequence[QueryGroup]:
    return [dataclasses.replace(part, vectors={**part.vectors, **mark_terms(part.texts, terms)}) for part in parts]


def _check_groups(*splits: Sequence[QueryGroup]) -> None:
    """Refuse splits without two groups in the first, or without every kind of query in each.

    Raises:
        UserError: if queries are missing.
    """
    groups = {part.group for part in splits[0]}
    for parts in splits:
        lacks_need = {part.needs for part in parts} != {True, False}
        if len(groups) < 2 or lacks_need or {True, False} - {part.fits for part in parts}:
            raise UserError("expected queries of two domains that need tools, that need none, and that no tool fits")


def _stack_needs(names: Sequence[str], train: Sequence[QueryGroup], views: Sequence[str]) -> list[_Labelled]:
    """Label the training queries by need. The wishes of a query come from weights that were not fitted on it."""
    chat = [part for part in train if not part.needs]
    inner: dict[str, list[dict[str, Floats]]] = {}
    for group in sorted({part.group for part in train}):  # leaves out the group, and one half of the chat
        halves = [[*_select_fitting(train, group), *(_take_half(part, odd) for part in chat)] for odd in (False, True)]
        inner[group] = [_fit_wishes(views, half) for half in halves]
    labelled: list[_Labelled] = []
    for part in train:
        if part.needs:
            share = 1 - UNFIT_SHARE if part.fits else UNFIT_SHARE
            labelled.append(_Labelled(_table(names, part, inner[part.group][0]), True, part.group, share))
        else:
            for odd in (False, True):
                table = _table(names, _take_half(part, odd), inner[part.group][not odd])
                labelled.append(_Labelled(table, False, part.group))
    return labelled


def set_floors(parts: Sequence[QueryGroup], estimates: Sequence[tuple[Floats, Floats]]) -> tuple[Floors, Floors | None]:
    """Set the floors of large catalogues and, where there are small ones, of those.

    They keep each budget on average over the parts with fitting tools, which have equal mass.

    Args:
        parts: of which those without fitting tools do not count.
        estimates: need and fit of each part. Where the part's own group was fitted on, other groups lose more than the
            budget: a regression is always surer of what it has seen.
    """
    answerable = [(part.is_small, sure) for part, sure in zip(parts, estimates, strict=True) if part.fits]
    small = [sure for is_small, sure in answerable if is_small]
    large = [sure for is_small, sure in answerable if not is_small]
    return _set_floors(large, NEED_SHARE), _set_floors(small, SMALL_NEED_SHARE) if small else None


def _set_floors(estimates: Sequence[tuple[Floats, Floats]], need_share: float) -> Floors:
    large = [sure for sure in estimates if len(sure[0]) >= MIN_REQUESTS_FOR_FLOORS] or estimates
    needs, fits = (np.concatenate(column) for column in zip(*large, strict=True))
    mass = np.concatenate([np.full(len(sure[0]), 1 / len(sure[0])) for sure in large])
    return floors(needs, fits, mass, need_share)


def _select_fitting(train: Sequence[QueryGroup], left_out: str) -> list[QueryGroup]:
    """Select the parts with fitting tools, without the group `left_out`."""
    return [part for part in train if part.needs and part.fits and part.group != left_out]


def _take_half(part: QueryGroup, odd: bool) -> QueryGroup:
    return _select(part, range(int(odd), len(part), 2))


def _select(part: QueryGroup, places: Sequence[int]) -> QueryGroup:
    """Return the queries at these places."""
    chosen = list(places)
    return dataclasses.replace(
        part,
        rows=part.rows[chosen],
        vectors={view: rows[chosen] for view, rows in part.vectors.items()},
        texts=[part.texts[place] for place in chosen] if part.texts else (),
    )


def _table(names: Sequence[str], part: QueryGroup, wishes: Mapping[str, Floats]) -> dict[str, Floats]:
    return columns(names, part.rows, part.vectors, wishes)


class _Labelled(NamedTuple):
    """Columns of queries with one label and group. `share` sets their mass together; see `_split_mass`."""

    table: dict[str, Floats]
    label: bool
    group: str
    share: float = 1.0

    @property
    def size(self) -> int:
        return len(next(iter(self.table.values())))


def _split_mass(keys: Sequence[tuple[bool, str, float]], sizes: Sequence[int]) -> Floats:
    """Return the mass of each query, concatenated over the parts; all together it is 1.

    Each label gets half of it. Within a label, the groups get mass in proportion to their shares. Within a group, each
    query gets the same.

    Args:
        keys: (label, group, share) of each part. Parts with equal keys are one part.
        sizes: number of queries of each part.
    """
    total: dict[tuple[bool, str, float], int] = {}
    for key, size in zip(keys, sizes, strict=True):
        total[key] = total.get(key, 0) + size
    sums = {label: sum(share for key_label, _, share in total if key_label == label) for label in (False, True)}
    mass_of_query = [0.5 * key[2] / sums[key[0]] / total[key] for key in keys]
    return np.repeat(mass_of_query, sizes)


def _fit_wishes(views: Sequence[str], parts: Sequence[QueryGroup]) -> dict[str, Floats]:
    """Fit for each view the weights of the query vector that predict the need. A repeated query counts once."""
    parts = _drop_repeated(parts)
    sizes = [len(part) for part in parts]
    mass = _split_mass([(part.needs, part.group if part.needs else "", 1.0) for part in parts], sizes)
    needs = np.repeat([part.needs for part in parts], sizes)
    return {
        view: np.round(logistic(np.concatenate([part.vectors[view] for part in parts]), needs, VECTOR_RIDGE, mass), 6)
        for view in views
    }


def _drop_repeated(parts: Sequence[QueryGroup]) -> list[QueryGroup]:
    """Drop queries that a part of the same group and need holds already, where the texts are known."""
    seen: dict[tuple[str, bool], set[str]] = {}
    kept_parts = []
    for part in parts:
        chosen = part
        if part.texts:
            seen_texts = seen.setdefault((part.group if part.needs else "", part.needs), set())
            first = {text: place for place, text in reversed(list(enumerate(part.texts))) if text not in seen_texts}
            seen_texts.update(first)
            chosen = _select(part, sorted(first.values()))
        if len(chosen):
            kept_parts.append(chosen)
    return kept_parts


def _fit_linear(parts: Sequence[_Labelled]) -> Linear:
    """Fit a logistic regression on standardised columns.

    Each label, and each group in it, has its share of the weight.
    """
    names, sizes = tuple(parts[0].table), [part.size for part in parts]
    rows = np.concatenate([np.stack([part.table[name] for name in names], axis=1) for part in parts])
    labels = np.repeat([part.label for part in parts], sizes)
    mass = _split_mass([(part.label, part.group, part.share) for part in parts], sizes)
    means = np.average(rows, axis=0, weights=mass)
    deviations = np.sqrt(np.average((rows - means) ** 2, axis=0, weights=mass)) + 1e-6
    weights = logistic(np.clip((rows - means) / deviations, -MAX_DEVIATIONS, MAX_DEVIATIONS), labels, SCORE_RIDGE, mass)
    return Linear(names, _round(means), _round(deviations), _round(weights[:-1]), round(float(weights[-1]), 6))


def _round(values: Floats) -> tuple[float, ...]:
    return tuple(np.round(values, 6).tolist())


def _calibrate(linear: Linear, tables: Sequence[dict[str, Floats]], labels: Sequence[bool | None]) -> Linear:
    """Calibrate a regression on held-out queries. Queries without a label do not count."""
    sides = [
        np.concatenate([linear.logits(table) for table, label in zip(tables, labels, strict=True) if label is side])
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


def _choose_common_terms(texts: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Choose the terms that occur in most requests, and in several groups. Numbers are left out.

    Args:
        texts: group → requests.
    """
    frequency = Counter[str]()
    groups: defaultdict[str, set[str]] = defaultdict(set)
    for group, requests in texts.items():
        for text in requests:
            for term in find_terms(text):
                frequency[term] += 1
                groups[term].add(group)
    common = [term for term in frequency if len(groups[term]) >= MIN_TERM_GROUPS and not term.isdigit()]
    return tuple(sorted(common, key=lambda term: (-frequency[term], term))[:MAX_TERMS_CHOSEN])
