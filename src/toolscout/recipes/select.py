"""Ways to search: which recipe, and which fitted model, by what is asked for and what is set.

A search may name a recipe, a model, both or neither; so may the code, the environment and the settings file. Of the
two, the one that is said nearer to the search decides: a model brings its recipe with it, and a recipe that needs no
model is searched without one. Said at the same place, they must belong together. Where neither is said anywhere, the
promoted model serves (`toolscout.models.champion`); so it does where only its recipe is said.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from toolscout.config import Settings
from toolscout.errors import ConfigError
from toolscout.models import champion, model_store
from toolscout.models.model_store import Manifest
from toolscout.recipes import registry

__all__ = ["Key", "Way", "Ways"]

Key = tuple[str, Path | None, str | None]
NEARNESS: Final = {"default": 0, "environment": 2, "argument": 3}  # to the search, by origin; the file's is 1
CALL: Final = 4


@dataclasses.dataclass(frozen=True)
class Way:
    """How to search.

    Attributes:
        recipe: which pipeline.
        model: the folder of its model; None: it needs none.
        manifest: of that model.
        encoder: asked for by name beside the model; None: the one that the model was fitted on.
        promoted: whether nobody named the model: it is the champion.
    """

    recipe: str
    model: Path | None = None
    manifest: Manifest | None = None
    encoder: str | None = None
    promoted: bool = False

    @property
    def key(self) -> Key:
        """Which way it is, whatever was fitted into the model's folder since."""
        return self.recipe, self.model, self.encoder


class Ways:
    """Finds the way of each search, by the settings of one Scout."""

    def __init__(self, settings: Settings) -> None:
        """Take the settings and their origins."""
        self.settings = settings
        self._manifests: dict[Path, tuple[object, Manifest]] = {}
        self._champion: tuple[object, Path | None] = (None, None)

    def find(self, recipe: str | None, model: str | Path | None) -> Way:
        """The way of a search.

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
            return self._promoted(name, recipe) or Way(name)
        nearer = self._nearness("recipe", recipe) - self._nearness("model", model)
        if nearer > 0 and registry.recipe(name).fit is None:
            return Way(name)
        manifest = self._manifest(folder)
        if nearer >= 0:
            model_store.refuse_other(folder, manifest, name)
        elif manifest.recipe not in registry.RECIPES:
            raise ConfigError(
                f"{folder}: expected a model of a recipe that is known here, found one of {manifest.recipe!r}, fitted "
                f"by toolscout {manifest.version}: use that version, or fit another"
            )
        said = model is None and self.settings.origins.get("encoder") == "argument"
        return Way(manifest.recipe, folder, manifest, self.settings.encoder if said else None)

    def without(self) -> Way:
        """The way of searches without a champion."""
        return Way(self.settings.recipe)

    def _promoted(self, name: str, recipe: str | None) -> Way | None:
        """The champion's way, if nobody said another one."""
        said = not self.unnamed(recipe, None)
        if said and registry.recipe(name).fit is None:
            return None
        folder = self.champion()
        if folder is None:
            return None
        manifest = self._manifest(folder)
        if manifest.recipe not in registry.RECIPES or (said and manifest.recipe != name):
            return None
        encoder = self.settings.encoder if self.settings.origins.get("encoder") == "argument" else None
        return Way(manifest.recipe, folder, manifest, encoder, promoted=not said)

    def unnamed(self, recipe: str | None, model: str | Path | None) -> bool:
        """Whether neither a search that names these nor any setting says how to search."""
        return recipe is None and model is None and self.settings.model is None and not self._nearness("recipe", None)

    def champion(self) -> Path | None:
        """The folder of the promoted model; None: there is none."""
        stamp = champion.stamp(self.settings.home)
        if stamp != self._champion[0]:
            self._champion = stamp, champion.current(self.settings.home)
        return self._champion[1]

    def encoder(self, way: Way) -> tuple[str, bool]:
        """The name of the encoder to search with, and whether the pipeline surely asks for it.

        That of a model is the one that it was fitted on, unless another name is said for it; a model that brings its
        own encoder needs none.
        """
        chosen = registry.recipe(way.recipe)
        if way.manifest is not None and way.manifest.encoder is not None:
            return way.encoder or way.manifest.encoder.name, True
        return chosen.encoder or self.settings.encoder, chosen.encodes and way.manifest is None

    def _nearness(self, name: str, given: object) -> int:
        return NEARNESS.get(self.settings.origins.get(name, "default"), 1) if given is None else CALL

    def _manifest(self, folder: Path) -> Manifest:
        """That of the model which lies in the folder now; it may have been fitted again since the last search."""
        stamp, held = model_store.stamp(folder), self._manifests.get(folder)
        if held is None or stamp is None or held[0] != stamp:
            held = self._manifests[folder] = stamp, model_store.read_manifest(folder)
        return held[1]
