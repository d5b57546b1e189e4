"""Scout is the one class that users learn: it adds sources, keeps them in step, searches, and writes the journal."""

from __future__ import annotations

import dataclasses
import functools
import logging
import operator
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from toolscout.errors import NotFound, OverBudget, StoreError, UserError
from toolscout.home.catalogue.store import Catalogue, Changes
from toolscout.home.catalogue.sync import CatalogueManager
from toolscout.home.database import open_home
from toolscout.home.journal.journal import MAX_SEARCH_EVENTS, Journal
from toolscout.location import find_root, find_shared, local_folder, place_tenant, require_folder
from toolscout.recipes.engine import SearchEngine
from toolscout.recipes.select import Selection
from toolscout.search.pipeline import Pipeline
from toolscout.search.why import Why
from toolscout.settings import Settings, load_settings
from toolscout.types import Answer, Count, Tool

__all__ = ["MAX_AUTO_TOOLS", "Scout"]

MAX_AUTO_TOOLS: Final = 10  # in an answer with `k="auto"`

#: Member of version 0.2 → its path from a scout; empty: the scout itself, which is a catalogue now.
MOVED_MEMBERS: Final = {
    "build": "engine.builder.build_ranking",
    "catalogue": "",
    "selector": "engine.selector",
    "serving": "engine.serving",
    "vectors": "engine.builder.vectors",
    "workspace": "engine.builder.make_resources",
}
Visible = Callable[[Tool], bool]
_log = logging.getLogger("toolscout.scout")


class Scout(CatalogueManager):
    """A catalogue of tools in one folder, and the search over it.

    ::

        scout = Scout()
        scout.add("petstore.json")
        for hit in scout.search("which pets are for sale?").hits:
            print(hit.score, hit.tool.name)

    Safe to use from several threads; several processes may share one folder.

    Attributes:
        settings: of the home.
        store: the catalogue in its database.
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
        """Open the catalogue of the home that these settings name."""
        super().__init__(settings)
        self.engine = SearchEngine(self.settings, self.store, lambda: self.journal)
        self._logged_notice = ""  # why the promoted model cannot serve, as it was logged last
        self._journal_error = ""  # why the journal could not be written last time; empty: it was written

    def open_tenant(self, name: str) -> Scout:
        """Open the catalogue of another tenant of this home, with the same settings.

        Raises:
            NotFound: if the home has no such tenant.
        """
        root = find_root(self.settings.place, self.settings.tenant)
        require_folder(root, name)
        home = place_tenant(root, name)
        settings = dataclasses.replace(self.settings, home=local_folder(home), tenant=name, database=find_shared(home))
        scout = Scout.__new__(type(self))  # `__init__` would load the settings again
        scout._open(settings)
        return scout

    def __getattr__(self, name: str) -> Any:
        """Return a member under the name that it had in version 0.2, with a warning."""
        if name not in MOVED_MEMBERS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        path = MOVED_MEMBERS[name]
        new_name = f"Scout.{path}" if path else "Scout"
        warnings.warn(f"Scout.{name} is now {new_name}", DeprecationWarning, stacklevel=2)
        return operator.attrgetter(path)(self) if path else self

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
        self.engine.close()  # first, since it may be making vectors of what the store has
        open_home(self.settings.place).close()
        self.store.close()
        if "journal" in self.__dict__:  # it was opened
            self.journal.close()

    def __enter__(self) -> Scout:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the catalogue

    def add(
        self,
        source: str | Path | Iterable[object],
        *,
        name: str | None = None,
        kind: str | None = None,
        server: str = "",
        embed: bool = True,
    ) -> list[Changes]:
        """Read a source and put its tools into the catalogue, with their vectors; see `CatalogueManager.add`.

        Args:
            source: a locator, or objects.
            name: the source's name.
            kind: which reader to use.
            server: address to which the operations of an OpenAPI document are sent.
            embed: whether vectors that take long are made now. A search makes those that are missing.

        Raises:
            SourceError: if nothing could be read.
        """
        changes = super().add(source, name=name, kind=kind, server=server)
        if embed and any(change.any for change in changes):
            self._make_vectors()
        return changes

    def _make_vectors(self) -> None:
        """Make the vectors of new tools now, if that takes long. Where it fails, the next search tries again."""
        try:
            if self.engine.encodes_slowly():
                self.engine.embed()
        except UserError as error:
            _log.warning("The new tools have no vectors yet: %s", error)

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

        `recipe` and `model` are those of `search`. `progress` is called with (done, total) while texts are embedded,
        and each time that an index of a large catalogue has read some thousand tools.
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
    ) -> Answer:
        """Return the tools for one request, best first and filled in; or the reason why there are none.

        Args:
            query: the request. `select:name,name` asks for tools by name.
            k: the most tools to return; by default the setting `k`. An answer with `auto` has `MAX_AUTO_TOOLS` tools,
                or fewer if its coverage reaches the setting `coverage_aim` or more tools would add little to it
                (`search.steps.merge.end_answer`).
            recipe: see `toolscout.recipes.registry`; by default the recipe of the model, else of the champion, else the
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
    ) -> list[Answer]:
        """Run a batch of searches, all on the same state of the catalogue. The answers are in the order of `queries`.

        The other arguments are those of `search`, and apply to each query; the deadline is for all queries together.
        """
        caller = caller or self.settings.caller
        template = Answer(query="", visible=visible, deadline=deadline, split=split, caller=caller)
        selection, answers, generation = self._run_searches(queries, k, template, recipe, model)
        problem = self._write_searches(answers, selection, generation) if self.settings.journal else None
        return [_describe_problems(answer, problem) if answer.degraded or problem else answer for answer in answers]

    def preview_many(
        self,
        queries: Sequence[str],
        k: Count | None = None,
        *,
        recipe: str | None = None,
        visible: Visible | None = None,
    ) -> list[Answer]:
        """Run searches that are not written to the journal, such as those of a person who is still typing.

        Their answers have no `search_id`, so that no call or feedback can refer to them.
        """
        _, answers, _ = self._run_searches(queries, k, Answer(query="", visible=visible), recipe, None)
        answers = [msgspec.structs.replace(answer, search_id=None) for answer in answers]
        return [_describe_problems(answer, None) if answer.degraded else answer for answer in answers]

    def _run_searches(
        self,
        queries: Sequence[str],
        k: Count | None,
        template: Answer,
        recipe: str | None,
        model: str | Path | None,
    ) -> tuple[Selection, list[Answer], int]:
        """Run one search for each query. Returns what served, the answers, and the generation of the catalogue.

        `template` is what the searches have in common; queries, ids, `k` and `aim` are filled in here.
        """
        k = self.settings.k if k is None else k
        max_hits = MAX_AUTO_TOOLS if k == "auto" else k
        aim = self.settings.coverage_aim if k == "auto" else None
        if max_hits < 1:
            raise ValueError(f"k: expected at least 1, found {k}")
        selection, notice = self.engine.select(recipe, model)
        if notice and template.visible is not None:
            notice = self._hide_notice(notice, selection)
        template = msgspec.structs.replace(template, k=max_hits, aim=aim, reason=notice or None)
        batch = [msgspec.structs.replace(template, query=query, search_id=uuid.uuid4().hex) for query in queries]
        answers, generation = self.engine.run(selection, batch)
        return selection, answers, generation

    def _hide_notice(self, notice: str, selection: Selection) -> str:
        """Log why the promoted model cannot serve, once, and return a text for callers who see only a part.

        The notice itself may name models and folders.
        """
        if notice != self._logged_notice:
            self._logged_notice = notice
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
    ) -> Answer:
        """Run `search` in a thread, for asynchronous callers. It takes the same arguments."""
        import asyncio  # not needed by the first search of a new process

        search = functools.partial(self.search, recipe=recipe, model=model, visible=visible, caller=caller)
        return await asyncio.to_thread(search, query, k, deadline=deadline, split=split)

    def pipeline(self, recipe: str | None = None, *, model: str | Path | None = None) -> tuple[Catalogue, Pipeline]:
        """Return the present snapshot and the pipeline over it; `recipe` and `model` as in `search`."""
        return self.engine.pipeline(recipe, model=model)

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
        """Explain why a tool is not in the answer to a query, and what would bring it there. Writes no journal entry.

        Args:
            query: the request.
            tool: an id, or a name that only one tool has.
            k: the number of tools in the answer; by default the setting `k`.
            recipe: as in `search`.
            model: as in `search`.
            visible: as in `search`.
            cures: whether to test which words in its description would bring the tool into the answer; that indexes
                the catalogue up to three times.
            words: test these words instead.

        Raises:
            NotFound: if there is no such tool.
        """
        return self.engine.why(query, tool, k, recipe=recipe, model=model, visible=visible, cures=cures, words=words)

    # --- the journal

    def _write_searches(self, answers: Sequence[Answer], selection: Selection, generation: int) -> str | None:
        """Write searches to the journal. A failure raises nothing, since they are answered: returns what happened."""
        model = selection.manifest.job if selection.manifest else None
        served_by = {"recipe": selection.recipe, "model": model, "generation": generation}
        events = []
        for answer in answers:
            shown = [hit.id for hit in answer.hits]
            fields: dict[str, object] = {"search_id": answer.search_id, "query": answer.query, "shown": shown}
            if answer.kind is not None:
                fields["answer"] = answer.kind
            events.append(("search", answer.caller or self.settings.caller, fields | served_by))
        try:
            self.journal.append_all(events)
        except StoreError as error:
            if str(error) != self._journal_error:  # the same error is logged once, although each search has it
                self._journal_error = str(error)
                _log.warning("Searches are not written to the journal: %s", error)
            return f"this search is not in the journal: {error}"
        self._journal_error = ""
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

        Args:
            tool: its id.
            ok: whether the call succeeded.
            search_id: of the search that led to the call; without one, the call teaches nothing.
            ms: how long the call took; None: unknown.
            caller: who called; None: the setting `caller`.

        Raises:
            OverBudget: if the search already has the maximum number of events.
        """
        shown = [] if search_id is None else self._read_shown(search_id)
        rank = shown.index(tool) + 1 if tool in shown else None
        caller = caller or self.settings.caller
        self.journal.append("call", caller=caller, search_id=search_id, tool=tool, ok=ok, ms=ms, rank=rank)

    def _read_shown(self, search_id: str) -> list[str]:
        """Return the ids of the tools that a search showed. Empty if the journal cannot be read now.

        Raises:
            OverBudget: if the search already has the maximum number of events.
        """
        try:
            self._raise_if_full(search_id)
            search = self.journal.search(search_id)
        except StoreError as error:
            _log.warning("The rank of a call is not written to the journal: %s", error)
            return []
        shown = search["shown"] if search else []
        return shown if isinstance(shown, list) else []  # a damaged row may have anything

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
            withdrawn: ids of tools; the earlier feedback of this caller on them, for this search, no longer counts.
            caller: the caller's name.

        Raises:
            NotFound: if the journal knows no such search.
            OverBudget: if the search already has the maximum number of events.
        """
        if self.journal.search(search_id) is None:
            raise NotFound(f"expected the id of a search in the journal, found {search_id!r}")
        self._raise_if_full(search_id)
        fields: dict[str, Any] = {"search_id": search_id, "good": list(good), "bad": list(bad)}
        if withdrawn:
            fields["withdrawn"] = list(withdrawn)
        self.journal.append("feedback", caller=caller or self.settings.caller, **fields)

    def _raise_if_full(self, search_id: str) -> None:
        """Raise OverBudget if a search already has the maximum number of events."""
        if self.journal.is_full(search_id):
            raise OverBudget(f"The search {search_id!r:.80} has {MAX_SEARCH_EVENTS} events, the limit. Search again.")


def _describe_problems(answer: Answer, journal_problem: str | None) -> Answer:
    """Add to `degraded`, which describes what failed in the search, why the journal does not have the search.

    A caller who sees only a part of the catalogue gets general sentences, which do not say where services are.
    """
    sentences = [(answer.degraded, "a stage of the search could not help")]
    sentences += [(journal_problem, "this search is not in the journal")]
    is_restricted = answer.visible is not None
    problems = [general if is_restricted else exact for exact, general in sentences if exact]
    return msgspec.structs.replace(answer, degraded="; ".join(problems))
