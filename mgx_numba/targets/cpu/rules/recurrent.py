"""The steps of recurrent layers, as one kernel for all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ....codegen.cpu.contraction.solver import UnsuitedWeights
from ....codegen.cpu.recurrent import RecurrenceProblem, pack_weights, packed_lens, plan
from ....codegen.cpu.recurrent.phases import waits_for_weights
from ....core.shape import Shape, row_major_strides
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.recurrent_steps import RecurrentSteps
from ....runtime.plan import Region
from ...lowering.buffers import Buffer, View
from ...lowering.lowering import Lowering
from ...lowering.steps import PendingStep
from .table import lowering

_LENGTHS = (Type.int32_type, Type.int64_type)
_BATCH_FIRST = (0, 2, 1, 3)  # of steps, directions, sequences and units: sequences first


@lowering("recurrent_steps")
def lower_recurrent_steps(low: Lowering, ins: Instruction) -> None:
    """The launches that `plan` makes."""
    op = ins.op
    assert isinstance(op, RecurrentSteps)
    x = low.input(ins, 0)
    named = dict(zip(op.given.split(), low.inputs(ins)[2:]))
    lengths = named.get("lengths")
    if x.type not in (Type.float_type, Type.double_type) or 0 in x.lens or _is_odd(lengths):
        low.host(
            ins, f"kernels take float_type and double_type, some elements, lengths of 32 or 64 bits, not {x.shape}"
        )
        return
    x = _rows(low, ins, x)
    operands = {"x": x}
    for name, own in (("bias", "inner_bias"), ("peephole", "peephole"), ("lengths", "lengths")):
        if name in named:
            operands[own] = low.materialized(named[name], row_major_strides(named[name].lens), ins)
    strides: dict[str, tuple[int, int] | None] = {"first": None, "first_cell": None}
    for name, own in (("hidden", "first"), ("state", "first_cell")):
        if name in named:
            view = operands[own] = _rows(low, ins, named[name])
            strides[own] = (view.strides[0], view.strides[1])
    outputs = _outputs(low, ins)
    operands |= dict(zip(("y", "last", "last_cell"), outputs))
    y = outputs[0].strides
    problem = RecurrenceProblem(
        cell=op.cell, steps=x.lens[0], batch=x.lens[1], hidden=op.hidden_size,
        backward=tuple(bool(op.backward >> k & 1) for k in range(x.lens[2])), functions=op.actv_func,
        x_strides=(x.strides[0], x.strides[1], x.strides[2]), y_strides=(y[0], y[1], y[2]),
        first_strides=strides["first"], first_cell_strides=strides["first_cell"], dtype=x.type.numpy.name,
        clip=op.clip, linear_before_reset=op.linear_before_reset, input_forget=op.input_forget,
        peephole="peephole" in named, inner_bias="bias" in named,
        lengths=lengths.type.numpy.name if lengths is not None else "", fast_math=low.options.fast_math,
    )  # fmt: skip
    problem, operands["w"] = _packed(low, ins, problem)
    chosen = plan(problem, low.threads, low.origin(ins))
    scratch = Shape(Type.uint8_type, (chosen.scratch,))
    operands["scratch"] = View(Buffer(Region.ARENA, 0, chosen.scratch), scratch)
    for launch in chosen.launches:
        low.launch(launch, operands, ins)


def _is_odd(lengths: View | None) -> bool:
    return lengths is not None and lengths.type not in _LENGTHS


def _rows(low: Lowering, ins: Instruction, view: View) -> View:
    """The view itself if its innermost axis is contiguous, else a copy."""
    if view.lens[-1] == 1 or view.strides[-1] == 1:
        return view
    return low.materialized(view, row_major_strides(view.lens), ins)


def _outputs(low: Lowering, ins: Instruction) -> Sequence[View]:
    """Memory of the results; hidden states lie batch first where that is how their users read them."""
    views = low.outputs_of(ins)
    states = [u for u in ins.users if u.name == "get_tuple_elem" and u.op.attributes()["index"] == 0]
    if any(u not in low.destinations and any(_puts_batch_first(user) for user in u.users) for u in states):
        shape = ins.shape.sub_shapes[0]
        views[0] = low.allocate(Shape.from_permutation(shape.type, shape.lens, _BATCH_FIRST))
    return views


def _puts_batch_first(ins: Instruction) -> bool:
    return ins.name == "transpose" and tuple(ins.op.attributes()["permutation"]) == _BATCH_FIRST


def _packed(low: Lowering, ins: Instruction, problem: RecurrenceProblem) -> tuple[RecurrenceProblem, View]:
    """The recurrent weights as the kernel reads them: packed once, or in every run where they are not constant."""
    weights = low.constant_value(ins.inputs[1])
    if weights is not None and problem.fast_math and waits_for_weights(problem):
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


def _packed_once(low: Lowering, problem: RecurrenceProblem, weights: np.ndarray) -> View:
    how = problem.cell, problem.hidden, problem.lanes, problem.linear_before_reset, problem.int16
    return low.packed_constant(weights, how, lambda: pack_weights(problem, weights))
