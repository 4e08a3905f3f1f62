"""Build the new instructions of a rewrite; operations on constants are folded at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.argument import Argument
from ...core.dim import Length, is_symbolic, known_same
from ...core.shape import Shape
from ...core.types import Type
from ...ops.base import Operator, make_op
from ..constants import (
    STORED,
    constant_array,
    fold_pointwise,
    is_constant,
    literal_argument,
    scalar_array,
    spread_operator,
)
from ..emitter import Emitter
from ..instruction import Instruction
from ..module import Module

FOLD_GROWTH = 4
"""Most growth of a folded literal over its largest operand, which bounds file sizes."""
FOLD_SMALL = 1 << 12  # elements of what may be folded whatever it grows from


class RewriteBuilder(Emitter):
    """Insert instructions before a given one and record them.

    Attributes:
        before: insertion point; literals go to the front of the module.
        created: all inserted instructions, in order.
    """

    def __init__(self, module: Module, before: Instruction | None) -> None:
        self.module = module
        self.before = before
        self.created: list[Instruction] = []

    def op(self, op: Operator | str, *inputs: Instruction, **attributes: object) -> Instruction:
        """Insert an operation. A pointwise operation on constants becomes a constant, unless it is `STORED`."""
        operator = make_op(op, **attributes) if isinstance(op, str) else op
        if operator.pointwise and operator.name not in STORED and inputs and all(map(is_constant, inputs)):
            folded = self._fold(operator, inputs)
            if folded is not None:
                return folded
        return self._keep(self.module.insert_instruction(self.before, operator, inputs))

    def run(self, op: Operator | str, inputs: Sequence[Instruction], modules: Sequence[Module]) -> Instruction:
        """Insert an operation that runs submodules."""
        return self._keep(self.module.insert_instruction(self.before, op, inputs, modules))

    def literal(self, array: object, type: Type | None = None) -> Instruction:
        """Insert a constant at the front of the module; a zero-dimensional array is a scalar."""
        value = np.asarray(array) if type is None else np.asarray(array).astype(type.numpy)
        return self._keep(self.module.add_literal(literal_argument(value)))

    def number(self, value: Length, type: Type) -> Instruction:
        """Insert a scalar length: a constant, or a computation of the plan if it is symbolic."""
        if not is_symbolic(value):
            return self.literal(value, type)
        return self.convert(self.op("lengths", values=(value,)), type)

    def constant(self, array: np.ndarray, shape: Shape) -> Instruction:
        """Insert a constant with a shape's lengths, from an array that repeats along its axes of length 1."""
        if array.size == 1 and (shape.scalar or not known_same(shape.lens, (1,))):
            literal = self.literal(array.reshape(()))
        else:
            literal = self.literal(array)
        if known_same(literal.shape.lens, shape.lens):
            return literal
        return self._keep(self.module.insert_instruction(self.before, spread_operator(shape), [literal]))

    def argument(self, value: Argument) -> Instruction:
        """Insert a constant with the strides of its value."""
        return self._keep(self.module.add_literal(value))

    def scalar(self, value: object, like: Instruction | Shape) -> Instruction:
        """Insert a constant of the type and lengths of ``like`` whose elements all equal ``value``."""
        shape = like.shape if isinstance(like, Instruction) else like
        literal = self.literal(scalar_array(value, shape.type))
        if shape.without_axes:
            return literal
        return self._keep(self.module.insert_instruction(self.before, spread_operator(shape), [literal]))

    def discard(self) -> None:
        """Remove inserted instructions that are unused."""
        if not self.created:
            return
        for ins in reversed(self.created):
            if ins.module is self.module and not ins.users:
                self.module.remove_instruction(ins)
        self.created.clear()

    def _fold(self, op: Operator, inputs: Sequence[Instruction]) -> Instruction | None:
        output = op.compute_shape([i.shape for i in inputs])
        arrays = [constant_array(i) for i in inputs]
        if output.is_dynamic or any(a is None for a in arrays):
            return None
        sizes = [_distinct(a) for a in arrays if a is not None]
        spread = 1
        for axis, length in enumerate(output.lens):
            varies = any(a.strides[axis] and a.shape[axis] > 1 for a in arrays if a is not None)
            if varies and not is_symbolic(length):  # constants repeat along axes of symbolic lengths
                spread *= length
        if spread > max(FOLD_SMALL, FOLD_GROWTH * max(sizes)):
            return None
        if not self.module.allowance.take(spread, spread * output.type.size):
            return None
        value = fold_pointwise(op, output, [a for a in arrays if a is not None])
        self.module.allowance.hold(value)
        return self.constant(value, output)

    def _keep(self, ins: Instruction) -> Instruction:
        self.created.append(ins)
        return ins


def _distinct(array: np.ndarray) -> int:
    count = 1
    for length, stride in zip(array.shape, array.strides):
        if stride:
            count *= length
    return count
