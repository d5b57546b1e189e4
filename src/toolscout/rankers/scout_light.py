"""The recipe `scout-light`: ranks as `scout` does, and by which tools similar requests used. It needs no torch.

Three estimates of usage are mixed: the votes of the nearest logged queries (`neighbours`), a linear classifier
(`mlc-light`), and the mean vector of the queries of a tool (`tool2vec`) ::

    usage(tool | query) = Σ_part share(part) · usage_part(tool | query)

`rankers.shared.usage` joins the mixture with the description, tool by tool: a tool without usage keeps the score that
`scout` gives it, plus a constant. Dev chooses the shares, and whether requests are split into steps. Where tools have
no usage, some more are hidden from training for this choice (`rankers.shared.hidden_tools`). Prerequisites are brought
before dev is measured, as they are in a search. New queries count at once, through the parts that can take them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from toolscout import metrics
from toolscout.arrays import Arrays, Scores
from toolscout.encoders import Encoder
from toolscout.errors import ConfigError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.rankers import Amount, Artifacts, BaseRule, Count, NonNegative, Positive
from toolscout.rankers.declared import ArrayRule, ModelDeclaration
from toolscout.rankers.lesson import DEV_METRICS, Lesson
from toolscout.rankers.mlc_light import MlcLight, choose_hidden
from toolscout.rankers.neighbours import Neighbours
from toolscout.rankers.shared.dev_choice import DevQueries, rank_by_score, rank_with_prerequisites
from toolscout.rankers.shared.hidden_tools import make_trial
from toolscout.rankers.shared.mixture import (
    Part,
    find_usual_likeness,
    know_only_near,
    load_mixture,
    mix_on_dev,
    mix_usages,
    take_part,
)
from toolscout.rankers.shared.sparse_features import Ngrams, ToolSets
from toolscout.rankers.shared.usage import (
    Blend,
    DescriptionScorer,
    HybridScorer,
    Mix,
    UsageIndex,
    UsageSide,
    build_usage_stage,
)
from toolscout.rankers.shared.usage_fit import (
    MIX_SETTINGS,
    Estimate,
    FitData,
    UsageMethod,
    read_settings,
    select_unset,
)
from toolscout.rankers.tool2vec import Tool2Vec
from toolscout.search.abstain.decision import build_abstainer
from toolscout.search.opposites import OrderActions
from toolscout.search.pipeline import DEPTH, Retrieve, Stage
from toolscout.search.prerequisites import Prerequisites, bring_prerequisites
from toolscout.search.resources import Resources
from toolscout.search.steps.splitter import load_splitter
from toolscout.search.steps.stage import StepSearch
from toolscout.types import Answer

__all__ = ["LIGHT_PARTS", "ONLY_NEAR", "STANDARD_ERRORS", "ScoutLight", "ScoutLightOptions", "Sides", "refuse_shares"]

ONLY_NEAR: Final = "only_near"
"""Name of a value of the manifest: whether usage counts only for requests that are near to a logged one.

Near is what three in four logged requests are to another one (`rankers.shared.mixture.find_usual_likeness`).

The gate sets it (`toolscout.learn.loop`) where usage would cost other requests too much.
"""
LIGHT_PARTS: Final[Mapping[str, UsageMethod]] = {
    "neighbours": Neighbours(),
    "mlc-light": MlcLight(),
    "tool2vec": Tool2Vec(),
}
SHARE_GRID: Final = (
    (0.5, 0.5, 0.0),
    (0.25, 0.75, 0.0),
    (0.1, 0.9, 0.0),
    (0.05, 0.95, 0.0),
    (0.75, 0.25, 0.0),
    (0.4, 0.4, 0.2),
    (0.75, 0.0, 0.25),
    (1.0, 0.0, 0.0),
)
"""Shares of the parts that are tried on dev, in the order of `LIGHT_PARTS`; the first of the best ones is taken.

`neighbours` has a share in each: it takes in new requests at once. `rankers.shared.mixture` raises the share of these.
"""
MIN_CLASSIFIER_QUERIES: Final = 200
MAX_CLASSIFIER_CELLS: Final = 150_000_000  # features × (hidden units, or tools and sets); memory has four such arrays
RANKING_DEPTH: Final = 20
MAX_STEP_QUERIES: Final = 1_000  # dev queries that compare whole requests with steps
STANDARD_ERRORS: Final = 2.0
"""Requests stay whole if that is better on dev by so many standard errors.

Steps are the default, because a log of requests for one tool each says little about compound requests.
"""


class ScoutLightOptions(Blend, frozen=True, forbid_unknown_fields=True):
    """Settings of `scout-light`; None: the best on dev.

    Attributes:
        shares: of the parts, in the order of `LIGHT_PARTS`; they add up to 1.
        steps: whether requests are split into steps.
        k: as in `neighbours`.
        focus: as in `neighbours`.
        hidden: as in `mlc-light`.
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
    hidden: NonNegative | None = None
    rate: Positive | None = None
    batch: Count = 256
    epochs: Count | None = None
    most_epochs: Count = 12
    sets: Amount | None = None
    beta: Positive | None = None
    novelty: Amount | None = None  # type: ignore[assignment]


def _can_classify(data: FitData) -> bool:
    """Tell whether there are enough queries for the classifier, and whether its largest layer fits into memory."""
    if data.n_train < MIN_CLASSIFIER_QUERIES:
        return False
    sets, _ = ToolSets.group(data.gold[: data.n_final])
    n_features = Ngrams.of(data.features[: data.n_final]).keys.size
    n_units = choose_hidden(data.options.hidden, data.gold[: data.n_train]) or len(data.lesson.tools) + len(sets)
    return bool(n_features * n_units <= MAX_CLASSIFIER_CELLS)


class Sides(NamedTuple):
    """The two sides of the ranking: usage, which is a mixture of parts, and description.

    Attributes:
        parts: the parts of the mixture, by name.
        make_description_scorer: (catalogue, settings of the model) → scorer of its tools by description. The scorer
            also encodes the queries for the parts, each of which reads some columns of the rows.
    """

    parts: Mapping[str, Part]
    make_description_scorer: Callable[[Catalogue, Mapping[str, Any]], DescriptionScorer]


def _estimate_parts(data: FitData, parts: Mapping[str, Part]) -> dict[str, Estimate]:
    """Learn each part from train; the classifier only if it can be trained."""
    return {name: part.estimate(data) for name, part in parts.items() if name != "mlc-light" or _can_classify(data)}


class ScoutLight:
    """Serves every step of a request by description and by the usage of similar requests.

    Attributes:
        label: name of the stage.
    """

    options_type: type[msgspec.Struct] = ScoutLightOptions
    needs_usage = True
    transfers = False
    abstains = False
    base: BaseRule | None = None
    label = "scout-light"

    def fit(self, resources: Resources, lesson: Lesson, options: Any) -> Artifacts:
        """Learn each part from train, choose on dev, then learn from both (without `refit`, only from train)."""
        encoder = resources.load_encoder()
        data = FitData(resources, lesson, options, encoder, HybridScorer)
        sides = self.open_sides(resources, encoder, lesson.base.model if lesson.base else None)
        chosen = self.prepare(data, sides)
        estimates = _estimate_parts(data, sides.parts)
        chosen |= {name: value for estimate in estimates.values() for name, value in estimate.chosen.items()}
        catalogue = Catalogue.of(lesson.tools)
        description = sides.make_description_scorer(catalogue, {**msgspec.structs.asdict(options), **chosen})
        prerequisites = bring_prerequisites(catalogue, resources.settings)
        # the queries to choose the shares on: dev, and queries whose tools are hidden where tools have no usage
        trial, usages = make_trial(
            data,
            sides.parts,
            estimates,
            chosen,
            lambda fit: np.array([description.scores(fit.texts[i], fit.rows[i]) for i in fit.dev]),
            rank_with_prerequisites(catalogue, prerequisites) if prerequisites.dependencies else rank_by_score,
        )
        resources.say("choosing the shares of the parts on dev")
        shares, mix, scores = self.choose_shares(data, trial, usages)
        chosen |= {"shares": tuple(shares.values()), **mix}
        figures = data.evaluate(scores[: len(data.dev)])  # without the queries whose tools are hidden
        if options.steps is None:
            # made once more, because `choose_shares` may have changed a setting of the scorer (scout-full does)
            description = sides.make_description_scorer(catalogue, {**msgspec.structs.asdict(options), **chosen})
            mixed = mix_usages([(share, estimates[name].usage) for name, share in shares.items() if share])
            usage = UsageSide.of(mixed, np.arange(len(lesson.tools)), data.uses(data.n_train), mix["kappa"])
            base = _build_base(catalogue, usage, description, mix, self.label)
            chosen["steps"] = _choose_steps(data, catalogue, base, prerequisites)
        # A part may have chosen a setting that is no option of this method.
        own_settings = {name: value for name, value in chosen.items() if hasattr(options, name)}
        used = [name for name, share in shares.items() if share]
        arrays = {f"{name}.{key}": array for name in used for key, array in estimates[name].finish().items()}
        return Artifacts(
            {**arrays, "uses": data.uses(data.n_final)},
            metrics=figures,
            encoder=encoder,
            chosen=select_unset(options, own_settings),
            refit=options.refit,
            files=lesson.base.save if lesson.base else None,
        )

    def open_sides(self, resources: Resources, encoder: Encoder, base: Model | None) -> Sides:
        """Return the sides of the ranking.

        Args:
            resources: settings and caches.
            encoder: the encoder of the resources.
            base: the model that the fit builds on; None: it builds on no other.
        """
        return Sides(
            parts={name: Part(method, encoder) for name, method in LIGHT_PARTS.items()},
            make_description_scorer=lambda catalogue, settings: HybridScorer.of(resources, catalogue, encoder),
        )

    def prepare(self, data: FitData, sides: Sides) -> dict[str, Any]:
        """Prepare the data before the parts are learned. Returns the settings that were chosen on dev: here none."""
        return {}

    def choose_shares(
        self, data: FitData, trial: DevQueries, usages: Mapping[str, Scores]
    ) -> tuple[dict[str, float], dict[str, Any], Scores]:
        """Choose the shares of the parts, and the settings of `mix_usage`, by their quality on the trial queries.

        Returns the shares by name of the part, the settings, and the scores of the trial queries, `(n, tools)`.

        Args:
            data: the fit, with its options.
            trial: the queries to choose on.
            usages: what each part estimates for these queries, `(n, tools)`.

        Raises:
            ConfigError: if the options name the classifier, and it cannot be trained.
        """
        grid = SHARE_GRID if data.options.shares is None else (data.options.shares,)
        tried = []
        for part_shares in grid:
            shares = dict(zip(LIGHT_PARTS, part_shares, strict=True))
            if any(share and name not in usages for name, share in shares.items()):
                continue  # the classifier was not trained
            mix, scores = trial.choose_mix(mix_on_dev(usages, shares), data.options)
            tried.append((trial.quality(scores), shares, mix, scores))
        if not tried:
            raise refuse_shares(data.options.shares)
        _, shares, mix, scores = max(tried, key=lambda choice: choice[0])  # the first of the highest quality
        return shares, mix, scores

    def declare_parts(self) -> dict[str, Callable[[Arrays], ModelDeclaration]]:
        """Return for each part, by name, the function that declares its arrays."""
        return {name: part.declare_usage for name, part in LIGHT_PARTS.items()}

    def declare(self, options: Any, arrays: Arrays) -> ModelDeclaration:
        """Declare what a model has; the names of a part's arrays begin with the name of the part."""
        if options.shares is not None and not any(options.shares):
            raise ValueError("no part of it has a share")
        rules, settings = {"uses": ArrayRule("tools")}, [*MIX_SETTINGS, "shares", "steps"]
        shares = options.shares or ()  # a model without them is refused, because `settings` has their name
        for (name, declare_part), share in zip(self.declare_parts().items(), shares, strict=False):
            if share:
                declared = declare_part(take_part(arrays, name))
                rules |= {f"{name}.{key}": _name_axes(name, rule) for key, rule in declared.arrays.items()}
                settings += declared.settings
        return ModelDeclaration(rules, tuple(settings))

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build the pipeline over a catalogue.

        Raises:
            ConfigError: if the model was fitted with another encoder, or knows no tool of the catalogue.
        """
        encoder = resources.load_encoder()
        model.check_encoder(encoder)
        model.check_catalogue(catalogue.tools())
        settings = read_settings(model)
        sides = self.open_sides(resources, encoder, self.load_base(model))
        shares = dict(zip(sides.parts, settings["shares"], strict=True))
        learned = load_mixture(sides.parts, shares, model.arrays, settings)
        if model.manifest.values.get(ONLY_NEAR):
            rows = model.arrays["neighbours.rows"]
            learned = know_only_near(learned, rows, find_usual_likeness(rows))
        usage = build_usage_stage(
            resources,
            catalogue,
            model,
            encoder,
            learned,
            label=self.label,
            description=sides.make_description_scorer(catalogue, settings),
        )
        base = usage >> OrderActions(catalogue)
        splitter = load_splitter() if settings["steps"] else None
        abstainer = build_abstainer(resources, catalogue, base, model.manifest)
        return StepSearch(base, splitter, abstainer, is_chat=abstainer.is_clear_chat if abstainer else None)

    def load_base(self, model: Model) -> Model | None:
        """Load the model that a model builds on. None: it builds on no other, as scout-light does."""
        return None


def _name_axes(part: str, rule: ArrayRule) -> ArrayRule:
    """Return the rule with axes named after the part, as in `neighbours.queries`; all parts share `tools` and `dim`."""

    def name_axis(match: re.Match[str]) -> str:
        return match[0] if match[0] in ("tools", "dim") else f"{part}.{match[0]}"

    content, _, axis = rule.content.partition(" ")  # the axis is empty for contents such as `numbers`
    axis = re.sub(r"[a-z]+", name_axis, axis)
    return ArrayRule(re.sub(r"[a-z]+", name_axis, rule.axes), f"{content} {axis}".rstrip())


def _build_base(
    catalogue: Catalogue, usage: UsageSide, description: DescriptionScorer, mix: Mapping[str, Any], label: str
) -> Stage:
    """Build the ranking of whole requests, with a usage side that was learned from train alone; `mix`: its settings."""
    index = UsageIndex(
        catalogue.ids,
        encode=description.encode,
        encode_for_usage=None,
        load_usage=lambda: usage,
        description=description,
        mix=Mix(mix["sharpness"], mix["agreement"], mix["novelty"], on_description_scale=True),
    )
    return Retrieve(index, label=label, mask=catalogue.mask, depth=DEPTH) >> OrderActions(catalogue)


def _choose_steps(data: FitData, catalogue: Catalogue, base: Stage, prerequisites: Prerequisites) -> bool:
    """Tell whether requests are split into steps: yes, unless whole requests are clearly better on dev."""
    stride = math.ceil(len(data.dev) / MAX_STEP_QUERIES)
    queries = [data.ids[place] for place in data.dev[::stride]]  # evenly from dev
    searches = [Answer(query=data.lesson.texts[query], k=RANKING_DEPTH) for query in queries]
    gold = {query: data.lesson.dev[query] for query in queries}

    def measure(stage: Stage) -> Scores:
        """Return the mean of ndcg@5 and comp@5 of each query, `(n,)`."""
        answers = (stage >> prerequisites)(searches)
        rankings = {query: answer.ids for query, answer in zip(queries, answers, strict=True)}
        values = metrics.score(rankings, gold, DEV_METRICS).values
        return (values["ndcg@5"] + values["comp@5"]) / 2

    abstainer = build_abstainer(data.resources, catalogue, base)
    is_chat = abstainer.is_clear_chat if abstainer else None
    whole, split = measure(base), measure(StepSearch(base, load_splitter(), abstainer, is_chat=is_chat))
    error = float((split - whole).std() / np.sqrt(len(queries)))  # standard error of the mean difference
    data.resources.say(
        f"ndcg@5 and comp@5 on dev: {whole.mean():.4f} whole, {split.mean():.4f} by steps, error {error:.4f}"
    )
    return bool(split.mean() >= whole.mean() - STANDARD_ERRORS * error)


def refuse_shares(shares: tuple[float, ...]) -> ConfigError:
    """Return the error for shares of a classifier that cannot be trained."""
    return ConfigError(
        f"shares: expected 0 for mlc-light, which needs {MIN_CLASSIFIER_QUERIES} training queries and a table "
        f"of at most {MAX_CLASSIFIER_CELLS:,} numbers, found {shares}"
    )
