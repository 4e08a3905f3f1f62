"""Lower the steps of recurrent layers."""

from __future__ import annotations

import numpy as np

from ....codegen.gpu.recurrent import recurrent_solutions
from ....core.shape import row_major_strides
from ....graph.instruction import Instruction
from ...lowering.attention_operands import as_type
from ...lowering.buffers import View
from ...lowering.lowering import Lowering
from ...lowering.recurrence_problem import given, recurrence
from .contraction import FLOATS
from .table import lowering, needs_numbers


@lowering("recurrent_steps")
def lower_recurrent_steps(low: Lowering, ins: Instruction) -> None:
    """Append one launch that keeps the weights on chip, or launches for each step; 8-bit weights are dequantised."""
    needs_numbers(ins, "a recurrent layer")
    side = given(ins)
    scales = side.get("scales")
    whole = None if scales is None else _dequantized(low, ins, scales, side.get("points"))
    if scales is not None and whole is None:
        low.host(ins, "weights of 8 bits, or their scales, are not constant")
        return
    found = recurrence(low, ins, FLOATS)
    if found is None:
        return
    problem, operands = found
    weights = low.input(ins, 1) if whole is None else whole
    operands["w"] = low.materialized(weights, row_major_strides(weights.lens), ins)
    lens = (problem.lanes, problem.batch, problem.hidden)
    compute = ins.shape.sub_shapes[0].type.compute
    for name in ("first", "first_cell") if problem.cell == "lstm" else ("first",):
        if name in operands:
            state = as_type(low, ins, operands[name], compute)
            operands[name] = low.materialized(state, row_major_strides(lens), ins)
        else:
            operands[name] = low.constant(np.zeros(lens, compute.numpy))
    solution = next(recurrent_solutions(problem, low.origin(ins)))
    low.launch_all(solution, operands, ins)


def _dequantized(low: Lowering, ins: Instruction, scales: Instruction, points: Instruction | None) -> View | None:
    """Return 8-bit weights minus zero points, times the scales of their rows, in the operands' type; None if any is not
    constant."""
    codes, steps, dtype = low.constant_value(ins.inputs[1]), low.constant_value(scales), ins.inputs[0].shape.type.numpy
    zero = np.zeros((1, 1), np.int32) if points is None else low.constant_value(points)
    if codes is None or steps is None or zero is None:
        return None
    how = "dequantized", steps.tobytes(), zero.tobytes(), dtype.str
    return low.packed_constant(codes, how, lambda: ((codes - zero[..., None]) * steps[..., None]).astype(dtype))
