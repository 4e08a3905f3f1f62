"""An ONNX graph under construction, named the way PyTorch's exporter names things.

Weights are random but scaled (He or Xavier) so that activations stay of order one, and seeded by the model's
name: the same name gives the same bytes on every machine with the same NumPy.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

FLOAT = int(TensorProto.FLOAT)
INT64 = int(TensorProto.INT64)


class GraphBuilder:
    """Collects nodes, weights, inputs and outputs; `model()` gives the finished ModelProto."""

    def __init__(self, name: str, opset: int) -> None:
        self.name = name
        self.opset = opset
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: dict[str, onnx.ValueInfoProto] = {}
        self._path: list[str] = []
        self._counts: Counter[str] = Counter()

    @contextmanager
    def scope(self, *parts: str) -> Iterator[None]:
        """Names of nodes and weights made inside carry `parts`, as module names do in an exported model."""
        self._path.extend(parts)
        try:
            yield
        finally:
            del self._path[len(self._path) - len(parts) :]

    def _unique(self, op_type: str) -> str:
        base = "/" + "/".join([*self._path, op_type])
        self._counts[base] += 1
        count = self._counts[base]
        return base if count == 1 else f"{base}_{count - 1}"

    def input(self, name: str, dims: Sequence[int], dtype: int = FLOAT) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, dtype, list(dims)))
        return name

    def output(self, name: str, value: str, dims: Sequence[int | str], dtype: int = FLOAT) -> None:
        """Makes `value` a graph output called `name`; a dimension known at run time only is a string."""
        self._outputs[value] = helper.make_tensor_value_info(name, dtype, list(dims))

    def nodes(self, op_type: str, *inputs: str, count: int, **attrs: Any) -> list[str]:
        """Adds a node with `count` outputs; an absent optional input is the empty string."""
        name = self._unique(op_type)
        outputs = [f"{name}_output_{i}" for i in range(count)]
        self._nodes.append(helper.make_node(op_type, list(inputs), outputs, name=name, **attrs))
        return outputs

    def node(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        return self.nodes(op_type, *inputs, count=1, **attrs)[0]

    def const(self, value: ArrayLike, dtype: Any = np.float32) -> str:
        """A Constant node, as the exporter writes for scalars, axes and shapes."""
        return self.node("Constant", value=numpy_helper.from_array(np.asarray(value, dtype=dtype)))

    def ints(self, *values: int) -> str:
        """A one-dimensional int64 Constant."""
        return self.const(values, np.int64)

    def weight(self, name: str, value: NDArray[Any]) -> str:
        """An initializer named by the scope; a name given twice in one scope is the same tensor."""
        full = ".".join([*self._path, name])
        if full not in self._weights:
            self._weights[full] = numpy_helper.from_array(np.ascontiguousarray(value), full)
        return full

    def normal(self, *dims: int, std: float, mean: float = 0.0) -> NDArray[np.float32]:
        values = self.rng.standard_normal(dims, dtype=np.float32)
        values *= np.float32(std)
        values += np.float32(mean)
        return values

    def uniform(self, *dims: int, low: float, high: float) -> NDArray[np.float32]:
        return self.rng.uniform(low, high, dims).astype(np.float32)

    def model(self) -> onnx.ModelProto:
        renamed = {value: info.name for value, info in self._outputs.items()}
        for node in self._nodes:
            for i, value in enumerate(node.input):
                node.input[i] = renamed.get(value, value)
            for i, value in enumerate(node.output):
                node.output[i] = renamed.get(value, value)
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, list(self._outputs.values()), list(self._weights.values())
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=helper.find_min_ir_version_for(opsets),
            producer_name="bench.models",
        )
