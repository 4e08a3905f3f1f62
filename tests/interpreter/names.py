"""NumPy implementations of the kernel language's functions, for the values of one thread.

A vector is a one-dimensional array, a scalar a NumPy number or a Python int. Elementwise functions use the scalar
protocol's NumPy meaning (`ops.scalar.NumpyScalar`), the reference of every back end.
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from mgx_numba.core.types import from_numpy, numpy_dtype
from mgx_numba.ops.scalar import converted, evaluator
from mgx_numba.ops.scalar_functions import BINARY, BITWISE, COMPARE, FUNCTIONS, LOGICAL

from .memory import KernelFault, Place

__all__ = ["DTYPES", "elementwise_names", "memory_names"]

_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_STORAGE = ("float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
DTYPES = ("bool", *_INTEGERS, "float32", "float64", *_STORAGE)
_WEAK = (np.dtype(np.int64), np.dtype(np.float64))
_BOOL = np.dtype(np.bool_)
_BINARY = BINARY | BITWISE | COMPARE | LOGICAL
_COMPUTED = frozenset("?bBhHiIlLqQfd")
"""NumPy's codes of the dtypes in which functions compute; others are converted to float32 and rounded."""


def _dtype(value: Any) -> np.dtype:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype
    return np.dtype(bool if isinstance(value, bool) else np.int64 if isinstance(value, int) else np.float64)


def _meet(operands: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    """Return operands converted to one dtype: that of the vectors, else of the scalars that are not Python literals."""
    first = getattr(operands[0], "dtype", None)
    for other in operands:  # NumPy has one object for each of its dtypes; should there be two, what follows is slower
        if getattr(other, "dtype", None) is not first:
            break
    else:
        if first is not None:
            return tuple(map(np.asarray, operands))
    vectors = {v.dtype for v in operands if isinstance(v, np.ndarray) and v.ndim}
    if len(vectors) > 1:
        raise KernelFault(f"operands of the dtypes {sorted(map(str, vectors))}")
    found = vectors or {_dtype(v) for v in operands}
    strong = found - set(_WEAK) or found - {_WEAK[0]} or found
    if len(strong) > 1:
        raise KernelFault(f"operands of the dtypes {sorted(map(str, strong))}")
    (dtype,) = strong
    return tuple(converted(np.asarray(v), from_numpy(dtype)) for v in operands)


def _elementwise(name: str) -> Callable[..., Any]:
    function = _fma if name == "fma" else evaluator(name)
    meaning = _fma if name == "fma" else FUNCTIONS[name].meaning
    if name in ("max", "min"):
        meaning = functools.partial(_selected, name)

    def binary(a: Any, b: Any) -> Any:
        dtype = getattr(a, "dtype", None)
        if dtype is not None and getattr(b, "dtype", None) is dtype and dtype.char in _COMPUTED:
            result = meaning(a, b)
            if result.dtype is dtype or result.dtype is _BOOL:
                return result
        return function(*_meet((a, b)))

    def call(*operands: Any) -> Any:
        dtype = getattr(operands[0], "dtype", None)
        for other in operands:
            if getattr(other, "dtype", None) is not dtype:
                return function(*_meet(operands))
        if dtype is None or dtype.char not in _COMPUTED:
            return function(*_meet(operands))
        result = meaning(*operands)  # no operand is converted, and most results need no conversion either
        return result if result.dtype is dtype or result.dtype is _BOOL else function(*_meet(operands))

    return binary if name in _BINARY else call


_multiplied, _added = evaluator("mul"), evaluator("add")


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a * b + c, rounded once except for float64."""
    return _of_float32("fma")(a, b, c) if a.dtype.char == "f" else _added(_multiplied(a, b), c)


@functools.cache
def _of_float32(name: str) -> np.ufunc:
    """Return ``fma``, ``max`` or ``min`` of float32 as one ufunc: NumPy's own take four or five calls for each, which
    was a tenth of the time that interpreted kernels took."""
    import numba

    def fma(a: Any, b: Any, c: Any) -> Any:  # float64 has all bits of the product
        return numba.float64(a) * numba.float64(b) + numba.float64(c)

    meanings = {
        "fma": fma,
        "max": lambda a, b: a if a >= b or a != a else b,
        "min": lambda a, b: a if a <= b or a != a else b,
    }
    operands = ", ".join(["float32"] * (3 if name == "fma" else 2))
    found: np.ufunc = numba.vectorize([f"float32({operands})"])(meanings[name]).ufunc
    return found


def _selected(name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the greater or the lesser, see `FUNCTIONS`."""
    return _of_float32(name)(a, b) if a.dtype.char == "f" else FUNCTIONS[name].meaning(a, b)


def _where(condition: Any, a: Any, b: Any) -> Any:
    if getattr(a, "dtype", None) is not getattr(b, "dtype", 0):
        a, b = _meet((a, b))
    if a.shape == b.shape and not getattr(condition, "ndim", 0):
        return a if condition else b
    return np.where(condition, a, b)


def _first_greater(a: Any, b: Any) -> Any:
    a, b = _meet((a, b))
    return np.where(a > b, a, b)


def _constant(dtype: np.dtype, value: float, lanes: int) -> Any:
    return _kept_constant(dtype, value, math.copysign(1, value), lanes)


@functools.lru_cache(maxsize=4096)  # a kernel has some dozens
def _kept_constant(dtype: np.dtype, value: float, sign: float, lanes: int) -> Any:
    """Return a cached read-only constant; ``sign`` distinguishes zeros."""
    exact = converted(np.asarray(value), from_numpy(dtype)) if dtype.kind in "iub" else np.asarray(value).astype(dtype)
    if not lanes:
        return exact[()]
    made = np.full(lanes, exact)
    made.flags.writeable = False
    return made


def _cast(dtype: np.dtype, x: Any) -> Any:
    return x if getattr(x, "dtype", None) is dtype else converted(np.asarray(x), from_numpy(dtype))


def _bits(dtype: np.dtype, x: Any) -> Any:
    return np.asarray(x).view(dtype)


def _reduced(name: str) -> Callable[[np.ndarray], Any]:
    combine = _elementwise(name)

    def call(v: np.ndarray) -> Any:
        while v.size > 1:
            half = v.size // 2
            v = combine(v[:half], v[half:])
        return v[0]

    return call


def _exp2(x: Any) -> Any:
    return np.exp2(np.asarray(x, np.float32))


def _rounded(dtype: np.dtype, x: np.ndarray, zero: np.ndarray) -> np.ndarray:
    return _cast(dtype, np.rint(x) + zero)


def _rounded_product(dtype: np.dtype, x: np.ndarray, y: np.ndarray, zero: np.ndarray) -> np.ndarray:
    return _cast(dtype, np.rint(x.astype(np.float64) * y + zero))  # float64 has all bits of the product


def _saturated(dtype: np.dtype, x: Any) -> Any:
    largest = float(ml_dtypes.finfo(dtype).max)
    return np.clip(np.asarray(x), -largest, largest).astype(dtype)


def _of_gelu(then: Callable[..., Any], x: np.ndarray, *others: np.ndarray) -> Any:
    return then(np.where(np.isneginf(x), np.float32(0), _elementwise("gelu_erf")(x)), *others)


def _splat(x: Any, lanes: int) -> np.ndarray:
    if not isinstance(x, np.generic):
        x = np.asarray(x)
        if x.ndim:
            return x
    made = np.empty(lanes, x.dtype)
    made.fill(x)  # faster than `repeat`
    return made


@functools.lru_cache(maxsize=1)
def elementwise_names() -> dict[str, Any]:
    """Return the functions that access neither memory nor state shared between threads."""
    names: dict[str, Any] = {}
    for name in (*(f.name for f in FUNCTIONS.values() if f.group != "nearest"), "fma"):
        names[name] = _elementwise(name)
    for name in (f.name for f in FUNCTIONS.values() if f.fast or f.quick):
        for kind in ("fast", "quick", "short", "bytes"):
            names[f"{name}_{kind}"] = names[name]
    for name in ("fmod", "mod"):
        names[f"{name}_exact"] = names[name]
    for dtype in DTYPES:
        names[f"const_{dtype}"] = functools.partial(_constant, numpy_dtype(dtype))
        names[f"cast_{dtype}"] = functools.partial(_cast, numpy_dtype(dtype))
        names[f"bits_{dtype}"] = functools.partial(_bits, numpy_dtype(dtype))
    for dtype in ("int8", "uint8"):
        names[f"rounded_{dtype}"] = functools.partial(_rounded, numpy_dtype(dtype))
        product = names[f"rounded_product_{dtype}"] = functools.partial(_rounded_product, numpy_dtype(dtype))
        names[f"gelu_erf_product_{dtype}"] = functools.partial(_of_gelu, product)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        saturated = names[f"saturated_{dtype}"] = functools.partial(_saturated, numpy_dtype(dtype))
        names[f"gelu_erf_product_{dtype}"] = functools.partial(
            _of_gelu, lambda x, y, to=saturated: to(_multiplied(x, y))
        )
    for dtype in ("float16", "bfloat16"):
        names[f"codes_{dtype}"] = functools.partial(_codes, numpy_dtype(dtype))
    for dtype in _INTEGERS:
        names[f"iota_{dtype}"] = functools.partial(np.arange, dtype=numpy_dtype(dtype))
    for name, combine in (("add", "add"), ("mul", "mul"), ("max", "max"), ("min", "min"), ("or", "logical_or"),
                          ("and", "logical_and")):  # fmt: skip
        names[f"reduce_{name}"] = _reduced(combine)
    names.update(
        where=_where,
        first_greater=_first_greater,
        splat=_splat,
        extract=lambda v, k: v[k],
        exp2_quick=_exp2,
        reciprocal_quick=lambda x: np.divide(np.float32(1), x),
        low2=lambda v: v[:2],
        high2=lambda v: v[2:],
        pack_words=lambda v: v.view(np.int32),
        join2=lambda *parts: np.concatenate(parts),
        join4=lambda *parts: np.concatenate(parts),
        lane_mask=lambda count, lanes: np.arange(lanes) < count,
        imin=builtins.min,
        imax=builtins.max,
        idiv=lambda a, b: a // b,
        idiv32=_idiv32,
        max_bytes=np.maximum,
        imod=lambda a, b: a % b,
        INF=math.inf,
        NAN=math.nan,
    )
    return names


def _codes(
    dtype: np.dtype, u: np.ndarray, v: np.ndarray, word: int, pair: int, points: np.ndarray, exponents: int
) -> np.ndarray:
    sides = [(int(words[word]) & 0xFFFFFFFF, int(point)) for words, point in zip((u, v), points)]
    order = [(k, side) for k in (2 * pair, 2 * pair + 1) for side in sides]
    found = [[(whole >> 4 * (k + far) & 15) - point for far in (0, 4)] for k, (whole, point) in order]
    return np.array(found).astype(dtype).reshape(-1).view(np.int32)


def _idiv32(a: int, b: int) -> int:
    if not (0 <= a < 1 << 32 and 0 < b < 1 << 32):
        raise KernelFault(f"idiv32 of {a} by {b}, which are no numbers of 32 bits")
    return a // b


def _load_aligned(p: Place, i: int, lanes: int) -> np.ndarray:
    _expect_aligned(p, i, lanes)
    return p.read(i, lanes)


def _store_aligned(p: Place, i: int, v: np.ndarray) -> None:
    _expect_aligned(p, i, v.size)
    p.write(i, v)


def _expect_aligned(p: Place, i: int, lanes: int) -> None:
    itemsize = p.dtype.itemsize
    size = lanes * itemsize if lanes * itemsize < 16 else 16
    if (p.start + int(i) * itemsize) % size:
        raise KernelFault(f"element {i} of {p.allocation.name} is not at a multiple of {size} bytes")


def _store(p: Place, i: int, v: np.ndarray) -> None:
    if v.dtype != p.dtype:
        raise KernelFault(f"stores {v.dtype} to elements of {p.dtype}")
    p.write(i, v)


def _store_scalar(p: Place, i: int, x: Any) -> None:
    p.write(i, converted(np.asarray(x), from_numpy(p.dtype)))


def _note_fault(p: Place, step: int, check: int, index: int) -> None:
    size = 3 * np.dtype(np.int64).itemsize  # the words of a fault record: step, check, index
    words = p.allocation.data[p.start : p.start + size].view(np.int64)
    if not words[0]:
        words[:] = step, check, index


def memory_names() -> dict[str, Any]:
    """Return the functions that take pointers."""
    return {
        "offset": lambda p, i: p[int(i) :] if isinstance(p, list) else p.moved(int(i)),  # a list: the argument block
        "load": Place.read,
        "load_aligned": _load_aligned,
        "load_scalar": lambda p, i: p.read(i, 1)[0],
        "load_splat": lambda p, i, lanes: p.read(i, 1).repeat(lanes),
        "grid_wait": lambda: None,  # one launch comes after the other
        "prefetch_l2": lambda p, i: None,
        "note_fault": _note_fault,
        "words_of": lambda p: Place(p.allocation, p.start, np.dtype(np.int32), p.who),
        "floats_of": lambda p: Place(p.allocation, p.start, np.dtype(np.float32), p.who),
        "store": _store,
        "store_aligned": _store_aligned,
        "store_scalar": _store_scalar,
    }
