"""The functions of the scalar-operation protocol: one table of names, types, cost and meaning in NumPy.

Each line is all that the package knows about a function, but for its code: `codegen.lang` computes it on vectors, under
the same name. The kernel printers, cost models, passes and the pointwise operators read this table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.types import Type, finfo
from ..dataclass import dataclass


@dataclass(frozen=True)
class ScalarFunction:
    """A function of numbers of one element type.

    Attributes:
        name: name in the protocol and in kernel text; pointwise operators of one operand have the same name.
        meaning: the function on NumPy arrays of one element type.
        group: ``unary``, ``binary``, ``bitwise`` and ``bitwise unary`` functions keep the element type; ``compare``,
            ``logical`` and ``test`` functions return bool.
        integers: whether integers are allowed; floats are, except for bitwise functions.
        booleans: whether `codegen.lang` has the function for bool.
        costly: whether it takes a vector unit many instructions or cycles.
        fast: whether the language has a version for fast math, named with the suffix ``_fast``.
        quick: whether GPUs have a version for fast math, named with the suffix ``_quick``.
        span: least and greatest result, except NaN.
    """

    name: str
    meaning: Callable[..., object]
    group: str = "unary"
    integers: bool = False
    booleans: bool = False
    costly: bool = False
    fast: bool = False
    quick: bool = False
    span: tuple[float, float] = (-math.inf, math.inf)


NEAREST = {
    t: f"nearest_{t.dtype_name}"
    for t in (Type.fp8e4m3fn_type, Type.fp8e4m3fnuz_type, Type.fp8e5m2_type, Type.fp8e5m2fnuz_type)
}
"""Function names, by float8 type, that quantise float32 and convert back: ``nearest_float8_e4m3fn(x, scale)`` is the
nearest product of the scale (a constant power of two) and a number of the type; the largest one where x exceeds it."""


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


def _add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.logical_or(a, b) if a.dtype.kind == "b" else np.add(a, b)


def _sub(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.logical_xor(a, b) if a.dtype.kind == "b" else np.subtract(a, b)


def _erf(x: np.ndarray) -> np.ndarray:
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


def _gelu_erf(x: np.ndarray) -> np.ndarray:
    return (0.5 * x * (1 + _erf(x * x.dtype.type(_SQRT_HALF)))).astype(x.dtype)


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return (0.5 * x * (1 + np.tanh(_SQRT_2_PI * (x + 0.044715 * x * x * x)))).astype(x.dtype)


def _nearest(target: Type) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def nearest(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        limit = float(finfo(target.numpy).max)
        limited = np.minimum(np.maximum(x / scale, x.dtype.type(-limit)), x.dtype.type(limit))
        return limited.astype(target.numpy).astype(x.dtype) * scale

    return nearest


def _unary(name: str, meaning: Callable[..., Any], **traits: Any) -> ScalarFunction:
    """Return a function of floats that takes many instructions."""
    return ScalarFunction(name, meaning, costly=True, **traits)


_ALL: dict[str, Any] = {"integers": True, "booleans": True}

_TABLE = (
    ScalarFunction("neg", np.negative, integers=True),
    ScalarFunction("abs", np.abs, integers=True, span=(0.0, math.inf)),
    ScalarFunction("floor", np.floor, integers=True),
    ScalarFunction("ceil", np.ceil, integers=True),
    ScalarFunction("nearbyint", np.rint, integers=True),
    ScalarFunction("sign", np.sign, integers=True),
    ScalarFunction("recip", lambda x: _divide(np.ones_like(x), x)),
    _unary("sqrt", np.sqrt),
    _unary("rsqrt", lambda x: (1 / np.sqrt(x)).astype(x.dtype)),
    _unary("exp", np.exp, fast=True, quick=True, span=(0.0, math.inf)),
    _unary("log", np.log),
    _unary("log2", np.log2),
    _unary("erf", _erf),
    _unary("sin", np.sin),
    _unary("cos", np.cos),
    _unary("tan", np.tan),
    _unary("asin", np.arcsin),
    _unary("acos", np.arccos),
    _unary("atan", np.arctan),
    _unary("sinh", np.sinh),
    _unary("cosh", np.cosh),
    _unary("tanh", np.tanh, fast=True, quick=True),
    _unary("asinh", np.arcsinh),
    _unary("acosh", np.arccosh),
    _unary("atanh", np.arctanh),
    _unary("sigmoid", _sigmoid, fast=True, quick=True, span=(0.0, 1.0)),
    # The minima of GELU and SiLU are -0.1700 and -0.2785; the difference allows for rounding.
    _unary("gelu_erf", _gelu_erf, fast=True, quick=True, span=(-0.171, math.inf)),
    _unary("gelu_tanh", _gelu_tanh, fast=True, quick=True, span=(-0.171, math.inf)),
    _unary("silu", lambda x: x * _sigmoid(x), fast=True, quick=True, span=(-0.279, math.inf)),
    _unary("softplus", _softplus, fast=True, quick=True),
    _unary("mish", lambda x: x * np.tanh(_softplus(x))),
    ScalarFunction("add", _add, "binary", **_ALL, fast=True),
    ScalarFunction("sub", _sub, "binary", **_ALL, fast=True),
    ScalarFunction("mul", np.multiply, "binary", **_ALL, fast=True),
    # Division has no fast version: with `arcp` LLVM multiplies by a reciprocal, which overflows for small divisors and
    # may be computed in float16.
    ScalarFunction("div", _divide, "binary", integers=True, costly=True),
    ScalarFunction("max", _max, "binary", **_ALL),
    ScalarFunction("min", _min, "binary", **_ALL),
    ScalarFunction("fmod", _fmod, "binary", integers=True, costly=True),
    ScalarFunction("mod", _mod, "binary", integers=True, costly=True),
    ScalarFunction("pow", _pow, "binary", integers=True, costly=True),
    *(
        ScalarFunction(name, meaning, "compare", **_ALL)
        for name, meaning in (
            ("lt", np.less), ("le", np.less_equal), ("gt", np.greater), ("ge", np.greater_equal),
            ("eq", np.equal), ("ne", np.not_equal),
        )
    ),
    ScalarFunction("logical_and", np.logical_and, "logical", **_ALL),
    ScalarFunction("logical_or", np.logical_or, "logical", **_ALL),
    ScalarFunction("logical_xor", np.logical_xor, "logical", **_ALL),
    ScalarFunction("logical_not", np.logical_not, "test", **_ALL),
    ScalarFunction("isnan", np.isnan, "test", integers=True),
    ScalarFunction("isinf", np.isinf, "test", integers=True),
    ScalarFunction("bitwise_and", np.bitwise_and, "bitwise", **_ALL),
    ScalarFunction("bitwise_or", np.bitwise_or, "bitwise", **_ALL),
    ScalarFunction("bitwise_xor", np.bitwise_xor, "bitwise", **_ALL),
    ScalarFunction("shift_left", np.left_shift, "bitwise", integers=True),
    ScalarFunction("shift_right", np.right_shift, "bitwise", integers=True),
    ScalarFunction("bitwise_not", np.bitwise_not, "bitwise unary", **_ALL),
    *(ScalarFunction(name, _nearest(target), "nearest") for target, name in NEAREST.items()),
)  # fmt: skip
FUNCTIONS = {function.name: function for function in _TABLE}
"""The functions by name."""


def named(*groups: str) -> frozenset[str]:
    """Return the names of the functions in ``groups``."""
    return frozenset(function.name for function in _TABLE if function.group in groups)


COSTLY = frozenset(function.name for function in _TABLE if function.costly)
QUICK = frozenset(function.name for function in _TABLE if function.quick)
UNARY, BINARY, BITWISE = named("unary"), named("binary"), named("bitwise")
COMPARE, LOGICAL = named("compare"), named("logical")
PREDICATES = named("compare", "logical", "test")
"""Functions whose results are bool."""
SAME_TYPE = named("unary", "binary", "bitwise", "bitwise unary", "nearest")
"""Functions whose results have the type of their first operand."""


def is_defined(name: str, dtype: Type) -> bool:
    """Return whether `codegen.lang` has a function for an element type."""
    function = FUNCTIONS.get(name)
    if function is None:
        return dtype is not Type.bool_type
    if dtype is Type.bool_type:
        return function.booleans
    return not function.group.startswith("bitwise") if dtype.is_floating else function.integers
