"""Slices of tensors, concatenation and padding."""

from __future__ import annotations

import itertools

import numpy as np

from ...core.dim import Dim, known_equal, maximum, minimum
from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from ..slicing import strided_slice
from .builder import Builder, rank
from .node import Node
from .registry import MICROSOFT, register


@register("Concat")
def concat(g: Builder, node: Node, *values: Instruction) -> Instruction:
    """Emit the concatenation along ``axis``."""
    if any(v is None for v in values):
        raise ParseError("an input is missing")
    axis = g.axis(node.get_int("axis"), rank(values[0]))
    return g.op("concat", *values, axis=axis) if len(values) > 1 else g.op("identity", values[0])


@register("Split")
def split(g: Builder, node: Node, x: Instruction, sizes: Instruction | None = None) -> list[Instruction]:
    """Emit Split: sizes come from the input (from operator set 13) or the attribute.

    Without either, sizes are equal; from operator set 18 on the last may be smaller.
    """
    axis = g.axis(node.get_int("axis", 0), rank(x))
    dim = x.shape.dims[axis]
    if not dim.is_fixed:
        raise UnsupportedError(f"axis {axis} has length {dim}, which is dynamic")
    length = dim.min
    count = node.get_int("num_outputs", len(node.outputs))
    if sizes is not None:
        parts = g.ints(sizes, "split")
    elif node.has("split"):
        parts = node.get_ints("split")
    elif count != len(node.outputs) or count < 1:
        raise ParseError(f"num_outputs is {count}, but there are {len(node.outputs)} outputs")
    elif node.opset < 18 and length % count:
        raise ShapeError(f"length {length} of axis {axis} does not split into {count} equal parts")
    else:
        each = -(-length // count)
        bounds = [*(minimum(k * each, length) for k in range(count)), length]
        pieces = [g.slice(x, axis, start, end) for start, end in itertools.pairwise(bounds)]
        return [g.op("identity", x)] if pieces == [x] else pieces
    if sum(parts) != length or any(n < 0 for n in parts) or len(parts) != len(node.outputs):
        raise ParseError(f"split {parts} does not fit length {length} of axis {axis} and {len(node.outputs)} outputs")
    pieces = g.split(x, axis, parts)
    return [g.op("identity", x)] if pieces == [x] else pieces


@register("Slice")
def slice_node(
    g: Builder,
    node: Node,
    x: Instruction,
    starts: Instruction | None = None,
    ends: Instruction | None = None,
    axes: Instruction | None = None,
    steps: Instruction | None = None,
) -> Instruction:
    """Emit Slice: bounds are attributes before operator set 10, inputs from then on; negative steps reverse."""
    if starts is None or ends is None:
        if node.opset >= 10:
            raise ParseError("inputs 'starts' and 'ends' are missing")
        first, last = node.get_ints("starts"), node.get_ints("ends")
        given = node.get_ints("axes", range(len(first)))
        stride = [1] * len(first)
    else:
        given = g.ints(axes, "axes") if axes is not None else list(range(_length(starts)))
        stride = g.ints(steps, "steps") if steps is not None else [1] * len(given)
        known = g.constants.value(starts) is not None and g.constants.value(ends) is not None
        if not known and all(step == 1 for step in stride):
            return g.op("slice", x, _vector(g, starts), _vector(g, ends), axes=tuple(g.axes(given, rank(x))))
        first, last = g.ints(starts, "starts"), g.ints(ends, "ends")
    if not len(first) == len(last) == len(given) == len(stride):
        raise ParseError(f"starts {first}, ends {last}, axes {given} and steps {stride} differ in length")
    if 0 in stride:
        raise ParseError(f"steps {stride} hold a 0")
    return strided_slice(g, x, g.axes(given, rank(x)), first, last, stride)


def _vector(g: Builder, x: Instruction) -> Instruction:
    return g.reshape(x, (1,)) if rank(x) == 0 else x


def _length(x: Instruction) -> int:
    if x.shape.is_dynamic or x.shape.ndim != 1:
        raise ParseError(f"input 'starts' must be a vector of fixed length, got {x.shape}")
    return x.shape.lens[0]


@register("Pad", domain=("", MICROSOFT))
def pad(
    g: Builder,
    node: Node,
    x: Instruction,
    pads: Instruction | None = None,
    value: Instruction | None = None,
    axes: Instruction | None = None,
) -> Instruction:
    """Emit Pad: negative pads cut off; ``mode`` is constant, reflect, edge or (from operator set 19) wrap."""
    axes_count = rank(x)
    mode = node.get_choice("mode", ("constant", "reflect", "edge", "wrap"), "constant")
    given = node.get_ints("pads") if pads is None else g.ints(pads, "pads")
    where = g.axes(g.ints(axes, "axes"), axes_count) if axes is not None else list(range(axes_count))
    if len(given) != 2 * len(where):
        raise ParseError(f"pads {given} must be {2 * len(where)} numbers for {len(where)} dimensions")
    fill: float | int = node.get_float("value", 0.0)
    late = value
    if x.shape.type.hosted and mode == "constant":
        late = g.literal("" if x.shape.type is Type.string_type else 0, x.shape.type) if value is None else value
    elif value is not None:
        constant = g.constants.value(value)
        late = value if constant is None else None
        if constant is not None and constant.size != 1:
            raise ParseError(f"input 'constant_value' has {constant.size} elements, expected 1")
        fill = fill if constant is None else constant.ravel()[0].item()
    begins, ends = [0] * axes_count, [0] * axes_count
    for k, axis in enumerate(where):
        begins[axis], ends[axis] = given[k], given[k + len(where)]
    x = _cut(g, x, begins, ends)
    begins, ends = [maximum(0, n) for n in begins], [maximum(0, n) for n in ends]
    if late is not None:
        return _pad_with_value(g, x, (*begins, *ends), late)
    if all(known_equal(n, 0) for n in (*begins, *ends)):
        return g.op("identity", x)
    if mode == "constant":
        return g.op("pad", x, pads=(*begins, *ends), value=fill, mode=0)
    lens = g.lens(x)
    for axis in range(axes_count):
        if not (known_equal(begins[axis], 0) and known_equal(ends[axis], 0)) and lens[axis] < 1:
            raise ShapeError(f"axis {axis} is empty: mode {mode!r} has nothing to copy")
    return g.op("pad", x, pads=(*begins, *ends), mode=mode)


def _cut(g: Builder, x: Instruction, begins: list[int], ends: list[int]) -> Instruction:
    """Apply negative pads by slicing; where they exceed the length, the whole result is padding."""
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=False)):
        if begin < 0 or end < 0:
            length = g.lens(x)[axis]
            first, last = maximum(0, -begin), length - maximum(0, -end)
            if first > last:
                if length + begin + end < 0:
                    raise ShapeError(f"pads {begin} and {end} cut more than length {length} of axis {axis}")
                first, last, begins[axis], ends[axis] = 0, 0, 0, length + begin + end
            x = g.slice(x, axis, first, last)
    return x


def _pad_with_value(g: Builder, x: Instruction, amount: tuple[int, ...], value: Instruction) -> Instruction:
    """Emit constant padding with a run-time value: padded data inside, the value elsewhere."""
    inside = g.broadcast(g.literal(1, Type.uint8_type), g.lens(x))
    data, mask = (g.op("pad", v, pads=amount, value=0.0, mode=0) for v in (x, inside))
    return g.pointwise("where", g.pointwise("greater", mask, g.like(0, mask)), data, g.reshape(value, ()))


@register("Trilu", domain=("", MICROSOFT))
def trilu(g: Builder, node: Node, x: Instruction, k: Instruction | None = None) -> Instruction:
    """Emit the upper or lower triangle of the last two axes, zeros elsewhere; ``k`` moves the diagonal."""
    lens = g.lens(x)
    if len(lens) < 2:
        raise ParseError(f"input has {len(lens)} dimensions, expected at least 2")
    g.limit(lens[-2] * lens[-1] + lens[-2] + lens[-1], "the triangle's mask")
    known = k is None or k.shape.is_dynamic or not known_equal(k.shape.elements, 1) or g.constants.value(k) is not None
    shift = g.int_value(k, "k") if k is not None and known else 0
    if not known or any(isinstance(n, Dim) for n in (*lens[-2:], shift)):
        across = g.pointwise("sub", g.iota(lens[-1], 1, 2), g.iota(lens[-2], 0, 2))  # may be compared with any k
        given = g.literal(shift, Type.int64_type)
        if k is not None and not known:
            given = g.reshape(g.convert(k, Type.int64_type), (1, 1))
        side = "greater_or_equal" if node.get_bool("upper", True) else "less_or_equal"
        return g.pointwise("where", g.pointwise(side, across, given), x, g.like(0, x))
    shift = max(-(1 << 31), min(1 << 31, shift))
    rows, columns = np.arange(lens[-2])[:, None], np.arange(lens[-1])[None, :]
    keep = columns - rows >= shift if node.get_bool("upper", True) else columns - rows <= shift
    return g.pointwise("where", g.literal(keep), x, g.like(0, x))


@register("ReverseSequence")
def reverse_sequence(g: Builder, node: Node, x: Instruction, lengths: Instruction) -> Instruction:
    """Reverse the first ``lengths[b]`` steps of each batch entry, by a gather along the time axis."""
    lens = g.lens(x)
    batch, time = (g.axis(node.get_int(n, d), len(lens), n) for n, d in (("batch_axis", 1), ("time_axis", 0)))
    if batch == time or max(batch, time) > 1:
        raise ParseError(f"batch_axis {batch} and time_axis {time} must be 0 and 1")
    g.limit(lens[time] * lens[batch], "the table of steps")
    steps = g.iota(lens[time], 1, 2)
    ends = g.reshape(g.convert(lengths, steps.shape.type), (lens[batch], 1))
    mirrored = g.pointwise("sub", g.pointwise("sub", ends, g.like(1, ends)), steps)
    index = g.pointwise("where", g.pointwise("less", steps, ends), *g.same_lens(mirrored, steps))
    entries = g.iota(lens[batch], 0, 2)
    both = [g.unsqueeze(i, [2]) for i in g.same_lens(entries, index)]
    order = [batch, time, *range(2, len(lens))]
    picked = g.op("gathernd", g.transpose(x, order), g.op("concat", *both, axis=2), batch_dims=0)
    return g.transpose(picked, order)
