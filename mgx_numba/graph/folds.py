"""How constants of one value were computed from others while a rewriting was traced, so that they can be computed of
other values; see `replay`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np

from ..core.argument import Argument
from ..core.shape import Shape
from ..core.types import Type, from_numpy
from ..dataclass import dataclass
from ..ops.base import Operator
from .constants import compact
from .instruction import Instruction

__all__ = ["LARGEST_OFFSET", "SOUGHT", "Fold", "Folds", "is_plain", "kind_of", "normal_reciprocal"]

SOUGHT: set[tuple[float, float]] = set()
"""Values that rules of passes look for, such as those of GELU, with their relative tolerances."""


LARGEST_OFFSET = 1024.0
"""Biases and means of networks are below this, and constants that round or hide numbers above it."""


@dataclass(frozen=True)
class Fold:
    """A constant of one value: a pointwise operator on such constants.

    Attributes:
        like: the literal that it was when it was traced.
        inputs: places of literals that the program was given, constants that stay, or what they were computed of.
    """

    op: Operator
    type: Type
    like: Argument
    inputs: tuple[int | Argument | Fold, ...]

    def of(self, given: Sequence[Argument], made: Mapping[int, Argument]) -> Argument:
        """The literal for other literals that the program is given; ``made`` has those of its inputs, by identity."""
        found = [made[id(i)] if isinstance(i, Fold) else given[i] if isinstance(i, int) else i for i in self.inputs]
        values = [a.numpy().reshape(-1)[:1] for a in found]
        with np.errstate(all="ignore"):
            value = np.asarray(self.op.compute(Shape(self.type, (1,)), values))
        lens = [int.__index__(n) for n in self.like.shape.lens]
        strides = [int.__index__(n) for n in self.like.shape.strides]
        return Argument(Shape(self.type, lens, strides), value.reshape(self.like.numpy().shape))


class Folds:
    """The constants of one value that are folded in a program."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Operator, Type, list[Argument], Argument]] = {}

    def note(self, op: Operator, inputs: Sequence[Instruction], made: Instruction) -> None:
        """Note that a constant was made by a pointwise operator of others, if the literals of all have one value."""
        literal, sources = _literal(made), [_literal(i) for i in inputs]
        if all(a.array is not None and compact(a.array).size == 1 for a in sources):
            self._made[id(literal)] = op, made.shape.type, sources, literal

    def of(self, places: Mapping[int, int]) -> dict[int, Fold]:
        """What was computed of some literals, by identity of the literals made, each behind its inputs; ``places`` has
        the places of those, by identity."""
        found: dict[int, Fold] = {}
        for made, (op, type, sources, literal) in self._made.items():
            inputs = tuple([places.get(id(a), found.get(id(a), a)) for a in sources])
            if any(isinstance(i, (int, Fold)) for i in inputs):
                found[made] = Fold(op, type, literal, inputs)
        return found


def normal_reciprocal(least: float, greatest: float, type: Type) -> bool:
    """Whether every divisor of a size between these has a reciprocal that is finite and has all its bits."""
    numbers = ml_dtypes.finfo(type.numpy)
    tiny, largest = float(numbers.smallest_normal), float(numbers.max)
    return least >= max(tiny, 1 / largest) and greatest <= min(largest, 1 / tiny)


def is_plain(value: float) -> bool:
    """Whether a number has at most 8 significant bits, as 0.5 or 6; kernels have such constants in their text.

    Others (scales, shifts) differ from layer to layer: as operands they leave the layers one kernel to share.
    """
    return not math.isfinite(value) or (math.frexp(value)[0] * 256).is_integer()


def kind_of(argument: Argument) -> str:
    """Return the properties of a float literal of one element on which rewriting may depend; "" for other literals.

    The properties are its sign, whether it is below 1 or above `LARGEST_OFFSET`, and whether it is a ``power`` of two,
    else ``plain`` or ``long``. Numbers that rules look for, and numbers whose products or reciprocals may overflow or
    lose bits, are returned in full.
    """
    array = argument.array
    type = None if array is None else from_numpy(array.dtype)
    if array is None or array.size != 1 or type is None or not type.is_floating:
        return ""
    value = float(array.reshape(-1)[0])
    size, exponent = abs(value), math.frexp(value)[1]
    extreme = abs(exponent) >= ml_dtypes.finfo(type.numpy).maxexp // 2  # the product of two others is normal
    sought = any(abs(value - s) <= t * abs(s) for s, t in SOUGHT)
    if extreme or sought or not normal_reciprocal(size, size, type):
        return value.hex()
    range = "below 1" if size < 1 else "large" if size > LARGEST_OFFSET else ""
    bits = "power" if abs(math.frexp(value)[0]) == 0.5 else "plain" if is_plain(value) else "long"
    return " ".join(["-" if value < 0 else "+", range, bits])


def _literal(ins: Instruction) -> Argument:
    """The literal that a constant is a view of."""
    while ins.literal is None:
        ins = ins.inputs[0]
    return ins.literal
