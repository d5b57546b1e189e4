"""The house recipe with usage, without torch: `scout`, and what similar requests used.

Three estimates of usage are mixed: the votes of the nearest logged queries (`neighbours`), a linear classifier
(`mlc-light`), and the mean vector of the queries of a tool (`tool2vec`) ::

    usage(tool | query) = Σ_part share(part) · usage_part(tool | query)

`methods.shared.usage` joins the mixture with the description, tool by tool: a tool without usage keeps the score that
`scout` gives it. Dev chooses the shares, and whether requests are split into steps. New queries count at once, through
the parts that can take them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from toolscout import metrics
from toolscout.abstain.decision import build_abstainer
from toolscout.arrays import Arrays, Places, Scores, Vectors
from toolscout.catalogue.store import Catalogue
from toolscout.encoders import Encoder
from toolscout.errors import ConfigError
from toolscout.methods import Artifacts, BaseRule
from toolscout.methods.lesson import DEV_METRICS, Lesson
from toolscout.methods.mlc_light import MlcLight
from toolscout.methods.neighbours import Neighbours
from toolscout.methods.shared.ngrams import Ngrams
from toolscout.methods.shared.tool_sets import ToolSets
from toolscout.methods.shared.tuning import Amount, Count, Positive
from toolscout.methods.shared.usage import (
    Blend,
    HybridScorer,
    Learned,
    Mix,
    Usage,
    UsageIndex,
    UsageSide,
    build_usage_stage,
)
from toolscout.methods.shared.usage_fit import Estimate, FitData, UsageMethod, read_settings, select_unset
from toolscout.methods.tool2vec import Tool2Vec
from toolscout.models.model_store import Model
from toolscout.search.actions import OrderActions
from toolscout.search.fusion import DEPTH
from toolscout.search.pipeline import Retrieve, Stage
from toolscout.search.step_search import StepSearch
from toolscout.search.steps import load_splitter
from toolscout.types import Search
from toolscout.workspace import Workspace

__all__ = ["Options", "ScoutLight"]

PARTS: Final[Mapping[str, UsageMethod]] = {
    "neighbours": Neighbours(),
    "mlc-light": MlcLight(),
    "tool2vec": Tool2Vec(),
}
SHARE_GRID: Final = (
    (0.5, 0.5, 0.0),
    (0.25, 0.75, 0.0),
    (0.75, 0.25, 0.0),
    (0.4, 0.4, 0.2),
    (0.75, 0.0, 0.25),
    (1.0, 0.0, 0.0),
    (0.0, 1.0, 0.0),
    (0.0, 0.0, 1.0),
)
"""Shares of the parts that are tried on dev, in the order of `PARTS`; the first of the best ones is taken."""
MIN_CLASSIFIER_QUERIES: Final = 200
MAX_CLASSIFIER_CELLS: Final = 150_000_000  # words × (tools and sets of tools); memory holds four such arrays
RANKING_DEPTH: Final = 20
MAX_STEP_QUERIES: Final = 1_000  # of dev, on which splitting into steps is judged
STANDARD_ERRORS: Final = 2.0
"""By so many, whole requests must be better on dev than steps: a log of single needs has no compound requests."""


class Options(Blend, frozen=True, forbid_unknown_fields=True):
    """Settings of `scout-light`; None: the best on dev.

    Attributes:
        shares: of the parts, in the order of `PARTS`; they add up to 1.
        steps: whether requests are split into steps.
        k: as in `neighbours`.
        focus: as in `neighbours`.
        rate: as in `mlc-light`.
        batch: as in `mlc-light`.
        epochs: as in `mlc-light`.
        most_epochs: as in `mlc-light`.
        sets: as in `mlc-light`.
        beta: as in `tool2vec`.
    """

    shares: tuple[Amount, Amount, Amount] | None = None
    steps: bool | None = None
    k: Count | None = None
    focus: Amount | None = None
    rate: Positive = 0.3
    batch: Count = 256
    epochs: Count | None = None
    most_epochs: Count = 12
    sets: Amount | None = None
    beta: Positive | None = None
    novelty: Amount = 1.0


def _can_classify(data: FitData) -> bool:
    """Tell whether there are enough queries for the classifier, and whether its table fits into memory."""
    if data.n_train < MIN_CLASSIFIER_QUERIES:
        return False
    sets, _ = ToolSets.group(data.gold[: data.n_final])
    words = Ngrams.of(data.features[: data.n_final]).keys.size
    return bool(words * (len(data.lesson.tools) + len(sets)) <= MAX_CLASSIFIER_CELLS)


def _mix_usages(parts: Sequence[tuple[float, Usage]]) -> Usage:
    """Return the mean of several estimates by their shares. A part that does not know a query leaves it to others."""

    def usage(text: str, row: Vectors) -> Scores:
        estimates = [(share, estimate(text, row)) for share, estimate in parts]
        known = sum(share for share, shares in estimates if shares.any())
        total: Scores = np.sum([share * shares for share, shares in estimates], axis=0)
        return total / known if known else total

    return usage


def _mix_on_dev(estimates: Mapping[str, Estimate], shares: Sequence[float]) -> Scores:
    """Return the same for the dev queries, `(dev, tools)`."""
    parts = [(share, estimates[name].dev) for name, share in zip(PARTS, shares, strict=True) if share]
    known = np.sum([share * dev.any(axis=1) for share, dev in parts], axis=0)
    total: Scores = np.sum([share * dev for share, dev in parts], axis=0)
    return total / np.where(known, known, 1.0)[:, None]


class ScoutLight:
    """Serves every step of a request by description and by the usage of similar requests."""

    options_type = Options
    needs_usage = True
    transfers = False
    abstains = False
    base: BaseRule | None = None

    def fit(self, workspace: Workspace, lesson: Lesson, options: Options) -> Artifacts:
        """Learn each part from train, choose on dev, then learn from both (without `refit`, only from train)."""
        encoder = workspace.load_encoder()
        data = FitData(workspace, lesson, options, encoder, HybridScorer)
        estimates = {
            name: part.estimate(data) for name, part in PARTS.items() if name != "mlc-light" or _can_classify(data)
        }
        shares, mix, scores = self._choose_shares(data, estimates)
        chosen = {name: value for estimate in estimates.values() for name, value in estimate.chosen.items()}
        chosen |= {"shares": shares, **mix}
        figures = data.evaluate(scores)
        if options.steps is None:
            chosen["steps"] = self._choose_steps(data, estimates, {**msgspec.structs.asdict(options), **chosen})
        used = [name for name, share in zip(PARTS, shares, strict=True) if share]
        arrays = {f"{name}.{key}": array for name in used for key, array in estimates[name].finish().items()}
        return Artifacts(
            {**arrays, "uses": data.uses(data.n_final)},
            metrics=figures,
            encoder=encoder,
            chosen=select_unset(options, {name: value for name, value in chosen.items() if hasattr(options, name)}),
            refit=options.refit,
        )

    def _choose_shares(
        self, data: FitData, estimates: Mapping[str, Estimate]
    ) -> tuple[tuple[float, ...], dict[str, Any], Scores]:
        """Choose the shares on dev, with the settings of the mix; return them with the scores of dev.

        Raises:
            ConfigError: if the options name the classifier, and it cannot be trained.
        """
        data.workspace.say("choosing the shares of the parts on dev")
        missing = [number for number, name in enumerate(PARTS) if name not in estimates]
        grid = SHARE_GRID if data.options.shares is None else (data.options.shares,)
        tried = []
        for shares in grid:
            if any(shares[number] for number in missing):
                continue
            mix, scores = data.choose_mix(_mix_on_dev(estimates, shares))
            tried.append((data.quality(scores), shares, mix, scores))
        if not tried:
            raise ConfigError(
                f"shares: expected 0 for mlc-light, which needs {MIN_CLASSIFIER_QUERIES} training queries and a table "
                f"of at most {MAX_CLASSIFIER_CELLS:,} numbers, found {data.options.shares}"
            )
        _, shares, mix, scores = max(tried, key=lambda trial: trial[0])
        return shares, mix, scores

    def _choose_steps(self, data: FitData, estimates: Mapping[str, Estimate], settings: Mapping[str, Any]) -> bool:
        """Tell whether requests are split into steps: unless whole ones are clearly better on dev."""
        catalogue = Catalogue.of(data.lesson.tools)
        parts = [(share, estimates[name].usage) for name, share in zip(PARTS, settings["shares"], strict=True) if share]
        columns = np.arange(len(data.lesson.tools))
        side = UsageSide.of(_mix_usages(parts), columns, data.uses(data.n_train), settings["kappa"])
        encoder = data.workspace.load_encoder()
        index = UsageIndex(
            catalogue.ids,
            encode=lambda texts: encoder.encode(texts, "query"),
            encode_for_usage=None,
            load_usage=lambda: side,
            described=HybridScorer.of(data.workspace, catalogue, encoder),
            mix=Mix(settings["sharpness"], settings["agreement"], settings["novelty"], in_points=True),
        )
        base = Retrieve(index, label="scout-light", mask=catalogue.mask, depth=DEPTH) >> OrderActions(catalogue)
        step = -(-len(data.dev) // MAX_STEP_QUERIES)
        queries = [data.ids[place] for place in data.dev][::step]
        searches = [Search(query=data.lesson.texts[query], k=RANKING_DEPTH) for query in queries]
        gold = {query: data.lesson.dev[query] for query in queries}

        def measure(stage: Stage) -> Scores:
            rankings = {query: found.ids for query, found in zip(queries, stage(searches), strict=True)}
            values = metrics.score(rankings, gold, DEV_METRICS).values
            return (values["ndcg@5"] + values["comp@5"]) / 2

        judge = build_abstainer(data.workspace, catalogue, base)
        whole, split = measure(base), measure(StepSearch(base, load_splitter(), judge))
        error = float((split - whole).std() / np.sqrt(len(queries)))
        data.workspace.say(
            f"ndcg@5 and comp@5 on dev: {whole.mean():.4f} whole, {split.mean():.4f} by steps, error {error:.4f}"
        )
        return bool(split.mean() >= whole.mean() - STANDARD_ERRORS * error)

    def build(self, workspace: Workspace, catalogue: Catalogue, model: Model) -> Stage:
        """Build the pipeline over a catalogue.

        Raises:
            ConfigError: if the model was fitted with another encoder, or knows no tool of the catalogue.
        """
        encoder = workspace.load_encoder()
        model.check_encoder(encoder)
        model.check_catalogue(catalogue.tools())
        settings = read_settings(model)
        learned = _load_usage(model.arrays, settings, encoder)
        usage = build_usage_stage(workspace, catalogue, model, encoder, learned, label="scout-light", in_points=True)
        base = usage >> OrderActions(catalogue)
        splitter = load_splitter() if settings["steps"] else None
        return StepSearch(base, splitter, build_abstainer(workspace, catalogue, base, model.manifest))


def _load_usage(arrays: Arrays, settings: Mapping[str, Any], encoder: Encoder) -> Learned:
    """Return the mixture of the parts of a model."""
    parts: list[tuple[float, Learned]] = []
    for (name, part), share in zip(PARTS.items(), settings["shares"], strict=True):
        if share:
            own = {key.removeprefix(f"{name}."): array for key, array in arrays.items() if key.startswith(f"{name}.")}
            parts.append((share, part.load_usage({**own, "uses": arrays["uses"]}, settings, encoder)))

    def grow(texts: Sequence[str], gold: Sequence[Places], n_tools: int) -> Usage:
        return _mix_usages(
            [
                (share, part.grow(texts, gold, n_tools) if part.grow else _widen(part.usage, n_tools))
                for share, part in parts
            ]
        )

    return Learned(_mix_usages([(share, part.usage) for share, part in parts]), grow)


def _widen(usage: Usage, n_tools: int) -> Usage:
    """Return an estimate over more tools; those that its part does not know are not needed."""

    def widened(text: str, row: Vectors) -> Scores:
        shares = usage(text, row)
        return np.pad(shares, (0, n_tools - len(shares)))

    return widened
