"""Lowering rules of operators with one kernel on any back end; the back end supplies a function that makes the launch.

Also launches of kernels that read tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ...codegen.alternatives import has_lengths
from ...codegen.launch import Launch
from ...codegen.problems.cluster import Tensor
from ...codegen.resampling import changed_axes
from ...core.dim import known_in, maximum, minimum
from ...graph.instruction import Instruction
from ...ops.detection import RoiAlign
from ...ops.determinant import SolveTriangular
from ...ops.lrn import Lrn
from ...ops.resize import Resize, WindowSum
from ...ops.selection import OneHot
from .buffers import View
from .lowering import Lowering

Rule = Callable[[Lowering, Instruction], None]
ResizeLowering = Callable[[Lowering, Instruction, Resize, View], None]


def launch_with_tables(
    low: Lowering, ins: Instruction, launch: Launch, tables: Mapping[str, np.ndarray], x: View, out: View
) -> None:
    """Append a kernel with operands ``x`` and ``out`` that reads ``tables``, by name, as constants."""
    constants = {name: low.constant(array) for name, array in tables.items()}
    low.launch(launch, {"x": x, "out": out, **constants}, ins)


def lrn_rule(launch_of: Callable[[Lrn, Tensor, Tensor, str], Launch]) -> Rule:
    """Return the rule of local response normalisation: a kernel with operands ``x`` and ``out``; a fallback step for
    integers."""

    def lower_lrn(low: Lowering, ins: Instruction) -> None:
        if not ins.shape.type.is_floating:
            low.host(ins, f"kernels normalise floats, not {ins.shape.type.name}")
            return
        x, out = low.input(ins, 0), low.output(ins)
        low.launch_all(
            low.solve(launch_of, ins.operator(Lrn), x.tensor, out.tensor, low.origin(ins)), {"x": x, "out": out}, ins
        )

    return lower_lrn


def solve_triangular_rule(launch_of: Callable[[SolveTriangular, Tensor, Tensor, Tensor, str], Launch]) -> Rule:
    """Return the rule of triangular systems: a kernel with operands ``a``, ``b`` and ``out``.

    16-bit floats need a fallback step.
    """

    def lower_solve_triangular(low: Lowering, ins: Instruction) -> None:
        if ins.shape.type.compute is not ins.shape.type:
            low.host(ins, f"kernels solve systems of float32 and float64, not {ins.shape.type.name}")
            return
        operands = {"a": low.input(ins, 0), "b": low.input(ins, 1), "out": low.output(ins)}
        views = (view.tensor for view in operands.values())
        low.launch_all(low.solve(launch_of, ins.operator(SolveTriangular), *views, low.origin(ins)), operands, ins)

    return lower_solve_triangular


def onehot_rule(launch_of: Callable[[int, Tensor, Tensor, Tensor, str], Launch]) -> Rule:
    """Return the rule of one-hot encoding: a kernel with operands ``indices``, ``values`` and ``out``.

    A depth that is known only at run time needs a fallback step.
    """

    def lower_onehot(low: Lowering, ins: Instruction) -> None:
        op = ins.operator(OneHot)
        if op.depth is None:
            low.host(ins, "the depth is known at run time only")
            return
        indices, values, out = low.input(ins, 0), low.input(ins, 1), low.output(ins)
        axis = op.axis % len(out.lens)
        tensors = indices.tensor, values.tensor, out.tensor
        solution = low.solve(launch_of, axis, *tensors, low.origin(ins))
        low.launch_all(solution, {"indices": indices, "values": values, "out": out}, ins)

    return lower_onehot


def regions_rule(
    launch_of: Callable[[RoiAlign, Tensor, Tensor, Tensor, Tensor, str], Launch],
    images: Callable[[Lowering, Instruction, View], View] = lambda low, ins, x: x,
) -> Rule:
    """Return the rule of region pooling: a kernel with operands ``x``, ``rois``, ``batch``, ``scale`` and ``out``.

    Images without a pixel, and those that are not floats, need a fallback step. ``images`` may copy the images to
    another memory order.
    """

    def lower_regions(low: Lowering, ins: Instruction) -> None:
        op, (x, rois, batch) = ins.operator(RoiAlign), low.inputs(ins)
        if any(known_in(n, 0) for n in x.lens) or not (x.type.is_floating and rois.type.is_floating):
            low.host(ins, f"no kernel pools {x.type.name} {list(x.lens)} in regions of {rois.type.name}")
            return
        x, out = images(low, ins, x), low.output(ins)
        scale = low.constant(np.array([op.spatial_scale], np.float32))
        solution = low.solve(launch_of, op, x.tensor, rois.tensor, batch.tensor, out.tensor, low.origin(ins))
        low.launch_all(solution, {"x": x, "rois": rois, "batch": batch, "scale": scale, "out": out}, ins)

    return lower_regions


def resize_rule(fixed: ResizeLowering, symbolic: ResizeLowering) -> Rule:
    """Return the rule of resizing: ``fixed`` or, for symbolic lengths, ``symbolic`` appends the kernels.

    Interpolated integers, and sizes that are known only at run time, need a fallback step.
    """

    def lower_resize(low: Lowering, ins: Instruction) -> None:
        op = ins.operator(Resize)
        if len(ins.inputs) != 1:
            low.host(ins, "the sizes are known at run time only")
            return
        if op.mode != "nearest" and not ins.shape.type.is_floating:
            low.host(ins, f"kernels interpolate floats, not {ins.shape.type.name}")
            return
        x = low.input(ins, 0)
        changed = changed_axes(op, x.lens, ins.shape.lens)
        is_symbolic = has_lengths([(x.lens[a], ins.shape.lens[a], x.strides[a]) for a in changed])
        (symbolic if is_symbolic else fixed)(low, ins, op, x)

    return lower_resize


def window_sum_rule(append: Callable[[Lowering, Instruction, int, np.ndarray, np.ndarray, View, View], None]) -> Rule:
    """Return the rule of weighted sums of windows: ``append`` appends the kernel, given axis, positions and weights.

    Positions or weights that are known only at run time, and an axis whose stride is, need a fallback step.
    """

    def lower_window_sum(low: Lowering, ins: Instruction) -> None:
        axis, x = ins.operator(WindowSum).axis, low.input(ins, 0)
        positions, weights = map(low.constant_value, ins.inputs[1:])
        if positions is None or weights is None or has_lengths([x.strides[axis]]):
            low.host(ins, "positions or weights are known at run time only")
            return
        append(low, ins, axis, positions, weights, x, low.output(ins))

    return lower_window_sum


def suppression_operands(low: Lowering, ins: Instruction) -> tuple[View, View, list[View], int] | None:
    """Return boxes, scores, limits, and the maximum number of boxes kept per class.

    None if the instruction became a fallback step: no box can be kept, or scores are not floats.
    """
    boxes, scores, *limits = low.inputs(ins)
    if not limits or any(known_in(n, 0) for n in scores.lens):
        low.host(ins, "no box can be kept: there is no limit, or there are no scores")
        return None
    if not (boxes.type.is_floating and scores.type.is_floating):
        low.host(ins, f"kernels compare floats, not {boxes.type.name} and {scores.type.name}")
        return None
    count, keep = scores.lens[2], low.constant_value(ins.inputs[2])
    room = count if keep is None else maximum(1, minimum(count, int(keep.reshape(-1)[0])))
    return boxes, scores, limits, room
