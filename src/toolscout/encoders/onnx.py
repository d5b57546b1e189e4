"""Sentence encoders in ONNX folders; they need only onnxruntime and tokenizers.

`toolscout export-encoder` writes such a folder (`toolscout_lab.encoders.onnx_export`).

The encoder `compact` is a small transformer tuned for tools, together with the bundled encoder (`static`). The package
`toolscout-compact` brings its ONNX folder. The transformer reads only English. So a tool's vector has two parts: the
first from the transformer, the second from the bundled encoder. A query in English has only the first part, and zeros
in the second; a query in another language has only the second, from the multilingual table. So one index serves all
languages. If a tool is described in another language, the transformer reads English words in the place of the foreign
ones (`toolscout.encoders.gloss`).
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.encoders.encoder import Kind, Vectors, split_identifiers, unit_rows
from toolscout.encoders.gloss import GLOSS_FORMAT, Glossary
from toolscout.encoders.languages import is_foreign, is_plainly_foreign
from toolscout.encoders.prompts import Prompts, choose_prompts, split_prompts
from toolscout.encoders.static import load_static
from toolscout.errors import ConfigError, require
from toolscout.settings import COMPACT_PACKAGE
from toolscout.types import digest

__all__ = [
    "COMPACT_FORMAT",
    "CompactEncoder",
    "OnnxEncoder",
    "OnnxManifest",
    "file_hash",
    "fingerprint",
    "load_compact",
]

ONNX_FORMAT: Final = "toolscout-onnx/1"
GRAPH_FILE: Final = "model.onnx"
TOKENIZER_FILE: Final = "tokenizer.json"
COMPACT_FORMAT: Final = "compact/2"
STATIC_SHARE: Final = 0.1  # of the squared length of a tool's vector in `compact`
ONNX_BATCH: Final = 8  # the fastest of 1 to 64 texts on two cores


class OnnxManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the folder's `manifest.json`.

    Attributes:
        format: `toolscout-onnx/1`.
        source: the exported model.
        source_fingerprint: its `TransformerEncoder.fingerprint`.
        licence: the model's licence, as its card states it.
        dim: length of a vector.
        pooling: how token vectors become one vector; the graph does this.
        max_length: maximum tokens of a text, special tokens included.
        pad: id of the padding token.
        prompts: the text put before each query or tool.
        quantisation: number format of weights and of the matrix products' inputs.
        agreement: lowest cosine between a vector and the source's, over the export's probe texts.
        files: file name → BLAKE2b of its content, 32 hex digits.
        versions: package name → version used for the export.
        fingerprint: fingerprint of everything that determines a text's vector.
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
    """Hash everything that determines a text's vector.

    Args:
        files: name → digest of each file of the encoder.
        prompts: the text put before each query or tool.
        max_length: maximum tokens of a text; the rest is cut off.
        pad: id of the padding token.
    """
    return digest(ONNX_FORMAT, [files, prompts, max_length, pad])


def file_hash(content: bytes) -> str:
    """Hash a file's content: BLAKE2b, 32 hex digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class OnnxEncoder:
    """An exported encoder. One text uses one thread; many texts use all cores.

    Attributes:
        dim: length of a vector.
        fingerprint: fingerprint of graph, tokenizer, prompts and maximum text length.
        manifest: the folder's manifest.
        prompts: of the manifest, or what the user wrote instead.
        languages: None, because the folder does not say what the model understands.
        max_tokens: maximum tokens of a text.
        short_weight: see `Encoder`; chosen on dev with two models (LAB.md of 2026-11-28).
    """

    cheap = False
    short_weight = 3.0
    languages: frozenset[str] | None = None

    def __init__(self, folder: str | Path) -> None:
        """Load a folder written by `toolscout export-encoder`.

        Args:
            folder: its path; `FOLDER?query_prompt=…&tool_prompt=…` replaces the prompts of the manifest.

        Raises:
            MissingExtra: without onnxruntime or tokenizers.
            ConfigError: if the folder has no exported encoder, or a damaged one.
        """
        runtime: Any = require("onnxruntime", "onnx")
        tokenizers: Any = require("tokenizers", "onnx")
        self.name = f"onnx:{folder}"
        path, written_prompts = split_prompts(str(folder))
        self._folder = Path(path)
        self.manifest = self._read_manifest()
        graph, tokenizer = (self._read_verified(name) for name in (GRAPH_FILE, TOKENIZER_FILE))
        self.dim: int = self.manifest.dim
        self.max_tokens: int = self.manifest.max_length
        self.prompts = choose_prompts(written_prompts, self.manifest.prompts)
        self.fingerprint: str = fingerprint(
            self.manifest.files, self.prompts, self.manifest.max_length, self.manifest.pad
        )
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        try:
            self._session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
            self._tokenizer = tokenizers.Tokenizer.from_str(tokenizer.decode())
        except Exception as error:  # neither library has a base class for what it raises here
            reason = " ".join(str(error).split())[:200]
            raise self._error(f"the graph or the tokenizer cannot be loaded: {reason}") from None
        inputs = sorted(node.name for node in self._session.get_inputs())
        outputs = [node.shape[-1] for node in self._session.get_outputs()]
        if inputs != ["attention_mask", "input_ids"] or outputs != [self.dim]:
            raise self._error(
                f"the graph maps {', '.join(inputs)} to {outputs}, not input_ids and attention_mask to vectors of "
                f"length {self.dim}"
            )
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.manifest.max_length)

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Encode texts as `(n, dim)` float32 unit rows, with the prompts that the model was trained with.

        Texts of similar length share a batch, which keeps padding small.
        """
        pieces = self.pieces(texts, kind)
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        # Rows of texts with tokens, the shortest first; a text without tokens keeps a row of zeros.
        order = sorted((row for row, ids in enumerate(pieces) if ids), key=lambda row: len(pieces[row]))
        batches = [order[start : start + ONNX_BATCH] for start in range(0, len(order), ONNX_BATCH)]

        def run(rows: list[int]) -> None:
            [vectors[rows]] = self._session.run(None, self.inputs([pieces[row] for row in rows]))

        if len(batches) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(run, batches))
        else:
            for rows in batches:
                run(rows)
        return unit_rows(vectors)

    def pieces(self, texts: Sequence[str], kind: Kind) -> list[list[int]]:
        """Return the token ids of each text with its prompt, truncated to `max_length` ids."""
        prompt = self.prompts.query if kind == "query" else self.prompts.tool
        prompted = [prompt + split_identifiers(text) for text in texts]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(prompted)]

    def inputs(self, pieces: Sequence[Sequence[int]]) -> dict[str, npt.NDArray[np.int64]]:
        """Build the graph's input for one batch: ids and mask, `(batch, longest)` int64, padded on the right.

        Args:
            pieces: token ids of each text.
        """
        ids = np.full((len(pieces), max(map(len, pieces))), self.manifest.pad, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(pieces):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def _read_manifest(self) -> OnnxManifest:
        """Read `manifest.json`.

        Raises:
            ConfigError: if it cannot be read, has another format, or does not fit its own fingerprint.
        """
        try:
            content = (self._folder / "manifest.json").read_bytes()
        except OSError:
            raise self._error("manifest.json cannot be read") from None
        try:
            fields = msgspec.json.decode(content)
            if not isinstance(fields, dict) or fields.get("format") != ONNX_FORMAT:
                stated_format = fields.get("format") if isinstance(fields, dict) else None
                raise self._error(f"manifest.json has the format {stated_format}, not {ONNX_FORMAT}")
            manifest = msgspec.convert(fields, OnnxManifest)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._error(f"manifest.json has an error: {error}") from None
        computed = fingerprint(manifest.files, manifest.prompts, manifest.max_length, manifest.pad)
        if computed != manifest.fingerprint:
            raise self._error(f"manifest.json states the fingerprint {manifest.fingerprint}, but it is {computed}")
        return manifest

    def _read_verified(self, name: str) -> bytes:
        """Return the content of a file of the folder.

        Raises:
            ConfigError: if it cannot be read, or does not have the digest that the manifest states.
        """
        stated = self.manifest.files.get(name)
        try:
            content = (self._folder / name).read_bytes()
        except OSError:
            raise self._error(f"{name} cannot be read") from None
        computed = file_hash(content)
        if computed != stated:
            raise self._error(f"{name} has the digest {computed}, but manifest.json states {stated}")
        return content

    def _error(self, problem: str) -> ConfigError:
        """Make the error that says why the folder cannot be used; the caller raises it."""
        return ConfigError(
            f"The encoder {self.name!r} cannot be used: {problem}. "
            f"Export it again:  toolscout export-encoder MODEL --out FOLDER"
        )


class CompactEncoder:
    """Encodes tools with a transformer and with the bundled encoder, and queries with the one that reads them.

    To use both for English queries too was tried, and ranked worse (LAB.md).

    Attributes:
        name: `compact`, or `compact:FOLDER`.
        dim: length of a vector: the sum of the transformer's and the bundled encoder's.
        fingerprint: fingerprint of both.
        languages: of the bundled encoder.
        max_tokens: maximum tokens of a text, in the transformer.
    """

    cheap = False
    short_weight = OnnxEncoder.short_weight

    def __init__(self, folder: str = "") -> None:
        """Load an ONNX folder written by `toolscout export-encoder`.

        Args:
            folder: its path; "": the folder of the package `toolscout-compact`.

        Raises:
            MissingExtra: without the package, onnxruntime or tokenizers.
            ConfigError: if the folder is damaged.
            StoreError: if the bundled encoder is damaged.
        """
        self.name = f"compact:{folder}" if folder else "compact"
        path = folder or str(require(COMPACT_PACKAGE, "compact").FOLDER)
        self._transformer, self._static = OnnxEncoder(path), load_static()
        self.dim: int = self._transformer.dim + self._static.dim
        self.fingerprint: str = digest(
            COMPACT_FORMAT, [self._transformer.fingerprint, self._static.fingerprint, STATIC_SHARE, GLOSS_FORMAT]
        )
        self._glossary = Glossary(self._static)
        self.languages: frozenset[str] | None = self._static.languages
        self.max_tokens: int = self._transformer.max_tokens

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Encode texts as `(n, dim)` float32 unit rows: first the transformer's part, then the bundled encoder's."""
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        split = self._transformer.dim
        if kind == "query":
            are_foreign = [is_foreign(text, self._static.pieces.is_word) for text in texts]
            english_rows = [row for row, is_row_foreign in enumerate(are_foreign) if not is_row_foreign]
            foreign_rows = [row for row, is_row_foreign in enumerate(are_foreign) if is_row_foreign]
            vectors[english_rows, :split] = self._transformer.encode([texts[row] for row in english_rows], kind)
            vectors[foreign_rows, split:] = self._static.encode([texts[row] for row in foreign_rows], kind)
            return vectors
        english_texts = [self._glossary.translate(text) if is_plainly_foreign(text) else text for text in texts]
        vectors[:, :split] = self._transformer.encode(english_texts, kind) * np.float32(np.sqrt(1 - STATIC_SHARE))
        vectors[:, split:] = self._static.encode(texts, kind) * np.float32(np.sqrt(STATIC_SHARE))
        return unit_rows(vectors)


@functools.lru_cache(maxsize=1)
def load_compact(folder: str = "") -> CompactEncoder:
    """Return the encoder `compact`, or `compact:FOLDER`; see `CompactEncoder`. A process loads the last one once.

    Raises:
        MissingExtra, ConfigError, StoreError: as `CompactEncoder`.
    """
    return CompactEncoder(folder)
