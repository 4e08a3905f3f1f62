"""NumPy implementations of the kernel language's functions, for the threads that run together.

A vector is an array [lanes, threads], a scalar an array [threads]; values that the threads share have the shapes
[lanes, 1] and [], or are Python numbers (`lanes`). Elementwise functions use the scalar protocol's NumPy meaning
(`ops.scalar.NumpyScalar`), the reference of every back end.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from mgx_numba.core.types import from_numpy, numpy_dtype
from mgx_numba.ops.scalar import converted, evaluator
from mgx_numba.ops.scalar_functions import BINARY, BITWISE, COMPARE, FUNCTIONS, LOGICAL

from .lanes import KernelFault, Lanes, is_varying, of_lane
from .memory import Place

__all__ = ["DTYPES", "elementwise_names", "memory_names"]

_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_STORAGE = ("float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
DTYPES = ("bool", *_INTEGERS, "float32", "float64", *_STORAGE)
_WIDE = ", which are no numbers of 32 bits"
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
    vectors = {v.dtype for v in operands if getattr(v, "ndim", 0) == 2}
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
    if a.ndim == b.ndim and not getattr(condition, "ndim", 0):
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
    made = np.full((lanes, 1), exact)
    made.flags.writeable = False
    return made


def _cast(dtype: np.dtype, x: Any) -> Any:
    return x if getattr(x, "dtype", None) is dtype else converted(np.asarray(x), from_numpy(dtype))


def _bits(dtype: np.dtype, x: Any) -> Any:
    return np.asarray(x).view(dtype)


def _reduced(name: str) -> Callable[[np.ndarray], Any]:
    combine = _elementwise(name)

    def call(v: np.ndarray) -> Any:
        while len(v) > 1:
            half = len(v) // 2
            v = combine(v[:half], v[half:])
        return _extract(v, 0)

    return call


def _extract(v: np.ndarray, k: int) -> Any:
    return v[k] if v.shape[1] > 1 else v[k, 0]


def joined(*parts: np.ndarray) -> np.ndarray:
    """Return the concatenated lanes of vectors."""
    width = max(v.shape[1] for v in parts)
    return np.concatenate([v if v.shape[1] == width else np.broadcast_to(v, (len(v), width)) for v in parts])


def packed(v: np.ndarray) -> np.ndarray:
    """Return adjacent lanes as lanes of int32."""
    return np.ascontiguousarray(v.T).view(np.int32).T


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
    x = np.asarray(x)
    return x if x.ndim == 2 else x.reshape(1, -1).repeat(lanes, 0)


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
        names[f"iota_{dtype}"] = functools.partial(_iota, numpy_dtype(dtype))
    for name, combine in (("add", "add"), ("mul", "mul"), ("max", "max"), ("min", "min"), ("or", "logical_or"),
                          ("and", "logical_and")):  # fmt: skip
        names[f"reduce_{name}"] = _reduced(combine)
    names.update(
        where=_where,
        first_greater=_first_greater,
        splat=_splat,
        extract=_extract,
        exp2_quick=_exp2,
        reciprocal_quick=lambda x: np.divide(np.float32(1), x),
        low2=lambda v: v[:2],
        high2=lambda v: v[2:],
        pack_words=packed,
        join2=joined,
        join4=joined,
        lane_mask=lambda count, lanes: np.arange(lanes)[:, None] < count,
        imin=lambda a, b: np.minimum(a, b) if is_varying(a) or is_varying(b) else builtins.min(a, b),
        imax=lambda a, b: np.maximum(a, b) if is_varying(a) or is_varying(b) else builtins.max(a, b),
        max_bytes=np.maximum,
        place4=_place4,
        INF=math.inf,
        NAN=math.nan,
    )
    return names


def _iota(dtype: np.dtype, lanes: int) -> np.ndarray:
    return np.arange(lanes, dtype=dtype)[:, None]


def _place4(*parts: Any) -> np.ndarray:
    return np.stack(np.broadcast_arrays(*map(np.atleast_1d, parts))).astype(np.int32)


def _codes(
    dtype: np.dtype, u: np.ndarray, v: np.ndarray, word: int, pair: int, points: np.ndarray, exponents: int
) -> np.ndarray:
    sides = [(words[word].astype(np.int64) & 0xFFFFFFFF, point) for words, point in zip((u, v), points)]
    order = [(k, side) for k in (2 * pair, 2 * pair + 1) for side in sides]
    found = [(whole >> 4 * (k + far) & 15) - point for k, (whole, point) in order for far in (0, 4)]
    return packed(np.stack(np.broadcast_arrays(*found)).astype(dtype))


def _load_aligned(p: Place, i: Any, lanes: int) -> np.ndarray:
    return p.read(i, lanes, _alignment(p, lanes))


def _store_aligned(p: Place, i: Any, v: np.ndarray) -> None:
    p.write(i, v, _alignment(p, len(v)))


def _alignment(p: Place, lanes: int) -> int:
    return min(lanes * p.dtype.itemsize, 16)


def _load_scalar(p: Place, i: Any) -> Any:
    return _extract(p.read(i, 1), 0)


def _store(p: Place, i: Any, v: np.ndarray) -> None:
    if v.dtype != p.dtype:
        raise KernelFault(f"stores {v.dtype} to elements of {p.dtype}")
    p.write(i, v)


def _store_scalar(p: Place, i: Any, x: Any) -> None:
    p.write(i, converted(np.atleast_2d(x), from_numpy(p.dtype)))


def _offset(p: Any, i: Any) -> Any:
    return p[int(i) :] if isinstance(p, list) else p.moved(i)  # a list: the argument block


def _note_fault(number: int, p: Place, step: int, check: int, index: int) -> None:
    size = 3 * np.dtype(np.int64).itemsize  # the words of a fault record: step, check, index
    words = p.allocation.data[p.start : p.start + size].view(np.int64)
    if not words[0]:
        words[:] = step, check, index


def _division(name: str, who: Lanes) -> Callable[[Any, Any], Any]:
    """Return integer division or its remainder; only active threads are checked."""
    function = operator.floordiv if name == "idiv" else operator.mod

    def call(a: Any, b: Any) -> Any:
        if is_varying(b) and not b.all() and (wrong := (b == 0) & who.active_mask()).any():
            raise KernelFault("a division by zero", int(np.argmax(wrong)))
        return function(a, b)

    return call


def memory_names(who: Lanes) -> dict[str, Any]:
    """Return the functions of active threads: they take pointers, or check operands."""
    divided = _division("idiv", who)

    def divided_32(a: Any, b: Any) -> Any:
        for x, least in ((a, 0), (b, 1)):
            if is_varying(x):
                if x.min() < least or x.max() >= 1 << 32:
                    wrong = ((x < least) | (x >= 1 << 32)) & who.active_mask()
                    if wrong.any():
                        lane = int(np.argmax(wrong))
                        raise KernelFault(f"idiv32 of {of_lane(a, lane)} by {of_lane(b, lane)}{_WIDE}", lane)
            elif not least <= x < 1 << 32:
                raise KernelFault(f"idiv32 of {a} by {b}{_WIDE}")
        return divided(a, b)

    return {
        "offset": _offset,
        "load": Place.read,
        "load_aligned": _load_aligned,
        "load_scalar": _load_scalar,
        "load_splat": lambda p, i, lanes: p.read(i, 1).repeat(lanes, 0),
        "grid_wait": lambda: None,  # one launch comes after the other
        "idiv": divided,
        "idiv32": divided_32,
        "imod": _division("imod", who),
        "prefetch_l2": lambda p, i: None,
        "note_fault": who.each(_note_fault),
        "words_of": lambda p: p._replace(dtype=np.dtype(np.int32)),
        "floats_of": lambda p: p._replace(dtype=np.dtype(np.float32)),
        "store": _store,
        "store_aligned": _store_aligned,
        "store_scalar": _store_scalar,
    }
