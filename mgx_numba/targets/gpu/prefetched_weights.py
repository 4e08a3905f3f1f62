"""Tell products which weights the next product reads, so that they prefetch them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...codegen.gpu.machine import machine
from ...codegen.gpu.weights_ahead import LINE_BYTES, ahead_slots
from ...codegen.launch import Operand
from ...runtime.plan import Region
from ..lowering.buffers import View
from ..lowering.steps import PendingStep

WEIGHTS = "w"
"""Name of the operand with a product's weights."""
SHARE = 4
"""The most bytes are the L2 cache's over this: some 3 us of the memory of an H200, which passes between products."""


def with_prefetches(steps: Sequence[PendingStep]) -> list[PendingStep]:
    """Return the steps of a plan, with each product that can prefetch followed by the weights of the next such one."""
    found: list[PendingStep] = []
    coming: View | None = None
    for step in reversed(steps):
        slots = None if step.launch is None else ahead_slots(step.launch.kernel)
        if slots is None or step.launch is None:
            found.append(step)
            continue
        own = step.operands[WEIGHTS]
        if coming is not None:
            pointer, lines = slots
            args = list(step.launch.args)
            args[pointer] = Operand("ahead")
            args[lines] = min(coming.shape.bytes, machine().l2_bytes // SHARE) // LINE_BYTES
            launch = replace(step.launch, args=tuple(args))
            step = replace(step, launch=launch, operands={**step.operands, "ahead": coming})
        found.append(step)
        coming = own if own.buffer.region is Region.CONSTANT else coming
    return found[::-1]
