"""Mixes the estimates of several methods, each with its share: a method is a part of the mixture.

A `Usage` is a function: text and vector of a query → the probability that each tool is called.

The parts may have different encoders. The row of a query has the vectors of all of them side by side, and a part reads
the columns of its own encoder.

Some parts take in queries that came after the fit (`FittedUsage.grow`); the others are fixed until the next fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from toolscout.arrays import Array, Arrays, Places, Scores, Vectors
from toolscout.encoders import Encoder
from toolscout.rankers.shared.usage import FittedUsage, LiveEstimate, LiveUsage, Usage
from toolscout.rankers.shared.usage_fit import Estimate, FitData, UsageMethod

__all__ = [
    "ALL_COLUMNS",
    "JoinedEncoder",
    "Part",
    "find_usual_likeness",
    "know_only_near",
    "load_mixture",
    "mix_on_dev",
    "mix_usages",
    "take_part",
]

ALL_COLUMNS = slice(None)
USUAL_LIKENESS_SHARE: Final = 0.75  # of the logged queries, which have another one as near as the result
MAX_LIKENESS_QUERIES: Final = 500  # for which the nearest other query is looked up
SAME_QUERY_TOLERANCE: Final = 1e-4  # if a cosine is this near to 1, both queries are the same
MIN_FRESH_SHARE: Final = 0.3  # of the mixture, for the queries since the fit; a sure classifier still outvotes them


class JoinedEncoder:
    """Encodes a query with several encoders, and puts the vectors side by side in one row.

    Attributes:
        encoders: by name.
        columns: name of an encoder → its columns in the row.
    """

    def __init__(self, encoders: Mapping[str, Encoder]) -> None:
        """Lay out the columns in the order of the encoders."""
        self.encoders, self.columns = dict(encoders), {}
        start = 0
        for name, encoder in encoders.items():
            self.columns[name] = slice(start, start + encoder.dim)
            start += encoder.dim

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode queries as rows, `(n, sum of the dims)`."""
        rows: Vectors = np.hstack([encoder.encode(texts, "query") for encoder in self.encoders.values()])
        return rows


class _QueryMemory:
    """Encodes each query since the fit once, although every new query rebuilds the mixture from all of them."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._rows: dict[str, Vectors] = {}  # query → vector, of the last call

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode queries as rows, `(n, dim)`. Rows of queries that are not among `texts` are forgotten."""
        earlier_rows = self._rows  # another thread may replace them meanwhile
        missing = [text for text in dict.fromkeys(texts) if text not in earlier_rows]
        fresh = dict(zip(missing, self._encoder.encode(missing, "query"), strict=True)) if missing else {}
        self._rows = rows = {text: fresh[text] if text in fresh else earlier_rows[text] for text in texts}
        return np.array([rows[text] for text in texts], dtype=np.float32)


class Part(NamedTuple):
    """One part of the mixture.

    Attributes:
        method: learns the part's estimate.
        encoder: encodes the queries for the method.
        columns: columns of this encoder in the row of a query.
        names: name of a setting of the method → its name among the settings of the mixture, where they differ.
        stand_ins: names of parts whose estimate is taken where this one would have to learn anew, the best first.
    """

    method: UsageMethod
    encoder: Encoder
    columns: slice = ALL_COLUMNS
    names: Mapping[str, str] = {}
    stand_ins: Sequence[str] = ()

    def estimate(self, data: FitData) -> Estimate:
        """Learn usage from train, with the settings that are best on dev."""
        options = data.options
        if self.names:  # the options are those of the mixture
            values = {name: getattr(options, mixture_name) for name, mixture_name in self.names.items()}
            options = self.method.options_type(**values, refit=options.refit)
        estimate = self.method.estimate(data.select_columns(self.columns, options))
        chosen = {self.names.get(name, name): value for name, value in estimate.chosen.items()}
        return estimate._replace(chosen=chosen, usage=self._accept_joined_rows(estimate.usage))

    def load(self, arrays: Arrays, settings: Mapping[str, Any]) -> FittedUsage:
        """Return the usage side of a model."""
        method_settings = {**settings, **{name: settings[mixture_name] for name, mixture_name in self.names.items()}}
        learned = self.method.load_usage(arrays, method_settings, _QueryMemory(self.encoder).encode)
        grow_part = learned.grow
        if grow_part is None:
            return FittedUsage(self._accept_joined_rows(learned.usage))

        def grow(texts: Sequence[str], gold: Sequence[Places], n_tools: int) -> LiveUsage:
            grown = grow_part(texts, gold, n_tools)
            return lambda text, row: grown(text, row[self.columns])

        return FittedUsage(self._accept_joined_rows(learned.usage), grow)

    def _accept_joined_rows(self, usage: Usage) -> Usage:
        """Return a usage that gets rows with the columns of all encoders, and passes its part's columns on."""
        return lambda text, row: usage(text, row[self.columns])


def mix_usages(parts: Sequence[tuple[float, Usage]]) -> Usage:
    """Return a usage that is the mean of several, weighted by their shares. A part counts only for queries it knows."""
    return lambda text, row: _compute_mean([(share, estimate(text, row)) for share, estimate in parts])


def _compute_mean(estimates: Sequence[tuple[float, Scores]]) -> Scores:
    """Return the mean of the estimates that know the query, weighted by their shares; all zeros if none knows it."""
    share_sum = sum(share for share, probabilities in estimates if probabilities.any())
    total: Scores = np.sum([share * probabilities for share, probabilities in estimates], axis=0)
    return total / share_sum if share_sum else total


def mix_on_dev(usages: Mapping[str, Scores], shares: Mapping[str, float]) -> Scores:
    """Return the estimate of `mix_usages` for the dev queries, `(dev, tools)`.

    Args:
        usages: name of a part → its estimate for them, `(dev, tools)`.
        shares: name of a part → its share.
    """
    parts = [(share, usages[name]) for name, share in shares.items() if share]
    share_sums = np.sum([share * probabilities.any(axis=1) for share, probabilities in parts], axis=0)
    total: Scores = np.sum([share * probabilities for share, probabilities in parts], axis=0)
    return total / np.where(share_sums, share_sums, 1.0)[:, None]


def find_usual_likeness(rows: Vectors) -> float:
    """Return how near logged queries usually are: three in four have another one with this cosine or a higher one.

    `rows`: the vectors of the logged queries, `(n, dim)`.
    """
    sample = rows[:: -(-len(rows) // MAX_LIKENESS_QUERIES)]  # every n-th query, n rounded up
    cosines = sample @ rows.T
    cosines[cosines > 1 - SAME_QUERY_TOLERANCE] = -1.0  # leave out the query itself, and its repetitions
    return float(np.quantile(cosines.max(axis=1), 1 - USUAL_LIKENESS_SHARE))


def know_only_near(learned: FittedUsage, rows: Vectors, min_likeness: float) -> FittedUsage:
    """Return the same usage, which knows a query only if a logged query has the cosine `min_likeness` with it.

    Args:
        learned: the usage side of a model.
        rows: vectors of the logged queries, `(n, dim)`.
        min_likeness: the lowest cosine of a query that is near.
    """

    def is_near(row: Vectors) -> bool:
        own_columns = row[: rows.shape[1]]  # the encoder of `rows` has the first columns
        return bool((rows @ own_columns).max(initial=-1.0) >= min_likeness)

    def usage(text: str, row: Vectors) -> Scores:
        probabilities = learned.usage(text, row)
        return probabilities if is_near(row) else np.zeros_like(probabilities)

    if (grow := learned.grow) is None:
        return learned._replace(usage=usage)

    def grow_near(texts: Sequence[str], gold: Sequence[Places], n_tools: int) -> LiveUsage:
        """Learn from new queries. For a query that is not near those of the fit, only the new ones count."""
        grown = grow(texts, gold, n_tools)

        def estimate_near(text: str, row: Vectors) -> LiveEstimate:
            estimate = grown(text, row)
            if is_near(row) or estimate.fresh is None:
                return estimate
            return LiveEstimate(estimate.fresh, estimate.fresh)

        return estimate_near

    return learned._replace(usage=usage, grow=grow_near)


def load_mixture(
    parts: Mapping[str, Part], shares: Mapping[str, float], arrays: Arrays, settings: Mapping[str, Any]
) -> FittedUsage:
    """Return the mixture of the parts of a model.

    Args:
        parts: by name.
        shares: weight of each part in the mean; a part with 0 is not loaded.
        arrays: of the model. Those of a part begin with its name and a point, as in `neighbours.rows`. `uses` has, for
            each tool, how many queries of the fit needed it.
        settings: of the model.
    """
    loaded: list[tuple[float, FittedUsage]] = []
    for name, part in parts.items():
        if shares[name]:
            loaded.append((shares[name], part.load({**take_part(arrays, name), "uses": arrays["uses"]}, settings)))
    grow = partial(_grow_mixture, loaded, len(arrays["uses"]))  # `uses` has an entry for each tool of the model
    return FittedUsage(mix_usages([(share, part.usage) for share, part in loaded]), grow)


def _grow_mixture(
    loaded: Sequence[tuple[float, FittedUsage]],
    n_fitted: int,
    texts: Sequence[str],
    gold: Sequence[Places],
    n_tools: int,
) -> LiveUsage:
    """Return the mixture with new queries; see `Grow`.

    Args:
        loaded: share and usage of each part.
        n_fitted: number of tools in the model. The positions after them are of tools that came later.
        texts: of the new queries.
        gold: positions of the tools of each new query.
        n_tools: how many tools there are now.
    """
    growing = [(share, part.grow(texts, gold, n_tools)) for share, part in loaded if part.grow]
    fixed = [(share, _widen(part.usage, n_tools)) for share, part in loaded if not part.grow]

    def usage(text: str, row: Vectors) -> LiveEstimate:
        """Estimate which tools a query needs: the weighted mean of the parts. Only parts that grow know new tools."""
        estimates = [(share, estimate(text, row)) for share, estimate in growing]
        by_growing = [(share, estimate.probabilities) for share, estimate in estimates]
        probabilities = _compute_mean(by_growing + [(share, estimate(text, row)) for share, estimate in fixed])
        probabilities = _raise_fresh(probabilities, estimates)
        if by_growing:  # fixed parts cannot know tools that came after the fit
            probabilities[n_fitted:] = _compute_mean(by_growing)[n_fitted:]
        return LiveEstimate(probabilities)

    return usage


def take_part(arrays: Arrays, name: str) -> dict[str, Array]:
    """Return the arrays of a part of a mixture, by their names in the part."""
    return {key.removeprefix(f"{name}."): array for key, array in arrays.items() if key.startswith(f"{name}.")}


def _raise_fresh(probabilities: Scores, estimates: Sequence[tuple[float, LiveEstimate]]) -> Scores:
    """Raise the share that the queries since the fit have in the mixture to `MIN_FRESH_SHARE`.

    The parts without `LiveEstimate.fresh` learn these queries only in the next fit, and might outvote them until then.

    Args:
        probabilities: of each tool, by all parts, `(tools,)`.
        estimates: share and estimate of each part that takes in new queries.
    """
    voters = [(share, estimate.fresh) for share, estimate in estimates if estimate.fresh is not None]
    voting_share = sum(share for share, _ in voters)
    if not 0 < voting_share < MIN_FRESH_SHARE:
        return probabilities
    fresh: Scores = np.sum([share * votes for share, votes in voters], axis=0) / voting_share
    added_share = (MIN_FRESH_SHARE - voting_share) / (1 - voting_share)  # the voters then have MIN_FRESH_SHARE in all
    # Where older queries vote as well, `fresh` sums to less than 1, and the rest stays with `probabilities`.
    raised: Scores = (1 - added_share * fresh.sum()) * probabilities + added_share * fresh
    return raised


def _widen(usage: Usage, n_tools: int) -> Usage:
    """Return a usage over `n_tools` tools; those that its part does not know have the probability 0."""

    def estimate_all(text: str, row: Vectors) -> Scores:
        probabilities = usage(text, row)
        return np.pad(probabilities, (0, n_tools - len(probabilities)))

    return estimate_all
