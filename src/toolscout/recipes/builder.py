"""Builds the finished pipeline of a search: a recipe ranks, guard stages follow, and a last stage decides.

A `Selection` says which recipe and model, the snapshot which tools, the settings of the home everything else ::

    rank (the recipe) >> exact names >> prerequisites >> demotion >> duplicates folded >> cut >> decide
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from toolscout import encoders
from toolscout.arrays import Vectors
from toolscout.encoders import Encoder, unit_rows
from toolscout.encoders.static import load_static
from toolscout.errors import ConfigError, StoreError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.home.journal.evidence import LiveEvidence
from toolscout.home.journal.journal import Journal
from toolscout.home.models import champion
from toolscout.recipes import registry
from toolscout.recipes.select import Selection, Selector
from toolscout.search.abstain.decision import build_abstainer
from toolscout.search.call_order import CallOrder
from toolscout.search.demote import Demote
from toolscout.search.exact_names import Names
from toolscout.search.fold import Fold
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import Cut, Decide, Pipeline, Stage
from toolscout.search.prerequisites import Orders, bring_prerequisites
from toolscout.search.relations.duplicates import Duplicates, find_duplicates
from toolscout.search.relations.similar import find_rivals
from toolscout.search.resources import Extras, Resources
from toolscout.search.resources import LiveEvidence as LoadEvidence
from toolscout.search.suspects import screen_change, suspects
from toolscout.settings import Settings
from toolscout.types import Search, Tool

__all__ = ["PipelineBuilder", "encode_for_rivals", "guard"]

_log: Final = logging.getLogger("toolscout.recipes")


class PipelineBuilder:
    """Builds pipelines over snapshots of one home.

    Attributes:
        settings: of the home.
        selector: decides which options and which encoder a selection gets.
        extras: what packages lend to their own rankers, as long as this object lives.
    """

    def __init__(self, settings: Settings, selector: Selector, open_journal: Callable[[], Journal]) -> None:
        """Build under these settings.

        Args:
            settings: of the home.
            selector: of the same home.
            open_journal: returns the journal, which models fitted on it keep reading; called when one needs it.
        """
        self.settings, self.selector, self.extras = settings, selector, Extras(lasting=True)
        self._open_journal = open_journal
        self._encoders: dict[str, Encoder] = {}
        self._live: dict[Path, tuple[str, LiveEvidence]] = {}
        self._orders: CallOrder | None = None
        self._orders_lock = threading.Lock()

    @functools.cached_property
    def vectors(self) -> VectorStore:
        """The cached vectors of this home."""
        return VectorStore(self.settings.home)

    def close(self) -> None:
        """Close the file of the vectors, and what packages lent to their rankers."""
        self.extras.close()
        if "vectors" in self.__dict__:
            self.vectors.close()

    def build(
        self,
        selection: Selection,
        catalogue: Catalogue,
        *,
        embed: bool = False,
        progress: Callable[[int, int], None] | None = None,
        before_guard: Callable[[], None] | None = None,
    ) -> Pipeline:
        """Build the pipeline of a selection over a snapshot.

        Args:
            selection: the recipe and the model.
            catalogue: the snapshot.
            embed: whether to embed everything that is missing; see `HomeResources`.
            progress: called with (done, total) while texts are embedded.
            before_guard: called when the ranking is built, and before the tools are screened.
        """
        resources = self.lend(selection, embed=embed, progress=progress, live=self._find_evidence(selection))
        rank = self._build_ranking(selection, catalogue, resources)
        decide = build_decision(selection, catalogue, resources, rank)
        if before_guard:
            before_guard()
        return self.guard(rank, catalogue) >> decide

    def build_changed(self, selection: Selection, catalogue: Catalogue, tool: Tool) -> Pipeline:
        """Build the pipeline of a selection over a snapshot in which one tool has another definition."""
        changed = catalogue.replace_tool(tool)
        if self.settings.trust_scan:
            screen_change(catalogue, changed, tool)
        return self.build(selection, changed, embed=True)

    def build_ranking(self, selection: Selection, catalogue: Catalogue, *, live: LoadEvidence | None = None) -> Stage:
        """Build the recipe of a selection over a snapshot, up to the ranked hits; `live`: see `HomeResources`."""
        return self._build_ranking(selection, catalogue, self.lend(selection, live=live))

    def _build_ranking(self, selection: Selection, catalogue: Catalogue, resources: HomeResources) -> Stage:
        options = self.selector.recipe_options(selection)
        return registry.build(selection.recipe, catalogue, resources, model=selection.model, settings=options)

    def guard(self, rank: Stage, catalogue: Catalogue) -> Pipeline:
        """Add the stages that every search runs to the ranking of a snapshot, under the settings of the home."""
        settings = self.settings
        duplicates = find_duplicates(catalogue, settings.preferred_sources) if settings.fold_similar else None
        resources = HomeResources(settings=settings, vectors=self.vectors, embed=False)
        return guard(
            rank, catalogue, resources, scan=settings.trust_scan, duplicates=duplicates, orders=self._read_orders
        )

    def lend(
        self,
        selection: Selection,
        *,
        embed: bool = True,
        progress: Callable[[int, int], None] | None = None,
        live: LoadEvidence | None = None,
    ) -> HomeResources:
        """Return what the ranker of a selection is built with; see `HomeResources`."""
        return HomeResources(
            self.load_encoder(selection),
            self.settings,
            self.vectors,
            embed=embed,
            progress=progress,
            live=live,
            extras=self.extras,
        )

    def load_encoder(self, selection: Selection) -> str | Encoder:
        """Return the encoder of a selection, or its name if the pipeline may not need it."""
        name, is_needed = self.selector.encoder(selection)
        if not is_needed:
            return name
        if name not in self._encoders:
            try:
                self._encoders[name] = encoders.load(name, self.settings)
            except ConfigError as error:
                raise ConfigError(f"{selection.model}: {error}" if selection.model else str(error)) from None
        return self._encoders[name]

    def _find_evidence(self, selection: Selection) -> LiveEvidence | None:
        """Return the evidence since the model was fitted, or None if it was not fitted on this home's journal."""
        if (
            selection.model is None
            or selection.manifest is None
            or selection.model.parent != champion.shelf(self.settings.place)
        ):
            return None
        job, fitted_on = selection.manifest.job, selection.manifest.values.get("journal")
        if fitted_on is None:
            return None
        known_job, live = self._live.get(selection.model, ("", None))
        if live is None or known_job != job:
            trusted = {self.settings.caller, *self.settings.learn_trust}
            size = selection.manifest.data.n_train + selection.manifest.data.n_dev
            live = LiveEvidence(self._open_journal(), fitted_on["through"], size, trusted=trusted)
            self._live = {selection.model: (job, live)}
        return live

    def _read_orders(self) -> Mapping[str, Mapping[str, float]]:
        """Return which tools are usually called before others. Nothing without a journal, or if it cannot be read."""
        if not self.settings.journal:
            return {}
        try:
            if self._orders is None:
                with self._orders_lock:
                    trusted = {self.settings.caller, *self.settings.learn_trust}
                    self._orders = self._orders or CallOrder(self._open_journal(), trusted=trusted)
            return self._orders()
        except StoreError as error:
            _log.warning("The order of calls is not read from the journal: %s", error)
            return {}


def build_decision(selection: Selection, catalogue: Catalogue, resources: Resources, rank: Stage) -> Decide:
    """Build the stage that follows the ranking of a selection, and decides whether to answer."""
    abstainer = build_abstainer(resources, catalogue, rank, selection.manifest)
    return Decide(functools.partial(explain_empty, catalogue), abstainer)


def explain_empty(catalogue: Catalogue, search: Search) -> str:
    """Explain an answer without hits in one sentence, from what the caller may see."""
    everything = catalogue.disabled.items() if search.visible is None else ()  # others need not know what there is
    disabled = ", ".join(f"{source!r} is {why}" for source, (why, _) in everything)
    also = f" Not searched: source {disabled}." if disabled else ""
    mask = catalogue.mask(search.visible)
    if mask is not None and not mask.any():
        return "None of the catalogue's tools is visible to this caller."
    if not len(catalogue):
        return f"The catalogue is empty. Add a source with  toolscout add SOURCE.{also}"
    if not search.query.strip():
        return "The query is empty."
    count = len(catalogue) if mask is None else int(mask.sum())
    start = "The only tool does not score" if count == 1 else f"None of the {count:,} tools scores"
    return f"{start} high enough for this query.{also}"


def guard(
    rank: Stage,
    catalogue: Catalogue,
    resources: HomeResources | None = None,
    *,
    scan: bool = True,
    duplicates: Duplicates | None = None,
    k: int | None = None,
    orders: Orders | None = None,
) -> Pipeline:
    """Add exact names, prerequisites, the demotion of hostile tools, the fold of duplicates, and the cut to a recipe.

    Args:
        rank: ranks the tools.
        catalogue: the snapshot that it was built over.
        resources: settings, and caches for the vectors that reveal near-duplicates; None: the defaults, no caches.
        scan: whether suspicious and rival tools are demoted.
        duplicates: the same tools of several sources, which one hit shows; None: every tool has its own hit.
        k: number of hits to keep; None: the k of each search.
        orders: what the journal says of the order of calls; None: nothing.
    """
    resources = resources or HomeResources()
    demotion: Demote | None = None
    excluded: AbstractSet[str] = frozenset()
    if scan:
        rivals = find_rivals(catalogue, functools.partial(encode_for_rivals, resources))
        demotion = Demote(suspects(catalogue), rivals, catalogue)
        excluded = demotion.behind
    stages: list[Stage] = [rank, Names(catalogue, demotion.find_doubted if demotion else None)]
    stages.append(bring_prerequisites(catalogue, resources.settings, excluded=excluded, orders=orders))
    stages += [demotion] if demotion else []
    if duplicates is not None:
        stages.append(Fold(catalogue, duplicates))
    return Pipeline([*stages, Cut(k)])


def encode_for_rivals(resources: Resources, tools: Sequence[Tool]) -> Vectors:
    """Encode tools as 0.7 of their text and 0.3 of their name, `(tools, d)`, for which the bounds were chosen.

    A first sentence that all tools of a source share must not make them look related.
    """
    encoder = load_static()
    texts, names = (resources.encode_tools(encoder, tools, style) for style in ("short", "name"))
    return unit_rows(0.7 * texts + 0.3 * names)
