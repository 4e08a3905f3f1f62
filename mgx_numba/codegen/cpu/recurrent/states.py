"""States in 8 bits, for products with weights of 8 bits: each row by its largest element, as it comes.

Every part brings all states of its lane to 8 bits by itself: that takes less than to wait for others to do so.
"""

from __future__ import annotations

from ....ops.recurrence import LARGEST, SMALLEST_STATE
from ...arguments import Arguments
from ...launch import Operand
from ...problems.recurrence import RecurrenceProblem
from .. import host
from ..microkernels.int8_table import has_dot4
from .weights import SHIFT, TOGETHER

__all__ = ["QuantizedStates", "multiplies_four"]


def multiplies_four() -> bool:
    """Whether the CPU multiplies four unsigned bytes by signed ones at once: states then have `SHIFT` added."""
    cpu = host.host()
    return has_dot4(cpu, cpu.vector_bits)


class QuantizedStates:
    """The states of a part: rows of bytes, then a float32 for each row, the step between two codes."""

    def __init__(self, problem: RecurrenceProblem, row: int) -> None:
        self.rows = problem.batch * row
        self.bytes = -(-(self.rows + 4 * problem.batch) // (2 * host.CACHE_LINE)) * 2 * host.CACHE_LINE

    def declare(self, arguments: Arguments, at: int) -> None:
        """The arguments that `lines` and the products read."""
        arguments.pointer("octets", Operand("scratch", at), "uint8" if multiplies_four() else "int8")
        arguments.pointer("state_words", Operand("scratch", at), "int32")
        arguments.pointer("state_steps", Operand("scratch", at), "float32")
        arguments.integers(octets_size=self.bytes, steps_at=self.rows)

    def lines(self, source: str, lanes: int) -> list[str]:
        """Statements: the part's form of the states at ``source``, and ``depth_words`` of each row, 0 if all states
        are zero, as they are before the first step.

        A row with an infinity or NaN gets the step NaN.
        """
        value = f"load_tail(states, place + u, imin(hidden - u, {lanes}), 0, {lanes})"
        code = f"cast_int32(nearbyint(mul({value}, up)))"
        stored = f"cast_uint8(add({code}, {SHIFT}))" if multiplies_four() else f"cast_int8({code})"
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
