"""Describe the steps of recurrent layers as problems, for the rules of all back ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...codegen.problems.recurrence import RecurrenceProblem
from ...core.dim import known_equal, known_in, less
from ...core.shape import Shape, row_major_strides
from ...core.types import Type
from ...graph.instruction import Instruction
from ...ops.recurrent_steps import RecurrentSteps
from .buffers import View
from .lowering import Lowering

_LENGTHS = (Type.int32_type, Type.int64_type)
_BATCH_FIRST = (0, 2, 1, 3)  # axes (step, direction, sequence, unit) with sequences first


def given(ins: Instruction) -> dict[str, Instruction]:
    """Return the optional inputs of recurrent steps, by name."""
    op = ins.operator(RecurrentSteps)
    return op.named(ins.inputs)


def recurrence(
    low: Lowering, ins: Instruction, types: Collection[Type]
) -> tuple[RecurrenceProblem, dict[str, View]] | None:
    """Return the problem and its operands except the weights; None if the instruction became a fallback step.

    Args:
        types: element types that the kernels have.
    """
    op = ins.operator(RecurrentSteps)
    x = low.input(ins, 0)
    named = op.named(low.inputs(ins))
    lengths = named.get("lengths")
    if (
        x.type not in types
        or any(known_in(n, 0) for n in x.lens)
        or (lengths is not None and lengths.type not in _LENGTHS)
    ):
        known = ", ".join(t.name for t in types)
        low.host(ins, f"kernels take {known}, some elements, lengths of 32 or 64 bits, not {x.shape}")
        return None
    low.require(less(0, x.lens[0]))  # with zero steps the last states are the initial states
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
        first_strides=strides["first"], first_cell_strides=strides["first_cell"], dtype=x.type.dtype_name,
        clip=op.clip, linear_before_reset=op.linear_before_reset, input_forget=op.input_forget,
        peephole="peephole" in named, inner_bias="bias" in named,
        lengths=lengths.type.dtype_name if lengths is not None else "", fast_math=low.options.fast_math,
    )  # fmt: skip
    return problem, operands


def _rows(low: Lowering, ins: Instruction, view: View) -> View:
    """Return the view if its innermost axis is contiguous, else a copy."""
    if known_equal(view.lens[-1], 1) or known_equal(view.strides[-1], 1):
        return view
    return low.materialized(view, row_major_strides(view.lens), ins)


def _outputs(low: Lowering, ins: Instruction) -> Sequence[View]:
    """Return the views for the results; hidden states are stored batch first if their users read them so."""
    views = low.outputs_of(ins)
    states = [u for u in ins.users if u.name == "get_tuple_elem" and u.op.attributes()["index"] == 0]
    if any(u not in low.output_aliases and any(_puts_batch_first(user) for user in u.users) for u in states):
        shape = ins.shape.sub_shapes[0]
        views[0] = low.allocate(Shape.from_permutation(shape.type, shape.lens, _BATCH_FIRST))
    return views


def _puts_batch_first(ins: Instruction) -> bool:
    return ins.name == "transpose" and tuple(ins.op.attributes()["permutation"]) == _BATCH_FIRST
