"""Scout is the one class that users learn: it adds sources, keeps them in step, searches, and writes the journal."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from toolscout.errors import NotFound, OverBudget, StoreError
from toolscout.home.catalogue.store import Catalogue, Changes, Origin, Source, Store, Waiting
from toolscout.home.catalogue.sync import CatalogueManager
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.home.database.documents import close_documents
from toolscout.home.journal.events import describe_answer
from toolscout.home.journal.journal import MAX_SEARCH_EVENTS, Journal, new_id
from toolscout.location import find_root, find_shared, local_folder, place_tenant, require_folder
from toolscout.recipes.engine import SearchEngine
from toolscout.recipes.select import Selection, Selector
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import Pipeline, Stage
from toolscout.search.resources import LiveEvidence
from toolscout.search.why import Why
from toolscout.settings import Settings, load_settings
from toolscout.sources import Reading
from toolscout.types import Count, Search, Tool

__all__ = ["MAX_AUTO_TOOLS", "Scout"]

MAX_AUTO_TOOLS: Final = 10  # in an answer with `k="auto"`

Visible = Callable[[Tool], bool]
_log = logging.getLogger("toolscout.scout")


class Scout:
    """A catalogue of tools in one folder, and the search over it.

    ::

        scout = Scout()
        scout.add("petstore.json")
        for hit in scout.search("which pets are for sale?").hits:
            print(hit.score, hit.tool.name)

    Safe to use from several threads; several processes may share one folder.

    Attributes:
        settings: of the home.
        catalogue: reads sources, and keeps the tools in step with them.
        engine: builds the pipelines and runs the searches.
    """

    def __init__(self, home: str | Path | None = None, **settings: Any) -> None:
        """Open the catalogue in `home`, or make an empty one.

        Args:
            home: by default the setting `home`.
            **settings: see `toolscout.settings.Settings`; they come before the environment and `toolscout.toml`.

        Raises:
            ConfigError, StoreError
        """
        self._open(load_settings(home=home, **settings))

    def _open(self, settings: Settings) -> None:
        self.settings = settings
        self.catalogue = CatalogueManager(self.settings)
        self.engine = SearchEngine(self.settings, self.catalogue.store, lambda: self.journal)
        self._logged = ""
        self._unwritten = ""  # why the journal could not be written last time

    def open_tenant(self, name: str) -> Scout:
        """Open the catalogue of another tenant of this home, with the same settings.

        Raises:
            NotFound: if the home has no such tenant.
        """
        root = find_root(self.settings.place, self.settings.tenant)
        require_folder(root, name)
        place = place_tenant(root, name)
        database = find_shared(place)
        other = Scout.__new__(type(self))
        other._open(dataclasses.replace(self.settings, home=local_folder(place), tenant=name, database=database))
        return other

    @property
    def store(self) -> Store:
        """The store of the catalogue."""
        return self.catalogue.store

    @property
    def selector(self) -> Selector:
        """Decides which recipe and model serve a search."""
        return self.engine.selector

    @property
    def vectors(self) -> VectorStore:
        """The cached vectors of this home."""
        return self.engine.builder.vectors

    @functools.cached_property
    def journal(self) -> Journal:
        """The journal of this home."""
        return Journal(
            self.settings.place,
            queries=self.settings.journal_queries,
            personal=self.settings.redact_personal,
            keep_days=self.settings.journal_keep_days,
        )

    def close(self) -> None:
        """Close the files and connections."""
        close_documents(self.settings.place)
        self.store.close()
        self.engine.close()
        if "journal" in self.__dict__:
            self.journal.close()

    def __enter__(self) -> Scout:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the catalogue

    def add(
        self, source: str | Path | Iterable[object], *, name: str | None = None, kind: str | None = None
    ) -> list[Changes]:
        """Read a source and put its tools into the catalogue. A second call reads the source again.

        Args:
            source: a locator (`toolscout.sources.SOURCE_KINDS`, or one of a plug-in), or objects: functions, LangChain
                tools, or schemas as mappings.
            name: the source's name, with which the ids of its tools begin; by default the reader derives one.
            kind: which reader to use; by default it is detected from the locator.

        Returns:
            The changes, one entry for each source; see `CatalogueManager.add`.

        Raises:
            SourceError: if nothing could be read.
        """
        return self.catalogue.add(source, name=name, kind=kind)

    def put_reading(self, origin: Origin, reading: Reading) -> Changes:
        """Write one reading of a source into the catalogue; see `CatalogueManager.put_reading`."""
        return self.catalogue.put_reading(origin, reading)

    def brought_by(self, origin: Origin) -> list[Source]:
        """Return the sources of the catalogue that came from an origin."""
        return self.catalogue.brought_by(origin)

    def sync(self, names: Sequence[str] = ()) -> Iterator[Changes]:
        """Read the origins of these sources, or of all, again, and yield the changes of each source.

        New tools are added, changed tools replaced, missing tools removed. A source that cannot be read keeps its
        tools.

        Raises:
            NotFound: for a name that no source has.
        """
        return self.catalogue.sync(names)

    def sources(self) -> list[Source]:
        """Return the sources of the catalogue."""
        return self.catalogue.sources()

    def tool(self, tool_id: str) -> Tool:
        """Return one tool by its id.

        Raises:
            NotFound: if there is no such tool.
        """
        return self.catalogue.tool(tool_id)

    def remove(self, names: Sequence[str]) -> int:
        """Remove sources (by name) and single tools (by id). Returns the number of removed tools.

        Raises:
            NotFound: if a name is neither a source nor a tool; then nothing is removed.
        """
        return self.catalogue.remove(names)

    def hide(self, ids: Sequence[str]) -> None:
        """Hide tools for good: they are not searched, and no sync brings them back. `show` does.

        Raises:
            NotFound: for an id that no tool has; then nothing is hidden.
        """
        self.catalogue.hide(ids)

    def show(self, ids: Sequence[str]) -> list[Changes]:
        """Show hidden tools again, and read their sources, which brings them back. Returns the changes.

        Raises:
            NotFound: for an id that is not hidden; then nothing is changed.
        """
        return self.catalogue.show(ids)

    def enable(self, source: str, enabled: bool = True) -> None:
        """Include a source in the search, or exclude it. Its tools stay in the store."""
        self.catalogue.enable(source, enabled)

    def waiting(self, names: Sequence[str] = ()) -> list[Waiting]:
        """Return the definitions that wait for approval, by id; `names`: only of these tools or sources.

        Raises:
            NotFound: for a name that has no waiting definition.
        """
        return self.catalogue.waiting(names)

    def approve(self, chosen: Sequence[Waiting]) -> int:
        """Approve waiting definitions and put them into the catalogue. Returns how many; see `Store.approve`."""
        return self.catalogue.approve(chosen)

    def advice(self) -> list[str]:
        """Return sentences of advice about the present catalogue, for the user."""
        return self.catalogue.advice()

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
        self.engine.embed(recipe, model=model, progress=progress)

    def search(
        self,
        query: str,
        k: Count | None = None,
        *,
        recipe: str | None = None,
        model: str | Path | None = None,
        visible: Visible | None = None,
        caller: str | None = None,
        deadline: float | None = None,
        split: bool = True,
    ) -> Search:
        """Return the tools for one request, best first and filled in; or the reason why there are none.

        Args:
            query: the request. `select:name,name` asks for tools by name.
            k: the most tools to return; by default the setting `k`. `auto`: until the coverage reaches the setting
                `coverage_aim` or more tools add little (`search.steps.merge.end_answer`), at most `MAX_AUTO_TOOLS`;
                recipes that estimate no coverage return as many.
            recipe: see `toolscout.recipes.registry`; by default that of the model, else that of the champion, else the
                setting `recipe`.
            model: the folder of a fitted model (`toolscout train`); by default the setting `model`.
                `toolscout.recipes.select` says which of model and recipe counts if both are set.
            visible: which tools this caller may discover; hashable. `toolscout.types.OfKind("skill")`: only skills.
            caller: the caller's name for the journal.
            deadline: on the clock of `time.monotonic`. A recipe that reads tools one by one then returns what it has,
                and the trace says so.
            split: whether the request may be split into steps; False for one that is known to be one need.

        Raises:
            ConfigError: for a model that belongs to another recipe, encoder or catalogue.
            NotFound: if there is no such recipe or model.
            StoreError: for a damaged model, unless it is the champion.
        """
        [answer] = self.search_many(
            [query], k, recipe=recipe, model=model, visible=visible, caller=caller, deadline=deadline, split=split
        )
        return answer

    def search_many(
        self,
        queries: Sequence[str],
        k: Count | None = None,
        *,
        recipe: str | None = None,
        model: str | Path | None = None,
        visible: Visible | None = None,
        caller: str | None = None,
        deadline: float | None = None,
        split: bool = True,
    ) -> list[Search]:
        """Run a batch of searches, all on the same state of the catalogue; see `search`."""
        asked = Search(query="", visible=visible, deadline=deadline, split=split)
        selection, answers, generation = self._run_searches(queries, k, asked, recipe, model)
        unwritten = self._write(answers, selection, generation, caller) if self.settings.journal else None
        return [_describe_degraded(answer, unwritten) for answer in answers]

    def preview_many(
        self,
        queries: Sequence[str],
        k: Count | None = None,
        *,
        recipe: str | None = None,
        visible: Visible | None = None,
    ) -> list[Search]:
        """Run searches that are not written to the journal, such as those of a person who is still typing.

        Their answers have no `search_id`, so that no call or feedback can refer to them.
        """
        _, answers, _ = self._run_searches(queries, k, Search(query="", visible=visible), recipe, None)
        return [_describe_degraded(msgspec.structs.replace(answer, search_id=None), None) for answer in answers]

    def _run_searches(
        self,
        queries: Sequence[str],
        k: Count | None,
        asked: Search,
        recipe: str | None,
        model: str | Path | None,
    ) -> tuple[Selection, list[Search], int]:
        """Run one search for each query. Returns what served, the answers, and the generation of the catalogue.

        Args:
            queries: the texts.
            k: as in `search`.
            asked: what all of them have in common.
            recipe: as in `search`.
            model: as in `search`.
        """
        k = self.settings.k if k is None else k
        max_hits, aim = (MAX_AUTO_TOOLS, self.settings.coverage_aim) if k == "auto" else (k, None)
        if max_hits < 1:
            raise ValueError(f"k: expected at least 1, found {k}")
        selection, notice = self.engine.select(recipe, model)
        if notice and asked.visible is not None:
            notice = self._hide_notice(notice, selection)
        asked = msgspec.structs.replace(asked, k=max_hits, aim=aim, reason=notice or None)
        batch = [msgspec.structs.replace(asked, query=query, search_id=new_id()) for query in queries]
        answers, generation = self.engine.run(selection, batch)
        return selection, answers, generation

    def _hide_notice(self, notice: str, selection: Selection) -> str:
        """Log a notice once, and return the part of it that is fit for callers with limited rights."""
        if notice != self._logged:
            self._logged = notice
            _log.warning("%s", notice)
        return f"searched with {selection.recipe}: the promoted model cannot serve"

    async def asearch(
        self,
        query: str,
        k: Count | None = None,
        *,
        recipe: str | None = None,
        model: str | Path | None = None,
        visible: Visible | None = None,
        caller: str | None = None,
        deadline: float | None = None,
        split: bool = True,
    ) -> Search:
        """Run `search` in a thread, for asynchronous callers."""
        import asyncio  # not needed by the first search of a new process

        search = functools.partial(self.search, recipe=recipe, model=model, visible=visible, caller=caller)
        return await asyncio.to_thread(search, query, k, deadline=deadline, split=split)

    def pipeline(self, recipe: str | None = None, *, model: str | Path | None = None) -> tuple[Catalogue, Pipeline]:
        """Return the present snapshot and the pipeline over it; `recipe` and `model` as in `search`."""
        return self.engine.pipeline(recipe, model=model)

    def serving(self) -> tuple[Selection, str]:
        """Return what serves searches that name no model, and a sentence if the promoted model cannot serve them."""
        return self.engine.select(None, None)

    def workspace(self, selection: Selection) -> HomeResources:
        """Return what the ranker of a selection is built with."""
        return self.engine.builder.lend(selection)

    def build(self, selection: Selection, catalogue: Catalogue, *, live: LiveEvidence | None = None) -> Stage:
        """Build the recipe of a selection over a snapshot, up to the ranked hits; `live`: see `HomeResources`."""
        return self.engine.builder.build_ranking(selection, catalogue, live=live)

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
        words: Sequence[str] = (),
    ) -> Why:
        """Explain why a tool is not among the answers to a query, and what would lift it. Writes no journal entry.

        Args:
            query: the request.
            tool: an id, or a name that only one tool has.
            k: how many answers; by default the setting `k`.
            recipe: as in `search`.
            model: as in `search`.
            visible: as in `search`.
            cures: whether to test which words would lift it; that indexes the catalogue up to three times.
            words: words to test instead of those.

        Raises:
            NotFound: if there is no such tool.
        """
        return self.engine.why(query, tool, k, recipe=recipe, model=model, visible=visible, cures=cures, words=words)

    # --- the journal

    def _write(self, found: Sequence[Search], selection: Selection, generation: int, caller: str | None) -> str | None:
        """Write searches to the journal. Returns a sentence if that failed; the searches are answered all the same."""
        model = selection.manifest.job if selection.manifest else None
        common = {"recipe": selection.recipe, "model": model, "generation": generation}
        try:
            self.journal.append_all(
                (
                    "search",
                    caller or self.settings.caller,
                    {**describe_answer(search), **common},
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
            OverBudget: if the search already has the maximum number of events.
        """
        shown = [] if search_id is None else self._read_shown(search_id)
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

    def _read_shown(self, search_id: str) -> list[str]:
        """Return the ids of the tools that a search showed. Empty if the journal cannot be read now.

        Raises:
            OverBudget: if the search already has the maximum number of events.
        """
        try:
            self._check_room(search_id)
            search = self.journal.search(search_id)
        except StoreError as error:
            _log.warning("The rank of a call is not written to the journal: %s", error)
            return []
        return search["shown"] if search and isinstance(search["shown"], list) else []

    def feedback(
        self,
        search_id: str,
        *,
        good: Sequence[str] = (),
        bad: Sequence[str] = (),
        withdrawn: Sequence[str] = (),
        caller: str | None = None,
    ) -> None:
        """Write to the journal which tools were right and which were wrong for a search.

        Args:
            search_id: of the search.
            good: ids of the right tools.
            bad: ids of the wrong tools.
            withdrawn: ids of the tools whose earlier feedback, of this caller and search, no longer counts.
            caller: the caller's name.

        Raises:
            NotFound: if the journal knows no such search.
            OverBudget: if the search already has the maximum number of events.
        """
        if self.journal.search(search_id) is None:
            raise NotFound(f"expected the id of a search in the journal, found {search_id!r}")
        self._check_room(search_id)
        fields: dict[str, Any] = {"search_id": search_id, "good": list(good), "bad": list(bad)}
        if withdrawn:
            fields["withdrawn"] = list(withdrawn)
        self.journal.append("feedback", caller=caller or self.settings.caller, **fields)

    def _check_room(self, search_id: str) -> None:
        if self.journal.is_full(search_id):
            raise OverBudget(f"The search {search_id!r:.80} has {MAX_SEARCH_EVENTS} events, the limit. Search again.")


def _describe_degraded(answer: Search, unwritten: str | None) -> Search:
    """Add to an answer why it is not in the journal; a caller with limited sight does not learn where services are."""
    if answer.visible is not None:
        unwritten = unwritten and "this search is not in the journal"
        helpless = answer.degraded and "a stage of the search could not help"
    else:
        helpless = answer.degraded
    problems = [problem for problem in (helpless, unwritten) if problem]
    return msgspec.structs.replace(answer, degraded="; ".join(problems)) if problems else answer
