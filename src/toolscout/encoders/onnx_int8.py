"""Turns the graph of an encoder into whole numbers of 8 bits, in three steps of standard ONNX operators.

* *Evening.* A few channels of the activations are far larger than the rest and would take the whole range of 8 bits.
  Each channel is divided by a factor, and its row of the weights multiplied by it; the factor is the root of the
  channel's peak, over some texts, by the peak of its weights.
* *Weights* are rounded once, to ±85 with one scale a column; the word table to ±127 with one a word.
* *Activations* are rounded as they come, with one scale a piece of the text. So, other than with one scale a tensor, a
  text's vector does not depend on its neighbours in the batch.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from toolscout.errors import require

__all__ = ["to_int8"]

TOP: Final = 127.0
WEIGHT_TOP: Final = 85.0  # more would overflow: x86 without VNNI adds two products of 255 or less into 16 bits
ZERO: Final = 128  # what stands for 0 among the activations, which are written unsigned
SMALLEST: Final = 1e-6

Feed: TypeAlias = Mapping[str, npt.NDArray[np.int64]]


def to_int8(graph: Any, feeds: Sequence[Feed]) -> None:
    """Change the graph, an ONNX model in float32, in place: its matrix products and its word table.

    Args:
        graph: the model.
        feeds: inputs of the model, by name: what the peaks of the activations are looked for in.
    """
    _even_out(graph, feeds)
    _quantise(graph)


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


def _peaks(graph: Any, feeds: Sequence[Feed], names: list[str]) -> dict[str, npt.NDArray[Any]]:
    """Greatest magnitude of each channel of the activations, `(channels,)`, over some inputs."""
    import onnx

    onnxruntime: Any = require("onnxruntime", "onnx")
    watched = onnx.ModelProto()
    watched.CopyFrom(graph)
    watched.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names
    )
    session = onnxruntime.InferenceSession(watched.SerializeToString(), providers=["CPUExecutionProvider"])
    peaks: dict[str, npt.NDArray[Any]] = {}
    for feed in feeds:
        for name, values in zip(names, session.run(names, dict(feed)), strict=True):
            top = np.abs(values).reshape(-1, values.shape[-1]).max(axis=0)
            peaks[name] = np.maximum(peaks.get(name, top), top)
    return peaks


def _even_out(graph: Any, feeds: Sequence[Feed]) -> None:
    """Bring the channels of what flows into the products nearer to each other; the products stay the same."""
    from onnx import helper
    from onnx.numpy_helper import from_array, to_array

    weights = _matrices(graph)
    uses = collections.Counter(name for node in graph.graph.node for name in node.input)
    products = {
        name: users for name, users in _products(graph).items() if all(uses[node.input[1]] == 1 for node in users)
    }
    peaks = _peaks(graph, feeds, list(products))
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

    def rounded(name: str, axis: int, top: float) -> None:
        values = to_array(weights[name])
        scales = np.maximum(np.abs(values).max(axis=axis, keepdims=True), SMALLEST) / top
        added[f"{name}.int8"] = np.rint(values / scales).astype(np.int8)
        added[f"{name}.scales"] = scales.astype(np.float32)

    def step(kind: str, inputs: list[str], output: str, **settings: Any) -> Any:
        return helper.make_node(kind, inputs, [output], **settings)

    for name, users in _products(graph).items():
        for node in users:
            key, out = node.input[1], node.output[0]
            rounded(key, axis=0, top=WEIGHT_TOP)
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
        rounded(key, axis=1, top=TOP)
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
