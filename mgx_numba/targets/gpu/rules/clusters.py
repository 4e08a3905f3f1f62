"""Reduction clusters, and single reductions as clusters of one."""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.problems.cluster import ReductionProblem
from ....codegen.reductions import REDUCTIONS
from ....core.shape import Shape
from ....graph.instruction import Instruction
from ....graph.module import Module
from ...lowering.buffers import View
from ...lowering.lowering import Lowering
from .table import lowering


@lowering("fused_reduce")
def lower_fused_reduce(low: Lowering, ins: Instruction) -> None:
    """One kernel for the cluster's module."""
    inputs, outputs = low.inputs(ins), low.outputs_of(ins)
    _reduction(low, ins, ins.module_args[0], ins.op.axes, inputs, outputs)  # type: ignore[attr-defined]


@lowering(*REDUCTIONS)
def lower_reduction(low: Lowering, ins: Instruction) -> None:
    """A reduction that no cluster took: empty, over axes of length 1, or with axes known at run time."""
    axes = ins.op.axes  # type: ignore[attr-defined]
    source = ins.inputs[0].shape
    if len(ins.inputs) != 1 or not axes:
        low.host(ins, "its axes are known at run time only")
        return
    if 0 in source.lens or source.lens == ins.shape.lens:
        low.host(ins, "there is nothing to reduce")
        return
    module = Module("single")
    parameter = module.add_parameter("x0", Shape(source.type, source.lens))
    module.add_return([module.add_instruction(ins.op, [parameter])])
    _reduction(low, ins, module, axes, [low.input(ins, 0)], [low.output(ins)])


def _reduction(
    low: Lowering, ins: Instruction, module: Module, axes: Sequence[int], inputs: list[View], outputs: list[View]
) -> None:
    tensors = tuple(v.tensor for v in inputs), tuple(v.tensor for v in outputs)
    problem = ReductionProblem(module, tuple(axes), *tensors, low.options.fast_math, low.origin(ins))
    low.compute(problem, inputs, outputs, ins)
