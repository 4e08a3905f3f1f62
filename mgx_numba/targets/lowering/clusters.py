"""Reduction clusters, whole or in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...codegen.cluster_pieces import Division, split_cluster
from ...codegen.problems.cluster import ReductionProblem, Tensor
from ...codegen.reductions import REDUCTIONS
from ...core.shape import Shape
from ...graph.instruction import Instruction
from ...graph.module import Module
from .buffers import View
from .common import compute_pointwise
from .lowering import Lowering

__all__ = ["Divide", "lower_cluster", "lower_reduction"]

Divide = Callable[[Module, Sequence[int], Sequence[Tensor], Sequence[Tensor], int], Division | None]
"""How a cluster over axes, with these inputs and outputs, should be divided for so many workers, if it should."""


def lower_reduction(low: Lowering, ins: Instruction, divide: Divide) -> None:
    """A reduction that no cluster took: empty, over axes of length 1, or with axes known at run time."""
    axes = ins.op.axes  # type: ignore[attr-defined]
    source = ins.inputs[0].shape
    if len(ins.inputs) != 1 or not axes or 0 in source.lens or source.lens == ins.shape.lens:
        low.host(ins)
        return
    module = Module("single")
    parameter = module.add_parameter("x0", Shape(source.type, source.lens))
    module.add_return([module.add_instruction(ins.op, [parameter])])
    lower_cluster(low, ins, module, axes, [low.input(ins, 0)], [low.output(ins)], divide)


def lower_cluster(
    low: Lowering,
    ins: Instruction,
    module: Module,
    axes: Sequence[int],
    inputs: list[View],
    outputs: list[View],
    divide: Divide,
) -> None:
    """Launches for a reduction cluster, which may be only part of what the instruction computes."""
    operands = [v.tensor for v in inputs], [v.tensor for v in outputs]
    division = divide(module, axes, *operands, low.threads)
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
        lower_cluster(low, ins, rest.module, axes, taken, given, divide)
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
