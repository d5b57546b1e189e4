"""The recipes that users choose from, and the functions that find and build any recipe by its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from toolscout import plugins
from toolscout.catalogue.store import Catalogue
from toolscout.encoders import Encoder
from toolscout.errors import ConfigError, NotFound, find_nearest
from toolscout.methods import FittedMethod, PlainMethod, parse_options
from toolscout.methods.crossencoder import CrossEncoderRerank
from toolscout.methods.feedback.loop import Feedback
from toolscout.methods.hybrid_dpr import HybridDpr
from toolscout.methods.mlc import Mlc
from toolscout.methods.scout import Scout
from toolscout.methods.scout_full import ScoutFull
from toolscout.methods.scout_light import ScoutLight
from toolscout.methods.toolrefiner import ToolRefiner
from toolscout.methods.zero_shot import Bm25, Dense, Hybrid
from toolscout.models import model_store
from toolscout.recipes.recipe import Recipe
from toolscout.search.pipeline import Stage
from toolscout.workspace import Workspace

__all__ = ["RECIPES", "Recipe", "all_recipes", "build", "is_known", "load_recipe", "recipe", "resolve"]

RECIPES: Final[dict[str, Recipe]] = {
    entry.name: entry
    for entry in (
        Recipe(
            "scout",
            "Splits a request into its steps, and serves every step with hybrid.",
            Scout(),
            when="The default. Requests may hold several steps. Needs no usage, no torch and no network.",
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
            "scout-full",
            "scout-light that also tunes two encoders on your requests, each weighed by what held-out requests show.",
            ScoutFull(),
            when="You have a thousand logged requests or more, and torch. `toolscout learn --full` fits it.",
            encoder="minilm",
            revision=3,
        ),
        Recipe(
            "hybrid",
            "BM25 fused with vectors of the bundled encoder.",
            Hybrid(),
            when="Every request is one need, or you compare methods. Needs no usage, no torch and no network.",
            fallback="bm25",
        ),
        Recipe(
            "hybrid-minilm",
            "BM25 fused with all-MiniLM-L6-v2.",
            Hybrid(),
            when="No usage yet, and a small transformer may run. Better than hybrid.",
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
        Recipe(
            "mlc",
            "A tuned encoder with a linear classifier over tools and sets of tools.",
            Mlc(),
            when="You have thousands of logged requests, a stable catalogue, and torch.",
            encoder="minilm",
        ),
        Recipe(
            "hybrid-dpr",
            "BM25 fused with an encoder tuned on your requests (dpr).",
            HybridDpr(),
            when="Tools come and go. What it learned from requests also helps with new tools. Needs torch.",
            encoder="minilm",
        ),
        Recipe(
            "toolrefiner",
            "Reads the first tools of mlc together with the query, and orders them anew.",
            ToolRefiner(),
            when="Requests need several tools at once, and you have torch.",
            encoder="minilm",
            revision=2,
        ),
        Recipe(
            "crossencoder",
            "Reads each of the first tools of another recipe together with the query, and orders them anew.",
            CrossEncoderRerank(),
            when="The order of the first tools matters more than tens of milliseconds per search.",
            encoder="minilm",
        ),
        Recipe(
            "feedback",
            "A language model reads the first tools and rewrites the query, round by round.",
            Feedback(),
            when="Requests are vague, and a search may take seconds and cost tokens.",
        ),
    )
}


def recipe(name: str) -> Recipe:
    """Return the recipe of that name: of users, of the laboratory, or of a plug-in.

    Raises:
        NotFound: with the nearest name that exists.
        ConfigError: if the plug-in of that name cannot be loaded.
    """
    if name in RECIPES:
        return RECIPES[name]
    recipes = all_recipes()
    if name in recipes:
        return recipes[name]
    plugin = plugins.find_plugin(plugins.METHOD_PLUGINS, name)
    if plugin is not None:
        return load_recipe(plugin)
    recipe_names = [*recipes, *(plugin.name for plugin in plugins.list_plugins(plugins.METHOD_PLUGINS))]
    nearest = find_nearest(name, recipe_names)
    hint = f"there are {', '.join(RECIPES)}" if nearest is None else f"did you mean {nearest!r}?"
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
    """Return every recipe of toolscout itself by name: of the laboratory, then those that users choose from."""
    from toolscout.recipes.ablations import ABLATIONS

    return {**ABLATIONS, **RECIPES}


def is_known(name: str) -> bool:
    """Tell whether there is a recipe of that name; a plug-in is not loaded for that."""
    if name in RECIPES or name in all_recipes():
        return True
    return any(plugin.name == name for plugin in plugins.list_plugins(plugins.METHOD_PLUGINS))


def build(
    name: str | Recipe,
    catalogue: Catalogue,
    workspace: Workspace | None = None,
    *,
    model: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Stage:
    """Build a recipe's pipeline over a snapshot, up to the ranked hits.

    Args:
        name: of the recipe, or the recipe.
        catalogue: the snapshot.
        workspace: encoder, caches and settings; by default those of a fresh installation.
        model: folder of the fitted model, for recipes that are fitted.
        settings: options over the recipe's own, for recipes that are not fitted.

    Raises:
        NotFound: for an unknown recipe, or a model that is not there.
        ConfigError: for an unknown option; without a model where one is needed, or with one that does not belong to
            the recipe, the encoder or the catalogue.
        StoreError: for a damaged model.
    """
    chosen = recipe(name) if isinstance(name, str) else name
    workspace = dataclasses.replace(workspace or Workspace(), build=build, model=model)
    if chosen.encoder and not _is_ready(workspace.encoder):
        workspace = dataclasses.replace(workspace, encoder=chosen.encoder)
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
            return method.build(workspace, catalogue, model_store.load(model, recipe=chosen.name))
        options = parse_options({**chosen.settings, **(settings or {})}, method.options_type)
        return cast(PlainMethod, method).build(workspace, catalogue, options)
    except ConfigError as error:
        raise ConfigError(f"recipe {chosen.name}: {error}") from None


def _is_ready(encoder: str | Encoder | None) -> bool:
    return encoder is not None and not isinstance(encoder, str)


def resolve(name: str | Recipe, changes: Mapping[str, Any]) -> tuple[msgspec.Struct, dict[str, str]]:
    """Return the options of a fit, and where each came from: default, recipe or argument.

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
