"""Views, copies and conversions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...core.dim import Dim, Length, exact_quotient, known_equal, known_same
from ...core.shape import row_major_strides
from ...core.types import Type
from ...errors import ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from .builder import AtenBuilder, rank
from .node import AtenNode
from .registry import register
from .types import Axes, Lens, Operand


@register("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy", "_reshape_copy")
def view(g: AtenBuilder, node: AtenNode, x: Instruction, size: Lens, *_: object) -> Instruction:
    """Emit the same elements with other lengths."""
    return g.reshape(x, g.resolved(x, size))


@register("view.dtype")
def view_type(g: AtenBuilder, node: AtenNode, x: Instruction, dtype: object) -> Instruction:
    """Emit the same bits as another type: parts of an element along the last axis, or elements joined."""
    source, target = x.shape.type, node.type
    if source is target:
        return x
    if source.size == target.size:
        return g.op("bit_cast", x, target_type=target)
    lens, last = g.lens(x), rank(x) - 1
    wide, narrow = (_UNSIGNED[size] for size in sorted((source.size, target.size), reverse=True))
    count = wide.size // narrow.size
    shifts = [8 * narrow.size * k for k in range(count)]  # the lowest bits come first: all machines are little-endian
    if source.size > target.size:
        bits = x if source is wide else g.op("bit_cast", x, target_type=wide)
        moved = g.op("bitwise_shift_right", *g.same_lens(g.unsqueeze(bits, [last + 1]), g.literal(shifts, wide)))
        mask = (1 << 8 * narrow.size) - 1
        parts = g.convert(g.pointwise("bitwise_and", moved, g.like(mask, moved)), narrow)
        made = g.reshape(parts, (*lens[:-1], lens[-1] * count))
        return made if target is narrow else g.op("bit_cast", made, target_type=target)
    groups = exact_quotient(lens[-1], count)
    if groups is None:
        raise UnsupportedError(f"a last axis of length {lens[-1]} is not known to be a multiple of {count}")
    bits = x if source is narrow else g.op("bit_cast", x, target_type=narrow)
    parts = g.convert(g.reshape(bits, (*lens[:-1], groups, count)), wide)
    moved = g.op("bitwise_shift_left", *g.same_lens(parts, g.literal(shifts, wide)))
    made = g.reduce("reduce_sum", moved, [last + 1], keep=False)
    return made if target is wide else g.op("bit_cast", made, target_type=target)


_UNSIGNED = {1: Type.uint8_type, 2: Type.uint16_type, 4: Type.uint32_type, 8: Type.uint64_type}
"""Types of bits by their number of bytes."""


@register("expand", "expand_copy")
def expand(g: AtenBuilder, node: AtenNode, x: Instruction, size: Lens, **_: object) -> Instruction:
    """Emit a broadcast; -1 keeps a length."""
    lens = g.lens(x)
    first = len(size) - len(lens)
    out = [lens[k - first] if not isinstance(n, Dim) and n == -1 else n for k, n in enumerate(size)]
    return g.broadcast(x, out) if out else x


@register("permute", "permute_copy")
def permute(g: AtenBuilder, node: AtenNode, x: Instruction, dims: Sequence[int]) -> Instruction:
    """Emit the axes in another order."""
    return g.transpose(x, g.axes(dims, rank(x)))


@register("squeeze", "squeeze_copy")
def squeeze(g: AtenBuilder, node: AtenNode, x: Instruction, dim: Axes = None) -> Instruction:
    """Remove axes of length 1: those of ``dim`` that have it, or all."""
    lens = g.lens(x)
    asked = g.all_axes(x, dim) if dim != [] else []
    return g.squeeze(x, [k for k in asked if known_equal(lens[k], 1)])


@register("unsqueeze", "unsqueeze_copy")
def unsqueeze(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int) -> Instruction:
    """Insert an axis of length 1."""
    return g.unsqueeze(x, [g.axis(dim, rank(x) + 1)])


@register(
    "clone", "alias", "alias_copy", "detach", "detach_copy", "contiguous", "resolve_conj", "resolve_neg", "_conj",
    "conj", "real", "conj_physical", "dropout", "feature_dropout", "alpha_dropout", "to.device",
)  # fmt: skip
def same(g: AtenBuilder, node: AtenNode, x: Instruction, *_: object, **options: object) -> Instruction:
    """Return the input; dropout does nothing in inference."""
    if node.base.endswith("dropout") and len(_) > 1 and _[1]:
        raise UnsupportedError("dropout in training mode takes random numbers")
    return x


@register("native_dropout")
def native_dropout(g: AtenBuilder, node: AtenNode, x: Instruction, p: float, train: object) -> list[Instruction | None]:
    """Return the input and a mask of ones."""
    if train:
        raise UnsupportedError("dropout in training mode takes random numbers")
    return [x, g.broadcast(g.literal(True), g.lens(x))]


@register("_assert_tensor_metadata")
def nothing(g: AtenBuilder, node: AtenNode, *_: object, **options: object) -> list[Instruction]:
    """Emit nothing."""
    return []


@register("copy")
def copy(g: AtenBuilder, node: AtenNode, x: Instruction, source: Instruction, *_: object) -> Instruction:
    """Emit the source in type and lengths of the first operand."""
    return g.broadcast(g.cast(source, node.type), g.lens(x)) if rank(x) else g.cast(source, node.type)


@register(
    "_to_copy", "to.dtype", "to.dtype_layout", "to.other", "type_as", "float", "double", "half", "bfloat16", "int",
    "long", "bool", "prims::convert_element_type",
)  # fmt: skip
def to(g: AtenBuilder, node: AtenNode, x: Operand, *_: object, **options: object) -> Instruction:
    """Emit the conversion of a tensor, or of a number in its place, to the result's type; integers are truncated."""
    return g.value(x, node.type)


@register("repeat")
def repeat(g: AtenBuilder, node: AtenNode, x: Instruction, repeats: Lens) -> Instruction:
    """Emit copies along axes, which may be new."""
    counts = [1] * (rank(x) - len(repeats)) + list(repeats)
    lens = [1] * (len(counts) - rank(x)) + list(g.lens(x))
    inner: list[Length] = []
    wide: list[Length] = []
    for count, n in zip(counts, lens):
        if known_equal(count, 1):
            inner.append(n)
            wide.append(n)
        else:
            inner += [1, n]
            wide += [count, n]
    return g.reshape(g.broadcast(g.reshape(x, inner), wide), [c * n for c, n in zip(counts, lens)])


@register("as_strided", "as_strided_copy")
def as_strided(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> Instruction:
    """Emit a view by strides of a row-major tensor; a gather unless the strides are those of a reshape."""
    if not offset and known_same(stride, row_major_strides(size)) and known_equal(prod(size), x.shape.elements):
        return g.reshape(x, size)
    return g.op("gather", g.flat(x), g.literal(_strided_places(g, x, size, stride, offset)), axis=0)


@register("as_strided_scatter", "prims::as_strided_scatter")
def as_strided_scatter(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    source: Instruction,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> Instruction:
    """Emit a row-major tensor with the elements of a view by strides replaced."""
    places = _strided_places(g, x, size, stride, offset).reshape(-1)
    made = g.op("scatter_none", g.flat(x), g.literal(places), g.flat(g.cast(source, x.shape.type)), axis=0)
    return g.reshape(made, g.lens(x))


def _strided_places(
    g: AtenBuilder, x: Instruction, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> np.ndarray:
    """Return the flat positions in ``x`` of the elements of a view by strides."""
    if any(isinstance(n, Dim) for n in (*size, *stride, offset)) or x.shape.is_dynamic:
        raise UnsupportedError("as_strided of open lengths is not supported")
    g.limit(prod(size), "a table of positions")
    places = np.full(tuple(size), offset or 0, np.int64)
    for k, (n, step) in enumerate(zip(size, stride)):
        places += (np.arange(n) * step).reshape([-1 if k == axis else 1 for axis in range(len(size))])
    if places.size and places.max() >= x.shape.elements:
        raise ShapeError(f"strides {list(stride)} of lengths {list(size)} go beyond {x.shape.elements} elements")
    return places


@register("unfold", "unfold_copy")
def unfold(g: AtenBuilder, node: AtenNode, x: Instruction, dimension: int, size: int, step: int) -> Instruction:
    """Emit windows along an axis, whose elements are a new last axis."""
    if not rank(x):
        return g.op("slice", g.reshape(x, (1,)), axes=(0,), starts=(0,), ends=(size,))
    axis, axes = g.axis(dimension, rank(x)), rank(x)
    count = (g.lens(x)[axis] - size) // step + 1
    starts = g.iota(count, 0, 2)
    if step != 1:
        starts = g.pointwise("mul", starts, g.literal(step, Type.int64_type))
    places = g.pointwise("add", starts, g.iota(size, 1, 2))
    order = [k for k in range(axes + 1) if k != axis + 1] + [axis + 1]
    return g.transpose(g.op("gather", x, places, axis=axis), order)


@register("diagonal", "diagonal_copy")
def diagonal(
    g: AtenBuilder, node: AtenNode, x: Instruction, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Instruction:
    """Emit a diagonal of two axes as a new last axis."""
    flat, places, _ = _diagonal_places(g, x, offset, dim1, dim2)
    return g.op("gather", flat, g.literal(places), axis=rank(flat) - 1)


@register("diagonal_scatter")
def diagonal_scatter(
    g: AtenBuilder, node: AtenNode, x: Instruction, source: Instruction, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Instruction:
    """Emit ``x`` with a diagonal of two axes replaced."""
    flat, places, order = _diagonal_places(g, x, offset, dim1, dim2)
    index = g.broadcast(g.literal(places), g.lens(source))
    made = g.op("scatter_none", flat, index, g.cast(source, x.shape.type), axis=rank(flat) - 1)
    whole = g.reshape(made, [g.lens(x)[k] for k in order])
    return g.transpose(whole, [order.index(k) for k in range(rank(x))])


def _diagonal_places(
    g: AtenBuilder, x: Instruction, offset: int, dim1: int, dim2: int
) -> tuple[Instruction, np.ndarray, list[int]]:
    """Return ``x`` with two axes moved to the end and joined, the diagonal's positions there, and the axes' order."""
    first, second = g.axis(dim1, rank(x)), g.axis(dim2, rank(x))
    order = [*(k for k in range(rank(x)) if k not in (first, second)), first, second]
    *outer, rows, columns = (g.lens(x)[k] for k in order)
    if isinstance(rows, Dim) or isinstance(columns, Dim):
        raise UnsupportedError("diagonals of open lengths are not supported")
    count = max(0, min(rows - max(0, -offset), columns - max(0, offset)))
    places = (np.arange(count) + max(0, -offset)) * columns + np.arange(count) + max(0, offset)
    return g.reshape(g.transpose(x, order), (*outer, rows * columns)), places.astype(np.int64), order
