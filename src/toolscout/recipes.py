"""Named pipelines: what each is, what it can be told, how it is fitted and put together. The one table of names."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolscout.errors import ConfigError, NotFound
from toolscout.methods import Fitting, Parts, dpr, mlc_light, neighbours, options, plain, tool2vec
from toolscout.pipeline import Stage
from toolscout.store import Catalogue

__all__ = ["RECIPES", "Parts", "Recipe", "build", "recipe", "resolve"]

Make = Callable[[Parts, Mapping[str, Any]], Stage]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One named pipeline.

    Attributes:
        name: as the command line spells it.
        summary: one sentence.
        make: (parts, settings) → the stages up to the ranked hits. What is fitted has its settings in its model, and
            gets none here.
        settings: what differs from the defaults of what it is made of; `--set key=value` comes on top.
        encoder: the encoder that belongs to the name; None: whichever is set.
        encodes: whether it needs an encoder.
        without: the recipe that serves while the encoder does not answer.
        fit: learns from queries and writes a model folder; None: nothing to fit.
        options: every setting of the fit with its default.
        transfers: whether a model serves catalogues of which it knows no tool.
        judges: whether it can judge if a tool is needed, and learns from queries that need none.
    """

    name: str
    summary: str
    make: Make
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    encoder: str | None = None
    encodes: bool = False
    without: str | None = None
    fit: Callable[[Fitting], None] | None = None
    options: type[msgspec.Struct] | None = None
    transfers: bool = False
    judges: bool = False


RECIPES: dict[str, Recipe] = {
    each.name: each
    for each in (
        Recipe(
            "hybrid", "BM25 and vectors of the bundled encoder, joined.", plain.hybrid, encodes=True, without="bm25"
        ),
        Recipe("bm25", "Words of the query against words of each tool, identifiers split and stemmed.", plain.bm25),
        Recipe("bm25-plain", "BM25 as most libraries ship it.", plain.bm25, {"tokenizer": "plain"}),
        Recipe("dense", "Vectors alone.", plain.dense, encodes=True),
        Recipe(
            "dense-minilm",
            "all-MiniLM-L6-v2 on title and text.",
            plain.dense,
            {"style": "raw"},
            encoder="minilm-plain",
            encodes=True,
        ),
        Recipe(
            "hybrid-minilm",
            "BM25 and all-MiniLM-L6-v2, joined.",
            plain.hybrid,
            encoder="minilm",
            encodes=True,
            without="bm25",
        ),
        # fine-tuned encoders
        Recipe(
            "dpr",
            "An encoder tuned so that queries lie near all their gold tools, against the whole catalogue.",
            dpr.make,
            encoder="minilm",
            encodes=True,
            fit=dpr.fit,
            options=dpr.Options,
            transfers=True,
        ),
        Recipe(
            "dpr-inbatch",
            "An encoder tuned as published: one gold tool of a query against the other tools of the batch.",
            dpr.make,
            {"negatives": "batch", "epochs": 3, "batch": 64, "rate": 2e-5},
            encoder="minilm",
            encodes=True,
            fit=dpr.fit,
            options=dpr.Options,
            transfers=True,
        ),
        # what learns from usage without a transformer
        Recipe(
            "tool2vec",
            "The mean of the queries that used a tool as its vector.",
            tool2vec.make,
            encodes=True,
            fit=tool2vec.fit,
            options=tool2vec.Options,
        ),
        Recipe(
            "neighbours",
            "The nearest logged queries vote for the tools that they used.",
            neighbours.make,
            encodes=True,
            fit=neighbours.fit,
            options=neighbours.Options,
        ),
        Recipe(
            "mlc-light",
            "A linear classifier of tools and of sets of tools; no transformer.",
            mlc_light.make,
            encodes=True,
            fit=mlc_light.fit,
            options=mlc_light.Options,
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


def build(name: str, parts: Parts | Catalogue, settings: Mapping[str, Any] | None = None) -> Stage:
    """The recipe's pipeline over a snapshot, up to the ranked hits.

    Raises:
        NotFound: for an unknown recipe, or a model that is not there.
        ConfigError: for a setting that the recipe does not know; without a model where one is needed, or with one that
            does not belong to the recipe, the encoder or the catalogue.
        StoreError: for a damaged model.
    """
    chosen = recipe(name)
    parts = dataclasses.replace(Parts(parts) if isinstance(parts, Catalogue) else parts, recipe=name)
    if chosen.encoder and isinstance(parts.encoder, str):
        parts = dataclasses.replace(parts, encoder=chosen.encoder)
    if chosen.fit and settings:
        raise ConfigError(
            f"recipe {name}: expected settings when it is fitted, found {', '.join(settings)} afterwards: "
            f"run  toolscout train {name} --set …"
        )
    try:
        return chosen.make(parts, {} if chosen.fit else {**chosen.settings, **(settings or {})})
    except ConfigError as error:
        raise ConfigError(f"recipe {name}: {error}") from None


def resolve(name: str, changes: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
    """Every setting of a fit, and where each came from: default, recipe or argument.

    Raises:
        ConfigError: for a recipe that is not fitted, or a setting that it does not know.
    """
    chosen = recipe(name)
    if chosen.options is None:
        raise ConfigError(f"recipe {name}: expected a recipe that is fitted, found one that is not: use it as it is")
    try:
        resolved = options({**chosen.settings, **changes}, chosen.options)
    except ConfigError as error:
        raise ConfigError(f"recipe {name}: {error}") from None
    given = {**dict.fromkeys(chosen.settings, "recipe"), **dict.fromkeys(changes, "argument")}
    return resolved, {field: given.get(field, "default") for field in chosen.options.__struct_fields__}
