"""What needs no fitting: words (BM25), vectors, and both joined. Fitted methods begin from these."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from toolscout.encoders import Encoder
from toolscout.errors import ConfigError
from toolscout.indexes import pack, unpack
from toolscout.indexes.exact import Exact
from toolscout.indexes.sparse import BM25, CODE_SETTINGS, PLAIN_SETTINGS, BM25Settings
from toolscout.methods import Parts, options
from toolscout.search.fusion import DEPTH, words_and_meaning
from toolscout.search.pipeline import Fuse, Retrieve, Stage
from toolscout.types import STYLES, digest

__all__ = ["bm25", "dense", "hybrid", "tool_index", "word_index"]


class DenseOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `dense`: which text of a tool is embedded (`encoders.encode_tools`)."""

    style: str = "named"

    def __post_init__(self) -> None:
        if self.style not in ("named", *STYLES):
            raise ConfigError(f"style: expected named or one of {', '.join(STYLES)}, found {self.style!r}")


def bm25(parts: Parts, settings: Mapping[str, Any]) -> Stage:
    """Words of the query against words of each tool."""
    exact = (PLAIN_SETTINGS if settings.get("tokenizer") == "plain" else CODE_SETTINGS).replace(**settings)
    return Retrieve(word_index(parts, exact), label="bm25", mask=parts.catalogue.mask, depth=DEPTH)


def word_index(parts: Parts, settings: BM25Settings = CODE_SETTINGS) -> BM25:
    """The words of the catalogue's tools, kept with the snapshot."""

    def built() -> bytes:
        index = BM25.build(parts.catalogue.tools(), settings)
        return pack(index.arrays(), index.meta)

    key = f"bm25/{settings.fingerprint}"
    return parts.catalogue.held(key, lambda: BM25.from_arrays(*unpack(parts.catalogue.cached(key, built))))


def dense(parts: Parts, settings: Mapping[str, Any]) -> Stage:
    """The vector of the query against the vector of each tool."""
    chosen = options(settings, DenseOptions)
    encoder = parts.loaded()
    encode = functools.partial(encoder.encode, kind="query")
    index = tool_index(parts, encoder, chosen.style)
    return Retrieve(index, label="dense", encode=encode, mask=parts.catalogue.mask, depth=DEPTH)


def tool_index(parts: Parts, encoder: Encoder, style: str = "named") -> Exact:
    """The vectors of what the catalogue's tools say of themselves, kept with the snapshot."""

    def built() -> bytes:
        index = Exact(encoder.dim)
        index.upsert(parts.catalogue.ids, parts.tool_rows(encoder, style))
        return pack(index.arrays(), index.meta)

    key = f"exact/{digest('dense/1', [encoder.fingerprint, style])}"
    return parts.catalogue.held(key, lambda: Exact.from_arrays(*unpack(parts.catalogue.cached(key, built))))


def hybrid(parts: Parts, settings: Mapping[str, Any]) -> Stage:
    """`bm25` and `dense`, joined."""
    words = {key: value for key, value in settings.items() if key != "style"}
    meaning = {key: value for key, value in settings.items() if key == "style"}
    return Fuse(bm25(parts, words), dense(parts, meaning), by=words_and_meaning)
