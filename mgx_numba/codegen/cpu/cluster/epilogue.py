"""Prologues and epilogues: the pointwise operations around a contraction, printed for the loops of its kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ....graph.instruction import Instruction
from ....graph.module import Module
from ....graph.passes.prologue import varies_over_pixels
from ....ops.base import Pointwise
from ...problems.epilogue import Epilogue, EpilogueOperand, Prologue, PrologueOperand
from ..loops import dtype_name
from ..printer import CodeBuffer, VectorPrinter, VectorValue

__all__ = ["epilogue_parameters", "print_epilogue", "print_prologue", "prologue_parameters"]


def epilogue_parameters(module: Module, contraction: Instruction) -> list[Instruction]:
    """Parameters that operations after the contraction read, in order of declaration."""
    before = {contraction, *_prologue(module, contraction)}
    return [p for p in module.parameters() if any(user not in before for user in p.users)]


def prologue_parameters(module: Module, contraction: Instruction) -> tuple[Instruction, list[Instruction]]:
    """The parameter that the contraction's left operand is or is made of, pixel by pixel, and the others that the
    operations before it read, in order of declaration."""
    before = _prologue(module, contraction)
    if not before:
        return contraction.inputs[0], []
    read = [p for p in module.parameters() if any(user in before for user in p.users)]
    source = next(p for p in read if varies_over_pixels(p.shape))
    return source, [p for p in read if p is not source]


def print_epilogue(
    module: Module, contraction: Instruction, access: Sequence[str], lanes: int, fast_math: bool
) -> Epilogue:
    """The epilogue of a ``fused_contraction`` module.

    Args:
        module: the contraction and the pointwise operations around it; one result.
        contraction: the contraction inside of the module.
        access: for each of the ``epilogue_parameters``, in order, how it varies over the result: ``full``, ``per_n``,
            ``per_m`` or ``scalar``.
        lanes: lanes of the accumulators.
        fast_math: whether functions may differ by 4 units in the last place.
    """
    before = _prologue(module, contraction)
    members = [i for i in module if i not in before]
    extras = epilogue_parameters(module, contraction)
    given = {contraction: "acc", **{p: f"e{k}" for k, p in enumerate(extras)}}
    result = module.results()[0]
    lines, stored = _print(members, given, result, CodeBuffer(), lanes, fast_math)
    return Epilogue(
        operands=tuple(EpilogueOperand(dtype_name(p.shape.type), a) for p, a in zip(extras, access)),
        lines=lines,
        result=stored,
        dtype=dtype_name(result.shape.type),
        name=_name(members),
    )


def print_prologue(
    module: Module,
    contraction: Instruction,
    places: Sequence[tuple[str, tuple[int, ...]]],
    lanes: int,
    fast_math: bool,
) -> Prologue | None:
    """The prologue of a ``fused_contraction`` module, if it has one.

    Args:
        module, contraction, lanes, fast_math: as for `print_epilogue`.
        places: for each of the other ``prologue_parameters``, in order, its access (``per_k`` or ``scalar``) and its
            batch strides.
    """
    before = _prologue(module, contraction)
    if not before:
        return None
    source, extras = prologue_parameters(module, contraction)
    members = [i for i in module if i in before or i.is_literal or i.name == "multibroadcast"]
    given = {source: "term", **{p: f"a{k}" for k, p in enumerate(extras)}}
    lines, stored = _print(members, given, contraction.inputs[0], CodeBuffer("u"), lanes, fast_math)
    operands = (PrologueOperand(dtype_name(p.shape.type), *place) for p, place in zip(extras, places))
    return Prologue(tuple(operands), lines, stored, _name(i for i in module if i in before))


def _prologue(module: Module, contraction: Instruction) -> set[Instruction]:
    """The operations that make the contraction's left operand."""
    found: set[Instruction] = set()
    pending = [contraction.inputs[0]]
    while pending:
        ins = pending.pop()
        if isinstance(ins.op, Pointwise) and ins not in found:
            found.add(ins)
            pending += ins.inputs
    return found


def _print(
    members: Iterable[Instruction],
    given: dict[Instruction, str],
    result: Instruction,
    buffer: CodeBuffer,
    lanes: int,
    fast_math: bool,
) -> tuple[tuple[str, ...], str]:
    """Statements that compute ``result`` from the ``given`` names, and the name that holds it as it is stored."""
    printer = VectorPrinter(buffer, lanes, fast_math=fast_math)
    values: dict[Instruction, Any] = {}
    for ins, name in given.items():
        values[ins] = printer.loaded(name, ins.shape.type) if ins.is_param else VectorValue(name, ins.shape.type)
    for ins in members:
        if ins in values:
            continue
        if ins.literal is not None:
            values[ins] = printer.const(ins.literal.numpy().reshape(-1)[0].item(), ins.shape.type)
        elif ins.name == "multibroadcast" and ins.inputs[0].is_literal:
            values[ins] = values[ins.inputs[0]]
        elif isinstance(ins.op, Pointwise):
            values[ins] = ins.op.scalar(printer, *(values[i] for i in ins.inputs))
    stored = printer.stored(values[result])
    return tuple(buffer.drain()), stored


def _name(members: Iterable[Instruction]) -> str:
    return "_".join(i.name for i in members if isinstance(i.op, Pointwise))[:64]
