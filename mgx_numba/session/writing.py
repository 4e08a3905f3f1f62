"""Writing a model that a session has read as an ONNX file, with all its data inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..errors import FormatError, OptionError
from ..graph.atomic_file import replace_file

if TYPE_CHECKING:
    from onnx import GraphProto, TensorProto

    from ..frontends.onnx.model import Model

__all__ = ["write_onnx"]


def write_onnx(model: Model, path: str, initializers: Mapping[str, np.ndarray], lens: Mapping[str, int]) -> None:
    """Write a model as one ONNX file.

    Args:
        model: as it was read; it is not changed.
        path: of the file.
        initializers: arrays in place of initializers of the main graph, by name.
        lens: lengths of symbolic dimensions of inputs, by symbol.

    Raises:
        OptionError: the model is too large for one file.
        FormatError: the file cannot be written.
    """
    from onnx import numpy_helper

    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    for dim in (dim for info in proto.graph.input for dim in info.type.tensor_type.shape.dim):
        if dim.dim_param in lens:
            dim.dim_value = lens[dim.dim_param]
    for number, tensor in enumerate(proto.graph.initializer):
        given, raw = initializers.get(tensor.name), model.raw.get(number)
        if given is not None:
            tensor.CopyFrom(numpy_helper.from_array(given, tensor.name))
        elif raw is not None:
            tensor.raw_data = raw.tobytes()
    for tensor in _tensors(proto.graph):
        if tensor.data_location == 1:
            lengths = [int(entry.value) for entry in tensor.external_data if entry.key == "length"]
            content = model.external(tensor, lengths[0] if lengths else model.tensor(tensor).nbytes)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = content.tobytes()
    try:
        data = proto.SerializeToString()
    except Exception as error:  # of protobuf, whose classes differ among its implementations
        raise OptionError(
            f"{path}: the model does not fit one ONNX file ({error}); the name of an .mxr file keeps it"
        ) from None
    try:
        replace_file(path, lambda write: write(data))
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from None


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every tensor of a graph and its subgraphs."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _tensors(inner)
