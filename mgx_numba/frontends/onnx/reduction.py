"""Reductions and scans along axes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ...core.dim import known_equal
from ...core.types import Type
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from .builder import Builder, rank
from .node import Node
from .registry import register

Step = Callable[[Builder, Instruction], Instruction]


def _square(g: Builder, x: Instruction) -> Instruction:
    return g.op("mul", x, x)


REDUCTIONS: dict[str, tuple[str, Step | None, Step | None]] = {
    "ReduceL1": ("reduce_sum", lambda g, x: g.op("abs", x), None),
    "ReduceL2": ("reduce_sum", _square, lambda g, x: g.op("sqrt", x)),
    "ReduceLogSum": ("reduce_sum", None, lambda g, x: g.op("log", x)),
    "ReduceMax": ("reduce_max", None, None),
    "ReduceMean": ("reduce_mean", None, None),
    "ReduceMin": ("reduce_min", None, None),
    "ReduceProd": ("reduce_prod", None, None),
    "ReduceSum": ("reduce_sum", None, None),
    "ReduceSumSquare": ("reduce_sum", _square, None),
}
"""Reduction operator, and the functions applied to the elements before and to the result after."""


def reduced_axes(g: Builder, node: Node, x: Instruction, axes: Instruction | None) -> list[int]:
    """Return axes from the attribute or the (constant) input.

    Without axes all are reduced, or none with ``noop_with_empty_axes``.
    """
    if not rank(x):
        return []
    given = g.ints(axes, "axes") if axes is not None else node.get_ints("axes", ())
    if not given:
        return [] if node.get_bool("noop_with_empty_axes") else list(range(rank(x)))
    return g.axes(given, rank(x))


@register(*REDUCTIONS)
def reduce_node(g: Builder, node: Node, x: Instruction, axes: Instruction | None = None) -> Instruction:
    """Emit a reduction; with ``keepdims`` (the default) reduced axes have length 1."""
    op, before, after = REDUCTIONS[node.op_type]
    keep = node.get_bool("keepdims", True)
    if axes is not None and rank(x) and g.constants.value(axes) is None:
        return _reduce_at_run_time(g, node, x, axes, keep)
    found = reduced_axes(g, node, x, axes)
    wide = g.convert(x, _sum_type(x, after))
    y = g.reduce(op, before(g, wide) if before is not None else wide, found, keep)
    if after is not None:
        y = g.convert(after(g, y), x.shape.type)
    return g.op("identity", y) if y is x else y


def _sum_type(x: Instruction, after: Step | None) -> Type:
    """Return double for integers whose sum is an argument of a root or a logarithm: the sum may exceed their type."""
    return x.shape.type if after is None or x.shape.type.is_floating else Type.double_type


def _reduce_at_run_time(g: Builder, node: Node, x: Instruction, axes: Instruction, keep: bool) -> Instruction:
    some = not axes.shape.is_dynamic and axes.shape.elements > 0  # empty axes: the IR reduces none, ONNX all
    if not (keep and some):
        g.constant(axes, "axes")
    op, before, after = REDUCTIONS[node.op_type]
    wide = g.convert(x, _sum_type(x, after))
    y = g.op(op, before(g, wide) if before is not None else wide, axes)
    return g.convert(after(g, y), x.shape.type) if after is not None else y


@register("ReduceLogSumExp")
def reduce_log_sum_exp(g: Builder, node: Node, x: Instruction, axes: Instruction | None = None) -> Instruction:
    """Emit ``log(sum(exp(x)))``, with a finite largest element factored out first."""
    found = reduced_axes(g, node, x, axes)
    type = x.shape.type
    wide = x if type.is_floating else g.convert(x, Type.double_type)
    if not found:
        return g.op("identity", x)
    largest = g.reduce("reduce_max", wide, found)
    shift = g.pointwise("where", g.op("isinf", largest), g.like(0, largest), largest)
    total = g.reduce("reduce_sum", g.op("exp", g.pointwise("sub", wide, shift)), found)
    y = g.op("add", g.op("log", total), shift)
    y = y if node.get_bool("keepdims", True) else g.squeeze(y, found)
    return g.convert(y, type)


@register("ArgMax", "ArgMin")
def arg_reduce(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the position of the extreme element along ``axis``."""
    axis = g.axis(node.get_int("axis", 0), rank(x))
    y = g.op(node.op_type.lower(), x, axis=axis, select_last_index=node.get_bool("select_last_index"))
    return y if node.get_bool("keepdims", True) else g.squeeze(y, [axis])


@register("CumSum")
def cumsum(g: Builder, node: Node, x: Instruction, axis: Instruction) -> Instruction:
    """Emit the running sum; ``exclusive`` excludes the element itself, ``reverse`` starts at the end."""
    return g.op(
        "prefix_scan_sum",
        x,
        axis=g.axis(g.int_value(axis, "axis"), rank(x)),
        exclusive=node.get_bool("exclusive"),
        reverse=node.get_bool("reverse"),
    )


@register("CumProd")
def cumprod(g: Builder, node: Node, x: Instruction, axis: Instruction) -> Instruction:
    """Emit the running product by doubling: after step s each element is the product of the last ``2**s`` elements."""
    along = g.axis(g.int_value(axis, "axis"), rank(x))
    length = g.lens(x)[along]
    reverse = node.get_bool("reverse")
    y = x
    if node.get_bool("exclusive") and length:
        y = _shifted(g, y, along, 1, reverse)
    distance = 1
    while distance < length:
        y = g.op("mul", y, _shifted(g, y, along, distance, reverse))
        distance *= 2
    return g.op("identity", x) if y is x else y


def _shifted(g: Builder, x: Instruction, axis: int, distance: int, reverse: bool) -> Instruction:
    """Shift elements along an axis and fill with ones."""
    count, length = rank(x), g.lens(x)[axis]
    pads = [0] * (2 * count)
    pads[axis + (count if reverse else 0)] = distance
    kept = g.slice(x, axis, distance, length) if reverse else g.slice(x, axis, 0, length - distance)
    return g.op("pad", kept, pads=tuple(pads), value=1.0)


@register("Softmax", "LogSoftmax", "Hardmax")
def softmax(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit softmax along ``axis``; before operator set 13 over all axes from ``axis`` on, flattened."""
    apply = _hardmax if node.op_type == "Hardmax" else _softmax_op(node.op_type.lower())
    axis = g.axis(node.get_int("axis", -1 if node.opset >= 13 else 1), max(rank(x), 1))
    if node.opset >= 13 or axis == rank(x) - 1:
        return apply(g, x, axis)
    lens = g.lens(x)
    if known_equal(prod(lens[axis + 1 :]), 1):
        return apply(g, x, axis)
    matrix = g.reshape(x, (prod(lens[:axis]), prod(lens[axis:])))
    return g.reshape(apply(g, matrix, 1), lens)


def _softmax_op(name: str) -> Callable[[Builder, Instruction, int], Instruction]:
    return lambda g, x, axis: g.op(name, x, axis=axis)


def _hardmax(g: Builder, x: Instruction, axis: int) -> Instruction:
    """Emit 1 at the first largest element, 0 elsewhere."""
    length = x.shape.dims[axis]
    if not length.is_fixed:
        raise UnsupportedError(f"axis {axis} has length {length}, which is dynamic")
    if known_equal(length.min, 0):
        return g.op("identity", x)
    positions = g.iota(length.min, axis, rank(x))
    return g.convert(g.pointwise("equal", g.op("argmax", x, axis=axis), positions), x.shape.type)
