"""Cross-encoders as ONNX graphs, which read a query and a tool together; they need onnxruntime and tokenizers."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array
from toolscout.encoders.encoder import split_identifiers
from toolscout.encoders.onnx import GRAPH_FILE, TOKENIZER_FILE
from toolscout.errors import ConfigError, require
from toolscout.types import digest

__all__ = ["INPUTS", "OUTPUT", "OnnxPairs", "write"]

INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
OUTPUT: Final = "logits"
MAX_CHARS_PER_PIECE: Final = 12  # characters beyond this many per token are dropped before tokenising
PAIR_BATCH: Final = 8

Feed = dict[str, npt.NDArray[np.int64]]


class OnnxPairs:
    """Runs an exported cross-encoder on one thread.

    Attributes:
        length: maximum tokens of a pair, special tokens included.
        fingerprint: fingerprint of graph, tokenizer and length.
    """

    def __init__(self, folder: Path, length: int) -> None:
        """Load a folder written by `write`.

        Raises:
            MissingExtra: without onnxruntime or tokenizers.
            ConfigError: if the folder holds no cross-encoder that can be loaded.
        """
        runtime: Any = require("onnxruntime", "onnx")
        tokenizers: Any = require("tokenizers", "onnx")
        self.length = length
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        try:
            graph, pieces = (folder / GRAPH_FILE).read_bytes(), (folder / TOKENIZER_FILE).read_bytes()
            self._session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
            self._tokenizer = tokenizers.Tokenizer.from_buffer(pieces)
        except Exception as error:  # neither library has a base class for what it raises here
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"The cross-encoder in {folder} cannot be loaded: {reason}") from None
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(length, strategy="longest_first")
        self._inputs = [node.name for node in self._session.get_inputs()]
        hashes = [hashlib.blake2b(content, digest_size=16).hexdigest() for content in (graph, pieces)]
        self.fingerprint = digest("pairs/1", [*hashes, length])

    def logits(self, query: str, texts: Sequence[str], deadline: float | None = None) -> npt.NDArray[np.float64]:
        """Score how much the query needs each tool, as logits in the order of the texts.

        Args:
            query: the request.
            texts: texts of the tools.
            deadline: on the clock of `time.monotonic`. No batch starts that would probably end after it, so there may
                be fewer logits than texts.
        """
        pairs = self.pieces(query, texts)
        parts: list[Array] = []
        started = time.monotonic()
        for start in range(0, len(pairs), PAIR_BATCH):
            now = time.monotonic()
            if deadline is not None and now + (now - started) / max(1, len(parts)) >= deadline:
                break
            parts.append(self._session.run(None, self.feed(pairs[start : start + PAIR_BATCH]))[0])
        return np.concatenate(parts).astype(np.float64) if parts else np.empty(0)

    def pieces(self, query: str, texts: Sequence[str]) -> list[Any]:
        """Tokenise the query with each text; a pair that is too long loses tokens of the longer text."""
        max_chars = MAX_CHARS_PER_PIECE * self.length
        first = split_identifiers(query[:max_chars])
        encodings: list[Any] = self._tokenizer.encode_batch(
            [(first, split_identifiers(text[:max_chars])) for text in texts]
        )
        return encodings

    def feed(self, pairs: Sequence[Any]) -> Feed:
        """Build the graph's input for one batch, `(batch, longest)` int64 each, padded on the right."""
        shape = (len(pairs), max(len(pair.ids) for pair in pairs))
        inputs = {name: np.zeros(shape, dtype=np.int64) for name in INPUTS}
        for row, pair in enumerate(pairs):
            n = len(pair.ids)
            inputs["input_ids"][row, :n] = pair.ids
            inputs["attention_mask"][row, :n] = 1
            inputs["token_type_ids"][row, :n] = pair.type_ids
        return {name: inputs[name] for name in self._inputs}


def write(folder: Path, graph: Any, tokenizer: str) -> None:
    """Write a graph and its tokenizer to a folder; the graph maps `INPUTS`, or the first two, to one logit a pair."""
    folder.mkdir(exist_ok=True)
    (folder / GRAPH_FILE).write_bytes(graph.SerializeToString(deterministic=True))
    (folder / TOKENIZER_FILE).write_text(tokenizer, encoding="utf-8")
