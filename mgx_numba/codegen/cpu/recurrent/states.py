"""Quantise the states for products with weights of 8 or 16 bits: each row by its current largest element.

Every part quantises all states of its lane by itself, which takes less time than waiting for another part.
"""

from __future__ import annotations

from ....ops.recurrence import LARGEST, SMALLEST_STATE
from ...arguments import Arguments
from ...launch import Operand
from ...problems.recurrence import RecurrenceProblem
from .. import host
from ..contraction.int16_weights import BLOCK, UP
from ..contraction.quantised_rows import multiplies_quads
from .weights import SHIFT, TOGETHER

HALF = (1 << 31) // (1 << 15) // BLOCK
"""Weight of the high half of a state relative to the low half. Both halves have magnitudes up to this value, so that
the products of a block of int16 weights fit 32 bits."""
_SHIFT = HALF.bit_length() - 1
_SMALLEST = 2.0**-126 * HALF * HALF * UP
"""`SMALLEST_STATE` for states in halves: the least state whose step over `UP` is a normal number."""


class QuantizedStates:
    """The 8-bit states of a part: rows of bytes, then for each row a float32, the quantisation step."""

    def __init__(self, problem: RecurrenceProblem, row: int) -> None:
        self.rows = problem.batch * row
        self.bytes = -(-(self.rows + 4 * problem.batch) // (2 * host.CACHE_LINE)) * 2 * host.CACHE_LINE

    def declare(self, arguments: Arguments, at: int) -> None:
        """Declare the arguments that `lines` and the products read."""
        arguments.pointer("octets", Operand("scratch", at), "uint8" if multiplies_quads() else "int8")
        arguments.pointer("state_words", Operand("scratch", at), "int32")
        arguments.pointer("state_steps", Operand("scratch", at), "float32")
        arguments.integers(octets_size=self.bytes, steps_at=self.rows)

    def lines(self, source: str, lanes: int) -> list[str]:
        """Return statements that quantise the states at ``source`` and set ``depth_words``.

        ``depth_words`` is the number of words of each row, 0 if all states are zero, as before the first step. A row
        with an infinity or NaN gets the step NaN.
        """
        value = f"load_tail(states, place + u, imin(hidden - u, {lanes}), 0, {lanes})"
        code = f"cast_int32(nearbyint(mul({value}, up)))"
        stored = f"cast_uint8(add({code}, {SHIFT}))" if multiplies_quads() else f"cast_int8({code})"
        return [
            "own_octets = task * octets_size",
            "own_steps = idiv(own_octets + steps_at, 4)",
            f"words = idiv(hidden + {TOGETHER - 1}, {TOGETHER})",
            "depth_words = words if t > 0 or started else 0",
            "begun = 1.0 if t > 0 or started else 0.0",
            "for row in range(batch):",
            f"    place = {source} + row * row_size",
            f"    largest = const_float32(0, {lanes})",
            f"    for u in range(0, hidden, {lanes}):",
            f"        largest = max(largest, abs({value}))",
            f"    top = max(reduce_max(largest), {SMALLEST_STATE!r})",
            f"    up = div({float(LARGEST)!r}, top)",
            f"    for u in range(0, hidden, {lanes}):",
            f"        store(octets, own_octets + row * row_size + u, {stored})",
            f"    step = mul(div(add(top, sub(top, top)), {float(LARGEST)!r}), begun)",
            "    store_scalar(state_steps, own_steps + row, step)",
        ]


class DynamicStates(QuantizedStates):
    """The 8-bit states of a part: rows of bytes, then for each row an int32, the sum of its codes minus their zero
    point.

    All rows share one step and one zero point, as for DynamicQuantizeLinear.
    """

    def declare(self, arguments: Arguments, at: int) -> None:
        arguments.pointer("octets", Operand("scratch", at), "uint8")
        arguments.pointer("state_words", Operand("scratch", at), "int32")
        arguments.pointer("state_sums", Operand("scratch", at), "int32")
        arguments.integers(octets_size=self.bytes, steps_at=self.rows)

    def lines(self, source: str, lanes: int) -> list[str]:
        """See `QuantizedStates.lines`; the statements also set ``state_step`` and ``state_zero``."""
        value = f"load_tail(states, place + u, imin(hidden - u, {lanes}), 0, {lanes})"
        return [
            "own_octets = task * octets_size",
            "own_steps = idiv(own_octets + steps_at, 4)",
            f"words = idiv(hidden + {TOGETHER - 1}, {TOGETHER})",
            "depth_words = words",
            f"lows = const_float32(0, {lanes})",
            f"highs = const_float32(0, {lanes})",
            "for row in range(batch):",
            f"    place = {source} + row * row_size",
            f"    for u in range(0, hidden, {lanes}):",
            f"        lows = min(lows, {value})",
            f"        highs = max(highs, {value})",
            "low = reduce_min(lows)",
            "high = reduce_max(highs)",
            "state_step = where(eq(low, high), const_float32(1, 0), div(sub(high, low), const_float32(255, 0)))",
            "zero = nearbyint(max(const_float32(0, 0), min(const_float32(255, 0), div(neg(low), state_step))))",
            "state_zero = cast_int32(zero)",
            "for row in range(batch):",
            f"    place = {source} + row * row_size",
            f"    total = const_float32(0, {lanes})",
            f"    for u in range(0, hidden, {lanes}):",
            f"        code = add(nearbyint(div({value}, state_step)), zero)",
            f"        code = max(const_float32(0, {lanes}), min(const_float32(255, {lanes}), code))",
            "        store(octets, own_octets + row * row_size + u, cast_uint8(code))",
            f"        code = where(lane_mask(imin(hidden - u, {lanes}), {lanes}), sub(code, zero), 0)",
            "        total = add(total, code)",
            "    store_scalar(state_sums, own_steps + row, cast_int32(reduce_add(total)))",
        ]


class SplitStates:
    """The 21-bit states of a part: for each row int16 multiples of `HALF`, then int16 remainders; last a float32 for
    each row.

    The float32 is the quantisation step over `UP`. An infinity or NaN has the code 0: where ``strange`` is above 0, it
    has to be multiplied itself.
    """

    def __init__(self, problem: RecurrenceProblem, row: int) -> None:
        self.rows = 2 * problem.batch * row
        bytes_ = 2 * self.rows + 4 * problem.batch
        self.bytes = -(-bytes_ // (2 * host.CACHE_LINE)) * 2 * host.CACHE_LINE

    def declare(self, arguments: Arguments, at: int) -> None:
        """Declare the arguments that `lines` and the products read."""
        arguments.pointer("halves", Operand("scratch", at), "int16")
        arguments.pointer("state_words", Operand("scratch", at), "int32")
        arguments.pointer("state_steps", Operand("scratch", at), "float32")
        arguments.integers(own_bytes=self.bytes, steps_at=2 * self.rows)

    def lines(self, source: str, lanes: int) -> list[str]:
        """Return statements that quantise the states at ``source`` and set ``depth_words``.

        ``depth_words`` is the number of words of each row, 0 if all states are zero, as before the first step.
        """
        value = f"load_tail(states, place + u, imin(hidden - u, {lanes}), 0, {lanes})"
        return [
            "own_halves = idiv(task * own_bytes, 2)",
            "own_words = idiv(task * own_bytes, 4)",
            "own_steps = idiv(task * own_bytes + steps_at, 4)",
            "depth_words = idiv(hidden + 1, 2) if t > 0 or started else 0",
            "strange = 0",
            "for row in range(batch if depth_words > 0 else 0):",
            f"    place = {source} + row * row_size",
            f"    largest = const_float32({_SMALLEST!r}, {lanes})",
            f"    odd = ne(const_float32(0, {lanes}), 0)",
            f"    for u in range(0, hidden, {lanes}):",
            f"        size = abs({value})",
            "        known = lt(size, INF)",
            "        largest = max(largest, where(known, size, 0))",
            "        odd = logical_or(odd, logical_not(known))",
            "    strange += 1 if reduce_or(odd) else 0",
            "    top = reduce_max(largest)",
            f"    up = div({float(HALF * HALF)!r}, top)",
            f"    store_scalar(state_steps, own_steps + row, mul(top, {1 / HALF / HALF / UP!r}))",
            "    high_at = own_halves + 2 * row * row_size",
            f"    for u in range(0, hidden, {lanes}):",
            f"        value = {value}",
            "        value = where(lt(abs(value), INF), value, 0)",
            "        code = cast_int32(nearbyint(mul(value, up)))",
            f"        high = shift_right(add(code, {HALF // 2}), const_int32({_SHIFT}, {lanes}))",
            f"        low = sub(code, shift_left(high, const_int32({_SHIFT}, {lanes})))",
            "        store(halves, high_at + u, cast_int16(high))",
            "        store(halves, high_at + row_size + u, cast_int16(low))",
        ]
