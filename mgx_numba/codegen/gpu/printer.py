"""Scalar expressions in the GPU language: what a thread computes on its vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ...core.types import Type
from ...ops.scalar_functions import QUICK
from ..printer import EIGHT_BITS, LARGEST_FLOAT8, CodeBuffer, VectorPrinter, VectorValue

_EXACT = frozenset(("fmod", "mod"))
"""Functions implemented in `lang.remainders` with integer arithmetic."""
_SHORT = frozenset(("gelu_erf",))
"""Functions with a shorter version for 16-bit results."""
_SIXTEEN_BITS = (Type.half_type, Type.bf16_type)

_SATURATED = {t: LARGEST_FLOAT8[t] for t in (Type.fp8e4m3fn_type, Type.fp8e5m2_type)}
"""Types that `lang.rounding` rounds to, with the largest number of float types."""
VECTOR_BYTES = 16
"""Bytes of a thread's widest load and store."""


class ThreadPrinter(VectorPrinter):
    """`VectorPrinter` for GPU functions; 0 lanes print scalars."""

    FAST_CASTS: ClassVar[Mapping[str, str]] = {}
    ROUNDERS: ClassVar[Mapping[Type, str]] = {}
    NEAREST: ClassVar[Mapping[Type, str]] = {}

    def __init__(self, buffer: CodeBuffer, lanes: int, fast_math: bool = False) -> None:
        super().__init__(buffer, lanes, fast_math)
        self._products: dict[str, tuple[str, str]] = {}
        self._gelus: dict[str, tuple[str, Type]] = {}
        """Of products, with fast math, what was multiplied, and of values of GELU the argument and their type."""
        self._uniform: set[str] = set()
        """Names that hold the same number in every lane."""

    def loaded(self, expression: str, dtype: str | Type) -> VectorValue:
        made = super().loaded(expression, dtype)
        if expression.startswith("load_splat("):
            self._uniform.add(made.name)
        return made

    def cast_loosely(self, x: VectorValue, dtype: Type) -> VectorValue:
        """See `VectorPrinter.cast_loosely`. With fast math, float32 is rounded to 16 bits only when it is stored."""
        if self.fast_math and dtype in _SIXTEEN_BITS and x.dtype.compute is Type.float_type:
            return VectorValue(self.register(x), dtype, constant=x.constant)
        return self._cast(x, dtype)

    def _cast(self, x: VectorValue, dtype: Type) -> VectorValue:
        """Print a cast, see `VectorPrinter.cast`. Fuses rounding with the cast to an 8-bit integer, and clamping with
        the cast to float8."""
        source, limit = self._limited.get(x.name, ("", 0.0))
        if source and limit == _SATURATED.get(dtype):
            argument, other = self._gelu_product(source)
            text = f"gelu_erf_product_{dtype_name(dtype)}({argument}, {other})"
            text = text if argument else f"saturated_{dtype_name(dtype)}({source})"
            return VectorValue(self.buffer.emit(text), dtype, raw=True)
        source, point = self._rounded.get(x.name, ("", None))
        if source and self.lanes and dtype in EIGHT_BITS and self._is_point(point, dtype):
            zero = f"const_float32(0, {self.lanes})" if point is None else self.register(point)
            argument, other = self._gelu_product(source)
            if argument:
                text = f"gelu_erf_product_{dtype_name(dtype)}({argument}, {other}, {zero})"
            elif source in self._products and self.lanes > 1:
                factor, other = self._products[source]
                if factor in self._gelus:
                    factor = self.buffer.emit(f"gelu_erf_bytes({self._gelus[factor][0]})")
                text = f"rounded_product_{dtype_name(dtype)}({factor}, {other}, {zero})"
            else:
                text = f"rounded_{dtype_name(dtype)}({source}, {zero})"
            return VectorValue(self.buffer.emit(text), dtype)
        return super()._cast(x, dtype)

    def _gelu_product(self, source: str) -> tuple[str, str]:
        """Return GELU's argument and the other factor, if ``source`` is the product of a factor with GELU of a float16,
        whose accuracy then suffices; else ("", "")."""
        factor, other = self._products.get(source, ("", ""))
        argument, type = self._gelus.get(factor, ("", Type.float_type))
        return (argument, other) if type is Type.half_type and self.lanes > 1 else ("", "")

    def _call(self, name: str, result: Type, *operands: VectorValue) -> VectorValue:
        if name in _EXACT and operands[0].dtype.compute in (Type.float_type, Type.double_type):
            arguments = ", ".join(self.register(x) for x in operands)
            return VectorValue(self.buffer.emit(f"{name}_exact({arguments})"), result)
        if self.fast_math and name in QUICK and operands[0].dtype.compute is Type.float_type:
            kind = "short" if name in _SHORT and result.size == 2 else "quick"
            argument = self.register(operands[0])
            made = VectorValue(self.buffer.emit(f"{name}_{kind}({argument})"), result)
            if name in _SHORT:
                self._gelus[made.name] = argument, result
            return made
        if name == "max" and result in EIGHT_BITS and self.lanes and self.lanes % 4 == 0:
            arguments = ", ".join(self.register(x) for x in operands)
            return VectorValue(self.buffer.emit(f"max_bytes({arguments})"), result)
        made = super()._call(name, result, *operands)
        if result.compute is Type.float_type:
            self._note(name, made, operands)
        return made

    def _note(self, name: str, made: VectorValue, operands: tuple[VectorValue, ...]) -> None:
        """Record how a float32 value was computed, for `_cast`."""
        if name == "mul" and self.fast_math:
            x, y = (self.register(v) for v in operands)
            self._products[made.name] = (y, x) if y in self._gelus else (x, y)
        elif (
            name == "div" and self.fast_math and (operands[1].constant is not None or operands[1].name in self._uniform)
        ):
            one = f"const_float32(1.0, {self.lanes})"
            inverse = self.buffer.emit(f"div({one}, {self.register(operands[1])})")
            self._products[made.name] = (self.register(operands[0]), inverse)


def dtype_name(type: Type) -> str:
    """Return the kernel language's name of an element type."""
    return type.dtype_name


def most_lanes(size: int) -> int:
    """Return the elements of ``size`` bytes in the widest vector."""
    return VECTOR_BYTES // size
