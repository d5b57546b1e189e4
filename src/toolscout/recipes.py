"""Named pipelines: what each is, what it can be told, how it is put together. The one table of names."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

from toolscout.errors import ConfigError, NotFound
from toolscout.pipeline import Retrieve, Stage
from toolscout.store import Catalogue

__all__ = ["RECIPES", "Recipe", "build", "recipe"]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One named pipeline.

    Attributes:
        name: as the command line spells it.
        summary: one sentence.
        make: (catalogue, settings) → the stages up to the ranked hits.
        settings: what differs from the defaults of what it is made of; `--set key=value` comes on top.
    """

    name: str
    summary: str
    make: Callable[[Catalogue, Mapping[str, Any]], Stage]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _bm25(catalogue: Catalogue, settings: Mapping[str, Any]) -> Stage:
    from toolscout.indexes import pack, unpack
    from toolscout.indexes.sparse import BM25, CODE, PLAIN

    exact = (PLAIN if settings.get("tokenizer") == "plain" else CODE).changed(**settings)

    def built() -> bytes:
        index = BM25.build(catalogue.tools(), exact)
        return pack(index.arrays(), index.meta)

    index = BM25.from_arrays(*unpack(catalogue.cached(f"bm25/{exact.fingerprint}", built)))
    return Retrieve(index, label="bm25", mask=catalogue.mask)


RECIPES: dict[str, Recipe] = {
    each.name: each
    for each in (
        Recipe("bm25", "Words of the query against words of each tool, identifiers split and stemmed.", _bm25),
        Recipe(
            "bm25-plain",
            "BM25 as most libraries ship it: plain words, no stemming, all fields alike.",
            _bm25,
            {"tokenizer": "plain"},
        ),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        NotFound: with the nearest name that exists.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(RECIPES)}"
        raise NotFound(f"expected the name of a recipe, found {name!r}: {hint}")
    return RECIPES[name]


def build(name: str, catalogue: Catalogue, settings: Mapping[str, Any] | None = None) -> Stage:
    """The recipe's pipeline over a snapshot, up to the ranked hits.

    Raises:
        NotFound: for an unknown recipe.
        ConfigError: for a setting that the recipe does not know.
    """
    chosen = recipe(name)
    try:
        return chosen.make(catalogue, {**chosen.settings, **(settings or {})})
    except ConfigError as error:
        raise ConfigError(f"recipe {name}: {error}") from None
