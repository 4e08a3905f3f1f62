"""Reduction clusters, and single reductions as clusters of one."""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.cpu.cluster.split import Division, division_of, split_cluster
from ....codegen.problems.cluster import ReductionProblem, Tensor
from ....codegen.reductions import REDUCTIONS
from ....core.shape import Shape
from ....graph.instruction import Instruction
from ....graph.module import Module
from ...lowering.buffers import View
from ...lowering.common import compute_pointwise
from ...lowering.lowering import Lowering
from .table import lowering


@lowering("fused_reduce")
def lower_fused_reduce(low: Lowering, ins: Instruction) -> None:
    """One kernel for the cluster's module, or several if it has few rows."""
    inputs, outputs = low.inputs(ins), low.outputs_of(ins)
    lower_cluster(low, ins, ins.module_args[0], ins.op.axes, inputs, outputs)  # type: ignore[attr-defined]


@lowering(*REDUCTIONS)
def lower_reduction(low: Lowering, ins: Instruction) -> None:
    """A reduction that no cluster took: empty, over axes of length 1, or with axes known at run time."""
    axes = ins.op.axes  # type: ignore[attr-defined]
    source = ins.inputs[0].shape
    if len(ins.inputs) != 1 or not axes:
        low.host(ins, "the axes are known at run time only, or not listed")
        return
    if 0 in source.lens or source.lens == ins.shape.lens:
        low.host(ins, f"nothing is to be reduced along axes {list(axes)} of {source}")
        return
    module = Module("single")
    parameter = module.add_parameter("x0", Shape(source.type, source.lens))
    module.add_return([module.add_instruction(ins.op, [parameter])])
    value, target = low.input(ins, 0), low.output(ins)
    lower_cluster(low, ins, module, axes, [value], [target])


def lower_cluster(
    low: Lowering, ins: Instruction, module: Module, axes: Sequence[int], inputs: list[View], outputs: list[View]
) -> None:
    """Launches for a reduction cluster, which may be only part of what the instruction computes."""
    operands = [v.tensor for v in inputs], [v.tensor for v in outputs]
    division = division_of(module, axes, *operands, low.threads)
    if division is None:
        _reduction(low, ins, module, axes, inputs, outputs)
        return
    partial, combined, rest = split_cluster(module, axes, division.parts * division.fold)
    values = dict(zip(module.parameters(), inputs))
    ends = dict(zip(module.results(), outputs))

    taken = [values[v] for v in partial.takes]
    sums = partial.module.results()
    pieces = [_pieces(low, s.shape, division) for s in sums]
    one = [Tensor(v.type, v.lens[1:], v.strides[1:]) for v in pieces]
    problem = ReductionProblem(
        partial.module,
        tuple(axes),
        tuple(v.tensor for v in taken),
        tuple(one),
        low.options.fast_math,
        low.origin(ins),
        division.parts,
        division.fold,
    )
    low.compute(problem, taken, pieces, ins)

    for v in combined.gives:
        values[v] = ends.get(v) or low.allocate(Shape(v.shape.type, v.shape.lens))
    taken = [*pieces, *(_with_first_axis(values[v]) for v in combined.takes[len(pieces) :])]
    given = [_with_first_axis(values[v]) for v in combined.gives]
    _reduction(low, ins, combined.module, (0,), taken, given)

    if rest is None:
        return
    taken, given = [values[v] for v in rest.takes], [ends[v] for v in rest.gives]
    if any(i.name in REDUCTIONS for i in rest.module):
        lower_cluster(low, ins, rest.module, axes, taken, given)
        return
    taken = [_spread(v, given[0].lens) for v in taken]
    compute_pointwise(low, ins, rest.module, taken, given)


def _reduction(
    low: Lowering, ins: Instruction, module: Module, axes: Sequence[int], inputs: list[View], outputs: list[View]
) -> None:
    tensors = tuple(v.tensor for v in inputs), tuple(v.tensor for v in outputs)
    problem = ReductionProblem(module, tuple(axes), *tensors, low.options.fast_math, low.origin(ins))
    low.compute(problem, inputs, outputs, ins)


def _pieces(low: Lowering, shape: Shape, division: Division) -> View:
    """Memory for what is made in pieces, along a new first axis."""
    pieces, order = division.parts * division.fold, (0, *(a + 1 for a in division.order))
    view = low.allocate(Shape.from_permutation(shape.type, (pieces, *shape.lens), order))
    if division.parts > 1 or division.fold == 1:
        return view
    strides = [s if s < division.columns else s * division.fold for s in view.strides[1:]]
    return view.with_shape(Shape(shape.type, view.lens, (division.columns, *strides)))


def _with_first_axis(view: View) -> View:
    """The tensor with one more axis of length 1 before its own."""
    return view.with_shape(Shape(view.type, (1, *view.lens), (0, *view.strides)))


def _spread(view: View, lens: tuple[int, ...]) -> View:
    """The tensor repeated along axes on which it has length 1."""
    strides = [s if n == m else 0 for n, m, s in zip(view.lens, lens, view.strides)]
    return view.with_shape(Shape(view.type, lens, strides))
