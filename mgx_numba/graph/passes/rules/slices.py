"""Slices, gathers and concatenations: merged, turned into views, or undone by each other."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from ....core.dim import Length, exact_quotient, is_symbolic, known_equal, known_less_equal, known_same
from ...constants import constant_array
from ...instruction import Instruction
from ..build import RewriteBuilder
from ..causal_masks import number_of, positions
from ..match import Match, constant, op, rule, some
from .scatters import row_along
from .views import reshaped


def bounds(ins: Instruction) -> dict[int, tuple[int, int]]:
    """Start and end of a static ``slice`` by axis, not negative and within the lengths."""
    attributes = ins.op.normalized([ins.inputs[0].shape]).attributes()
    return {a: (s, e) for a, s, e in zip(attributes["axes"], attributes["starts"], attributes["ends"])}


def _slice(b: RewriteBuilder, x: Instruction, ranges: Mapping[int, tuple[Length, Length]]) -> Instruction:
    """``x`` within ranges; ranges of whole axes are left out."""
    kept = {a: r for a, r in sorted(ranges.items()) if not known_same(r, (0, x.shape.lens[a]))}
    if not kept:
        return x
    starts, ends = zip(*kept.values())
    return b.op("slice", x, axes=tuple(kept), starts=starts, ends=ends)


@rule("nested_slice", op("slice", op("slice", some("x"), bind="inner")), exact=True)
def nested_slices(m: Match, b: RewriteBuilder) -> object:
    ranges = dict(bounds(m.inner))
    for axis, (start, end) in bounds(m.ins).items():
        offset = ranges.get(axis, (0, 0))[0]
        ranges[axis] = (offset + start, offset + end)
    return _slice(b, m.x, ranges)  # slice(slice(x)) -> slice(x)


@rule("slice_concat", op("slice", op("concat", bind="whole")), exact=True)
def slice_of_concat(m: Match, b: RewriteBuilder) -> object:
    ranges = bounds(m.ins)
    axis = m.whole.op.attributes()["axis"]
    if axis not in ranges:
        return "the slice is along another axis than the concat"
    low, high = ranges.pop(axis)
    parts, start = [], 0
    for part in m.whole.inputs:
        end = start + part.shape.lens[axis]
        if known_less_equal(high, start) or known_less_equal(end, low):
            pass
        elif known_less_equal(low, start) and known_less_equal(end, high):
            parts.append((part, 0, end - start))
        elif known_less_equal(start, low) and known_less_equal(high, end):
            parts.append((part, low - start, high - start))
        else:
            return "a part would be cut"
        start = end
    if not parts or len(parts) == len(m.whole.inputs):
        return "the slice spans every part"
    pieces = [_slice(b, part, {**ranges, axis: (first, last)}) for part, first, last in parts]
    # slice(concat(..., x, ...)) -> slice(x)
    return pieces[0] if len(pieces) == 1 else b.op("concat", *pieces, axis=axis)


@rule("slice_reshape", op("reshape", op("slice", some("x"), bind="part")), exact=True)
def reshape_of_slice(m: Match, b: RewriteBuilder) -> object:
    """``reshape(slice(x)) -> slice(reshape(x))`` where the reshape only splits the sliced axis: that needs no copy."""
    ranges = bounds(m.part)
    old, new = m.part.shape.lens, m.ins.shape.lens
    if m.part.shape.standard or not m.x.shape.standard or len(ranges) != 1:
        return "the reshape is a view already, or would copy anyway"
    ((axis, (start, end)),) = ranges.items()
    split = len(new) - len(old) + 1
    if split < 2 or not known_same((*new[:axis], *new[axis + split :]), (*old[:axis], *old[axis + 1 :])):
        return "the reshape does more than split the sliced axis"
    inner = prod(new[axis + 1 : axis + split])
    whole, start, end = (exact_quotient(n, inner) for n in (m.x.shape.lens[axis], start, end))
    if whole is None or start is None or end is None:
        return "the slice does not begin and end with whole parts"
    return _slice(b, b.reshape(m.x, (*new[:axis], whole, *new[axis + 1 :])), {axis: (start, end)})


@rule("nested_concat", op("concat"), exact=True)
def nested_concats(m: Match, b: RewriteBuilder) -> object:
    axis = m.ins.op.attributes()["axis"]

    user = next(iter(m.ins.users), None)
    if user is not None and user.name == "concat" and user.op == m.ins.op and m.ins.single_use:
        return "the concat that takes it takes its parts"
    flat: list[Instruction] = []
    pending = list(reversed(m.ins.inputs))
    while pending:
        part = pending.pop()
        if part.name == "concat" and part.op.attributes()["axis"] == axis and part.single_use:
            pending.extend(reversed(part.inputs))
        else:
            flat.append(part)
    flat = [p for p in flat if not known_equal(p.shape.lens[axis], 0)] or flat[:1]
    if len(flat) == 1:
        return flat[0]  # concat(x) -> x
    if flat == m.ins.inputs:
        return None
    return b.op("concat", *flat, axis=axis)  # concat(concat(x, y), z) -> concat(x, y, z)


@rule("concat_slice", op("concat"), exact=True)
def concat_of_slices(m: Match, b: RewriteBuilder) -> object:
    axis = m.ins.op.attributes()["axis"]
    merged: list[Instruction] = []
    for part in m.ins.inputs:
        joined = _adjacent(b, merged[-1], part, axis) if merged else None
        if joined is None:
            merged.append(part)
        else:
            merged[-1] = joined
    if len(merged) == len(m.ins.inputs):
        return None
    return merged[0] if len(merged) == 1 else b.op("concat", *merged, axis=axis)  # concat(x[a:b], x[b:c]) -> x[a:c]


def _adjacent(b: RewriteBuilder, left: Instruction, right: Instruction, axis: int) -> Instruction | None:
    if left.name != "slice" or right.name != "slice" or left.inputs != right.inputs or len(left.inputs) != 1:
        return None
    first, second = bounds(left), bounds(right)
    if axis not in first or first.keys() != second.keys() or not known_equal(first[axis][1], second[axis][0]):
        return None
    if not all(known_same(r, second[a]) for a, r in first.items() if a != axis):
        return None
    return _slice(b, left.inputs[0], {**first, axis: (first[axis][0], second[axis][1])})


@rule("concat_transpose", op("concat"), exact=True)
def concat_of_transposes(m: Match, b: RewriteBuilder) -> object:
    first = m.ins.inputs[0]
    if first.name != "transpose" or any(p.op != first.op for p in m.ins.inputs):
        return None
    if any(len(p.users) > 1 for p in m.ins.inputs):
        return "a transposed part is used elsewhere too"
    permutation = first.op.attributes()["permutation"]
    joined = b.op("concat", *(p.inputs[0] for p in m.ins.inputs), axis=permutation[m.ins.op.attributes()["axis"]])
    return b.transpose(joined, permutation)  # concat(transpose(x), transpose(y)) -> transpose(concat(x, y))


@rule("gather", op("gather", some("x"), constant("indices")), exact=True)
def gather_of_range(m: Match, b: RewriteBuilder) -> object:
    axis = m.ins.op.attributes()["axis"] % m.x.shape.ndim
    values = constant_array(m.indices)
    length = m.x.shape.lens[axis]
    if values is None or values.size == 0 or m.indices.shape.symbolic:
        return "indices are not a range"
    if is_symbolic(length):
        return _gather_of_symbolic(m, b, axis, values.astype(np.int64).reshape(-1))
    if values.size > length:
        return "indices are not a range"
    flat = values.astype(np.int64).reshape(-1)
    flat = np.where(flat < 0, flat + length, flat)
    if flat[0] < 0 or flat[-1] >= length:
        return "an index is out of range"
    steps = np.diff(flat)
    if steps.size and ((steps != steps[0]).any() or steps[0] < 1):
        return "indices are not an ascending range"
    step = int(steps[0]) if steps.size else 1
    start, last = int(flat[0]), int(flat[-1])
    part = _slice(b, m.x, {axis: (start, last + 1)})
    if step != 1:
        part = b.op("step", part, axes=(axis,), steps=(step,))
    if m.indices.shape.without_axes:
        return b.op("squeeze", part, axes=(axis,))  # gather(x, i) -> squeeze(x[i:i+1])
    return reshaped(b, part, m.ins.shape.lens)  # gather(x, [i, i+1, ...]) -> x[i:j]


def _gather_of_symbolic(m: Match, b: RewriteBuilder, axis: int, indices: np.ndarray) -> object:
    """``gather(x, [i, i+1, ...]) -> x[i:j]`` along an axis of symbolic length, with indices that it always has."""
    length = m.x.shape.lens[axis]
    if (np.diff(indices) != 1).any() or indices[0] < 0 <= indices[-1]:
        return "indices are not neighbours"
    start = int(indices[0]) + (length if indices[0] < 0 else 0)
    end = start + indices.size
    if not (known_less_equal(0, start) and known_less_equal(end, length)):
        return "an index may be out of range"
    part = _slice(b, m.x, {axis: (start, end)})
    if m.indices.shape.without_axes:
        return b.op("squeeze", part, axes=(axis,))
    return reshaped(b, part, m.ins.shape.lens)


@rule("gathernd_range", op("gathernd", some("x"), some("indices")), exact=True)
def gathernd_of_ranges(m: Match, b: RewriteBuilder) -> object:
    """``out[..., i, ..., j] = x[i + start, j + start]``, as exporters write ``x[arange[:, None], arange]``: a slice of
    ``x``, transposed and broadcast."""
    rank, depth = m.indices.shape.ndim - 1, m.indices.shape.lens[-1]
    if m.ins.op.attributes()["batch_dims"] or not rank:
        return "there are tuples of each batch, or one tuple"
    ranges: dict[int, tuple[Length, Length]] = {}
    axes: dict[int, int] = {}  # of ``x``, by the axis of the result that counts them
    for k in range(depth):
        counted = _counted(m.indices, k)
        if counted is None:
            return "an index is neither the same for all tuples nor counts along one axis"
        start, axis = counted
        if axis in axes:
            return "two indices count along one axis"
        end = start + (1 if axis is None else m.indices.shape.lens[axis])
        if not (known_less_equal(0, start) and known_less_equal(end, m.x.shape.lens[k])):
            return "an index may be out of range"
        ranges[k] = (start, end)
        if axis is not None:
            axes[axis] = k
    order = [axes[a] for a in sorted(axes)]
    fixed = [k for k in range(depth) if k not in order]
    part = b.transpose(_slice(b, m.x, ranges), [*order, *fixed, *range(depth, m.x.shape.ndim)])
    counts = [m.ins.shape.lens[a] if a in axes else 1 for a in range(rank)]
    return b.broadcast(reshaped(b, part, (*counts, *m.ins.shape.lens[rank:])), m.ins.shape.lens)


def _counted(indices: Instruction, k: int) -> tuple[Length, int | None] | None:
    """Return the first value of index ``k`` of tuples, and the axis along which it counts upwards; None for the axis of
    an index that all tuples share. Return None for any other index."""
    rank = indices.shape.ndim - 1
    values = None if indices.shape.symbolic else constant_array(indices)
    if values is not None:
        counted = values[..., k].astype(np.int64)
        if counted.size and (counted == counted.flat[0]).all():
            return int(counted.flat[0]), None
        rows = ((row_along(counted, axis), axis) for axis in range(rank))
        return next(((int(r[0]), a) for r, a in rows if r is not None and (np.diff(r) == 1).all()), None)
    if indices.name != "concat" or len(indices.inputs) != indices.shape.lens[-1]:
        return None
    if indices.op.attributes()["axis"] % indices.shape.ndim != rank:
        return None
    column = indices.inputs[k]
    number = number_of(column)
    if number is not None:
        return number, None
    found = ((positions(column, axis - rank - 1), axis) for axis in range(rank))
    return next(((start, axis) for start, axis in found if start is not None), None)


SLICE_RULES = (
    nested_slices,
    slice_of_concat,
    reshape_of_slice,
    nested_concats,
    concat_of_slices,
    concat_of_transposes,
    gather_of_range,
    gathernd_of_ranges,
)
