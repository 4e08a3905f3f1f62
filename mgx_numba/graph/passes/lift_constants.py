"""Make numbers in fused regions operands, so that layers, and models, share kernels.

A number in a region's body is part of the kernel's text. Each zero point would make a kernel of its own, with a cold
instruction cache, and no kernel that ships with the package would serve a model that was quantised elsewhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from ...core.types import Type
from ...ops.base import Pointwise
from ...ops.scalar_functions import NEAREST
from ..constants import uniform_value
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import KERNEL_OPERATORS, Options, Pass
from .build import RewriteBuilder
from .regions import is_scalar_literal, parameter_name
from .rewriter import remove_dead
from .rules.quantized import EIGHT_BITS

IN_TEXTS = frozenset({0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 255.0, *map(float, (240, 448, 57344))})
"""Magnitudes of numbers that stay: parts of usual functions (GELU, hard swish, ReLU6), limits of element types. Of
integers only 0 and 1 do."""
_DIVISIONS = frozenset({"div", "mod", "fmod"})
_OF_TEXTS = frozenset(NEAREST.values())
"""Operators that are printed for a known scale."""


class LiftConstants(Pass):
    """``convert[uint8](nearbyint(x) + 131)`` in a kernel body -> ``convert[uint8](nearbyint(x) + convert[float](p))``
    with a uint8 parameter p; the same for int8. Numbers that the types cannot represent stay.

    With `Capabilities.shared_texts`, other numbers become parameters of their own type: all but those of `IN_TEXTS`,
    divisors that make a division cheap, and operands of operations on bits.
    """

    name = "lift_constants"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        every = options.capabilities is not None and options.capabilities.shared_texts
        for ins in module.named(KERNEL_OPERATORS):
            if ins.name != "fused_concat" and ins.inputs:
                lifted = _Lifted(module, ins)
                for end in list(ins.module_args[0]):
                    point = _zero_point(end)
                    if point is not None and not (every and uniform_value(point) == 0):
                        lifted.lift_zero_point(end, point)
                for user, position, number in list(_numbers(ins.module_args[0])) if every else ():
                    lifted.lift(user, position, number)
                if lifted.added:
                    self.log.apply(self.name, ins)
                    lifted.replace()


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


def _numbers(body: Module) -> Iterator[tuple[Instruction, int, Instruction]]:
    """Yield numbers that one model has and another has not: the reader, the operand's position, and the number."""
    for user in body:
        if not isinstance(user.op, Pointwise) or user.name in _OF_TEXTS or user.name.startswith("bitwise"):
            continue
        for position, number in enumerate(user.inputs):
            if is_scalar_literal(number) is not None and _differs(user, position, number):
                yield user, position, number


def _differs(user: Instruction, position: int, number: Instruction) -> bool:
    value = uniform_value(number)
    if value is None or number.shape.type is Type.bool_type or not math.isfinite(value):
        return False
    if abs(value) in IN_TEXTS and (abs(value) <= 1 or number.shape.type.is_floating):
        return False
    if user.name in _DIVISIONS and position == 1:  # an integer divisor is multiplied by, a power of two is inverted
        return number.shape.type.is_floating and abs(math.frexp(value)[0]) != 0.5
    return True


class _Lifted:
    """The operands that a kernel operator gets for numbers of its body."""

    def __init__(self, module: Module, ins: Instruction) -> None:
        self.added: list[Instruction] = []
        self._module, self._ins, self._body = module, ins, ins.module_args[0]
        self._build = RewriteBuilder(module, ins)
        self._known: dict[tuple[bytes, object], Instruction] = {}

    def lift_zero_point(self, end: Instruction, point: Instruction) -> None:
        total = end.inputs[0]
        parameter = self._parameter(point, end.shape.type)
        wide = self._body.insert_instruction(total, "convert", [parameter], target_type=point.shape.type)
        again = self._body.insert_instruction(total, total.op, [total.inputs[0], wide])
        again.debug_symbols = total.debug_symbols
        self._body.set_inputs(end, {0: again})  # another end may have the same sum, in another type
        remove_dead(self._body, [total])

    def lift(self, user: Instruction, position: int, number: Instruction) -> None:
        self._body.set_inputs(user, {position: self._parameter(number, number.shape.type)})
        remove_dead(self._body, [number])

    def _parameter(self, number: Instruction, type: Type) -> Instruction:
        """Return the parameter for a number in ``type``; equal numbers share one."""
        value, shape = uniform_value(number), number.shape.with_type(type)
        key = np.asarray(value).astype(type.numpy).tobytes(), shape
        if key not in self._known:
            names = map(parameter_name, itertools.count(len(self._body.parameters())))
            free = next(name for name in names if self._body.parameter(name) is None)
            self._known[key] = self._body.add_parameter(free, shape)
            first = next(i for i in self._body if not i.is_param and not i.is_literal)
            self._body.move_before(self._known[key], first)
            seen = self._ins.inputs[0].shape if self._ins.name == "pointwise" else shape
            self.added.append(self._build.scalar(value, seen.with_type(type)))
        return self._known[key]

    def replace(self) -> None:
        """Run the body with the new operands."""
        ins = self._ins
        again = self._module.insert_instruction(ins, ins.op, [*ins.inputs, *self.added], ins.module_args)
        again.debug_symbols = ins.debug_symbols
        self._module.replace_instruction(ins, again)
        self._module.remove_instruction(ins)
