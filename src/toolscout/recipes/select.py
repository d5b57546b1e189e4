"""Decides which recipe and which fitted model serve a search, and whether the champion can.

A search may name a recipe, a model, both or neither; so may the code, the environment and the settings file. The name
that is given nearest to the search decides. A model brings its recipe with it, and a recipe that needs no model is
searched without one. A recipe and a model that are named at the same place must belong together. If neither is named
anywhere, the promoted model serves: the champion (`toolscout.home.models.champion`). It also serves if only its recipe
is named.

A pipeline over many tools takes seconds to build. A program that serves for long builds the pipeline of a new champion
in the background, and switches to it in one step (`ChampionSwitch`); until then the former champion answers. A change
of the catalogue is different: nobody may get a tool that was removed, so searches wait for the new pipeline then.
"""

from __future__ import annotations

import dataclasses
import functools
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
"""Recipe, folder of the model, and the encoder that is named for it."""
ORIGIN_RANKS: Final = {"default": 0, "environment": 2, "argument": 3}
"""Origin of a setting → how near it is to the search. Any other origin is a settings file, with `FILE_RANK`."""
FILE_RANK: Final = 1
CALL_RANK: Final = 4  # named by the search itself
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

    @functools.cached_property
    def key(self) -> SelectionKey:
        """Identifies the selection, even if another model was fitted into the same folder."""
        return self.recipe, self.model, self.encoder


class Selector:
    """Decides what serves a search under the settings of one home.

    Attributes:
        settings: of the home.
        default: what serves searches without a champion.
    """

    def __init__(self, settings: Settings) -> None:
        """Decide under these settings and their origins."""
        self.settings, self._home = settings, open_home(settings.place)
        self.default = Selection(settings.recipe)
        # A stamp changes whenever its file is written.
        self._manifests: dict[Path, tuple[object, Manifest]] = {}  # folder of a model → stamp of its manifest, manifest
        self._champion: tuple[object, Path | None] = (None, None)  # stamp of the file that names it, its folder
        self._failed_state: object = None  # the state of the home in which the champion could not serve last
        self._failure_notice = ""  # says why it could not

    def select(
        self,
        recipe: str | None,
        model: str | Path | None,
        *,
        prepare: Callable[[Selection], object],
        generation: Callable[[], int],
    ) -> tuple[Selection, str]:
        """Return what serves a search, and a sentence if the champion should serve but cannot.

        If nothing is named, the pipeline of the champion is prepared here, and if that fails, the pipeline that serves
        instead. The caller prepares any other pipeline.

        Args:
            recipe: that the search names.
            model: the folder that the search names.
            prepare: builds the pipeline of a selection, or finds it ready.
            generation: returns the generation of the catalogue.

        Raises:
            UserError: if what is named cannot serve.
        """
        if self.is_named(recipe, model):
            return self.find(recipe, model), ""
        try:
            promoted = self.champion()
        except StoreError as error:
            return self._fall_back(None, error, prepare)
        if promoted is None:
            return self.default, ""
        state = champion.stamp(self.settings.place), model_store.stamp(promoted), generation()
        if state == self._failed_state:  # nothing has changed since the champion failed, so it is not tried again
            return self.default, self._failure_notice
        selection, problem = self.try_champion(prepare)
        can_serve = problem is None or isinstance(problem, Unavailable)  # an unavailable service may soon answer again
        if selection is not None and can_serve:
            return selection, ""
        assert problem is not None
        return self._fall_back(state, problem, prepare)

    def recipe_options(self, selection: Selection) -> dict[str, object]:
        """Return the setting `recipe_options` if it was made for this recipe; else no options.

        The options are made for the recipe in the setting `recipe`. But if the recipe was set nearer to the search than
        the options, such as by an argument while a file sets the options, they were made for a recipe in that file.

        Raises:
            ConfigError: if the options cannot be read.
        """
        is_recipe_nearer = self._rank_origin("recipe") > self._rank_origin("recipe_options")
        if selection.recipe != self.settings.recipe or is_recipe_nearer:
            return {}
        return parse_pairs(self.settings.recipe_options, "recipe_options")

    def try_champion(self, prepare: Callable[[Selection], object]) -> tuple[Selection | None, UserError | None]:
        """Try whether the champion can serve: read its model, and prepare its pipeline.

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

    def _fall_back(
        self, state: object, error: UserError, prepare: Callable[[Selection], object]
    ) -> tuple[Selection, str]:
        """Prepare what serves instead of the champion, and remember that it fails in this state of the home."""
        selection = self.default
        self._failure_notice = f"searched with {selection.recipe} instead of the promoted model: {error}"
        self._failed_state = state
        prepare(selection)
        return selection, self._failure_notice

    def find(self, recipe: str | None, model: str | Path | None) -> Selection:
        """Return what serves a search that names this recipe and folder of a model, or None; see the module.

        It is not checked that the selection can serve.

        Raises:
            ConfigError: for a recipe and a model that do not belong together.
            NotFound: if there is no such recipe or model.
            StoreError: if the model's manifest is damaged.
        """
        folder = self.settings.model if model is None else Path(model).expanduser()
        name = recipe or self.settings.recipe
        if folder is None:
            return self._find_promoted(name, recipe) or Selection(name)
        recipe_rank = self._rank_origin("recipe") if recipe is None else CALL_RANK
        model_rank = self._rank_origin("model") if model is None else CALL_RANK
        if recipe_rank > model_rank and not registry.recipe(name).is_fitted:
            return Selection(name)  # the recipe decides, and needs no model
        manifest = self._read_manifest(folder)
        if recipe_rank >= model_rank:  # the recipe was named too, so the model must be one of its models
            model_store.check_recipe(folder, manifest, name)
        elif not registry.is_known(manifest.recipe):
            raise ConfigError(
                f"{folder}: toolscout {manifest.version} fitted this model for the recipe {manifest.recipe!r}, which "
                "this version does not have. Use that version, or fit another model"
            )
        encoder = self._get_encoder_argument() if model is None else None
        return Selection(manifest.recipe, folder, manifest, encoder)

    def _find_promoted(self, name: str, recipe: str | None) -> Selection | None:
        """Return the champion, unless another recipe is named, or this version does not have its recipe.

        Args:
            name: the recipe that would serve without a champion.
            recipe: the recipe that the search names; None: a setting may still name one.
        """
        is_recipe_named = self.is_named(recipe, None)
        if is_recipe_named and not registry.recipe(name).is_fitted:
            return None  # a recipe that needs no model is searched without one
        folder = self.champion()
        if folder is None:
            return None
        manifest = self._read_manifest(folder)
        has_other_recipe = is_recipe_named and manifest.recipe != name
        if has_other_recipe or not registry.is_known(manifest.recipe):
            return None
        encoder = self._get_encoder_argument()
        return Selection(manifest.recipe, folder, manifest, encoder, promoted=not is_recipe_named)

    def is_named(self, recipe: str | None, model: str | Path | None) -> bool:
        """Tell whether the search or a setting names a recipe or a model."""
        if recipe is not None or model is not None or self.settings.model is not None:
            return True
        return self.settings.origins.get("recipe", "default") != "default"

    def champion(self) -> Path | None:
        """Return the folder of the champion. None: there is none."""
        stamp = self._home.stamp_document(champion.CHAMPION_FILE)
        known_stamp, folder = self._champion
        if stamp != known_stamp:
            folder = champion.current(self.settings.place)
            self._champion = stamp, folder
        return folder

    def encoder(self, selection: Selection) -> tuple[str, bool]:
        """Return the name of the encoder to search with, and whether the pipeline certainly needs it.

        A model is searched with the encoder that it was fitted on, unless another is named for it.
        """
        recipe, manifest = registry.recipe(selection.recipe), selection.manifest
        if manifest is not None and manifest.encoder is not None:
            return selection.encoder or manifest.encoder.name, True
        name = recipe.encoder or self.settings.encoder
        if manifest is not None or recipe.is_fitted:
            return name, False  # the model has an encoder of its own, or it is missing and the search is refused
        return name, recipe.encodes

    def _get_encoder_argument(self) -> str | None:
        """Return the encoder that an argument names, or None. Any model is searched with it that no search names."""
        return self.settings.encoder if self.settings.origins.get("encoder") == "argument" else None

    def _rank_origin(self, name: str) -> int:
        """Return how near to the search the setting `name` was set: the rank of its origin."""
        return ORIGIN_RANKS.get(self.settings.origins.get(name, "default"), FILE_RANK)

    def _read_manifest(self, folder: Path) -> Manifest:
        """Return the manifest that is in the folder now. The model may have been fitted again since the last search."""
        stamp = model_store.stamp(folder)
        known_stamp, manifest = self._manifests.get(folder, (None, None))
        if manifest is None or stamp is None or known_stamp != stamp:
            manifest = model_store.read_manifest(folder)
            check_manifest(folder, manifest)
            self._manifests[folder] = stamp, manifest
        return manifest


Prepare = Callable[[Selection], tuple[Catalogue, Pipeline]]


class _Serving(NamedTuple):
    """What serves searches that name nothing, and the state of the home in which that was decided.

    Attributes:
        selection: what serves.
        notice: a sentence on why the champion does not serve; empty if it does, or there is none.
        champion: the folder of the champion, whether it serves or not; None: there is none.
        state: changes whenever another model is promoted, or the champion is fitted again.
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
        self._has_changed = threading.Event()  # wakes the thread before `LOOK_INTERVAL_S` is over
        self._shall_end = False  # for the thread
        self._thread: threading.Thread | None = None

    def start(self, prepare: Prepare, prepare_aside: Prepare) -> None:
        """Begin to look, in a thread, whether another model is promoted.

        Args:
            prepare: builds a pipeline while searches wait for it.
            prepare_aside: builds a pipeline while other pipelines serve.
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
            return self._decide(self._prepare)  # this search waits: nobody may get a tool that was removed
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
        """Tell whether the champion has changed since it was decided what serves."""
        try:
            return self._read_state(serving.champion) != serving.state
        except StoreError:
            return False  # the database does not answer, so nothing changes now

    def _read_state(self, folder: Path | None) -> object:
        """Return the stamps of the file that names the champion, and of the manifest in its folder."""
        return champion.stamp(self._settings.place), model_store.stamp(folder)

    def _decide(self, prepare: Prepare) -> tuple[Selection, str]:
        """Decide what should serve, build its pipeline, and let it serve."""
        # State and generation are read before the decision, so that a change in between makes it outdated at once.
        folder, state, generation = None, None, self._generation()
        with suppress(StoreError):  # `self._selector.select` returns a notice that names the error
            folder = self._selector.champion()
        with suppress(StoreError):
            state = self._read_state(folder)
        selection, notice = self._selector.select(None, None, prepare=prepare, generation=self._generation)
        if not selection.promoted:
            with suppress(UserError):  # the next search raises it
                prepare(selection)
        former = self._serving
        self._serving = _Serving(selection, notice, folder, state, generation)
        if former is not None and former.selection.promoted:
            self._retired[former.selection.key] = time.monotonic()
        self._retired.pop(selection.key, None)  # what serves now is not freed, even if it is the former champion
        return selection, notice

    def _follow(self) -> None:
        """Look regularly, in a thread of its own, whether another model is promoted, and build what should serve."""
        while not self._shall_end:
            self._has_changed.wait(LOOK_INTERVAL_S)
            self._has_changed.clear()
            self._free_retired()
            serving = self._serving
            may_build = not self._shall_end and time.monotonic() - self._failed_at >= RETRY_AFTER_S
            if may_build and serving is not None and self._is_outdated(serving):
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
            if self._serving is not None and self._serving.selection.key != key:  # it may have been promoted again
                self._forget(key)
