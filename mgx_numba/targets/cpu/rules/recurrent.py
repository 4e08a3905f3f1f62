"""The steps of recurrent layers, as one kernel for all of them."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np

from ....codegen.cpu.contraction.solver import UnsuitedWeights
from ....codegen.cpu.recurrent import RecurrenceProblem, pack_weights, packed_lens, plan
from ....codegen.cpu.recurrent.phases import multiplies_int16, waits_for_weights
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....runtime.plan import Region
from ...lowering.buffers import Buffer, View
from ...lowering.lowering import Lowering
from ...lowering.recurrent import given, recurrence
from ...lowering.steps import PendingStep
from .table import lowering


@lowering("recurrent_steps")
def lower_recurrent_steps(low: Lowering, ins: Instruction) -> None:
    """The launches that `plan` makes."""
    scales = given(ins).get("scales")
    if scales is not None and any(low.constant_value(i) is None for i in (ins.inputs[1], scales)):
        low.host(ins, "weights of 8 bits, or their scales, are not constant")
        return
    found = recurrence(low, ins, (Type.float_type,) if scales is not None else (Type.float_type, Type.double_type))
    if found is None:
        return
    problem, operands = found
    problem, operands["w"] = _packed(low, ins, problem, scales)
    chosen = plan(problem, low.threads, low.origin(ins))
    scratch = Shape(Type.uint8_type, (chosen.scratch,))
    operands["scratch"] = View(Buffer(Region.ARENA, 0, chosen.scratch), scratch)
    for launch in chosen.launches:
        low.launch(launch, operands, ins)


def _packed(
    low: Lowering, ins: Instruction, problem: RecurrenceProblem, scales: Instruction | None
) -> tuple[RecurrenceProblem, View]:
    """The recurrent weights as the kernel reads them: packed once, or in every run where they are not constant."""
    weights = low.constant_value(ins.inputs[1])
    if weights is not None and scales is not None:
        short = replace(problem, int8=True)
        return short, _packed_once(low, short, weights, low.constant_value(scales))
    rounded = low.options.precision != "highest" and waits_for_weights(problem) and multiplies_int16(problem)
    if weights is not None and rounded:
        short = replace(problem, int16=True)
        with contextlib.suppress(UnsuitedWeights):
            return short, _packed_once(low, short, weights)
    if weights is not None:
        return problem, _packed_once(low, problem, weights)
    target = low.allocate(Shape(low.input(ins, 1).type, packed_lens(problem)))

    def pack(arrays: list) -> list:
        return [pack_weights(problem, arrays[0])]

    inputs, reason = [low.input(ins, 1)], "the weights are not constant, and no kernel packs them"
    low.steps.append(PendingStep(None, {}, "cpu::pack_recurrent", ins, pack, inputs, [target], reason=reason))
    return problem, target


def _packed_once(
    low: Lowering, problem: RecurrenceProblem, weights: np.ndarray, scales: np.ndarray | None = None
) -> View:
    p = problem
    how = p.cell, p.hidden, p.lanes, p.linear_before_reset, p.int16, None if scales is None else scales.tobytes()
    return low.packed_constant(weights, how, lambda: pack_weights(problem, weights, scales))
