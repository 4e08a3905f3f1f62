"""The scalar-operation protocol, in which a pointwise operator states its meaning once.

An operator's ``scalar(s, *x)`` calls methods of a handler ``s``. A handler evaluates in NumPy (here), prints kernel
text for a back end, infers types, or counts operations. Every value has an element type; arithmetic takes operands of
one type and keeps it, comparisons give bool.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from ..core.types import Type, from_numpy
from .scalar_functions import FUNCTIONS, PREDICATES, SAME_TYPE

V = TypeVar("V")
"""A value of a handler: an array, an expression of a kernel's text, or an element type."""


class ScalarOps(Protocol[V]):
    """Interface of a handler: ``const``, ``cast``, ``where``, ``fma``, ``dtype`` and the names in `scalar_functions`.

    With fast math ``cast_loosely`` may keep bits beyond the type's precision; ``cast`` never does.
    """

    def dtype(self, x: V) -> Type: ...
    def const(self, value: float | int | bool, dtype: Type) -> V: ...
    def cast(self, x: V, dtype: Type) -> V: ...
    def cast_loosely(self, x: V, dtype: Type) -> V: ...
    def where(self, condition: V, a: V, b: V) -> V: ...
    def fma(self, a: V, b: V, c: V) -> V: ...
    def __getattr__(self, name: str) -> Callable[..., V]: ...


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

    def __getattr__(self, name: str) -> Callable[..., Type]:
        if name in PREDICATES:
            return lambda *x: Type.bool_type
        if name in SAME_TYPE:
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

    def __getattr__(self, name: str) -> Callable[..., np.ndarray]:
        if name not in FUNCTIONS:
            raise AttributeError(name)
        evaluate = evaluator(name)

        def call(*x: np.ndarray) -> np.ndarray:
            with np.errstate(all="ignore"):
                return evaluate(*x)

        return call


def evaluator(name: str) -> Callable[..., np.ndarray]:
    """Return `NumpyScalar`'s function for a name, for callers that have silenced NumPy's floating-point warnings."""
    function, of_bools = FUNCTIONS[name].meaning, name in PREDICATES

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


_STORAGE = (Type.half_type, Type.bf16_type)


def widened(x: np.ndarray) -> np.ndarray:
    """Return ``x`` in its compute type: float32 for narrower floats, else its own."""
    return x.astype(_compute_dtype(x.dtype), copy=False)


def from_storage(x: np.ndarray) -> np.ndarray:
    """Return ``x`` in float32 if it is float16 or bfloat16, which nothing but storage tells from float32."""
    return x.astype(np.float32) if from_numpy(x.dtype) in _STORAGE else x


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
    clipped = np.minimum(np.maximum(np.where(wide == wide, np.trunc(wide), 0.0), info.min), info.max)
    result = np.where(
        wide >= float(info.max),
        info.max,
        clipped.astype(target, copy=False) if info.bits < 64 else _to_int64(clipped, target),
    )
    return result.astype(target)


def _to_int64(x: np.ndarray, target: np.dtype) -> np.ndarray:
    limit = float(np.iinfo(target).max)
    return np.where(x >= limit, 0.0, x).astype(target)
