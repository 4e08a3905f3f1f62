"""Unary pointwise operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..core.types import Type
from ..dataclass import dataclass
from .base import Pointwise, register
from .scalar import ScalarOps, TypeScalar, V
from .scalar_functions import UNARY


def _unary(op_name: str, method: str | None = None, summary: str = "") -> type[Pointwise]:
    """Define the operator whose scalar expression is one protocol call."""
    call = method or op_name

    def scalar(self: Pointwise, s: ScalarOps[V], *x: V) -> V:
        return getattr(s, call)(x[0])

    doc = summary or f"``{call}(x)``, element by element."
    cls = type(op_name.title().replace("_", ""), (Pointwise,), {"name": op_name, "scalar": scalar, "__doc__": doc})
    return register(dataclass(frozen=True)(cls))


for _name in sorted(UNARY | {"isnan", "isinf", "bitwise_not"}):
    _unary(_name)
_unary("not", "logical_not", "Logical negation; the result is bool.")


@register
@dataclass(frozen=True)
class Identity(Pointwise):
    """The input's value."""

    name: ClassVar[str] = "identity"

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        return x[0]


@register
@dataclass(frozen=True)
class Capture(Identity):
    """The input's value; MIGraphX puts it where calibration records ranges, which `Calibration` does here.

    ``ins_index`` numbers the recorded values.
    """

    name: ClassVar[str] = "capture"
    ins_index: int = 0


@register
@dataclass(frozen=True)
class Relu(Pointwise):
    """``max(0, x)``; NaN stays NaN."""

    name: ClassVar[str] = "relu"

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        return s.max(x[0], s.const(0, s.dtype(x[0])))


@register
@dataclass(frozen=True)
class LeakyRelu(Pointwise):
    """``x`` where positive, ``alpha * x`` elsewhere."""

    name: ClassVar[str] = "leaky_relu"
    alpha: float = 0.01

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        t = s.dtype(x[0])
        return s.where(s.gt(x[0], s.const(0, t)), x[0], s.mul(x[0], s.const(self.alpha, t)))


@register
@dataclass(frozen=True)
class Elu(Pointwise):
    """``x`` where not negative, ``alpha * (exp(x) - 1)`` elsewhere."""

    name: ClassVar[str] = "elu"
    alpha: float = 1.0

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        t = s.dtype(x[0])
        negative = s.mul(s.sub(s.exp(s.min(x[0], s.const(0, t))), s.const(1, t)), s.const(self.alpha, t))
        return s.where(s.gt(s.const(0, t), x[0]), negative, x[0])


@register
@dataclass(frozen=True)
class Convert(Pointwise):
    """The value in another element type: floats to integers truncate and saturate, to bool is ``!= 0``.

    An ``elidable`` conversion was added by the compiler, so that ``fast_math`` may leave it out and keep the bits that
    it loses. A conversion that the model's author wrote is not elidable.
    """

    name: ClassVar[str] = "convert"
    UNLESS_SET: ClassVar[tuple[str, ...]] = ("elidable",)
    target_type: Type = Type.half_type
    elidable: bool = False

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        return (s.cast_loosely if self.elidable else s.cast)(x[0], self.target_type)

    def output_type(self, types: Sequence[Type]) -> Type:
        return self.scalar(TypeScalar(), *types)
