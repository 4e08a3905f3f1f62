"""Free constants during lowering that passes computed and that are used in packed form alone."""

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

LEAST_BYTES = 1 << 16
"""Least size (bytes) of a constant that is worth freeing: the allocator keeps smaller blocks anyway."""


class ReleasedConstants:
    """Frees literals during a lowering, once nothing reads them, and counts them in `Draft.freed`."""

    def __init__(self, lowering: Lowering, original: Program) -> None:
        """Watch ``lowering``; literals of ``original`` are kept, since ``original`` holds their memory."""
        self._lowering = lowering
        self._kept = {id(ins.literal) for module in original.modules for ins in module if ins.literal is not None}
        self._holders: dict[int, list[Instruction]] = {}
        self._lowered: set[Instruction] = set()
        self._read: set[int] = set()
        self._looked = 0

    def lowered(self, ins: Instruction) -> None:
        """Record that an instruction has been lowered, and free the constants of which it was the last user."""
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
        """Return the index of the plan's constant that the instruction's value views; None for values computed at run
        time."""
        value = self._lowering.values.get(ins)
        if isinstance(value, View) and value.buffer.region is Region.CONSTANT:
            return value.buffer.index
        return None

    def _is_read(self, index: int) -> bool:
        """Return whether a step reads a constant. Steps are only added, so each step is examined once."""
        for step in self._lowering.draft.steps[self._looked :]:
            for view in (*step.operands.values(), *step.inputs, *step.outputs):
                if view.buffer.region is Region.CONSTANT:
                    self._read.add(view.buffer.index)
        self._looked = len(self._lowering.draft.steps)
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
        self._lowering.draft.freed += 1
