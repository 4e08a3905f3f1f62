"""Binary and ternary pointwise operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..core.types import Type
from ..dataclass import dataclass
from .base import Pointwise, register
from .scalar import ScalarOps, V


def _binary(op_name: str, method: str | None = None, commutative: bool = False, summary: str = "") -> None:
    """Define the operator whose scalar expression is one protocol call on two operands."""
    call = method or op_name

    def scalar(self: Pointwise, s: ScalarOps[V], *x: V) -> V:
        return getattr(s, call)(x[0], x[1])

    members = {
        "name": op_name,
        "arity": 2,
        "commutative": commutative,
        "scalar": scalar,
        "__doc__": summary or f"``{call}(a, b)``, element by element.",
    }
    register(dataclass(frozen=True)(type(op_name.title().replace("_", ""), (Pointwise,), members)))


for _name in "add mul max min bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor".split():
    _binary(_name, commutative=True)
for _name in "sub div fmod mod pow".split():
    _binary(_name)
_binary("equal", "eq", commutative=True)
_binary("greater", "gt")
_binary("less", "lt")
_binary("greater_or_equal", "ge")
_binary("less_or_equal", "le")
_binary("bitwise_shift_left", "shift_left")
_binary("bitwise_shift_right", "shift_right")


@register
@dataclass(frozen=True)
class Sqdiff(Pointwise):
    """``(a - b)**2``."""

    name: ClassVar[str] = "sqdiff"
    arity: ClassVar[int] = 2
    commutative: ClassVar[bool] = True

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        difference = s.sub(x[0], x[1])
        return s.mul(difference, difference)


@register
@dataclass(frozen=True)
class Prelu(Pointwise):
    """``x * slope`` where ``x < 0``, ``x`` elsewhere."""

    name: ClassVar[str] = "prelu"
    arity: ClassVar[int] = 2

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        return s.where(s.lt(x[0], s.const(0, s.dtype(x[0]))), s.mul(x[0], x[1]), x[0])


@register
@dataclass(frozen=True)
class Clip(Pointwise):
    """``min(max(low, x), high)``; inputs are x, low, high."""

    name: ClassVar[str] = "clip"
    arity: ClassVar[int] = 3

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        return s.min(s.max(x[1], x[0]), x[2])


@register
@dataclass(frozen=True)
class Where(Pointwise):
    """The second input where the first (bool) is true, the third elsewhere."""

    name: ClassVar[str] = "where"
    arity: ClassVar[int] = 3

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        return s.where(x[0], x[1], x[2])

    def input_types(self, types: Sequence[Type]) -> None:
        if types[1] != types[2]:
            raise self.fail(f"branches have different types: {types[1].name}, {types[2].name}")
