"""Sorting and searching."""

from __future__ import annotations

from typing import Any

from ...core.dim import Dim, Length, known_less_equal
from ...core.types import Type
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from .builder import AtenBuilder, rank
from .node import AtenNode
from .registry import register
from .types import Results, limits, promoted


def _both(g: AtenBuilder, x: Instruction, k: Length, dim: int, largest: bool) -> list[Instruction]:
    if rank(x) == 0:
        return [x, g.literal(0, Type.int64_type)]
    type = x.shape.type
    wide = g.cast(x, Type.uint8_type) if type is Type.bool_type else x
    both = g.op("topk", wide, k=k, axis=g.axis(dim, rank(x)), largest=largest)
    return [g.cast(g.op("get_tuple_elem", both, index=0), type), g.op("get_tuple_elem", both, index=1)]


@register("topk")
def topk(
    g: AtenBuilder, node: AtenNode, x: Instruction, k: Length, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[Instruction]:
    """Emit the largest or smallest elements of an axis and their positions."""
    return _both(g, x, k, dim, largest)


@register("sort")
def sort(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int = -1, descending: bool = False) -> list[Instruction]:
    """Emit the elements of an axis in order, and their positions; equal elements keep their order."""
    length = 1 if rank(x) == 0 else g.lens(x)[g.axis(dim, rank(x))]
    return _both(g, x, length, dim, descending)


@register("sort.stable")
def sort_stable(
    g: AtenBuilder, node: AtenNode, x: Instruction, stable: object = None, dim: int = -1, descending: bool = False
) -> list[Instruction]:
    """Emit the elements of an axis in order, and their positions."""
    return sort(g, node, x, dim, descending)


@register("kthvalue")
def kthvalue(
    g: AtenBuilder, node: AtenNode, x: Instruction, k: int, dim: int = -1, keepdim: bool = False
) -> list[Instruction]:
    """Emit the k-th smallest element of an axis and its position."""
    axis = g.axis(dim, max(rank(x), 1))
    found = [v if rank(v) == 0 else g.slice(v, axis, k - 1, k) for v in _both(g, x, k, dim, False)]
    return found if keepdim or rank(x) == 0 else [g.squeeze(v, [axis]) for v in found]


@register("median", "median.dim", "nanmedian", "nanmedian.dim")
def median(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int | None = None, keepdim: bool = False) -> Results:
    """Emit the median, the lower of two, and its position along an axis; of elements with a NaN the median is NaN,
    unless NaN are left out."""
    if rank(x) == 0 and dim is not None:
        return [x, g.literal(0, Type.int64_type)]
    flat = g.flat(x) if dim is None else x
    axis = g.axis(-1 if dim is None else dim, rank(flat))
    length = g.lens(flat)[axis]
    if isinstance(length, Dim) or length == 0:
        raise UnsupportedError("the median of an open or empty axis is not supported")
    values = _both(g, flat, length, axis, False)
    if not x.shape.type.is_floating:
        found = [g.slice(v, axis, (length - 1) // 2, (length + 1) // 2) for v in values]
    else:
        missing = g.op("isnan", flat)
        count = g.reduce("reduce_sum", g.cast(missing, Type.int64_type), [axis])
        if node.base == "nanmedian":
            left = g.pointwise("sub", g.literal(length - 1, Type.int64_type), count)
            place = g.pointwise("max", g.pointwise("div", left, g.like(2, left)), g.like(0, left))
            found = [g.op("gather_elements", v, place, axis=axis) for v in values]
        else:
            found = [g.slice(v, axis, (length - 1) // 2, (length + 1) // 2) for v in values]
            some = g.pointwise("greater", count, g.like(0, count))
            first = g.op("argmax", g.cast(missing, Type.uint8_type), axis=axis)
            found = [
                g.pointwise("where", some, g.like(float("nan"), flat), found[0]),
                g.pointwise("where", some, first, found[1]),
            ]
    if dim is None:
        return g.reshape(found[0], ())
    return found if keepdim else [g.squeeze(v, [axis]) for v in found]


@register("mode")
def mode(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int = -1, keepdim: bool = False) -> list[Instruction]:
    """Emit the most frequent number of an axis, of several the least, and its last position."""
    if rank(x) == 0:
        return [x, g.literal(0, Type.int64_type)]
    axis, lens = g.axis(dim, rank(x)), g.lens(x)
    if not known_less_equal(1, lens[axis]):
        raise UnsupportedError("the mode of an axis that may be empty is not supported")
    wide = g.cast(x, Type.uint8_type) if x.shape.type is Type.bool_type else x
    rows = g.transpose(wide, [*(k for k in range(rank(x)) if k != axis), axis])
    last = rank(x) - 1
    equal = g.pointwise("equal", g.unsqueeze(rows, [last + 1]), g.unsqueeze(rows, [last]))
    count = g.reduce("reduce_sum", g.cast(equal, Type.int64_type), [last + 1], keep=False)
    chosen = g.pointwise("equal", count, g.reduce("reduce_max", count, [last]))
    least = g.reduce("reduce_min", g.pointwise("where", chosen, rows, g.like(limits(rows.shape.type)[1], rows)), [last])
    hit = g.pointwise("logical_and", chosen, g.pointwise("equal", rows, least))
    place = g.op("argmax", g.cast(hit, Type.uint8_type), axis=last, select_last_index=True)
    found = [g.cast(g.op("gather_elements", rows, place, axis=last), x.shape.type), place]
    found = [g.squeeze(v, [last]) for v in found]
    return [g.unsqueeze(v, [axis]) for v in found] if keepdim else found


@register("bincount")
def bincount(
    g: AtenBuilder, node: AtenNode, x: Instruction, weights: Instruction | None = None, minlength: Length = 0
) -> Instruction:
    """Emit how often each number from 0 to the largest occurs, or the sums of weights by number."""
    places = g.cast(x, Type.int64_type)
    least = g.reshape(g.literal(minlength - 1, Type.int64_type), (1,))
    top = g.reduce("reduce_max", g.op("concat", places, least, axis=0), [0], keep=False)
    zero, one = g.literal(0, Type.int64_type), g.literal(1, Type.int64_type)
    numbers = g.op("dynamic_range", zero, g.pointwise("add", top, one), one)
    empty = g.cast(g.pointwise("mul", numbers, g.like(0, numbers)), node.type)
    given = g.broadcast(g.literal(1, node.type), g.lens(x)) if weights is None else g.cast(weights, node.type)
    return g.op("scatter_add", empty, places, given, axis=0)


@register("searchsorted.Tensor", "bucketize.Tensor", "searchsorted.Scalar", "bucketize.Scalar")
def search(
    g: AtenBuilder,
    node: AtenNode,
    a: Any,
    b: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Instruction | None = None,
) -> Instruction:
    """Emit the number of boundaries below each value; with ``right`` also of equal ones. All are below NaN, which is
    above all numbers as a boundary, too."""
    bounds, values = (a, b) if node.base == "searchsorted" else (b, a)
    type = promoted([bounds, values])
    values = g.value(values, type)
    if sorter is not None:
        bounds = g.op("gather_elements", bounds, g.cast(sorter, Type.int64_type), axis=rank(bounds) - 1)
    above = right or side == "right"
    aligned = bounds if rank(bounds) == 1 else g.unsqueeze(bounds, [rank(bounds) - 1])
    values = g.unsqueeze(values, [rank(values)])
    below = g.pointwise("less_or_equal" if above else "less", g.cast(aligned, type), values)
    if type.is_floating:
        below = g.pointwise("logical_or", below, g.op("isnan", values))
    count = g.reduce("reduce_sum", g.cast(below, Type.int64_type), [rank(below) - 1], keep=False)
    return g.cast(count, node.type)


@register("histc")
def histogram(
    g: AtenBuilder, node: AtenNode, x: Instruction, bins: int = 100, min: float = 0, max: float = 0
) -> Instruction:
    """Emit the number of elements in each of ``bins`` equal parts of [min, max]; others and NaN count nowhere."""
    if min >= max:
        raise UnsupportedError("histc without limits takes them from data, which is not supported")
    flat = g.cast(g.flat(x), Type.double_type if x.shape.type is Type.double_type else Type.float_type)
    moved = g.pointwise("sub", flat, g.like(min, flat))
    place = g.op("floor", g.combined("mul", flat.shape.type, moved, bins / (max - min)))
    place = g.pointwise("min", place, g.like(bins - 1, place))
    above = g.pointwise("greater_or_equal", flat, g.like(min, flat))
    inside = g.op("logical_and", above, g.pointwise("less_or_equal", flat, g.like(max, flat)))
    numbers = g.cast(g.iota(bins, 0, 2), flat.shape.type)
    hit = g.pointwise("equal", numbers, g.unsqueeze(place, [0]))
    hit = g.pointwise("logical_and", hit, g.unsqueeze(inside, [0]))
    count = g.reduce("reduce_sum", g.cast(hit, Type.int64_type), [1], keep=False)
    return g.cast(count, node.type)
