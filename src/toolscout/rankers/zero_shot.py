"""Methods that need no fitting: BM25, vectors, both joined, and both for each step. Fitted methods build on these."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, TypeAlias

import msgspec

from toolscout.arrays import Vectors
from toolscout.encoders import Encoder, get_short_weight
from toolscout.errors import ConfigError
from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.bm25 import BM25, CODE_SETTINGS, PLAIN_SETTINGS, BM25Settings
from toolscout.indexes.exact import StandardScores
from toolscout.indexes.words import Tokenizer
from toolscout.rankers import BaseRule
from toolscout.search.abstain.decision import build_abstainer
from toolscout.search.everyday import EVERYDAY_WEIGHT, drop_quotations, encode_expanded
from toolscout.search.exact_names import PreferSources
from toolscout.search.home_resources import expand_words, index_words
from toolscout.search.opposites import OrderActions
from toolscout.search.pipeline import DEPTH, Fuse, Retrieve, Stage, add_standard_scores, newest, reciprocal_rank
from toolscout.search.resources import Resources
from toolscout.search.steps.splitter import load_splitter
from toolscout.search.steps.stage import StepSearch
from toolscout.types import STYLES, Answer

__all__ = [
    "Bm25",
    "Bm25Options",
    "Dense",
    "DenseOptions",
    "Hybrid",
    "HybridOptions",
    "NoOptions",
    "RankFusion",
    "StepwiseHybrid",
    "search_standard_scores",
    "search_vectors",
    "search_words",
]

EncodeQueries: TypeAlias = Callable[[list[str]], Vectors]
AboveZero: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]


class Bm25Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `bm25`. The tokenizer decides where an option is None; `BM25Settings` describes each.

    Attributes:
        tokenizer: `code` splits identifiers such as `getUserById`; `plain` is what libraries ship.
    """

    tokenizer: Tokenizer = "code"
    stem: bool | None = None
    stopwords: bool | None = None
    fold: bool | None = None
    written: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    repeats: bool | None = None
    fields: dict[str, AboveZero] | None = None
    glosses: Annotated[float, msgspec.Meta(ge=0)] | None = None
    k1: Annotated[float, msgspec.Meta(ge=0)] | None = None
    b: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None

    def __post_init__(self) -> None:
        self.index_settings()  # raises for a field that no tool has

    def index_settings(self) -> BM25Settings:
        """Return the settings of the index: the preset of the tokenizer, with what is set here.

        Raises:
            ConfigError: for a field that no tool has.
        """
        changes = {name: value for name in BM25Settings.__struct_fields__ if (value := getattr(self, name)) is not None}
        preset = PLAIN_SETTINGS if self.tokenizer == "plain" else CODE_SETTINGS
        return preset.replace(**changes)


class DenseOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `dense`. `style`: which text of a tool is embedded (`encoders.encode_tools`)."""

    style: str = "named"

    def __post_init__(self) -> None:
        check_style(self.style)


class HybridOptions(Bm25Options, frozen=True, forbid_unknown_fields=True):
    """Options of `hybrid`: the options of `bm25`, and these.

    Attributes:
        style: as in `dense`.
        everyday: weight of the words that everyday phrases add to a query.
    """

    style: str = "named"
    everyday: Annotated[float, msgspec.Meta(ge=0)] = EVERYDAY_WEIGHT

    def __post_init__(self) -> None:
        self.index_settings()  # raises for a field that no tool has
        check_style(self.style)


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a method that has none."""


def check_style(style: str) -> None:
    """Raise ConfigError for a text style that does not exist."""
    if style not in ("named", *STYLES):
        raise ConfigError(f"style: expected named or one of {', '.join(STYLES)}, found {style!r}")


class _Plain:
    """The facts of every method that learns nothing."""

    needs_usage = False
    transfers = True
    abstains = False
    base: BaseRule | None = None


class Bm25(_Plain):
    """Compares words of the query with words of each tool."""

    options_type = Bm25Options

    def build(self, resources: Resources, catalogue: Catalogue, options: Bm25Options) -> Stage:
        """Build the search over words."""
        return search_words(catalogue, options.index_settings())


class Dense(_Plain):
    """Compares the vector of the query with the vector of each tool."""

    options_type = DenseOptions

    def build(self, resources: Resources, catalogue: Catalogue, options: DenseOptions) -> Stage:
        """Build the search over vectors."""
        return search_vectors(resources, catalogue, resources.load_encoder(), options.style)


class Hybrid(_Plain):
    """Joins `bm25` and `dense`."""

    options_type = HybridOptions

    def build(self, resources: Resources, catalogue: Catalogue, options: HybridOptions) -> Stage:
        """Build both searches, their fusion, and the order among tools that differ in the action alone."""
        encoder = resources.load_encoder()
        settings = options.index_settings()
        if not resources.settings.uses("glosses"):
            settings = settings.replace(glosses=0.0)
        words = resources.index_nearest_words(catalogue, encoder, options.style, settings)
        encode: EncodeQueries = functools.partial(encoder.encode, kind="query")
        if options.everyday and resources.settings.uses("everyday"):
            expanding_words = expand_words(catalogue, settings, options.everyday)  # BM25 that adds words to queries
            words = expanding_words if isinstance(words, BM25) else words.with_words(expanding_words)
            if encoder.cheap:  # others would take nearly twice as long, since they would encode two wordings
                encode = functools.partial(encode_expanded, encoder=encoder, words=expanding_words)
        wording = drop_quotations if resources.settings.uses("quotations") else newest  # the text to search for
        fused: Stage = Fuse(
            Retrieve(words, label="bm25", mask=catalogue.mask, depth=DEPTH, wording=wording),
            search_standard_scores(resources, catalogue, encoder, options.style, encode, wording),
            by=functools.partial(add_standard_scores, short_weight=get_short_weight(encoder)),
        )
        if resources.settings.uses("sources"):
            fused = fused >> PreferSources(catalogue)
        return fused >> OrderActions(catalogue) if resources.settings.uses("opposites") else fused


class StepwiseHybrid(_Plain):
    """Searches every step of a request with `hybrid`, and merges the answers; see `search.steps.stage`."""

    options_type = HybridOptions

    def build(self, resources: Resources, catalogue: Catalogue, options: HybridOptions) -> Stage:
        """Build the search for one step, the splitter, and the judge of whether a tool fits a step."""
        hybrid = Hybrid().build(resources, catalogue, options)
        if not resources.settings.uses("steps"):
            return hybrid
        judge = build_abstainer(resources, catalogue, hybrid)
        words = index_words(catalogue, options.index_settings())
        is_chat = judge.is_clear_chat if judge else None  # a request that is clearly chat is not split
        return StepSearch(
            hybrid,
            load_splitter(),
            judge if resources.settings.uses("refusals") else None,
            is_chat=is_chat,
            words=words,
            covers=resources.settings.uses("places"),
        )


class RankFusion(_Plain):
    """Fuses BM25 as libraries ship it and vectors of title and text by reciprocal rank: a baseline for `hybrid`."""

    options_type = NoOptions

    def build(self, resources: Resources, catalogue: Catalogue, options: NoOptions) -> Stage:
        """Build both searches and their fusion (Cormack et al., 2009; k = 60)."""
        return Fuse(
            search_words(catalogue, PLAIN_SETTINGS),
            # the plain text, as libraries embed it: without the ways to name a tool that "named" adds
            search_vectors(resources, catalogue, resources.load_encoder(), style="raw"),
            by=reciprocal_rank,
        )


def search_words(catalogue: Catalogue, settings: BM25Settings = CODE_SETTINGS) -> Stage:
    """Return the BM25 stage over a catalogue."""
    return Retrieve(index_words(catalogue, settings), label="bm25", mask=catalogue.mask, depth=DEPTH)


def search_vectors(resources: Resources, catalogue: Catalogue, encoder: Encoder, style: str = "named") -> Stage:
    """Return the stage that finds the tools with the nearest vectors; `style`: which text of a tool is encoded."""
    encode = functools.partial(encoder.encode, kind="query")
    index = resources.index_nearest(catalogue, encoder, style)
    return Retrieve(index, label="dense", encode=encode, mask=catalogue.mask, depth=DEPTH)


def search_standard_scores(
    resources: Resources,
    catalogue: Catalogue,
    encoder: Encoder,
    style: str = "named",
    encode: EncodeQueries | None = None,
    wording: Callable[[Answer], str] = newest,
) -> Stage:
    """Return the stage that finds the tools with the nearest vectors, with standard scores instead of cosines.

    Args:
        resources: builds the index.
        catalogue: the tools.
        encoder: encodes the tools.
        style: which text of a tool is encoded.
        encode: queries → unit rows; None: the encoder encodes the queries, too.
        wording: search → the text to search for.
    """
    encode = encode or functools.partial(encoder.encode, kind="query")
    exact = resources.index_tools(catalogue, encoder, style)  # knows mean and deviation of all cosines
    index = StandardScores(resources.index_nearest(catalogue, encoder, style), exact)
    return Retrieve(index, label="dense", encode=encode, mask=catalogue.mask, depth=DEPTH, wording=wording)
