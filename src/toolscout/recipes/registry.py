"""Named pipelines: what each is, what it can be told, how it is fitted and put together. The one table of names."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from toolscout.catalogue.store import Catalogue
from toolscout.errors import ConfigError, NotFound
from toolscout.methods import (
    Fitting,
    Parts,
    colt,
    crossencoder,
    dpr,
    hybrid_dpr,
    masstool,
    mlc,
    mlc_light,
    neighbours,
    options,
    query_rewriting,
    tool2vec,
    toolrefiner,
    zero_shot,
)
from toolscout.methods.feedback import loop, prf, trained
from toolscout.methods.toolrerank import method as toolrerank
from toolscout.search.pipeline import Stage

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
        over: which recipes its fit can go on from, if not all: a setting that they have, and what they are called.
        revision: of its rules; a model fitted by others is another.
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
    over: tuple[str, str] | None = None
    revision: int = 1


STRONG: Final = {  # what was left of COLT once each part had to earn its place on dev (benchmarks/LAB.md)
    "base": "dpr",
    "layers": 0,
    "dropped": 0.0,
    "queries": "frozen",
    "loss": "softmax",
    "length": 0,
    "sharpness": 8.0,
    "contrast": 0.0,
    "epochs": 60,
    "rate": 2e-3,
}


def _learned(
    name: str,
    summary: str,
    method: Any,
    settings: Mapping[str, Any] | None = None,
    *,
    encoder: str | None = "minilm",
    transfers: bool = False,
    judges: bool = False,
    revision: int = 1,
) -> Recipe:
    """A recipe that is fitted, from a method's module; see `toolscout.methods`."""
    return Recipe(
        name,
        summary,
        method.make,
        settings or {},
        encoder=encoder,
        encodes=True,
        fit=method.fit,
        options=method.Options,
        transfers=transfers,
        judges=judges,
        over=getattr(method, "OVER", None),
        revision=revision,
    )


def _first(number: int) -> dict[str, Any]:
    """Rerank-m as settings of toolrerank, so that all m share one cross-encoder."""
    return {"seen": number, "unseen": number, "hierarchy": "none"}


RECIPES: dict[str, Recipe] = {
    each.name: each
    for each in (
        Recipe(
            "hybrid", "BM25 and vectors of the bundled encoder, joined.", zero_shot.hybrid, encodes=True, without="bm25"
        ),
        Recipe("bm25", "Words of the query against words of each tool, identifiers split and stemmed.", zero_shot.bm25),
        Recipe("bm25-plain", "BM25 as most libraries ship it.", zero_shot.bm25, {"tokenizer": "plain"}),
        Recipe("dense", "Vectors alone.", zero_shot.dense, encodes=True),
        Recipe(
            "dense-minilm",
            "all-MiniLM-L6-v2 on title and text.",
            zero_shot.dense,
            {"style": "raw"},
            encoder="minilm-plain",
            encodes=True,
        ),
        Recipe(
            "hybrid-minilm",
            "BM25 and all-MiniLM-L6-v2, joined.",
            zero_shot.hybrid,
            encoder="minilm",
            encodes=True,
            without="bm25",
        ),
        Recipe(
            "rrf-minilm",
            "bm25-plain and dense-minilm, fused by reciprocal rank: the usual baseline.",
            zero_shot.fuse_ranks,
            encoder="minilm-plain",
            encodes=True,
            without="bm25-plain",
        ),
        # an encoder that is tuned
        _learned(
            "dpr",
            "An encoder tuned so that queries lie near all their gold tools, against the whole catalogue.",
            dpr,
            transfers=True,
        ),
        _learned(
            "dpr-inbatch",
            "An encoder tuned as published: one gold tool of a query against the other tools of the batch.",
            dpr,
            {"negatives": "batch", "epochs": 2, "batch": 64, "rate": 2e-5},
            transfers=True,
        ),
        _learned("hybrid-dpr", "BM25 beside dpr, joined.", hybrid_dpr, transfers=True),
        _learned("mlc", "A tuned encoder under a linear classifier of tools and of sets of tools.", mlc),
        # what learns which tools go together
        *(
            _learned(name, summary, colt, settings, transfers=True)
            for name, summary, settings in (
                ("colt", "Vectors of tools, tuned over graphs of what was needed together, as published.", {}),
                ("colt-no-semantic", "colt over an encoder that was not tuned.", {"base": None}),
                ("colt-no-collaborative", "colt without its second stage.", {"collaborative": False}),
                ("colt-no-contrastive", "colt without the contrast between its views.", {"contrast": 0.0}),
                ("colt-strong", "colt over dpr, with settings chosen on validation queries of ToolLens.", STRONG),
            )
        ),
        # what understands a query by those that are like it, and judges whether it needs a tool at all
        *(
            _learned(name, summary, masstool, settings, transfers=True, judges="need" not in settings)
            for name, summary, settings in (
                ("masstool", "Whether a tool is needed, and which, by what like requests meant.", {}),
                ("masstool-no-suim", "masstool without the search for like requests.", {"search": False}),
                ("masstool-no-adakt", "masstool without detection.", {"transfer": "none", "need": 0.0}),
                ("masstool-no-df", "masstool over all of the nearest requests, however far.", {"floor": -1.0}),
                ("masstool-no-cl", "masstool without the contrast between its views.", {"contrast": 0.0}),
            )
        ),
        # what puts others' answers in a new order
        _learned(
            "toolrefiner",
            "The first tools of mlc, all read together with the query and put in a new order.",
            toolrefiner,
        ),
        _learned(
            "toolrefiner-tool2vec",
            "The same over tool2vec-tuned.",
            toolrefiner,
            {"base": "tool2vec-tuned", "give_way": True},
        ),
        _learned(
            "crossencoder",
            "The first tools of another recipe, each read together with the query by one more encoder.",
            crossencoder,
            transfers=True,
        ),
        *(
            _learned(name, summary, toolrerank, settings, transfers=True, revision=2)
            for name, summary, settings in (
                ("crossencoder-10", "crossencoder that reads 10 tools.", _first(10)),
                ("crossencoder-30", "crossencoder that reads 30 tools.", _first(30)),
                ("crossencoder-50", "crossencoder that reads 50 tools.", _first(50)),
                ("toolrerank", "crossencoder that heeds which tools are new, and which belong together.", {}),
                ("toolrerank-none", "toolrerank without its hierarchy.", {"hierarchy": "none"}),
                ("toolrerank-single", "toolrerank as if one parent served each query.", {"hierarchy": "single"}),
                ("toolrerank-multi", "toolrerank as if each query needed several.", {"hierarchy": "multi"}),
                ("toolrerank-oracle", "toolrerank that is told which; for bench alone.", {"hierarchy": "oracle"}),
            )
        ),
        # what learns from usage without a transformer
        _learned("tool2vec", "The mean of the queries that used a tool as its vector.", tool2vec, encoder=None),
        dataclasses.replace(
            _learned("tool2vec-tuned", "The same, queries that share a tool brought together first.", tool2vec),
            fit=tool2vec.fit_tuned,
            options=tool2vec.TunedOptions,
        ),
        _learned(
            "neighbours", "The nearest logged queries vote for the tools that they used.", neighbours, encoder=None
        ),
        _learned(
            "mlc-light",
            "A linear classifier of tools and of sets of tools; no transformer.",
            mlc_light,
            encoder=None,
        ),
        # what says the query anew
        Recipe(
            "feedback",
            "A language model looks at what was found and says the query better, round by round.",
            loop.make,
            encodes=True,
        ),
        _learned(
            "feedback-prf",
            "hybrid, the query expanded with words of the first tools where dev says that this helps; no model.",
            prf,
            encoder=None,
            transfers=True,
        ),
        *(
            _learned(name, summary, trained, settings, transfers=True)
            for name, summary, settings in (
                ("feedback-dpr", "dpr, tuned further on its queries said anew round by round.", {}),
                ("feedback-dpr-no-warmup", "feedback-dpr from an encoder that was not tuned before.", {"base": None}),
                ("feedback-dpr-no-hard", "feedback-dpr without hard negatives.", {"hard": 0}),
                (
                    "feedback-dpr-no-joint",
                    "feedback-dpr that learns from one round after the other, without hard negatives.",
                    {"joint": False, "hard": 0},
                ),
            )
        ),
        Recipe(
            "mmrr",
            "A language model imagines the tool; its description is searched for.",
            query_rewriting.make_mmrr,
            encodes=True,
        ),
        Recipe(
            "qta",
            "dpr, on training queries and a language model's rewritings of them.",
            dpr.make,
            encoder="minilm",
            encodes=True,
            fit=query_rewriting.fit_qta,
            options=query_rewriting.QTAOptions,
            transfers=True,
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
    parts = dataclasses.replace(Parts(parts) if isinstance(parts, Catalogue) else parts, recipe=name, build=build)
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
