"""Lower users' operators that have a kernel."""

from __future__ import annotations

from ....codegen.cpu.kernel import cpu_kernel
from ....codegen.launch import Launch, Operand, TaskRange
from ....graph.instruction import Instruction
from ....ops.custom import CustomOperator
from ...lowering.fallback_values import has_symbols
from ...lowering.lowering import Lowering
from .table import lowering


@lowering("custom", accepts=lambda ins, shape: shape.standard)
def lower_custom(low: Lowering, ins: Instruction) -> None:
    """Append the operator's kernel over packed operands; a fallback step if it has no kernel for these shapes."""
    op = ins.operator(CustomOperator)
    if has_symbols(ins):
        low.host(ins, "kernels of custom operators are for lengths that are known when a program is compiled")
        return
    given = op.kernel_for([i.shape for i in ins.inputs], ins.shape.flatten())
    if given is None:
        low.host(ins, "the custom operator has no kernel")
        return
    inputs = [low.materialized(v, v.shape.to_standard().strides, ins) for v in low.inputs(ins)]
    operands = {f"x{k}": v for k, v in enumerate(inputs)} | {f"out{k}": v for k, v in enumerate(low.outputs_of(ins))}
    kernel = cpu_kernel(f"{op.name.replace(':', '_')}_kernel", given.text, low.origin(ins))
    addresses = tuple(map(Operand, operands))
    low.launch(Launch(kernel, (*addresses, *given.arguments), TaskRange(given.tasks)), operands, ins)
