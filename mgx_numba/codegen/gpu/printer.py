"""The scalar protocol in the GPU's language: what a thread computes on its vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from ...core.types import Type
from ...errors import UnsupportedError
from ..printer import CodeBuffer, VectorPrinter, VectorValue

__all__ = ["ThreadPrinter", "dtype_name", "most_lanes"]

# What the shared names compute by the C library, which no GPU has.
_LIBRARY = {
    Type.double_type: frozenset(
        (
            *"log2 erf sin cos tan asin acos atan sinh cosh tanh asinh acosh".split(),
            *"atanh pow gelu_erf softplus mish".split(),
        )
    ),
}
_EXACT = frozenset(("fmod", "mod"))
"""Names with a version of `lang.remainders`, in integers."""
_QUICK = frozenset("exp sigmoid tanh gelu_erf gelu_tanh silu softplus".split())
"""Names with a version of `lang.quick`, which fast math takes."""
_SHORT = frozenset(("gelu_erf",))
"""Those with a shorter one for results of 16 bits."""
_SIXTEEN_BITS = (Type.half_type, Type.bf16_type)
_EIGHT_BITS = (Type.int8_type, Type.uint8_type)
"""Types that `lang.rounding` rounds to."""
VECTOR_BYTES = 16
"""Bytes of the widest load and store of one thread."""


class ThreadPrinter(VectorPrinter):
    """`VectorPrinter` for the names that GPUs have; 0 lanes print scalars."""

    FAST_CASTS: ClassVar[Mapping[str, str]] = {}

    def __init__(self, buffer: CodeBuffer, lanes: int, fast_math: bool = False) -> None:
        super().__init__(buffer, lanes, fast_math)
        self._rounded: dict[str, tuple[str, int]] = {}
        """Of names that hold whole numbers what was rounded, and what was added to that."""

    def cast(self, x: VectorValue, dtype: Type) -> VectorValue:
        """See `VectorPrinter.cast`; a rounded number becomes an integer of 8 bits as it is rounded, and with fast math
        float32 is rounded to 16 bits only where it is stored."""
        if self.fast_math and dtype in _SIXTEEN_BITS and x.dtype.compute is Type.float_type:
            return VectorValue(self.register(x), dtype, constant=x.constant)
        source, zero = self._rounded.get(x.name, ("", 0))
        if not source or not self.lanes or dtype not in _EIGHT_BITS:
            return super().cast(x, dtype)
        ends = np.iinfo(dtype.numpy)
        if not ends.min <= zero <= ends.max:
            return super().cast(x, dtype)
        return VectorValue(self.buffer.emit(f"rounded_{dtype_name(dtype)}({source}, {zero})"), dtype)

    def nearbyint(self, x: VectorValue) -> VectorValue:
        """The nearest integer, ties to even."""
        made = self._call("nearbyint", x.dtype, x)
        if x.dtype.compute is Type.float_type:
            self._rounded[made.name] = self.register(x), 0
        return made

    def add(self, x: VectorValue, y: VectorValue) -> VectorValue:
        """The sum."""
        made = self._call("add", x.dtype, x, y)
        if x.name in self._rounded and y.constant is not None and float(y.constant).is_integer():
            source, zero = self._rounded[x.name]
            self._rounded[made.name] = source, zero + int(y.constant)
        return made

    def _call(self, name: str, result: Type, *operands: VectorValue) -> VectorValue:
        if name in _LIBRARY.get(operands[0].dtype.compute, ()):
            raise UnsupportedError(f"GPU kernels have no {name} of {operands[0].dtype.name}")
        if name in _EXACT and operands[0].dtype.compute in (Type.float_type, Type.double_type):
            arguments = ", ".join(self.register(x) for x in operands)
            return VectorValue(self.buffer.emit(f"{name}_exact({arguments})"), result)
        if self.fast_math and name in _QUICK and operands[0].dtype.compute is Type.float_type:
            kind = "short" if name in _SHORT and result.size == 2 else "quick"
            return VectorValue(self.buffer.emit(f"{name}_{kind}({self.register(operands[0])})"), result)
        if name == "max" and result in _EIGHT_BITS and self.lanes and self.lanes % 4 == 0:
            arguments = ", ".join(self.register(x) for x in operands)
            return VectorValue(self.buffer.emit(f"max_bytes({arguments})"), result)
        return super()._call(name, result, *operands)


def dtype_name(type: Type) -> str:
    """The kernel language's name of an element type."""
    return type.dtype_name


def most_lanes(size: int) -> int:
    """Lanes of the widest vector of elements of so many bytes."""
    return VECTOR_BYTES // size
