"""Named pipelines: what each is, what it can be told, how it is put together. The one table of names."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolscout import encoders
from toolscout.config import Settings
from toolscout.encoders import Encoder, encode_tools
from toolscout.errors import ConfigError, NotFound, StoreError
from toolscout.fusion import DEPTH, words_and_meaning
from toolscout.indexes import pack, unpack
from toolscout.pipeline import Fuse, Retrieve, Stage
from toolscout.store import Catalogue
from toolscout.types import STYLES, digest
from toolscout.vectors import VectorStore

__all__ = ["RECIPES", "Parts", "Recipe", "build", "recipe"]

UNASKED = 256  # so many texts a search may embed by itself; more are for add and sync, where people expect to wait


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a recipe is built from.

    Attributes:
        catalogue: the snapshot to search.
        encoder: the encoder to use, by name or ready-made, unless the recipe has its own.
        settings: timeouts and the like.
        vectors: where vectors of tools are kept; None: they are made anew.
        embed: whether to embed whatever is missing; else a few texts at most, and a sentence when there are more.
        progress: called with (done, all) while texts are embedded.
    """

    catalogue: Catalogue
    encoder: str | Encoder = "static"
    settings: Settings = dataclasses.field(default_factory=Settings)
    vectors: VectorStore | None = None
    embed: bool = True
    progress: Callable[[int, int], None] | None = None


Make = Callable[[Parts, Mapping[str, Any]], Stage]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One named pipeline.

    Attributes:
        name: as the command line spells it.
        summary: one sentence.
        make: (parts, settings) → the stages up to the ranked hits.
        settings: what differs from the defaults of what it is made of; `--set key=value` comes on top.
        encoder: the encoder that belongs to the name; None: whichever is set.
        encodes: whether it needs an encoder.
        without: the recipe that serves while the encoder does not answer.
    """

    name: str
    summary: str
    make: Make
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    encoder: str | None = None
    encodes: bool = False
    without: str | None = None


# --- how they are made ------------------------------------------------------------------------------------------------


def _bm25(parts: Parts, settings: Mapping[str, Any]) -> Stage:
    from toolscout.indexes.sparse import BM25, CODE, PLAIN

    exact = (PLAIN if settings.get("tokenizer") == "plain" else CODE).changed(**settings)
    catalogue = parts.catalogue

    def built() -> bytes:
        index = BM25.build(catalogue.tools(), exact)
        return pack(index.arrays(), index.meta)

    index = BM25.from_arrays(*unpack(catalogue.cached(f"bm25/{exact.fingerprint}", built)))
    return Retrieve(index, label="bm25", mask=catalogue.mask, depth=DEPTH)


class _Dense(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `dense`: which text of a tool is embedded (`encoders.encode_tools`)."""

    style: str = "named"

    def __post_init__(self) -> None:
        if self.style not in ("named", *STYLES):
            raise ConfigError(f"style: expected named or one of {', '.join(STYLES)}, found {self.style!r}")


def _dense(parts: Parts, settings: Mapping[str, Any]) -> Stage:
    from toolscout.indexes.exact import Exact

    chosen = _settings(settings, _Dense)
    encoder = _encoder(parts)
    catalogue = parts.catalogue

    def built() -> bytes:
        index = Exact(encoder.dim)
        rows = functools.partial(_embedded, parts, encoder)
        index.upsert(catalogue.ids, encode_tools(rows, catalogue.tools(), chosen.style))
        return pack(index.arrays(), index.meta)

    key = f"exact/{digest('dense/1', [encoder.fingerprint, chosen.style])}"
    index = Exact.from_arrays(*unpack(catalogue.cached(key, built)))
    encode = functools.partial(encoder.encode, kind="query")
    return Retrieve(index, label="dense", encode=encode, mask=catalogue.mask, depth=DEPTH)


def _embedded(parts: Parts, encoder: Encoder, texts: list[str]) -> encoders.Vectors:
    encode = functools.partial(encoder.encode, kind="tool")
    if encoder.cheap or parts.vectors is None:
        return encode(texts)
    missing = parts.vectors.missing(encoder.fingerprint, texts)
    if len(missing) > UNASKED and not parts.embed:
        held = ", ".join(f"{name} ({count:,})" for name, count in parts.vectors.encoders()) or "none"
        raise StoreError(
            f"expected vectors of {encoder.name} for {len(texts):,} tools, found {len(missing):,} of them missing "
            f"(kept are vectors of: {held}): run  toolscout sync --encoder {encoder.name}"
        )
    return parts.vectors.rows(encoder.fingerprint, texts, encode, name=encoder.name, progress=parts.progress)


def _hybrid(parts: Parts, settings: Mapping[str, Any]) -> Stage:
    words = {key: value for key, value in settings.items() if key != "style"}
    meaning = {key: value for key, value in settings.items() if key == "style"}
    return Fuse(_bm25(parts, words), _dense(parts, meaning), by=words_and_meaning)


RECIPES: dict[str, Recipe] = {
    each.name: each
    for each in (
        Recipe("hybrid", "BM25 and vectors of the bundled encoder, joined.", _hybrid, encodes=True, without="bm25"),
        Recipe("bm25", "Words of the query against words of each tool, identifiers split and stemmed.", _bm25),
        Recipe("bm25-plain", "BM25 as most libraries ship it.", _bm25, {"tokenizer": "plain"}),
        Recipe("dense", "Vectors alone.", _dense, encodes=True),
        Recipe(
            "dense-minilm",
            "all-MiniLM-L6-v2 on title and text.",
            _dense,
            {"style": "raw"},
            encoder="minilm",
            encodes=True,
        ),
        Recipe(
            "hybrid-minilm",
            "BM25 and all-MiniLM-L6-v2, joined.",
            _hybrid,
            encoder="minilm",
            encodes=True,
            without="bm25",
        ),
    )
}


# --- by name ----------------------------------------------------------------------------------------------------------


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
        NotFound: for an unknown recipe.
        ConfigError: for a setting that the recipe does not know.
    """
    chosen = recipe(name)
    parts = Parts(parts) if isinstance(parts, Catalogue) else parts
    if chosen.encoder and isinstance(parts.encoder, str):
        parts = dataclasses.replace(parts, encoder=chosen.encoder)
    try:
        return chosen.make(parts, {**chosen.settings, **(settings or {})})
    except ConfigError as error:
        raise ConfigError(f"recipe {name}: {error}") from None


def _settings(given: Mapping[str, Any], kind: type[_Dense]) -> _Dense:
    try:
        return msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"expected settings that it knows, found something else: {error}") from None


def _encoder(parts: Parts) -> Encoder:
    return encoders.load(parts.encoder, parts.settings) if isinstance(parts.encoder, str) else parts.encoder
