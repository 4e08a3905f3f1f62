"""Lower the steps of recurrent layers."""

from __future__ import annotations

import numpy as np

from ....codegen.alternatives import has_lengths
from ....codegen.gpu.recurrent import open_solutions, recurrent_solutions
from ....core.dim import SymbolicLengthError, is_symbolic
from ....core.shape import Shape, row_major_strides
from ....errors import UnsupportedError
from ....graph.instruction import Instruction
from ...lowering.attention_operands import as_type
from ...lowering.buffers import View
from ...lowering.lowering import Lowering
from ...lowering.recurrence_problem import given, recurrence
from .contraction import FLOATS
from .table import lowering


@lowering("recurrent_steps")
def lower_recurrent_steps(low: Lowering, ins: Instruction) -> None:
    """Append one launch that keeps the weights on chip, or launches for each step; 8-bit weights are dequantised.

    With symbolic lengths a few such launches share the batches.
    """
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
        elif any(map(is_symbolic, lens)):
            zero = low.constant(np.zeros((1, 1, 1), compute.numpy))
            spread = zero.with_shape(Shape(compute, lens, (0, 0, 0)))
            operands[name] = low.materialized(spread, row_major_strides(lens), ins)
        else:
            operands[name] = low.constant(np.zeros(lens, compute.numpy))
    if not has_lengths(problem):
        low.launch_all(next(recurrent_solutions(problem, low.origin(ins))), operands, ins)
        return
    try:
        solutions, served = open_solutions(problem, low.origin(ins))
    except UnsupportedError as error:  # each step has launches of its own
        raise SymbolicLengthError(str(error)) from error
    low.require(served)
    for solution in solutions:
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
