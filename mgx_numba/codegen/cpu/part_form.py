"""Float32 as two bfloat16, as products in parts read their left-hand side.

The high part is what bfloat16 has of a number, the low part what it has of the rest. Their sum has 16 bits of the
number, and is infinite or NaN where that is. What rounds to infinity has the largest bfloat16 as its high part. Of
numbers below `TINY`, whose low parts could be denormal, which these products take for zero, the high part is the upper
half of the bits, and the low part has the lower half, but for its last two bits, as a number below 2**-63.
"""

from __future__ import annotations

import numpy as np

__all__ = ["DROPPED_BITS", "LARGEST", "LOW_BITS", "SIGN_BIT", "TINY", "bits_of", "number_text"]

TINY = 2.0**-64
"""Low parts of numbers from here on are normal. Where others of a row are at least 2**-30, as they are unless the row
is multiplied in float32, numbers below are far less than what is lost of these."""
LARGEST = float(np.uint32(0x7F7F7FFF).view(np.float32))
"""The largest number that rounds to a finite bfloat16."""
SIGN_BIT, LOW_BITS, DROPPED_BITS = 0x8000, 0x1FFF, 2
"""The low part of a tiny number: its sign is the upper bit of the half, the others are there with these dropped."""


def bits_of(value: float) -> int:
    """The bits of a float32."""
    return int(np.float32(value).view(np.int32))


def number_text(high: str, low: str) -> str:
    """Expression: the float32 whose parts are the upper half of an int32 and the lower half of another."""
    half = f"bitwise_or(bitwise_and({low}, {SIGN_BIT}), shift_left(bitwise_and({low}, {LOW_BITS}), {DROPPED_BITS}))"
    tiny = f"lt(bitwise_and({high}, 0x7FFFFFFF), {bits_of(TINY)})"
    added = f"add(bits_float32({high}), bits_float32(shift_left({low}, 16)))"
    return f"where({tiny}, bits_float32(bitwise_or({high}, {half})), {added})"
