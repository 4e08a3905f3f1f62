"""Join two contractions in one launch: a depthwise convolution also computes the 1x1 convolution of which it is the
only reader."""

from __future__ import annotations

from collections.abc import Mapping

from ...codegen.cpu.contraction.conv import ConvPointwise
from ...codegen.cpu.contraction.depthwise import ConvDepthwise
from ...codegen.cpu.contraction.gemm_amx import LAUNCH_SECONDS
from ...codegen.cpu.contraction.pointwise_depthwise import BEFORE, PointwiseDepthwise
from ...codegen.cpu.contraction.select import select
from ...codegen.problems.convolution import ConvProblem
from ...codegen.tuning.request import Candidate, Request
from ...graph.instruction import Instruction
from ...runtime.plan import Region
from ..lowering.buffers import View
from ..lowering.contraction_problem import CONVOLUTIONS, core_of
from ..lowering.lowering import Lowering
from .capabilities import bare_problem

__all__ = ["drop_product", "first_of_pair", "joined_product"]


def joined_product(
    low: Lowering, ins: Instruction, request: Request, chosen: Candidate, operands: Mapping[str, View]
) -> tuple[Candidate, Mapping[str, View]] | None:
    """Return the solver that computes a depthwise convolution and the preceding step's 1x1 convolution, and its further
    operands.

    None if another instruction reads the 1x1 convolution's result, or if the joined estimate exceeds the sum of both.
    """
    if not low.requested:
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


def first_of_pair(low: Lowering, ins: Instruction, request: Request, chosen: Candidate) -> Candidate:
    """Return the solver of a 1x1 convolution: ``chosen``, or the solver that can be joined with a following depthwise
    convolution.

    The latter replaces ``chosen`` only if ``chosen`` comes from a tuning record shipped with the package, which does
    not know of pairs. The depthwise convolution must be the only reader, and joining must be faster by the estimates.
    """
    problem = request.problem
    if chosen.solver.name == ConvPointwise.name or len(ins.users) != 1:
        return chosen
    if not isinstance(problem, ConvProblem) or problem.taps > 1:
        return chosen
    (reader,) = ins.users
    if reader.name not in (*CONVOLUTIONS, "fused_contraction"):
        return chosen
    core = core_of(reader)
    if core.name not in CONVOLUTIONS or core.op.attributes()["group"] != problem.out_channels > 1:
        return chosen
    body = dict(zip(reader.module_args[0].parameters(), reader.inputs)) if core is not reader else {}
    if body.get(core.inputs[0], core.inputs[0]) is not ins:
        return chosen  # the reader's epilogue reads the result
    own = low.solutions.of(("choose alone", request), lambda: low.backend.choose(request))
    behind = bare_problem(core)
    assert isinstance(behind, ConvProblem)
    joined = PointwiseDepthwise(problem, request.epilogue, tuple(request.strides))
    if own.solver.name != ConvPointwise.name or joined.refusal(behind) is not None:
        return chosen
    second = select(behind, low.threads)
    apart = own.solver.estimate(problem, low.threads) + second.estimate(behind, low.threads)
    taken = second.name == ConvDepthwise.name and joined.estimate(behind, low.threads) <= apart + LAUNCH_SECONDS
    tuning = low.options.tuning
    return own if taken and tuning is not None and tuning.is_shipped(request) else chosen


def drop_product(low: Lowering) -> Instruction:
    """Remove the last step, a product that a joined step computes instead, and return its instruction."""
    low.requested.pop()
    step = low.steps.pop()
    low.writers.pop(step.operands["out"].buffer, None)
    return step.instruction
