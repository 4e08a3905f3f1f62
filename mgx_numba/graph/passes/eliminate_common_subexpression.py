"""Merge equal computations and equal literals."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from ...ops.base import Operator
from ..instruction import Instruction, Parameter, Return
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .dead_code_elimination import SIDE_EFFECTS
from .propagate_constant import NONDETERMINISTIC
from .rewriter import remove_dead

WHOLE_BYTES = 1 << 12  # of a literal that is hashed as a whole
SAMPLE = 64  # elements of a longer one that are hashed; equal hashes are followed by a comparison


class EliminateCommonSubexpression(Pass):
    """Replace an instruction by an earlier one with an equal operator and equal inputs (in any order, if commutative).
    Literals are equal if type, lengths, strides and bits are."""

    name = "eliminate_common_subexpression"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        self.share(module)

    def share(self, module: Module) -> int:
        """Merge equal values of one module; return the number of removed instructions."""
        count = 0
        seen: dict[Hashable, Instruction] = {}
        literals: dict[Hashable, list[Instruction]] = {}
        for ins in list(module):
            if isinstance(ins.op, (Parameter, Return)) or ins.module_args or ins is module.last:
                continue
            if ins.literal is not None:
                first = _equal_literal(ins, literals)
            elif ins.op.name in NONDETERMINISTIC or ins.op.name in SIDE_EFFECTS:
                continue
            else:
                operands = [id(i) for i in ins.inputs]
                if ins.op.commutative:
                    operands.sort()
                first = seen.setdefault((ins.op, tuple(operands)), ins)
                if first is not ins and _bits(first.op) != _bits(ins.op):
                    first = ins  # attributes that are equal as numbers only: 0.0 and -0.0
            if first is not ins:
                first.debug_symbols = tuple(dict.fromkeys((*first.debug_symbols, *ins.debug_symbols)))
                module.replace_instruction(ins, first)
                remove_dead(module, [ins])
                count += 1
        return count


def _equal_literal(ins: Instruction, literals: dict[Hashable, list[Instruction]]) -> Instruction:
    array = ins.literal.array if ins.literal is not None else None
    if array is None:
        return ins
    if array.nbytes <= WHOLE_BYTES:
        return literals.setdefault((ins.shape, array.tobytes()), [ins])[0]
    flat = array.reshape(-1)[:SAMPLE] if array.flags.c_contiguous else array[(0,) * (array.ndim - 1)][:SAMPLE]
    candidates = literals.setdefault((ins.shape, flat.tobytes()), [])
    bits = f"u{array.itemsize}"
    for other in candidates:
        if other.literal is not None and np.array_equal(other.literal.numpy().view(bits), array.view(bits)):
            return other
    candidates.append(ins)
    return ins


def _bits(value: object) -> object:
    """Return a key that separates attributes of equal value and different type or sign; NaN equals NaN."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, (tuple, list)):
        return tuple(map(_bits, value))
    if isinstance(value, Operator):
        return (value.name, *(_bits(getattr(value, name)) for name in value.attribute_kinds()))
    return type(value)
