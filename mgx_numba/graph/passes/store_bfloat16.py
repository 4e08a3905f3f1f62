"""Store operands of bfloat16 products in bfloat16, for targets that otherwise compute in float32.

The producing kernel rounds once for all readers: memory traffic is halved, and kernels that multiply bfloat16 read the
operand in place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...core.types import Type
from ..constants import is_constant
from ..instruction import Instruction, Parameter
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .capabilities import Capabilities
from .eliminate_data_type import PRODUCTS, is_stored_weight, moves_rounded
from .fuse_reduce import REDUCTIONS
from .prologue import prologue_of
from .regions import order_of
from .storage_types import widens

NARROW, WIDE = Type.bf16_type, Type.float_type
ENDING = frozenset({"convolution", "convolution_backwards", "dot"})
"""Producers that can store a rounded result, beside pointwise operations and reductions."""


class StoreBfloat16(Pass):
    """``f(x)`` -> ``f(convert[float](convert[bf16](x)))`` for an ``x`` that a product reads which the program has in
    bfloat16, or that is one and is added to another.

    Only with ``fast_math``, which took these conversions out (`eliminate_data_type`: it leaves one where others read
    ``x`` that the program has in float32), and only where all that reads ``x`` can take it so and what makes it can
    store it. Maxima, means under a window, concatenations and views on the way are made of the rounded
    values.
    """

    name = "store_bfloat16"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        can = options.capabilities
        if can is None or can.multiplies_bfloat16 is None or not options.fast_math:
            return
        order = order_of(module)
        products = {ins for ins in order if ins.module is module and self._multiplies(ins, order, can)}
        wanted = {ins.inputs[0] for ins in products} | _added(products, order)
        chosen = self._rounded(wanted, products, module)
        for value in sorted(chosen, key=order.__getitem__):
            _round(module, value, order)
            self.log.apply(self.name, value)

    def _multiplies(self, ins: Instruction, order: dict[Instruction, int], can: Capabilities) -> bool:
        """Whether the target multiplies the instruction's left operand in bfloat16."""
        if ins.name not in PRODUCTS or ins.shape.is_dynamic or ins.shape.type is not WIDE or widens(ins.inputs[0]):
            return False
        weights = ins.inputs[1]
        if not is_stored_weight(weights) or weights.inputs[0].shape.type is not NARROW:
            return False
        if not weights.op.elidable:  # type: ignore[attr-defined]  # an author widened them for a product in float32
            return False
        assert can.multiplies_bfloat16 is not None
        return can.multiplies_bfloat16(ins) and not prologue_of(ins, order, lambda *_: None)

    def _rounded(
        self, wanted: Collection[Instruction], products: Collection[Instruction], module: Module
    ) -> set[Instruction]:
        """Return the values that are stored rounded, including moved copies."""
        found, pending = set(wanted), list(wanted)
        while pending:
            value = pending.pop()
            if moves_rounded(value):
                pending += [i for i in value.inputs if i not in found]
                found.update(value.inputs)
        while True:
            refused = {value: reason for value in found if (reason := _refused(value, found, products, module))}
            refused |= {
                value: "" for value in found if value not in wanted and not any(u in found for u in value.users)
            }
            if not refused:
                return found
            for value, reason in refused.items():
                if reason and value in wanted:
                    self.log.refuse(self.name, value, reason)
            found.difference_update(refused)


def _added(products: Collection[Instruction], order: Mapping[Instruction, int]) -> set[Instruction]:
    """Return the later one of two products that only one sum reads; the other one's kernel adds it (`FuseContraction`
    goes by their order)."""
    found = set()
    for ins in products:
        if [user.name for user in ins.users] == ["add"]:
            first = min((i for user in ins.users for i in user.inputs), key=lambda i: order.get(i, -1))
            if first is not ins and first in products and len(first.users) == 1:
                found.add(ins)
    return found


def _refused(
    value: Instruction, found: Collection[Instruction], products: Collection[Instruction], module: Module
) -> str | None:
    """Return the reason why a value stays in float32 if it is not in ``found``; None if it need not."""
    if value.module is not module or isinstance(value.op, Parameter) or is_constant(value):
        return "it is given"
    if moves_rounded(value):
        if not all(i in found for i in value.inputs):
            return f"what {value.name} reads stays in float32"
    elif not (value.op.pointwise or value.name in ENDING or value.name in REDUCTIONS):
        return f"no kernel stores it rounded ({value.name})"
    for user in value.users:
        takes = user.op.pointwise or user.name in REDUCTIONS or (moves_rounded(user) and user in found)
        takes |= user in products and user.inputs[0] is value
        if user.module is not module or not takes:
            return f"{user.name} reads it in float32"
    return None


def _round(module: Module, value: Instruction, order: Mapping[Instruction, int]) -> None:
    """Make all users of a value read it rounded, in float32."""
    first = min(value.users, key=order.__getitem__)
    users = {user: [k for k, i in enumerate(user.inputs) if i is value] for user in value.users}
    if moves_rounded(value):
        rounded = module.insert_instruction(value, value.op, [i.inputs[0] for i in value.inputs])
    else:
        rounded = module.insert_instruction(first, "convert", [value], target_type=NARROW, elidable=True)
    rounded.debug_symbols = value.debug_symbols
    wide = module.insert_instruction(first, "convert", [rounded], target_type=WIDE, elidable=True)
    for user, places in users.items():
        module.set_inputs(user, dict.fromkeys(places, wide))
    if moves_rounded(value):
        inputs = dict.fromkeys(value.inputs)
        module.remove_instruction(value)
        for widened in inputs:
            if not widened.users:
                module.remove_instruction(widened)
