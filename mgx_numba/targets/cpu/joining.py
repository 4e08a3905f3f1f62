"""Two contractions in one launch: a depthwise convolution takes the 1x1 one along whose result nothing else reads."""

from __future__ import annotations

from collections.abc import Mapping

from ...codegen.cpu.contraction.conv import ConvPointwise
from ...codegen.cpu.contraction.depthwise import ConvDepthwise
from ...codegen.cpu.contraction.gemm_tiles import LAUNCH_SECONDS
from ...codegen.cpu.contraction.pointwise_depthwise import BEFORE, PointwiseDepthwise
from ...codegen.problems.convolution import ConvProblem
from ...codegen.tuning.request import Candidate, Request
from ...graph.instruction import Instruction
from ...runtime.plan import Region
from ..lowering.buffers import View
from ..lowering.lowering import Lowering

__all__ = ["drop_product", "joined_product"]


def joined_product(
    low: Lowering, ins: Instruction, request: Request, chosen: Candidate, operands: Mapping[str, View]
) -> tuple[Candidate, Mapping[str, View]] | None:
    """What computes a depthwise convolution together with the 1x1 convolution of the step before, and the operands of
    that, if nothing else reads its result and the estimate of both in one is below those of each.

    Plans for new lengths, and those whose kernels these take, keep them apart.
    """
    if low.ready is not None or low.spare is not None or not low.requested:
        return None
    before, taken, own, start, stop = low.requested[-1]
    if (taken.solver.name, chosen.solver.name) != (ConvPointwise.name, ConvDepthwise.name):
        return None
    if (start, stop) != (len(low.steps) - 1, len(low.steps)):
        return None
    assert isinstance(before.problem, ConvProblem) and isinstance(request.problem, ConvProblem)
    between, read = own["out"], operands["x"]
    producer, buffer = low.steps[-1].instruction, between.buffer
    if buffer.region is not Region.ARENA or buffer.bytes != between.shape.bytes or between.tensor != read.tensor:
        return None
    if read.buffer is not buffer or any(view.buffer is buffer for name, view in operands.items() if name != "x"):
        return None
    writer = low.writers.get(buffer)
    if list(producer.users) != [ins] or (writer is not None and writer.taken):
        return None
    solver = PointwiseDepthwise(before.problem, before.epilogue, tuple(before.strides))
    if solver.refusal(request.problem) is not None:
        return None
    apart = taken.solver.estimate(before.problem, low.threads) + chosen.solver.estimate(request.problem, low.threads)
    if solver.estimate(request.problem, low.threads) > apart + LAUNCH_SECONDS:
        return None
    names = {name: f"{BEFORE}{name}" for name in own if name not in ("x", "out")}
    return Candidate(solver), {"x": own["x"], **{given: own[name] for name, given in names.items()}}


def drop_product(low: Lowering) -> Instruction:
    """Take the last step away, a product that another step computes now, and give its instruction."""
    low.requested.pop()
    step = low.steps.pop()
    low.writers.pop(step.operands["out"].buffer, None)
    return step.instruction
