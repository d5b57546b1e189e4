"""The recipes of the core, and the functions that find and build any recipe by its name.

Recipes that need torch or a language model are in the package toolscout-lab, which brings them by the entry point group
`toolscout.methods`, as any plug-in brings its own. They are imported when one of them is named.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from toolscout import plugins
from toolscout.errors import ConfigError, MissingExtra, NotFound, StoreError, UserError, find_nearest, install_line
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models import model_store
from toolscout.home.models.model_store import Manifest, Model
from toolscout.rankers import AskingMethod, FittedMethod, PlainMethod, Recipe, declared, parse_options
from toolscout.rankers.mlc_light import MlcLight
from toolscout.rankers.neighbours import Neighbours
from toolscout.rankers.scout_light import ScoutLight
from toolscout.rankers.tool2vec import Tool2Vec
from toolscout.rankers.zero_shot import Bm25, Dense, Hybrid, RankFusion, StepwiseHybrid
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import Stage
from toolscout.search.resources import BASE_FOLDER
from toolscout.types import Answer

__all__ = [
    "RECIPES",
    "Recipe",
    "all_recipes",
    "build",
    "check_model",
    "is_known",
    "list_user_recipes",
    "load_lab_recipes",
    "load_recipe",
    "recipe",
    "resolve",
]

RECIPES: Final[dict[str, Recipe]] = {
    entry.name: entry
    for entry in (
        Recipe(
            "scout",
            "Splits a request into its steps, and serves every step with hybrid.",
            StepwiseHybrid(),
            when="The default. Requests may have several steps. Works offline, without logged requests and torch.",
            fallback="bm25",
        ),
        Recipe(
            "scout-light",
            "scout that also learns from requests: which tools similar requests used.",
            ScoutLight(),
            when="You have a hundred logged requests or more. `toolscout learn` fits it. Needs no torch.",
            revision=3,
        ),
        Recipe(
            "hybrid",
            "BM25 fused with vectors of the bundled encoder.",
            Hybrid(),
            when="Each request asks for one thing. Works offline, without logged requests and torch.",
            fallback="bm25",
        ),
        Recipe(
            "hybrid-minilm",
            "BM25 fused with all-MiniLM-L6-v2.",
            Hybrid(),
            when="You have no logged requests. Ranks better than hybrid, by a small transformer.",
            encoder="minilm",
            fallback="bm25",
        ),
        Recipe(
            "bm25",
            "Matches words of the query with words of each tool; splits identifiers and stems words.",
            Bm25(),
            when="Requests repeat the words of your tools.",
            encodes=False,
        ),
        Recipe(
            "dense",
            "Vectors only.",
            Dense(),
            when="You use your own encoder and want to see what it finds by itself.",
        ),
        Recipe("bm25-plain", "BM25 as most libraries implement it.", Bm25(), {"tokenizer": "plain"}, encodes=False),
        Recipe(
            "dense-minilm",
            "all-MiniLM-L6-v2 on title and text.",
            Dense(),
            {"style": "raw"},
            encoder="minilm-plain",
        ),
        Recipe(
            "rrf-minilm",
            "bm25-plain and dense-minilm, fused by reciprocal rank; the usual baseline.",
            RankFusion(),
            encoder="minilm-plain",
            fallback="bm25-plain",
        ),
        Recipe("neighbours", "The nearest logged queries vote for the tools that they used.", Neighbours()),
        Recipe("mlc-light", "A linear classifier over tools and sets of tools, without a transformer.", MlcLight()),
        Recipe(
            "tool2vec",
            "Represents a tool by the mean vector of the queries that used it.",
            Tool2Vec(),
        ),
    )
}


_LAB_NAMES: Final = """
colt colt-no-collaborative colt-no-contrastive colt-no-semantic colt-strong crossencoder crossencoder-10 crossencoder-30
crossencoder-50 decided dpr dpr-inbatch feedback feedback-dpr feedback-dpr-no-hard feedback-dpr-no-joint
feedback-dpr-no-rounds
feedback-dpr-no-warmup feedback-prf hybrid-dpr masstool masstool-no-adakt masstool-no-cl masstool-no-df masstool-no-suim
masstool-published mlc mlc-dpr mlc-published mmrr qta scout-full tool2vec-mined tool2vec-published tool2vec-tuned
toolrefiner toolrefiner-tool2vec toolrerank toolrerank-multi toolrerank-none toolrerank-oracle toolrerank-published
toolrerank-single
"""
LAB_RECIPE_NAMES: Final = frozenset(_LAB_NAMES.split())
"""Names in toolscout-lab, so that a message can say which package to install."""


@functools.cache
def load_lab_recipes() -> Mapping[str, Recipe]:
    """Import the recipes of toolscout-lab by name; empty if the package is not installed."""
    plugin = next(filter(plugins.is_own, plugins.list_plugins(plugins.METHOD_PLUGINS)), None)  # it names all of them
    recipes: Mapping[str, Recipe] = plugins.load_plugin(plugin) if plugin else {}
    return recipes


def recipe(name: str) -> Recipe:
    """Return the recipe of that name: of the core, of toolscout-lab, or of a plug-in.

    Raises:
        NotFound: with the nearest name that exists.
        MissingExtra: if it is in toolscout-lab, and that is not installed.
        ConfigError: if the plug-in of that name cannot be loaded.
    """
    if name in RECIPES:
        return RECIPES[name]
    if name in LAB_RECIPE_NAMES:
        if name not in load_lab_recipes():
            raise MissingExtra(
                f"The recipe {name!r} is in the package toolscout-lab. Install it with  {install_line('lab')}"
            )
        return load_lab_recipes()[name]
    plugin = plugins.find_plugin(plugins.METHOD_PLUGINS, name)
    if plugin is not None and not plugins.is_own(plugin):
        return load_recipe(plugin)
    plugin_names = _list_plugin_names()
    nearest = find_nearest(name, [*sorted(LAB_RECIPE_NAMES), *RECIPES, *plugin_names])
    hint = f"there are {', '.join(list_user_recipes())}" if nearest is None else f"did you mean {nearest!r}?"
    raise NotFound(f"expected the name of a recipe, found {name!r}: {hint}")


def load_recipe(plugin: plugins.Plugin) -> Recipe:
    """Import the recipe that a plug-in brings.

    Raises:
        ConfigError: if that fails, or it is no recipe of the plug-in's name.
    """
    loaded = plugins.load_plugin(plugin)
    if not isinstance(loaded, Recipe) or loaded.name != plugin.name:
        description = f"a recipe called {loaded.name!r}" if isinstance(loaded, Recipe) else f"a {type(loaded).__name__}"
        raise ConfigError(
            f"{plugin.target} of {plugin.package} {plugin.version} is {description}, but toolscout needs a "
            f"`Recipe` called {plugin.name!r}. Update the package, or uninstall it."
        )
    return loaded


def all_recipes() -> dict[str, Recipe]:
    """Return every recipe of toolscout itself by name."""
    return {**load_lab_recipes(), **RECIPES}


def list_user_recipes() -> dict[str, Recipe]:
    """Return the recipes that users choose from, by name; the others are for comparisons."""
    return {name: recipe for name, recipe in {**RECIPES, **load_lab_recipes()}.items() if recipe.when}


def is_known(name: str) -> bool:
    """Tell whether there is a recipe of that name; a plug-in is not loaded for that."""
    if name in RECIPES or name in LAB_RECIPE_NAMES:
        return True
    return name in _list_plugin_names()


def _list_plugin_names() -> list[str]:
    """Return the names of the recipes that packages of others bring."""
    return [plugin.name for plugin in plugins.list_plugins(plugins.METHOD_PLUGINS) if not plugins.is_own(plugin)]


def build(
    name: str | Recipe,
    catalogue: Catalogue,
    resources: HomeResources | None = None,
    *,
    model: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Stage:
    """Build a recipe's pipeline over a snapshot, up to the ranked hits.

    Args:
        name: of the recipe, or the recipe.
        catalogue: the snapshot.
        resources: encoder, caches and settings; by default as in a fresh installation.
        model: folder of the fitted model, for recipes that are fitted.
        settings: options over the recipe's own, for recipes that are not fitted.

    Raises:
        NotFound: for an unknown recipe, or a model that is not there.
        ConfigError: for an unknown option; without a model where one is needed, or with one that does not belong to
            the recipe, the encoder or the catalogue.
        StoreError: for a damaged model.
    """
    chosen = recipe(name) if isinstance(name, str) else name
    resources = dataclasses.replace(resources or HomeResources(), build=build)  # for methods that build on a recipe
    if chosen.encoder and (resources.encoder is None or isinstance(resources.encoder, str)):
        resources = dataclasses.replace(resources, encoder=chosen.encoder)
    if chosen.is_fitted and settings:
        raise ConfigError(
            f"recipe {chosen.name}: its settings ({', '.join(settings)}) are fixed when it is fitted. "
            f"Run  toolscout train {chosen.name} --set …"
        )
    method = chosen.method
    try:
        if isinstance(method, FittedMethod):
            if model is None:
                raise ConfigError(
                    f"this recipe needs a fitted model. Run  toolscout train {chosen.name} --data DIR --out MODEL_DIR"
                )
            return _build_fitted(chosen, method, resources, catalogue, model)
        options = parse_options({**chosen.settings, **(settings or {})}, method.options_type)
        return cast(PlainMethod, method).build(resources, catalogue, options)
    except ConfigError as error:
        raise ConfigError(f"recipe {chosen.name}: {error}") from None


def _build_fitted(
    chosen: Recipe, method: FittedMethod, resources: HomeResources, catalogue: Catalogue, folder: Path
) -> Stage:
    """Check a model and build its pipeline. If its method declares no arrays, the pipeline is tried with one search.

    A search that asks a language model is not tried, because it costs something.
    """
    model = model_store.load(folder, recipe=chosen.name)
    declared.check_model(model, method, method.options_type)
    try:
        stage = method.build(resources, catalogue, model)
        if len(catalogue) and not isinstance(method, declared.DeclaringMethod) and not _asks(chosen, model):
            stage([Answer(query=catalogue.names[0])])
        return stage
    except UserError:
        raise
    except Exception as error:  # further files of a model, such as its encoder, are only read here
        raise StoreError(
            f"{folder}: the model cannot be used: {type(error).__name__}: {' '.join(str(error).split())[:200]}. Fit it "
            "again."
        ) from error


def _asks(chosen: Recipe, model: Model) -> bool:
    """Return whether a search may ask a language model, for the recipe or for the recipe that it builds on."""
    base = model.manifest.settings.get("base")
    base_names = [base.value] if base and isinstance(base.value, str) and is_known(base.value) else []
    return any(isinstance(entry.method, AskingMethod) for entry in (chosen, *map(recipe, base_names)))


def check_model(folder: Path) -> Manifest:
    """Check that a model is sound, and that its method can use it, as far as the method is installed.

    Raises:
        NotFound: if there is no model.
        StoreError: if it is damaged, or lacks what its method declares; the message names what is wrong.
    """
    model = model_store.load(folder)
    declared.check_manifest(folder, model.manifest)
    with contextlib.suppress(NotFound, MissingExtra):  # of a version or package that is not here
        method = recipe(model.manifest.recipe).method
        declared.check_model(model, method, method.options_type)
    if (folder / BASE_FOLDER).exists():
        check_model(folder / BASE_FOLDER)
    return model.manifest


def resolve(name: str | Recipe, changes: Mapping[str, object]) -> tuple[msgspec.Struct, dict[str, str]]:
    """Return the options of a fit, and where each came from: default, recipe or argument.

    Args:
        name: of the recipe, or the recipe.
        changes: options that were named for this fit.

    Raises:
        ConfigError: for a recipe that is not fitted, or an unknown option.
    """
    chosen = recipe(name) if isinstance(name, str) else name
    options_type = chosen.method.options_type
    if not chosen.is_fitted:
        raise ConfigError(f"recipe {chosen.name}: there is nothing to fit. Use it as it is")
    try:
        options = parse_options({**chosen.settings, **changes}, options_type)
    except ConfigError as error:
        raise ConfigError(f"recipe {chosen.name}: {error}") from None
    origins = {**dict.fromkeys(chosen.settings, "recipe"), **dict.fromkeys(changes, "argument")}
    return options, {field: origins.get(field, "default") for field in options_type.__struct_fields__}
