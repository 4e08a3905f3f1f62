"""What is rounded of a region's result: the region stores it, in the place of the result or besides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.types import Type
from ..constants import is_constant
from ..instruction import Instruction
from .autocast_fp8 import FLOAT8
from .regions import Refuses, open_values
from .rules.quantized import INT8

__all__ = ["with_narrow_forms"]

NARROW = INT8 | FLOAT8 | {Type.half_type, Type.bf16_type}
MOST_FORMS = 3
"""Quantised forms of one value at most that are made with it: each is one more result to store. No figures kept."""
LONGEST = 8
"""Operations of a quantisation at most: a conversion, a factor, limits, rounding, the zero point, a conversion."""


def with_narrow_forms(
    region: Sequence[Instruction], order: Mapping[Instruction, int], refuses: Refuses
) -> list[Instruction]:
    """A region of one result with the operations that round it, in program order; the region itself if something reads
    the result before all of these could be computed.

    Those operations read constants besides, so that no path leads out of the region and back.
    """
    found = open_values(region)
    if len(found) != 1 or len(found[0].users) < 2:
        return list(region)
    members = set(region)
    forms = [_rounding(user, refuses) for user in found[0].users if user not in members and user in order]
    chosen = [form for form in forms if form][:MOST_FORMS]
    wider = sorted([*region, *(ins for form in chosen for ins in form)], key=order.__getitem__)
    last = order[wider[-1]]
    outside = [user for ins in open_values(wider) for user in ins.users if user not in set(wider)]
    return wider if all(order.get(user, last) > last for user in outside) else list(region)


def _rounding(first: Instruction, refuses: Refuses) -> list[Instruction]:
    """The operations from one on that make a narrow number of a computed one; none if they do not."""
    chain = [first]
    while len(chain) <= LONGEST:
        last = chain[-1]
        if not last.op.pointwise or refuses(last) is not None or sum(not is_constant(i) for i in last.inputs) != 1:
            return []
        if last.shape.type in NARROW:
            return chain
        if len(last.users) != 1:
            return []
        chain.append(next(iter(last.users)))
    return []
