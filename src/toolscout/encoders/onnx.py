"""Sentence encoders as ONNX folders: run by onnxruntime and tokenizers alone. `onnx_export` writes such folders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.encoders import Kind, Vectors, split_identifiers, unit_rows
from toolscout.errors import ConfigError, require
from toolscout.types import digest

__all__ = ["Manifest", "OnnxEncoder", "Prompts", "file_hash", "fingerprint"]

FORMAT: Final = "toolscout-onnx/1"
GRAPH: Final = "model.onnx"
TOKENIZER: Final = "tokenizer.json"
_BATCH: Final = 8  # of 1 to 64 texts, the most a second on two cores


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """What is put before each text of a kind."""

    query: str
    tool: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What `manifest.json` says of the folder.

    Attributes:
        format: `toolscout-onnx/1`.
        source: the model that was exported.
        source_fingerprint: its `TransformerEncoder.fingerprint`.
        licence: of the model, as its card states it.
        dim: length of a vector.
        pooling: how the vectors of a text's pieces become one; done inside the graph.
        max_length: pieces after which a text is cut, the marks of its beginning and end included.
        pad: id of the piece that fills up shorter texts of a batch.
        prompts: what is put before each text.
        quantisation: of the weights and of what flows through the matrix products.
        agreement: least cosine between a vector and the source's, over the export's probe texts.
        files: name → BLAKE2b of the content, 32 hex digits.
        versions: of the packages that made it.
        fingerprint: of all of these that decide on a text's vector.
    """

    format: str
    source: str
    source_fingerprint: str
    licence: str
    dim: int
    pooling: str
    max_length: Annotated[int, msgspec.Meta(ge=3)]
    pad: int
    prompts: Prompts
    quantisation: Literal["float32", "int8"]
    agreement: float
    files: dict[str, str]
    versions: dict[str, str]
    fingerprint: str


def fingerprint(files: dict[str, str], prompts: Prompts, max_length: int, pad: int) -> str:
    """Changes whenever the same text would give another vector."""
    return digest(FORMAT, [files, prompts, max_length, pad])


def file_hash(content: bytes) -> str:
    """BLAKE2b of a file's content, 32 hex digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class OnnxEncoder:
    """An exported encoder. One text takes one thread; many are encoded side by side on all cores.

    Attributes:
        dim: length of a vector.
        fingerprint: of the graph, the tokenizer, the prompts and the greatest length of a text.
        manifest: what the folder says of itself.
    """

    cheap = False

    def __init__(self, folder: str | Path) -> None:
        """Read a folder that `toolscout export-encoder` wrote.

        Raises:
            MissingExtra: without onnxruntime or tokenizers.
            ConfigError: if it is none, or damaged.
        """
        runtime: Any = require("onnxruntime", "onnx")
        tokenizers: Any = require("tokenizers", "onnx")
        self.name = f"onnx:{folder}"
        self._folder = Path(folder)
        self.manifest = self._read_manifest()
        graph, words = (self._read(name) for name in (GRAPH, TOKENIZER))
        self.dim: int = self.manifest.dim
        self.fingerprint: str = self.manifest.fingerprint
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        try:
            self._session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
            self._tokenizer = tokenizers.Tokenizer.from_str(words.decode())
        except Exception as error:  # neither library has a base class for what it raises here
            reason = " ".join(str(error).split())[:200]
            raise self._error("a graph and a tokenizer", f"what cannot be loaded: {reason}") from None
        inputs = sorted(each.name for each in self._session.get_inputs())
        outputs = [each.shape[-1] for each in self._session.get_outputs()]
        if inputs != ["attention_mask", "input_ids"] or outputs != [self.dim]:
            raise self._error(
                f"a graph from input_ids and attention_mask to vectors of length {self.dim}",
                f"{', '.join(inputs)} to {outputs}",
            )
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.manifest.max_length)

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Texts → `(n, dim)` float32 unit rows; queries and tools get the prompts that the model was trained with.

        Texts of like length share a batch, so that little is filled up.
        """
        pieces = self.pieces(texts, kind)
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        order = sorted((row for row, ids in enumerate(pieces) if ids), key=lambda row: len(pieces[row]))
        batches = [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]

        def run(rows: list[int]) -> None:
            vectors[rows] = self._session.run(None, self.inputs([pieces[row] for row in rows]))[0]

        if len(batches) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(run, batches))
        else:
            for rows in batches:
                run(rows)
        return unit_rows(vectors)

    def pieces(self, texts: Sequence[str], kind: Kind) -> list[list[int]]:
        """Ids of the pieces of each text, prompt included, cut to `max_length`."""
        prompt = self.manifest.prompts.query if kind == "query" else self.manifest.prompts.tool
        prompted = [prompt + split_identifiers(text) for text in texts]
        return [each.ids for each in self._tokenizer.encode_batch_fast(prompted)]

    def inputs(self, pieces: Sequence[Sequence[int]]) -> dict[str, npt.NDArray[np.int64]]:
        """What the graph takes for one batch: ids and mask, `(batch, longest)` int64, filled up on the right."""
        ids = np.full((len(pieces), max(map(len, pieces))), self.manifest.pad, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, found in enumerate(pieces):
            ids[row, : len(found)] = found
            mask[row, : len(found)] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def _read_manifest(self) -> Manifest:
        wanted = f"a folder of format {FORMAT}"
        try:
            content = (self._folder / "manifest.json").read_bytes()
        except OSError:
            raise self._error(wanted, "no manifest.json that can be read") from None
        try:
            found = msgspec.json.decode(content)
            if not isinstance(found, dict) or found.get("format") != FORMAT:
                form = found.get("format") if isinstance(found, dict) else None
                raise self._error(wanted, f"a manifest.json of format {form}")
            manifest = msgspec.convert(found, Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._error(wanted, f"a manifest.json with an error: {error}") from None
        made = fingerprint(manifest.files, manifest.prompts, manifest.max_length, manifest.pad)
        if made != manifest.fingerprint:
            raise self._error(f"a manifest.json with the fingerprint {manifest.fingerprint}", f"one with {made}")
        return manifest

    def _read(self, name: str) -> bytes:
        wanted = self.manifest.files.get(name)
        try:
            content = (self._folder / name).read_bytes()
        except OSError:
            raise self._error(f"the file {name}", "none that can be read") from None
        found = file_hash(content)
        if found != wanted:
            raise self._error(f"{name} with the digest {wanted}", f"one with {found}")
        return content

    def _error(self, expected: str, found: str) -> ConfigError:
        return ConfigError(
            f"encoder {self.name!r}: expected {expected}, found {found}: "
            f"write it anew with  toolscout export-encoder MODEL --out FOLDER"
        )
