"""Lower padding, resizing, pooling and local response normalisation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....codegen.gpu.data.col2im import col2im_launch
from ....codegen.gpu.data.lrn import lrn_launch
from ....codegen.gpu.data.pad import pad_launch
from ....codegen.gpu.data.pooling import WindowAxis, pooling_launch
from ....codegen.gpu.data.resize import (
    interpolation_launch,
    interpolation_tables,
    nearest_positions,
    tap_positions,
    window_sum_tables,
)
from ....codegen.gpu.data.substitution import solve_triangular_launch
from ....codegen.problems.indexed_copy import remapped_copy, remapping
from ....codegen.resampling import resampled_axes, taps_of
from ....core.dim import known_in
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.col2im import Col2Im
from ....ops.integer import PadWith
from ....ops.pad import Pad, PadMode
from ....ops.pooling import Pooling, PoolingMode
from ....ops.resize import Resize, nearest_index
from ...lowering.buffers import View
from ...lowering.gathers import lower_reverse
from ...lowering.launched import launch_with_tables, lrn_rule, resize_rule, solve_triangular_rule, window_sum_rule
from ...lowering.lowering import Lowering
from ...lowering.output_aliasing import keeps_inner_axis
from .table import lowering

lowering("reverse", accepts=keeps_inner_axis)(lower_reverse)


@lowering("pad", accepts=keeps_inner_axis)
def lower_pad(low: Lowering, ins: Instruction) -> None:
    """Append one kernel that fills around a copy, or reads positions from tables."""
    op, data = ins.operator(Pad), low.input(ins, 0)
    rank = len(data.lens)
    if op.mode is PadMode.constant:
        _pad(low, ins, op.pads[:rank], op.filling(data.type))
        return
    pairs = list(zip(op.pads[:rank], op.pads[rank:]))
    _remap(low, ins, "pad_kernel", {a: op.positions(data.lens[a], *pair) for a, pair in enumerate(pairs) if any(pair)})


@lowering("pad_with", accepts=keeps_inner_axis)
def lower_pad_with(low: Lowering, ins: Instruction) -> None:
    """Append one kernel."""
    data, value, out = low.input(ins, 0), low.input(ins, 1), low.output(ins)
    before = ins.operator(PadWith).pads[: len(data.lens)]
    solution = low.solve(pad_launch, before, None, data.tensor, out.tensor, low.origin(ins))
    low.launch_all(solution, {"x": data, "value": value, "out": out}, ins)


@lowering("fixed_pad", accepts=keeps_inner_axis)
def lower_fixed_pad(low: Lowering, ins: Instruction) -> None:
    """Append one kernel."""
    data = low.input(ins, 0)
    _pad(low, ins, (0,) * len(data.lens), np.zeros((), data.type.numpy))


def _pad(low: Lowering, ins: Instruction, before: tuple[int, ...], value: np.ndarray) -> None:
    """Append the kernel that copies the input to offset ``before`` of the result and fills the rest with ``value``."""
    data, out = low.input(ins, 0), low.output(ins)
    if not out.lens:
        low.copy(data, out, ins)
        return
    solution = low.solve(pad_launch, before, value, data.tensor, out.tensor, low.origin(ins))
    low.launch_all(solution, {"x": data, "out": out}, ins)


def _resize_fixed(low: Lowering, ins: Instruction, op: Resize, x: View) -> None:
    """Append one kernel and its tables."""
    if op.mode == "nearest" or not op.samples(x.lens):
        positions = {axis: nearest_index(op.nearest_mode, at, x.lens[axis]) for axis, at in op.samples(x.lens)}
        _remap(low, ins, "resize_nearest_kernel", positions)
        return
    axes, tables = interpolation_tables(op, x.tensor)
    out = low.output(ins)
    launch = interpolation_launch(_name(op), taps_of(op), axes, x.tensor, out.tensor, low.origin(ins))
    launch_with_tables(low, ins, launch, tables, x, out)


def _resize_open(low: Lowering, ins: Instruction, op: Resize, x: View) -> None:
    """Append the kernels of a resize with symbolic lengths: one for each axis' table, and one that reads the tables."""
    out, compute, tables = low.output(ins), x.type.compute, dict[str, View]()
    axes = resampled_axes(op, x.tensor, out.tensor)
    origin = low.origin(ins)
    for axis, resampled in axes.items():
        if op.mode == "nearest":
            index = tables[f"table{axis}"] = low.allocate(Shape(Type.int64_type, (resampled.count,)))
            low.launch_all(low.solve(nearest_positions, op, resampled, origin), {"index": index}, ins)
            continue
        lens = (taps_of(op) * resampled.count,)
        index = tables[f"index{axis}"] = low.allocate(Shape(Type.int64_type, lens))
        weight = tables[f"weight{axis}"] = low.allocate(Shape(compute, lens))
        solution = low.solve(tap_positions, op, resampled, compute.dtype_name, origin)
        low.launch_all(solution, {"index": index, "weight": weight}, ins)
    operands = {"x": x, "out": out, **tables}
    if op.mode == "nearest":
        copy = remapped_copy("resize_nearest_kernel", list(axes), x.tensor, out.tensor, origin)
        low.launch_all(low.solve(low.backend.plan, copy), operands, ins)
        return
    solution = low.solve(interpolation_launch, _name(op), taps_of(op), list(axes), x.tensor, out.tensor, origin)
    low.launch_all(solution, operands, ins)


def _name(op: Resize) -> str:
    return f"resize_{op.mode}_kernel"


def _window_sum(
    low: Lowering, ins: Instruction, axis: int, positions: np.ndarray, weights: np.ndarray, x: View, out: View
) -> None:
    """Append one kernel and its tables."""
    taps, origin = positions.shape[1], low.origin(ins)
    launch = interpolation_launch("window_sum_kernel", taps, [axis], x.tensor, out.tensor, origin)
    launch_with_tables(low, ins, launch, window_sum_tables(axis, positions, weights, x.tensor), x, out)


lowering("window_sum", accepts=keeps_inner_axis)(window_sum_rule(_window_sum))


lowering("resize", accepts=keeps_inner_axis)(resize_rule(_resize_fixed, _resize_open))


def _remap(low: Lowering, ins: Instruction, name: str, positions: Mapping[int, np.ndarray]) -> None:
    """Append a copy that reads positions along some axes from tables."""
    x, out = low.input(ins, 0), low.output(ins)
    if not positions:
        low.copy(x, out, ins)
        return
    problem, tables = remapping(name, positions, x.tensor, out.tensor, low.origin(ins))
    for launch in low.solve(low.backend.plan, problem).launches:
        launch_with_tables(low, ins, launch, tables, x, out)


@lowering("pooling", accepts=keeps_inner_axis)
def lower_pooling(low: Lowering, ins: Instruction) -> None:
    """Append one kernel."""
    op, data = ins.operator(Pooling), low.input(ins, 0)
    if op.mode is PoolingMode.lpnorm and op.lp_order < 1:
        low.host(ins, f"kernels compute norms of order 1 and more, not {op.lp_order}")
        return
    if any(known_in(n, 0) for n in data.lens):  # clamping an index to an empty axis gives -1
        low.host(ins, "windows of an image without pixels")
        return
    spatial = data.lens[2:]
    if op.dyn_global:
        windows = [WindowAxis(n, 1, 1, 0, 0) for n in spatial]
    else:
        geometry = zip(op.lengths, op.stride, op.dilations, op.pads(spatial))
        windows = [WindowAxis(size, stride, dilation, *pads) for size, stride, dilation, pads in geometry]
    out = low.output(ins)
    solution = low.solve(pooling_launch, op, windows, data.tensor, out.tensor, low.origin(ins))
    low.launch_all(solution, {"x": data, "out": out}, ins)


lowering("lrn", accepts=keeps_inner_axis)(lrn_rule(lrn_launch))
lowering("solve_triangular", accepts=keeps_inner_axis)(solve_triangular_rule(solve_triangular_launch))


@lowering("col2im", accepts=keeps_inner_axis)
def lower_col2im(low: Lowering, ins: Instruction) -> None:
    """Append one kernel."""
    op, x, out = ins.operator(Col2Im), low.input(ins, 0), low.output(ins)
    if x.type is Type.bool_type:
        low.host(ins, "kernels add no booleans")
        return
    launch = low.solve(col2im_launch, op, x.tensor, out.tensor, low.origin(ins))
    low.launch_all(launch, {"x": x, "out": out}, ins)
