"""Conditions for merging constants, and the error bound of rules that are not exact.

The reference of such a rule is the expression as written, in float64. The error is at most `BOUNDS` times the largest
intermediate value of that expression. A contraction counts with the sum of the magnitudes of its products, times the
constant factors that follow. The result is never zero, infinite or NaN where the written order gives a normal number.
The bound holds for every input whose intermediate values, as written, are finite.

A rule does not know the inputs, so the constants must prove the bound:

* A product of constants is finite and normal. ``x * (c * d)`` then has a relative error of two roundings.
* A sum of constants is exact, and its terms have the same sign. ``x + (c + d)`` then has the error of one rounding.
  Terms of different signs cancel: ``(x + 1.5 * 2**23) - 1.5 * 2**23`` is meant to round x to an integer.
* Offsets of a contraction may be rounded and may cancel if they are at most `LARGEST_OFFSET`: the sums of the
  contraction have larger rounding errors. Larger offsets may be meant to round (as above) or to mask values.
* Weights of 16 bits are never rounded a second time.
"""

from __future__ import annotations

import numpy as np

from ....core.types import Type, finfo
from ...constants import compact, constant_array, is_constant
from ...instruction import Instruction
from ..base import CONTRACTIONS
from ..build import RewriteBuilder

LARGEST_OFFSET = 1024.0
"""Biases and means of networks are below this, and constants that round or hide numbers above it."""

BOUNDS = {Type.float_type: 1e-5, Type.half_type: 4e-3, Type.bf16_type: 3.2e-2}
"""Errors relative to the largest intermediate value: 168 units in the last place of float32, 8 of 16-bit floats."""

WIDE = frozenset({Type.float_type, Type.double_type})
"""Types in which a merged constant may be rounded again."""

ROUNDING = frozenset({"nearbyint", "floor", "ceil", "sign"})
SPREADS = frozenset({"broadcast", "multibroadcast", "scalar"})
_OF_SCALES = frozenset(
    {"abs", "clip", "contiguous", "max", "min", "recip", "reshape", "squeeze", "unsqueeze", *SPREADS}
)
"""Operators between the division that makes the scale of a dynamic quantisation and the products with the scale."""
SUMS = frozenset(
    {*CONTRACTIONS, "convolution_backwards", "quant_dot", "quant_convolution", "quant_convolution_backwards"}
)
FOLLOWING = frozenset(
    "add sub mul div neg convert relu leaky_relu clip max min concat pooling reduce_mean reduce_max reduce_min"
    " transpose reshape squeeze unsqueeze flatten contiguous layout multibroadcast slice".split()
)
"""Operators through which a sum of products keeps its rounding error: where the sum nearly cancels an offset, the error
is as large as the difference."""
JOINING = frozenset({"add", "sub", "max", "min", "concat"})
"""Operators of `FOLLOWING` that may have several operands that are not constant."""
MOST_OPERATIONS = 256
"""Largest number of operators between a value and its contractions: DenseNet concatenates up to 64 operands."""


def all_finite(ins: Instruction) -> bool:
    """Return whether no element of a constant is NaN or infinite."""
    while ins.name in SPREADS and len(ins.inputs) == 1 and not ins.shape.is_dynamic:
        ins = ins.inputs[0]  # its elements are repeated
    values = constant_array(ins)
    if values is None:
        return False
    return not ins.shape.type.is_floating or has_finite(compact(values))


def has_finite(values: np.ndarray) -> bool:
    """Return whether no element of a float array is NaN or infinite."""
    if not values.size:
        return True
    with np.errstate(all="ignore"):  # NaN propagates to both the minimum and the maximum
        return all(np.isfinite(np.float64(end)) for end in (values.min(), values.max()))


def has_zero(ins: Instruction) -> bool:
    """Return whether an element of a constant is 0, or is unknown."""
    values = _values(ins)
    return values is None or not values.all()


def rounds_next(ins: Instruction) -> bool:
    """Return whether a reader rounds a value to integers or 8 bits, where an error of one ulp can change the result."""
    return any(u.name in ROUNDING or (u.name == "convert" and _is_coarse(u.shape.type)) for u in ins.users)


def decides_rounding(ins: Instruction) -> bool:
    """Return whether `rounds_next` holds for a value, or for a sum, product or quotient of the value or its scales."""
    seen, pending = {ins}, [ins]
    while pending:
        value = pending.pop()
        if rounds_next(value) or len(seen) > MOST_OPERATIONS:
            return True
        for user in value.users:
            if user.name in ("add", "sub", "mul", "div") and rounds_next(user):
                return True
            factor = user.name in ("mul", "div") and any(map(is_constant, user.inputs))
            if (factor or user.name in _OF_SCALES) and user not in seen:
                seen.add(user)
                pending.append(user)
    return False


def _is_coarse(type: Type) -> bool:
    return type.is_integral or type.size == 1


def follows_contraction(ins: Instruction) -> bool:
    """Return whether a value derives from contractions only by constant factors, offsets, limits and moves."""
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
    """Return whether each product of finite factors is a normal number, or zero because a factor is zero."""
    with np.errstate(all="ignore"):
        size = np.abs(product)
        normal = size >= finfo(product.dtype).smallest_normal
        if not normal.all():
            for factor in factors:
                normal = normal | ((factor == 0) & (size == 0))
        return bool(normal.all()) and has_finite(product)


def merged_product(b: RewriteBuilder, c: Instruction, d: Instruction) -> Instruction | str:
    """Return ``c * d`` of two constants, or why the product must not replace the factors."""
    made = b.op("mul", c, d)
    if not made.shape.type.is_floating:
        return made
    product, left, right = (_values(i) for i in (made, c, d))
    if product is None or left is None or right is None or not (has_finite(left) and has_finite(right)):
        return "a constant is not finite, or too large"
    return made if is_kept(product, left, right) else "the product of the constants overflows or loses bits"


def merged_sum(b: RewriteBuilder, x: Instruction, c: Instruction, d: Instruction) -> Instruction | str:
    """Return ``c + d`` of two constants that are added to ``x``, or why the sum must not replace the terms."""
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
    """Return whether a constant has a `WIDE` type and no element of a magnitude above `LARGEST_OFFSET`."""
    values = _values(ins)
    if values is None or ins.shape.type not in WIDE:
        return False
    return not values.size or bool(max(-values.min(), values.max()) <= LARGEST_OFFSET)


def _adds_exactly(c: np.ndarray, d: np.ndarray, total: np.ndarray) -> bool:
    """Return whether each sum is exact (Knuth's two-sum) and its terms have the same sign."""
    left, right = c.astype(np.float64), d.astype(np.float64)
    with np.errstate(all="ignore"):
        found = left + right
        part = found - left
        lost = (left - (found - part)) + (right - part)
        same = (left == 0) | (right == 0) | ((left > 0) == (right > 0))
        return bool((same & (lost == 0) & (found == total.astype(np.float64))).all())


def _values(ins: Instruction) -> np.ndarray | None:
    """Return a constant's values, with length 1 on axes along which the values repeat; None if unknown."""
    values = constant_array(ins)
    return None if values is None else compact(values)
