"""Writes a sentence-transformers model as a folder that `toolscout.encoders.onnx` runs."""

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

from toolscout.encoders.onnx import FORMAT, GRAPH, TOKENIZER, Manifest, OnnxEncoder, Prompts, file_hash, fingerprint
from toolscout.encoders.onnx_int8 import to_int8
from toolscout.encoders.transformer import MINILM, TransformerEncoder
from toolscout.errors import ConfigError, require

__all__ = ["export", "traced"]

OPSET: Final = 18
MOST_PARAMETERS: Final = 450_000_000  # a graph in one file holds less than 2 GB
AGREEMENT: Final = 0.9999
PROBES: Final = (
    "",
    "?!",
    "WILL IT RAIN in São Paulo tomorrow?",
    "get_user_by_id",
    "明天会下雨吗",
    "Переведи этот текст",
    "a tool that finds tools " * 400,
)


def export(name: str, folder: Path, *, int8: bool = False) -> OnnxEncoder:
    """Write the model as a folder, and check that it answers as the model does.

    Args:
        name: as `TransformerEncoder` takes it: `minilm`, a folder, or a name on the Hugging Face hub.
        folder: where to; must not exist, or be empty.
        int8: whole numbers instead of floats: a quarter of the size, two to three times as fast, nearly the same
            vectors.

    Raises:
        MissingExtra: without the packages of the extra `train`.
        ConfigError: if there is no such model, it cannot be exported, or the folder holds something.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require(package, "train")
    folder = folder.expanduser().resolve()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"--out: expected a new or an empty folder, found {folder}: choose another, or empty it")
    source = TransformerEncoder(name)
    graph = _graph(source)
    texts = _texts()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as held:
        made = _write(source, graph, Path(held) / "float32", "float32")
        agreement = _agreement(source, made, texts)
        if agreement < AGREEMENT:
            raise ConfigError(
                f"encoder {name!r}: expected an export that answers as the model does (cosine {AGREEMENT}), "
                f"found a cosine of {agreement:.4f}: this kind of model cannot be exported, use it as it is"
            )
        if int8:
            to_int8(graph, [made.inputs([pieces]) for pieces in made.pieces(texts, "tool")])
            made = _write(source, graph, Path(held) / "int8", "int8")
            agreement = _agreement(source, made, texts)
        manifest = msgspec.structs.replace(made.manifest, agreement=agreement)
        place = Path(held) / manifest.quantisation
        _describe(manifest, place)
        place.chmod(0o755)
        place.replace(folder)
    return OnnxEncoder(folder)


def _texts() -> list[str]:
    """Probes, and the tools of the bundled catalogue."""
    lines = files("toolscout").joinpath("data/everyday.jsonl").read_bytes().splitlines()
    tools = [msgspec.json.decode(line) for line in lines]
    return [*PROBES, *(f"{tool['name']}: {tool['description']}" for tool in tools)]


def _agreement(source: TransformerEncoder, made: OnnxEncoder, texts: Sequence[str]) -> float:
    """The least cosine between the vectors of both, queries and tools."""
    if source.dim != made.dim:
        return 0.0
    kinds: tuple[Literal["query", "tool"], ...] = ("query", "tool")
    cosines = [np.sum(source.encode(texts, kind) * made.encode(texts, kind), axis=1) for kind in kinds]
    return round(float(np.min(cosines)), 6)


# --- the graph --------------------------------------------------------------------------------------------------------


def _graph(source: TransformerEncoder) -> Any:
    """`input_ids` and `attention_mask`, (batch, pieces) int64 → `vectors`, (batch, dim) float32: an ONNX model."""
    import torch

    model = source.model.float().to("cpu")
    if sum(each.numel() for each in model.parameters()) > MOST_PARAMETERS:
        raise ConfigError(
            f"encoder {source.name!r}: expected at most {MOST_PARAMETERS:,} parameters, found more: use it as it is"
        )

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model({"input_ids": input_ids, "attention_mask": attention_mask})["sentence_embedding"]

    return traced(Whole(), ("input_ids", "attention_mask"), "vectors")


def traced(module: Any, inputs: Sequence[str], output: str) -> Any:
    """A torch module from `inputs`, each (batch, pieces) int64, to one output: an ONNX model."""
    import torch

    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("pieces")}
    with _quietly():
        program: Any = torch.onnx.export(
            module.eval(),
            tuple(torch.ones((2, 9), dtype=torch.int64) for _ in inputs),
            input_names=list(inputs),
            output_names=[output],
            dynamic_shapes=dict.fromkeys(inputs, axes),
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    graph = program.model_proto
    for owner in (graph, graph.graph):  # where in which file each operator came from
        owner.ClearField("metadata_props")
        owner.ClearField("doc_string")
    for part in ("node", "initializer", "value_info", "input", "output"):
        for each in getattr(graph.graph, part):
            each.ClearField("metadata_props")
            each.ClearField("doc_string")
    return graph


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's remarks on its own insides; that its work is right is checked afterwards."""
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
    model = source.model
    contents = {GRAPH: graph.SerializeToString(deterministic=True), TOKENIZER: _tokenizer(source).encode()}
    hashes = {name: file_hash(content) for name, content in contents.items()}
    prompts = Prompts(query=_prompt(model, "query"), tool=_prompt(model, "document", "passage", "corpus"))
    limit, pad = int(model.max_seq_length), int(model.tokenizer.pad_token_id)
    manifest = Manifest(
        format=FORMAT,
        source=_title(source.name),
        source_fingerprint=source.fingerprint,
        licence=_licence(str(model.tokenizer.name_or_path)),
        dim=graph.graph.output[0].type.tensor_type.shape.dim[1].dim_value,
        pooling=", ".join(str(each.pooling_mode) for each in model if hasattr(each, "pooling_mode")) or "of the model",
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
    _describe(manifest, folder)
    return OnnxEncoder(folder)


def _title(name: str) -> str:
    """A model's name in the world: a folder's place on this machine means nothing elsewhere."""
    if name == "minilm":
        return MINILM
    return Path(name).resolve().name if Path(name).is_dir() else name


def _tokenizer(source: TransformerEncoder) -> str:
    backend = getattr(source.model.tokenizer, "backend_tokenizer", None)
    if backend is None or source.model.max_seq_length is None or source.model.tokenizer.pad_token_id is None:
        raise ConfigError(
            f"encoder {source.name!r}: expected a tokenizer of the tokenizers library with a greatest length and a "
            "piece to fill up with, found another: use the model as it is"
        )
    return str(backend.to_str())


def _prompt(model: Any, *names: str) -> str:
    """The first of these prompts that the model has, or its default."""
    prompts: dict[str, str] = model.prompts
    return next((prompts[name] for name in (*names, model.default_prompt_name) if name in prompts), "")


def _licence(place: str) -> str:
    """What the model's card says: a folder's, or the one that the hub's client keeps."""
    hub: Any = require("huggingface_hub", "train")
    card = Path(place, "README.md") if Path(place).is_dir() else hub.try_to_load_from_cache(place, "README.md")
    try:
        found = (hub.metadata_load(Path(card)) or {}).get("license")
    except Exception:  # no card, or one that is not YAML: many kinds of error, one meaning
        found = None
    return str(found or "not stated")


def _describe(manifest: Manifest, folder: Path) -> None:
    """Write `manifest.json` and the card."""
    (folder / "manifest.json").write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    text = CARD.format(
        **msgspec.structs.asdict(manifest),
        kind="8-bit whole numbers" if manifest.quantisation == "int8" else "32-bit floats",
        query=manifest.prompts.query,
        tool=manifest.prompts.tool,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


CARD: Final = """# {source}, as an ONNX folder

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
