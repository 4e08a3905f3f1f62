"""The Numba types that kernels compute with, and the frame in which their intrinsics are written.

A `Vec` is `lanes` elements of one dtype, held in an LLVM vector. Bool elements are i1 in registers and bytes
in memory. Storage floats (`STORAGE`) are kept as integers of their width and have no arithmetic. A scalar of
a dtype that Numba knows is Numba's own type; a scalar of a storage dtype is a `Vec` with 0 lanes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeAlias

from llvmlite import ir

from ..toolchain.numba_core import Intrinsic, TypingError, intrinsic, models, register_model, types
from .builder import VectorBuilder, element_type
from .convert import convert
from .target import MAX_LANES

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
    def __init__(self, manager: object, vec: Vec) -> None:
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


Values: TypeAlias = list[ir.Value]
Emit: TypeAlias = Callable[..., ir.Value]
EmitCall: TypeAlias = Callable[[ir.IRBuilder, Values], "ir.Value | None"]
"""Emits the code of a call, given the operands' values; returns the result, or None."""
Definition: TypeAlias = tuple[Any, EmitCall]
"""A Numba signature, and how calls with it are emitted."""
Define: TypeAlias = Callable[..., Definition]
KernelFunction: TypeAlias = Callable[..., Any]
"""A function of the kernel language. It has a meaning in kernel text only."""


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
) -> KernelFunction:
    """Intrinsic over `arity` operands of one dtype and lane count.

    `emit(b, dtype, *values)` writes the code with a `VectorBuilder`; scalars have been converted and
    broadcast. `result` is the dtype of the result if it is not that of the operands. `fast` allows fast-math
    flags.

    Raises:
        TypingError: (from Numba's typing) operands that do not fit each other, or a dtype that is not in
        `dtypes`.
    """

    def define(*operands: types.Type) -> Definition:
        kinds = [describe(name, operand) for operand in operands]
        dtype, lanes = _common(name, kinds)
        if dtype not in dtypes:
            hint = "; cast it to float32 first" if dtype in STORAGE else ""
            raise TypingError(f"{name}: not defined for {dtype}{hint}")
        given = [value_type(*kind) for kind in kinds]

        def emit_call(builder: ir.IRBuilder, args: Values) -> ir.Value:
            b = VectorBuilder(builder, fast)
            values = []
            for (own, count), value in zip(kinds, args, strict=True):
                value = convert(b, value, own, dtype)
                values.append(b.splat(value, lanes) if lanes and not count else value)
            return emit(b, dtype, *values)

        return value_type(result or dtype, lanes)(*given), emit_call

    return make_intrinsic(name, define, arity)


DEFINITIONS: dict[str, Define] = {}
"""Definitions given to `make_intrinsic`, by name. A GPU version of a shared intrinsic takes precedence; no two further
definitions have a common name."""
_OPERANDS = "abcdefghijklmnop"
"""Names of operands in the signatures that Numba sees."""


def make_intrinsic(name: str, define: Define, arity: int | None = None, literal: bool = False) -> KernelFunction:
    """Register the kernel function ``name``, which Numba types by ``define`` and lowers by its `EmitCall`.

    Args:
        define: takes the operands' Numba types.
        arity: number of operands; None: the number of parameters of ``define``.
        literal: integer operands written as literals arrive as literal types.
    """
    DEFINITIONS.setdefault(name, define)
    count = len(inspect.signature(define).parameters) if arity is None else arity
    return _intrinsic(name, define, count, literal)


def _intrinsic(name: str, define: Define, arity: int, literal: bool = False) -> KernelFunction:
    def typed(typingctx, *operands):
        signature, emit = define(*operands)

        def lower(context, builder, signature, values):
            result = emit(builder, list(values))
            return context.get_dummy_value() if result is None else result

        return signature, lower

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = ("typingctx", *_OPERANDS[:arity])
    shown: Any = typed
    shown.__signature__ = inspect.Signature([inspect.Parameter(parameter, kind) for parameter in names])
    shown.__name__ = shown.__qualname__ = name
    return intrinsic(prefer_literal=literal)(shown)


def kernel_function(define: Define) -> KernelFunction:
    """Register a definition as the kernel function of the same name."""
    return make_intrinsic(define.__name__, define)


def literal_function(define: Define) -> KernelFunction:
    """Register a definition as the kernel function of its own name, some of whose operands are integer literals."""
    return make_intrinsic(define.__name__, define, literal=True)


def emits(signature: Any) -> Callable[[Callable[..., ir.Value | None]], KernelFunction]:
    """Make a function of the IR builder and the operands' values the kernel function of its own name. It has one
    signature, and cannot be written inline (`DEFINITIONS`)."""

    def register(write: Callable[..., ir.Value | None]) -> KernelFunction:
        def define(*operands: types.Type) -> Definition:
            if len(operands) != len(signature.args):
                raise TypingError(f"{write.__name__}: {len(operands)} operands, expected {len(signature.args)}")
            return signature, lambda builder, values: write(builder, *values)

        return _intrinsic(write.__name__, define, len(signature.args))

    return register


def kernel_functions(*modules: ModuleType) -> dict[str, KernelFunction]:
    """Return the kernel functions of modules, by name; of two with one name the last."""
    return {name: value for module in modules for name, value in vars(module).items() if isinstance(value, Intrinsic)}
