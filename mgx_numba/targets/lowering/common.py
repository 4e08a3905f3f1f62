"""Lowering rules for every back end: pointwise clusters, single pointwise operations, copies, tensors of lengths."""

from __future__ import annotations

from collections.abc import Sequence

from ...codegen.problems.cluster import PointwiseProblem
from ...codegen.problems.numbers import NumbersProblem, RangeProblem
from ...core.dim import known_equal
from ...core.shape import Shape
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...ops import OPERATORS, POINTWISE_FILES
from ...ops.base import Pointwise, operator_class
from ...ops.lengths import Lengths
from .buffers import View
from .lowering import Lowering
from .rules import RuleTable

COMMON = RuleTable()

_LIKELY = [name for file in POINTWISE_FILES for name in OPERATORS[file].split()]
_SINGLE = [n for n in _LIKELY if issubclass(operator_class(n), Pointwise) and n != "identity"]


@COMMON.lowering("pointwise")
def lower_pointwise(low: Lowering, ins: Instruction) -> None:
    """Append a kernel for the cluster's module."""
    inputs, outputs = low.inputs(ins), low.outputs_of(ins)
    compute_pointwise(low, ins, ins.module_args[0], inputs, outputs)


@COMMON.lowering(*_SINGLE, "custom_pointwise")
def lower_single(low: Lowering, ins: Instruction) -> None:
    """Append a kernel for a pointwise operation that is in no cluster."""
    module = Module("single")
    parameters = [module.add_parameter(f"x{k}", Shape(i.shape.type)) for k, i in enumerate(ins.inputs)]
    module.add_return([module.add_instruction(ins.op, parameters)])
    compute_pointwise(low, ins, module, low.inputs(ins), [low.output(ins)])


@COMMON.lowering("contiguous", "layout")
def lower_contiguous(low: Lowering, ins: Instruction) -> None:
    """Register the input itself if it has the required strides, else append a copy."""
    source = low.input(ins, 0)
    wanted = ins.shape.strides
    alike = zip(source.strides, wanted, source.lens)
    if ins not in low.output_aliases and all(known_equal(a, b) or known_equal(n, 1) for a, b, n in alike):
        low.values[ins] = source.with_shape(Shape(source.type, source.lens, wanted))
        return
    low.copy(source, low.output(ins), ins)


@COMMON.lowering("lengths")
def lower_lengths(low: Lowering, ins: Instruction) -> None:
    """Append a kernel that stores symbolic lengths, which are its arguments."""
    out = low.output(ins)
    _launch_plan(low, ins, NumbersProblem(ins.operator(Lengths).values, out.tensor, low.origin(ins)), out)


@COMMON.lowering("iota")
def lower_iota(low: Lowering, ins: Instruction) -> None:
    """Append a kernel that stores the positions 0, 1, 2, ..."""
    out = low.output(ins)
    _launch_plan(low, ins, RangeProblem(out.tensor, origin=low.origin(ins)), out)


def _launch_plan(low: Lowering, ins: Instruction, problem: NumbersProblem | RangeProblem, out: View) -> None:
    low.launch_all(low.solve(low.backend.plan, problem), {"out": out}, ins)


@COMMON.lowering("fill")
def lower_fill(low: Lowering, ins: Instruction) -> None:
    """Append a copy of one element to all places of the result."""
    value, out = low.input(ins, 0), low.output(ins)
    low.copy(value.with_shape(Shape(value.type, out.lens, [0] * len(out.lens))), out, ins)


@COMMON.lowering("concat")
def lower_concat(low: Lowering, ins: Instruction) -> None:
    """Append copies of the inputs that could not be computed in place."""
    for value, part in pieces_to_copy(low, ins):
        low.copy(value, part, ins)


def pieces_to_copy(low: Lowering, ins: Instruction) -> list[tuple[View, View]]:
    """Return the inputs of a concatenation that could not be computed in place, each with its window of the result."""
    whole, found = low.output(ins), []
    axis = ins.op.axis % len(ins.shape.lens)  # type: ignore[attr-defined]
    start = 0
    for source in ins.inputs:
        shape = Shape(source.shape.type, source.shape.lens, whole.strides)
        part = whole.with_shape(shape, start * whole.strides[axis])
        start += source.shape.lens[axis]
        value = low.values[source]
        if value.buffer is not part.buffer or not known_equal(value.offset, part.offset):
            found.append((value, part))
    return found


def compute_pointwise(
    low: Lowering, ins: Instruction, module: Module, inputs: Sequence[View], outputs: Sequence[View]
) -> None:
    """Append the steps that evaluate a scalar module, which may be part of the instruction's computation."""
    tensors = tuple(v.tensor for v in inputs), tuple(v.tensor for v in outputs)
    low.compute(PointwiseProblem(module, *tensors, low.options.fast_math, low.origin(ins)), inputs, outputs, ins)
