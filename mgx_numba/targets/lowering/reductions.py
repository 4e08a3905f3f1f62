"""Lower reduction clusters, and single reductions as clusters with one operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...codegen.problems.cluster import ReductionProblem, Tensor
from ...codegen.reductions import REDUCTIONS
from ...core.dim import known_equal, known_in
from ...core.shape import Shape
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...ops.base import make_op
from ...ops.reduce_parts import ReduceParts
from .buffers import View
from .common import COMMON
from .lowering import Lowering

ProblemOf = Callable[[Sequence[Tensor], Sequence[Tensor]], ReductionProblem]


@COMMON.lowering("fused_reduce")
def lower_fused_reduce(low: Lowering, ins: Instruction) -> None:
    """Append the steps of the cluster's module."""
    body = ins.module_args[0]
    parts = next((i.op for i in body if isinstance(i.op, ReduceParts)), None)
    if parts is None:
        _lower(low, ins, _problem_of(low, ins, body, ins.op.axes), low.outputs_of(ins))  # type: ignore[attr-defined]
    else:
        _lower(low, ins, _problem_of_parts(low, ins, parts), low.outputs_of(ins))


@COMMON.lowering(*REDUCTIONS)
def lower_reduction(low: Lowering, ins: Instruction) -> None:
    """Append the steps of a reduction that is in no cluster: empty, over axes of length 1, or with axes known at run
    time."""
    axes = ins.op.axes  # type: ignore[attr-defined]
    source = ins.inputs[0].shape
    if len(ins.inputs) != 1 or not axes:
        low.host(ins, "the axes are known at run time only, or not listed")
        return
    if any(known_in(n, 0) for n in source.lens) or all(map(known_equal, source.lens, ins.shape.lens)):
        low.host(ins, f"nothing is to be reduced along axes {list(axes)} of {source}")
        return
    module = Module("single")
    parameter = module.add_parameter("x0", Shape(source.type, source.lens))
    module.add_return([module.add_instruction(ins.op, [parameter])])
    _lower(low, ins, _problem_of(low, ins, module, axes), [low.output(ins)])


def _problem_of(low: Lowering, ins: Instruction, module: Module, axes: Sequence[int]) -> ProblemOf:
    def problem(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> ReductionProblem:
        return ReductionProblem(
            module, tuple(axes), tuple(inputs), tuple(outputs), low.options.fast_math, low.origin(ins)
        )

    return problem


def _problem_of_parts(low: Lowering, ins: Instruction, op: ReduceParts) -> ProblemOf:
    """Return the problem of a cluster whose reductions are all split into parts along a row.

    The problem's reductions are over whole rows; its outputs are the results of the first part.
    """
    body, module = ins.module_args[0], Module(ins.module_args[0].name)
    values: dict[Instruction, Instruction] = {}
    for i in [*body.parameters(), *(i for i in body if not i.is_param)]:
        inputs = [values[v] for v in i.inputs]
        if i.is_param:
            values[i] = module.add_parameter(i.op.parameter, i.shape)  # type: ignore[attr-defined]
        elif i.literal is not None:
            values[i] = module.add_literal(i.literal)
        elif isinstance(i.op, ReduceParts):
            values[i] = module.add_instruction(make_op(i.op.operation, axes=i.op.axes), inputs)
        elif i.name == "@return":
            module.add_return(inputs)
        else:
            values[i] = module.add_instruction(i.op, inputs)

    def problem(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> ReductionProblem:
        along = op.axes[0]
        one = (Tensor(t.type, (*t.lens[:along], 1, *t.lens[along + 1 :]), t.strides) for t in outputs)
        return ReductionProblem(
            module, op.axes, tuple(inputs), tuple(one), low.options.fast_math, low.origin(ins),
            parts=op.parts, cut=op.cut, share=op.share, fold=op.fold,
        )  # fmt: skip

    return problem


def _lower(low: Lowering, ins: Instruction, problem: ProblemOf, outputs: Sequence[View]) -> None:
    """Append the steps of a cluster.

    Lent memory may have other strides than the instruction's shapes, for which a pass has rewritten the cluster. If no
    kernel takes these strides, the cluster is computed on copies with the shapes' strides.
    """
    inputs = low.inputs(ins)
    whole = problem([v.tensor for v in inputs], [v.tensor for v in outputs])
    try:
        low.compute(whole, inputs, outputs, ins)
    except UnsupportedError:
        shapes, results = [i.shape for i in ins.inputs], list(ins.shape.sub_shapes or [ins.shape])
        if all(all(map(known_equal, v.strides, s.strides)) for v, s in zip([*inputs, *outputs], [*shapes, *results])):
            raise
        own = [Tensor(s.type, s.lens, s.strides) for s in shapes]
        direct = _is_planned(low, problem(own, [v.tensor for v in outputs]))
        if not direct:  # raise before a copy is appended
            low.plan(problem(own, [Tensor(s.type, s.lens, s.strides) for s in results]))
        inputs = [low.materialized(v, s.strides, ins) for v, s in zip(inputs, shapes)]
        made = outputs if direct else [low.allocate(s) for s in results]
        low.compute(problem([v.tensor for v in inputs], [v.tensor for v in made]), inputs, made, ins)
        for source, target in zip(made, outputs):
            if source is not target:
                low.copy(source, target, ins)


def _is_planned(low: Lowering, problem: ReductionProblem) -> bool:
    try:
        low.plan(problem)
    except UnsupportedError:
        return False
    return True
