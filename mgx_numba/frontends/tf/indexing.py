"""Slices, concatenation, padding, and selection by index."""

from __future__ import annotations

import numpy as np

from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from ..builder import GraphBuilder, rank
from ..slicing import strided_slice
from .node import TfNode
from .registry import register


@register("ConcatV2")
def concat_v2(g: GraphBuilder, node: TfNode, first: Instruction, *rest: Instruction) -> Instruction:
    """Concatenate along the axis in the last input."""
    if not rest:
        raise ParseError("input 'axis' is missing")
    return _concat(g, [first, *rest[:-1]], rest[-1])


@register("Concat")
def concat(g: GraphBuilder, node: TfNode, axis: Instruction, first: Instruction, *rest: Instruction) -> Instruction:
    """Concatenate along the axis in the first input."""
    return _concat(g, [first, *rest], axis)


def _concat(g: GraphBuilder, values: list[Instruction], axis: Instruction) -> Instruction:
    along = g.axis(g.int_value(axis, "axis"), rank(values[0]), "input 'axis'")
    return g.op("concat", *values, axis=along) if len(values) > 1 else values[0]


@register("Pack")
def pack(g: GraphBuilder, node: TfNode, first: Instruction, *rest: Instruction) -> Instruction:
    """Stack the inputs along a new axis."""
    axis = g.axis(node.get_int("axis", 0), rank(first) + 1)
    slabs = [g.unsqueeze(x, [axis]) for x in (first, *rest)]
    return g.op("concat", *slabs, axis=axis) if rest else slabs[0]


@register("Unpack")
def unpack(g: GraphBuilder, node: TfNode, x: Instruction) -> list[Instruction]:
    """Emit the slices of the input along an axis, without that axis."""
    axis = g.axis(node.get_int("axis", 0), rank(x))
    length = g.lens(x)[axis]
    if node.get_int("num", length) != length:
        raise ShapeError(f"num is {node.get_int('num')}, but axis {axis} of {list(g.lens(x))} has length {length}")
    return [g.squeeze(part, [axis]) for part in g.split(x, axis, [1] * length)]


@register("Split")
def split(g: GraphBuilder, node: TfNode, axis: Instruction, x: Instruction) -> list[Instruction]:
    """Split into equal parts."""
    along, count = g.axis(g.int_value(axis, "split_dim"), rank(x), "input 'split_dim'"), node.get_int("num_split")
    length = g.lens(x)[along]
    if count < 1 or length % count:
        raise ShapeError(f"length {length} of axis {along} does not split into {count} equal parts")
    return g.split(x, along, [length // count] * count)


@register("SplitV")
def split_v(g: GraphBuilder, node: TfNode, x: Instruction, sizes: Instruction, axis: Instruction) -> list[Instruction]:
    """Split into parts of given lengths; one length may be -1 for the remainder."""
    along, parts = g.axis(g.int_value(axis, "split_dim"), rank(x), "input 'split_dim'"), g.ints(sizes, "size_splits")
    length = g.lens(x)[along]
    if parts.count(-1) == 1:
        rest = length - sum(parts) - 1
        parts = [rest if n == -1 else n for n in parts]
    if any(n < 0 for n in parts) or sum(parts) != length:
        raise ShapeError(f"sizes {parts} do not fit length {length} of axis {along}")
    return g.split(x, along, parts)


@register("Slice")
def slice_node(g: GraphBuilder, node: TfNode, x: Instruction, begin: Instruction, size: Instruction) -> Instruction:
    """Emit ``size`` elements of each axis from ``begin`` on; -1 takes the rest."""
    lens, starts, sizes = g.lens(x), g.ints(begin, "begin"), g.ints(size, "size")
    if not len(starts) == len(sizes) == len(lens):
        raise ParseError(f"begin {starts} and size {sizes} must have one number for each of {len(lens)} dimensions")
    ends = [n if s == -1 else b + s for n, b, s in zip(lens, starts, sizes, strict=True)]
    if any(not 0 <= b <= e <= n for n, b, e in zip(lens, starts, ends, strict=True)):
        raise ShapeError(f"begin {starts} and size {sizes} lie outside of {list(lens)}")
    axes = [k for k, n in enumerate(lens) if (starts[k], ends[k]) != (0, n)]
    return strided_slice(g, x, axes, [starts[k] for k in axes], [ends[k] for k in axes], [1] * len(axes)) if axes else x


@register("StridedSlice")
def strided_slice_node(
    g: GraphBuilder, node: TfNode, x: Instruction, begin: Instruction, end: Instruction, strides: Instruction
) -> Instruction:
    """Emit Python's indexing: masks mark omitted bounds, new axes, dropped axes, and the ellipsis."""
    lens = g.lens(x)
    starts, ends, steps = g.ints(begin, "begin"), g.ints(end, "end"), g.ints(strides, "strides")
    if not len(starts) == len(ends) == len(steps) or 0 in steps:
        raise ParseError(f"begin {starts}, end {ends} and strides {steps} must be of one length, strides not 0")
    masks = {name: node.get_int(f"{name}_mask", 0) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}

    def marked(name: str, entry: int) -> bool:
        return bool(masks[name] >> entry & 1)

    entries = range(len(starts))
    dots = [k for k in entries if marked("ellipsis", k)]
    if len(dots) > 1:
        raise ParseError("ellipsis_mask marks several entries")
    taken = sum(not marked("ellipsis", k) and not marked("new_axis", k) for k in entries)
    if taken > len(lens):
        raise ShapeError(f"{taken} entries index {len(lens)} dimensions")
    bounds: list[tuple[int, int, int, int]] = []
    result: list[int] = []  # lengths after dropping and adding axes
    axis = 0

    def pass_over(count: int) -> None:
        nonlocal axis
        result.extend(lens[axis : axis + count])
        axis += count

    for k in entries:
        if k in dots:
            pass_over(len(lens) - taken)
        elif marked("new_axis", k):
            result.append(1)
        else:
            n, step = lens[axis], steps[k]
            if marked("shrink_axis", k):
                index = starts[k] + n if starts[k] < 0 else starts[k]
                if not 0 <= index < n:
                    raise ShapeError(f"index {starts[k]} is out of range for axis {axis} of {list(lens)}")
                bounds.append((axis, index, index + 1, 1))
            else:
                first = None if marked("begin", k) else starts[k]
                last = None if marked("end", k) else ends[k]
                found = range(n)[first:last:step]
                result.append(len(found))
                if found != range(n):
                    bounds.append((axis, *_bounds(found, n)))
            axis += 1
    pass_over(len(lens) - axis)
    if bounds:
        axes, low, high, by = (list(column) for column in zip(*bounds, strict=True))
        x = strided_slice(g, x, axes, low, high, by)
    return g.reshape(x, result)


def _bounds(found: range, length: int) -> tuple[int, int, int]:
    """Return start, end and step, as `strided_slice` accepts them, for the elements ``found`` of an axis."""
    if not found:
        return 0, 0, 1
    if found.step > 0:
        return found[0], found[-1] + 1, found.step
    return found[0], found[-1] - 1 if found[-1] else -length - 1, found.step


@register("Pad", "PadV2")
def pad(
    g: GraphBuilder, node: TfNode, x: Instruction, paddings: Instruction, value: Instruction | None = None
) -> Instruction:
    """Pad with zeros or a constant."""
    fill = 0.0 if value is None else g.constant(value, "constant_values").ravel()[0].item()
    pads = _pads(g, x, paddings)
    return g.op("pad", x, pads=pads, value=fill) if any(pads) else x


@register("MirrorPad")
def mirror_pad(g: GraphBuilder, node: TfNode, x: Instruction, paddings: Instruction) -> Instruction:
    """Pad with the mirror image: REFLECT without the edge, SYMMETRIC with it."""
    pads = _pads(g, x, paddings)
    symmetric = node.get_choice("mode", ("REFLECT", "SYMMETRIC")) == "SYMMETRIC"
    lens = g.lens(x)
    if any(p > n - (not symmetric) for p, n in zip(pads, lens * 2, strict=True)):
        raise ShapeError(f"paddings {list(pads)} are longer than what lengths {list(lens)} can mirror")
    if not symmetric:
        return g.op("pad", x, pads=pads, mode="reflect") if any(pads) else x
    for axis, n in enumerate(lens):
        before, after = pads[axis], pads[axis + len(lens)]
        left = [g.op("reverse", g.slice(x, axis, 0, before), axes=(axis,))] if before else []
        right = [g.op("reverse", g.slice(x, axis, n - after, n), axes=(axis,))] if after else []
        if left or right:
            x = g.op("concat", *left, x, *right, axis=axis)
    return x


def _pads(g: GraphBuilder, x: Instruction, paddings: Instruction) -> tuple[int, ...]:
    values = g.ints(paddings, "paddings")
    if len(values) != 2 * rank(x) or any(v < 0 for v in values):
        raise ParseError(f"input 'paddings' holds {values}, expected {rank(x)} pairs of numbers from 0 on")
    return (*values[::2], *values[1::2])


@register("Gather", "GatherV2")
def gather(
    g: GraphBuilder, node: TfNode, data: Instruction, indices: Instruction, axis: Instruction | None = None
) -> Instruction:
    """Emit slices of an axis at the indices."""
    batch = node.get_int("batch_dims", 0)
    along = 0 if axis is None else g.axis(g.int_value(axis, "axis"), rank(data), "input 'axis'")
    if not batch:
        return g.op("gather", data, g.from_start(indices), axis=along)
    batch = g.axis(batch, rank(indices) + 1, "batch_dims")
    if along != batch or batch != rank(indices) - 1:
        raise UnsupportedError(f"batch_dims {batch} with axis {along} and {rank(indices)}-dimensional indices")
    return _gather_in_batches(g, data, indices, batch)


def _gather_in_batches(g: GraphBuilder, data: Instruction, indices: Instruction, axis: int) -> Instruction:
    lens = g.lens(data)
    out = (*lens[:axis], g.lens(indices)[axis], *lens[axis + 1 :])
    places = g.unsqueeze(g.from_start(indices), list(range(axis + 1, len(lens))))
    return g.op("gather_elements", data, g.broadcast(places, out), axis=axis)


@register("GatherNd")
def gather_nd(g: GraphBuilder, node: TfNode, data: Instruction, indices: Instruction) -> Instruction:
    """Emit slices at the index tuples in the last axis of the indices."""
    return g.op("gathernd", data, indices)


@register("OneHot")
def one_hot(
    g: GraphBuilder, node: TfNode, indices: Instruction, depth: Instruction, on: Instruction, off: Instruction
) -> Instruction:
    """Append an axis with ``on_value`` at the index, and ``off_value`` elsewhere or for a negative index."""
    length = g.int_value(depth, "depth")
    if length < 0:
        raise ParseError(f"input 'depth' is {length}, expected a length from 0 on")
    axis = g.axis(node.get_int("axis", -1), rank(indices) + 1)
    g.limit(length, "a table of positions")
    shape = [length if k == axis else 1 for k in range(rank(indices) + 1)]
    places = g.convert(indices, Type.int64_type)
    found = g.pointwise(
        "equal", g.unsqueeze(places, [axis]), g.literal(np.arange(length, dtype=np.int64).reshape(shape))
    )
    return g.pointwise("where", found, on, off)


@register("ReverseV2")
def reverse(g: GraphBuilder, node: TfNode, x: Instruction, axis: Instruction) -> Instruction:
    """Reverse the elements along the given axes."""
    axes = g.axes(g.ints(axis, "axis"), rank(x), "input 'axis'")
    return g.op("reverse", x, axes=tuple(axes)) if axes else x


@register("TopKV2", outputs=("values", "indices"))
def top_k(g: GraphBuilder, node: TfNode, x: Instruction, k: Instruction) -> list[Instruction]:
    """Emit the largest elements of the last axis and their positions, in descending order."""
    count = g.int_value(k, "k")
    if not 0 < count <= (g.lens(x) or (0,))[-1]:
        raise ShapeError(f"k is {count}, expected 1 to the last length of {list(g.lens(x))}")
    both = g.op("topk", x, k=count, axis=rank(x) - 1, largest=True)
    values, places = (g.op("get_tuple_elem", both, index=n) for n in (0, 1))
    return [values, g.convert(places, node.get_type("index_type", Type.int32_type))]
