"""Evaluate a chain in float64, with a bound on the effect of rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mgx_numba.core.types import from_numpy
from mgx_numba.graph.passes.rules.merging import BOUNDS

from .chain_steps import Chain, Step

__all__ = ["Known", "evaluated"]

ROUNDINGS = 4.0
"""Rounding errors per operator, in ulp: its own rounding, a function's error, and merged constants."""
CONTRACTIONS = frozenset({"MatMul", "Conv"})
UNSURE = 2.0**-20
"""Fraction of a contraction's magnitude below which its result may consist of rounding errors."""


@dataclass
class Known:
    """A value in float64.

    Attributes:
        value: the value itself.
        error: how far rounding of each operator as written may move it.
        scale: of a value made of contractions, the magnitude of their products, times the factors since; else 0.
        largest: the largest magnitude of it and of all that leads to it.
        in_range: whether all that leads to it is finite in the chain's type.
        is_exact: whether the result of rounded operators is unique: neither a contraction nor a cube leads to it.
        dtype: the chain's type.
        any_zero: whether it may depend on which of 0 and -0 a maximum takes: IEEE 754 leaves that to `max`.
    """

    value: np.ndarray
    error: np.ndarray
    scale: np.ndarray
    largest: np.ndarray
    in_range: np.ndarray
    is_exact: bool
    dtype: type
    any_zero: np.ndarray | bool = False

    def beyond_bound(self, got: np.ndarray, written: np.ndarray) -> np.ndarray:
        """Return where a result exceeds the bound of rules that are not exact."""
        with np.errstate(all="ignore"):
            bound = BOUNDS[from_numpy(np.dtype(self.dtype))] * self.largest + self.error
            far = ~(np.abs(got.astype(np.float64) - self.value) <= bound)
            normal = np.isfinite(written) & (np.abs(written) >= np.finfo(self.dtype).smallest_normal)
            sure = np.abs(self.value) > np.maximum(UNSURE * self.scale, self.error)
            lost = normal & sure & ((got == 0) | ~np.isfinite(got))
        return self.in_range & (far | lost)

    def beyond_rounding(self, got: np.ndarray, written: np.ndarray) -> np.ndarray:
        """Return where a result differs from the written operators by more than the order of sums explains."""
        with np.errstate(all="ignore"):
            near = np.abs(got.astype(np.float64) - written.astype(np.float64)) <= 2 * self.error
            return self.in_range & ~(near | (got == written) | (np.isnan(got) & np.isnan(written)))


def evaluated(case: Chain) -> dict[str, Known]:
    """Return all values of a chain by name."""
    known: dict[str, Known] = {}
    with np.errstate(all="ignore"):
        for name, array in case.feeds.items():
            known[name] = _input(array.astype(np.float64), case.dtype)
        for step in case.steps:
            operands = [known[i] if i in known else case.constants[i].astype(np.float64) for i in step.inputs]
            known[step.output] = _applied(step, operands, case.dtype)
    return known


def _input(value: np.ndarray, dtype: type) -> Known:
    zero = np.zeros(value.shape)
    return Known(value, zero, zero, np.abs(value), np.isfinite(value), True, dtype)


def _applied(step: Step, operands: list, dtype: type) -> Known:
    if step.op in CONTRACTIONS:
        return _contracted(step, *operands, dtype)
    if step.op == "BatchNormalization":
        return _normalised(*operands, dtype)
    sides = [o if isinstance(o, Known) else _constant(o, dtype) for o in operands]
    value, error, scale = _pointwise(step.op, *sides)
    made = _made(value, error, scale, [s for s, o in zip(sides, operands) if isinstance(o, Known)], dtype)
    if step.op in ("Max", "Min", "Relu"):
        least = float(np.finfo(dtype).smallest_subnormal)
        zeros = [np.broadcast_to(np.abs(s.value) <= s.error + least, value.shape) for s in sides]
        made.any_zero = made.any_zero | np.logical_and.reduce(zeros)
    if step.op == "Pow" and (sides[1].value == 3).any():
        made.is_exact = False  # a product of three, which ONNX Runtime rounds twice and NumPy once
    return made


def _constant(value: np.ndarray, dtype: type) -> Known:
    zero = np.zeros(value.shape)
    return Known(value, zero, zero, zero, np.ones(value.shape, bool), True, dtype)


def _made(value: np.ndarray, error: np.ndarray, scale: np.ndarray, inputs: list[Known], dtype: type) -> Known:
    """Add the error of an operator's own rounding to the error that its operands' errors cause."""
    info = np.finfo(dtype)
    error = error + ROUNDINGS * (info.eps / 2 * np.abs(value) + float(info.smallest_subnormal))
    largest = np.maximum(np.abs(value), scale)
    in_range = np.isfinite(value) & (np.abs(value) + error < float(info.max)) & (scale < float(info.max))
    for i in inputs:
        largest, in_range = np.maximum(largest, i.largest), in_range & i.in_range
    scale = np.broadcast_to(np.nan_to_num(scale, nan=np.inf), value.shape)
    any_zero = np.zeros(value.shape, bool)
    for i in inputs:
        any_zero = any_zero | i.any_zero
    return Known(value, error, scale, largest, in_range, all(i.is_exact for i in inputs), dtype, any_zero)


def _pointwise(op: str, x: Known, y: Known | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the value, the error that the operands' errors cause, and the scale."""
    a, e, g = x.value, x.error, x.scale
    if y is None:
        return _unary(op, a, e, g)
    b, f, h = y.value, y.error, y.scale
    if op in ("Add", "Sub"):
        return (a + b if op == "Add" else a - b), e + f, g + h
    if op == "Mul":
        return a * b, np.abs(a) * f + np.abs(b) * e + e * f, np.abs(a) * h + np.abs(b) * g
    if op == "Div":
        least = np.maximum(np.abs(b) - f, 0)
        return a / b, np.where(e + f > 0, (e + np.abs(a / b) * f) / least, 0), g / np.abs(b)
    if op in ("Max", "Min"):
        return (np.maximum if op == "Max" else np.minimum)(a, b), np.maximum(e, f), np.maximum(g, h)
    value = np.power(a, b)
    ends = [np.abs(np.power(np.maximum(a + s * e, 0) if b.flat[0] % 1 else a + s * e, b) - value) for s in (-1, 1)]
    moved = np.where((np.abs(a) <= 2 * e) & (e > 0) & (b < 0), np.inf, np.maximum(*ends))
    return value, np.where(e > 0, moved, 0), np.zeros(value.shape)


def _unary(op: str, a: np.ndarray, e: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    none = np.zeros(a.shape)
    if op == "Neg":
        return -a, e, g
    if op == "Abs":
        return np.abs(a), e, g
    if op == "Relu":
        return np.maximum(a, 0), e, g
    if op == "Reciprocal":
        return 1 / a, np.where(e > 0, e / np.abs(a) / np.maximum(np.abs(a) - e, 0), 0), none
    if op == "Sqrt":
        return np.sqrt(a), np.where(e > 0, np.sqrt(a + e) - np.sqrt(np.maximum(a - e, 0)), 0), none
    if op == "Exp":
        return np.exp(a), np.exp(a) * np.expm1(e), none
    if op == "Log":
        return np.log(a), np.where(e > 0, -np.log1p(-np.minimum(e / np.abs(a), 1)), 0), none
    assert op == "Sigmoid"
    return 1 / (1 + np.exp(-a)), np.minimum(e, 1) / 4, none


def _contracted(step: Step, x: Known, weights: np.ndarray, dtype: type) -> Known:
    def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        if step.op == "MatMul":
            return left @ right
        return np.einsum("nchw,oc->nohw", left, right[:, :, 0, 0])

    size = np.abs(weights)
    value, scale, error = product(x.value, weights), product(np.abs(x.value), size), product(x.error, size)
    scale = scale + product(x.scale, size)
    spread = np.ones_like(size)
    most = _greatest(step, x.largest, size.shape)
    fine = product((~x.in_range).astype(float), spread) == 0
    terms = x.value.shape[1]
    narrow = np.finfo(np.float32).eps if dtype is np.float16 else np.finfo(dtype).eps
    made = _made(value, error + terms * narrow * scale, scale, [], dtype)
    made.largest, made.in_range, made.is_exact = np.maximum(made.largest, most), made.in_range & fine, False
    return made


def _greatest(step: Step, largest: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the largest magnitude that leads to each result of a contraction."""
    axis = 1
    columns = shape[1] if step.op == "MatMul" else shape[0]
    return np.repeat(largest.max(axis, keepdims=True), columns, axis)


def _normalised(
    x: Known, scale: np.ndarray, bias: np.ndarray, mean: np.ndarray, variance: np.ndarray, dtype: type
) -> Known:
    """``(x - mean) * (scale / sqrt(variance + epsilon)) + bias`` with each operation rounded."""
    lens = (1, -1, *(1,) * (x.value.ndim - 2))
    scale, bias, mean, variance = (c.reshape(lens) for c in (scale, bias, mean, variance))
    factor = scale / np.sqrt(variance + 1e-5)
    info = np.finfo(dtype)
    bad = ~np.isfinite(factor) | (np.abs(factor) >= float(info.max)) | (variance + 1e-5 >= float(info.max))
    rounded = _constant(factor, dtype)
    rounded.error = 3 * ROUNDINGS * (info.eps * np.abs(factor) + float(info.smallest_subnormal))
    rounded.in_range = ~bad
    value = x
    for op, operand in (("Sub", _constant(mean, dtype)), ("Mul", rounded), ("Add", _constant(bias, dtype))):
        v, e, g = _pointwise(op, value, operand)
        value = _made(v, e, g, [value, operand], dtype)
    return value
