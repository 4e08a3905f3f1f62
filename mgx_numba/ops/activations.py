"""Activation functions of ONNX's recurrent operators that have no MIGraphX operator of their own."""

from __future__ import annotations

from typing import ClassVar

from ..dataclass import dataclass
from .base import Pointwise, register
from .scalar import ScalarOps, V


@register
@dataclass(frozen=True)
class Affine(Pointwise):
    """``alpha * x + beta``."""

    name: ClassVar[str] = "affine"
    alpha: float = 1.0
    beta: float = 0.0

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        t = s.dtype(x[0])
        return s.add(s.mul(x[0], s.const(self.alpha, t)), s.const(self.beta, t))


@register
@dataclass(frozen=True)
class HardSigmoid(Pointwise):
    """``max(0, min(1, alpha * x + beta))``."""

    name: ClassVar[str] = "hard_sigmoid"
    alpha: float = 0.2
    beta: float = 0.5

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        t = s.dtype(x[0])
        line = s.add(s.mul(x[0], s.const(self.alpha, t)), s.const(self.beta, t))
        return s.max(s.const(0, t), s.min(s.const(1, t), line))


@register
@dataclass(frozen=True)
class ScaledTanh(Pointwise):
    """``alpha * tanh(beta * x)``."""

    name: ClassVar[str] = "scaled_tanh"
    alpha: float = 1.0
    beta: float = 1.0

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        t = s.dtype(x[0])
        return s.mul(s.const(self.alpha, t), s.tanh(s.mul(s.const(self.beta, t), x[0])))


@register
@dataclass(frozen=True)
class Softsign(Pointwise):
    """``x / (1 + |x|)``."""

    name: ClassVar[str] = "softsign"

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        return s.div(x[0], s.add(s.const(1, s.dtype(x[0])), s.abs(x[0])))


@register
@dataclass(frozen=True)
class ThresholdedRelu(Pointwise):
    """``x`` where it exceeds ``alpha``, 0 elsewhere."""

    name: ClassVar[str] = "thresholded_relu"
    alpha: float = 1.0

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        t = s.dtype(x[0])
        return s.where(s.gt(x[0], s.const(self.alpha, t)), x[0], s.const(0, t))
