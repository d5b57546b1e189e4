"""Methods that need no fitting: BM25, vectors, both joined, and both for each step. Fitted methods build on these."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias

import msgspec

from toolscout.arrays import Vectors
from toolscout.encoders import ENGLISH, Encoder, get_languages
from toolscout.encoders.static import load_static
from toolscout.errors import ConfigError
from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.bm25 import BM25, CODE_SETTINGS, PLAIN_SETTINGS, BM25Settings
from toolscout.indexes.exact import Exact, StandardScores
from toolscout.indexes.words import Tokenizer
from toolscout.rankers import BaseRule
from toolscout.search.abstain.decision import build_abstainer
from toolscout.search.actions.order import OrderActions
from toolscout.search.expanded_words import EVERYDAY_WEIGHT, encode_expanded
from toolscout.search.fusion import DEPTH, add_by_language, add_standard_scores
from toolscout.search.home_resources import expand_words, index_words
from toolscout.search.pipeline import Fuse, Fusion, Retrieve, Stage, reciprocal_rank
from toolscout.search.resources import Resources
from toolscout.search.steps.splitter import load_splitter
from toolscout.search.steps.stage import StepSearch
from toolscout.search.word_cover import Compare
from toolscout.types import STYLES

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
    """Options of `bm25`; None: as the tokenizer has it. See `indexes.bm25_settings.BM25Settings`."""

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
        self.index_settings()

    def index_settings(self) -> BM25Settings:
        """Return the settings of the index: the preset of the tokenizer, with what is set here.

        Raises:
            ConfigError: for a field that no tool has.
        """
        changes = {name: value for name in BM25Settings.__struct_fields__ if (value := getattr(self, name)) is not None}
        return (PLAIN_SETTINGS if self.tokenizer == "plain" else CODE_SETTINGS).replace(**changes)


class DenseOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `dense`: which text of a tool is embedded (`encoders.encode_tools`)."""

    style: str = "named"

    def __post_init__(self) -> None:
        check_style(self.style)


class HybridOptions(Bm25Options, frozen=True, forbid_unknown_fields=True):
    """Options of `hybrid`: those of `bm25` and `dense`, and the weight of words that everyday phrases add."""

    style: str = "named"
    everyday: Annotated[float, msgspec.Meta(ge=0)] = EVERYDAY_WEIGHT

    def __post_init__(self) -> None:
        self.index_settings()
        check_style(self.style)


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a method that has none."""


def check_style(style: str) -> None:
    """Refuse a text style that does not exist.

    Raises:
        ConfigError: naming those that do.
    """
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
        by: Fusion = add_standard_scores
        if get_languages(encoder) != ENGLISH:
            by = functools.partial(add_by_language, is_word=load_static().pieces.is_word)
        words = resources.index_nearest_words(catalogue, encoder, options.style, options.index_settings())
        encode: EncodeQueries = functools.partial(encoder.encode, kind="query")
        if options.everyday:
            expanded = expand_words(catalogue, options.index_settings(), options.everyday)
            words = expanded if isinstance(words, BM25) else words.with_words(expanded)
            if encoder.cheap:  # another one would take nearly twice as long
                encode = functools.partial(encode_expanded, encoder=encoder, words=expanded)
        fused = Fuse(
            Retrieve(words, label="bm25", mask=catalogue.mask, depth=DEPTH),
            search_standard_scores(resources, catalogue, encoder, options.style, encode),
            by=by,
        )
        return fused >> OrderActions(catalogue)


class StepwiseHybrid(_Plain):
    """Searches every step of a request with `hybrid`, and merges the answers; see `search.steps.stage`."""

    options_type = HybridOptions

    def build(self, resources: Resources, catalogue: Catalogue, options: HybridOptions) -> Stage:
        """Build the search for one step, the splitter, and the judge of whether a tool fits a step."""
        hybrid = Hybrid().build(resources, catalogue, options)
        judge = build_abstainer(resources, catalogue, hybrid)
        words = index_words(catalogue, options.index_settings())
        is_chat = judge.is_clear_chat if judge else None
        encoder, compare = resources.load_encoder(), None
        if encoder.cheap:  # another one would take as long as a search
            compare = _compare_with(resources.index_tools(catalogue, encoder, options.style), encoder)
        return StepSearch(hybrid, load_splitter(), judge, is_chat=is_chat, words=words, compare=compare)


class RankFusion(_Plain):
    """Fuses BM25 as libraries ship it and vectors of title and text by reciprocal rank: a baseline for `hybrid`."""

    options_type = NoOptions

    def build(self, resources: Resources, catalogue: Catalogue, options: NoOptions) -> Stage:
        """Build both searches and their fusion (Cormack et al., 2009; k = 60)."""
        return Fuse(
            search_words(catalogue, PLAIN_SETTINGS),
            search_vectors(resources, catalogue, resources.load_encoder(), "raw"),
            by=reciprocal_rank,
        )


def search_words(catalogue: Catalogue, settings: BM25Settings = CODE_SETTINGS) -> Stage:
    """Return the BM25 stage over a catalogue."""
    return Retrieve(index_words(catalogue, settings), label="bm25", mask=catalogue.mask, depth=DEPTH)


def search_vectors(resources: Resources, catalogue: Catalogue, encoder: Encoder, style: str = "named") -> Stage:
    """Return the stage that finds the nearest vectors of a catalogue's tools."""
    encode = functools.partial(encoder.encode, kind="query")
    index = resources.index_nearest(catalogue, encoder, style)
    return Retrieve(index, label="dense", encode=encode, mask=catalogue.mask, depth=DEPTH)


def search_standard_scores(
    resources: Resources,
    catalogue: Catalogue,
    encoder: Encoder,
    style: str = "named",
    encode: EncodeQueries | None = None,
) -> Stage:
    """Return the stage that finds the nearest vectors, with standard scores instead of cosines.

    Args:
        resources: builds the index.
        catalogue: the tools.
        encoder: reads the tools.
        style: text of a tool that is embedded.
        encode: queries → unit rows; None: the encoder's.
    """
    encode = encode or functools.partial(encoder.encode, kind="query")
    exact = resources.index_tools(catalogue, encoder, style)
    index = StandardScores(resources.index_nearest(catalogue, encoder, style), exact)
    return Retrieve(index, label="dense", encode=encode, mask=catalogue.mask, depth=DEPTH)


def _compare_with(index: Exact, encoder: Encoder) -> Compare:
    """Return a function that compares a text with tools by their vectors."""

    def compare(text: str, ids: Sequence[str]) -> Vectors:
        positions = [bisect_left(index.ids, tool_id) for tool_id in ids]
        return index.at(encoder.encode([text], kind="query")[0], positions)

    return compare
