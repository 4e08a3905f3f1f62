"""Epilogues: the pointwise operations after a contraction, printed for its tile loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.instruction import Instruction
from ...graph.module import Module
from ...ops.base import Pointwise
from ..contraction.problem import Epilogue, EpilogueOperand
from ..cpu.source import CodeBuffer, VectorPrinter, VectorValue
from .text import dtype_name

__all__ = ["epilogue_parameters", "print_epilogue"]


def epilogue_parameters(module: Module, contraction: Instruction) -> list[Instruction]:
    """Parameters that operations after the contraction read, in order of declaration."""
    return [p for p in module.parameters() if any(user is not contraction for user in p.users)]


def print_epilogue(
    module: Module, contraction: Instruction, access: Sequence[str], lanes: int, fast_math: bool
) -> Epilogue:
    """The epilogue of a ``fused_contraction`` module.

    Args:
        module: the contraction and the pointwise operations after it; one result.
        contraction: the contraction inside of the module.
        access: for each of the ``epilogue_parameters``, in order, how it varies over the result: ``full``, ``per_n``,
            ``per_m`` or ``scalar``.
        lanes: lanes of the accumulators.
        fast_math: whether functions may differ by 4 units in the last place.
    """
    buffer = CodeBuffer()
    printer = VectorPrinter(buffer, lanes, fast_math=fast_math)
    values: dict[Instruction, Any] = {contraction: VectorValue("acc", contraction.shape.type)}
    extras = epilogue_parameters(module, contraction)
    for k, parameter in enumerate(extras):
        values[parameter] = printer.loaded(f"e{k}", parameter.shape.type)
    for ins in module:
        if ins in values:
            continue
        if ins.literal is not None:
            values[ins] = printer.const(ins.literal.numpy().reshape(-1)[0].item(), ins.shape.type)
        elif ins.name == "multibroadcast" and ins.inputs[0].is_literal:
            values[ins] = values[ins.inputs[0]]
        elif isinstance(ins.op, Pointwise):
            values[ins] = ins.op.scalar(printer, *(values[i] for i in ins.inputs))
    result = module.results()[0]
    stored = printer.stored(values[result])
    names = [i.name for i in module if isinstance(i.op, Pointwise)]
    return Epilogue(
        operands=tuple(EpilogueOperand(dtype_name(p.shape.type), a) for p, a in zip(extras, access)),
        lines=tuple(buffer.drain()),
        result=stored,
        dtype=dtype_name(result.shape.type),
        name="_".join(names)[:64],
    )
