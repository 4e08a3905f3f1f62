"""`NodeList`: writes ONNX nodes, for operators that are read as a graph of other operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike
    from onnx import GraphProto, NodeProto


class NodeList:
    """Nodes and initializers of a graph that is being written.

    Its nodes have the same meaning in every operator set from 11 on, since they are read in the model's.
    """

    def __init__(self, prefix: str, outer: NodeList | None = None) -> None:
        """Begin a graph.

        Args:
            prefix: beginning of the names of values, which no other value has.
            outer: graph that encloses this graph, whose names this graph does not use again.
        """
        self._prefix = prefix
        self._count: list[int] = [0] if outer is None else outer._count
        self.nodes: list[NodeProto] = []
        self._constants: dict[str, np.ndarray] = {}
        self._included: list[GraphProto] = []

    def fresh(self, hint: str = "") -> str:
        """Return a name that no value has."""
        self._count[0] += 1
        return f"{self._prefix}{self._count[0]}{hint}"

    def constant(self, value: ArrayLike, dtype: DTypeLike = np.int64) -> str:
        """Return the name of an initializer."""
        name = self.fresh()
        self._constants[name] = np.asarray(value, dtype)
        return name

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with a single result, and return the result's name."""
        return self.ops(op_type, 1, *inputs, **attributes)[0]

    def ops(self, op_type: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node of ``count`` results, and return their names."""
        from onnx import helper

        outputs = [self.fresh() for _ in range(count)]
        self.nodes.append(helper.make_node(op_type, inputs, outputs, **attributes))
        return outputs

    def rename(self, x: str, name: str) -> None:
        """Give a value a second name."""
        from onnx import helper

        self.nodes.append(helper.make_node("Identity", [x], [name]))

    def include(self, graph: GraphProto) -> None:
        """Add the nodes and initializers of another graph, whose names of values stay."""
        self.nodes.extend(graph.node)
        self._included.append(graph)

    def graph(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> GraphProto:
        """Return the graph."""
        from onnx import GraphProto, numpy_helper

        graph = GraphProto(name=name, node=self.nodes)
        for listed, names in ((graph.input, inputs), (graph.output, outputs)):
            for each in names:
                listed.add(name=each)
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in self._constants.items())
        for other in self._included:
            graph.initializer.extend(other.initializer)
            graph.sparse_initializer.extend(other.sparse_initializer)
        return graph

    def cast(self, x: str, dtype: DTypeLike) -> str:
        """Convert to an element type."""
        from onnx import helper

        return self.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def shaped(self, x: str, *dims: str | int) -> str:
        """Reshape to lengths: numbers, or names of int64 vectors of one element."""
        parts = [self.constant([d]) if isinstance(d, int) else d for d in dims]
        return self.op("Reshape", x, parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0))

    def length(self, x: str, axis: int) -> str:
        """Return a length as an int64 vector with one element."""
        return self.op("Gather", self.op("Shape", x), self.constant([axis]))

    def filled(self, value: ArrayLike, dtype: DTypeLike, *lengths: str) -> str:
        """Return a tensor of equal elements; lengths are int64 vectors of one element."""
        from onnx import numpy_helper

        lens = self.op("Concat", *lengths, axis=0)
        return self.op("ConstantOfShape", lens, value=numpy_helper.from_array(np.array([value], dtype)))

    def count(self, limit: str) -> str:
        """Return 0, 1, ... ``limit - 1`` as int64, for a one-element int64 vector."""
        return self.op("Range", self.constant(0), self.scalar(limit), self.constant(1))

    def size(self, x: str) -> str:
        """Return a number, 0 or larger, as an int64 vector of one element that is a length.

        Lengths that follow from it are expressions of one symbol, so programs have one plan for all its values.
        """
        return self.length(self.count(self.cast(self.shaped(x, 1), np.int64)), 0)

    def smaller(self, x: str, y: str) -> str:
        """Return the smaller of two integers, elementwise; Min had no integers before operator set 12."""
        return self.op("Where", self.op("Less", x, y), x, y)

    def larger(self, x: str, y: str) -> str:
        """Return the larger of two integers, elementwise."""
        return self.op("Where", self.op("Less", x, y), y, x)

    def scalar(self, x: str) -> str:
        """Reshape a one-element tensor to a scalar."""
        return self.op("Reshape", x, self.constant(np.zeros(0)))
