"""Quantises the graph of an encoder to 8-bit integers with standard ONNX operators, in three steps.

* *Smoothing.* A few channels of the activations are far larger than the rest and would use up the 8-bit range. Each
  channel is divided by a factor and its row of the weights multiplied by it. The factor is the square root of the
  channel's peak, over some texts, divided by the peak of its weights.
* *Weights* are rounded once: matrices to ±85 with one scale per column, the word table to ±127 with one per word.
* *Activations* are rounded at run time with one scale per token. With one scale per tensor, a text's vector would
  depend on the other texts of its batch.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array
from toolscout.errors import require

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

__all__ = ["read_int8", "to_int8"]

MAX_INT8: Final = 127.0
MAX_INT8_WEIGHT: Final = 85.0  # more would overflow: x86 without VNNI adds two products of 255 or less into 16 bits
UINT8_ZERO_POINT: Final = 128  # activations are unsigned; this value means 0
MIN_SCALE: Final = 1e-6

Feed: TypeAlias = Mapping[str, npt.NDArray[np.int64]]


def to_int8(graph: ModelProto, feeds: Sequence[Feed]) -> None:
    """Quantise the matrix products and the word table of a float32 ONNX model, in place.

    Args:
        graph: the model.
        feeds: inputs by name, for measuring the peaks of the activations.
    """
    _smooth_channels(graph, feeds)
    _quantise(graph)


def read_int8(graph: ModelProto) -> dict[str, npt.NDArray[Any]]:
    """Return the weights of an encoder that `to_int8` quantised, float32, by their names in the encoder.

    The products' weights have lost their names; each takes that of the bias that is added to its product. Weights come
    as `torch.nn.Linear` has them, (out, in), without the smoothing; what rounding has lost stays lost.
    """
    from onnx import TensorProto
    from onnx.numpy_helper import to_array

    values = {tensor.name: to_array(tensor) for tensor in graph.graph.initializer}
    biases = {
        other: bias
        for node in graph.graph.node
        if node.op_type == "Add"
        for bias, other in (node.input, reversed(node.input))
        if bias in values and bias.endswith(".bias")
    }
    weights = {
        tensor.name: values[tensor.name]
        for tensor in graph.graph.initializer
        if tensor.data_type == TensorProto.FLOAT and tensor.name.endswith((".weight", ".bias"))
    }
    for node in graph.graph.node:
        if node.op_type == "MatMulInteger":
            key, out = node.input[1].removesuffix(".int8"), node.output[0].removesuffix(".whole")
            matrix = values[f"{key}.int8"] * values[f"{key}.scales"]
            evened = f"{node.input[0].removesuffix('.even.uint8')}.even_by"
            matrix = matrix * values[evened][:, None] if evened in values else matrix
            weights[f"{biases[out].removesuffix('bias')}weight"] = np.ascontiguousarray(matrix.T)
    for name in values:
        if name.endswith(".weight.int8"):
            key = name.removesuffix(".int8")
            weights[key] = values[name] * values[f"{key}.scales"]
    return weights


def _find_matrices(graph: ModelProto) -> dict[str, TensorProto]:
    """Find the weights with two axes, by name."""
    from onnx import TensorProto

    tensors = graph.graph.initializer
    return {
        tensor.name: tensor for tensor in tensors if len(tensor.dims) == 2 and tensor.data_type == TensorProto.FLOAT
    }


def _find_products(graph: ModelProto) -> dict[str, list[NodeProto]]:
    """Find the nodes that multiply an activation by a weight matrix, by the activation's name."""
    matrices = _find_matrices(graph)
    products: dict[str, list[NodeProto]] = {}
    for node in graph.graph.node:
        if node.op_type == "MatMul" and node.input[1] in matrices:
            products.setdefault(node.input[0], []).append(node)
    return products


def _measure_peaks(graph: ModelProto, feeds: Sequence[Feed], names: list[str]) -> dict[str, Array]:
    """Measure the largest magnitude of each channel of the activations, `(channels,)`, over some inputs."""
    import onnx

    onnxruntime: Any = require("onnxruntime", "onnx")
    watched = onnx.ModelProto()
    watched.CopyFrom(graph)
    watched.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names
    )
    session = onnxruntime.InferenceSession(watched.SerializeToString(), providers=["CPUExecutionProvider"])
    peaks: dict[str, Array] = {}
    for feed in feeds:
        for name, values in zip(names, session.run(names, dict(feed)), strict=True):
            top = np.abs(values).reshape(-1, values.shape[-1]).max(axis=0)
            peaks[name] = np.maximum(peaks.get(name, top), top)
    return peaks


def _smooth_channels(graph: ModelProto, feeds: Sequence[Feed]) -> None:
    """Make the channels that enter the products more alike; the products stay the same."""
    from onnx import helper
    from onnx.numpy_helper import from_array, to_array

    weights = _find_matrices(graph)
    uses = collections.Counter(name for node in graph.graph.node for name in node.input)
    products = {
        name: users for name, users in _find_products(graph).items() if all(uses[node.input[1]] == 1 for node in users)
    }
    peaks = _measure_peaks(graph, feeds, list(products))
    nodes = {}
    for name, users in products.items():
        matrices = {node.input[1]: to_array(weights[node.input[1]]) for node in users}
        largest = np.max([np.abs(matrix).max(axis=1) for matrix in matrices.values()], axis=0)
        factors = np.sqrt(np.maximum(peaks[name], MIN_SCALE) / np.maximum(largest, MIN_SCALE)).astype(np.float32)
        for key, matrix in matrices.items():
            weights[key].CopyFrom(from_array(matrix * factors[:, None], key))
        graph.graph.initializer.append(from_array(1 / factors, f"{name}.even_by"))
        nodes[name] = helper.make_node("Mul", [name, f"{name}.even_by"], [f"{name}.even"])
        for node in users:
            node.input[0] = f"{name}.even"
    _replace(graph, {users[0].output[0]: [nodes[name], users[0]] for name, users in products.items()})


def _quantise(graph: ModelProto) -> None:
    """Convert the weights of the products, their inputs and the word table to 8-bit integers."""
    from onnx import TensorProto, helper
    from onnx.numpy_helper import from_array, to_array

    weights = _find_matrices(graph)
    added = {
        "last": np.array([-1]),
        "top": np.float32(MAX_INT8),
        "smallest": np.float32(MIN_SCALE),
        "half_up": np.float32(UINT8_ZERO_POINT + 0.5),
        "zero": np.uint8(UINT8_ZERO_POINT),
    }
    changed: dict[str, list[NodeProto]] = {}

    def add_rounded(name: str, axis: int, top: float) -> None:
        """Add a weight as int8, with one scale for each row or column: `top` is the largest rounded value."""
        values = to_array(weights[name])
        scales = np.maximum(np.abs(values).max(axis=axis, keepdims=True), MIN_SCALE) / top
        added[f"{name}.int8"] = np.rint(values / scales).astype(np.int8)
        added[f"{name}.scales"] = scales.astype(np.float32)

    def step(kind: str, inputs: list[str], output: str, **settings: Any) -> NodeProto:
        return helper.make_node(kind, inputs, [output], **settings)

    for name, users in _find_products(graph).items():
        for node in users:
            key, out = node.input[1], node.output[0]
            add_rounded(key, axis=0, top=MAX_INT8_WEIGHT)
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
        if node.op_type != "Gather" or node.input[0] not in weights or any(attribute.i for attribute in node.attribute):
            continue
        key, ids, out = node.input[0], node.input[1], node.output[0]
        add_rounded(key, axis=1, top=MAX_INT8)
        changed[out] = [
            step("Gather", [f"{key}.int8", ids], f"{out}.int8"),
            step("Cast", [f"{out}.int8"], f"{out}.float", to=TensorProto.FLOAT),
            step("Gather", [f"{key}.scales", ids], f"{out}.scales"),
            step("Mul", [f"{out}.float", f"{out}.scales"], out),
        ]
    _replace(graph, changed)
    used = {name for node in graph.graph.node for name in node.input}
    initializers = [tensor for tensor in graph.graph.initializer if tensor.name in used]
    initializers += [from_array(np.asarray(values), name) for name, values in added.items()]
    del graph.graph.initializer[:], graph.graph.value_info[:]
    graph.graph.initializer.extend(initializers)


def _replace(graph: ModelProto, changed: dict[str, list[NodeProto]]) -> None:
    """Replace nodes, found by the name of their output, with other nodes."""
    nodes = [new for node in graph.graph.node for new in changed.get(node.output[0], [node])]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
