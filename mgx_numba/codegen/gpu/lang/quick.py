"""Elementary functions on float32 for fast math, as GPUs compute them best: the CPU's, with approximate division.

Division is off by 2 units in the last place at most, and 0 for divisors beyond 2**126; results stay within 4 units, and
those below 2**-125 may be 0.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ...cpu.lang import math32
from ...cpu.lang.builder import Operand, VectorBuilder
from ...cpu.lang.vector import elementwise

__all__ = [
    "exp_quick", "gelu_erf_quick", "gelu_tanh_quick", "sigmoid_quick", "silu_quick", "softplus_quick", "tanh_quick",
]  # fmt: skip


class _Approximate(VectorBuilder):
    """A builder whose division is one instruction and a product."""

    def strict(self) -> VectorBuilder:
        """The same: intrinsics take no fast-math flags here either."""
        return self

    def div(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.fdiv(*self.coerce(x, y), flags=("arcp", "afn"))


def _quick(name: str) -> Any:
    emit = getattr(math32, f"{name}_fast")
    return elementwise(f"{name}_quick", lambda b, dtype, x: emit(_Approximate(b.ir), x), 1, ("float32",))


exp_quick = _quick("exp")
gelu_erf_quick = _quick("gelu_erf")
gelu_tanh_quick = _quick("gelu_tanh")
sigmoid_quick = _quick("sigmoid")
silu_quick = _quick("silu")
softplus_quick = _quick("softplus")
tanh_quick = _quick("tanh")
