"""Values that are known before a program runs: literals, and NumPy evaluation of operators on literals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.argument import Argument
from ..core.dim import Dim
from ..core.shape import Shape
from ..ops.lengths import Lengths
from .allowance import Allowance
from .instruction import Instruction
from .length_arithmetic import array_of_lengths, fold_lengths, has_symbolic_elements
from .printer import format_instruction

LARGEST = 1 << 24
"""Most elements of a folded constant: 64 MiB of float32. Larger results remain instructions."""
_NOT_PURE = frozenset(
    {
        "random_seed",
        "random_uniform",
        "multinomial",
        "undefined",
        "allocate",
        "outline",
        "unknown",
        "@param",
        "@outline",
    }
)


def integers(value: np.ndarray) -> list[int] | None:
    """Return the elements of an integer array as a flat list that may contain symbolic lengths; None for another
    type."""
    if value.dtype.kind in "iu":
        found: list[int] = value.ravel().tolist()
        return found
    if value.dtype != object or not all(isinstance(v, (int, Dim)) for v in value.flat):
        return None
    return list(value.flat)


class Constants:
    """Evaluates instructions that depend on literals only, within an `Allowance`, and caches the results.

    Attributes:
        used: parameters whose values were requested.
    """

    def __init__(
        self,
        allowance: Allowance,
        given: Mapping[Instruction, np.ndarray] | None = None,
        computed_lengths: bool = False,
    ) -> None:
        """Create an evaluator.

        Args:
            allowance: limits evaluation.
            given: values of parameters, which count as literals.
            computed_lengths: whether a run computes values that follow from lengths, as it computes those of data.
        """
        self._computed_lengths = computed_lengths
        self._allowance = allowance
        self._given = given or {}
        self.used: set[Instruction] = set()
        self._values: dict[Instruction, Any] = {}

    def value(self, x: Instruction) -> Any:
        """Return the value of an instruction, or ``None`` if it is unknown.

        A value is unknown if it depends on a parameter, has more than 2**24 elements, or exceeds the program's
        allowance. A value without elements is known without evaluation.
        """
        stack = [x]
        while stack:
            ins = stack[-1]
            if ins in self._values:
                stack.pop()
                continue
            if ins.literal is not None:
                self._values[ins] = self._literal(ins.literal)
            elif ins in self._given:
                self.used.add(ins)
                self._values[ins] = self._given[ins]
            elif isinstance(ins.op, Lengths):
                self._values[ins] = array_of_lengths(ins.op.values, ins.shape.lens)
            elif _empty(ins):
                self._values[ins] = self._computed(ins, [])
            elif not self._computable(ins):
                self._values[ins] = None
            else:
                waiting = [i for i in ins.inputs if i not in self._values]
                if waiting:
                    stack += waiting
                    continue
                values = [self._values[i] for i in ins.inputs]
                known = all(v is not None for v in values) and self._take(ins)
                self._values[ins] = self._computed(ins, values) if known else None
                if isinstance(self._values[ins], np.ndarray):
                    self._allowance.hold(self._values[ins])
            stack.pop()
        return self._values[x]

    def _literal(self, literal: Argument) -> np.ndarray:
        return literal.numpy()

    def _computed(self, ins: Instruction, values: list[Any]) -> object:
        """Evaluate an instruction on the values of its inputs; without values, return an empty array."""
        if any(map(has_symbolic_elements, values)):
            return fold_lengths(ins.op, ins.shape, [i.shape for i in ins.inputs], values)
        return ins.op.compute(ins.shape, values) if values else np.empty(ins.shape.lens, ins.shape.type.numpy)

    def reason(self, x: Instruction) -> str:
        """Return the reason why an instruction has no value, worded to follow "it"."""
        self.value(x)
        seen = {x}
        stack = [x]
        while stack:
            ins = stack.pop()
            if ins.is_param:
                return f"depends on input {ins.op.parameter!r}"  # type: ignore[attr-defined]
            if self._values.get(ins) is None and not self._computable(ins):
                return f"depends on a value that is not computed while parsing: {format_instruction(ins, {})}"
            for i in ins.inputs:
                if i not in seen and self._values.get(i) is None:
                    seen.add(i)
                    stack.append(i)
        return "takes more work or memory than may be spent on constants while parsing"

    def follows_lengths(self, x: Instruction) -> bool:
        """Return whether an unknown value follows from literals and symbolic lengths alone, and no run computes it."""
        if self._computed_lengths:
            return False
        seen = {x}
        stack = [x]
        found = False
        while stack:
            ins = stack.pop()
            symbolic = isinstance(ins.op, Lengths) or awaits_lengths(ins)
            if ins.is_param or ins.module_args or ins.name in _NOT_PURE or (ins.shape.is_dynamic and not symbolic):
                return False
            found = found or symbolic
            stack += [i for i in ins.inputs if i not in seen]
            seen.update(ins.inputs)
        return found

    def _take(self, ins: Instruction) -> bool:
        """Return whether the allowance admits evaluating an instruction; views cost nothing."""
        if ins.op.view:
            return True
        inputs = [i.shape for i in ins.inputs]
        elements = _elements(ins.shape) + sum(map(_elements, inputs))
        return self._allowance.take(max(elements, ins.op.flops(ins.shape, inputs)), ins.shape.bytes)

    @staticmethod
    def _computable(ins: Instruction) -> bool:
        if ins.module_args or ins.name in _NOT_PURE or ins.shape.is_dynamic or not ins.inputs or awaits_lengths(ins):
            return False
        return _elements(ins.shape) <= LARGEST


def awaits_lengths(ins: Instruction) -> bool:
    """Return whether lengths or attributes of an instruction are known only when a plan runs."""
    return ins.shape.symbolic or ins.op.symbolic


def _elements(shape: Shape) -> int:
    return sum(map(_elements, shape.sub_shapes)) if shape.sub_shapes else shape.elements


def _empty(ins: Instruction) -> bool:
    shape = ins.shape
    return not (shape.is_dynamic or shape.symbolic or shape.sub_shapes) and 0 in shape.lens
