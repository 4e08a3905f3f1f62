"""Slices, concatenation and padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.dim import Dim, Length, known_equal, maximum, minimum
from ...core.types import Type
from ...errors import ParseError, UnsupportedError
from ...graph.instruction import Instruction
from ..slicing import strided_slice
from .builder import AtenBuilder, rank
from .node import AtenNode
from .registry import register
from .types import Lens, Operand


@register("cat")
def cat(g: AtenBuilder, node: AtenNode, tensors: Sequence[Instruction], dim: int = 0) -> Instruction:
    """Emit the concatenation; empty vectors among tensors of other ranks count for nothing."""
    kept = [x for x in tensors if not (g.lens(x) == (0,) and node.ranks[0] != 1)] or list(tensors[:1])
    own = [g.cast(x, node.type) for x in kept]
    return g.op("concat", *own, axis=g.axis(dim, rank(own[0]))) if len(own) > 1 else own[0]


@register("slice.Tensor", "slice_copy.Tensor")
def slice_(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    dim: int = 0,
    start: Length | None = None,
    end: Length | None = None,
    step: int = 1,
) -> Instruction:
    """Emit a range of an axis."""
    axis = g.axis(dim, rank(x))
    first, last = _range(g, x, axis, start, end)
    if known_equal(first, 0) and known_equal(last, g.lens(x)[axis]) and step == 1:
        return x
    return strided_slice(g, x, [axis], [first], [last], [step])  # type: ignore[list-item]


def _range(
    g: AtenBuilder, x: Instruction, axis: int, start: Length | None, end: Length | None
) -> tuple[Length, Length]:
    """Return both ends of a range of an axis, limited to the axis."""
    length = g.lens(x)[axis]

    def place(value: Length | None, otherwise: Length) -> Length:
        if value is None:
            return otherwise
        if not isinstance(value, Dim) and value < 0:
            value = maximum(0, length + value)
        elif not isinstance(value, Dim) and value >= (1 << 62):
            return length
        return minimum(value, length)

    first, last = place(start, 0), place(end, length)
    return first, maximum(first, last)


@register("select.int", "select_copy.int")
def select(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int, index: Instruction | Length) -> Instruction:
    """Emit one element of an axis, without the axis."""
    axis = g.axis(dim, rank(x))
    if isinstance(index, Instruction):
        return g.op("gather", x, index, axis=axis)
    first = index + g.lens(x)[axis] if not isinstance(index, Dim) and index < 0 else index
    return g.squeeze(g.slice(x, axis, first, first + 1), [axis])


@register("split.Tensor", "split_copy.Tensor")
def split(g: AtenBuilder, node: AtenNode, x: Instruction, split_size: Length, dim: int = 0) -> list[Instruction]:
    """Emit parts of an axis of equal length; the last may be shorter."""
    axis = g.axis(dim, rank(x))
    length = g.lens(x)[axis]
    parts = [maximum(0, minimum(split_size, length - k * split_size)) for k in range(len(node.types))]
    return g.split(x, axis, parts)


@register("split_with_sizes", "split_with_sizes_copy")
def split_with_sizes(g: AtenBuilder, node: AtenNode, x: Instruction, sizes: Lens, dim: int = 0) -> list[Instruction]:
    """Emit parts of an axis of given lengths."""
    return g.split(x, g.axis(dim, rank(x)), sizes)


@register("unbind.int", "unbind_copy.int")
def unbind(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int = 0) -> list[Instruction]:
    """Emit each element of an axis."""
    axis = g.axis(dim, rank(x))
    return [g.squeeze(part, [axis]) for part in g.split(x, axis, [1] * len(node.types))]


@register("flip")
def flip(g: AtenBuilder, node: AtenNode, x: Instruction, dims: Sequence[int]) -> Instruction:
    """Emit axes in reverse order of their elements."""
    axes = g.axes(dims, rank(x)) if rank(x) else []
    return g.op("reverse", x, axes=tuple(axes)) if axes else x


@register("constant_pad_nd")
def constant_pad(g: AtenBuilder, node: AtenNode, x: Instruction, pad: Lens, value: Operand = 0) -> Instruction:
    """Emit padding by a value; negative amounts cut off."""
    return _padded(g, x, pad, "constant", value)


@register(*(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)))
def border_pad(g: AtenBuilder, node: AtenNode, x: Instruction, pad: Lens) -> Instruction:
    """Emit padding by reflected or repeated elements."""
    return _padded(g, x, pad, "reflect" if node.base.startswith("reflection") else "edge", 0)


def _padded(g: AtenBuilder, x: Instruction, pad: Lens, mode: str, value: Operand) -> Instruction:
    """Emit padding, whose amounts are given from the last axis on."""
    count = rank(x)
    begins, ends = list[Length]([0] * count), list[Length]([0] * count)
    for k in range(len(pad) // 2):
        begins[count - 1 - k], ends[count - 1 - k] = pad[2 * k], pad[2 * k + 1]
    for axis in range(count):
        a, b = begins[axis], ends[axis]
        if (not isinstance(a, Dim) and a < 0) or (not isinstance(b, Dim) and b < 0):
            length = g.lens(x)[axis]
            x = g.slice(x, axis, maximum(0, -a), length - maximum(0, -b))
    begins, ends = [maximum(0, n) for n in begins], [maximum(0, n) for n in ends]
    if all(known_equal(n, 0) for n in (*begins, *ends)):
        return x
    pads = (*begins, *ends)
    if mode != "constant":
        return g.op("pad", x, pads=pads, mode=mode)
    if x.shape.type is Type.bool_type:
        bytes_ = g.op("pad", g.cast(x, Type.uint8_type), pads=pads, value=float(bool(value)), mode=0)
        return g.cast(bytes_, Type.bool_type)
    return g.op("pad", x, pads=pads, value=value, mode=0)


@register("tril", "triu")
def triangle(g: AtenBuilder, node: AtenNode, x: Instruction, diagonal: int = 0) -> Instruction:
    """Emit the lower or upper triangle of matrices, zeros elsewhere."""
    rows, columns = g.lens(x)[-2:]
    lower = node.base == "tril"
    if any(isinstance(n, Dim) for n in (rows, columns, diagonal)):
        edge = g.pointwise("add", g.iota(rows, 0, 2), g.literal(diagonal, Type.int64_type))
        keep = g.pointwise("less_or_equal" if lower else "greater_or_equal", g.iota(columns, 1, 2), edge)
    else:
        distance = np.arange(columns)[None, :] - np.arange(rows)[:, None]
        keep = g.literal(distance <= diagonal if lower else distance >= diagonal)
    return g.pointwise("where", keep, x, g.like(0, x))


@register("select_scatter")
def select_scatter(
    g: AtenBuilder, node: AtenNode, x: Instruction, source: Instruction, dim: int, index: Length
) -> Instruction:
    """Emit ``x`` with one element of an axis replaced."""
    axis = g.axis(dim, rank(x))
    first = index + g.lens(x)[axis] if not isinstance(index, Dim) and index < 0 else index
    return _replaced(g, x, g.unsqueeze(source, [axis]), axis, first, first + 1)


@register("slice_scatter")
def slice_scatter(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    source: Instruction,
    dim: int = 0,
    start: Length | None = None,
    end: Length | None = None,
    step: int = 1,
) -> Instruction:
    """Emit ``x`` with a range of an axis replaced."""
    axis = g.axis(dim, rank(x))
    first, last = _range(g, x, axis, start, end)
    if step == 1:
        return _replaced(g, x, source, axis, first, last)
    if isinstance(first, Dim) or isinstance(last, Dim):
        raise UnsupportedError("slice_scatter with steps along an open length is not supported")
    places = np.arange(first, last, step, dtype=np.int64)
    aligned = places.reshape([-1 if k == axis else 1 for k in range(rank(x))])
    index = g.broadcast(g.literal(aligned), g.lens(source))
    return g.op("scatter_none", x, index, g.cast(source, x.shape.type), axis=axis)


def _replaced(
    g: AtenBuilder, x: Instruction, source: Instruction, axis: int, first: Length, last: Length
) -> Instruction:
    length = g.lens(x)[axis]
    inside = [*g.lens(x)]
    inside[axis] = last - first
    parts = [g.broadcast(g.cast(source, x.shape.type), inside)]
    if not known_equal(first, 0):
        parts.insert(0, g.slice(x, axis, 0, first))
    if not known_equal(last, length):
        parts.append(g.slice(x, axis, last, length))
    if not parts:
        raise ParseError("there is nothing to replace")
    return g.op("concat", *parts, axis=axis) if len(parts) > 1 else parts[0]
