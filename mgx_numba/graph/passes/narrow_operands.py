"""Let a region read 8-bit operands and dequantise them itself."""

from __future__ import annotations

from collections.abc import Sequence

from ..constants import is_constant
from ..instruction import Instruction
from ..module import Module
from .regions import Refuses
from .rules.quantized import EIGHT_BITS

LONGEST = 4
"""Most operations of a dequantisation: to int32, zero point, to float32, scale."""


def widening(value: Instruction, refuses: Refuses) -> list[Instruction]:
    """Return the operations that compute a value from an 8-bit value and constants, in program order; empty if it is
    not such a value."""
    chain: list[Instruction] = []
    while len(chain) < LONGEST and refuses(value) is None:
        computed = [i for i in value.inputs if not is_constant(i)]
        if len(computed) != 1 or value.shape.type in EIGHT_BITS:
            return []
        chain.append(value)
        value = computed[0]
        if value.shape.type in EIGHT_BITS:
            return chain[::-1]
    return []


def take_narrow_operands(
    module: Module, region: Sequence[Instruction], order: dict[Instruction, int], refuses: Refuses
) -> list[Instruction]:
    """Return a region extended by the dequantisations of its operands, in program order; shared ones are duplicated.

    A dequantisation costs less than reading four times the bytes, and than a separate kernel.
    """
    members = set(region)
    taken: list[Instruction] = []
    for ins in region:
        for place, value in enumerate(ins.inputs):
            if not ins.op.pointwise or value in members or value not in order:
                continue
            chain = widening(value, refuses)
            if not chain:
                continue
            if not all(user in members for one in chain for user in one.users if user not in chain):
                chain = _again(module, ins, chain, order)
                module.set_input(ins, place, chain[-1])
            taken += [one for one in chain if one not in members]
            members.update(chain)
    return sorted([*taken, *region], key=order.__getitem__)


def _again(
    module: Module, before: Instruction, chain: Sequence[Instruction], order: dict[Instruction, int]
) -> list[Instruction]:
    """Insert copies of operations before an instruction."""
    made: dict[Instruction, Instruction] = {}
    for ins in chain:
        made[ins] = module.insert_instruction(before, ins.op, [made.get(i, i) for i in ins.inputs])
        made[ins].debug_symbols = ins.debug_symbols
        order[made[ins]] = order[before]
    return list(made.values())
