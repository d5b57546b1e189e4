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
    "split_identifiers",
    "unit_rows",
]

Kind: TypeAlias = Literal["query", "tool"]
Vectors: TypeAlias = npt.NDArray[np.float32]
ENGLISH: Final = frozenset({"en"})
KNOWN_NAMES: Final = ("static", "compact", "minilm")
MAX_CACHED_TEXT_CHARS: Final = 64
MAX_CACHED_TEXTS: Final = 50_000
_JOINT: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+|(?<=[A-Za-z])\.(?=[A-Za-z])")


class Encoder(Protocol):
    """Turns texts into vectors.

    Attributes:
        name: its name in the settings.
        dim: length of a vector.
        fingerprint: changes whenever the same text would give another vector.
        cheap: whether it embeds a catalogue in about a second, so that caching its vectors is not worthwhile.
        languages: codes of the languages that it understands, such as `en`; None: all, or unknown.

    An encoder may also state `prompts` (`toolscout.encoders.prompts.Prompts`), and where it cuts texts: `max_tokens` or
    `max_chars`. `describe_encoder` shows them.
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
    """Return the languages that an encoder declares. None: all, unknown, or a plug-in that declares nothing."""
    languages: frozenset[str] | None = getattr(encoder, "languages", None)
    return languages


NAMED_VIEWS: Final = ("short", "name", "sentence")  # texts of a tool whose vectors are averaged


def encode_tools(rows: Callable[[list[str]], Vectors], tools: Sequence[Tool], style: str = "named") -> Vectors:
    """Encode tools for retrieval, `(len(tools), dim)` float32 unit rows.

    Args:
        rows: maps texts to unit rows: an encoder's `encode` for tools, or a vector cache in front of it.
        tools: in any order; each gives one row.
        style: a style of `render`, or `named`: the mean of the vectors of the `short` text, the name, and the first
            sentence of the description, because in a long text these two would weigh too little.
    """
    if style != "named":
        return rows([render(tool, style) for tool in tools])
    views = [rows([render(tool, view) for tool in tools]) for view in NAMED_VIEWS]
    return unit_rows(np.sum(views, axis=0))


def split_identifiers(text: str) -> str:
    """Split `getUserById`, `get_user_by_id` and `users.get` into words, because encoders know words only."""
    words = text.split(" ")
    is_short = max(map(len, words)) <= MAX_CACHED_TEXT_CHARS
    return " ".join(map(_split_once if is_short else _split, words))


def _split(word: str) -> str:
    return _JOINT.sub(" ", word)


_split_once = functools.lru_cache(MAX_CACHED_TEXTS)(_split)  # tools share most of their words


def unit_rows(vectors: Array) -> Vectors:
    """Divide rows by their lengths, `(n, d)` float32; rows of zeros stay."""
    rows = np.asarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units: Vectors = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return units
