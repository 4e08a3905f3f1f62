"""Gives back, while a program is lowered, constants that passes computed and that live on in packed form alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...core.argument import Argument
from ...graph.instruction import Instruction
from ...graph.program import Program
from ...runtime.plan import Region
from .buffers import View

if TYPE_CHECKING:
    from .lowering import Lowering

__all__ = ["ReleasedConstants"]

LEAST_BYTES = 1 << 16
"""Of a constant that is worth giving back: smaller ones are kept by the allocator anyway."""


class ReleasedConstants:
    """Watches a lowering, and takes away literals that nothing reads any more.

    Attributes:
        count: how many were taken away; the lowered program then is no longer whole.
    """

    def __init__(self, lowering: Lowering, original: Program) -> None:
        """Literals of ``original`` stay: they would not become free."""
        self.count = 0
        self._lowering = lowering
        self._kept = {id(ins.literal) for module in original.modules for ins in module if ins.literal is not None}
        self._holders: dict[int, list[Instruction]] = {}
        self._lowered: set[Instruction] = set()
        self._read: set[int] = set()
        self._looked = 0

    def lowered(self, ins: Instruction) -> None:
        """Take note of an instruction that has been lowered, and free what it was the last to read."""
        self._lowered.add(ins)
        index = self._constant(ins)
        if index is not None:
            self._holders.setdefault(index, []).append(ins)
            return
        for index in {self._constant(i) for i in ins.inputs}:
            if index is None or self._lowering.constants[index].nbytes < LEAST_BYTES:
                continue
            holders = self._holders.get(index, [])
            if all(self._lowered.issuperset(holder.users) for holder in holders) and not self._is_read(index):
                self._free(index, holders)

    def _constant(self, ins: Instruction) -> int | None:
        """Which constant of the plan the value of an instruction is a view of."""
        value = self._lowering.values.get(ins)
        if isinstance(value, View) and value.buffer.region is Region.CONSTANT:
            return value.buffer.index
        return None

    def _is_read(self, index: int) -> bool:
        """Whether a step reads a constant; steps are only added, so each is looked at once."""
        for step in self._lowering.steps[self._looked :]:
            for view in (*step.operands.values(), *step.inputs, *step.outputs):
                if view.buffer.region is Region.CONSTANT:
                    self._read.add(view.buffer.index)
        self._looked = len(self._lowering.steps)
        return index in self._read

    def _free(self, index: int, holders: list[Instruction]) -> None:
        literals = [ins for ins in holders if ins.literal is not None]
        if len(literals) != 1 or literals[0].literal is None or id(literals[0].literal) in self._kept:
            return
        literal = literals[0].literal
        if literal.array is None:
            return
        nothing = np.broadcast_to(np.zeros((), literal.array.dtype), literal.shape.lens)
        self._lowering.forget_constant(index, literal.array)
        literals[0].literal = Argument(literal.shape, nothing)
        self.count += 1
