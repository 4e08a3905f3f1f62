"""Writer of a session's model as an ONNX file, with its data inside or in a separate data file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import FormatError, OptionError
from ..graph.atomic_file import replace_file

_ALIGNMENT = 64
"""Alignment (bytes) of data in the file: a cache line, at least the size of any element type."""
_EXTERNAL = 1
"""``TensorProto.EXTERNAL``, ONNX's number."""

if TYPE_CHECKING:
    from onnx import GraphProto, TensorProto

    from ..frontends.onnx.model import Model


def write_onnx(
    model: Model,
    path: str,
    initializers: Mapping[str, np.ndarray],
    lens: Mapping[str, int],
    data_file: str = "",
    smallest: int = 1024,
) -> None:
    """Write a model as one ONNX file, or with its large initializers in a separate data file.

    Args:
        model: the model as it was read; it is not changed.
        path: path of the file.
        initializers: arrays that replace initializers of the main graph, by name.
        lens: lengths of symbolic dimensions of inputs, by symbol.
        data_file: name of the data file, in the same folder, for initializers of the main graph; "" for none.
        smallest: least size (bytes) of an initializer in the data file. The default is ONNX Runtime's.

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
    moved = _moved(proto.graph, data_file, smallest) if data_file else []
    try:
        data = proto.SerializeToString()
    except Exception as error:  # exception classes differ among implementations of protobuf
        raise OptionError(
            f"{path}: the model does not fit one ONNX file ({error}); the name of an .mxr file keeps it"
        ) from None
    if data_file:
        _write(os.path.join(os.path.dirname(path), data_file), moved)
    _write(path, [data])


def _moved(graph: GraphProto, name: str, smallest: int) -> list[bytes]:
    """Make large initializers refer to the data file ``name``; return the pieces of that file's content."""
    pieces: list[bytes] = []
    offset = 0
    for tensor in graph.initializer:
        if len(tensor.raw_data) < smallest:
            continue
        pieces += [tensor.raw_data, bytes(-len(tensor.raw_data) % _ALIGNMENT)]
        for key, value in (("location", name), ("offset", offset), ("length", len(tensor.raw_data))):
            tensor.external_data.add(key=key, value=str(value))
        offset += len(pieces[-2]) + len(pieces[-1])
        tensor.ClearField("raw_data")
        tensor.data_location = _EXTERNAL
    return pieces


def _write(path: str, pieces: Sequence[bytes]) -> None:
    try:
        replace_file(path, lambda write: [write(piece) for piece in pieces])
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from None


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield every tensor of a graph and its subgraphs."""
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
