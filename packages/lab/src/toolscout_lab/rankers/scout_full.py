"""The house recipe with usage and torch: `scout-light`, and estimates of two tuned encoders in the same mixture.

`dpr` tunes an encoder to place requests near their tools. `mlc-dpr` goes on from it and learns a classifier over tools
and sets of tools. Both are bases of this fit, trained once and kept. Three estimates join those of `scout-light`: the
classifier, the votes of the nearest logged queries by its encoder, and the nearest tools by the encoder of `dpr`.

Dev chooses the shares step by step. A tool without usage keeps the score that `scout` gives it. The description of
every tool may take in the encoder of `dpr`: as much as dev shows, where it has requests for tools without usage; a
usual weight, where it has hardly any, and few requests are expected to need such a tool.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from toolscout.arrays import Arrays, Scores, Vectors
from toolscout.encoders import Encoder
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models import model_store
from toolscout.home.models.model_store import Model
from toolscout.indexes.exact import Exact
from toolscout.rankers import Amount, Artifacts, BaseRule, Count, Positive
from toolscout.rankers.declared import ArrayRule, ModelDeclaration
from toolscout.rankers.lesson import Lesson
from toolscout.rankers.neighbours import Neighbours
from toolscout.rankers.scout_light import (
    LIGHT_PARTS,
    STANDARD_ERRORS,
    ScoutLight,
    ScoutLightOptions,
    Sides,
    refuse_shares,
)
from toolscout.rankers.shared.dev_choice import DevQueries, choose_best
from toolscout.rankers.shared.hidden_tools import expect_new_tools
from toolscout.rankers.shared.mixture import JoinedEncoder, Part, mix_on_dev
from toolscout.rankers.shared.usage import (
    Encode,
    FittedUsage,
    HybridScorer,
    compute_standard_scores,
    softmax,
)
from toolscout.rankers.shared.usage_fit import Estimate, FitData, UsageMethod
from toolscout.search.resources import BASE_FOLDER, Resources
from toolscout_lab.encoders.transformer import TransformerEncoder
from toolscout_lab.rankers.dpr import TUNED_TEXT_STYLE, load_model_encoder
from toolscout_lab.rankers.mlc import load_classifier
from toolscout_lab.rankers.shared.tuning import ENCODER_FOLDER

__all__ = ["ScoutFull", "ScoutFullOptions"]

CLOSENESS_GRID: Final = (10.0, 20.0, 40.0, 80.0)
TUNED_WEIGHT_GRID: Final = (0.0, 0.5, 1.0, 2.0, 4.0)
MIN_NEW_TOOL_QUERIES: Final = 10
USUAL_TUNED_WEIGHT: Final = 1.0  # where tools have no usage, and dev has fewer queries for them
MAX_USUAL_SHARE: Final = 0.2  # of requests that are expected to need such a tool; with more, toollinkos lost six points
USUAL_TUNED_NOVELTY: Final = 0.5  # with it: the tuned encoder brings new tools, so they need no bonus; as in `mlc`
SHARE_STEPS: Final = (0.1, 0.25, 0.5)  # shares of the whole that a step gives to one part
MIN_SHARE_GAIN: Final = 5e-4  # of ndcg@5 and comp@5 on dev, which a step must bring
MAX_SHARE_STEPS: Final = 10
STAND_INS: Final = ("mlc-light", "neighbours")  # speak for what the encoders would learn of other queries
NEAR_NAMES: Final = {"k": "near_k", "focus": "near_focus"}


class ScoutFullOptions(ScoutLightOptions, frozen=True, forbid_unknown_fields=True):
    """Settings of `scout-full`; None: the best on dev.

    Attributes:
        base: the recipe that tunes the encoders.
        shares: how much each of six estimates of usage counts, adding up to 1: `neighbours`, `mlc-light` and
            `tool2vec` as in `scout-light`, then `mlc` (its classifier), `near` (`neighbours` by the encoder of `mlc`)
            and `dpr` (the cosines of `dpr`).
        near_k: k of `neighbours` by the encoder of `mlc`.
        near_focus: focus of `neighbours` by the encoder of `mlc`.
        closeness: factor of the cosines of `dpr` before their softmax.
        tuned_weight: points that the description score of a tool gains for each standard deviation by which its
            cosine with the query, by the encoder of `dpr`, is above the mean.
    """

    base: str = "mlc-dpr"
    shares: tuple[Amount, ...] | None = None  # type: ignore[assignment]
    near_k: Count | None = None
    near_focus: Amount | None = None
    closeness: Positive | None = None
    tuned_weight: Amount | None = None


class _Classified(UsageMethod):
    """The classifier of a fitted model, as a part of a mixture."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def estimate(self, data: FitData) -> Estimate:
        """Return the estimate of the model, which learned from train alone."""
        usage = load_classifier(self.model)
        dev = np.array([usage(data.texts[i], data.rows[i]) for i in data.dev])
        return Estimate(dev=dev, usage=usage, chosen={}, finish=dict)

    def load_usage(self, arrays: Arrays, settings: Mapping[str, Any], encode: Encode) -> FittedUsage:
        """Load the classifier. It learns new queries in the next fit."""
        return FittedUsage(load_classifier(self.model))


class _Nearest(UsageMethod):
    """The nearest tools by a tuned encoder, as a part of a mixture."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    def estimate(self, data: FitData) -> Estimate:
        """Choose on dev how much nearer tools are likelier."""
        vectors = data.resources.encode_tools(self.encoder, data.lesson.tools, TUNED_TEXT_STYLE)
        cosines = data.rows[data.n_train :] @ vectors.T

        def estimate_probabilities(closeness: float) -> Scores:
            return softmax(closeness * cosines.astype(np.float64))

        closeness = data.options.closeness
        if closeness is None:
            closeness = choose_best(CLOSENESS_GRID, lambda tried: data.likelihood(estimate_probabilities(tried)))
        return Estimate(
            dev=estimate_probabilities(closeness),
            usage=lambda text, row: _softmax_of_cosines(vectors, row, closeness),
            chosen={"closeness": closeness},
            finish=lambda: {"vectors": vectors},
        )

    def load_usage(self, arrays: Arrays, settings: Mapping[str, Any], encode: Encode) -> FittedUsage:
        """Load the vectors of the tools."""
        return FittedUsage(lambda text, row: _softmax_of_cosines(arrays["vectors"], row, settings["closeness"]))


def _softmax_of_cosines(vectors: Vectors, row: Vectors, closeness: float) -> Scores:
    return softmax(closeness * np.einsum("nd,d->n", vectors, row).astype(np.float64))


class _TunedScorer(HybridScorer):
    """Scores as `hybrid` does, and by a tuned encoder. Its rows are those of a `JoinedEncoder`."""

    joined: JoinedEncoder
    tuned: Exact
    weight: float

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode queries with all encoders."""
        return self.joined.encode(texts)

    def scores(self, text: str, row: Vectors) -> Scores:
        """Return the score of `hybrid` + weight · standard score by the tuned encoder, `(tools,)`."""
        scores = super().scores(text, row[self.joined.columns["plain"]])
        if self.weight:
            scores += self.weight * compute_standard_scores(self.tuned, row[self.joined.columns["dpr"]])
        return scores


class ScoutFull(ScoutLight):
    """Serves every step of a request by description and by usage, with tuned encoders."""

    options_type = ScoutFullOptions
    base = BaseRule("thinned", "a recipe that tunes a classifier over dpr (mlc-dpr)")
    label = "scout-full"

    def fit(self, resources: Resources, lesson: Lesson, options: Any) -> Artifacts:
        """Fit the mixture over the base; the seconds count those of the base and of its base too."""
        artifacts = super().fit(resources, lesson, options)
        assert lesson.base is not None and lesson.base.model is not None
        tuned = lesson.base.model
        models = (tuned.manifest, model_store.read_manifest(tuned.folder / BASE_FOLDER))
        return dataclasses.replace(artifacts, seconds_before=sum(manifest.fit_seconds for manifest in models))

    def open_sides(self, resources: Resources, encoder: Encoder, base: Model | None) -> Sides:
        """Return the sides of the ranking; see `ScoutLight.open_sides`."""
        assert base is not None
        nearest = load_model_encoder(model_store.load(base.folder / BASE_FOLDER))
        classified = TransformerEncoder(str(base.folder / ENCODER_FOLDER))
        joined = JoinedEncoder({"plain": encoder, "dpr": nearest, "mlc": classified})
        columns = joined.columns

        def make_description_scorer(catalogue: Catalogue, settings: Mapping[str, Any]) -> HybridScorer:
            scorer = _TunedScorer.of(resources, catalogue, encoder)
            scorer.joined, scorer.weight = joined, settings["tuned_weight"]
            if scorer.weight:
                scorer.tuned = resources.index_tools(catalogue, nearest, TUNED_TEXT_STYLE)
            return scorer

        parts = {name: Part(method, encoder, columns["plain"]) for name, method in LIGHT_PARTS.items()}
        parts["mlc"] = Part(_Classified(base), classified, columns["mlc"], stand_ins=STAND_INS)
        parts["near"] = Part(Neighbours(), classified, columns["mlc"], NEAR_NAMES, stand_ins=("neighbours",))
        parts["dpr"] = Part(_Nearest(nearest), nearest, columns["dpr"], stand_ins=STAND_INS)
        return Sides(parts, make_description_scorer)

    def declare_parts(self) -> dict[str, Callable[[Arrays], ModelDeclaration]]:
        """Return what declares the arrays of the parts; `near` and `dpr` have the widths of their encoders."""

        def declare_near(arrays: Arrays) -> ModelDeclaration:
            rules = Neighbours().declare_usage(arrays).arrays
            return ModelDeclaration({**rules, "rows": ArrayRule("queries width")}, tuple(NEAR_NAMES.values()))

        def declare_nearest(arrays: Arrays) -> ModelDeclaration:
            return ModelDeclaration({"vectors": ArrayRule("tools width")}, ("closeness",))

        own = {"mlc": lambda arrays: ModelDeclaration({}), "near": declare_near, "dpr": declare_nearest}
        return {**super().declare_parts(), **own}

    def load_base(self, model: Model) -> Model | None:
        """Load the model that a model builds on."""
        return model_store.load(model.folder / BASE_FOLDER)

    def prepare(self, data: FitData, sides: Sides) -> dict[str, Any]:
        """Encode the queries with the tuned encoders, and choose the weight of `dpr` in descriptions."""
        resources, tools = data.resources, data.lesson.tools
        nearest = sides.parts["dpr"].encoder
        rows = [resources.encode_queries(sides.parts[name].encoder, data.texts) for name in ("dpr", "mlc")]
        data.rows = np.hstack([data.rows, *rows])
        index = Exact.of([tool.id for tool in tools], resources.encode_tools(nearest, tools, TUNED_TEXT_STYLE))
        points = np.array([compute_standard_scores(index, row) for row in rows[0][data.n_train :]])
        weight = data.options.tuned_weight
        if weight is None:
            weight = _choose_tuned_weight(data, points)
        data.description_scores = data.description_scores + weight * points
        data.tuned_scores = points
        return {"tuned_weight": weight}

    def choose_shares(
        self, data: FitData, trial: DevQueries, usages: Mapping[str, Scores]
    ) -> tuple[dict[str, float], dict[str, Any], Scores]:
        """Choose the shares step by step, with the settings of the mix; see `ScoutLight.choose_shares`.

        They are chosen without the usual weight of `dpr` in descriptions: on queries for hidden tools it would look
        better than on new ones.

        Raises:
            ConfigError: if the options name the classifier of `scout-light`, and it cannot be trained.
        """
        names = [*LIGHT_PARTS, "mlc", "near", "dpr"]
        if data.options.shares is not None:
            shares = dict(zip(names, data.options.shares, strict=True))
            if any(share and name not in usages for name, share in shares.items()):
                raise refuse_shares(data.options.shares)
        else:
            shares = _choose_shares_by_steps(data, trial, usages, names)
        usage = mix_on_dev(usages, shares)
        settings, scores = trial.choose_mix(usage, data.options)
        if not _takes_usual_weight(data):
            return shares, settings, scores
        settings |= {"tuned_weight": USUAL_TUNED_WEIGHT}
        if data.options.novelty is None:
            settings |= {"novelty": USUAL_TUNED_NOVELTY}
        dev = data.dev_queries(trial.rank)
        dev = dev._replace(description=dev.description + USUAL_TUNED_WEIGHT * data.tuned_scores)
        return shares, settings, dev.mix(usage[: len(data.dev)], settings)


def _takes_usual_weight(data: FitData) -> bool:
    """Tell whether a few requests will need tools without usage, and dev cannot say how the encoder finds these tools.

    Where many will, the choice on queries for hidden tools keeps what the description finds. These queries cannot say
    how well the encoder finds new tools: it has learned from them.
    """
    if data.options.tuned_weight is not None or data.needs_new_tool().sum() >= MIN_NEW_TOOL_QUERIES:
        return False
    return 0 < expect_new_tools(data) <= MAX_USUAL_SHARE


def _choose_shares_by_steps(
    data: FitData, trial: DevQueries, usages: Mapping[str, Scores], names: Sequence[str]
) -> dict[str, float]:
    """Begin with the best single part; then move the mixture towards the part that gains most, while one does."""
    singles = {name: trial.choose_mix(usage, data.options) for name, usage in usages.items()}
    quality = {name: trial.quality(scores) for name, (_, scores) in singles.items()}
    data.resources.say(", ".join(f"{name} {value:.4f}" for name, value in quality.items()))
    best = choose_best(quality, quality.__getitem__)
    settings, reached = singles[best][0], quality[best]

    def measure(shares: Mapping[str, float]) -> float:
        return trial.quality(trial.mix(mix_on_dev(usages, shares), settings))

    shares = {name: float(name == best) for name in names}
    for _ in range(MAX_SHARE_STEPS):
        moved = [
            {name: round((1 - step) * share + step * (name == part), 4) for name, share in shares.items()}
            for part in usages
            for step in SHARE_STEPS
        ]
        gained = [measure(candidate) for candidate in moved]
        place = int(np.argmax(gained))
        if gained[place] < reached + MIN_SHARE_GAIN:
            break
        shares, reached = moved[place], gained[place]
    data.resources.say(f"{reached:.4f} with " + ", ".join(f"{name} {share}" for name, share in shares.items() if share))
    return shares


def _choose_tuned_weight(data: FitData, points: Scores) -> float:
    """Choose on dev how much the tuned encoder counts in descriptions; 0 unless requests for new tools clearly gain."""
    new = data.needs_new_tool()
    if new.sum() < MIN_NEW_TOOL_QUERIES:
        return 0.0
    measured = {weight: data.measure(data.description_scores + weight * points)[new] for weight in TUNED_WEIGHT_GRID}
    best = choose_best(TUNED_WEIGHT_GRID, lambda weight: float(measured[weight].mean()))
    gain = measured[best] - measured[0.0]
    error = float(gain.std() / np.sqrt(len(gain)))
    data.resources.say(
        f"requests for new tools on dev ({len(gain)}): "
        + ", ".join(f"{weight}: {values.mean():.4f}" for weight, values in measured.items())
        + f", error {error:.4f}"
    )
    return best if gain.mean() >= STANDARD_ERRORS * error else 0.0
