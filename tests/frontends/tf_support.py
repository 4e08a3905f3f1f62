"""Small TensorFlow graphs, written with the package's own messages, and their results on a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mgx_numba.api.program import program as public_program
from mgx_numba.api.target import get_target
from mgx_numba.frontends.tf import parse_tf
from mgx_numba.frontends.tf.model import message

NUMBERS = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "int64": 9, "bool": 10, "bfloat16": 14,
    "uint16": 17, "float16": 19, "uint32": 22, "uint64": 23,
}  # fmt: skip
"""DataType of TensorFlow's types.proto."""


class Kind:
    """A DataType as an attribute's value."""

    def __init__(self, dtype: Any) -> None:
        self.number = NUMBERS[np.dtype(dtype).name]


def set_attr(node: Any, name: str, value: Any) -> None:
    """Give a node an attribute of the kind that the value has in Python."""
    entry = node.attr.add(key=name)
    if isinstance(value, Kind):
        entry.value.type = value.number
    elif isinstance(value, bool):
        entry.value.b = value
    elif isinstance(value, int):
        entry.value.i = value
    elif isinstance(value, float):
        entry.value.f = value
    elif isinstance(value, str):
        entry.value.s = value.encode()
    elif isinstance(value, np.ndarray):
        entry.value.tensor.CopyFrom(tensor(value))
    elif value is None:
        entry.value.shape.unknown_rank = True
    elif isinstance(value, tuple):
        entry.value.shape.SetInParent()
        for d in value:
            entry.value.shape.dim.add(size=d)
    else:
        entry.value.list.i.extend(value)


def tensor(array: np.ndarray) -> Any:
    """An array as a TensorProto."""
    proto = message("TensorProto")(dtype=Kind(array.dtype).number, tensor_content=array.tobytes())
    for n in array.shape:
        proto.tensor_shape.dim.add(size=n)
    return proto


class Graph:
    """A GraphDef that grows node by node."""

    def __init__(self) -> None:
        self.proto = message("GraphDef")()

    def add(self, op: str, name: str, inputs: Sequence[str] = (), into: Any = None, **attributes: Any) -> str:
        """A node, in the graph or in ``into`` (a function's ``node_def``); its name is returned."""
        node = (self.proto.node if into is None else into).add(name=name, op=op, input=list(inputs))
        for key, value in attributes.items():
            set_attr(node, key, value)
        return name

    def input(self, name: str, dims: Sequence[int] | None, dtype: Any = np.float32) -> str:
        """A placeholder."""
        return self.add("Placeholder", name, dtype=Kind(dtype), shape=None if dims is None else tuple(dims))

    def const(self, name: str, value: Any) -> str:
        """A constant."""
        array = np.asarray(value)
        array = array.astype(np.int32) if array.dtype == np.int64 else array
        return self.add("Const", name, dtype=Kind(array.dtype), value=array)

    def parse(self, **options: Any) -> Any:
        """The program, with ``is_nhwc`` off unless it is said."""
        return parse_tf(self.proto.SerializeToString(), **{"is_nhwc": False, **options})


def run(program: Any, feeds: Mapping[str, np.ndarray], target: str) -> list[np.ndarray]:
    """Results of a program on a target."""
    wrapped = public_program.wrap(program).clone()
    wrapped.compile(get_target(target))
    return [np.asarray(r) for r in wrapped.run(dict(feeds))]
