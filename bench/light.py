"""The light_* models of the onnx package at other batch sizes, and with random weights.

All shipped weights have one value, made by a ConstantOfShape node: enough to time a model, but the outputs do not show
whether they are correct.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["randomize", "rebatch"]


def rebatch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """Return a copy of a batch-1 model for ``batch`` images: inputs, outputs and Reshape targets change."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for info in (*graph.input, *graph.output):
        dims = info.type.tensor_type.shape.dim
        if info.name not in weights and dims:
            dims[0].dim_value = batch
    for node in graph.node:
        if node.op_type == "Reshape" and node.input[1] in weights:
            target = numpy_helper.to_array(weights[node.input[1]]).copy()
            if target.size > 1 and target[0] == 1:
                target[0] = batch
                weights[node.input[1]].CopyFrom(numpy_helper.from_array(target, node.input[1]))
    del graph.value_info[:]
    return copy


def randomize(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose ConstantOfShape weights are random, scaled so that activations stay of order one.

    Matrices and filters are normal (He et al., 2015), variances and factors uniform around one, the rest small. Inputs
    of Softmax nodes become outputs too, since Softmax outputs hide most errors. The same model gets the same weights.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    factors = _factors(graph.node)
    rng = np.random.default_rng(zlib.crc32(graph.name.encode()))
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in constants:
            kept.append(node)
            continue
        lens = numpy_helper.to_array(constants[node.input[0]]).tolist()
        made = graph.initializer.add(name=node.output[0], dims=lens, data_type=onnx.TensorProto.FLOAT)
        made.raw_data = _weights(rng, lens, node.output[0] in factors).astype("<f4", copy=False).tobytes()
    del graph.node[:]
    graph.node.extend(kept)
    graph.output.extend(
        helper.make_tensor_value_info(node.input[0], onnx.TensorProto.FLOAT, None)
        for node in kept
        if node.op_type == "Softmax"
    )
    return copy


def _factors(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """Return the names of factors and divisors: scales and variances of normalisations, operands of products."""
    factors: set[str] = set()
    for node in nodes:
        if node.op_type == "BatchNormalization":
            factors.update((node.input[1], node.input[4]))
        elif node.op_type in ("Mul", "Div"):
            factors.update(node.input)
    for node in nodes:
        if node.op_type in ("Unsqueeze", "Reshape") and node.output[0] in factors:
            factors.add(node.input[0])
    return factors


def _weights(rng: np.random.Generator, lens: list[int], factor: bool) -> np.ndarray:
    if factor:
        return rng.uniform(0.75, 1.25, lens).astype(np.float32)
    values = rng.standard_normal(lens, dtype=np.float32)
    fan_in = int(np.prod(lens[1:])) if len(lens) > 1 else 100
    values *= np.float32(np.sqrt(2.0 / max(fan_in, 1)))
    return values
