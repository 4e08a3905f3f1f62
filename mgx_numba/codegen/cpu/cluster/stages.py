"""The values of a reduction cluster, and the stage in which each is computed.

A cluster's values are *full* (one for each element) or *row* values (one for each combination of kept indices). Stage 0
walks the row once and finishes the reductions that depend on no other. Values that depend on their results belong to
the next stage, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ....core.dim import Length, known_in, less_equal, minimum, permitted
from ....dataclass import dataclass
from ....graph.instruction import Instruction
from ....graph.module import Module
from ....ops.reduce_parts import HeadMean
from ....ops.scalar_functions import COSTLY
from ...reductions import REDUCTIONS, Reduction
from ..machine import machine
from .walk import Walk, is_long


@dataclass(frozen=True)
class Stages:
    """The stage of each value of a cluster's module.

    Attributes:
        module: the cluster's module.
        parameters, results: of the module, for each input and output.
        reductions: in the module's order.
        heads: the means that are known before a row is read, see `reduction_layout.head_lines`.
        stage: for each instruction, the first stage in which it is known; for a reduction, the stage after the reducing
            stage.
        row_value: for each instruction, whether it is one value a row.
        full_results: for each result, whether it is stored element by element.
        count: number of stages.
    """

    module: Module
    parameters: tuple[Instruction, ...]
    results: tuple[Instruction, ...]
    reductions: tuple[Instruction, ...]
    heads: tuple[Instruction, ...]
    stage: Mapping[Instruction, int]
    row_value: Mapping[Instruction, bool]
    full_results: tuple[bool, ...]
    count: int

    def reduction(self, ins: Instruction) -> Reduction:
        """Return how a reduction of the cluster is computed."""
        return REDUCTIONS[ins.name]

    def sum_can_overflow(self, ins: Instruction) -> bool:
        """Return whether a reduction is a mean whose sum can overflow although the mean cannot, see `means`."""
        return self.reduction(ins).sum_can_overflow(ins.inputs[0].shape.type)

    def reduced_in(self, stage: int) -> list[Instruction]:
        """Return the reductions of one stage."""
        return [i for i in self.reductions if self.stage[i] == stage + 1]

    def stored_in(self, stage: int) -> list[tuple[int, Instruction]]:
        """Return the full results that one stage stores, with their numbers."""
        return [
            (k, r)
            for k, (r, full) in enumerate(zip(self.results, self.full_results))
            if full and self.store_stage(r) == stage
        ]

    def store_stage(self, result: Instruction) -> int:
        """Return the stage that stores a full result."""
        return min(self.stage[result], self.count - 1)

    def cost(self, ins: Instruction) -> int:
        """Return the cost of computing a full value from the operands, in additions."""
        needed: set[Instruction] = set()
        pending = [ins]
        while pending:
            current = pending.pop()
            if not (current in needed or self.row_value[current] or current.is_param):
                needed.add(current)
                pending.extend(current.inputs)
        return sum(0 if i.name == "multibroadcast" else 10 if i.name in COSTLY else 1 for i in needed)


def stages_of(module: Module, walk: Walk, again: tuple[int, ...] = ()) -> Stages:
    """Return the stages of a cluster whose operands are walked by ``walk``; ``again`` is as in the problem."""
    parameters, results = tuple(module.parameters()), tuple(module.results())
    results += tuple(results[k] for k in again)
    reductions = tuple(i for i in module if i.name in REDUCTIONS)
    operands = dict(zip(parameters, walk.inputs))
    stage: dict[Instruction, int] = {}
    row_value: dict[Instruction, bool] = {}
    for ins in module:
        if ins.name == "@return":
            break
        depth = max((stage[i] for i in ins.inputs), default=0)
        stage[ins] = depth + 1 if ins.name in REDUCTIONS else depth
        if ins.is_literal or ins.name == "multibroadcast":
            row_value[ins] = not ins.inputs or row_value[ins.inputs[0]]
        elif ins.is_param:
            row_value[ins] = walk.repeats_along_rows(operands[ins])
        elif ins.name in REDUCTIONS or isinstance(ins.op, HeadMean):
            row_value[ins] = True
        else:
            row_value[ins] = all(row_value[i] for i in ins.inputs)
    full_results = walk.is_full[len(walk.inputs) :]
    stored = [stage[r] for r, full in zip(results, full_results) if full]
    return Stages(
        module=module,
        parameters=parameters,
        results=results,
        reductions=reductions,
        heads=tuple(i for i in module if isinstance(i.op, HeadMean)),
        stage=stage,
        row_value=row_value,
        full_results=full_results,
        count=1 + max([*(stage[i.inputs[0]] for i in reductions), *stored]),
    )


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
        pending = _outcomes(stages, stage)
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


def kept_in_result(
    walk: Walk, stages: Stages, cached: Mapping[Instruction, int], inner: Sequence[Length]
) -> Mapping[Instruction, int]:
    """Return the value that the last stage re-reads from the memory of a result, with the number of the result.

    Rows too long for the stack are kept so. The last stage then reads no operand, which may have the result's memory.

    Args:
        inner: stride of each operand along the lanes.
    """
    last, found = stages.count - 1, set[Instruction]()
    if cached or last < 1 or not walk.row_mode or walk.reduce_space.rank > 1:
        return {}
    before, pending = _computed(stages, last - 1), _outcomes(stages, last)
    while pending:
        ins = pending.pop()
        if ins.is_param and not stages.row_value[ins]:
            return {}
        if ins in before and stages.cost(ins) > CHEAP:
            found.add(ins)
        elif not stages.row_value[ins]:
            pending.extend(ins.inputs)
    if len(found) != 1:
        return {}
    (kept,) = found
    for k, _ in stages.stored_in(last):
        type_ = walk.outputs[k].type
        contiguous = known_in(inner[len(walk.inputs) + k], 1)
        if contiguous and k not in walk.parts and kept.shape.type is type_ is type_.compute:
            return {kept: k}
    return {}


def _outcomes(stages: Stages, stage: int) -> list[Instruction]:
    """Return the values that one stage reduces or stores."""
    return [*(i.inputs[0] for i in stages.reduced_in(stage)), *(r for _, r in stages.stored_in(stage))]


def _computed(stages: Stages, stage: int) -> set[Instruction]:
    """Return the full values that one stage computes."""
    pending, found = _outcomes(stages, stage), set[Instruction]()
    while pending:
        ins = pending.pop()
        if not stages.row_value[ins] and ins not in found:
            found.add(ins)
            pending.extend(ins.inputs)
    return found


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
