"""Estimates two probabilities: that a request needs a tool at all, and that a tool of the catalogue fits it.

Both come from logistic regressions on how the catalogue scores the request (`toolscout.abstain.score_features`). The
first also reads the meaning of the request, by another regression on its vector. Only the bundled encoder and BM25 are
used, so the decision does not depend on the encoder and recipe that rank the hits. A request is turned away if a
probability lies below its threshold. The thresholds follow from the false-abstention budget: the share of answerable
requests that may be turned away. Which of the two answers the caller then gets depends on the request alone: whether
such requests need tools elsewhere.

The numbers that ship with toolscout (`data/decision.json`) were fitted by `benchmarks/fit_decision.py`; the file says
on what. They say nothing (None) where they would guess: about tools that the request names, about requests without a
word that the encoder knows, as in most languages but English, and where no tool is visible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from toolscout.abstain import calibration
from toolscout.abstain.logistic import sigmoid
from toolscout.abstain.score_features import ScoreFeatures
from toolscout.arrays import Floats, Mask, Vectors
from toolscout.catalogue.store import Catalogue
from toolscout.encoders import Encoder
from toolscout.encoders.static import StaticEncoder
from toolscout.errors import StoreError
from toolscout.models import model_store
from toolscout.search.exact_names import EXACT, parse_selection
from toolscout.search.pipeline import Detect, Floors, Pipeline, Stage, Verdict, Visible
from toolscout.types import Search
from toolscout.workspace import Workspace, index_words

__all__ = [
    "BUNDLED_DECISION",
    "DECISION_FORMAT",
    "Abstainer",
    "Decision",
    "Linear",
    "build_abstainer",
    "columns",
    "fit_floors",
    "load_bundled",
    "read",
    "wishes",
]

BUNDLED_DECISION: Final = Path(__file__).with_name("data") / "decision.json"
DECISION_FORMAT: Final = "decision/1"
VIEW: Final = "static"
MAX_DEVIATIONS: Final = 4.0  # deviations: beyond, a number says no more
MAX_CATALOGUE_GROWTH: Final = (
    2.0  # times that a catalogue may have grown or shrunk since a model's floors were set in it
)
NO_FLOORS: Final = {"budgets": (0.0,), "need": (0.0,), "fit": (0.0,)}


class Linear(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A logistic regression on numbers by name: each less its mean, in deviations, at most 4 of them.

    Attributes:
        columns: names of the numbers.
        means: of each.
        deviations: of each, above 0.
        weights: of each.
        shift: the constant. Weights and shift are calibrated: the logistic of their sum is a probability where both
            classes are equally frequent.
    """

    columns: tuple[str, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    weights: tuple[float, ...]
    shift: float

    def logits(self, table: Mapping[str, Floats]) -> Floats:
        """(n,) of numbers by name, (n,) each."""
        rows = np.stack([table[name] for name in self.columns], axis=1)
        scaled = np.clip((rows - np.array(self.means)) / np.array(self.deviations), -MAX_DEVIATIONS, MAX_DEVIATIONS)
        return np.asarray((scaled * np.array(self.weights)).sum(axis=1) + self.shift)


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is fitted: plain numbers.

    Attributes:
        format: `DECISION_FORMAT`.
        about: what it was fitted on and by which command; JSON values.
        encoders: view → fingerprint of the encoder that its numbers belong to.
        wishes: view → the weights of a query's vector and their constant; the sum is the number `wish.<view>`.
        need: of numbers → whether a tool is needed.
        fit: of numbers → whether one of the catalogue fits.
        floors: probabilities below which a request is turned away, by budget.
    """

    format: str
    about: dict[str, Any]
    encoders: dict[str, str]
    wishes: dict[str, tuple[float, ...]]
    need: Linear
    fit: Linear
    floors: Floors

    def estimate(self, table: Mapping[str, Floats]) -> tuple[Floats, Floats]:
        """(need, fit), (n,) each, of `columns`."""
        return sigmoid(self.need.logits(table)), sigmoid(self.fit.logits(table))


def columns(
    names: Sequence[str], rows: Floats, vectors: Mapping[str, Vectors], wishes: Mapping[str, Sequence[float] | Floats]
) -> dict[str, Floats]:
    """Numbers by name: those of the signals, and `wish.<view>` of the queries' vectors.

    Args:
        names: of the columns of the rows.
        rows: (n, columns).
        vectors: view → (n, d).
        wishes: view → d weights and a constant.
    """
    table = {name: rows[:, number] for number, name in enumerate(names)}
    for view, weights in wishes.items():
        held = np.asarray(weights, dtype=np.float64)
        table[f"wish.{view}"] = (vectors[view] * held[:-1]).sum(axis=1) + held[-1]
    return table


def wishes(table: Mapping[str, Floats]) -> Floats:
    """(n,) of `columns`: above 0 where a request is like those that need tools, whatever this catalogue has."""
    return np.asarray(sum(values for name, values in table.items() if name.startswith("wish.")))


def read(file: Path = BUNDLED_DECISION) -> Decision:
    """A decision that was written as JSON.

    Raises:
        StoreError: if it is none, or damaged.
    """
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Decision)
        sizes = [{len(getattr(each, name)) for name in each.__struct_fields__[:4]} for each in (found.need, found.fit)]
        whole = found.format == DECISION_FORMAT and all(len(size) == 1 for size in sizes)
    except (OSError, msgspec.MsgspecError):
        whole = False
    if not whole:
        raise StoreError(f"{file}: expected a decision of format {DECISION_FORMAT}, found a damaged or another one")
    return found


@dataclasses.dataclass(frozen=True)
class Abstainer:
    """A decision over one catalogue, for the stage `Decide`.

    Attributes:
        decision: the numbers.
        signals: of the catalogue.
        encoders: view → what turns queries into vectors, in the order of the signals' meanings.
        mask: `Search.visible` → mask over the catalogue.
        budget: share of the requests that need a tool, and have one, that may be turned away.
        floors: of both probabilities.
        own: floors of a `need` that the pipeline itself has judged; None: such a need is told, and turns nobody away.
        sure: a first hit of this score or more is never turned away: the model knows such requests; None: no matter.
    """

    decision: Decision
    signals: ScoreFeatures
    encoders: Mapping[str, Encoder]
    mask: Callable[[Visible | None], Mask | None]
    budget: float
    floors: Floors
    own: Floors | None = None
    sure: float | None = None

    def __call__(self, searches: Sequence[Search]) -> list[Verdict | None]:
        """What is to be said of each search; None: nothing."""
        texts = [search.query for search in searches]
        vectors = {view: encoder.encode(texts, "query") for view, encoder in self.encoders.items()}
        masks = [self.mask(search.visible) for search in searches]
        known = np.logical_and.reduce([each.any(axis=1) for each in vectors.values()]) if texts else []
        sizes = [len(self.signals.words.ids) if mask is None else int(mask.sum()) for mask in masks]
        asked = [
            bool(says and size) and not _names_a_tool(search)
            for search, says, size in zip(searches, known, sizes, strict=True)
        ]
        some = [number for number, each in enumerate(asked) if each]
        chosen = {view: each[some] for view, each in vectors.items()}
        rows = self.signals.rows([texts[n] for n in some], list(chosen.values()), [masks[n] for n in some])
        table = columns(self.signals.names, rows, chosen, self.decision.wishes)
        judged = zip(some, *(each.tolist() for each in (*self.decision.estimate(table), wishes(table))), strict=True)
        found: list[Verdict | None] = [None] * len(searches)
        for number, need, fit, wish in judged:
            found[number] = self._verdict(searches[number], need, fit, wish, sizes[number])
        return found

    def _verdict(self, search: Search, need: float, fit: float, wish: float, size: int) -> Verdict:
        if search.need is None:
            of_need, of_fit = self.floors.need_at(self.budget), self.floors.fit_at(self.budget)
        else:  # two that do not know of each other share the budget
            need, wish, of_fit = search.need, search.need - 0.5, self.floors.fit_at(self.budget / 2)
            of_need = self.own.need_at(self.budget / 2) if self.own else 0.0
        sure = self.sure is not None and bool(search.hits) and search.hits[0].score >= self.sure
        if sure or (need >= of_need and fit >= of_fit):
            return Verdict(need, fit)
        if wish < 0:
            reason = f"the request seems to need no tool: it does with probability {need:.2f}"
            return Verdict(need, fit, "no_tool_needed", reason)
        which = "the only tool does not seem" if size == 1 else f"none of {size:,} tools seems"
        reason = f"{which} to do what is asked: one does with probability {fit:.2f}"
        return Verdict(need, fit, "no_tool_fits", reason)


def _names_a_tool(search: Search) -> bool:
    """Whether the query names a tool, or asks for tools by name: then nothing is left to judge."""
    return parse_selection(search.query) is not None or any(hit.why == EXACT for hit in search.hits)


def build_abstainer(
    workspace: Workspace, catalogue: Catalogue, stage: Stage, manifest: model_store.Manifest | None = None
) -> Abstainer | None:
    """Return the bundled decision over a snapshot, within the budget of the settings; None: nobody may be turned away.

    A fitted model has learned what requests mean, which the bundled decision has not: then the floors count that keep
    the budget among the requests it was fitted on (`fit_floors`). A champion of `toolscout learn` also knows from
    requests that it was not fitted on how high the first hit of a request it understands stands.

    Args:
        workspace: with the settings and the caches.
        catalogue: the snapshot.
        stage: what retrieves; if it judges the need itself, that counts.
        manifest: of the fitted model that serves, if there is one.

    Raises:
        StoreError: if the bundled file is damaged.
    """
    budget = workspace.settings.false_rejects
    if not budget:
        return None
    decision, encoder = load_bundled()
    stages = stage.stages if isinstance(stage, Pipeline) else (stage,)
    floors, sure, own = decision.floors, None, next((each.floors for each in stages if isinstance(each, Detect)), None)
    if manifest is not None:
        floors, sure = _of_model(manifest, len(catalogue)), manifest.values.get("sure")
    signals = ScoreFeatures(index_words(catalogue), {VIEW: workspace.index_tools(catalogue, encoder)})
    return Abstainer(decision, signals, {VIEW: encoder}, catalogue.mask, budget, floors, own, sure)


def _of_model(manifest: model_store.Manifest, size: int) -> Floors:
    """The floors of a fitted model; none, where its catalogue is another one by now: they say nothing there."""
    small, large = sorted((size, manifest.n_tools))
    found = manifest.values.get("floors") if large <= MAX_CATALOGUE_GROWTH * small else None
    return msgspec.convert(NO_FLOORS if found is None else found, Floors)


def load_bundled() -> tuple[Decision, Encoder]:
    """The decision that comes with toolscout, and the encoder that it asks.

    Raises:
        StoreError: if it is damaged, or does not belong to the encoder.
    """
    decision, encoder = read(), StaticEncoder()
    if decision.encoders != {VIEW: encoder.fingerprint}:
        raise StoreError(
            f"{BUNDLED_DECISION}: expected a decision for the bundled encoder {encoder.fingerprint}, found one for "
            f"{decision.encoders}: install toolscout again"
        )
    return decision, encoder


def fit_floors(workspace: Workspace, catalogue: Catalogue, texts: Sequence[str]) -> Floors:
    """The floors of the bundled decision that keep each budget among requests that the catalogue's tools serve.

    Args:
        workspace: with the caches.
        catalogue: the tools.
        texts: the requests.
    """
    decision, encoder = load_bundled()
    signals = ScoreFeatures(index_words(catalogue), {VIEW: workspace.index_tools(catalogue, encoder)})
    vectors = encoder.encode(texts, "query")
    said = np.flatnonzero(vectors.any(axis=1)).tolist()
    if not said:
        return msgspec.convert(NO_FLOORS, Floors)
    rows = signals.rows([texts[number] for number in said], [vectors[said]])
    return calibration.floors(*decision.estimate(columns(signals.names, rows, {VIEW: vectors[said]}, decision.wishes)))
