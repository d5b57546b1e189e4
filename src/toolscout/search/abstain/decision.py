"""Estimates how likely a request needs a tool at all, and how likely a tool of the catalogue fits it.

Both probabilities, *need* and *fit*, come from logistic regressions on how the catalogue scores the request
(`search.abstain.score_features`). The first also reads the *wish*: how much the request resembles those that need
tools, whatever the catalogue is, by another regression on its vector and its words. Only the bundled encoder and BM25
are used, so the decision does not depend on the encoder and recipe that rank the hits. A request is turned away if a
probability is below its threshold, called floor. The floors follow from the false-abstention budget: the share of
answerable requests that may be turned away. The wish then decides between "no tool needed" and "no tool fits".

The numbers that ship with toolscout (`data/decision.json`) were fitted by `benchmarks/fit_decision.py`; the file names
its data. There is no verdict (None) where it would be a guess: if the encoder knows no word of the request, or if the
request is not English (`toolscout.encoders.languages`), because the fit saw English alone. Requests that name a tool,
and catalogues without a visible tool, need no verdict. Small talk is turned away in any language, by its phrases alone.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from toolscout.arrays import Floats, Mask, Vectors
from toolscout.encoders import Encoder
from toolscout.encoders.languages import is_english
from toolscout.encoders.static import StaticEncoder, load_static
from toolscout.errors import StoreError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models import model_store
from toolscout.search.abstain import calibration
from toolscout.search.abstain.calibration import sigmoid
from toolscout.search.abstain.score_features import ScoreFeatures
from toolscout.search.abstain.wording import is_small_talk, mark_terms, names_object, serves_phrase
from toolscout.search.everyday import ExpandedWords, encode_expanded
from toolscout.search.exact_names import EXACT, parse_selection
from toolscout.search.home_resources import expand_words
from toolscout.search.pipeline import Detect, Floors, Pipeline, Stage, Verdict, Visible
from toolscout.search.resources import Resources
from toolscout.search.shipped import read_shipped
from toolscout.search.steps.splitter import uses_other_result
from toolscout.types import Answer

__all__ = [
    "BUNDLED_DECISION",
    "DECISION_FORMAT",
    "Abstainer",
    "Decision",
    "Linear",
    "build_abstainer",
    "columns",
    "find_budget_share",
    "fit_floors",
    "load_bundled",
    "read",
    "wishes",
]

BUNDLED_DECISION: Final = Path(__file__).with_name("data") / "decision.json"
DECISION_FORMAT: Final = "decision/1"
VIEW: Final = "static"  # name of the bundled encoder among the views of `score_features`
MAX_DEVIATIONS: Final = 4.0  # values are clipped here: farther out they carry no information
MAX_CATALOGUE_GROWTH: Final = 2.0
"""Factor by which a catalogue may grow or shrink before the floors of a fitted model do not hold any more."""
MAX_SMALL_CATALOGUE: Final = 5  # tools; with so few, scores say little about how far the first one stands out
MAX_CHAT_NEED: Final = 0.5  # a request with a higher need is not called chat, whatever its words are
#: (words, share of the budget) of requests with at most so many words; see `find_budget_share`.
TERSE_BUDGETS: Final = ((2, 0.0), (5, 0.1), (8, 0.5))
CLEAR_CHAT_WISH: Final = -2.5  # a lower wish says that a request is chat, however few words it has
MAX_SPLIT_CHAT_WISH: Final = -2.0  # a request of several parts with a lower wish is chat if its need is very low too
MAX_SPLIT_CHAT_NEED: Final = 0.05
MIN_DEPENDENT_NEED: Final = 0.3  # a step with this need that uses the result of chat ("and email it to Anna") is a task
MAX_CHAT_STEP_WISH: Final = 1.0  # a step with a higher wish asks for a tool, however chatty the rest of the request is
_REQUEST_WORD: Final = re.compile(r"\w+")
SMALL_TALK_VERDICT: Final = Verdict(
    0.0, 0.0, "no_tool_needed", "This is small talk rather than a task for a tool.", is_sure=True
)
NO_FLOORS: Final = {"budgets": (0.0,), "need": (0.0,), "fit": (0.0,)}  # fields of `Floors` that turn nobody away


class RequestEstimate(NamedTuple):
    """The probabilities that a request needs a tool and that one fits it, and its wish (see `wishes`)."""

    need: float
    fit: float
    wish: float


class Linear(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A logistic regression on named columns, which are standardised and clipped to 4 deviations.

    Attributes:
        columns: names of the columns.
        means: mean of each column.
        deviations: standard deviation of each column, above 0.
        weights: weight of each column.
        shift: the constant. Weights and shift are calibrated: the result is the logit of a probability, if both classes
            are equally frequent.
    """

    columns: tuple[str, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    weights: tuple[float, ...]
    shift: float

    def logits(self, table: Mapping[str, Floats]) -> Floats:
        """Return the logits, (n,). `table`: column → its values, (n,)."""
        rows = np.array([table[name] for name in self.columns]).T
        means, deviations, weights = np.array((self.means, self.deviations, self.weights))
        scaled = np.clip((rows - means) / deviations, -MAX_DEVIATIONS, MAX_DEVIATIONS)
        return np.asarray((scaled * weights).sum(axis=1) + self.shift)


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fitted decision: plain numbers.

    Attributes:
        format: `DECISION_FORMAT`.
        about: record of the data and the command of the fit; JSON values.
        encoders: view (name of a way to turn a query into a vector) → fingerprint of its encoder.
        wishes: view → weights and constant of a regression that predicts the need from a query's vector alone. Its
            result is the column `wish.<view>`.
        need: regression for whether a tool is needed.
        fit: regression for whether a tool of the catalogue fits. It tells requests that the catalogue serves from those
            that are foreign to it. Among many near tools, scores do not tell whether the right one is there.
        floors: probabilities below which a request is turned away, by budget.
        terms: the terms that the view `terms` has as columns; empty: there is no such view.
        small_floors: floors for callers who see at most `MAX_SMALL_CATALOGUE` tools; None: `floors`.
        small_fit: regression of the fit for these callers; None: `fit`.
    """

    format: str
    about: dict[str, Any]
    encoders: dict[str, str]
    wishes: dict[str, tuple[float, ...]]
    need: Linear
    fit: Linear
    floors: Floors
    terms: tuple[str, ...] = ()
    small_floors: Floors | None = None
    small_fit: Linear | None = None

    def measure_wishes(self, texts: Sequence[str], vectors: Mapping[str, Vectors]) -> Floats:
        """Return the wish of each request, (n,), from its text and its vectors by view; no catalogue is needed."""
        views = {**vectors, **mark_terms(texts, self.terms)}
        no_features = np.zeros((len(texts), 0))  # score features would need a catalogue
        return wishes(columns((), no_features, views, self.wishes))

    def estimate(self, table: Mapping[str, Floats]) -> tuple[Floats, Floats]:
        """Return the probabilities of need and fit, (n,) each, from `columns`."""
        fit_logits = self.fit.logits(table)
        if self.small_fit is not None:
            is_small = table["size"] <= np.log1p(MAX_SMALL_CATALOGUE)  # the column has log(1 + tools)
            fit_logits = np.where(is_small, self.small_fit.logits(table), fit_logits)
        return sigmoid(self.need.logits(table)), sigmoid(fit_logits)


def columns(
    names: Sequence[str], rows: Floats, vectors: Mapping[str, Vectors], wishes: Mapping[str, Sequence[float] | Floats]
) -> dict[str, Floats]:
    """Return the columns that the regressions read, by name: the score features, and `wish.<view>` for each view.

    Args:
        names: names of the score features.
        rows: the score features of the queries, (n, names).
        vectors: view → vectors of the queries, (n, d).
        wishes: view → d weights and a constant; see `Decision`.
    """
    table = {name: rows[:, number] for number, name in enumerate(names)}
    for view, weights in wishes.items():
        values = np.asarray(weights, dtype=np.float64)
        table[f"wish.{view}"] = (vectors[view] * values[:-1]).sum(axis=1) + values[-1]
    return table


def wishes(table: Mapping[str, Floats]) -> Floats:
    """Return the wish of each request, (n,): the sum of its wishes by view, which `columns` returns.

    Above 0 the request resembles those that need tools, whatever the catalogue is; below 0 it resembles chat.
    """
    return np.asarray(sum(values for name, values in table.items() if name.startswith("wish.")))


def read(file: Path = BUNDLED_DECISION) -> Decision:
    """Read a decision from a JSON file.

    Raises:
        StoreError: if the file is damaged or no decision.
    """
    return read_shipped(file, Decision, DECISION_FORMAT, _has_even_weights)


def _has_even_weights(decision: Decision) -> bool:
    """Tell whether each regression has as many means, deviations and weights as columns."""
    models = [model for model in (decision.need, decision.fit, decision.small_fit) if model is not None]
    return all(
        len(model.columns) == len(model.means) == len(model.deviations) == len(model.weights) for model in models
    )


@dataclasses.dataclass(frozen=True)
class Abstainer:
    """Decides which requests one catalogue cannot serve, for the stage `Decide`.

    Attributes:
        decision: the fitted numbers.
        features: computes the score features over the catalogue.
        encoders: view → encoder of queries, in the order of `features.meanings`.
        is_word: word → whether the bundled encoder knows it as a whole, which tells the language of a request.
        mask: `Request.visible` → mask over the catalogue.
        budget: share of answerable requests that may be turned away.
        floors: thresholds of both probabilities.
        small_floors: the same where the caller sees few tools; None: `floors`.
        pipeline_floors: thresholds of a `need` that the pipeline estimated; None: such a need turns nobody away.
        sure: score of the first hit from which a request is never turned away; None: no such score.
        words: finds everyday phrases; None: no phrase counts.
    """

    decision: Decision
    features: ScoreFeatures
    encoders: Mapping[str, Encoder]
    is_word: Callable[[str], bool]
    mask: Callable[[Visible | None], Mask | None]
    budget: float
    floors: Floors
    pipeline_floors: Floors | None = None
    sure: float | None = None
    small_floors: Floors | None = None
    words: ExpandedWords | None = None

    def __call__(self, searches: Sequence[Answer]) -> list[Verdict | None]:
        """Return the verdict on each search; None where it would be a guess or is not needed (see the module)."""
        texts = [search.query for search in searches]
        vectors = {view: encoder.encode(texts, "query") for view, encoder in self.encoders.items()}
        masks = [None if search.visible is None else self.mask(search.visible) for search in searches]
        sizes = [len(self.features.words.ids) if mask is None else int(mask.sum()) for mask in masks]
        is_readable = _find_readable(texts, vectors, self.encoders, self.is_word)
        verdicts: list[Verdict | None] = [None] * len(texts)
        to_estimate = []  # numbers of searches
        for number, search in enumerate(searches):
            names_a_tool = parse_selection(search.query) is not None or any(hit.why == EXACT for hit in search.hits)
            if names_a_tool or not sizes[number]:
                continue  # there is nothing to decide
            if is_small_talk(search.query):
                verdicts[number] = SMALL_TALK_VERDICT
            elif is_readable[number]:
                to_estimate.append(number)
        estimates = self._estimate(texts, vectors, masks, to_estimate)
        for number, estimate in zip(to_estimate, estimates, strict=True):
            verdicts[number] = self._decide(searches[number], estimate, sizes[number])
        return verdicts

    @functools.cached_property
    def _wishes(self) -> dict[str, Floats]:
        """The decision's `wishes` as arrays."""
        return {view: np.array(weights) for view, weights in self.decision.wishes.items()}

    def _estimate(
        self,
        texts: Sequence[str],
        vectors: Mapping[str, Vectors],
        masks: Sequence[Mask | None],
        chosen: Sequence[int],
    ) -> list[RequestEstimate]:
        """Return the estimates for some of the texts; `chosen`: their positions.

        The wishes read the request as it is. The score features read it with the words that everyday phrases add, as a
        search does.
        """
        texts = [texts[number] for number in chosen]
        plain = {view: rows[chosen] for view, rows in vectors.items()}
        expanded = list(plain.values())
        if self.words is not None:
            expanded = [encode_expanded(texts, encoder, self.words) for encoder in self.encoders.values()]
        rows = self.features.rows(texts, expanded, [masks[number] for number in chosen])
        table = columns(self.features.names, rows, {**plain, **mark_terms(texts, self.decision.terms)}, self._wishes)
        needs, fits = self.decision.estimate(table)
        return list(map(RequestEstimate, needs.tolist(), fits.tolist(), wishes(table).tolist()))

    def is_clear_chat(self, query: str, steps: Sequence[str], visible: Visible | None = None) -> bool:
        """Tell whether a request is clearly chat, so that it should not be split into its steps.

        Small talk is chat. Another request is chat only if its wish is below `MAX_SPLIT_CHAT_WISH`, and if

        * its wish is even below `CLEAR_CHAT_WISH` and the wish of each step below `MAX_CHAT_STEP_WISH`, or its need is
          below `MAX_SPLIT_CHAT_NEED`; and
        * no later step that uses what another step makes ("write a poem and email it to Anna") has a need of
          `MIN_DEPENDENT_NEED` or more.

        A request with a text that no encoder can read is not called chat.
        """
        if is_small_talk(query):
            return True
        texts = [query, *steps]
        vectors = {view: encoder.encode(texts, "query") for view, encoder in self.encoders.items()}
        if not all(_find_readable(texts, vectors, self.encoders, self.is_word)):
            return False
        request_wish, *step_wishes = self.decision.measure_wishes(texts, vectors).tolist()
        if request_wish >= MAX_SPLIT_CHAT_WISH:
            return False
        # positions in `texts` of the later steps that use what another step makes
        dependent = [number for number, step in enumerate(steps, 1) if number > 1 and uses_other_result(step)]
        need, *dependent_needs = self._estimate_needs(texts, vectors, [0, *dependent], visible)
        if max(dependent_needs, default=0.0) >= MIN_DEPENDENT_NEED:
            return False
        has_chat_wishes = request_wish < CLEAR_CHAT_WISH and all(wish < MAX_CHAT_STEP_WISH for wish in step_wishes)
        return has_chat_wishes or need < MAX_SPLIT_CHAT_NEED

    def _estimate_needs(
        self, texts: Sequence[str], vectors: Mapping[str, Vectors], chosen: Sequence[int], visible: Visible | None
    ) -> list[float]:
        """Return the need of some of the texts; `chosen`: their positions."""
        masks = [self.mask(visible)] * len(texts)
        return [estimate.need for estimate in self._estimate(texts, vectors, masks, chosen)]

    def _decide(self, search: Answer, estimate: RequestEstimate, size: int) -> Verdict:
        """Decide one search, with its hits, from its estimate; `size`: number of tools that the caller sees.

        If the search is turned away, it counts as chat if its wish is below 0 and its need is not high; otherwise, as a
        request for tools that this catalogue lacks.
        """
        need, fit, wish = estimate
        if search.need is not None:  # the estimate of the pipeline comes first
            need = search.need
            wish = need - 0.5  # below 0 if the request more likely needs no tool
        need_floor, fit_floor = self._find_floors(search, size, wish)
        is_sure = self.sure is not None and bool(search.hits) and search.hits[0].score >= self.sure
        is_served = fit >= fit_floor and (need >= need_floor or _names_best(search))
        if is_sure or is_served or self._finds_phrase(search, wish):
            return Verdict(need, fit)
        if wish < 0 and need < MAX_CHAT_NEED:
            likelihood = f"{_format_percent(need)} likely to need one"
            reason = f"This looks like chat rather than a task for a tool ({likelihood})."
            return Verdict(need, fit, "no_tool_needed", reason)
        start = "The only tool does not seem" if size == 1 else f"None of the {size:,} tools seems"
        reason = f"{start} to fit this request ({_format_percent(fit)} likely that one fits)."
        return Verdict(need, fit, "no_tool_fits", reason)

    def _finds_phrase(self, search: Answer, wish: float) -> bool:
        """Tell whether a search that is not clearly chat has an everyday phrase that one of its first tools serves.

        False if the pipeline estimated the need itself.
        """
        if self.words is None or search.need is not None or wish < CLEAR_CHAT_WISH:
            return False
        return serves_phrase(search.query, search.ids, self.words)

    def _find_floors(self, search: Answer, size: int, wish: float) -> tuple[float, float]:
        """Return the thresholds of need and fit.

        The floors of a decision keep the budget with both together. If the pipeline estimated the need, its threshold
        is one of the pipeline's, which turns away a whole budget alone. So need and fit get half of the budget each.
        """
        floors = self.floors
        if self.small_floors is not None and size <= MAX_SMALL_CATALOGUE:
            floors = self.small_floors
        budget = self.budget * find_budget_share(search.query, wish)
        if search.need is None:
            return floors.need_at(budget), floors.fit_at(budget)
        need_floor = self.pipeline_floors.need_at(self.budget / 2) if self.pipeline_floors else 0.0
        return need_floor, floors.fit_at(budget / 2)


def find_budget_share(text: str, wish: float = 0.0) -> float:
    """Return the share of the budget that a request may use.

    Few words are little evidence ("lights off"), unless their wish (see `wishes`) is that of clear chat ("tell me a
    joke"). One or two words are no evidence, even of chat, and get no budget.
    """
    n_words = len(_REQUEST_WORD.findall(text))
    share = next((share for max_words, share in TERSE_BUDGETS if n_words <= max_words), 1.0)
    is_clear_chat = wish < CLEAR_CHAT_WISH
    return 1.0 if is_clear_chat and share > 0 else share


def _format_percent(probability: float) -> str:
    return "less than 1 %" if probability < 0.01 else f"{100 * probability:.0f} %"


def _find_readable(
    texts: Sequence[str],
    vectors: Mapping[str, Vectors],
    encoders: Mapping[str, Encoder],
    is_word: Callable[[str], bool],
) -> list[bool]:
    """Tell for each request whether every encoder knows a word of it and the decision was fitted on its language.

    That is English, except for an encoder that claims to read all languages. `vectors` have a row of zeros where the
    encoder knows no word; for the other arguments see `Abstainer`.
    """
    return [
        all(
            bool(rows[number].any()) and (encoders[view].languages is None or is_english(text, is_word))
            for view, rows in vectors.items()
        )
        for number, text in enumerate(texts)
    ]


def _names_best(search: Answer) -> bool:
    """Tell whether a search names the object of its best tool. False if the pipeline estimated the need itself."""
    return search.need is None and bool(search.hits) and names_object(search.query, search.hits[0].id)


def build_abstainer(
    resources: Resources, catalogue: Catalogue, stage: Stage, manifest: model_store.Manifest | None = None
) -> Abstainer | None:
    """Build the bundled decision over a snapshot, with the budget of the settings; None if the budget is 0.

    The requests of a fitted model may differ from those of the bundled decision. So a model has floors of its own,
    which keep the budget on the requests that it was fitted on (`fit_floors`). A champion of `toolscout learn` also has
    the value `sure`: a request with a first hit of at least this score is never turned away.

    Args:
        resources: with the settings and the caches.
        catalogue: the snapshot.
        stage: the pipeline that retrieves; if it estimates the need itself, its estimate counts.
        manifest: of the fitted model that serves; None: no fitted model serves.

    Raises:
        StoreError: if the bundled file is damaged.
    """
    budget = resources.settings.false_rejects
    if not budget:
        return None
    decision, encoder = load_bundled()
    stages = stage.stages if isinstance(stage, Pipeline) else (stage,)
    pipeline_floors = next((detect.floors for detect in stages if isinstance(detect, Detect)), None)
    if manifest is None:
        floors, small_floors, sure = decision.floors, decision.small_floors, None
    else:
        floors, small_floors, sure = _load_model_floors(manifest, len(catalogue)), None, manifest.values.get("sure")
    words = expand_words(catalogue)
    return Abstainer(
        decision,
        features=ScoreFeatures(words, {VIEW: resources.index_tools(catalogue, encoder)}),
        encoders={VIEW: encoder},
        is_word=encoder.pieces.is_word,
        mask=catalogue.mask,
        budget=budget,
        floors=floors,
        pipeline_floors=pipeline_floors,
        sure=sure,
        small_floors=small_floors,
        words=words,
    )


def _load_model_floors(manifest: model_store.Manifest, size: int) -> Floors:
    """Return a fitted model's floors; floors that turn nobody away if the catalogue's size has changed too much."""
    smaller, larger = sorted((size, manifest.n_tools))
    floors = manifest.values.get("floors")
    if floors is None or larger > MAX_CATALOGUE_GROWTH * smaller:
        floors = NO_FLOORS
    return msgspec.convert(floors, Floors)


def load_bundled() -> tuple[Decision, StaticEncoder]:
    """Load the decision that ships with toolscout, and its encoder.

    Raises:
        StoreError: if it is damaged, or does not belong to the encoder.
    """
    decision, encoder = read(), load_static()
    if decision.encoders != {VIEW: encoder.fingerprint}:
        raise StoreError(
            f"{BUNDLED_DECISION} was fitted for the encoders {decision.encoders}, not for the bundled encoder "
            f"{encoder.fingerprint}. Install toolscout again"
        )
    return decision, encoder


def fit_floors(resources: Resources, catalogue: Catalogue, texts: Sequence[str]) -> Floors:
    """Set floors of the bundled decision that keep each budget on `texts`, requests that the catalogue serves."""
    decision, encoder = load_bundled()
    expanded = expand_words(catalogue)
    features = ScoreFeatures(expanded, {VIEW: resources.index_tools(catalogue, encoder)})
    vectors = encoder.encode(texts, "query")
    readable = np.flatnonzero(_find_readable(texts, {VIEW: vectors}, {VIEW: encoder}, encoder.pieces.is_word)).tolist()
    if not readable:
        return msgspec.convert(NO_FLOORS, Floors)
    judged_texts = [texts[number] for number in readable]
    rows = features.rows(judged_texts, [encode_expanded(judged_texts, encoder, expanded)])
    views = {VIEW: vectors[readable]} | mark_terms(judged_texts, decision.terms)
    table = columns(features.names, rows, views, decision.wishes)
    return calibration.floors(*decision.estimate(table))
