"""Float32 as two bfloat16 parts, the format of the left-hand side of products in parts.

The high part is the number rounded to bfloat16, the low part the remainder rounded to bfloat16. Their sum has 16 bits
of the number, and is infinite or NaN where the number is. A number that rounds to infinity has the largest bfloat16 as
its high part.

The low parts of numbers below `TINY` could be denormal, which these products treat as zero. For such numbers the high
part is the upper half of the bits. The low part holds the lower half, without its last two bits, as a number below
2**-63.
"""

from __future__ import annotations

import numpy as np

TINY = 2.0**-64
"""Numbers from here on have normal low parts. In a row with numbers of at least 2**-30 (other rows are multiplied in
float32), smaller numbers are far below the rounding errors."""
LARGEST = float(np.uint32(0x7F7F7FFF).view(np.float32))
"""The largest number that rounds to a finite bfloat16."""
SIGN_BIT, LOW_BITS, DROPPED_BITS = 0x8000, 0x1FFF, 2
"""Masks of a tiny number's low part: the sign holds the upper bit of the half; the other bits are shifted right, which
drops these last bits."""


def bits_of(value: float) -> int:
    """Return the bits of a float32."""
    return int(np.float32(value).view(np.int32))


def number_text(high: str, low: str) -> str:
    """Return the expression of the float32 whose parts are the upper half of int32 ``high`` and the lower half of
    ``low``."""
    half = f"bitwise_or(bitwise_and({low}, {SIGN_BIT}), shift_left(bitwise_and({low}, {LOW_BITS}), {DROPPED_BITS}))"
    tiny = f"lt(bitwise_and({high}, 0x7FFFFFFF), {bits_of(TINY)})"
    added = f"add(bits_float32({high}), bits_float32(shift_left({low}, 16)))"
    return f"where({tiny}, bits_float32(bitwise_or({high}, {half})), {added})"
