"""Values that follow from lengths, while a program is settled for lengths that note what is done with them.

Elements that are lengths, or sums and products of some, are followed through the operators by which models compute
shapes. What else depends on lengths has a recipe: its operator and its inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.argument import Argument
from ..core.shape import Shape
from ..core.types import Type
from ..ops.base import Operator
from ..ops.selection import DynamicRange
from .folding import Constants, Followed, integers
from .instruction import Instruction, Literal
from .module import Module
from .numbers import attribute_numbers
from .program import Program
from .specialize import Settling
from .traced_int import TracedInt

__all__ = ["FollowedSettling", "is_traced"]

_MOVING = frozenset(
    "gather concat slice step reverse squeeze unsqueeze reshape transpose flatten identity contiguous broadcast"
    " multibroadcast scalar".split()
)
"""Operators whose result consists of elements of their inputs; what they are moved by has values."""


def is_traced(op: Operator, shape: Shape) -> bool:
    """Whether an attribute or a length notes what is done with it."""
    return any(isinstance(v, TracedInt) for v in (*attribute_numbers(op), *shape.lens, *shape.strides))


class FollowedSettling(Settling):
    """A copy of a program for lengths that note what is done with them.

    Attributes:
        recipes: by the identity of a literal that depends on lengths: its elements, or its operator and its inputs.
    """

    def __init__(self, lens: Mapping[str, Sequence[int]]) -> None:
        super().__init__(lens, {})
        self.recipes: dict[int, list[int] | tuple[Operator, list[Instruction]]] = {}
        self.constants = _FollowedConstants(self.program, self.recipes)

    def _lengths(self, ins: Instruction, lens: Sequence[int], target: Module) -> Instruction:
        own = list(lens[ins.op.start : ins.op.end])  # type: ignore[attr-defined]
        literal = self._literal(ins, np.array([int.__index__(n) for n in own], np.int64), target)
        if any(isinstance(n, TracedInt) for n in own):
            self.recipes[id(literal.literal)] = own
        return literal

    def _computed(
        self, ins: Instruction, shape: Shape, values: Sequence[np.ndarray], target: Module
    ) -> Instruction | None:
        known = [integers(value) for value in values]
        if not any(isinstance(v, TracedInt) for own in known for v in own or ()):
            return super()._computed(ins, shape, values, target)
        if not isinstance(ins.op, DynamicRange) or None in known:
            raise TypeError(f"what {ins.name} makes of lengths is not followed")
        start, limit, delta = (own[0] for own in known if own)
        if delta < 1:
            raise TypeError("a range that goes down is not followed")
        count = -(-(limit - start) // delta) if limit > start else 0
        first, step = (int.__index__(n) for n in (start, delta))
        array = (first + np.arange(int.__index__(count)) * step).astype(shape.type.numpy)
        argument = Argument(Shape(shape.type, [count]), array)
        literal = target._link(Instruction(Literal(), (), argument.shape, literal=argument), None)
        literal.debug_symbols = ins.debug_symbols
        self.recipes[id(argument)] = ins.op, [self.mapped[i] for i in ins.inputs]
        return literal

    def _given(self, value: np.ndarray) -> np.ndarray:
        known = integers(value)
        if value.dtype != object or known is None:
            return value
        found = np.empty(value.size, object)
        found[:] = known
        return found.reshape(value.shape)


class _NotFollowed:
    """The value of a constant that depends on lengths otherwise than by its elements being followed."""

    def __getattr__(self, name: str) -> Any:
        raise TypeError("a constant that is computed from lengths has no value that stays")


_NOT_FOLLOWED = _NotFollowed()


class _FollowedConstants(Constants):
    """Values whose elements are `Followed` where they are lengths, or follow from them."""

    def __init__(self, program: Program, recipes: Mapping[int, list[int] | tuple[Operator, list[Instruction]]]) -> None:
        super().__init__(program.allowance)
        self._recipes = recipes

    def _literal(self, literal: Argument) -> Any:
        recipe = self._recipes.get(id(literal))
        if recipe is None:
            return literal.numpy()
        if not isinstance(recipe, list):
            return _NOT_FOLLOWED
        return _objects([Followed(n) if isinstance(n, TracedInt) else n for n in recipe], literal.numpy().shape)

    def _computed(self, ins: Instruction, values: list[Any]) -> Any:
        if is_traced(ins.op, ins.shape) or any(v is _NOT_FOLLOWED for v in values):
            return _NOT_FOLLOWED
        if not any(isinstance(v, np.ndarray) and v.dtype == object and integers(v) is not None for v in values):
            return super()._computed(ins, values)
        if ins.name == "convert" and ins.shape.type is Type.int64_type:
            return values[0]
        if ins.name in _MOVING:
            found = ins.op.compute(ins.shape, values)
        elif ins.name in _ARITHMETIC and ins.shape.type is Type.int64_type:
            a, b = (_wide(v, ins.shape.lens) for v in values)
            function = _ARITHMETIC[ins.name]
            found = _objects([_followed(function(x, y)) for x, y in zip(a, b, strict=True)], ins.shape.lens)
        else:
            return _NOT_FOLLOWED
        numbers = integers(found)
        if numbers is None or any(isinstance(n, TracedInt) for n in numbers):
            return found
        return np.array(numbers, ins.shape.type.numpy).reshape(found.shape)


def _quotient(a: int, b: int) -> int:
    if a < 0 or b < 1:
        raise TypeError("the quotient of negative numbers is not followed")
    return a // b


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": _quotient,
    "min": lambda a, b: a if a < b else b, "max": lambda a, b: a if a > b else b,
}  # fmt: skip


def _followed(number: int) -> int | Followed:
    return Followed(number) if isinstance(number, TracedInt) else number


def _wide(value: np.ndarray, lens: Sequence[int]) -> list[int]:
    found = integers(np.broadcast_to(value, lens))
    if found is None:
        raise TypeError("numbers that are no integers are not followed")
    return found


def _objects(values: Sequence[Any], lens: Sequence[int]) -> np.ndarray:
    found = np.empty(len(values), object)
    found[:] = values
    return found.reshape(lens)
