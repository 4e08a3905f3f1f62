"""Lowering rules for every back end: pointwise clusters, single pointwise operations, reduction clusters, single
reductions, copies, tensors of lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...codegen.problems.cluster import NumbersProblem, PointwiseProblem, RangeProblem, ReductionProblem, Tensor
from ...codegen.reductions import REDUCTIONS
from ...core.dim import hint, known_equal, known_in
from ...core.shape import Shape
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...ops import OPERATORS, POINTWISE_FILES
from ...ops.base import Pointwise, make_op, operator_class
from ...ops.lengths import Lengths
from ...ops.reduce_parts import ReduceParts
from ...runtime.plan import Region
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
    inputs = [in_order_of(low, v, outputs[0]) for v in inputs]
    tensors = tuple(v.tensor for v in inputs), tuple(v.tensor for v in outputs)
    low.compute(PointwiseProblem(module, *tensors, low.options.fast_math, low.origin(ins)), inputs, outputs, ins)


def in_order_of(low: Lowering, view: View, like: View) -> View:
    """Return a constant with its axes in the memory order of another value, copied when the plan is made; return other
    views as they are.

    Tables of rotary positions are transposed where PyTorch computed them by a product: each kernel would read lines of
    memory across.
    """
    if view.buffer.region is not Region.CONSTANT or view.shape.symbolic or like.shape.symbolic:
        return view
    varying = [axis for axis, n in enumerate(view.lens) if n > 1 and view.strides[axis]]
    if len(varying) < 2 or len(view.lens) != len(like.lens):
        return view
    order = sorted(varying, key=lambda axis: -like.strides[axis])
    if order == sorted(varying, key=lambda axis: -view.strides[axis]):
        return view
    array = low.constant_of(view)
    if array is None or array.size == 0 or array.itemsize != view.type.size:
        return view
    once = array[tuple(slice(None if axis in varying else 1) for axis in range(array.ndim))]
    rest = [axis for axis in range(array.ndim) if axis not in varying]
    how = ("axes in order", *rest, *order)
    packed = low.packed_constant(once, how, lambda: np.ascontiguousarray(once.transpose(*rest, *order)))
    strides = [0] * array.ndim
    for axis, stride in zip(order, packed.strides[len(rest) :]):
        strides[axis] = stride
    return packed.with_shape(Shape(view.type, view.lens, strides))


ProblemOf = Callable[[Sequence[Tensor], Sequence[Tensor]], ReductionProblem]


@COMMON.lowering("fused_reduce")
def lower_fused_reduce(low: Lowering, ins: Instruction) -> None:
    """Append the steps of the cluster's module."""
    body = ins.module_args[0]
    parts = next((i.op for i in body if isinstance(i.op, ReduceParts)), None)
    if parts is None:
        _lower(low, ins, _problem_of(low, ins, body, ins.op.axes), low.outputs_of(ins))  # type: ignore[attr-defined]
    else:
        _lower(low, ins, _problem_of_parts(low, ins, parts), low.outputs_of(ins))


@COMMON.lowering(*REDUCTIONS)
def lower_reduction(low: Lowering, ins: Instruction) -> None:
    """Append the steps of a reduction that is in no cluster: empty, over axes of length 1, or with axes known at run
    time."""
    axes = ins.op.axes  # type: ignore[attr-defined]
    source = ins.inputs[0].shape
    if len(ins.inputs) != 1 or not axes:
        low.host(ins, "the axes are known at run time only, or not listed")
        return
    if any(known_in(n, 0) for n in source.lens) or all(map(known_equal, source.lens, ins.shape.lens)):
        low.host(ins, f"nothing is to be reduced along axes {list(axes)} of {source}")
        return
    module = Module("single")
    parameter = module.add_parameter("x0", Shape(source.type, source.lens))
    module.add_return([module.add_instruction(ins.op, [parameter])])
    _lower(low, ins, _problem_of(low, ins, module, axes), [low.output(ins)])


def _problem_of(low: Lowering, ins: Instruction, module: Module, axes: Sequence[int]) -> ProblemOf:
    def problem(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> ReductionProblem:
        return ReductionProblem(
            module, tuple(axes), tuple(inputs), tuple(outputs), low.options.fast_math, low.origin(ins)
        )

    return problem


def _problem_of_parts(low: Lowering, ins: Instruction, op: ReduceParts) -> ProblemOf:
    """Return the problem of a cluster whose reductions are all split into parts along a row.

    The problem's reductions are over whole rows; its outputs are the results of the first part.
    """
    body, module = ins.module_args[0], Module(ins.module_args[0].name)
    values: dict[Instruction, Instruction] = {}
    for i in [*body.parameters(), *(i for i in body if not i.is_param)]:
        inputs = [values[v] for v in i.inputs]
        if i.is_param:
            values[i] = module.add_parameter(i.op.parameter, i.shape)  # type: ignore[attr-defined]
        elif i.literal is not None:
            values[i] = module.add_literal(i.literal)
        elif isinstance(i.op, ReduceParts):
            values[i] = module.add_instruction(make_op(i.op.operation, axes=i.op.axes), inputs)
        elif i.name == "@return":
            module.add_return(inputs)
        else:
            values[i] = module.add_instruction(i.op, inputs)

    def problem(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> ReductionProblem:
        along = op.axes[0]
        one = (Tensor(t.type, (*t.lens[:along], 1, *t.lens[along + 1 :]), t.strides) for t in outputs)
        return ReductionProblem(
            module, op.axes, tuple(inputs), tuple(one), low.options.fast_math, low.origin(ins),
            parts=op.parts, cut=op.cut, share=op.share, fold=op.fold,
        )  # fmt: skip

    return problem


def _lower(low: Lowering, ins: Instruction, problem: ProblemOf, outputs: Sequence[View]) -> None:
    """Append the steps of a cluster.

    Lent memory may have other strides than the instruction's shapes, for which a pass has rewritten the cluster. If no
    kernel takes these strides, the cluster is computed on copies with the shapes' strides.
    """
    inputs = low.inputs(ins)
    computed = [v for v in inputs if v.buffer.region is not Region.CONSTANT]
    if computed:
        largest = max(computed, key=lambda v: hint(v.shape.elements))
        inputs = [in_order_of(low, v, largest) for v in inputs]
    whole = problem([v.tensor for v in inputs], [v.tensor for v in outputs])
    try:
        low.compute(whole, inputs, outputs, ins)
    except UnsupportedError:
        shapes, results = [i.shape for i in ins.inputs], list(ins.shape.sub_shapes or [ins.shape])
        if all(all(map(known_equal, v.strides, s.strides)) for v, s in zip([*inputs, *outputs], [*shapes, *results])):
            raise
        own = [Tensor(s.type, s.lens, s.strides) for s in shapes]
        direct = _is_planned(low, problem(own, [v.tensor for v in outputs]))
        if not direct:  # raise before a copy is appended
            low.plan(problem(own, [Tensor(s.type, s.lens, s.strides) for s in results]))
        inputs = [low.materialized(v, s.strides, ins) for v, s in zip(inputs, shapes)]
        made = outputs if direct else [low.allocate(s) for s in results]
        low.compute(problem([v.tensor for v in inputs], [v.tensor for v in made]), inputs, made, ins)
        for source, target in zip(made, outputs):
            if source is not target:
                low.copy(source, target, ins)


def _is_planned(low: Lowering, problem: ReductionProblem) -> bool:
    try:
        low.plan(problem)
    except UnsupportedError:
        return False
    return True
