"""One model of the corpus, and how a batch size becomes a symbol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import mgx_numba

__all__ = ["OPEN", "Item", "parsed", "with_open_batch"]

OPEN = mgx_numba.dynamic_dimension(0, 4096)
"""The range of lengths that have names in a model."""


@dataclass(frozen=True)
class Item:
    """A model.

    Attributes:
        name: for readers.
        make: returns the program, which is compiled as a clone for each machine and number of threads.
        threads: numbers of threads to plan for.
        options: of ``compile``.
        feeds: inputs of a run, which makes plans for its lengths; none: the program is only compiled.
        family: items of a family are planned by one process, for they share a model that takes time to make.
        narrow: it has elements of 16 bits or fewer, for which the machines of a group (`Machine.like`) differ.
    """

    name: str
    make: Callable[[], Any]
    threads: tuple[int, ...] = (1, 4)
    options: Mapping[str, Any] = field(default_factory=dict)
    feeds: Mapping[str, np.ndarray] | None = None
    family: str = ""
    narrow: bool = False


def parsed(model: onnx.ModelProto | str) -> Any:
    """Return the program of a model or of a model file; lengths that have names are in the range `OPEN`."""
    return mgx_numba.parse_onnx(model, default_dyn_dim_value=OPEN)


def with_open_batch(model: onnx.ModelProto, name: str = "batch") -> onnx.ModelProto:
    """Return a copy whose inputs have a batch size with a name; Reshape copies it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    weights |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    for info in (*graph.input, *graph.output):
        dims = info.type.tensor_type.shape.dim
        if info.name not in weights and dims and dims[0].dim_value == 1:
            dims[0].dim_param = name
    for node in graph.node:
        if node.op_type == "Reshape" and node.input[1] in weights:
            target = numpy_helper.to_array(weights[node.input[1]]).copy()
            if target.size > 1 and target[0] == 1:
                target[0] = 0
                weights[node.input[1]].CopyFrom(numpy_helper.from_array(target, node.input[1]))
    del graph.value_info[:]
    return copy
