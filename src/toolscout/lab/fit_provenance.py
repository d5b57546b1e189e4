"""Records how a fitted recipe was fitted: the settings of its fit, and of the fits that it builds on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from toolscout.models import model_store
from toolscout.models.model_store import Manifest, Model
from toolscout.recipes import registry
from toolscout.recipes.fit import BASE_PREFIX, resolve_with_base
from toolscout.workspace import BASE_FOLDER

__all__ = ["describe_fits", "find_other_defaults"]


def describe_fits(fits: Sequence[Model]) -> dict[str, Any]:
    """Describe the models of a result, one for each fold.

    Returns:
        `fitted`: for each model its `settings` with their origins, `data`, figures on `dev`, the plain `values` of its
        manifest (such as the best epoch), and `base`, the model that the fit builds on, if any: recipe, settings, seed,
        identity, and its own `base`. `dropped_leaks`: training queries left out of all fits.
    """
    return {
        "fitted": [
            {
                "settings": _describe_settings(model.manifest),
                "data": model.manifest.data,
                "dev": model.manifest.metrics,
                "values": {
                    name: value for name, value in model.manifest.values.items() if isinstance(value, (int, float, str))
                },
                **_describe_base(model),
            }
            for model in fits
        ],
        "dropped_leaks": sum(model.manifest.data.dropped_leaks for model in fits),
    }


def find_other_defaults(
    recipe: str, changes: Mapping[str, Any], result: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Find settings of a result's fits that the same job would set differently now.

    Old results do not record `base`, so changed defaults of the fits below are not found in them.

    Args:
        recipe: its name.
        changes: settings that the job changes.
        result: the content of the result file.

    Returns:
        Setting → its value in the result, and its value now.
    """
    if not registry.recipe(recipe).is_fitted or not result.get("fitted"):
        return {}
    recorded = _flatten_settings(result["fitted"][0])
    now = msgspec.json.decode(msgspec.json.encode(resolve_with_base(recipe, changes)))
    fixed = {name: value for name, value in now.items() if value is not None}
    return {name: (recorded[name], value) for name, value in fixed.items() if recorded.get(name, value) != value}


def _flatten_settings(fitted: Mapping[str, Any]) -> dict[str, Any]:
    """Return setting → value; names of the fits below begin with `base.`, as in `resolve_with_base`."""
    values = {name: setting["value"] for name, setting in fitted["settings"].items()}
    if fitted.get("base"):
        values |= {BASE_PREFIX + name: value for name, value in _flatten_settings(fitted["base"]).items()}
    return values


def _describe_settings(manifest: Manifest) -> dict[str, Any]:
    return {name: {"value": setting.value, "origin": setting.origin} for name, setting in manifest.settings.items()}


def _describe_base(model: Model) -> dict[str, Any]:
    """Return the entry `base` for the model inside a model's folder; nothing if there is none."""
    folder = model.folder / BASE_FOLDER
    if not (folder / model_store.MANIFEST).is_file():
        return {}
    base = model_store.load(folder)
    return {
        "base": {
            "recipe": base.manifest.recipe,
            "settings": _describe_settings(base.manifest),
            "seed": base.manifest.seed,
            "job": base.manifest.job,
            **_describe_base(base),
        }
    }
