"""The Numba types that kernels compute with, and the frame in which their intrinsics are written.

A `Vec` is `lanes` elements of one dtype, held in an LLVM vector. Bool elements are i1 in registers and bytes
in memory. Storage floats (`STORAGE`) are kept as integers of their width and have no arithmetic. A scalar of
a dtype that Numba knows is Numba's own type; a scalar of a storage dtype is a `Vec` with 0 lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from ..toolchain.numba_core import TypingError, intrinsic, models, register_model, types
from .builder import VectorBuilder, element_type
from .convert import convert
from .target import MAX_LANES

__all__ = [
    "DEFINITIONS",
    "DTYPES",
    "FLOATS",
    "INTEGERS",
    "STORAGE",
    "Vec",
    "constant_int",
    "describe",
    "elementwise",
    "make_intrinsic",
    "pointer_dtype",
    "pointer_type",
    "scalar_type",
    "value_type",
]

FLOATS = ("float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
STORAGE = ("float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
DTYPES = ("bool", *INTEGERS, *FLOATS, *STORAGE)

_NUMBA = {name: getattr(types, name) for name in (*INTEGERS, *FLOATS)} | {"bool": types.boolean}
_NAMES = {numba_type: name for name, numba_type in _NUMBA.items()}
# What Python's own literals are typed as: these scalars adapt to the dtype that they meet.
_WEAK = ("int64", "float64")


class Vec(types.Type):
    """`lanes` elements of `dtype`; 0 lanes stands for one scalar."""

    def __init__(self, dtype: str, lanes: int) -> None:
        self.dtype = dtype
        self.lanes = lanes
        super().__init__(name=f"vec({dtype}, {lanes})")

    @property
    def key(self) -> tuple[str, int]:
        return self.dtype, self.lanes


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vec: Vec) -> None:
        element = element_type(vec.dtype)
        super().__init__(manager, vec, ir.VectorType(element, vec.lanes) if vec.lanes else element)


@functools.cache
def value_type(dtype: str, lanes: int) -> types.Type:
    """Numba type of `lanes` elements of `dtype`, or of one scalar if `lanes` is 0."""
    return Vec(dtype, lanes) if lanes or dtype in STORAGE else _NUMBA[dtype]


def scalar_type(dtype: str) -> types.Type:
    """Numba type of one element of `dtype`."""
    return value_type(dtype, 0)


@functools.cache
def pointer_type(dtype: str) -> types.CPointer:
    """Numba type of a pointer to elements of `dtype`."""
    return types.CPointer(scalar_type(dtype))


def describe(name: str, numba_type: types.Type) -> tuple[str, int]:
    """Dtype and lanes (0 for a scalar) of an operand of the intrinsic `name`.

    Raises:
        TypingError: the type is neither a vector nor a number.
    """
    if isinstance(numba_type, Vec):
        return numba_type.dtype, numba_type.lanes
    dtype = _NAMES.get(types.unliteral(numba_type))
    if dtype is None:
        raise TypingError(f"{name}: expected a vector or a number, got {numba_type}")
    return dtype, 0


def pointer_dtype(name: str, numba_type: types.Type) -> str:
    """Dtype of the elements of a pointer operand of the intrinsic `name`.

    Raises:
        TypingError: the type is not a pointer to elements.
    """
    if not isinstance(numba_type, types.CPointer):
        raise TypingError(f"{name}: expected a pointer, got {numba_type}")
    return describe(name, numba_type.dtype)[0]


def constant_int(name: str, what: str, numba_type: types.Type, low: int = 0, high: int = MAX_LANES) -> int:
    """Value of an operand that must be an integer literal, a power of two or 0 if it is a lane count.

    Raises:
        TypingError: it is not a literal, or out of range.
    """
    value = getattr(numba_type, "literal_value", None)
    if not isinstance(value, int) or not low <= value <= high:
        raise TypingError(f"{name}: {what} must be an integer literal from {low} to {high}, got {numba_type}")
    if what == "LANES" and value & (value - 1):
        raise TypingError(f"{name}: LANES must be a power of two, got {value}")
    return value


Emit = Callable[..., ir.Value]
Lower = Callable[[Any, ir.IRBuilder, Any, Sequence[ir.Value]], Any]


def _common(name: str, operands: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """Dtype and lanes in which operands meet: those of the vectors, else of the scalars that are not weak."""
    vectors = {operand for operand in operands if operand[1]}
    if len(vectors) > 1:
        shown = ", ".join(f"{dtype} x {lanes}" for dtype, lanes in operands)
        raise TypingError(f"{name}: operands must have one dtype and lane count, got {shown}")
    if vectors:
        return vectors.pop()
    dtypes = {dtype for dtype, _ in operands}
    strong = dtypes - set(_WEAK) or dtypes - {"int64"} or dtypes
    if len(strong) > 1:
        raise TypingError(f"{name}: operands must have one dtype, got {', '.join(sorted(dtypes))}")
    return strong.pop(), 0


def elementwise(
    name: str,
    emit: Emit,
    arity: int,
    dtypes: Sequence[str],
    result: str | None = None,
    fast: bool = False,
) -> Any:
    """Intrinsic over `arity` operands of one dtype and lane count.

    `emit(b, dtype, *values)` writes the code with a `VectorBuilder`; scalars have been converted and
    broadcast. `result` is the dtype of the result if it is not that of the operands. `fast` allows fast-math
    flags.

    Raises:
        TypingError: (from Numba's typing) operands that do not fit each other, or a dtype that is not in
        `dtypes`.
    """

    def define(*operands: types.Type) -> tuple[Any, Lower]:
        kinds = [describe(name, operand) for operand in operands]
        dtype, lanes = _common(name, kinds)
        if dtype not in dtypes:
            hint = "; cast it to float32 first" if dtype in STORAGE else ""
            raise TypingError(f"{name}: not defined for {dtype}{hint}")
        given = [value_type(*kind) for kind in kinds]

        def lower(context: Any, ir_builder: ir.IRBuilder, signature: Any, args: Sequence[ir.Value]) -> ir.Value:
            b = VectorBuilder(ir_builder, fast)
            values = []
            for (own, count), value in zip(kinds, args, strict=True):
                value = convert(b, value, own, dtype)
                values.append(b.splat(value, lanes) if lanes and not count else value)
            return emit(b, dtype, *values)

        return value_type(result or dtype, lanes)(*given), lower

    return make_intrinsic(name, define, arity)


Define = Callable[..., tuple[Any, Lower]]
DEFINITIONS: dict[str, Define] = {}
"""Definitions given to `make_intrinsic`, by name. A GPU version of a shared intrinsic takes precedence; no two further
definitions have a common name."""


def make_intrinsic(name: str, define: Define, arity: int, literal: bool = False) -> Any:
    """Register `define(*operand_types) -> (signature, lowering)` as the intrinsic `name`.

    With `literal`, integer operands written as literals arrive as literal types.
    """
    DEFINITIONS.setdefault(name, define)

    def none(typingctx):
        return define()

    def one(typingctx, a):
        return define(a)

    def two(typingctx, a, b):
        return define(a, b)

    def three(typingctx, a, b, c):
        return define(a, b, c)

    def four(typingctx, a, b, c, d):
        return define(a, b, c, d)

    def five(typingctx, a, b, c, d, e):
        return define(a, b, c, d, e)

    def six(typingctx, a, b, c, d, e, f):
        return define(a, b, c, d, e, f)

    def seven(typingctx, a, b, c, d, e, f, g):
        return define(a, b, c, d, e, f, g)

    def eight(typingctx, a, b, c, d, e, f, g, h):
        return define(a, b, c, d, e, f, g, h)

    function = (none, one, two, three, four, five, six, seven, eight)[arity]
    function.__name__ = function.__qualname__ = name
    return intrinsic(prefer_literal=literal)(function)
