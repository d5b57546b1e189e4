"""Exports a sentence-transformers model to a folder that `toolscout.encoders.onnx` runs."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from toolscout.encoders.onnx import (
    GRAPH_FILE,
    ONNX_FORMAT,
    TOKENIZER_FILE,
    OnnxEncoder,
    file_hash,
    fingerprint,
)
from toolscout.encoders.onnx import (
    OnnxManifest as Manifest,
)
from toolscout.encoders.prompts import Prompts, split_prompts
from toolscout.errors import ConfigError, require
from toolscout_lab.encoders.onnx_int8 import to_int8
from toolscout_lab.encoders.transformer import (
    MINILM,
    TOOL_PROMPT_NAMES,
    TransformerEncoder,
    find_prompt,
)

__all__ = ["EXPORT_PACKAGES", "export", "read_licence", "trace_to_onnx"]

EXPORT_PACKAGES: Final = ("onnx", "onnxscript", "onnxruntime")
ONNX_OPSET: Final = 18
MAX_EXPORT_PARAMETERS: Final = 450_000_000  # a graph in one file holds less than 2 GB
MIN_EXPORT_COSINE: Final = 0.9999
EXPORT_TEST_TEXTS: Final = (
    "",
    "?!",
    "WILL IT RAIN in São Paulo tomorrow?",
    "get_user_by_id",
    "明天会下雨吗",
    "Переведи этот текст",
    "a tool that finds tools " * 400,
)


def export(name: str, folder: Path, *, int8: bool = False) -> OnnxEncoder:
    """Export a model to a folder and check that the export gives the same vectors.

    Args:
        name: a name that `TransformerEncoder` accepts: `minilm`, a folder, or a name on the Hugging Face hub.
        folder: a new or empty folder.
        int8: quantise to 8-bit integers: a quarter of the size, two to three times as fast, nearly the same vectors.

    Raises:
        MissingExtra: without the packages of the extra `train`.
        ConfigError: if there is no such model, it cannot be exported, or the folder is not empty.
    """
    for package in EXPORT_PACKAGES:
        require(package, "train")
    folder = folder.expanduser().resolve()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"--out: expected a new or an empty folder, found {folder}: choose another, or empty it")
    source = TransformerEncoder(name)
    graph = _build_graph(source)
    texts = _load_test_texts()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as temporary:
        exported = _write(source, graph, Path(temporary) / "float32", "float32")
        agreement = _find_lowest_cosine(source, exported, texts)
        if agreement < MIN_EXPORT_COSINE:
            raise ConfigError(
                f"The encoder {name!r} cannot be exported: the export's vectors differ from the model's (cosine "
                f"{agreement:.4f}, at least {MIN_EXPORT_COSINE} is required). Use the model itself."
            )
        if int8:
            to_int8(graph, [exported.inputs([pieces]) for pieces in exported.pieces(texts, "tool")])
            exported = _write(source, graph, Path(temporary) / "int8", "int8")
            agreement = _find_lowest_cosine(source, exported, texts)
        manifest = msgspec.structs.replace(exported.manifest, agreement=agreement)
        written = Path(temporary) / manifest.quantisation
        _write_manifest(manifest, written)
        written.chmod(0o755)
        written.replace(folder)
    return OnnxEncoder(folder)


def _load_test_texts() -> list[str]:
    """Load the texts for comparing export and model: special cases, and the tools of the bundled catalogue."""
    lines = files("toolscout").joinpath("data/everyday.jsonl").read_bytes().splitlines()
    tools = [msgspec.json.decode(line) for line in lines]
    return [*EXPORT_TEST_TEXTS, *(f"{tool['name']}: {tool['description']}" for tool in tools)]


def _find_lowest_cosine(source: TransformerEncoder, exported: OnnxEncoder, texts: Sequence[str]) -> float:
    """Return the lowest cosine between the vectors of model and export, over queries and tools."""
    if source.dim != exported.dim:
        return 0.0
    kinds: tuple[Literal["query", "tool"], ...] = ("query", "tool")
    cosines = [np.sum(source.encode(texts, kind) * exported.encode(texts, kind), axis=1) for kind in kinds]
    return round(float(np.min(cosines)), 6)


# --- the graph --------------------------------------------------------------------------------------------------------


def _build_graph(source: TransformerEncoder) -> Any:
    """Build an ONNX model from `input_ids` and `attention_mask`, (batch, pieces) int64, to `vectors`, (batch, dim)."""
    import torch

    model = source.model.float().to("cpu")
    if sum(parameter.numel() for parameter in model.parameters()) > MAX_EXPORT_PARAMETERS:
        raise ConfigError(
            f"The encoder {source.name!r} cannot be exported: it has more than {MAX_EXPORT_PARAMETERS:,} parameters. "
            "Use the model itself."
        )

    class SentenceModel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model({"input_ids": input_ids, "attention_mask": attention_mask})["sentence_embedding"]

    return trace_to_onnx(SentenceModel(), ("input_ids", "attention_mask"), "vectors")


def trace_to_onnx(module: Any, inputs: Sequence[str], output: str) -> Any:
    """Convert a torch module to an ONNX model with `inputs`, each (batch, pieces) int64, and one output."""
    import torch

    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("pieces")}
    with _silence_exporter():
        program: Any = torch.onnx.export(
            module.eval(),
            tuple(torch.ones((2, 9), dtype=torch.int64) for _ in inputs),
            input_names=list(inputs),
            output_names=[output],
            dynamic_shapes=dict.fromkeys(inputs, axes),
            opset_version=ONNX_OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    graph = program.model_proto
    entries = [graph, graph.graph]
    for part in ("node", "initializer", "value_info", "input", "output"):
        entries.extend(getattr(graph.graph, part))
    for entry in entries:  # these fields name the source file of each operator, and would change the hash
        entry.ClearField("metadata_props")
        entry.ClearField("doc_string")
    return graph


@contextlib.contextmanager
def _silence_exporter() -> Iterator[None]:
    """Silence the exporter's warnings about its internals; `export` checks the result afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# --- the folder -------------------------------------------------------------------------------------------------------


def _write(
    source: TransformerEncoder, graph: Any, folder: Path, quantisation: Literal["float32", "int8"]
) -> OnnxEncoder:
    """Write an encoder as a folder: graph, tokenizer, and a manifest whose fingerprint covers both."""
    model = source.model
    contents = {
        GRAPH_FILE: graph.SerializeToString(deterministic=True),
        TOKENIZER_FILE: _serialize_tokenizer(source).encode(),
    }
    hashes = {name: file_hash(content) for name, content in contents.items()}
    prompts = Prompts(query=find_prompt(model, "query"), tool=find_prompt(model, *TOOL_PROMPT_NAMES))
    limit, pad = int(model.max_seq_length), int(model.tokenizer.pad_token_id)
    manifest = Manifest(
        format=ONNX_FORMAT,
        source=_public_name(source.name),
        source_fingerprint=source.fingerprint,
        licence=read_licence(str(model.tokenizer.name_or_path)),
        dim=graph.graph.output[0].type.tensor_type.shape.dim[1].dim_value,
        pooling=", ".join(str(part.pooling_mode) for part in model if hasattr(part, "pooling_mode")) or "of the model",
        max_length=limit,
        pad=pad,
        prompts=prompts,
        quantisation=quantisation,
        agreement=0.0,
        files=hashes,
        versions={name: importlib.metadata.version(name) for name in ("torch", "sentence-transformers", "onnx")},
        fingerprint=fingerprint(hashes, prompts, limit, pad),
    )
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    _write_manifest(manifest, folder)
    return OnnxEncoder(folder)


def _public_name(name: str) -> str:
    """Return the model's public name; the path of a folder on this machine means nothing elsewhere."""
    name, _ = split_prompts(name)
    if name == "minilm":
        return MINILM
    return Path(name).resolve().name if Path(name).is_dir() else name


def _serialize_tokenizer(source: TransformerEncoder) -> str:
    """Serialise the tokenizer of a model, or say why the encoder cannot be exported."""
    backend = getattr(source.model.tokenizer, "backend_tokenizer", None)
    if backend is None or source.model.max_seq_length is None or source.model.tokenizer.pad_token_id is None:
        raise ConfigError(
            f"The encoder {source.name!r} cannot be exported: its tokenizer is not of the tokenizers library, or has "
            "no maximum length or no padding token. Use the model itself."
        )
    return str(backend.to_str())


def read_licence(location: str) -> str:
    """Read the licence from the model card in the folder or in the hub's cache."""
    hub: Any = require("huggingface_hub", "train")
    card = Path(location, "README.md") if Path(location).is_dir() else hub.try_to_load_from_cache(location, "README.md")
    try:
        licence = (hub.metadata_load(Path(card)) or {}).get("license")
    except Exception:  # no card, or one that is not YAML; the libraries raise many kinds of errors
        licence = None
    return str(licence or "not stated")


def _write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write `manifest.json` and the model card."""
    (folder / "manifest.json").write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    text = ONNX_CARD.format(
        **msgspec.structs.asdict(manifest),
        kind="8-bit whole numbers" if manifest.quantisation == "int8" else "32-bit floats",
        query=manifest.prompts.query,
        tool=manifest.prompts.tool,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


ONNX_CARD: Final = """# {source}, as an ONNX folder

A sentence encoder in {kind}: a text becomes {dim} numbers of length 1. Made by `toolscout export-encoder`; run it with
`pip install 'toolscout[onnx]'` and the encoder's name `onnx:` followed by the path of this folder.

| | |
|---|---|
| source | {source} |
| pooling | {pooling} |
| greatest length | {max_length} pieces |
| before a query | `{query}` |
| before a tool | `{tool}` |
| least cosine with the source, over the probe texts | {agreement} |
| fingerprint | `{fingerprint}` |

`model.onnx`: from pieces to vectors, pooling included. `tokenizer.json`: from texts to pieces. `manifest.json`: how it
was made, and the digests of the files, which are checked when it is loaded.

## Licence

The weights and the vocabulary are those of {source}, under its licence: {licence}. Keep to it when you pass this
folder on.
"""
