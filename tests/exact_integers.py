"""ONNX Runtime as an exact oracle for products of 8-bit integers, on every CPU.

On x86-64 CPUs without VNNI, ONNX Runtime multiplies uint8 by int8 with ``vpmaddubsw``, which saturates sums of two
products at 16 bits. Products of uint8 by uint8 are exact there: both operands are widened to 16 bits first. So every
int8 tensor of a model, and its zero point, becomes uint8 by adding 128, which does not change the values
``(q - zero) * scale``. int8 inputs are shifted before a run, int8 outputs after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

__all__ = ["CONTRACTIONS", "ExactSession", "multiplies_bytes"]

SHIFT = 128
CONTRACTIONS: Mapping[str, Sequence[tuple[int, int, int | None]]] = {
    "QLinearConv": [(0, 2, 1), (3, 5, 4)],
    "QLinearMatMul": [(0, 2, 1), (3, 5, 4)],
    "ConvInteger": [(0, 2, None), (1, 3, None)],
    "MatMulInteger": [(0, 2, None), (1, 3, None)],
    "MatMulIntegerToFloat": [(0, 4, 2), (1, 5, 3)],
    "DynamicQuantizeMatMul": [(1, 3, 2)],
    "DynamicQuantizeLSTM": [(1, 9, 8), (2, 11, 10)],
    "QAttention": [(0, 6, 3), (1, 7, 4)],
    "QGemm": [(0, 2, 1), (3, 5, 4)],
}
"""Operators that multiply 8-bit integers: the positions of each operand, its zero point and its scale.

A missing zero point of a shifted operand becomes 128 with the scale's lengths, or a scalar where there is no scale."""
QUANTISERS = {"DequantizeLinear": [(0, 2, 1)], "QuantizeLinear": []}
RESULTS = {"QuantizeLinear": 2, "QLinearConv": 7, "QLinearMatMul": 7, "QGemm": 8}
"""The position of the zero point that has the type of the result."""
MOVES = frozenset("Concat Flatten Gather Identity MaxPool Reshape Slice Squeeze Transpose Unsqueeze".split())
"""Operators that move or compare values of their first input, so that a shift passes through them."""


class ExactSession:
    """An ONNX Runtime session of a model whose int8 tensors are uint8.

    Args:
        model: any model. If int8 tensors meet operators that this module does not know, `ValueError` is raised.
        options: ONNX Runtime's session options.
    """

    def __init__(self, model: onnx.ModelProto, options: Any = None) -> None:
        import onnxruntime

        self._shift = _Shift(model)
        self._session = onnxruntime.InferenceSession(
            self._shift.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the model's results with the types that the model declares."""
        shift = self._shift.names
        given = {name: _shifted(x) if name in shift else x for name, x in feeds.items()}
        names = [output.name for output in self._shift.model.graph.output]
        results = zip(names, self._session.run(None, given))
        return [np.asarray(y.astype(np.int16) - SHIFT, np.int8) if name in shift else y for name, y in results]


class _Shift:
    """A copy of a model with int8 tensors shifted to uint8; ``names`` are the names of the shifted tensors."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        graph = self.model.graph
        self.names: set[str] = set()
        self._lens: dict[str, Sequence[int]] = {}
        for tensor in graph.initializer:
            self._lens[tensor.name] = tuple(tensor.dims)
            if tensor.data_type == TensorProto.INT8:
                self.names.add(tensor.name)
                tensor.CopyFrom(numpy_helper.from_array(_shifted(numpy_helper.to_array(tensor)), tensor.name))
        for info in graph.input:
            self._lens[info.name] = [d.dim_value for d in info.type.tensor_type.shape.dim]
            self._retype(info)
        for node in graph.node:
            self._convert(node)
        for info in [*graph.output, *graph.value_info]:
            self._retype(info)

    def _retype(self, info: onnx.ValueInfoProto) -> None:
        kind = info.type.tensor_type
        if kind.elem_type == TensorProto.INT8:
            kind.elem_type = TensorProto.UINT8
            self.names.add(info.name)

    def _convert(self, node: onnx.NodeProto) -> None:
        """Give the zero points of shifted operands, and note shifted results."""
        read = [name for name in node.input if name in self.names]
        operands = {**CONTRACTIONS, **QUANTISERS}.get(node.op_type)
        if operands is None:
            if read and node.op_type not in MOVES:
                raise ValueError(f"{node.op_type} of int8 tensors has no exact form here")
            if node.op_type in MOVES and node.input[0] in self.names:
                self.names.add(node.output[0])
            return
        for operand, zero, scale in operands:
            if len(node.input) > operand and node.input[operand] in self.names:
                self._give_zero(node, zero, scale)
        typed = RESULTS.get(node.op_type)
        if typed is not None and len(node.input) > typed and node.input[typed] in self.names:
            self.names.add(node.output[0])

    def _give_zero(self, node: onnx.NodeProto, zero: int, scale: int | None) -> None:
        node.input.extend([""] * (zero + 1 - len(node.input)))
        if not node.input[zero]:
            lens = () if scale is None else self._lens[node.input[scale]]
            node.input[zero] = f"zero_of_{node.output[0]}_{zero}"
            self.model.graph.initializer.append(
                numpy_helper.from_array(np.full(lens, SHIFT, np.uint8), node.input[zero])
            )


def _shifted(x: np.ndarray) -> np.ndarray:
    return np.asarray(x.astype(np.int16) + SHIFT, np.uint8)


def multiplies_bytes(model: onnx.ModelProto) -> bool:
    """Return whether a model has an operator that multiplies 8-bit integers."""
    return any(node.op_type in CONTRACTIONS for node in model.graph.node)
