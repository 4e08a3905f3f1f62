"""Make quantisation zero points operands of fused regions, so that layers share kernels.

A zero point is an 8-bit number that would otherwise be part of the kernel's text (`regions.is_plain`): each layer would
have its own kernel, with cold instruction caches.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..constants import uniform_value
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import KERNEL_OPERATORS, Options, Pass
from .build import RewriteBuilder
from .regions import is_scalar_literal, parameter_name
from .rewriter import remove_dead
from .rules.quantized import EIGHT_BITS


class LiftZeroPoints(Pass):
    """``convert[uint8](nearbyint(x) + 131)`` in a kernel body -> ``convert[uint8](nearbyint(x) + convert[float](p))``
    with a uint8 parameter p; the same for int8. Numbers that the types cannot represent stay."""

    name = "lift_zero_points"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in list(module):
            if ins.name not in KERNEL_OPERATORS or ins.name == "fused_concat" or not ins.inputs:
                continue
            lifted = [i for i in ins.module_args[0] if _zero_point(i) is not None]
            if lifted:
                self.log.apply(self.name, ins)
                _lift(module, ins, lifted)


def _zero_point(ins: Instruction) -> Instruction | None:
    """Return the zero point (a literal, maybe broadcast) of a quantisation that ends in an instruction."""
    if ins.name != "convert" or ins.shape.type not in EIGHT_BITS or ins.shape.type.is_floating:
        return None
    (total,) = ins.inputs
    if total.name != "add" or total.inputs[0].name != "nearbyint":
        return None
    point = total.inputs[1]
    value = None if is_scalar_literal(point) is None else uniform_value(point)
    return point if value is not None and value == ins.shape.type.numpy.type(value) else None


def _lift(module: Module, ins: Instruction, lifted: Sequence[Instruction]) -> None:
    """Pass the zero points of a submodule's quantisations to it as operands."""
    body, added = ins.module_args[0], []
    b = RewriteBuilder(module, ins)
    for end in lifted:
        point, total, type = _zero_point(end), end.inputs[0], end.shape.type
        assert point is not None
        count, shape, value = len(body.parameters()), point.shape.with_type(type), uniform_value(point)
        parameter = body.add_parameter(parameter_name(count), shape)
        body.move_before(parameter, next(i for i in body if not i.is_param and not i.is_literal))
        wide = body.insert_instruction(total, "convert", [parameter], target_type=point.shape.type)
        again = body.insert_instruction(total, total.op, [total.inputs[0], wide])
        again.debug_symbols = total.debug_symbols
        body.set_inputs(end, {0: again})  # another end may have the same sum, in another type
        remove_dead(body, [total])
        seen = ins.inputs[0].shape if ins.name == "pointwise" else shape
        added.append(b.scalar(value, seen.with_type(type)))
    again = module.insert_instruction(ins, ins.op, [*ins.inputs, *added], ins.module_args)
    again.debug_symbols = ins.debug_symbols
    module.replace_instruction(ins, again)
    module.remove_instruction(ins)
