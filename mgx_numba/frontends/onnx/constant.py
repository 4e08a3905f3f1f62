"""Constants, and values that depend on shapes only."""

from __future__ import annotations

import numpy as np

from ...errors import ParseError, UnsupportedError
from ...graph.folding import LARGEST
from ...graph.instruction import Instruction
from ...graph.length_arithmetic import array_of_lengths, has_symbolic_elements
from .builder import Builder, rank
from .node import Node
from .registry import MICROSOFT, register
from .tensors import element_count, ir_type


@register("Constant")
def constant(g: Builder, node: Node) -> Instruction:
    """Emit the value of the only attribute that is set."""
    given = [name for name in node.attributes if not name.startswith("__")]
    if len(given) != 1:
        raise ParseError(f"expected one attribute with a value, got {', '.join(given) or 'none'}")
    name = given[0]
    if name == "value":
        return g.parser.literal(g, node.get_tensor("value"))
    if name == "sparse_value":
        return g.literal(g.parser.model.sparse_tensor(node.get_sparse("sparse_value")))
    if name == "value_float":
        return g.literal(np.float32(node.get_float(name)))
    if name == "value_floats":
        return g.literal(node.float_array(name))
    if name == "value_int":
        return g.literal(np.int64(node.get_int(name)))
    if name == "value_ints":
        return g.literal(node.int_array(name))
    if name == "value_string":
        return g.literal(np.array(node.get_str(name), object))
    if name == "value_strings":
        return g.literal(np.array(node.get_strs(name), object))
    raise ParseError(f"attribute {name!r} holds no value")


def filled(g: Builder, value: np.ndarray, dims: list[int]) -> Instruction:
    """Emit one element broadcast to the lengths ``dims``, without materialising it."""
    element_count(dims, "the shape input")
    return g.broadcast(g.literal(value), dims) if dims else g.literal(value)


@register("ConstantOfShape")
def constant_of_shape(g: Builder, node: Node, shape: Instruction) -> Instruction:
    """Emit a tensor filled with ``value``, whose lengths are the (constant) input."""
    value: np.ndarray = np.zeros((), np.float32)
    if node.has("value"):
        tensor = g.parser.model.tensor(node.get_tensor("value"))
        if tensor.size != 1:
            raise ParseError(f"attribute 'value' has {tensor.size} elements, expected 1")
        value = tensor.reshape(())
    return filled(g, value, g.ints(shape, "shape"))


@register("ConstantFill")
def constant_fill(g: Builder, node: Node, shape: Instruction | None = None) -> Instruction:
    """Emit ConstantFill, Caffe2's predecessor of ConstantOfShape."""
    type = ir_type(node.get_int("dtype", 1))
    value = np.array(node.get_float("value", 0.0)).astype(type.numpy)
    if shape is None:
        dims = node.get_ints("shape")
    elif node.get_bool("input_as_shape"):
        dims = g.ints(shape, "shape")
    else:
        dims = list(g.lens(shape))
    return filled(g, value, dims + node.get_ints("extra_shape", ()))


@register("Shape")
def shape(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the lengths of the axes from ``start`` to before ``end``: a literal, or read at run time if dynamic."""
    axes = rank(x)
    start, end, _ = slice(node.get_int("start", 0), node.get_int("end", axes)).indices(axes)
    if x.shape.is_dynamic and start < end and not all(d.is_fixed for d in x.shape.dims[start:end]):
        return g.op("dimensions_of", x, start=start, end=end)
    lens = [d.min for d in x.shape.dims[start:end]] if axes else []
    return g.literal(array_of_lengths(lens, (len(lens),)))


@register("Size")
def size(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the number of elements."""
    if x.shape.is_dynamic:
        return g.reduce("reduce_prod", g.op("dimensions_of", x, start=0, end=x.shape.ndim), [0], keep=False)
    return g.literal(array_of_lengths([x.shape.elements], ()))


@register("Range", domain=("", MICROSOFT))
def arange(
    g: Builder, node: Node, start: Instruction, limit: Instruction, delta: Instruction | None = None
) -> Instruction:
    """Emit the range from ``start`` to before ``limit``, a literal for constant inputs; ``delta`` is optional."""
    delta = g.like(1, start) if delta is None else delta
    values = [g.constants.value(x) for x in (start, limit, delta)]
    if any(v is None for v in values):
        return g.op("dynamic_range", start, limit, delta)
    if any(v.size != 1 for v in values):
        raise ParseError("start, limit and delta must have one element each")
    if any(map(has_symbolic_elements, values)):
        return g.progression(start, delta, [v.ravel()[0] for v in values])
    first, last, step = (v.ravel()[0] for v in values)
    if step == 0:
        raise ParseError("delta is 0")
    wide = np.float64 if start.shape.type.is_floating else object
    count = max(0, int(np.ceil((np.asarray(last, wide) - np.asarray(first, wide)) / np.asarray(step, wide))))
    if count > LARGEST:
        raise UnsupportedError(f"a range of {count} elements is too long")
    steps = np.arange(count).astype(values[0].dtype)
    return g.literal((first + steps * step).astype(values[0].dtype))


@register("EyeLike")
def eye_like(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ones on diagonal ``k``, zeros elsewhere."""
    lens = g.lens(x)
    if len(lens) != 2:
        raise ParseError(f"input must be a matrix, got {len(lens)} dimensions")
    if not x.shape.symbolic and lens[0] * lens[1] > LARGEST:
        raise UnsupportedError(f"a matrix of {list(lens)} elements is too large")
    type = ir_type(node.get_int("dtype")) if node.has("dtype") else x.shape.type
    diagonal = g.pointwise("add", g.iota(lens[0], 0, 2), g.literal(np.int64(node.get_int("k", 0))))
    return g.convert(g.pointwise("equal", g.iota(lens[1], 1, 2), diagonal), type)
