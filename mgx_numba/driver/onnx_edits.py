"""Edits of an ONNX model before parsing: other results, and Reshape operands for another batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

from ..errors import OptionError, ParseError


def read_proto(path: str) -> ModelProto:
    """Return the ``ModelProto`` of a file, with its external data.

    Raises:
        ParseError: the file cannot be read.
    """
    import onnx

    try:
        return onnx.load(path)
    except Exception as error:  # protobuf's errors have no common base
        raise ParseError(f"{path}: {error}") from error


def set_outputs(model: ModelProto, names: list[str]) -> None:
    """Replace the results of a model.

    Raises:
        OptionError: the main graph has no value of a given name.
    """
    import onnx

    graph = model.graph
    known = {name for node in graph.node for name in node.output} | {i.name for i in graph.input}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise OptionError(f"--output-names: the model has no value {', '.join(unknown)}")
    declared = {v.name: v for v in [*graph.output, *graph.value_info]}
    results = [declared.get(name) or onnx.ValueInfoProto(name=name) for name in names]
    copies = [onnx.ValueInfoProto.FromString(r.SerializeToString()) for r in results]
    del graph.output[:]
    graph.output.extend(copies)


def set_batch_of_reshapes(model: ModelProto, batch: int, size: int) -> None:
    """Replace the leading length ``batch`` by ``size`` in constant shapes of Reshape nodes that depend on inputs.

    The caller must verify that the replaced lengths were batch sizes.
    """
    from onnx import numpy_helper

    graph = model.graph
    shapes = {tensor.name: tensor for tensor in graph.initializer}
    varying = {info.name for info in graph.input} - set(shapes)
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            shapes[node.output[0]] = node.attribute[0].t
        if not varying.isdisjoint(node.input):
            varying.update(node.output)
    for number, node in enumerate(graph.node):
        if node.op_type != "Reshape" or len(node.input) < 2 or node.input[0] not in varying:
            continue
        shape = numpy_helper.to_array(shapes[node.input[1]]).copy() if node.input[1] in shapes else None
        if shape is not None and shape.size > 1 and shape[0] == batch:
            shape[0] = size
            node.input[1] = f"{node.input[1]}:reshape{number}:{size}"
            graph.initializer.append(numpy_helper.from_array(shape, node.input[1]))
