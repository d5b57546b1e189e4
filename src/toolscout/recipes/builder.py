"""Builds the finished pipeline of a search: a recipe ranks, guard stages follow, and a last stage decides.

A `Selection` says which recipe and model, the snapshot which tools, the settings of the home everything else ::

    rank (the recipe) >> exact names >> prerequisites >> demotion >> duplicates folded >> cut >> decide
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

from toolscout import encoders
from toolscout.encoders import Encoder
from toolscout.errors import ConfigError
from toolscout.home.catalogue.store import Catalogue, Store
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.home.journal.evidence import LiveEvidence
from toolscout.home.journal.journal import Journal
from toolscout.home.models import champion
from toolscout.indexes.large import find_large
from toolscout.recipes import registry
from toolscout.recipes.select import Selection, Selector
from toolscout.search.abstain.decision import build_abstainer
from toolscout.search.demote import Demote
from toolscout.search.exact_names import Names
from toolscout.search.fold import FoldSimilar
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import Cut, Decide, Pipeline, Stage
from toolscout.search.prerequisites import CallOrder, Orders, bring_prerequisites
from toolscout.search.relations.duplicates import find_duplicates
from toolscout.search.relations.similar import find_rivals
from toolscout.search.resources import Extras, Resources
from toolscout.search.resources import LiveEvidence as LoadEvidence
from toolscout.search.suspects import claimants, screen_change, suspects
from toolscout.settings import Settings
from toolscout.types import Answer, Tool

__all__ = ["PipelineBuilder", "guard"]

_log: Final = logging.getLogger("toolscout.recipes")


class PipelineBuilder:
    """Builds pipelines over snapshots of one home.

    Attributes:
        settings: of the home.
        selector: decides which options and which encoder a selection gets.
        extras: objects that packages share among their own rankers, as long as this object lives.
    """

    def __init__(self, settings: Settings, selector: Selector, open_journal: Callable[[], Journal]) -> None:
        """Build pipelines under these settings.

        Args:
            settings: of the home.
            selector: of the same home.
            open_journal: returns the journal, which models fitted on it keep reading; called when one needs it.
        """
        self.settings, self.selector, self.extras = settings, selector, Extras(lasting=True)
        self._open_journal = open_journal
        self._encoders: dict[str, Encoder] = {}  # name → encoder that was loaded
        # Folder of the model that serves → identity of its fit, reader of the examples since then
        self._live: dict[Path, tuple[str, LiveEvidence]] = {}
        trusted = {settings.caller, *settings.learn_trust}
        self._orders = CallOrder(open_journal, trusted=trusted) if settings.journal else None

    @functools.cached_property
    def vectors(self) -> VectorStore:
        """The cached vectors of this home."""
        return VectorStore(self.settings.home)

    def close(self) -> None:
        """Close the file of the vectors, and the objects of the rankers' packages."""
        self.extras.close()
        if "vectors" in self.__dict__:  # they were opened
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
        live = self._find_evidence(selection)
        resources = self.make_resources(selection, embed=embed, progress=progress, live=live)
        return self._assemble(selection, catalogue, resources, before_guard)

    def _assemble(
        self,
        selection: Selection,
        catalogue: Catalogue,
        resources: HomeResources,
        before_guard: Callable[[], None] | None = None,
    ) -> Pipeline:
        """Build ranking, guard and decision with these resources; `before_guard` as in `build`."""
        rank = self._build_ranking(selection, catalogue, resources)
        decide = build_decision(selection, catalogue, resources, rank)
        if before_guard:
            before_guard()
        return guard(rank, catalogue, resources, orders=self._orders) >> decide

    def build_changed(self, selection: Selection, catalogue: Catalogue, tool: Tool) -> Pipeline:
        """Build the pipeline of a selection over a snapshot in which one tool has another definition."""
        changed = catalogue.replace_tool(tool)
        if self.settings.trust_scan:
            screen_change(catalogue, changed, tool)
        return self.build(selection, changed, embed=True)

    def build_without(self, selection: Selection, catalogue: Catalogue, rule: str) -> Pipeline:
        """Build the pipeline of a selection without a rule of ranking."""
        settings = dataclasses.replace(self.settings, rules_off=(*self.settings.rules_off, rule))
        resources = dataclasses.replace(self.make_resources(selection), settings=settings)
        return self._assemble(selection, catalogue, resources)

    def build_ranking(self, selection: Selection, catalogue: Catalogue, *, live: LoadEvidence | None = None) -> Stage:
        """Build the recipe of a selection over a snapshot, up to the ranked hits; `live`: see `HomeResources`."""
        return self._build_ranking(selection, catalogue, self.make_resources(selection, live=live))

    def _build_ranking(self, selection: Selection, catalogue: Catalogue, resources: HomeResources) -> Stage:
        """Build the recipe of a selection with these resources, up to the ranked hits."""
        options = self.selector.recipe_options(selection)
        return registry.build(selection.recipe, catalogue, resources, model=selection.model, settings=options)

    def make_resources(
        self,
        selection: Selection,
        *,
        embed: bool = True,
        progress: Callable[[int, int], None] | None = None,
        live: LoadEvidence | None = None,
    ) -> HomeResources:
        """Return the resources with which the ranker of a selection is built.

        Args:
            selection: the recipe and the model.
            embed: whether all missing vectors are made; otherwise only a few, and more are an error.
            progress: called with (done, total) while texts are embedded.
            live: reads the examples that came after the fit; None: the model uses none.
        """
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
        """Return the encoder of a selection; or its name alone, not loaded, if the pipeline may not need it."""
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
        model, manifest = selection.model, selection.manifest
        if model is None or manifest is None or model.parent != champion.shelf(self.settings.place):
            return None
        journal_rows = manifest.values.get("journal")  # up to which row the fit read the journal
        if journal_rows is None:
            return None
        known_job, live = self._live.get(model, ("", None))
        if live is None or known_job != manifest.job:  # another model, or it was fitted again
            trusted = {self.settings.caller, *self.settings.learn_trust}
            n_fitted = manifest.data.n_train + manifest.data.n_dev
            live = LiveEvidence(self._open_journal(), journal_rows["through"], n_fitted, trusted=trusted)
            self._live = {model: (manifest.job, live)}
        return live


def build_decision(selection: Selection, catalogue: Catalogue, resources: Resources, rank: Stage) -> Decide:
    """Build the stage that follows the ranking of a selection, and decides whether to answer."""
    settings = resources.settings
    judge = build_abstainer(resources, catalogue, rank, selection.manifest) if settings.uses("refusals") else None
    return Decide(functools.partial(explain_empty, catalogue), judge, refuse=settings.refuse)


def explain_empty(catalogue: Catalogue, search: Answer) -> str:
    """Explain an answer without hits in one sentence, from what the caller may see."""
    # A caller who does not see everything is not told which sources there are.
    disabled = catalogue.disabled.items() if search.visible is None else ()
    reasons = ", ".join(f"{source!r} is {why}" for source, (why, _) in disabled)
    also = f" Not searched: source {reasons}." if reasons else ""
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
    k: int | None = None,
    orders: Orders | None = None,
) -> Pipeline:
    """Add exact names, prerequisites, the demotion of hostile tools, the fold of duplicates, and the cut to a recipe.

    A catalogue without hostile tools has no demotion, and a catalogue without duplicates no fold.

    Args:
        rank: ranks the tools.
        catalogue: the snapshot that it was built over.
        resources: the settings, which may leave some of these out; None: the defaults.
        k: number of hits to keep; None: the k of each search.
        orders: what the journal says of the order of calls; None: nothing.
    """
    settings = (resources or HomeResources()).settings
    demotion: Demote | None = None
    excluded: AbstractSet[str] = frozenset()
    if settings.uses("demotion"):
        stage = Demote(suspects(catalogue), find_rivals(catalogue), catalogue, claimants(catalogue))
        demotion = stage if stage.has_findings else None
        excluded = stage.behind  # these neither bring prerequisites nor are brought as such
    stages: list[Stage] = [rank]
    if settings.uses("names"):
        stages.append(Names(catalogue, demotion.find_doubted if demotion else None))
    if settings.uses("prerequisites"):
        stages.append(bring_prerequisites(catalogue, settings, excluded=excluded, orders=orders))
    stages += [demotion] if demotion else []
    if settings.uses("folding"):
        duplicates = find_duplicates(catalogue, settings.preferred_sources)
        stages += [FoldSimilar(catalogue, duplicates)] if duplicates.groups else []
    return Pipeline([*stages, Cut(k)])


# --- screening beside the indexes -------------------------------------------------------------------------------------


class Screening(Protocol):
    """Work on a snapshot in another process: what the entry point `large-screening` returns."""

    def finish(self) -> None:
        """Wait for its end, and add what it found to the snapshot."""
        ...

    def stop(self) -> None:
        """End the process if it still runs."""
        ...


class SecondProcess:
    """Screens the tools of a large new snapshot in a second process, while this one makes the indexes.

    The screening finds suspicious tools, duplicates, rivals and dependencies, which needs no index. Without the package
    `toolscout-scale` there is no second process, and this one finds them after the indexes. Use it as a context;
    leaving it ends the process.
    """

    def __init__(self, store: Store, catalogue: Catalogue, preferred: Sequence[str], parts: Sequence[str]) -> None:
        """Start the process, if the catalogue is large and the package is installed.

        Args:
            store: has the snapshot.
            catalogue: the snapshot.
            preferred: names of the preferred sources, see `duplicates.find_duplicates`.
            parts: what the screening must find, see `list_parts`.
        """
        start = find_large("large-screening", len(catalogue))
        self._screening: Screening | None = start(store, catalogue, preferred, parts) if start else None

    def finish(self) -> None:
        """Wait for the end of the screening, and add what it found to the snapshot."""
        if self._screening is not None:
            self._screening.finish()

    def __enter__(self) -> SecondProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._screening is not None:
            self._screening.stop()


def list_parts(settings: Settings) -> list[str]:
    """Return what searches under these settings need of the screening: names that `SecondProcess` takes."""
    needed = {
        "suspects": settings.uses("demotion"),
        "duplicates": settings.uses("folding"),
        "rivals": settings.uses("demotion"),
        "dependencies": settings.uses("prerequisites"),
    }
    return [part for part, is_needed in needed.items() if is_needed]
