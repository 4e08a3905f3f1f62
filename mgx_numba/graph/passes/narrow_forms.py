"""Let a region store rounded forms of its result, instead of the result or beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.types import Type
from ..constants import is_constant
from ..instruction import Instruction
from .autocast_fp8 import FLOAT8
from .regions import Refuses, open_values
from .rules.quantized import INT8

NARROW = INT8 | FLOAT8 | {Type.half_type, Type.bf16_type}
MOST_FORMS = 3
"""Most quantised forms of one value; each is another result to store. No figures kept."""
LONGEST = 8
"""Most operations of a quantisation: conversion, scale, limits, rounding, zero point, conversion."""


def with_narrow_forms(
    region: Sequence[Instruction], order: Mapping[Instruction, int], refuses: Refuses
) -> list[Instruction]:
    """Return a region of one result extended by the operations that round the result, in program order. Return the
    region itself if something reads the result before these can be computed.

    The operations read only constants beside the result, so no path leaves the region and returns.
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
    """Return the operations, from ``first``, that quantise a value; empty if they do not."""
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
