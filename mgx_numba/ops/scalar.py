"""The scalar-operation protocol, in which a pointwise operator states its meaning once.

An operator's ``scalar(s, *x)`` calls methods of a handler ``s``. A handler evaluates in NumPy (here), prints kernel
text for a back end, infers types, or counts operations. Every value has an element type; arithmetic takes operands of
one type and keeps it, comparisons give bool.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from ..core.types import Type, from_numpy

UNARY = frozenset(
    "neg abs sqrt rsqrt recip exp log log2 erf sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh"
    " sigmoid floor ceil nearbyint sign gelu_erf gelu_tanh silu softplus mish".split()
)
BINARY = frozenset("add sub mul div max min fmod mod pow".split())
COMPARE = frozenset("lt le gt ge eq ne".split())
LOGICAL = frozenset("logical_and logical_or logical_xor".split())
NEAREST = {
    t: f"nearest_{t.dtype_name}"
    for t in (Type.fp8e4m3fn_type, Type.fp8e4m3fnuz_type, Type.fp8e5m2_type, Type.fp8e5m2fnuz_type)
}
"""Function names, by float8 type, that quantise float32 and convert back: ``nearest_float8_e4m3fn(x, scale)`` is the
nearest product of the scale (a constant power of two) and a number of the type; the largest one where x exceeds it."""
BITWISE = frozenset("bitwise_and bitwise_or bitwise_xor shift_left shift_right".split())
_AS_FIRST = frozenset({"bitwise_not", *NEAREST.values()})


class ScalarOps(Protocol):
    """Interface of a handler: ``const``, ``cast``, ``where``, ``fma``, ``dtype`` and the names in the sets above.

    With fast math ``cast_loosely`` may keep bits beyond the type's precision; ``cast`` never does.
    """

    def dtype(self, x: Any) -> Type: ...
    def const(self, value: float | int | bool, dtype: Type) -> Any: ...
    def cast(self, x: Any, dtype: Type) -> Any: ...
    def cast_loosely(self, x: Any, dtype: Type) -> Any: ...
    def where(self, condition: Any, a: Any, b: Any) -> Any: ...
    def fma(self, a: Any, b: Any, c: Any) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...


class TypeScalar:
    """Handler that infers element types; values are ``Type`` members."""

    def dtype(self, x: Type) -> Type:
        return x

    def const(self, value: float | int | bool, dtype: Type) -> Type:
        return dtype

    def cast(self, x: Type, dtype: Type) -> Type:
        return dtype

    def cast_loosely(self, x: Type, dtype: Type) -> Type:
        return dtype

    def where(self, condition: Type, a: Type, b: Type) -> Type:
        return a

    def fma(self, a: Type, b: Type, c: Type) -> Type:
        return a

    def __getattr__(self, name: str) -> Any:
        if name in COMPARE or name in LOGICAL or name in ("isnan", "isinf", "logical_not"):
            return lambda *x: Type.bool_type
        if name in UNARY or name in BINARY or name in BITWISE or name in _AS_FIRST:
            return lambda *x: x[0]
        raise AttributeError(name)


class NumpyScalar:
    """Handler that evaluates with NumPy on arrays; the reference for every other handler.

    Narrow floats are computed in float32 and rounded after each operation; a `Pointwise` operator takes
    float16 and bfloat16 as float32 and is rounded once. Integer division truncates toward zero;
    dividing an integer by zero gives 0.
    """

    def dtype(self, x: np.ndarray) -> Type:
        return from_numpy(x.dtype)

    def const(self, value: float | int | bool, dtype: Type) -> np.ndarray:
        return np.asarray(value).astype(dtype.numpy)

    def cast(self, x: np.ndarray, dtype: Type) -> np.ndarray:
        return cast_array(x, dtype)

    def cast_loosely(self, x: np.ndarray, dtype: Type) -> np.ndarray:
        return cast_array(x, dtype)

    def where(self, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(condition.astype(bool), a, b)

    def fma(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return self.add(self.mul(a, b), c)

    def __getattr__(self, name: str) -> Any:
        if name not in _NUMPY:
            raise AttributeError(name)
        evaluate = evaluator(name)

        def call(*x: np.ndarray) -> np.ndarray:
            with np.errstate(all="ignore"):
                return evaluate(*x)

        return call


def evaluator(name: str) -> Callable[..., np.ndarray]:
    """Return `NumpyScalar`'s function for a name, for callers that have silenced NumPy's floating-point warnings."""
    function, of_bools = _NUMPY[name], name in _BOOLEAN

    def evaluate(*x: np.ndarray) -> np.ndarray:
        dtype = x[0].dtype
        compute = _compute_dtype(dtype)
        result = np.asarray(function(*[v if v.dtype is compute else v.astype(compute, copy=False) for v in x]))
        if result.dtype is dtype or (result.dtype == np.bool_ and name != "add"):
            return result
        return result.astype(np.bool_ if of_bools else dtype, copy=False)

    return evaluate


@functools.cache
def _compute_dtype(dtype: np.dtype) -> np.dtype:
    return from_numpy(dtype).compute.numpy


_STORAGE = (Type.half_type.numpy, Type.bf16_type.numpy)


def widened(x: np.ndarray) -> np.ndarray:
    """Return ``x`` in its compute type: float32 for narrower floats, else its own."""
    return x.astype(_compute_dtype(x.dtype), copy=False)


def from_storage(x: np.ndarray) -> np.ndarray:
    """Return ``x`` in float32 if it is float16 or bfloat16, which nothing but storage tells from float32."""
    return x.astype(np.float32) if x.dtype in _STORAGE else x


def cast_array(x: np.ndarray, dtype: Type) -> np.ndarray:
    """``x`` converted: float to integer truncates and saturates, NaN becomes 0; anything to bool is ``!= 0``.

    Integers below a byte are the low bits of the int32. A number of float4e2m1 is the nearest one to the float32, of
    two the one with an even code; beyond 6 it is 6, and a NaN is -0.
    """
    if x.dtype == dtype.numpy:
        return x
    with np.errstate(all="ignore"):
        return converted(x, dtype)


def converted(x: np.ndarray, dtype: Type) -> np.ndarray:
    """Return `cast_array`, for callers that have silenced NumPy's floating-point warnings."""
    target = dtype.numpy
    if x.dtype == target:
        return x
    source = from_numpy(x.dtype)
    if source.is_narrow:  # ml_dtypes has no conversion between some of its types
        x = x.astype(np.int8 if source.is_integral else np.float32)
        source = from_numpy(x.dtype)
        if x.dtype == target:
            return x
    if dtype.is_narrow:
        wide = converted(x, dtype.compute)
        if dtype.is_floating:
            return np.where(np.isnan(wide), np.float32(-0.0), wide).astype(target)
        return (wide & ((1 << dtype.bits) - 1)).astype(np.uint8).view(target)
    if dtype is Type.bool_type:
        return x != 0
    if target.kind not in "iu" or not source.is_floating:
        return x.astype(target)
    info = np.iinfo(target)
    wide = x.astype(np.float64)
    clipped = np.clip(np.nan_to_num(np.trunc(wide), nan=0.0, posinf=np.inf, neginf=-np.inf), info.min, info.max)
    result = np.where(
        wide >= float(info.max),
        info.max,
        clipped.astype(target, copy=False) if info.bits < 64 else _to_int64(clipped, target),
    )
    return result.astype(target)


def _to_int64(x: np.ndarray, target: np.dtype) -> np.ndarray:
    limit = float(np.iinfo(target).max)
    return np.where(x >= limit, 0.0, x).astype(target)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.true_divide(a, b)
    safe = np.where(b == 0, 1, b)
    quotient = np.floor_divide(a, safe)
    if a.dtype.kind == "i":
        quotient = quotient + ((quotient * safe != a) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, 0, quotient).astype(a.dtype)


def _fmod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    return np.where(b == 0, 0, np.fmod(a, np.where(b == 0, 1, b))).astype(a.dtype)


def _mod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.fmod(np.fmod(a, b) + b, b)
    return np.where(b == 0, 0, np.mod(a, np.where(b == 0, 1, b))).astype(a.dtype)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def _softplus(x: np.ndarray) -> np.ndarray:
    return (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))).astype(x.dtype)


def _max(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the greater, of equal ones the first, as kernels do: which zero NumPy takes depends on its vectors."""
    return np.where((a >= b) | (a != a), a, b) if a.dtype.kind == "f" else np.maximum(a, b)


def _min(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the lesser, of equal ones the first."""
    return np.where((a <= b) | (a != a), a, b) if a.dtype.kind == "f" else np.minimum(a, b)


def _erf(x: np.ndarray) -> np.ndarray:
    import math

    flat = np.fromiter((math.erf(v) for v in x.astype(np.float64).ravel().tolist()), np.float64, x.size)
    return flat.reshape(x.shape).astype(x.dtype)


def _pow(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        roots = (b == 0.5) & ((a == 0) | (a == -np.inf))
        # NumPy computes square roots here, which gives -0 and NaN; IEEE 754-2019 section 9.2.1 asks for 0 and infinity.
        return np.where(roots, np.abs(a), np.power(a, b)) if roots.any() else np.power(a, b)
    power = np.power(a, np.where(b < 0, b & 1, b)).astype(a.dtype)  # of 1 and -1 the parity is all that counts
    return np.where((b < 0) & (np.abs(a) != 1), 0, power).astype(a.dtype)


# By definition: sqrt(1 / 2), and sqrt(2 / pi) of the approximation of GELU by tanh.
_SQRT_HALF = 0.7071067811865476
_SQRT_2_PI = 0.7978845608028654


def _nearest(target: Type) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    limit = float(ml_dtypes.finfo(target.numpy).max)

    def nearest(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        limited = np.minimum(np.maximum(x / scale, x.dtype.type(-limit)), x.dtype.type(limit))
        return limited.astype(target.numpy).astype(x.dtype) * scale

    return nearest


_NUMPY: dict[str, Any] = {
    **{name: _nearest(target) for target, name in NEAREST.items()},
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: (1 / np.sqrt(x)).astype(x.dtype),
    "recip": lambda x: _divide(np.ones_like(x), x),
    "exp": np.exp,
    "log": np.log,
    "log2": np.log2,
    "erf": _erf,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "sigmoid": _sigmoid,
    "floor": np.floor,
    "ceil": np.ceil,
    "nearbyint": np.rint,
    "sign": np.sign,
    "gelu_erf": lambda x: (0.5 * x * (1 + _erf(x * x.dtype.type(_SQRT_HALF)))).astype(x.dtype),
    "gelu_tanh": lambda x: (0.5 * x * (1 + np.tanh(_SQRT_2_PI * (x + 0.044715 * x * x * x)))).astype(x.dtype),
    "silu": lambda x: x * _sigmoid(x),
    "softplus": _softplus,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "add": lambda a, b: np.logical_or(a, b) if a.dtype == np.bool_ else np.add(a, b),
    "sub": lambda a, b: np.logical_xor(a, b) if a.dtype == np.bool_ else np.subtract(a, b),
    "mul": np.multiply,
    "div": _divide,
    "max": _max,
    "min": _min,
    "fmod": _fmod,
    "mod": _mod,
    "pow": _pow,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_not": np.bitwise_not,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
}
_BOOLEAN = COMPARE | LOGICAL | {"isnan", "isinf", "logical_not"}
