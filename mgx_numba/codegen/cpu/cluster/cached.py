"""Values that a stage of a reduction cluster keeps on the stack for a later stage, instead of recomputing them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ....core.dim import known_in, less_equal, minimum, permitted
from ....graph.instruction import Instruction
from ..machine import machine
from .stages import Stages
from .walk import Walk, is_long

ALIASING = 2048
"""Addresses that differ by a multiple of this many bytes share one of few L1 cache sets."""
MOST_CACHED = 3
"""Most values that are kept at a time."""
CHEAP = 4
"""Cost, in additions, below which a value is recomputed rather than kept."""


def cached_values(walk: Walk, stages: Stages, lanes: int) -> Mapping[Instruction, int]:
    """Return the full values that a later stage re-reads from a stack buffer, each with the stage that computes and
    keeps it."""
    if walk.row_mode and walk.reduce_space.rank > 1:
        return {}
    elements = walk.reduce_lens[-1] if walk.row_mode else prod(walk.reduce_space.lens) * lanes
    computed: dict[Instruction, int] = {}
    cached: dict[Instruction, int] = {}
    for stage in range(stages.count):
        fresh: set[Instruction] = set()
        pending = [*(i.inputs[0] for i in stages.reduced_in(stage)), *(r for _, r in stages.stored_in(stage))]
        while pending:
            ins = pending.pop()
            aliased = ins.is_param and _is_aliased(walk, stages, ins)
            if stages.row_value[ins] or ins in fresh or (ins.is_param and not aliased):
                continue
            costly = ins.is_param or stages.cost(ins) > CHEAP
            known = ins in computed and costly and permitted(less_equal(elements, cache_elements(ins)))
            if known and (ins in cached or len(cached) < MOST_CACHED):
                cached[ins] = computed[ins]
                continue
            fresh.add(ins)
            pending.extend(ins.inputs)
        computed = dict.fromkeys(fresh, stage) | computed
    return cached


def cache_elements(ins: Instruction) -> int:
    """Return the elements of the longest row that is kept on the stack."""
    return machine().l1_bytes // ins.shape.type.compute.size


def _is_aliased(walk: Walk, stages: Stages, parameter: Instruction) -> bool:
    """Return whether the steps of a column compete for the same few cache sets."""
    if walk.row_mode:
        return False
    tensor = walk.inputs[stages.parameters.index(parameter)]
    steps = [tensor.strides[a] * tensor.type.size for a in walk.axes if is_long(walk.full[a])]
    return bool(steps) and known_in(minimum(*steps) % ALIASING, 0)
