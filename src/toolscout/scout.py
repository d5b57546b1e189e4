"""Scout is the one class that users learn: it adds sources, keeps them in step, searches, and writes the journal."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from toolscout import encoders
from toolscout.abstain.decision import build_abstainer
from toolscout.catalogue.store import Catalogue
from toolscout.catalogue.sync import CatalogueManager
from toolscout.catalogue.vector_cache import VectorStore
from toolscout.encoders import Encoder
from toolscout.errors import ConfigError, NotFound, OverBudget, StoreError, Unavailable, UserError
from toolscout.journal.evidence import LiveEvidence
from toolscout.journal.journal import MAX_SEARCH_EVENTS, Journal, new_id
from toolscout.models import champion
from toolscout.models.model_store import Manifest
from toolscout.recipes import registry
from toolscout.recipes.guard import guard
from toolscout.recipes.select import Selection, SelectionKey, Selector
from toolscout.search.pipeline import Decide, Pipeline, Stage
from toolscout.search.why import Why, explain, find
from toolscout.types import Hit, Search, Tool
from toolscout.workspace import Workspace

if TYPE_CHECKING:
    from toolscout.learn.loop import Report

__all__ = ["Scout"]

Visible = Callable[[Tool], bool]
MAX_SNAPSHOT_ATTEMPTS = 3
RETRY_ENCODER_AFTER_S = 30.0  # an encoder that did not answer is not asked again before that
_log = logging.getLogger("toolscout.scout")


class Scout(CatalogueManager):
    """A catalogue of tools in one folder, and the search over it.

    ::

        scout = Scout()
        scout.add("petstore.json")
        for hit in scout.search("which pets are for sale?").hits:
            print(hit.score, hit.tool.name)

    Safe to use from several threads; several processes may share one folder.
    """

    def __init__(self, home: str | Path | None = None, **settings: Any) -> None:
        """Open the catalogue in `home`, or make an empty one.

        Args:
            home: by default the setting `home`.
            **settings: see `toolscout.config.Settings`; they come before the environment and `toolscout.toml`.

        Raises:
            ConfigError, StoreError
        """
        super().__init__(home, **settings)
        self.selector = Selector(self.settings)
        self._lock = threading.RLock()
        self._ready: dict[SelectionKey, tuple[tuple[Catalogue, Pipeline], Manifest | None]] = {}
        self._encoders: dict[str, Encoder] = {}
        self._down: dict[SelectionKey, tuple[float, Unavailable | None]] = {}
        self._live: dict[Path, tuple[str, LiveEvidence]] = {}
        self._champion: SelectionKey | None = None
        self._logged = ""
        self._unwritten = ""  # why the journal could not be written last time

    @functools.cached_property
    def journal(self) -> Journal:
        """The journal of this home."""
        return Journal(
            self.settings.home,
            queries=self.settings.journal_queries,
            personal=self.settings.redact_personal,
            keep_days=self.settings.journal_keep_days,
        )

    @functools.cached_property
    def vectors(self) -> VectorStore:
        """The vectors of this home's tools."""
        return VectorStore(self.settings.home)

    def close(self) -> None:
        """Close the files."""
        self.store.close()
        for name in ("journal", "vectors"):
            if name in self.__dict__:
                self.__dict__[name].close()

    def __enter__(self) -> Scout:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the search

    def embed(
        self,
        recipe: str | None = None,
        *,
        model: str | Path | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Build what the search needs for the present catalogue: indexes, and missing vectors.

        The environment or the settings file may name a model that cannot serve the catalogue yet, because its sources
        are still to be added. The search then reports that; here only the setting `recipe` is prepared.

        Args:
            recipe: as in `search`.
            model: as in `search`.
            progress: called with (done, total) while texts are embedded.
        """
        try:
            self._select(recipe, model, embed=True, progress=progress)
        except UserError:
            alone = recipe or self.settings.recipe
            chosen = model is not None or self.settings.origins.get("model") == "argument"
            if chosen or self.settings.model is None or registry.recipe(alone).is_fitted:
                raise
            self._pipeline(Selection(alone), embed=True, progress=progress)

    def search(
        self,
        query: str,
        k: int | None = None,
        *,
        recipe: str | None = None,
        model: str | Path | None = None,
        visible: Visible | None = None,
        caller: str | None = None,
        deadline: float | None = None,
    ) -> Search:
        """Return the tools for one request, best first and filled in; or the reason why there are none.

        Args:
            query: the request. `select:name,name` asks for tools by name.
            k: the most tools to return; by default the setting `k`.
            recipe: see `toolscout.recipes.registry`; by default that of the model, else that of the champion, else the
                setting `recipe`.
            model: the folder of a fitted model (`toolscout train`); by default the setting `model`.
                `toolscout.recipes.select` says which of model and recipe counts if both are set.
            visible: which tools this caller may discover; hashable.
            caller: the caller's name for the journal.
            deadline: on the clock of `time.monotonic`. A recipe that reads tools one by one then returns what it has,
                and the trace says so.

        Raises:
            ConfigError: for a model that belongs to another recipe, encoder or catalogue.
            NotFound: if there is no such recipe or model.
            StoreError: for a damaged model, unless it is the champion.
        """
        return self.search_many(
            [query], k, recipe=recipe, model=model, visible=visible, caller=caller, deadline=deadline
        )[0]

    def search_many(
        self,
        queries: Sequence[str],
        k: int | None = None,
        *,
        recipe: str | None = None,
        model: str | Path | None = None,
        visible: Visible | None = None,
        caller: str | None = None,
        deadline: float | None = None,
    ) -> list[Search]:
        """Run a batch of searches, all on the same state of the catalogue; see `search`."""
        k = self.settings.k if k is None else k
        if k < 1:
            raise ValueError(f"k: expected at least 1, found {k}")
        way, notice = self._select(recipe, model)
        if notice and visible is not None:
            notice = self._hide_notice(notice, way)
        batch = [
            Search(query=query, k=k, visible=visible, search_id=new_id(), reason=notice or None, deadline=deadline)
            for query in queries
        ]
        answers, generation = self._run_or_fall_back(way, batch)
        degraded = self._write(answers, way, generation, caller) if self.settings.journal else None
        if degraded:
            shown = degraded if visible is None else "this search is not in the journal"
            answers = [msgspec.structs.replace(each, degraded=shown) for each in answers]
        return answers

    def _hide_notice(self, notice: str, way: Selection) -> str:
        """Log a notice once, and return what a caller may know of it who may not see every tool."""
        if notice != self._logged:
            self._logged = notice
            _log.warning("%s", notice)
        return f"searched with {way.recipe}: the promoted model cannot serve"

    def _run_or_fall_back(self, way: Selection, batch: Sequence[Search]) -> tuple[list[Search], int]:
        """Run the batch, with the fallback of the recipe if its encoder or model does not answer."""
        try:
            return self._run_unless_down(way, batch)
        except Unavailable as error:
            fallback = registry.recipe(way.recipe).fallback
            if fallback is None:
                raise
            notice = f"searched with {fallback} alone: {error}"
            retried = [msgspec.structs.replace(search, reason=notice) for search in batch]
            return self._run(Selection(fallback), retried)

    def _run_unless_down(self, way: Selection, batch: Sequence[Search]) -> tuple[list[Search], int]:
        """Run the batch. A service that did not answer is not asked for a while, so not every search waits for it."""
        since, error = self._down.get(way.key, (0.0, None))
        if error is not None and time.monotonic() - since < RETRY_ENCODER_AFTER_S:
            raise error
        try:
            return self._run(way, batch)
        except Unavailable as error:
            self._down[way.key] = (time.monotonic(), error)
            raise

    def _run(self, way: Selection, batch: Sequence[Search]) -> tuple[list[Search], int]:
        """Run the batch on one state of the catalogue, and return the answers with its generation."""
        for _ in range(MAX_SNAPSHOT_ATTEMPTS):
            catalogue, pipeline = self._pipeline(way)
            with self.store.reading():
                if self.store.generation() == catalogue.generation:
                    return [self._fill(search) for search in pipeline(batch)], catalogue.generation
        with self._lock, self.store.reading():  # others write all the time: hold one state while it is indexed
            catalogue, pipeline = self._pipeline(way)
            return [self._fill(search) for search in pipeline(batch)], catalogue.generation

    async def asearch(self, query: str, k: int | None = None, **options: Any) -> Search:
        """Run `search` in a thread, for asynchronous callers."""
        return await asyncio.to_thread(self.search, query, k, **options)

    def pipeline(self, recipe: str | None = None, *, model: str | Path | None = None) -> tuple[Catalogue, Pipeline]:
        """Return the present snapshot and the pipeline over it; `recipe` and `model` as in `search`."""
        return self._pipeline(self._select(recipe, model)[0])

    def serving(self) -> tuple[Selection, str]:
        """Return what serves searches that name no model, and a sentence if the promoted model cannot serve them."""
        return self._select(None, None)

    def _select(self, recipe: str | None, model: str | Path | None, **options: Any) -> tuple[Selection, str]:
        """Return what serves a search, and a sentence if the champion cannot serve it."""
        selection, notice = self.selector.select(
            recipe,
            model,
            prepare=lambda each: self._pipeline(each, **options),
            generation=self.store.generation,
        )
        if selection.promoted and self._champion != selection.key:  # free the pipeline of the former champion
            if self._champion is not None:
                self._ready.pop(self._champion, None)
            self._champion = selection.key
        elif options and not selection.promoted and not notice:
            self._pipeline(selection, **options)
        return selection, notice

    def _pipeline(
        self, way: Selection, *, embed: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> tuple[Catalogue, Pipeline]:
        ready = self._find_ready(way)
        if ready is not None:
            return ready
        with self._lock:
            ready = self._find_ready(way)
            if ready is None:
                with self.store.reading():
                    catalogue = self.store.catalogue()
                    workspace = self.workspace(way, embed=embed, progress=progress, live=self._evidence(way))
                    retrieve = registry.build(way.recipe, catalogue, workspace, model=way.model)
                    judged = build_abstainer(workspace, catalogue, retrieve, way.manifest)
                    decide = Decide(functools.partial(_why_empty, catalogue), judged)
                    guarded = guard(retrieve, catalogue, workspace, scan=self.settings.trust_scan)
                    ready = catalogue, guarded >> decide
                if not self.store.connection.in_transaction:
                    self.store.keep(catalogue)
                self._ready[way.key] = ready, way.manifest
            return ready

    def _find_ready(self, way: Selection) -> tuple[Catalogue, Pipeline] | None:
        """Return the pipeline that is ready for the present catalogue and model, or None."""
        ready, manifest = self._ready.get(way.key, (None, None))
        if ready is None or manifest != way.manifest or ready[0].generation != self.store.generation():
            return None
        return ready

    def _evidence(self, way: Selection) -> LiveEvidence | None:
        """Return the evidence since the model was fitted, or None if it was not fitted on this home's journal."""
        if way.model is None or way.manifest is None or way.model.parent != champion.shelf(self.settings.home):
            return None
        job, fitted_on = way.manifest.job, way.manifest.values.get("journal")
        if fitted_on is None:
            return None
        if self._live.get(way.model, ("", None))[0] != job:
            trusted = {self.settings.caller, *self.settings.learn_trust}
            size = way.manifest.data.n_train + way.manifest.data.n_dev
            self._live = {way.model: (job, LiveEvidence(self.journal, fitted_on["through"], size, trusted=trusted))}
        return self._live[way.model][1]

    def workspace(self, selection: Selection, **options: Any) -> Workspace:
        """Return what the pipeline of a selection is built with; `options`: see `toolscout.workspace.Workspace`."""
        return Workspace(self._encoder(selection), self.settings, self.vectors, **options)

    def build(self, selection: Selection, catalogue: Catalogue, **options: Any) -> Stage:
        """Build the pipeline of a selection over a snapshot, up to the ranked hits; `options`: see `workspace`."""
        workspace = self.workspace(selection, **options)
        return registry.build(selection.recipe, catalogue, workspace, model=selection.model)

    def _encoder(self, way: Selection) -> str | Encoder:
        name, is_needed = self.selector.encoder(way)
        if not is_needed:
            return name
        if name not in self._encoders:
            try:
                self._encoders[name] = encoders.load(name, self.settings)
            except ConfigError as error:
                raise ConfigError(f"{way.model}: {error}" if way.model else str(error)) from None
        return self._encoders[name]

    def _fill(self, search: Search) -> Search:
        tools = {tool.id: tool for tool in self.store.tools(search.ids)}
        hits = tuple(Hit(hit.id, hit.score, hit.why, tools[hit.id]) for hit in search.hits if hit.id in tools)
        return msgspec.structs.replace(search, hits=hits)

    def why(
        self,
        query: str,
        tool: str,
        k: int | None = None,
        *,
        recipe: str | None = None,
        model: str | Path | None = None,
        visible: Visible | None = None,
        cures: bool = True,
    ) -> Why:
        """Explain why a tool is not among the answers to a query, and what would lift it. The journal has no entry.

        Args:
            query: the request.
            tool: an id, or a name that only one tool has.
            k: how many answers; by default the setting `k`.
            recipe: as in `search`.
            model: as in `search`.
            visible: as in `search`.
            cures: whether to test which words would lift it; that indexes the catalogue up to three times.

        Raises:
            NotFound: if there is no such tool.
        """
        way, _ = self._select(recipe, model)
        self._pipeline(way)  # built before the read transaction, so that it can be stored
        search = Search(query=query, k=self.settings.k if k is None else k, visible=visible)

        def rebuild(changed: Catalogue) -> Stage:
            return self.build(way, changed, live=self._evidence(way))

        with self.store.reading():
            catalogue, pipeline = self._pipeline(way)
            [result] = pipeline([search])
            trial = rebuild if cures else None
            return explain(catalogue, pipeline, trial, search, find(catalogue, tool), self._fill(result))

    # --- the journal

    def learn(self, **options: Any) -> Report:
        """Learn from the journal and promote the model if it is better; with `dry_run=True` only measure it.

        Args:
            **options: see `toolscout.learn.loop.learn`.

        Raises:
            ConfigError: for a recipe that is not fitted.
            StoreError: if another run is under way.
        """
        from toolscout.learn.loop import learn

        return learn(self, **options)

    def _write(self, found: Sequence[Search], way: Selection, generation: int, caller: str | None) -> str | None:
        """Write searches to the journal. Returns a sentence if that failed; the searches are answered all the same."""
        model = way.manifest.job if way.manifest else None
        common = {"recipe": way.recipe, "model": model, "generation": generation}
        try:
            self.journal.append_all(
                (
                    "search",
                    caller or self.settings.caller,
                    {"search_id": search.search_id, "query": search.query, "shown": list(search.ids), **common},
                )
                for search in found
            )
        except StoreError as error:
            if str(error) != self._unwritten:
                self._unwritten = str(error)
                _log.warning("Searches are not written to the journal: %s", error)
            return f"this search is not in the journal: {error}"
        self._unwritten = ""
        return None

    def called(
        self,
        tool: str,
        *,
        ok: bool,
        search_id: str | None = None,
        ms: float | None = None,
        caller: str | None = None,
    ) -> None:
        """Write to the journal that a tool was called, whether it succeeded, and at which rank it was shown.

        Raises:
            OverBudget: if the search has as many events as one may have.
        """
        search = None
        if search_id is not None:
            self._check_room(search_id)
            search = self.journal.search(search_id)
        shown = search["shown"] if search and isinstance(search["shown"], list) else []
        rank = shown.index(tool) + 1 if tool in shown else None
        self.journal.append(
            "call",
            caller=caller or self.settings.caller,
            search_id=search_id,
            tool=tool,
            ok=ok,
            ms=ms,
            rank=rank,
        )

    def feedback(
        self, search_id: str, *, good: Sequence[str] = (), bad: Sequence[str] = (), caller: str | None = None
    ) -> None:
        """Write to the journal which tools were right and which were wrong for a search.

        Raises:
            NotFound: if the journal knows no such search.
            OverBudget: if the search has as many events as one may have.
        """
        if self.journal.search(search_id) is None:
            raise NotFound(f"expected the id of a search in the journal, found {search_id!r}")
        self._check_room(search_id)
        self.journal.append(
            "feedback",
            caller=caller or self.settings.caller,
            search_id=search_id,
            good=list(good),
            bad=list(bad),
        )

    def _check_room(self, search_id: str) -> None:
        if self.journal.is_full(search_id):
            raise OverBudget(
                f"The search {search_id!r:.80} already has {MAX_SEARCH_EVENTS} events, which is the limit. "
                "Search again."
            )


def _why_empty(catalogue: Catalogue, search: Search) -> str:
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
