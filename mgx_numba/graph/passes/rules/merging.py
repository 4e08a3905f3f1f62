"""Constants that are computed from others, and the bound of rules that are not exact.

The error of such a rule, relative to the expression as written in float64, is at most `BOUNDS` times the largest
intermediate value of that expression. A contraction counts with the sum of the magnitudes of its products, times the
constant factors that follow. The result is never zero, infinite or NaN where the written order gives a normal number.
The bound holds for every input whose intermediate values, as written, are finite.

No rule knows its inputs, so that the constants must prove the bound:

* A product of constants is finite and normal. ``x * (c * d)`` then has a relative error of two roundings.
* A sum of constants is exact, and its terms have the same sign. ``x + (c + d)`` then has the error of one rounding.
  Terms of different signs cancel: ``(x + 1.5 * 2**23) - 1.5 * 2**23`` rounds x to an integer, which is meant.
* Offsets of a contraction may be rounded and may cancel where they are at most `LARGEST_OFFSET`: its own sums are
  rounded by more. Larger ones are how numbers are rounded or hidden by hand.
* Weights of 16 bits are never rounded a second time.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ....core.types import Type
from ...constants import compact, constant_array, is_constant
from ...folds import LARGEST_OFFSET
from ...instruction import Instruction
from ..build import RewriteBuilder
from ..quantization_plan import CONTRACTIONS

__all__ = [
    "BOUNDS", "WIDE", "all_finite", "follows_contraction", "has_finite", "has_zero", "is_kept", "merged_product",
    "merged_sum", "rounds_next", "small_offset",
]  # fmt: skip

BOUNDS = {Type.float_type: 1e-5, Type.half_type: 4e-3, Type.bf16_type: 3.2e-2}
"""Errors relative to the largest intermediate value: 168 units in the last place of float32, 8 of 16-bit floats."""

WIDE = frozenset({Type.float_type, Type.double_type})
"""Types in which a constant may be rounded once more."""

ROUNDING = frozenset({"nearbyint", "floor", "ceil", "sign"})
SPREADS = frozenset({"broadcast", "multibroadcast", "scalar"})
SUMS = frozenset(
    {*CONTRACTIONS, "convolution_backwards", "quant_dot", "quant_convolution", "quant_convolution_backwards"}
)
FOLLOWING = frozenset(
    "add sub mul div neg convert relu leaky_relu clip max min concat pooling reduce_mean reduce_max reduce_min"
    " transpose reshape squeeze unsqueeze flatten contiguous layout multibroadcast slice".split()
)
"""Operators that make sums of products no smaller: what nearly cancels an offset has errors as large as the rest."""
JOINING = frozenset({"add", "sub", "max", "min", "concat"})
"""The same of operators with several operands that are no constants."""
MOST_OPERATIONS = 256
"""Operators between a value and contractions: DenseNet's concatenations have up to 64 operands."""


def all_finite(ins: Instruction) -> bool:
    """Whether a constant has neither NaN nor infinity."""
    while ins.name in SPREADS and len(ins.inputs) == 1 and not ins.shape.is_dynamic:
        ins = ins.inputs[0]  # its elements are repeated
    values = constant_array(ins)
    if values is None:
        return False
    return not ins.shape.type.is_floating or has_finite(compact(values))


def has_finite(values: np.ndarray) -> bool:
    """Whether an array of floats has neither NaN nor infinity."""
    if not values.size:
        return True
    with np.errstate(all="ignore"):  # of NaN, which is both the least and the largest
        return all(np.isfinite(np.float64(end)) for end in (values.min(), values.max()))


def has_zero(ins: Instruction) -> bool:
    """Whether an element of a constant is 0, or may be."""
    values = _values(ins)
    return values is None or not values.all()


def rounds_next(ins: Instruction) -> bool:
    """Whether a reader rounds a value to integers or 8 bits: a unit in the last place decides between two of them."""
    return any(u.name in ROUNDING or (u.name == "convert" and _is_coarse(u.shape.type)) for u in ins.users)


def _is_coarse(type: Type) -> bool:
    return type.is_integral or type.size == 1


def follows_contraction(ins: Instruction) -> bool:
    """Whether a value is made of sums of products by constant factors, offsets, limits and moves alone."""
    pending, seen = [ins], {ins}
    while pending:
        value = pending.pop()
        if value.name in SUMS:
            continue
        computed = [i for i in value.inputs if not is_constant(i)]
        if value.name not in FOLLOWING or (value.name == "div" and computed != list(value.inputs[:1])):
            return False
        if not computed or (len(computed) > 1 and value.name not in JOINING) or len(seen) > MOST_OPERATIONS:
            return False
        fresh = [i for i in computed if i not in seen]
        seen.update(fresh)
        pending += fresh
    return True


def is_kept(product: np.ndarray, *factors: np.ndarray) -> bool:
    """Whether each product of finite factors is a normal number, or zero because a factor is."""
    with np.errstate(all="ignore"):
        size = np.abs(product)
        normal = size >= ml_dtypes.finfo(product.dtype).smallest_normal
        if not normal.all():
            for factor in factors:
                normal = normal | ((factor == 0) & (size == 0))
        return bool(normal.all()) and has_finite(product)


def merged_product(b: RewriteBuilder, c: Instruction, d: Instruction) -> Instruction | str:
    """Return ``c * d`` of two constants, or why it must not take their place."""
    made = b.op("mul", c, d)
    if not made.shape.type.is_floating:
        return made
    product, left, right = (_values(i) for i in (made, c, d))
    if product is None or left is None or right is None or not (has_finite(left) and has_finite(right)):
        return "a constant is not finite, or too large"
    return made if is_kept(product, left, right) else "the product of the constants overflows or loses bits"


def merged_sum(b: RewriteBuilder, x: Instruction, c: Instruction, d: Instruction) -> Instruction | str:
    """Return ``c + d`` of two constants that are added to ``x``, or why it must not take their place."""
    made = b.op("add", c, d)
    if not made.shape.type.is_floating:
        return made
    total, left, right = (_values(i) for i in (made, c, d))
    if total is None or left is None or right is None or not all(map(has_finite, (total, left, right))):
        return "a constant is not finite, or too large"
    if small_offset(c) and small_offset(d) and follows_contraction(x):
        return made
    return made if _adds_exactly(left, right, total) else "the sum of the constants is rounded, or they cancel"


def small_offset(ins: Instruction) -> bool:
    """Whether a constant of a `WIDE` type is at most `LARGEST_OFFSET`, in every element."""
    values = _values(ins)
    if values is None or ins.shape.type not in WIDE:
        return False
    return not values.size or bool(max(-values.min(), values.max()) <= LARGEST_OFFSET)


def _adds_exactly(c: np.ndarray, d: np.ndarray, total: np.ndarray) -> bool:
    """Whether each sum is exact (Knuth's two-sum), of terms that have one sign."""
    left, right = c.astype(np.float64), d.astype(np.float64)
    with np.errstate(all="ignore"):
        found = left + right
        part = found - left
        lost = (left - (found - part)) + (right - part)
        same = (left == 0) | (right == 0) | ((left > 0) == (right > 0))
        return bool((same & (lost == 0) & (found == total.astype(np.float64))).all())


def _values(ins: Instruction) -> np.ndarray | None:
    """A constant's values, with length 1 on axes along which they repeat."""
    values = constant_array(ins)
    return None if values is None else compact(values)
