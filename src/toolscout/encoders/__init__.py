"""Encoders: texts → vectors. This file holds the contract, what the encoders share, and finds one by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from toolscout.config import Settings
from toolscout.types import Tool, render

__all__ = ["Encoder", "Kind", "Vectors", "encode_tools", "load", "split_identifiers", "unit_rows"]

Kind: TypeAlias = Literal["query", "tool"]
Vectors: TypeAlias = npt.NDArray[np.float32]

_JOINT: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+|(?<=[A-Za-z])\.(?=[A-Za-z])")


class Encoder(Protocol):
    """What turns texts into vectors.

    Attributes:
        name: how settings spell it.
        dim: length of a vector.
        fingerprint: changes whenever the same text would give another vector.
        cheap: whether a catalogue is embedded in a second or so, and its vectors are not worth keeping.
    """

    name: str
    dim: int
    fingerprint: str
    cheap: bool

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Texts → `(n, dim)` float32 unit rows, in order; a row of zeros for a text that says nothing to the encoder.

        Args:
            texts: of any length; what is too long is cut.
            kind: `query` or `tool`: some encoders treat them differently.
        """
        ...


def load(name: str, settings: Settings) -> Encoder:
    """The encoder of that name.

    Args:
        name: `static` (bundled), `minilm` (all-MiniLM-L6-v2), `minilm:N` (the same cut to its first N layers, 1 to 5),
            `onnx:FOLDER` (as `toolscout export-encoder` writes it), `https://host/v1/embeddings#model` (an
            OpenAI-compatible endpoint), or what sentence-transformers loads: a folder or a name on the Hugging Face
            hub.
        settings: timeouts.

    Raises:
        UserError: if it cannot be loaded, with what to do.
    """
    if name == "static":
        from toolscout.encoders.static import StaticEncoder

        return StaticEncoder()
    if name.startswith(("http://", "https://")):
        from toolscout.encoders.remote import RemoteEncoder

        return RemoteEncoder(name, timeout=settings.http_timeout)
    if name.startswith("onnx:"):
        from toolscout.encoders.onnx import OnnxEncoder

        return OnnxEncoder(name.removeprefix("onnx:"))
    from toolscout.encoders.transformer import TransformerEncoder

    return TransformerEncoder(name)


NAME_SHARE: Final = 0.3


def encode_tools(rows: Callable[[list[str]], Vectors], tools: Sequence[Tool], style: str = "named") -> Vectors:
    """The vectors that tools are found by, `(len(tools), dim)` float32 unit rows.

    Args:
        rows: texts → unit rows: an encoder's `encode` for tools, or a store of vectors in front of it.
        tools: in any order; a row each.
        style: `named`: 0.7 of the vector of the `short` text and 0.3 of the name's, because what a tool is called says
            more than its share of a long description (the shares were chosen on validation queries of eight datasets);
            or a style of `render`.
    """
    if style != "named":
        return rows([render(tool, style) for tool in tools])
    texts, names = rows([render(tool, "short") for tool in tools]), rows([render(tool, "name") for tool in tools])
    return unit_rows((1 - NAME_SHARE) * texts + NAME_SHARE * names)


def split_identifiers(text: str) -> str:
    """`getUserById`, `get_user_by_id` and `users.get` as words with spaces between: encoders know words only."""
    return _JOINT.sub(" ", text)


def unit_rows(vectors: npt.NDArray[Any]) -> Vectors:
    """Rows divided by their lengths, `(n, d)` float32; rows of zeros stay."""
    rows = np.asarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units: Vectors = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return units
