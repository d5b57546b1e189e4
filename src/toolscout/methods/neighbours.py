"""Nearest logged queries: what like requests used is what this one needs. Nothing is trained.

Likeness is the mean of two cosines, of the encoder's vectors and of words and pairs of words; the K likest queries vote
for their tools with weights exp(sharpness · likeness).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np

from toolscout.arrays import Places, Scores, Vectors
from toolscout.catalogue.store import Catalogue
from toolscout.indexes import top_k
from toolscout.methods import Artifacts, BaseRule
from toolscout.methods.lesson import Lesson
from toolscout.methods.shared.ngrams import Bags, Ngrams, checksums
from toolscout.methods.shared.tuning import Amount, Count
from toolscout.methods.shared.usage import Blend, Study, Usage, best, build_usage_stage, keep_unset
from toolscout.models.model_store import Model
from toolscout.search.pipeline import Stage
from toolscout.workspace import Workspace

__all__ = ["Log", "Neighbours", "Options"]

NEIGHBOUR_GRID: Final = (10, 20, 50, 100)
FOCUS_GRID: Final = (5.0, 10.0, 20.0, 40.0)
MAX_NEIGHBOURS: Final = max(NEIGHBOUR_GRID)


class Options(Blend, frozen=True, forbid_unknown_fields=True):
    """Settings of `neighbours`; None: the best on dev.

    Attributes:
        k: how many queries vote.
        focus: how much more the nearer ones count: weights exp(focus · likeness).
    """

    k: Count | None = None
    focus: Amount | None = None
    novelty: Amount = 1.0


class Log:
    """Queries that were seen, and the tools that each used."""

    def __init__(self, rows: Vectors, bags: Bags, ngrams: Ngrams, gold: Bags, n_tools: int) -> None:
        """Take the queries' vectors `(n, dim)`, their features, and their tools as sparse rows of equal shares."""
        self.rows, self.bags, self.ngrams, self.gold, self.n_tools = rows, bags, ngrams, gold, n_tools
        order = np.argsort(bags.indices, kind="stable")
        self._holders = np.repeat(np.arange(len(bags)), np.diff(bags.indptr))[order]
        self._weights = bags.data[order]
        self._bounds = np.searchsorted(bags.indices[order], np.arange(ngrams.keys.size + 1))

    @classmethod
    def of(cls, study: Study, n: int) -> Log:
        """The first `n` queries of a fit."""
        ngrams = Ngrams.of(study.features[:n])
        bags, gold = ngrams.bags(study.features[:n]), _share_evenly(study.gold[:n])
        return cls(study.rows[:n], bags, ngrams, gold, len(study.lesson.tools))

    def nearest(self, text: str, row: Vectors) -> tuple[Places, Scores]:
        """The likest queries, best first, and how like they are; none that has nothing in common."""
        likeness = np.einsum("nd,d->n", self.rows, row)
        bag = self.ngrams.bags([checksums(text)])
        for feature, weight in zip(bag.indices, bag.data, strict=True):
            held = slice(self._bounds[feature], self._bounds[feature + 1])
            likeness[self._holders[held]] += weight * self._weights[held]
        likeness /= 2
        found = top_k(likeness, MAX_NEIGHBOURS, floor=0.0)
        return found, likeness[found]

    def votes(self, nearest: Places, likeness: Scores, k: int, focus: float) -> Scores:
        """How likely each tool is, `(tools,)`, by the `k` nearest; zeros where there is none."""
        shares = np.zeros(self.n_tools)
        if nearest.size:
            gold = self.gold.take(nearest[:k])
            ballots = np.exp(focus * (likeness[:k] - likeness[0]))
            np.add.at(shares, gold.indices, gold.data * np.repeat(ballots / ballots.sum(), np.diff(gold.indptr)))
        return shares

    def beside(self, rows: Vectors, texts: Sequence[str], gold: Sequence[Places], n_tools: int) -> Log:
        """A log of other queries that knows the same words."""
        return Log(
            rows, self.ngrams.bags([checksums(text) for text in texts]), self.ngrams, _share_evenly(gold), n_tools
        )


def _share_evenly(gold: Sequence[Places]) -> Bags:
    """The tools of each query as a sparse row of equal shares."""
    lengths = [len(each) for each in gold]
    shares = np.repeat([1 / length for length in lengths], lengths).astype(np.float32)
    return Bags(np.cumsum([0, *lengths]), np.concatenate(gold), shares)


def _vote_together(one: Log, other: Log, text: str, row: Vectors, k: int, focus: float) -> Scores:
    """The votes of the nearest queries of two logs; the tools of `other` begin with those of `one`."""
    (near, likeness), (near_too, likeness_too) = one.nearest(text, row), other.nearest(text, row)
    everything = np.concatenate([likeness, likeness_too])
    if not everything.size:
        return np.zeros(other.n_tools)
    chosen = np.argsort(-everything, kind="stable")[:k]
    ballots = np.exp(focus * (everything[chosen] - everything[chosen[0]]))
    ballots /= ballots.sum()
    shares = np.zeros(other.n_tools)
    first = chosen < len(near)
    for log, rows, weights in (
        (one, near[chosen[first]], ballots[first]),
        (other, near_too[chosen[~first] - len(near)], ballots[~first]),
    ):
        gold = log.gold.take(rows)
        np.add.at(shares, gold.indices, gold.data * np.repeat(weights, np.diff(gold.indptr)))
    return shares


class Neighbours:
    """Lets the nearest logged queries vote for the tools that they used."""

    options_type = Options
    needs_usage = True
    transfers = False
    abstains = False
    base: BaseRule | None = None

    def fit(self, workspace: Workspace, lesson: Lesson, options: Options) -> Artifacts:
        """Choose on dev among the neighbours in train; the model holds both, or train alone without `refit`."""
        encoder = workspace.load_encoder()
        study = Study(workspace, lesson, options, encoder)
        log = Log.of(study, study.n_train)
        workspace.say("looking up the neighbours of the dev queries")
        found = [log.nearest(study.texts[i], study.rows[i]) for i in study.dev]

        def usage(pair: tuple[int, float]) -> Scores:
            return np.array([log.votes(*each, *pair) for each in found])

        ks = NEIGHBOUR_GRID if options.k is None else (options.k,)
        focuses = FOCUS_GRID if options.focus is None else (options.focus,)
        k, focus = best(itertools.product(ks, focuses), lambda pair: study.quality(usage(pair)))
        chosen, figures = study.choose_mix(usage((k, focus)))
        whole = Log.of(study, study.n_kept)
        return Artifacts(
            {
                "rows": whole.rows,
                "keys": whole.ngrams.keys,
                "rarity": whole.ngrams.rarity,
                **{f"bags.{name}": array for name, array in whole.bags._asdict().items()},
                **{f"gold.{name}": array for name, array in whole.gold._asdict().items()},
                "uses": study.uses(study.n_kept),
            },
            metrics=figures,
            encoder=encoder,
            chosen=keep_unset(options, {"k": k, "focus": focus, **chosen}),
            refit=options.refit,
        )

    def build(self, workspace: Workspace, catalogue: Catalogue, model: Model) -> Stage:
        """The pipeline over a catalogue."""
        encoder = workspace.load_encoder()
        model.check_encoder(encoder)
        model.check_catalogue(catalogue.tools())
        arrays, chosen = model.arrays, model.manifest.settings
        bags, gold = (Bags(*(arrays[f"{name}.{field}"] for field in Bags._fields)) for name in ("bags", "gold"))
        log = Log(arrays["rows"], bags, Ngrams(arrays["keys"], arrays["rarity"]), gold, len(model.tools))

        k, focus = chosen["k"].value, chosen["focus"].value

        def usage(text: str, row: Vectors) -> Scores:
            return log.votes(*log.nearest(text, row), k, focus)

        def grow(texts: Sequence[str], new: Sequence[Places], n_tools: int) -> Usage:
            fresh = log.beside(encoder.encode(texts, "query"), texts, new, n_tools)
            return lambda text, row: _vote_together(log, fresh, text, row, k, focus)

        return build_usage_stage(workspace, catalogue, model, encoder, usage, label="neighbours", grow=grow)
