"""Writes a sentence-transformers model as a folder that `toolscout.encoders.onnx` runs.

`int8` makes the matrix products and the word table whole numbers, in three steps of standard ONNX operators:

* *Evening.* A few channels of the activations are far larger than the rest and would take the whole range of 8 bits.
  Each channel is divided by a factor, and its row of the weights multiplied by it; the factor is the root of the
  channel's peak, over some texts, by the peak of its weights.
* *Weights* are rounded once, with one scale a column; the word table with one a word.
* *Activations* are rounded as they come, with one scale a piece of the text. So, other than with one scale a tensor, a
  text's vector does not depend on its neighbours in the batch.
"""

from __future__ import annotations

import collections
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
import numpy.typing as npt

from toolscout.encoders.onnx import FORMAT, GRAPH, TOKENIZER, Manifest, OnnxEncoder, Prompts, file_hash, fingerprint
from toolscout.encoders.transformer import MINILM, TransformerEncoder
from toolscout.errors import ConfigError, require

__all__ = ["export"]

OPSET: Final = 18
MOST_PARAMETERS: Final = 450_000_000  # a graph in one file holds less than 2 GB
AGREEMENT: Final = 0.9999
TOP: Final = 127.0  # greatest 8-bit whole number of either sign
ZERO: Final = 128  # what stands for 0 among the activations, which are written unsigned
SMALLEST: Final = 1e-6
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
            _even_out(graph, made, texts)
            _quantise(graph)
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

    ids, mask = torch.ones((2, 9), dtype=torch.int64), torch.ones((2, 9), dtype=torch.int64)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("pieces")}
    with _quietly():
        program: Any = torch.onnx.export(
            Whole().eval(),
            (ids, mask),
            input_names=["input_ids", "attention_mask"],
            output_names=["vectors"],
            dynamic_shapes={"input_ids": axes, "attention_mask": axes},
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


# --- whole numbers ----------------------------------------------------------------------------------------------------


def _matrices(graph: Any) -> dict[str, Any]:
    """Name → weights with two axes."""
    from onnx import TensorProto

    held = graph.graph.initializer
    return {each.name: each for each in held if len(each.dims) == 2 and each.data_type == TensorProto.FLOAT}


def _products(graph: Any) -> dict[str, list[Any]]:
    """Name of an activation → the nodes that multiply it by a weight matrix."""
    matrices = _matrices(graph)
    found: dict[str, list[Any]] = {}
    for node in graph.graph.node:
        if node.op_type == "MatMul" and node.input[1] in matrices:
            found.setdefault(node.input[0], []).append(node)
    return found


def _peaks(graph: Any, made: OnnxEncoder, texts: Sequence[str], names: list[str]) -> dict[str, npt.NDArray[Any]]:
    """Greatest magnitude of each channel of the activations, `(channels,)`, over some texts."""
    import onnx

    onnxruntime: Any = require("onnxruntime", "onnx")
    watched = onnx.ModelProto()
    watched.CopyFrom(graph)
    watched.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names
    )
    session = onnxruntime.InferenceSession(watched.SerializeToString(), providers=["CPUExecutionProvider"])
    peaks: dict[str, npt.NDArray[Any]] = {}
    for pieces in made.pieces(texts, "tool"):
        for name, values in zip(names, session.run(names, made.inputs([pieces])), strict=True):
            top = np.abs(values).reshape(-1, values.shape[-1]).max(axis=0)
            peaks[name] = np.maximum(peaks.get(name, top), top)
    return peaks


def _even_out(graph: Any, made: OnnxEncoder, texts: Sequence[str]) -> None:
    """Bring the channels of what flows into the products nearer to each other; the products stay the same."""
    from onnx import helper
    from onnx.numpy_helper import from_array, to_array

    weights = _matrices(graph)
    uses = collections.Counter(name for node in graph.graph.node for name in node.input)
    products = {
        name: users for name, users in _products(graph).items() if all(uses[node.input[1]] == 1 for node in users)
    }
    peaks = _peaks(graph, made, texts, list(products))
    evened = {}
    for name, users in products.items():
        matrices = {node.input[1]: to_array(weights[node.input[1]]) for node in users}
        largest = np.max([np.abs(matrix).max(axis=1) for matrix in matrices.values()], axis=0)
        factors = np.sqrt(np.maximum(peaks[name], SMALLEST) / np.maximum(largest, SMALLEST)).astype(np.float32)
        for key, matrix in matrices.items():
            weights[key].CopyFrom(from_array(matrix * factors[:, None], key))
        graph.graph.initializer.append(from_array(1 / factors, f"{name}.even_by"))
        evened[name] = helper.make_node("Mul", [name, f"{name}.even_by"], [f"{name}.even"])
        for node in users:
            node.input[0] = f"{name}.even"
    _replace(graph, {users[0].output[0]: [evened[name], users[0]] for name, users in products.items()})


def _quantise(graph: Any) -> None:
    """Whole numbers for the weights of the products, what they multiply, and the word table."""
    from onnx import TensorProto, helper
    from onnx.numpy_helper import from_array, to_array

    weights = _matrices(graph)
    added = {
        "last": np.array([-1]),
        "top": np.float32(TOP),
        "smallest": np.float32(SMALLEST),
        "half_up": np.float32(ZERO + 0.5),
        "zero": np.uint8(ZERO),
    }
    changed: dict[str, list[Any]] = {}

    def rounded(name: str, axis: int) -> None:
        values = to_array(weights[name])
        scales = np.maximum(np.abs(values).max(axis=axis, keepdims=True), SMALLEST) / TOP
        added[f"{name}.int8"] = np.rint(values / scales).astype(np.int8)
        added[f"{name}.scales"] = scales.astype(np.float32)

    def step(kind: str, inputs: list[str], output: str, **settings: Any) -> Any:
        return helper.make_node(kind, inputs, [output], **settings)

    for name, users in _products(graph).items():
        for node in users:
            key, out = node.input[1], node.output[0]
            rounded(key, axis=0)
            changed[out] = [
                step("MatMulInteger", [f"{name}.uint8", f"{key}.int8", "zero"], f"{out}.whole"),
                step("Cast", [f"{out}.whole"], f"{out}.float", to=TensorProto.FLOAT),
                step("Mul", [f"{out}.float", f"{key}.scales"], f"{out}.scaled"),
                step("Mul", [f"{out}.scaled", f"{name}.scales"], out),
            ]
        changed[users[0].output[0]][:0] = [
            step("Abs", [name], f"{name}.abs"),
            step("ReduceMax", [f"{name}.abs", "last"], f"{name}.peak"),
            step("Max", [f"{name}.peak", "smallest"], f"{name}.most"),
            step("Div", [f"{name}.most", "top"], f"{name}.scales"),
            step("Div", [name, f"{name}.scales"], f"{name}.ranged"),
            step("Add", [f"{name}.ranged", "half_up"], f"{name}.shifted"),
            step("Cast", [f"{name}.shifted"], f"{name}.uint8", to=TensorProto.UINT8),
        ]
    for node in graph.graph.node:
        if node.op_type != "Gather" or node.input[0] not in weights or any(each.i for each in node.attribute):
            continue
        key, ids, out = node.input[0], node.input[1], node.output[0]
        rounded(key, axis=1)
        changed[out] = [
            step("Gather", [f"{key}.int8", ids], f"{out}.int8"),
            step("Cast", [f"{out}.int8"], f"{out}.float", to=TensorProto.FLOAT),
            step("Gather", [f"{key}.scales", ids], f"{out}.scales"),
            step("Mul", [f"{out}.float", f"{out}.scales"], out),
        ]
    _replace(graph, changed)
    used = {name for node in graph.graph.node for name in node.input}
    kept = [each for each in graph.graph.initializer if each.name in used]
    kept += [from_array(np.asarray(values), name) for name, values in added.items()]
    del graph.graph.initializer[:], graph.graph.value_info[:]
    graph.graph.initializer.extend(kept)


def _replace(graph: Any, changed: dict[str, list[Any]]) -> None:
    """Put other nodes where the nodes with these outputs stand."""
    nodes = [new for node in graph.graph.node for new in changed.get(node.output[0], [node])]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)


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
        source=MINILM
        if source.name == "minilm"
        else Path(source.name).name
        if Path(source.name).is_dir()
        else source.name,
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
