"""Where the figures of a fitted recipe come from: the settings of its fit and of the fits that it goes on from."""

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
    """What a result says of its models, one a fold: settings with their origins, data, figures on dev, leaks dropped.

    Of what a method wants to know again, the plain values: the best epoch, how sure a choice on dev is. `base` is the
    model that the fit goes on from, where there is one: recipe, settings, seed, identity, and its own `base`.
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


def find_other_defaults(recipe: str, changes: Mapping[str, Any], held: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings of a result's fit, or of one below it, that the same words would set otherwise today, with both values.

    Results from before `base` was kept say nothing of the fits below: a change of those is not seen in them.
    """
    if not registry.recipe(recipe).is_fitted or not held.get("fitted"):
        return {}
    found = _flatten(held["fitted"][0])
    now = msgspec.json.decode(msgspec.json.encode(resolve_with_base(recipe, changes)))
    fixed = {name: value for name, value in now.items() if value is not None}
    return {name: (found[name], value) for name, value in fixed.items() if found.get(name, value) != value}


def _flatten(fitted: Mapping[str, Any]) -> dict[str, Any]:
    """Setting → value; those of the fits below with `base.` before their names, as `resolve_with_base` has them."""
    found = {name: each["value"] for name, each in fitted["settings"].items()}
    if fitted.get("base"):
        found |= {BASE_PREFIX + name: value for name, value in _flatten(fitted["base"]).items()}
    return found


def _describe_settings(manifest: Manifest) -> dict[str, Any]:
    return {name: {"value": each.value, "origin": each.origin} for name, each in manifest.settings.items()}


def _describe_base(model: Model) -> dict[str, Any]:
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
