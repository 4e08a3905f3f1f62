"""Lower recurrent layers, all steps to one kernel."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np

from ....codegen.alternatives import only_where
from ....codegen.cpu.contraction.solver import UnsuitedWeights
from ....codegen.cpu.recurrent import RecurrenceProblem, pack_weights, plan
from ....codegen.cpu.recurrent.weights import multiplies_int16, waits_for_weights
from ....core.dim import Length, known_in, negate
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.recurrent_steps import RecurrentSteps
from ...lowering.buffers import View
from ...lowering.function_call import FunctionCall
from ...lowering.lowering import Lowering
from ...lowering.recurrence_problem import given, recurrence
from ..packing import pack_in_every_run
from .table import lowering


@lowering("recurrent_steps")
def lower_recurrent_steps(low: Lowering, ins: Instruction) -> None:
    """Append the launches that `plan` makes."""
    side = given(ins)
    scales, points = side.get("scales"), side.get("points")
    constants = (ins.inputs[1], scales, points) if scales is not None else ()
    if any(i is not None and low.constant_value(i) is None for i in constants):
        low.host(ins, "weights of 8 bits, their scales or zero points, are not constant")
        return
    found = recurrence(low, ins, (Type.float_type,) if scales is not None else (Type.float_type, Type.double_type))
    if found is None:
        return
    problem, operands = found
    for condition, own, weights in _packed(low, ins, problem, scales, points):
        chosen = only_where(condition, low.solve(plan, own, low.threads, low.origin(ins)))
        low.launch_all(chosen, {**operands, "w": weights}, ins)


def _packed(
    low: Lowering,
    ins: Instruction,
    problem: RecurrenceProblem,
    scales: Instruction | None,
    points: Instruction | None,
) -> list[tuple[Length, RecurrenceProblem, View]]:
    """Return the recurrent weights packed for the kernel: once, or in every run where they are not constant.

    Returns:
        conditions, and the problem with its weights under each. There may be a problem for few sequences and another
        for many.
    """
    weights = low.constant_value(ins.inputs[1])
    if weights is not None and scales is not None:
        short = replace(problem, int8=True, dynamic=ins.operator(RecurrentSteps).dynamic)
        zero = None if points is None else low.constant_value(points)
        return [(1, short, _packed_once(low, short, weights, low.constant_value(scales), zero))]
    found: list[tuple[Length, RecurrenceProblem, View]] = []
    rounded = low.options.precision != "highest" and multiplies_int16(problem)
    rounds = waits_for_weights(problem) if weights is not None and rounded else 0
    if weights is not None and not known_in(rounds, 0):
        short = replace(problem, int16=True)
        with contextlib.suppress(UnsuitedWeights):
            found.append((rounds, short, _packed_once(low, short, weights)))
            if known_in(rounds, 1):
                return found
    if weights is not None:
        rest = negate(rounds) if found else 1
        return [*found, (rest, problem, _packed_once(low, problem, weights))]
    call = FunctionCall(pack_weights, problem)
    return [(1, problem, pack_in_every_run(low, ins, "cpu::pack_recurrent", call, low.input(ins, 1)))]


def _packed_once(
    low: Lowering,
    problem: RecurrenceProblem,
    weights: np.ndarray,
    scales: np.ndarray | None = None,
    points: np.ndarray | None = None,
) -> View:
    p = problem
    beside = (None if values is None else values.tobytes() for values in (scales, points))
    how = p.cell, p.hidden, p.lanes, p.linear_before_reset, p.int16, p.dynamic, *beside
    return low.packed_constant(weights, how, lambda: pack_weights(problem, weights, scales, points))
