"""What a ``fused_contraction`` module has around its contraction, as a prologue and an epilogue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...core.types import Type
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...graph.passes.prologue import varies_over_pixels
from ...ops.base import Pointwise
from ...ops.scalar import ScalarOps
from ..body import ScalarBody, evaluate_instructions, scalar_body
from .epilogue import Epilogue, EpilogueOperand, Prologue, PrologueOperand

__all__ = ["epilogue_parameters", "make_epilogue", "make_prologue", "prologue_parameters", "weights_parameter"]

MAX_NAME = 64
"""Characters that a kernel's name takes from its operations at most."""


def epilogue_parameters(module: Module, contraction: Instruction) -> list[Instruction]:
    """Parameters that operations after the contraction read, in order of declaration."""
    before = {contraction, *_behind(contraction.inputs[0], ()), *_behind(contraction.inputs[1], ())}
    return [p for p in module.parameters() if any(user not in before for user in p.users)]


def prologue_parameters(module: Module, contraction: Instruction) -> tuple[Instruction, list[Instruction]]:
    """The parameter that the contraction's left operand is or is made of, pixel by pixel, and the others that the
    operations before it read, in order of declaration."""
    before = _before(contraction)
    if not before:
        return _stored(contraction.inputs[0]), []
    read = [p for p in module.parameters() if any(user in before for user in p.users)]
    source = next(p for p in read if varies_over_pixels(p.shape))
    return source, [p for p in read if p is not source]


def weights_parameter(contraction: Instruction) -> Instruction:
    """The parameter that the contraction's right operand is, or is the float32 form of."""
    return _stored(contraction.inputs[1])


def make_epilogue(module: Module, contraction: Instruction, access: Sequence[str], fast_math: bool) -> Epilogue:
    """The epilogue of a ``fused_contraction`` module.

    Args:
        module: the contraction and the pointwise operations around it; one result.
        contraction: the contraction inside of the module, whose result two slices alone may read, the halves of its
            columns.
        access: for each of the ``epilogue_parameters``, in order, how it varies over the result: ``full``, ``per_n``,
            ``per_m`` or ``scalar``.
        fast_math: whether functions may differ by 4 units in the last place.
    """
    extras = epilogue_parameters(module, contraction)
    halves = sorted((i for i in contraction.users if i.name == "slice"), key=lambda i: i.op.attributes()["starts"])
    body, name = _body(module, [*(halves or [contraction]), *extras], module.results()[0])
    operands = tuple(EpilogueOperand(p.shape.type.dtype_name, a) for p, a in zip(extras, access))
    return Epilogue(operands, body, fast_math, name, gated=bool(halves))


def make_prologue(
    module: Module, contraction: Instruction, places: Sequence[tuple[str, tuple[int, ...]]], fast_math: bool
) -> Prologue | None:
    """The prologue of a ``fused_contraction`` module, if it has one.

    Args:
        module, contraction, fast_math: as for `make_epilogue`.
        places: for each of the other ``prologue_parameters``, in order, its access (``per_k`` or ``scalar``) and its
            batch strides.
    """
    if not _before(contraction):
        return None
    source, extras = prologue_parameters(module, contraction)
    body, name = _body(module, [source, *extras], contraction.inputs[0])
    operands = tuple(PrologueOperand(p.shape.type.dtype_name, *place) for p, place in zip(extras, places))
    return Prologue(operands, body, fast_math, name)


def _stored(operand: Instruction) -> Instruction:
    """The operand, or what it is the float32 form of."""
    return operand.inputs[0] if operand.name == "convert" else operand


def _before(contraction: Instruction) -> set[Instruction]:
    """The operations that make the contraction's left operand, if it is more than the float32 form of a parameter."""
    if _stored(contraction.inputs[0]).is_param:
        return set()
    return {ins for ins in _behind(contraction.inputs[0], ()) if isinstance(ins.op, Pointwise)}


def _behind(result: Instruction, given: Iterable[Instruction]) -> set[Instruction]:
    """What a result is computed from, itself included, as far as the given instructions."""
    found = set(given)
    pending = [result]
    while pending:
        ins = pending.pop()
        if ins not in found:
            found.add(ins)
            pending += ins.inputs
    return found.difference(given)


def _body(module: Module, given: Sequence[Instruction], result: Instruction) -> tuple[ScalarBody, str]:
    """How the result is computed from the given instructions, and the names of the operations."""
    behind = _behind(result, given)
    members = [ins for ins in module if ins in behind]

    def compute(handler: ScalarOps, *arguments: Any) -> Any:
        values = dict(zip(given, arguments))
        evaluate_instructions(members, handler, values)
        return values[result]

    types: list[Type] = [ins.shape.type for ins in given]
    name = "_".join(ins.name for ins in members if isinstance(ins.op, Pointwise))
    return scalar_body(compute, types), name[:MAX_NAME]
