"""Decides which recipe and which fitted model serve a search, and whether the champion can.

A search may name a recipe, a model, both or neither; so may the code, the environment and the settings file. The name
nearest to the search decides. A model brings its recipe with it, and a recipe that needs no model is searched without
one. A recipe and a model that are named at the same place must belong together. If neither is named anywhere, the
champion serves (`toolscout.home.models.champion`). It also serves if only its recipe is named.

A pipeline over many tools takes seconds to build. A program that serves for long builds that of a new champion in the
background, and switches to it in one step (`ChampionSwitch`); until then the former champion answers. A change of the
catalogue is different: nobody may get a tool that was removed, so searches wait for the new pipeline then.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from toolscout.errors import ConfigError, StoreError, Unavailable, UserError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.database import open_home
from toolscout.home.models import champion, model_store
from toolscout.home.models.model_store import Manifest
from toolscout.rankers.declared import check_manifest
from toolscout.recipes import registry
from toolscout.search.pipeline import Pipeline
from toolscout.settings import Settings, parse_pairs

__all__ = ["ChampionSwitch", "Selection", "SelectionKey", "Selector"]

SelectionKey = tuple[str, Path | None, str | None]
ORIGIN_RANKS: Final = {"default": 0, "environment": 2, "argument": 3}
"""Origin of a setting → how near it is to the search. Any other origin is a settings file."""
FILE_RANK: Final = 1
CALL_RANK: Final = 4
LOOK_INTERVAL_S: Final = 0.5  # between looks at who is promoted, so that a replica without searches switches too
RETRY_AFTER_S: Final = 30.0  # after a build that failed for a reason that nobody expected
KEEP_FORMER_S: Final = 30.0  # for searches that chose the former champion and still run
_log: Final = logging.getLogger("toolscout.recipes")


@dataclasses.dataclass(frozen=True)
class Selection:
    """What serves a search.

    Attributes:
        recipe: its name.
        model: the folder of its model. None: it needs none.
        manifest: of that model.
        encoder: the encoder that is named for the model. None: the one that it was fitted on.
        promoted: whether the model serves because it is the champion, and not because it is named.
    """

    recipe: str
    model: Path | None = None
    manifest: Manifest | None = None
    encoder: str | None = None
    promoted: bool = False

    @property
    def key(self) -> SelectionKey:
        """Identifies the selection, even if another model was fitted into the same folder."""
        return self.recipe, self.model, self.encoder


class Selector:
    """Decides what serves a search under the settings of one home."""

    def __init__(self, settings: Settings) -> None:
        """Decide under these settings and their origins."""
        self.settings, self._place, self._home = settings, settings.place, open_home(settings.place)
        self._manifests: dict[Path, tuple[object, Manifest]] = {}  # folder of a model → stamp of its manifest, manifest
        self._champion: tuple[object, Path | None] = (None, None)  # its stamp and its folder
        self._unfit: tuple[object, str] = (None, "")  # a state in which the champion cannot serve, and why

    def select(
        self,
        recipe: str | None,
        model: str | Path | None,
        *,
        prepare: Callable[[Selection], object],
        generation: Callable[[], int],
    ) -> tuple[Selection, str]:
        """Return what serves a search, and a sentence if the champion should serve but cannot.

        The pipeline of the champion is prepared here, and that of the fallback if this fails. The caller prepares any
        other pipeline.

        Args:
            recipe: that the search names.
            model: the folder that the search names.
            prepare: builds the pipeline of a selection, or finds it ready.
            generation: returns the generation of the catalogue.

        Raises:
            UserError: if what is named cannot serve.
        """
        if not self.is_unnamed(recipe, model):
            return self.find(recipe, model), ""
        try:
            promoted = self.champion()
        except StoreError as error:
            return self._pass_over(None, error, prepare)
        if promoted is None:
            return self.default(), ""
        state = champion.stamp(self._place), model_store.stamp(promoted), generation()
        if self._unfit[0] == state:
            return self.default(), self._unfit[1]
        selection, problem = self.try_champion(prepare)
        if selection is not None and (problem is None or isinstance(problem, Unavailable)):
            return selection, ""
        assert problem is not None
        return self._pass_over(state, problem, prepare)

    def recipe_options(self, selection: Selection) -> dict[str, object]:
        """Return the options of the setting `recipe_options`, if they are meant for this recipe.

        They are meant for the setting `recipe`, unless that was set nearer to the search than they were.

        Raises:
            ConfigError: if they cannot be read.
        """
        ranks = [
            ORIGIN_RANKS.get(self.settings.origins.get(name, "default"), FILE_RANK)
            for name in ("recipe", "recipe_options")
        ]
        if selection.recipe != self.settings.recipe or ranks[0] > ranks[1]:
            return {}
        return parse_pairs(self.settings.recipe_options, "recipe_options")

    def try_champion(self, prepare: Callable[[Selection], object]) -> tuple[Selection | None, UserError | None]:
        """Decide whether the champion can serve. This is the only place where that is decided.

        Args:
            prepare: builds the pipeline of a selection.

        Returns:
            The selection of the champion, None if it cannot be read; and the error that keeps it from serving, None if
            it can serve.
        """
        selection = None
        try:
            selection = self.find(None, None)
            prepare(selection)
        except UserError as error:
            return selection, error
        return selection, None

    def _pass_over(
        self, state: object, error: UserError, prepare: Callable[[Selection], object]
    ) -> tuple[Selection, str]:
        """Return what serves instead of the champion, which cannot serve in this state."""
        selection = self.default()
        self._unfit = state, f"searched with {selection.recipe} instead of the promoted model: {error}"
        prepare(selection)
        return selection, self._unfit[1]

    def find(self, recipe: str | None, model: str | Path | None) -> Selection:
        """Return what a search names, or the champion, without checking that it can serve.

        Args:
            recipe: that the search names.
            model: the folder that the search names.

        Raises:
            ConfigError: for a recipe and a model that do not belong together.
            NotFound: if there is no such recipe or model.
            StoreError: if the model's manifest is damaged.
        """
        folder = self.settings.model if model is None else Path(model).expanduser()
        name = recipe or self.settings.recipe
        if folder is None:
            return self._find_promoted(name, recipe) or Selection(name)
        recipe_lead = self._rank("recipe", recipe) - self._rank("model", model)
        if recipe_lead > 0 and not registry.recipe(name).is_fitted:
            return Selection(name)
        manifest = self._read_manifest(folder)
        if recipe_lead >= 0:
            model_store.check_recipe(folder, manifest, name)
        elif not registry.is_known(manifest.recipe):
            raise ConfigError(
                f"{folder}: toolscout {manifest.version} fitted this model for the recipe {manifest.recipe!r}, which "
                "this version does not have. Use that version, or fit another model"
            )
        return Selection(manifest.recipe, folder, manifest, self._encoder_beside_model() if model is None else None)

    def default(self) -> Selection:
        """Return what serves searches without a champion."""
        return Selection(self.settings.recipe)

    def _find_promoted(self, name: str, recipe: str | None) -> Selection | None:
        """Return the champion, unless another recipe is named."""
        named = not self.is_unnamed(recipe, None)
        if named and not registry.recipe(name).is_fitted:
            return None
        folder = self.champion()
        if folder is None:
            return None
        manifest = self._read_manifest(folder)
        if not registry.is_known(manifest.recipe) or (named and manifest.recipe != name):
            return None
        return Selection(manifest.recipe, folder, manifest, self._encoder_beside_model(), promoted=not named)

    def is_unnamed(self, recipe: str | None, model: str | Path | None) -> bool:
        """Tell whether neither the search nor a setting names a recipe or a model."""
        return recipe is None and model is None and self.settings.model is None and not self._rank("recipe", None)

    def champion(self) -> Path | None:
        """Return the folder of the champion. None: there is none."""
        stamp = self._home.stamp_document(champion.CHAMPION_FILE)
        if stamp != self._champion[0]:
            self._champion = stamp, champion.current(self._place)
        return self._champion[1]

    def encoder(self, selection: Selection) -> tuple[str, bool]:
        """Return the name of the encoder to search with, and whether the pipeline certainly needs it.

        A model is searched with the encoder that it was fitted on, unless another is named for it. A model with its own
        encoder needs none, and neither does a recipe that lacks its model: that is refused.
        """
        chosen = registry.recipe(selection.recipe)
        if selection.manifest is not None and selection.manifest.encoder is not None:
            return selection.encoder or selection.manifest.encoder.name, True
        is_needed = chosen.encodes and selection.manifest is None and not chosen.is_fitted
        return chosen.encoder or self.settings.encoder, is_needed

    def _encoder_beside_model(self) -> str | None:
        """Return the encoder that an argument names; a model from the settings is then searched with it."""
        return self.settings.encoder if self.settings.origins.get("encoder") == "argument" else None

    def _rank(self, name: str, named: object) -> int:
        """Return how near to the search a recipe or a model is named; `named` is what the search itself names."""
        return ORIGIN_RANKS.get(self.settings.origins.get(name, "default"), FILE_RANK) if named is None else CALL_RANK

    def _read_manifest(self, folder: Path) -> Manifest:
        """Return the manifest that is in the folder now. The model may have been fitted again since the last search."""
        stamp, cached = model_store.stamp(folder), self._manifests.get(folder)
        if cached is None or stamp is None or cached[0] != stamp:
            manifest = model_store.read_manifest(folder)
            check_manifest(folder, manifest)
            cached = self._manifests[folder] = stamp, manifest
        return cached[1]


Prepare = Callable[[Selection], tuple[Catalogue, Pipeline]]


class _Serving(NamedTuple):
    """What serves searches that name nothing, and the state of the home in which that was decided.

    Attributes:
        selection: what serves.
        notice: says why the champion does not.
        champion: the folder of the champion, whether it serves or not.
        state: changes with the champion.
        generation: of the catalogue.
    """

    selection: Selection
    notice: str
    champion: Path | None
    state: object
    generation: int


class ChampionSwitch:
    """Decides what serves searches that name no recipe and no model, in a program that serves for long."""

    def __init__(
        self,
        settings: Settings,
        selector: Selector,
        generation: Callable[[], int],
        forget: Callable[[SelectionKey], None],
    ) -> None:
        """Follow the champion of a home.

        Args:
            settings: of the home.
            selector: decides what should serve.
            generation: returns the generation of the catalogue.
            forget: frees the pipeline of a selection.
        """
        self._settings, self._selector, self._generation, self._forget = settings, selector, generation, forget
        self._serving: _Serving | None = None  # None: nothing was decided yet
        self._retired: dict[SelectionKey, float] = {}  # former champions with a pipeline, and since when
        self._decide_lock = threading.Lock()
        self._failed_at = float("-inf")  # monotonic seconds when a new champion could not be made ready
        self._has_changed, self._shall_end = threading.Event(), False
        self._thread: threading.Thread | None = None

    def start(self, prepare: Prepare, prepare_aside: Prepare) -> None:
        """Begin to look at who is promoted.

        Args:
            prepare: builds a pipeline for which searches wait.
            prepare_aside: builds a pipeline while others serve.
        """
        self._prepare, self._prepare_aside = prepare, prepare_aside
        self._thread = threading.Thread(target=self._follow, daemon=True, name="toolscout champion")
        self._thread.start()

    def stop(self) -> None:
        """Stop looking, after a build that is under way."""
        self._shall_end = True
        self._has_changed.set()
        if self._thread is not None:
            self._thread.join()

    def select(self) -> tuple[Selection, str]:
        """Return what serves a search now, and a sentence if the champion should serve but cannot."""
        serving, generation = self._serving, self._generation()
        if serving is None or serving.generation != generation:
            return self._decide(self._prepare)
        if self._is_outdated(serving):
            self._has_changed.set()
        return serving.selection, serving.notice

    def catch_up(self) -> tuple[Selection, str]:
        """Wait until the present champion serves, while searches go on. Returns what serves then, as `select`."""
        with self._decide_lock:
            serving = self._serving
            if serving is None or serving.generation != self._generation() or self._is_outdated(serving):
                return self._decide(self._prepare_aside)
            return serving.selection, serving.notice

    def _is_outdated(self, serving: _Serving) -> bool:
        try:
            return self._read_state(serving.champion) != serving.state
        except StoreError:
            return False  # the database is away: who served goes on

    def _read_state(self, folder: Path | None) -> object:
        return champion.stamp(self._settings.place), model_store.stamp(folder)

    def _decide(self, prepare: Prepare) -> tuple[Selection, str]:
        """Decide what should serve, build its pipeline, and let it serve."""
        folder, state, generation = None, None, self._generation()
        with suppress(StoreError):  # the selector says what is wrong
            folder = self._selector.champion()
        with suppress(StoreError):
            state = self._read_state(folder)
        selection, notice = self._selector.select(None, None, prepare=prepare, generation=self._generation)
        if not selection.promoted:
            with suppress(UserError):  # the next search raises it
                prepare(selection)
        former, self._serving = self._serving, _Serving(selection, notice, folder, state, generation)
        if former is not None and former.selection.promoted and former.selection.key != selection.key:
            self._retired[former.selection.key] = time.monotonic()
        self._retired.pop(selection.key, None)
        return selection, notice

    def _follow(self) -> None:
        """Look at who is promoted, in a thread of its own, and build what should serve."""
        while not self._shall_end:
            self._has_changed.wait(LOOK_INTERVAL_S)
            self._has_changed.clear()
            self._free_retired()
            serving = self._serving
            has_paused = time.monotonic() - self._failed_at >= RETRY_AFTER_S
            if serving is None or self._shall_end or not has_paused or not self._is_outdated(serving):
                continue
            try:
                self.catch_up()
            except Exception:  # the former champion goes on, whatever the error
                self._failed_at = time.monotonic()
                _log.exception("The new champion could not be made ready. The former one goes on.")

    def _free_retired(self) -> None:
        """Free the pipelines of former champions on which no search can still run."""
        for key, since in list(self._retired.items()):
            if time.monotonic() - since < KEEP_FORMER_S:
                continue
            self._retired.pop(key, None)
            if self._serving is not None and self._serving.selection.key != key:
                self._forget(key)
