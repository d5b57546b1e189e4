"""The contract of encoders, which turn texts into vectors, and what encoders share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array
from toolscout.types import Tool, render

__all__ = [
    "ENGLISH",
    "KNOWN_NAMES",
    "Encoder",
    "Kind",
    "Vectors",
    "encode_tools",
    "get_languages",
    "get_short_weight",
    "split_identifiers",
    "unit_rows",
]

Kind: TypeAlias = Literal["query", "tool"]
Vectors: TypeAlias = npt.NDArray[np.float32]
ENGLISH: Final = frozenset({"en"})
KNOWN_NAMES: Final = ("static", "compact", "minilm")
MAX_CACHED_TEXT_CHARS: Final = 64
MAX_CACHED_TEXTS: Final = 50_000
# Where an identifier is split: at inner capitals, at underscores, and at dots between letters.
_WORD_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+|(?<=[A-Za-z])\.(?=[A-Za-z])")


class Encoder(Protocol):
    """Turns texts into vectors.

    Attributes:
        name: its name in the settings.
        dim: length of a vector.
        fingerprint: changes whenever the same text would give another vector.
        cheap: whether it encodes a catalogue in about a second, so that its vectors need not be stored.
        languages: codes of the languages that it understands, such as `en`; None: all, or unknown.

    An encoder may also state `prompts` (`toolscout.encoders.prompts.Prompts`), and where it cuts texts: `max_tokens` or
    `max_chars`. `describe_encoder` shows them. `short_weight` is the weight of its vectors beside the words of short
    requests, 1 by default (`toolscout.search.pipeline.weigh_meaning`).
    """

    name: str
    dim: int
    fingerprint: str
    cheap: bool
    languages: frozenset[str] | None

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Encode texts as `(n, dim)` float32 unit rows, in order; a text without known words gives a row of zeros.

        Args:
            texts: of any length; the encoder truncates long texts.
            kind: `query` or `tool`; some encoders treat them differently.
        """
        ...


def get_languages(encoder: Encoder) -> frozenset[str] | None:
    """Return the languages that an encoder declares; None if it reads all languages, or declares nothing."""
    languages: frozenset[str] | None = getattr(encoder, "languages", None)
    return languages


def get_short_weight(encoder: Encoder) -> float:
    """Return the weight that an encoder declares for its vectors in short requests; 1 if it declares none."""
    weight: float = getattr(encoder, "short_weight", 1.0)
    return weight


NAMED_VIEWS: Final = ("short", "name", "sentence")  # texts of a tool whose vectors are averaged


def encode_tools(rows: Callable[[list[str]], Vectors], tools: Sequence[Tool], style: str = "named") -> Vectors:
    """Encode tools for retrieval, `(len(tools), dim)` float32 unit rows.

    Args:
        rows: maps texts to unit rows: an encoder's `encode` for tools, or a vector cache in front of it.
        tools: in any order; each gives one row.
        style: a style of `render`, or `named`: the mean of three vectors, of the `short` text, of the name, and of the
            first sentence of the description. In the short text alone, name and sentence would weigh too little.
    """
    if style != "named":
        return rows([render(tool, style) for tool in tools])
    views = [rows([render(tool, view) for tool in tools]) for view in NAMED_VIEWS]
    return unit_rows(np.sum(views, axis=0))  # the sum has the direction of the mean


def split_identifiers(text: str) -> str:
    """Split `getUserById`, `get_user_by_id` and `users.get` into words, because encoders know words only."""
    words = text.split(" ")
    may_be_cached = max(map(len, words)) <= MAX_CACHED_TEXT_CHARS
    return " ".join(map(_split_cached if may_be_cached else _split, words))


def _split(word: str) -> str:
    """Put a space at each boundary between the words of an identifier."""
    return _WORD_BOUNDARY.sub(" ", word)


_split_cached = functools.lru_cache(MAX_CACHED_TEXTS)(_split)  # tools share most of their words


def unit_rows(vectors: Array) -> Vectors:
    """Scale rows to length 1, `(n, d)` float32; rows of zeros stay as they are."""
    rows = np.asarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units: Vectors = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return units
