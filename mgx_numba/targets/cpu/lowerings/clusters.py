"""Fused pointwise and reduction clusters, and single operations as clusters of one."""

from __future__ import annotations

from ....codegen.cluster.pointwise import pointwise_launch
from ....codegen.cluster.reduce import reduce_launch
from ....codegen.cluster.reductions import REDUCTIONS
from ....graph.instruction import Instruction
from ....graph.module import Module
from ....graph.shape import Shape
from ....ops.base import Pointwise, known_operators, operator_class
from ..lowering import Lowering, lowering

_SINGLE = [n for n in known_operators() if issubclass(operator_class(n), Pointwise) and n != "identity"]


@lowering("pointwise")
def lower_pointwise(low: Lowering, ins: Instruction) -> None:
    """One kernel for the cluster's module."""
    inputs, outputs = low.inputs(ins), low.outputs_of(ins)
    launch = pointwise_launch(
        ins.module_args[0],
        [v.tensor for v in inputs],
        [v.tensor for v in outputs],
        low.options.fast_math,
        low.origin(ins),
    )
    operands = {f"x{k}": v for k, v in enumerate(inputs)} | {f"out{k}": v for k, v in enumerate(outputs)}
    low.launch(launch, operands, ins)


@lowering(*_SINGLE)
def lower_single(low: Lowering, ins: Instruction) -> None:
    """A pointwise operation that no cluster took."""
    module = Module("single")
    parameters = [module.add_parameter(f"x{k}", Shape(i.shape.type)) for k, i in enumerate(ins.inputs)]
    module.add_return([module.add_instruction(ins.op, parameters)])
    inputs, target = low.inputs(ins), low.output(ins)
    launch = pointwise_launch(
        module, [v.tensor for v in inputs], [target.tensor], low.options.fast_math, low.origin(ins)
    )
    low.launch(launch, {f"x{k}": v for k, v in enumerate(inputs)} | {"out0": target}, ins)


@lowering("fused_reduce")
def lower_fused_reduce(low: Lowering, ins: Instruction) -> None:
    """One kernel for the cluster's module."""
    inputs, outputs = low.inputs(ins), low.outputs_of(ins)
    launch = reduce_launch(
        ins.module_args[0],
        ins.op.axes,  # type: ignore[attr-defined]
        [v.tensor for v in inputs],
        [v.tensor for v in outputs],
        low.options.fast_math,
        low.origin(ins),
    )
    operands = {f"x{k}": v for k, v in enumerate(inputs)} | {f"out{k}": v for k, v in enumerate(outputs)}
    low.launch(launch, operands, ins)


@lowering(*REDUCTIONS)
def lower_reduction(low: Lowering, ins: Instruction) -> None:
    """A reduction that no cluster took: empty, over axes of length 1, or with axes known at run time."""
    axes = ins.op.axes  # type: ignore[attr-defined]
    source = ins.inputs[0].shape
    if len(ins.inputs) != 1 or not axes or 0 in source.lens or source.lens == ins.shape.lens:
        low.host(ins)
        return
    module = Module("single")
    parameter = module.add_parameter("x0", Shape(source.type, source.lens))
    module.add_return([module.add_instruction(ins.op, [parameter])])
    value, target = low.input(ins, 0), low.output(ins)
    launch = reduce_launch(module, axes, [value.tensor], [target.tensor], low.options.fast_math, low.origin(ins))
    low.launch(launch, {"x0": value, "out0": target}, ins)
