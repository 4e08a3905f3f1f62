"""Element types of a contraction: both operands, accumulator, and result."""

from __future__ import annotations

import functools

from ...dataclass import dataclass
from ...errors import ShapeError

ITEMSIZE = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
"""Bytes per element by dtype of a problem's operands."""

_KNOWN = frozenset((
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float16", "bfloat16", "float32", "float64",
))  # fmt: skip


@dataclass(frozen=True)
class ElementTypes:
    """Dtypes of the left operand ``a``, the right operand ``b``, the accumulator, and the result ``out``.

    A convolution's input is ``a``, its weights are ``b``. ``out`` is the type that the epilogue receives or, without
    one, that is stored. Solvers decide which combinations they support.

    Raises:
        ShapeError: a dtype is not numeric.
    """

    a: str
    b: str
    accumulator: str
    out: str

    def __post_init__(self) -> None:
        for side in ("a", "b", "accumulator", "out"):
            if getattr(self, side) not in _KNOWN:
                found = getattr(self, side)
                raise ShapeError(f"contraction with {side} of dtype {found!r}; expected a type of numbers")

    @property
    def uniform(self) -> str | None:
        """Return the common dtype, None if they differ."""
        return self.a if self.a == self.b == self.accumulator == self.out else None

    @property
    def single(self) -> str:
        """Return the common dtype.

        Raises:
            ShapeError: they differ.
        """
        if self.uniform is None:
            raise ShapeError(f"contraction of the element types {self}; expected one for all sides")
        return self.uniform

    def __str__(self) -> str:
        """Format for `element_types` and tuning records."""
        return self.uniform or f"{self.a} {self.b} {self.accumulator} {self.out}"


@functools.lru_cache(maxsize=64)
def element_types(text: str) -> ElementTypes:
    """Parse one dtype, or four separated by spaces: a, b, accumulator, out.

    Raises:
        ShapeError: another number of types, or one that is not numeric.
    """
    names = text.split()
    if len(names) not in (1, 4):
        raise ShapeError(f"element types {text!r}; expected one dtype or four (a, b, accumulator, out)")
    return ElementTypes(*(names * 4)[:4])


FLOAT32 = element_types("float32")


class TypedProblem:
    """Base class of contractions with element types ``types``."""

    types: ElementTypes

    @property
    def dtype(self) -> str:
        """Return the common dtype of all operands.

        Raises:
            ShapeError: they differ.
        """
        return self.types.single

    @property
    def itemsize(self) -> int:
        """Return the bytes per element of `dtype`."""
        return ITEMSIZE[self.dtype]
