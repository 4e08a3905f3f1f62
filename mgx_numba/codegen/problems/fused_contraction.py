"""Extract the prologue and epilogue of a ``fused_contraction`` module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...core.types import Type
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...graph.passes.prologue import varies_over_pixels
from ...ops.base import Pointwise
from ...ops.scalar import ScalarOps, V
from ..body import ScalarBody, evaluate_instructions, scalar_body
from .epilogue import Epilogue, EpilogueOperand, Prologue, PrologueOperand

MAX_NAME = 64
"""Most characters of operation names in a kernel's name."""


def epilogue_parameters(module: Module, contraction: Instruction) -> list[Instruction]:
    """Return the parameters that operations after the contraction read, in order of declaration."""
    before = {contraction, *_behind(contraction.inputs[0], ()), *_behind(contraction.inputs[1], ())}
    return [p for p in module.parameters() if any(user not in before for user in p.users)]


def prologue_parameters(module: Module, contraction: Instruction) -> tuple[Instruction, list[Instruction]]:
    """Return the parameter that the left operand is computed from elementwise, and the other parameters of the prologue
    in order of declaration."""
    before = _before(contraction)
    if not before:
        return _stored(contraction.inputs[0]), []
    read = [p for p in module.parameters() if any(user in before for user in p.users)]
    source = next(p for p in read if varies_over_pixels(p.shape))
    return source, [p for p in read if p is not source]


def weights_parameter(contraction: Instruction) -> Instruction:
    """Return the parameter of the right operand, below a conversion to float32."""
    return _stored(contraction.inputs[1])


def make_epilogue(module: Module, contraction: Instruction, access: Sequence[str], fast_math: bool) -> Epilogue:
    """Return the epilogue of a ``fused_contraction`` module.

    Args:
        module: the contraction and the pointwise operations around it; one result.
        contraction: the contraction in the module; two slices, the halves of its columns, may be its only readers.
        access: of each of the ``epilogue_parameters``, in order: ``full``, ``per_n``, ``per_m`` or ``scalar``.
        fast_math: whether functions may err by 4 units in the last place.
    """
    extras = epilogue_parameters(module, contraction)
    halves = sorted((i for i in contraction.users if i.name == "slice"), key=lambda i: i.op.attributes()["starts"])
    body, name = _body(module, [*(halves or [contraction]), *extras], module.results()[0])
    operands = tuple(EpilogueOperand(p.shape.type.dtype_name, a) for p, a in zip(extras, access))
    return Epilogue(operands, body, fast_math, name, gated=bool(halves))


def reading_second_half(epilogue: Epilogue, dtype: str) -> Epilogue:
    """Return a gated epilogue as one that reads the second half's accumulators, stored as ``dtype``, from a further
    operand, the last one."""
    gated = epilogue.body
    assert gated is not None and epilogue.gated
    first, second, *rest = gated.parameters

    def compute(handler: ScalarOps[V], sums: V, *read: V) -> V:
        return gated.evaluate(handler, (sums, read[-1], *read[:-1]))

    body = scalar_body(compute, (first, *rest, second))
    operands = (*epilogue.operands, EpilogueOperand(dtype, "full"))
    return replace(epilogue, operands=operands, body=body, gated=False)


def make_prologue(
    module: Module, contraction: Instruction, places: Sequence[tuple[str, tuple[int, ...]]], fast_math: bool
) -> Prologue | None:
    """Return the prologue of a ``fused_contraction`` module; None if it has none.

    Args:
        module, contraction, fast_math: as for `make_epilogue`.
        places: of each of the other ``prologue_parameters``, in order: access (``per_k`` or ``scalar``) and batch
            strides.
    """
    if not _before(contraction):
        return None
    source, extras = prologue_parameters(module, contraction)
    body, name = _body(module, [source, *extras], contraction.inputs[0])
    operands = tuple(PrologueOperand(p.shape.type.dtype_name, *place) for p, place in zip(extras, places))
    return Prologue(operands, body, fast_math, name)


def _stored(operand: Instruction) -> Instruction:
    """Return the operand below a conversion to float32."""
    return operand.inputs[0] if operand.name == "convert" else operand


def _before(contraction: Instruction) -> set[Instruction]:
    """Return the operations that compute the left operand; empty if it is a parameter or its float32 form."""
    if _stored(contraction.inputs[0]).is_param:
        return set()
    return {ins for ins in _behind(contraction.inputs[0], ()) if isinstance(ins.op, Pointwise)}


def _behind(result: Instruction, given: Iterable[Instruction]) -> set[Instruction]:
    """Return the instructions that a result depends on, including itself, up to the given ones."""
    found = set(given)
    pending = [result]
    while pending:
        ins = pending.pop()
        if ins not in found:
            found.add(ins)
            pending += ins.inputs
    return found.difference(given)


def _body(module: Module, given: Sequence[Instruction], result: Instruction) -> tuple[ScalarBody, str]:
    """Return the computation of the result from the given instructions, and the names of its operations."""
    behind = _behind(result, given)
    members = [ins for ins in module if ins in behind]

    def compute(handler: ScalarOps, *arguments: Any) -> Any:
        values = dict(zip(given, arguments))
        evaluate_instructions(members, handler, values)
        return values[result]

    types: list[Type] = [ins.shape.type for ins in given]
    name = "_".join(ins.name for ins in members if isinstance(ins.op, Pointwise))
    return scalar_body(compute, types), name[:MAX_NAME]
