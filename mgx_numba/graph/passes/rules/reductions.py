"""Reductions over axes along which a value repeats: algebra in place of a walk over equal elements."""

from __future__ import annotations

from math import prod

from ....core.dim import Length, is_symbolic, known_equal, known_less_equal
from ....core.types import Type
from ....ops.reduce import ReduceOperator
from ...instruction import Instruction
from ..build import RewriteBuilder
from ..match import Match, op, rule, some

REDUCTIONS = "reduce_sum reduce_mean reduce_max reduce_min reduce_prod reduce_any reduce_all"


@rule("reduce_broadcast", op(REDUCTIONS, op("multibroadcast", some("x"), bind="wide")), exact=True)
def reduce_broadcast(m: Match, b: RewriteBuilder) -> object:
    """``reduce(spread(x))`` along the axes of the spread: ``n * x`` for sum, ``x**n`` for prod, ``x`` for the others.

    Narrow floats are summed and multiplied in float32, as reductions do; integers wrap as their sums and products do.
    """
    if not isinstance(m.ins.op, ReduceOperator) or len(m.ins.inputs) != 1:
        return None
    if any(known_equal(n, 0) for n in m.wide.shape.lens):
        return None
    lens = m.wide.shape.lens
    axes = {a % len(lens) for a in m.ins.op.axes} or set(range(len(lens)))
    repeated = _repeated(m.x, lens) & axes
    if not repeated:
        return None
    type, count = m.ins.shape.type, prod(lens[a] for a in repeated)
    changes = m.ins.op.repeated != "same" and type is not Type.bool_type
    if m.ins.op.repeated == "power" and is_symbolic(count):
        return "how often elements are repeated is known when the program runs"
    if not known_less_equal(1, count):
        return "there may be no elements, of which a sum is 0 whatever the element"
    value = b.broadcast(m.x, [1 if a in repeated else n for a, n in enumerate(lens)])
    if changes and type.is_floating:
        value = b.convert(value, type.compute)
    if not known_less_equal(prod(value.shape.lens[a] for a in axes), 1) or (
        value.shape.type is not type and not changes
    ):
        value = b.op(m.ins.op, value)
    if not changes:
        return value  # max(spread(x)) -> max(x); likewise min mean any all
    if m.ins.op.repeated == "times":
        value = b.op("mul", value, _spread(b, count, value))  # sum(spread(x)) -> n * sum(x)
    else:
        value = _power(b, value, count)  # prod(spread(x)) -> prod(x)**n
    return b.convert(value, type)


def _spread(b: RewriteBuilder, number: Length, like: Instruction) -> Instruction:
    """A number that follows from lengths, in the type and lengths of a value."""
    if not is_symbolic(number):
        return b.scalar(number, like)
    return b.broadcast(b.number(number, like.shape.type), like.shape.lens)


def _repeated(x: Instruction, lens: tuple[int, ...]) -> set[int]:
    """Axes of length ``lens`` along which a value that is broadcast to them repeats."""
    missing = len(lens) - x.shape.ndim
    return {
        a
        for a, n in enumerate(lens)
        if not known_less_equal(n, 1) and (a < missing or known_equal(x.shape.lens[a - missing], 1))
    }


def _power(b: RewriteBuilder, x: Instruction, exponent: int) -> Instruction:
    """``x`` to a positive power by squaring, which knows odd exponents that floats do not, and wraps integers."""
    result: Instruction | None = None
    while True:
        if exponent & 1:
            result = x if result is None else b.op("mul", result, x)
        exponent >>= 1
        if not exponent:
            return x if result is None else result
        x = b.op("mul", x, x)


REDUCTION_RULES = (reduce_broadcast,)
