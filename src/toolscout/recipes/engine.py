"""The search engine of one home: keeps the pipeline of each recipe and model ready, and runs searches on it.

`recipes.select` decides what serves a search, and `recipes.builder` builds its pipeline over the present generation of
the catalogue. If an encoder or a model does not answer, the fallback of the recipe serves.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from toolscout.encoders import Vectors
from toolscout.errors import ConfigError, Unavailable, UserError
from toolscout.home.catalogue.store import Catalogue, Store
from toolscout.home.catalogue.vector_cache import Progress, VectorMaker, show_progress
from toolscout.home.database import Connection
from toolscout.home.journal.journal import Journal
from toolscout.home.models.model_store import Manifest
from toolscout.indexes import BUILT_IN_INDEXES
from toolscout.indexes.engine import find_engine
from toolscout.recipes import registry
from toolscout.recipes.builder import PipelineBuilder, SecondProcess, list_parts
from toolscout.recipes.select import ChampionSwitch, Selection, SelectionKey, Selector
from toolscout.search.home_resources import HomeResources, VectorsMissing, name_space
from toolscout.search.pipeline import Pipeline
from toolscout.search.why import Why, explain, find, try_words
from toolscout.settings import RULES, Settings
from toolscout.types import Answer, Tool

__all__ = ["SearchEngine"]

MAX_SNAPSHOT_ATTEMPTS: Final = 3
WITHOUT_ENGINE: Final = "bm25"  # serves while the engine of the index does not answer
RETRY_ENCODER_AFTER_S: Final = 30.0  # an encoder that did not answer is not asked again before that


class SearchEngine:
    """Builds pipelines over the catalogue of one home and runs searches on them. It writes nothing to the journal.

    Safe to use from several threads. A search makes the vectors that are missing, and waits for them. In a program that
    serves for long it answers by words meanwhile, and says so.

    Attributes:
        settings: of the home.
        store: the catalogue.
        selector: decides which recipe and model serve a search.
        builder: builds the pipelines.
    """

    def __init__(self, settings: Settings, store: Store, open_journal: Callable[[], Journal]) -> None:
        """Search a catalogue under these settings.

        Args:
            settings: of the home.
            store: the catalogue.
            open_journal: returns the journal, which models fitted on it keep reading; called when one needs it.
        """
        self.settings, self.store, self.selector = settings, store, Selector(settings)
        self.builder = PipelineBuilder(settings, self.selector, open_journal)
        self._lock = threading.RLock()
        # Selection → (snapshot, pipeline over it), manifest of the model
        self._ready: dict[SelectionKey, tuple[tuple[Catalogue, Pipeline], Manifest | None]] = {}
        # Selection that could not serve → since when (monotonic seconds), error; it is not tried again at once
        self._down: dict[SelectionKey, tuple[float, Unavailable]] = {}
        self._champion: SelectionKey | None = None  # the promoted selection that searched last
        self._makers: dict[SelectionKey, VectorMaker] = {}  # make missing vectors in the background
        self._switch: ChampionSwitch | None = None  # in a program that serves for long
        if settings.database is not None and settings.index not in BUILT_IN_INDEXES:
            store.follower = self._follow_catalogue  # called in each transaction that changes tools

    def close(self) -> None:
        """Close what was opened for searches."""
        for maker in self._makers.values():
            maker.stop()
        self.stop_switching()
        self.builder.close()
        with contextlib.suppress(ConfigError):  # a plug-in that cannot be loaded has opened nothing
            if engine := find_engine(self.settings.index):
                engine.close(self.settings)

    def embed(
        self,
        recipe: str | None = None,
        *,
        model: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Build what the search needs for the present catalogue, as `Scout.embed` says.

        If the environment or the settings file names a model that cannot serve the catalogue yet, only the setting
        `recipe` is prepared.
        """
        prepare = functools.partial(self._embed, progress=progress)
        try:
            selection, notice = self.select(recipe, model, prepare)
            if not selection.promoted and not notice:  # otherwise the selection is prepared already
                prepare(selection)
        except UserError:
            name = recipe or self.settings.recipe
            model_is_argument = model is not None or self.settings.origins.get("model") == "argument"
            if model_is_argument or self.settings.model is None or registry.recipe(name).is_fitted:
                raise
            prepare(Selection(name))

    def encodes_slowly(self) -> bool:
        """Return whether a search that names no recipe and no model needs vectors that take long to make.

        Raises:
            UserError: if its encoder or model cannot be loaded.
        """
        encoder = self.builder.load_encoder(self.selector.find(None, None))
        return not isinstance(encoder, str) and not encoder.cheap  # a text: the pipeline may not need this encoder

    def run(self, selection: Selection, batch: Sequence[Answer]) -> tuple[list[Answer], int]:
        """Run the batch on one state of the catalogue, and return the filled answers with its generation.

        If the recipe's encoder or model does not answer, the recipe's fallback serves, and the answers say so.

        Raises:
            Unavailable: if it does not answer and the recipe has no fallback.
            UserError: if the selection cannot serve.
        """
        try:
            return self._run_unless_down(selection, batch)
        except Unavailable as error:
            fallback = registry.recipe(selection.recipe).fallback
            if isinstance(error, VectorsMissing) or find_engine(self.settings.index) or selection.promoted:
                fallback = fallback or WITHOUT_ENGINE  # words need neither vectors nor the model
            if fallback is None:
                raise
            retried = [
                msgspec.structs.replace(search, reason=_explain_fallback(fallback, error, search)) for search in batch
            ]
            return self._run(Selection(fallback), retried)

    def _run_unless_down(self, selection: Selection, batch: Sequence[Answer]) -> tuple[list[Answer], int]:
        """Run the batch, unless the selection could not serve a moment ago: then not every search waits for a service.

        Raises:
            VectorsMissing: while the vectors are made in the background, which this begins if many are missing.
            Unavailable: if the encoder or the model does not answer, or did not answer a moment ago.
        """
        if (maker := self._makers.get(selection.key)) and maker.is_running:
            raise VectorsMissing(maker.progress)
        if (down := self._down.get(selection.key)) is not None:
            since, earlier_error = down
            if time.monotonic() - since < RETRY_ENCODER_AFTER_S:
                raise earlier_error
        try:
            return self._run(selection, batch)
        except VectorsMissing:
            self._makers[selection.key] = VectorMaker(functools.partial(self._embed_aside, selection))
            raise
        except Unavailable as error:
            self._down[selection.key] = (time.monotonic(), error)
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            if not selection.promoted:
                raise
            # Nobody named a promoted model, and whoever wrote it may have wanted it to fail. So the fallback serves.
            failure = Unavailable(f"the promoted model {selection.model} failed: {error!r:.200}")
            self._down[selection.key] = (time.monotonic(), failure)
            raise failure from error

    def _embed(self, selection: Selection, *, progress: Progress | None = None) -> None:
        """Make the vectors that are missing, and the pipeline of a selection.

        In a program that serves for long, searches go on meanwhile.

        Args:
            selection: what will serve.
            progress: called with (done, total) while texts are embedded; None: shows it on a terminal.
        """
        if self._switch is None:
            self.prepare(selection, progress=progress)
        elif self._find_ready(selection) is None:
            self._build_ready(selection, embed=True, progress=progress)
        self._down.pop(selection.key, None)

    def _embed_aside(self, selection: Selection, progress: Progress) -> None:
        """Make the vectors that are missing while searches are answered by words. A failure is not repeated at once."""
        try:
            self._embed(selection, progress=progress)
        except UserError as error:
            self._down[selection.key] = (time.monotonic(), Unavailable(str(error)))

    def _run(self, selection: Selection, batch: Sequence[Answer]) -> tuple[list[Answer], int]:
        """Run the batch on one state of the catalogue, and return the answers with its generation.

        The generation only rises. So if it is still the snapshot's when the answers get their tools, everything that
        the pipeline read belongs to it. That takes one statement instead of four, and a search that waits for a
        language model keeps no connection meanwhile.
        """
        for _ in range(MAX_SNAPSHOT_ATTEMPTS):
            catalogue, pipeline = self.prepare(selection)
            try:
                answers = pipeline(batch)
            except Exception:
                with self.store.reading():
                    if self.store.generation() == catalogue.generation:
                        raise
                continue  # the error may come from the change of the catalogue
            ids = dict.fromkeys(hit.id for search in answers for hit in search.hits or search.weak)
            tools = self.store.tools_at(catalogue.generation, ids)
            if tools is not None:
                return [_fill_hits(search, tools) for search in answers], catalogue.generation
        with self._lock, self.store.reading():  # others write all the time: keep one state while it is indexed
            catalogue, pipeline = self.prepare(selection)
            return [self._read_tools(search) for search in pipeline(batch)], catalogue.generation

    def pipeline(self, recipe: str | None = None, *, model: str | Path | None = None) -> tuple[Catalogue, Pipeline]:
        """Return the present snapshot and the pipeline over it; `recipe` and `model` as in `Scout.search`."""
        selection, _ = self.select(recipe, model)
        return self.prepare(selection)

    def serving(self) -> tuple[Selection, str]:
        """Return what serves searches that name no model, and a sentence if the promoted model cannot serve them."""
        return self.select(None, None)

    def await_champion(self) -> tuple[Selection, str]:
        """Wait until the present champion serves, if a thread prepares it. Returns the same as `serving`."""
        if self._switch is not None and not self.selector.is_named(None, None):
            return self._switch.catch_up()
        return self.serving()

    def switch_in_background(self) -> None:
        """Let the former champion answer until the pipeline of a new one is ready, for programs that serve for long.

        Without this the next search after a promotion builds the pipeline and uses it.
        """
        if self._switch is None:
            self._switch = ChampionSwitch(self.settings, self.selector, self.store.generation, self._forget)
            self._switch.start(self.prepare, self._prepare_aside)

    def stop_switching(self) -> None:
        """End what `switch_in_background` began."""
        if self._switch is not None:
            self._switch.stop()
            self._switch = None

    def select(
        self, recipe: str | None, model: str | Path | None, prepare: Callable[[Selection], object] | None = None
    ) -> tuple[Selection, str]:
        """Return what serves a search, and a sentence if the champion should serve but cannot.

        A new champion is prepared, and the pipeline of the former one is freed.

        Args:
            recipe: that the search names, as in `Scout.search`.
            model: that the search names, as in `Scout.search`.
            prepare: prepares the champion. None: `self.prepare`, or the thread of `switch_in_background`.

        Raises:
            UserError: if what is named cannot serve.
        """
        if prepare is None and self._switch is not None and not self.selector.is_named(recipe, model):
            return self._switch.select()
        prepare = prepare or self.prepare
        selection, notice = self.selector.select(recipe, model, prepare=prepare, generation=self.store.generation)
        if selection.promoted and self._champion != selection.key:
            if self._champion is not None:
                self._forget(self._champion)
            self._champion = selection.key
        return selection, notice

    def prepare(self, selection: Selection, *, progress: Progress | None = None) -> tuple[Catalogue, Pipeline]:
        """Return the present snapshot and the pipeline of a selection over it, built if it is not ready.

        Args:
            selection: what serves.
            progress: called with (done, total) while texts are embedded; None: shows it on a terminal.

        Raises:
            VectorsMissing: in a program that serves for long, if many vectors are missing.
        """
        ready = self._find_ready(selection)
        if ready is not None:
            return ready
        with self._lock:  # another thread may have built it meanwhile
            embed = self._switch is None  # a program that serves for long makes many vectors in the background
            return self._find_ready(selection) or self._build_ready(selection, embed=embed, progress=progress)

    def _prepare_aside(self, selection: Selection) -> tuple[Catalogue, Pipeline]:
        """Prepare a selection while searches run on another. The lock is free meanwhile."""
        return self._find_ready(selection) or self._build_ready(selection, embed=True)

    def _build_ready(
        self, selection: Selection, *, embed: bool, progress: Progress | None = None
    ) -> tuple[Catalogue, Pipeline]:
        """Build the pipeline of a selection over the present snapshot, and keep it."""
        with self.store.reading():
            catalogue = self._find_catalogue() or self.store.catalogue()
            catalogue.report_read = progress
            with self._screen_in_second_process(catalogue) as screening:
                pipeline = self.builder.build(
                    selection,
                    catalogue,
                    embed=embed,
                    progress=progress or show_progress,
                    before_guard=screening.finish,
                )
        catalogue.report_read = None
        if not self.store.in_transaction:
            self.store.keep(catalogue)  # stores what was computed for the snapshot, such as its indexes
        ready = catalogue, pipeline
        self._ready[selection.key] = ready, selection.manifest
        return ready

    def _screen_in_second_process(self, catalogue: Catalogue) -> SecondProcess:
        """Screen the tools of a large catalogue while this process makes its indexes."""
        return SecondProcess(self.store, catalogue, self.settings.preferred_sources, list_parts(self.settings))

    def _find_catalogue(self) -> Catalogue | None:
        """Return the present snapshot if a pipeline over it is ready, so that its indexes are open only once."""
        generation = self.store.generation()
        catalogues = [catalogue for (catalogue, _), _ in list(self._ready.values())]
        return next((catalogue for catalogue in catalogues if catalogue.generation == generation), None)

    def _forget(self, key: SelectionKey) -> None:
        """Free the pipeline of a selection."""
        self._ready.pop(key, None)

    def _find_ready(self, selection: Selection) -> tuple[Catalogue, Pipeline] | None:
        """Return snapshot and pipeline of a selection, if they are of the present catalogue and model, or None."""
        ready, manifest = self._ready.get(selection.key, (None, None))
        if ready is None:
            return None
        catalogue, _ = ready
        is_present = manifest == selection.manifest and catalogue.generation == self.store.generation()
        return ready if is_present else None

    def _follow_catalogue(self, connection: Connection) -> None:
        """Change the vectors in the home's own database, in the transaction that changes the tools.

        An encoder that takes long does not delay the transaction: it makes the vectors of new tools afterwards.
        """
        if engine := find_engine(self.settings.index):
            engine.follow_catalogue(self.settings, connection, self._make_cheap_encoders)

    def _make_cheap_encoders(self) -> dict[str, Callable[[Sequence[Tool]], Vectors]]:
        """Return the encoder of the setting `recipe`, by the name under which its vectors are stored (`name_space`).

        Empty: it takes long, or the recipe needs none.
        """
        encoder = self.builder.load_encoder(Selection(self.settings.recipe))
        encoders: dict[str, Callable[[Sequence[Tool]], Vectors]] = {}
        if not isinstance(encoder, str) and encoder.cheap:
            encode = functools.partial(HomeResources(encoder, self.settings).encode_tools, encoder)
            encoders[name_space(encoder)] = encode
        return encoders

    def _read_tools(self, search: Answer) -> Answer:
        """Return the answer with its tools, as the store has them now."""
        tools = self.store.tools([hit.id for hit in search.hits or search.weak])
        return _fill_hits(search, {tool.id: tool for tool in tools})

    def why(
        self,
        query: str,
        tool: str,
        k: int | None = None,
        *,
        recipe: str | None = None,
        model: str | Path | None = None,
        visible: Callable[[Tool], bool] | None = None,
        cures: bool = True,
        words: Sequence[str] = (),
    ) -> Why:
        """Explain why a tool is not among the answers to a query; see `Scout.why`."""
        selection, _ = self.select(recipe, model)
        self.prepare(selection)  # built before the read transaction, so that it can be stored
        search = Answer(query=query, k=self.settings.k if k is None else k, visible=visible)
        with self.store.reading():
            catalogue, pipeline = self.prepare(selection)
            rebuild = functools.partial(self.builder.build_changed, selection, catalogue)  # with a changed tool
            [result] = pipeline([search])
            tool_id = find(catalogue, tool)
            trial = rebuild if cures and not words else None
            # rules that are left out one by one; not if each search would ask a language model, which costs something
            rules = [] if words or pipeline.asks else [rule for rule in RULES if self.settings.uses(rule)]
            without = {
                rule: functools.partial(self.builder.build_without, selection, catalogue, rule)
                for rule in rules
                if cures or rule != "glosses"  # which needs another index of words
            }
            why = explain(catalogue, pipeline, trial, search, tool_id, self._read_tools(result), without)
            if not words:
                return why
            [described] = catalogue.tools([tool_id])
            return msgspec.structs.replace(why, trial=try_words(rebuild, search, described, words))


def _explain_fallback(fallback: str, error: Unavailable, search: Answer) -> str:
    """Say why a fallback serves. A caller who does not see all tools does not learn how many there are."""
    is_hidden = isinstance(error, VectorsMissing) and search.visible is not None  # its text counts tools
    return f"searched with {fallback} alone: {'vectors of tools are still being made' if is_hidden else error}"


def _fill_hits(search: Answer, tools: Mapping[str, Tool]) -> Answer:
    """Return the answer with the tools of its hits, which `tools` has by id. A hit without a tool is left out."""
    hits, weak = (
        tuple(msgspec.structs.replace(hit, tool=tools[hit.id]) for hit in part if hit.id in tools)
        for part in (search.hits, search.weak)
    )
    return msgspec.structs.replace(search, hits=hits, weak=weak)
