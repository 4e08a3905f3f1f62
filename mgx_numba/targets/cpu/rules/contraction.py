"""Matrix products and convolutions, alone or with pointwise operations around them as a prologue and an epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....codegen.cpu.contraction.select import select
from ....codegen.cpu.contraction.solver import UnsuitedWeights
from ....codegen.cpu.printer import check_body
from ....codegen.problems.convolution import ConvProblem
from ....codegen.problems.epilogue import Epilogue
from ....codegen.problems.gemm import GemmProblem
from ....codegen.tuning.request import Candidate, Request
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....runtime.plan import Region
from ...lowering import contraction
from ...lowering.buffers import Buffer, View
from ...lowering.contraction import Contractions, accepts_contraction
from ...lowering.lowering import Lowering, PendingStep
from .table import lowering


@lowering("dot", "convolution", "convolution_backwards", "fused_contraction", accepts=accepts_contraction)
def lower_contraction(low: Lowering, ins: Instruction) -> None:
    """The launches of the solver that tuning or the cost model chooses."""
    contraction.lower_contraction(low, ins, _HERE)


@lowering("quant_dot", accepts=accepts_contraction)
def lower_quantized_product(low: Lowering, ins: Instruction) -> None:
    """8-bit integers times constant signed ones; any other is left to the operator's NumPy meaning."""
    contraction.lower_quantized_product(low, ins, _HERE)


def _launch(
    low: Lowering,
    ins: Instruction,
    problem: GemmProblem | ConvProblem,
    epilogue: Epilogue,
    strides: Sequence[Sequence[int]],
    operands: dict[str, View],
    extras: Sequence[View],
    weights: np.ndarray | None,
) -> None:
    places = tuple(tuple(int(s) for s in own) for own in strides)
    request = Request(problem, epilogue, places, low.threads, low.options.fast_math)
    chosen = _choose(low, request)
    room = 0 if weights is None else low.packing_room  # what is packed in every run is not worth transforming
    if chosen.solver.packing_growth(problem) > room:
        chosen = Candidate(select(problem, low.threads, room))
    solver = chosen.solver
    operands |= {f"e{k}": view for k, view in enumerate(extras)}
    packed_lens = solver.packed_lens(problem)
    if packed_lens and weights is not None:
        try:
            operands["w"] = low.packed(solver, problem, weights)
        except UnsuitedWeights:
            chosen = Candidate(select(problem, low.threads, room, (solver.name,)))
            solver = chosen.solver
            operands["w"] = low.packed(solver, problem, weights)
    elif packed_lens:
        operands["w"] = _packed_at_run_time(low, ins, solver, problem, packed_lens, operands["w"])
    plan = solver.plan(problem, epilogue, strides, low.threads, chosen.blocking)
    if plan.scratch:
        scratch = Shape(Type.uint8_type, (plan.scratch,))
        operands["scratch"] = View(Buffer(Region.ARENA, 0, plan.scratch), scratch)
    start = len(low.steps)
    for launch in plan.launches:
        low.launch(launch, operands, ins)
    low.requested.append((request, operands, start, len(low.steps)))


def _choose(low: Lowering, request: Request) -> Candidate:
    """What a tuning record says, else the cost model."""
    if low.options.tuning is None:
        return Candidate(select(request.problem, low.threads))
    return low.options.tuning.choose(request)


def _packed_at_run_time(
    low: Lowering, ins: Instruction, solver: Any, problem: Any, lens: tuple[int, ...], weights: View
) -> View:
    """Weights that are not constant are packed by a host step in every run."""
    target = low.allocate(Shape(weights.type, lens))

    def pack(arrays: list) -> list:
        return [solver.pack_weights(problem, arrays[0])]

    low.steps.append(PendingStep(None, {}, f"cpu::pack_{solver.name}", ins, pack, [weights], [target]))
    return target


_HERE = Contractions((Type.float_type, Type.double_type), check_body, _launch)
