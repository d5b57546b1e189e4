"""Decides which recipe and which fitted model serve a search, and whether the champion can.

A search may name a recipe, a model, both or neither; so may the code, the environment and the settings file. The name
nearest to the search decides. A model brings its recipe with it, and a recipe that needs no model is searched without
one. A recipe and a model that are named at the same place must belong together. If neither is named anywhere, the
champion serves (`toolscout.models.champion`). It also serves if only its recipe is named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from toolscout.config import Settings, parse_pairs
from toolscout.errors import ConfigError, StoreError, Unavailable, UserError
from toolscout.models import champion, model_store
from toolscout.models.model_store import Manifest
from toolscout.recipes import registry

__all__ = ["Selection", "SelectionKey", "Selector"]

SelectionKey = tuple[str, Path | None, str | None]
ORIGIN_RANKS: Final = {"default": 0, "environment": 2, "argument": 3}
"""Origin of a setting → how near it is to the search. Any other origin is a settings file."""
FILE_RANK: Final = 1
CALL_RANK: Final = 4


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
        self.settings = settings
        self._manifests: dict[Path, tuple[object, Manifest]] = {}
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
        state = champion.stamp(self.settings.place), model_store.stamp(promoted), generation()
        if self._unfit[0] == state:
            return self.default(), self._unfit[1]
        selection, problem = self.try_champion(prepare)
        if selection is not None and (problem is None or isinstance(problem, Unavailable)):
            return selection, ""
        assert problem is not None
        return self._pass_over(state, problem, prepare)

    def recipe_options(self, selection: Selection) -> dict[str, Any]:
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
        """Decide whether the champion can serve. Nothing else decides that.

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
        stamp = champion.stamp(self.settings.place)
        if stamp != self._champion[0]:
            self._champion = stamp, champion.current(self.settings.place)
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
            cached = self._manifests[folder] = stamp, model_store.read_manifest(folder)
        return cached[1]
