"""Cross-encoders as ONNX graphs: a query and a tool read together, by onnxruntime and tokenizers alone."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolscout.encoders import split_identifiers
from toolscout.encoders.onnx import GRAPH, TOKENIZER
from toolscout.errors import ConfigError, require
from toolscout.types import digest

__all__ = ["INPUTS", "OUTPUT", "OnnxPairs", "write"]

INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
OUTPUT: Final = "logits"
LETTERS: Final = 12  # of a text, for each piece that is read: the rest is never looked at
_BATCH: Final = 8

Feed = dict[str, npt.NDArray[np.int64]]


class OnnxPairs:
    """An exported cross-encoder, on one thread.

    Attributes:
        length: pieces that are read of a pair, the marks of its beginning, middle and end included.
        fingerprint: of graph, tokenizer and length.
    """

    def __init__(self, folder: Path, length: int) -> None:
        """Read the folder that `write` made.

        Raises:
            MissingExtra: without onnxruntime or tokenizers.
            ConfigError: if it holds none.
        """
        runtime: Any = require("onnxruntime", "onnx")
        tokenizers: Any = require("tokenizers", "onnx")
        self.length = length
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        try:
            graph, pieces = (folder / GRAPH).read_bytes(), (folder / TOKENIZER).read_bytes()
            self._session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
            self._tokenizer = tokenizers.Tokenizer.from_buffer(pieces)
        except Exception as error:  # neither library has a base class for what it raises here
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"{folder}: expected a cross-encoder, found none that can be loaded: {reason}") from None
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(length, strategy="longest_first")
        self._inputs = [each.name for each in self._session.get_inputs()]
        marks = [hashlib.blake2b(each, digest_size=16).hexdigest() for each in (graph, pieces)]
        self.fingerprint = digest("pairs/1", [*marks, length])

    def logits(self, query: str, texts: Sequence[str], deadline: float | None = None) -> npt.NDArray[np.float64]:
        """How much the query needs each tool, as a logit, in the order of the texts.

        Args:
            query: the request.
            texts: of the tools.
            deadline: on the clock of `time.monotonic`; no batch is begun that would probably end after it, so there
                may be fewer logits than texts.
        """
        pairs = self.pieces(query, texts)
        found: list[npt.NDArray[Any]] = []
        started = time.monotonic()
        for at in range(0, len(pairs), _BATCH):
            now = time.monotonic()
            if deadline is not None and now + (now - started) / max(1, len(found)) >= deadline:
                break
            found.append(self._session.run(None, self.feed(pairs[at : at + _BATCH]))[0])
        return np.concatenate(found).astype(np.float64) if found else np.empty(0)

    def pieces(self, query: str, texts: Sequence[str]) -> list[Any]:
        """Each text behind the query, cut where the longer of both is too long."""
        asked = split_identifiers(query[: LETTERS * self.length])
        whole = [(asked, split_identifiers(text[: LETTERS * self.length])) for text in texts]
        found: list[Any] = self._tokenizer.encode_batch(whole)
        return found

    def feed(self, pairs: Sequence[Any]) -> Feed:
        """What the graph takes for one batch, `(batch, longest)` int64 each, filled up on the right."""
        shape = (len(pairs), max(len(each.ids) for each in pairs))
        whole = {name: np.zeros(shape, dtype=np.int64) for name in INPUTS}
        for row, each in enumerate(pairs):
            n = len(each.ids)
            whole["input_ids"][row, :n] = each.ids
            whole["attention_mask"][row, :n] = 1
            whole["token_type_ids"][row, :n] = each.type_ids
        return {name: whole[name] for name in self._inputs}


def write(folder: Path, graph: Any, tokenizer: str) -> None:
    """Put a graph from `INPUTS`, or the first two of them, to one logit a pair, and its tokenizer, into a folder."""
    folder.mkdir(exist_ok=True)
    (folder / GRAPH).write_bytes(graph.SerializeToString(deterministic=True))
    (folder / TOKENIZER).write_text(tokenizer, encoding="utf-8")
