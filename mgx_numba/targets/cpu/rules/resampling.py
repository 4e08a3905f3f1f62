"""Lower padding and resizing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ....codegen.alternatives import has_lengths
from ....codegen.cpu.data.copies import indexed_launch
from ....codegen.cpu.data.pad import border_launch, has_short_rows, pad_launch, remap_launch
from ....codegen.cpu.data.resize import (
    nearest_positions,
    open_axes,
    open_resize_launch,
    pad_positions,
    resize_launch,
    tap_positions,
    window_sum_launch,
)
from ....codegen.launch import Launch
from ....codegen.problems.indexed_copy import remapped_copy
from ....codegen.resampling import taps_of
from ....core.dim import Length, known_in, known_less_equal
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.integer import PadWith
from ....ops.pad import Pad, PadMode
from ....ops.resize import Resize
from ...lowering.buffers import View
from ...lowering.gathers import lower_reverse
from ...lowering.launched import launch_with_tables, resize_rule, window_sum_rule
from ...lowering.lowering import Lowering
from ...lowering.output_aliasing import inside_of, keeps_inner_axis
from .table import lowering


@lowering("pad", accepts=keeps_inner_axis, surrounds=True)
def lower_pad(low: Lowering, ins: Instruction) -> None:
    """Append one kernel that copies and fills, or a copy through tables; only fills if the input was written in
    place."""
    op = ins.operator(Pad)
    x, out = low.input(ins, 0), low.output(ins)
    rank = len(x.lens)
    if op.mode is PadMode.constant:
        value = op.filling(x.type)
        inside = inside_of(ins, out)
        if inside is not None and (x.buffer, x.offset) == (inside.buffer, inside.offset):
            _launch(low, ins, {"out": out}, border_launch, op.pads[:rank], value, inside.tensor, out.tensor)
            return
        grows = all(known_less_equal(0, n) for n in op.pads) and not has_lengths((op.pads, x.lens, out.lens))
        if grows and has_short_rows(op.pads[:rank], x.tensor, out.tensor):
            _fill_and_copy(low, ins, op.pads[:rank], value, x, out)
            return
        _launch(low, ins, {"x": x, "out": out}, pad_launch, op.pads[:rank], value, x.tensor, out.tensor)
        return
    pairs = list(zip(op.pads[:rank], op.pads[rank:]))
    moved = [
        (n, pair, step) for n, pair, step in zip(x.lens, pairs, x.strides) if not all(known_in(p, 0) for p in pair)
    ]
    if has_lengths(moved):
        _pad_open(low, ins, op, pairs, x, out)
        return
    positions = {a: op.positions(x.lens[a], *pair) for a, pair in enumerate(pairs) if any(pair)}
    launch_with_tables(low, ins, *remap_launch("pad_kernel", positions, x.tensor, out.tensor, low.origin(ins)), x, out)


def _pad_open(
    low: Lowering, ins: Instruction, op: Pad, pairs: Sequence[tuple[Length, Length]], x: View, out: View
) -> None:
    """Append a copy through tables, which kernels compute from symbolic lengths."""
    axes = [a for a, pair in enumerate(pairs) if not all(known_in(p, 0) for p in pair)]
    tables = {}
    for axis in axes:
        table = tables[f"table{axis}"] = low.allocate(Shape(Type.int64_type, (out.lens[axis],)))
        numbers = x.lens[axis], pairs[axis][0], out.lens[axis], x.strides[axis]
        _launch(low, ins, {"index": table}, pad_positions, op.mode, *numbers)
    _copy_through(low, ins, "pad_kernel", tables, axes, x, out)


def _copy_through(
    low: Lowering, ins: Instruction, name: str, tables: Mapping[str, View], axes: Sequence[int], x: View, out: View
) -> None:
    """Append a copy that reads positions along ``axes`` from tables."""
    copy = remapped_copy(name, axes, x.tensor, out.tensor, low.origin(ins))
    low.launch_all(low.solve(indexed_launch, copy), {"x": x, "out": out, **tables}, ins)


@lowering("pad_with", accepts=keeps_inner_axis, surrounds=True)
def lower_pad_with(low: Lowering, ins: Instruction) -> None:
    """Append one kernel that copies and fills; only fills if the input was written in place."""
    x, value, out = low.input(ins, 0), low.input(ins, 1), low.output(ins)
    before, inside = ins.operator(PadWith).pads[: len(x.lens)], inside_of(ins, out)
    if inside is not None and (x.buffer, x.offset) == (inside.buffer, inside.offset):
        _launch(low, ins, {"value": value, "out": out}, border_launch, before, None, inside.tensor, out.tensor)
        return
    _launch(low, ins, {"x": x, "value": value, "out": out}, pad_launch, before, None, x.tensor, out.tensor)


def _launch(
    low: Lowering, ins: Instruction, operands: Mapping[str, View], planner: Callable[..., Launch], *arguments: object
) -> None:
    """Append the launches that a planner makes of its arguments."""
    low.launch_all(low.solve(planner, *arguments, low.origin(ins)), operands, ins)


def _fill_and_copy(
    low: Lowering, ins: Instruction, before: Sequence[int], value: np.ndarray, x: View, out: View
) -> None:
    """Append a fill of the whole result, then a copy of the input to its window."""
    one = low.constant(value.reshape(1))
    low.copy(one.with_shape(Shape(x.type, out.lens, [0] * len(out.lens))), out, ins)
    start = sum(n * s for n, s in zip(before, out.strides))
    low.copy(x, out.with_shape(Shape(x.type, x.lens, out.strides), start), ins)


@lowering("fixed_pad", accepts=keeps_inner_axis)
def lower_fixed_pad(low: Lowering, ins: Instruction) -> None:
    """Append one kernel that copies and fills."""
    x, out = low.input(ins, 0), low.output(ins)
    value = np.zeros((), x.type.numpy)
    _launch(low, ins, {"x": x, "out": out}, pad_launch, [0] * len(x.lens), value, x.tensor, out.tensor)


def _resize_fixed(low: Lowering, ins: Instruction, op: Resize, x: View) -> None:
    """Append one kernel and its tables."""
    out = low.output(ins)
    if not op.samples(x.lens):
        low.copy(x, out, ins)
        return
    launch_with_tables(low, ins, *resize_launch(op, x.tensor, out.tensor, low.origin(ins)), x, out)


def _resize_open(low: Lowering, ins: Instruction, op: Resize, x: View) -> None:
    """Append the kernels of a resize with symbolic lengths: one for each axis' table, and one that reads the tables."""
    out = low.output(ins)
    axes = open_axes(op, x.tensor, out.tensor)
    made, tables = x.type.compute, {}
    for axis, resampled in axes.items():
        if op.mode == "nearest":
            index = tables[f"table{axis}"] = low.allocate(Shape(Type.int64_type, (resampled.room,)))
            _launch(low, ins, {"index": index}, nearest_positions, op, resampled)
            continue
        lens = (taps_of(op) * resampled.room,)
        index = tables[f"index{axis}"] = low.allocate(Shape(Type.int64_type, lens))
        weight = tables[f"weight{axis}"] = low.allocate(Shape(made, lens))
        _launch(low, ins, {"index": index, "weight": weight}, tap_positions, op, resampled, made.dtype_name)
    if op.mode == "nearest":
        _copy_through(low, ins, "resize_nearest_kernel", tables, list(axes), x, out)
        return
    solution = low.solve(open_resize_launch, op, x.tensor, out.tensor, low.origin(ins))
    low.launch_all(solution, {"x": x, "out": out, **tables}, ins)


def _window_sum(
    low: Lowering, ins: Instruction, axis: int, positions: np.ndarray, weights: np.ndarray, x: View, out: View
) -> None:
    """Append one kernel and its tables."""
    made = window_sum_launch(axis, positions, weights, x.tensor, out.tensor, low.origin(ins))
    launch_with_tables(low, ins, *made, x, out)


lowering("window_sum", accepts=keeps_inner_axis)(window_sum_rule(_window_sum))
lowering("resize", accepts=keeps_inner_axis)(resize_rule(_resize_fixed, _resize_open))
lowering("reverse", accepts=keeps_inner_axis)(lower_reverse)
