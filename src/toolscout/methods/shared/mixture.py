"""Mixes several estimates of usage, each with its share.

A part sees some columns of a query's row, because its encoder may be another one than that of the next part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from toolscout.arrays import Arrays, Places, Scores, Vectors
from toolscout.encoders import Encoder
from toolscout.methods.shared.usage import Learned, Usage
from toolscout.methods.shared.usage_fit import Estimate, FitData, UsageMethod

__all__ = ["ALL_COLUMNS", "JoinedEncoder", "Part", "load_mixture", "mix_on_dev", "mix_usages"]

ALL_COLUMNS = slice(None)


class JoinedEncoder:
    """Encodes a query with several encoders and joins the rows.

    Attributes:
        encoders: by name.
        columns: the columns of each encoder in a joined row.
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
    """Encodes each logged query once, because the mixture grows again with every new one."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._rows: dict[str, Vectors] = {}

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode queries as rows; forget the rows of all others."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._rows]
        fresh = dict(zip(missing, self._encoder.encode(missing, "query"), strict=True)) if missing else {}
        self._rows = {text: fresh[text] if text in fresh else self._rows[text] for text in texts}
        return np.array([self._rows[text] for text in texts], dtype=np.float32)


class Part(NamedTuple):
    """One estimate of the mixture.

    Attributes:
        method: learns it.
        encoder: of the queries that it sees.
        columns: columns of that encoder in a row.
        names: name of a setting of the method → its name among the settings of the mixture, where they differ.
    """

    method: UsageMethod
    encoder: Encoder
    columns: slice = ALL_COLUMNS
    names: Mapping[str, str] = {}

    def estimate(self, data: FitData) -> Estimate:
        """Learn usage from train, with the settings that are best on dev."""
        options = data.options
        if self.names:
            values = {own: getattr(options, name) for own, name in self.names.items()}
            options = self.method.options_type(**values, refit=options.refit)
        estimate = self.method.estimate(data.see(self.columns, options))
        chosen = {self.names.get(name, name): value for name, value in estimate.chosen.items()}
        return estimate._replace(chosen=chosen, usage=self._see(estimate.usage))

    def load(self, arrays: Arrays, settings: Mapping[str, Any]) -> Learned:
        """Return the usage side of a model."""
        own = {**settings, **{name: settings[outer] for name, outer in self.names.items()}}
        learned = self.method.load_usage(arrays, own, _QueryMemory(self.encoder).encode)

        def grow(texts: Sequence[str], gold: Sequence[Places], n_tools: int) -> Usage:
            usage = learned.grow(texts, gold, n_tools) if learned.grow else _widen(learned.usage, n_tools)
            return self._see(usage)

        return Learned(self._see(learned.usage), grow)

    def _see(self, usage: Usage) -> Usage:
        """Return the same estimate, from a whole row."""
        return lambda text, row: usage(text, row[self.columns])


def mix_usages(parts: Sequence[tuple[float, Usage]]) -> Usage:
    """Return the mean of several estimates by their shares. A part that does not know a query leaves it to others."""

    def usage(text: str, row: Vectors) -> Scores:
        estimates = [(share, estimate(text, row)) for share, estimate in parts]
        known = sum(share for share, shares in estimates if shares.any())
        total: Scores = np.sum([share * shares for share, shares in estimates], axis=0)
        return total / known if known else total

    return usage


def mix_on_dev(estimates: Mapping[str, Estimate], shares: Mapping[str, float]) -> Scores:
    """Return the same for the dev queries, `(dev, tools)`."""
    parts = [(share, estimates[name].dev) for name, share in shares.items() if share]
    known = np.sum([share * dev.any(axis=1) for share, dev in parts], axis=0)
    total: Scores = np.sum([share * dev for share, dev in parts], axis=0)
    return total / np.where(known, known, 1.0)[:, None]


def load_mixture(
    parts: Mapping[str, Part], shares: Mapping[str, float], arrays: Arrays, settings: Mapping[str, Any]
) -> Learned:
    """Return the mixture of the parts of a model. Arrays of a part begin with its name and a point."""
    loaded: list[tuple[float, Learned]] = []
    for name, part in parts.items():
        if shares[name]:
            own = {key.removeprefix(f"{name}."): array for key, array in arrays.items() if key.startswith(f"{name}.")}
            loaded.append((shares[name], part.load({**own, "uses": arrays["uses"]}, settings)))

    def grow(texts: Sequence[str], gold: Sequence[Places], n_tools: int) -> Usage:
        growing = [(share, part.grow) for share, part in loaded]
        return mix_usages([(share, make(texts, gold, n_tools)) for share, make in growing if make is not None])

    return Learned(mix_usages([(share, part.usage) for share, part in loaded]), grow)


def _widen(usage: Usage, n_tools: int) -> Usage:
    """Return an estimate over more tools; those that its part does not know are not needed."""

    def estimate_all(text: str, row: Vectors) -> Scores:
        shares = usage(text, row)
        return np.pad(shares, (0, n_tools - len(shares)))

    return estimate_all
