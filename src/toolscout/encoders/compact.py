"""The encoder `compact`: a small transformer tuned for tools, beside the bundled encoder.

The package `toolscout-compact` brings the transformer as an int8 ONNX folder, which onnxruntime runs. The transformer
reads English only. So a tool's vector has two parts: the transformer's, and that of the bundled encoder. A query in
English has the first part alone, and a query in another language the second, from the multilingual table. One index
serves all languages. Of a tool that is described in another language, the transformer reads English words that stand
for the foreign ones (`toolscout.encoders.gloss`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from toolscout.config import COMPACT_PACKAGE
from toolscout.encoders.encoder import Kind, Vectors, unit_rows
from toolscout.encoders.gloss import GLOSS_FORMAT, Glossary
from toolscout.encoders.languages import is_foreign, is_plainly_foreign
from toolscout.encoders.onnx import OnnxEncoder
from toolscout.encoders.static import load_static
from toolscout.errors import require
from toolscout.types import digest

__all__ = ["COMPACT_FORMAT", "CompactEncoder", "load_compact"]


Places = npt.NDArray[np.intp]
COMPACT_FORMAT: Final = "compact/2"
STATIC_SHARE: Final = 0.1  # of the squared length of a tool's vector


class CompactEncoder:
    """Encodes tools with a transformer and with the bundled encoder, and queries with the one that reads them.

    Adding the bundled encoder's cosines to the transformer's for English queries was tried, and lost (LAB.md).

    Attributes:
        name: `compact`, or `compact:FOLDER`.
        dim: length of a vector: that of the transformer and that of the bundled encoder.
        fingerprint: fingerprint of both.
        languages: those of the bundled encoder.
        max_tokens: maximum tokens of a text, in the transformer.
    """

    cheap = False

    def __init__(self, folder: str = "") -> None:
        """Load an ONNX folder written by `toolscout export-encoder`. Empty: that of the package `toolscout-compact`.

        Raises:
            MissingExtra: without the package, onnxruntime or tokenizers.
            ConfigError: if the folder is damaged.
            StoreError: if the bundled encoder is damaged.
        """
        self.name = f"compact:{folder}" if folder else "compact"
        place = folder or str(require(COMPACT_PACKAGE, "compact").FOLDER)
        self._transformer, self._static = OnnxEncoder(place), load_static()
        self.dim: int = self._transformer.dim + self._static.dim
        self.fingerprint: str = digest(
            COMPACT_FORMAT, [self._transformer.fingerprint, self._static.fingerprint, STATIC_SHARE, GLOSS_FORMAT]
        )
        self._glossary = Glossary(self._static)
        self.languages: frozenset[str] | None = self._static.languages
        self.max_tokens: int = self._transformer.max_tokens

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Encode texts as `(n, dim)` float32 unit rows. The transformer reads English only."""
        rows = np.zeros((len(texts), self.dim), dtype=np.float32)
        if kind == "query":
            foreign = np.array([is_foreign(text, self._static.pieces.is_word) for text in texts], dtype=bool)
            self._fill(rows, texts, np.flatnonzero(~foreign), np.flatnonzero(foreign), kind)
            return rows
        split = self._transformer.dim
        english = [self._glossary.translate(text) if is_plainly_foreign(text) else text for text in texts]
        rows[:, :split] = self._transformer.encode(english, kind)
        rows[:, split:] = self._static.encode(texts, kind)
        rows[:, :split] *= np.float32(np.sqrt(1 - STATIC_SHARE))
        rows[:, split:] *= np.float32(np.sqrt(STATIC_SHARE))
        return unit_rows(rows)

    def _fill(self, rows: Vectors, texts: Sequence[str], first: Places, second: Places, kind: Kind) -> None:
        """Write the transformer's vectors of some texts and the bundled encoder's of others into their parts."""
        split = self._transformer.dim
        rows[first, :split] = self._transformer.encode([texts[place] for place in first], kind)
        rows[second, split:] = self._static.encode([texts[place] for place in second], kind)


@functools.lru_cache(maxsize=1)
def load_compact(folder: str = "") -> CompactEncoder:
    """Return the encoder of the installed package, or over a folder. A process loads it once.

    Raises:
        MissingExtra, ConfigError, StoreError: as `CompactEncoder`.
    """
    return CompactEncoder(folder)
